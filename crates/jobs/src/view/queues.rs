//! What stands in the ready queues, and who serves them. Every look is bounded; where it stopped, it says so.

use super::Job;
use crate::serving::{self, Hand, Hands};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use tenure_kernel::{
    claims::next_page,
    error::StoreError,
    head::Head,
    ids::{EntityId, SessionId},
    machine::Machine as _,
    store::{HeadFilter, Store},
    time::Timestamp,
};

/// Ready jobs of a queue by tenant and priority: how many, and since when the oldest, where that is known.
type Groups = BTreeMap<(String, i16), (u64, Option<Timestamp>)>;

/// Queued jobs that one look reads from each end: the oldest, and the newest.
pub const JOBS_MAX: usize = 1_000;
/// Queues of which the store is asked who waits there, where not all jobs were read.
const ASKED_MAX: usize = 200;
/// Names of queues that are looked for then. Those of calls and turns are among them.
const NAMES_MAX: usize = 2_000;
/// Workers of a queue that are named.
const NAMED_MAX: usize = 200;

/// What waits where.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queues {
    /// By name.
    pub queues: Vec<QueueView>,
    /// Whether no other queue has jobs that wait: the store was asked for all names, and for who waits there.
    pub complete: bool,
}

/// A ready queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueView {
    /// Its whole name: `flow@version`, then `/queue` and `+label` where a job has such terms.
    pub queue: String,
    /// The flow with its version.
    pub flow: String,
    /// The name that jobs give.
    pub named: Option<String>,
    /// What its jobs need.
    pub needs: Vec<String>,
    /// Jobs that wait here; at least so many unless `counted_all`.
    pub depth: u64,
    /// Whether nothing was left out of the count.
    pub counted_all: bool,
    /// Since when the one waits that waits for longest.
    pub oldest: Option<Timestamp>,
    /// The same by tenant and priority, of what was read.
    pub groups: Vec<GroupView>,
    /// Live workers that serve it; none where there are more sessions than are looked at, and nobody was found.
    pub workers: Option<u64>,
    /// Those of them that may be named.
    pub served_by: Vec<ServedBy>,
}

/// What one tenant has in a queue under one priority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupView {
    /// Whose.
    pub tenant: String,
    /// How urgent.
    pub priority: i16,
    /// How many.
    pub depth: u64,
    /// Since when the oldest waits; none where it was not among those that were read.
    pub oldest: Option<Timestamp>,
}

/// A worker that serves a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedBy {
    /// Its session.
    pub session: SessionId,
    /// Its name.
    pub name: String,
}

/// The queues with ready jobs, or with a worker that serves them; with a name, those that it can mean: the whole name, the
/// name that jobs give, or the flow with or without its version. With a tenant only its own jobs,
/// and only its own workers by name; a worker that serves everybody is counted. Idle queues are shown without labels: a
/// worker with four capabilities looks into sixteen for each flow.
///
/// Only so many jobs are read, so a long queue may stand in front of all others. Then the store is asked for the names of
/// all queues, which costs a step in an index each, and for who waits in them: none is missed, only not counted.
pub async fn queues(
    store: &Arc<dyn Store>,
    tenant: Option<&str>,
    queue: Option<&str>,
) -> Result<Queues, StoreError> {
    let hands = serving::hands(store).await?;
    let (heads, read_all) = queued(store, tenant).await?;
    let mut groups: BTreeMap<String, Groups> = BTreeMap::new();
    for head in heads.into_values() {
        let at = head.ready_at.unwrap_or(head.changed_at);
        let of_queue = groups.entry(head.queue).or_default();
        let group = of_queue.entry((head.tenant, head.priority)).or_insert((0, Some(at)));
        *group = (group.0 + 1, group.1.min(Some(at)));
    }
    let mut names: BTreeSet<String> = groups.keys().cloned().collect();
    let seen = hands.hands.iter().filter(|h| visible(h, tenant));
    for serving in seen.filter_map(|h| h.serving.as_ref()) {
        for flow in serving.flows.iter().flatten() {
            names.extend(serving.queues.iter().map(|queue| match queue.as_str() {
                crate::terms::UNNAMED => flow.clone(),
                named => format!("{flow}/{named}"),
            }));
        }
    }
    let mut complete = read_all;
    let mut asked = BTreeSet::new();
    if !read_all {
        (asked, complete) = ready(store).await?;
    }
    if let Some(queue) = queue {
        names.retain(|name| is_meant(name, queue));
        asked.retain(|name| is_meant(name, queue));
        if !read_all || !hands.all {
            names.insert(queue.to_owned());
        }
    }
    if !read_all {
        asked.extend(names.iter().cloned());
        complete &= asked.len() <= ASKED_MAX;
    }
    for name in asked.into_iter().take(ASKED_MAX) {
        let mut below = None;
        loop {
            let page = store.ready_groups(&name, below).await?;
            below = next_page(&page);
            for (priority, whose) in page {
                // Whoever has nothing there does not learn that there is such a queue.
                if tenant.is_none_or(|mine| mine == whose) {
                    names.insert(name.clone());
                    let of_queue = groups.entry(name.clone()).or_default();
                    of_queue.entry((whose, priority)).or_insert((1, None));
                }
            }
            // What stands behind a page is not shown, except to whoever has nothing in it.
            if below.is_none() || groups.contains_key(&name) {
                complete &= below.is_none();
                break;
            }
        }
    }
    let one = |queue: String| {
        let of_queue = groups.remove(&queue).unwrap_or_default();
        view(queue, of_queue, read_all, &hands, tenant)
    };
    Ok(Queues { queues: names.into_iter().map(one).collect(), complete })
}

