//! Whose turn it is, for many sessions that come and ask a server for work: which of its queues a session is served from
//! first, and which tenant of a queue.
//!
//! A worker in this process has a [`crate::claimer::Claimer`] of its own; those who ask over HTTP share this.

use crate::{
    claimer::{Asked, claim_below},
    pipeline::Pipeline,
};
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};
use tenure_kernel::{
    claims::{Claimed, Planner, Probe, next_page},
    error::StoreError,
    ids::SessionId,
};

/// Sessions whose last queue is remembered; then the memory starts over.
pub const SESSIONS_MAX: usize = 4_096;

/// See the module. One for each server and kind of work.
#[derive(Default)]
pub struct Rota {
    planners: Mutex<HashMap<String, Planner>>,
    /// What each session was given something of last.
    last: Mutex<HashMap<SessionId, String>>,
}

/// A page of a queue.
pub struct Page {
    /// What there may be to claim, in the order of all claims.
    pub probes: Vec<Probe>,
    /// The priority below which there may be more.
    pub below: Option<i16>,
}

impl Rota {
    /// The order in which a session is served from what it asks for: from the one behind that which gave it something
    /// last, or a backlog of the first starves the others. A session that is not known here begins anywhere.
    pub fn order<'a>(
        &self,
        session: SessionId,
        names: &'a [String],
        anywhere: u64,
    ) -> impl Iterator<Item = &'a String> + use<'a> {
        let known = self.last().get(&session).and_then(|l| names.iter().position(|n| n == l));
        let len = names.len().max(1);
        // What is left of a division by a length fits.
        let first = known.map_or((anywhere % len as u64) as usize, |at| (at + 1) % len);
        names.iter().cycle().skip(first).take(names.len())
    }

    /// A session was given something of this.
    pub fn gave(&self, session: SessionId, name: &str) {
        let mut last = self.last();
        if last.len() >= SESSIONS_MAX && !last.contains_key(&session) {
            last.clear();
        }
        last.insert(session, name.to_owned());
    }

    /// Claims of one queue, for a session that sees these tenants.
    pub async fn claim(
        &self,
        pipeline: &Pipeline,
        asked: &Asked,
        sees: impl Fn(&str) -> bool + Send + Sync,
    ) -> Result<Vec<Claimed>, StoreError> {
        let Page { probes, below } = self.page(pipeline, asked, None, &sees).await?;
        let mut claimed = self.claim_by(pipeline, asked, probes, asked.limit).await?;
        if let Some(below) = below.filter(|_| claimed.len() < asked.limit) {
            claim_below(pipeline, asked, below, &mut claimed, sees).await;
        }
        Ok(claimed)
    }

    /// What a claim of a queue would look at, for whoever has to ask somebody else first. A queue of many priorities has
    /// several pages; each names what is below it.
    pub async fn page(
        &self,
        pipeline: &Pipeline,
        asked: &Asked,
        below: Option<i16>,
        sees: impl Fn(&str) -> bool + Send + Sync,
    ) -> Result<Page, StoreError> {
        let groups = pipeline.store().ready_groups(&asked.queue, below).await?;
        let next = next_page(&groups);
        if !groups.iter().any(|(_, tenant)| sees(tenant)) {
            return Ok(Page { probes: Vec::new(), below: next });
        }
        let mut probes = match below {
            None => {
                let mut planners = self.planners();
                let planner = planners.entry(asked.queue.clone()).or_default();
                planner.refresh(groups);
                planner.plan(asked.limit)
            }
            // Nothing is remembered of what stands so far down: the next look begins at the top again.
            Some(_) => {
                let mut planner = Planner::default();
                planner.refresh(groups);
                planner.plan(asked.limit)
            }
        };
        probes.retain(|p| sees(&p.tenant));
        Ok(Page { probes, below: next })
    }

    /// Claims by probes of a page, no more than so many.
    pub async fn claim_by(
        &self,
        pipeline: &Pipeline,
        asked: &Asked,
        probes: Vec<Probe>,
        limit: usize,
    ) -> Result<Vec<Claimed>, StoreError> {
        let claimed = asked.claim(pipeline, probes, limit).await?;
        if let Some(planner) = self.planners().get_mut(&asked.queue) {
            planner.settle(&claimed);
        }
        Ok(claimed)
    }

    fn planners(&self) -> MutexGuard<'_, HashMap<String, Planner>> {
        // Nothing panics under this lock.
        self.planners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn last(&self) -> MutexGuard<'_, HashMap<SessionId, String>> {
        // Nothing panics under this lock.
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_kernel::ids::EntityId;

    fn names(rota: &Rota, session: SessionId, names: &[String]) -> Vec<String> {
        rota.order(session, names, 0).cloned().collect()
    }

    #[test]
    fn a_session_is_served_next_from_the_one_behind_that_which_served_it_last() {
        let rota = Rota::default();
        let [one, other] = [1, 2].map(|n| EntityId::fixed(1, n));
        let all: Vec<String> = ["a", "b", "c"].map(str::to_owned).into();
        assert_eq!(names(&rota, one, &all), ["a", "b", "c"]);
        rota.gave(one, "a");
        assert_eq!(names(&rota, one, &all), ["b", "c", "a"]);
        // Nothing given, nothing moved: a queue without work costs nobody a turn.
        assert_eq!(names(&rota, one, &all), ["b", "c", "a"]);
        rota.gave(one, "c");
        assert_eq!(names(&rota, one, &all), ["a", "b", "c"]);
        assert_eq!(names(&rota, one, &all[..2]), ["a", "b"], "one that it does not ask for now");
        assert_eq!(names(&rota, one, &[]), [] as [&str; 0]);
        rota.gave(other, "b");
        assert_eq!(names(&rota, one, &all), ["a", "b", "c"], "each has its own turns");
    }

    #[test]
    fn so_many_sessions_are_remembered_and_no_more() {
        let rota = Rota::default();
        let session = |n: usize| EntityId::fixed(1, u16::try_from(n).unwrap());
        for n in 0..SESSIONS_MAX {
            rota.gave(session(n), "a");
        }
        assert_eq!(rota.last().len(), SESSIONS_MAX);
        rota.gave(session(0), "b");
        assert_eq!(rota.last().len(), SESSIONS_MAX, "one that is known");
        rota.gave(session(SESSIONS_MAX), "a");
        assert_eq!(rota.last().len(), 1);
    }
}
