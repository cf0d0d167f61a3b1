//! What must hold of jobs, whatever happened to their workers.

use super::{
    Off, intake,
    read::{self, Entry, Told},
    town::{Craft, Deed},
};
use crate::{scenario::Scenario, world::World};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tenure_jobs::{
    Job, JobEvent, JobState,
    decide::{SignalMail, mail},
    model::OwnEvent,
};
use tenure_kernel::{
    head::Head, ids::EntityId, limits, machine::decode_state, table::Class, time::Timestamp,
};
use tenure_steps::{
    events::{CallEnd, CallOutcome, StepEvent, Verdict, WaitOutcome, What},
    tool::{Class as ToolClass, ToolCtx},
};
use tenure_store::memory::Contents;

/// After the storm, an end that is due comes within this time.
pub(super) const PROMPT: Duration = Duration::from_secs(90);
/// Why a job of the simulation may fail.
const REASONS: [&str; 4] = ["step_failed", "deadline_passed", "unknown_outcome", "takeovers_spent"];

/// Asked at the first moment of every call: it is on record, and its worker has not lost the job by its lease.
pub(super) fn call_begins(world: &World, ctx: &ToolCtx, craft: Craft) {
    let (job, step, epoch) = (ctx.job, &ctx.step, ctx.epoch);
    let recorded = world.store.inspect(|contents| {
        let events = read::events(contents, job).unwrap_or_default();
        events.iter().any(|e| match &e.event {
            JobEvent::Step(StepEvent::ToolInvocationStarted { key, call, .. }) => {
                *key == ctx.key && *call == ctx.call && e.epoch == epoch
            }
            _ => false,
        })
    });
    if !recorded {
        world.fail(format!("{job}.{step}: {} is called and not on record", craft.name()));
    }
    super::gates::call_begins(world, job);
    let ended = format!("job {job} in {epoch},");
    let lapsed = world.oracle.seen().reclaimed.iter().any(|r| r.starts_with(&ended));
    // A call that others have does not end with the tenure of its job.
    let setup = world.town.setup();
    let far = setup.far && super::far::crafts(setup).contains(&craft);
    if lapsed && !far && setup.punctual {
        world.fail(format!("{job}.{step}: called in epoch {epoch}, which had lapsed"));
    }
}

/// Everything, when all has come to rest. `calm_at` is when the storm was over.
pub(crate) fn check(world: &World, contents: &Contents, calm_at: Timestamp) -> Result<(), String> {
    let mut deeds: BTreeMap<(EntityId, String), BTreeMap<String, Deed>> = BTreeMap::new();
    for (key, deed) in world.town.deeds() {
        deeds.entry((deed.job, deed.step.clone())).or_default().insert(key, deed);
    }
    let mut births = BTreeSet::new();
    for head in contents.rows.heads.values().filter(|h| h.kind() == "job") {
        let events = read::events(contents, head.id)?;
        let state = decode_state::<Job>(&head.state).map_err(|e| e.to_string())?;
        births.insert(head.id);
        let of_intake = world.town.setup().is(Scenario::Intake);
        ended(head, &state, &events, calm_at, if of_intake { &intake::REASONS } else { &[] })?;
        // What those do outside is to ask other jobs.
        if super::bulk::is_bulk(&state.flow) {
            continue;
        }
        effects(world, head.id, &events, &deeds)?;
        if world.town.setup().off != Some(Off::UndoStep) {
            returned(head, &events, contents)?;
        }
        // A retry has heard a part of what it knows elsewhere.
        if state.retry_of.is_none() {
            signals(head, &events, contents)?;
        }
        children(head.id, &events, contents)?;
    }
    match deeds.keys().find(|(job, _)| !births.contains(job)) {
        Some((job, step)) => Err(format!("{job}.{step}: was called for a job that is not there")),
        None => Ok(()),
    }
}

