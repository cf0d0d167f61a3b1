//! An executor says whether it can work, and what it has done.

use crate::support::{World, new_task};
use tenure_kubedouble::{Fault, On, Times};

#[tokio::test(flavor = "multi_thread")]
async fn it_is_ready_only_while_the_api_server_is_there_and_lets_it_in() {
    let world = World::new().await;
    let executor = world.executor().await;
    let look = executor.watcher();
    world.until("it is ready", || look().0.ready).await;
    assert!(look().0.api_age.is_some());
    world.cluster.stop_server();
    world.until("it is not", || !look().0.ready).await;
    let state = look().0;
    assert_eq!((state.server_up, state.api_up), (true, false), "{state:?}");
    assert!(state.not_ready.unwrap().contains("API server"));
    world.cluster.start_server();
    world.until("it is ready again", || look().0.ready).await;
    // Somebody took a right away: the words say which.
    world.cluster.forbid("get", "pods");
    world.until("it is not", || !look().0.ready).await;
    let why = look().0.not_ready.unwrap();
    assert!(why.contains("forbidden") && why.contains("cannot get resource"), "{why}");
    world.cluster.allow("get", "pods");
    world.until("it is ready again", || look().0.ready).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn its_numbers_tell_what_it_did_and_what_it_waited_for() {
    let world = World::new().await;
    world.cluster.fault(On::create("pods"), Fault::quota_exceeded(), Times::Next(2));
    let executor = world.executor().await;
    let look = executor.watcher();
    let value = |metric: &str| {
        let text = look().1;
        let line = text.lines().find_map(|l| l.strip_prefix(metric)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{metric} in {text}")).parse::<f64>().unwrap()
    };
    let task = world.task(new_task()).await;
    let pod = world.pod(1).await;
    world.cluster.bind(&pod, "node-1");
    world.cluster.running(&pod);
    world.cluster.log(&pod, "main", "hello");
    world.status(task, "RUNNING").await;
    assert_eq!(value("tenure_executor_slots"), 100.0);
    assert_eq!(value("tenure_executor_slots_used"), 1.0);
    world.cluster.terminate(&pod, 0, "Completed", "");
    world.status(task, "SUCCEEDED").await;
    world.status(world.tended(task, 1), "cleared").await;
    world.until("its slot is free", || look().0.slots_used == 0).await;
    for (metric, expected) in [
        ("tenure_executor_pods_made_total", 1.0),
        ("tenure_executor_pods_adopted_total", 0.0),
        ("tenure_executor_pods_stopped_total", 1.0),
        ("tenure_executor_log_bytes_total", 6.0),
        ("tenure_executor_requests_refused_total{class=\"quota\"}", 2.0),
        ("tenure_executor_waits_total{reason=\"quota\"}", 2.0),
        ("tenure_executor_requests_refused_total{class=\"forbidden\"}", 0.0),
    ] {
        assert_eq!(value(metric), expected, "{metric}");
    }
}
