//! Who waits at a limit. Nothing lists them: a limit knows how long its line is, not who stands in it (see
//! [`mod@super::decide`]). So those who wait are looked for among the jobs and calls that wait for anything, as many as can
//! be looked at at once, and the answer says whether that was all of them.

use super::{
    book::{self, LimitBook},
    decide,
    desk::{Limits, id_of},
    each,
    model::{EVERYBODY, Limit},
};
use crate::{
    call::{Call, desk::state_of},
    model::Job,
    view,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tenure_kernel::{
    error::StoreError,
    head::Head,
    ids::EntityId,
    machine::{Machine, decode_state},
    store::{HeadFilter, Store},
    time::Timestamp,
};
use tenure_steps::events::{StepId, TimerWhy};

/// Jobs, and calls, that are looked at for one answer.
pub const LOOKED_AT_MAX: usize = 2_000;
/// Heads that are read at once.
const PAGE: usize = 200;

/// Who waits for the limits of a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// Steps that stand in a line, those whose turn comes first before the others.
    pub steps: Vec<WaitingStep>,
    /// Calls of the tool that stand in the queue of the workers that take them: a limit may hold them back, or there may be
    /// nobody to take them.
    pub calls: u64,
    /// Everything was looked at. If not, there may be more.
    pub complete: bool,
}

/// A step that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingStep {
    /// Its job.
    pub job: EntityId,
    /// Whose job it is.
    pub tenant: String,
    /// The step.
    pub step: StepId,
    /// Whose limit it waits for; see [`super::Spec::tenant`].
    pub limit_of: Option<String>,
    /// About when its turn comes.
    pub about: Option<Timestamp>,
    /// When it asks next.
    pub asks_at: Option<Timestamp>,
}

/// Whose limit it is that a job of this tenant waits for; `None` for one that is not of this tool.
pub fn whose(limit: EntityId, tenant: &str, tool: &str) -> Option<String> {
    let of = |whose: &str| id_of(whose, tool) == limit;
    if of(EVERYBODY) {
        return Some(EVERYBODY.to_owned());
    }
    (of(tenant) || each::id_of(tenant, tool) == limit).then(|| tenant.to_owned())
}

impl Limits {
    /// Who waits for the limits of a tool: of one tenant, or of all. Jobs that wait in a worker, for a few seconds at most,
    /// are not among them.
    pub async fn waiting(&self, tenant: Option<&str>, tool: &str) -> Result<Waiting, StoreError> {
        let (mut found, mut complete) = (Vec::new(), true);
        let states = ["waiting", "parked", "retrying"].map(str::to_owned);
        complete &= self
            .each_head(Job::TABLE.kind, states.to_vec(), tenant, |head| {
                found.extend(steps_of(head, tool)?);
                Ok(())
            })
            .await?;
        found.sort_by_key(|s: &WaitingStep| (s.about.is_none(), s.about, s.job));
        let mut calls = 0;
        complete &= self
            .each_head(Call::TABLE.kind, vec!["queued".to_owned()], tenant, |head| {
                calls += u64::from(state_of(head)?.tool == tool);
                Ok(())
            })
            .await?;
        Ok(Waiting { steps: found, calls, complete })
    }

    /// Looks at heads, oldest first. Whether that were all.
    async fn each_head(
        &self,
        kind: &str,
        statuses: Vec<String>,
        tenant: Option<&str>,
        mut see: impl FnMut(&Head) -> Result<(), StoreError>,
    ) -> Result<bool, StoreError> {
        let (mut after, mut seen) = (None, 0);
        while seen < LOOKED_AT_MAX {
            let (kind, tenant) = (Some(kind.to_owned()), tenant.map(str::to_owned));
            let filter = HeadFilter {
                kind,
                statuses: statuses.clone(),
                tenant,
                after,
                ..HeadFilter::default()
            };
            let page = self.0.store().heads(filter, PAGE).await?;
            for head in &page {
                see(head)?;
            }
            seen += page.len();
            after = page.last().map(|h| h.id);
            if page.len() < PAGE {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Which limit holds a call of this tenant back now, and until when: whose, of those that have no token now, the next one is
/// good last.
pub async fn holding_back(
    store: &Arc<dyn Store>,
    tenant: &str,
    tool: &str,
) -> Result<Option<(String, Timestamp)>, StoreError> {
    let common = read::<LimitBook>(store, book::id_of(EVERYBODY)).await?.unwrap_or_default();
    let own = read::<LimitBook>(store, book::id_of(tenant)).await?.unwrap_or_default();
    let mut asked = vec![(EVERYBODY, id_of(EVERYBODY, tool)), (tenant, id_of(tenant, tool))];
    asked
        .extend(each::of(&common, &own, tenant, tool).map(|_| (tenant, each::id_of(tenant, tool))));
    let now = store.now().await?;
    let mut last = None;
    for (whose, id) in asked {
        let free_at = read::<Limit>(store, id).await?.and_then(|s| decide::free_at(&s, now));
        if let Some(at) = free_at.filter(|at| *at > now)
            && last.as_ref().is_none_or(|(_, before)| *before < at)
        {
            last = Some((whose.to_owned(), at));
        }
    }
    Ok(last)
}

async fn read<M: Machine>(
    store: &Arc<dyn Store>,
    id: EntityId,
) -> Result<Option<M::State>, StoreError> {
    let head = store.head(id).await?;
    let state = head.map(|head| decode_state::<M>(&head.state)).transpose();
    state.map_err(|e| StoreError::Corrupt(e.to_string()))
}

fn steps_of(head: &Head, tool: &str) -> Result<Vec<WaitingStep>, StoreError> {
    let job = view::of_head(head)?;
    let waits = job
        .timers
        .into_iter()
        .filter(|t| t.why == TimerWhy::Limit && t.tool.as_deref() == Some(tool));
    let step = |t: view::TimerView| WaitingStep {
        job: head.id,
        tenant: head.tenant.clone(),
        step: t.step,
        limit_of: t.limit_of,
        about: t.about,
        asks_at: t.at,
    };
    Ok(waits.map(step).collect())
}
