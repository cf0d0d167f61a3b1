//! What a fork takes over from its origin: everything that belongs to steps which were over before the
//! first event of the step it begins with.
//!
//! A flow sees nothing but outcomes, one at a time in the order of the stream, and recorded values. The steps
//! that were over by then are exactly the first so many outcomes, so a fork is led to the place where its
//! origin stood, and asks for the same. A step that had begun and was not over is asked for anew; under
//! another key, because the key names the job.

use super::stream::{self, Line};
use crate::{
    drive::LoadError,
    model::{JobEvent, OwnEvent},
    submit::copy,
};
use serde_json::Value;
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};
use tenure_kernel::{ids::EntityId, store::Store, time::Timestamp};
use tenure_steps::{
    events::{StepEvent, StepId},
    history::History,
};

/// The step events of a run up to the first of a step, as a fork copies them. Steps that are not over by
/// then are left out: the fork asks for them anew.
pub async fn steps_before(
    store: &Arc<dyn Store>,
    job: EntityId,
    step: &StepId,
) -> Result<Vec<Value>, LoadError> {
    let lines = stream::read(store, job).await?;
    let (run, events) = run_events(&lines)?;
    let mut taken = before(&events, step);
    fetch_outputs(store, &mut taken).await?;
    Ok(taken.iter().map(|e| copy(&first_run(e, run))).collect())
}

/// The step events of the last run, copied ones among them, and its number. Signals that an earlier run kept
/// stand in front: they are still kept.
fn run_events(lines: &[Line]) -> Result<(u32, Vec<StepEvent>), LoadError> {
    let (mut run, mut events) = (1, Vec::new());
    for line in lines {
        match &line.read {
            Some(JobEvent::Step(event)) => events.push(event.clone()),
            Some(JobEvent::Own(OwnEvent::HistoryCopied { events: copied, .. })) => {
                for event in copied {
                    events.push(serde_json::from_value(event.clone()).map_err(|e| {
                        LoadError::Unreadable(format!("a copied event can not be read: {e}"))
                    })?);
                }
            }
            Some(JobEvent::Own(OwnEvent::JobContinued { .. })) => {
                run += 1;
                events = still_kept(&events);
            }
            _ => {}
        }
    }
    Ok((run, events))
}

fn still_kept(events: &[StepEvent]) -> Vec<StepEvent> {
    let mut kept: Vec<StepEvent> = Vec::new();
    for event in events {
        match event {
            StepEvent::SignalKept { .. } => kept.push(event.clone()),
            StepEvent::WaitCompleted { key: heard, .. } => {
                kept.retain(|k| !matches!(k, StepEvent::SignalKept { key, .. } if key == heard));
            }
            _ => {}
        }
    }
    kept
}

/// The events of steps that were over before the first event of this one.
fn before(events: &[StepEvent], step: &StepId) -> Vec<StepEvent> {
    let first = events.iter().position(|e| e.step() == Some(step)).unwrap_or(events.len());
    let (earlier, later) = events.split_at(first);
    let mut history = History::default();
    earlier.iter().for_each(|e| history.apply(e, Timestamp::ZERO, 0));
    let over: HashSet<&StepId> =
        history.steps.iter().filter(|(_, r)| r.outcome.is_some()).map(|(id, _)| id).collect();
    // A signal that a step which is not taken over has used is that step's, and not the fork's.
    let used_later: HashSet<&String> = later
        .iter()
        .filter_map(|e| match e {
            StepEvent::WaitCompleted { key, .. } => Some(key),
            _ => None,
        })
        .collect();
    let mine = |event: &&StepEvent| match (event, event.step()) {
        (StepEvent::SignalKept { key, .. }, _) => {
            !(used_later.contains(key) && history.kept.contains_key(key))
        }
        (_, Some(step)) => over.contains(step),
        (_, None) => false,
    };
    earlier.iter().filter(mine).cloned().collect()
}

