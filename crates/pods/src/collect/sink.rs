//! Whoever is told.

use super::{Owed, SinkId};
use std::time::Duration;
use tenure_kernel::runtime::BoxFuture;

/// What became of a batch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sent {
    /// So many from its beginning are settled: taken, or refused for good.
    pub settled: usize,
    /// Those of them that were refused for good: their place in the batch, and why.
    pub refused: Vec<(usize, String)>,
    /// Why the rest was not taken, if there is a rest.
    pub trouble: Option<String>,
    /// How long the other side wants to be left alone.
    pub after: Option<Duration>,
}

impl Sent {
    /// All of it was taken.
    pub fn all(batch: &[Owed]) -> Self {
        Sent { settled: batch.len(), ..Sent::default() }
    }

    /// None of it was.
    pub fn none(why: String) -> Self {
        Sent { trouble: Some(why), ..Sent::default() }
    }
}

/// Takes reports, in order. What it has not settled comes again, so everything may come twice, under the same key.
pub trait Sink: Send + Sync {
    /// Which one it is.
    fn id(&self) -> SinkId;

    /// The most that it wants at once.
    fn batch(&self) -> usize {
        256
    }

    /// Takes a batch.
    fn send<'a>(&'a self, batch: &'a [Owed]) -> BoxFuture<'a, Sent>;
}
