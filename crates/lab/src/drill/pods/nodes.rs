//! A pod's node goes, or throws it out. The task is tried again, and never beside a pod that may still run.

use super::{
    row,
    town::{Looking, NODE, Town, succeeds_again},
    witness::Expected,
};
use crate::drill::{case::Case, ground::Ground, matrix::Witnessed};
use serde_json::json;
use tenure::commands::Failure;
use tenure_kubedouble::Cluster;

/// Where the second attempt runs.
const OTHER: &str = "node-2";

/// All of them.
pub fn cases() -> Vec<Case> {
    let lost = |name: &str, ends: fn(&Cluster) -> u64| {
        Case::new(row::NODE, name, move |g| unreachable_until(g, ends))
    };
    let out = |name: &str, how: fn(&Cluster, &str) -> u64| {
        Case::new(row::EVICTED, name, move |g| thrown_out(g, how))
    };
    vec![
        Case::new(row::NODE, "the node is removed", |g| thrown_out(g, |k, _| k.node_gone(NODE))),
        lost("the node is silent, and comes back", |kube| kube.node_back(NODE)),
        lost("the node is silent, and is removed", |kube| kube.node_gone(NODE)),
        lost("the node is silent, and said to be off", |kube| kube.node_out_of_service(NODE)),
        out("for want of memory", |kube, pod| kube.evict_pressure(pod, "memory")),
        out("drained", |kube, pod| kube.api_evict(pod)),
        out("preempted", |kube, pod| kube.preempted_by_scheduler(pod)),
        out("the node is shut down", |kube, pod| kube.node_shutdown(pod)),
    ]
}

/// The pod is over at once.
async fn thrown_out(ground: Ground, how: fn(&Cluster, &str) -> u64) -> Result<Witnessed, Failure> {
    let town = Town::open(ground).await?;
    let _collector = town.collector(Looking::default()).await?;
    let _executor = town.executor(None).await?;
    let (task, pod) = town.running(json!({})).await?;
    let from = town.mono();
    how(&town.kube, &pod);
    town.second_succeeds(&task, OTHER).await?;
    Ok(town.judged(&task, &succeeds_again(), from).await)
}

/// The pod is deleted on paper, and its containers may run on for as long as nobody has heard of the node.
async fn unreachable_until(
    ground: Ground,
    ends: fn(&Cluster) -> u64,
) -> Result<Witnessed, Failure> {
    let town = Town::open(ground).await?;
    let _collector = town.collector(Looking::default()).await?;
    let _executor = town.executor(None).await?;
    let (task, _) = town.running(json!({})).await?;
    town.kube.node_lost(NODE);
    // Nobody knows, and so nothing happens.
    town.a_while().await;
    let from = town.mono();
    ends(&town.kube);
    town.second_succeeds(&task, OTHER).await?;
    let expected = Expected {
        channel: Some(&["1 RUNNING", "1 FAILED?", "2 RUNNING", "2 SUCCEEDED"]),
        ..succeeds_again()
    };
    Ok(town.judged(&task, &expected, from).await)
}
