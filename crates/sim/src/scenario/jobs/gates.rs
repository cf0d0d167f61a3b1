//! Gates: the same jobs, each behind a gate, some with a delay, while somebody changes a limit. What must hold beside
//! everything that holds of jobs: never more of them are past a gate than it lets through. That is told twice and not
//! by the gate: by the town, in which their calls begin, and from the jobs' own histories. In the end nobody holds a
//! permit and nobody waits. In some worlds the gates leave with retention and come again ([`super::seasons`]).

use super::{
    Off,
    clients::{self, Wish},
    plan::Draw,
    read, seasons,
};
use crate::{rng::Rng, scenario::Clients, world::World};
use std::{collections::BTreeMap, time::Duration};
use tenure_jobs::{
    Job, JobEvent,
    gate::{
        Gate, GateEvent, GateState,
        desk::{GateError, Gates},
        gate_id, limits,
    },
    model::OwnEvent,
    terms::{GateTerm, Terms},
};
use tenure_kernel::{
    error::StoreError,
    ids::EntityId,
    machine::{decode_event, decode_state},
    table::Class,
    time::Timestamp,
};
use tenure_steps::events::StepEvent;
use tenure_store::memory::Contents;

const TENANT: &str = "t";
/// The gate whose limit changes.
const ANY: &str = "any";
/// The most that anybody ever sets there.
const ANY_MAX: u32 = 3;
/// More jobs than this, and they are submitted and left alone.
const LINE: u64 = 1_000;

/// The most that a gate of the simulation should ever let through.
fn most(name: &str) -> u32 {
    match name {
        "one" => 1,
        "two" => 2,
        _ => ANY_MAX,
    }
}

pub(crate) fn play(clients: &Clients, width: Option<u64>) {
    let world = &clients.env.world;
    // In some worlds the line is longer than a gate's window.
    let wide = world.sim.draw(|rng| rng.permille(12).then(|| beyond(rng)));
    // But not where they come again: a job of such a line lasts longer than a season.
    let wide = wide.filter(|_| world.town.setup().seasons == 0);
    let jobs = width.or(wide).unwrap_or_else(|| 3 + clients.below(10));
    let long = jobs > limits::WINDOW_MAX as u64;
    let wish = |plan: fn(&mut Draw<'_>) -> _| {
        let mut wish = Wish { cancelled: 4, ..Wish::draw(world, plan) };
        wish.terms = terms(world, long);
        if long {
            wish.must_end_in = Duration::from_secs(30 * 24 * 3_600);
        }
        wish
    };
    if jobs > LINE {
        world.sim.allow(jobs * 300);
        let mut shares: Vec<Vec<(u64, Wish)>> = (0..20).map(|_| Vec::new()).collect();
        let all = (0..jobs).map(|i| (i, wish(|draw| draw.plain())));
        all.for_each(|(i, wish)| shares[(i % 20) as usize].push((i, wish)));
        for share in shares {
            clients.spawn(Box::pin(clients::submit_all(clients.clone(), share)));
        }
        return;
    }
    for i in 0..jobs {
        let wish = if long { wish(|draw| draw.single()) } else { wish(|draw| draw.plan(1)) };
        wish.spawn(clients, i);
    }
    seasons::play(clients, "gate", come);
    let c = clients.clone();
    clients.spawn(Box::pin(async move { change(c).await }));
    clients::staff(clients);
}

/// A few jobs more, in a later season.
fn come(clients: &Clients, season: u64) {
    let world = &clients.env.world;
    for i in 0..2 + clients.below(6) {
        let mut wish = Wish { cancelled: 4, ..Wish::draw(world, |draw| draw.plan(1)) };
        wish.terms = terms(world, false);
        wish.spawn(clients, season * LINE + i);
    }
}

fn beyond(rng: &mut Rng) -> u64 {
    (limits::WINDOW_MAX + limits::PAGE_MAX) as u64 + 20 + rng.below(60)
}

