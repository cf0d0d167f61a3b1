//! How a call goes that nobody loses: its answer, its time, who takes it.

use super::{Far, flows, kept, quick, tool, world};
use crate::support::World;
use serde_json::{Value, json};
use std::time::Duration;
use tenure_jobs::{
    call::{FailKind, desk::Heard, view},
    catalogue::register_calls,
    drive::JobOptions,
};
use tenure_steps::{
    Class,
    events::What,
    tool::{ToolCtx, ToolSpec, Tools},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_call_takes_long_costs_no_worker_and_goes_on_with_its_answer() {
    let world = world(Class::Idempotent, quick()).await;
    let far = Far::open(&world).await;
    let job = world.submit("far", json!({ "n": 1 })).await;
    world.until(job, "waiting").await;
    assert!(world.story(job).await.contains("call:far"));
    let call = far.take().await;
    assert_eq!(
        (&call.input, call.state.what, call.state.call),
        (&json!({ "n": 1 }), What::Call, 1)
    );
    assert_eq!(far.complete(&call, json!(2)).await, Heard::Accepted);
    let state = world.until(job, "completed").await;
    assert_eq!(state.output, Some(json!(2)));
    assert_eq!(world.count(job, "call_answered").await, 1);
    assert_eq!(world.count(job, "command_committed").await, 1);
    assert_eq!(far.complete(&call, json!(2)).await, Heard::Accepted, "the same again");
    assert!(kept(&far.complete(&call, json!(3)).await), "another answer is only evidence");
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_waits_takes_the_answer_without_a_detour() {
    let options = JobOptions { call_patience: Duration::from_secs(60), ..quick() };
    let world = world(Class::Idempotent, options).await;
    let far = Far::open(&world).await;
    world.until_known_empty("far@1").await;
    let job = world.submit("far", json!(1)).await;
    let call = far.take().await;
    far.complete(&call, json!(2)).await;
    world.until(job, "completed").await;
    assert_eq!(world.count(job, "call_answered").await, 0);
    // Born with the call, and ended with its answer.
    assert_eq!(world.commits(job).await, 2, "{}", world.story(job).await);
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_its_worker_says_about_a_failure_decides_whether_it_is_tried_again() {
    let world = world(Class::Irreversible, quick()).await;
    let far = Far::open(&world).await;
    let job = world.submit("far", json!(1)).await;
    let call = far.take().await;
    assert_eq!(far.fail(&call, FailKind::Retryable).await, Heard::Accepted);
    assert_eq!(far.fail(&call, FailKind::Retryable).await, Heard::Accepted, "the same again");
    let again = far.take().await;
    assert_ne!(again.state.key, call.state.key);
    far.fail(&again, FailKind::Permanent).await;
    world.until(job, "failed").await;
    // Unknown: an irreversible tool is not called again by anybody but a person.
    let job = world.submit("far", json!(2)).await;
    far.fail(&far.take().await, FailKind::Unknown).await;
    world.until(job, "attention").await;
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_nobody_takes_in_time_was_not_called_also_of_an_irreversible_tool() {
    let must_end_in = Duration::from_millis(1_600);
    let options = JobOptions { must_end_in, retry_max: 3, ..quick() };
    let world = world(Class::Irreversible, options).await;
    let job = world.submit("far", json!(1)).await;
    let state = world.until(job, "failed").await;
    let failure = state.failure.unwrap();
    assert!(failure.error.contains("no worker with the tool"), "{failure:?}");
    assert!(failure.unknown.is_empty());
    assert_eq!(world.count(job, "tool_invocation_started").await, 1, "it waits, it does not try");
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_of_a_tool_counts_from_when_a_worker_has_the_call() {
    let options = JobOptions { step_timeout: Duration::from_millis(50), ..quick() };
    let world = world(Class::Irreversible, options).await;
    let job = world.submit("far", json!(1)).await;
    world.until(job, "waiting").await;
    let id = world.state(job).await.calls_out(job).next().unwrap().0;
    // Longer than it may take, and longer than any worker would have had to say so.
    world.until_seen(id, "clock_stopped").await;
    let far = Far::open(&world).await;
    let call = far.take().await;
    assert_eq!(call.head.id, id, "the same call waited");
    assert!(world.story(id).await.contains("clock_started"));
    assert_eq!(call.not_after(), call.head.changed_at + Duration::from_millis(50));
    assert_eq!(far.complete(&call, json!(2)).await, Heard::Accepted);
    world.until(job, "completed").await;
    // One that was taken late and never ends is ended all the same.
    let job = world.submit("far", json!(2)).await;
    world.until(job, "waiting").await;
    let id = world.state(job).await.calls_out(job).next().unwrap().0;
    world.until_seen(id, "clock_stopped").await;
    let far = Far::open(&world).await;
    let call = far.take().await;
    far.renew_until_lost(&call).await;
    world.until(job, "attention").await;
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_renews_and_never_finishes_is_ended_by_the_time_of_the_call() {
    let options = JobOptions { step_timeout: Duration::from_millis(300), ..quick() };
    let world = world(Class::Irreversible, options).await;
    let far = Far::open(&world).await;
    let job = world.submit("far", json!(1)).await;
    let call = far.take().await;
    far.renew_until_lost(&call).await;
    assert_eq!(far.renew(&[&call]).await.0, vec![call.head.id]);
    world.until(job, "attention").await;
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_nobody_ever_offered_fails_early() {
    let world = world(Class::Idempotent, quick()).await;
    let job = world.submit("nobody", json!(1)).await;
    let state = world.until(job, "failed").await;
    assert!(state.failure.unwrap().error.contains("no tool named"));
    assert_eq!(world.count(job, "tool_invocation_started").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn large_inputs_and_results_are_bodies_of_their_own() {
    for replay_always in [false, true] {
        let world = world(Class::Irreversible, JobOptions { replay_always, ..quick() }).await;
        let far = Far::open(&world).await;
        let (input, result) = ("i".repeat(100_000), "r".repeat(200_000));
        let job = world.submit("far", json!(input)).await;
        let call = far.take().await;
        assert_eq!(call.input, json!(input));
        world.until(job, "waiting").await;
        far.complete(&call, json!(result)).await;
        world.until(job, "completed").await;
        let shown = tenure_jobs::view::detail(&world.store, job).await.unwrap().unwrap();
        assert!(shown.job.output == Some(json!(result)), "the output is another");
        let content = view::content(&world.store, call.head.id).await.unwrap().unwrap();
        assert_eq!((content.input, content.result), (json!(input), Some(json!(result))));
        world.check().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_the_flow_worker_has_itself_is_not_handed_over() {
    let here = ToolSpec::new("far", |_: ToolCtx, v: Value| async move { Ok(v) });
    let world = World::start(flows(), Tools::default().with(here), quick()).await;
    register_calls(&world.node.pipeline, "", &[tool(Class::Irreversible)]).await.unwrap();
    let job = world.submit("far", json!(1)).await;
    world.until(job, "completed").await;
    assert_eq!(world.count(job, "call_handed").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_job_keeps_the_answer_of_its_call_for_later() {
    let world = world(Class::Irreversible, quick()).await;
    let far = Far::open(&world).await;
    let job = world.submit("far", json!(1)).await;
    let call = far.take().await;
    world.ask(job, tenure_jobs::decide::mail::PAUSE).await;
    world.until_paused(job).await;
    far.complete(&call, json!(2)).await;
    world.until_seen(job, "call_answered").await;
    assert_eq!(world.head(job).await.status.name(), "parked");
    world.ask(job, tenure_jobs::decide::mail::RESUME).await;
    assert_eq!(world.until(job, "completed").await.output, Some(json!(2)));
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_on_record_is_known_however_the_job_ends() {
    let world = world(Class::Irreversible, quick()).await;
    let far = Far::open(&world).await;
    let job = world.submit("far", json!(1)).await;
    let call = far.take().await;
    world.ask(job, tenure_jobs::decide::mail::PAUSE).await;
    world.until_paused(job).await;
    far.complete(&call, json!("paid")).await;
    world.until_seen(job, "call_answered").await;
    world.cancel(job).await;
    world.until(job, "cancelled").await;
    let story = world.story(job).await;
    assert!(!story.contains("\"unknown\""), "{story}");
    let retry = world.jobs.fork(job, None, None, None).await.unwrap().id;
    assert_eq!(world.until(retry, "completed").await.output, Some(json!("paid")));
    assert_eq!(world.count(retry, "tool_invocation_started").await, 0);
    world.check().await;
}
