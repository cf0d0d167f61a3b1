//! `bench jobs`: whole jobs, from their submission to their recorded end.
//!
//! Each of N clients submits a job of so many tool steps that do nothing, with arguments and results of 200
//! bytes, waits for its end, and submits the next. Only jobs that began and ended inside the window count, and
//! every one of them is read back from the store afterwards: it is completed, and its stream says how many
//! commits it took. More than the design allows, or a read of history while nothing went wrong, fails the run.

pub mod count;
pub(crate) mod here;
pub(crate) mod http;
pub(crate) mod signals;

pub use here::Here;
pub use http::Http;

use crate::{
    place::Place,
    report::{Report, percentile},
};
use count::{Counting, Said};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tenure_kernel::{
    error::StoreError,
    ids::EntityId,
    judge::Judge,
    machine::Machines,
    runtime::{BoxFuture, Rt},
    store::Store,
};
use tenure_steps::{flow::Flows, tool::Tools};
use tokio::task::JoinHandle;

/// Bytes of each step's argument and result.
pub const ARGUMENT_BYTES: usize = 200;
/// The flow, and what its input looks like: see [`input`].
pub const FLOW: &str = "drill.noops";
/// So many jobs of a case may take more commits than the design allows, or one in a hundred where that is more.
const OVER_ALLOWED: usize = 5;

/// What the program brings: bench knows no flows.
#[derive(Clone)]
pub struct Kit {
    /// Has [`FLOW`].
    pub flows: Flows,
    /// Has its tool.
    pub tools: Tools,
    /// Of the store.
    pub machines: Machines,
    /// Of the store.
    pub judge: Judge,
}

/// How long, how wide, how deep.
#[derive(Clone, Debug)]
pub struct Options {
    /// Steps per job, one case each.
    pub steps: Vec<usize>,
    /// Clients, one case each.
    pub concurrency: Vec<usize>,
    /// Time per case, after a warm-up of a fifth of it.
    pub time: Duration,
    /// Jobs that wait for a signal; zero leaves the case out.
    pub waiting: usize,
}

/// The input of a job.
pub fn input(steps: usize, signal: Option<&str>) -> Value {
    json!({ "steps": steps, "bytes": ARGUMENT_BYTES, "signal": signal })
}

/// A way to have jobs done: in this process, or by HTTP.
pub trait Way: Send + Sync {
    /// Submits a job and returns when its end is known; its id.
    fn done(&self, input: Value) -> BoxFuture<'_, Result<EntityId, StoreError>>;
    /// Submits a job.
    fn submit(&self, input: Value) -> BoxFuture<'_, Result<EntityId, StoreError>>;
    /// Sends a signal, and returns when it is durable.
    fn signal(&self, job: EntityId, key: &str) -> BoxFuture<'_, Result<(), StoreError>>;
    /// Returns when no worker has anything to do.
    fn idle(&self) -> BoxFuture<'_, Result<(), StoreError>>;
    /// The most commits that a job of so many steps may take.
    fn commits_max(&self, steps: usize) -> usize;
    /// Memory of all processes in which jobs run and are served, in bytes.
    fn memory(&self) -> u64;
    /// Processor time that they have used so far.
    fn processor(&self) -> Duration;
}

/// A place with everything to run jobs in.
pub struct Bench<'a> {
    /// Where the store is.
    pub place: &'a Place,
    /// The store, counted.
    pub store: Arc<Counting>,
    /// Who does jobs.
    pub way: Arc<dyn Way>,
    /// Clock and tasks.
    pub rt: Rt,
}

