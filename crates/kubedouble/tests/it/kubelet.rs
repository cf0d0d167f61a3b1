//! What the kubelet and the controllers write.

use crate::support::{Tape, pods};
use kube::api::DeleteParams;
use serde_json::{Value, json};
use tenure_kubedouble::{Cluster, Life, OnDelete};

fn bound() -> Cluster {
    let cluster = Cluster::start();
    cluster.add_task("p", &[]);
    cluster.bind("p", "node-1");
    cluster
}

fn status(cluster: &Cluster) -> Value {
    cluster.pod("p").unwrap()["status"].clone()
}

fn condition(status: &Value, kind: &str) -> Value {
    let list = status["conditions"].as_array().cloned().unwrap_or_default();
    list.into_iter().find(|c| c["type"] == kind).unwrap_or_default()
}

#[test]
fn a_pod_lives_and_succeeds() {
    let cluster = bound();
    cluster.stop_clock_at(1_800_000_000);
    assert_eq!(condition(&status(&cluster), "PodScheduled")["status"], "True");
    cluster.creating("p");
    let creating = status(&cluster);
    assert_eq!(creating["containerStatuses"][0]["state"]["waiting"]["reason"], "ContainerCreating");
    assert_eq!(condition(&creating, "Ready")["message"], "containers with unready status: [main]");
    cluster.waiting("p", "ErrImagePull", "not found");
    assert_eq!(
        status(&cluster)["containerStatuses"][0]["state"],
        json!({"waiting": {"reason": "ErrImagePull", "message": "not found"}})
    );
    cluster.running("p");
    let running = status(&cluster);
    assert_eq!(running["phase"], "Running");
    assert_eq!(
        running["containerStatuses"][0]["state"]["running"]["startedAt"],
        "2027-01-15T08:00:00Z"
    );
    assert_eq!(condition(&running, "Ready")["status"], "True");
    cluster.advance_clock(std::time::Duration::from_secs(90));
    cluster.terminate("p", 0, "", "the result");
    let ended = status(&cluster);
    assert_eq!(ended["phase"], "Succeeded");
    let state = &ended["containerStatuses"][0]["state"]["terminated"];
    assert_eq!((&state["reason"], &state["message"]), (&json!("Completed"), &json!("the result")));
    assert_eq!(state["startedAt"], "2027-01-15T08:00:00Z");
    assert_eq!(state["finishedAt"], "2027-01-15T08:01:30Z");
    assert_eq!(condition(&ended, "Ready")["reason"], "PodCompleted");
    assert_eq!(condition(&ended, "Ready")["lastTransitionTime"], "2027-01-15T08:01:30Z");
}

#[test]
fn a_sidecar_keeps_the_pod_running_and_a_native_one_does_not() {
    let cluster = Cluster::start();
    cluster.add_pod(json!({"metadata": {"name": "p"}, "spec": {"restartPolicy": "Never",
        "containers": [{"name": "main", "image": "a:1"}, {"name": "proxy", "image": "b:1"}]}}));
    cluster.bind("p", "node-1");
    cluster.running("p");
    cluster.terminate("p", 3, "", "");
    assert_eq!(status(&cluster)["phase"], "Running");
    assert_eq!(
        condition(&status(&cluster), "Ready")["message"],
        "containers with unready status: [main]"
    );
    cluster.terminate_in("p", "proxy", 0, "", "");
    assert_eq!(status(&cluster)["phase"], "Failed");

    cluster.force_delete("p");
    cluster.add_pod(json!({"metadata": {"name": "p"}, "spec": {"restartPolicy": "Never",
        "initContainers": [{"name": "proxy", "image": "b:1", "restartPolicy": "Always"}],
        "containers": [{"name": "main", "image": "a:1"}]}}));
    cluster.bind("p", "node-1");
    cluster.running("p");
    assert!(status(&cluster)["initContainerStatuses"][0]["state"]["running"].is_object());
    cluster.succeed("p");
    assert_eq!(status(&cluster)["phase"], "Succeeded");
}

#[test]
fn an_init_container_fails_the_pod_while_main_waits() {
    let cluster = Cluster::start();
    cluster.add_pod(json!({"metadata": {"name": "p"}, "spec": {"restartPolicy": "Never",
        "initContainers": [{"name": "setup", "image": "b:1"}],
        "containers": [{"name": "main", "image": "a:1"}]}}));
    cluster.bind("p", "node-1");
    cluster.creating("p");
    cluster.init_ended("p", "", 2);
    let failed = status(&cluster);
    assert_eq!(failed["phase"], "Failed");
    assert_eq!(failed["initContainerStatuses"][0]["state"]["terminated"]["exitCode"], 2);
    assert_eq!(failed["containerStatuses"][0]["state"]["waiting"]["reason"], "PodInitializing");
    assert_eq!(condition(&failed, "Initialized")["reason"], "ContainersNotInitialized");
}

#[test]
fn a_container_that_restarts_backs_off() {
    let cluster = Cluster::start();
    cluster.add_pod(json!({"metadata": {"name": "p"}, "spec": {
        "containers": [{"name": "main", "image": "a:1"}]}}));
    cluster.bind("p", "node-1");
    cluster.running("p");
    for count in 1..=3 {
        cluster.back_off("p", 1);
        let now = status(&cluster)["containerStatuses"][0].clone();
        assert_eq!(now["restartCount"], count);
        assert_eq!(now["state"]["waiting"]["reason"], "CrashLoopBackOff");
        assert_eq!(now["lastState"]["terminated"]["exitCode"], 1);
        assert_eq!(status(&cluster)["phase"], "Running");
        cluster.restarted("p");
    }
}

