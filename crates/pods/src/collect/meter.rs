//! What a collector counts, and how Prometheus reads it.

use super::{CollectorState, Saying, SinkId};
use crate::{numbers::Page, verdict::CauseClass};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// So many tenants have a label of their own; all others are `other`. A label with a thousand values makes a thousand
/// series of every metric, on every node.
pub const TENANTS_MAX: usize = 100;

/// The upper bounds of the histogram, in seconds.
const BUCKETS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0];

/// Counts.
#[derive(Debug, Default)]
pub struct Meter(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    events: BTreeMap<(&'static str, &'static str, String), u64>,
    tenants: BTreeSet<String>,
    told: BTreeMap<SinkId, Told>,
}

#[derive(Debug, Default, Clone)]
struct Told {
    settled: u64,
    refused: u64,
    failures: u64,
    buckets: Vec<u64>,
    sum: f64,
    count: u64,
}

impl Meter {
    fn counts(&self) -> std::sync::MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something new was seen.
    pub fn saw(&self, saying: &Saying) {
        let mut counts = self.counts();
        let verdict = &saying.report.verdict;
        let status = verdict.status.map_or("none", |s| s.name());
        let class = verdict.class.map_or("none", CauseClass::name);
        let tenant = counts.tenant(&saying.report.tenant_id);
        *counts.events.entry((status, class, tenant)).or_default() += 1;
    }

    /// A sink has taken something that became so `after` ago.
    pub fn told(&self, sink: SinkId, after: Option<Duration>) {
        let mut counts = self.counts();
        let told = counts.told.entry(sink).or_default();
        told.settled += 1;
        let Some(after) = after.map(|a| a.as_secs_f64()) else { return };
        told.buckets.resize(BUCKETS.len(), 0);
        for (bucket, bound) in told.buckets.iter_mut().zip(BUCKETS) {
            *bucket += u64::from(after <= *bound);
        }
        told.sum += after;
        told.count += 1;
    }

    /// A sink has refused something for good.
    pub fn refused(&self, sink: SinkId) {
        self.counts().told.entry(sink).or_default().refused += 1;
    }

    /// A sink did not answer.
    pub fn failed(&self, sink: SinkId) {
        self.counts().told.entry(sink).or_default().failures += 1;
    }

    /// Everything, in the words of Prometheus.
    pub fn text(&self, state: &CollectorState) -> String {
        let mut out = Page::default();
        let counts = self.counts();
        out.head(
            "tenure_collector_events_total",
            "counter",
            "What was seen of pods and is to be told, once each.",
        );
        for ((status, class, tenant), n) in &counts.events {
            let labels = [("status", *status), ("class", *class), ("tenant", tenant.as_str())];
            out.line("tenure_collector_events_total", &labels, *n as f64);
        }
        out.sinks(&counts.told);
        drop(counts);
        out.state(state);
        out.done()
    }
}

impl Counts {
    fn tenant(&mut self, tenant: &str) -> String {
        if self.tenants.contains(tenant) {
            return tenant.to_owned();
        }
        if self.tenants.len() >= TENANTS_MAX {
            return "other".to_owned();
        }
        self.tenants.insert(tenant.to_owned());
        tenant.to_owned()
    }
}

impl Page {
    fn sinks(&mut self, told: &BTreeMap<SinkId, Told>) {
        type Read = fn(&Told) -> u64;
        let counters: [(&str, &str, Read); 3] = [
            ("tenure_collector_told_total", "Reports that a sink has taken.", |t| t.settled),
            ("tenure_collector_refused_total", "Reports that a sink will never take.", |t| {
                t.refused
            }),
            ("tenure_collector_send_failures_total", "Tries that a sink did not answer.", |t| {
                t.failures
            }),
        ];
        for (name, help, read) in counters {
            self.head(name, "counter", help);
            for (sink, told) in told {
                self.line(name, &[("sink", sink.name())], read(told) as f64);
            }
        }
        let name = "tenure_collector_publish_latency_seconds";
        self.head(
            name,
            "histogram",
            "From the moment at which a pod changed, by its own clock, until a sink had taken it.",
        );
        for (sink, told) in told {
            let sink = ("sink", sink.name());
            for (bound, n) in BUCKETS.iter().zip(&told.buckets) {
                self.line(
                    &format!("{name}_bucket"),
                    &[sink, ("le", &bound.to_string())],
                    *n as f64,
                );
            }
            self.line(&format!("{name}_bucket"), &[sink, ("le", "+Inf")], told.count as f64);
            self.line(&format!("{name}_sum"), &[sink], told.sum);
            self.line(&format!("{name}_count"), &[sink], told.count as f64);
        }
    }

