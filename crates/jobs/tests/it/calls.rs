//! Calls in the hands of a worker that runs no flows: scripted, so that it dies, sleeps and speaks late on purpose.

use crate::support::World;
use serde_json::{Value, json};
use std::time::Duration;
use tenure_jobs::{
    call::{
        FailKind,
        again::{hand_out_again, take_back},
        desk::{self, Counter, Heard, Said, Taken},
        view,
    },
    catalogue::{CallTerms, CallTool, register_calls},
    drive::JobOptions,
    model::JobState,
};
use tenure_kernel::{
    ids::{EntityId, SessionId},
    sessions::{Hold, Opening, Renewal, RenewalAnswer},
    store::{Answer, Op},
};
use tenure_steps::{
    Class, Ctx, FlowError,
    events::What,
    flow::{FlowSpec, Flows},
    tool::{ToolCtx, ToolSpec, Tools},
};

const LEASE: Duration = Duration::from_millis(600);

fn quick() -> JobOptions {
    JobOptions {
        backoff: Duration::from_millis(5),
        stop_grace: Duration::from_millis(200),
        call_patience: Duration::from_millis(50),
        ..JobOptions::default()
    }
}

fn flows() -> Flows {
    Flows::default()
        .with(FlowSpec::new("far", |ctx: Ctx, input: Value| async move {
            Ok(ctx.tool::<Value>("far", input).await?)
        }))
        .with(FlowSpec::new("nobody", |ctx: Ctx, input: Value| async move {
            Ok(ctx.tool::<Value>("nobody", input).await?)
        }))
        .with(FlowSpec::new("back", |ctx: Ctx, fails: bool| async move {
            ctx.saga(|s: tenure_steps::Saga| async move {
                let near = s.tool::<Value>("near", json!(1)).undo("far", |_| json!("back"));
                near.retries(3, Duration::from_millis(5)).await?;
                if fails {
                    return Err(FlowError::failed("no"));
                }
                Ok(s.wait_signal::<Value>("go").await?)
            })
            .await
        }))
        .with(FlowSpec::new("either", |ctx: Ctx, input: Value| async move {
            let one = ctx.tool::<Value>("far", input);
            let other = ctx.wait_signal::<Value>("enough");
            match ctx.race(one, other).await {
                tenure_steps::Either::Left(value) => Ok::<_, FlowError>(value?),
                tenure_steps::Either::Right(_) => Ok(json!("enough")),
            }
        }))
}

/// A worker in another language.
struct Far<'a> {
    world: &'a World,
    session: SessionId,
    counter: Counter,
}

fn tool(class: Class) -> CallTool {
    let (probe, compensate) = (class == Class::Verifiable, class == Class::Compensatable);
    let terms = CallTerms { probe, compensate, ..CallTerms::default() };
    CallTool { name: "far".into(), class: Some(class), terms, ..CallTool::default() }
}

async fn world(class: Class, options: JobOptions) -> World {
    let world = World::start(flows(), Tools::default(), options).await;
    register_calls(&world.node.pipeline, "", &[tool(class)]).await.unwrap();
    world
}

