//! What is said of pods is old, repeated, or about nobody: said by the drill itself, as a collector that was long away would.

use super::{
    row,
    town::{Looking, NODE, Town, succeeds, succeeds_again},
};
use crate::drill::{case::Case, ground::Ground, matrix::Witnessed};
use serde_json::{Value, json};
use tenure::commands::Failure;

/// All of them.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new(row::STALE, "the end of an earlier attempt comes late", earlier_end),
        Case::new(row::STALE, "a pod of nobody ends", nobodys_end),
        Case::new(row::STALE, "another end after the end", second_end),
    ]
}

/// What somebody says of a pod: it has failed for a reason of its own, at a moment of their own.
fn failed(pod: &Value, attempt: u64) -> Value {
    let meta = &pod["metadata"];
    let label = |name: &str| &meta["labels"][format!("flowforge.io/{name}")];
    json!({ "reports": [{
        "task_id": label("task-id"),
        "workflow_id": label("workflow-id"),
        "tenant_id": label("tenant-id"),
        "attempt": attempt,
        "pod": { "namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"], "node": NODE },
        "verdict": {
            "status": "FAILED", "cause": "app_error", "class": "app", "exit_code": 9, "retryable": true,
            "started": true, "rule": "terminated.nonzero", "since": 1_700_000_000_000_000_i64,
        },
        "over": true,
        "seen_at": 1_700_000_000_000_000_i64,
        "collector": "drill",
    }] })
}

async fn say(town: &Town, report: &Value) -> Result<String, Failure> {
    let answer = town.ground.api().post(&["tasks", "reports"], report).await?;
    Ok(answer["answers"][0]["outcome"].as_str().unwrap_or_default().to_owned())
}

fn object(town: &Town, pod: &str) -> Result<Value, Failure> {
    town.kube.pod(pod).ok_or_else(|| Failure::System(format!("pod {pod} is not there")))
}

async fn earlier_end(ground: Ground) -> Result<Witnessed, Failure> {
    let town = Town::open(ground).await?;
    let _collector = town.collector(Looking::default()).await?;
    let _executor = town.executor(None).await?;
    let (task, first) = town.running(json!({})).await?;
    let old = object(&town, &first)?;
    town.kube.evict_pressure(&first, "memory");
    let second = town.pod(2).await?;
    town.runs(&second, NODE)?;
    town.until_status(&task, "RUNNING").await?;
    town.until_told(&task, &["1 RUNNING", "1 FAILED", "2 RUNNING"]).await?;
    let from = town.mono();
    say(&town, &failed(&old, 1)).await?;
    town.ends(&second, 0)?;
    Ok(town.judged(&task, &succeeds_again(), from).await)
}

async fn nobodys_end(ground: Ground) -> Result<Witnessed, Failure> {
    let town = Town::open(ground).await?;
    let _collector = town.collector(Looking::default()).await?;
    let _executor = town.executor(None).await?;
    let (task, pod) = town.running(json!({})).await?;
    let mut other = object(&town, &pod)?;
    other["metadata"]["uid"] = json!("00000000-0000-4000-8000-000000000000");
    let from = town.mono();
    for attempt in [0, 1, 2] {
        say(&town, &failed(&other, attempt)).await?;
    }
    town.ends(&pod, 0)?;
    Ok(town.judged(&task, &succeeds(), from).await)
}

async fn second_end(ground: Ground) -> Result<Witnessed, Failure> {
    let town = Town::open(ground).await?;
    let _collector = town.collector(Looking::default()).await?;
    let _executor = town.executor(None).await?;
    let (task, pod) = town.running(json!({})).await?;
    let its_own = object(&town, &pod)?;
    let from = town.mono();
    town.ends(&pod, 0)?;
    town.until_status(&task, "SUCCEEDED").await?;
    let became = say(&town, &failed(&its_own, 1)).await?;
    if became != "final" {
        return Err(Failure::System(format!("a report after the end was {became}")));
    }
    Ok(town.judged(&task, &succeeds(), from).await)
}
