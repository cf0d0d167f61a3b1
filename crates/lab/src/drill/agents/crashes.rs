//! The worker dies in each phase of a turn, or the server goes away.

use super::{
    arena::{ACT, ASK, Arena, acting, asking},
    row,
    witness::{ENDS, Expected},
};
use crate::drill::{case::Case, ground::Ground, matrix::Witnessed};
use serde_json::{Value, json};
use tenure::commands::Failure;
use tenure_tools::scripted::Gate;

/// All of them.
pub fn cases() -> Vec<Case> {
    let at = |row, name: &str, point: &'static str| {
        Case::new(row, format!("killed {name}"), move |g| struck(g, point))
    };
    let working = |class: &'static str| {
        let name = format!("killed while its job works, {class}");
        Case::new(row::TOOL_OUT, name, move |g| at_work(g, class))
    };
    vec![
        at(row::DISPATCHED, "after its claim", "turn_claimed:1"),
        at(row::ASKING, "before the question", "step_begun:1"),
        at(row::ASKING, "after the answer", "model_answered:1"),
        Case::new(row::ASKING, "killed while the model thinks", thinking),
        at(row::TOOL_OUT, "after the suspend", "step_recorded:1"),
        working("idempotent"),
        working("verifiable"),
        Case::new(row::TOOL_OUT, "killed before the result from outside", nobody_there),
        at(row::RESUMING, "after the claim of the resume", "turn_claimed:2"),
        at(row::RESUMING, "before its next question", "step_begun:2"),
        at(row::ENDING, "before the end is recorded", "model_answered:2"),
        at(row::ENDING, "after the end is recorded", "step_recorded:2"),
        Case::new(row::SERVER, "the server is killed after it took a result", answered).alone(),
        Case::new(row::SERVER, "the server is killed with a job on its way", handed_over).alone(),
        Case::new(row::SERVER, "the server is killed, tool out", |g| server_killed(g, false))
            .alone(),
        Case::new(row::SERVER, "the server is killed, model asked", |g| server_killed(g, true))
            .alone(),
    ]
}

/// The worker died where the case says: what is on record is that moment and no other.
fn in_the_window(events: &[Value], point: &str) -> Result<(), Failure> {
    let count = |name: &str| events.iter().filter(|e| e["name"] == name).count();
    let over = events.iter().any(|e| ENDS.iter().any(|n| e["name"] == *n));
    let stands = (count("step_started"), count("step_finished"), over);
    let named = match point {
        "turn_claimed:1" => (0, 0, false),
        "step_begun:1" | "model_answered:1" => (1, 0, false),
        "step_recorded:1" | "turn_claimed:2" => (1, 1, false),
        "step_begun:2" | "model_answered:2" => (2, 1, false),
        _ => (2, 2, true),
    };
    match stands == named {
        true => Ok(()),
        false => Err(Failure::System(format!(
            "the worker was killed at {point}, and steps begun, finished, and the end are {stands:?}"
        ))),
    }
}

/// The first worker dies at a point, another goes on.
async fn struck(ground: Ground, point: &str) -> Result<Witnessed, Failure> {
    let arena = Arena::open(ground, "verifiable", None).await?;
    let mut first = arena.worker(Some(point))?;
    let turn = arena.send(ACT).await?;
    first.struck_at(point).await?;
    in_the_window(&arena.events(&turn).await, point)?;
    let before = arena.epoch(&turn).await;
    let _second = arena.worker(None)?;
    let mut seen = Witnessed::default();
    if !point.starts_with("step_recorded:2") {
        seen.recoveries.extend(arena.taken_over(&turn, before).await);
    }
    // An answer that was not recorded is asked for again.
    let lost = usize::from(point.starts_with("model_answered"));
    let expected = Expected { asked: 2 + lost..=2 + lost, ..acting("verifiable") };
    seen.and(arena.judged(&turn, ACT, &expected).await?);
    Ok(seen)
}

async fn thinking(ground: Ground) -> Result<Witnessed, Failure> {
    let gate = Gate::new();
    let arena = Arena::open(ground, "verifiable", Some(&gate)).await?;
    let mut first = arena.worker(None)?;
    let turn = arena.send(ACT).await?;
    arena.model.seen(1).await;
    first.kill().await?;
    let before = arena.epoch(&turn).await;
    gate.open();
    let _second = arena.worker(None)?;
    let mut seen = Witnessed::default();
    seen.recoveries.extend(arena.taken_over(&turn, before).await);
    let expected = Expected { asked: 3..=3, ..acting("verifiable") };
    seen.and(arena.judged(&turn, ACT, &expected).await?);
    Ok(seen)
}

