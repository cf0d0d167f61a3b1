//! What was observed on a real server, one fact a test, as the exact sequence of events.

use crate::support::{Tape, client, pods};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams, WatchParams},
};
use serde_json::json;
use std::time::Duration;
use tenure_kubedouble::{Cluster, OnDelete};

fn running() -> Cluster {
    let cluster = Cluster::start();
    cluster.add_task("p", &[("a", "b")]);
    cluster.bind("p", "node-1");
    cluster.running("p");
    cluster
}

#[tokio::test]
async fn a_node_selector_adds_the_pod_at_bind_time() {
    let cluster = Cluster::start();
    let mut tape = Tape::fields(&cluster, "spec.nodeName=node-1").await;
    cluster.add_task("p", &[]);
    cluster.bind("p", "node-1");
    cluster.creating("p");
    cluster.add_task("other", &[]);
    cluster.bind("other", "node-2");
    cluster.running("p");
    tape.is(&[
        "ADDED p Pending on=node-1",
        "MODIFIED p Pending on=node-1 waiting=ContainerCreating",
        "MODIFIED p Running on=node-1 ready",
    ])
    .await;
}

#[tokio::test]
async fn the_selector_of_unscheduled_pods_deletes_the_pod_at_bind_time() {
    let cluster = Cluster::start();
    let mut tape = Tape::fields(&cluster, "spec.nodeName=").await;
    cluster.add_task("p", &[]);
    cluster.bind("p", "node-1");
    cluster.add_task("q", &[]);
    // As it was before it left: no node, no deletionTimestamp.
    tape.is(&["ADDED p Pending", "DELETED p Pending", "ADDED q Pending"]).await;
}

#[tokio::test]
async fn a_label_removed_is_a_delete_without_a_deletion_timestamp() {
    let cluster = running();
    let mut tape = Tape::labels(&cluster, "a=b").await;
    cluster.patch("p", &json!({"metadata": {"labels": {"a": null}}}));
    let event = tape.next_raw().await.unwrap().unwrap();
    let kube::api::WatchEvent::Deleted(pod) = event else { panic!("{event:?}") };
    assert_eq!(pod.metadata.deletion_timestamp, None);
    assert_eq!(pod.metadata.labels.unwrap()["a"], "b", "it is the object as it was before");
    assert_eq!(
        pod.metadata.resource_version,
        Some(cluster.version().to_string()),
        "under the version of the change"
    );
    assert!(cluster.pod("p").is_some());
    cluster.patch("p", &json!({"metadata": {"labels": {"a": "b"}}}));
    tape.is(&["ADDED p Running on=node-1 ready"]).await;
}

#[tokio::test]
async fn a_phase_selector_never_delivers_the_end() {
    let cluster = running();
    let mut tape = Tape::fields(&cluster, "status.phase=Running").await;
    cluster.terminate("p", 1, "", "");
    cluster.add_task("q", &[]);
    cluster.running("q");
    tape.is(&["DELETED p Running on=node-1 ready", "ADDED q Running ready"]).await;
    assert_eq!(cluster.pod("p").unwrap()["status"]["phase"], "Failed");
}

#[tokio::test]
async fn a_forced_delete_is_a_modification_and_a_delete_still_running() {
    let cluster = running();
    let mut tape = Tape::all(&cluster).await;
    pods(&cluster).delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
    tape.is(&[
        "MODIFIED p Running on=node-1 deleting=0 ready",
        "DELETED p Running on=node-1 deleting=0 ready",
    ])
    .await;
}

#[tokio::test]
async fn deleting_an_unscheduled_pod_is_the_same_pair_at_once() {
    let cluster = Cluster::start();
    cluster.add_task("p", &[]);
    let mut tape = Tape::all(&cluster).await;
    pods(&cluster).delete("p", &DeleteParams::default()).await.unwrap();
    tape.is(&["MODIFIED p Pending deleting=0", "DELETED p Pending deleting=0"]).await;
}

