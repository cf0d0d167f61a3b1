//! Two workers at one step, and two results for one key.

use super::{five_acts, five_lines, row, thief::Thief};
use crate::drill::{
    case::Case,
    ground::{Ground, Layout},
    matrix::Witnessed,
    witness::Expected,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use tenure::commands::Failure;

/// Workers that are started at once.
const WORKERS: usize = 4;
/// Jobs that they race for.
const JOBS: usize = 8;
/// Sessions that claim one job at the same moment.
const CLAIMANTS: usize = 64;

/// All of them.
pub fn cases() -> Vec<Case> {
    let woken = |row, name: &str, point: &'static str, class: &'static str| {
        Case::new(row, name, move |g| both(g, point, class))
    };
    vec![
        woken(row::RIVALS, "one sleeps after its claim", "claimed:1:stop", "irreversible"),
        woken(row::RIVALS, "both at one step", "before_call:2:stop", "idempotent"),
        Case::new(row::RIVALS, format!("{WORKERS} workers, {JOBS} jobs"), race),
        Case::new(row::LEDGER, format!("{CLAIMANTS} claims of one job"), claims),
        woken(row::LEDGER, "two results for one key", "after_call:2:stop", "idempotent"),
        woken(row::LEDGER, "two results for one key, directory", "after_call:2:stop", "idempotent")
            .layout(Layout::Separate),
        Case::new(row::LEDGER, "the one that called is dead", |g| dead(g, "idempotent")),
        Case::new(row::LEDGER, "the one that called is dead, probed", |g| dead(g, "verifiable")),
    ]
}

/// The first worker is stopped at a point, the second one takes over, the first one wakes up.
async fn both(ground: Ground, point: &str, class: &str) -> Result<Witnessed, Failure> {
    let mut seen = Witnessed::default();
    let mut expected = Expected { acts: five_acts(class), ..Expected::default() };
    if !point.starts_with("claimed") {
        expected.settled.push("first".into());
    }
    let mut first = ground.worker(Some(point))?;
    let job = ground.submit(five_lines(class)).await?;
    first.until_said("drill: ").await?;
    let before = ground.attempt(&job).await;
    let _second = ground.worker(None)?;
    seen.recoveries.extend(ground.taken_over(&job, before).await);
    // The second one is past the step before the first one wakes up.
    let past = |j: &Value| j["status"] == "waiting" || j["status"] == "parked";
    ground.until(&job, past).await;
    let acts = ground.outside.count("it");
    first.send(Signal::CONT);
    first.until_lost().await?;
    let late = ground.outside.count("it") > acts;
    ground.signal(&job, "go", &json!(7)).await?;
    expected.signal = Some(("go".into(), json!(7)));
    ground.finish(&job, "it", &mut expected).await?;
    seen.and(ground.judged(&job, &expected).await);
    let against = late.then(|| "a worker that had lost the job acted for it".to_owned());
    seen.judged(super::column::EFFECT_ONCE, against.into_iter().collect());
    Ok(seen)
}

async fn race(ground: Ground) -> Result<Witnessed, Failure> {
    let mut seen = Witnessed::default();
    // Registers the flow, and is gone before anybody races.
    let mut herald = ground.ready_worker(None).await?;
    herald.send(Signal::TERM);
    herald.ended().await?;
    let mut jobs = Vec::new();
    for i in 0..JOBS {
        let name = format!("it{i}");
        let lines = json!([super::act("irreversible", &name), super::signal("go")]);
        jobs.push((ground.submit(lines).await?, name));
    }
    let workers: Result<Vec<_>, _> = (0..WORKERS).map(|_| ground.worker(None)).collect();
    let _workers = workers?;
    for (job, name) in &jobs {
        ground.signal(job, "go", &json!(name)).await?;
    }
    for (job, name) in &jobs {
        let mut expected = Expected {
            acts: vec![(name.clone(), "irreversible".into())],
            signal: Some(("go".into(), json!(name))),
            ..Expected::default()
        };
        ground.finish(job, name, &mut expected).await?;
        seen.and(ground.judged(job, &expected).await);
    }
    Ok(seen)
}

/// Arbitration is the store's: of many claims at the same moment one wins.
async fn claims(ground: Ground) -> Result<Witnessed, Failure> {
    let mut herald = ground.ready_worker(None).await?;
    herald.send(Signal::TERM);
    herald.ended().await?;
    let job = ground.submit(five_lines("irreversible")).await?;
    // It may have been laid out for the worker that has just left, and comes back from there.
    ground.until_status(&job, "queued").await;
    let opening = (0..CLAIMANTS).map(|_| Thief::open(&ground));
    let claimants: Result<Vec<_>, _> =
        futures_util::future::join_all(opening).await.into_iter().collect();
    let claimants = claimants?;
    let taking = claimants.iter().map(|c| c.takes(&job));
    let taken = futures_util::future::join_all(taking).await;
    let winners = taken.iter().filter(|t| matches!(t, Ok(Ok(())))).count();
    let refused = taken.iter().find_map(|t| t.as_ref().ok()?.as_ref().err());
    let refused = refused.cloned().unwrap_or_default();
    for claimant in &claimants {
        claimant.leave().await;
    }
    let mut expected = Expected { acts: five_acts("irreversible"), ..Expected::default() };
    let _worker = ground.worker(None)?;
    ground.signal(&job, "go", &json!(7)).await?;
    expected.signal = Some(("go".into(), json!(7)));
    ground.finish(&job, "it", &mut expected).await?;
    let mut seen = ground.judged(&job, &expected).await;
    let against = (winners != 1).then(|| format!("{winners} of {CLAIMANTS} claims won; {refused}"));
    seen.judged(super::column::STREAM_CLEAN, against.into_iter().collect());
    Ok(seen)
}

/// A key must not stay taken by a worker that is dead.
async fn dead(ground: Ground, class: &str) -> Result<Witnessed, Failure> {
    let mut seen = Witnessed::default();
    let settled = vec!["first".into()];
    let mut expected = Expected { acts: five_acts(class), settled, ..Expected::default() };
    ground.outside.hold_answers_to("it");
    let mut first = ground.worker(None)?;
    let job = ground.submit(five_lines(class)).await?;
    ground.outside.until("it", 1).await;
    first.kill().await?;
    ground.outside.answer_all();
    let before = ground.attempt(&job).await;
    let _second = ground.worker(None)?;
    seen.recoveries.extend(ground.taken_over(&job, before).await);
    ground.signal(&job, "go", &json!(7)).await?;
    expected.signal = Some(("go".into(), json!(7)));
    ground.finish(&job, "it", &mut expected).await?;
    seen.and(ground.judged(&job, &expected).await);
    Ok(seen)
}
