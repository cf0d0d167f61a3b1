//! What outsiders ask of tasks. The shell over the pipeline; the machines decide.
//!
//! | room | what is asked |
//! |---|---|
//! | [`order`] | a new task |
//! | [`template`] | what is wrong with the pod of a new task, before anything is written |
//! | [`reports`] | what collectors saw, many at once; tasks that nobody ordered are taken in |
//! | [`hint`] | what was heard on the channel, where nobody vouches for which pod is meant |
//! | [`asks`] | cancel, retry now, take a pod away by force |
//! | [`letters`] | tasks that failed: replay, or put aside |
//! | [`budgets`] | what the retries of a tenant may cost |
//!
//! Nobody holds a task, and still everything that is said to one is mail: a report must be durable and told once, and the
//! collector that brings it must not wait for the decision. The head is read first, so that what makes no sense
//! where the task stands is refused with its reason; it may move before the mail arrives, and then the machine decides.

pub mod asks;
pub mod budgets;
pub mod hint;
pub mod letters;
pub mod order;
pub mod reports;
pub mod template;

pub use asks::{Answer, Outcome};
pub use budgets::BudgetView;
pub use hint::Hinted;
pub(crate) use hint::RULE as HINT_RULE;
pub use order::{Order, Ordered};
pub use reports::{ReportAnswer, ReportOutcome, Reporter};

use crate::{
    admission::PodBounds,
    budget::BudgetTerms,
    namespaces::NOBODYS,
    report::{ids_of_label, spelled, task_of, task_of_label},
    task::{Cleanup, RetryPolicy, Task, TaskState, model::Times},
};
use reports::Known;
use serde_json::Value;
use std::{sync::Arc, time::Duration};
use tenure_engine::pipeline::Pipeline;
use tenure_kernel::{
    error::StoreError,
    evidence::{EvidenceAnswer, NewEvidence},
    head::Head,
    ids::EntityId,
    limits as kernel_limits,
    machine::{Machine, decode_state},
    store::HeadFilter,
    stream::Body,
};

/// Why nothing was done.
#[derive(Debug, thiserror::Error)]
pub enum DeskError {
    /// No such task, or another tenant's.
    #[error("there is no task {0}")]
    NoTask(String),
    /// The task is over.
    #[error("task {task} is over ({status})")]
    TaskOver {
        /// Which.
        task: EntityId,
        /// Its final status.
        status: String,
    },
    /// The task does not stand where this could be done.
    #[error("task {task} is {status}: {why}")]
    NotNow {
        /// Which.
        task: EntityId,
        /// Where it stands.
        status: String,
        /// Why not.
        why: String,
        /// What to do.
        fix: &'static str,
    },
    /// The key, or the id, belongs to a task that was ordered with something else.
    #[error("this belongs to task {0}, which was ordered with something else")]
    OtherInput(EntityId),
    /// It can not be used as it is.
    #[error("{why}")]
    Bad {
        /// Which field.
        field: String,
        /// What is wrong.
        why: String,
        /// What to do.
        fix: &'static str,
    },
    /// Whoever asks may not have this.
    #[error("{why}")]
    NotAllowed {
        /// Which field.
        field: String,
        /// What is not allowed.
        why: String,
        /// What to do.
        fix: &'static str,
    },
    /// A limit was passed.
    #[error("{what} has {found} bytes; the limit {name} is {max}")]
    TooLarge {
        /// What.
        what: &'static str,
        /// Which field.
        field: &'static str,
        /// The limit's name.
        name: &'static str,
        /// How much it is.
        found: usize,
        /// How much it may be.
        max: usize,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl DeskError {
    pub(crate) fn bad(field: impl Into<String>, why: impl Into<String>, fix: &'static str) -> Self {
        DeskError::Bad { field: field.into(), why: why.into(), fix }
    }
}

/// What a task has where its order says nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Defaults {
    /// How often and when it is tried again.
    pub retry: RetryPolicy,
    /// What the retries of a tenant may cost together.
    pub budget: BudgetTerms,
    /// How long it waits for what.
    pub times: Times,
    /// What becomes of its pods.
    pub cleanup: Cleanup,
    /// It ends by then.
    pub must_end_in: Duration,
    /// Pods of tasks that nobody ordered here are taken in as tasks.
    pub adopt_unknown: bool,
    /// What the pods of each tenant may be, and where.
    pub bounds: PodBounds,
    /// How long tasks that are over are kept: what ended before is not taken in again.
    pub kept_for: Option<Duration>,
}

/// A task ends by then, unless it is ordered with another bound.
pub const MUST_END_IN: Duration = Duration::from_secs(24 * 3_600);

impl Default for Defaults {
    fn default() -> Self {
        Defaults {
            retry: RetryPolicy::default(),
            budget: BudgetTerms::default(),
            times: Times::default(),
            cleanup: Cleanup::default(),
            must_end_in: MUST_END_IN,
            adopt_unknown: true,
            bounds: PodBounds::default(),
            kept_for: None,
        }
    }
}

impl Defaults {
    /// What is wrong with them, in words: refused at start.
    pub fn problem(&self) -> Option<String> {
        self.retry.problem().or_else(|| self.budget.problem())
    }
}

/// Everything that outsiders may ask. Cheap to clone.
#[derive(Clone)]
pub struct Desk {
    pipeline: Pipeline,
    defaults: Defaults,
    known: Arc<Known>,
}

impl Desk {
    /// A desk over this pipeline.
    pub fn new(pipeline: Pipeline, defaults: Defaults) -> Self {
        Desk { pipeline, defaults, known: Arc::default() }
    }