#[tokio::test]
async fn an_eviction_says_why_and_then_deletes() {
    let cluster = running();
    cluster.on_delete(OnDelete::WhenTold);
    let mut tape = Tape::all(&cluster).await;
    pods(&cluster).evict("p", &EvictParams::default()).await.unwrap();
    tape.is(&[
        "MODIFIED p Running on=node-1 ready disruption=True/EvictionByEvictionAPI",
        "MODIFIED p Running on=node-1 deleting=30 ready disruption=True/EvictionByEvictionAPI",
    ])
    .await;
    cluster.finish_delete("p", 143);
    let lines = tape.take(3).await;
    assert_eq!(
        lines,
        [
            "MODIFIED p Failed on=node-1 deleting=30 disruption=True/EvictionByEvictionAPI exit=143",
            "MODIFIED p Failed on=node-1 deleting=0 disruption=True/EvictionByEvictionAPI exit=143",
            "DELETED p Failed on=node-1 deleting=0 disruption=True/EvictionByEvictionAPI exit=143",
        ],
        "status.reason stays empty to the end"
    );
}

#[tokio::test]
async fn when_the_node_object_is_gone_garbage_collection_fails_the_pod_and_deletes_it() {
    let cluster = running();
    let mut tape = Tape::all(&cluster).await;
    cluster.node_gone("node-1");
    tape.is(&[
        "MODIFIED p Failed on=node-1 ready disruption=True/DeletionByPodGC",
        "MODIFIED p Failed on=node-1 deleting=0 ready disruption=True/DeletionByPodGC",
        "DELETED p Failed on=node-1 deleting=0 ready disruption=True/DeletionByPodGC",
    ])
    .await;
}

