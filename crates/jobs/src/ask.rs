//! What outsiders may ask of a job. Everything here is mail or evidence: nobody but the holder writes to a
//! job's stream, so an answer says what was accepted, and the job's history what came of it.
//!
//! The head is read first, so that an ask that can only be noted and forgotten is refused instead. It may
//! change before the mail arrives; then the machine decides, and notes what it did.

mod correct;
mod send;
mod settle;
mod signal;
mod stop;

pub use settle::{LeftUnknown, dead_letters, discard, left_unknown, resolve};
pub(crate) use signal::send_only as send_signal;
pub use signal::{signal, signal_once};
pub(crate) use stop::was_asked_by;
pub use stop::{cancel, pause, pause_once, resume, resume_once};

use crate::view::JobView;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_kernel::{error::StoreError, ids::EntityId, limits as kernel_limits};
use tenure_schema::{NotChecked, Violation};
use tenure_steps::events::{StepId, Verdict, WaitKind, WaitOutcome};

/// A signal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SignalAsk {
    /// The correlation key.
    pub key: String,
    /// Signalled, approved or rejected.
    pub outcome: WaitOutcome,
    /// What comes with it.
    pub payload: Value,
    /// From whom.
    pub by: Option<String>,
    /// Keep it even if a blocked job knows nothing of the key.
    pub early: bool,
}

/// What became of a signal. All of them are a success for whoever sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignalAnswer {
    /// It completed the open wait for its key.
    Completed,
    /// Durable, for a wait that is not open yet.
    Kept,
    /// It was there before: heard, kept, or on its way.
    Duplicate,
    /// Durable, for a wait that was open; the job has not read it yet. A wait with a deadline can still expire first.
    Unread,
}

/// What became of a cancel, a pause or a resume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AskAnswer {
    /// Durable; the job follows it.
    Accepted,
    /// It is so already, or is on its way.
    Already,
}

/// Says what became of an unknown effect.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResolveAsk {
    /// Which step.
    pub step: StepId,
    /// Happened, did not happen, or abandoned.
    pub verdict: Verdict,
    /// The result, where it happened.
    pub result: Value,
    /// From whom.
    pub by: Option<String>,
    /// In words.
    pub note: Option<String>,
    /// It takes the place of what a person has said about the same call before.
    pub correct: bool,
}

/// What became of a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResolveAnswer {
    /// Durable; the job goes on from it.
    Accepted,
    /// The same was said before.
    Duplicate,
    /// The job is over: it is kept beside its history, and changes nothing there. A retry or fork goes on from it.
    RecordedAfterTheEnd,
    /// The job goes on from this, and no longer from what was said before.
    Corrected,
}

/// Failed jobs that nobody has put aside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeadLetters {
    /// The newest first.
    pub jobs: Vec<JobView>,
    /// Where the next page begins; `None` on the last.
    pub next: Option<EntityId>,
}

/// Why nothing was done.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No such job, or another tenant's.
    #[error("there is no job {0}")]
    NotFound(EntityId),
    /// The job is over.
    #[error("job {job} is {status}: it takes nothing in any more")]
    Finished {
        /// Which.
        job: EntityId,
        /// Its final status.
        status: String,
    },
    /// A blocked job that knows nothing of this key.
    #[error("nobody waits for {key:?}; {}", open_keys(.open))]
    NobodyWaits {
        /// The key that was sent.
        key: String,
        /// The keys that are open.
        open: Vec<String>,
    },
    /// The wait for this key ended before the job read the signal.
    #[error("the signal {key:?} had no effect: job {job} no longer waited for it when it was read")]
    TooLate {
        /// Which job.
        job: EntityId,
        /// The key that was sent.
        key: String,
    },
    /// A limit was passed.
    #[error("{what} is {found}; the limit {name} is {max}")]
    TooLarge {
        /// What.
        what: &'static str,
        /// The limit's name.
        name: &'static str,
        /// How much it is.
        found: usize,
        /// How much it may be.
        max: usize,
    },
    /// The ask makes no sense as it is.
    #[error("{0}")]
    Invalid(String),
    /// A yes or no for something that is not a person's decision.
    #[error("{outcome} does not fit: {key:?} waits for {}, not for a person's decision", kind_text(.kind))]
    WrongKind {
        /// The key.
        key: String,
        /// What it waits for.
        kind: WaitKind,
        /// What was sent.
        outcome: &'static str,
    },
    /// A pause where there is nothing to pause.
    #[error("job {job} is {status}: there is nothing to pause")]
    NothingToPause {
        /// Which.
        job: EntityId,
        /// Its status.
        status: String,
    },
    /// A resume of a job that is neither paused nor in attention.
    #[error(
        "job {job} is {status}, and neither paused nor in attention: there is nothing to resume"
    )]
    NothingToResume {
        /// Which.
        job: EntityId,
        /// Its status.
        status: String,
    },
    /// A settlement of a step whose effect is known.
    #[error("step {step} has no unknown effect: {why}")]
    NotUnknown {
        /// Which step.
        step: StepId,
        /// What is known about it.
        why: String,
    },
    /// A result that the tool could not have returned.
    #[error("the result of step {step} does not fit the output schema of the tool {tool:?}: {}", violation_text(.violations))]
    BadResult {
        /// Which step.
        step: StepId,
        /// Its tool.
        tool: String,
        /// Where it does not fit, at least one.
        violations: Vec<Violation>,
    },
    /// A result that cannot be checked in bounded time.
    #[error(
        "the result of step {step} was not checked against the output schema of its tool: {why}"
    )]
    NotChecked {
        /// Which step.
        step: StepId,
        /// Why.
        why: NotChecked,
    },
    /// A correction that would change what the job has done already, or of something that no person said.
    #[error("what was said about step {step} cannot be corrected: {why}")]
    NotCorrectable {
        /// Which step.
        step: StepId,
        /// Why.
        why: String,
        /// What can be done instead.
        fix: String,
    },
    /// Only failed jobs are dead letters.
    #[error("job {job} is {status}: only a failed job can be put aside")]
    NotFailed {
        /// Which.
        job: EntityId,
        /// Its status.
        status: String,
    },
    /// The store said no.
    #[error("{0}")]
    Refused(String),
    /// The store is away.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn violation_text(violations: &[Violation]) -> String {
    let more = match violations.len() {
        0 | 1 => String::new(),
        n => format!(", and {} more", n - 1),
    };
    let first = violations.first();
    first.map_or_else(String::new, |v| format!("at result{}: {}{more}", v.at, v.says))
}

fn open_keys(open: &[String]) -> String {
    match open {
        [] => "no wait is open".to_owned(),
        keys => format!("it waits for {}", keys.join(", ")),
    }
}

fn kind_text(kind: &WaitKind) -> &'static str {
    match kind {
        WaitKind::Signal => "a signal",
        WaitKind::Human => "a person",
        WaitKind::Webhook => "a webhook",
        WaitKind::Timer => "a time",
    }
}

/// The longest correlation key: the id of the mail that carries the signal holds it.
pub const SIGNAL_KEY_BYTES_MAX: usize = kernel_limits::KEY_BYTES_MAX - "signal/4294967295/".len();
/// All keys of kept signals together: they stand in the head, which has little room and belongs to the flow.
pub const KEPT_KEYS_BYTES_MAX: usize = crate::model::limits::KEYS_BYTES_MAX;
/// What somebody may say about an ask.
pub const WORDS_BYTES_MAX: usize = 2 * 1024;
/// The key of the evidence that puts a dead letter aside.
pub const DISCARDED: &str = "discarded";
