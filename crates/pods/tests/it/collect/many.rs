//! Many pods.

use super::rig::{Rig, labels_of, state};
use serde_json::json;
use std::collections::BTreeMap;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_thousand_pods_at_the_start_are_told_once_each() {
    let rig = Rig::new();
    let pods = (0..5_000).map(|n| {
        let task = format!("t-{n}");
        let labels: BTreeMap<&str, &str> = labels_of(&task, 1).into_iter().collect();
        json!({
            "metadata": { "name": task, "labels": labels },
            "spec": { "restartPolicy": "Never", "nodeName": "node-1", "containers": [{ "name": "main", "image": "work:1" }] },
        })
    });
    rig.cluster.load_pods(pods);
    for n in 0..5_000 {
        rig.cluster.running(&format!("t-{n}"));
    }
    let collector = rig.synced().await;
    state(&collector, "full", |s| s.pods == 5_000 && s.spool.depth == 0).await;
    assert_eq!(rig.server.all().len(), 5_000);
    assert_eq!(rig.channel.all().len(), 5_000);
    let pages = rig.cluster.requests().iter().filter(|r| r.verb == "list").count();
    assert_eq!(pages, 10, "pages of 500");
}
