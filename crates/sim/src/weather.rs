//! The weather: which faults rage at this moment, and how hard. The store's chaos and the bell ask it
//! at every call. It also counts what each fault really did, because a fault that never bit proves
//! nothing.

use crate::{
    bell::RING,
    executor::{NodeId, Sim},
    faults::Fault,
    rng::Rng,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tenure_kernel::{ids::EntityId, runtime::BoxFuture, time::Timestamp};
use tenure_store::memory::{Call, Chaos, Fate};

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// How hard each fault rages, in a thousand, or for how long.
#[derive(Clone, Debug, Default)]
pub struct Levels {
    /// Calls that find no connection.
    pub unavailable: u32,
    /// Nothing reaches the store.
    pub outage: bool,
    /// Nodes that do not reach the store.
    pub cut: BTreeSet<NodeId>,
    /// Writes that happen and are not answered.
    pub answer_lost: u32,
    /// Writes that do not happen and are not answered.
    pub request_lost: u32,
    /// Calls that take long.
    pub latency: u32,
    /// Heads that somebody has locked.
    pub busy: u32,
    /// Reads that see the past.
    pub stale: u32,
    /// Rings that get lost.
    pub bell_lost: u32,
    /// Rings that come late or twice.
    pub bell_late: u32,
    /// No ring at all.
    pub bell_silent: bool,
    /// The storm is over: what was put off till later does not happen any more.
    pub over: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Weather {
    now: Mutex<(Levels, BTreeMap<Fault, u64>)>,
    /// Outages that are over, from and to, on the store's clock.
    outages: Mutex<Vec<(Timestamp, Timestamp)>>,
}

impl Weather {
    fn lock(&self) -> MutexGuard<'_, (Levels, BTreeMap<Fault, u64>)> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes an outage that lasted as long as it was meant to.
    pub fn note_outage(&self, from: Timestamp, to: Timestamp) {
        self.outages.lock().unwrap_or_else(PoisonError::into_inner).push((from, to));
    }

    /// Outages that are over, from and to.
    pub fn outages(&self) -> Vec<(Timestamp, Timestamp)> {
        self.outages.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the levels.
    pub fn change(&self, change: impl FnOnce(&mut Levels)) {
        change(&mut self.lock().0);
    }

    /// The sky clears, until somebody lets it storm again.
    pub fn clear(&self) {
        self.lock().0 = Levels { over: true, ..Levels::default() };
    }

    /// Whether the store is out of everybody's reach.
    pub fn is_out(&self) -> bool {
        self.lock().0.outage
    }

    /// Whether the storm is over.
    pub fn is_over(&self) -> bool {
        self.lock().0.over
    }

    /// Counts a fault that did something.
    pub fn count(&self, fault: Fault) {
        *self.lock().1.entry(fault).or_default() += 1;
    }

    /// What each fault did.
    pub fn counts(&self) -> BTreeMap<Fault, u64> {
        self.lock().1.clone()
    }

    /// When the rings that come of one ring arrive.
    pub(crate) fn ring(&self, sim: &Sim) -> Vec<Duration> {
        let mut guard = self.lock();
        let (levels, counts) = &mut *guard;
        let mut bite = |fault| *counts.entry(fault).or_default() += 1;
        if levels.bell_silent {
            bite(Fault::BellSilent);
            return Vec::new();
        }
        sim.draw(|rng| {
            if rng.permille(levels.bell_lost) {
                bite(Fault::BellLost);
                return Vec::new();
            }
            let mut rings = vec![rng.between(RING)];
            if rng.permille(levels.bell_late) {
                bite(Fault::BellLate);
                rings[0] += rng.between(ms(10)..ms(8_000));
                rings.push(rng.between(ms(1)..ms(12_000)));
            }
            rings
        })
    }

    fn fate(&self, node: NodeId, call: Call, rng: &mut Rng) -> (Duration, Fate) {
        let mut guard = self.lock();
        let (levels, counts) = &mut *guard;
        let mut bite = |fault| *counts.entry(fault).or_default() += 1;
        let delay = travel(levels, rng, &mut bite);
        if levels.outage || levels.cut.contains(&node) {
            bite(if levels.outage { Fault::Outage } else { Fault::Partition });
            // Refused at once, or only after a timeout of the driver.
            let wait = if rng.permille(500) { delay } else { rng.between(ms(100)..ms(3_000)) };
            return (wait, Fate::Unavailable);
        }
        if rng.permille(levels.unavailable) {
            bite(Fault::Unavailable);
            return (delay, Fate::Unavailable);
        }
        if call.writes && rng.permille(levels.answer_lost) {
            bite(Fault::AnswerLost);
            return (delay, Fate::AnswerLost);
        }
        if call.writes && rng.permille(levels.request_lost) {
            bite(Fault::RequestLost);
            return (delay, Fate::RequestLost);
        }
        (delay, Fate::Done)
    }
}

fn travel(levels: &Levels, rng: &mut Rng, bite: &mut impl FnMut(Fault)) -> Duration {
    if rng.permille(levels.latency) {
        bite(Fault::Latency);
        return rng.between(ms(20)..ms(4_000));
    }
    rng.between(Duration::from_micros(100)..ms(3))
}

/// One node's connection to the store.
pub struct Connection {
    /// The world.
    pub sim: Sim,
    /// What rages.
    pub weather: Arc<Weather>,
    /// Whose connection.
    pub node: NodeId,
}

impl Chaos for Connection {
    fn before(&self, call: Call) -> BoxFuture<'static, Fate> {
        let (wait, fate) = self.sim.draw(|rng| self.weather.fate(self.node, call, rng));
        let sleep = self.sim.sleep(wait);
        Box::pin(async move {
            sleep.await;
            fate
        })
    }

    fn after(&self, _call: Call) -> BoxFuture<'static, ()> {
        let mut guard = self.weather.lock();
        let (levels, counts) = &mut *guard;
        let mut bite = |fault| *counts.entry(fault).or_default() += 1;
        let wait = self.sim.draw(|rng| travel(levels, rng, &mut bite));
        self.sim.sleep(wait)
    }

    fn is_locked(&self, _entity: EntityId) -> bool {
        let mut guard = self.weather.lock();
        let locked = guard.0.busy > 0 && self.sim.draw(|rng| rng.permille(guard.0.busy));
        if locked {
            *guard.1.entry(Fault::Busy).or_default() += 1;
        }
        locked
    }

    fn keeps_moment(&self) -> bool {
        let level = self.weather.lock().0.stale;
        level > 0 && self.sim.draw(|rng| rng.permille(250))
    }

    fn looks_back(&self, call: Call) -> Duration {
        let mut guard = self.weather.lock();
        if guard.0.stale == 0 {
            return Duration::ZERO;
        }
        let back = self.sim.draw(|rng| {
            let stale = rng.permille(guard.0.stale);
            // What a claim or a delivery starts from can be long ago: it waited for locks since, and
            // each row is judged anew.
            let top = if matches!(call.name, "claim" | "outbox") { 8_000 } else { 1_000 };
            if stale { rng.between(ms(1)..ms(top)) } else { Duration::ZERO }
        });
        if !back.is_zero() {
            *guard.1.entry(Fault::StaleReads).or_default() += 1;
        }
        back
    }
}