/// Draws the terms of a job.
fn terms(world: &World, long: bool) -> Terms {
    let (gate, delay) =
        world.sim.draw(|rng| (rng.index(4), rng.permille(250).then(|| 1 + rng.below(90_000))));
    let name = if long { "one" } else { ["one", "one", "two", ANY][gate] };
    let more = if world.town.setup().off == Some(Off::GateLimit) { 2 } else { 0 };
    let limit = Some(most(name) + more);
    let gate = Some(Box::new(GateTerm { name: name.into(), limit, id: None }));
    Terms { start_in_ms: delay.filter(|_| !long), gate, ..Terms::default() }
}

/// Somebody changes the limit of a gate now and then.
async fn change(c: Clients) {
    for _ in 0..c.below(6) {
        c.wait(c.some(Duration::from_secs(60))).await;
        let limit = 1 + u32::try_from(c.below(u64::from(ANY_MAX))).unwrap_or(0);
        loop {
            match Gates(c.pipeline.clone()).set(TENANT, ANY, limit, "ann", true).await {
                Ok(()) => break,
                Err(GateError::Store(e)) if StoreError::is_transient(&e) => {}
                Err(e) => return c.env.world.fail(format!("a limit was refused: {e}")),
            }
            c.wait(Duration::from_secs(1)).await;
        }
    }
}

/// The town looks who is past the gate whenever a job calls something: who has called and is not over. Taken over,
/// it is still the same job.
pub(super) fn call_begins(world: &World, job: EntityId) {
    let broken = world.store.inspect(|contents| {
        let head = contents.rows.heads.get(&job)?;
        let gate = decode_state::<Job>(&head.state).ok()?.terms.gate?;
        let is_open =
            |id: &EntityId| contents.rows.heads.get(id).is_some_and(|h| h.class() != Class::Final);
        let past = world.town.pass(&gate.name, job, is_open);
        let many = past.len() > most(&gate.name) as usize;
        many.then(|| format!("{} jobs work past the gate {}: {past:?}", past.len(), gate.name))
    });
    if let Some(broken) = broken {
        world.fail(broken);
    }
}

/// A job that was let through: when it asked, when it was ready and when it was over.
#[derive(Clone, Copy)]
struct Pass {
    asked: Timestamp,
    ready: Timestamp,
    over: Timestamp,
}

/// Whenever one is ready, no more are open than the limit was at some moment since it asked. `limit` tells the
/// highest of a span: between a grant and the job that reads it the limit may have sunk, and that takes nothing away.
fn too_many(passes: &[Pass], limit: impl Fn(Timestamp, Timestamp) -> u32) -> Option<String> {
    passes.iter().find_map(|p| {
        // Who is over at this very moment has made room: the release is read after the end.
        let open = passes.iter().filter(|o| o.ready <= p.ready && o.over > p.ready).count();
        let limit = limit(p.asked, p.ready);
        (open > limit as usize).then(|| format!("{open} were open past it at once, not {limit}"))
    })
}

/// The highest limit of a span.
fn highest(changes: &[(Timestamp, u32)], from: Timestamp, to: Timestamp) -> u32 {
    let before = changes.iter().rev().find(|(at, _)| *at <= from);
    let within = changes.iter().filter(|(at, _)| *at > from && *at <= to);
    within.chain(before).map(|(_, limit)| *limit).max().unwrap_or(0)
}

fn changes(contents: &Contents, gate: EntityId) -> Result<Vec<(Timestamp, u32)>, String> {
    let mut all = Vec::new();
    for record in contents.streams.get(&gate).map_or(&[][..], Vec::as_slice) {
        for event in record.events().map_err(|e| e.to_string())? {
            let read = decode_event::<Gate>(&event.name, &event.body).map_err(|e| e.to_string())?;
            if let Some(
                GateEvent::GateCreated { limit, .. } | GateEvent::GateLimitSet { limit, .. },
            ) = read
            {
                all.push((event.at, limit));
            }
        }
    }
    Ok(all)
}

