//! Promises about what goes wrong, one per test.

use crate::support::{self, Outside, World};
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};
use tenure_bell::InProcess;
use tenure_edge::TokioRuntime;
use tenure_engine::{config::EngineConfig, pipeline::Pipeline};
use tenure_jobs::{
    JobState,
    crew::{Crew, CrewOptions},
    decide::{SignalMail, mail},
    drive::{JobOptions, Probe, Shop, points},
    gate::gate_id,
    submit::{Submission, SubmitError},
    terms::{GateTerm, Terms},
};
use tenure_kernel::{
    error::StoreError,
    ids::{EntityId, MailId},
    mail::{MailAnswer, NewMail},
    runtime::BoxFuture,
    store::{Answer, Op, Store},
    stream::Body,
};
use tenure_proving::{
    layer::{Layer, Layered},
    patience::PATIENCE,
};
use tenure_steps::{
    Class, Ctx, FlowError, ToolError,
    events::WaitOutcome,
    flow::{Failed, FlowSpec, Flows},
    tool::{ToolCtx, ToolSpec, Tools},
};
use tokio::sync::{Notify, watch};

fn quick() -> JobOptions {
    JobOptions {
        backoff: Duration::from_millis(5),
        stop_grace: Duration::from_millis(200),
        ..JobOptions::default()
    }
}

/// One step of this tool.
fn one(tool: &'static str) -> FlowSpec {
    FlowSpec::new("one", move |ctx: Ctx, input: Value| async move {
        Ok(ctx.tool::<Value>(tool, input).await?)
    })
}

async fn with(tool: ToolSpec, options: JobOptions) -> World {
    let name: &'static str = Box::leak(tool.name.clone().into_boxed_str());
    World::start(Flows::default().with(one(name)), Tools::default().with(tool), options).await
}

/// A store that a worker does not reach while it is cut off.
struct CutOff {
    under: Arc<dyn Store>,
    cut: Arc<AtomicBool>,
    /// Evidence that did not get through.
    unheard: watch::Sender<u32>,
}

impl Layer for CutOff {
    fn under(&self) -> &dyn Store {
        &*self.under
    }

    fn apply_shared(&self, ops: Arc<Vec<Op>>) -> BoxFuture<'_, Result<Vec<Answer>, StoreError>> {
        if !self.cut.load(Ordering::SeqCst) {
            return self.under.apply_shared(ops);
        }
        if ops.iter().any(|op| matches!(op, Op::Evidence(_))) {
            self.unheard.send_modify(|n| *n += 1);
        }
        Box::pin(std::future::ready(Err(StoreError::Unavailable("cut off".into()))))
    }
}

