//! Calls of jobs that are cancelled.

use super::{Far, flows, quick, tool, world};
use crate::support::World;
use serde_json::json;
use std::time::Duration;
use tenure_jobs::{
    call::{
        FailKind,
        desk::{Heard, Taken},
    },
    catalogue::register_calls,
    drive::JobOptions,
};
use tenure_kernel::ids::EntityId;
use tenure_steps::{
    Class,
    tool::{ToolCtx, ToolSpec, Tools},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_takes_a_queued_call_back_and_leaves_nothing_unknown() {
    for wait in ["waiting", "running"] {
        let patience = if wait == "waiting" { 20 } else { 60_000 };
        let options = JobOptions { call_patience: Duration::from_millis(patience), ..quick() };
        let world = world(Class::Irreversible, options).await;
        let job = world.submit("far", json!(1)).await;
        world.until_seen(job, "call_handed").await;
        world.until(job, wait).await;
        let call = world.state(job).await.calls_out(job).next().unwrap().0;
        world.cancel(job).await;
        world.until(job, "cancelled").await;
        world.until_head(call, "cancelled").await;
        let story = world.story(job).await;
        assert!(!story.contains("\"unknown\""), "{story}");
        world.check().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_reaches_the_worker_with_its_next_renewal() {
    let world = world(Class::Irreversible, quick()).await;
    let far = Far::open(&world).await;
    let job = world.submit("far", json!(1)).await;
    let call = far.take().await;
    assert_eq!(far.renew(&[&call]).await, (vec![], vec![]));
    world.cancel(job).await;
    let stop = far.renew_until_stopped(&call).await;
    assert_eq!(stop, vec![call.head.id]);
    assert_eq!(far.fail(&call, FailKind::Cancelled).await, Heard::Accepted);
    world.until(job, "cancelled").await;
    let story = world.story(job).await;
    assert!(!story.contains("\"unknown\""), "{story}");
    // One that is not heard of any more is listed as unknown, and the job ends all the same.
    let job = world.submit("far", json!(2)).await;
    far.take().await;
    world.cancel(job).await;
    world.until(job, "cancelled").await;
    let story = world.story(job).await;
    assert!(story.contains("\"unknown\":[\"1\"]"), "{story}");
    world.check().await;
}

/// Somebody has taken the call of a job that is being cancelled by now.
async fn taken_and_cancelling(world: &World) -> (Far<'_>, EntityId, Taken) {
    let far = Far::open(world).await;
    let job = world.submit("far", json!(1)).await;
    let call = far.take().await;
    world.cancel(job).await;
    world.until(job, "cancelling").await;
    (far, job, call)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_comes_while_the_job_is_being_cancelled_is_not_lost() {
    let world = world(Class::Irreversible, quick()).await;
    let (far, job, call) = taken_and_cancelling(&world).await;
    far.complete(&call, json!("paid")).await;
    world.until(job, "cancelled").await;
    assert_eq!(world.count(job, "command_committed").await, 1);
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_the_flow_no_longer_waits_for_is_told_and_settled_before_the_job_ends() {
    let world = world(Class::Irreversible, quick()).await;
    let far = Far::open(&world).await;
    let job = world.submit("either", json!(1)).await;
    let call = far.take().await;
    world.signal(job, "enough", json!(1)).await;
    far.renew_until_stopped(&call).await;
    assert_ne!(world.head(job).await.status.name(), "completed", "a started call is open");
    far.fail(&call, FailKind::Cancelled).await;
    assert_eq!(world.until(job, "completed").await.output, Some(json!("enough")));
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_result_that_comes_while_the_job_is_being_cancelled_is_there_for_a_retry() {
    let world = world(Class::Irreversible, quick()).await;
    let (far, job, call) = taken_and_cancelling(&world).await;
    let result = json!("r".repeat(50_000));
    far.complete(&call, result.clone()).await;
    world.until(job, "cancelled").await;
    let story = world.story(job).await;
    assert!(!story.contains("\"unknown\""), "{story}");
    let retry = world.jobs.fork(job, None, None, None).await.unwrap().id;
    world.until(retry, "completed").await;
    let shown = tenure_jobs::view::detail(&world.store, retry).await.unwrap().unwrap();
    assert!(shown.job.output == Some(result), "the retry has another output");
    assert_eq!(world.count(retry, "tool_invocation_started").await, 0);
    world.check().await;
}

async fn world_with_near() -> World {
    let near = ToolSpec::new("near", |_: ToolCtx, n: u32| async move { Ok(json!(n)) }).idempotent();
    let world = World::start(flows(), Tools::default().with(near), quick()).await;
    register_calls(&world.node.pipeline, "", &[tool(Class::Idempotent)]).await.unwrap();
    world
}

/// Nobody holds the job when the answer comes: it must not count as tried.
#[tokio::test(flavor = "multi_thread")]
async fn an_undo_elsewhere_that_failed_is_tried_again_while_its_job_is_cancelled() {
    let world = world_with_near().await;
    let far = Far::open(&world).await;
    let job = world.submit("back", json!(false)).await;
    world.until(job, "parked").await;
    world.cancel(job).await;
    let first = far.take().await;
    world.until_free(job).await;
    assert_eq!(far.fail(&first, FailKind::Retryable).await, Heard::Accepted);
    let second = far.take().await;
    assert_eq!(second.input, json!("back"));
    far.complete(&second, json!("done")).await;
    world.until(job, "cancelled").await;
    let story = world.story(job).await;
    let last = story.lines().find(|l| l.contains("job_cancelled")).unwrap();
    assert!(last.contains("\"undone\":{\"undone\":["), "{story}");
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_does_not_stop_an_undo_that_is_out() {
    let world = world_with_near().await;
    let far = Far::open(&world).await;
    let job = world.submit("back", json!(true)).await;
    let undo = far.take().await;
    world.cancel(job).await;
    world.until_seen(job, "job_cancelling").await;
    // A message to the call would have left with that commit, and been taken to it before another of later.
    let later = world.submit("far", json!(1)).await;
    let next = far.take().await;
    assert_eq!(far.renew(&[&undo, &next]).await, (Vec::new(), Vec::new()));
    far.complete(&undo, json!("done")).await;
    world.until(job, "cancelled").await;
    far.complete(&next, json!(2)).await;
    world.until(later, "completed").await;
    world.check().await;
}
