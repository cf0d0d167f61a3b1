//! What a correction of a person's word leads to.

use super::{note_of, read::finished, timers};
use crate::model::JobEvent;
use serde_json::Value;
use tenure_kernel::{machine::Decision, timers::TimerChange};
use tenure_steps::events::{ResultType, StepEvent, StepId, Verdict};

/// Takes the place of what a person has said about a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Correction {
    /// Which step.
    pub step: StepId,
    /// The key of the call.
    pub key: String,
    /// The call.
    pub call: u32,
    /// What was said before.
    pub was: Verdict,
    /// What is said now.
    pub verdict: Verdict,
    /// The result, where it happened.
    pub result: Option<Value>,
    /// From whom.
    pub by: Option<String>,
    /// In words.
    pub note: Option<String>,
    /// If it happened, the flow says what undoes it.
    pub undoable: bool,
}

/// The events of a correction. The job is in attention, and its flow has done nothing with the earlier word.
pub fn correct(correction: Correction) -> Decision<JobEvent> {
    let Correction { step, key, call, was, verdict, result, by, note, undoable } = correction;
    let note = note_of(by, note);
    let corrected = StepEvent::EffectCorrected {
        step: step.clone(),
        key: key.clone(),
        call,
        was,
        verdict,
        note,
        result,
        undoable,
    };
    let mut decision = Decision::event(JobEvent::from(corrected));
    match verdict {
        Verdict::Happened if was != Verdict::Happened => {
            let committed = StepEvent::CommandCommitted { step: step.clone(), key, call };
            decision.events.push(committed.into());
            decision.events.push(finished(step, ResultType::SideEffectCommitted, None, None));
        }
        Verdict::Abandoned => decision.events.push(super::read::given_up(step)),
        _ => {}
    }
    decision.timer(TimerChange::clear(timers::RECHECK))
}
