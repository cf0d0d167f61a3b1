//! What a process has done since it started, counted where it happens: a handful of atomics beside the pipeline,
//! which `/metrics` reads. Nothing is decided by them, nothing waits for them, and they read no clock of their own.

use crate::config::{Labelled, OTHER};
use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tenure_kernel::{
    commit::{Commit, CommitAnswer},
    evidence::EvidenceAnswer,
    mail::MailAnswer,
    outbox::{DeliveryAnswer, Handover},
    sessions::RenewalAnswer,
    store::{Answer, Op},
};

/// A number that only rises.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// One more.
    pub fn one(&self) {
        self.add(1);
    }

    /// So many more.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// So many so far.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// How values are spread: how many were at most each bound, and their sum.
#[derive(Debug)]
pub struct Histogram<const N: usize> {
    bounds: [u64; N],
    buckets: [AtomicU64; N],
    count: AtomicU64,
    sum: AtomicU64,
}

impl<const N: usize> Histogram<N> {
    /// Bounds in rising order.
    pub const fn new(bounds: [u64; N]) -> Self {
        Histogram {
            bounds,
            buckets: [const { AtomicU64::new(0) }; N],
            count: AtomicU64::new(0),
            sum: AtomicU64::new(0),
        }
    }

    /// Counts a value.
    pub fn record(&self, value: u64) {
        if let Some(at) = self.bounds.iter().position(|bound| value <= *bound) {
            self.buckets[at].fetch_add(1, Relaxed);
        }
        self.count.fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }

    /// Each bound with how many values were at most that, how many there were in all, and their sum.
    pub fn read(&self) -> (Vec<(u64, u64)>, u64, u64) {
        let mut below = 0;
        let each = self.bounds.iter().zip(&self.buckets).map(|(bound, n)| {
            below += n.load(Relaxed);
            (*bound, below)
        });
        let each = each.collect();
        // Whoever counts meanwhile must not make a bucket larger than the whole.
        (each, self.count.load(Relaxed).max(below), self.sum.load(Relaxed))
    }
}

/// Microseconds from sending a batch to its answer.
pub const APPLY_BOUNDS: [u64; 13] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 500_000, 2_500_000,
    10_000_000,
];
/// Operations in a batch.
pub const BATCH_BOUNDS: [u64; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];

/// What became of commits.
#[derive(Debug, Default)]
pub struct Commits {
    /// Durable.
    pub committed: Counter,
    /// Refused because another tenure had begun.
    pub stale_epoch: Counter,
    /// Refused because another commit came first.
    pub version_conflict: Counter,
    /// Refused because the entity was over.
    pub is_final: Counter,
    /// Refused because mail had come that it had not read.
    pub more_mail: Counter,
    /// The entity, or its key, was there.
    pub exists: Counter,
    /// Can never be accepted as they are.
    pub refused: Counter,
}

/// Different last labels of an event that are counted apart; more are counted together.
const LABELS_MAX: usize = 100;

