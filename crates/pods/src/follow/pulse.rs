//! How a follower is, for probes and metrics.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

/// Counted by the follower, read by whoever wants to know.
#[derive(Debug, Default)]
pub struct Pulse {
    heard_us: AtomicU64,
    synced: AtomicBool,
    lists: AtomicU64,
    watches: AtomicU64,
    silences: AtomicU64,
    expired: AtomicU64,
    troubles: AtomicU64,
    unreadable: AtomicU64,
    denied: AtomicBool,
    trouble: Mutex<Option<String>>,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $read:ident, $write:ident => $field:ident;)*) => {
        impl Pulse {
            $(
                $(#[$doc])*
                pub fn $read(&self) -> u64 {
                    self.$field.load(Ordering::Relaxed)
                }

                pub(super) fn $write(&self) {
                    self.$field.fetch_add(1, Ordering::Relaxed);
                }
            )*
        }
    };
}

counters! {
    /// Lists that were finished.
    lists, listed => lists;
    /// Watches that were opened.
    watches, opened => watches;
    /// Watches that were given up because they said nothing.
    silences, silent => silences;
    /// Answers of 410.
    expired, expired_again => expired;
    /// Requests that came to nothing, for any reason.
    troubles, failed => troubles;
    /// Objects that could not be read.
    unreadable, unread => unreadable;
}

impl Pulse {
    /// When something was last heard: an event, a bookmark, or a page of a list. On the clock of [`Runtime::mono`].
    ///
    /// [`Runtime::mono`]: tenure_kernel::runtime::Runtime::mono
    pub fn heard_at(&self) -> Option<Duration> {
        let us = self.heard_us.load(Ordering::Relaxed);
        (us > 0).then(|| Duration::from_micros(us))
    }

    /// Whether a list was ever finished.
    pub fn is_synced(&self) -> bool {
        self.synced.load(Ordering::Relaxed)
    }

    /// What is wrong, while something is.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether it is that this account may not do it: nothing will change before somebody gives it the right.
    pub fn is_denied(&self) -> bool {
        self.denied.load(Ordering::Relaxed)
    }

    pub(super) fn deny(&self, denied: bool) {
        self.denied.store(denied, Ordering::Relaxed);
    }

    pub(super) fn heard(&self, at: Duration) {
        let us = u64::try_from(at.as_micros()).unwrap_or(u64::MAX).max(1);
        self.heard_us.store(us, Ordering::Relaxed);
    }

    pub(super) fn sync(&self) {
        self.synced.store(true, Ordering::Relaxed);
    }

    /// Notes what is wrong; whether it is something else than before.
    pub(super) fn note(&self, trouble: Option<String>) -> bool {
        let mut last = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        let differs = *last != trouble;
        *last = trouble;
        differs
    }
}
