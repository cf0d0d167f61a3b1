//! Executors that die: their whole runtime is dropped in the middle of something, without a goodbye.

use crate::support::{World, new_task, stands_at};
use tenure_kubedouble::Fault;
use tenure_kubedouble::{On, Times};
use tenure_pods::{
    execute::points,
    pod::PodEvent,
    task::{
        NewTask, TaskEvent,
        model::{Cleanup, CleanupWhen},
    },
};
use tokio::sync::mpsc;

#[tokio::test(flavor = "multi_thread")]
async fn an_executor_dies_at_every_point_of_making_a_pod_and_there_is_one() {
    for point in [points::CLAIMED, points::BEGUN, points::CREATED, points::MADE] {
        let world = World::new().await;
        let (told, mut heard) = mpsc::unbounded_channel();
        let first = world.executor_with(move |shop| shop.with_probe(stands_at(point, told))).await;
        let task = world.task(new_task()).await;
        heard.recv().await.unwrap();
        first.kill();
        let second = world.executor().await;
        let pod = world.pod(1).await;
        world.cluster.bind(&pod, "node-1");
        world.cluster.running(&pod);
        world.status(task, "RUNNING").await;
        world.cluster.terminate(&pod, 0, "Completed", "");
        world.status(task, "SUCCEEDED").await;
        let tended = world.tended(task, 1);
        world.status(tended, "cleared").await;
        assert_eq!(world.made().len(), 1, "{point}: one pod");
        assert_eq!(
            second.shop().counts.adopted.get(),
            u64::from(point == points::CREATED),
            "{point}"
        );
        let made = world.pod_events(tended).await;
        let made: Vec<_> = made.iter().filter(|e| matches!(e, PodEvent::PodMade { .. })).collect();
        assert_eq!(made.len(), 1, "{point}: it is on record once");
        let ends = world.task_events(task).await;
        let ends = ends.iter().filter(|e| matches!(e, TaskEvent::TaskSucceeded { .. })).count();
        assert_eq!(ends, 1, "{point}: it ends once");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_executor_dies_at_every_point_of_stopping_a_pod_and_it_is_stopped() {
    for point in [points::MARKED, points::DELETED] {
        let world = World::new().await;
        let (told, mut heard) = mpsc::unbounded_channel();
        let first = world.executor_with(move |shop| shop.with_probe(stands_at(point, told))).await;
        let task = world.task(new_task()).await;
        let pod = world.pod(1).await;
        world.cluster.bind(&pod, "node-1");
        world.cluster.running(&pod);
        world.status(task, "RUNNING").await;
        world.cancel(task).await;
        heard.recv().await.unwrap();
        first.kill();
        let _second = world.executor().await;
        world.status(task, "CANCELED").await;
        let tended = world.tended(task, 1);
        world.status(tended, "cleared").await;
        assert!(world.cluster.pod(&pod).is_none(), "{point}");
        assert_eq!(world.made().len(), 1, "{point}");
        let marked = world.pod_events(tended).await;
        let marked = marked.iter().filter(|e| matches!(e, PodEvent::PodMarked {})).count();
        assert_eq!(marked, 1, "{point}: what is on record is not done again");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_executor_dies_while_its_request_is_carried_out() {
    let world = World::new().await;
    world.cluster.fault(On::create("pods"), Fault::Hang, Times::Next(1));
    let first = world.executor().await;
    let task = world.task(new_task()).await;
    world.until("it is asked for", || !world.asked("create").is_empty()).await;
    first.kill();
    let _second = world.executor().await;
    let pod = world.started(1).await;
    world.cluster.terminate(&pod, 0, "Completed", "");
    world.status(task, "SUCCEEDED").await;
    world.status(world.tended(task, 1), "cleared").await;
    assert_eq!(world.made().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_ends_while_no_executor_lives_is_told_by_the_next() {
    let world = World::new().await;
    let first = world.executor().await;
    let task = world.task(new_task()).await;
    let pod = world.running(task, 1).await;
    first.kill();
    world.cluster.log(&pod, "main", "unheard");
    world.cluster.terminate(&pod, 0, "Completed", "done");
    let _second = world.executor().await;
    world.status(task, "SUCCEEDED").await;
    assert_eq!(world.task_state(task).await.result.as_deref(), Some("done"));
    let tended = world.tended(task, 1);
    world.status(tended, "cleared").await;
    let story = world.story(tended).await;
    assert_eq!(world.log_of(tended).await, "unheard\n", "{story}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_executor_that_is_asked_to_end_gives_its_pods_back_and_they_run_on() {
    let world = World::new().await;
    let first = world.executor().await;
    let task = world.task(new_task()).await;
    let pod = world.running(task, 1).await;
    first.stop().await;
    let tended = world.tended(task, 1);
    world.status(tended, "wanted").await;
    let there = world.cluster.pod(&pod).unwrap();
    assert!(there["metadata"]["deletionTimestamp"].is_null());
    let _second = world.executor().await;
    world.status(tended, "tended").await;
    world.cluster.terminate(&pod, 0, "Completed", "");
    world.status(task, "SUCCEEDED").await;
    assert_eq!(world.made().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_executors_share_the_work_and_make_each_pod_once() {
    let world = World::new().await;
    world.on_create(|cluster, pod| {
        cluster.bind(pod, "node-1");
        cluster.running(pod);
        cluster.terminate(pod, 0, "Completed", "");
    });
    let one = world.executor().await;
    let other = world.executor().await;
    let cleanup = Cleanup { when: CleanupWhen::Always, delay_ms: 0 };
    let mut tasks = Vec::new();
    for n in 0..30 {
        tasks.push(world.task(NewTask { cleanup, ..new_task() }).await);
        if n == 15 {
            // One of them dies in the middle.
            tokio::task::yield_now().await;
        }
    }
    one.kill();
    for task in &tasks {
        world.status(*task, "SUCCEEDED").await;
        world.status(world.tended(*task, 1), "cleared").await;
    }
    assert_eq!(world.made().len(), 30);
    drop(other);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_executor_finds_the_pod_although_nothing_more_can_be_made() {
    let world = World::new().await;
    let (told, mut heard) = mpsc::unbounded_channel();
    let probe = stands_at(points::CREATED, told);
    let first = world.executor_with(move |shop| shop.with_probe(probe)).await;
    let task = world.task(new_task()).await;
    heard.recv().await.unwrap();
    first.kill();
    world.cluster.fault(On::create("pods"), Fault::quota_exceeded(), Times::Always);
    let second = world.executor().await;
    world.running(task, 1).await;
    assert_eq!(second.shop().counts.adopted.get(), 1);
    assert_eq!(world.made().len(), 1);
}
