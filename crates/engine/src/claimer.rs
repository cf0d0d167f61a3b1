//! Claims work from queues for one server, in the order the planner gives.

use crate::{pipeline::Pipeline, session::Keeper};
use std::{collections::HashMap, time::Duration};
use tenure_kernel::{
    claims::{ClaimRequest, Claimed, Planner, Probe, next_page},
    error::StoreError,
    ids::SessionId,
};

/// Groups are looked up anew, and floors forgotten, after this long.
const RESCAN: Duration = Duration::from_secs(3);

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Asked {
    /// By whom.
    pub session: SessionId,
    /// For how long the claim itself vouches for the session.
    pub lease: Duration,
    /// Of which queue.
    pub queue: String,
    /// At most so many.
    pub limit: usize,
}

impl Asked {
    pub(crate) async fn claim(
        &self,
        pipeline: &Pipeline,
        probes: Vec<Probe>,
        limit: usize,
    ) -> Result<Vec<Claimed>, StoreError> {
        if probes.is_empty() {
            return Ok(Vec::new());
        }
        let (id, queue) = (pipeline.commit_id(), self.queue.clone());
        let (session, lease) = (self.session, self.lease);
        let request = ClaimRequest { id, session, lease, queue, probes, limit };
        let answer = pipeline.claim(request).await?;
        pipeline.meter().claims.add(answer.claimed.len() as u64);
        Ok(answer.claimed)
    }
}

/// Claims of priorities below one, beside what was claimed already. Where a page of groups gave too little, because
/// others were faster or this program can not read what stands there, those behind it are not kept waiting. An error
/// ends the search: what was claimed is held, and must not be dropped with it.
pub(crate) async fn claim_below(
    pipeline: &Pipeline,
    asked: &Asked,
    below: i16,
    claimed: &mut Vec<Claimed>,
    sees: impl Fn(&str) -> bool + Send + Sync,
) {
    let mut below = Some(below);
    while let Some(under) = below
        && claimed.len() < asked.limit
    {
        let limit = asked.limit - claimed.len();
        let found = match pipeline.store().ready_groups(&asked.queue, Some(under)).await {
            Ok(mut groups) => {
                below = next_page(&groups);
                groups.retain(|(_, tenant)| sees(tenant));
                // Nothing is remembered of what stands so far down: the next look begins at the top again.
                let mut planner = Planner::default();
                planner.refresh(groups);
                asked.claim(pipeline, planner.plan(limit), limit).await
            }
            Err(e) => Err(e),
        };
        match found {
            Ok(found) => claimed.extend(found),
            Err(e) => {
                tracing::debug!(error = %e, queue = asked.queue, "no look at lower priorities");
                return;
            }
        }
    }
}

#[derive(Default)]
struct Plan {
    planner: Planner,
    refreshed: Option<Duration>,
}

/// Something that was just claimed.
pub struct Fresh {
    /// What.
    pub claimed: Claimed,
    /// When the claim was sent, on this process's clock: its lease counts from there.
    pub sent: Duration,
}

/// Claims for one session.
pub struct Claimer {
    keeper: Keeper,
    plans: HashMap<String, Plan>,
}

impl Claimer {
    /// A claimer for this session.
    pub fn new(keeper: Keeper) -> Self {
        Claimer { keeper, plans: HashMap::new() }
    }

    /// Claims up to `n` of a queue. A caller that was rung, or that came up short, looks at the groups
    /// anew; otherwise what the last scan saw is good for a while.
    pub async fn claim(
        &mut self,
        queue: &str,
        n: usize,
        rung: bool,
    ) -> Result<Vec<Fresh>, StoreError> {
        let now = self.keeper.pipeline().rt().mono();
        let known =
            self.plans.get(queue).and_then(|p| p.refreshed).is_some_and(|at| now - at < RESCAN);
        if rung || !known {
            return self.round(queue, n, true).await;
        }
        let mut claimed = self.round(queue, n, false).await?;
        if claimed.len() < n {
            match self.round(queue, n - claimed.len(), true).await {
                Ok(more) => claimed.extend(more),
                // What was claimed is held: it must not be dropped with the error.
                Err(e) => tracing::debug!(error = %e, queue, "no second look"),
            }
        }
        Ok(claimed)
    }

    async fn round(
        &mut self,
        queue: &str,
        n: usize,
        refresh: bool,
    ) -> Result<Vec<Fresh>, StoreError> {
        let pipeline = self.keeper.pipeline().clone();
        let plan = self.plans.entry(queue.to_owned()).or_default();
        let mut below = None;
        if refresh {
            let groups = pipeline.store().ready_groups(queue, None).await?;
            below = next_page(&groups);
            plan.planner.refresh(groups);
            plan.refreshed = Some(pipeline.rt().mono());
        }
        if plan.planner.is_empty() {
            return Ok(Vec::new());
        }
        let (session, lease) = (self.keeper.id(), self.keeper.config().lease);
        let asked = Asked { session, lease, queue: queue.to_owned(), limit: n };
        // The lease of all that this round claims counts from here.
        let sent = pipeline.rt().mono();
        let mut claimed = asked.claim(&pipeline, plan.planner.plan(n), n).await?;
        plan.planner.settle(&claimed);
        if let Some(below) = below.filter(|_| claimed.len() < n) {
            claim_below(&pipeline, &asked, below, &mut claimed, |_| true).await;
        }
        if self.keeper.id() != session {
            // The session that claimed is over: nobody may act on this, and the checks will free it.
            return Ok(Vec::new());
        }
        Ok(claimed.into_iter().map(|claimed| Fresh { claimed, sent }).collect())
    }
}
