//! An executor dies while it makes, follows or stops a pod, or sleeps past its lease.

use super::{
    row,
    town::{Looking, NODE, Town, canceled, fails, once, succeeds},
    witness::Expected,
};
use crate::drill::{case::Case, ground::Ground, matrix::Witnessed};
use rustix::process::Signal;
use serde_json::json;
use tenure::commands::Failure;

/// All of them.
pub fn cases() -> Vec<Case> {
    let making = |name: &str, point: &'static str, there: usize| {
        Case::new(row::MAKING, format!("killed {name}"), move |g| killed_making(g, point, there))
    };
    let stopping = |name: &str, point: &'static str| {
        Case::new(row::STOPPING, format!("killed {name}"), move |g| killed_stopping(g, point))
    };
    vec![
        making("after its claim", "pod_claimed:1", 0),
        making("before the creation is sent", "pod_begun:1", 0),
        making("after the creation, before it is recorded", "pod_created:1", 1),
        making("after the creation is recorded", "pod_made:1", 1),
        Case::new(row::TENDING, "killed while the pod runs", killed_tending),
        Case::new(row::TENDING, "the pod ends while there is none", ends_alone),
        Case::new(row::TENDING, "the pod ends while nobody looks", ends_unseen),
        Case::new(row::TENDING, "stopped past its lease, and woken", woken),
        stopping("after the mark, before the deletion", "pod_marked:1"),
        stopping("after the deletion", "pod_deleted:1"),
        Case::new(row::STOPPING, "cancelled while there is none", cancelled_meanwhile),
    ]
}

async fn killed_making(
    ground: Ground,
    point: &'static str,
    there: usize,
) -> Result<Witnessed, Failure> {
    let town = Town::open(ground).await?;
    let _collector = town.collector(Looking::default()).await?;
    let mut first = town.executor(Some(point)).await?;
    let task = town.order(json!({})).await?;
    first.struck_at(point).await?;
    if town.pods_made() != there {
        let made = town.pods_made();
        return Err(Failure::System(format!("at {point} there were {made} pods, not {there}")));
    }
    let from = town.mono();
    let before = town.task(&task).await.unwrap_or_default();
    let before = before["tended"]["executor"].as_str().map(str::to_owned);
    let _second = town.executor(None).await?;
    let pod = town.pod(1).await?;
    town.runs(&pod, NODE)?;
    town.tended(&task, before.as_deref()).await?;
    town.until_status(&task, "RUNNING").await?;
    town.until_told(&task, &["1 RUNNING"]).await?;
    town.ends(&pod, 0)?;
    Ok(town.judged(&task, &succeeds(), from).await)
}

async fn killed_tending(ground: Ground) -> Result<Witnessed, Failure> {
    let town = Town::open(ground).await?;
    let _collector = town.collector(Looking::default()).await?;
    let mut first = town.executor(None).await?;
    let (task, pod) = town.running(json!({})).await?;
    let before = town.tended(&task, None).await?;
    first.kill().await?;
    let from = town.mono();
    let _second = town.executor(None).await?;
    town.tended(&task, Some(&before)).await?;
    town.ends(&pod, 0)?;
    Ok(town.judged(&task, &succeeds(), from).await)
}

/// The collector tells of its end at once; its pod is cleaned up by the next executor.
async fn ends_alone(ground: Ground) -> Result<Witnessed, Failure> {
    let town = Town::open(ground).await?;
    let _collector = town.collector(Looking::default()).await?;
    let mut first = town.executor(None).await?;
    let (task, pod) = town.running(json!({})).await?;
    first.kill().await?;
    let from = town.mono();
    town.ends(&pod, 0)?;
    town.until_status(&task, "SUCCEEDED").await?;
    let _second = town.executor(None).await?;
    Ok(town.judged(&task, &succeeds(), from).await)
}

/// No collector either: the next executor finds what has become of it.
async fn ends_unseen(ground: Ground) -> Result<Witnessed, Failure> {
    let town = Town::open(ground).await?;
    let mut first = town.executor(None).await?;
    let (task, pod) = town.running_untold(once()).await?;
    first.kill().await?;
    town.ends(&pod, 3)?;
    let from = town.mono();
    let _second = town.executor(None).await?;
    let expected = Expected { channel: None, ..fails(3) };
    Ok(town.judged(&task, &expected, from).await)
}

/// Two executors, one of which thinks that the pod is still its own.
async fn woken(ground: Ground) -> Result<Witnessed, Failure> {
    let town = Town::open(ground).await?;
    let _collector = town.collector(Looking::default()).await?;
    let first = town.executor(None).await?;
    let (task, pod) = town.running(json!({})).await?;
    let before = town.tended(&task, None).await?;
    first.send(Signal::STOP);
    let from = town.mono();
    let _second = town.executor(None).await?;
    town.tended(&task, Some(&before)).await?;
    first.send(Signal::CONT);
    town.ends(&pod, 0)?;
    Ok(town.judged(&task, &succeeds(), from).await)
}

async fn killed_stopping(ground: Ground, point: &'static str) -> Result<Witnessed, Failure> {
    let town = Town::open(ground).await?;
    let _collector = town.collector(Looking::default()).await?;
    let mut first = town.executor(Some(point)).await?;
    let (task, _) = town.running(json!({})).await?;
    town.cancel(&task).await?;
    first.struck_at(point).await?;
    let from = town.mono();
    let _second = town.executor(None).await?;
    Ok(town.judged(&task, &canceled(), from).await)
}

async fn cancelled_meanwhile(ground: Ground) -> Result<Witnessed, Failure> {
    let town = Town::open(ground).await?;
    let _collector = town.collector(Looking::default()).await?;
    let mut first = town.executor(None).await?;
    let (task, _) = town.running(json!({})).await?;
    first.kill().await?;
    town.cancel(&task).await?;
    let from = town.mono();
    let _second = town.executor(None).await?;
    Ok(town.judged(&task, &canceled(), from).await)
}
