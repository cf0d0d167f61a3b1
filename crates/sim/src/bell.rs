//! A bell that loses, delays, repeats and reorders, as the weather says. Correctness may not depend
//! on it (law 5), so every run has some of this, and some runs have no bell at all.

use crate::{executor::Sim, weather::Weather};
use std::{
    collections::BTreeMap,
    future::poll_fn,
    sync::{Arc, Mutex, PoisonError, Weak},
    task::{Poll, Waker},
    time::Duration,
};
use tenure_kernel::{
    bell::{Bell, Ear, Topic},
    runtime::BoxFuture,
};

/// Who listens to what; an ear that is dropped is forgotten at the next ring.
type Ears = BTreeMap<Topic, Vec<Weak<Mutex<Heard>>>>;

/// One bell of the whole world.
#[derive(Clone)]
pub struct SimBell {
    sim: Sim,
    weather: Arc<Weather>,
    ears: Arc<Mutex<Ears>>,
}

#[derive(Default)]
struct Heard {
    rung: bool,
    waker: Option<Waker>,
}

struct SimEar(Arc<Mutex<Heard>>);

fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SimBell {
    /// A bell under this weather.
    pub fn new(sim: Sim, weather: Arc<Weather>) -> Self {
        SimBell { sim, weather, ears: Arc::default() }
    }
}

impl Bell for SimBell {
    fn ring(&self, topic: Topic) {
        let mut ears = lock(&self.ears);
        let Some(listening) = ears.get_mut(&topic) else { return };
        listening.retain(|e| e.strong_count() > 0);
        for ear in listening.iter() {
            for delay in self.weather.ring(&self.sim) {
                let ear = ear.clone();
                self.sim.after(delay, move || hear(&ear));
            }
        }
    }

    fn listen(&self, topic: Topic) -> Box<dyn Ear> {
        let heard = Arc::new(Mutex::new(Heard::default()));
        lock(&self.ears).entry(topic).or_default().push(Arc::downgrade(&heard));
        Box::new(SimEar(heard))
    }
}

fn hear(ear: &Weak<Mutex<Heard>>) {
    let Some(ear) = ear.upgrade() else { return };
    let waker = {
        let mut heard = lock(&ear);
        heard.rung = true;
        heard.waker.take()
    };
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl Ear for SimEar {
    fn heard(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(poll_fn(|cx| {
            let mut heard = lock(&self.0);
            if std::mem::take(&mut heard.rung) {
                return Poll::Ready(());
            }
            heard.waker = Some(cx.waker().clone());
            Poll::Pending
        }))
    }
}

/// The ordinary delay of a ring.
pub const RING: std::ops::Range<Duration> = Duration::from_micros(50)..Duration::from_millis(3);
