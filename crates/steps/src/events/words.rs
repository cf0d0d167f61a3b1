//! The words of which events of steps are made: how things are named, how they ended, who said so.

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

/// The types of a step's result.
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

/// A place in the line of a limit: when its turn would come if all before it came in theirs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InLine {
    /// The limit.
    #[serde(rename = "l")]
    pub limit: EntityId,
    /// About when.
    #[serde(rename = "a")]
    pub at: Timestamp,
}

/// A tool step that waits for a limit: what it is, since it may have no call yet, and where it stands in the line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LimitWait {
    /// The tool.
    pub tool: String,
    /// Digest of its arguments.
    pub arguments_hash: String,
    /// Older programs kept tokens for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<Token>,
    /// Its places; the last one is what it waits for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub line: Vec<InLine>,
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
