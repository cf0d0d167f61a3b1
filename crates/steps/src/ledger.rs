//! The ledger: who may call a tool. One entry per idempotency key, folded from the job's own stream, so
//! that arbitration is the store's fencing and nothing beside it: two workers that both believe they may
//! start a call can not both commit `tool_invocation_started`.

use crate::events::{CallOutcome, StepId, Verdict};
use crate::history::{Call, CallState, History, Shape};

/// What the ledger says to somebody who wants to call a tool.
#[derive(Clone, PartialEq, Debug)]
pub enum Permit {
    /// No entry, or the last one is settled as not applied. The ordinal and call number to use.
    AllowExecute {
        /// Part of the key.
        ordinal: u32,
        /// Under that key.
        call: u32,
    },
    /// It is done: the recorded result counts.
    ReturnRecordedResult,
    /// Started, and nobody has said how it ended. `mine`: by the asker itself.
    WaitOtherWorker {
        /// The call.
        call: Call,
        /// The asker's own epoch started it.
        mine: bool,
    },
    /// Stale, or other arguments than the recorded ones.
    Reject(String),
}

/// Asks for a permit under this epoch.
pub fn acquire(history: &History, step: &StepId, shape: &Shape, epoch: u64) -> Permit {
    let Some(record) = history.steps.get(step) else {
        return Permit::AllowExecute { ordinal: 0, call: 1 };
    };
    if record.shape != *shape {
        return Permit::Reject(format!(
            "step {step} is recorded as {}, not as {shape}",
            record.shape
        ));
    }
    if record.outcome.is_some() {
        return Permit::ReturnRecordedResult;
    }
    let Some(last) = record.calls.last() else {
        return Permit::AllowExecute { ordinal: 0, call: 1 };
    };
    if last.epoch > epoch {
        return Permit::Reject(format!(
            "attempt {epoch} is stale: attempt {} has called",
            last.epoch
        ));
    }
    match &last.state {
        CallState::Started | CallState::Unknown(_) => {
            Permit::WaitOtherWorker { call: last.clone(), mine: last.epoch == epoch }
        }
        // "Not applied" is said of this call alone. One before it under the same key may have been applied, so
        // the key stays: under another one the target could do it again.
        CallState::Finished(CallOutcome::Failure | CallOutcome::Cancelled) if last.call > 1 => {
            Permit::AllowExecute { ordinal: last.ordinal, call: last.call.saturating_add(1) }
        }
        // Recorded as not applied: another effect, under another key.
        CallState::Finished(CallOutcome::Failure | CallOutcome::Cancelled)
        | CallState::Settled(Verdict::DidNotHappen | Verdict::Compensated) => {
            Permit::AllowExecute { ordinal: last.ordinal.saturating_add(1), call: 1 }
        }
        CallState::Settled(Verdict::CalledAgain) => {
            Permit::AllowExecute { ordinal: last.ordinal, call: last.call.saturating_add(1) }
        }
        CallState::Finished(CallOutcome::Success)
        | CallState::Settled(Verdict::Happened | Verdict::Abandoned) => {
            Permit::ReturnRecordedResult
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        events::{SettledBy, StepEvent},
        tool::Class,
    };
    use tenure_kernel::time::Timestamp;

    fn id() -> StepId {
        StepId("1".into())
    }

    fn shape() -> Shape {
        Shape::Tool { tool: "pay".into(), arguments_hash: "a".into() }
    }

    fn history(events: &[StepEvent]) -> History {
        let mut history = History::default();
        events.iter().for_each(|e| history.apply(e, Timestamp::ZERO, 3));
        history
    }

    fn started(ordinal: u32, call: u32) -> StepEvent {
        StepEvent::ToolInvocationStarted {
            step: id(),
            tool: "pay".into(),
            key: format!("k{ordinal}"),
            ordinal,
            call,
            class: Class::Idempotent,
            arguments_hash: "a".into(),
            arguments: None,
            timeout_ms: 1,
            place: String::new(),
            undoable: false,
        }
    }

    fn failed(ordinal: u32, call: u32) -> StepEvent {
        let (key, outcome) = (format!("k{ordinal}"), CallOutcome::Failure);
        StepEvent::ToolInvocationFinished {
            step: id(),
            key,
            call,
            outcome,
            result: None,
            error: None,
        }
    }

    fn again(ordinal: u32, call: u32) -> StepEvent {
        let (verdict, by) = (Verdict::CalledAgain, SettledBy::Class);
        let key = format!("k{ordinal}");
        StepEvent::EffectSettled { step: id(), key, call, verdict, by, note: None, result: None }
    }

    #[test]
    fn the_four_decisions() {
        let ask = |events: &[StepEvent], epoch| acquire(&history(events), &id(), &shape(), epoch);
        assert_eq!(ask(&[], 3), Permit::AllowExecute { ordinal: 0, call: 1 });
        assert!(matches!(ask(&[started(0, 1)], 5), Permit::WaitOtherWorker { mine: false, .. }));
        assert!(matches!(ask(&[started(0, 1)], 3), Permit::WaitOtherWorker { mine: true, .. }));
        assert!(matches!(ask(&[started(0, 1)], 1), Permit::Reject(_)));
        let other = Shape::Tool { tool: "pay".into(), arguments_hash: "b".into() };
        assert!(matches!(
            acquire(&history(&[started(0, 1)]), &id(), &other, 3),
            Permit::Reject(why) if why.contains("recorded as")
        ));
        assert_eq!(
            ask(&[started(0, 1), failed(0, 1)], 3),
            Permit::AllowExecute { ordinal: 1, call: 1 }
        );
    }

    #[test]
    fn a_second_call_that_was_not_applied_says_nothing_about_the_first() {
        let events = [started(0, 1), again(0, 1), started(0, 2), failed(0, 2)];
        let permit = acquire(&history(&events), &id(), &shape(), 3);
        assert_eq!(permit, Permit::AllowExecute { ordinal: 0, call: 3 });
    }
}
