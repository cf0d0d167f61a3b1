//! Transactional submission: applications leave wishes in a table beside the store, are given ids, and go on; servers
//! make jobs of them by `jobs::intake`, which is also what a server calls with a wish that it has read. The table is
//! modelled after `store/postgres/intake.sql`: rows are locked by whoever took them, for as long as it lives and no
//! longer than [`KEEP`]; what is rolled back never was.
//! Servers die between job and row, are stopped for longer than their lock lasts, and lose answers.
//!
//! Every id that was given away is exactly one job in the end, with what was asked for in it, or failed for a reason
//! that there is; no job of an application exists that was not promised; and no row is left.

use super::{
    Off, judge,
    plan::{Draw, FLOW},
    read,
};
use crate::{
    executor::NodeId,
    scenario::Clients,
    world::{Env, World},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, time::Duration};
use tenure_jobs::{
    JobEvent,
    intake::{self, Taken, Wrong},
    model::OwnEvent,
    submit::{Submission, SubmitError, Submitter},
};
use tenure_kernel::{error::StoreError, ids::EntityId};
use tenure_store::memory::Contents;

const TENANT: &str = "t";
/// Who asked, in the jobs of this table.
const BY: &str = "application";
/// The longest that a server may keep rows to itself.
const KEEP: Duration = Duration::from_secs(30);
/// Rows that a server takes at once.
const AT_ONCE: usize = 3;
/// Why a wish may have failed.
pub(super) const REASONS: [&str; 3] = ["unknown_flow", "bad_options", "same_key"];

/// What an application wants.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wish {
    flow: String,
    input: Value,
    key: Option<String>,
    /// Its options can not be read.
    bad: bool,
}

#[derive(Clone, Debug)]
struct Row {
    wish: Wish,
    /// Who has it, and since when.
    taken: Option<((NodeId, u64), Duration)>,
    not_before: Duration,
}

/// The table, and what was promised.
#[derive(Default)]
pub(super) struct Table {
    rows: BTreeMap<EntityId, Row>,
    promised: BTreeMap<EntityId, Wish>,
}

impl Table {
    /// `submit` of the schema, and the commit of its caller: the id under which there will be a job.
    fn insert(&mut self, id: EntityId, wish: Wish, by_key: Option<EntityId>) -> EntityId {
        let same = |row: &Row| row.wish.key.is_some() && row.wish.key == wish.key;
        let waiting = self.rows.iter().find(|(_, row)| same(row)).map(|(id, _)| *id);
        if let Some(there) = by_key.or(waiting) {
            return there;
        }
        let row = Row { wish: wish.clone(), taken: None, not_before: Duration::ZERO };
        self.rows.insert(id, row);
        self.promised.insert(id, wish);
        id
    }

    fn take(
        &mut self,
        life: (NodeId, u64),
        now: Duration,
        is_alive: impl Fn((NodeId, u64)) -> bool,
    ) -> Vec<(EntityId, Wish)> {
        let free = |row: &Row| {
            row.taken.is_none_or(|(who, since)| !is_alive(who) || since + KEEP < now)
                && row.not_before <= now
        };
        let mine = self.rows.iter_mut().filter(|(_, row)| free(row)).take(AT_ONCE);
        mine.map(|(id, row)| {
            row.taken = Some((life, now));
            (*id, row.wish.clone())
        })
        .collect()
    }

    /// Whether the rows were still this server's: else its transaction is over, and nothing of it counts.
    fn settle(&mut self, life: (NodeId, u64), served: &intake::Served, now: Duration) -> bool {
        let all = || served.done.iter().chain(&served.later);
        let has = |id: &EntityId| {
            self.rows.get(id).and_then(|r| r.taken).is_some_and(|(who, _)| who == life)
        };
        if !all().all(has) {
            return false;
        }
        served.done.iter().for_each(|id| drop(self.rows.remove(id)));
        for id in &served.later {
            if let Some(row) = self.rows.get_mut(id) {
                (row.taken, row.not_before) = (None, now + Duration::from_secs(1));
            }
        }
        true
    }