/// The story of the job that a failure names, at the end of the trace.
pub(crate) fn tell(world: &World, broken: &str) {
    let story = world.store.inspect(|contents| {
        let named = contents.rows.heads.keys().find(|id| broken.contains(&id.to_string()))?;
        Some((*named, read::events(contents, *named).ok()?))
    });
    let Some((job, events)) = story else { return };
    world.sim.trace(format!("the story of {job}:"));
    for Entry { event, epoch, at } in events {
        let (text, ms) =
            (serde_json::to_string(&event).unwrap_or_default(), at.as_micros() / 1_000);
        world.sim.trace(format!("{} e{epoch} {}", ms % 10_000_000, limits::clip(&text, 400)));
    }
}

fn last(events: &[Entry]) -> Option<&OwnEvent> {
    events.iter().rev().find_map(|e| match &e.event {
        JobEvent::Own(own) => Some(own),
        JobEvent::Step(_) => None,
    })
}

/// It ended, in time, for a reason that there is.
fn ended(
    head: &Head,
    state: &JobState,
    events: &[Entry],
    calm_at: Timestamp,
    more_reasons: &[&str],
) -> Result<(), String> {
    let id = head.id;
    if head.class() != Class::Final {
        return Err(format!("{id}: still {}", head.status.name()));
    }
    if let (Some(end), Some(at)) = (head.must_end_by, events.last().map(|e| e.at))
        && at > end.max(calm_at) + PROMPT
    {
        return Err(format!("{id}: ended at {at:?}, and had to by {end:?}"));
    }
    match &state.failure {
        Some(f) if !REASONS.iter().chain(more_reasons).any(|r| *r == f.reason) => {
            Err(format!("{id}: failed: {}: {}", f.reason, f.error))
        }
        _ => Ok(()),
    }
}

/// What a stream says of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Open,
    Applied,
    NotApplied,
    Undone,
    Abandoned,
}

/// One key in a stream.
struct Line {
    step: String,
    class: ToolClass,
    fate: Fate,
    result: Option<Value>,
}

fn lines(events: &[Entry]) -> BTreeMap<String, Line> {
    let mut lines: BTreeMap<String, Line> = BTreeMap::new();
    for entry in events {
        let JobEvent::Step(event) = &entry.event else { continue };
        match event {
            StepEvent::ToolInvocationStarted { step, key, class, .. } => {
                let (step, class) = (step.0.clone(), *class);
                let line = Line { step, class, fate: Fate::Open, result: None };
                lines.insert(key.clone(), line);
            }
            StepEvent::ToolInvocationFinished { key, outcome, result, .. } => {
                let fate = match outcome {
                    CallOutcome::Success => Fate::Applied,
                    CallOutcome::Failure | CallOutcome::Cancelled => Fate::NotApplied,
                };
                lines.entry(key.clone()).and_modify(|l| {
                    (l.fate, l.result) = (fate, result.clone());
                });
            }
            // A job that ends before a holder has read it: the answer is on record, so nobody has to wonder.
            StepEvent::CallAnswered { key, what: What::Call, answer, .. }
                if answer.end == CallEnd::Completed =>
            {
                lines.entry(key.clone()).and_modify(|l| {
                    (l.fate, l.result) = (Fate::Applied, answer.result.clone());
                });
            }
            StepEvent::EffectSettled { key, verdict, result, .. } => {
                let fate = match verdict {
                    Verdict::Happened => Fate::Applied,
                    Verdict::DidNotHappen => Fate::NotApplied,
                    Verdict::Compensated => Fate::Undone,
                    Verdict::Abandoned => Fate::Abandoned,
                    Verdict::CalledAgain => Fate::Open,
                };
                lines.entry(key.clone()).and_modify(|l| {
                    (l.fate, l.result) = (fate, result.clone());
                });
            }
            _ => {}
        }
    }
    lines
}

