//! `bench serial`: how long one job at a time takes, beside one durable write of the same engine.
//!
//! A job of ten steps that do nothing is submitted, its end awaited, then the engine alone does one-row commits of
//! the same bytes, then the next job: both meet the same disk and the same neighbours. *Per step* is the time of
//! the whole job, from its submission to its known end, divided by its steps; so it carries the birth and the end of
//! the job too. *Start* is from the submission until the first call is durably started: it is part of the commit
//! that creates the job, so nobody polls for it.

use crate::{
    jobs::{Bench, Way, count::Counting, input, wrong},
    raw::Raw,
    report::{Case, percentile},
};
use std::time::Duration;
use tenure_kernel::{error::StoreError, ids::EntityId, runtime::Rt};

/// How many.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Jobs, one after the other.
    pub jobs: usize,
    /// Tool steps per job.
    pub steps: usize,
}

/// What came of it. Every job was read back as completed.
#[derive(Clone, Debug)]
pub struct Serial {
    /// The engine.
    pub store: &'static str,
    /// What was asked for.
    pub options: Options,
    /// One-row commit of the engine alone.
    pub raw: Spread,
    /// A whole job divided by its steps.
    pub step: Spread,
    /// From one durable commit of a job to its next.
    pub between_commits: Spread,
    /// A whole job.
    pub job: Spread,
    /// Submission to the durable start of the first call.
    pub start: Spread,
    /// Median step to median raw commit.
    pub ratio: f64,
}

/// Milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    /// Half are faster.
    pub p50: f64,
    /// One in a hundred is slower.
    pub p99: f64,
}

impl Spread {
    fn of(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        Spread { p50: percentile(&samples, 0.5), p99: percentile(&samples, 0.99) }
    }
}

impl Serial {
    /// For the report.
    pub fn case(&self) -> Case {
        Case::of("serial")
            .with("store", self.store)
            .with("jobs", self.options.jobs)
            .with("steps", self.options.steps)
            .measured("raw_commit_p50_ms", self.raw.p50)
            .measured("raw_commit_p99_ms", self.raw.p99)
            .measured("step_p50_ms", self.step.p50)
            .measured("step_p99_ms", self.step.p99)
            .measured("step_to_raw", self.ratio)
            .measured("between_commits_p50_ms", self.between_commits.p50)
            .measured("between_commits_p99_ms", self.between_commits.p99)
            .measured("job_p50_ms", self.job.p50)
            .measured("job_p99_ms", self.job.p99)
            .measured("submit_to_start_p50_ms", self.start.p50)
            .measured("submit_to_start_p99_ms", self.start.p99)
    }
}

/// Jobs before anything is measured: statements are prepared, caches filled.
const WARM_UP: usize = 20;

/// Runs the suite. The client is a task of the runtime, as it is in a server.
pub async fn run(bench: &Bench<'_>, options: Options) -> Result<Serial, StoreError> {
    let (place, raw) = (bench.place, bench.place.raw().await?);
    let (store, way, rt) = (bench.store.clone(), bench.way.clone(), bench.rt.clone());
    #[expect(clippy::disallowed_methods, reason = "a benchmark is process edge")]
    let client = tokio::task::spawn(async move { client(&store, &*way, &rt, raw, options).await });
    let took = client.await.map_err(|e| wrong(format!("the client panicked: {e}")))??;
    bench.all_completed(took.ids.into_iter()).await?;
    let steps = options.steps.max(1) as f64;
    let (raw, job) = (Spread::of(took.raw), Spread::of(took.jobs));
    let step = Spread { p50: job.p50 / steps, p99: job.p99 / steps };
    let (between_commits, start) = (Spread::of(took.between), Spread::of(took.starts));
    let ratio = step.p50 / raw.p50;
    Ok(Serial { store: place.engine(), options, raw, step, between_commits, job, start, ratio })
}

/// Samples, in milliseconds, and the jobs that gave them.
#[derive(Default)]
struct Took {
    ids: Vec<EntityId>,
    raw: Vec<f64>,
    jobs: Vec<f64>,
    starts: Vec<f64>,
    between: Vec<f64>,
}

async fn client(
    store: &Counting,
    way: &dyn Way,
    rt: &Rt,
    mut raw: Raw,
    options: Options,
) -> Result<Took, StoreError> {
    let mut all = Took::default();
    let ms = |d: Duration| d.as_secs_f64() * 1000.0;
    for n in 0..WARM_UP + options.jobs {
        store.note();
        let sent = rt.mono();
        all.ids.push(way.done(input(options.steps, None)).await?);
        let took = rt.mono() - sent;
        let commits = store.noted();
        let one_row = one_row_commits(&mut raw, options.steps).await?;
        if n < WARM_UP {
            continue;
        }
        let started = commits.iter().find(|c| c.1);
        let started = started.ok_or_else(|| wrong("a job ended and started nothing".into()))?;
        all.jobs.push(ms(took));
        all.starts.push(ms(started.0.saturating_sub(sent)));
        let gaps = commits.windows(2).map(|pair| ms(pair[1].0.saturating_sub(pair[0].0)));
        all.between.extend(gaps);
        all.raw.extend(one_row);
    }
    Ok(all)
}

/// As many one-row commits of the engine alone; milliseconds each.
async fn one_row_commits(raw: &mut Raw, n: usize) -> Result<Vec<f64>, StoreError> {
    let mut took = Vec::with_capacity(n);
    for _ in 0..n {
        took.push(raw.one_row().await?.as_secs_f64() * 1000.0);
    }
    Ok(took)
}
