//! Somebody stops a turn in the middle of something.

use super::{
    arena::{ACT, ASK, Arena, asking, ended},
    column, row,
    witness::Expected,
};
use crate::drill::{
    case::Case,
    ground::{Ground, until},
    matrix::Witnessed,
};
use serde_json::{Value, json};
use tenure::commands::Failure;
use tenure_tools::scripted::Gate;

/// All of them.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new(row::STOPPED, "stopped while its job works", at_work),
        Case::new(row::STOPPED, "stopped while the model thinks", thinking),
        Case::new(row::STOPPED, "stopped and answered at once", at_once),
    ]
}

const STOP: &str = "{\"why\": \"the drill wants it\"}";

/// What it did outside has happened and stays; the job is cancelled, and its late result changes nothing.
async fn at_work(ground: Ground) -> Result<Witnessed, Failure> {
    let arena = Arena::open(ground, "verifiable", None).await?;
    arena.ground.outside.hold_answers_to("it");
    let _worker = arena.worker(None)?;
    let turn = arena.send(ACT).await?;
    arena.ground.outside.until("it", 1).await;
    let stands = arena.until_status(&turn, "suspended").await.unwrap_or_default();
    let job = stands["waits"][0]["of"].as_str().unwrap_or_default().to_owned();
    arena.say(&turn, "stop", STOP).await?;
    arena.until_over(&turn).await;
    // The tool returns when its job has heard of it.
    until(arena.ground.base.patience, || async {
        let heard = |j: &Value| j["status"] == "cancelling" || j["is_final"] == true;
        arena.ground.job(&job).await.filter(heard)
    })
    .await;
    arena.ground.outside.answer_all();
    let acts = vec![("it".to_owned(), "verifiable".to_owned())];
    let expected = Expected { acts, asked: 1..=1, ..ended(&["failed"], "stopped") };
    let mut seen = arena.judged(&turn, ACT, &expected).await?;
    let over = until(arena.ground.base.patience, || async {
        arena.ground.job(&job).await.filter(|j| j["is_final"] == true)
    });
    let status = over.await.map(|j| j["status"].clone()).unwrap_or(Value::Null);
    let against = (status != "cancelled").then(|| format!("its job is {status}"));
    seen.judged(column::EFFECT_ONCE, against.into_iter().collect());
    Ok(seen)
}

async fn thinking(ground: Ground) -> Result<Witnessed, Failure> {
    let gate = Gate::new();
    let arena = Arena::open(ground, "verifiable", Some(&gate)).await?;
    let _worker = arena.worker(None)?;
    let turn = arena.send(ACT).await?;
    arena.model.seen(1).await;
    arena.say(&turn, "stop", STOP).await?;
    arena.until_over(&turn).await;
    gate.open();
    let expected = Expected { asked: 1..=1, ..ended(&["failed"], "stopped") };
    arena.judged(&turn, ACT, &expected).await
}

/// Whichever is read first counts; there is one end either way.
async fn at_once(ground: Ground) -> Result<Witnessed, Failure> {
    let arena = Arena::open(ground, "verifiable", None).await?;
    let _worker = arena.worker(None)?;
    let turn = arena.send(ASK).await?;
    arena.until_status(&turn, "suspended").await;
    let result = json!({ "wait": "1.1", "result": 7 }).to_string();
    let (stopped, answered) = futures_util::future::join(
        arena.say(&turn, "stop", STOP),
        arena.say(&turn, "results", &result),
    )
    .await;
    stopped?;
    answered?;
    arena.until_over(&turn).await;
    let stopped = arena.turn(&turn).await.is_some_and(|t| t["status"] == "failed");
    let either = match stopped {
        true => Expected { asked: 1..=2, ..ended(&["failed"], "stopped") },
        false => Expected { results: vec![("1.1", json!(7))], ..asking() },
    };
    arena.judged(&turn, ASK, &either).await
}
