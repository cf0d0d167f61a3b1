//! The global feed: every record of a store, in an order that never shows a gap. It is read below the
//! store's transaction horizon (a plain sequence number is handed out before the commit, so a reader
//! that trusts it walks past rows that appear later). A cursor names the store's incarnation; one from
//! another store, or below the retention floor, gets a typed [`Lost`].

use crate::stream::Record;
use std::{fmt, str::FromStr};

/// A position in the feed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub struct Cursor {
    /// Which life of which store.
    pub incarnation: u64,
    /// The transaction (Postgres), or zero.
    pub transaction: u64,
    /// The row within it.
    pub row: u64,
}

impl Cursor {
    /// Before everything that a store still has.
    pub const START: Cursor = Cursor { incarnation: 0, transaction: 0, row: 0 };
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:x}-{:x}", self.incarnation, self.transaction, self.row)
    }
}

/// The text is not a cursor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a feed cursor; pass one back exactly as the feed gave it, or none to start over"
)]
pub struct BadCursor(pub String);

impl FromStr for Cursor {
    type Err = BadCursor;
    fn from_str(s: &str) -> Result<Self, BadCursor> {
        let mut parts = s.split('-').map(|p| u64::from_str_radix(p, 16));
        let mut next = || parts.next().and_then(Result::ok).ok_or_else(|| BadCursor(s.to_owned()));
        let cursor = Cursor { incarnation: next()?, transaction: next()?, row: next()? };
        if parts.next().is_some() { Err(BadCursor(s.to_owned())) } else { Ok(cursor) }
    }
}

/// A stretch of the feed.
#[derive(Clone, Debug)]
pub struct FeedPage {
    /// Records with the cursor after each.
    pub items: Vec<(Cursor, Record)>,
    /// Where to go on; equal to the request's cursor if nothing new is below the horizon.
    pub next: Cursor,
}

/// The feed can not be continued from a cursor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// The store was restored or replaced.
    #[error(
        "this cursor belongs to another life of the store; read the current state and start anew from {restart}"
    )]
    OtherIncarnation {
        /// The oldest position there is.
        restart: Cursor,
    },
    /// Retention has removed records after this cursor.
    #[error(
        "records after this cursor are gone by retention; read the current state and start anew from {restart}"
    )]
    BelowFloor {
        /// The oldest position there is.
        restart: Cursor,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_round_trip_as_text_and_nonsense_is_refused() {
        let cursor = Cursor { incarnation: 0xfeed, transaction: 12, row: u64::MAX };
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        for bad in ["", "1-2", "1-2-3-4", "x-y-z", "-1-2-3"] {
            assert!(bad.parse::<Cursor>().is_err(), "{bad}");
        }
    }
}
