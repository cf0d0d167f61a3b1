//! A pod that was told to go and does not, because its node does not answer, is taken away by force where somebody bears that: the
//! task, or a person. That it is gone then proves nothing.

use crate::support::{SOON, World, hasty, impatient, never_polls, new_task};
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tenure_kernel::{ids::EntityId, time::Timestamp};
use tenure_kubedouble::{Fault, On, OnDelete, Times as How};
use tenure_pods::{
    desk::{Defaults, Desk, DeskError, Outcome, Reporter},
    execute::points,
    pod::{ForceAsk, PodEvent},
    report::Report,
    task::{
        NewTask, TaskEvent,
        decide::RetryNow,
        model::{OnLost, Times},
    },
};

fn desk(world: &World) -> Desk {
    Desk::new(world.node.pipeline.clone(), Defaults::default())
}

fn ann() -> ForceAsk {
    ForceAsk { by: Some("ann".into()), why: "node-1 burnt down".into() }
}

/// A task whose pod runs on a node that is lost then.
async fn lost(world: &World, new: NewTask) -> (EntityId, String) {
    let task = world.task(new).await;
    let pod = world.pod(1).await;
    world.cluster.bind(&pod, "node-1");
    world.cluster.running(&pod);
    world.status(task, "RUNNING").await;
    world.cluster.node_lost("node-1");
    world.status(task, "RETRYING").await;
    (task, pod)
}