/// Everything that is counted.
#[derive(Debug)]
pub struct Meter {
    /// Commits by what became of them.
    pub commits: Commits,
    /// Operations per batch.
    pub batch_ops: Histogram<10>,
    /// Microseconds per batch, as the store took them, retries included.
    pub batch_micros: Histogram<13>,
    /// Entities claimed.
    pub claims: Counter,
    /// Claims by name that somebody else was faster with.
    pub claims_lost: Counter,
    /// Mail accepted.
    pub mail: Counter,
    /// Evidence recorded.
    pub evidence: Counter,
    /// Messages delivered.
    pub delivered: Counter,
    /// Messages that a wire acknowledged.
    pub published: Counter,
    /// Messages that a wire did not take; each try.
    pub publish_failed: Counter,
    /// Messages that no wire can ever take, and that were dropped.
    pub publish_refused: Counter,
    /// Deliveries refused because the lane had another holder.
    pub stale_lane: Counter,
    /// Renewals that were accepted.
    pub renewals: Counter,
    /// Renewals of sessions that were over.
    pub renewals_refused: Counter,
    /// Entities of which a renewal said that they were held no longer.
    pub holds_lost: Counter,
    /// Batches that found rows locked, and operations sent again because of it.
    pub busy: Counter,
    /// Calls that the store did not answer, each try.
    pub store_errors: Counter,
    /// Calls that were given up because the store did not answer.
    pub store_gave_up: Counter,
    /// Rings of this process.
    pub rings: Counter,
    /// Times that the due loop was woken by a bell.
    pub woken_by_bell: Counter,
    /// Times that it woke by itself.
    pub woken_by_time: Counter,
    /// Entities that it found due earlier than it knew when it lay down, though no bell had rung.
    pub bells_missed: Counter,
    /// Pulses left.
    pub pulses: Counter,
    /// Pulses that could not be left.
    pub pulses_failed: Counter,
    events: Vec<(&'static str, Counter)>,
    labelled: &'static [Labelled],
    by_labels: Mutex<BTreeMap<(&'static str, Vec<String>), u64>>,
    rules: Mutex<BTreeMap<(&'static str, &'static str), Fired>>,
}

/// What one rule did to entities of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fired {
    /// How often it fired.
    pub fired: u64,
    /// How often its decision failed.
    pub failed: u64,
}

impl Default for Meter {
    fn default() -> Self {
        Meter::counting(&[], &[])
    }
}

impl Meter {
    /// A meter that also counts committed events of these names, and of those by labels.
    pub fn counting(events: &[&'static str], labelled: &'static [Labelled]) -> Self {
        Meter {
            commits: Commits::default(),
            batch_ops: Histogram::new(BATCH_BOUNDS),
            batch_micros: Histogram::new(APPLY_BOUNDS),
            claims: Counter::default(),
            claims_lost: Counter::default(),
            mail: Counter::default(),
            evidence: Counter::default(),
            delivered: Counter::default(),
            published: Counter::default(),
            publish_failed: Counter::default(),
            publish_refused: Counter::default(),
            stale_lane: Counter::default(),
            renewals: Counter::default(),
            renewals_refused: Counter::default(),
            holds_lost: Counter::default(),
            busy: Counter::default(),
            store_errors: Counter::default(),
            store_gave_up: Counter::default(),
            rings: Counter::default(),
            woken_by_bell: Counter::default(),
            woken_by_time: Counter::default(),
            bells_missed: Counter::default(),
            pulses: Counter::default(),
            pulses_failed: Counter::default(),
            events: events.iter().map(|name| (*name, Counter::default())).collect(),
            labelled,
            by_labels: Mutex::default(),
            rules: Mutex::default(),
        }
    }

    /// How often an event was committed, by its labels.
    pub fn labelled(&self, event: &str) -> Vec<(Vec<String>, u64)> {
        let rows = self.by_labels.lock().unwrap_or_else(PoisonError::into_inner);
        let of = rows.iter().filter(|((name, _), _)| *name == event);
        of.map(|((_, labels), count)| (labels.clone(), *count)).collect()
    }

    /// How often an event was committed; zero for one that is not counted.
    pub fn events(&self, name: &str) -> u64 {
        self.events.iter().find(|(n, _)| *n == name).map_or(0, |(_, count)| count.get())
    }

    /// What the rules did, by rule and kind of entity.
    pub fn rules(&self) -> Vec<(&'static str, &'static str, Fired)> {
        self.by_rule().iter().map(|((rule, kind), fired)| (*rule, *kind, *fired)).collect()
    }

    /// A batch came back.
    pub(crate) fn batch(&self, ops: usize, took: Duration) {
        self.batch_ops.record(ops as u64);
        self.batch_micros.record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }

    /// A rule fired, or its decision failed.
    pub(crate) fn rule(&self, rule: &'static str, kind: &'static str, failed: bool) {
        let mut rules = self.by_rule();
        let fired = rules.entry((rule, kind)).or_default();
        match failed {
            true => fired.failed += 1,
            false => fired.fired += 1,
        }
    }

    fn by_rule(&self) -> MutexGuard<'_, BTreeMap<(&'static str, &'static str), Fired>> {
        // Nothing panics while it holds this lock.
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An operation was answered.
    pub(crate) fn answered(&self, op: &Op, answer: &Answer) {
        match (op, answer) {
            (Op::Commit(commit), Answer::Commit(answer)) => self.commit(commit, answer),
            (_, Answer::Claim(Ok(_))) => self.claims.one(),
            (_, Answer::Claim(Err(_))) => self.claims_lost.one(),
            (_, Answer::Mail(MailAnswer::Accepted { .. })) => self.mail.one(),
            (_, Answer::Evidence(EvidenceAnswer::Recorded { .. })) => self.evidence.one(),
            (Op::Deliver(delivery), Answer::Deliver(answer)) => match answer {
                DeliveryAnswer::Delivered { .. } => {
                    self.delivered.one();
                    if let Handover::Create(commit) = &delivery.with {
                        self.count_events(commit);
                    }
                }
                DeliveryAnswer::StaleLane => self.stale_lane.one(),
                _ => {}
            },
            (_, Answer::Renew(RenewalAnswer::Renewed { lost, .. })) => {
                self.renewals.one();
                self.holds_lost.add(lost.len() as u64);
            }
            (_, Answer::Renew(RenewalAnswer::Ended)) => self.renewals_refused.one(),
            _ => {}
        }
    }

    fn commit(&self, commit: &Commit, answer: &CommitAnswer) {
        match answer {
            CommitAnswer::Committed(done) => {
                self.commits.committed.one();
                // One that an earlier try has committed was counted then, or its answer was lost: rather once
                // too little than twice.
                if !done.repeated {
                    self.count_events(commit);
                }
            }
            CommitAnswer::StaleEpoch { .. } => self.commits.stale_epoch.one(),
            CommitAnswer::VersionConflict { .. } => self.commits.version_conflict.one(),
            CommitAnswer::Final { .. } => self.commits.is_final.one(),
            CommitAnswer::MoreMail { .. } => self.commits.more_mail.one(),
            CommitAnswer::Exists { .. } => self.commits.exists.one(),
            CommitAnswer::Refused(_) => self.commits.refused.one(),
            CommitAnswer::Busy => {}
        }
    }

    fn count_events(&self, commit: &Commit) {
        for event in &commit.events {
            if let Some((_, count)) = self.events.iter().find(|(name, _)| *name == event.name) {
                count.one();
            }
            if let Some(row) = self.labelled.iter().find(|l| l.event == event.name)
                && let Some(labels) = (row.labels)(commit, event)
            {
                self.count_labels(row.event, labels);
            }
        }
    }

    fn count_labels(&self, event: &'static str, mut labels: Vec<String>) {
        let mut rows = self.by_labels.lock().unwrap_or_else(PoisonError::into_inner);
        let known = |labels: &Vec<String>| {
            rows.keys().any(|(name, l)| *name == event && l.last() == labels.last())
        };
        if !known(&labels) {
            let lasts = rows.keys().filter(|(name, _)| *name == event).map(|(_, l)| l.last());
            let lasts: std::collections::BTreeSet<_> = lasts.collect();
            if lasts.len() >= LABELS_MAX
                && let Some(last) = labels.last_mut()
            {
                *last = OTHER.to_owned();
            }
        }
        *rows.entry((event, labels)).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_counts_up_to_each_bound() {
        let h = Histogram::new([1, 10, 100]);
        for value in [0, 1, 2, 10, 11, 1_000] {
            h.record(value);
        }
        assert_eq!(h.read(), (vec![(1, 2), (10, 4), (100, 5)], 6, 1_024));
    }

    #[test]
    fn labels_of_which_there_are_too_many_are_counted_together() {
        let meter = Meter::default();
        for n in 0..LABELS_MAX + 5 {
            meter.count_labels("failed", vec!["oom".into(), format!("tenant-{n}")]);
        }
        meter.count_labels("failed", vec!["app".into(), "tenant-0".into()]);
        meter.count_labels("other_event", vec!["x".into()]);
        let rows = meter.labelled("failed");
        assert_eq!(rows.len(), LABELS_MAX + 2);
        let other = vec!["oom".to_owned(), OTHER.to_owned()];
        assert!(rows.contains(&(other, 5)), "{rows:?}");
        assert!(rows.contains(&(vec!["app".to_owned(), "tenant-0".to_owned()], 1)));
    }

    #[test]
    fn rules_are_counted_by_kind() {
        let meter = Meter::default();
        meter.rule("holder_check", "job", false);
        meter.rule("holder_check", "job", true);
        meter.rule("holder_check", "lane", false);
        let job = Fired { fired: 1, failed: 1 };
        let lane = Fired { fired: 1, failed: 0 };
        assert_eq!(meter.rules(), [("holder_check", "job", job), ("holder_check", "lane", lane)]);
        assert_eq!(meter.events("nothing"), 0);
    }
}