/// The worker that runs the job and has run the turn dies in the middle of the call.
async fn at_work(ground: Ground, class: &str) -> Result<Witnessed, Failure> {
    let arena = Arena::open(ground, class, None).await?;
    arena.ground.outside.hold_answers_to("it");
    let mut first = arena.worker(None)?;
    let turn = arena.send(ACT).await?;
    arena.ground.outside.until("it", 1).await;
    arena.until_status(&turn, "suspended").await;
    first.kill().await?;
    arena.ground.outside.answer_all();
    let before = arena.epoch(&turn).await;
    let _second = arena.worker(None)?;
    let mut seen = Witnessed::default();
    seen.recoveries.extend(arena.taken_over(&turn, before).await);
    seen.and(arena.judged(&turn, ACT, &acting(class)).await?);
    Ok(seen)
}

/// The result comes while no worker lives: it is mail, and waits for one.
async fn nobody_there(ground: Ground) -> Result<Witnessed, Failure> {
    let arena = Arena::open(ground, "verifiable", None).await?;
    let mut first = arena.worker(None)?;
    let turn = arena.send(ASK).await?;
    arena.until_status(&turn, "suspended").await;
    first.kill().await?;
    arena.answer(&turn, "1.1", &json!({ "rain": true })).await?;
    arena.until_event(&turn, "turn_resumed", 1).await?;
    let _second = arena.worker(None)?;
    let expected = Expected { results: vec![("1.1", json!({ "rain": true }))], ..asking() };
    arena.judged(&turn, ASK, &expected).await
}

/// The server, and on SQLite the store with it, is killed and started again.
async fn server_killed(ground: Ground, asked: bool) -> Result<Witnessed, Failure> {
    let rt = tenure_edge::TokioRuntime::current();
    let mono = || tenure_kernel::runtime::Runtime::mono(&rt);
    let gate = Gate::new();
    let mut arena = Arena::open(ground, "verifiable", asked.then_some(&gate)).await?;
    let _worker = arena.ready_worker().await?;
    let turn = arena.send(ASK).await?;
    match asked {
        true => arena.model.seen(1).await,
        false => drop(arena.until_status(&turn, "suspended").await),
    }
    let lease = arena.ground.base.lease;
    let from = mono();
    if let Some(cluster) = arena.ground.cluster.as_mut() {
        cluster.kill_server().await?;
        // The model answers while nothing can be written.
        gate.open();
        tokio::time::sleep(lease * 2).await;
        cluster.start_server().await?;
    }
    let back = mono();
    arena.until_status(&turn, "suspended").await;
    arena.answer(&turn, "1.1", &json!(7)).await?;
    // A worker that could not write its answer has it asked for again.
    let most = if asked { 3 } else { 2 };
    let expected = Expected { asked: 2..=most, results: vec![("1.1", json!(7))], ..asking() };
    let mut seen = arena.judged(&turn, ASK, &expected).await?;
    seen.stalls.push(back.saturating_sub(from));
    seen.recoveries.push(mono().saturating_sub(back));
    Ok(seen)
}

async fn restart(arena: &mut Arena) -> Result<(), Failure> {
    if let Some(cluster) = arena.ground.cluster.as_mut() {
        cluster.kill_server().await?;
        cluster.start_server().await?;
    }
    Ok(())
}

/// A result that was answered with 202 is durable.
async fn answered(ground: Ground) -> Result<Witnessed, Failure> {
    let mut arena = Arena::open(ground, "verifiable", None).await?;
    let _worker = arena.ready_worker().await?;
    let turn = arena.send(ASK).await?;
    arena.until_status(&turn, "suspended").await;
    arena.answer(&turn, "1.1", &json!(7)).await?;
    restart(&mut arena).await?;
    let expected = Expected { results: vec![("1.1", json!(7))], ..asking() };
    arena.judged(&turn, ASK, &expected).await
}

/// The turn waits for a job that nobody has made yet.
async fn handed_over(ground: Ground) -> Result<Witnessed, Failure> {
    let mut arena = Arena::open(ground, "verifiable", None).await?;
    let _worker = arena.ready_worker().await?;
    let turn = arena.send(ACT).await?;
    arena.until_event(&turn, "turn_suspended", 1).await?;
    restart(&mut arena).await?;
    arena.judged(&turn, ACT, &acting("verifiable")).await
}
