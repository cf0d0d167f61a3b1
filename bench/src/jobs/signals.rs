//! Jobs that wait for a signal: how soon they go on, and what they cost while they wait.

use super::{Bench, input};
use crate::report::{Report, percentile};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use std::time::Duration;
use tenure_kernel::{error::StoreError, ids::EntityId, limits, store::Store as _};

const KEY: &str = "go";
/// Signals per second, at a steady pace: what is measured is the way of one signal, not of a crowd.
const PACE: f64 = 200.0;
/// Signals per case.
const SAMPLE: usize = 400;
/// Longer than a tick: a signal that takes this long was forgotten.
const TOO_LONG: Duration = Duration::from_secs(20);
/// Submissions at once where nothing is measured but the number.
const SUBMITTED_AT_ONCE: usize = 200;

/// Milliseconds from the accepted signal to the durable start of the next step, sorted.
pub(crate) async fn paced(
    bench: &Bench<'_>,
    steps: usize,
    concurrency: usize,
) -> Result<Vec<f64>, StoreError> {
    let jobs = park(bench, steps, SAMPLE, concurrency.min(SUBMITTED_AT_ONCE)).await?;
    resume(bench, &jobs).await
}

pub(crate) async fn park(
    bench: &Bench<'_>,
    steps: usize,
    n: usize,
    at_once: usize,
) -> Result<Vec<EntityId>, StoreError> {
    let submit = |_| bench.way.submit(input(steps, Some(KEY)));
    let jobs = stream::iter((0..n).map(submit)).buffer_unordered(at_once).try_collect().await?;
    bench.way.idle().await?;
    Ok(jobs)
}

async fn resume(bench: &Bench<'_>, jobs: &[EntityId]) -> Result<Vec<f64>, StoreError> {
    let rt = &bench.rt;
    jobs.iter().for_each(|job| bench.store.watch(*job));
    let begin = rt.mono();
    let signals = jobs.iter().enumerate().map(|(i, job)| async move {
        let at = begin + Duration::from_secs_f64(i as f64 / PACE);
        rt.sleep(at.saturating_sub(rt.mono())).await;
        bench.way.signal(*job, KEY).await.map(|()| (*job, rt.mono()))
    });
    // All of them at once: each waits for its turn by itself.
    let sent: Vec<_> =
        stream::iter(signals).buffer_unordered(jobs.len().max(1)).try_collect().await?;
    let mut took = Vec::with_capacity(sent.len());
    for (job, accepted) in sent {
        let resumed = loop {
            if let Some(at) = bench.store.started_at(job) {
                break at;
            }
            if rt.mono() > accepted + TOO_LONG {
                return Err(super::wrong(format!("job {job} has not gone on since its signal")));
            }
            rt.sleep(Duration::from_millis(5)).await;
        };
        // The commit may be answered before the signal's own answer has come through.
        took.push(resumed.saturating_sub(accepted).as_secs_f64() * 1000.0);
    }
    took.sort_by(f64::total_cmp);
    bench.way.idle().await?;
    Ok(took)
}

/// Many jobs that wait: rows, and nothing else.
pub(super) async fn waiting(
    bench: &Bench<'_>,
    report: &mut Report,
    n: usize,
) -> Result<(), StoreError> {
    let before = bench.way.memory();
    let began = bench.rt.mono();
    let jobs = park(bench, 1, n, SUBMITTED_AT_ONCE).await?;
    let took = bench.rt.mono() - began;
    let after = bench.way.memory();
    let quiet = settle(bench).await?;
    let name = format!("waiting={n}");
    let mut add = |metric, value, unit| report.add("jobs", &name, metric, value, unit);
    add("parked_per_s", n as f64 / took.as_secs_f64(), "1/s");
    add("park_ms_per_job", took.as_secs_f64() * 1000.0 / n as f64, "ms");
    add("due_loop_quiet_after_s", quiet.as_secs_f64(), "s");
    add("rss_mb", after as f64 / 1e6, "MB");
    add("rss_kb_per_waiting_job", after.saturating_sub(before) as f64 / 1e3 / n as f64, "kB");
    // The oldest, which no flow in memory is kept for, and the newest.
    let sample = SAMPLE.min(n / 2);
    for (metric50, metric99, jobs) in [
        ("oldest_resume_p50_ms", "oldest_resume_p99_ms", &jobs[..sample]),
        ("newest_resume_p50_ms", "newest_resume_p99_ms", &jobs[n - sample..]),
    ] {
        let resumed = resume(bench, jobs).await?;
        add(metric50, percentile(&resumed, 0.5), "ms");
        add(metric99, percentile(&resumed, 0.99), "ms");
    }
    Ok(())
}

/// Waits until the due loop has looked at everything once and keeps up: a birth is due after its lease, whatever
/// came of it, and what is longest due is served first. Returns how long that took beyond the lease.
pub(crate) async fn settle(bench: &Bench<'_>) -> Result<Duration, StoreError> {
    const QUIET_WITHIN: Duration = Duration::from_secs(600);
    const KEEPS_UP: Duration = Duration::from_millis(500);
    bench.rt.sleep(limits::LEASE + Duration::from_secs(1)).await;
    let began = bench.rt.mono();
    let lanes: Vec<u16> = (0..limits::LANES).collect();
    while !bench.store.due(lanes.clone(), KEEPS_UP, 1).await?.1.is_empty() {
        if bench.rt.mono() - began > QUIET_WITHIN {
            return Err(super::wrong("the due loop does not come to rest".into()));
        }
        bench.rt.sleep(Duration::from_millis(200)).await;
    }
    Ok(bench.rt.mono() - began)
}
