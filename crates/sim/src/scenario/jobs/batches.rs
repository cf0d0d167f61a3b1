//! Batches and debounce: many who submit under a few keys, again when nobody answers, while servers that collect die and
//! see the past. Whoever submits keeps a list of its own; what must hold is told from that list, from the jobs that
//! came out and from the town, in which their items were sent:
//!
//! - every submission to a batch is in exactly one job, and sent once; of a debounce the last of a group is, and the group
//!   is everything between two jobs;
//! - nothing waits longer than it was said to, once the storm is over;
//! - a batch that is not used any more leaves nothing open. In some worlds it leaves, and comes again ([`super::seasons`]).

use super::{Off, check::PROMPT, clients, judge, plan::Luck, read, seasons, town::Craft};
use crate::{scenario::Clients, world::World};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tenure_jobs::{
    JobEvent,
    model::OwnEvent,
    shared::batch::{
        Batch, Event, Mode,
        desk::{BatchError, Batches, id_of},
        model::{Item, Wanted},
    },
    submit::{Submission, SubmitError, Submitter},
};
use tenure_kernel::{
    error::StoreError,
    head::Head,
    ids::EntityId,
    machine::{decode_event, decode_state},
    time::Timestamp,
};
use tenure_steps::{Ctx, FlowError, flow::FlowSpec};
use tenure_store::memory::Contents;

const TENANT: &str = "t";
const FLOW: &str = "gather";

/// What somebody submitted and was told that it is taken in.
#[derive(Clone, Debug)]
pub(super) struct Submitted {
    batch: EntityId,
    debounce: bool,
    n: u32,
    within: Duration,
}

/// Sends every item of its batch, or the one that a debounce left.
pub(super) fn flow() -> FlowSpec {
    FlowSpec::new(FLOW, |ctx: Ctx, input: Value| async move {
        let items = match input["items"].as_array() {
            Some(items) => items.clone(),
            None => vec![input],
        };
        let mut sent = Vec::new();
        for item in items {
            // The town counts them; what goes wrong on the way is tried again.
            let receipt = ctx.tool::<Value>(Craft::Send.name(), item.clone());
            let receipt = receipt.retries(20, Duration::from_millis(300)).await;
            sent.push(json!({ "n": item["n"], "sent": receipt.is_ok() }));
        }
        Ok::<_, FlowError>(Value::from(sent))
    })
}

pub(crate) fn play(clients: &Clients, width: Option<u64>) {
    let keys = 1 + clients.below(3);
    let modes: Vec<Mode> = (0..keys).map(|_| mode(clients)).collect();
    let many = width.unwrap_or_else(|| 2 + clients.below(5));
    come(clients, 0..many, &modes);
    seasons::play(clients, "batch", move |clients, season| {
        come(clients, season * 1_000..season * 1_000 + many, &modes);
    });
    clients::staff(clients);
}

fn come(clients: &Clients, who: std::ops::Range<u64>, modes: &[Mode]) {
    for i in who {
        let (c, modes) = (clients.clone(), modes.to_vec());
        clients.spawn(Box::pin(async move { submit(c, i, modes).await }));
    }
}

fn mode(c: &Clients) -> Mode {
    let within_ms = 1_000 + c.below(40_000);
    match c.below(2) {
        0 => Mode::Batch { max: 1 + u32::try_from(c.below(6)).unwrap_or(0), within_ms },
        _ => Mode::Debounce { quiet_ms: 1 + c.below(within_ms.min(15_000)), within_ms },
    }
}