/// Law 6, key by key and step by step.
fn effects(
    world: &World,
    job: EntityId,
    events: &[Entry],
    deeds: &BTreeMap<(EntityId, String), BTreeMap<String, Deed>>,
) -> Result<(), String> {
    let lines = lines(events);
    let unknown: Vec<String> = match last(events) {
        Some(OwnEvent::JobFailed(f)) => f.unknown.iter().map(|s| s.0.clone()).collect(),
        Some(OwnEvent::JobCancelled { unknown, .. }) => {
            unknown.iter().map(|s| s.0.clone()).collect()
        }
        _ => Vec::new(),
    };
    let none = BTreeMap::new();
    for (key, line) in &lines {
        let step = &line.step;
        let at = format!("{job}.{step}");
        let deed = deeds.get(&(job, step.clone())).unwrap_or(&none).get(key);
        let net = deed.map_or(0, Deed::net);
        let idempotent = line.class == ToolClass::Idempotent;
        match line.fate {
            Fate::Applied if net < 1 => {
                return Err(format!("{at}: recorded as done, and it was not"));
            }
            Fate::Applied if line.result != world.town.receipt(key) => {
                let result = &line.result;
                return Err(format!("{at}: recorded is {result:?}, which is not what came out"));
            }
            Fate::NotApplied | Fate::Undone if net > 0 && !idempotent => {
                let fate = line.fate;
                return Err(format!("{at}: recorded as {fate:?}, and it happened: {deed:?}"));
            }
            Fate::Open if net > 0 && !unknown.contains(step) && !idempotent => {
                return Err(format!("{at}: happened, is open, and is not listed as unknown"));
            }
            _ => {}
        }
    }
    for ((_, step), deeds) in deeds.range((job, String::new())..).take_while(|(k, _)| k.0 == job) {
        let at = format!("{job}.{step}");
        if let Some(key) = deeds.keys().find(|k| !lines.contains_key(*k)) {
            return Err(format!("{at}: key {key} was used and is not on record"));
        }
        let total: i64 = deeds.values().map(Deed::net).sum();
        let idempotent = deeds.values().all(|d| d.craft.class() == ToolClass::Idempotent);
        let keys = deeds.values().filter(|d| d.net() > 0).count();
        if keys > 1 || (!idempotent && total > 1) {
            return Err(format!("{at}: done {total} times under {keys} keys: {deeds:?}"));
        }
        let twice = deeds.values().find(|d| d.done.len() > 1);
        if let (false, Some(deed)) = (idempotent, twice) {
            return Err(format!("{at}: done twice under one key: {deed:?}"));
        }
    }
    Ok(())
}

/// What it returned is what its plan comes to over what it was told.
fn returned(head: &Head, events: &[Entry], contents: &Contents) -> Result<(), String> {
    let id = head.id;
    let told = Told::read(id, events, contents)?;
    let Some(plan) = &told.plan else { return Ok(()) };
    match last(events) {
        Some(OwnEvent::JobCompleted { output, .. }) => {
            let said = told.walk(&plan.body);
            let Some(Ok(value)) = said else {
                return Err(format!("{id}: completed, and its plan comes to {said:?}"));
            };
            let mut expected = plan.so_far.clone();
            expected.push(value);
            if *output != Value::from(expected.clone()) || plan.then.is_some() {
                return Err(format!("{id}: returned {output}, its plan comes to {expected:?}"));
            }
        }
        Some(OwnEvent::JobFailed(f)) if f.reason == "step_failed" => {
            let said = told.walk(&plan.body);
            let step = f.step.as_ref().map_or("", |s| s.0.as_str()).to_owned();
            if said != Some(Err((step, f.error.clone()))) {
                return Err(format!("{id}: failed: {f:?}; its plan comes to {said:?}"));
            }
        }
        _ => {}
    }
    Ok(())
}

