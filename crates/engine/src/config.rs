//! The numbers that shells run by. Defaults are the kernel's named limits.

use std::time::Duration;
use tenure_kernel::{commit::Commit, limits, quota::Quotas, stream::NewEvent};

/// Settings of a server or a worker.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// How long a session is believed alive after a renewal.
    pub lease: Duration,
    /// How often it is renewed.
    pub renewal: Duration,
    /// The longest a loop sleeps with every bell silent.
    pub tick: Duration,
    /// A silence of the pulse longer than this is an outage.
    pub pulse_gap: Duration,
    /// Failed decisions in a row after which an entity is marked for a person.
    pub faults_before_attention: u16,
    /// How long the pipeline tries again by itself while the store is away.
    pub patience: Duration,
    /// Batches under way at once. One for a store with one writer.
    pub flights: usize,
    /// Final entities are kept for this long.
    pub retention: Duration,
    /// Events after which a long-lived entity seals its segment.
    pub segment_events: u64,
    /// Names of events that are counted when they are committed, for whoever reads the meter.
    pub counted_events: &'static [&'static str],
    /// Events that are counted by labels that they and the entity's state carry.
    pub labelled_events: &'static [Labelled],
    /// Nobody outside listens, by the word of whoever set no bus: what would leave the store is not written at all. A
    /// row that is inserted, read and thrown away costs as much as one that is sent.
    pub mute: bool,
    /// Messages go in the transaction of the commit that sends them where they can ([`crate::pipeline::Pipeline::carrying`]).
    /// Off only in drills and simulations, where all of them are to go by their lanes.
    pub carry: bool,
    /// Timers that are rules with names of their own, by kind of entity and beginning of the timer's name. What they did
    /// is counted under those too.
    pub timer_rules: &'static [TimerRule],
    /// What tenants may have. Kept by a server; a worker at the other end of HTTP keeps none.
    pub quotas: Quotas,
    /// The kinds of entities that count as open for a quota.
    pub quota_kinds: &'static [&'static str],
}

/// An event that is counted by labels.
#[derive(Clone, Copy, Debug)]
pub struct Labelled {
    /// Its name.
    pub event: &'static str,
    /// The labels, in an order that whoever reads them knows; `None`: it is not counted. The last one is the one of
    /// which there may be any number (a tenant): when there are too many it becomes [`OTHER`].
    pub labels: fn(&Commit, &NewEvent) -> Option<Vec<String>>,
}

/// The last label of what is counted together.
pub const OTHER: &str = "other";

/// A timer that is a rule of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerRule {
    /// The kind of entity.
    pub kind: &'static str,
    /// How the timer's name begins.
    pub timer: &'static str,
    /// What it is counted as.
    pub rule: &'static str,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            lease: limits::LEASE,
            renewal: limits::RENEWAL,
            tick: limits::TICK,
            pulse_gap: limits::PULSE_GAP,
            faults_before_attention: limits::FAULTS_BEFORE_ATTENTION,
            patience: Duration::from_secs(10),
            flights: 1,
            retention: Duration::from_secs(30 * 24 * 3600),
            segment_events: limits::SEGMENT_EVENTS,
            counted_events: &[],
            labelled_events: &[],
            mute: false,
            carry: true,
            timer_rules: &[],
            quotas: Quotas::default(),
            quota_kinds: &[],
        }
    }
}

impl EngineConfig {
    /// What a timer of an entity is counted as, beside the kernel's rule that fires it.
    pub fn timer_rule(&self, kind: &str, timer: &str) -> Option<&'static str> {
        let fits = |r: &&TimerRule| r.kind == kind && timer.starts_with(r.timer);
        self.timer_rules.iter().find(fits).map(|r| r.rule)
    }

    /// The defaults with another lease, and everything that follows from it.
    pub fn with_lease(lease: Duration) -> Self {
        let tick = lease / 3;
        let defaults = EngineConfig::default();
        EngineConfig { lease, renewal: lease / 3, tick, pulse_gap: lease / 2, ..defaults }
    }
}
