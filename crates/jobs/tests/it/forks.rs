//! Forks and retries do nothing again that has happened, or may have.

use crate::support::{Outside, World};
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tenure_jobs::{
    ask::{self, ResolveAnswer, ResolveAsk},
    drive::JobOptions,
    model::limits,
    submit::{ForkAsk, Submission, SubmitError},
    view::Repeat,
};
use tenure_kernel::ids::EntityId;
use tenure_steps::{
    Ctx, StepError,
    events::{StepId, Verdict},
    flow::{FlowSpec, Flows},
    tool::{ToolCtx, ToolError, ToolSpec, Tools},
};
use tokio::sync::watch;

fn quick() -> JobOptions {
    JobOptions { backoff: Duration::from_millis(5), ..JobOptions::default() }
}

/// A tool that counts, and refuses `bad` numbers while `broken`. Two of three good ones are under way when it refuses
/// the first bad one, and end after it.
fn pay(outside: &Outside, broken: &Arc<AtomicBool>, bad: &'static [u32]) -> ToolSpec {
    let (outside, broken) = (outside.clone(), broken.clone());
    let refused = Arc::new(watch::Sender::new(false));
    ToolSpec::new("pay", move |_: ToolCtx, n: u32| {
        let (outside, broken, refused) = (outside.clone(), broken.clone(), refused.clone());
        async move {
            let broken = broken.load(Ordering::SeqCst);
            if bad.contains(&n) && broken {
                refused.send_replace(true);
                return Err(ToolError::Permanent("no".into()));
            }
            if broken && !bad.is_empty() && !n.is_multiple_of(3) {
                // It is never dropped while a call of it runs.
                let _ = refused.subscribe().wait_for(|refused| *refused).await;
            }
            outside.act(&format!("payment {n}"));
            Ok(json!(n))
        }
    })
    .irreversible()
}

