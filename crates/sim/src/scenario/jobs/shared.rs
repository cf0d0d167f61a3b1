//! What jobs share, in the same world: rate limits in front of the town's tools, and schedules that create jobs. Both are
//! rested on by real shells under every fault; what must hold is said here over the streams, in words of its own.

use super::{
    clients, judge,
    plan::{Draw, FLOW},
    read,
    town::Craft,
};
use crate::{scenario::Clients, world::World};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tenure_jobs::{
    JobEvent,
    model::{OwnEvent, Scheduled},
    shared::{
        limit::{
            Limit, Spec as LimitSpec,
            desk::{LimitError, Limits, id_of},
            each,
            model::{EACH, EVERYBODY},
        },
        schedule::{
            Event, Missed, Overlap, Schedule, Spec,
            desk::{ScheduleError, Schedules},
        },
    },
    submit::Submitter,
};
use tenure_kernel::{
    error::StoreError,
    ids::EntityId,
    machine::{Machine, decode_event, decode_state},
    time::Timestamp,
};
use tenure_steps::events::StepEvent;
use tenure_store::memory::Contents;

const TENANT: &str = "t";

/// Asks until it is answered.
macro_rules! insist {
    ($c:expr, $ask:expr) => {
        loop {
            match $ask.await {
                Ok(_) => break,
                Err(e) if Transient::is_transient(&e) => $c.wait(Duration::from_secs(1)).await,
                Err(e) => {
                    $c.env.world.fail(format!("a change was refused: {e}"));
                    break;
                }
            }
        }
    };
}

/// Jobs under limits: those are set before the first job is submitted, so every call has to pass them.
pub(crate) fn play_limits(clients: &Clients, width: Option<u64>) {
    let c = clients.clone();
    clients.spawn(Box::pin(async move {
        for craft in Craft::ALL {
            if c.below(3) == 0 {
                continue;
            }
            // The slowest have more waiting than fits into the horizon: those stand in a line, and some are cancelled there.
            let (count, per_ms) =
                [(4, 1_000), (1, 1_000), (40, 60_000), (12, 60_000), (6, 60_000), (3, 60_000)]
                    [usize::try_from(c.below(6)).unwrap_or(0)];
            let spec = LimitSpec {
                tool: craft.name().into(),
                tenant: [TENANT, EVERYBODY, EACH][usize::try_from(c.below(3)).unwrap_or(0)].into(),
                count,
                per_ms,
                burst: 1 + u32::try_from(c.below(3)).unwrap_or(0),
                block: 1 + u32::try_from(c.below(4)).unwrap_or(0),
                by_operator: true,
                from_each: None,
            };
            insist!(c, Limits(c.pipeline.clone()).set(spec.clone(), None));
        }
        clients::play(&c, width);
    }));
}

/// Schedules that are set, changed, paused and removed while everything goes wrong around them.
pub(crate) fn play_schedules(clients: &Clients) {
    // The office looks after the jobs.
    clients::play(clients, Some(0));
    for n in 0..1 + clients.below(3) {
        let c = clients.clone();
        clients.spawn(Box::pin(async move { keep(c, n).await }));
    }
}

async fn keep(c: Clients, n: u64) {
    let name = format!("schedule-{n}");
    let schedules = Schedules(c.pipeline.clone());
    let submitter = Submitter::new(c.pipeline.clone(), judge(), Duration::from_secs(300), 5);
    // A flow that nobody has registered yet could not be set.
    while !matches!(submitter.registered(TENANT, FLOW, None).await, Ok(Some(_))) {
        c.wait(Duration::from_secs(1)).await;
    }
    let mut wanted = spec(&c);
    insist!(c, schedules.set(TENANT, &name, wanted.clone(), None));
    for turn in 0..2 + c.below(6) {
        c.wait(c.some(Duration::from_secs(60))).await;
        match c.below(5) {
            0 => {
                wanted.input = plan(&c);
                insist!(c, schedules.set(TENANT, &name, wanted.clone(), None));
            }
            1 => {
                // The calendar itself, and its policies.
                wanted = spec(&c);
                insist!(c, schedules.set(TENANT, &name, wanted.clone(), None));
            }
            2 => {
                insist!(c, schedules.pause(TENANT, &name, None));
                c.wait(c.some(Duration::from_secs(40))).await;
                insist!(c, schedules.resume(TENANT, &name, None));
            }
            3 => {
                let key = format!("by-hand-{turn}");
                insist!(c, schedules.fire(TENANT, &name, Some(&key), None));
            }
            _ => {}
        }
    }
    let removed = async || match schedules.remove(TENANT, &name, None).await {
        // An earlier try did it, and its answer was lost.
        Err(ScheduleError::Absent(_)) => Ok(false),
        other => other,
    };
    insist!(c, removed());
}

fn plan(c: &Clients) -> serde_json::Value {
    let plan = c.env.world.sim.draw(|rng| Draw::new(rng).short());
    serde_json::to_value(plan).unwrap_or_default()
}

