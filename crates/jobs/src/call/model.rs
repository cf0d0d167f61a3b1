//! The call machine: what is kept, and what can happen. Where it leads is in [`super::table`].

use crate::model::small;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_kernel::{
    ids::{EntityId, SessionId},
    machine::{Cx, Decision, Input, Machine, Undecided},
    table::Table,
};
use tenure_steps::{
    events::{CallEnd, StepId, What},
    tool::Class as ToolClass,
};

/// Limits of a call, by name.
pub mod limits {
    /// An input up to this size is kept in the head, so that a claim can be answered without a look at the history.
    pub const INPUT_IN_HEAD_BYTES_MAX: usize = 8 * 1024;
    /// A result up to this size is told to the job; a larger one is read from the call.
    pub const RESULT_IN_MAIL_BYTES_MAX: usize = 8 * 1024;
    /// Length of a tool's name: its queue is named after it.
    pub const TOOL_NAME_BYTES_MAX: usize = 100;
    /// Tools of one session.
    pub const TOOLS_MAX: usize = 256;
    /// Calls that one question brings.
    pub const POLL_MAX: usize = 64;
    /// Inputs that one question brings, in bytes; the call that passes it is the last.
    pub const POLL_BYTES: usize = 8 * 1024 * 1024;
    /// Length of an error that a worker brings; more is cut.
    pub const ERROR_BYTES_MAX: usize = 4 * 1024;
}

/// What a new call is asked to be. The body of the wish, and the first event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NewCall {
    /// Whose call it is.
    pub job: EntityId,
    /// The epoch of the job under which it was started.
    pub job_epoch: u64,
    /// The step.
    pub step: StepId,
    /// The idempotency key.
    pub key: String,
    /// Which call under the key.
    pub call: u32,
    /// What is asked of the tool.
    pub what: What,
    /// How often something was handed over for that call before.
    #[serde(default)]
    pub nth: u32,
    /// The tool.
    pub tool: String,
    /// What settles it.
    pub class: ToolClass,
    /// How long the tool may take, from when a worker took it.
    pub timeout_ms: u64,
    /// How long beyond that its worker may take to say so.
    #[serde(default, skip_serializing_if = "is_default")]
    pub grace_ms: u64,
    /// It ends by then, whatever happens: as long as its job can wait for it.
    pub must_end_in_ms: u64,
    /// Higher is sooner.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: i16,
    /// Where the flow asked for it: the name of the step in a plan, else the line of code. Only said to whom the call is no `call`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub place: String,
    /// What the tool gets.
    pub input: Value,
}

/// How a worker says that a tool did not return a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailKind {
    /// Nothing was applied, and another try may help.
    Retryable,
    /// Nothing was applied, and another try would not help.
    Permanent,
    /// It may have been applied.
    Unknown,
    /// Half of it was applied.
    Compensatable,
    /// It stopped on request before it applied anything.
    Cancelled,
    /// It was not begun, and this worker will not begin it.
    NotCalled,
}

impl From<FailKind> for CallEnd {
    fn from(kind: FailKind) -> Self {
        match kind {
            FailKind::Retryable => CallEnd::Retryable,
            FailKind::Permanent => CallEnd::Permanent,
            FailKind::Unknown => CallEnd::Unknown,
            FailKind::Compensatable => CallEnd::Compensatable,
            FailKind::Cancelled => CallEnd::Cancelled,
            FailKind::NotCalled => CallEnd::NotCalled,
        }
    }
}

/// Which answer ended it: the same again is answered the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answered {
    /// Under which epoch of the call it came.
    pub epoch: u64,
    /// Digest of what was said.
    pub digest: String,
}

/// What can happen to a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum CallEvent {
    /// Born.
    CallCreated(Box<NewCall>),
    /// Its worker gives it back and has not begun it.
    CallReleased {
        /// Why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
        /// Who had it, so that the same again is answered the same.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        had: Option<(SessionId, u64)>,
    },
    /// Its worker brought a result.
    CallCompleted {
        /// What the tool returned.
        result: Value,
        /// See [`Answered`].
        answered: Answered,
    },
    /// Its worker said how it failed.
    CallFailed {
        /// How.
        kind: FailKind,
        /// In words.
        error: String,
        /// See [`Answered`].
        answered: Answered,
    },
    /// A worker had it and was not heard of in time, or has given it up while code of it may still run.
    CallLost {
        /// Which rule, or what the worker said.
        why: String,
        /// See [`Answered`]; only where its worker said so itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        answered: Option<Answered>,
    },
    /// Its job did not want it any more, and nobody had begun it.
    CallCancelled {
        /// Why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    /// No worker took it in time.
    CallExpired {},
    /// It was taken long after it was handed over: its time counts from here.
    ClockStarted {},
    /// The answer with which its worker got it was lost on the way: it is handed out once more, and its time counts from
    /// here.
    HandedAgain {},
    /// Its time would be up, and nobody has taken it: it counts from when somebody does.
    ClockStopped {},
    /// Mail came that changes nothing.
    MailNoted {
        /// What.
        what: String,
    },
}

