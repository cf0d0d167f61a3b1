//! View time in ticks of 8 ms. The tree keeps four bytes of time for each entry, so everything that is compared with
//! an entry is in ticks. An interval is rounded outwards: its begin down, its end up.

use std::time::Duration;
use tenure_kernel::time::Timestamp;

/// The length of a tick.
pub const TICK_MICROS: u64 = 8_000;

/// A moment of view time (the time of the store, as the holder of a source continues it), in ticks since 1970.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Tick(pub u64);

impl Tick {
    /// Before everything.
    pub const ZERO: Tick = Tick(0);

    /// The tick in which `at` lies.
    pub fn floor(at: Timestamp) -> Tick {
        Tick(u64::try_from(at.as_micros()).unwrap_or(0) / TICK_MICROS)
    }

    /// The first tick that does not begin before `at`.
    pub fn ceil(at: Timestamp) -> Tick {
        Tick(u64::try_from(at.as_micros()).unwrap_or(0).div_ceil(TICK_MICROS))
    }

    /// The begin of the tick.
    pub fn start(self) -> Timestamp {
        Timestamp::from_micros(
            i64::try_from(self.0.saturating_mul(TICK_MICROS)).unwrap_or(i64::MAX),
        )
    }

    /// This moment and `ticks` more.
    pub fn plus(self, ticks: u64) -> Tick {
        Tick(self.0.saturating_add(ticks))
    }

    /// This moment less `ticks`; not before zero.
    pub fn minus(self, ticks: u64) -> Tick {
        Tick(self.0.saturating_sub(ticks))
    }

    /// Ticks since `earlier`; zero if it is not earlier.
    pub fn since(self, earlier: Tick) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Whole ticks that cover `duration`.
pub const fn ticks(duration: Duration) -> u64 {
    (duration.as_micros() as u64).div_ceil(TICK_MICROS)
}

/// Whole ticks that cover this many seconds.
pub const fn seconds(seconds: u64) -> u64 {
    seconds * 1_000_000 / TICK_MICROS
}

/// When something was observed: it was true at some moment from `begin` to `end`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Interval {
    /// Taken before the first system call.
    pub begin: Tick,
    /// Taken after the last one.
    pub end: Tick,
}

impl Interval {
    /// From `begin` to `end`.
    pub fn new(begin: Tick, end: Tick) -> Interval {
        Interval { begin, end: end.max(begin) }
    }

    /// The same interval, longer by `ticks` on both sides.
    pub fn widened(self, ticks: u64) -> Interval {
        Interval { begin: self.begin.minus(ticks), end: self.end.plus(ticks) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_rounded_outwards() {
        let at = Timestamp::from_micros(16_001);
        assert_eq!(Tick::floor(at), Tick(2));
        assert_eq!(Tick::ceil(at), Tick(3));
        assert!(Tick::floor(at).start() <= at && at <= Tick::ceil(at).start());
        assert_eq!(Tick::floor(Timestamp::from_micros(-5)), Tick::ZERO);
        assert_eq!(ticks(Duration::from_micros(1)), 1);
        assert_eq!(seconds(2), 250);
    }
}