async fn submit(c: Clients, i: u64, modes: Vec<Mode>) {
    let off = c.env.world.town.setup().off;
    for turn in 0..1 + c.below(8) {
        c.wait(c.some(Duration::from_secs(25))).await;
        let which = usize::try_from(c.below(modes.len() as u64)).unwrap_or(0);
        let (mode, key) = (modes[which], format!("key-{which}"));
        let n = u32::try_from(i * 100 + turn).unwrap_or(u32::MAX);
        if matches!(mode, Mode::Debounce { .. }) && c.below(8) == 0 {
            overtake(&c, &key, mode, n).await;
            continue;
        }
        let asked = match (off, mode) {
            (Some(Off::BatchTime), Mode::Batch { max, within_ms }) => {
                Mode::Batch { max: max + 50, within_ms: within_ms * 50 }
            }
            (Some(Off::BatchTime), Mode::Debounce { within_ms, .. }) => {
                Mode::Debounce { quiet_ms: within_ms * 50, within_ms: within_ms * 50 }
            }
            _ => mode,
        };
        // Sometimes it is sent again although it was answered.
        for _ in 0..1 + c.below(5) / 4 {
            let item = Item { input: json!(luck(&c, n)), mode: asked, job: wanted() };
            take_in(&c, &key, n, item, off != Some(Off::ItemKey)).await;
        }
        let (batch, within) = (id_of(TENANT, FLOW, mode, &key), mode.within());
        let debounce = matches!(mode, Mode::Debounce { .. });
        c.env.world.town.note_submitted(Submitted { batch, debounce, n, within });
    }
    // A batch rests whatever it has: somebody has to want to see the end of it.
    while c.env.world.store.inspect(|contents| contents.rows.heads.values().any(|h| has_open(h))) {
        c.wait(Duration::from_secs(3)).await;
    }
}

fn has_open(head: &Head) -> bool {
    let state = (head.kind() == "batch").then(|| decode_state::<Batch>(&head.state).ok()).flatten();
    head.has_mail() || state.is_some_and(|s| s.items > 0)
}

fn luck(c: &Clients, n: u32) -> Luck {
    let fails = if c.below(3) == 0 { 200 } else { 0 };
    Luck { n, fails, slow: 0 }
}

fn wanted() -> Wanted {
    Wanted { version: 1, must_end_in_ms: 3_600_000, takeovers_max: 100, ..Wanted::default() }
}

/// Asks until it is answered.
async fn take_in(c: &Clients, key: &str, n: u32, item: Item, known: bool) {
    let name = format!("item-{n}");
    let name = known.then_some(name.as_str());
    loop {
        match Batches(c.pipeline.clone()).add(TENANT, FLOW, key, item.clone(), name).await {
            Ok(_) => return,
            Err(BatchError::Store(e)) if StoreError::is_transient(&e) => {}
            Err(e) => return c.env.world.fail(format!("item {n} was refused: {e}")),
        }
        c.wait(Duration::from_secs(1)).await;
    }
}

/// One that is too large to be collected: it becomes a job at once, and then the batch is told.
async fn overtake(c: &Clients, key: &str, mode: Mode, n: u32) {
    let submitter = Submitter::new(c.pipeline.clone(), judge(), Duration::from_secs(3_600), 100);
    let submission = Submission {
        flow: FLOW.into(),
        input: json!(luck(c, n)),
        tenant: TENANT.into(),
        key: Some(format!("large-{n}")),
        ..Submission::default()
    };
    let job = loop {
        match submitter.submit(submission.clone()).await {
            Ok(done) => break done.id,
            Err(SubmitError::UnknownFlow { .. }) => {}
            Err(SubmitError::Store(e)) if e.is_transient() => {}
            Err(e) => return c.env.world.fail(format!("item {n} can not be a job: {e}")),
        }
        c.wait(Duration::from_secs(1)).await;
    };
    loop {
        match Batches(c.pipeline.clone()).overtaken(TENANT, FLOW, key, mode, job).await {
            Ok(_) => return,
            Err(BatchError::Store(e)) if StoreError::is_transient(&e) => {}
            Err(e) => return c.env.world.fail(format!("{job} could not be told: {e}")),
        }
        c.wait(Duration::from_secs(1)).await;
    }
}

/// Submissions between two jobs of a batch, when each had arrived, and what came of them.
#[derive(Default)]
struct Group {
    items: Vec<(u32, Timestamp)>,
    /// The job, and when it was decided; nothing where it was made before.
    closed: Option<(EntityId, Timestamp, bool)>,
}

