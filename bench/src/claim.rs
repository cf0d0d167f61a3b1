//! `bench claim`: what a claim costs while the history grows, and while somebody holds an old snapshot
//! open (a backup, say). Both must be flat: claiming costs index probes, whatever lies around.

use crate::{
    place::Place,
    report::{Report, percentile},
};
use futures_util::future::join_all;
use std::{sync::Arc, time::Duration};
use tenure_engine::{
    birth::random, claimer::Claimer, config::EngineConfig, pipeline::Pipeline, session::Keeper,
};
use tenure_kernel::{
    commit::{Birth, Commit, CommitAnswer, Expect, MailStance, TenureChange},
    error::StoreError,
    ids::EntityId,
    stream::{Body, NewEvent},
    table::{BIRTH, Claimable, Class, Move, StatusRow, Table, kernel_events as ke},
};

/// The machine of the benchmark: waits in a queue, is claimed, and ends.
pub static TICKET: Table = Table {
    kind: "ticket",
    doc: "Waits in a queue for the benchmark.",
    statuses: &[
        StatusRow {
            name: "queued",
            class: Class::Open,
            claimable: Claimable::Queued,
            doc: "Waits.",
        },
        StatusRow {
            name: "running",
            class: Class::Open,
            claimable: Claimable::No,
            doc: "Is held.",
        },
        StatusRow { name: "done", class: Class::Final, claimable: Claimable::No, doc: "Is over." },
        StatusRow {
            name: "failed",
            class: Class::Final,
            claimable: Claimable::No,
            doc: "Was stopped.",
        },
    ],
    moves: &[
        Move { from: BIRTH, event: "made", to: "queued" },
        Move { from: BIRTH, event: "made_done", to: "done" },
        Move { from: &["queued"], event: ke::CLAIMED, to: "running" },
        Move { from: &["running"], event: ke::TENURE_ENDED, to: "queued" },
        Move { from: &["running"], event: "ended", to: "done" },
    ],
    forced: "failed",
};

const QUEUE: &str = "bench";
/// Claims measured per case, in claims of this many.
const CLAIMS: usize = 2_000;
const PER_CLAIM: usize = 10;

/// Runs the suite. Cases are cumulative: history only grows.
pub async fn run(place: &mut Place, finished: &[usize]) -> Result<Report, StoreError> {
    let rt: tenure_kernel::runtime::Rt = Arc::new(tenure_edge::TokioRuntime::current());
    let config = EngineConfig {
        flights: place.flights(4),
        lease: Duration::from_secs(3600),
        ..EngineConfig::default()
    };
    let pipeline =
        Pipeline::new(place.store.clone(), Arc::new(tenure_kernel::bell::Silent), rt, &config);
    let keeper = Keeper::open(pipeline.clone(), Arc::new(config), "bench", "worker", None).await?;
    let mut report = Report::default();
    let mut there = 0;
    for target in finished {
        while there < *target {
            let n = (*target - there).min(2_000);
            make(&pipeline, n, "made_done", None).await?;
            there += n;
        }
        case(&mut report, &pipeline, &keeper, &format!("finished={target}")).await?;
    }
    if let Some(client) = place.client().await? {
        let refused = |e: tokio_postgres::Error| StoreError::Refused(e.to_string());
        client
            .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM ready")
            .await
            .map_err(refused)?;
        for round in 1..=5 {
            case(&mut report, &pipeline, &keeper, &format!("old_snapshot_round={round}")).await?;
        }
        client.batch_execute("COMMIT").await.map_err(refused)?;
    }
    keeper.end().await;
    Ok(report)
}

async fn case(
    report: &mut Report,
    pipeline: &Pipeline,
    keeper: &Keeper,
    name: &str,
) -> Result<(), StoreError> {
    make(pipeline, CLAIMS, "made", Some(Duration::from_secs(3600))).await?;
    let rt = pipeline.rt().clone();
    let mut claimer = Claimer::new(keeper.clone());
    let (mut took, mut claimed) = (Vec::new(), Vec::new());
    let start = rt.mono();
    while claimed.len() < CLAIMS {
        let sent = rt.mono();
        let got = claimer.claim(QUEUE, PER_CLAIM, false).await?;
        took.push((rt.mono() - sent).as_secs_f64() * 1000.0);
        claimed.extend(got.into_iter().map(|f| f.claimed.head));
    }
    let time = (rt.mono() - start).as_secs_f64();
    let gathering = &pipeline.gathering();
    let ends = claimed.iter().map(|head| {
        let expect = Expect::Holder { epoch: head.epoch, version: head.version };
        let mut commit = Commit::new(pipeline.commit_id(), head.id, expect, vec![event("ended")]);
        commit.mail = MailStance::ReadAll(0);
        commit.tenure = TenureChange::End;
        gathering.commit(commit)
    });
    expect_all(join_all(ends).await)?;
    took.sort_by(f64::total_cmp);
    report.add("claim", name, "claims_per_second", claimed.len() as f64 / time, "1/s");
    report.add("claim", name, "latency_p50", percentile(&took, 0.5), "ms");
    report.add("claim", name, "latency_p99", percentile(&took, 0.99), "ms");
    Ok(())
}

fn event(name: &'static str) -> NewEvent {
    NewEvent::new(name, Body::Inline(Vec::new()))
}

async fn make(
    pipeline: &Pipeline,
    n: usize,
    birth_event: &'static str,
    must_end_in: Option<Duration>,
) -> Result<(), StoreError> {
    let now = pipeline.store().now().await?;
    let pipeline = &pipeline.gathering();
    let births = (0..n).map(|_| {
        let birth =
            Birth { kind: TICKET.kind, tenant: "bench".into(), queue: QUEUE.into(), priority: 0 };
        let id = EntityId::new(now, random(pipeline));
        let mut commit =
            Commit::new(pipeline.commit_id(), id, Expect::Absent(birth), vec![event(birth_event)]);
        commit.must_end_in = must_end_in;
        pipeline.commit(commit)
    });
    expect_all(join_all(births).await)
}

fn expect_all(answers: Vec<Result<CommitAnswer, StoreError>>) -> Result<(), StoreError> {
    for answer in answers {
        match answer? {
            CommitAnswer::Committed(_) => {}
            other => {
                return Err(StoreError::Refused(format!(
                    "the benchmark's own commit was answered {other:?}"
                )));
            }
        }
    }
    Ok(())
}
