//! What stands in the ready queues, and who serves them. Every look is bounded; where it stopped, it says so.

use super::Job;
use crate::serving::{self, Hand};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use tenure_kernel::{
    error::StoreError,
    ids::SessionId,
    machine::Machine as _,
    store::{HeadFilter, Store},
    time::Timestamp,
};

/// Ready jobs of a queue by tenant and priority: how many, and since when the oldest.
type Groups = BTreeMap<(String, i16), (u64, Timestamp)>;

/// Queued jobs that one look reads.
pub const JOBS_MAX: usize = 2_000;

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
    /// Live workers that serve it.
    pub workers: u64,
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
    /// Since when the oldest waits.
    pub oldest: Timestamp,
}

/// A worker that serves a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedBy {
    /// Its session.
    pub session: SessionId,
    /// Its name.
    pub name: String,
}

/// The queues with ready jobs, or with a worker that serves them. With a tenant only its own jobs, and only its own
/// workers by name; a worker that serves everybody is counted. Idle queues are shown without labels: a worker with
/// four capabilities looks into sixteen for each flow.
pub async fn queues(
    store: &Arc<dyn Store>,
    tenant: Option<&str>,
) -> Result<Vec<QueueView>, StoreError> {
    let hands = serving::hands(store).await?;
    let filter = HeadFilter {
        kind: Some(Job::TABLE.kind.into()),
        status: Some("queued".into()),
        tenant: tenant.map(str::to_owned),
        ..HeadFilter::default()
    };
    let heads = store.heads(filter, JOBS_MAX).await?;
    let counted_all = heads.len() < JOBS_MAX;
    let mut groups: BTreeMap<String, Groups> = BTreeMap::new();
    for head in heads {
        let at = head.ready_at.unwrap_or(head.changed_at);
        let of_queue = groups.entry(head.queue).or_default();
        let group = of_queue.entry((head.tenant, head.priority)).or_insert((0, at));
        *group = (group.0 + 1, group.1.min(at));
    }
    let mut names: BTreeSet<String> = groups.keys().cloned().collect();
    for serving in hands.iter().filter(|h| visible(h, tenant)).filter_map(|h| h.serving.as_ref()) {
        for flow in serving.flows.iter().flatten() {
            names.extend(serving.queues.iter().map(|queue| match queue.as_str() {
                crate::terms::UNNAMED => flow.clone(),
                named => format!("{flow}/{named}"),
            }));
        }
    }
    let one = |queue: String| {
        let of_queue = groups.remove(&queue).unwrap_or_default();
        view(queue, of_queue, counted_all, &hands, tenant)
    };
    Ok(names.into_iter().map(one).collect())
}

fn visible(hand: &Hand, tenant: Option<&str>) -> bool {
    hand.tenant.is_empty() || tenant.is_none_or(|mine| mine == hand.tenant)
}

fn view(
    queue: String,
    groups: BTreeMap<(String, i16), (u64, Timestamp)>,
    counted_all: bool,
    hands: &[Hand],
    tenant: Option<&str>,
) -> QueueView {
    let serve = |hand: &&Hand| {
        visible(hand, tenant) && hand.serving.as_ref().is_none_or(|s| s.covers(&queue))
    };
    let serve: Vec<&Hand> = hands.iter().filter(serve).collect();
    let named = |hand: &&&Hand| tenant.is_none_or(|mine| mine == hand.tenant);
    let served_by = serve.iter().filter(named);
    let served_by = served_by.map(|h| ServedBy { session: h.session, name: h.name.clone() });
    let served_by = served_by.collect();
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
        oldest: groups.iter().map(|g| g.oldest).min(),
        workers: serve.len() as u64,
        served_by,
        named: name,
        needs,
        flow,
        counted_all,
        groups,
        queue,
    }
}
