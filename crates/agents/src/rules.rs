//! The rules by which the silence of somebody has consequences for a turn.
//!
//! A turn carries its times with it, as they were when it was sent: deciding needs nothing but its head. Each rule
//! has a timer of its own, so none can put off another; switched off (`0`), it leaves `must_end_by`. After an outage those
//! that judge silence wait for one lease ([`judges`]), once for all of them.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use tenure_engine::config::TimerRule;
use tenure_kernel::rules::Rule;

/// The times of the rules, in milliseconds; `0` switches one off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rules {
    /// A worker that has claimed and commits nothing.
    pub inbox_processing_ms: u64,
    /// A tool that does not answer, unless it has a longer time of its own.
    pub suspend_ms: u64,
    /// A worker that has claimed a resumed turn and does not go on with it.
    pub resume_lease_ms: u64,
    /// Such workers after which the turn fails.
    pub resume_attempts_max: u32,
    /// A dispatched turn that nobody takes is rung for again.
    pub dispatched_retry_ms: u64,
    /// A dispatched turn that nobody takes ends.
    pub dispatched_timeout_ms: u64,
    /// A running turn without progress ends. Never off.
    pub active_reap_ms: u64,
    /// A turn that waits for a worker is rung for, with backoff.
    pub pending_wakeup_ms: u64,
    /// A turn that waits and has no channel is skipped.
    pub pending_skip_ms: u64,
    /// Lost workers after which the turn fails.
    pub takeovers_max: u32,
    /// The longest that a look takes with every bell silent.
    pub tick_ms: u64,
}

impl Default for Rules {
    fn default() -> Self {
        Rules {
            inbox_processing_ms: 300_000,
            suspend_ms: 30_000,
            resume_lease_ms: 10_000,
            resume_attempts_max: 3,
            dispatched_retry_ms: 10_000,
            dispatched_timeout_ms: 30_000,
            active_reap_ms: 300_000,
            pending_wakeup_ms: 5_000,
            pending_skip_ms: 300_000,
            takeovers_max: 5,
            tick_ms: 5_000,
        }
    }
}

impl Rules {
    /// With the one rule on that is never off: without it a worker that hangs and renews would keep a turn for a day.
    pub fn sound(mut self) -> Self {
        if self.active_reap_ms == 0 {
            self.active_reap_ms = Rules::default().active_reap_ms;
        }
        self
    }
}

/// A time of a rule; `None` where it is off.
pub fn on(ms: u64) -> Option<Duration> {
    (ms > 0).then(|| Duration::from_millis(ms))
}

/// The longest pause between two rings for the same turn.
pub const RING_PAUSE_MAX: Duration = Duration::from_secs(60);
/// How often an agent asks whether its active turn is still there.
pub const STILL_THERE_EVERY: Duration = Duration::from_secs(15 * 60);
/// A turn that is over and has not said so is asked for once more after this.
pub const MISSED_AGAIN: Duration = Duration::from_secs(60);
/// A turn ends by then, unless it is sent with another bound.
pub const MUST_END_IN: Duration = Duration::from_secs(24 * 3_600);

/// The names of the timers, which are the names of the rules in records and counters.
pub mod timer {
    /// A worker has claimed a turn and commits nothing.
    pub const PROCESSING: &str = "inbox_processing";
    /// A tool does not answer: one per wait, this and the number of the wait.
    pub const WAIT: &str = "wait/";
    /// A worker has taken a resumed turn and does not go on with it.
    pub const RESUME: &str = "resume_lease";
    /// Nobody takes a dispatched turn: it is rung for again.
    pub const RETRY: &str = "dispatched_retry";
    /// Nobody takes a dispatched turn: it ends.
    pub const DISPATCHED: &str = "dispatched_timeout";
    /// A running turn makes no progress.
    pub const REAP: &str = "active_reap";
    /// A turn waits for a worker: it is rung for.
    pub const WAKEUP: &str = "pending_wakeup";
    /// A turn waits for a worker and has no channel.
    pub const SKIP: &str = "missing_channel";
    /// An agent looks whether its active turn is there.
    pub const STILL_THERE: &str = "still_there";
}

