//! Counting rows, for the stores that do it row by row.

use std::collections::BTreeMap;
use tenure_kernel::{
    health::{COUNTED_MAX, OpenCount, OutboxCount},
    time::Timestamp,
};

/// Open entities by kind and status.
#[derive(Default)]
pub(crate) struct Open {
    seen: usize,
    counts: BTreeMap<(String, String), (u64, Timestamp)>,
}

impl Open {
    pub(crate) fn add(&mut self, kind: &str, status: &str, is_open: bool, changed_at: Timestamp) {
        self.seen += 1;
        if is_open {
            let (count, oldest) = self
                .counts
                .entry((kind.to_owned(), status.to_owned()))
                .or_insert((0, Timestamp::MAX));
            *count += 1;
            *oldest = changed_at.min(*oldest);
        }
    }

    /// The counts, and whether there was nothing more to count.
    pub(crate) fn done(self) -> (Vec<OpenCount>, bool) {
        let count = |((kind, status), (count, oldest_change))| OpenCount {
            kind,
            status,
            count,
            oldest_change,
        };
        (self.counts.into_iter().map(count).collect(), self.seen < COUNTED_MAX)
    }
}

/// Messages by lane.
#[derive(Default)]
pub(crate) struct Outbox(BTreeMap<(bool, u16), (u64, Timestamp)>);

impl Outbox {
    pub(crate) fn add(&mut self, lane: u16, wire: bool, at: Timestamp) {
        let (count, oldest) = self.0.entry((wire, lane)).or_insert((0, Timestamp::MAX));
        *count += 1;
        *oldest = at.min(*oldest);
    }

    pub(crate) fn done(self) -> Vec<OutboxCount> {
        let count = |((wire, lane), (count, oldest))| OutboxCount { lane, wire, count, oldest };
        self.0.into_iter().map(count).collect()
    }
}
