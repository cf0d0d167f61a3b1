//! What a batch collects, and what can happen to it.

use crate::terms::Terms;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::time::Duration;
use tenure_kernel::{
    ids::EntityId,
    machine::{Cx, Decision, Input, Machine, Undecided},
    table::{BIRTH, Claimable, Class, Move, SAME, StatusRow, Table, VACANT},
    time::Timestamp,
};

/// Limits of a batch, by name.
pub mod limits {
    use std::time::Duration;

    /// Bytes of inputs that are collected; more of them close the batch early.
    pub const OPEN_BYTES_MAX: usize = 8 * 1024;
    /// An input above this is not collected: it becomes a job of its own at once.
    pub const ITEM_BYTES_MAX: usize = 4 * 1024;
    /// All of an item as JSON: input, terms, who. It is mail that lies inline, and most of it lies in the head.
    pub const WHOLE_BYTES_MAX: usize = 6 * 1024;
    /// Of who asked, so many bytes are kept.
    pub const BY_BYTES_MAX: usize = 128;
    /// Inputs of one job.
    pub const ITEMS_MAX: u32 = 1_000;
    /// Jobs that the head remembers.
    pub const MADE_KEPT: usize = 20;
    /// The longest that anything is held back.
    pub const WITHIN_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);
    /// A batch in which nothing is collected for so long is vacant.
    pub const IDLE: Duration = Duration::from_secs(600);
    /// Length of a key.
    pub const KEY_BYTES_MAX: usize = 200;
}

/// How submissions become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// All of them, as a list.
    Batch {
        /// Closes when so many are there.
        max: u32,
        /// Closes so long after the first.
        within_ms: u64,
    },
    /// Only the last of them.
    Debounce {
        /// Closes after so long a silence.
        quiet_ms: u64,
        /// Closes so long after the first, silence or not.
        within_ms: u64,
    },
}

impl Mode {
    /// Its name, part of the batch's identity.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Batch { .. } => "batch",
            Mode::Debounce { .. } => "debounce",
        }
    }

    /// How long after the first one it closes at the latest.
    pub fn within(self) -> Duration {
        match self {
            Mode::Batch { within_ms, .. } | Mode::Debounce { within_ms, .. } => {
                Duration::from_millis(within_ms)
            }
        }
    }
}

/// One submission: the body of the mail.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// Its input.
    pub input: Value,
    /// How it wants to be collected; the last one counts.
    pub mode: Mode,
    /// How the job is to be; that of the last one counts.
    pub job: Wanted,
}

/// A submission that could not be collected has become a job: the body of that mail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overtaken {
    /// The job.
    pub job: EntityId,
}

/// What the job of a batch is made from, beside its input.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Wanted {
    /// The flow's version.
    pub version: u32,
    /// Higher is sooner.
    #[serde(default)]
    pub priority: i16,
    /// It ends by then.
    pub must_end_in_ms: u64,
    /// Lost workers after which it is given up.
    pub takeovers_max: u32,
    /// When and where it may run.
    #[serde(default)]
    pub terms: Terms,
    /// Who asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// A job that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// The job.
    pub job: EntityId,
    /// Its number, from 1.
    pub generation: u64,
    /// Submissions that it stands for.
    pub items: u32,
    /// When it was closed.
    pub at: Timestamp,
    /// `full`, `bytes` or `time`; `overtaken` where a larger submission became this job at once.
    pub why: String,
}

/// What the head keeps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// The flow.
    pub flow: String,
    /// The key.
    pub key: String,
    /// How many were closed.
    pub generation: u64,
    /// When the first of the open ones came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opened_at: Option<Timestamp>,
    /// By when they close, if nothing more comes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub closes_at: Option<Timestamp>,
    /// What is collected; of a debounce the last one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<Value>,
    /// Submissions that it stands for.
    pub items: u32,
    /// How it is collected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// How the job is to be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<Wanted>,
    /// The last jobs, the newest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub made: Vec<Made>,
}