    /// Its way to the store.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// What tasks get that say nothing.
    pub fn defaults(&self) -> &Defaults {
        &self.defaults
    }

    /// A task as it is stored. Somebody else's is none: its existence is theirs to tell.
    pub async fn task(
        &self,
        tenant: Option<&str>,
        id: EntityId,
    ) -> Result<(Head, TaskState), DeskError> {
        let head = self.pipeline.store().head(id).await?;
        let mine = |h: &Head| h.kind() == Task::TABLE.kind && tenant.is_none_or(|t| t == h.tenant);
        let head = head.filter(mine).ok_or_else(|| DeskError::NoTask(id.to_string()))?;
        let state = state_of::<Task>(&head)?;
        Ok((head, state))
    }

    /// The task that is named so, by the text that its pods carry or by its id. Without a tenant, whosever it is.
    pub async fn named(&self, tenant: Option<&str>, name: &str) -> Result<EntityId, DeskError> {
        let no_task = || DeskError::NoTask(name.to_owned());
        if let Some(tenant) = tenant {
            return Ok(self.find(tenant, name).await?.ok_or_else(no_task)?.id);
        }
        // An id is nobody else's, also where some tenant has chosen it as a task_id.
        if let Ok(id) = name.parse()
            && self.task(None, id).await.is_ok()
        {
            return Ok(id);
        }
        match &self.find_anywhere(name).await?[..] {
            [] => Err(no_task()),
            [one] => Ok(one.id),
            several => {
                let ids: Vec<_> =
                    several.iter().map(|h| format!("{} ({})", h.id, h.tenant)).collect();
                let why = format!("tasks of several tenants have this task_id: {}", ids.join(", "));
                Err(DeskError::bad("id", why, "give the id of the task"))
            }
        }
    }

    /// The task of a tenant that is named so.
    pub(crate) async fn find(&self, tenant: &str, name: &str) -> Result<Option<Head>, StoreError> {
        let (own, raw) = (task_of(tenant, name), task_of_label(name));
        for id in if tenant == NOBODYS { [raw, own] } else { [own, raw] } {
            let head = self.pipeline.store().head(id).await?;
            let head = head.filter(|h| h.kind() == Task::TABLE.kind && h.tenant == tenant);
            if head.is_some() {
                return Ok(head);
            }
        }
        Ok(None)
    }

