//! What can happen to a job: to the job itself, or to one of its steps.

use super::{NewJob, is_default};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_kernel::ids::EntityId;
use tenure_steps::{
    events::{StepEvent, StepId},
    losses::Losses,
};

/// What a job records beside its steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum OwnEvent {
    /// Born.
    JobCreated(Box<NewJob>),
    /// Taken in the commit that created it.
    JobStarted {},
    /// Steps of another job, taken over as if they were its own.
    HistoryCopied {
        /// From whom.
        from: EntityId,
        /// In order.
        events: Vec<Value>,
    },
    /// Nothing but waits is left.
    JobWaiting {
        /// Their correlation keys; `timer` and `child` for those without; `start` or `gate:…` before the first step.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        keys: Vec<String>,
    },
    /// Its time has come, or its gate has let it through: what held it back before its first step is over.
    JobReady {
        /// `start` or `gate`.
        why: String,
    },
    /// Nothing but long waits is left, somebody paused it, or it starts much later.
    JobParked {
        /// `pause`, `wait` or `start`; `gate_given_back` where its turn at the gate came in a pause.
        why: String,
        /// Who paused it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    /// A failed call is tried again later.
    JobRetrying {
        /// Which step.
        step: StepId,
    },
    /// A person has to look.
    JobAttention(Attention),
    /// Somebody wants it to pause: it does when what runs has finished.
    PauseAsked {
        /// Who.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    /// Somebody let it go on, or it looks again by itself.
    JobResumed {
        /// Who or what.
        by: String,
    },
    /// Its worker was lost; another one goes on.
    JobRequeued {
        /// Which rule.
        why: String,
        /// All losses so far, this one among them. Versions before 0.2 did not say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        losses: Option<Losses>,
    },
    /// It is being cancelled: running tools and children are told.
    JobCancelling {
        /// Who asked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        /// Why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    /// It can not go on, and fails for this reason when what it had done is undone. Its flow is not asked any more.
    JobFailing(Failure),
    /// It is cancelled or fails, and waits for a worker that undoes what it had done.
    JobUndoing {
        /// A worker was lost over it.
        #[serde(default, skip_serializing_if = "is_default")]
        lost: bool,
        /// As in `job_requeued`, where one was lost.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        losses: Option<Losses>,
    },
    /// The flow starts afresh with this input.
    JobContinued {
        /// The new input.
        input: Value,
    },
    /// Mail came that changes nothing.
    MailNoted {
        /// What kind, and why it changes nothing.
        what: String,
    },
    /// The flow returned.
    JobCompleted {
        /// What it returned.
        output: Value,
        /// Children that it did not wait for.
        #[serde(default, skip_serializing_if = "is_default")]
        abandoned: u32,
    },
    /// It ended without a result.
    JobFailed(Failure),
    /// It was cancelled.
    JobCancelled {
        /// Who asked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        /// Why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
        /// Effects that nobody knows about.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        unknown: Vec<StepId>,
        /// Children that were still open.
        #[serde(default, skip_serializing_if = "is_default")]
        abandoned: u32,
        /// What became of what was to be undone.
        #[serde(default, skip_serializing_if = "is_default")]
        undone: UndoReport,
    },
}

/// What became of what was to be undone.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct UndoReport {
    /// Steps that were undone, in the order in which that happened.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undone: Vec<StepId>,
    /// Steps that were not, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<(StepId, String)>,
    /// How many were not even tried, where nobody was there who could say which.
    #[serde(default, skip_serializing_if = "is_default")]
    pub untried: u32,
}

/// Why a person has to look.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attention {
    /// `unknown_outcome`, `diverged` or `broken`.
    pub reason: String,
    /// The step, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepId>,
    /// In words.
    pub why: String,
    /// It looks again by itself after this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again_in_ms: Option<u64>,
}

/// Why a job failed.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Failure {
    /// A word: `step_failed`, `flow_failed`, `deadline_passed`, `unknown_outcome`, `takeovers_spent`,
    /// `history_too_long`, `refused`.
    pub reason: String,
    /// In words.
    pub error: String,
    /// The step, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepId>,
    /// Effects that nobody knows about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<StepId>,
    /// Children that were still open.
    #[serde(default, skip_serializing_if = "is_default")]
    pub abandoned: u32,
}

/// What can happen to a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum JobEvent {
    /// To a step.
    Step(StepEvent),
    /// To the job.
    Own(OwnEvent),
}

impl From<StepEvent> for JobEvent {
    fn from(event: StepEvent) -> Self {
        JobEvent::Step(event)
    }
}

impl From<OwnEvent> for JobEvent {
    fn from(event: OwnEvent) -> Self {
        JobEvent::Own(event)
    }
}

impl OwnEvent {
    /// Its name in the transition table.
    pub fn name(&self) -> &'static str {
        match self {
            OwnEvent::JobCreated(_) => "job_created",
            OwnEvent::JobStarted {} => "job_started",
            OwnEvent::HistoryCopied { .. } => "history_copied",
            OwnEvent::JobWaiting { .. } => "job_waiting",
            OwnEvent::JobReady { .. } => "job_ready",
            OwnEvent::JobParked { .. } => "job_parked",
            OwnEvent::JobRetrying { .. } => "job_retrying",
            OwnEvent::JobAttention(_) => "job_attention",
            OwnEvent::PauseAsked { .. } => "pause_asked",
            OwnEvent::JobResumed { .. } => "job_resumed",
            OwnEvent::JobRequeued { .. } => "job_requeued",
            OwnEvent::JobCancelling { .. } => "job_cancelling",
            OwnEvent::JobFailing(_) => "job_failing",
            OwnEvent::JobUndoing { .. } => "job_undoing",
            OwnEvent::JobContinued { .. } => "job_continued",
            OwnEvent::MailNoted { .. } => "mail_noted",
            OwnEvent::JobCompleted { .. } => "job_completed",
            OwnEvent::JobFailed(_) => "job_failed",
            OwnEvent::JobCancelled { .. } => "job_cancelled",
        }
    }
}
