//! The API server is away, silent, forgetful, busy, or loses an answer.

use super::{
    row,
    town::{Looking, NODE, Town, canceled, fails, once, succeeds},
};
use crate::drill::{case::Case, ground::Ground, matrix::Witnessed};
use serde_json::json;
use tenure::commands::Failure;
use tenure_kubedouble::{Fault, On, Times};

/// All of them.
pub fn cases() -> Vec<Case> {
    let unanswered = |name: &str, fault: fn() -> Fault| {
        Case::new(row::UNANSWERED, name, move |g| creation_meets(g, fault(), 1))
    };
    let busy = || Fault::too_many_requests(1);
    vec![
        unanswered("the pod is made, and the answer lost", || Fault::AnswerLost),
        unanswered("the line is cut before the pod is made", || Fault::Cut),
        unanswered("504, and nobody knows", Fault::timeout),
        Case::new(row::API_DOWN, "away while a pod ends", ends_meanwhile),
        Case::new(row::API_DOWN, "away when a pod is wanted", wanted_meanwhile),
        Case::new(row::API_DOWN, "away when a pod is to be stopped", stopped_meanwhile),
        Case::new(row::SILENT, "all watches say nothing", silent),
        Case::new(row::EXPIRED, "every watch has expired", expired),
        Case::new(row::THROTTLED, "no time for creations", move |g| creation_meets(g, busy(), 2)),
        Case::new(row::THROTTLED, "no time for lists", no_lists),
        Case::new(row::THROTTLED, "no time for stops", no_stops),
    ]
}

/// The first requests to make a pod meet a fault.
async fn creation_meets(ground: Ground, fault: Fault, times: u32) -> Result<Witnessed, Failure> {
    let town = Town::open(ground).await?;
    let _collector = town.collector(Looking::default()).await?;
    town.kube.fault(On::create("pods"), fault, Times::Next(times));
    let _executor = town.executor(None).await?;
    let from = town.mono();
    let (task, pod) = town.running(json!({})).await?;
    town.tended(&task, None).await?;
    town.ends(&pod, 0)?;
    Ok(town.judged(&task, &succeeds(), from).await)
}

async fn ends_meanwhile(ground: Ground) -> Result<Witnessed, Failure> {
    let town = Town::open(ground).await?;
    let _collector = town.collector(Looking::default()).await?;
    let _executor = town.executor(None).await?;
    // One that ends well would be cleaned up before a collector has seen it.
    let (task, pod) = town.running(once()).await?;
    town.kube.stop_server();
    let away = town.mono();
    town.ends(&pod, 3)?;
    town.a_while().await;
    town.kube.start_server();
    let back = town.mono();
    let mut seen = town.judged(&task, &fails(3), back).await;
    seen.stalls.push(back.saturating_sub(away));
    Ok(seen)
}

async fn wanted_meanwhile(ground: Ground) -> Result<Witnessed, Failure> {
    let town = Town::open(ground).await?;
    let _collector = town.collector(Looking::default()).await?;
    let _executor = town.executor(None).await?;
    town.kube.stop_server();
    let away = town.mono();
    let task = town.order(json!({})).await?;
    town.a_while().await;
    town.kube.start_server();
    let back = town.mono();
    let pod = town.pod(1).await?;
    town.runs(&pod, NODE)?;
    town.until_status(&task, "RUNNING").await?;
    town.until_told(&task, &["1 RUNNING"]).await?;
    town.ends(&pod, 0)?;
    let mut seen = town.judged(&task, &succeeds(), back).await;
    seen.stalls.push(back.saturating_sub(away));
    Ok(seen)
}

async fn stopped_meanwhile(ground: Ground) -> Result<Witnessed, Failure> {
    let town = Town::open(ground).await?;
    let _collector = town.collector(Looking::default()).await?;
    let _executor = town.executor(None).await?;
    let (task, _) = town.running(json!({})).await?;
    let watched = town.kube.watches().len();
    town.kube.stop_server();
    let away = town.mono();
    town.cancel(&task).await?;
    town.a_while().await;
    // A pod that is gone before the collector looks again is missed by the channel; whether it is back is not the question here.
    let busy =
        town.kube.fault(On::verb("delete", "pods"), Fault::too_many_requests(1), Times::Always);
    town.kube.start_server();
    let back = town.mono();
    town.until("everybody watches again", || town.kube.watches().len() >= watched).await?;
    town.kube.clear_fault(busy);
    let mut seen = town.judged(&task, &canceled(), back).await;
    seen.stalls.push(back.saturating_sub(away));
    Ok(seen)
}

/// Watches stay open and say nothing until the task is over; the collector notices, the executor hears of it from the task.
async fn silent(ground: Ground) -> Result<Witnessed, Failure> {
    let town = Town::open(ground).await?;
    let _collector = town.collector(Looking::default()).await?;
    let _executor = town.executor(None).await?;
    let (task, pod) = town.running(json!({})).await?;
    town.kube.silence_watches(true);
    let from = town.mono();
    town.ends(&pod, 0)?;
    town.until_status(&task, "SUCCEEDED").await?;
    town.kube.silence_watches(false);
    Ok(town.judged(&task, &succeeds(), from).await)
}

/// A life in a storm: made, run and ended while no watch lives longer than a word.
async fn expired(ground: Ground) -> Result<Witnessed, Failure> {
    let town = Town::open(ground).await?;
    let _collector = town.collector(Looking::default()).await?;
    let _executor = town.executor(None).await?;
    town.kube.storm_of_410(true);
    let from = town.mono();
    let (task, pod) = town.running(once()).await?;
    town.ends(&pod, 3)?;
    town.until_status(&task, "FAILED").await?;
    town.until_told(&task, &["1 RUNNING", "1 FAILED"]).await?;
    town.kube.storm_of_410(false);
    Ok(town.judged(&task, &fails(3), from).await)
}

async fn no_lists(ground: Ground) -> Result<Witnessed, Failure> {
    let town = Town::open(ground).await?;
    let _collector = town.collector(Looking::default()).await?;
    let _executor = town.executor(None).await?;
    let (task, pod) = town.running(once()).await?;
    // Whoever watched has to list, and is refused.
    town.kube.fault(On::list("pods"), Fault::too_many_requests(1), Times::Next(4));
    town.kube.expire_watches();
    let from = town.mono();
    town.ends(&pod, 3)?;
    Ok(town.judged(&task, &fails(3), from).await)
}

async fn no_stops(ground: Ground) -> Result<Witnessed, Failure> {
    let town = Town::open(ground).await?;
    let _collector = town.collector(Looking::default()).await?;
    let _executor = town.executor(None).await?;
    let (task, _) = town.running(json!({})).await?;
    for verb in ["patch", "delete"] {
        town.kube.fault(On::verb(verb, "pods"), Fault::too_many_requests(1), Times::Next(2));
    }
    let from = town.mono();
    town.cancel(&task).await?;
    Ok(town.judged(&task, &canceled(), from).await)
}
