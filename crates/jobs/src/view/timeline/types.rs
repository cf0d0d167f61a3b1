//! The data of a timeline.

use serde::{Deserialize, Serialize};
use tenure_kernel::{
    ids::{EntityId, SessionId},
    time::Timestamp,
};
use tenure_steps::events::StepId;

/// A job over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// Which job.
    pub id: EntityId,
    /// Its flow and version.
    pub flow: String,
    /// Its status.
    pub status: String,
    /// When it was created.
    pub from: Timestamp,
    /// Its last event, or the moment it was drawn for while it is open.
    pub to: Timestamp,
    /// It has not ended.
    pub open: bool,
    /// Who held it.
    pub leases: Vec<Lease>,
    /// Its steps, in the order in which they began.
    pub lanes: Vec<Lane>,
    /// What happened at a moment.
    pub marks: Vec<Mark>,
}

/// A tenure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lease {
    /// Its epoch.
    pub epoch: u64,
    /// Whose.
    pub session: Option<SessionId>,
    /// Their name.
    pub name: String,
    /// From when.
    pub from: Timestamp,
    /// Until when; `None` while it lasts.
    pub to: Option<Timestamp>,
    /// How it ended.
    pub end: LeaseEnd,
    /// Why it ended, in words.
    pub why: String,
}

/// How a tenure ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseEnd {
    /// It lasts.
    Open,
    /// The worker gave it back.
    Released,
    /// The worker was not heard any more, or did not move.
    Lost,
    /// Nothing but waiting was left.
    Parked,
    /// The job ended with it.
    Final,
}

/// One step over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lane {
    /// The step.
    pub step: StepId,
    /// What it is.
    pub label: String,
    /// Taken over from another job.
    pub copied: bool,
    /// In order.
    pub bars: Vec<Bar>,
}

/// A stretch of time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bar {
    /// What it is.
    pub kind: BarKind,
    /// From when.
    pub from: Timestamp,
    /// Until when; `None` while it lasts.
    pub to: Option<Timestamp>,
    /// How it went.
    pub state: BarState,
    /// In words.
    pub label: String,
    /// Under which epoch a call was made.
    pub epoch: Option<u64>,
}

/// What a bar is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BarKind {
    /// A call of a tool.
    Call,
    /// The pause between two attempts.
    Backoff,
    /// A wait for something from outside.
    Wait,
    /// A sleep.
    Sleep,
    /// A child job.
    Child,
    /// A recorded value: a moment.
    Value,
}

/// How it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BarState {
    /// It lasts.
    Open,
    /// Well.
    Ok,
    /// It failed.
    Failed,
    /// Nobody knows.
    Unknown,
}

/// Something that happened at a moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// When.
    pub at: Timestamp,
    /// What.
    pub kind: MarkKind,
    /// In words.
    pub label: String,
    /// To which step.
    pub step: Option<StepId>,
}

/// What a mark is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MarkKind {
    /// A worker was lost.
    Kill,
    /// A signal came.
    Signal,
    /// An effect became unknown.
    Unknown,
    /// An effect was settled.
    Settled,
    /// The flow's code and its history did not agree, or the flow broke.
    Divergence,
    /// A person was asked to look.
    Attention,
    /// Paused or resumed.
    Pause,
    /// Somebody wanted it to end.
    Cancel,
    /// The flow was started afresh.
    Continued,
    /// History was taken over from another job.
    Copied,
    /// The end.
    End,
}
