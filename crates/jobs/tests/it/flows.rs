//! What a flow can do, one rule per test.

use crate::support::{Outside, World};
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use tenure_jobs::{decide::mail, drive::JobOptions, submit::Submission};
use tenure_steps::{
    Approval, Class, Ctx, Either, FlowError, ToolError,
    events::{Verdict, WaitOutcome},
    flow::{FlowSpec, Flows},
    tool::{ToolCtx, ToolSpec, Tools},
};

fn quick() -> JobOptions {
    JobOptions { backoff: Duration::from_millis(5), ..JobOptions::default() }
}

async fn three(ctx: Ctx, n: u32) -> Result<Value, FlowError> {
    let mut out = Vec::new();
    for i in 0..n {
        let did: Value = ctx.tool("raise", json!({ "i": i })).await?;
        out.push(did);
    }
    Ok(json!(out))
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_share_commits_and_a_job_starts_in_the_one_that_creates_it() {
    let outside = Outside::default();
    let flows = Flows::default().with(FlowSpec::new("three", three));
    let world = World::start(flows, Tools::default().with(outside.tool("raise")), quick()).await;
    world.until_known_empty("three@1").await;
    for (steps, commits) in [(0u32, 1), (1, 2), (3, 4), (10, 11)] {
        let job = world.submit("three", json!(steps)).await;
        let state = world.until(job, "completed").await;
        assert_eq!(state.output.unwrap().as_array().unwrap().len(), steps as usize);
        assert_eq!(world.commits(job).await, commits, "{}", world.story(job).await);
    }
    assert_eq!(outside.total(), 14);
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replaying_after_every_commit_changes_nothing() {
    let outside = Outside::default();
    let flows = Flows::default().with(FlowSpec::new("three", three));
    let options = JobOptions { replay_always: true, ..quick() };
    let world = World::start(flows, Tools::default().with(outside.tool("raise")), options).await;
    let job = world.submit("three", json!(5)).await;
    let state = world.until(job, "completed").await;
    assert_eq!(state.output.unwrap()[4], json!({"did": {"i": 4}}));
    assert_eq!(outside.total(), 5);
    world.check().await;
}

async fn asks(ctx: Ctx, _: Value) -> Result<Value, FlowError> {
    let name: String = ctx.wait_signal("name").await?;
    let approval: Approval = ctx.approval("boss").note("is it fine?").await?;
    ctx.sleep(Duration::from_millis(30)).await?;
    Ok(json!({ "name": name, "approved": approval.approved, "by": approval.by }))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_waits_for_a_signal_a_person_and_a_time_without_a_holder() {
    let flows = Flows::default().with(FlowSpec::new("asks", asks));
    let world = World::start(flows, Tools::default(), quick()).await;
    let job = world.submit("asks", Value::Null).await;
    let state = world.until(job, "parked").await;
    assert_eq!(state.waits[0].key, "name");
    assert!(world.head(job).await.holder.is_none());
    world.signal(job, "name", json!("bob")).await;
    world.signal(job, "name", json!("eve")).await;
    world.until_state(job, "it asks the boss", |s| s.waits.iter().any(|w| w.key == "boss")).await;
    world.until(job, "parked").await;
    world.answer(job, "boss", WaitOutcome::Rejected, Value::Null).await;
    let state = world.until(job, "completed").await;
    assert_eq!(state.output.unwrap(), json!({"name": "bob", "approved": false, "by": "ann"}));
    assert_eq!(world.count(job, "wait_completed").await, 2);
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_that_comes_early_is_kept() {
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let held = gate.clone();
    let slow = ToolSpec::new("slow", move |_: ToolCtx, _: Value| {
        let gate = held.clone();
        async move {
            gate.acquire().await.map_err(ToolError::permanent)?.forget();
            Ok(Value::Null)
        }
    });
    let flow = FlowSpec::new("late", |ctx: Ctx, _: Value| async move {
        let _: Value = ctx.tool("slow", Value::Null).await?;
        let v: u32 = ctx.wait_signal("n").await?;
        Ok(v)
    });
    let world =
        World::start(Flows::default().with(flow), Tools::default().with(slow), quick()).await;
    let job = world.submit("late", Value::Null).await;
    world.until(job, "running").await;
    world.signal(job, "n", json!(7)).await;
    world.until_seen(job, "signal_kept").await;
    gate.add_permits(1);
    assert_eq!(world.until(job, "completed").await.output, Some(json!(7)));
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_is_tried_again_under_a_new_key_as_often_as_allowed() {
    let calls = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = calls.clone();
    let flaky = ToolSpec::new("flaky", move |ctx: ToolCtx, fails: u32| {
        seen.lock().unwrap().push(ctx.key);
        let n = seen.lock().unwrap().len();
        async move { if n <= fails as usize { Err(ToolError::retryable("not yet")) } else { Ok(n) } }
    });
    let flow = FlowSpec::new("try", |ctx: Ctx, fails: u32| async move {
        let n: usize = ctx.tool("flaky", fails).await?;
        Ok(n)
    });
    let world =
        World::start(Flows::default().with(flow), Tools::default().with(flaky), quick()).await;
    let job = world.submit("try", json!(2)).await;
    assert_eq!(world.until(job, "completed").await.output, Some(json!(3)));
    let keys = calls.lock().unwrap().clone();
    assert_eq!(keys.iter().collect::<std::collections::BTreeSet<_>>().len(), 3);
    calls.lock().unwrap().clear();
    let job = world.submit("try", json!(99)).await;
    let state = world.until(job, "failed").await;
    assert_eq!(calls.lock().unwrap().len(), 4);
    assert_eq!(state.failure.unwrap().reason, "step_failed");
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_irreversible_tool_that_does_not_know_waits_for_a_person() {
    let calls = Arc::new(AtomicU32::new(0));
    let count = calls.clone();
    let pay = ToolSpec::new("pay", move |_: ToolCtx, _: Value| {
        count.fetch_add(1, Ordering::SeqCst);
        async { Err::<Value, _>(ToolError::unknown("the line went dead")) }
    });
    let flow = FlowSpec::new("pays", |ctx: Ctx, _: Value| async move {
        let paid: Value = ctx.tool("pay", json!(5)).await?;
        Ok(paid)
    });
    let world =
        World::start(Flows::default().with(flow), Tools::default().with(pay), quick()).await;
    let job = world.submit("pays", Value::Null).await;
    let state = world.until(job, "attention").await;
    assert_eq!(state.attention.unwrap().reason, "unknown_outcome");
    assert_eq!(state.calls[0].class, Class::Irreversible);
    world.resolve(job, "1", Verdict::Happened, json!("receipt")).await;
    assert_eq!(world.until(job, "completed").await.output, Some(json!("receipt")));
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    let job = world.submit("pays", Value::Null).await;
    world.until(job, "attention").await;
    world.resolve(job, "1", Verdict::Abandoned, Value::Null).await;
    world.until(job, "failed").await;
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn children_run_beside_each_other_and_report_to_their_parent() {
    let child = FlowSpec::new("square", |_: Ctx, n: u64| async move { Ok(n * n) });
    let parent = FlowSpec::new("sum", |ctx: Ctx, n: u64| async move {
        let squares =
            ctx.parallel(1..=n, |ctx, i| async move { ctx.child::<u64>("square", i).await }).await;
        let mut sum = 0;
        for s in squares {
            sum += s?;
        }
        Ok(sum)
    });
    let world =
        World::start(Flows::default().with(child).with(parent), Tools::default(), quick()).await;
    let job = world.submit("sum", json!(20)).await;
    assert_eq!(world.until(job, "completed").await.output, Some(json!(2870)));
    world.check().await;
}

/// What waits for a child is as urgent as whoever waits for it, or it would wait behind what is less.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_is_as_urgent_as_its_parent() {
    let leaf = FlowSpec::new("leaf", |_: Ctx, n: u64| async move { Ok(n) });
    let middle = FlowSpec::new("middle", |ctx: Ctx, n: u64| async move {
        Ok(ctx.child::<u64>("leaf", n).await?)
    });
    let top =
        FlowSpec::new(
            "top",
            |ctx: Ctx, n: u64| async move { Ok(ctx.child::<u64>("middle", n).await?) },
        );
    let flows = Flows::default().with(leaf).with(middle).with(top);
    let world = World::start(flows, Tools::default(), quick()).await;
    let (flow, input) = ("top".to_owned(), json!(1));
    let urgent = Submission { flow, input, priority: 9, ..Submission::default() };
    let job = world.jobs.submit(urgent).await.unwrap().id;
    world.until(job, "completed").await;
    let child = tenure_jobs::JobState::child_id(job, 0);
    let grandchild = tenure_jobs::JobState::child_id(child, 0);
    assert_eq!((world.head(child).await.priority, world.head(grandchild).await.priority), (9, 9));
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_race_has_one_winner_and_stops_the_other() {
    let stopped = Arc::new(AtomicU32::new(0));
    let seen = stopped.clone();
    let slow = ToolSpec::new("slow", move |ctx: ToolCtx, _: Value| {
        let seen = seen.clone();
        async move {
            ctx.cancelled().await;
            seen.fetch_add(1, Ordering::SeqCst);
            Err::<Value, _>(ToolError::Cancelled)
        }
    });
    let flow = FlowSpec::new("race", |ctx: Ctx, _: Value| async move {
        let slow = ctx.tool::<Value>("slow", Value::Null);
        let nap = ctx.sleep(Duration::from_millis(20));
        Ok(matches!(ctx.race(slow, nap).await, Either::Right(_)))
    });
    let world =
        World::start(Flows::default().with(flow), Tools::default().with(slow), quick()).await;
    let job = world.submit("race", Value::Null).await;
    assert_eq!(world.until(job, "completed").await.output, Some(json!(true)));
    assert_eq!(stopped.load(Ordering::SeqCst), 1);
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_reaches_running_tools_waits_and_children() {
    let slow = ToolSpec::new("slow", |ctx: ToolCtx, _: Value| async move {
        ctx.cancelled().await;
        Err::<Value, _>(ToolError::Cancelled)
    });
    let child = FlowSpec::new("child", |ctx: Ctx, _: Value| async move {
        let v: Value = ctx.wait_signal("never").await?;
        Ok(v)
    });
    let family = FlowSpec::new("family", |ctx: Ctx, _: Value| async move {
        let v: Value = ctx.child("child", Value::Null).await?;
        Ok(v)
    });
    let flow = FlowSpec::new("busy", |ctx: Ctx, _: Value| async move {
        let v: Value = ctx.tool("slow", Value::Null).await?;
        Ok(v)
    });
    let flows = Flows::default().with(flow).with(child).with(family);
    let world = World::start(flows, Tools::default().with(slow), quick()).await;
    let job = world.submit("busy", Value::Null).await;
    world.until(job, "running").await;
    world.cancel(job).await;
    world.until(job, "cancelled").await;
    let job = world.submit("family", Value::Null).await;
    world.until(job, "waiting").await;
    world.cancel(job).await;
    world.until(job, "cancelled").await;
    let child = tenure_jobs::JobState::child_id(job, 0);
    world.until(child, "cancelled").await;
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_job_keeps_what_comes_and_goes_on_when_resumed() {
    let flow = FlowSpec::new("waits", |ctx: Ctx, _: Value| async move {
        let v: u32 = ctx.wait_signal("n").await?;
        ctx.sleep(Duration::from_millis(5)).await?;
        Ok(v)
    });
    let world = World::start(Flows::default().with(flow), Tools::default(), quick()).await;
    let job = world.submit("waits", Value::Null).await;
    world.until(job, "parked").await;
    world.ask(job, mail::PAUSE).await;
    world.until_paused(job).await;
    world.signal(job, "n", json!(3)).await;
    world.until_seen(job, "wait_completed").await;
    assert_eq!(world.head(job).await.status.name(), "parked");
    world.ask(job, mail::RESUME).await;
    assert_eq!(world.until(job, "completed").await.output, Some(json!(3)));
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn recorded_values_and_a_fresh_start_stay_the_same() {
    let flow = FlowSpec::new("loop", |ctx: Ctx, (n, sum): (u32, u64)| async move {
        let (a, b, c) = (ctx.now(), ctx.random(), ctx.uuid());
        let d = ctx.pure("sum", || sum + 1).await?;
        let raised: Value = ctx.tool("raise", json!([a.as_micros(), b, c, d])).await?;
        assert_eq!(raised["did"], json!([a.as_micros(), b, c, d]));
        if n < 3 {
            return Err(ctx.continue_with((n + 1, d)));
        }
        Ok(d)
    });
    let outside = Outside::default();
    let options = JobOptions { replay_always: true, ..quick() };
    let tools = Tools::default().with(outside.tool("raise"));
    let world = World::start(Flows::default().with(flow), tools, options).await;
    let job = world.submit("loop", json!([1, 0])).await;
    assert_eq!(world.until(job, "completed").await.output, Some(json!(3)));
    assert_eq!(outside.total(), 3);
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flow_that_waits_for_something_else_stops_with_the_place() {
    let flow = FlowSpec::new("odd", |_: Ctx, _: Value| async move {
        std::future::pending::<()>().await;
        Ok(Value::Null)
    });
    let panics = FlowSpec::new("panics", |ctx: Ctx, _: Value| async move {
        ctx.now();
        assert!(ctx.random() == 1 && ctx.random() == 1, "out of luck");
        Ok(Value::Null)
    });
    let flows = Flows::default().with(flow).with(panics);
    let world = World::start(flows, Tools::default(), quick()).await;
    let job = world.submit("odd", Value::Null).await;
    let why = world.until(job, "attention").await.attention.unwrap();
    assert_eq!(why.reason, "broken");
    assert!(why.why.contains("did not come from its ctx"), "{}", why.why);
    let job = world.submit("panics", Value::Null).await;
    let why = world.until(job, "attention").await.attention.unwrap();
    assert!(why.why.contains("out of luck") && why.why.contains("it/flows.rs"), "{}", why.why);
    world.check().await;
}