#[tokio::test]
async fn a_silent_node_makes_its_pods_unready_and_nothing_more() {
    let cluster = running();
    let mut tape = Tape::all(&cluster).await;
    cluster.node_silent("node-1");
    tape.is(&["MODIFIED p Running on=node-1"]).await;
    let node = cluster.object("nodes", "node-1").unwrap();
    let ready = node["status"]["conditions"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((&ready["type"], &ready["status"]), (&json!("Ready"), &json!("Unknown")));
    assert_eq!(node["spec"]["taints"], json!(null), "no taint in a fully disrupted cluster");
    assert_eq!(cluster.pod("p").unwrap()["metadata"]["deletionTimestamp"], json!(null));
}

#[tokio::test]
async fn a_pod_of_a_lost_node_stays_running_for_ever_with_a_deletion_timestamp() {
    let cluster = running();
    let mut tape = Tape::all(&cluster).await;
    cluster.node_lost("node-1");
    tape.is(&[
        "MODIFIED p Running on=node-1",
        "MODIFIED p Running on=node-1 disruption=True/DeletionByTaintManager",
        "MODIFIED p Running on=node-1 deleting=30 disruption=True/DeletionByTaintManager",
    ])
    .await;
    let pod = cluster.pod("p").unwrap();
    assert_eq!(pod["status"]["reason"], json!(null));
    cluster.node_back("node-1");
    let lines = tape.take(3).await;
    assert!(lines[0].starts_with("MODIFIED p Failed on=node-1 deleting=30"), "{lines:?}");
    assert!(lines[2].starts_with("DELETED p Failed"), "{lines:?}");
}

#[tokio::test]
async fn a_finalizer_holds_the_object_and_the_delete_carries_the_final_state() {
    let cluster = running();
    cluster.patch("p", &json!({"metadata": {"finalizers": ["tenure.dev/track"]}}));
    let mut tape = Tape::all(&cluster).await;
    let api = pods(&cluster);
    api.delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
    let status = json!({"status": {"phase": "Failed", "reason": "Seen"}});
    api.patch_status("p", &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
    let release = json!({"metadata": {"finalizers": null}});
    api.patch("p", &PatchParams::default(), &Patch::Merge(&release)).await.unwrap();
    tape.is(&[
        "MODIFIED p Running on=node-1 deleting=0 ready",
        "MODIFIED p Failed on=node-1 deleting=0 reason=Seen ready",
        "DELETED p Failed on=node-1 deleting=0 reason=Seen ready",
    ])
    .await;
    assert_eq!(cluster.pod("p"), None);
}

#[tokio::test]
async fn a_terminated_container_does_not_run_again() {
    let cluster = running();
    cluster.terminate("p", 1, "", "");
    let again = json!({"status": {"containerStatuses": [{
        "name": "main", "image": "work:1", "imageID": "", "ready": true, "restartCount": 0,
        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
    }]}});
    let refused =
        pods(&cluster).patch_status("p", &PatchParams::default(), &Patch::Merge(&again)).await;
    let Err(kube::Error::Api(status)) = refused else { panic!("{refused:?}") };
    assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"));
    assert_eq!(
        status.message,
        "Pod \"p\" is invalid: status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state"
    );
}

#[tokio::test]
async fn a_phase_may_go_backwards() {
    let cluster = running();
    cluster.terminate("p", 1, "", "");
    let mut tape = Tape::all(&cluster).await;
    for phase in ["Running", "Pending"] {
        let back = json!({"status": {"phase": phase}});
        pods(&cluster)
            .patch_status("p", &PatchParams::default(), &Patch::Merge(&back))
            .await
            .unwrap();
    }
    tape.is(&["MODIFIED p Running on=node-1 exit=1", "MODIFIED p Pending on=node-1 exit=1"]).await;
}

#[tokio::test]
async fn an_expired_version_is_an_error_in_the_stream() {
    let cluster = running();
    let old = cluster.version() - 1;
    cluster.expire_before(cluster.version());
    let mut tape = Tape::from(&cluster, &WatchParams::default(), old).await;
    tape.is(&["ERROR 410 Expired", "end"]).await;
    let request = cluster.requests().pop().unwrap();
    assert_eq!(request.code, Some(200), "HTTP says that all is well");
}

#[tokio::test]
async fn a_list_at_an_expired_version_is_a_410() {
    let cluster = running();
    let old = cluster.version() - 1;
    let at = |version: u64| {
        ListParams::default().at(&version.to_string()).matching(kube::api::VersionMatch::Exact)
    };
    let list = pods(&cluster).list(&at(old)).await.unwrap();
    assert_eq!(list.metadata.resource_version, Some(old.to_string()));
    assert_eq!(list.items[0].status.as_ref().unwrap().phase.as_deref(), Some("Pending"));
    cluster.expire_before(cluster.version());
    let Err(kube::Error::Api(status)) = pods(&cluster).list(&at(old)).await else { panic!() };
    assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
}

#[tokio::test]
async fn a_streaming_list_is_refused_inside_of_the_stream() {
    let cluster = running();
    let params = WatchParams::default().initial_events();
    let mut tape = Tape::from(&cluster, &params, 0).await;
    tape.is(&["ERROR 500 InternalError", "end"]).await;
    cluster.streaming_lists(true);
    let mut tape = Tape::from(&cluster, &params, 0).await;
    let lines = tape.take(2).await;
    assert_eq!(lines[0], "ADDED p Running on=node-1 ready");
    assert_eq!(lines[1], format!("BOOKMARK {}", cluster.version()));
}

#[tokio::test]
async fn a_watch_from_the_future_is_silent_until_its_time_is_over() {
    let cluster = running();
    let future = cluster.version() + 1000;
    let params = WatchParams::default().timeout(1);
    let mut tape = Tape::from(&cluster, &params, future).await;
    cluster.add_task("q", &[]);
    cluster.bookmark_now();
    tape.is(&["end"]).await;
}

#[tokio::test]
async fn a_watch_from_the_future_speaks_when_the_future_has_come() {
    let cluster = running();
    let mut tape = Tape::from(&cluster, &WatchParams::default(), cluster.version() + 1).await;
    cluster.add_task("q", &[]);
    cluster.add_task("r", &[]);
    tape.is(&["ADDED r Pending"]).await;
    assert!(!cluster.watches().is_empty());
}

#[tokio::test]
async fn a_watch_from_nowhere_begins_with_all_that_there_is() {
    let cluster = running();
    let all: Api<Pod> = Api::all(client(&cluster));
    let stream = all.watch(&WatchParams::default(), "0").await.unwrap();
    let mut stream = Box::pin(stream);
    let first = futures_util::StreamExt::next(&mut stream).await.unwrap().unwrap();
    assert_eq!(crate::support::tell(&first), "ADDED p Running on=node-1 ready");
}

#[tokio::test]
async fn a_silent_watch_says_nothing_and_then_goes_on() {
    let cluster = running();
    let mut tape = Tape::all(&cluster).await;
    cluster.silence_watches(true);
    cluster.add_task("q", &[]);
    cluster.bookmark_now();
    assert!(tape.is_silent_for(Duration::from_millis(200)).await);
    cluster.silence_watches(false);
    tape.is(&["ADDED q Pending"]).await;
    assert!(tape.next().await.starts_with("BOOKMARK"));
}