    fn state(&mut self, s: &CollectorState) {
        let (c, g) = ("counter", "gauge");
        let flag = |b: bool| f64::from(u8::from(b));
        self.one("tenure_collector_ready", g, "Whether it is synced and has room.", flag(s.ready));
        self.one(
            "tenure_collector_active",
            g,
            "Whether it is the one that speaks, of several.",
            flag(s.active),
        );
        self.one("tenure_collector_pods", g, "Pods that it knows.", s.pods as f64);
        let age = s.watch_age.map_or(f64::NAN, |a| a.as_secs_f64());
        self.one(
            "tenure_collector_watch_age_seconds",
            g,
            "Since the last event or bookmark of the pods.",
            age,
        );
        self.one("tenure_collector_relists_total", c, "Lists of all pods.", s.relists as f64);
        self.one(
            "tenure_collector_watches_total",
            c,
            "Watches that were opened.",
            s.watches as f64,
        );
        self.one(
            "tenure_collector_silent_watches_total",
            c,
            "Watches that were given up because they said nothing.",
            s.silences as f64,
        );
        self.one("tenure_collector_expired_total", c, "Answers of 410.", s.expired as f64);
        self.one(
            "tenure_collector_api_failures_total",
            c,
            "Requests to the API server that came to nothing.",
            s.troubles as f64,
        );
        self.one(
            "tenure_collector_unreadable_total",
            c,
            "Objects that could not be read.",
            s.unreadable as f64,
        );
        self.one(
            "tenure_collector_dedup_hits_total",
            c,
            "Objects that said nothing new.",
            s.tally.repeats as f64,
        );
        self.one(
            "tenure_collector_timers_fired_total",
            c,
            "Moments at which silence had to be judged.",
            s.tally.timers as f64,
        );
        self.one(
            "tenure_collector_unlabelled_total",
            c,
            "Objects without the labels of a task, passed over.",
            s.tally.unlabelled as f64,
        );
        self.one(
            "tenure_collector_left_selector_total",
            c,
            "Pods that no longer fit the selector.",
            s.tally.left as f64,
        );
        self.one(
            "tenure_collector_absent_total",
            c,
            "Pods that were missing in a list.",
            s.tally.absent as f64,
        );
        self.one(
            "tenure_collector_backpressure",
            g,
            "Whether the watch stands still because the spool is full.",
            flag(s.spool.full),
        );
        self.one(
            "tenure_collector_spool_depth",
            g,
            "Reports that somebody has not taken yet.",
            s.spool.depth as f64,
        );
        self.one("tenure_collector_spool_bytes", g, "Their bytes.", s.spool.bytes as f64);
        self.one(
            "tenure_collector_spool_disk_bytes",
            g,
            "Bytes on disk.",
            s.spool.disk_bytes as f64,
        );
        self.one(
            "tenure_collector_spool_used_ratio",
            g,
            "How much of the room that it may have is taken, from 0 to 1.",
            s.spool.used_bytes as f64 / s.spool.bytes_max.max(1) as f64,
        );
        self.one(
            "tenure_collector_spool_age_seconds",
            g,
            "Age of the oldest.",
            s.spool_age.as_secs_f64(),
        );
        self.one(
            "tenure_collector_spool_disk_failures_total",
            c,
            "Writes that failed; those reports are in memory only.",
            s.spool.disk_failures as f64,
        );
        self.head("tenure_collector_dropped_total", c, "Dropped for want of room or for their age: states that were not final, and hints that the server had taken.");
        self.line("tenure_collector_dropped_total", &[("what", "state")], s.spool.dropped as f64);
        self.line(
            "tenure_collector_dropped_total",
            &[("what", "hint")],
            s.spool.dropped_hints as f64,
        );
        self.head("tenure_collector_sink_up", g, "Whether the last try of a sink was answered.");
        for sink in &s.sinks {
            self.line(
                "tenure_collector_sink_up",
                &[("sink", sink.id.name())],
                flag(sink.trouble.is_none()),
            );
        }
    }
}
