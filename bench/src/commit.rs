//! `bench commit`: commits per second and their latency at 1, 50, 200 and 500 concurrent callers.
//!
//! A commit here is a realistic tool step: three events with bodies of 200 bytes, the new state of the
//! machine in the head, and a timer. Each caller holds an entity and commits as fast as it is answered.
//! Beside each case stands the raw limit: the same engine, durability and bytes, in batches of as many
//! rows as there are callers, in a tight loop, by one writer.

use crate::{
    place::Place,
    report::{Report, counted, percentile},
};
use std::{sync::Arc, time::Duration};
use tenure_engine::{birth::random, config::EngineConfig, pipeline::Pipeline, session::Keeper};
use tenure_kernel::{
    commit::{Birth, Commit, CommitAnswer, Expect, TenureChange},
    error::StoreError,
    ids::EntityId,
    stream::{Body, NewEvent},
    table::{BIRTH, Claimable, Class, Move, SAME, StatusRow, Table},
    timers::TimerChange,
};

/// The machine of the benchmark: a held entity that takes steps.
pub static STEPPER: Table = Table {
    kind: "stepper",
    doc: "Takes steps for the benchmark.",
    statuses: &[
        StatusRow {
            name: "running",
            class: Class::Open,
            claimable: Claimable::No,
            doc: "Takes steps.",
        },
        StatusRow {
            name: "failed",
            class: Class::Final,
            claimable: Claimable::No,
            doc: "Was stopped.",
        },
    ],
    moves: &[
        Move { from: BIRTH, event: "started", to: "running" },
        Move { from: &["running"], event: "tool_invocation_finished", to: SAME },
        Move { from: &["running"], event: "command_committed", to: SAME },
        Move { from: &["running"], event: "node_finished", to: SAME },
    ],
    forced: "failed",
};

/// How long and how wide.
#[derive(Clone, Debug)]
pub struct Options {
    /// Concurrent callers, one case each.
    pub callers: Vec<usize>,
    /// Time per case, after a warm-up of a fifth of it.
    pub time: Duration,
}

/// Runs the suite.
pub async fn run(
    place: &mut Place,
    postgres_flights: usize,
    options: &Options,
) -> Result<Report, StoreError> {
    let mut raw = place.raw().await?;
    let flights = place.flights(postgres_flights);
    let rt: tenure_kernel::runtime::Rt = Arc::new(tenure_edge::TokioRuntime::current());
    let config = EngineConfig { flights, ..EngineConfig::default() };
    let bell = Arc::new(tenure_kernel::bell::Silent);
    let pipeline = Pipeline::new(place.store.clone(), bell, rt, &config);
    let keeper = Keeper::open(pipeline.clone(), Arc::new(config), "bench", "worker", None).await?;
    let mut report = Report::default();
    for callers in &options.callers {
        // Raw before and after, and the better of the two: a noisy neighbour must not flatter us.
        let before = raw.measure(*callers, options.time / 3).await?;
        let ours = case(&pipeline, &keeper, *callers, options.time).await?;
        let after = raw.measure(*callers, options.time / 3).await?;
        let limit = if before.rows_per_second > after.rows_per_second { &before } else { &after };
        let name = format!("callers={callers}");
        let mut add = |metric, value, unit| report.add("commit", &name, metric, value, unit);
        add("commits_per_second", ours.per_second, "1/s");
        add("latency_p50", ours.p50_ms, "ms");
        add("latency_p99", ours.p99_ms, "ms");
        add("raw_per_second", limit.rows_per_second, "1/s");
        add("raw_latency_p50", limit.p50_ms, "ms");
        add("ratio_to_raw", ours.per_second / limit.rows_per_second, "ratio");
        add("latency_to_raw", ours.p50_ms / limit.p50_ms, "ratio");
    }
    keeper.end().await;
    Ok(report)
}

struct Measured {
    per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
}

