//! One ask for many jobs: cancel, pause, resume, retry, signal, resolve or discard everything that a filter names.
//!
//! It is shown first ([`preview`]) and then done, by a job of its own ([`flow`]): it survives restarts, can be watched
//! and cancelled, and its output is the account. Nothing is done to a job that was not shown, because both go by one
//! [`Order`], which names a *horizon*, the moment of the preview: only jobs are asked that the filter named, and the action
//! fitted, at that moment, as their histories say, and does still. A person who looked at three waiting jobs has said
//! nothing about those that came to wait before the yes. What says something about a job as it was seen (it is to be tried
//! again, it may go on, this is what became of its effect) is not done to one that has changed at all.
//!
//! Each page is two steps, and that is what keeps a repetition from doing anything twice: `bulk.find` records *which*
//! jobs, `bulk.act` asks each of them under an id that follows from the bulk job. Road not taken: one step that finds
//! and acts; called again after a crash it would find what its first call had left, and lose count of the rest.
//!
//! Tenants never cross: a bulk job acts on jobs of its own tenant, whatever its input says.

mod act;
mod find;
mod flow;

pub use act::{Acted, act};
pub use find::{Found, Preview, find, fits, preview};
pub use flow::{flow, tools};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use tenure_kernel::{head::Head, time::Timestamp};
use tenure_steps::events::{StepId, Verdict, WaitOutcome};

use crate::model::JobState;

/// The name of the built-in flow.
pub const FLOW: &str = "bulk";
/// Jobs that one page asks.
pub const PAGE: usize = 100;
/// Jobs that one page looks at: a filter that the store has no index for leaves some out.
pub const LOOKED_AT_MAX: usize = 2_000;
/// Jobs that a preview looks at; beyond it its count is a lower bound.
pub const PREVIEW_LOOKED_AT_MAX: usize = 20_000;
/// Jobs that a preview shows.
pub const PREVIEW_SHOWN: usize = 20;

/// How many, by reason.
pub type Reasons = BTreeMap<String, u64>;

/// What is to be done, to which jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// What.
    pub action: Action,
    /// To which.
    pub filter: Filter,
    /// To none that was created later.
    pub horizon: Timestamp,
    /// Who asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// What can be done to many.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    /// Ends them.
    Cancel {
        /// Why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    /// Stops them until they are resumed.
    Pause {
        /// Why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    /// Lets them go on.
    Resume {
        /// Why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    /// Tries them again.
    Retry {
        /// The flow's version; each job's own without one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<u32>,
    },
    /// Completes a wait of each.
    Signal {
        /// The correlation key.
        key: String,
        /// Signalled, approved or rejected.
        outcome: WaitOutcome,
        /// What comes with it.
        #[serde(default)]
        payload: Value,
        /// Keep it even where nobody waits for the key yet.
        #[serde(default)]
        early: bool,
    },
    /// Says what became of an unknown effect of each.
    Resolve {
        /// Which step.
        step: StepId,
        /// Happened, did not happen, or abandoned.
        verdict: Verdict,
        /// The result, where it happened.
        #[serde(default)]
        result: Value,
        /// In words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    },
    /// Puts dead letters aside.
    Discard {},
}

impl Action {
    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Action::Cancel { .. } => "cancel",
            Action::Pause { .. } => "pause",
            Action::Resume { .. } => "resume",
            Action::Retry { .. } => "retry",
            Action::Signal { .. } => "signal",
            Action::Resolve { .. } => "resolve",
            Action::Discard {} => "discard",
        }
    }
}

/// Which jobs. All that is said has to hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Filter {
    /// Of this flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flow: Option<String>,
    /// In one of these statuses; any without one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub status: Vec<String>,
    /// Those that a person has to look at.
    #[serde(skip_serializing_if = "is_false")]
    pub attention: bool,
    /// Failed, or in attention, for this reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Created at this moment or later, in microseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_after: Option<Timestamp>,
    /// Created before this moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_before: Option<Timestamp>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_false(b: &bool) -> bool {
    !b
}

impl Order {
    /// Whether the action rests on what the job looked like in the preview, and it has changed since. To cancel, pause
    /// or signal does not: a running job changes with every step, and is the job that was shown all the same.
    pub fn is_outdated(&self, head: &Head) -> bool {
        let rests_on_a_look = matches!(
            self.action,
            Action::Resume { .. }
                | Action::Retry { .. }
                | Action::Resolve { .. }
                | Action::Discard {}
        );
        rests_on_a_look && head.changed_at > self.horizon
    }

    /// Whether a job that is named and fits now may not have been shown, because it has changed since. What a filter says
    /// about flow and time never changes, and what can be cancelled could be cancelled before.
    pub(crate) fn has_to_look_back(&self, head: &Head) -> bool {
        let Filter { status, attention, reason, .. } = &self.filter;
        let names_for_ever = status.is_empty() && !attention && reason.is_none();
        let fits_for_ever = matches!(self.action, Action::Cancel { .. });
        head.changed_at > self.horizon && !(names_for_ever && fits_for_ever)
    }

    /// Whether a job is one of those that are meant.
    pub fn names(&self, head: &Head, state: &JobState) -> bool {
        let Filter { flow, status, attention, reason, created_after, created_before } =
            &self.filter;
        let reasons = [
            state.failure.as_ref().map(|f| f.reason.as_str()),
            state.attention.as_ref().map(|a| a.reason.as_str()),
        ];
        head.created_at <= self.horizon
            && flow.as_ref().is_none_or(|f| *f == state.flow)
            && (status.is_empty() || status.iter().any(|s| s == head.status.name()))
            && (!attention || head.attention.is_some() || state.attention.is_some())
            && reason.as_ref().is_none_or(|r| reasons.contains(&Some(r.as_str())))
            && created_after.is_none_or(|at| head.created_at >= at)
            && created_before.is_none_or(|at| head.created_at < at)
    }
}
