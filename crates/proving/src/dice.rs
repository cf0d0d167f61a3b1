//! What is drawn in a test follows from a seed, so that a failure can be played again.

use tenure_kernel::{
    ids::{CommitId, EntityId},
    time::Timestamp,
};

/// A generator of numbers. Splitmix64: eight lines, good enough to draw from, and the same on every machine for ever,
/// which no dependency promises.
#[derive(Clone, Debug)]
pub struct Dice(pub u64);

impl Dice {
    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The next number below `n`; zero for zero.
    pub fn below(&mut self, n: u64) -> u64 {
        self.draw() % n.max(1)
    }

    /// One of them.
    pub fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        let n = self.below(from.len() as u64);
        // Below the length of a slice, so it is an index.
        from.get(n as usize).cloned()
    }

    /// An id that nothing has.
    pub fn entity(&mut self, now: Timestamp) -> EntityId {
        let mut random = [0; 10];
        random[..8].copy_from_slice(&self.draw().to_be_bytes());
        EntityId::new(now, random)
    }

    /// A name for a commit.
    pub fn commit_id(&mut self) -> CommitId {
        CommitId::new(self.draw(), self.draw())
    }
}
