//! Claims work from queues for one server, in the order the planner gives.

use crate::session::Keeper;
use std::{collections::HashMap, time::Duration};
use tenure_kernel::{
    claims::{ClaimRequest, Claimed, Planner},
    error::StoreError,
};

/// Groups are looked up anew, and floors forgotten, after this long.
const RESCAN: Duration = Duration::from_secs(3);

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
        if refresh {
            plan.planner.refresh(pipeline.store().ready_groups(queue).await?);
            plan.refreshed = Some(pipeline.rt().mono());
        }
        if plan.planner.is_empty() {
            return Ok(Vec::new());
        }
        let request = ClaimRequest {
            id: pipeline.commit_id(),
            session: self.keeper.id(),
            lease: self.keeper.config().lease,
            queue: queue.to_owned(),
            probes: plan.planner.plan(n),
            limit: n,
        };
        let (session, sent) = (request.session, pipeline.rt().mono());
        let answer = pipeline.store().claim(request).await?;
        pipeline.meter().claims.add(answer.claimed.len() as u64);
        plan.planner.settle(&answer.claimed);
        if self.keeper.id() != session {
            // The session that claimed is over: nobody may act on this, and the checks will free it.
            return Ok(Vec::new());
        }
        Ok(answer.claimed.into_iter().map(|claimed| Fresh { claimed, sent }).collect())
    }
}
