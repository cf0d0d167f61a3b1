//! How far the storage's clock is from view time. Only files that were written just now can tell; without them it is
//! unknown, which is not zero.

use crate::time::{Tick, seconds};
use std::collections::VecDeque;

const SAMPLES: usize = 64;
const SAMPLES_NEEDED: usize = 8;
const WINDOW: u64 = seconds(600);
const SPREAD_MAX_NANOS: i64 = 2_000_000_000;
/// While the drift is unknown, a file counts as hot if the storage's clock could be wrong by this much. Without a bound
/// every file of a first snapshot would be suspect, and the sentinel would look at the whole tree every five minutes.
pub const UNKNOWN_BOUND_NANOS: i64 = 24 * 3_600 * 1_000_000_000;

/// Storage time minus view time, as the last closes of written files show it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    samples: VecDeque<(Tick, i64)>,
    known: Option<i64>,
}

impl Drift {
    /// What a snapshot of a tree keeps.
    pub(crate) fn parts(&self) -> (Vec<(Tick, i64)>, Option<i64>) {
        (self.samples.iter().copied().collect(), self.known)
    }

    /// The same, read.
    pub(crate) fn from_parts(samples: Vec<(Tick, i64)>, known: Option<i64>) -> Drift {
        Drift { samples: samples.into(), known }
    }

    /// A file was closed by its writer at `at`, and its last change has this ctime.
    pub fn sample(&mut self, at: Tick, ctime: i64) {
        let view = at.start().as_micros().saturating_mul(1_000);
        self.samples.push_back((at, ctime.saturating_sub(view)));
        if self.samples.len() > SAMPLES {
            self.samples.pop_front();
        }
        while self.samples.front().is_some_and(|(first, _)| at.since(*first) > WINDOW) {
            self.samples.pop_front();
        }
        let mut sorted: Vec<i64> = self.samples.iter().map(|(_, drift)| *drift).collect();
        sorted.sort_unstable();
        if let [first, .., last] = sorted[..]
            && sorted.len() >= SAMPLES_NEEDED
            && last.saturating_sub(first) < SPREAD_MAX_NANOS
        {
            self.known = Some(sorted[sorted.len() / 2]);
        }
    }

    /// Nanoseconds, if enough samples agreed.
    pub fn known(&self) -> Option<i64> {
        self.known
    }

    /// Whether a file with this last change (the later of mtime and ctime) may still be written to at `now`.
    pub fn is_hot(&self, changed: i64, now: Tick, threshold: u64) -> bool {
        let now = now.start().as_micros().saturating_mul(1_000);
        let threshold = i64::try_from(threshold.saturating_mul(8_000_000)).unwrap_or(i64::MAX);
        match self.known {
            Some(drift) => now.saturating_sub(changed.saturating_sub(drift)) < threshold,
            None => now.saturating_sub(changed) < threshold.saturating_add(UNKNOWN_BOUND_NANOS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nanos(at: Tick) -> i64 {
        at.start().as_micros() * 1_000
    }

    #[test]
    fn defect_11_hole_6_drift_of_quiet_storage_is_unknown_and_not_its_idle_time() {
        let mut drift = Drift::default();
        let now = Tick(200_000_000_000);
        assert_eq!(drift.known(), None);
        let hour = 3_600_000_000_000;
        assert!(drift.is_hot(nanos(now) - hour, now, seconds(30)), "unknown means suspect");
        for i in 0..8 {
            drift.sample(now.plus(i), nanos(now.plus(i)) - 2 * hour);
        }
        assert_eq!(drift.known(), Some(-2 * hour));
        assert!(
            drift.is_hot(nanos(now) - 2 * hour, now, seconds(30)),
            "two hours slow, written now"
        );
        assert!(!drift.is_hot(nanos(now) - 3 * hour, now, seconds(30)));
    }

    #[test]
    fn samples_that_disagree_say_nothing() {
        let mut drift = Drift::default();
        let now = Tick(200_000_000_000);
        for i in 0..20 {
            drift.sample(now, nanos(now) + i * 1_000_000_000);
        }
        assert_eq!(drift.known(), None);
        for i in 0..8 {
            drift.sample(now.plus(seconds(700) + i), nanos(now.plus(seconds(700) + i)) + 5);
        }
        assert_eq!(drift.known(), Some(5), "old samples are forgotten");
    }
}