/// It is cut off with a call in its hands, loses the job, and the call returns before it is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_was_cut_off_says_what_became_of_its_call_when_it_is_back() {
    let world = World::start(Flows::default(), Tools::default(), quick()).await;
    let (cut, unheard) = (Arc::new(AtomicBool::new(false)), watch::Sender::new(0));
    let (began, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let outside = Outside::default();
    let shop = || {
        let (began, go, outside) = (began.clone(), go.clone(), outside.clone());
        let pay = ToolSpec::new("pay", move |ctx: ToolCtx, _: Value| {
            let (began, go, outside) = (began.clone(), go.clone(), outside.clone());
            async move {
                outside.act(&ctx.key);
                began.notify_one();
                go.notified().await;
                Ok::<_, ToolError>(json!("paid"))
            }
        });
        let options = JobOptions { stop_grace: Duration::from_secs(600), ..quick() };
        let tools = Tools::default().with(pay.irreversible());
        Arc::new(Shop::new(Flows::default().with(one("pay")), tools, options))
    };
    let hire = async |name: &str, store: Arc<dyn Store>, config: EngineConfig| {
        let (bell, rt) = (Arc::new(InProcess::new()), Arc::new(TokioRuntime::current()));
        let pipeline = Pipeline::new(store, bell, rt, &config);
        let (executor, drain) = (None, Duration::ZERO);
        let options = CrewOptions { name: name.into(), executor, slots: 4, drain };
        Crew::start(pipeline, Arc::new(config), shop(), options).await.unwrap()
    };
    let layer = CutOff { under: world.store.clone(), cut: cut.clone(), unheard: unheard.clone() };
    let impatient = EngineConfig { patience: Duration::ZERO, ..support::config() };
    let mut cut_off = hire("cut off", Arc::new(Layered(layer)), impatient).await;
    let job = world.submit("one", Value::Null).await;
    began.notified().await;
    cut.store(true, Ordering::SeqCst);
    let mut other = hire("other", world.store.clone(), support::config()).await;
    // Nobody knows, and only the one who is cut off can say.
    world.until(job, "attention").await;
    go.notify_one();
    let mut tries = unheard.subscribe();
    let twice = tokio::time::timeout(PATIENCE, tries.wait_for(|n| *n >= 2)).await;
    assert!(twice.is_ok(), "it did not try again");
    drop(twice);
    cut.store(false, Ordering::SeqCst);
    assert_eq!(world.until(job, "completed").await.output, Some(json!("paid")));
    assert_eq!(outside.total(), 1);
    cut_off.stop().await;
    other.stop().await;
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_no_store_can_keep_is_refused_at_once_and_says_so() {
    let dump = |_: ToolCtx, _: Value| async move {
        Ok::<_, ToolError>(Value::String("x".repeat(40 * 1024 * 1024)))
    };
    let tool = ToolSpec::new("dump", dump).idempotent();
    let pay = ToolSpec::new("pay", dump);
    let flow = FlowSpec::new("dump", |ctx: Ctx, _: Value| async move {
        ctx.tool::<Value>("dump", Value::Null).await.map_err(FlowError::from)
    });
    let pays = FlowSpec::new("pays", |ctx: Ctx, _: Value| async move {
        ctx.tool::<Value>("pay", Value::Null).await.map_err(FlowError::from)
    });
    let flows = Flows::default().with(flow).with(pays);
    let world = World::start(flows, Tools::default().with(tool).with(pay), JobOptions::default());
    let world = world.await;
    let job = world.submit("dump", Value::Null).await;
    let failure = world.until(job, "failed").await.failure.unwrap();
    assert!(failure.error.contains("RESULT_BYTES_MAX"), "{failure:?}");
    assert_eq!(world.count(job, "tool_invocation_started").await, 1);
    // It has paid: a failed call would be made again by a retry.
    let job = world.submit("pays", Value::Null).await;
    world.until(job, "attention").await;
    assert_eq!(world.count(job, "tool_invocation_started").await, 1);
    world.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 6)]
