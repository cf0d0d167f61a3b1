//! Flows that stay in memory while nobody holds their job, so that a signal or a timer need not replay
//! them. Only a shortcut: whatever is not here, or is older than the history says, is replayed.

use super::run::Still;
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
};
use tenure_kernel::ids::EntityId;

/// See the module. Forgets the longest unused when it is full.
pub struct Memory {
    bytes_max: usize,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    flows: HashMap<EntityId, (u64, Box<Still>)>,
    /// By when they were kept: the first is the longest unused.
    order: BTreeMap<u64, EntityId>,
    bytes: usize,
    clock: u64,
}

impl Memory {
    /// Keeps at most about this many bytes of history.
    pub fn new(bytes_max: usize) -> Self {
        Memory { bytes_max, inner: Mutex::default() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Nothing panics while it holds this lock.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many flows it keeps.
    pub fn len(&self) -> usize {
        self.inner().flows.len()
    }

    /// Whether it keeps none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn keep(&self, job: EntityId, still: Still) {
        let mut inner = self.inner();
        inner.clock += 1;
        let clock = inner.clock;
        inner.bytes += still.bytes;
        inner.order.insert(clock, job);
        // Dropped after the lock is: a flow's own destructors run then.
        let mut dropped = Vec::new();
        if let Some((at, old)) = inner.flows.insert(job, (clock, Box::new(still))) {
            inner.order.remove(&at);
            inner.bytes -= old.bytes;
            dropped.push(old);
        }
        while inner.bytes > self.bytes_max {
            let Some((_, oldest)) = inner.order.pop_first() else { break };
            let Some((_, flow)) = inner.flows.remove(&oldest) else { break };
            inner.bytes -= flow.bytes;
            dropped.push(flow);
        }
        drop(inner);
    }

    pub(crate) fn take(&self, job: EntityId) -> Option<Still> {
        let mut inner = self.inner();
        let (at, still) = inner.flows.remove(&job)?;
        inner.order.remove(&at);
        inner.bytes -= still.bytes;
        Some(*still)
    }
}