/// A signal that was accepted is applied once: the first of its key completes the wait for it.
fn signals(head: &Head, events: &[Entry], contents: &Contents) -> Result<(), String> {
    let id = head.id;
    let mut first: BTreeMap<String, Value> = BTreeMap::new();
    // A forced end covers no mail, and may have read some.
    let mut covered: BTreeSet<String> = BTreeSet::new();
    for mail in contents.mail.get(&id).map_or(&[][..], Vec::as_slice) {
        if mail.kind == mail::SIGNAL {
            let bytes = mail.body.inline().unwrap_or_default();
            let said: SignalMail = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
            if mail.seq <= head.mail_read {
                covered.insert(said.key.clone());
            }
            first.entry(said.key).or_insert(said.payload);
        }
    }
    let mut opened = BTreeSet::new();
    let mut waits = BTreeMap::new();
    let mut later = false;
    let mut completed: BTreeSet<String> = BTreeSet::new();
    let mut kept: BTreeSet<String> = BTreeSet::new();
    for entry in events {
        // Nobody waits any more for what an earlier run waited for: a signal for it is kept.
        if matches!(entry.event, JobEvent::Own(OwnEvent::JobContinued { .. })) {
            opened.clear();
            // A run asks for the same names again, and what an earlier one heard says nothing about this one.
            completed.clear();
            kept.clear();
            later = true;
        }
        let JobEvent::Step(event) = &entry.event else { continue };
        match event {
            StepEvent::WaitOpened { step, key, .. } => {
                opened.insert(key.clone());
                waits.insert(step.clone(), key.clone());
            }
            // Nobody waits for it any more: what comes now is kept.
            StepEvent::StepDropped { step } => {
                if let Some(key) = waits.get(step) {
                    opened.remove(key);
                }
            }
            StepEvent::SignalKept { key, payload, .. } => {
                if !kept.insert(key.clone()) {
                    return Err(format!("{id}: signal {key} was kept twice"));
                }
                if !later && first.get(key) != Some(payload) {
                    return Err(format!("{id}: kept {payload} of {key}, first was {first:?}"));
                }
            }
            StepEvent::WaitCompleted { key, outcome, payload, .. } => {
                if !completed.insert(key.clone()) {
                    return Err(format!("{id}: the wait for {key} was completed twice"));
                }
                if !later && *outcome != WaitOutcome::Expired && first.get(key) != Some(payload) {
                    return Err(format!("{id}: {key} completed by {payload}, first was {first:?}"));
                }
                if *outcome == WaitOutcome::Expired && kept.contains(key) {
                    return Err(format!("{id}: {key} expired although its signal was kept"));
                }
            }
            _ => {}
        }
    }
    let by_cancel = matches!(last(events), Some(OwnEvent::JobCancelled { .. }));
    let lost = opened.iter().find(|k| covered.contains(*k) && !completed.contains(*k));
    match lost {
        Some(key) if !by_cancel => Err(format!("{id}: the signal {key} was accepted and lost")),
        _ => Ok(()),
    }
}

/// Children that were asked for are there, and have ended like everything else.
fn children(job: EntityId, events: &[Entry], contents: &Contents) -> Result<(), String> {
    let mut open: BTreeSet<u32> = BTreeSet::new();
    for entry in events {
        match &entry.event {
            JobEvent::Step(StepEvent::ChildStarted { ordinal, child, .. }) => {
                open.insert(*ordinal);
                let there = contents.rows.heads.get(child);
                if there.is_none_or(|h| h.class() != Class::Final) {
                    return Err(format!("{job}: its child {ordinal} has not ended: {there:?}"));
                }
            }
            JobEvent::Step(StepEvent::ChildEnded { ordinal, status, .. }) => {
                let child = JobState::child_id(job, *ordinal);
                let really = contents.rows.heads.get(&child).map(|h| h.status.name());
                if !open.remove(ordinal) || really != Some(status.as_str()) {
                    return Err(format!("{job}: child {ordinal} {status}: it is {really:?}"));
                }
            }
            // What a new run does not wait for was told to stop.
            JobEvent::Own(OwnEvent::JobContinued { .. }) => open.clear(),
            _ => {}
        }
    }
    let abandoned = match last(events) {
        Some(
            OwnEvent::JobCompleted { abandoned, .. } | OwnEvent::JobCancelled { abandoned, .. },
        ) => *abandoned,
        Some(OwnEvent::JobFailed(f)) => f.abandoned,
        _ => 0,
    };
    match open.len() == abandoned as usize {
        true => Ok(()),
        false => Err(format!("{job}: left {open:?} and lists {abandoned} as abandoned")),
    }
}
