//! The process edge: the one place that reads a clock, draws a random number, or starts a task. All
//! other crates get these as parameters (law 7), so all other crates run in the simulation.

mod executor;
mod files;
mod vitals;

pub use executor::{executor_of_this_process, is_known_dead, is_known_dead_in_this_boot};
pub use files::raise_file_limit;
pub use vitals::vitals;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};
use tenure_kernel::{
    runtime::{BoxFuture, Clock, Runtime},
    time::Timestamp,
};
use tokio::sync::Semaphore;

/// How many pieces of work compute at once. The pool of blocking threads is large; the cores are few, and the threads that
/// serve requests need them too.
static COMPUTING: Semaphore = Semaphore::const_new(2);

/// The one place of each tenant that computes, or waits to: [`COMPUTING`] has more places than a tenant.
static OF_TENANT: Mutex<BTreeMap<String, Arc<Semaphore>>> = Mutex::new(BTreeMap::new());

fn place_of(tenant: &str) -> Arc<Semaphore> {
    // Nothing panics under this lock.
    let mut places = OF_TENANT.lock().unwrap_or_else(PoisonError::into_inner);
    if !places.contains_key(tenant) {
        // Who computes or waits has a share of the place, which is removed when nobody has.
        places.retain(|_, place| Arc::strong_count(place) > 1);
    }
    let place = places.entry(tenant.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(1)));
    place.clone()
}

/// By how much the clock of this process is wrong, in microseconds.
static WRONG_BY: AtomicI64 = AtomicI64::new(0);

/// Sets the wall clock of this process wrong by so many seconds. For drills: the clock of a machine is not theirs to set.
pub fn set_clock_wrong_by(seconds: i64) {
    WRONG_BY.store(seconds.saturating_mul(1_000_000), Ordering::SeqCst);
}

/// The operating system's wall clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the process edge")]
    fn now(&self) -> Timestamp {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let micros = since.map(|d| i64::try_from(d.as_micros()).unwrap_or(i64::MAX)).unwrap_or(0);
        Timestamp::from_micros(micros.saturating_add(WRONG_BY.load(Ordering::Relaxed)))
    }
}

/// Tokio's timers and tasks, and a clock that goes on while the machine sleeps: a worker on a laptop
/// that was closed for an hour must know that its lease is an hour old.
#[derive(Clone, Debug)]
pub struct TokioRuntime(tokio::runtime::Handle);

impl TokioRuntime {
    /// The runtime of the calling task.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn current() -> Self {
        Self(tokio::runtime::Handle::current())
    }
}

impl Runtime for TokioRuntime {
    fn mono(&self) -> Duration {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let secs = u64::try_from(t.tv_sec).unwrap_or(0);
        Duration::new(secs, u32::try_from(t.tv_nsec).unwrap_or(0))
    }

    fn sleep(&self, d: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(d))
    }

    fn spawn(&self, future: BoxFuture<'static, ()>) {
        self.0.spawn(future);
    }

    fn random(&self) -> u64 {
        rand::random()
    }

    fn compute(&self, tenant: &str, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
        let handle = self.0.clone();
        let own = (!tenant.is_empty()).then(|| place_of(tenant));
        Box::pin(async move {
            // Closed by nobody; without a permit the work would only have more company.
            let own = match own {
                Some(own) => own.acquire_owned().await.ok(),
                None => None,
            };
            let permit = COMPUTING.acquire().await;
            // Dropping the handle does not end the work, and the permit is returned when the work ends.
            let _ = handle
                .spawn_blocking(move || {
                    work();
                    drop((permit, own));
                })
                .await;
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn one_tenant_does_not_have_all_places_to_compute() {
        let tokio = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        tokio.block_on(async {
            let rt = TokioRuntime::current();
            let (begun, begins) = mpsc::channel();
            let mut ends = Vec::new();
            for n in 0..3 {
                let (end, ended) = mpsc::channel::<()>();
                let begun = begun.clone();
                let work = move || {
                    begun.send(n).unwrap();
                    ended.recv().unwrap();
                };
                rt.spawn(rt.compute("acme", Box::new(work)));
                ends.push(end);
            }
            let first = tokio::task::spawn_blocking(move || (begins.recv().unwrap(), begins));
            let (_, begins) = first.await.unwrap();
            // The tenant computes, and has more to compute. Others have the second place.
            for tenant in ["globex", "", "globex"] {
                rt.compute(tenant, Box::new(|| {})).await;
            }
            assert!(begins.try_recv().is_err(), "its second waits for its first");
            ends.iter().for_each(|end| end.send(()).unwrap());
            let all = tokio::task::spawn_blocking(move || begins.recv().and(begins.recv()));
            all.await.unwrap().unwrap();
            let places = OF_TENANT.lock().unwrap().len();
            assert!(places <= 2, "{places}");
        });
    }
}
