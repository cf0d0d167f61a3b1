//! What may be asked of a job, and what is read of it.

use crate::support::{Outside, World, config};
use serde_json::{Value, json};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tenure_bell::InProcess;
use tenure_edge::TokioRuntime;
use tenure_engine::pipeline::Pipeline;
use tenure_jobs::{
    JobState,
    ask::{self, AskAnswer, AskError, ResolveAnswer, ResolveAsk, SignalAnswer, SignalAsk},
    decide::AskMail,
    drive::JobOptions,
    model::limits,
    view::{self, BarKind, BarState, LeaseEnd, MarkKind, Replayed},
};
use tenure_kernel::{
    error::StoreError, head::Head, ids::EntityId, runtime::BoxFuture, store::Store, stream::Hash,
};
use tenure_proving::layer::{Layer, Layered};
use tenure_steps::{
    Approval, Ctx, FlowError, ToolError,
    events::{StepId, Verdict, WaitOutcome},
    flow::{FlowSpec, Flows},
    tool::{ToolCtx, ToolSpec, Tools},
};

fn quick() -> JobOptions {
    JobOptions { backoff: Duration::from_millis(5), ..JobOptions::default() }
}

fn step(id: &str) -> StepId {
    StepId(id.into())
}

fn ann() -> AskMail {
    AskMail { by: Some("ann".into()), why: None }
}

fn plain(key: &str, payload: Value) -> SignalAsk {
    let (key, outcome) = (key.into(), WaitOutcome::Signalled);
    SignalAsk { key, outcome, payload, by: Some("ann".into()), early: false }
}

fn waits() -> FlowSpec {
    FlowSpec::new("waits", |ctx: Ctx, _: Value| async move {
        let a: Value = ctx.wait_signal("a").await?;
        let b: Approval = ctx.approval("b").note("is it fine?").await?;
        let again: Value = ctx.wait_signal("a").await?;
        Ok(json!([a, b.approved, again]))
    })
}

async fn until_waits(world: &World, job: EntityId, key: &str) {
    let waits = |s: &JobState| s.waits.iter().any(|w| w.key == key);
    world.until_state(job, key, waits).await;
    world.until_free(job).await;
}

/// Answers the first question for a head with one that was read earlier: the job moved on between a look and what followed it.
struct OutdatedOnce {
    under: Arc<dyn Store>,
    outdated: Mutex<Option<Head>>,
}

impl Layer for OutdatedOnce {
    fn under(&self) -> &dyn Store {
        &*self.under
    }