/// What can happen to a batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// Somebody used this key for the first time.
    BatchOpened {
        /// The flow.
        flow: String,
        /// The key.
        key: String,
    },
    /// A submission was taken in.
    ItemCollected {
        /// Its mail.
        id: String,
        /// What it is.
        item: Box<Item>,
        /// When.
        at: Timestamp,
        /// By when the batch closes now.
        closes_at: Timestamp,
    },
    /// What was collected becomes a job.
    BatchClosed(Made),
    /// A job could not be created. Its inputs stand in the stream.
    BatchJobRefused {
        /// Which.
        job: EntityId,
        /// Why.
        why: String,
    },
    /// Nothing was collected for a while.
    BatchVacated,
    /// Mail came to a vacant batch.
    BatchWoken,
    /// Mail came that changes nothing.
    BatchMailNoted {
        /// What, and why it changes nothing.
        what: String,
    },
}

/// The machine.
#[derive(Debug)]
pub struct Batch;

const HERE: &[&str] = &["collecting"];

/// The transition table.
pub static TABLE: Table = Table {
    kind: "batch",
    doc: "Collects submissions until they become one job.",
    statuses: &[
        StatusRow {
            name: "collecting",
            class: Class::Resting,
            claimable: Claimable::No,
            doc: "Takes submissions in; a timer closes what is open.",
        },
        StatusRow {
            name: VACANT,
            class: Class::Resting,
            claimable: Claimable::No,
            doc: "Nothing came for a while: it wakes with the next submission, or leaves with retention.",
        },
    ],
    moves: &[
        Move { from: BIRTH, event: "batch_opened", to: "collecting" },
        Move { from: HERE, event: "item_collected", to: SAME },
        Move { from: HERE, event: "batch_closed", to: SAME },
        Move { from: HERE, event: "batch_job_refused", to: SAME },
        Move { from: &["collecting", VACANT], event: "batch_mail_noted", to: SAME },
        Move { from: HERE, event: "batch_vacated", to: VACANT },
        Move { from: &[VACANT], event: "batch_woken", to: "collecting" },
    ],
    forced: "",
};

impl Machine for Batch {
    type State = State;
    type Event = Event;
    const TABLE: &'static Table = &TABLE;

    fn name(event: &Event) -> &'static str {
        match event {
            Event::BatchOpened { .. } => "batch_opened",
            Event::ItemCollected { .. } => "item_collected",
            Event::BatchClosed(_) => "batch_closed",
            Event::BatchJobRefused { .. } => "batch_job_refused",
            Event::BatchVacated => "batch_vacated",
            Event::BatchWoken => "batch_woken",
            Event::BatchMailNoted { .. } => "batch_mail_noted",
        }
    }

    fn apply(state: &mut State, event: &Event) {
        match event {
            Event::BatchOpened { flow, key } => {
                state.flow.clone_from(flow);
                state.key.clone_from(key);
            }
            Event::ItemCollected { item, at, closes_at, .. } => {
                state.opened_at = state.opened_at.or(Some(*at));
                state.closes_at = Some(*closes_at);
                if let Mode::Debounce { .. } = item.mode {
                    state.inputs.clear();
                }
                state.inputs.push(item.input.clone());
                state.items += 1;
                (state.mode, state.job) = (Some(item.mode), Some(item.job.clone()));
            }
            Event::BatchClosed(made) => {
                state.generation = made.generation;
                (state.opened_at, state.closes_at, state.items) = (None, None, 0);
                state.inputs.clear();
                state.made.push(made.clone());
                if state.made.len() > limits::MADE_KEPT {
                    state.made.remove(0);
                }
            }
            Event::BatchJobRefused { .. }
            | Event::BatchVacated
            | Event::BatchWoken
            | Event::BatchMailNoted { .. } => {}
        }
    }

    fn decide(
        state: Option<&State>,
        input: &Input<'_>,
        cx: &Cx,
    ) -> Result<Decision<Event>, Undecided> {
        super::decide::decide(state, input, cx)
    }
}

impl State {
    /// Bytes of what is collected.
    pub fn bytes(&self) -> usize {
        self.inputs.iter().map(bytes).sum()
    }
}

/// Bytes of a value as JSON.
pub fn bytes(value: &Value) -> usize {
    serde_json::to_vec(value).map_or(usize::MAX, |b| b.len())
}
