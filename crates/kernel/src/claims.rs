//! The order of claims: priority, then tenant by deficit, then ready time.
//!
//! A store can not order by deficit, because it is kept per server. So the planner turns "give me n"
//! into a list of index probes, one or two per (priority, tenant) group with ready work, and the store
//! runs them in order until it has n. Cost: probes, whatever the history. A claim looks at the groups of the highest
//! priorities only ([`limits::READY_GROUPS_MAX`]), and further down where those gave too little: whoever uses very many
//! priorities makes no claim of others slow.
//!
//! Each group has a *floor*: the ready time up to which this server has emptied it. While somebody
//! holds an old snapshot open, Postgres keeps the index entries of claimed rows; scanning from the
//! floor steps over that graveyard. The floor is only a hint (a commit may become visible late, below
//! it), so it goes back to zero every few seconds.

use crate::{head::Head, limits};
use crate::{
    ids::{CommitId, SessionId},
    mail::Mail,
    time::Timestamp,
};
use std::{cmp::Reverse, collections::BTreeMap, time::Duration};

/// One index probe: at most `want` of a group, ready at or after the floor, oldest first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Probe {
    /// The group's priority.
    pub priority: i16,
    /// The group's tenant.
    pub tenant: String,
    /// Where to start.
    pub floor: Timestamp,
    /// How many.
    pub want: usize,
}

/// Asks for work.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// The commits of the claims are named after this one.
    pub id: CommitId,
    /// Who asks.
    pub session: SessionId,
    /// For how long the claim itself vouches for the session.
    pub lease: Duration,
    /// Which queue.
    pub queue: String,
    /// In this order.
    pub probes: Vec<Probe>,
    /// No more than this in all.
    pub limit: usize,
}

/// An entity that was claimed.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// The head after the claim.
    pub head: Head,
    /// The beginning of its unread mail. All entities of a claim together have at most [`limits::MAIL_PER_CLAIM_MAX`].
    pub mail: Vec<Mail>,
    /// When it became ready.
    pub ready_at: Timestamp,
}

/// What a claim found.
#[derive(Clone, Debug, Default)]
pub struct ClaimAnswer {
    /// In order of claim.
    pub claimed: Vec<Claimed>,
    /// How many each probe gave; shorter than the probes where the limit was reached before.
    pub found: Vec<usize>,
}

/// Below which priority the next page of groups begins; none where this was the last.
pub fn next_page(groups: &[(i16, String)]) -> Option<i16> {
    let lowest = groups.iter().map(|(priority, _)| *priority).min();
    lowest.filter(|_| groups.len() >= limits::READY_GROUPS_MAX)
}

/// Cuts groups, the highest priority first, where a page ends.
pub fn cut_page(groups: &mut Vec<(i16, String)>) {
    if let Some((last, _)) = groups.get(limits::READY_GROUPS_MAX - 1) {
        let end = groups.partition_point(|(priority, _)| priority >= last);
        groups.truncate(end);
    }
}

#[derive(Debug, Default)]
struct Group {
    floor: Timestamp,
    served: u64,
}

/// Plans the probes of one queue, for one server.
#[derive(Debug, Default)]
pub struct Planner {
    groups: BTreeMap<(Reverse<i16>, String), Group>,
}

impl Planner {
    /// Sets which groups have ready work, as a scan of the queue found them, and forgets the floors.
    /// Of more than a page it takes one.
    pub fn refresh(&mut self, mut groups: Vec<(i16, String)>) {
        groups.sort_unstable_by(|a, b| (b.0, &a.1).cmp(&(a.0, &b.1)));
        cut_page(&mut groups);
        let mut old = std::mem::take(&mut self.groups);
        let mut fresh = Vec::new();
        for (priority, tenant) in groups {
            let key = (Reverse(priority), tenant);
            match old.remove(&key) {
                Some(g) => {
                    self.groups.insert(key, Group { floor: Timestamp::ZERO, served: g.served });
                }
                None => fresh.push(key),
            }
        }
        // A newcomer starts level with the least served, or it would have the queue to itself.
        let mut least = BTreeMap::new();
        for ((priority, _), group) in &self.groups {
            let least = least.entry(*priority).or_insert(group.served);
            *least = group.served.min(*least);
        }
        for key in fresh {
            let served = least.get(&key.0).copied().unwrap_or(0);
            self.groups.insert(key, Group { floor: Timestamp::ZERO, served });
        }
    }

    /// Whether no group is known.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// The probes for `n` claims: per priority first every tenant's fair share, least served first,
    /// then whatever the others left.
    pub fn plan(&self, n: usize) -> Vec<Probe> {
        let n = n.min(limits::CLAIM_MAX);
        let mut probes = Vec::new();
        let all: Vec<_> = self.groups.iter().collect();
        for of_one_priority in all.chunk_by(|a, b| a.0.0 == b.0.0) {
            let mut tenants = of_one_priority.to_vec();
            tenants.sort_by_key(|(_, g)| g.served);
            // Of those who were served least, n share n.
            let served: Vec<_> = tenants.iter().take(n).map(|(_, g)| g.served).collect();
            let shares = fair_shares(&served, n);
            let probe = |key: &(Reverse<i16>, String), g: &Group, want| Probe {
                priority: key.0.0,
                tenant: key.1.clone(),
                floor: g.floor,
                want,
            };
            for ((key, group), share) in tenants.iter().zip(&shares).filter(|(_, s)| **s > 0) {
                probes.push(probe(key, group, *share));
            }
            if tenants.len() > 1 {
                probes.extend(tenants.iter().map(|(key, group)| probe(key, group, n)));
            }
        }
        probes
    }