impl Bench<'_> {
    /// Runs the suite.
    pub async fn run(&self, options: &Options) -> Result<Report, StoreError> {
        let mut report = Report::default();
        let ran = self.cases(&mut report, options).await;
        if ran.is_err() && !report.0.is_empty() {
            // What was measured before something was found to be wrong is worth having.
            eprint!("{}", report.to_table());
        }
        ran.map(|()| report)
    }

    async fn cases(&self, report: &mut Report, options: &Options) -> Result<(), StoreError> {
        for steps in &options.steps {
            for concurrency in &options.concurrency {
                self.case(report, *steps, *concurrency, options.time).await?;
            }
        }
        if options.waiting > 0 {
            signals::waiting(self, report, options.waiting).await?;
        }
        Ok(())
    }

    async fn case(
        &self,
        report: &mut Report,
        steps: usize,
        concurrency: usize,
        time: Duration,
    ) -> Result<(), StoreError> {
        let start = self.rt.mono() + time / 5;
        let end = start + time;
        let clients = self.clients(steps, concurrency, start, end);
        self.rt.sleep(start.saturating_sub(self.rt.mono())).await;
        let (before, reads, batches) = (Said::by(self.place).await?, self.reads(), self.batches());
        let (began, used) = (self.rt.mono(), self.way.processor());
        self.rt.sleep(end.saturating_sub(self.rt.mono())).await;
        let (after, batches) = (Said::by(self.place).await?, self.batches() - batches);
        let window = (self.rt.mono() - began).as_secs_f64();
        let used = self.way.processor() - used;
        let reads = self.reads() - reads;
        let rss = self.way.memory();
        let done = joined(clients).await?;
        let commits = self.check((steps, concurrency), &done, reads).await?;
        let mut took: Vec<f64> = done.iter().map(|d| d.ms).collect();
        took.sort_by(f64::total_cmp);
        let jobs_per_s = took.len() as f64 / time.as_secs_f64();
        let name = format!("steps={steps} concurrency={concurrency}");
        let mut add = |metric, value: f64, unit| report.add("jobs", &name, metric, value, unit);
        add("jobs_per_s", jobs_per_s, "1/s");
        add("steps_per_s", jobs_per_s * steps as f64, "1/s");
        add("p50_ms", percentile(&took, 0.5), "ms");
        add("p99_ms", percentile(&took, 0.99), "ms");
        let us = used.as_secs_f64() * 1e6;
        add("cpu_us_per_job", us / (jobs_per_s * window).max(1.0), "us");
        add("commits_per_job", commits, "1");
        add("commits_per_batch", jobs_per_s * commits * window / batches.max(1) as f64, "1");
        let per_s = |a: Option<u64>, b: Option<u64>| Some((b? - a?) as f64 / window);
        match per_s(before.statements, after.statements) {
            Some(n) => add("statements_per_step", n / (jobs_per_s * steps as f64), "1"),
            None => report.unknown("jobs", &name, "statements_per_step", "no pg_stat_statements"),
        }
        match per_s(before.syncs, after.syncs) {
            Some(n) => report.add("jobs", &name, "fsyncs_per_s", n, "1/s"),
            None => report.unknown("jobs", &name, "fsyncs_per_s", "no pg_stat_wal"),
        }
        report.add("jobs", &name, "rss_mb", rss as f64 / 1e6, "MB");
        let resumed = signals::paced(self, steps, concurrency).await?;
        report.add("jobs", &name, "signal_to_resume_p50_ms", percentile(&resumed, 0.5), "ms");
        report.add("jobs", &name, "signal_to_resume_p99_ms", percentile(&resumed, 0.99), "ms");
        Ok(())
    }

    fn clients(
        &self,
        steps: usize,
        concurrency: usize,
        start: Duration,
        end: Duration,
    ) -> Vec<JoinHandle<Result<Vec<Done>, StoreError>>> {
        let start_one = |_| {
            let (way, rt) = (self.way.clone(), self.rt.clone());
            #[expect(clippy::disallowed_methods, reason = "a benchmark is process edge")]
            tokio::task::spawn(async move { client(&*way, &rt, steps, start, end).await })
        };
        (0..concurrency).map(start_one).collect()
    }

    /// So many clients for so long. What each counted job took, in milliseconds, sorted; every one of them was
    /// read back as completed.
    pub(crate) async fn window(
        &self,
        steps: usize,
        concurrency: usize,
        time: Duration,
    ) -> Result<Vec<f64>, StoreError> {
        let start = self.rt.mono() + time / 5;
        let done = joined(self.clients(steps, concurrency, start, start + time)).await?;
        self.all_completed(done.iter().map(|d| d.id)).await?;
        let mut took: Vec<f64> = done.iter().map(|d| d.ms).collect();
        took.sort_by(f64::total_cmp);
        Ok(took)
    }

    /// Has so many one-step jobs done, so many at once.
    pub(crate) async fn finish(&self, jobs: usize, at_once: usize) -> Result<(), StoreError> {
        let left = Arc::new(AtomicUsize::new(jobs));
        let start_one = |_| {
            let (way, left) = (self.way.clone(), left.clone());
            let take = move || left.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)).is_ok();
            #[expect(clippy::disallowed_methods, reason = "a benchmark is process edge")]
            tokio::task::spawn(async move {
                while take() {
                    way.done(input(1, None)).await?;
                }
                Ok::<_, StoreError>(())
            })
        };
        let clients: Vec<_> = (0..at_once).map(start_one).collect();
        for client in clients {
            client.await.map_err(|e| wrong(format!("a client panicked: {e}")))??;
        }
        Ok(())
    }

    /// Jobs that were completed through this bench.
    pub(crate) fn finished(&self) -> usize {
        usize::try_from(self.store.completed.load(Relaxed)).unwrap_or(usize::MAX)
    }

    /// Reads heads back and fails unless all of them are completed.
    pub(crate) async fn all_completed(
        &self,
        ids: impl Iterator<Item = EntityId>,
    ) -> Result<(), StoreError> {
        let read = |id: EntityId| async move {
            let head = self.store.head(id).await?;
            match head.map_or("missing", |h| h.status.name()) {
                "completed" => Ok(()),
                other => Err(wrong(format!("job {id} was counted and is {other}"))),
            }
        };
        stream::iter(ids.map(read)).buffer_unordered(8).try_collect().await
    }

    fn reads(&self) -> u64 {
        self.store.history_reads.load(Relaxed)
    }

    fn batches(&self) -> u64 {
        self.store.batches.load(Relaxed)
    }

    /// Reads every counted job back. Returns commits per job.
    async fn check(
        &self,
        (steps, concurrency): (usize, usize),
        done: &[Done],
        reads: u64,
    ) -> Result<f64, StoreError> {
        let read = |id: EntityId| async move {
            let head = self.store.head(id).await?;
            let status = head.map_or("missing", |h| h.status.name());
            let commits = self.store.stream(id, 1, 1_000).await?.len();
            Ok::<_, StoreError>((id, status, commits))
        };
        let all: Vec<_> =
            stream::iter(done.iter().map(|d| read(d.id))).buffer_unordered(8).collect().await;
        let (mut total, mut over) = (0, Vec::new());
        for one in all {
            let (id, status, commits) = one?;
            if status != "completed" {
                return Err(wrong(format!("job {id} was counted and is {status}")));
            }
            total += commits;
            if commits > self.way.commits_max(steps) {
                over.push((id, commits));
            }
        }
        // A worker that looks into its queue meets a submission now and then; what is usual is what counts, in short runs too.
        let allowed = (done.len() / 100).max(OVER_ALLOWED);
        if over.len() > allowed {
            return Err(wrong(format!(
                "{} of {} jobs of {steps} steps, {concurrency} at once, took more than {} commits, for example {:?}",
                over.len(),
                done.len(),
                self.way.commits_max(steps),
                over.first(),
            )));
        }
        if reads > over.len() as u64 {
            return Err(wrong(format!("history was read {reads} times while nothing went wrong")));
        }
        Ok(total as f64 / done.len().max(1) as f64)
    }
}