async fn case(
    pipeline: &Pipeline,
    keeper: &Keeper,
    callers: usize,
    time: Duration,
) -> Result<Measured, StoreError> {
    let (samples, time) =
        counted(time, async |time| window(pipeline, keeper, callers, time).await).await?;
    Ok(Measured {
        per_second: samples.len() as f64 / time.as_secs_f64(),
        p50_ms: percentile(&samples, 0.5),
        p99_ms: percentile(&samples, 0.99),
    })
}

/// The latencies of the commits in a window of this length, in milliseconds, sorted.
async fn window(
    pipeline: &Pipeline,
    keeper: &Keeper,
    callers: usize,
    time: Duration,
) -> Result<Vec<f64>, StoreError> {
    let rt = pipeline.rt().clone();
    let start = rt.mono() + time / 5;
    let end = start + time;
    let tasks: Vec<_> = (0..callers)
        .map(|_| {
            let (pipeline, keeper) = (pipeline.clone(), keeper.clone());
            #[expect(clippy::disallowed_methods, reason = "a benchmark is process edge")]
            tokio::task::spawn(async move { caller(&pipeline, &keeper, start, end).await })
        })
        .collect();
    let mut samples = Vec::new();
    for task in tasks {
        let took =
            task.await.map_err(|e| StoreError::Refused(format!("a caller panicked: {e}")))?;
        samples.extend(took?);
    }
    samples.sort_by(f64::total_cmp);
    Ok(samples)
}

/// Commits steps on an entity of its own; returns the latencies inside the window, in milliseconds.
async fn caller(
    pipeline: &Pipeline,
    keeper: &Keeper,
    start: Duration,
    end: Duration,
) -> Result<Vec<f64>, StoreError> {
    let rt = pipeline.rt();
    let commit = born(pipeline, keeper).await?;
    let id = commit.entity;
    let (mut epoch, mut version) = expect_committed(pipeline.commit(commit).await?)?;
    let mut took = Vec::new();
    loop {
        let sent = rt.mono();
        if sent >= end {
            return Ok(took);
        }
        let commit = step(pipeline, id, epoch, version);
        (epoch, version) = expect_committed(pipeline.commit(commit).await?)?;
        let done = rt.mono();
        if sent >= start && done <= end {
            took.push((done - sent).as_secs_f64() * 1000.0);
        }
    }
}

fn expect_committed(answer: CommitAnswer) -> Result<(u64, u64), StoreError> {
    match answer {
        CommitAnswer::Committed(c) => Ok((c.epoch, c.version)),
        other => {
            Err(StoreError::Refused(format!("the benchmark's own commit was answered {other:?}")))
        }
    }
}

fn event(name: &'static str, bytes: usize) -> NewEvent {
    NewEvent::new(name, Body::Inline(vec![b'x'; bytes]))
}

/// The birth of an entity that its creator holds from the start.
pub async fn born(pipeline: &Pipeline, keeper: &Keeper) -> Result<Commit, StoreError> {
    let id = EntityId::new(pipeline.store().now().await?, random(pipeline));
    let birth =
        Birth { kind: STEPPER.kind, tenant: "bench".into(), queue: String::new(), priority: 0 };
    let mut commit =
        Commit::new(pipeline.commit_id(), id, Expect::Absent(birth), vec![event("started", 50)]);
    commit.must_end_in = Some(Duration::from_secs(3600));
    commit.tenure = TenureChange::Take { session: keeper.id(), lease: Duration::from_secs(3600) };
    Ok(commit)
}

/// One tool step.
pub fn step(pipeline: &Pipeline, id: EntityId, epoch: u64, version: u64) -> Commit {
    let events = ["tool_invocation_finished", "command_committed", "node_finished"]
        .map(|name| event(name, 200));
    let mut commit =
        Commit::new(pipeline.commit_id(), id, Expect::Holder { epoch, version }, events.into());
    commit.state = Some(vec![b's'; 200]);
    commit.timers = vec![TimerChange::guard("step", Duration::from_secs(300))];
    commit
}

/// Bytes that one step writes: its record (three bodies with their names, hashes and ids) and its head
/// (state, timer, chain and clocks). A raw row carries as many.
pub const STEP_BYTES: usize = 3 * (200 + 24) + 100 + 200 + 160;