pub(crate) fn check(contents: &Contents) -> Result<(), String> {
    let mut passes: BTreeMap<String, Vec<Pass>> = BTreeMap::new();
    for head in contents.rows.heads.values().filter(|h| h.kind() == "job") {
        let state = decode_state::<Job>(&head.state).map_err(|e| e.to_string())?;
        let Some(gate) = state.terms.gate else { continue };
        let events = read::events(contents, head.id)?;
        let own = |is: &dyn Fn(&OwnEvent) -> bool| {
            events.iter().find(|e| matches!(&e.event, JobEvent::Own(own) if is(own)))
        };
        let ready = own(&|e| matches!(e, OwnEvent::JobReady { why } if why == "gate"));
        let asked = own(
            &|e| matches!(e, OwnEvent::JobWaiting { keys } if keys.iter().any(|k| k.starts_with("gate:"))),
        );
        // A signal may be kept for it while it waits.
        let worked = events.iter().any(
            |e| matches!(&e.event, JobEvent::Step(s) if !matches!(s, StepEvent::SignalKept { .. })),
        );
        match (ready, asked.or(events.first()), events.last()) {
            (Some(ready), Some(asked), Some(over)) => {
                let pass = Pass { asked: asked.at, ready: ready.at, over: over.at };
                passes.entry(gate.name).or_default().push(pass);
            }
            (None, ..) if worked => return Err(format!("{}: worked before its gate", head.id)),
            _ => {}
        }
    }
    for (name, passes) in &passes {
        let changes = changes(contents, gate_id(TENANT, name))?;
        let limit = |from, to| match name.as_str() {
            ANY => highest(&changes, from, to).min(ANY_MAX),
            fixed => most(fixed),
        };
        if let Some(broken) = too_many(passes, limit) {
            return Err(format!("gate {name}: {broken}"));
        }
    }
    empty(contents)
}

/// Nobody holds a permit, nobody waits, and no page was forgotten.
fn empty(contents: &Contents) -> Result<(), String> {
    for head in contents.rows.heads.values() {
        if head.kind() == "gate_page" && head.class() != Class::Final {
            return Err(format!("page {} was never taken", head.id));
        }
        if head.kind() == "gate" {
            let state: GateState = decode_state::<Gate>(&head.state).map_err(|e| e.to_string())?;
            let (holders, waiting) = (state.holders.len(), state.waiting());
            if (holders, waiting) != (0, 0) || state.fetching.is_some() {
                return Err(format!("gate {}: {holders} hold, {waiting} wait", state.name));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(n: i64) -> Timestamp {
        Timestamp::from_micros(n)
    }

    fn passes(all: &[(i64, i64, i64)]) -> Vec<Pass> {
        let pass = |p: &(i64, i64, i64)| Pass { asked: at(p.0), ready: at(p.1), over: at(p.2) };
        all.iter().map(pass).collect()
    }

    #[test]
    fn more_open_spans_than_the_limit_are_noticed() {
        let found = |all: &[(i64, i64, i64)], limit| too_many(&passes(all), |_, _| limit).is_some();
        assert!(!found(&[(0, 1, 2), (0, 2, 3), (0, 3, 9)], 1));
        assert!(found(&[(0, 1, 5), (0, 2, 3), (0, 3, 9)], 1));
        assert!(!found(&[(0, 1, 5), (0, 2, 3), (0, 3, 9)], 2));
        assert!(found(&[(0, 1, 9), (0, 2, 8), (0, 3, 7)], 2));
        assert!(!found(&[], 1));
    }

    #[test]
    fn a_limit_that_sinks_takes_nothing_away_and_gives_nothing_new() {
        let changes = [(at(0), 3), (at(10), 1)];
        let limit = |from, to| highest(&changes, from, to);
        // Both were let through before it sank; the third asked after that.
        assert!(too_many(&passes(&[(1, 5, 90), (1, 12, 80)]), limit).is_none());
        assert!(too_many(&passes(&[(1, 5, 90), (1, 12, 80), (11, 20, 30)]), limit).is_some());
        assert_eq!(highest(&changes, at(10), at(20)), 1);
        assert_eq!(highest(&changes, at(9), at(20)), 3);
    }
}