/// Whether somebody who says this can mean that queue.
fn is_meant(whole: &str, said: &str) -> bool {
    let flow = serving::flow_of(whole);
    let bare = flow.rsplit_once('@').map_or(flow, |(name, _)| name);
    let named = serving::parts(whole, flow).and_then(|parts| parts.queue);
    whole == said || flow == said || bare == said || named == Some(said)
}

/// The names of queues in which jobs wait; and whether these are all.
async fn ready(store: &Arc<dyn Store>) -> Result<(BTreeSet<String>, bool), StoreError> {
    let found = store.ready_queues("", NAMES_MAX).await?;
    let all = found.len() < NAMES_MAX;
    Ok((found.into_iter().filter(|name| serving::is_of_jobs(name)).collect(), all))
}

/// Jobs that wait, the oldest and the newest; and whether these are all.
async fn queued(
    store: &Arc<dyn Store>,
    tenant: Option<&str>,
) -> Result<(BTreeMap<EntityId, Head>, bool), StoreError> {
    let filter = HeadFilter {
        kind: Some(Job::TABLE.kind.into()),
        // One that is to be undone waits for a worker too.
        statuses: vec!["queued".into(), "undoing".into()],
        tenant: tenant.map(str::to_owned),
        ..HeadFilter::default()
    };
    let mut heads = store.heads(filter.clone(), JOBS_MAX).await?;
    let complete = heads.len() < JOBS_MAX;
    if !complete {
        let newest = HeadFilter { newest_first: true, ..filter };
        heads.extend(store.heads(newest, JOBS_MAX).await?);
    }
    Ok((heads.into_iter().map(|head| (head.id, head)).collect(), complete))
}

fn visible(hand: &Hand, tenant: Option<&str>) -> bool {
    hand.tenant.is_empty() || tenant.is_none_or(|mine| mine == hand.tenant)
}

fn view(
    queue: String,
    groups: Groups,
    counted_all: bool,
    hands: &Hands,
    tenant: Option<&str>,
) -> QueueView {
    let serves = |hand: &Hand| {
        visible(hand, tenant) && hand.serving.as_ref().is_none_or(|s| s.covers(&queue))
    };
    let named = |hand: &&Hand| serves(hand) && tenant.is_none_or(|mine| mine == hand.tenant);
    let served_by = hands.hands.iter().filter(named).take(NAMED_MAX);
    let served_by = served_by.map(|h| ServedBy { session: h.session, name: h.name.clone() });
    let served_by = served_by.collect();
    let workers = hands.count(serves);
    let flow = serving::flow_of(&queue).to_owned();
    let parts = serving::parts(&queue, &flow);
    let (name, needs) = parts.map_or((None, Vec::new()), |p| {
        (p.queue.map(str::to_owned), p.needs.into_iter().map(str::to_owned).collect())
    });
    let group =
        |((tenant, priority), (depth, oldest))| GroupView { tenant, priority, depth, oldest };
    let mut groups: Vec<GroupView> = groups.into_iter().map(group).collect();
    groups.sort_by_key(|g| std::cmp::Reverse(g.priority));
    QueueView {
        depth: groups.iter().map(|g| g.depth).sum(),
        oldest: groups.iter().filter_map(|g| g.oldest).min(),
        workers,
        served_by,
        named: name,
        needs,
        flow,
        counted_all,
        groups,
        queue,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_meant_by_its_whole_name_its_own_name_or_its_flow() {
        let whole = "report@1/night+gpu";
        for said in [whole, "report@1", "report", "night"] {
            assert!(is_meant(whole, said), "{said}");
        }
        for said in ["report@2", "rep", "gpu", "day", ""] {
            assert!(!is_meant(whole, said), "{said}");
        }
        assert!(is_meant("pay@2", "pay") && !is_meant("pay@2", "night"));
    }
}
