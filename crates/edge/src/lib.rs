//! The process edge: the one place that reads a clock, draws a random number, or starts a task. All
//! other crates get these as parameters (law 7), so all other crates run in the simulation.

mod executor;
mod vitals;

pub use executor::{executor_of_this_process, is_known_dead};
pub use vitals::vitals;

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};
use tenure_kernel::{
    runtime::{BoxFuture, Clock, Runtime},
    time::Timestamp,
};

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
}
