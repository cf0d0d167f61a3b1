//! Redis is away, or the server is, or the store under it.

use super::{
    row,
    town::{Looking, NODE, Town, canceled, seen_to_fail, seen_to_succeed, succeeds},
};
use crate::drill::{
    case::{Case, Where},
    ground::Ground,
    matrix::Witnessed,
    outage::Outage,
    proxy::Weather,
};
use serde_json::json;
use tenure::commands::Failure;

/// Tasks whose ends the channel misses while it is away.
const TASKS: usize = 4;

/// All of them.
pub fn cases(place: &Where) -> Vec<Case> {
    let redis =
        |name: &str, away| Case::new(row::REDIS, name, move |g| redis_away(g, away)).on_redis();
    let ends = |name: String, outage: Outage| {
        let case = Case::new(row::SERVER, name, move |g| ends_meanwhile(g, outage));
        outage.can_happen_in(case)
    };
    let mut cases = vec![
        redis("the line is cut", Away::Line(Weather::Cut)),
        redis("the line takes everything and answers nothing", Away::Line(Weather::Swallowed)),
        redis("killed and started again", Away::Killed),
        ends("killed while a pod ends".into(), Outage::Server),
        Case::new(row::SERVER, "killed after it took an order", after_an_order).alone(),
        Case::new(row::SERVER, "killed after it took a cancel", after_a_cancel).alone(),
    ];
    for outage in Outage::of_store(place.engine.as_ref()) {
        cases.push(ends(format!("{} while a pod ends", outage.name()), *outage));
    }
    cases
}

/// How Redis is away.
#[derive(Clone, Copy, Debug)]
enum Away {
    Line(Weather),
    Killed,
}

/// The durable way does not wait for it, and the channel has everything afterwards, in order.
async fn redis_away(ground: Ground, away: Away) -> Result<Witnessed, Failure> {
    let mut town = Town::open(ground).await?;
    let _collector = town.collector(Looking::default()).await?;
    let mut tasks = Vec::new();
    for n in 0..TASKS {
        tasks.push(town.comes(&format!("task-{n}"))?);
    }
    // Of these the channel knows that they run.
    for task in &tasks {
        town.until_told(task, &["1 RUNNING"]).await?;
    }
    if let Some(redis) = &mut town.redis {
        match away {
            Away::Line(weather) => redis.turn(weather),
            Away::Killed => redis.kill().await?,
        }
    }
    let from = town.mono();
    for n in 0..TASKS {
        tasks.push(town.comes(&format!("more-{n}"))?);
    }
    for (n, task) in tasks.iter().enumerate() {
        town.ends(task, if n % 2 == 0 { 0 } else { 3 })?;
    }
    for (n, task) in tasks.iter().enumerate() {
        town.until_status(task, if n % 2 == 0 { "SUCCEEDED" } else { "FAILED" }).await?;
    }
    let back = town.mono();
    if let Some(redis) = &mut town.redis {
        match away {
            Away::Line(_) => redis.turn(Weather::Clear),
            Away::Killed => redis.start_again().await?,
        }
    }
    let mut seen = Witnessed::default();
    for (n, task) in tasks.iter().enumerate() {
        let expected = if n % 2 == 0 { seen_to_succeed() } else { seen_to_fail(3) };
        let mut one = town.judged(task, &expected, from).await;
        one.recoveries.clear();
        seen.and(one);
    }
    seen.recoveries.push(town.mono().saturating_sub(back));
    seen.stalls.push(back.saturating_sub(from));
    Ok(seen)
}

async fn away(
    town: &mut Town,
    outage: Outage,
    meanwhile: impl FnOnce(&Town) -> Result<(), Failure>,
) -> Result<(), Failure> {
    outage.begin(&mut town.ground).await?;
    meanwhile(town)?;
    town.a_while().await;
    outage.end(&mut town.ground).await
}

async fn ends_meanwhile(ground: Ground, outage: Outage) -> Result<Witnessed, Failure> {
    let mut town = Town::open(ground).await?;
    let _collector = town.collector(Looking::default()).await?;
    let _executor = town.executor(None).await?;
    let (task, pod) = town.running(json!({})).await?;
    let from = town.mono();
    away(&mut town, outage, |town| town.ends(&pod, 0)).await?;
    let back = town.mono();
    let mut seen = town.judged(&task, &succeeds(), back).await;
    seen.stalls.push(back.saturating_sub(from));
    Ok(seen)
}

async fn after_an_order(ground: Ground) -> Result<Witnessed, Failure> {
    let mut town = Town::open(ground).await?;
    let _collector = town.collector(Looking::default()).await?;
    let _executor = town.executor(None).await?;
    let task = town.order(json!({})).await?;
    let from = town.mono();
    away(&mut town, Outage::Server, |_| Ok(())).await?;
    let back = town.mono();
    let pod = town.pod(1).await?;
    town.runs(&pod, NODE)?;
    town.until_status(&task, "RUNNING").await?;
    town.until_told(&task, &["1 RUNNING"]).await?;
    town.ends(&pod, 0)?;
    let mut seen = town.judged(&task, &succeeds(), back).await;
    seen.stalls.push(back.saturating_sub(from));
    Ok(seen)
}

async fn after_a_cancel(ground: Ground) -> Result<Witnessed, Failure> {
    let mut town = Town::open(ground).await?;
    let _collector = town.collector(Looking::default()).await?;
    let _executor = town.executor(None).await?;
    let (task, _) = town.running(json!({})).await?;
    town.cancel(&task).await?;
    let from = town.mono();
    away(&mut town, Outage::Server, |_| Ok(())).await?;
    let back = town.mono();
    let mut seen = town.judged(&task, &canceled(), back).await;
    seen.stalls.push(back.saturating_sub(from));
    Ok(seen)
}
