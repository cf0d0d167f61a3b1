//! What shells may ask of the world. The process edge answers with the real clock and a thread pool;
//! the simulation with virtual time and a seeded scheduler. Shells use nothing else: no raw spawn,
//! timer or select.

use std::{future::Future, pin::Pin, sync::Arc, task::Poll, time::Duration};

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
}

/// The wall clock that an embedded store calls its time.
pub trait Clock: Send + Sync {
    /// Now.
    fn now(&self) -> crate::time::Timestamp;
}

/// A shared runtime.
pub type Rt = Arc<dyn Runtime>;

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
