//! Which streams are checked, and the check of one of them. The store is live: what is read belongs to the moment of
//! the head, and a fault counts only if a second look finds it too.

use std::{collections::BTreeSet, sync::Arc};
use tenure_engine::checkers::blobs;
use tenure_jobs::{Job, view};
use tenure_kernel::{
    error::StoreError,
    head::Head,
    ids::EntityId,
    machine::{Machine as _, Machines},
    store::{HeadFilter, Store},
    stream::Record,
    table::Tables,
    verify,
};

/// What the check of streams found.
#[derive(Clone, Debug, Default)]
pub struct Chains {
    /// Streams that were checked.
    pub checked: usize,
    /// Jobs among them, whose own rules were checked too.
    pub jobs: usize,
    /// Whether these are all streams of the store.
    pub all: bool,
    /// What is wrong, by entity.
    pub problems: Vec<(EntityId, String)>,
}

/// How much is checked.
#[derive(Clone, Copy, Debug)]
pub enum Extent {
    /// Every stream.
    All,
    /// A third of so many each: the newest, those due for longest, and some at random.
    Sample(usize),
}

/// Random moments from which some are taken: a listing that begins in the middle may have to walk there.
const MOMENTS: usize = 5;
/// Heads read at a time.
const PAGE: usize = 200;
/// Records read at a time. Many: on SQLite each reading of a stretch walks the stream from its end.
const RECORDS: usize = 20_000;
/// Problems that are kept: more say no more.
const PROBLEMS_MAX: usize = 50;

/// Checks streams.
pub async fn check(
    store: &Arc<dyn Store>,
    machines: &Machines,
    tables: &Tables,
    extent: Extent,
    due: &[EntityId],
    mut random: impl FnMut() -> u64,
) -> Result<Chains, StoreError> {
    let mut chains = Chains { all: matches!(extent, Extent::All), ..Chains::default() };
    let cx = Checker { store, machines, tables };
    match extent {
        Extent::All => {
            let mut after = None;
            loop {
                let filter = HeadFilter { after, ..HeadFilter::default() };
                let heads = store.heads(filter, PAGE).await?;
                let Some(last) = heads.last() else { return Ok(chains) };
                after = Some(last.id);
                for head in &heads {
                    cx.add(head.id, &mut chains).await?;
                }
            }
        }
        Extent::Sample(n) => {
            let mut wanted: BTreeSet<EntityId> = due.iter().take(n.div_ceil(3)).copied().collect();
            let newest = HeadFilter { newest_first: true, ..HeadFilter::default() };
            let newest = store.heads(newest, n.div_ceil(3)).await?;
            wanted.extend(newest.iter().map(|h| h.id));
            // Jobs are what history consists of, and have ids that rise with time; lanes and the like do not.
            let jobs = HeadFilter { kind: Some(Job::TABLE.kind.into()), ..HeadFilter::default() };
            let oldest = store.heads(jobs.clone(), 1).await?;
            let last = HeadFilter { newest_first: true, ..jobs.clone() };
            let last = store.heads(last, 1).await?;
            if let (Some(first), Some(last)) = (oldest.first(), last.first()) {
                for _ in 0..MOMENTS {
                    let after = Some(between(first.id, last.id, random(), random()));
                    let filter = HeadFilter { after, ..jobs.clone() };
                    let found = store.heads(filter, (n / 3).div_ceil(MOMENTS)).await?;
                    wanted.extend(found.iter().map(|h| h.id));
                }
            }
            chains.all = newest.len() < n.div_ceil(3);
            for id in wanted {
                cx.add(id, &mut chains).await?;
            }
            Ok(chains)
        }
    }
}

/// An id somewhere from `low` on and before `high`. Ids rise with time, so a random one is a random moment.
fn between(low: EntityId, high: EntityId, a: u64, b: u64) -> EntityId {
    let number = |id: EntityId| u128::from_be_bytes(*id.as_bytes());
    let (low, high) = (number(low), number(high));
    let random = (u128::from(a) << 64) | u128::from(b);
    let width = high.saturating_sub(low).max(1);
    // Just before it, so that the first entity can be found too.
    EntityId::from_bytes((low + random % width).saturating_sub(1).to_be_bytes())
}

struct Checker<'a> {
    store: &'a Arc<dyn Store>,
    machines: &'a Machines,
    tables: &'a Tables,
}

impl Checker<'_> {
    async fn add(&self, id: EntityId, chains: &mut Chains) -> Result<(), StoreError> {
        let Some((is_job, mut problems)) = self.one(id).await? else { return Ok(()) };
        if !problems.is_empty() {
            // It may have changed, or been retired, between two reads.
            problems = self.one(id).await?.map(|(_, p)| p).unwrap_or_default();
        }
        chains.checked += 1;
        chains.jobs += usize::from(is_job);
        let room = PROBLEMS_MAX.saturating_sub(chains.problems.len());
        chains.problems.extend(problems.into_iter().take(room).map(|p| (id, p)));
        Ok(())
    }

    /// Whether it is a job, and what is wrong with it; `None` if it is gone.
    async fn one(&self, id: EntityId) -> Result<Option<(bool, Vec<String>)>, StoreError> {
        let head = match self.store.head(id).await {
            Ok(Some(head)) => head,
            Ok(None) => return Ok(None),
            Err(e @ StoreError::Corrupt(_)) => return Ok(Some((false, vec![e.to_string()]))),
            Err(e) => return Err(e),
        };
        if head.kind() == Job::TABLE.kind {
            return Ok(match view::verify(self.store, self.tables, id, None).await {
                Ok(Some(checked)) => Some((true, checked.problems)),
                Ok(None) => None,
                Err(tenure_jobs::drive::LoadError::Store(e)) if !is_damage(&e) => return Err(e),
                Err(e) => Some((true, vec![e.to_string()])),
            });
        }
        let records = match self.records(&head).await {
            Ok(records) => records,
            Err(e) if is_damage(&e) => return Ok(Some((false, vec![e.to_string()]))),
            Err(e) => return Err(e),
        };
        let mut problems = Vec::new();
        if let Err(fault) = verify::verify(&head, &records, self.tables) {
            problems.push(fault.to_string());
        }
        let complete = records.first().is_some_and(|r| r.first == 1);
        if let Some(core) = self.machines.get(head.kind()).filter(|_| complete) {
            let blobs = blobs(&**self.store, &records).await?;
            match core.replay(&records, &blobs) {
                Ok(state) if state == head.state => {}
                Ok(_) => problems.push("the head's state is not what its history gives".to_owned()),
                Err(why) => problems.push(format!("its history can not be replayed: {why}")),
            }
        }
        Ok(Some((false, problems)))
    }

    async fn records(&self, head: &Head) -> Result<Vec<Record>, StoreError> {
        let mut records: Vec<Record> = Vec::new();
        let mut from = 1;
        while from <= head.version {
            let page = self.store.stream(head.id, from, RECORDS).await?;
            let Some(last) = page.last() else { break };
            from = last.last() + 1;
            records.extend(page);
        }
        // It goes on while it is read.
        records.retain(|r| r.last() <= head.version);
        Ok(records)
    }
}

fn is_damage(e: &StoreError) -> bool {
    matches!(e, StoreError::Corrupt(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_random_id_lies_between_the_first_and_the_last() {
        let (low, high) = (EntityId::from_bytes([1; 16]), EntityId::from_bytes([2; 16]));
        for seed in 0..100u64 {
            let id = between(low, high, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), !seed);
            assert!(id < high, "{id}");
        }
        assert!(between(low, low, 7, 7) < low, "the only one is found after it");
    }
}
