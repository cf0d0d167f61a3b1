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
        // Recorded as not applied: another effect, under another key.
        CallState::Finished(CallOutcome::Failure | CallOutcome::Cancelled)
        | CallState::Settled(Verdict::DidNotHappen | Verdict::Compensated) => {
            Permit::AllowExecute { ordinal: last.ordinal + 1, call: 1 }
        }
        CallState::Settled(Verdict::CalledAgain) => {
            Permit::AllowExecute { ordinal: last.ordinal, call: last.call + 1 }
        }
        CallState::Finished(CallOutcome::Success)
        | CallState::Settled(Verdict::Happened | Verdict::Abandoned) => {
            Permit::ReturnRecordedResult
        }
    }
}