/// Whether a timer judges the silence of a worker or a tool. Those that only ring do not: a ring more is welcome after an
/// outage.
pub fn judges(timer: &str) -> bool {
    let judging = [timer::PROCESSING, timer::RESUME, timer::DISPATCHED, timer::REAP, timer::SKIP];
    judging.contains(&timer) || timer.starts_with(timer::WAIT)
}

/// What the timers of turns and agents are counted as.
pub static TIMERS: &[TimerRule] = &[
    of_turns(timer::PROCESSING, timer::PROCESSING),
    of_turns(timer::WAIT, "tool_timeout"),
    of_turns(timer::RESUME, timer::RESUME),
    of_turns(timer::RETRY, timer::RETRY),
    of_turns(timer::DISPATCHED, timer::DISPATCHED),
    of_turns(timer::REAP, timer::REAP),
    of_turns(timer::WAKEUP, timer::WAKEUP),
    of_turns(timer::SKIP, timer::SKIP),
    TimerRule { kind: "agent", timer: timer::STILL_THERE, rule: timer::STILL_THERE },
];

const fn of_turns(timer: &'static str, rule: &'static str) -> TimerRule {
    TimerRule { kind: "turn", timer, rule }
}

/// The rows of `tenure rules`.
pub static TABLE: &[Rule] = &[
    Rule {
        name: timer::PROCESSING,
        state: "running, its worker has claimed it and commits nothing",
        key: Some("worker.inbox_processing_timeout_seconds"),
        default_ms: Some(300_000),
        action: "the tenure ends, its items are pending again, the bell rings",
    },
    Rule {
        name: "tool_timeout",
        state: "suspended, a tool has not answered",
        key: Some("worker.suspend_timeout_seconds"),
        default_ms: Some(30_000),
        action: "a timeout report into the inbox, built from the wait; the last one resumes the turn",
    },
    Rule {
        name: timer::RESUME,
        state: "resumed, claimed, and not gone on with",
        key: Some("worker.watchdog_interval_seconds"),
        default_ms: Some(10_000),
        action: "resumed again; after worker.resume_attempts_max it ends: failed, resume_retry_exhausted",
    },
    Rule {
        name: timer::RETRY,
        state: "dispatched",
        key: Some("pmo.dispatched_retry_seconds"),
        default_ms: Some(10_000),
        action: "ring again; the one item stays the one item",
    },
    Rule {
        name: timer::DISPATCHED,
        state: "dispatched",
        key: Some("pmo.dispatched_timeout_seconds"),
        default_ms: Some(30_000),
        action: "end: timeout, dispatch_timeout, fallback deliverable",
    },
    Rule {
        name: timer::REAP,
        state: "running, without progress",
        key: Some("pmo.active_reap_seconds"),
        default_ms: Some(300_000),
        action: "end: failed, timeout_reaped_by_watchdog, fallback deliverable",
    },
    Rule {
        name: timer::WAKEUP,
        state: "waits for a worker",
        key: Some("pmo.pending_wakeup_seconds"),
        default_ms: Some(5_000),
        action: "ring, with backoff",
    },
    Rule {
        name: timer::SKIP,
        state: "waits for a worker and has no channel",
        key: Some("pmo.pending_wakeup_skip_seconds"),
        default_ms: Some(300_000),
        action: "the item is skipped, the turn ends: failed, missing_channel",
    },
    Rule {
        name: "no_open_wait",
        state: "suspended with nothing to wait for, queued while its agent is idle",
        key: None,
        default_ms: None,
        action: "resume, dispatch: in the commit that would have led there",
    },
    Rule {
        name: timer::STILL_THERE,
        state: "an agent with an active turn",
        key: None,
        default_ms: Some(15 * 60 * 1_000),
        action: "ask the turn whether it is there; one that was ended by force is cleared",
    },
];
