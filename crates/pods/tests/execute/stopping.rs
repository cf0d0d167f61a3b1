//! A pod is stopped when nobody wants it any more: marked first, then deleted, and waited for.

use crate::support::{SOON, World, hasty, impatient, never_polls, new_task, patience};
use serde_json::json;
use std::time::Duration;
use tenure_kubedouble::{Fault, On, OnDelete, Times};
use tenure_pods::{
    pod::PodEvent,
    task::{
        NewTask, TaskEvent,
        model::{OnLost, Times as TaskTimes},
    },
    verdict::Cause,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_is_written_on_the_pod_before_it_is_deleted() {
    let world = World::new().await;
    world.cluster.on_delete(OnDelete::WhenTold);
    let _executor = world.executor().await;
    let task = world.task(new_task()).await;
    let pod = world.running(task, 1).await;
    world.cancel(task).await;
    let marked = world.deleted(&pod).await;
    assert_eq!(marked["metadata"]["annotations"]["flowforge.io/cancel"], "cancel");
    let order: Vec<String> = world
        .cluster
        .requests()
        .into_iter()
        .filter(|r| r.resource == "pods" && ["patch", "delete"].contains(&r.verb.as_str()))
        .map(|r| r.verb)
        .collect();
    assert_eq!(order[..2], ["patch", "delete"]);
    // It is not over before its containers are.
    assert_eq!(world.head(task).await.unwrap().status.name(), "RUNNING");
    world.cluster.finish_delete(&pod, 143);
    world.status(task, "CANCELED").await;
    let tended = world.tended(task, 1);
    world.status(tended, "cleared").await;
    let ended = world.task_events(task).await;
    assert!(
        ended.iter().any(|e| matches!(e, TaskEvent::TaskCanceled { fenced: true, .. })),
        "{ended:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_nobody_wants_before_it_is_begun_is_never_made() {
    let world = World::new().await;
    let task = world.task(new_task()).await;
    world.status(task, "QUEUED").await;
    world.cancel(task).await;
    world.status(task, "CANCELED").await;
    let _executor = world.executor().await;
    world.status(world.tended(task, 1), "not_made").await;
    assert!(world.made().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_cancelled_while_the_api_server_is_away_is_not_left_behind() {
    let world = World::new().await;
    // Carried out, and nobody hears of it.
    world.cluster.fault(On::create("pods"), Fault::AnswerLost, Times::Next(1));
    let lost = world.cluster.fault(On::create("pods"), Fault::unavailable(), Times::Always);
    let away = world.cluster.fault(On::verb("get", "pods"), Fault::unavailable(), Times::Always);
    let _executor = world.executor().await;
    let task = world.task(new_task()).await;
    let pod = world.pod(1).await;
    world.cancel(task).await;
    let tended = world.tended(task, 1);
    world.until_pod(tended, "asked to stop", |s| s.stop.is_some()).await;
    world.cluster.clear_fault(lost);
    world.cluster.clear_fault(away);
    world.status(tended, "cleared").await;
    world.status(task, "CANCELED").await;
    assert!(world.cluster.pod(&pod).is_none());
    assert_eq!(world.made().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_reaches_the_pod() {
    let world = World::new().await;
    world.cluster.on_delete(OnDelete::WhenTold);
    let _executor = world.executor().await;
    let task = world.task(NewTask { timeout_ms: Some(100), ..new_task() }).await;
    let pod = world.started(1).await;
    let marked = world.deleted(&pod).await;
    assert_eq!(marked["metadata"]["annotations"]["flowforge.io/stopped"], "timeout");
    assert!(marked["metadata"]["annotations"]["flowforge.io/cancel"].is_null());
    world.cluster.finish_delete(&pod, 143);
    world.status(task, "FAILED").await;
    assert_eq!(world.task_state(task).await.ended.unwrap().cause, Some(Cause::Timeout));
    world.status(world.tended(task, 1), "cleared").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_that_is_refused_for_now_is_asked_for_again() {
    let world = World::new().await;
    world.cluster.fault(On::verb("patch", "pods"), Fault::internal_error(), Times::Next(2));
    world.cluster.fault(On::verb("delete", "pods"), Fault::unavailable(), Times::Next(2));
    let _executor = world.executor().await;
    let task = world.task(new_task()).await;
    let pod = world.running(task, 1).await;
    world.cancel(task).await;
    world.status(task, "CANCELED").await;
    assert!(world.cluster.pod(&pod).is_none());
}

/// Priority and fairness put deletions off by so many seconds, and again. Nothing else happens to the pod that would wake anybody.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_that_is_throttled_is_asked_for_when_the_server_said_and_not_a_minute_later() {
    let world = World::new().await;
    let throttled = Fault::too_many_requests(1);
    world.cluster.fault(On::verb("delete", "pods"), throttled, Times::Next(2));
    let _executor = world.executor_with(never_polls).await;
    let task = world.task(new_task()).await;
    let pod = world.running(task, 1).await;
    world.cancel(task).await;
    let soon = tokio::time::timeout(SOON, world.status(task, "CANCELED")).await;
    assert!(soon.is_ok(), "{}", world.story(world.tended(task, 1)).await);
    assert!(world.cluster.pod(&pod).is_none());
    assert_eq!(world.asked("delete").len(), 3, "twice in vain");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_pod_that_took_the_name_is_never_touched() {
    let world = World::new().await;
    let _executor = world.executor().await;
    let task = world
        .task(NewTask { retry: tenure_pods::task::policy::RetryPolicy::never(), ..new_task() })
        .await;
    let pod = world.running(task, 1).await;
    world.cluster.silence_watches(true);
    world.cluster.force_delete(&pod);
    world.cluster.add_task(&pod, &[("flowforge.io/workload", "true")]);
    world.cancel(task).await;
    world.status(task, "CANCELED").await;
    world.status(world.tended(task, 1), "cleared").await;
    let other = world.cluster.pod(&pod).expect("it is there");
    assert!(other["metadata"]["deletionTimestamp"].is_null());
    assert!(other["metadata"]["annotations"]["flowforge.io/cancel"].is_null());
}

/// A node that does not answer, seen as the pod shows it: for `on_lost: wait` nothing replaces the pod before it is known to be
/// over; the node comes back, and the task goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_on_a_lost_node_is_replaced_only_when_it_is_over() {
    let world = World::new().await;
    let _executor = world.executor_with(hasty).await;
    let task = world.task(NewTask { template: impatient(), ..new_task() }).await;
    world.running(task, 1).await;
    world.cluster.node_lost("node-1");
    world.status(task, "RETRYING").await;
    assert_eq!(world.task_state(task).await.ended.unwrap().cause, Some(Cause::NodeLost));
    // Its deletion is on paper; nothing says that its containers have ended.
    let tended = world.tended(task, 1);
    world.until_pod(tended, "marked", |s| s.marked).await;
    world.until("the pause is over", || !world.asked("delete").is_empty()).await;
    assert_eq!(world.made().len(), 1, "no other pod while the first may run");
    let by_force = |r: &tenure_kubedouble::Request| {
        r.verb == "delete" && r.body.as_ref().is_some_and(|b| b["gracePeriodSeconds"] == json!(0))
    };
    assert!(!world.cluster.requests().iter().any(by_force), "nobody asked for force");
    // It comes back, and ends what was deleted meanwhile.
    world.cluster.node_back("node-1");
    let second = world.started(2).await;
    world.cluster.terminate(&second, 0, "Completed", "");
    world.status(task, "SUCCEEDED").await;
    world.status(tended, "cleared").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_may_run_twice_does_not_wait_for_a_lost_node() {
    let world = World::new().await;
    let _executor = world.executor_with(hasty).await;
    let times = TaskTimes { fence_ms: 200, ..TaskTimes::default() };
    let template = impatient();
    let new = NewTask { template, on_lost: OnLost::Replace, times, ..new_task() };
    let task = world.task(new).await;
    let first = world.running(task, 1).await;
    world.cluster.node_lost("node-1");
    world.cluster.add_node("node-2");
    let second = world.pod(2).await;
    world.cluster.bind(&second, "node-2");
    world.cluster.running(&second);
    world.cluster.terminate(&second, 0, "Completed", "");
    world.status(task, "SUCCEEDED").await;
    // It was told to go, and had its time, before it was taken away by force.
    world.status(world.tended(task, 1), "cleared").await;
    let grace =
        |r: &tenure_kubedouble::Request| r.body.clone().map(|b| b["gracePeriodSeconds"].clone());
    let all = world.cluster.requests();
    let deletions = all
        .iter()
        .filter(|r| r.verb == "delete" && first.ends_with(r.name.as_deref().unwrap_or("?")));
    let graces: Vec<_> = deletions.filter_map(grace).collect();
    assert_eq!(graces.first(), Some(&json!(null)), "{graces:?}");
    assert_eq!(graces.last(), Some(&json!(0)), "{graces:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_that_never_ends_is_stopped_when_the_main_container_has_ended() {
    let world = World::new().await;
    let _executor = world.executor().await;
    let template = json!({ "spec": { "containers": [
        { "name": "main", "image": "busybox" }, { "name": "istio-proxy", "image": "mesh" }
    ] } });
    let retry = tenure_pods::task::policy::RetryPolicy::never();
    let task = world.task(NewTask { template, retry, ..new_task() }).await;
    let pod = world.running(task, 1).await;
    world.cluster.terminate_in(&pod, "main", 1, "Error", "");
    world.status(task, "FAILED").await;
    // Failed pods are left to be looked at; one that would run for ever is not.
    world.status(world.tended(task, 1), "cleared").await;
    assert!(world.cluster.pod(&pod).is_none());
    let events = world.pod_events(world.tended(task, 1)).await;
    let over = events.iter().position(|e| matches!(e, PodEvent::PodOver { .. }));
    let marked = events.iter().position(|e| matches!(e, PodEvent::PodMarked {}));
    assert!(over < marked, "{events:?}");
    assert!(patience().linger > Duration::ZERO);
}

/// A webhook that forbids every change of a pod does not keep it alive.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_mark_is_refused_is_deleted_without_it() {
    let world = World::new().await;
    world.cluster.fault(On::verb("patch", "pods"), Fault::forbidden(), Times::Always);
    let _executor = world.executor().await;
    let task = world.task(new_task()).await;
    let pod = world.running(task, 1).await;
    world.cancel(task).await;
    world.status(task, "CANCELED").await;
    let tended = world.tended(task, 1);
    world.status(tended, "cleared").await;
    assert!(world.cluster.pod(&pod).is_none());
    assert!(world.asked("patch").len() <= 5, "{} patches", world.asked("patch").len());
    let story = world.story(tended).await;
    assert!(story.contains("deleted without a mark"), "{story}");
}
