//! What becomes of pods that are over.

use crate::support::{World, new_task};
use tenure_kernel::ids::EntityId;
use tenure_pods::{
    pod::PodEvent,
    task::{
        NewTask,
        model::{Cleanup, CleanupWhen},
        policy::RetryPolicy,
    },
};

async fn ends(world: &World, cleanup: Cleanup, exit_code: i32) -> (EntityId, String) {
    let retry = RetryPolicy::never();
    let task = world.task(NewTask { cleanup, retry, ..new_task() }).await;
    let pod = world.started(1).await;
    let reason = if exit_code == 0 { "Completed" } else { "Error" };
    world.cluster.terminate(&pod, exit_code, reason, "");
    world.status(task, if exit_code == 0 { "SUCCEEDED" } else { "FAILED" }).await;
    (world.tended(task, 1), pod)
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_cleaned_up_as_the_task_says() {
    use CleanupWhen::{Always, Never, OnSuccess};
    let cases = [
        (OnSuccess, 0, "cleared"),
        (OnSuccess, 1, "left"),
        (Always, 0, "cleared"),
        (Always, 1, "cleared"),
        (Never, 0, "left"),
        (Never, 1, "left"),
    ];
    for (when, exit_code, expected) in cases {
        let world = World::new().await;
        let _executor = world.executor().await;
        let (tended, pod) = ends(&world, Cleanup { when, delay_ms: 0 }, exit_code).await;
        world.status(tended, expected).await;
        assert_eq!(
            world.cluster.pod(&pod).is_none(),
            expected == "cleared",
            "{when:?} {exit_code}"
        );
        let events = world.pod_events(tended).await;
        assert!(
            !events.iter().any(|e| matches!(e, PodEvent::PodMarked {})),
            "what is over needs no mark"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_kept_for_a_while_is_held_by_nobody_meanwhile() {
    let world = World::new().await;
    let executor = world.executor().await;
    let cleanup = Cleanup { when: CleanupWhen::Always, delay_ms: 700 };
    let (tended, pod) = ends(&world, cleanup, 0).await;
    world.status(tended, "kept").await;
    assert!(world.head(tended).await.unwrap().holder.is_none());
    assert!(world.cluster.pod(&pod).is_some());
    // Any executor deletes it when its time has come.
    drop(executor);
    let _executor = world.executor().await;
    world.status(tended, "cleared").await;
    assert!(world.cluster.pod(&pod).is_none());
}
