//! What may be asked of a job, and what is read of it.

use crate::support::{Outside, World};
use serde_json::{Value, json};
use std::time::Duration;
use tenure_jobs::{
    ask::{self, AskAnswer, AskError, ResolveAnswer, ResolveAsk, SignalAnswer, SignalAsk},
    decide::AskMail,
    drive::JobOptions,
    model::limits,
    view,
};
use tenure_kernel::ids::EntityId;
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
    for _ in 0..2_000 {
        let state = world.state(job).await;
        if state.waits.iter().any(|w| w.key == key) && world.head(job).await.holder.is_none() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("{job} does not wait for {key}\n{}", world.story(job).await);
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
    // The flow waits for the same key again: a signal counts again.
    let waits_again = |s: &tenure_jobs::JobState| s.heard.len() == 2 && s.waits_for("a").is_some();
    while !waits_again(&world.state(job).await) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(
        ask::signal(pipeline, job, None, plain("a", json!(2))).await.unwrap(),
        SignalAnswer::Completed
    );
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
        while world.state(job).await.kept.len() <= kept {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
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
        while !world.state(job).await.paused {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert_eq!(ask::pause(pipeline, job, None, ann()).await.unwrap(), AskAnswer::Already);
        let seen = view::detail(&world.store, job).await.unwrap().unwrap().job;
        assert_eq!(seen.paused_by.as_deref(), Some("ann"));
        assert_eq!(ask::resume(pipeline, job, None, ann()).await.unwrap(), AskAnswer::Accepted);
        while world.state(job).await.paused {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
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
    ResolveAsk { step, verdict, result: json!({"paid": 1}), by, note: Some("I looked".into()) }
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