fn forced(world: &World) -> usize {
    let all = world.cluster.requests().into_iter();
    let by_force = |b: serde_json::Value| b["gracePeriodSeconds"] == 0;
    all.filter(|r| r.verb == "delete" && r.body.clone().is_some_and(by_force)).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_has_it_taken_away_and_the_task_still_does_not_believe_that_it_ended() {
    let world = World::new().await;
    let _executor = world.executor_with(hasty).await;
    let (task, pod) = lost(&world, NewTask { template: impatient(), ..new_task() }).await;
    let (desk, tended) = (desk(&world), world.tended(task, 1));
    let silent = desk.force_delete(None, task, None, ForceAsk::default()).await;
    assert!(
        matches!(silent, Err(DeskError::Bad { ref field, .. }) if field == "why"),
        "{silent:?}"
    );
    let uid = world.pod_state(tended).await.uid.unwrap();
    world.until_pod(tended, "told to go", |s| s.stop.is_some()).await;
    let answer = desk.force_delete(None, task, None, ann()).await.unwrap();
    assert_eq!(answer.outcome, Outcome::Accepted);
    world.status(tended, "cleared").await;
    assert!(world.cluster.pod(&pod).is_none());
    assert_eq!(forced(&world), 1);
    // Who and why is in both histories.
    let asked = world.pod_events(tended).await;
    assert!(
        asked.contains(&PodEvent::ForceAsked(ann())) && asked.contains(&PodEvent::PodForced {})
    );
    let events = world.task_events(task).await;
    assert!(events.contains(&TaskEvent::PodForced(ann())), "{events:?}");
    // A collector, which only saw it vanish, is no witness of its end.
    let head = world.head(task).await.unwrap();
    let report: Report = Report::read(json!({
        "task_id": task.to_string(), "workflow_id": "wf", "tenant_id": "acme", "attempt": 1,
        "pod": { "namespace": "default", "name": pod, "uid": uid },
        "verdict": { "status": "FAILED", "cause": "deleted_externally", "class": "deleted",
            "rule": "deleted/external", "reason": "", "message": "", "started": true },
        "over": true, "gone": true, "seen_at": Timestamp::from_micros(1),
    }))
    .unwrap();
    desk.report(&[report], &Reporter::default()).await.unwrap();
    let read = async || {
        let now = world.head(task).await.unwrap();
        now.version > head.version && !now.has_mail()
    };
    world.place.until("it has read that", read).await;
    let state = world.task_state(task).await;
    assert!(state.unfenced && state.forced, "{}", world.story(task).await);
    assert_eq!(world.made().len(), 1, "no second pod while the first may run");
    // Somebody looks, and vouches for it.
    desk.retry_now(None, task, RetryNow { by: Some("ann".into()), fenced: true }).await.unwrap();
    world.cluster.add_node("node-2");
    let second = world.pod(2).await;
    world.cluster.bind(&second, "node-2");
    world.cluster.running(&second);
    world.cluster.terminate(&second, 0, "Completed", "");
    world.status(task, "SUCCEEDED").await;
    let again = desk.force_delete(None, task, Some(1), ann()).await;
    assert!(matches!(again, Err(DeskError::NotNow { .. })), "{again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_was_not_told_to_go_is_not_taken_away() {
    let world = World::new().await;
    let _executor = world.executor_with(hasty).await;
    let task = world.task(new_task()).await;
    let pod = world.pod(1).await;
    world.cluster.bind(&pod, "node-1");
    world.cluster.running(&pod);
    world.status(task, "RUNNING").await;
    let answer = desk(&world).force_delete(None, task, None, ann()).await;
    let Err(DeskError::NotNow { why, fix, .. }) = answer else { panic!("{answer:?}") };
    assert!(why.contains("not told to go") && fix.contains("cancel"), "{why}; {fix}");
    let none = desk(&world).force_delete(None, task, Some(7), ann()).await;
    assert!(matches!(none, Err(DeskError::NotNow { .. })), "{none:?}");
    world.cluster.terminate(&pod, 0, "Completed", "");
    world.status(task, "SUCCEEDED").await;
    assert_eq!(forced(&world), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_task_ends_without_proof_when_its_pod_is_taken_away() {
    let world = World::new().await;
    world.cluster.on_delete(OnDelete::WhenTold);
    let _executor = world.executor_with(hasty).await;
    let task = world.task(NewTask { template: impatient(), ..new_task() }).await;
    let pod = world.pod(1).await;
    world.cluster.bind(&pod, "node-1");
    world.cluster.running(&pod);
    world.status(task, "RUNNING").await;
    world.cancel(task).await;
    let tended = world.tended(task, 1);
    world.until_pod(tended, "told to go", |s| s.stop.is_some()).await;
    desk(&world).force_delete(None, task, None, ann()).await.unwrap();
    world.status(task, "CANCELED").await;
    let events = world.task_events(task).await;
    let unfenced = |e: &TaskEvent| matches!(e, TaskEvent::TaskCanceled { fenced: false, .. });
    assert!(events.iter().any(unfenced), "{events:?}");
    world.status(tended, "cleared").await;
    assert!(world.cluster.pod(&pod).is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pod_of_a_task_that_is_over_can_be_taken_away_and_its_page_says_so() {
    let world = World::new().await;
    world.cluster.on_delete(OnDelete::WhenTold);
    let _executor = world.executor_with(hasty).await;
    let times = Times { stop_ms: 50, ..Times::default() };
    let task = world.task(NewTask { template: impatient(), times, ..new_task() }).await;
    let pod = world.pod(1).await;
    world.cluster.bind(&pod, "node-1");
    world.cluster.running(&pod);
    world.status(task, "RUNNING").await;
    world.cancel(task).await;
    world.status(task, "CANCELED").await;
    let tended = world.tended(task, 1);
    assert!(world.cluster.pod(&pod).is_some(), "nobody has told that it ended");
    world.until_pod(tended, "told to go", |s| s.stop.is_some()).await;
    desk(&world).force_delete(None, task, None, ann()).await.unwrap();
    world.status(tended, "cleared").await;
    assert!(world.cluster.pod(&pod).is_none());
    let evidence = world.store.evidence(task).await.unwrap();
    assert!(evidence.iter().any(|e| e.said.key == "force/1" && e.said.who == "ann"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_executor_that_dies_while_it_takes_a_pod_away_leaves_no_witness_of_its_end() {
    for asked in [false, true] {
        let world = Arc::new(World::new().await);
        let (told, mut tells) = tokio::sync::mpsc::unbounded_channel();
        let probe = crate::support::stands_at(points::FORCING, told);
        let first = world.executor_with(|shop| hasty(shop).with_probe(probe)).await;
        let (task, pod) = lost(&world, NewTask { template: impatient(), ..new_task() }).await;
        let tended = world.tended(task, 1);
        world.until_pod(tended, "told to go", |s| s.stop.is_some()).await;
        desk(&world).force_delete(None, task, None, ann()).await.unwrap();
        tokio::time::timeout(Duration::from_secs(20), tells.recv()).await.unwrap().unwrap();
        if asked {
            // Its request had left.
            world.cluster.force_delete(&pod);
        }
        first.kill();
        let _second = world.executor_with(hasty).await;
        world.status(tended, "cleared").await;
        assert!(world.cluster.pod(&pod).is_none());
        let knows = async || !world.head(task).await.unwrap().has_mail();
        world.place.until("the task knows", knows).await;
        let state = world.task_state(task).await;
        assert!(state.unfenced, "asked {asked}: {}", world.story(task).await);
        assert_eq!(world.made().len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_may_run_twice_has_a_stuck_pod_taken_away_when_it_has_waited() {
    let world = World::new().await;
    let _executor = world.executor_with(hasty).await;
    let times = Times { fence_ms: 200, ..Times::default() };
    let template = impatient();
    let new = NewTask { template, on_lost: OnLost::Replace, times, ..new_task() };
    let (task, first) = lost(&world, new).await;
    world.cluster.add_node("node-2");
    let second = world.pod(2).await;
    world.cluster.bind(&second, "node-2");
    world.cluster.running(&second);
    world.cluster.terminate(&second, 0, "Completed", "");
    world.status(task, "SUCCEEDED").await;
    let tended = world.tended(task, 1);
    world.status(tended, "cleared").await;
    assert!(world.cluster.pod(&first).is_none());
    let asked = ForceAsk { by: None, why: "on_lost: replace".into() };
    assert!(world.pod_events(tended).await.contains(&PodEvent::ForceAsked(asked)));
    assert_eq!(forced(&world), 1);
}

/// The same as for any deletion; and the task hears of it once, however often the API server is asked.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_by_force_that_is_throttled_is_asked_for_when_the_server_said() {
    let world = World::new().await;
    let executor = world.executor_with(|shop| hasty(never_polls(shop))).await;
    let (task, pod) = lost(&world, NewTask { template: impatient(), ..new_task() }).await;
    let tended = world.tended(task, 1);
    world.until("told to go", || executor.shop().counts.deleted.get() == 1).await;
    let throttled = Fault::too_many_requests(1);
    world.cluster.fault(On::verb("delete", "pods"), throttled, How::Next(2));
    desk(&world).force_delete(None, task, None, ann()).await.unwrap();
    let soon = tokio::time::timeout(SOON, world.status(tended, "cleared")).await;
    assert!(soon.is_ok(), "{}", world.story(tended).await);
    assert!(world.cluster.pod(&pod).is_none());
    assert_eq!(forced(&world), 3, "twice in vain");
    let events = world.task_events(task).await;
    assert!(events.contains(&TaskEvent::PodForced(ann())), "{events:?}");
    assert!(!world.story(task).await.contains("by force, once more"));
}