fn spec(c: &Clients) -> Spec {
    let zones = ["UTC", "Europe/Berlin", "Asia/Kathmandu"];
    let pick = |n: u64| usize::try_from(c.below(n)).unwrap_or(0);
    let cron = c.below(2) == 0;
    Spec {
        cron: cron.then(|| CRON.to_owned()),
        every_ms: (!cron).then(|| 4_000 + 1_000 * c.below(20)),
        zone: zones[pick(3)].into(),
        flow: FLOW.into(),
        version: 1,
        input: plan(c),
        must_end_in_ms: 300_000,
        takeovers_max: 5,
        missed: [Missed::Skip, Missed::Once, Missed::All][pick(3)],
        overlap: [Overlap::Allow, Overlap::Skip][pick(2)],
        jitter_ms: if c.below(3) == 0 { 3_000 } else { 0 },
        ..Spec::default()
    }
}

const CRON: &str = "*/17 * * * * *";

/// Whether the expression above names this second: no zone here is off by a part of a minute.
fn is_cron_second(second: i64) -> bool {
    second.rem_euclid(60) % 17 == 0
}

trait Transient {
    fn is_transient(&self) -> bool;
}

impl Transient for LimitError {
    fn is_transient(&self) -> bool {
        matches!(self, LimitError::Store(e) if StoreError::is_transient(e))
    }
}

impl Transient for ScheduleError {
    fn is_transient(&self) -> bool {
        matches!(self, ScheduleError::Store(e) if StoreError::is_transient(e))
    }
}

/// No more calls than tokens; and where clocks are good, none before its time.
pub(crate) fn check_limits(world: &World, contents: &Contents) -> Result<(), String> {
    let mut started: BTreeMap<String, Vec<Timestamp>> = BTreeMap::new();
    for head in contents.rows.heads.values().filter(|h| h.kind() == "job") {
        let (mut calls, mut waits) = (0, 0);
        for entry in read::events(contents, head.id)? {
            match entry.event {
                JobEvent::Step(StepEvent::ToolInvocationStarted { tool, .. }) => {
                    calls += 1;
                    started.entry(tool).or_default().push(entry.at);
                }
                JobEvent::Step(StepEvent::TimerSet { limit: Some(_), .. }) => waits += 1,
                _ => {}
            }
        }
        looks_rarely(head.id, calls, waits)?;
    }
    for (tool, mut moments) in started {
        moments.sort();
        let whose = [
            (TENANT, id_of(TENANT, &tool)),
            (EVERYBODY, id_of(EVERYBODY, &tool)),
            (EACH, each::id_of(TENANT, &tool)),
        ];
        for (tenant, id) in whose {
            let Some(head) = contents.rows.heads.get(&id) else { continue };
            let state = decode_state::<Limit>(&head.state).map_err(|e| e.to_string())?;
            let calls = moments.len() as u64;
            if calls > state.taken {
                return Err(format!(
                    "{tool}: {calls} calls with {} tokens of {tenant}",
                    state.taken
                ));
            }
            within_horizon(contents, id)?;
            let spec = state.spec.ok_or("a limit is gone")?;
            let first = first_block(contents, id)?;
            if world.town.setup().punctual {
                never_ahead(&tool, &spec, first, &moments)?;
            }
        }
    }
    Ok(())
}

/// Nobody has taken what was good much later, by its own clock: that is lost with a cancel, and others wait behind it.
fn within_horizon(contents: &Contents, limit: EntityId) -> Result<(), String> {
    use tenure_jobs::shared::limit::{Event as E, State, model::limits::HORIZON};
    let most = i64::try_from(HORIZON.as_nanos()).unwrap_or(i64::MAX);
    let mut state = State::default();
    for record in contents.streams.get(&limit).map_or(&[][..], Vec::as_slice) {
        for event in record.events().map_err(|e| e.to_string())? {
            let event =
                decode_event::<Limit>(&event.name, &event.body).map_err(|e| e.to_string())?;
            let Some(event) = event else { continue };
            if let (E::TokensTaken { taker: Some(taker), .. }, Some(spec)) = (&event, &state.spec) {
                let interval = i64::try_from(spec.interval().as_nanos()).unwrap_or(i64::MAX);
                let from = state.next_ns - i64::from(spec.burst - 1) * interval;
                if from - taker.at_ns > most {
                    return Err(format!(
                        "{limit}: a token was taken {} ns ahead",
                        from - taker.at_ns
                    ));
                }
            }
            Limit::apply(&mut state, &event);
        }
    }
    Ok(())
}

/// A wait for a limit is written down once, and once for each look: those are few, however long it is.
fn looks_rarely(job: EntityId, calls: u64, waits: u64) -> Result<(), String> {
    match waits > 20 + 8 * calls {
        true => Err(format!("{job}: {waits} waits for limits on record, for {calls} calls")),
        false => Ok(()),
    }
}

