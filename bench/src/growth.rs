//! `bench growth`: whether a job costs the same whatever lies around.
//!
//! The store is filled with finished jobs, really run, beside jobs that wait for a signal. At each size, clients
//! submit one-step jobs for a while, and some waiting jobs are signalled: going on means being claimed from a queue,
//! so that shows what claims cost. On Postgres somebody then holds an old snapshot open (a backup, say), which keeps
//! everything that was updated since from being cleaned up, and the same load is measured in slices of time.

use crate::{
    jobs::{Bench, signals, wrong},
    report::{Case, counted, percentile},
};
use std::time::Duration;
use tenure_kernel::error::StoreError;

/// How far, beside what, how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// Finished jobs in the store, one case each, growing.
    pub finished: Vec<usize>,
    /// Jobs that wait beside them.
    pub waiting: usize,
    /// Clients of the measured load.
    pub clients: usize,
    /// Time per case.
    pub time: Duration,
    /// How long a foreign snapshot is held; zero leaves it out. SQLite has none that matters.
    pub snapshot: Duration,
}

/// The load at one size, or in one slice of time.
#[derive(Clone, Debug)]
pub struct Point {
    /// What is around.
    pub case: String,
    /// Jobs per second.
    pub per_second: f64,
    /// Submission to known end, in milliseconds.
    pub p50_ms: f64,
    /// One in a hundred is slower.
    pub p99_ms: f64,
    /// Accepted signal to the durable start of the next step, by way of a queue and a claim.
    pub resume_p50_ms: f64,
    /// One in a hundred is slower.
    pub resume_p99_ms: f64,
}

/// What came of it. Every counted job was read back as completed.
#[derive(Clone, Debug)]
pub struct Growth {
    /// The engine.
    pub store: &'static str,
    /// Jobs that waited beside.
    pub waiting: usize,
    /// By size.
    pub sizes: Vec<Point>,
    /// By time, under the snapshot.
    pub slices: Vec<Point>,
}

/// The part of the first throughput that the last one must have to be called the same.
pub const FLAT: f64 = 0.8;

/// The last throughput by the first; `None` where there are not two.
pub fn last_to_first(points: &[Point]) -> Option<f64> {
    match points {
        [first, .., last] => Some(last.per_second / first.per_second),
        _ => None,
    }
}

impl Growth {
    /// For the report: a case each, and what they say together.
    pub fn cases(&self) -> Vec<Case> {
        let told = |p: &Point| {
            Case::of("growth")
                .with("store", self.store)
                .with("case", p.case.clone())
                .with("waiting", self.waiting)
                .measured("per_second", p.per_second)
                .measured("p50_ms", p.p50_ms)
                .measured("p99_ms", p.p99_ms)
                .measured("resume_p50_ms", p.resume_p50_ms)
                .measured("resume_p99_ms", p.resume_p99_ms)
        };
        let verdict = |name: &'static str, points: &[Point]| {
            let ratio = last_to_first(points)?;
            let word = if ratio >= FLAT { "flat" } else { "not flat" };
            let case = Case::of("growth").with("store", self.store).with("case", name);
            Some(case.measured("last_to_first", ratio).with("verdict", word))
        };
        let all = self.sizes.iter().chain(&self.slices).map(told);
        let verdicts = [verdict("sizes", &self.sizes), verdict("snapshot", &self.slices)];
        all.chain(verdicts.into_iter().flatten()).collect()
    }
}

/// Clients that fill the store, and slots for them.
pub const FILLING: usize = 500;
/// Under the snapshot, the least time that a slice measures, and the most.
const SLICE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(25));

/// Runs the suite. The bench has slots for [`FILLING`] clients.
pub async fn run(bench: &Bench<'_>, options: &Options) -> Result<Growth, StoreError> {
    let store = bench.place.engine();
    let mut growth =
        Growth { store, waiting: options.waiting, sizes: Vec::new(), slices: Vec::new() };
    if options.waiting > 0 {
        signals::park(bench, 1, options.waiting, FILLING).await?;
        signals::settle(bench).await?;
    }
    for target in &options.finished {
        let there = bench.finished();
        bench.finish(target.saturating_sub(there), FILLING).await?;
        let name = format!("finished={target}");
        growth.sizes.push(point(bench, name, options.clients, options.time).await?);
    }
    if options.snapshot > Duration::ZERO {
        growth.slices = under_snapshot(bench, options).await?;
    }
    Ok(growth)
}

async fn point(
    bench: &Bench<'_>,
    case: String,
    clients: usize,
    time: Duration,
) -> Result<Point, StoreError> {
    let (took, time) = counted(time, async |time| bench.window(1, clients, time).await).await?;
    let resumed = signals::paced(bench, 1, clients).await?;
    Ok(Point {
        case,
        per_second: took.len() as f64 / time.as_secs_f64(),
        p50_ms: percentile(&took, 0.5),
        p99_ms: percentile(&took, 0.99),
        resume_p50_ms: percentile(&resumed, 0.5),
        resume_p99_ms: percentile(&resumed, 0.99),
    })
}

async fn under_snapshot(bench: &Bench<'_>, options: &Options) -> Result<Vec<Point>, StoreError> {
    let Some(client) = bench.place.client().await? else { return Ok(Vec::new()) };
    let refused = |e: tokio_postgres::Error| wrong(e.to_string());
    client
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM ready")
        .await
        .map_err(refused)?;
    let began = bench.rt.mono();
    let time = (options.snapshot / 24).clamp(SLICE.0, SLICE.1);
    let mut slices = Vec::new();
    loop {
        let held = bench.rt.mono() - began;
        let name = format!("snapshot_held_s={}", held.as_secs());
        slices.push(point(bench, name, options.clients, time).await?);
        // Two at least, or there is nothing to compare.
        if slices.len() > 1 && bench.rt.mono() - began >= options.snapshot {
            break;
        }
    }
    client.batch_execute("COMMIT").await.map_err(refused)?;
    Ok(slices)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(per_second: f64) -> Point {
        let (p50_ms, p99_ms, resume_p50_ms, resume_p99_ms) = (1.0, 2.0, 3.0, 4.0);
        let case = format!("at={per_second}");
        Point { case, per_second, p50_ms, p99_ms, resume_p50_ms, resume_p99_ms }
    }

    #[test]
    fn flat_is_what_loses_less_than_a_fifth() {
        let told = |sizes: Vec<Point>| {
            let growth = Growth { store: "sqlite", waiting: 0, sizes, slices: Vec::new() };
            crate::report::tell(&growth.cases(), true)
        };
        assert!(told(vec![at(100.0), at(10.0), at(81.0)]).contains("\"verdict\":\"flat\""));
        assert!(told(vec![at(100.0), at(79.0)]).contains("\"verdict\":\"not flat\""));
        assert!(!told(vec![at(100.0)]).contains("verdict"));
    }
}
