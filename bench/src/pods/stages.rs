//! Where the time goes between the end of a pod and the record of it, end by end.
//!
//! Four moments: the pod changed at the API server; the collector saw it (it writes that into its report); the server had the report
//! on disk; the task's end was on disk. Collector and server are on one machine and read one clock.

use crate::{jobs::count::Asked, report::percentile};
use std::{collections::HashMap, time::Duration};
use tenure_kernel::{ids::EntityId, store::Op, stream::Body, time::Timestamp};
use tenure_pods::report::Report;

/// The two clocks side by side: the process's own, and the time of day.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    /// The process's own.
    pub mono: Duration,
    /// The time of day, then.
    pub wall: Timestamp,
}

impl Clocks {
    /// A time of day on the process's own clock.
    fn mono_of(&self, at: Timestamp) -> Duration {
        match at >= self.wall {
            true => self.mono + at.since(self.wall),
            false => self.mono.saturating_sub(self.wall.since(at)),
        }
    }
}

/// What the store took of one task.
#[derive(Debug, Default)]
struct Taken {
    /// The report as it came, read when nobody waits any more.
    report: Option<(Body, Duration)>,
    recorded: Option<Duration>,
}

/// What the store took, of every task. The last report and the last commit of each count.
#[derive(Debug, Default)]
pub struct Ledger(HashMap<EntityId, Taken>);

impl Ledger {
    /// This was on disk at that moment.
    pub fn note(&mut self, op: &Op, at: Duration) {
        match op {
            Op::Mail(mail) => {
                self.0.entry(mail.to).or_default().report = Some((mail.body.clone(), at));
            }
            Op::Commit(commit) => self.0.entry(commit.entity).or_default().recorded = Some(at),
            _ => {}
        }
    }

    /// The stages of one task that changed at that moment; `None` where one of them is missing.
    pub fn stages(&self, task: EntityId, changed: Duration, clocks: Clocks) -> Option<Stages> {
        let taken = self.0.get(&task)?;
        let (body, mailed) = taken.report.as_ref()?;
        let Body::Inline(bytes) = body else { return None };
        let report: Report = serde_json::from_slice(bytes).ok()?;
        let (seen, recorded) = (clocks.mono_of(report.seen_at), taken.recorded?);
        let ms = |from: Duration, to: Duration| to.saturating_sub(from).as_secs_f64() * 1_000.0;
        Some(Stages {
            changed,
            seen: ms(changed, seen),
            taken: ms(seen, *mailed),
            decided: ms(*mailed, recorded),
            all: ms(changed, recorded),
        })
    }
}

/// One end, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Stages {
    changed: Duration,
    /// From the change until the collector had seen it.
    pub seen: f64,
    /// From there until the report was on the server's disk: spooled, synced, sent, written.
    pub taken: f64,
    /// From there until the task's end was on disk.
    pub decided: f64,
    /// All of it.
    pub all: f64,
}

/// Of many ends, one stage at this place in their order.
pub fn of(stages: &[Stages], part: fn(&Stages) -> f64, at: f64) -> f64 {
    let mut all: Vec<f64> = stages.iter().map(part).collect();
    all.sort_by(f64::total_cmp);
    percentile(&all, at)
}

/// What is worth a line of the journal.
const SLOW_MS: f64 = 25.0;
const WINDOW: Duration = Duration::from_millis(50);

/// Tells when it was slow and in which stage, and what the store was asked for that took long.
pub fn tell(stages: &[Stages], asked: &[Asked], began: Duration) {
    println!(
        "ends that took more than {SLOW_MS} ms, by the moment of the change (the longest of each 50 ms):"
    );
    println!(
        "{:>9} {:>6} {:>9} {:>9} {:>9} {:>9}",
        "at_ms", "ends", "seen", "taken", "decided", "all"
    );
    let window = |s: &Stages| s.changed.saturating_sub(began).as_millis() / WINDOW.as_millis();
    for ends in stages.chunk_by(|a, b| window(a) == window(b)) {
        let longest = |part: fn(&Stages) -> f64| ends.iter().map(part).fold(0.0, f64::max);
        if longest(|s| s.all) > SLOW_MS {
            let (at, count) = (ends.first().map_or(0, window) * WINDOW.as_millis(), ends.len());
            let (seen, taken) = (longest(|s| s.seen), longest(|s| s.taken));
            let (decided, all) = (longest(|s| s.decided), longest(|s| s.all));
            println!("{at:>9} {count:>6} {seen:>9.1} {taken:>9.1} {decided:>9.1} {all:>9.1}");
        }
    }
    println!("requests of the store that took more than {SLOW_MS} ms (began, took):");
    for asked in asked {
        let took = asked.ended.saturating_sub(asked.began);
        if took.as_secs_f64() * 1_000.0 > SLOW_MS {
            let at = asked.began.saturating_sub(began).as_millis();
            let what: String = asked.what.chars().take(60).collect();
            println!("{at:>9} {:>6}  {what}", took.as_millis());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tenure_kernel::{
        commit::{Commit, Expect},
        ids::{CommitId, MailId},
        mail::NewMail,
        stream::NewEvent,
    };

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn mail(to: EntityId, seen_at: Timestamp) -> Op {
        let verdict = json!({ "status": "SUCCEEDED", "rule": "r" });
        let pod = json!({ "namespace": "n", "name": "p", "uid": "u" });
        let report = json!({ "task_id": "t", "pod": pod, "verdict": verdict, "seen_at": seen_at });
        let (id, kind, body) = (MailId("m".into()), "pod_report".into(), Body::json(&report));
        Op::Mail(NewMail { to, id, kind, body })
    }

    #[test]
    fn an_end_counts_when_it_is_on_disk_and_its_stages_add_up() {
        let clocks = Clocks { mono: ms(1_000), wall: Timestamp::from_micros(7_000_000) };
        let task = EntityId::fixed(9, 1);
        let mut ledger = Ledger::default();
        ledger.note(&mail(task, clocks.wall + ms(3)), ms(1_010));
        assert!(ledger.stages(task, ms(1_001), clocks).is_none(), "nothing is recorded yet");
        let event = NewEvent::new("task_succeeded", Body::json(&json!({})));
        let expect = Expect::Nobody { epoch: 1, version: 1 };
        let commit = Commit::new(CommitId::new(1, 2), task, expect, vec![event]);
        ledger.note(&Op::Commit(Box::new(commit)), ms(1_050));
        let found = ledger.stages(task, ms(1_001), clocks).expect("all of its stages");
        let all = [found.seen, found.taken, found.decided, found.all];
        assert_eq!(all.map(|ms| ms.round() as i64), [2, 7, 40, 49]);
        assert_eq!(of(&[found], |s| s.decided, 0.99).round() as i64, 40);
    }
}
