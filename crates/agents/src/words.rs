//! What is said by mail: the kinds, and what each carries.
//!
//! The types of messages that agents always had are among them: `turn` and `ui_action` are sent to an agent (a turn is made of each),
//! `tool_result`, `progress` and `stop` to a turn, and `timeout` is written by the rule itself.

use crate::is_default;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_kernel::ids::EntityId;

/// Kinds of mail.
pub mod kinds {
    /// A turn to its agent: put me in line. [`super::Enqueue`].
    pub const ENQUEUE: &str = "enqueue?";
    /// An agent to a turn: it is your turn. [`super::Dispatch`].
    pub const DISPATCH: &str = "dispatch?";
    /// An agent to a turn: it will never be. [`super::Refused`].
    pub const REFUSED: &str = "turn_refused";
    /// A turn to its agent: I am over. [`super::Ended`].
    pub const ENDED: &str = "turn_ended";
    /// An agent to its active turn: are you there? A turn that is over sends it back.
    pub const STILL: &str = "still?";
    /// The result of a tool. [`super::ToolResult`].
    pub const TOOL_RESULT: &str = "tool_result";
    /// A tool is still at it. [`super::Progress`].
    pub const PROGRESS: &str = "progress";
    /// End the turn. [`super::Stop`].
    pub const STOP: &str = "stop";
    /// A person ends the turn, with this deliverable. [`super::ForceFinish`].
    pub const FORCE_FINISH: &str = "force_finish";
    /// A person does not want to wait any longer: open waits end as `skipped`. [`super::ResumeNow`].
    pub const RESUME_NOW: &str = "resume_now";
    /// A person deals with a dead letter. [`super::SettleItem`].
    pub const SETTLE: &str = "settle_item";
    /// A turn or a join tells whoever waits for it. [`super::TurnResult`].
    pub const TURN_RESULT: &str = "turn_result";
    /// Somebody changes an agent. [`super::Change`].
    pub const CHANGE: &str = "agent_change";
}

/// See [`kinds::ENQUEUE`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Enqueue {
    /// Which turn.
    pub turn: EntityId,
    /// Not to be put in line: now or never.
    #[serde(default, skip_serializing_if = "is_default")]
    pub only_if_idle: bool,
    /// Its id says when it was sent, and it stands in line by that: what was sent later may have come sooner. One that a
    /// turn asks for has an id of that turn's moment, and stands where it comes.
    #[serde(default, skip_serializing_if = "is_default")]
    pub by_age: bool,
}

/// See [`kinds::DISPATCH`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dispatch {
    /// The counter as it is now.
    pub turn_epoch: u64,
}

/// See [`kinds::REFUSED`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Refused {
    /// A word for programs.
    pub code: String,
    /// A sentence for people.
    pub why: String,
}

/// See [`kinds::ENDED`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// Which turn.
    pub turn: EntityId,
    /// The counter as the turn left it; none if it was never dispatched.
    #[serde(default, skip_serializing_if = "is_default")]
    pub turn_epoch: u64,
    /// How.
    pub status: String,
}

/// How a tool ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolStatus {
    /// It has a result.
    #[default]
    Success,
    /// It has an error.
    Failed,
    /// It did not answer in time.
    Timeout,
    /// Somebody stopped it.
    Canceled,
    /// It has a result that is not all that was asked for.
    Partial,
    /// A person decided not to wait.
    Skipped,
}

/// An error as tools and turns report it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// A word for programs: `tool_timeout`, `bad_request`, `internal_error`, …
    pub code: String,
    /// A sentence for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// What a turn does once all results of a step are there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum After {
    /// It goes on with the next step.
    #[default]
    Suspend,
    /// It ends, and this result is its deliverable.
    Terminate,
}

/// See [`kinds::TOOL_RESULT`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolResult {
    /// The wait it answers, as the suspended turn names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<String>,
    /// Or the id that the model gave the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// The counter under which the tool was called. One that is not the turn's own answers nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_epoch: Option<u64>,
    /// How it ended.
    #[serde(default)]
    pub status: ToolStatus,
    /// What it returned.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub result: Value,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Fault>,
    /// Overrides what the tool's definition says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_execution: Option<After>,
    /// Who says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// See [`kinds::PROGRESS`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// See [`ToolResult::wait`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<String>,
    /// See [`ToolResult::tool_call_id`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// See [`ToolResult::turn_epoch`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_epoch: Option<u64>,
    /// How far it is, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// See [`kinds::STOP`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stop {
    /// As the sender knew it; a turn that has gone on since is stopped all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_epoch: Option<u64>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Who.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// See [`kinds::FORCE_FINISH`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForceFinish {
    /// `success`, `partial` or `failed`.
    pub status: EndStatus,
    /// What is delivered; a fallback without it.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub deliverable: Value,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Who.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// See [`kinds::RESUME_NOW`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResumeNow {
    /// Only this wait; all open ones without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<String>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Who.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// See [`kinds::SETTLE`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettleItem {
    /// The id of the dead letter.
    pub item: String,
    /// It is sent again, as this; without it, it is put aside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again: Option<Again>,
    /// Who.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// A dead letter that is sent again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Again {
    /// Its kind.
    pub kind: String,
    /// What it says now.
    pub body: Value,
}

/// How a turn ended, in the words of the task event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndStatus {
    /// It delivered.
    Success,
    /// It delivered a part.
    Partial,
    /// It did not; what there is was delivered in its place.
    #[default]
    Failed,
    /// Nobody took it in time, or its time was up.
    Timeout,
    /// It was taken back before it began.
    Canceled,
}

impl EndStatus {
    /// The word.
    pub const fn name(self) -> &'static str {
        match self {
            EndStatus::Success => "success",
            EndStatus::Partial => "partial",
            EndStatus::Failed => "failed",
            EndStatus::Timeout => "timeout",
            EndStatus::Canceled => "canceled",
        }
    }
}

/// See [`kinds::TURN_RESULT`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TurnResult {
    /// The number under which it was asked for.
    pub ordinal: u32,
    /// How it ended.
    pub status: EndStatus,
    /// The deliverable, where it is small.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub deliverable: Value,
    /// Its name; a large one is read by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deliverable_card_id: Option<String>,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Fault>,
}

/// The body of the kernel's `child_ended`, as a job sends it to whoever it was made for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobEnded {
    /// The number under which it was asked for.
    pub ordinal: u32,
    /// Its final status.
    pub status: String,
    /// What it returned, where that is small; a larger one is read from the job.
    #[serde(default)]
    pub output: Option<Value>,
    /// Why it did not.
    #[serde(default)]
    pub error: Option<String>,
}

/// The body of the kernel's `returned`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Returned {
    /// What kind of mail it was.
    pub kind: String,
    /// To whom.
    #[serde(default)]
    pub to: Option<EntityId>,
    /// Of something that was said outside: the wait that it was about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<String>,
    /// Why it came back.
    pub why: String,
}

/// See [`kinds::CHANGE`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Change {
    /// Nothing is dispatched until it is resumed.
    Pause {
        /// Who.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    /// It goes on.
    Resume {
        /// Who.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    /// It takes no more turns; those that wait are refused, the active one may end.
    Remove {
        /// Who.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    /// It is set anew.
    Set {
        /// What it is from now on.
        spec: Box<crate::agent::Spec>,
        /// Who.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
}