async fn a_worker_that_renews_and_does_not_move_loses_the_job() {
    let noop = ToolSpec::new("noop", |_: ToolCtx, v: Value| async move { Ok(v) });
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = Arc::new(Mutex::new(released));
    let flow = FlowSpec::new("hangs", move |ctx: Ctx, _: Value| {
        let released = released.clone();
        async move {
            let _: Value = ctx.tool("noop", 1).await?;
            // Not a wait that the engine knows of: the thread itself is gone until the sender is.
            let _ = released.lock().unwrap().recv();
            Ok(Value::Null)
        }
    });
    let options =
        JobOptions { step_timeout: Duration::from_millis(50), takeovers_max: 0, ..quick() };
    let world =
        World::start(Flows::default().with(flow), Tools::default().with(noop), options).await;
    let job = world.submit("hangs", Value::Null).await;
    let state = world.until(job, "failed").await;
    assert_eq!(state.failure.unwrap().reason, "takeovers_spent");
    let renewed = world.store.session(world.crew.local().keeper.id()).await.unwrap().unwrap();
    assert!(
        renewed.expires_at > world.head(job).await.changed_at,
        "its session was alive all the time"
    );
    drop(release);
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_signals_of_one_key_complete_one_wait() {
    let flow = FlowSpec::new("waits", |ctx: Ctx, _: Value| async move {
        Ok(ctx.wait_signal::<u32>("n").await?)
    });
    let world = World::start(Flows::default().with(flow), Tools::default(), quick()).await;
    let job = world.submit("waits", Value::Null).await;
    world.until(job, "parked").await;
    let answers = join_all((0..50u32).map(|n| world.signal(job, "n", json!(n)))).await;
    let accepted = answers.iter().filter(|a| matches!(a, MailAnswer::Accepted { .. })).count();
    assert_eq!(accepted, 1, "{answers:?}");
    world.until(job, "completed").await;
    assert_eq!(world.count(job, "wait_completed").await, 1);
    assert!(matches!(world.signal(job, "n", json!(9)).await, MailAnswer::Duplicate));
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_job_is_never_claimed_however_long_it_waits() {
    let flow = FlowSpec::new("waits", |ctx: Ctx, _: Value| async move {
        Ok(ctx.wait_signal::<u32>("n").await?)
    });
    let world = World::start(Flows::default().with(flow), Tools::default(), quick()).await;
    let job = world.submit("waits", Value::Null).await;
    world.until(job, "parked").await;
    let before = world.head(job).await;
    let session = world.crew.local().keeper.id();
    let renewed = async || world.store.session(session).await.unwrap().unwrap().renewed_at;
    let first = renewed().await;
    let long = support::config().lease * 4;
    world.place.until("four leases are over", async || renewed().await.since(first) > long).await;
    let after = world.head(job).await;
    assert_eq!((before.epoch, before.version), (after.epoch, after.version));
    world.signal(job, "n", json!(1)).await;
    world.until(job, "completed").await;
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_inputs_results_and_outputs_of_children_survive_replay() {
    let echo = ToolSpec::new("echo", |_: ToolCtx, v: String| async move { Ok(v) }).idempotent();
    let child = FlowSpec::new("child", |ctx: Ctx, v: String| async move {
        Ok(ctx.tool::<String>("echo", v).await?)
    });
    let flow = FlowSpec::new("big", |ctx: Ctx, v: String| async move {
        let a: String = ctx.tool("echo", &v).await?;
        let b: String = ctx.child("child", &a).await?;
        ctx.sleep(Duration::from_millis(1)).await?;
        Ok(b.len() + a.len())
    });
    let options = JobOptions { replay_always: true, ..quick() };
    let flows = Flows::default().with(flow).with(child);
    let world = World::start(flows, Tools::default().with(echo), options).await;
    let job = world.submit("big", json!("x".repeat(200_000))).await;
    assert_eq!(world.until(job, "completed").await.output, Some(json!(400_000)));
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_returns_after_its_timeout_settles_itself_by_evidence() {
    let calls = Arc::new(AtomicU32::new(0));
    let count = calls.clone();
    let slow = ToolSpec::new("slow", move |ctx: ToolCtx, v: Value| {
        let count = count.clone();
        async move {
            count.fetch_add(1, Ordering::SeqCst);
            ctx.cancelled().await;
            // It has done its work all the same.
            Ok::<_, ToolError>(v)
        }
    })
    .timeout(Duration::from_millis(30));
    let world = with(slow, quick()).await;
    let job = world.submit("one", json!("late")).await;
    assert_eq!(world.until(job, "completed").await.output, Some(json!("late")));
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    let story = world.story(job).await;
    assert!(
        story.contains("longer than its timeout") && story.contains("\"by\":\"evidence\""),
        "{story}"
    );
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_after_started_is_unknown_and_the_class_decides() {
    for (class, status, calls_made) in
        [(Class::Idempotent, "failed", 4), (Class::Irreversible, "attention", 1)]
    {
        let calls = Arc::new(AtomicU32::new(0));
        let count = calls.clone();
        let mut hangs = ToolSpec::new("hangs", move |_: ToolCtx, _: Value| {
            count.fetch_add(1, Ordering::SeqCst);
            std::future::pending::<Result<Value, ToolError>>()
        })
        .timeout(Duration::from_millis(20));
        hangs.options.class = Some(class);
        let options = JobOptions { stop_grace: Duration::from_millis(10), ..quick() };
        let world = with(hangs, options).await;
        let job = world.submit("one", Value::Null).await;
        let state = world.until(job, status).await;
        assert_eq!(calls.load(Ordering::SeqCst), calls_made, "{class:?}");
        if status == "failed" {
            assert_eq!(world.count(job, "tool_invocation_started").await, 4);
            assert!(state.failure.unwrap().error.contains("known outcome"));
        }
        world.check().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_applied_call_is_compensated_and_the_step_fails_or_is_tried_again() {
    let undone = Arc::new(AtomicU32::new(0));
    let count = undone.clone();
    let half = ToolSpec::new("half", |_: ToolCtx, _: Value| async {
        Err::<Value, _>(ToolError::Compensatable("one of two".into()))
    })
    .retries(1, Duration::from_millis(1))
    .compensatable(move |_: ToolCtx, _: Value| {
        count.fetch_add(1, Ordering::SeqCst);
        async { Ok(()) }
    });
    let world = with(half, quick()).await;
    let job = world.submit("one", Value::Null).await;
    world.until(job, "failed").await;
    let calls = world.count(job, "tool_invocation_started").await;
    assert_eq!(undone.load(Ordering::SeqCst) as usize, calls, "each call was undone once");
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn must_end_by_ends_a_job_in_attention_as_failed_with_the_effect_listed() {
    let pay = ToolSpec::new("pay", |_: ToolCtx, _: Value| async {
        Err::<Value, _>(ToolError::unknown("no answer"))
    });
    let world = with(pay, quick()).await;
    let submission = Submission {
        flow: "one".into(),
        must_end_in: Some(Duration::from_millis(1_200)),
        ..Submission::default()
    };
    let job = world.jobs.submit(submission).await.unwrap().id;
    world.until(job, "attention").await;
    let state = world.until(job, "failed").await;
    let failure = state.failure.unwrap();
    assert_eq!(failure.reason, "unknown_outcome");
    assert_eq!(failure.unknown.len(), 1);
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_has_a_deadline_and_the_flow_decides_what_then() {
    let flow = FlowSpec::new("waits", |ctx: Ctx, _: Value| async move {
        match ctx.wait_signal::<u32>("n").within(Duration::from_millis(30)).await {
            Err(e) if e.kind == Failed::Expired => Ok("too late"),
            _ => Ok("in time"),
        }
    });
    let world = World::start(Flows::default().with(flow), Tools::default(), quick()).await;
    let job = world.submit("waits", Value::Null).await;
    assert_eq!(world.until(job, "completed").await.output, Some(json!("too late")));
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_tools_and_flows_fail_the_step_and_say_what_there_is() {
    let outside = Outside::default();
    let tool = FlowSpec::new("tool", |ctx: Ctx, _: Value| async move {
        Ok(ctx.tool::<Value>("rais", 1).await?)
    });
    let child = FlowSpec::new("child", |ctx: Ctx, _: Value| async move {
        let failed = ctx.child::<Value>("nobody", 1).await.unwrap_err();
        ctx.sleep(Duration::from_millis(1)).await?;
        Ok(failed.to_string())
    });
    let flows = Flows::default().with(tool).with(child);
    let options = JobOptions { replay_always: true, ..quick() };
    let world = World::start(flows, Tools::default().with(outside.tool("raise")), options).await;
    let job = world.submit("tool", Value::Null).await;
    let failure = world.until(job, "failed").await.failure.unwrap();
    assert!(failure.error.contains("\"rais\"") && failure.error.contains("raise"), "{failure:?}");
    let job = world.submit("child", Value::Null).await;
    let output = world.until(job, "completed").await.output.unwrap();
    assert!(output.as_str().unwrap().contains("nobody"), "{output}");
    let unknown = Submission { flow: "nothing".into(), ..Submission::default() };
    let refused = world.jobs.submit(unknown).await.unwrap_err();
    assert!(matches!(refused, SubmitError::UnknownFlow { .. }), "{refused}");
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_key_and_input_is_the_same_job_and_other_input_is_refused() {
    let flow = FlowSpec::new("echo", |_: Ctx, v: Value| async move { Ok(v) });
    let world = World::start(Flows::default().with(flow), Tools::default(), quick()).await;
    let submission = |input: Value| Submission {
        flow: "echo".into(),
        input,
        tenant: "acme".into(),
        key: Some("k".into()),
        ..Submission::default()
    };
    let all =
        join_all((0..20).map(|_| world.jobs.submit(submission(json!({"b": 1, "a": 2}))))).await;
    let ids: std::collections::BTreeSet<_> = all.iter().map(|r| r.as_ref().unwrap().id).collect();
    assert_eq!(ids.len(), 1);
    assert_eq!(all.iter().filter(|r| !r.as_ref().unwrap().existed).count(), 1);
    let other = world.jobs.submit(submission(json!(2))).await.unwrap_err();
    assert!(matches!(other, SubmitError::OtherInput(id) if ids.contains(&id)), "{other}");
    let elsewhere = Submission { tenant: "other".into(), ..submission(json!(2)) };
    assert!(!world.jobs.submit(elsewhere).await.unwrap().existed);
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_panics_is_an_unknown_outcome_and_takes_nothing_with_it() {
    let boom = ToolSpec::new("boom", |_: ToolCtx, n: u32| async move {
        assert!(n != 1, "boom");
        Ok::<_, ToolError>(n)
    });
    let world = with(boom, quick()).await;
    let job = world.submit("one", json!(1)).await;
    let state = world.until(job, "attention").await;
    assert!(state.calls[0].unknown.as_ref().unwrap().contains("panicked: boom"), "{state:?}");
    let job = world.submit("one", json!(2)).await;
    world.until(job, "completed").await;
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_waits_than_a_head_can_hold_stop_the_job_with_the_limit() {
    let flow = FlowSpec::new("many", |ctx: Ctx, n: u32| async move {
        let all = ctx
            .parallel(
                0..n,
                |ctx, i| async move { ctx.wait_signal::<Value>(&format!("k{i}")).await },
            )
            .await;
        all.into_iter().collect::<Result<Vec<_>, _>>().map_err(FlowError::from)
    });
    let world = World::start(Flows::default().with(flow), Tools::default(), quick()).await;
    let limit = tenure_jobs::model::limits::WAITS_MAX;
    let job = world.submit("many", json!(limit)).await;
    world.until(job, "parked").await;
    let job = world.submit("many", json!(limit + 1)).await;
    let why = world.until(job, "attention").await.attention.unwrap().why;
    assert!(why.contains(&limit.to_string()), "{why}");
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_children_fit_and_their_parent_hears_each_once() {
    let child = FlowSpec::new("c", |_: Ctx, n: u64| async move { Ok(n) });
    let parent = FlowSpec::new("p", |ctx: Ctx, n: u64| async move {
        let all = ctx.parallel(0..n, |ctx, i| async move { ctx.child::<u64>("c", i).await }).await;
        let mut sum = 0;
        for one in all {
            sum += one?;
        }
        Ok(sum)
    });
    let flows = Flows::default().with(child).with(parent);
    let world = World::start(flows, Tools::default(), quick()).await;
    let job = world.submit("p", json!(400)).await;
    assert_eq!(world.until(job, "completed").await.output, Some(json!(399 * 200)));
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_lost_a_race_is_never_begun_again() {
    let calls = Arc::new(AtomicU32::new(0));
    let count = calls.clone();
    let flaky = ToolSpec::new("flaky", move |_: ToolCtx, _: Value| {
        count.fetch_add(1, Ordering::SeqCst);
        async { Err::<Value, _>(ToolError::retryable("not yet")) }
    })
    .retries(5, Duration::from_millis(60));
    let flow = FlowSpec::new("race", |ctx: Ctx, _: Value| async move {
        let tool = ctx.tool::<Value>("flaky", 1);
        let nap = ctx.sleep(Duration::from_millis(5));
        let _ = ctx.race(tool, nap).await;
        // Long enough for a retry that nobody wants any more.
        ctx.sleep(Duration::from_millis(250)).await?;
        Ok(Value::Null)
    });
    for replay_always in [false, true] {
        calls.store(0, Ordering::SeqCst);
        let options = JobOptions { replay_always, ..quick() };
        let flows = Flows::default().with(flow.clone());
        let world = World::start(flows, Tools::default().with(flaky.clone()), options).await;
        let job = world.submit("race", Value::Null).await;
        world.until(job, "completed").await;
        assert_eq!(calls.load(Ordering::SeqCst), 1, "{}", world.story(job).await);
        assert_eq!(world.count(job, "step_dropped").await, 1);
        world.check().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loop_of_races_leaves_no_open_waits_behind() {
    let flow = FlowSpec::new("polls", |ctx: Ctx, _: Value| async move {
        for _ in 0..60 {
            let stop = ctx.wait_signal::<Value>("stop");
            if let tenure_steps::Either::Left(_) =
                ctx.race(stop, ctx.sleep(Duration::from_millis(1))).await
            {
                return Ok("stopped");
            }
        }
        Ok("through")
    });
    let world = World::start(Flows::default().with(flow), Tools::default(), quick()).await;
    let job = world.submit("polls", Value::Null).await;
    let state = world.until(job, "completed").await;
    assert_eq!(state.output, Some(json!("through")));
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_for_the_next_run_is_not_taken_for_a_repeated_one() {
    let flow = FlowSpec::new("rounds", |ctx: Ctx, n: u32| async move {
        let v: u32 = ctx.wait_signal("go").await?;
        if n < 3 {
            return Err(ctx.continue_with(n + 1));
        }
        Ok(v)
    });
    let world = World::start(Flows::default().with(flow), Tools::default(), quick()).await;
    let job = world.submit("rounds", json!(1)).await;
    for round in 1..=3u32 {
        let waits = |s: &JobState| s.run == round && !s.waits.is_empty();
        world.until_state(job, "it waits in this round", waits).await;
        let ask = tenure_jobs::ask::SignalAsk {
            key: "go".into(),
            outcome: tenure_steps::events::WaitOutcome::Signalled,
            payload: json!(round),
            by: None,
            early: false,
        };
        let answer = tenure_jobs::ask::signal(&world.node.pipeline, job, None, ask).await.unwrap();
        assert_eq!(answer, tenure_jobs::ask::SignalAnswer::Completed, "round {round}");
    }
    assert_eq!(world.until(job, "completed").await.output, Some(json!(3)));
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn time_goes_on_for_a_flow_while_it_sleeps_and_while_its_tools_run() {
    let (begun, over) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begins, ends) = (begun.clone(), over.clone());
    let slow = ToolSpec::new("slow", move |_: ToolCtx, _: Value| {
        let (begins, ends) = (begins.clone(), ends.clone());
        async move {
            begins.notify_one();
            ends.notified().await;
            Ok::<_, ToolError>(Value::Null)
        }
    });
    let flow = FlowSpec::new("times", |ctx: Ctx, _: Value| async move {
        let a = ctx.now();
        let _: Value = ctx.tool("slow", 1).await?;
        let b = ctx.now();
        ctx.sleep(Duration::from_millis(80)).await?;
        let c = ctx.now();
        Ok((b.since(a).as_millis() as u64, c.since(b).as_millis() as u64))
    });
    let nap = FlowSpec::new("nap", |ctx: Ctx, _: Value| async move {
        ctx.sleep(Duration::from_millis(80)).await?;
        Ok(Value::Null)
    });
    let (flows, tools) = (Flows::default().with(flow).with(nap), Tools::default().with(slow));
    let world = World::start(flows, tools, quick()).await;
    let job = world.submit("times", Value::Null).await;
    // The tool takes as long as another job sleeps.
    begun.notified().await;
    let nap = world.submit("nap", Value::Null).await;
    world.until(nap, "completed").await;
    over.notify_one();
    let (tool, sleep): (u64, u64) =
        serde_json::from_value(world.until(job, "completed").await.output.unwrap()).unwrap();
    assert!(tool >= 70 && sleep >= 70, "{tool} ms and {sleep} ms");
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_survives_a_signal_in_the_same_breath_and_an_unknown_effect() {
    let flow = FlowSpec::new("waits", |ctx: Ctx, _: Value| async move {
        Ok(ctx.wait_signal::<u32>("n").await?)
    });
    let world = World::start(Flows::default().with(flow), Tools::default(), quick()).await;
    let job = world.submit("waits", Value::Null).await;
    world.until(job, "parked").await;
    let pause = world.ask(job, tenure_jobs::decide::mail::PAUSE);
    let signal = world.signal(job, "n", json!(1));
    futures_util::future::join(pause, signal).await;
    let read = async || {
        let (head, state) = (world.head(job).await, world.state(job).await);
        let over = head.class() == tenure_kernel::table::Class::Final;
        over || (head.mail_read == 2 && state.waits.is_empty())
    };
    world.place.until("both are read", read).await;
    // Whichever came first: the job has heard the signal and does not run on.
    let state = world.state(job).await;
    if state.paused {
        assert_eq!(world.until(job, "parked").await.heard, ["n"]);
        world.ask(job, tenure_jobs::decide::mail::RESUME).await;
    }
    world.until(job, "completed").await;
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_recorded_values_fit_into_several_commits() {
    let flow = FlowSpec::new("many", |ctx: Ctx, n: u32| async move {
        let _: Value = ctx.tool("noop", 0).await?;
        let mut sum = 0u64;
        for _ in 0..n {
            sum = sum.wrapping_add(ctx.random());
        }
        let _: Value = ctx.tool("noop", sum).await?;
        Ok(sum)
    });
    let noop = ToolSpec::new("noop", |_: ToolCtx, v: Value| async move { Ok::<_, ToolError>(v) });
    let world =
        World::start(Flows::default().with(flow), Tools::default().with(noop), quick()).await;
    let job = world.submit("many", json!(2_500)).await;
    world.until(job, "completed").await;
    world.check().await;
}

/// Mail that comes between the last look and the park refuses the park, and nothing of it is recorded. A pause took the
/// timer of the sleep away; whoever resumes the job sets it again, with the park that comes after this one too.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_right_before_a_park_takes_no_timer_away() {
    let slot: Arc<Mutex<Option<(Pipeline, EntityId)>>> = Arc::default();
    let armed = slot.clone();
    let probe: Probe = Arc::new(move |point| {
        let to = (point == points::CLAIMED).then(|| armed.lock().unwrap().take()).flatten();
        Box::pin(async move {
            let Some((pipeline, to)) = to else { return };
            let outcome = WaitOutcome::Signalled;
            let body = SignalMail { key: "hello".into(), outcome, payload: Value::Null, by: None };
            let (id, kind) = (MailId("hello".into()), mail::SIGNAL.into());
            pipeline.mail(NewMail { to, id, kind, body: Body::json(&body) }).await.unwrap();
        })
    });
    let flow = FlowSpec::new("naps", |ctx: Ctx, _: Value| async move {
        ctx.sleep(Duration::from_secs(1)).await?;
        Ok(json!("awake"))
    });
    let shop = Shop::new(Flows::default().with(flow), Tools::default(), quick()).with_probe(probe);
    let world = World::of(support::store(), shop).await;
    let job = world.submit("naps", Value::Null).await;
    world.until(job, "waiting").await;
    world.ask(job, mail::PAUSE).await;
    world.until_paused(job).await;
    *slot.lock().unwrap() = Some((world.node.pipeline.clone(), job));
    world.ask(job, mail::RESUME).await;
    let state = world.until(job, "completed").await;
    assert_eq!(state.output, Some(json!("awake")));
    assert_eq!(world.count(job, "signal_kept").await, 1);
    world.check().await;
}

/// Three jobs at a gate for one: the second is paused when its turn comes.
#[tokio::test(flavor = "multi_thread")]
async fn a_paused_job_does_not_keep_a_gate_from_those_behind_it() {
    let flow = FlowSpec::new("waits", |ctx: Ctx, _: Value| async move {
        Ok(ctx.wait_signal::<u32>("n").await?)
    });
    let world = World::start(Flows::default().with(flow), Tools::default(), quick()).await;
    let submit = async || {
        let gate = GateTerm { name: "narrow".into(), limit: Some(1), id: None };
        let terms = Terms { gate: Some(Box::new(gate)), ..Terms::default() };
        let (flow, tenant) = ("waits".to_owned(), "t".to_owned());
        let submission = Submission { flow, tenant, terms, ..Submission::default() };
        world.jobs.submit(submission).await.unwrap().id
    };
    let passes = async |job| {
        world.until_state(job, "it passes the gate", |s| s.waits_for("n").is_some()).await;
    };
    let line = gate_id("t", "narrow");
    let first = submit().await;
    passes(first).await;
    let second = submit().await;
    world.until_seen_times(line, "gate_asked", 2).await;
    let third = submit().await;
    world.until_seen_times(line, "gate_asked", 3).await;
    world.ask(second, mail::PAUSE).await;
    world.until_paused(second).await;
    world.signal(first, "n", json!(1)).await;
    world.until(first, "completed").await;
    passes(third).await;
    // Resumed, it stands in the line again.
    world.ask(second, mail::RESUME).await;
    world.until_seen_times(line, "gate_asked", 4).await;
    world.signal(third, "n", json!(1)).await;
    passes(second).await;
    world.signal(second, "n", json!(1)).await;
    world.until(second, "completed").await;
    world.check().await;
}
