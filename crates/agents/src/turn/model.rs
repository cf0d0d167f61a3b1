//! What a turn is asked to be, and what can happen to it. What its head keeps of that is in [`super::state`].

pub use super::state::{Ending, Outcome, Turn, TurnState};

use crate::{
    is_default,
    rules::Rules,
    words::{After, EndStatus, Fault, ToolResult, ToolStatus},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_kernel::{ids::EntityId, time::Timestamp};

/// Which message a turn was made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sort {
    /// Work for the agent.
    #[default]
    Turn,
    /// An action of a person: now or never.
    UiAction,
}

/// Who waits for a turn: another turn, or a join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asker {
    /// Who.
    pub id: EntityId,
    /// The number under which it was asked for.
    pub ordinal: u32,
}

/// What a new turn is asked to be. The body of the wish, and the first event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NewTurn {
    /// The agent's id.
    pub agent: EntityId,
    /// Its name.
    pub agent_name: String,
    /// Which workers run it.
    pub target: String,
    /// See [`Sort`].
    #[serde(default, skip_serializing_if = "is_default")]
    pub sort: Sort,
    /// Its channel; without one no bell is rung for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// Where its deliverable goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_box: Option<String>,
    /// What is said to the agent: messages as a model reads them (`role`, `content`), the last one being the task.
    pub messages: Vec<Value>,
    /// The sender's own name for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// Who waits for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asker: Option<Asker>,
    /// How many turns lie above it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub depth: u32,
    /// The agents of these turns: asking one of them again would be waiting for oneself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub above: Vec<String>,
    /// W3C trace context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// It ends by then, whatever happens.
    pub must_end_in_ms: u64,
    /// The times of its rules.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rules: Rules,
    /// Higher is sooner, among those that wait for the same workers.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: i16,
    /// Who sent it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// Who answers a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitFor {
    /// A job.
    Job(EntityId),
    /// Another agent's turn.
    Turn(EntityId),
    /// Several turns.
    Join(EntityId),
    /// Whoever is outside, with a `tool_result`.
    Message,
}

/// A tool that has been called and has not answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wait {
    /// Its name within the turn: step and place, `3.1`. Ids of models repeat.
    pub id: String,
    /// Its number within the turn, under which jobs and turns were asked for.
    pub ordinal: u32,
    /// The id that the model gave the call.
    pub call: String,
    /// The tool.
    pub tool: String,
    /// Who answers.
    #[serde(rename = "for")]
    pub waits_for: WaitFor,
    /// How long it is waited for, from the suspend and from every progress of the tool; `0` as long as the turn lasts.
    pub timeout_ms: u64,
    /// When that is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// What happens after it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub after: After,
}

/// A result as it is applied: once per wait.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Applied {
    /// The wait.
    pub wait: String,
    /// The id that the model gave the call.
    pub call: String,
    /// The tool.
    pub tool: String,
    /// How it ended.
    pub status: ToolStatus,
    /// What it returned, or what is known of it.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub result: Value,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Fault>,
    /// Too large for mail: it is read from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_from: Option<EntityId>,
    /// What happens after it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub after: After,
}

/// What is delivered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Deliverable {
    /// Its name: one per turn.
    pub card_id: String,
    /// Where it lies.
    pub output_box: String,
    /// Made up by a rule, of what there was.
    #[serde(default, skip_serializing_if = "is_default")]
    pub fallback: bool,
    /// What it says.
    pub content: Value,
}

/// That somebody but its worker ended a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForcedEnd {
    /// `dispatch_timeout`, `timeout_reaped_by_watchdog`, `stopped`, …
    pub reason: String,
    /// Where it stood.
    pub status: String,
    /// Who, where it was a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// Somebody who was asked and is not known to be over: told to stop, and not waited for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Abandoned {
    /// The wait.
    pub wait: String,
    /// The number under which it was asked for.
    pub ordinal: u32,
    /// The tool; empty of one that was given up before, whose step names it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tool: String,
    /// Who.
    #[serde(rename = "for")]
    pub waits_for: WaitFor,
}

impl Abandoned {
    /// Who answers a wait, where that is somebody of this store.
    pub(super) fn of(wait: &Wait) -> Option<Self> {
        (wait.waits_for != WaitFor::Message).then(|| Abandoned {
            wait: wait.id.clone(),
            ordinal: wait.ordinal,
            tool: wait.tool.clone(),
            waits_for: wait.waits_for,
        })
    }
}

/// The end of a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnEnd {
    /// How.
    pub status: EndStatus,
    /// The counter after it.
    pub turn_epoch: u64,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Fault>,
    /// What is delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deliverable: Option<Deliverable>,
    /// Why nothing is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_deliverable: Option<String>,
    /// Where a rule or a person ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forced: Option<ForcedEnd>,
    /// Jobs, turns and joins that it does not wait for any longer: a parent is over after its children, or says
    /// which of them it left.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub abandoned: Vec<Abandoned>,
    /// The item was set aside, by this rule, and when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watchdog_error: Option<String>,
    /// See `watchdog_error`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watchdog_at: Option<Timestamp>,
}

/// What the model said in a step, and what it wants called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepDone {
    /// Its number.
    pub step: u32,
    /// The message as the model gave it (`role`, `content`, `tool_calls`).
    pub message: Value,
    /// Tokens and the like.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub usage: Value,
    /// Why the answer ended, where the model server says so: `stop`, `tool_calls`, `length`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<String>,
}