/// A child's output that was too large for an event is read from the child. The fork has no such child, so
/// it gets the output itself.
async fn fetch_outputs(store: &Arc<dyn Store>, events: &mut [StepEvent]) -> Result<(), LoadError> {
    let mut children: HashMap<u32, EntityId> = HashMap::new();
    for event in events {
        match event {
            StepEvent::ChildStarted { ordinal, child, .. } => {
                children.insert(*ordinal, *child);
            }
            StepEvent::ChildEnded { ordinal, status, output: output @ None, .. }
                if status == "completed" =>
            {
                let gone =
                    || LoadError::Unreadable(format!("the output of child {ordinal} is gone"));
                let child = *children.get(ordinal).ok_or_else(gone)?;
                let lines = stream::read(store, child).await?;
                *output = Some(stream::output(&lines).ok_or_else(gone)?.clone());
            }
            _ => {}
        }
    }
    Ok(())
}

/// A fork begins with its first run, in which steps have no run in front of their names.
fn first_run(event: &StepEvent, run: u32) -> StepEvent {
    let prefix = format!("{run}:");
    let Some(bare) = event.step().and_then(|s| s.0.strip_prefix(&prefix)).map(str::to_owned) else {
        return event.clone();
    };
    let mut event = event.clone();
    match &mut event {
        StepEvent::ToolInvocationStarted { step, .. }
        | StepEvent::ToolInvocationFinished { step, .. }
        | StepEvent::CommandCommitted { step, .. }
        | StepEvent::NodeFinished { step, .. }
        | StepEvent::EffectUnknown { step, .. }
        | StepEvent::EffectSettled { step, .. }
        | StepEvent::CompensationStarted { step, .. }
        | StepEvent::ValueRecorded { step, .. }
        | StepEvent::WaitOpened { step, .. }
        | StepEvent::WaitCompleted { step, .. }
        | StepEvent::TimerSet { step, .. }
        | StepEvent::TimerFired { step }
        | StepEvent::ChildStarted { step, .. }
        | StepEvent::ChildEnded { step, .. } => step.0 = bare,
        StepEvent::SignalKept { .. } => {}
    }
    event
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tenure_steps::events::{ValueKind, WaitKind, WaitOutcome};

    fn id(step: &str) -> StepId {
        StepId(step.into())
    }

    fn value(step: &str) -> StepEvent {
        StepEvent::ValueRecorded {
            step: id(step),
            kind: ValueKind::Pure,
            name: "v".into(),
            value: json!(1),
            place: String::new(),
        }
    }

    fn opened(step: &str, key: &str) -> StepEvent {
        StepEvent::WaitOpened {
            step: id(step),
            kind: WaitKind::Signal,
            key: key.into(),
            within_ms: None,
            note: None,
            place: String::new(),
        }
    }

    fn completed(step: &str, key: &str) -> StepEvent {
        StepEvent::WaitCompleted {
            step: id(step),
            key: key.into(),
            outcome: WaitOutcome::Signalled,
            payload: json!(1),
            by: None,
        }
    }

    fn kept(key: &str) -> StepEvent {
        StepEvent::SignalKept {
            key: key.into(),
            outcome: WaitOutcome::Signalled,
            payload: json!(1),
            by: None,
        }
    }

    #[test]
    fn steps_that_are_not_over_are_left_out() {
        let events =
            [value("1"), opened("2", "a"), opened("3", "b"), completed("3", "b"), value("4")];
        let taken = before(&events, &id("4"));
        assert_eq!(taken, [value("1"), opened("3", "b"), completed("3", "b")]);
        assert_eq!(before(&events, &id("1")), []);
        assert_eq!(before(&events, &id("9")).len(), 4);
    }

    #[test]
    fn a_kept_signal_goes_along_unless_a_later_step_has_used_it() {
        let events = [
            kept("a"),
            kept("b"),
            kept("c"),
            opened("1", "a"),
            completed("1", "a"),
            value("2"),
            opened("3", "b"),
            completed("3", "b"),
        ];
        let taken = before(&events, &id("2"));
        assert_eq!(taken, [kept("a"), kept("c"), opened("1", "a"), completed("1", "a")]);
    }

    #[test]
    fn a_later_run_becomes_the_first() {
        assert_eq!(first_run(&value("3:2.1"), 3), value("2.1"));
        assert_eq!(first_run(&value("2.1"), 1), value("2.1"));
        assert_eq!(first_run(&kept("3:a"), 3), kept("3:a"));
    }
}
