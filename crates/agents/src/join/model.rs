//! What a join is asked to be, what its head keeps, and what can happen to it.

use super::table::TABLE;
use crate::{
    is_default,
    turn::model::{Asker, NewTurn},
    words::{EndStatus, Fault},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_kernel::{
    ids::EntityId,
    machine::{Cx, Decision, Input, Machine, Undecided},
    table::Table,
};

/// A turn of a join.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Its id.
    pub turn: EntityId,
    /// What it is asked to be; who asks is filled in.
    pub new: NewTurn,
}

/// What a new join is asked to be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NewJoin {
    /// Who waits for it.
    pub asker: Asker,
    /// In order.
    pub tasks: Vec<Task>,
    /// The first failure ends it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub fail_fast: bool,
    /// It ends by then, with what there is.
    pub must_end_in_ms: u64,
}

/// Where one task stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskState {
    /// The turn.
    #[serde(rename = "t")]
    pub turn: EntityId,
    /// How it ended; none while it is open.
    #[serde(default, rename = "s", skip_serializing_if = "Option::is_none")]
    pub status: Option<EndStatus>,
    /// The beginning of what it delivered.
    #[serde(default, rename = "d", skip_serializing_if = "String::is_empty")]
    pub summary: String,
    /// What went wrong, in a word.
    #[serde(default, rename = "e", skip_serializing_if = "String::is_empty")]
    pub error: String,
}

/// What the head keeps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JoinState {
    /// Who waits for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asker: Option<Asker>,
    /// In order.
    pub tasks: Vec<TaskState>,
    /// See [`NewJoin::fail_fast`].
    #[serde(skip_serializing_if = "is_default")]
    pub fail_fast: bool,
}

/// What can happen to a join.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum JoinEvent {
    /// Born.
    JoinCreated(Box<NewJoin>),
    /// One of its turns is over.
    TaskEnded {
        /// Its place, from 0.
        index: u32,
        /// How.
        status: EndStatus,
        /// The beginning of what it delivered.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        summary: String,
        /// What it delivered, where it is small.
        #[serde(default, skip_serializing_if = "Value::is_null")]
        deliverable: Value,
        /// What went wrong.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<Fault>,
    },
    /// Mail that changes nothing.
    JoinMailNoted {
        /// What.
        what: String,
    },
    /// Its result.
    JoinEnded {
        /// How.
        status: EndStatus,
        /// Why it ended before all were over.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
        /// One row per task, in order.
        results: Value,
        /// Turns that were not over: told to stop, and not waited for.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        abandoned: Vec<EntityId>,
    },
}

/// The join machine.
#[derive(Debug)]
pub struct Join;

impl Machine for Join {
    type State = JoinState;
    type Event = JoinEvent;
    const TABLE: &'static Table = &TABLE;
    const CREATED_BY: &'static [&'static str] = &["turn"];
    const REPORTS_TO: Option<&'static str> = Some("/asker/id");

    fn name(event: &JoinEvent) -> &'static str {
        match event {
            JoinEvent::JoinCreated(_) => "join_created",
            JoinEvent::TaskEnded { .. } => "task_ended",
            JoinEvent::JoinMailNoted { .. } => "join_mail_noted",
            JoinEvent::JoinEnded { .. } => "join_ended",
        }
    }

    fn apply(state: &mut JoinState, event: &JoinEvent) {
        match event {
            JoinEvent::JoinCreated(new) => {
                let task = |t: &Task| TaskState {
                    turn: t.turn,
                    status: None,
                    summary: String::new(),
                    error: String::new(),
                };
                *state = JoinState {
                    asker: Some(new.asker),
                    tasks: new.tasks.iter().map(task).collect(),
                    fail_fast: new.fail_fast,
                };
            }
            JoinEvent::TaskEnded { index, status, summary, error, .. } => {
                let place = usize::try_from(*index).unwrap_or(usize::MAX);
                if let Some(task) = state.tasks.get_mut(place) {
                    task.status = Some(*status);
                    task.summary.clone_from(summary);
                    let code = error.as_ref().map_or("", |e| e.code.as_str());
                    task.error = crate::clip_encoded(code, 64).to_owned();
                }
            }
            JoinEvent::JoinMailNoted { .. } | JoinEvent::JoinEnded { .. } => {}
        }
    }

    fn decide(
        state: Option<&JoinState>,
        input: &Input<'_>,
        cx: &Cx,
    ) -> Result<Decision<JoinEvent>, Undecided> {
        super::decide::decide(state, input, cx)
    }
}