impl StepDone {
    /// One of which nothing is known but the message.
    pub fn new(step: u32, message: Value) -> Self {
        StepDone { step, message, usage: Value::Null, finish_reason: None }
    }
}

/// Mail that could not be used: a dead letter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dead {
    /// The mail's id.
    pub item: String,
    /// Its kind.
    pub kind: String,
    /// A word for programs: `unknown_call`, `stale_epoch`, `epoch_from_the_future`, `not_by_message`, `unreadable`, …
    pub code: String,
    /// A sentence for people.
    pub why: String,
    /// What it said, so that it can be sent again.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub body: Value,
    /// It was a result that had been kept for a suspend, and is no longer.
    #[serde(default, skip_serializing_if = "is_default")]
    pub kept: bool,
}

/// What can happen to a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum TurnEvent {
    /// Sent.
    TurnCreated(Box<NewTurn>),
    /// It is its turn.
    TurnDispatched {
        /// The counter.
        turn_epoch: u64,
    },
    /// Its worker asks the model.
    StepStarted {
        /// From 1.
        step: u32,
        /// How often this step was begun.
        attempt: u32,
        /// How long the model may take.
        timeout_ms: u64,
        /// Until when that is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
        /// The agent's profile, with the first step.
        #[serde(default, skip_serializing_if = "Value::is_null")]
        profile: Value,
    },
    /// The model has answered.
    StepFinished(StepDone),
    /// The model is at it; said now and then, so that nobody takes it for hung.
    ProgressMade {
        /// How far, for people.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        note: String,
    },
    /// Tools have been called; nobody holds the turn until they have answered.
    TurnSuspended {
        /// The step that called them.
        step: u32,
        /// All that are waited for.
        waits: Vec<Wait>,
    },
    /// A tool has answered.
    ResultApplied(Applied),
    /// A tool has not answered in time: the timeout report, written into the inbox and read in one.
    WaitTimedOut(Applied),
    /// A tool is still at it: its time counts from here.
    WaitProgress {
        /// The wait.
        wait: String,
        /// When it is over now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Timestamp>,
        /// How far, for people.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        note: String,
    },
    /// A result came before the turn was suspended; kept for that.
    ResultKept {
        /// The mail's id.
        item: String,
        /// What it said.
        result: Box<ToolResult>,
    },
    /// Everything has answered.
    TurnResumed {
        /// The counter from here on.
        turn_epoch: u64,
    },
    /// Its worker was lost, or gave it back.
    TurnLeftByWorker {
        /// Why.
        why: String,
        /// Given back, not lost: counted apart.
        #[serde(default, skip_serializing_if = "is_default")]
        released: bool,
    },
    /// Rule `inbox_processing`: its worker had it and did nothing.
    ItemsRequeued {},
    /// Rule `resume_lease`: its worker took it up again and did nothing.
    ResumeRequeued {
        /// How often.
        attempts: u32,
    },
    /// Rule `dispatched_retry`.
    DispatchRetried {
        /// How often.
        times: u32,
    },
    /// Rule `pending_wakeup`.
    BellRung {
        /// How often.
        times: u32,
        /// No channel is known: nobody was rung.
        #[serde(default, skip_serializing_if = "is_default")]
        silent: bool,
    },
    /// A dead letter.
    ItemDead(Dead),
    /// A person dealt with a dead letter.
    ItemSettled {
        /// The mail's id.
        item: String,
        /// `requeued` or `skipped`.
        how: String,
        /// Who.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    /// Mail that changes nothing: a repetition, an answer to something that is over.
    ItemNoted {
        /// The mail's id.
        item: String,
        /// Its kind.
        kind: String,
        /// Why it changes nothing.
        why: String,
        /// The number of whoever says that it is over.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ordinal: Option<u32>,
    },
    /// It delivered.
    TurnSucceeded(Box<TurnEnd>),
    /// It delivered a part.
    TurnPartlySucceeded(Box<TurnEnd>),
    /// It failed.
    TurnFailed(Box<TurnEnd>),
    /// Its time was up.
    TurnTimedOut(Box<TurnEnd>),
    /// It was taken back before it began.
    TurnCanceled(Box<TurnEnd>),
}

impl TurnEvent {
    /// The event of an end.
    pub fn end(end: TurnEnd) -> Self {
        let end = Box::new(end);
        match end.status {
            EndStatus::Success => TurnEvent::TurnSucceeded(end),
            EndStatus::Partial => TurnEvent::TurnPartlySucceeded(end),
            EndStatus::Failed => TurnEvent::TurnFailed(end),
            EndStatus::Timeout => TurnEvent::TurnTimedOut(end),
            EndStatus::Canceled => TurnEvent::TurnCanceled(end),
        }
    }

    /// The end that an event is, if it is one.
    pub fn as_end(&self) -> Option<&TurnEnd> {
        match self {
            TurnEvent::TurnSucceeded(end)
            | TurnEvent::TurnPartlySucceeded(end)
            | TurnEvent::TurnFailed(end)
            | TurnEvent::TurnTimedOut(end)
            | TurnEvent::TurnCanceled(end) => Some(end),
            _ => None,
        }
    }
}