impl<'a> Far<'a> {
    async fn open(world: &'a World) -> Far<'a> {
        let lease_ms = u64::try_from(LEASE.as_millis()).unwrap();
        let (name, role, executor) = ("far".into(), "worker".into(), None);
        let opening = Opening { name, role, lease_ms, executor };
        let tools = ["far".to_owned()];
        let opened = desk::open_session(&world.node.pipeline, "", opening, &tools).await;
        Far { world, session: opened.unwrap(), counter: Counter::default() }
    }

    /// The next call that comes.
    async fn take(&self) -> Taken {
        let tools = ["far".to_owned()];
        let end = tokio::time::Instant::now() + PATIENCE;
        while tokio::time::Instant::now() < end {
            let pipeline = &self.world.node.pipeline;
            let taken =
                self.counter.take(pipeline, (self.session, LEASE), &tools, 1, |_| true).await;
            if let Some(taken) = taken.unwrap().pop() {
                return taken;
            }
            tokio::task::yield_now().await;
        }
        panic!("no call came");
    }

    async fn say(&self, call: &Taken, said: Said) -> Heard {
        let held = (self.session, call.head.epoch);
        desk::say(&self.world.node.pipeline, call.head.id, held, &said).await.unwrap()
    }

    async fn complete(&self, call: &Taken, result: Value) -> Heard {
        self.say(call, Said::Completed(result)).await
    }

    async fn fail(&self, call: &Taken, kind: FailKind) -> Heard {
        self.say(call, Said::Failed(kind, format!("{kind:?}"))).await
    }

    /// Renews, naming these calls. What is lost, and what should stop.
    async fn renew(&self, calls: &[&Taken]) -> (Vec<EntityId>, Vec<EntityId>) {
        let hold = |c: &&Taken| Hold { entity: c.head.id, epoch: c.head.epoch, mark: 0 };
        let holds = calls.iter().map(hold).collect();
        let renewal = Op::Renew(Renewal { session: self.session, holds });
        match self.world.node.pipeline.submit(renewal).await.unwrap() {
            Answer::Renew(RenewalAnswer::Renewed { lost, mail, .. }) => (lost, mail),
            other => panic!("{other:?}"),
        }
    }

    /// Renews as a living worker does, until the call is taken away all the same.
    async fn renew_until_lost(&self, call: &Taken) {
        let end = tokio::time::Instant::now() + PATIENCE;
        while tokio::time::Instant::now() < end {
            if self.world.head(call.head.id).await.status.name() == "lost" {
                return;
            }
            self.renew(&[call]).await;
            tokio::task::yield_now().await;
        }
        panic!("it is not lost:\n{}", self.world.story(call.head.id).await);
    }

    /// Renews until it hears that it should stop.
    async fn renew_until_stopped(&self, call: &Taken) -> Vec<EntityId> {
        let end = tokio::time::Instant::now() + PATIENCE;
        while tokio::time::Instant::now() < end {
            let stop = self.renew(&[call]).await.1;
            if !stop.is_empty() {
                return stop;
            }
            tokio::task::yield_now().await;
        }
        panic!("nobody told it to stop:\n{}", self.world.story(call.head.id).await);
    }
}

/// For how long a test looks at a condition before it gives up on it.
const PATIENCE: Duration = Duration::from_secs(30);

async fn until_told(world: &World, call: EntityId, event: &str) {
    let end = tokio::time::Instant::now() + PATIENCE;
    while tokio::time::Instant::now() < end {
        if world.story(call).await.contains(event) {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("call {call} never said {event}:\n{}", world.story(call).await);
}

async fn until_call(world: &World, call: EntityId, status: &str) {
    let end = tokio::time::Instant::now() + PATIENCE;
    while tokio::time::Instant::now() < end {
        let head = world.head(call).await;
        if head.status.name() == status {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("call {call} does not become {status}:\n{}", world.story(call).await);
}

fn kept(heard: &Heard) -> bool {
    matches!(heard, Heard::Stale { kept: true, .. })
}

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
    // A job starts in the commit that creates it where its queue is known to be empty: not before the first look.
    while !world.crew.local().slots.queue_is_known_empty("far@1") {
        tokio::task::yield_now().await;
    }
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
async fn an_idempotent_call_that_was_lost_is_called_again_under_the_same_key() {
    for replay_always in [false, true] {
        let world = world(Class::Idempotent, JobOptions { replay_always, ..quick() }).await;
        let far = Far::open(&world).await;
        let job = world.submit("far", json!(1)).await;
        let first = far.take().await;
        // It is not named in any renewal: the check of its lease finds nobody.
        until_call(&world, first.head.id, "lost").await;
        let far = Far::open(&world).await;
        let second = far.take().await;
        assert_eq!((&second.state.key, second.state.call), (&first.state.key, 2));
        far.complete(&second, json!(2)).await;
        let state = world.until(job, "completed").await;
        assert_eq!(state.output, Some(json!(2)));
        world.check().await;
    }
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
    until_call(&world, call.head.id, "lost").await;
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
    until_call(&world, call.head.id, "lost").await;
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
async fn a_call_that_was_given_back_unbegun_is_the_same_call_for_the_next_worker() {
    let world = world(Class::Irreversible, quick()).await;
    let far = Far::open(&world).await;
    let job = world.submit("far", json!(1)).await;
    let call = far.take().await;
    let held = (far.session, call.head.epoch);
    let pipeline = &world.node.pipeline;
    let released = desk::release(pipeline, call.head.id, held, Some("busy".into())).await;
    assert_eq!(released.unwrap(), Heard::Accepted);
    let again = Far::open(&world).await;
    let taken = again.take().await;
    assert_eq!((taken.head.id, taken.state.call), (call.head.id, 1));
    assert!(taken.head.epoch > call.head.epoch);
    // Whoever gave it back has no say any more.
    assert!(matches!(far.complete(&call, json!(0)).await, Heard::Stale { .. }));
    again.complete(&taken, json!(1)).await;
    assert_eq!(world.until(job, "completed").await.output, Some(json!(1)));
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
    until_told(&world, id, "clock_stopped").await;
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
    until_told(&world, id, "clock_stopped").await;
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
async fn a_cancel_takes_a_queued_call_back_and_leaves_nothing_unknown() {
    for wait in ["waiting", "running"] {
        let patience = if wait == "waiting" { 20 } else { 60_000 };
        let options = JobOptions { call_patience: Duration::from_millis(patience), ..quick() };
        let world = world(Class::Irreversible, options).await;
        let job = world.submit("far", json!(1)).await;
        world.until(job, wait).await;
        let call = world.state(job).await.calls_out(job).next().unwrap().0;
        world.cancel(job).await;
        world.until(job, "cancelled").await;
        until_call(&world, call, "cancelled").await;
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

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_comes_while_the_job_is_being_cancelled_is_not_lost() {
    let world = world(Class::Irreversible, quick()).await;
    let far = Far::open(&world).await;
    let job = world.submit("far", json!(1)).await;
    let call = far.take().await;
    world.cancel(job).await;
    world.until(job, "cancelling").await;
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
    let _: JobState = world.state(job).await;
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_release_says_nothing_about_the_worker_that_has_the_call_by_then() {
    let world = world(Class::Irreversible, quick()).await;
    let far = Far::open(&world).await;
    let job = world.submit("far", json!(1)).await;
    let call = far.take().await;
    let pipeline = &world.node.pipeline;
    let release = || desk::release(pipeline, call.head.id, (far.session, call.head.epoch), None);
    assert_eq!(release().await.unwrap(), Heard::Accepted);
    let other = Far::open(&world).await;
    let theirs = other.take().await;
    // The answer to the first was lost on its way.
    assert_eq!(release().await.unwrap(), Heard::Accepted, "the same again");
    // Nor can it say anything else about what it gave back, nor anybody about what they never had.
    let stranger = Far::open(&world).await;
    for far in [&far, &stranger] {
        for said in [&call, &theirs] {
            for kind in [FailKind::NotCalled, FailKind::Unknown] {
                assert!(!kept(&far.fail(said, kind).await));
            }
        }
    }
    assert!(!kept(&stranger.complete(&theirs, json!(9)).await));
    until_call(&world, theirs.head.id, "lost").await;
    world.until(job, "attention").await;
    for far in [&far, &stranger] {
        assert!(!kept(&far.fail(&call, FailKind::NotCalled).await));
        assert!(!kept(&far.fail(&theirs, FailKind::NotCalled).await));
    }
    let stale = desk::release(pipeline, call.head.id, (other.session, theirs.head.epoch), None);
    assert!(!kept(&stale.await.unwrap()), "a stale release is no evidence");
    assert!(world.store.evidence(job).await.unwrap().is_empty());
    // The one who had it last may say so.
    assert!(kept(&other.fail(&theirs, FailKind::NotCalled).await));
    let again = Far::open(&world).await.take().await;
    assert_ne!(again.state.key, call.state.key);
    world.check().await;
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
    until_call(&world, call.head.id, "lost").await;
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

#[tokio::test(flavor = "multi_thread")]
async fn a_large_result_that_comes_while_the_job_is_being_cancelled_is_there_for_a_retry() {
    let world = world(Class::Irreversible, quick()).await;
    let far = Far::open(&world).await;
    let job = world.submit("far", json!(1)).await;
    let call = far.take().await;
    world.cancel(job).await;
    world.until(job, "cancelling").await;
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
    while world.head(job).await.holder.is_some() {
        tokio::task::yield_now().await;
    }
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

/// The server that claimed for an answer notices late that nobody was there for it. By then the worker has the call.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_handed_out_again_is_not_taken_back_for_the_answer_that_got_lost() {
    let world = world(Class::Irreversible, quick()).await;
    let far = Far::open(&world).await;
    let job = world.submit("far", json!(1)).await;
    let lost = far.take().await;
    let tools = ["far".to_owned()];
    let pipeline = &world.node.pipeline;
    let asked = (far.session, LEASE);
    let again = hand_out_again(pipeline, asked, &[], &tools, 8).await.unwrap();
    assert_eq!((again.len(), again[0].head.epoch), (1, lost.head.epoch));
    let (call, held) = (lost.head.id, (far.session, lost.head.epoch));
    let late = take_back(pipeline, call, held, lost.state.handed, "gone").await.unwrap();
    assert!(matches!(late, Heard::Stale { kept: false, .. }), "{late:?}");
    assert_eq!(world.head(call).await.holder, Some(far.session));
    // What it has it gets no second time.
    let has = [(call, lost.head.epoch)];
    assert!(hand_out_again(pipeline, asked, &has, &tools, 8).await.unwrap().is_empty());
    far.complete(&again[0], json!("done")).await;
    assert_eq!(world.until(job, "completed").await.output, Some(json!("done")));
    // The other way round: taken back first, it is not there to be handed out again.
    let job = world.submit("far", json!(2)).await;
    let lost = far.take().await;
    let (call, held) = (lost.head.id, (far.session, lost.head.epoch));
    let back = take_back(pipeline, call, held, lost.state.handed, "gone").await.unwrap();
    assert_eq!(back, Heard::Accepted);
    assert!(hand_out_again(pipeline, asked, &[], &tools, 8).await.unwrap().is_empty());
    let next = far.take().await;
    assert_eq!((next.head.id, next.head.epoch > lost.head.epoch), (call, true));
    far.complete(&next, json!("done")).await;
    world.until(job, "completed").await;
    world.check().await;
}

/// From then on the lease of the claim counts anew: who has just got it has as long as anybody to name it.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_handed_out_again_is_vouched_for_as_if_it_were_just_claimed() {
    let world = world(Class::Irreversible, quick()).await;
    let far = Far::open(&world).await;
    world.submit("far", json!(1)).await;
    let lost = far.take().await;
    let before = world.head(lost.head.id).await.check_at.unwrap();
    let asked = (far.session, LEASE);
    let tools = ["far".to_owned()];
    let again = hand_out_again(&world.node.pipeline, asked, &[], &tools, 8).await.unwrap();
    let after = world.head(lost.head.id).await;
    assert!(after.check_at.unwrap() > before);
    assert_eq!(after.check_at.unwrap(), again[0].head.changed_at + LEASE);
    world.check().await;
}