/// When the virtual schedule of a limit began.
fn first_block(contents: &Contents, limit: EntityId) -> Result<Timestamp, String> {
    use tenure_jobs::shared::limit::Event as E;
    let (mut spec, mut first) = (None, None);
    for record in contents.streams.get(&limit).map_or(&[][..], Vec::as_slice) {
        for event in record.events().map_err(|e| e.to_string())? {
            match decode_event::<Limit>(&event.name, &event.body).map_err(|e| e.to_string())? {
                Some(E::LimitSet { spec: set, .. }) => spec = Some(set),
                Some(E::TokensTaken { count, next_ns, .. }) if first.is_none() => {
                    let interval = spec.as_ref().map_or(0, |s| s.interval().as_nanos());
                    let before = next_ns - i64::from(count) * i64::try_from(interval).unwrap_or(0);
                    first = Some(Timestamp::from_micros(before / 1_000));
                }
                _ => {}
            }
        }
    }
    first.ok_or_else(|| "calls, and no token was ever taken".to_owned())
}

fn never_ahead(
    tool: &str,
    spec: &LimitSpec,
    first: Timestamp,
    moments: &[Timestamp],
) -> Result<(), String> {
    let interval = spec.interval().as_nanos().max(1);
    for (n, moment) in moments.iter().enumerate() {
        let allowed = moment.since(first).as_nanos() / interval + u128::from(spec.burst);
        if n as u128 >= allowed {
            let after = moment.since(first);
            return Err(format!("{tool}: call {n} after {after:?}, and {allowed} were allowed"));
        }
    }
    Ok(())
}

/// Every nominal time is dealt with once, and what is on record as a job is one.
pub(crate) fn check_schedules(contents: &Contents) -> Result<(), String> {
    let mut fires: BTreeMap<EntityId, (String, Timestamp)> = BTreeMap::new();
    for head in contents.rows.heads.values().filter(|h| h.kind() == "schedule") {
        follow(contents, head.id, &mut fires)?;
    }
    let mut jobs = BTreeSet::new();
    for head in contents.rows.heads.values().filter(|h| h.kind() == "job") {
        let events = read::events(contents, head.id)?;
        let Some(JobEvent::Own(OwnEvent::JobCreated(new))) = events.first().map(|e| &e.event)
        else {
            continue;
        };
        let Some(Scheduled { schedule, nominal }) = &new.scheduled else { continue };
        match fires.get(&head.id) {
            Some((name, at)) if name == schedule && at == nominal => jobs.insert(head.id),
            found => {
                return Err(format!(
                    "{}: for {schedule} at {nominal}, on record {found:?}",
                    head.id
                ));
            }
        };
    }
    match fires.keys().find(|job| !jobs.contains(job)) {
        Some(job) => Err(format!("{job} is on record as fired and is not there")),
        None => Ok(()),
    }
}

fn follow(
    contents: &Contents,
    id: EntityId,
    fires: &mut BTreeMap<EntityId, (String, Timestamp)>,
) -> Result<(), String> {
    let mut state = <Schedule as Machine>::State::default();
    let mut nominals = BTreeSet::new();
    for record in contents.streams.get(&id).map_or(&[][..], Vec::as_slice) {
        for event in record.events().map_err(|e| e.to_string())? {
            let event =
                decode_event::<Schedule>(&event.name, &event.body).map_err(|e| e.to_string())?;
            let Some(event) = event else { continue };
            match &event {
                Event::ScheduleFired { fires: now, missed, overlapped, through, .. } => {
                    let spec = state.spec.as_ref().ok_or("fired without a calendar")?;
                    let there = count(spec, state.anchor, state.through, *through);
                    let dealt = now.len() as u64 + missed + overlapped;
                    if there != dealt {
                        return Err(format!(
                            "{id}: {there} times until {through}, {dealt} dealt with"
                        ));
                    }
                    for fire in now {
                        if !nominals.insert(fire.nominal) || fire.nominal > fire.at {
                            return Err(format!("{id}: {} fired twice or too early", fire.nominal));
                        }
                        fires.insert(fire.job, (state.name.clone(), fire.nominal));
                    }
                }
                Event::ScheduleFiredByHand { fire, .. } => {
                    fires.insert(fire.job, (state.name.clone(), fire.nominal));
                }
                Event::ScheduledJobEnded { job, status, why } if status == "not_created" => {
                    return Err(format!("{id}: {job} was not created: {why:?}"));
                }
                _ => {}
            }
            Schedule::apply(&mut state, &event);
        }
    }
    Ok(())
}

/// Nominal times after one moment and up to another.
fn count(spec: &Spec, anchor: Timestamp, after: Timestamp, upto: Timestamp) -> u64 {
    let (after, upto) = (after.as_micros(), upto.as_micros());
    if let Some(ms) = spec.every_ms {
        let every = i64::try_from(ms).unwrap_or(i64::MAX) * 1_000;
        let number = |t: i64| (t - anchor.as_micros()).div_euclid(every).max(0);
        return u64::try_from(number(upto) - number(after)).unwrap_or(0);
    }
    let second = 1_000_000;
    let all = after.div_euclid(second) + 1..=upto.div_euclid(second);
    all.filter(|s| is_cron_second(*s)).count() as u64
}
