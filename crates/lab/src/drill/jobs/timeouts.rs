//! A step takes longer than it may.

use super::{act, acts, column, row, signal};
use crate::drill::{
    case::Case,
    ground::Ground,
    matrix::{Seen, Witnessed},
    witness::Expected,
};
use serde_json::{Value, json};
use tenure::commands::Failure;
use tenure_tools::scripted;

const TIMEOUT_MS: u64 = 400;

/// All of them.
pub fn cases() -> Vec<Case> {
    let of = |class: &'static str| {
        Case::new(row::TIMEOUT, format!("no answer in time, {class}"), move |g| slow(g, class))
    };
    vec![
        of("idempotent"),
        of("verifiable"),
        of("compensatable"),
        of("irreversible"),
        Case::new(row::TIMEOUT, "the model does not answer in time", slow_model),
        Case::new(row::TIMEOUT, "no answer, ever: tries are bounded", never),
    ]
}

fn slow_act(class: &str) -> Value {
    json!({ "act": { "class": class, "name": "it", "timeout_ms": TIMEOUT_MS } })
}

/// The act happens, its answer comes too late.
async fn slow(ground: Ground, class: &str) -> Result<Witnessed, Failure> {
    let lines = json!([
        act("idempotent", "first"),
        slow_act(class),
        signal("go"),
        act("idempotent", "last")
    ]);
    let known = acts(&[("first", "idempotent"), ("it", class), ("last", "idempotent")]);
    let mut expected =
        Expected { acts: known, settled: vec!["first".into()], ..Expected::default() };
    ground.outside.hold_answers_to("it");
    let _worker = ground.worker(None)?;
    let job = ground.submit(lines).await?;
    // The signal comes while the call hangs.
    ground.outside.until("it", 1).await;
    ground.signal(&job, "go", &json!(1)).await?;
    expected.signal = Some(("go".into(), json!(1)));
    ground.until_event(&job, "effect_unknown", 1).await?;
    ground.outside.answer_all();
    ground.finish(&job, "it", &mut expected).await?;
    Ok(ground.judged(&job, &expected).await)
}

async fn slow_model(mut ground: Ground) -> Result<Witnessed, Failure> {
    let gate = scripted::Gate::new();
    let script = scripted::Script::new()
        .then(scripted::Reply::text("too late").held(&gate))
        .otherwise(scripted::Reply::text("yes"));
    ground.model = scripted::Server::start(script).await?;
    let lines = json!([
        act("idempotent", "first"),
        { "llm": { "prompt": "go on?", "timeout_ms": TIMEOUT_MS } },
        act("irreversible", "it")
    ]);
    let mut expected = Expected {
        acts: acts(&[("first", "idempotent"), ("it", "irreversible")]),
        settled: vec!["first".into(), "it".into()],
        ..Expected::default()
    };
    let _worker = ground.worker(None)?;
    let job = ground.submit(lines).await?;
    ground.until_event(&job, "effect_unknown", 1).await?;
    gate.open();
    ground.finish(&job, "it", &mut expected).await?;
    Ok(ground.judged(&job, &expected).await)
}

/// Nobody ever answers: the job does not hang, it fails with a reason.
async fn never(ground: Ground) -> Result<Witnessed, Failure> {
    let mut seen = Witnessed::default();
    ground.outside.hold_answers_to("it");
    let _worker = ground.worker(None)?;
    let job = ground.submit(json!([slow_act("idempotent")])).await?;
    let over = ground.until_status(&job, "failed").await;
    ground.outside.answer_all();
    let kept = match over {
        Some(job) if job["failure"]["reason"].as_str().is_some_and(|w| !w.is_empty()) => Seen::Held,
        Some(job) => Seen::Broken(format!("it failed without a reason: {}", job["failure"])),
        None => Seen::Broken("it is tried for ever".into()),
    };
    let judged = ground.judged(&job, &Expected::default()).await;
    // It fails on purpose: only the columns that are not about success count.
    seen.jobs = judged.jobs;
    seen.sightings = judged.sightings;
    seen.sightings.retain(|s| s.column != column::STEP_RUNS);
    seen.saw(column::JOB_KEPT, kept);
    Ok(seen)
}
