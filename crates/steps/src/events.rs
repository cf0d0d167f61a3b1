//! What is recorded about steps. The names are those of the seeds; jobs and turns write the same ones.
//!
//! Replay depends on these events alone. A result stands once, in `tool_invocation_finished` (tools),
//! `value_recorded` (pure steps, now, random, uuid), `wait_completed` or `child_ended`.

use crate::tool::Class;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;
use tenure_kernel::{
    ids::{EntityId, SessionId},
    time::Timestamp,
};

/// Names a step within its job: its number in the flow's order of calls; in a branch, the number of the
/// branch and the number in it (`3.1`); after `continue_with`, the run in front (`2:1`).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StepId(pub String);

impl fmt::Display for StepId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for StepId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The seed's result types of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResultType {
    /// No change in the world.
    Pure,
    /// Done, in the words of older streams.
    Success,
    /// A tool did its work and that is recorded.
    SideEffectCommitted,
    /// Not applied; tried again if attempts are left.
    RetryableFailure,
    /// Not to be tried again.
    PermanentFailure,
    /// Half applied: has to be compensated.
    CompensatableFailure,
    /// Compensated: counts as over, and as not applied.
    Compensated,
}

impl ResultType {
    /// Whether the flow is told: everything but a failure that is tried again.
    pub fn settles(self) -> bool {
        self != ResultType::RetryableFailure
    }
}

/// How a tool call ended, as its worker saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallOutcome {
    /// With a result.
    Success,
    /// With an error, and nothing applied.
    Failure,
    /// Stopped on request before it did anything.
    Cancelled,
}

/// What an unknown effect was found to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It happened, with this result.
    Happened,
    /// It did not, and will not.
    DidNotHappen,
    /// It was undone, and counts as not happened.
    Compensated,
    /// A person gave it up: the step fails, whatever happened.
    Abandoned,
    /// The tool is idempotent: it is called again under the same key, which settles it.
    CalledAgain,
}

/// Who settled it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SettledBy {
    /// The tool's class.
    Class,
    /// The tool's probe.
    Probe,
    /// A result that came late.
    Evidence,
    /// A result that lay in a separate effect store.
    EffectStore,
    /// Its compensation.
    Compensation,
    /// A person.
    Person,
}

/// What a wait waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitKind {
    /// A signal with this key.
    Signal,
    /// A person's yes or no.
    Human,
    /// A call from another system.
    Webhook,
    /// A time.
    Timer,
}

impl WaitKind {
    /// As text.
    pub fn as_str(self) -> &'static str {
        match self {
            WaitKind::Signal => "signal",
            WaitKind::Human => "human",
            WaitKind::Webhook => "webhook",
            WaitKind::Timer => "timer",
        }
    }
}

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitOutcome {
    /// The signal or the webhook came.
    Signalled,
    /// A person said yes.
    Approved,
    /// A person said no.
    Rejected,
    /// The deadline passed, or the time came.
    Expired,
}

/// What a recorded value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueKind {
    /// The result of a pure step.
    Pure,
    /// A time.
    Now,
    /// A random number.
    Random,
    /// A UUID.
    Uuid,
    /// Which branch of a race was first.
    Race,
    /// What undoes a step that has happened: its tool and input. See [`crate::saga`].
    Undo,
    /// Which of those are not needed any more.
    Kept,
}

/// Why a timer was set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimerWhy {
    /// The flow sleeps.
    Sleep,
    /// A call is tried again later.
    Retry,
    /// A call waits for the rate limit of its tool.
    Limit,
}

/// Leave to make one call, from a limit: good within its time, void after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Token {
    /// The limit.
    #[serde(rename = "l")]
    pub limit: EntityId,
    /// Not before.
    #[serde(rename = "f")]
    pub from: Timestamp,
    /// Not after.
    #[serde(rename = "u")]
    pub until: Timestamp,
}

/// A tool step that waits for a limit: what it is, since it may have no call yet, and the tokens it has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LimitWait {
    /// The tool.
    pub tool: String,
    /// Digest of its arguments.
    pub arguments_hash: String,
    /// Kept for it.
    pub tokens: Vec<Token>,
}

/// What is asked of a tool.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// To do its work.
    #[default]
    Call,
    /// Whether an earlier call happened.
    Probe,
    /// To undo an earlier call.
    Compensate,
}

impl What {
    /// As text.
    pub fn as_str(self) -> &'static str {
        match self {
            What::Call => "call",
            What::Probe => "probe",
            What::Compensate => "compensate",
        }
    }
}

/// How a call that was handed to another worker ended, as far as anybody can say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallEnd {
    /// With a result.
    Completed,
    /// Nothing was applied, and another try may help.
    Retryable,
    /// Nothing was applied, and another try would not help.
    Permanent,
    /// It may have been applied; nothing of it runs any more.
    Unknown,
    /// Half of it was applied; nothing of it runs any more.
    Compensatable,
    /// It stopped on request before it applied anything.
    Cancelled,
    /// Nobody ever began it.
    NotCalled,
    /// Nobody took it as long as its job could wait.
    Expired,
    /// Whoever had it was not heard of in time: it may have been applied, and may still run.
    Lost,
}

impl CallEnd {
    /// Whether it is certain that nothing was applied.
    pub fn is_not_applied(self) -> bool {
        matches!(
            self,
            CallEnd::Retryable
                | CallEnd::Permanent
                | CallEnd::Cancelled
                | CallEnd::NotCalled
                | CallEnd::Expired
        )
    }

    /// Whether it is certain what became of it.
    pub fn is_certain(self) -> bool {
        self == CallEnd::Completed || self.is_not_applied()
    }
}

/// What came back from a call that was handed over.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CallAnswer {
    /// How it ended.
    pub end: CallEnd,
    /// What it returned, where it is small; else it is read from the call.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::canonical::present"
    )]
    pub result: Option<Value>,
    /// In words, where it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Who had it, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
}

/// What a step was that never came to a call: an unknown tool, say.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EarlyFailure {
    /// The tool, or the flow of a child.
    pub of: String,
    /// Digest of the arguments.
    pub arguments_hash: String,
    /// It was to be a child.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub child: bool,
    /// Where the flow asked for it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub place: String,
}

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
    /// Every name, in the order of the variants.
    pub const NAMES: [&'static str; 19] = [
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
