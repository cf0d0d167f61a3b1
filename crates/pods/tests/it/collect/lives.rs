//! Lives of pods, as a real API server tells them, and what is told of them.

use super::rig::{Rig, labels_of, state};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;
use std::time::Duration;
use tenure_kubedouble::{Distortion, OnDelete};
use tenure_pods::{collect::Area, report::labels};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_life_is_told_in_order_to_both() {
    let rig = Rig::new();
    let _collector = rig.synced().await;
    rig.task("t-1");
    rig.cluster.bind("t-1", "node-1");
    rig.cluster.creating("t-1");
    rig.cluster.running("t-1");
    rig.cluster.terminate("t-1", 0, "Completed", "{\"rows\": 7}");
    for told in [&rig.channel, &rig.server] {
        told.says("t-1", &["RUNNING", "SUCCEEDED over"]).await;
    }
    let last = rig.server.all().pop().unwrap();
    assert_eq!(last.result.as_deref(), Some("{\"rows\": 7}"));
    assert_eq!((last.attempt, last.tenant_id.as_str()), (Some(1), "acme"));
    assert_eq!(last.pod.node.as_deref(), Some("node-1"));
    assert_eq!(last.verdict.exit_code, Some(0));
}

/// The container that the order named stands on the pod: a collector looks at the same one as the executor.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_container_that_the_pod_names_ends_the_task() {
    let rig = Rig::new();
    let collector = rig.synced().await;
    let labels: serde_json::Map<String, serde_json::Value> =
        labels_of("t-1", 1).iter().map(|(k, v)| ((*k).to_owned(), json!(v))).collect();
    let pod = rig.cluster.add_pod(json!({
        "metadata": { "name": "t-1", "labels": labels, "annotations": { labels::CONTAINER: "train" } },
        "spec": { "restartPolicy": "Never", "containers": [
            { "name": "main", "image": "i" }, { "name": "train", "image": "i" }
        ] },
    }));
    rig.cluster.bind(&pod, "node-1");
    rig.cluster.running(&pod);
    rig.server.says("t-1", &["RUNNING"]).await;
    rig.cluster.terminate_in(&pod, "train", 0, "Completed", "");
    rig.server.says("t-1", &["RUNNING", "SUCCEEDED over"]).await;
    drop(collector);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_reports_is_not_told_pending_least_of_all() {
    let rig = Rig::new();
    rig.task("t-1");
    let collector = rig.synced().await;
    rig.cluster.bind("t-1", "node-1");
    rig.cluster.waiting("t-1", "ErrImagePull", "manifest unknown");
    rig.task("t-2");
    rig.cluster.bind("t-2", "node-2");
    rig.cluster.running("t-2");
    rig.channel.says("t-2", &["RUNNING"]).await;
    assert!(rig.server.of("t-1").is_empty());
    assert_eq!(collector.state().pods, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_ends_a_pod_that_can_not_pull_its_image() {
    let rig = Rig::new();
    let collector = rig.synced().await;
    rig.task("t-1");
    rig.cluster.bind("t-1", "node-1");
    rig.cluster.waiting("t-1", "ImagePullBackOff", "Back-off pulling image: not found");
    state(&collector, "seen", |s| s.tally.repeats == 3).await;
    rig.later(Duration::from_secs(3_600));
    rig.server.says("t-1", &["FAILED:image_pull"]).await;
    rig.channel.says("t-1", &["FAILED:image_pull"]).await;
    assert!(collector.state().tally.timers > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_arrives_at_its_nodes_collector_when_it_is_bound() {
    let mut rig = Rig::new();
    rig.area = Area::node("node-2");
    let collector = rig.synced().await;
    rig.runs("t-1");
    rig.task("t-2");
    rig.cluster.bind("t-2", "node-2");
    rig.cluster.running("t-2");
    rig.server.says("t-2", &["RUNNING"]).await;
    assert_eq!(collector.state().pods, 1);
    assert!(rig.server.of("t-1").is_empty());
    let watches = rig.cluster.watches();
    assert!(watches.iter().all(|w| w.fields == "spec.nodeName=node-2"), "{watches:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_label_that_is_removed_ends_nothing() {
    let rig = Rig::new();
    rig.runs("t-1");
    let collector = rig.synced().await;
    rig.server.says("t-1", &["RUNNING"]).await;
    rig.cluster.patch("t-1", &json!({ "metadata": { "labels": { labels::WORKLOAD: null } } }));
    state(&collector, "without it", |s| s.pods == 0 && s.tally.left == 1).await;
    rig.runs("t-2");
    rig.server.says("t-2", &["RUNNING"]).await;
    assert_eq!(rig.server.of("t-1"), ["RUNNING"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_pod_is_told_to_the_server_only() {
    let rig = Rig::new();
    rig.runs("t-1");
    rig.task("t-2");
    let collector = rig.synced().await;
    rig.channel.says("t-1", &["RUNNING"]).await;
    rig.cluster.force_delete("t-1");
    rig.cluster.force_delete("t-2");
    rig.server.says("t-1", &["RUNNING", "FAILED:deleted_externally gone external_delete"]).await;
    rig.server.until("t-2 is gone", |t| t.of("t-2").iter().any(|s| s.contains("gone"))).await;
    state(&collector, "empty", |s| s.pods == 0).await;
    assert_eq!(rig.channel.of("t-1"), ["RUNNING"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_eviction_through_the_api_is_the_systems() {
    let rig = Rig::new();
    rig.cluster.on_delete(OnDelete::WhenTold);
    rig.runs("t-1");
    let _collector = rig.synced().await;
    rig.cluster.api_evict("t-1");
    rig.cluster.finish_delete("t-1", 143);
    rig.server
        .until("evicted", |t| t.of("t-1").iter().any(|s| s.starts_with("FAILED:evicted_api")))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_own_cancel_is_canceled() {
    let rig = Rig::new();
    rig.runs("t-1");
    let _collector = rig.synced().await;
    rig.cluster
        .patch("t-1", &json!({ "metadata": { "annotations": { labels::CANCEL: "asked" } } }));
    rig.cluster.delete("t-1");
    rig.channel.until("canceled", |t| t.of("t-1").iter().any(|s| s.starts_with("CANCELED"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_gone_takes_its_pods_with_it() {
    let mut rig = Rig::new();
    rig.nodes = true;
    rig.runs("t-1");
    let _collector = rig.synced().await;
    rig.server.says("t-1", &["RUNNING"]).await;
    rig.cluster.node_gone("node-1");
    rig.server.until("gone", |t| t.of("t-1").iter().any(|s| s.starts_with("FAILED:node_"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_node_loses_its_pods_though_nobody_says_anything_about_them() {
    let mut rig = Rig::new();
    rig.nodes = true;
    rig.runs("t-1");
    let collector = rig.synced().await;
    rig.server.says("t-1", &["RUNNING"]).await;
    rig.cluster.node_silent("node-1");
    let heard = collector.state().tally;
    rig.later(Duration::from_secs(3_600));
    rig.server.says("t-1", &["RUNNING", "FAILED:node_lost"]).await;
    assert!(collector.state().tally.timers >= heard.timers);
    let last = rig.server.all().pop().unwrap();
    assert!(!last.over, "it may still run there: {last:?}");
    // The node comes back and tells the truth: too late for the verdict, and still worth knowing.
    rig.cluster.node_back("node-1");
    rig.cluster.terminate("t-1", 0, "Completed", "");
    rig.server.until("over", |t| t.all().last().unwrap().over).await;
    assert_eq!(rig.server.once("t-1").last().unwrap(), "FAILED:node_lost over");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_finalizer_holds_a_pod_and_its_end_is_still_its_own() {
    let rig = Rig::new();
    rig.cluster.add_pod(json!({
        "metadata": {
            "name": "t-1", "labels": labels_of("t-1", 1).into_iter().collect::<std::collections::BTreeMap<_, _>>(),
            "finalizers": ["example.com/hold"]
        },
        "spec": { "restartPolicy": "Never", "containers": [{ "name": "main", "image": "work:1" }] }
    }));
    rig.cluster.on_delete(OnDelete::WhenTold);
    rig.cluster.bind("t-1", "node-1");
    rig.cluster.running("t-1");
    let collector = rig.synced().await;
    rig.cluster.force_delete("t-1");
    rig.cluster.terminate("t-1", 0, "Completed", "done");
    let release = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    let pods: Api<Pod> = Api::default_namespaced(rig.client());
    pods.patch("t-1", &PatchParams::default(), &release).await.unwrap();
    state(&collector, "empty", |s| s.pods == 0).await;
    rig.channel.says("t-1", &["RUNNING", "SUCCEEDED over"]).await;
    rig.server.says("t-1", &["RUNNING", "SUCCEEDED over"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_phase_that_goes_back_changes_nothing() {
    let rig = Rig::new();
    rig.runs("t-1");
    let collector = rig.synced().await;
    rig.cluster.oom("t-1");
    rig.server.says("t-1", &["RUNNING", "FAILED:oom over"]).await;
    rig.cluster.patch_status("t-1", json!({ "phase": "Running" }));
    rig.cluster.patch_status("t-1", json!({ "phase": "Pending" }));
    rig.runs("t-2");
    rig.server.says("t-2", &["RUNNING"]).await;
    assert_eq!(rig.server.once("t-1"), ["RUNNING", "FAILED:oom over"]);
    assert!(collector.state().tally.repeats >= 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_without_container_statuses_is_judged_by_what_it_says() {
    let rig = Rig::new();
    rig.task("t-1");
    let _collector = rig.synced().await;
    rig.cluster.bind("t-1", "node-1");
    rig.cluster.rejected(
        "t-1",
        "OutOfcpu",
        "Pod was rejected: Node didn't have enough resource: cpu",
    );
    rig.channel.says("t-1", &["FAILED:rejected_capacity over"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_without_the_labels_of_a_task_are_passed_over() {
    let rig = Rig::new();
    rig.cluster.add_task("stray", &[(labels::WORKLOAD, "true"), (labels::TASK_ID, "t-0")]);
    rig.cluster.add_task("other", &[("app", "web")]);
    rig.runs("t-1");
    let collector = rig.synced().await;
    rig.server.says("t-1", &["RUNNING"]).await;
    rig.cluster.bind("stray", "node-1");
    rig.cluster.running("stray");
    state(&collector, "two passed over", |s| s.tally.unlabelled >= 2).await;
    assert_eq!(collector.state().pods, 1);
    assert!(rig.server.of("t-0").is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_that_come_twice_or_in_the_wrong_order_are_told_once() {
    for distortion in
        [Distortion { duplicates: 3, reverse: 0 }, Distortion { duplicates: 0, reverse: 2 }]
    {
        let rig = Rig::new();
        let collector = rig.synced().await;
        rig.cluster.distort_watches(distortion);
        rig.task("t-1");
        rig.cluster.bind("t-1", "node-1");
        rig.cluster.running("t-1");
        rig.cluster.terminate("t-1", 3, "Error", "no");
        rig.cluster.patch("t-1", &json!({ "metadata": { "labels": { "x": "y" } } }));
        rig.task("t-2");
        rig.server
            .until("ended", |t| t.once("t-1").last().is_some_and(|l| l == "FAILED:app_error over"))
            .await;
        let told = rig.server.once("t-1");
        assert!(
            told.len() <= 2 && told.iter().filter(|s| s.starts_with("FAILED")).count() == 1,
            "{told:?}"
        );
        drop(collector);
    }
}
