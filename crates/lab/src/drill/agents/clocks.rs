//! Clocks that are wrong: of workers, whose clocks nobody asks, and of the machine that the store is on.

use super::{
    arena::{ACT, ASK, Arena, acting, asking},
    row,
    witness::Expected,
};
use crate::drill::{case::Case, ground::Ground, matrix::Witnessed};
use serde_json::json;
use tenure::commands::Failure;

const HOUR: i64 = 3_600;
/// What is due by the store's clock is late by as much as it is set back: this has to be shorter than the drill's patience.
const BACK: i64 = -8;

/// All of them.
pub fn cases() -> Vec<Case> {
    let worker = |name: &str, by: i64| {
        Case::new(row::CLOCKS, format!("a worker's clock is an hour {name}"), move |g| wrong(g, by))
    };
    vec![
        worker("ahead", HOUR),
        worker("behind", -HOUR),
        Case::new(row::CLOCKS, "the server's clock is set back, tool out", set_back).alone(),
        Case::new(row::CLOCKS, "the server's clock is set an hour ahead, tool out", set_ahead)
            .alone(),
    ]
}

async fn wrong(ground: Ground, by: i64) -> Result<Witnessed, Failure> {
    let arena = Arena::open(ground, "verifiable", None).await?;
    let _worker = arena.ground.worker_with_clock(by)?;
    let turn = arena.send(ACT).await?;
    arena.judged(&turn, ACT, &acting("verifiable")).await
}

/// The server comes back with another clock while a tool is out.
async fn restarted(
    ground: Ground,
    by: i64,
) -> Result<(Arena, crate::drill::processes::Hand, String), Failure> {
    let mut arena = Arena::open(ground, "verifiable", None).await?;
    let worker = arena.ready_worker().await?;
    let turn = arena.send(ASK).await?;
    arena.until_status(&turn, "suspended").await;
    if let Some(cluster) = arena.ground.cluster.as_mut() {
        cluster.kill_server().await?;
        cluster.set_clock(by);
        cluster.start_server().await?;
    }
    Ok((arena, worker, turn))
}

/// A result moves the turn all the same.
async fn set_back(ground: Ground) -> Result<Witnessed, Failure> {
    let (arena, _worker, turn) = restarted(ground, BACK).await?;
    arena.answer(&turn, "1.1", &json!(7)).await?;
    let expected = Expected { results: vec![("1.1", json!(7))], ..asking() };
    arena.judged(&turn, ASK, &expected).await
}

/// On SQLite the tool's time is over then, and the model hears of it; PostgreSQL has a clock of its own, and the tool
/// is answered.
async fn set_ahead(ground: Ground) -> Result<Witnessed, Failure> {
    let (arena, _worker, turn) = restarted(ground, HOUR).await?;
    let own_clock = arena.ground.cluster.as_ref().is_some_and(|c| c.has_database());
    let expected = match own_clock {
        true => {
            arena.answer(&turn, "1.1", &json!(7)).await?;
            Expected { results: vec![("1.1", json!(7))], ..asking() }
        }
        false => Expected { rules: &["wait_timed_out"], ..asking() },
    };
    arena.judged(&turn, ASK, &expected).await
}
