//! The log of a pod is kept as it is written, once, and never fails a task.

use crate::support::{World, new_task};
use std::time::Duration;
use tenure_kernel::ids::EntityId;
use tenure_kubedouble::{Fault, On, Times};
use tenure_pods::{
    execute::PodShop,
    pod::{PodEvent, model::limits},
    view::logs,
};

async fn running(world: &World) -> (EntityId, EntityId, String) {
    let task = world.task(new_task()).await;
    let pod = world.running(task, 1).await;
    (task, world.tended(task, 1), pod)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_is_kept_while_the_pod_runs_and_to_its_end() {
    let world = World::new().await;
    let _executor = world.executor().await;
    let (task, tended, pod) = running(&world).await;
    world.cluster.log(&pod, "main", "one");
    world.until_pod(tended, "the first line is kept", |s| s.log_bytes >= 4).await;
    world.cluster.log(&pod, "main", "two");
    world.cluster.terminate(&pod, 0, "Completed", "");
    world.status(task, "SUCCEEDED").await;
    world.status(tended, "cleared").await;
    assert_eq!(world.log_of(tended).await, "one\ntwo\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_takes_over_reads_on_and_keeps_no_line_twice() {
    let world = World::new().await;
    let first = world.executor().await;
    let (_, tended, pod) = running(&world).await;
    for n in 0..5 {
        world.cluster.log(&pod, "main", &format!("line {n}"));
    }
    world.until_pod(tended, "kept", |s| s.log_bytes >= 35).await;
    first.kill();
    // Written while nobody reads; the same second as before, mostly.
    for n in 5..10 {
        world.cluster.log(&pod, "main", &format!("line {n}"));
    }
    let _second = world.executor().await;
    world.until_pod(tended, "the rest is kept", |s| s.log_bytes >= 70).await;
    world.cluster.cut_logs();
    world.cluster.log(&pod, "main", "line 10");
    world.cluster.terminate(&pod, 0, "Completed", "");
    world.status(tended, "cleared").await;
    let expected: String = (0..=10).map(|n| format!("line {n}\n")).collect();
    assert_eq!(world.log_of(tended).await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_can_not_be_read_fails_nothing() {
    let world = World::new().await;
    world.cluster.fault(On::verb("get", "pods/log"), Fault::internal_error(), Times::Always);
    let _executor = world.executor().await;
    let (task, tended, pod) = running(&world).await;
    world.cluster.log(&pod, "main", "nobody reads this");
    world.cluster.terminate(&pod, 0, "Completed", "");
    world.status(task, "SUCCEEDED").await;
    world.status(tended, "cleared").await;
    assert_eq!(world.log_of(tended).await, "");
    // And nobody takes it for an empty one.
    let page = logs(&world.store, task, 1, 1).await.unwrap().unwrap();
    assert!(page.text.is_empty() && page.over, "{page:?}");
    assert!(page.trouble.is_some_and(|why| why.contains("etcdserver: request timed out")));
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_follows_a_log_that_cannot_be_read_is_told_while_the_pod_runs() {
    let world = World::new().await;
    let on = On::verb("get", "pods/log");
    let fault = world.cluster.fault(on, Fault::internal_error(), Times::Always);
    let _executor = world.executor().await;
    let (task, tended, pod) = running(&world).await;
    world.cluster.log(&pod, "main", "one");
    world.until_pod(tended, "its trouble is on record", |s| s.log_trouble.is_some()).await;
    let page = logs(&world.store, task, 1, 1).await.unwrap().unwrap();
    assert!(page.trouble.is_some() && !page.over);
    world.cluster.clear_fault(fault);
    world.until_pod(tended, "read after all", |s| s.log_bytes > 0 && s.log_trouble.is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_log_that_could_not_be_read_for_a_while_is_an_empty_log() {
    let world = World::new().await;
    let on = On::verb("get", "pods/log");
    let fault = world.cluster.fault(on, Fault::internal_error(), Times::Always);
    let patient = |mut shop: PodShop| {
        shop.patience.log_end = Duration::from_secs(600);
        shop
    };
    let _executor = world.executor_with(patient).await;
    let (task, tended, pod) = running(&world).await;
    world.until_pod(tended, "its trouble is on record", |s| s.log_trouble.is_some()).await;
    world.cluster.clear_fault(fault);
    world.cluster.terminate(&pod, 0, "Completed", "");
    world.until_pod(tended, "read to its end", |s| s.log_trouble.is_none()).await;
    world.status(tended, "cleared").await;
    let page = logs(&world.store, task, 1, 1).await.unwrap().unwrap();
    assert!(page.text.is_empty() && page.over && page.trouble.is_none(), "{page:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_log_that_is_too_long_the_beginning_and_the_end_are_kept() {
    let world = World::new().await;
    let _executor = world.executor().await;
    let (_, tended, pod) = running(&world).await;
    let line = "x".repeat(1_000);
    let lines = limits::LOG_BYTES_MAX / 1_000 + 40;
    for _ in 0..lines {
        world.cluster.log(&pod, "main", &line);
    }
    world.until_pod(tended, "cut", |s| s.log_cut).await;
    world.cluster.log(&pod, "main", "the last words");
    world.cluster.terminate(&pod, 1, "Error", "");
    world.until_pod(tended, "over", |s| s.over).await;
    let state = world.pod_state(tended).await;
    assert_eq!(state.log_bytes, limits::LOG_BYTES_MAX);
    let events = world.pod_events(tended).await;
    let tail = events.iter().find_map(|e| match e {
        PodEvent::PodOver { tail } => Some(tail.clone()),
        _ => None,
    });
    let tail = tail.unwrap();
    assert!(tail.ends_with("the last words\n") && tail.len() <= limits::LOG_TAIL_BYTES, "{tail:?}");
    assert!(
        events.iter().all(|e| !matches!(e, PodEvent::LogAppended { text, .. } if text.len() > limits::LOG_CHUNK_BYTES_MAX))
    );
}