pub(crate) fn wrong(why: String) -> StoreError {
    StoreError::Refused(why)
}

async fn joined(
    clients: Vec<JoinHandle<Result<Vec<Done>, StoreError>>>,
) -> Result<Vec<Done>, StoreError> {
    let mut done = Vec::new();
    for client in clients {
        let did = client.await.map_err(|e| wrong(format!("a client panicked: {e}")))?;
        done.extend(did?);
    }
    Ok(done)
}

struct Done {
    id: EntityId,
    ms: f64,
}

async fn client(
    way: &dyn Way,
    rt: &Rt,
    steps: usize,
    start: Duration,
    end: Duration,
) -> Result<Vec<Done>, StoreError> {
    let mut all = Vec::new();
    loop {
        let sent = rt.mono();
        if sent >= end {
            return Ok(all);
        }
        let id = way.done(input(steps, None)).await?;
        let done = rt.mono();
        if sent >= start && done <= end {
            all.push(Done { id, ms: (done - sent).as_secs_f64() * 1000.0 });
        }
    }
}

/// Resident memory of a process, in bytes; nothing where there is no `/proc`.
pub(crate) fn memory_of(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let kb = line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kb.unwrap_or(0) * 1024
}

/// Processor time of a process, user and system, in the hundredths of a second in which Linux tells it.
pub(crate) fn processor_of(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name may hold anything, so count from behind its bracket: user and system are the 12th and 13th.
    let rest = stat.rsplit(')').next().unwrap_or_default();
    let ticks = rest.split_whitespace().skip(11).take(2).filter_map(|t| t.parse::<u64>().ok());
    Duration::from_millis(ticks.sum::<u64>() * 10)
}
