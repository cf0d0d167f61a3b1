//! `bench drain`: how fast a full queue is emptied.
//!
//! So many jobs are submitted while nobody works, so that all of them lie in their queue. Then a worker starts and
//! the clock with it. The clock stops when every job's end is durable and the store, asked, knows of none that is
//! still open. Afterwards every job is read back by its id, and one that is not completed fails the run.

use crate::{
    jobs::{
        FLOW, Kit,
        here::Office,
        http::{self, Worker},
        input, memory_of, wrong,
    },
    place::Place,
    report::Case,
};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
use tenure_edge::executor_of_this_process;
use tenure_engine::stop::{Stopper, stopper};
use tenure_jobs::{
    catalogue,
    crew::{Crew, CrewOptions},
    drive::{JobOptions, Shop},
    submit::{Submission, Submitter},
};
use tenure_kernel::{
    error::StoreError,
    ids::EntityId,
    store::{HeadFilter, Store as _},
};

/// How much, and who works it off.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Jobs in the queue.
    pub jobs: usize,
    /// Tool steps per job.
    pub steps: usize,
    /// Jobs that the worker runs at once.
    pub slots: usize,
    /// The worker in another process, over HTTP.
    pub http: bool,
}

/// What came of it. Every job was read back as completed.
#[derive(Clone, Debug)]
pub struct Drained {
    /// The engine.
    pub store: &'static str,
    /// What was asked for.
    pub options: Options,
    /// From the start of the worker until nothing was open any more.
    pub seconds: f64,
    /// Jobs per second of that time.
    pub per_second: f64,
    /// Submissions per second before, by one process.
    pub submitted_per_second: f64,
    /// Operations that shared one transaction, on average, while the queue was emptied. Claims not counted.
    pub commits_per_batch: f64,
    /// Reads of history per job.
    pub history_reads_per_job: f64,
    /// Memory of this process afterwards, in MB; it holds server, store and, without HTTP, the worker.
    pub rss_mb: f64,
}

impl Drained {
    /// For the report.
    pub fn case(&self) -> Case {
        Case::of("drain")
            .with("store", self.store)
            .with("jobs", self.options.jobs)
            .with("steps", self.options.steps)
            .measured("seconds", self.seconds)
            .measured("per_second", self.per_second)
            .with("completed", self.options.jobs)
            .with("slots", self.options.slots)
            .with("http", self.options.http)
            .measured("submitted_per_second", self.submitted_per_second)
            .measured("commits_per_batch", self.commits_per_batch)
            .measured("history_reads_per_job", self.history_reads_per_job)
            .measured("rss_mb", self.rss_mb)
    }
}

/// Submissions at once.
const SUBMITTED_AT_ONCE: usize = 500;
/// A queue that is not empty after this long is not being emptied.
const TOO_LONG: Duration = Duration::from_secs(1_800);

/// A worker, here or elsewhere. Ends when dropped.
enum Working {
    Here(Box<Crew>),
    Elsewhere { _worker: Worker, _serving: Stopper },
}

/// Runs the suite.
pub async fn run(
    place: &Place,
    kit: Kit,
    postgres_flights: usize,
    options: Options,
) -> Result<Drained, StoreError> {
    let office = Office::open(place, &kit, postgres_flights).await?;
    let pipeline = &office.node.pipeline;
    let rt = pipeline.rt().clone();
    catalogue::register(pipeline, "", kit.flows.iter(), kit.tools.iter()).await?;
    let began = rt.mono();
    let jobs = fill(&office, &kit, options).await?;
    let submitting = (rt.mono() - began).as_secs_f64();
    let before = [&office.store.batches, &office.store.commits, &office.store.history_reads]
        .map(|count| count.load(Relaxed));
    if office.store.completed.load(Relaxed) > 0 {
        return Err(wrong("a job ended before a worker was there".into()));
    }

    let began = rt.mono();
    let mut working = start(&office, kit, options).await?;
    while office.store.completed.load(Relaxed) < options.jobs as u64 {
        if rt.mono() - began > TOO_LONG {
            let done = office.store.completed.load(Relaxed);
            return Err(wrong(format!("{done} of {} jobs are completed", options.jobs)));
        }
        rt.sleep(Duration::from_millis(1)).await;
    }
    let open = HeadFilter {
        kind: Some("job".into()),
        statuses: ["queued", "running", "waiting", "retrying"].map(str::to_owned).to_vec(),
        ..HeadFilter::default()
    };
    if let Some(head) = office.store.heads(open, 1).await?.first() {
        return Err(wrong(format!("job {} is {} after the end", head.id, head.status.name())));
    }
    let seconds = (rt.mono() - began).as_secs_f64();
    let [batches, commits, reads] =
        [&office.store.batches, &office.store.commits, &office.store.history_reads]
            .map(|count| count.load(Relaxed));
    let rss_mb = memory_of(std::process::id()) as f64 / 1e6;
    if let Working::Here(crew) = &mut working {
        crew.stop().await;
    }
    drop(working);
    let read = |id: EntityId| async move {
        let head = place.store.head(id).await?;
        match head.map_or("missing", |h| h.status.name()) {
            "completed" => Ok(()),
            other => Err(wrong(format!("job {id} was counted as completed and is {other}"))),
        }
    };
    stream::iter(jobs.into_iter().map(read)).buffer_unordered(8).try_collect::<()>().await?;
    let n = options.jobs.max(1) as f64;
    Ok(Drained {
        store: place.engine(),
        options,
        seconds,
        per_second: n / seconds,
        submitted_per_second: n / submitting,
        commits_per_batch: (commits - before[1]) as f64 / (batches - before[0]).max(1) as f64,
        history_reads_per_job: (reads - before[2]) as f64 / n,
        rss_mb,
    })
}

/// Submits everything; without a worker all of it waits.
async fn fill(office: &Office, kit: &Kit, options: Options) -> Result<Vec<EntityId>, StoreError> {
    let defaults = JobOptions::default();
    let submitter = &Submitter::new(
        office.node.pipeline.gathering(),
        kit.judge.clone(),
        defaults.must_end_in,
        defaults.takeovers_max,
    );
    let submit = |_| async move {
        let submission = Submission {
            flow: FLOW.into(),
            version: Some(1),
            input: input(options.steps, None),
            // The worker of `--http` has no key, and so works for this tenant alone.
            tenant: "default".into(),
            ..Submission::default()
        };
        submitter.submit(submission).await.map(|s| s.id).map_err(|e| wrong(e.to_string()))
    };
    stream::iter((0..options.jobs).map(submit))
        .buffer_unordered(SUBMITTED_AT_ONCE)
        .try_collect()
        .await
}

async fn start(office: &Office, kit: Kit, options: Options) -> Result<Working, StoreError> {
    if options.http {
        let (serving, stop) = stopper();
        let url = http::serve(&office.node, kit, stop).await?;
        let worker = http::start_worker(&url, options.slots)?;
        return Ok(Working::Elsewhere { _worker: worker, _serving: serving });
    }
    let shop = Arc::new(Shop::new(kit.flows, kit.tools, JobOptions::default()));
    let crew = CrewOptions {
        name: "bench".into(),
        executor: executor_of_this_process(),
        slots: options.slots,
        drain: Duration::from_secs(5),
    };
    let pipeline = office.node.pipeline.clone();
    Crew::start(pipeline, office.config.clone(), shop, crew).await.map(Box::new).map(Working::Here)
}
