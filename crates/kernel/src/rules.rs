//! Every rule by which silence has consequences: name, what it looks at, its config key and default.
//! Kinds of work add rows of their own; `tenure rules` prints all, with how often each has fired.

use crate::time::Timestamp;
use std::{collections::BTreeMap, time::Duration};

/// One rule.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Unique.
    pub name: &'static str,
    /// The state it looks at.
    pub state: &'static str,
    /// The key that sets its time, if one does.
    pub key: Option<&'static str>,
    /// Its time by default, in milliseconds.
    pub default_ms: Option<u64>,
    /// What happens when it fires.
    pub action: &'static str,
}

/// What a rule of the kernel means for one kind of work. It is counted where it fires: in the kernel's row.
#[derive(Clone, Copy, Debug)]
pub struct KindRule {
    /// The kind of entity.
    pub kind: &'static str,
    /// The kernel's rule that fires it.
    pub by: &'static str,
    /// What it looks at and does.
    pub rule: Rule,
}

/// The rules of the kernel.
pub static KERNEL: &[Rule] = &[
    Rule {
        name: "holder_check",
        state: "held",
        key: Some("worker.lease_seconds"),
        default_ms: Some(15_000),
        action: "the session lives and names the entity: look again one lease later; else end the tenure",
    },
    Rule {
        name: "must_end_by",
        state: "open",
        key: None,
        default_ms: None,
        action: "end, by the machine or by force",
    },
    Rule {
        name: "mail_waiting",
        state: "not held, unread mail",
        key: None,
        default_ms: None,
        action: "decide",
    },
    Rule {
        name: "timer",
        state: "not held, a timer fired",
        key: None,
        default_ms: None,
        action: "decide",
    },
    Rule {
        name: "timer_due",
        state: "held, a timer fired",
        key: None,
        default_ms: None,
        action: "mail the holder",
    },
    Rule {
        name: "guard",
        state: "held, a guard timer fired",
        key: None,
        default_ms: None,
        action: "decide over the holder's head",
    },
    Rule {
        name: "seal",
        state: "resting, many events",
        key: None,
        default_ms: None,
        action: "seal the segment, so that older records can go",
    },
    Rule {
        name: "attention",
        state: "a decision keeps failing",
        key: Some("server.faults_before_attention"),
        default_ms: None,
        action: "mark the entity for a person",
    },
    Rule {
        name: "outage",
        state: "no pulse was left",
        key: Some("server.pulse_gap_seconds"),
        default_ms: Some(8_000),
        action: "judge no holder for one lease",
    },
    Rule {
        name: HISTORY_LOST,
        state: "a new connection leads to a database without what was acknowledged",
        key: None,
        default_ms: None,
        action: "draw a new incarnation, so that feeds answer `lost`",
    },
];

/// The rule that counts losses of acknowledged history. Its `last_at` is the moment of the last batch that is missing, and
/// its `lag_max` the time between the last batch that is there and that one, both of the last loss.
pub const HISTORY_LOST: &str = "history_lost";

/// What one rule has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How often it fired.
    pub fired: u64,
    /// How often its decision failed.
    pub failed: u64,
    /// The longest it fired after its moment, since the store was created.
    pub lag_max: Duration,
    /// When it fired last.
    pub last_at: Option<Timestamp>,
}

/// Tallies by rule name.
pub type Tallies = BTreeMap<String, Tally>;

/// Adds one set of tallies to another.
pub fn add(into: &mut Tallies, from: &Tallies) {
    for (name, tally) in from {
        let t = into.entry(name.clone()).or_default();
        t.fired += tally.fired;
        t.failed += tally.failed;
        t.lag_max = t.lag_max.max(tally.lag_max);
        t.last_at = t.last_at.max(tally.last_at);
    }
}
