//! The bus is away, silent, or rings for nothing. A listener on the bus itself hears what is told.

use super::{
    arena::{ACT, ASK, Arena, acting, asking},
    row,
    witness::Expected,
};
use crate::drill::{case::Case, ground::Ground, matrix::Witnessed, proxy::Weather};
use serde_json::json;
use tenure::commands::Failure;

/// Bells for nothing.
const RINGS: usize = 50;

/// All of them.
pub fn cases() -> Vec<Case> {
    let away = |name: &str, weather| {
        let name = format!("{name} from before the turn until after its end");
        Case::new(row::BUS, name, move |g| away(g, weather)).on_a_bus()
    };
    vec![
        away("cut", Weather::Cut),
        away("silent", Weather::Swallowed),
        Case::new(row::BUS, "cut in the middle of a turn", midway).on_a_bus(),
        Case::new(row::BUS, format!("rung {RINGS} times for nothing"), rung).on_a_bus(),
    ]
}

fn turn_line(arena: &Arena, weather: Weather) {
    if let Some(bus) = &arena.ground.bus {
        bus.turn(weather);
    }
}

async fn away(ground: Ground, weather: Weather) -> Result<Witnessed, Failure> {
    let rt = tenure_edge::TokioRuntime::current();
    let mono = || tenure_kernel::runtime::Runtime::mono(&rt);
    let arena = Arena::open(ground, "verifiable", None).await?;
    turn_line(&arena, weather);
    let _worker = arena.worker(None)?;
    let turn = arena.send(ACT).await?;
    arena.until_over(&turn).await;
    let early = arena
        .ground
        .bus
        .as_ref()
        .is_some_and(|b| b.heard().iter().any(|h| h.body["agent_turn_id"] == turn.as_str()));
    turn_line(&arena, Weather::Clear);
    let back = mono();
    let mut seen = arena.judged(&turn, ACT, &acting("verifiable")).await?;
    seen.recoveries.push(mono().saturating_sub(back));
    if early {
        return Err(Failure::System("the bus was to be away, and was heard".into()));
    }
    Ok(seen)
}

async fn midway(ground: Ground) -> Result<Witnessed, Failure> {
    let arena = Arena::open(ground, "verifiable", None).await?;
    let _worker = arena.worker(None)?;
    let turn = arena.send(ASK).await?;
    arena.until_status(&turn, "suspended").await;
    turn_line(&arena, Weather::Cut);
    arena.answer(&turn, "1.1", &json!(7)).await?;
    arena.until_over(&turn).await;
    turn_line(&arena, Weather::Clear);
    let expected = Expected { results: vec![("1.1", json!(7))], ..asking() };
    arena.judged(&turn, ASK, &expected).await
}

async fn rung(ground: Ground) -> Result<Witnessed, Failure> {
    let arena = Arena::open(ground, "verifiable", None).await?;
    let _worker = arena.worker(None)?;
    let turn = arena.send(ASK).await?;
    arena.until_status(&turn, "suspended").await;
    let subject = format!("cmd.agent.{}.wakeup", arena.ground.target());
    let lie = json!({ "agent_turn_id": turn, "turn_epoch": 99, "status": "success" }).to_string();
    for _ in 0..RINGS {
        if let Some(bus) = &arena.ground.bus {
            bus.publish(&subject, &lie).await?;
        }
    }
    arena.answer(&turn, "1.1", &json!(7)).await?;
    let expected = Expected { results: vec![("1.1", json!(7))], ..asking() };
    arena.judged(&turn, ASK, &expected).await
}