    fn let_go(&mut self, life: (NodeId, u64)) {
        let mine = |row: &&mut Row| row.taken.is_some_and(|(who, _)| who == life);
        self.rows.values_mut().filter(mine).for_each(|row| row.taken = None);
    }
}

pub(crate) fn play(clients: &Clients, width: Option<u64>) {
    for i in 0..width.unwrap_or_else(|| 2 + clients.below(6)) {
        let c = clients.clone();
        clients.spawn(Box::pin(async move { application(c, i).await }));
    }
    super::clients::staff(clients);
}

/// Asks for a few jobs, in transactions of which some are rolled back, and waits until its wishes are served.
async fn application(c: Clients, i: u64) {
    let submitter = Submitter::new(c.pipeline.clone(), judge(), Duration::from_secs(300), 5);
    while !matches!(submitter.registered(TENANT, FLOW, None).await, Ok(Some(_))) {
        c.wait(Duration::from_secs(1)).await;
    }
    // A server may still see the time before that.
    c.wait(Duration::from_secs(10)).await;
    for n in 0..1 + c.below(4) {
        c.wait(c.some(Duration::from_secs(30))).await;
        let shared = c.below(4) == 0;
        let wish = wish(&c, i, n, shared);
        let id = c.id();
        if c.below(6) == 0 {
            // Rolled back: the id was never given to anybody.
            continue;
        }
        if shared && c.below(2) == 0 {
            // Somebody else wants the same, in another way, right now.
            let (c, wish) = (c.clone(), wish.clone());
            c.clone().spawn(Box::pin(async move { over_http(c, wish).await }));
        }
        let world = &c.env.world;
        let by_key = wish.key.as_ref().and_then(|key| {
            let name = format!("job/{}/{TENANT}/{key}", TENANT.len());
            world.store.inspect(|contents| contents.keys.get(&name).map(|(id, _)| *id))
        });
        let given = world.town.intake(|table| table.insert(id, wish.clone(), by_key));
        world.sim.trace(format!("an application is given {given}"));
    }
    while c.env.world.town.intake(|table| !table.rows.is_empty()) {
        c.wait(Duration::from_secs(2)).await;
    }
}

fn wish(c: &Clients, i: u64, n: u64, shared: bool) -> Wish {
    let flow = if c.below(8) == 0 { "nobody-has-it" } else { FLOW }.to_owned();
    if shared {
        // Whoever uses this key wants the same.
        let input = json!({ "body": { "sleep": 10 }, "then": null, "so_far": [] });
        return Wish { flow: FLOW.into(), input, key: Some("shared".into()), bad: false };
    }
    let plan = c.env.world.sim.draw(|rng| Draw::new(rng).short());
    let key = (c.below(2) == 0).then(|| format!("{i}-{n}"));
    Wish { flow, input: serde_json::to_value(plan).unwrap_or_default(), key, bad: c.below(8) == 0 }
}

async fn over_http(c: Clients, wish: Wish) {
    let submitter = Submitter::new(c.pipeline.clone(), judge(), Duration::from_secs(300), 5);
    loop {
        match submitter.submit(submission(&wish, "somebody else")).await {
            Ok(_) | Err(SubmitError::OtherInput(_)) => return,
            Err(SubmitError::Store(e)) if e.is_transient() => {}
            Err(SubmitError::UnknownFlow { .. }) => {}
            Err(e) => return c.env.world.fail(format!("over HTTP: {e}")),
        }
        c.wait(Duration::from_secs(1)).await;
    }
}

fn submission(wish: &Wish, by: &str) -> Submission {
    Submission {
        flow: wish.flow.clone(),
        input: wish.input.clone(),
        tenant: TENANT.into(),
        key: wish.key.clone(),
        must_end_in: Some(Duration::from_secs(300)),
        by: Some(by.into()),
        ..Submission::default()
    }
}