/// What the head keeps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallState {
    /// See [`NewCall::job`].
    pub job: EntityId,
    /// See [`NewCall::job_epoch`].
    pub job_epoch: u64,
    /// See [`NewCall::step`].
    pub step: StepId,
    /// See [`NewCall::key`].
    pub key: String,
    /// See [`NewCall::call`].
    pub call: u32,
    /// See [`NewCall::what`].
    pub what: What,
    /// See [`NewCall::nth`].
    #[serde(skip_serializing_if = "is_default")]
    pub nth: u32,
    /// See [`NewCall::tool`].
    pub tool: String,
    /// See [`NewCall::class`].
    pub class: ToolClass,
    /// See [`NewCall::timeout_ms`].
    pub timeout_ms: u64,
    /// See [`NewCall::grace_ms`].
    #[serde(skip_serializing_if = "is_default")]
    pub grace_ms: u64,
    /// See [`NewCall::must_end_in_ms`].
    pub must_end_in_ms: u64,
    /// See [`NewCall::input`], where it is small.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "tenure_steps::canonical::present"
    )]
    pub input: Option<Value>,
    /// How often it was handed out once more.
    #[serde(skip_serializing_if = "is_default")]
    pub handed: u32,
    /// Who gave it back last, and under which epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub released: Option<(SessionId, u64)>,
    /// Which answer ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answered: Option<Answered>,
    /// What it said, or why it ended without an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Default for CallState {
    fn default() -> Self {
        CallState {
            job: EntityId::fixed(0, 0),
            job_epoch: 0,
            step: StepId(String::new()),
            key: String::new(),
            call: 0,
            what: What::Call,
            nth: 0,
            tool: String::new(),
            class: ToolClass::default(),
            timeout_ms: 0,
            grace_ms: 0,
            must_end_in_ms: 0,
            input: None,
            handed: 0,
            released: None,
            answered: None,
            error: None,
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The call machine.
#[derive(Debug)]
pub struct Call;

impl Machine for Call {
    type State = CallState;
    type Event = CallEvent;
    const TABLE: &'static Table = &super::table::TABLE;
    const CREATED_BY: &'static [&'static str] = &["job"];
    const REPORTS_TO: Option<&'static str> = Some("/job");

    fn name(event: &CallEvent) -> &'static str {
        match event {
            CallEvent::CallCreated(_) => "call_created",
            CallEvent::CallReleased { .. } => "call_released",
            CallEvent::CallCompleted { .. } => "call_completed",
            CallEvent::CallFailed { .. } => "call_failed",
            CallEvent::CallLost { .. } => "call_lost",
            CallEvent::CallCancelled { .. } => "call_cancelled",
            CallEvent::CallExpired {} => "call_expired",
            CallEvent::ClockStarted {} => "clock_started",
            CallEvent::HandedAgain {} => "handed_again",
            CallEvent::ClockStopped {} => "clock_stopped",
            CallEvent::MailNoted { .. } => "mail_noted",
        }
    }

    /// Its worker may have had the result in hand while nobody could take it.
    fn judges(timer: &str) -> bool {
        timer == super::decide::CLOCK
    }

    fn apply(state: &mut CallState, event: &CallEvent) {
        match event {
            CallEvent::CallCreated(new) => {
                let new = (**new).clone();
                *state = CallState {
                    job: new.job,
                    job_epoch: new.job_epoch,
                    step: new.step,
                    key: new.key,
                    call: new.call,
                    what: new.what,
                    nth: new.nth,
                    tool: new.tool,
                    class: new.class,
                    timeout_ms: new.timeout_ms,
                    grace_ms: new.grace_ms,
                    must_end_in_ms: new.must_end_in_ms,
                    input: small(&new.input, limits::INPUT_IN_HEAD_BYTES_MAX),
                    handed: 0,
                    released: None,
                    answered: None,
                    error: None,
                };
            }
            CallEvent::CallReleased { had, .. } => state.released = *had,
            CallEvent::HandedAgain {} => state.handed += 1,
            CallEvent::CallCompleted { answered, .. } => state.answered = Some(answered.clone()),
            CallEvent::CallFailed { error, answered, .. } => {
                state.answered = Some(answered.clone());
                state.error = Some(error.clone());
            }
            CallEvent::CallLost { why, answered } => {
                state.error = Some(why.clone());
                state.answered.clone_from(answered);
            }
            CallEvent::CallCancelled { why } => state.error.clone_from(why),
            CallEvent::CallExpired {}
            | CallEvent::ClockStarted {}
            | CallEvent::ClockStopped {}
            | CallEvent::MailNoted { .. } => {}
        }
    }

    fn decide(
        state: Option<&CallState>,
        input: &Input<'_>,
        cx: &Cx,
    ) -> Result<Decision<CallEvent>, Undecided> {
        super::decide::decide(state, input, cx)
    }
}