#[test]
fn the_kubelet_ends_pods_in_its_own_words() {
    type Act = fn(&Cluster) -> u64;
    let cases: [(Act, &str, bool, &str); 5] = [
        (|c| c.evict_pressure("p", "memory"), "Evicted", true, "node was low on resource: memory"),
        (|c| c.evict_own_limit("p"), "Evicted", false, "exceeds the total limit"),
        (|c| c.node_shutdown("p"), "Terminated", true, "imminent node shutdown"),
        (|c| c.preempted_by_kubelet("p"), "Preempting", true, "critical pod"),
        (|c| c.deadline_exceeded("p"), "DeadlineExceeded", false, "deadline"),
    ];
    for (act, reason, disruption, words) in cases {
        let cluster = bound();
        cluster.running("p");
        act(&cluster);
        let ended = status(&cluster);
        assert_eq!((&ended["phase"], &ended["reason"]), (&json!("Failed"), &json!(reason)));
        assert!(ended["message"].as_str().unwrap().contains(words), "{ended}");
        assert_eq!(ended["containerStatuses"][0]["state"]["terminated"]["exitCode"], 137);
        let marked = condition(&ended, "DisruptionTarget");
        assert_eq!(marked["reason"] == "TerminationByKubelet", disruption, "{reason}");
    }
}

#[test]
fn what_never_ran_could_not_be_found() {
    let cluster = bound();
    cluster.creating("p");
    cluster.evict_pressure("p", "memory");
    let state = status(&cluster)["containerStatuses"][0]["state"]["terminated"].clone();
    assert_eq!(state["reason"], "ContainerStatusUnknown");
}

#[test]
fn a_rejected_pod_has_nothing_but_the_reason() {
    let cluster = bound();
    cluster.rejected("p", "OutOfcpu", "Node didn't have enough resource: cpu");
    let rejected = status(&cluster);
    assert_eq!(rejected["reason"], "OutOfcpu");
    assert!(rejected["message"].as_str().unwrap().starts_with("Pod was rejected: "));
    assert_eq!(rejected["conditions"], json!(null));
    assert_eq!(rejected["containerStatuses"], json!(null));
}

#[tokio::test]
async fn a_deleted_pod_is_ended_at_once_or_when_told() {
    let cluster = bound();
    cluster.running("p");
    let mut tape = Tape::all(&cluster).await;
    let answer = pods(&cluster).delete("p", &DeleteParams::default()).await.unwrap();
    let pod = answer.left().expect("the pod, not a status");
    assert_eq!(pod.metadata.deletion_grace_period_seconds, Some(30));
    tape.is(&[
        "MODIFIED p Running on=node-1 deleting=30 ready",
        "MODIFIED p Failed on=node-1 deleting=30 exit=143",
        "MODIFIED p Failed on=node-1 deleting=0 exit=143",
        "DELETED p Failed on=node-1 deleting=0 exit=143",
    ])
    .await;
    cluster.on_delete(OnDelete::WhenTold);
    cluster.add_task("p", &[]);
    cluster.bind("p", "node-1");
    cluster.running("p");
    cluster.delete("p");
    assert!(cluster.pod("p").is_some());
    cluster.delete("p");
    cluster.finish_delete("p", 0);
    let lines = tape.take(7).await;
    assert_eq!(lines[3], "MODIFIED p Running on=node-1 deleting=30 ready");
    assert_eq!(
        lines[4..],
        [
            "MODIFIED p Succeeded on=node-1 deleting=30 exit=0",
            "MODIFIED p Succeeded on=node-1 deleting=0 exit=0",
            "DELETED p Succeeded on=node-1 deleting=0 exit=0",
        ],
        "a program that handles SIGTERM has succeeded, and the second delete changed nothing"
    );
}

#[tokio::test]
async fn a_node_out_of_service_lets_go_of_what_is_being_deleted() {
    let cluster = bound();
    cluster.running("p");
    cluster.node_lost("node-1");
    assert_eq!(status(&cluster)["phase"], "Running");
    let mut tape = Tape::all(&cluster).await;
    cluster.node_out_of_service("node-1");
    let lines = tape.take(3).await;
    assert!(lines[0].starts_with("MODIFIED p Failed on=node-1 deleting=30"), "{lines:?}");
    assert!(lines[2].starts_with("DELETED p Failed"), "{lines:?}");
}

#[test]
fn preemption_and_taints_say_why_before_they_delete() {
    for (act, reason) in [
        (Cluster::preempted_by_scheduler as fn(&Cluster, &str) -> u64, "PreemptionByScheduler"),
        (Cluster::taint_evict, "DeletionByTaintManager"),
    ] {
        let cluster = bound();
        cluster.on_delete(OnDelete::WhenTold);
        cluster.running("p");
        act(&cluster, "p");
        let now = cluster.pod("p").unwrap();
        assert_eq!(condition(&now["status"], "DisruptionTarget")["reason"], reason);
        assert_eq!(now["metadata"]["deletionGracePeriodSeconds"], 30);
    }
}

#[test]
fn a_hook_makes_pods_run_by_themselves_and_events_tell_of_them() {
    let cluster = bound();
    cluster.event("p", "Warning", "FailedMount", "no such secret");
    let events = cluster.objects("events");
    assert_eq!(events[0]["involvedObject"]["uid"], cluster.pod("p").unwrap()["metadata"]["uid"]);
    cluster.live("p", &Life::Unschedulable { message: "0/1 nodes".to_owned() });
    assert_eq!(condition(&status(&cluster), "PodScheduled")["reason"], "Unschedulable");
}
