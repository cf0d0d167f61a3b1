//! Flows that stay in memory while nobody holds their job, so that a signal or a timer need not replay
//! them. Only a shortcut: whatever is not here, or is older than the history says, is replayed.

use super::run::Still;
use std::{
    collections::HashMap,
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
        if let Some((_, old)) = inner.flows.insert(job, (clock, Box::new(still))) {
            inner.bytes -= old.bytes;
        }
        while inner.bytes > self.bytes_max {
            let oldest = inner.flows.iter().min_by_key(|(_, (at, _))| *at).map(|(id, _)| *id);
            let Some((_, dropped)) = oldest.and_then(|id| inner.flows.remove(&id)) else { break };
            inner.bytes -= dropped.bytes;
        }
    }

    pub(crate) fn take(&self, job: EntityId) -> Option<Still> {
        let mut inner = self.inner();
        let (_, still) = inner.flows.remove(&job)?;
        inner.bytes -= still.bytes;
        Some(*still)
    }
}
