//! What is recorded about steps. Jobs and turns write the same ones. The words of
//! which events are made (outcomes, verdicts, kinds) are in `words`.
//!
//! Replay depends on these events alone. A result stands once, in `tool_invocation_finished` (tools),
//! `value_recorded` (pure steps, now, random, uuid), `wait_completed` or `child_ended`.

mod words;

pub use words::*;

use crate::tool::Class;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_kernel::ids::EntityId;

/// One recorded fact about a step.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum StepEvent {
    /// Durable before the tool runs. From here on nobody may call it again without settling this call.
    ToolInvocationStarted {
        /// The step.
        step: StepId,
        /// The tool.
        tool: String,
        /// What the tool passes downstream. No attempt in it.
        key: String,
        /// Rises after a recorded "not applied"; part of the key.
        ordinal: u32,
        /// Rises with every call under the same key.
        call: u32,
        /// What settles it when its outcome is unknown.
        class: Class,
        /// Digest of the canonical arguments.
        arguments_hash: String,
        /// The arguments; they are the same for every call of a step, so only the first has them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        arguments: Option<Value>,
        /// How long it may take.
        timeout_ms: u64,
        /// Where the flow asked for it.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        place: String,
        /// If it happens, the flow says what undoes it. See [`crate::saga`].
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        undoable: bool,
    },
    /// The call is over and its worker knows how.
    ToolInvocationFinished {
        /// The step.
        step: StepId,
        /// The call's key.
        key: String,
        /// The call.
        call: u32,
        /// How it ended.
        outcome: CallOutcome,
        /// The result of a success.
        #[serde(
            default,
            skip_serializing_if = "Option::is_none",
            deserialize_with = "crate::canonical::present"
        )]
        result: Option<Value>,
        /// The error of a failure.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// The result counts: never called again, injected from here on.
    CommandCommitted {
        /// The step.
        step: StepId,
        /// The call's key.
        key: String,
        /// The call.
        call: u32,
    },
    /// An attempt of a step, or the step, is over.
    NodeFinished {
        /// The step.
        step: StepId,
        /// How.
        result_type: ResultType,
        /// Why, where it failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// Which attempt this was, from 1; 0 for steps without.
        #[serde(default, skip_serializing_if = "is_zero")]
        attempt: u32,
        /// What a person may have said about it, or the tool's error.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
        /// A tool step that failed before its tool was called says here what it was.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failed_early: Option<EarlyFailure>,
    },
    /// A call was started and nobody can say whether it happened.
    EffectUnknown {
        /// The step.
        step: StepId,
        /// The call's key.
        key: String,
        /// The call.
        call: u32,
        /// What makes it unknown: a lost worker, a timeout, the tool itself.
        why: String,
    },
    /// Now somebody can.
    EffectSettled {
        /// The step.
        step: StepId,
        /// The call's key.
        key: String,
        /// The call.
        call: u32,
        /// What it was.
        verdict: Verdict,
        /// Who says so.
        by: SettledBy,
        /// In words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
        /// The result, where it happened.
        #[serde(
            default,
            skip_serializing_if = "Option::is_none",
            deserialize_with = "crate::canonical::present"
        )]
        result: Option<Value>,
    },
    /// A person takes back what a person said about a call. Both stay on record, and this one counts. It is written only
    /// while the flow has done nothing with what was said before.
    EffectCorrected {
        /// The step.
        step: StepId,
        /// The call's key.
        key: String,
        /// The call.
        call: u32,
        /// What was said before.
        was: Verdict,
        /// What is said now.
        verdict: Verdict,
        /// Who says so, and how they know.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
        /// The result, where it happened.
        #[serde(
            default,
            skip_serializing_if = "Option::is_none",
            deserialize_with = "crate::canonical::present"
        )]
        result: Option<Value>,
        /// If it happened, the flow says what undoes it. See [`crate::saga`].
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        undoable: bool,
    },
    /// A compensation begins. Called again after a crash: it is idempotent by contract.
    CompensationStarted {
        /// The step.
        step: StepId,
        /// The key of the call that is undone.
        key: String,
        /// That call.
        call: u32,
    },
    /// A value that replay takes from here.
    ValueRecorded {
        /// The step.
        step: StepId,
        /// What it is.
        kind: ValueKind,
        /// The name of a pure step.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        name: String,
        /// The value.
        value: Value,
        /// Where the flow asked for it.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        place: String,
    },
    /// The flow waits for something from outside.
    WaitOpened {
        /// The step.
        step: StepId,
        /// What for.
        kind: WaitKind,
        /// The correlation key.
        key: String,
        /// For how long; without it, as long as the job may take.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        within_ms: Option<u64>,
        /// What a person should know.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
        /// Where the flow asked for it.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        place: String,
    },
    /// It came, or the time passed.
    WaitCompleted {
        /// The step.
        step: StepId,
        /// The correlation key.
        key: String,
        /// How.
        outcome: WaitOutcome,
        /// What came with it.
        #[serde(default, skip_serializing_if = "Value::is_null")]
        payload: Value,
        /// From whom.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    /// A signal came before anybody waited for it, and is kept.
    SignalKept {
        /// The correlation key.
        key: String,
        /// What kind of signal.
        outcome: WaitOutcome,
        /// What came with it.
        #[serde(default, skip_serializing_if = "Value::is_null")]
        payload: Value,
        /// From whom.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    /// The step goes on at a later time.
    TimerSet {
        /// The step.
        step: StepId,
        /// Sleep, backoff or limit.
        why: TimerWhy,
        /// From the time of this event.
        after_ms: u64,
        /// Where the flow asked for it.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        place: String,
        /// What waits for a limit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<Box<LimitWait>>,
    },
    /// The time came.
    TimerFired {
        /// The step.
        step: StepId,
    },
    /// Another job was asked for.
    ChildStarted {
        /// The step.
        step: StepId,
        /// Its number among this job's children.
        ordinal: u32,
        /// Its id.
        child: EntityId,
        /// Its flow.
        flow: String,
        /// Digest of its input.
        arguments_hash: String,
        /// Where the flow asked for it.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        place: String,
        /// If it completes, the flow says what undoes it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        undoable: bool,
    },
    /// It is over.
    ChildEnded {
        /// The step.
        step: StepId,
        /// Its number among this job's children.
        ordinal: u32,
        /// Its final status.
        status: String,
        /// Its output, where it is small; else it is read from the child.
        #[serde(
            default,
            skip_serializing_if = "Option::is_none",
            deserialize_with = "crate::canonical::present"
        )]
        output: Option<Value>,
        /// Why it failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// A child's output that was too large for its report, taken over while the child is still there.
    ChildOutputTaken {
        /// The step.
        step: StepId,
        /// The output.
        output: Value,
    },
    /// The flow no longer waits for it (it lost a race, say): it is closed, and never begun again.
    StepDropped {
        /// The step.
        step: StepId,
    },
    /// A call, or a question about one, is given to a worker that does not run the flow. In the commit of its
    /// `tool_invocation_started`, so nobody can take it before that is durable.
    CallHanded {
        /// The step.
        step: StepId,
        /// The call's key.
        key: String,
        /// The call.
        call: u32,
        /// What is asked of the tool.
        what: What,
        /// How often something was handed over for this call before.
        #[serde(default, skip_serializing_if = "is_zero")]
        nth: u32,
        /// When a probe was asked for, nobody could act under the call any more: only then does "no trace" count.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        over: bool,
    },
    /// It came back.
    CallAnswered {
        /// The step.
        step: StepId,
        /// The call's key.
        key: String,
        /// The call.
        call: u32,
        /// What was asked.
        what: What,
        /// How it ended.
        #[serde(flatten)]
        answer: CallAnswer,
    },
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

impl StepEvent {
    /// Every name.
    pub const NAMES: [&'static str; 20] = [
        "tool_invocation_started",
        "tool_invocation_finished",
        "command_committed",
        "node_finished",
        "effect_unknown",
        "effect_settled",
        "compensation_started",
        "value_recorded",
        "wait_opened",
        "wait_completed",
        "signal_kept",
        "timer_set",
        "timer_fired",
        "child_started",
        "child_ended",
        "child_output_taken",
        "step_dropped",
        "call_handed",
        "call_answered",
        "effect_corrected",
    ];

    /// Its name in the transition table.
    pub fn name(&self) -> &'static str {
        let at = match self {
            StepEvent::ToolInvocationStarted { .. } => 0,
            StepEvent::ToolInvocationFinished { .. } => 1,
            StepEvent::CommandCommitted { .. } => 2,
            StepEvent::NodeFinished { .. } => 3,
            StepEvent::EffectUnknown { .. } => 4,
            StepEvent::EffectSettled { .. } => 5,
            StepEvent::CompensationStarted { .. } => 6,
            StepEvent::ValueRecorded { .. } => 7,
            StepEvent::WaitOpened { .. } => 8,
            StepEvent::WaitCompleted { .. } => 9,
            StepEvent::SignalKept { .. } => 10,
            StepEvent::TimerSet { .. } => 11,
            StepEvent::TimerFired { .. } => 12,
            StepEvent::ChildStarted { .. } => 13,
            StepEvent::ChildEnded { .. } => 14,
            StepEvent::ChildOutputTaken { .. } => 15,
            StepEvent::StepDropped { .. } => 16,
            StepEvent::CallHanded { .. } => 17,
            StepEvent::CallAnswered { .. } => 18,
            StepEvent::EffectCorrected { .. } => 19,
        };
        Self::NAMES[at]
    }

    /// The step it is about.
    pub fn step(&self) -> Option<&StepId> {
        match self {
            StepEvent::ToolInvocationStarted { step, .. }
            | StepEvent::ToolInvocationFinished { step, .. }
            | StepEvent::CommandCommitted { step, .. }
            | StepEvent::NodeFinished { step, .. }
            | StepEvent::EffectUnknown { step, .. }
            | StepEvent::EffectSettled { step, .. }
            | StepEvent::EffectCorrected { step, .. }
            | StepEvent::CompensationStarted { step, .. }
            | StepEvent::ValueRecorded { step, .. }
            | StepEvent::WaitOpened { step, .. }
            | StepEvent::WaitCompleted { step, .. }
            | StepEvent::TimerSet { step, .. }
            | StepEvent::TimerFired { step }
            | StepEvent::ChildStarted { step, .. }
            | StepEvent::ChildEnded { step, .. }
            | StepEvent::ChildOutputTaken { step, .. }
            | StepEvent::StepDropped { step }
            | StepEvent::CallHanded { step, .. }
            | StepEvent::CallAnswered { step, .. } => Some(step),
            StepEvent::SignalKept { .. } => None,
        }
    }

    /// The same, to rename it.
    pub fn step_mut(&mut self) -> Option<&mut StepId> {
        match self {
            StepEvent::ToolInvocationStarted { step, .. }
            | StepEvent::ToolInvocationFinished { step, .. }
            | StepEvent::CommandCommitted { step, .. }
            | StepEvent::NodeFinished { step, .. }
            | StepEvent::EffectUnknown { step, .. }
            | StepEvent::EffectSettled { step, .. }
            | StepEvent::EffectCorrected { step, .. }
            | StepEvent::CompensationStarted { step, .. }
            | StepEvent::ValueRecorded { step, .. }
            | StepEvent::WaitOpened { step, .. }
            | StepEvent::WaitCompleted { step, .. }
            | StepEvent::TimerSet { step, .. }
            | StepEvent::TimerFired { step }
            | StepEvent::ChildStarted { step, .. }
            | StepEvent::ChildEnded { step, .. }
            | StepEvent::ChildOutputTaken { step, .. }
            | StepEvent::StepDropped { step }
            | StepEvent::CallHanded { step, .. }
            | StepEvent::CallAnswered { step, .. } => Some(step),
            StepEvent::SignalKept { .. } => None,
        }
    }
}