    /// The tasks of all tenants that are named so.
    pub(crate) async fn find_anywhere(&self, name: &str) -> Result<Vec<Head>, StoreError> {
        let store = self.pipeline.store();
        let (low, high) = ids_of_label(name);
        let filter = HeadFilter {
            kind: Some(Task::TABLE.kind.into()),
            after: Some(low),
            before: Some(high),
            ..HeadFilter::default()
        };
        let mut found = store.heads(filter, NAMESAKES_MAX).await?;
        // Labels of one hash lie together too.
        let label = spelled(name);
        found.retain(|head| task_of(&head.tenant, &label) == head.id);
        found.extend(
            store.head(task_of_label(name)).await?.filter(|h| h.kind() == Task::TABLE.kind),
        );
        Ok(found)
    }

    /// The id of a task that a tenant names so: the one that is there, or a new one. Tenants do not share names; the tenant
    /// `default` keeps ids that it chose.
    pub(crate) async fn id_for(&self, tenant: &str, label: &str) -> Result<EntityId, StoreError> {
        if let Some(head) = self.find(tenant, label).await? {
            return Ok(head.id);
        }
        let raw = task_of_label(label);
        let free = tenant == NOBODYS && self.pipeline.store().head(raw).await?.is_none();
        Ok(if free { raw } else { task_of(tenant, label) })
    }

    /// Evidence beside the history of a task, of which only the first word counts. Whether this was it. Two at the same
    /// moment may both be written; whoever reads takes the first.
    async fn testify(
        &self,
        head: &Head,
        key: &str,
        by: Option<&str>,
        body: &Value,
    ) -> Result<bool, DeskError> {
        if self.pipeline.store().evidence(head.id).await?.iter().any(|e| e.said.key == key) {
            return Ok(false);
        }
        let by = kernel_limits::clip(by.unwrap_or_default(), kernel_limits::NAME_BYTES_MAX);
        let evidence = NewEvidence {
            entity: head.id,
            key: kernel_limits::clip(key, kernel_limits::EVIDENCE_KEY_BYTES_MAX).to_owned(),
            epoch: head.epoch,
            call: 0,
            who: by.to_owned(),
            body: Body::json(body),
        };
        match self.pipeline.evidence(evidence).await? {
            EvidenceAnswer::Recorded { .. } => Ok(true),
            EvidenceAnswer::Duplicate => Ok(false),
            EvidenceAnswer::Unknown => Err(DeskError::NoTask(head.id.to_string())),
            EvidenceAnswer::Refused(why) => Err(StoreError::Refused(why.to_string()).into()),
        }
    }
}

/// Tasks of one name that are looked at.
const NAMESAKES_MAX: usize = 64;

/// What the label of a task is kept as: nothing where its id says the same.
pub(crate) fn label_beside(id: EntityId, task_id: &str) -> Option<String> {
    let label = spelled(task_id);
    (label != id.to_string()).then_some(label)
}

/// The state in a head.
pub(crate) fn state_of<M: Machine>(head: &Head) -> Result<M::State, StoreError> {
    decode_state::<M>(&head.state).map_err(|e| StoreError::Corrupt(e.to_string()))
}

/// A word that people choose.
fn word(field: &'static str, text: &str, max: usize) -> Result<(), DeskError> {
    match text.len() <= max && !text.chars().any(char::is_control) {
        true => Ok(()),
        false => Err(DeskError::bad(
            field,
            format!("{field} = {:?} can not be used", kernel_limits::clip(text, 80)),
            "give a short text without control characters, or leave the field out",
        )),
    }
}

/// Who asks, and in which words.
fn words(by: Option<&str>, why: Option<&str>) -> Result<(), DeskError> {
    word("by", by.unwrap_or(""), crate::task::model::limits::WHY_BYTES_MAX)?;
    let (found, max) = (why.map_or(0, str::len), crate::task::model::limits::WHY_BYTES_MAX);
    let (what, field, name) = ("the reason", "why", "WHY_BYTES_MAX");
    match found <= max {
        true => Ok(()),
        false => Err(DeskError::TooLarge { what, field, name, found, max }),
    }
}
