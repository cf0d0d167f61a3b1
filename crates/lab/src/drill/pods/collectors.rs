//! A collector dies between seeing and telling, or is away for a while. Pods are made elsewhere, so that nobody else tells of them,
//! where the case does not say otherwise.

use super::{
    row,
    town::{Looking, Town, fails, once, seen_to_fail, seen_to_succeed},
    witness::Expected,
};
use crate::drill::{case::Case, ground::Ground, matrix::Witnessed};
use tenure::commands::Failure;

/// All of them. There are two sinks: from when on it is armed the end of a pod is seen and spooled once, and told twice.
pub fn cases() -> Vec<Case> {
    let at = |name: &str, point: &'static str, spool: Option<&'static str>| {
        Case::new(row::COLLECTOR_KILLED, format!("killed {name}"), move |g| killed(g, point, spool))
    };
    let disk = Some("spool");
    vec![
        at("after it saw the end", "report_seen:1:armed", disk),
        at("after it wrote the end down", "report_spooled:1:armed", disk),
        at("before it tells the first", "report_publish:1:armed", disk),
        at("after it told the first", "report_published:1:armed", disk),
        at("after it noted that the first was told", "report_marked:1:armed", disk),
        at("after it noted that both were told", "report_marked:2:armed", disk),
        at("after it told the first, with no spool", "report_published:1:armed", None),
        Case::new(row::COLLECTOR_DOWN, "pods come and end meanwhile", meanwhile),
        Case::new(row::COLLECTOR_DOWN, "a pod of an executor ends meanwhile", of_an_executor),
        Case::new(row::COLLECTOR_DOWN, "a pod goes meanwhile", gone_meanwhile),
        Case::new(row::COLLECTOR_DOWN, "the other of two goes on", elected),
    ]
}

async fn killed(
    ground: Ground,
    point: &'static str,
    spool: Option<&'static str>,
) -> Result<Witnessed, Failure> {
    let town = Town::open(ground).await?;
    let looking = Looking { spool, ..Looking::default() };
    let mut first = town.collector(Looking { point: Some(point), ..looking }).await?;
    let task = town.comes("task")?;
    town.until_status(&task, "RUNNING").await?;
    town.until_told(&task, &["1 RUNNING"]).await?;
    town.arm(&first).await?;
    town.ends(&task, 3)?;
    first.struck_at(point.trim_end_matches(":armed")).await?;
    let from = town.mono();
    let _second = town.collector(looking).await?;
    Ok(town.judged(&task, &seen_to_fail(3), from).await)
}

/// One was known, one comes new; both have ended when somebody looks again.
async fn meanwhile(ground: Ground) -> Result<Witnessed, Failure> {
    let town = Town::open(ground).await?;
    let mut first = town.collector(Looking::default()).await?;
    let known = town.comes("known")?;
    town.until_status(&known, "RUNNING").await?;
    town.until_told(&known, &["1 RUNNING"]).await?;
    first.kill().await?;
    town.ends(&known, 0)?;
    let new = town.comes("new")?;
    town.ends(&new, 3)?;
    let from = town.mono();
    let _second = town.collector(Looking::default()).await?;
    let mut seen = town.judged(&known, &seen_to_succeed(), from).await;
    // Nobody saw that it ran, and that is not made up.
    let expected = Expected {
        history: &["pod_seen", "task_failed"],
        channel: Some(&["1 FAILED"]),
        ..seen_to_fail(3)
    };
    seen.and(town.judged(&new, &expected, from).await);
    Ok(seen)
}

/// The server hears of it from the executor; the channel when there is a collector again.
async fn of_an_executor(ground: Ground) -> Result<Witnessed, Failure> {
    let town = Town::open(ground).await?;
    let _executor = town.executor(None).await?;
    let (task, pod) = town.running_untold(once()).await?;
    let from = town.mono();
    town.ends(&pod, 3)?;
    town.until_status(&task, "FAILED").await?;
    let _collector = town.collector(Looking::default()).await?;
    Ok(town.judged(&task, &fails(3), from).await)
}

/// A pod that was deleted while nobody looked is missed, and the server is told so; of what is gone the channel is told nothing.
async fn gone_meanwhile(ground: Ground) -> Result<Witnessed, Failure> {
    let town = Town::open(ground).await?;
    let mut first = town.collector(Looking::default()).await?;
    let task = town.comes("task")?;
    town.until_status(&task, "RUNNING").await?;
    town.until_told(&task, &["1 RUNNING"]).await?;
    first.kill().await?;
    town.kube.force_delete(&task);
    let from = town.mono();
    let _second = town.collector(Looking::default()).await?;
    let expected = Expected {
        cause: Some("deleted_externally"),
        exit_code: None,
        channel: Some(&["1 RUNNING"]),
        ..seen_to_fail(0)
    };
    Ok(town.judged(&task, &expected, from).await)
}

/// By a Lease of the cluster one of two speaks; the other one has listened, and goes on.
async fn elected(ground: Ground) -> Result<Witnessed, Failure> {
    let town = Town::open(ground).await?;
    let one = Looking { elected: true, spool: Some("one"), point: None };
    let mut first = town.collector(one).await?;
    let task = town.comes("task")?;
    town.until_status(&task, "RUNNING").await?;
    town.until_told(&task, &["1 RUNNING"]).await?;
    let _second = town.collector(Looking { spool: Some("two"), ..one }).await?;
    first.kill().await?;
    let from = town.mono();
    town.ends(&task, 0)?;
    let late = town.comes("late")?;
    let mut seen = town.judged(&task, &seen_to_succeed(), from).await;
    town.until_status(&late, "RUNNING").await?;
    town.until_told(&late, &["1 RUNNING"]).await?;
    town.ends(&late, 0)?;
    seen.and(town.judged(&late, &seen_to_succeed(), from).await);
    Ok(seen)
}