/// The loop of a server.
pub(crate) async fn serve(env: Env) {
    let config = super::process::config();
    let pipeline = env.pipeline(env.rt.clone(), &config, super::machines());
    let submitter = Submitter::new(pipeline, judge(), Duration::from_secs(300), 5);
    while !env.stop.is_asked() {
        if round(&env, &submitter).await.is_err() {
            env.world.town.intake(|table| table.let_go(env.life));
        }
        env.rt.sleep(Duration::from_secs(2)).await;
    }
    env.world.town.intake(|table| table.let_go(env.life));
}

async fn round(env: &Env, submitter: &Submitter) -> Result<(), StoreError> {
    let (town, sim) = (&env.world.town, &env.world.sim);
    // The table lies where the store does, and is as far away.
    env.store.now().await?;
    let is_alive = |(node, life)| sim.is_alive(node, life);
    let taken = town.intake(|table| table.take(env.life, sim.now(), is_alive));
    let off = town.setup().off;
    if off == Some(Off::IntakeOrder) {
        let done = taken.iter().map(|(id, _)| *id).collect();
        let served = intake::Served { done, later: Vec::new() };
        town.intake(|table| table.settle(env.life, &served, sim.now()));
    }
    let wishes = taken.into_iter().map(|(id, wish)| (id, one(submitter, id, wish, off)));
    let served = intake::serve(wishes).await;
    if let Err(e) = env.store.now().await {
        // Committed, and nobody said so; or not.
        if sim.draw(|rng| rng.permille(500)) {
            town.intake(|table| table.settle(env.life, &served, sim.now()));
        }
        return Err(e);
    }
    town.intake(|table| table.settle(env.life, &served, sim.now()));
    Ok(())
}

async fn one(
    submitter: &Submitter,
    id: EntityId,
    wish: Wish,
    off: Option<Off>,
) -> Result<Taken, StoreError> {
    let whole = submission(&wish, BY);
    if off == Some(Off::IntakeId) {
        return match submitter.submit(Submission { key: None, ..whole }).await {
            Err(SubmitError::Store(e)) => Err(e),
            // A flow that nobody has is refused, and the row is done with.
            Ok(_) | Err(_) => Ok(Taken::Created),
        };
    }
    let bare = Submission { key: None, ..whole.clone() };
    let wanted = match wish.bad {
        true => Err(Wrong("bad_options", "its options can not be read".into())),
        false => Ok(whole),
    };
    intake::take_in(submitter, id, wanted, bare).await
}

pub(crate) fn check(world: &World, contents: &Contents) -> Result<(), String> {
    let promised = world.town.intake(|table| table.promised.clone());
    for (id, wish) in &promised {
        let events = read::events(contents, *id)?;
        let Some(JobEvent::Own(OwnEvent::JobCreated(new))) = events.first().map(|e| &e.event)
        else {
            return Err(format!("{id} was promised and is not there"));
        };
        if new.flow != wish.flow || new.input != wish.input {
            return Err(format!("{id}: {wish:?} was promised, and it is {new:?}"));
        }
        let failed = events.iter().find_map(|e| match &e.event {
            JobEvent::Own(OwnEvent::JobFailed(f)) => Some(f.reason.as_str()),
            _ => None,
        });
        let other = wish.key.as_ref().is_some_and(|key| {
            let name = format!("job/{}/{TENANT}/{key}", TENANT.len());
            contents.keys.get(&name).is_some_and(|(job, _)| job != id)
        });
        let fits = match failed {
            Some("bad_options") => wish.bad,
            Some("unknown_flow") => wish.flow != FLOW && !wish.bad,
            Some("same_key") => other,
            _ => !wish.bad && wish.flow == FLOW && !other,
        };
        if !fits {
            return Err(format!("{id}: {wish:?} came to {failed:?}"));
        }
    }
    for head in contents.rows.heads.values().filter(|h| h.kind() == "job") {
        let events = read::events(contents, head.id)?;
        let of_it = |e: &JobEvent| matches!(e, JobEvent::Own(OwnEvent::JobCreated(new)) if new.by.as_deref() == Some(BY));
        if events.iter().any(|e| of_it(&e.event)) && !promised.contains_key(&head.id) {
            return Err(format!("{}: nobody was promised this job", head.id));
        }
    }
    Ok(())
}