    /// Learns from what a claim found.
    pub fn settle(&mut self, claimed: &[Claimed]) {
        for c in claimed {
            let key = (Reverse(c.head.priority), c.head.tenant.clone());
            if let Some(group) = self.groups.get_mut(&key) {
                group.served += 1;
                group.floor = group.floor.max(c.ready_at);
            }
        }
    }
}

/// Splits `n` so that the served counts come out as level as possible. `served` is sorted.
fn fair_shares(served: &[u64], n: usize) -> Vec<usize> {
    let mut shares = vec![0usize; served.len()];
    for _ in 0..n {
        let next = (0..served.len()).min_by_key(|i| (served[*i] + shares[*i] as u64, *i));
        match next {
            Some(i) => shares[i] += 1,
            None => break,
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn higher_priority_comes_first_whatever_the_deficit() {
        let mut planner = Planner::default();
        planner.refresh(vec![(0, "a".into()), (9, "b".into())]);
        let probes = planner.plan(2);
        assert_eq!((probes[0].priority, probes[0].want), (9, 2));
        assert_eq!(probes[1].priority, 0);
    }

    #[test]
    fn tenants_share_and_leftovers_go_to_whoever_has_work() {
        let mut planner = Planner::default();
        planner.refresh(vec![(0, "a".into()), (0, "b".into())]);
        let wants: Vec<_> = planner.plan(4).into_iter().map(|p| (p.tenant, p.want)).collect();
        let expected = [("a", 2), ("b", 2), ("a", 4), ("b", 4)].map(|(t, n)| (t.to_owned(), n));
        assert_eq!(wants, expected);
    }

    #[test]
    fn a_plan_is_short_however_many_priorities_there_are() {
        let mut planner = Planner::default();
        let mut groups: Vec<_> = (0..30_000).map(|p| (p, "a".to_owned())).collect();
        groups.extend((0..300).map(|t| (29_990, format!("t{t:03}"))));
        planner.refresh(groups);
        let probes = planner.plan(1);
        assert!(probes.len() <= 2 * (limits::READY_GROUPS_MAX + 301), "{}", probes.len());
        assert_eq!(probes[0].priority, 29_999);
        let lowest = probes.last().map(|p| (p.priority, probes.iter().any(|p| p.tenant == "t299")));
        assert_eq!(lowest, Some((29_990, true)), "all tenants of a priority, or none");
    }

    #[test]
    fn a_page_ends_with_the_priority_in_which_it_is_full() {
        let full = i16::try_from(limits::READY_GROUPS_MAX).unwrap();
        let page = |groups: Vec<(i16, String)>| {
            let mut cut = groups;
            cut_page(&mut cut);
            (cut.len(), next_page(&cut))
        };
        let one_each = |n: i16| (0..n).rev().map(|p| (p, "a".to_owned())).collect::<Vec<_>>();
        assert_eq!(page(one_each(full - 1)), (limits::READY_GROUPS_MAX - 1, None));
        assert_eq!(page(one_each(full)), (limits::READY_GROUPS_MAX, Some(0)));
        assert_eq!(page(one_each(full + 1)), (limits::READY_GROUPS_MAX, Some(1)));
        let mut wide = one_each(full);
        wide.extend((0..9).map(|t| (0, format!("t{t}"))));
        wide.push((-1, "a".to_owned()));
        assert_eq!(
            page(wide),
            (limits::READY_GROUPS_MAX + 9, Some(0)),
            "none of a priority is left out"
        );
        assert_eq!(page(Vec::new()), (0, None));
    }

    proptest! {
        #[test]
        fn only_those_served_least_have_a_share(mut served in prop::collection::vec(0u64..9, 1..12), n in 0usize..8) {
            served.sort_unstable();
            let first = served.iter().take(n).copied().collect::<Vec<_>>();
            let (all, few) = (fair_shares(&served, n), fair_shares(&first, n));
            prop_assert_eq!(all.iter().sum::<usize>(), few.iter().sum::<usize>());
            prop_assert!(all.iter().zip(few.iter().chain(std::iter::repeat(&0))).all(|(a, b)| a == b));
        }

        #[test]
        fn shares_level_the_deficits(mut served in prop::collection::vec(0u64..50, 1..8), n in 0usize..60) {
            served.sort_unstable();
            let shares = fair_shares(&served, n);
            prop_assert_eq!(shares.iter().sum::<usize>(), n);
            let after: Vec<_> = served.iter().zip(&shares).map(|(s, x)| s + *x as u64).collect();
            // Nobody who got something is ahead of anybody by more than one.
            for (i, s) in shares.iter().enumerate() {
                if *s > 0 {
                    prop_assert!(after.iter().all(|other| after[i] <= other + 1));
                }
            }
        }
    }
}
