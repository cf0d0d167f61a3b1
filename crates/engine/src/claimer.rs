//! Claims work from queues for one server, in the order the planner gives.

use crate::session::Keeper;
use std::{collections::HashMap, time::Duration};
use tenure_kernel::{
    claims::{ClaimRequest, Claimed, Planner},
    error::StoreError,
};

/// Groups are looked up anew, and floors forgotten, after this long.
const RESCAN: Duration = Duration::from_secs(3);
/// A queue that came up short is looked at anew no more often than this.
const RESCAN_SHORT: Duration = Duration::from_millis(50);

#[derive(Default)]
struct Plan {
    planner: Planner,
    refreshed: Option<Duration>,
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

    /// Claims up to `n` of a queue.
    pub async fn claim(&mut self, queue: &str, n: usize) -> Result<Vec<Claimed>, StoreError> {
        let mut claimed = self.round(queue, n, RESCAN).await?;
        if claimed.len() < n {
            // Short: there may be groups that the last scan did not see.
            claimed.extend(self.round(queue, n - claimed.len(), RESCAN_SHORT).await?);
        }
        Ok(claimed)
    }

    async fn round(
        &mut self,
        queue: &str,
        n: usize,
        rescan: Duration,
    ) -> Result<Vec<Claimed>, StoreError> {
        let pipeline = self.keeper.pipeline().clone();
        let now = pipeline.rt().mono();
        let plan = self.plans.entry(queue.to_owned()).or_default();
        if plan.refreshed.is_none_or(|at| now - at >= rescan) {
            plan.planner.refresh(pipeline.store().ready_groups(queue).await?);
            plan.refreshed = Some(now);
        } else if rescan == RESCAN_SHORT {
            return Ok(Vec::new());
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
        let answer = pipeline.store().claim(request).await?;
        plan.planner.settle(&answer.claimed);
        Ok(answer.claimed)
    }
}
