//! The one source of chance: dice that are the same on every machine for ever, and what faults are drawn as.

use std::{ops::Range, time::Duration};
use tenure_proving::dice::Dice;

/// A stream of numbers that a seed decides.
#[derive(Clone, Debug)]
pub struct Rng(Dice);

impl Rng {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng(Dice(seed ^ 0x7e_4e_75_2e));
        rng.word();
        rng
    }

    /// The next word.
    pub fn word(&mut self) -> u64 {
        self.0.draw()
    }

    /// Below `n`; zero for zero.
    pub fn below(&mut self, n: u64) -> u64 {
        // The bias of a 128-bit product is far below anything a test could see.
        ((u128::from(self.word()) * u128::from(n)) >> 64) as u64
    }

    /// An index into something of this length.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// True so often in a thousand.
    pub fn permille(&mut self, p: u32) -> bool {
        p > 0 && self.below(1_000) < u64::from(p)
    }

    /// A duration in a range, to the microsecond.
    pub fn between(&mut self, range: Range<Duration>) -> Duration {
        let (from, to) = (range.start.as_micros() as u64, range.end.as_micros() as u64);
        Duration::from_micros(from + self.below(to.saturating_sub(from)))
    }

    /// Another stream, independent of what this one gives later.
    pub fn fork(&mut self) -> Rng {
        Rng::new(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers_and_ranges_hold() {
        let (mut a, mut b) = (Rng::new(7), Rng::new(7));
        for _ in 0..1_000 {
            assert_eq!(a.word(), b.word());
            assert!(a.below(10) < 10 && b.below(10) < 10);
        }
        assert_eq!(a.below(0), 0);
        assert_ne!(Rng::new(1).word(), Rng::new(2).word());
    }
}
