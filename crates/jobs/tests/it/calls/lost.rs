//! Calls whose worker is lost, or does not know: the class decides.

use super::{Far, kept, quick, tool, world};
use serde_json::{Value, json};
use tenure_jobs::{
    call::{
        FailKind,
        desk::{Heard, Said},
    },
    catalogue::{CallTerms, CallTool, register_calls},
    drive::JobOptions,
};
use tenure_steps::{Class, events::What};

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotent_call_that_was_lost_is_called_again_under_the_same_key() {
    for replay_always in [false, true] {
        let world = world(Class::Idempotent, JobOptions { replay_always, ..quick() }).await;
        let far = Far::open(&world).await;
        let job = world.submit("far", json!(1)).await;
        let first = far.take().await;
        // It is not named in any renewal: the check of its lease finds nobody.
        world.until_head(first.head.id, "lost").await;
        let far = Far::open(&world).await;
        let second = far.take().await;
        assert_eq!((&second.state.key, second.state.call), (&first.state.key, 2));
        far.complete(&second, json!(2)).await;
        let state = world.until(job, "completed").await;
        assert_eq!(state.output, Some(json!(2)));
        world.check().await;
    }
}

/// A tool that ends the process of whoever runs it: fifty retries must not cost fifty workers.
#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_kills_its_workers_ends_its_job_whatever_its_retries() {
    let world = world(Class::Idempotent, quick()).await;
    let terms = CallTerms { retry_max: Some(50), backoff_ms: Some(1), ..CallTerms::default() };
    let tool = CallTool { terms, ..tool(Class::Idempotent) };
    register_calls(&world.node.pipeline, "", &[tool]).await.unwrap();
    let job = world.submit("far", json!(1)).await;
    let allowed = quick().takeovers_max + 1;
    for _ in 0..allowed {
        let call = Far::open(&world).await.take().await;
        world.until_head(call.head.id, "lost").await;
    }
    let failure = world.until(job, "failed").await.failure.unwrap();
    assert_eq!(failure.reason, "takeovers_spent");
    assert!(failure.error.contains("6 workers were lost in a row"), "{}", failure.error);
    assert!(failure.error.contains("tool far"), "{}", failure.error);
    assert_eq!(world.count(job, "tool_invocation_started").await, allowed as usize);
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_irreversible_call_that_was_lost_waits_for_a_person_or_for_its_late_result() {
    let world = world(Class::Irreversible, quick()).await;
    let far = Far::open(&world).await;
    let job = world.submit("far", json!(1)).await;
    let call = far.take().await;
    let state = world.until(job, "attention").await;
    assert_eq!(state.open_steps().len(), 1);
    // It was only asleep.
    assert!(kept(&far.complete(&call, json!("late")).await));
    let state = world.until(job, "completed").await;
    assert_eq!(state.output, Some(json!("late")));
    assert_eq!(world.count(job, "tool_invocation_started").await, 1);
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verifiable_call_that_was_lost_is_settled_by_a_probe_which_is_a_call_itself() {
    let world = world(Class::Verifiable, quick()).await;
    let far = Far::open(&world).await;
    let job = world.submit("far", json!({ "n": 1 })).await;
    let call = far.take().await;
    world.until_head(call.head.id, "lost").await;
    let far = Far::open(&world).await;
    let probe = far.take().await;
    assert_eq!((probe.state.what, &probe.state.key), (What::Probe, &call.state.key));
    assert_eq!(probe.input, json!({ "n": 1 }));
    far.complete(&probe, json!({ "happened": true, "result": 5 })).await;
    let state = world.until(job, "completed").await;
    assert_eq!(state.output, Some(json!(5)));
    assert_eq!(world.count(job, "tool_invocation_started").await, 1);
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_trace_counts_only_when_the_worker_that_had_the_call_can_not_act_any_more() {
    let world = world(Class::Verifiable, quick()).await;
    let far = Far::open(&world).await;
    let job = world.submit("far", json!(1)).await;
    let call = far.take().await;
    world.until_head(call.head.id, "lost").await;
    let other = Far::open(&world).await;
    let probe = other.take().await;
    other.complete(&probe, json!({ "happened": false })).await;
    // The first worker may still wake up and act.
    world.until(job, "attention").await;
    // It does, and says that it never began.
    assert!(kept(&far.fail(&call, FailKind::NotCalled).await));
    let again = Far::open(&world).await.take().await;
    assert_ne!(again.state.key, call.state.key, "not applied: another effect, another key");
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn half_of_a_call_is_undone_by_another_call_and_then_tried_again() {
    for replay_always in [false, true] {
        let world = world(Class::Compensatable, JobOptions { replay_always, ..quick() }).await;
        let far = Far::open(&world).await;
        let job = world.submit("far", json!(1)).await;
        let call = far.take().await;
        far.fail(&call, FailKind::Compensatable).await;
        let undo = far.take().await;
        assert_eq!((undo.state.what, &undo.state.key), (What::Compensate, &call.state.key));
        far.complete(&undo, Value::Null).await;
        let again = far.take().await;
        assert_ne!(again.state.key, call.state.key);
        far.complete(&again, json!("done")).await;
        let state = world.until(job, "completed").await;
        assert_eq!(state.output, Some(json!("done")));
        world.check().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_may_still_run_is_not_over_by_the_word_of_its_worker() {
    let world = world(Class::Verifiable, quick()).await;
    let far = Far::open(&world).await;
    let job = world.submit("far", json!(1)).await;
    let call = far.take().await;
    let left = Said::Left("a thread of it goes on".into());
    assert_eq!(far.say(&call, left.clone()).await, Heard::Accepted);
    assert_eq!(far.say(&call, left).await, Heard::Accepted, "the same again");
    world.until_head(call.head.id, "lost").await;
    let probe = far.take().await;
    assert_eq!(probe.state.what, What::Probe);
    far.complete(&probe, json!({ "happened": false })).await;
    // No trace yet; the thread may leave one at any time.
    world.until(job, "attention").await;
    assert_eq!(world.count(job, "tool_invocation_started").await, 1);
    // It has ended now: then no trace counts.
    assert!(kept(&far.fail(&call, FailKind::Unknown).await));
    let probe = far.take().await;
    assert_eq!(probe.state.what, What::Probe);
    far.complete(&probe, json!({ "happened": false })).await;
    assert_ne!(far.take().await.state.key, call.state.key);
    world.check().await;
}
