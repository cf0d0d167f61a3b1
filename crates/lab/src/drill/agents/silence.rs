//! Nobody answers: the rules of the watchdog, seen acting. Each case has a server whose times are short.

use super::{
    arena::{ACT, ASK, Arena, asking, ended},
    row,
    witness::Expected,
};
use crate::drill::{case::Case, ground::Ground, matrix::Witnessed};
use tenure::commands::Failure;

/// All of them.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new(row::SILENCE, "a tool does not answer", no_answer)
            .with(&["worker.suspend_timeout_seconds=1"]),
        Case::new(row::SILENCE, "no worker takes the turn", no_worker).with(&[
            "pmo.dispatched_retry_seconds=0.4",
            "pmo.pending_wakeup_seconds=0.4",
            "pmo.dispatched_timeout_seconds=1.5",
        ]),
        Case::new(row::SILENCE, "its worker is dead and no other comes", no_other)
            .with(&["pmo.active_reap_seconds=2"]),
    ]
}

/// The report is the result, and the turn goes on with it.
async fn no_answer(ground: Ground) -> Result<Witnessed, Failure> {
    let arena = Arena::open(ground, "verifiable", None).await?;
    let _worker = arena.worker(None)?;
    let turn = arena.send(ASK).await?;
    let expected = Expected { rules: &["wait_timed_out"], ..asking() };
    arena.judged(&turn, ASK, &expected).await
}

/// Rung for and rung for again, and ended at its time: no bell puts that off.
async fn no_worker(ground: Ground) -> Result<Witnessed, Failure> {
    let arena = Arena::open(ground, "verifiable", None).await?;
    let turn = arena.send(ACT).await?;
    arena.until_over(&turn).await;
    let _worker = arena.worker(None)?;
    let expected = Expected {
        asked: 0..=0,
        rules: &["dispatch_retried", "bell_rung"],
        ..ended(&["timeout"], "dispatch_timeout")
    };
    arena.judged(&turn, ACT, &expected).await
}

async fn no_other(ground: Ground) -> Result<Witnessed, Failure> {
    let arena = Arena::open(ground, "verifiable", None).await?;
    let mut first = arena.worker(Some("step_begun:1"))?;
    let turn = arena.send(ACT).await?;
    first.struck_at("step_begun:1").await?;
    arena.until_over(&turn).await;
    let _second = arena.worker(None)?;
    let expected = Expected { asked: 0..=0, ..ended(&["failed"], "timeout_reaped_by_watchdog") };
    arena.judged(&turn, ACT, &expected).await
}