pub(crate) fn check(world: &World, contents: &Contents, calm_at: Timestamp) -> Result<(), String> {
    let submitted = world.town.submitted();
    let batches: BTreeSet<EntityId> = submitted.iter().map(|s| s.batch).collect();
    let mut seen: BTreeMap<EntityId, BTreeSet<u32>> = BTreeMap::new();
    for head in contents.rows.heads.values().filter(|h| h.kind() == "batch") {
        let groups = groups(contents, head.id)?;
        let mine = seen.entry(head.id).or_default();
        for group in &groups {
            for (n, _) in &group.items {
                if !mine.insert(*n) {
                    return Err(format!("{}: item {n} is collected twice", head.id));
                }
            }
            let of_it = submitted.iter().find(|s| s.batch == head.id);
            let debounce = of_it.is_some_and(|s| s.debounce);
            let within = of_it.map(|s| s.within);
            came_of(head.id, group, debounce, within, contents, calm_at)?;
        }
    }
    for item in &submitted {
        if !seen.get(&item.batch).is_some_and(|s| s.contains(&item.n)) {
            return Err(format!("{}: item {} was taken in and is nowhere", item.batch, item.n));
        }
    }
    match seen.keys().find(|id| !batches.contains(id) && !seen[*id].is_empty()) {
        Some(id) => Err(format!("{id}: nobody submitted what it has collected")),
        None => Ok(()),
    }
}

/// What a batch did, read without its machine.
fn groups(contents: &Contents, batch: EntityId) -> Result<Vec<Group>, String> {
    let mail = contents.mail.get(&batch).map_or(&[][..], Vec::as_slice);
    let arrived: BTreeMap<&str, Timestamp> = mail.iter().map(|m| (m.id.0.as_str(), m.at)).collect();
    let mut groups = vec![Group::default()];
    for record in contents.streams.get(&batch).map_or(&[][..], Vec::as_slice) {
        for event in record.events().map_err(|e| e.to_string())? {
            let read =
                decode_event::<Batch>(&event.name, &event.body).map_err(|e| e.to_string())?;
            let Some(group) = groups.last_mut() else { continue };
            match read {
                Some(Event::ItemCollected { id, item, .. }) => {
                    let n = item.input["n"].as_u64().and_then(|n| u32::try_from(n).ok());
                    let at = arrived.get(id.as_str()).copied();
                    let (Some(n), Some(at)) = (n, at) else {
                        return Err(format!("{batch}: {id} was collected and never arrived"));
                    };
                    group.items.push((n, at));
                }
                Some(Event::BatchClosed(made)) => {
                    group.closed = Some((made.job, event.at, made.why == "overtaken"));
                    groups.push(Group::default());
                }
                Some(Event::BatchJobRefused { job, why }) => {
                    return Err(format!("{batch}: {job} was not created: {why}"));
                }
                _ => {}
            }
        }
    }
    Ok(groups)
}

/// Every group became one job, in time, and that has in it what it should.
fn came_of(
    batch: EntityId,
    group: &Group,
    debounce: bool,
    within: Option<Duration>,
    contents: &Contents,
    calm_at: Timestamp,
) -> Result<(), String> {
    let Some((job, closed, overtaken)) = group.closed else {
        return match group.items.first() {
            Some((n, _)) => Err(format!("{batch}: item {n} waits for ever")),
            None => Ok(()),
        };
    };
    let first = group.items.first().map(|(_, at)| *at);
    if let (Some(first), Some(within)) = (first, within)
        && closed > (first + within).max(calm_at) + PROMPT
    {
        let waited = closed.since(first);
        return Err(format!("{batch}: an item waited {waited:?}, and may wait {within:?}"));
    }
    let events = read::events(contents, job)?;
    let Some(JobEvent::Own(OwnEvent::JobCreated(new))) = events.first().map(|e| &e.event) else {
        return Err(format!("{batch}: its job {job} is not there"));
    };
    let numbers = |value: &Value| value["n"].as_u64();
    let there: Vec<Option<u64>> = match new.input["items"].as_array() {
        Some(items) => items.iter().map(numbers).collect(),
        None => vec![numbers(&new.input)],
    };
    let mut collected = group.items.iter().map(|(n, _)| Some(u64::from(*n)));
    let wanted: Vec<Option<u64>> = match debounce {
        true => collected.next_back().into_iter().collect(),
        false => collected.collect(),
    };
    if !overtaken && there != wanted {
        return Err(format!("{batch}: {wanted:?} were collected, {job} has {there:?}"));
    }
    let Some(output) = read::output(&events) else {
        return Err(format!("{job}: of a batch, and it did not complete"));
    };
    let sent = output.as_array().map_or(0, Vec::len);
    match sent == there.len() {
        true => Ok(()),
        false => Err(format!("{job}: has {} items and sent {sent}", there.len())),
    }
}