    fn head(&self, id: EntityId) -> BoxFuture<'_, Result<Option<Head>, StoreError>> {
        match self.outdated.lock().unwrap().take() {
            Some(head) => Box::pin(async move { Ok(Some(head)) }),
            None => self.under.head(id),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_or_approval_that_comes_after_the_wait_expired_is_answered_too_late() {
    let flow = FlowSpec::new("expires", |ctx: Ctx, human: bool| async move {
        let within = Duration::from_millis(20);
        let first = match human {
            true => ctx.approval("a").within(within).await.map(|_| ()),
            false => ctx.wait_signal::<Value>("a").within(within).await.map(|_| ()),
        };
        let _: Value = ctx.wait_signal("b").await?;
        Ok(first.is_ok())
    });
    let world = World::start(Flows::default().with(flow), Tools::default(), quick()).await;
    for (human, outcome) in [(false, WaitOutcome::Signalled), (true, WaitOutcome::Approved)] {
        let job = world.submit("expires", json!(human)).await;
        let outdated = loop {
            let head = world.head(job).await;
            let state: JobState = serde_json::from_slice(&head.state).unwrap();
            if state.waits.iter().any(|w| w.key == "a") {
                break head;
            }
            assert!(state.waits.is_empty(), "the wait expired before it was seen: {state:?}");
            tokio::task::yield_now().await;
        };
        until_waits(&world, job, "b").await;
        let late = OutdatedOnce { under: world.store.clone(), outdated: Some(outdated).into() };
        let rt = Arc::new(TokioRuntime::current());
        let pipeline =
            Pipeline::new(Arc::new(Layered(late)), Arc::new(InProcess::new()), rt, &config());
        let ask = SignalAsk { outcome, ..plain("a", json!(1)) };
        let answer = ask::signal(&pipeline, job, None, ask).await;
        assert!(matches!(&answer, Err(AskError::TooLate { key, .. }) if key == "a"), "{answer:?}");
        let sent = ask::signal(&world.node.pipeline, job, None, plain("b", json!(1))).await;
        assert_eq!(sent.unwrap(), SignalAnswer::Completed);
        assert_eq!(world.until(job, "completed").await.output, Some(json!(false)));
        // Sent again, it is not passed off as one that was heard.
        let again = ask::signal(&world.node.pipeline, job, None, plain("a", json!(1))).await;
        assert!(matches!(again, Err(AskError::TooLate { .. })), "{again:?}");
    }
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_is_completed_kept_repeated_or_refused_with_the_open_keys() {
    let world = World::start(Flows::default().with(waits()), Tools::default(), quick()).await;
    let pipeline = &world.node.pipeline;
    let job = world.submit("waits", Value::Null).await;
    until_waits(&world, job, "a").await;
    let version = world.head(job).await.version;
    // Nobody waits for it: nothing is written.
    match ask::signal(pipeline, job, None, plain("z", json!(1))).await {
        Err(AskError::NobodyWaits { open, .. }) => assert_eq!(open, ["a"]),
        other => panic!("{other:?}"),
    }
    assert_eq!(world.head(job).await.version, version);
    assert_eq!(world.head(job).await.mail_count, 0);
    // A yes to something that nobody decides.
    let yes = SignalAsk { outcome: WaitOutcome::Approved, ..plain("a", json!(1)) };
    let refused = ask::signal(pipeline, job, None, yes).await.unwrap_err().to_string();
    assert_eq!(
        refused,
        "approve does not fit: \"a\" waits for a signal, not for a person's decision"
    );
    // Somebody else's job is no job.
    let other = ask::signal(pipeline, job, Some("eve"), plain("a", json!(1))).await;
    assert!(matches!(other, Err(AskError::NotFound(_))), "{other:?}");
    // Early is kept.
    let early =
        SignalAsk { early: true, outcome: WaitOutcome::Rejected, ..plain("b", json!("no")) };
    assert_eq!(ask::signal(pipeline, job, None, early.clone()).await.unwrap(), SignalAnswer::Kept);
    assert_eq!(ask::signal(pipeline, job, None, early).await.unwrap(), SignalAnswer::Duplicate);
    let sent = ask::signal(pipeline, job, Some(""), plain("a", json!(1))).await.unwrap();
    assert_eq!(sent, SignalAnswer::Completed);
    until_waits(&world, job, "a#2").await;
    let sent = ask::signal(pipeline, job, None, plain("a#2", json!(2))).await.unwrap();
    assert_eq!(sent, SignalAnswer::Completed);
    let state = world.until(job, "completed").await;
    assert_eq!(state.output, Some(json!([1, false, 2])));
    // A repetition after the end is still a repetition; a new key is refused with the status.
    for key in ["a", "b"] {
        let sent = ask::signal(pipeline, job, None, plain(key, json!(1))).await.unwrap();
        assert_eq!(sent, SignalAnswer::Duplicate);
    }
    match ask::signal(pipeline, job, None, plain("new", json!(1))).await {
        Err(AskError::Finished { status, .. }) => assert_eq!(status, "completed"),
        other => panic!("{other:?}"),
    }
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_goes_to_the_oldest_open_wait_of_its_name() {
    let flow = FlowSpec::new("loop", |ctx: Ctx, _: Value| async move {
        let mut heard = Vec::new();
        for _ in 0..3 {
            heard.push(ctx.wait_signal::<u32>("tick").await?);
        }
        let yes = ctx.approval("ok").await?.approved;
        let again = ctx.approval("ok").await?.approved;
        Ok::<_, FlowError>(json!([heard, yes, again]))
    });
    let world = World::start(Flows::default().with(flow), Tools::default(), quick()).await;
    let pipeline = &world.node.pipeline;
    let job = world.submit("loop", Value::Null).await;
    for (n, key) in ["tick", "tick#2", "tick#3"].into_iter().enumerate() {
        until_waits(&world, job, key).await;
        let (tick, id) = (plain("tick", json!(n)), Hash::of(key.as_bytes()));
        let sent = ask::signal_once(pipeline, job, None, tick.clone(), id).await.unwrap();
        assert_eq!(sent, SignalAnswer::Completed, "{key}");
        // What is sent again, because its answer was lost, does not complete the next wait.
        let again = ask::signal_once(pipeline, job, None, tick.clone(), id).await.unwrap();
        assert_eq!(again, SignalAnswer::Duplicate, "{key}");
        let again = ask::signal(pipeline, job, None, tick).await.unwrap();
        assert_eq!(again, SignalAnswer::Duplicate, "{key}");
    }
    let yes = |key| SignalAsk { outcome: WaitOutcome::Approved, ..plain(key, Value::Null) };
    until_waits(&world, job, "ok").await;
    assert_eq!(ask::signal(pipeline, job, None, yes("ok")).await.unwrap(), SignalAnswer::Completed);
    until_waits(&world, job, "ok#2").await;
    // Who presses twice has not decided the next question.
    assert_eq!(ask::signal(pipeline, job, None, yes("ok")).await.unwrap(), SignalAnswer::Duplicate);
    ask::signal(pipeline, job, None, yes("ok#2")).await.unwrap();
    let output = world.until(job, "completed").await.output;
    assert_eq!(output, Some(json!([[0, 1, 2], true, true])));
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flow_that_starts_afresh_can_be_told_the_same_again() {
    let flow = FlowSpec::new("rounds", |ctx: Ctx, round: u32| async move {
        let go: u32 = ctx.wait_signal("go").await?;
        if round < 3 {
            return Err(ctx.continue_with(round + 1));
        }
        Ok(go)
    });
    let world = World::start(Flows::default().with(flow), Tools::default(), quick()).await;
    let pipeline = &world.node.pipeline;
    let job = world.submit("rounds", json!(1)).await;
    for round in 1..=3u32 {
        let waits = |s: &JobState| s.run == round && s.waits_for("go").is_some();
        world.until_state(job, "it waits in this round", waits).await;
        let sent = ask::signal(pipeline, job, None, plain("go", json!(round))).await.unwrap();
        assert_eq!(sent, SignalAnswer::Completed, "{}", world.story(job).await);
    }
    assert_eq!(world.until(job, "completed").await.output, Some(json!(3)));
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_a_signal_are_named() {
    let world = World::start(Flows::default().with(waits()), Tools::default(), quick()).await;
    let pipeline = &world.node.pipeline;
    let job = world.submit("waits", Value::Null).await;
    until_waits(&world, job, "a").await;
    let text = |n: usize| Value::from("x".repeat(n - 2));
    let too_much = ask::signal(pipeline, job, None, plain("a", text(limits::SIGNAL_BYTES_MAX + 1)));
    assert_eq!(
        too_much.await.unwrap_err().to_string(),
        "the payload in bytes is 24577; the limit SIGNAL_BYTES_MAX is 24576"
    );
    let long = "k".repeat(ask::SIGNAL_KEY_BYTES_MAX + 1);
    let refused = ask::signal(pipeline, job, None, plain(&long, Value::Null)).await.unwrap_err();
    assert!(matches!(refused, AskError::TooLarge { name: "SIGNAL_KEY_BYTES_MAX", .. }));
    let early = SignalAsk { early: true, ..plain(&long[1..], Value::Null) };
    assert_eq!(ask::signal(pipeline, job, None, early).await.unwrap(), SignalAnswer::Kept);
    for key in ["", "a\0b"] {
        let refused = ask::signal(pipeline, job, None, plain(key, Value::Null)).await.unwrap_err();
        assert!(matches!(refused, AskError::Invalid(_)), "{refused}");
    }
    let most = ask::signal(pipeline, job, None, plain("a", text(limits::SIGNAL_BYTES_MAX))).await;
    assert_eq!(most.unwrap(), SignalAnswer::Completed);
    // Keys that nobody waits for can not fill the head.
    let mut kept = 0;
    while kept < 100 {
        let key = format!("{kept}{}", "k".repeat(400));
        let early = SignalAsk { early: true, ..plain(&key, Value::Null) };
        match ask::signal(pipeline, job, None, early).await {
            Ok(SignalAnswer::Kept) => kept += 1,
            Err(AskError::TooLarge { name: "KEPT_KEYS_BYTES_MAX", .. }) => break,
            other => panic!("{other:?}"),
        }
        world.until_state(job, "it is kept", |s| s.kept.len() > kept).await;
    }
    assert!((1..100).contains(&kept));
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pause_resume_and_cancel_say_what_there_is_to_do() {
    let world = World::start(Flows::default().with(waits()), Tools::default(), quick()).await;
    let pipeline = &world.node.pipeline;
    let job = world.submit("waits", Value::Null).await;
    until_waits(&world, job, "a").await;
    let nothing = ask::resume(pipeline, job, None, ann()).await.unwrap_err();
    assert!(matches!(nothing, AskError::NothingToResume { .. }), "{nothing}");
    for _ in 0..2 {
        assert_eq!(ask::pause(pipeline, job, None, ann()).await.unwrap(), AskAnswer::Accepted);
        world.until_paused(job).await;
        assert_eq!(ask::pause(pipeline, job, None, ann()).await.unwrap(), AskAnswer::Already);
        let seen = view::detail(&world.store, job).await.unwrap().unwrap().job;
        assert_eq!(seen.paused_by.as_deref(), Some("ann"));
        assert_eq!(ask::resume(pipeline, job, None, ann()).await.unwrap(), AskAnswer::Accepted);
        world.until_state(job, "it goes on", |s| !s.paused).await;
        until_waits(&world, job, "a").await;
    }
    assert_eq!(ask::cancel(pipeline, job, None, ann()).await.unwrap(), AskAnswer::Accepted);
    world.until(job, "cancelled").await;
    assert_eq!(ask::cancel(pipeline, job, None, ann()).await.unwrap(), AskAnswer::Already);
    for refused in [
        ask::pause(pipeline, job, None, ann()).await.unwrap_err(),
        ask::resume(pipeline, job, None, ann()).await.unwrap_err(),
    ] {
        assert!(matches!(refused, AskError::Finished { .. }), "{refused}");
    }
    let missing = ask::cancel(pipeline, EntityId::fixed(9, 9), None, ann()).await.unwrap_err();
    assert!(matches!(missing, AskError::NotFound(_)));
    world.check().await;
}

fn doubtful() -> (FlowSpec, ToolSpec) {
    let flow = FlowSpec::new("doubt", |ctx: Ctx, _: Value| async move {
        let v: Value = ctx.tool("doubt", Value::Null).await?;
        Ok(v)
    });
    let tool = ToolSpec::new("doubt", |_: ToolCtx, _: Value| async move {
        Err::<Value, _>(ToolError::Unknown("the line went dead".into()))
    });
    (flow, tool)
}

fn verdict(verdict: Verdict) -> ResolveAsk {
    let (step, by) = (step("1"), Some("ann".into()));
    let (result, note) = (json!({"paid": 1}), Some("I looked".into()));
    ResolveAsk { step, verdict, result, by, note, correct: false }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_effect_is_settled_once() {
    let (flow, tool) = doubtful();
    let world =
        World::start(Flows::default().with(flow), Tools::default().with(tool), quick()).await;
    let pipeline = &world.node.pipeline;
    let job = world.submit("doubt", Value::Null).await;
    world.until(job, "attention").await;
    let wrong = ResolveAsk { step: step("7"), ..verdict(Verdict::Happened) };
    assert_eq!(
        ask::resolve(pipeline, job, None, wrong).await.unwrap_err().to_string(),
        "step 7 has no unknown effect: there is no such step; the job has 1"
    );
    let odd = ask::resolve(pipeline, job, None, verdict(Verdict::CalledAgain)).await.unwrap_err();
    assert!(matches!(odd, AskError::Invalid(_)));
    let said = ask::resolve(pipeline, job, None, verdict(Verdict::Happened)).await.unwrap();
    assert_eq!(said, ResolveAnswer::Accepted);
    assert_eq!(world.until(job, "completed").await.output, Some(json!({"paid": 1})));
    let again = ask::resolve(pipeline, job, None, verdict(Verdict::DidNotHappen)).await;
    assert_eq!(
        again.unwrap_err().to_string(),
        "step 1 has no unknown effect: it was settled as happened"
    );
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_learnt_after_the_end_is_evidence_and_a_dead_letter_can_be_put_aside() {
    let (flow, tool) = doubtful();
    let world =
        World::start(Flows::default().with(flow), Tools::default().with(tool), quick()).await;
    let pipeline = &world.node.pipeline;
    let submission = tenure_jobs::submit::Submission {
        flow: "doubt".into(),
        must_end_in: Some(Duration::from_millis(300)),
        ..Default::default()
    };
    let job = world.jobs.submit(submission).await.unwrap().id;
    let failure = world.until(job, "failed").await.failure.unwrap();
    assert_eq!(failure.unknown, [step("1")]);
    let version = world.head(job).await.version;
    let said = ask::resolve(pipeline, job, None, verdict(Verdict::Happened)).await.unwrap();
    assert_eq!(said, ResolveAnswer::RecordedAfterTheEnd);
    let said = ask::resolve(pipeline, job, None, verdict(Verdict::Happened)).await.unwrap();
    assert_eq!(said, ResolveAnswer::Duplicate);
    assert_eq!(world.head(job).await.version, version);
    let dead = ask::dead_letters(&world.store, None, None, 10).await.unwrap();
    assert_eq!(dead.jobs.iter().map(|j| j.id).collect::<Vec<_>>(), [job]);
    assert!(ask::dead_letters(&world.store, Some("eve"), None, 10).await.unwrap().jobs.is_empty());
    assert_eq!(ask::discard(pipeline, job, None, "ann").await.unwrap(), AskAnswer::Accepted);
    assert_eq!(ask::discard(pipeline, job, None, "bob").await.unwrap(), AskAnswer::Already);
    assert!(ask::dead_letters(&world.store, None, None, 10).await.unwrap().jobs.is_empty());
    world.check().await;
}

async fn five(ctx: Ctx, fail_at: u32) -> Result<Value, FlowError> {
    let mut out = Vec::new();
    for i in 1..=5u32 {
        let tool = if i == fail_at { "fails" } else { "raise" };
        let did: Value = ctx.tool(tool, json!(i)).await?;
        out.push(did);
    }
    Ok(json!(out))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_executes_its_step_and_later_ones_and_nothing_before() {
    let outside = Outside::default();
    let flows = Flows::default().with(FlowSpec::new("five", five));
    let tools = Tools::default().with(outside.tool("raise"));
    let world = World::start(flows, tools, quick()).await;
    let job = world.submit("five", json!(0)).await;
    let output = world.until(job, "completed").await.output;
    for n in 1..=5u32 {
        let before = outside.total();
        let fork = world.jobs.fork(job, Some(step(&n.to_string())), None, None).await.unwrap().id;
        assert_eq!(world.until(fork, "completed").await.output, output);
        assert_eq!(outside.total() - before, 6 - n, "from step {n}");
        let copied = world.count(fork, "tool_invocation_started").await;
        assert_eq!(copied, 6 - n as usize);
        // A fork of the fork has what the fork has.
        let before = outside.total();
        let again = world.jobs.fork(fork, Some(step("5")), None, None).await.unwrap().id;
        assert_eq!(world.until(again, "completed").await.output, output);
        assert_eq!(outside.total() - before, 1);
    }
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_goes_on_from_the_step_that_failed() {
    let outside = Outside::default();
    let broken = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let is_broken = broken.clone();
    let fails = ToolSpec::new("fails", move |_: ToolCtx, n: u32| {
        let broken = is_broken.load(std::sync::atomic::Ordering::SeqCst);
        async move {
            if broken { Err(ToolError::Permanent("no".into())) } else { Ok(json!({ "did": n })) }
        }
    });
    let flows = Flows::default().with(FlowSpec::new("five", five));
    let tools = Tools::default().with(outside.tool("raise")).with(fails);
    let world = World::start(flows, tools, quick()).await;
    let job = world.submit("five", json!(4)).await;
    world.until(job, "failed").await;
    assert_eq!(outside.total(), 3);
    broken.store(false, std::sync::atomic::Ordering::SeqCst);
    let retry = world.jobs.fork(job, None, None, Some("ann".into())).await.unwrap().id;
    let state = world.until(retry, "completed").await;
    assert_eq!(outside.total(), 4);
    assert_eq!(state.retry_of, Some(job));
    assert_eq!(state.forked_from.unwrap().step, step("4"));
    world.check().await;
}

/// A flow whose second version does something else at its third step.
fn versions() -> Flows {
    let first = FlowSpec::new("grows", |ctx: Ctx, _: Value| async move {
        let a: Value = ctx.tool("raise", json!(1)).await?;
        let b: Value = ctx.tool("raise", json!(2)).await?;
        let _: Value = ctx.wait_signal("go").await?;
        Ok(json!([a, b]))
    });
    let second = FlowSpec::new("grows", |ctx: Ctx, _: Value| async move {
        let a: Value = ctx.tool("raise", json!(1)).await?;
        let b: Value = ctx.tool("raise", json!(2)).await?;
        let c: Value = ctx.tool("raise", json!(3)).await?;
        Ok(json!([a, b, c]))
    });
    Flows::default().with(first).with(second.version(2))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_diverged_job_goes_on_as_a_fork_with_the_version_that_diverged() {
    let outside = Outside::default();
    let tools = Tools::default().with(outside.tool("raise"));
    let world = World::start(versions(), tools, quick()).await;
    let submission = tenure_jobs::submit::Submission {
        flow: "grows".into(),
        version: Some(1),
        ..Default::default()
    };
    let job = world.jobs.submit(submission).await.unwrap().id;
    until_waits(&world, job, "go").await;
    assert_eq!(outside.total(), 2);
    // The code of version 1 is now what version 2 is: both places are named.
    let newer = versions().get("grows", 2).unwrap().clone().version(1);
    match view::replay(&Flows::default().with(newer), &world.store, job).await.unwrap().unwrap() {
        Replayed::Diverged { step: at, recorded, expected } => {
            assert_eq!(at, step("3"));
            assert!(recorded.contains("it/views.rs") && expected.contains("it/views.rs"));
        }
        other => panic!("{other:?}"),
    }
    let fork = world.jobs.fork(job, Some(step("3")), Some(2), None).await.unwrap().id;
    let state = world.until(fork, "completed").await;
    assert_eq!(state.output.unwrap().as_array().unwrap().len(), 3);
    assert_eq!(outside.total(), 3);
    world.check().await;
}

/// Branches, values, a race, a child, a sleep and a kept signal.
fn mixed() -> Flows {
    let child = FlowSpec::new("big", |_: Ctx, n: usize| async move { Ok("x".repeat(n)) });
    let flow = FlowSpec::new("mixed", |ctx: Ctx, _: Value| async move {
        let now = ctx.now();
        let many = ctx.parallel(0..4u32, |ctx, i| async move {
            let did: Value = ctx.tool("raise", json!(i)).await?;
            ctx.pure("pick", || i).await?;
            Ok::<_, tenure_steps::StepError>(did)
        });
        let many = many.await.into_iter().collect::<Result<Vec<_>, _>>()?;
        let big: String = ctx.child("big", 20_000usize).await?;
        ctx.sleep(Duration::from_millis(5)).await?;
        let go: Value = ctx.wait_signal("go").await?;
        let last: Value = ctx.tool("raise", json!([now.as_micros(), go])).await?;
        Ok(json!([many, big.len(), last]))
    });
    Flows::default().with(child).with(flow)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_from_any_step_is_led_to_that_step_and_asks_for_it() {
    let outside = Outside::default();
    let tools = Tools::default().with(outside.tool("raise"));
    let world = World::start(mixed(), tools, quick()).await;
    let job = world.submit("mixed", Value::Null).await;
    let early = SignalAsk { early: true, ..plain("go", json!("now")) };
    ask::signal(&world.node.pipeline, job, None, early).await.unwrap();
    world.until(job, "completed").await;
    let detail = view::detail(&world.store, job).await.unwrap().unwrap();
    assert!(detail.steps.len() >= 12, "{:?}", detail.steps);
    let flow = mixed().get("mixed", 1).unwrap().clone();
    for from in &detail.steps {
        let mut history = tenure_steps::history::History::default();
        let cut = view::Cut::Before(from.step.clone());
        let repeat = view::Repeat::Irreversible;
        for event in view::taken_over(&world.store, job, &cut, repeat).await.unwrap().events {
            history.apply(&serde_json::from_value(event).unwrap(), detail.job.created_at, 0);
        }
        let world = tenure_steps::driver::World {
            job,
            tenant: String::new(),
            run: 1,
            now: detail.job.created_at,
            entropy: 0,
        };
        let input = Value::Null;
        let (_, turn) = tenure_steps::driver::Driver::start(&flow, input, &history, world);
        assert!(turn.end.is_none(), "from {}: {:?}", from.step, turn.end);
        let asked = turn.asks.iter().any(|a| a.step == from.step && !a.known);
        let recorded = turn.records.iter().any(|r| r.step() == Some(&from.step));
        assert!(asked || recorded, "from {}: {:?} {:?}", from.step, turn.asks, turn.records);
    }
    // The large output of the child, which belongs to the origin, goes along.
    let last = detail.steps.last().unwrap().step.clone();
    let before = outside.total();
    let fork = world.jobs.fork(job, Some(last), None, None).await.unwrap().id;
    assert_eq!(world.until(fork, "completed").await.output, world.state(job).await.output);
    assert_eq!(outside.total() - before, 1);
    let verified = view::verify(&world.store, &world.machines.tables(), fork, None).await.unwrap();
    assert!(verified.as_ref().unwrap().ok, "{verified:?}");
    let replayed = view::replay(&mixed(), &world.store, fork).await.unwrap().unwrap();
    assert!(matches!(replayed, Replayed::Consistent { .. }), "{replayed:?}");
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn verification_names_what_it_checked_and_the_same_work_has_the_same_hash() {
    let outside = Outside::default();
    let flows = Flows::default().with(FlowSpec::new("five", five));
    let world = World::start(flows, Tools::default().with(outside.tool("raise")), quick()).await;
    let tables = world.machines.tables();
    let mut hashes = Vec::new();
    for input in [0, 0, 9] {
        let job = world.submit("five", json!(input)).await;
        world.until(job, "completed").await;
        let verified = view::verify(&world.store, &tables, job, None).await.unwrap().unwrap();
        assert!(verified.ok, "{:?}", verified.problems);
        assert_eq!(verified.chain_root, world.head(job).await.chain.to_string());
        assert_eq!(verified.events, world.head(job).await.version);
        assert_eq!(verified.checks.len(), 11);
        hashes.push(verified.execution_hash);
    }
    assert_eq!(hashes[0], hashes[1]);
    assert_ne!(hashes[0], hashes[2]);
    // A separate effect store must have every result.
    let dir = tempfile::tempdir().unwrap();
    let effects = tenure_steps::effects::Directory::open(dir.path()).unwrap();
    let job = world.submit("five", json!(0)).await;
    world.until(job, "completed").await;
    let verified = view::verify(&world.store, &tables, job, Some(&effects)).await.unwrap().unwrap();
    assert!(verified.problems[0].contains("has no result in the effect store"));
    assert!(
        view::verify(&world.store, &tables, EntityId::fixed(9, 9), None).await.unwrap().is_none()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeline_shows_who_held_it_and_how_each_step_went() {
    let tries = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let flaky = ToolSpec::new("flaky", move |_: ToolCtx, _: Value| {
        let n = tries.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        async move { if n == 0 { Err(ToolError::retryable("not yet")) } else { Ok(n) } }
    });
    let flow = FlowSpec::new("story", |ctx: Ctx, _: Value| async move {
        let n: u32 = ctx.tool("flaky", Value::Null).await?;
        let _: Value = ctx.wait_signal("go").await?;
        ctx.sleep(Duration::from_millis(20)).await?;
        Ok(n)
    });
    let flows = Flows::default().with(flow);
    let world = World::start(flows.clone(), Tools::default().with(flaky), quick()).await;
    let job = world.submit("story", Value::Null).await;
    until_waits(&world, job, "go").await;
    let replayed = view::replay(&flows, &world.store, job).await.unwrap().unwrap();
    assert_eq!(replayed, Replayed::Consistent { steps: 1, open: vec![step("2")], output: None });
    ask::signal(&world.node.pipeline, job, None, plain("go", json!(1))).await.unwrap();
    world.until(job, "completed").await;
    let detail = view::detail(&world.store, job).await.unwrap().unwrap();
    let now = world.store.now().await.unwrap();
    let drawn = view::timeline(&detail, now);
    assert!(!drawn.open);
    assert!(drawn.leases.iter().all(|l| l.to.is_some() && l.name == "crew"));
    let ends: Vec<LeaseEnd> = drawn.leases.iter().map(|l| l.end).collect();
    assert_eq!(ends.last(), Some(&LeaseEnd::Final));
    assert_eq!(ends[0], LeaseEnd::Parked);
    let kinds =
        |i: usize| drawn.lanes[i].bars.iter().map(|b| (b.kind, b.state)).collect::<Vec<_>>();
    assert_eq!(
        kinds(0),
        [
            (BarKind::Call, BarState::Failed),
            (BarKind::Backoff, BarState::Ok),
            (BarKind::Call, BarState::Ok)
        ]
    );
    assert_eq!(kinds(1), [(BarKind::Wait, BarState::Ok)]);
    assert_eq!(kinds(2), [(BarKind::Sleep, BarState::Ok)]);
    let marks: Vec<MarkKind> = drawn.marks.iter().map(|m| m.kind).collect();
    assert_eq!(marks, [MarkKind::Signal, MarkKind::End]);
    for width in [40, 80, 200] {
        let text = view::render_text(&drawn, width);
        assert!(text.contains("1 flaky") && text.contains("go signalled"), "{text}");
        let longest = text.lines().skip(1).map(|l| l.chars().count()).max().unwrap();
        assert!(longest <= width, "{longest} in {width}\n{text}");
    }
    // Too narrow to be read, and still no panic.
    assert!(view::render_text(&drawn, 0).contains("1 flaky"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_says_something_else_than_its_events_is_noticed() {
    use tenure_kernel::{
        commit::{Commit, CommitAnswer, Expect},
        machine::encode_state,
        stream::{Body, NewEvent},
    };
    let world = World::start(Flows::default().with(waits()), Tools::default(), quick()).await;
    let job = world.submit("waits", Value::Null).await;
    until_waits(&world, job, "a").await;
    let (head, mut state) = (world.head(job).await, world.state(job).await);
    // A committer that writes one thing and keeps another.
    state.heard.push("never".into());
    let (epoch, version) = (head.epoch, head.version);
    let body = Body::json(&json!({ "event": "mail_noted", "what": "nothing" }));
    let events = vec![NewEvent::new("mail_noted", body)];
    let id = world.node.pipeline.commit_id();
    let mut commit = Commit::new(id, job, Expect::Nobody { epoch, version }, events);
    commit.state = Some(encode_state::<tenure_jobs::Job>(&state));
    let answer = world.node.pipeline.commit(commit).await.unwrap();
    assert!(matches!(answer, CommitAnswer::Committed(_)), "{answer:?}");
    let tables = world.machines.tables();
    let verified = view::verify(&world.store, &tables, job, None).await.unwrap().unwrap();
    let wrong: Vec<&str> =
        verified.checks.iter().filter(|c| !c.ok).map(|c| c.rule.as_str()).collect();
    assert_eq!(wrong, ["state_is_the_fold_of_its_events"], "{:?}", verified.problems);
}