fn payroll() -> FlowSpec {
    FlowSpec::new("payroll", |ctx: Ctx, n: u32| async move {
        let paid = ctx.parallel(0..n, |ctx, i| async move {
            let paid: Value = ctx.tool("pay", i).await?;
            ctx.pure("receipt", || i).await?;
            Ok::<_, StepError>(paid)
        });
        let paid = paid.await.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(json!(paid))
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_pays_nobody_twice_who_was_paid_beside_a_payment_that_failed() {
    let more = u32::try_from(limits::CALLS_MAX).unwrap() + 8;
    for n in [3, 20, more] {
        let (outside, broken) = (Outside::default(), Arc::new(AtomicBool::new(true)));
        let tools = Tools::default().with(pay(&outside, &broken, &[1, 7]));
        let world = World::start(Flows::default().with(payroll()), tools, quick()).await;
        let job = world.submit("payroll", json!(n)).await;
        world.until(job, "failed").await;
        let bad = if n > 7 { 2 } else { 1 };
        assert_eq!(outside.total(), n - bad);
        broken.store(false, Ordering::SeqCst);
        let retry = world.jobs.fork(job, None, None, None).await.unwrap().id;
        let output = world.until(retry, "completed").await.output;
        assert_eq!(output, Some(json!((0..n).collect::<Vec<_>>())));
        assert_eq!(world.count(retry, "tool_invocation_started").await, bad as usize);
        assert_eq!(outside.total(), n, "nobody is paid twice");
        world.check().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_of_a_flow_that_went_on_after_the_failure_is_refused() {
    let (outside, broken) = (Outside::default(), Arc::new(AtomicBool::new(true)));
    let flow = FlowSpec::new("each", |ctx: Ctx, _: Value| async move {
        let first = ctx.tool::<Value>("pay", 1u32).await;
        let second: Value = ctx.tool("pay", 2u32).await?;
        Ok(json!([first?, second]))
    });
    let tools = Tools::default().with(pay(&outside, &broken, &[1]));
    let world = World::start(Flows::default().with(flow), tools, quick()).await;
    let job = world.submit("each", Value::Null).await;
    world.until(job, "failed").await;
    let refused = world.jobs.fork(job, None, None, None).await.unwrap_err();
    assert!(
        matches!(&refused, SubmitError::WouldRepeat(why) if why.contains("step 2")),
        "{refused}"
    );
    // Whoever names a step says that what follows may be done again; for what is irreversible that has to be said.
    broken.store(false, Ordering::SeqCst);
    let before = Some(StepId("1".into()));
    let refused = world.jobs.fork(job, before.clone(), None, None).await.unwrap_err();
    assert!(matches!(&refused, SubmitError::WouldRepeat(_)), "{refused}");
    let ask = ForkAsk { before, repeat: Repeat::Irreversible, ..ForkAsk::default() };
    let fork = world.jobs.fork_once(job, ask).await.unwrap().id;
    world.until(fork, "completed").await;
    assert_eq!(outside.total(), 3);
    world.check().await;
}

/// A payment, and one of which nobody knows what became of it while the line is dead.
async fn doubt() -> (World, Outside, Arc<AtomicBool>, EntityId) {
    let (outside, dead) = (Outside::default(), Arc::new(AtomicBool::new(true)));
    let flow = FlowSpec::new("doubt", |ctx: Ctx, _: Value| async move {
        let first: Value = ctx.tool("pay", 1u32).await?;
        let second: Value = ctx.tool("doubt", Value::Null).await?;
        Ok(json!([first, second]))
    });
    let (is_dead, acts) = (dead.clone(), outside.clone());
    let tool = ToolSpec::new("doubt", move |_: ToolCtx, _: Value| {
        acts.act("doubt");
        let dead = is_dead.load(Ordering::SeqCst);
        async move {
            if dead {
                Err(ToolError::Unknown("the line went dead".into()))
            } else {
                Ok(json!("ok"))
            }
        }
    });
    let tools = Tools::default().with(tool).with(pay(&outside, &dead, &[]));
    let world = World::start(Flows::default().with(flow), tools, quick()).await;
    let must_end_in = Some(Duration::from_millis(400));
    let submission = Submission { flow: "doubt".into(), must_end_in, ..Submission::default() };
    let job = world.jobs.submit(submission).await.unwrap().id;
    let failure = world.until(job, "failed").await.failure.unwrap();
    assert_eq!(failure.reason, "unknown_outcome");
    assert_eq!(outside.total(), 2);
    for step in [None, Some("2"), Some("1")] {
        let step = step.map(|s| StepId(s.into()));
        let refused = world.jobs.fork(job, step, None, None).await.unwrap_err();
        let SubmitError::WouldRepeat(why) = refused else { panic!("{refused}") };
        assert!(why.contains(&format!("tenure job resolve {job} --step 2")), "{why}");
    }
    (world, outside, dead, job)
}

async fn say(world: &World, job: EntityId, verdict: Verdict, result: Value) {
    let (step, by) = (StepId("2".into()), Some("ann".into()));
    let said = ResolveAsk { step, verdict, result, by, note: None, correct: false };
    let said = ask::resolve(&world.node.pipeline, job, None, said).await.unwrap();
    assert_eq!(said, ResolveAnswer::RecordedAfterTheEnd);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happened_by_a_word_after_the_end_is_taken_over() {
    let (world, outside, _, job) = doubt().await;
    say(&world, job, Verdict::Happened, json!({"paid": 2})).await;
    let retry = world.jobs.fork(job, None, None, None).await.unwrap().id;
    let output = world.until(retry, "completed").await.output;
    assert_eq!(output, Some(json!([1, {"paid": 2}])));
    assert_eq!(outside.total(), 2);
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_did_not_happen_by_a_word_after_the_end_is_done_once() {
    for verdict in [Verdict::DidNotHappen, Verdict::Abandoned] {
        let (world, outside, dead, job) = doubt().await;
        say(&world, job, verdict, Value::Null).await;
        dead.store(false, Ordering::SeqCst);
        let retry = world.jobs.fork(job, None, None, None).await.unwrap().id;
        assert_eq!(world.until(retry, "completed").await.output, Some(json!([1, "ok"])));
        assert_eq!(outside.total(), 3);
        world.check().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_or_fork_that_is_asked_for_again_is_the_same_job() {
    let (outside, broken) = (Outside::default(), Arc::new(AtomicBool::new(true)));
    let tools = Tools::default().with(pay(&outside, &broken, &[1]));
    let flows = Flows::default().with(payroll()).with(payroll().version(2));
    let world = World::start(flows, tools, quick()).await;
    let submission = Submission {
        flow: "payroll".into(),
        version: Some(1),
        input: json!(2),
        must_end_in: Some(Duration::from_secs(60)),
        ..Submission::default()
    };
    let job = world.jobs.submit(submission).await.unwrap().id;
    world.until(job, "failed").await;
    broken.store(false, Ordering::SeqCst);
    let jobs = &world.jobs;
    let first = jobs.fork(job, None, None, None).await.unwrap();
    for id in [job, first.id] {
        let detail = tenure_jobs::view::detail(&world.store, id).await.unwrap().unwrap();
        let given = &detail.events[0].body["must_end_in_ms"];
        assert_eq!(given, &json!(60_000), "a retry gets as long as the first try");
    }
    let again = jobs.fork(job, None, None, Some("bob".into())).await.unwrap();
    assert_eq!((again.id, first.existed, again.existed), (first.id, false, true));
    let other = jobs.fork(job, None, Some(2), None).await.unwrap_err();
    assert!(matches!(other, SubmitError::TriedAgain { retry, .. } if retry == first.id), "{other}");
    world.until(first.id, "completed").await;
    assert_eq!(outside.total(), 2);
    // Forks are new each time, unless they have a key.
    let step = || Some(StepId("2.1".into()));
    let under = |before, key: Option<&str>| {
        let key = key.map(str::to_owned);
        jobs.fork_once(job, ForkAsk { before, key, ..ForkAsk::default() })
    };
    let (one, two) = (under(step(), None).await.unwrap(), under(step(), None).await.unwrap());
    assert_ne!(one.id, two.id);
    let (one, two) =
        (under(step(), Some("k")).await.unwrap(), under(step(), Some("k")).await.unwrap());
    assert_eq!((one.id, two.existed), (two.id, true));
    let other = under(None, Some("k")).await.unwrap_err();
    assert!(matches!(other, SubmitError::OtherInput(id) if id == one.id), "{other}");
    world.check().await;
}
