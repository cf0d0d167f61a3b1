//! Workers that were lost over one piece of work. Work that kills its workers is stopped after a bound that no retry
//! setting raises; work that goes on between two losses is not at fault.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use tenure_kernel::time::Timestamp;

/// The time in which losses are also counted when steps end between them.
pub const WINDOW: Duration = Duration::from_secs(3_600);
/// How many times as many losses as in a row are allowed within [`WINDOW`].
pub const WINDOW_TIMES: u32 = 3;

/// Lost workers, counted twice: in a row without a step that ended, and within an hour.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Losses {
    /// Since the last end of a step.
    #[serde(rename = "n")]
    pub in_a_row: u32,
    /// Steps that had ended at the last loss.
    #[serde(rename = "s")]
    steps: u32,
    /// Since `since`.
    #[serde(rename = "w")]
    in_window: u32,
    /// Where the window begins: a loss that comes later than [`WINDOW`] begins another.
    #[serde(rename = "f")]
    since: Timestamp,
}

impl Losses {
    /// What an earlier version has counted without a word about progress.
    pub fn counted(in_a_row: u32, steps: u32) -> Self {
        Losses { in_a_row, steps, ..Losses::default() }
    }

    /// With one more, after `steps` steps have ended in all.
    #[must_use]
    pub fn and_one(&self, steps: u32, now: Timestamp) -> Self {
        let in_a_row = if steps == self.steps { self.in_a_row } else { 0 };
        let inside = self.in_window > 0 && now.since(self.since) < WINDOW;
        Losses {
            in_a_row: in_a_row.saturating_add(1),
            steps,
            in_window: if inside { self.in_window.saturating_add(1) } else { 1 },
            since: if inside { self.since } else { now },
        }
    }

    /// Why nobody else should be lost over this, where `max` may be lost in a row.
    pub fn too_many(&self, max: u32) -> Option<String> {
        let (row, window) = (self.in_a_row, self.in_window);
        if row > max {
            return Some(format!("{row} workers were lost in a row while they ran it"));
        }
        let most = max.saturating_add(1).saturating_mul(WINDOW_TIMES);
        (window > most)
            .then(|| format!("{window} workers were lost within an hour while they ran it"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u32 = 5;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_secs(1_000_000 + seconds)
    }

    /// How many losses it takes, each after so many seconds and so many more steps.
    fn until_stopped(seconds: u64, steps: u32, tries: u32) -> Option<u32> {
        let mut losses = Losses::default();
        (1..=tries).find(|n| {
            losses = losses.and_one(n * steps, at(u64::from(*n) * seconds));
            losses.too_many(MAX).is_some()
        })
    }

    #[test]
    fn losses_without_progress_are_bounded() {
        assert_eq!(until_stopped(1, 0, 50), Some(MAX + 1));
        assert_eq!(until_stopped(86_400, 0, 50), Some(MAX + 1), "however far apart");
    }

    #[test]
    fn progress_makes_room_but_not_for_a_loss_at_every_step() {
        assert_eq!(until_stopped(86_400, 1, 1_000), None, "one worker a day, a thousand steps");
        assert_eq!(until_stopped(600, 1, 1_000), None, "six an hour");
        assert_eq!(until_stopped(2, 1, 1_000), Some((MAX + 1) * WINDOW_TIMES + 1));
    }

    #[test]
    fn none_may_be_lost_where_none_may() {
        assert!(Losses::default().and_one(0, at(0)).too_many(0).is_some());
        assert!(Losses::counted(5, 3).and_one(3, at(0)).too_many(MAX).is_some());
        assert!(Losses::counted(5, 3).and_one(4, at(0)).too_many(MAX).is_none());
    }
}