/// The idempotency key of a call: job, step, tool and ordinal. No attempt in it, so that it is the same
/// before and after a takeover, which is when a target has to recognise it.
pub fn idempotency_key(job: EntityId, step: &StepId, tool: &str, ordinal: u32) -> String {
    use sha2::{Digest as _, Sha256};
    let mut h = Sha256::new();
    h.update(job.as_bytes());
    for part in [step.0.as_bytes(), tool.as_bytes()] {
        h.update((part.len() as u64).to_be_bytes());
        h.update(part);
    }
    h.update(ordinal.to_be_bytes());
    crate::canonical::hex(&h.finalize()[..16])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_names_itself_as_it_is_written() {
        let event = StepEvent::TimerFired { step: StepId("3".into()) };
        let json = serde_json::to_value(&event).unwrap();
        assert_eq!(json["event"], event.name());
        let event =
            StepEvent::CommandCommitted { step: StepId("1".into()), key: "k".into(), call: 1 };
        assert_eq!(serde_json::to_value(&event).unwrap()["event"], event.name());
        assert_eq!(
            serde_json::from_value::<StepEvent>(serde_json::to_value(&event).unwrap()).unwrap(),
            event
        );
    }

    #[test]
    fn a_key_depends_on_job_step_tool_and_ordinal_and_on_nothing_else() {
        let (a, b) = (EntityId::fixed(7, 1), EntityId::fixed(7, 2));
        let step = StepId("1".into());
        let key = idempotency_key(a, &step, "pay", 0);
        assert_eq!(key, idempotency_key(a, &step, "pay", 0));
        assert_ne!(key, idempotency_key(b, &step, "pay", 0));
        assert_ne!(key, idempotency_key(a, &StepId("2".into()), "pay", 0));
        assert_ne!(key, idempotency_key(a, &step, "pa", 0));
        assert_ne!(key, idempotency_key(a, &step, "pay", 1));
    }
}
