//! `bench serial`: how long one job at a time takes, beside one durable write of the same engine.
//!
//! A job of ten steps that do nothing is submitted, its end awaited, then the engine alone does one-row commits of
//! the same bytes, then the next job: both meet the same disk and the same neighbours. *Per step* is the time of
//! the whole job, from its submission to its known end, divided by its steps; so it carries the birth and the end of
//! the job too. *Start* is from the submission until the first call is durably started: it is part of the commit
//! that creates the job, so nobody polls for it.

use crate::{
    jobs::{Bench, input, wrong},
    raw::Raw,
    report::{Case, percentile},
};
use std::time::Duration;
use tenure_kernel::error::StoreError;

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

/// Runs the suite.
pub async fn run(bench: &Bench<'_>, options: Options) -> Result<Serial, StoreError> {
    let place = bench.place;
    let mut raw = place.raw().await?;
    let rt = &bench.rt;
    let (mut raws, mut jobs, mut starts, mut between) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut ids = Vec::new();
    let ms = |d: Duration| d.as_secs_f64() * 1000.0;
    for n in 0..WARM_UP + options.jobs {
        bench.store.note();
        let sent = rt.mono();
        ids.push(bench.way.done(input(options.steps, None)).await?);
        let took = rt.mono() - sent;
        let commits = bench.store.noted();
        let one_row = one_row_commits(&mut raw, options.steps).await?;
        if n < WARM_UP {
            continue;
        }
        let started = commits.iter().find(|c| c.1);
        let started = started.ok_or_else(|| wrong("a job ended and started nothing".into()))?;
        jobs.push(ms(took));
        starts.push(ms(started.0.saturating_sub(sent)));
        between.extend(commits.windows(2).map(|pair| ms(pair[1].0.saturating_sub(pair[0].0))));
        raws.extend(one_row);
    }
    bench.all_completed(ids.into_iter()).await?;
    let steps = options.steps.max(1) as f64;
    let (raw, job) = (Spread::of(raws), Spread::of(jobs));
    let step = Spread { p50: job.p50 / steps, p99: job.p99 / steps };
    let (between_commits, start) = (Spread::of(between), Spread::of(starts));
    let ratio = step.p50 / raw.p50;
    Ok(Serial { store: place.engine(), options, raw, step, between_commits, job, start, ratio })
}

/// As many one-row commits of the engine alone; milliseconds each.
async fn one_row_commits(raw: &mut Raw, n: usize) -> Result<Vec<f64>, StoreError> {
    let mut took = Vec::with_capacity(n);
    for _ in 0..n {
        took.push(raw.one_row().await?.as_secs_f64() * 1000.0);
    }
    Ok(took)
}
