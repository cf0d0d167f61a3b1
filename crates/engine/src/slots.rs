//! The slots of a worker: how many entities run in this process at once, whoever brought them.
//!
//! The worker claims from its queues; a submission may start what it creates at once, where a slot is free and
//! nothing waits in the queue. Both take a slot first and fill it then, so together they never run more than
//! there are slots.

use crate::{
    session::Keeper,
    stop::{Stop, Stopper, stopper},
    worker::{Handler, Held},
};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tenure_kernel::{ids::EntityId, limits};
use tokio::sync::Notify;

/// Shared by a worker and whoever brings it work. Cheap to clone.
#[derive(Clone)]
pub struct Slots(Arc<Inner>);

struct Inner {
    keeper: Keeper,
    handler: Arc<dyn Handler>,
    limit: usize,
    state: Mutex<State>,
    freed: Notify,
}

struct State {
    taken: usize,
    /// Queues that gave less than was asked for at the last look. A bell does not change that by itself: the look that
    /// follows it has slots of its own, so what is born meanwhile takes nothing away from what waits.
    empty: BTreeSet<String>,
    stopper: Stopper,
    stop: Stop,
}

/// Room for one entity. Dropped, it is free again.
pub struct Slot(Option<Arc<Inner>>);

impl Slots {
    pub(crate) fn new(keeper: Keeper, limit: usize, handler: Arc<dyn Handler>) -> Self {
        // A renewal has to name everything that is held.
        let limit = limit.min(limits::HOLDS_MAX);
        let (stopper, stop) = stopper();
        let state = Mutex::new(State { taken: 0, empty: BTreeSet::new(), stopper, stop });
        Slots(Arc::new(Inner { keeper, handler, limit, state, freed: Notify::new() }))
    }

    /// Takes a slot, if one is free, the session is alive, and nobody has asked the worker to stop.
    pub fn try_take(&self) -> Option<Slot> {
        if !self.0.keeper.live() {
            return None;
        }
        let mut state = self.0.state();
        if state.taken >= self.0.limit || state.stop.asked() {
            return None;
        }
        state.taken += 1;
        Some(Slot(Some(self.0.clone())))
    }

    /// Runs the worker's handler on something that this process holds. Whatever is still held when it returns is
    /// released; if it panics, the hold is dropped and the check ends the tenure.
    pub fn start(&self, slot: Slot, mut held: Held) {
        held.stops_with(self.0.state().stop.clone());
        let named = Named { keeper: held.keeper().clone(), id: held.id(), epoch: held.head.epoch };
        let handler = self.0.handler.clone();
        self.0.keeper.pipeline().rt().spawn(Box::pin(async move {
            let _slot = slot;
            let _named = named;
            let mut held = handler.run(held).await;
            if held.may_act()
                && let Err(e) = held.release("the handler returned").await
            {
                tracing::debug!(error = %e, entity = %held.id(), "not released; the lease will lapse");
            }
        }));
    }

    /// How many slots are free.
    pub fn free(&self) -> usize {
        self.0.limit.saturating_sub(self.running())
    }

    /// How many are taken.
    pub fn running(&self) -> usize {
        self.0.state().taken
    }

    /// Whether nothing was left in a queue when the worker last looked, and a slot is kept for whatever a bell has
    /// told of since. A hint: the worker looks once per tick, and bells can be lost. `false` for a queue that this
    /// worker does not serve.
    pub fn queue_is_known_empty(&self, queue: &str) -> bool {
        self.0.state().empty.contains(queue)
    }

    /// Half of the free slots, for a claim.
    pub(crate) fn take_half(&self) -> Vec<Slot> {
        let mut state = self.0.state();
        let free = self.0.limit.saturating_sub(state.taken).div_ceil(2);
        state.taken += free;
        (0..free).map(|_| Slot(Some(self.0.clone()))).collect()
    }

    pub(crate) fn saw(&self, queue: &str, empty: bool) {
        let mut state = self.0.state();
        match empty {
            true => state.empty.insert(queue.to_owned()),
            false => state.empty.remove(queue),
        };
    }

    /// A bell rang for this queue, and there is no slot to look into it with.
    pub(crate) fn heard(&self, queue: &str) {
        self.0.state().empty.remove(queue);
    }

    pub(crate) async fn freed(&self) {
        self.0.freed.notified().await;
    }

    /// Begins a run of the worker. Its end is told to the handlers, also where the run is dropped.
    pub(crate) fn open(&self) -> Open {
        let mut state = self.0.state();
        if state.stop.asked() {
            (state.stopper, state.stop) = stopper();
        }
        Open(self.clone())
    }
}

/// A run of the worker.
pub(crate) struct Open(Slots);

impl Drop for Open {
    fn drop(&mut self) {
        let mut state = self.0.0.state();
        state.empty.clear();
        state.stopper.stop();
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// Back unused. Rings nobody: the worker that did not need it would only look again.
    pub(crate) fn give_back(mut self) {
        if let Some(slots) = self.0.take() {
            slots.state().taken -= 1;
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(slots) = self.0.take() {
            slots.state().taken -= 1;
            slots.freed.notify_one();
        }
    }
}

struct Named {
    keeper: Keeper,
    id: EntityId,
    epoch: u64,
}

impl Drop for Named {
    fn drop(&mut self) {
        self.keeper.drop_hold(self.id, self.epoch);
    }
}
