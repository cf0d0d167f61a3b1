//! Which jobs, and whether the action fits them. The same for a preview and for the job that does it.

use super::{Action, LOOKED_AT_MAX, Order, PAGE, PREVIEW_LOOKED_AT_MAX, PREVIEW_SHOWN, Reasons};
use crate::{
    drive::LoadError,
    model::{Job, JobState},
    view::{self, JobView},
};
use serde::{Deserialize, Serialize};
use std::{sync::Arc, time::Duration};
use tenure_kernel::{
    error::StoreError,
    head::Head,
    ids::EntityId,
    machine::{Machine as _, decode_state},
    store::{HeadFilter, Store},
    table::Class,
};

/// What one look found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// Jobs that the action fits, in the order of their ids.
    pub jobs: Vec<EntityId>,
    /// Jobs that are meant and that it does not fit.
    #[serde(default, skip_serializing_if = "Reasons::is_empty")]
    pub skipped: Reasons,
    /// Jobs that were looked at.
    pub looked: u64,
    /// Where the next look begins; `None` after the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<EntityId>,
}

/// What would be done.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Preview {
    /// Jobs that would be asked.
    pub count: u64,
    /// There are no more than these.
    pub exact: bool,
    /// The first of them.
    pub first: Vec<JobView>,
    /// Jobs that the filter names and the action does not fit.
    pub skipped: Reasons,
}

/// Ids of jobs are times, not exactly those of their births; whatever was born by the horizon has one within this.
const SKEW: Duration = Duration::from_secs(600);
/// Why a job is left alone that was not shown, or is not as it was when it was.
pub(super) const CHANGED: &str = "changed_since_preview";
/// Why a job is left alone whose state cannot be read.
const UNREADABLE: &str = "unreadable";
/// Heads that are read at once.
const READ: usize = 200;

/// The next jobs of a tenant that an order names.
pub async fn find(
    store: &Arc<dyn Store>,
    order: &Order,
    tenant: &str,
    after: Option<EntityId>,
) -> Result<Found, StoreError> {
    let mut found = Found::default();
    let mut filter = HeadFilter {
        kind: Some(Job::TABLE.kind.into()),
        statuses: order.filter.status.clone(),
        tenant: Some(tenant.to_owned()),
        after,
        before: Some(EntityId::new(order.horizon + SKEW, [0xff; 10])),
        ..HeadFilter::default()
    };
    loop {
        let heads = store.heads(filter.clone(), READ).await?;
        let last_page = heads.len() < READ;
        for head in &heads {
            filter.after = Some(head.id);
            found.looked += 1;
            let Ok(state) = state_of(head) else {
                *found.skipped.entry(UNREADABLE.to_owned()).or_default() += 1;
                continue;
            };
            if order.names(head, &state) {
                match stands(store, order, head, &state).await? {
                    Ok(()) => found.jobs.push(head.id),
                    Err(why) => *found.skipped.entry(why.to_owned()).or_default() += 1,
                }
            }
            if found.jobs.len() == PAGE || found.looked as usize == LOOKED_AT_MAX {
                found.next = filter.after;
                return Ok(found);
            }
        }
        if last_page {
            return Ok(found);
        }
    }
}

/// Whether a job is to be asked: it is named, the action fits it, and both were so when it was shown. A word for why not.
pub(super) async fn stands(
    store: &Arc<dyn Store>,
    order: &Order,
    head: &Head,
    state: &JobState,
) -> Result<Result<(), &'static str>, StoreError> {
    if !order.names(head, state) || order.is_outdated(head) {
        return Ok(Err(CHANGED));
    }
    if let Err(why) = fits(&order.action, head, state) {
        return Ok(Err(why));
    }
    if !order.has_to_look_back(head) {
        return Ok(Ok(()));
    }
    let then = view::as_of(store, head.id, order.horizon).await.map_err(|e| match e {
        LoadError::Store(e) => e,
        LoadError::Unreadable(why) => StoreError::Corrupt(why),
    })?;
    let shown = |(head, state): &(Head, JobState)| {
        order.names(head, state) && fits(&order.action, head, state).is_ok()
    };
    Ok(then.filter(shown).map(|_| ()).ok_or(CHANGED))
}

pub(super) fn state_of(head: &Head) -> Result<JobState, StoreError> {
    decode_state::<Job>(&head.state).map_err(|e| StoreError::Corrupt(e.to_string()))
}

/// What would be done now.
pub async fn preview(
    store: &Arc<dyn Store>,
    order: &Order,
    tenant: &str,
) -> Result<Preview, StoreError> {
    let mut preview =
        Preview { count: 0, exact: true, first: Vec::new(), skipped: Reasons::default() };
    let (mut after, mut looked) = (None, 0);
    loop {
        let found = find(store, order, tenant, after).await?;
        looked += found.looked as usize;
        for id in &found.jobs {
            if preview.first.len() < PREVIEW_SHOWN
                && let Some(head) = store.head(*id).await?
            {
                preview.first.push(view::listed(&head));
            }
        }
        preview.count += found.jobs.len() as u64;
        for (why, n) in found.skipped {
            *preview.skipped.entry(why).or_default() += n;
        }
        after = found.next;
        if after.is_none() || looked >= PREVIEW_LOOKED_AT_MAX {
            preview.exact = after.is_none();
            return Ok(preview);
        }
    }
}

/// Whether an action fits where a job stands; a word for why not.
pub fn fits(action: &Action, head: &Head, state: &JobState) -> Result<(), &'static str> {
    let is_final = head.class() == Class::Final;
    let open = |fine: bool, why| match (is_final, fine) {
        (true, _) => Err("finished"),
        (_, true) => Ok(()),
        (_, false) => Err(why),
    };
    match action {
        Action::Cancel { .. } => open(state.cancel.is_none(), "already"),
        Action::Pause { .. } if !is_final && state.paused => Err("already"),
        Action::Pause { .. } => {
            open(state.attention.is_none() && state.cancel.is_none(), "not_now")
        }
        Action::Resume { .. } => {
            open(state.paused || state.pausing || state.attention.is_some(), "not_now")
        }
        Action::Retry { .. } if !is_final => Err("not_finished"),
        Action::Retry { .. } if head.status.name() == "completed" => Err("completed"),
        Action::Retry { .. } => Ok(()),
        Action::Signal { key, early, .. } => {
            let blocked = head.holder.is_none()
                && matches!(head.status.name(), "waiting" | "parked" | "retrying");
            let known = state.heard.contains(key) || state.kept.contains(key);
            match state.waits_for(key) {
                Some(_) => open(true, ""),
                None if known => Err("already"),
                None => open(!blocked || *early, "nobody_waits"),
            }
        }
        Action::Resolve { step, .. } => {
            let unknown =
                |c: &&crate::model::OpenCall| c.step == *step && (is_final || c.unknown.is_some());
            state.calls.iter().find(unknown).map(|_| ()).ok_or("effect_known")
        }
        Action::Discard {} if head.status.name() == "failed" => Ok(()),
        Action::Discard {} => Err("not_failed"),
    }
}
