//! What time it is in the cluster: the machine's time, a time that the test has set, or one shifted.

use jiff::{SignedDuration, Timestamp};
use std::time::Duration;

/// The cluster's clock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    stopped_at: Option<Timestamp>,
    ahead: SignedDuration,
}

impl Clock {
    pub(crate) fn now(&self) -> Timestamp {
        let base = self.stopped_at.unwrap_or_else(Timestamp::now);
        base.checked_add(self.ahead).unwrap_or(base)
    }

    /// Stops it.
    pub(crate) fn stop_at(&mut self, at: Timestamp) {
        *self = Clock { stopped_at: Some(at), ahead: SignedDuration::ZERO };
    }

    /// Sets it forward.
    pub(crate) fn advance(&mut self, by: Duration) {
        self.ahead += SignedDuration::try_from(by).unwrap_or(SignedDuration::ZERO);
    }

    /// Now, as objects say it: whole seconds.
    pub(crate) fn now_text(&self) -> String {
        text(self.now())
    }

    /// In some seconds from now.
    pub(crate) fn later_text(&self, seconds: i64) -> String {
        let now = self.now();
        text(now.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(now))
    }

    /// Some seconds after (or before) a time that an object says.
    pub(crate) fn shift_text(&self, at: &str, seconds: i64) -> String {
        let at = at.parse::<Timestamp>().unwrap_or_else(|_| self.now());
        text(at.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(at))
    }
}

fn text(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
