//! What shells may ask of the world. The process edge answers with the real clock and a thread pool;
//! the simulation with virtual time and a seeded scheduler. Shells use nothing else: no raw spawn,
//! timer or select.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::Poll,
    time::Duration,
};

/// A future on the heap.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The world, as far as shells see it.
pub trait Runtime: Send + Sync {
    /// Time since an arbitrary start on a clock that counts suspend time and never runs backwards.
    fn mono(&self) -> Duration;
    /// Completes after `d`.
    fn sleep(&self, d: Duration) -> BoxFuture<'static, ()>;
    /// Runs a future to its end beside the caller.
    fn spawn(&self, future: BoxFuture<'static, ()>);
    /// A random word.
    fn random(&self) -> u64;
    /// Runs work that computes for long and waits for nothing, beside the threads that serve others. It cannot be
    /// cancelled. Work of one tenant waits for earlier work of the same, so that no tenant has all threads; work of nobody (an
    /// empty name) does not. A runtime with one thread, as the simulation's, runs it at once.
    fn compute(&self, tenant: &str, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
        let _ = tenant;
        Box::pin(async move { work() })
    }
}

/// The wall clock that an embedded store calls its time.
pub trait Clock: Send + Sync {
    /// Now.
    fn now(&self) -> crate::time::Timestamp;
}

/// A shared runtime.
pub type Rt = Arc<dyn Runtime>;

/// Runs `work` with [`Runtime::compute`]; `None` if it has not ended by the deadline. Then it still runs: only the caller
/// stops waiting.
pub async fn compute<T: Send + 'static>(
    rt: &Rt,
    tenant: &str,
    deadline: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let slot = Arc::new(Mutex::new(None));
    let filled = slot.clone();
    let run = Box::new(move || {
        let done = work();
        *filled.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
    });
    first(rt.compute(tenant, run), rt.sleep(deadline)).await;
    slot.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Which of two futures finished first.
#[derive(Debug, PartialEq, Eq)]
pub enum First<A, B> {
    /// The first argument.
    Left(A),
    /// The second argument.
    Right(B),
}

/// Waits for the first of two futures; the left one wins a tie, so that a simulation is exact. The
/// loser is dropped.
pub async fn first<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> First<A, B> {
    let mut a = std::pin::pin!(a);
    let mut b = std::pin::pin!(b);
    std::future::poll_fn(move |cx| {
        if let Poll::Ready(v) = a.as_mut().poll(cx) {
            return Poll::Ready(First::Left(v));
        }
        b.as_mut().poll(cx).map(First::Right)
    })
    .await
}
