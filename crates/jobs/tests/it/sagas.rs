//! Sagas: what was done is undone, exactly that, the last first, once each; after a failure and after a cancel.

use crate::support::{self, Outside, Said, World};
use serde_json::{Value, json};
use std::{
    future::{Future as _, IntoFuture as _},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tenure_jobs::{
    JobState,
    drive::{JobOptions, Probe, Shop, points},
    plan,
    submit::{ForkAsk, SubmitError},
};
use tenure_kernel::ids::EntityId;
use tenure_steps::{
    Ctx, Either, FlowError, Saga, ToolError,
    events::StepId,
    flow::{FlowSpec, Flows},
    tool::{ToolCtx, ToolSpec, Tools},
};
use tokio::sync::{Notify, Semaphore};

fn quick() -> JobOptions {
    JobOptions {
        backoff: Duration::from_millis(5),
        stop_grace: Duration::from_millis(200),
        ..JobOptions::default()
    }
}

/// A tool that does not hear that it should stop is awaited all the same.
fn patient() -> JobOptions {
    JobOptions { stop_grace: Duration::from_secs(60), ..quick() }
}

/// A tool by the name of its call, and permits.
type Gate = (String, Arc<Semaphore>);

/// What happened, in order; each key counted.
#[derive(Clone, Default)]
struct Town {
    said: Said,
    seen: Outside,
    /// Tools named here wait for a permit.
    gate: Arc<Mutex<Option<Gate>>>,
    /// Undos of these fail.
    stuck: Arc<Mutex<Vec<String>>>,
}

impl Town {
    fn said(&self) -> Vec<String> {
        self.said.all()
    }

    fn gate(&self, name: &str) -> Arc<Semaphore> {
        let gate = Arc::new(Semaphore::new(0));
        *self.gate.lock().unwrap() = Some((name.to_owned(), gate.clone()));
        gate
    }

    fn tool(&self, tool: &'static str) -> ToolSpec {
        let town = self.clone();
        ToolSpec::new(tool, move |ctx: ToolCtx, v: Value| {
            let town = town.clone();
            async move {
                let name = format!("{}{}", if tool == "book" { "" } else { "un" }, v["n"]);
                let gate = town.gate.lock().unwrap().clone().filter(|g| g.0 == name);
                if let Some((_, gate)) = gate {
                    gate.acquire().await.map_err(ToolError::permanent)?.forget();
                }
                if v["fails"] == v["n"] {
                    return Err(ToolError::permanent("full"));
                }
                if tool == "unbook" && town.stuck.lock().unwrap().contains(&name) {
                    return Err(ToolError::permanent("not refundable"));
                }
                // The key is the same for every call that must have one effect.
                if town.seen.act(&ctx.key) == 1 {
                    town.said.push(name);
                }
                Ok(v)
            }
        })
        .idempotent()
    }

    fn tools(&self) -> Tools {
        Tools::default().with(self.tool("book")).with(self.tool("unbook"))
    }
}

async fn trip(ctx: Ctx, fails: Value) -> Result<Value, FlowError> {
    let booked: u64 = ctx
        .saga(|s: Saga| async move {
            for n in 1..=3u64 {
                let _: Value = s
                    .tool("book", json!({"n": n, "fails": fails}))
                    .undo("unbook", move |v: &Value| json!({"n": v["n"]}))
                    .await?;
            }
            Ok(3)
        })
        .await?;
    let _: Value = ctx.wait_signal("go").await?;
    Ok(json!(booked))
}

/// A saga of as many steps as it is told, that then waits for something, or fails; against a signal.
async fn against(ctx: Ctx, input: Value) -> Result<Value, FlowError> {
    let (steps, fails) = (input["steps"].as_u64().unwrap(), input["fails"].clone());
    let (beside, clock) = (ctx.branch(), ctx.branch());
    let saga = beside.saga(move |s: Saga| async move {
        for n in 1..=steps {
            let booked = s.tool("book", json!({"n": n, "fails": fails}));
            let _: Value = booked.undo("unbook", move |v: &Value| json!({"n": v["n"]})).await?;
        }
        let _: Value = s.wait_signal("never").await?;
        Ok(())
    });
    let won = match ctx.race(saga, clock.wait_signal::<Value>("go")).await {
        Either::Left(lost) => lost.map(|()| json!("saga"))?,
        Either::Right(_) => json!("signal"),
    };
    // Whoever goes on from here finds the others undone.
    let _: Value = ctx.tool("book", json!({"n": 9})).await?;
    Ok(won)
}

/// Lets go of a saga without a race.
async fn careless(ctx: Ctx, _: Value) -> Result<Value, FlowError> {
    let beside = ctx.branch();
    let mut saga = Box::pin(beside.saga(|s: Saga| async move {
        let booked = s.tool("book", json!({"n": 1}));
        let _: Value = booked.undo("unbook", |v: &Value| json!({"n": v["n"]})).await?;
        let _: Value = s.wait_signal("never").await?;
        Ok(())
    }));
    let go = ctx.wait_signal::<Value>("go");
    let mut go = std::pin::pin!(go);
    std::future::poll_fn(|cx| match (saga.as_mut().poll(cx), go.as_mut().poll(cx)) {
        (_, std::task::Poll::Ready(_)) => std::task::Poll::Ready(()),
        _ => std::task::Poll::Pending,
    })
    .await;
    drop(saga);
    Ok(json!("done"))
}

/// Begins a step, and lets go of it at a signal.
async fn let_go(saga: &Saga, n: u64) -> Result<(), FlowError> {
    let beside = saga.beside();
    let booked = beside.tool::<Value>("book", json!({"n": n}));
    let booked = booked.undo("unbook", |v: &Value| json!({"n": v["n"]})).into_future();
    let go = saga.wait_signal::<Value>("go");
    match futures_util::future::select(booked, go).await {
        futures_util::future::Either::Left((booked, _)) => drop(booked?),
        futures_util::future::Either::Right((go, _)) => drop(go?),
    }
    Ok(())
}

/// Two sagas beside each other. The first lets go of a step and then fails; the second ends well in between.
async fn neighbours(ctx: Ctx, _: Value) -> Result<Value, FlowError> {
    let (one, two) = (ctx.branch(), ctx.branch());
    let first = one.saga(|s: Saga| async move {
        let_go(&s, 1).await?;
        let _: Value = s.wait_signal("fail").await?;
        Err::<(), _>(FlowError::failed("no"))
    });
    let second = two.saga(|s: Saga| async move {
        let booked = s.tool("book", json!({"n": 3}));
        let _: Value = booked.undo("unbook", |v: &Value| json!({"n": v["n"]})).await?;
        let _: Value = s.wait_signal("end").await?;
        Ok(())
    });
    let (first, second) = ctx.join(first, second).await;
    second?;
    first.map(|()| Value::Null)
}

/// A saga that has let go of a step and then loses a race.
async fn twice_lost(ctx: Ctx, _: Value) -> Result<Value, FlowError> {
    let (beside, clock) = (ctx.branch(), ctx.branch());
    let saga = beside.saga(|s: Saga| async move {
        let_go(&s, 1).await?;
        let _: Value = s.wait_signal("never").await?;
        Ok(())
    });
    match ctx.race(saga, clock.wait_signal::<Value>("end")).await {
        Either::Left(lost) => lost?,
        Either::Right(_) => {}
    }
    let _: Value = ctx.tool("book", json!({"n": 9})).await?;
    Ok(json!("done"))
}

fn flows() -> Flows {
    let flows = Flows::default().with(FlowSpec::new("trip", trip)).with(plan::flow());
    let flows = flows.with(FlowSpec::new("neighbours", neighbours));
    let flows = flows.with(FlowSpec::new("twice_lost", twice_lost));
    flows.with(FlowSpec::new("against", against)).with(FlowSpec::new("careless", careless))
}

async fn world(town: &Town, options: JobOptions) -> World {
    World::start(flows(), town.tools(), options).await
}

/// `1, 2, …` and back.
fn there_and_back(n: u64) -> Vec<String> {
    (1..=n).map(|i| i.to_string()).chain((1..=n).rev().map(|i| format!("un{i}"))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_at_any_step_undoes_those_before_it_the_last_first() {
    for replay_always in [false, true] {
        for fails in 1..=3u64 {
            let town = Town::default();
            let world = world(&town, JobOptions { replay_always, ..quick() }).await;
            let job = world.submit("trip", json!(fails)).await;
            let failure = world.until(job, "failed").await.failure.unwrap();
            assert_eq!(town.said(), there_and_back(fails - 1), "{}", world.story(job).await);
            assert!(failure.error.starts_with("full"), "{failure:?}");
            assert_eq!(failure.error.contains("undone: "), fails > 1, "{failure:?}");
            world.check().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_undo_that_can_not_be_done_is_listed_and_the_others_still_run() {
    let town = Town::default();
    town.stuck.lock().unwrap().push("un2".into());
    let world = world(&town, quick()).await;
    let job = world.submit("trip", json!(3)).await;
    let failure = world.until(job, "failed").await.failure.unwrap();
    assert_eq!(town.said(), ["1", "2", "un1"]);
    assert!(
        failure.error.contains("could not be undone: ") && failure.error.contains("not refundable")
    );
    world.check().await;
}

/// What was said when a saga of so many steps has lost, and what comes after it.
fn lost(n: u64) -> Vec<String> {
    there_and_back(n).into_iter().chain(["9".to_owned()]).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_saga_that_loses_a_race_is_undone_before_the_winner_goes_on() {
    for replay_always in [false, true] {
        let town = Town::default();
        let world = world(&town, JobOptions { replay_always, ..quick() }).await;
        let job = world.submit("against", json!({"steps": 2})).await;
        world.until(job, "parked").await;
        assert_eq!(
            (town.said(), world.state(job).await.undos),
            (there_and_back(2)[..2].to_vec(), 2)
        );
        world.signal(job, "go", json!(null)).await;
        let state = world.until(job, "completed").await;
        assert_eq!(state.output, Some(json!("signal")));
        assert_eq!(town.said(), lost(2), "{}", world.story(job).await);
        assert_eq!(state.undos, 0);
        world.check().await;
    }
}

/// Its step had begun: it is asked to stop, and if it happened all the same it is undone too.
#[tokio::test(flavor = "multi_thread")]
async fn a_saga_that_loses_in_the_middle_of_a_step_waits_for_its_end() {
    for replay_always in [false, true] {
        let town = Town::default();
        let gate = town.gate("2");
        let world = world(&town, JobOptions { replay_always, ..quick() }).await;
        let job = world.submit("against", json!({"steps": 2})).await;
        world.until_seen_times(job, "tool_invocation_started", 2).await;
        world.signal(job, "go", json!(null)).await;
        world.until_seen(job, "wait_completed").await;
        assert_eq!(town.said(), ["1"], "nothing is undone while it runs");
        gate.add_permits(5);
        let state = world.until(job, "completed").await;
        assert_eq!(state.output, Some(json!("signal")));
        assert_eq!(town.said(), lost(2), "{}", world.story(job).await);
        assert_eq!((state.undos, state.unheard.len()), (0, 0));
        world.check().await;
    }
}

/// It had failed, and was undoing itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_saga_that_loses_while_it_is_undone_is_undone_once() {
    for replay_always in [false, true] {
        let town = Town::default();
        let gate = town.gate("un2");
        let world = world(&town, JobOptions { replay_always, ..quick() }).await;
        let job = world.submit("against", json!({"steps": 3, "fails": 3})).await;
        world.until_seen_times(job, "tool_invocation_started", 4).await;
        world.signal(job, "go", json!(null)).await;
        world.until_seen(job, "wait_completed").await;
        gate.add_permits(5);
        assert_eq!(world.until(job, "completed").await.output, Some(json!("signal")));
        assert_eq!(town.said(), lost(2), "{}", world.story(job).await);
        world.check().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flow_that_lets_go_of_a_saga_ends_when_it_is_undone() {
    let town = Town::default();
    let world = world(&town, quick()).await;
    let job = world.submit("careless", Value::Null).await;
    world.until(job, "parked").await;
    world.signal(job, "go", json!(null)).await;
    assert_eq!(world.until(job, "completed").await.output, Some(json!("done")));
    assert_eq!(town.said(), there_and_back(1), "{}", world.story(job).await);
    world.check().await;
}

/// What a saga let go of is its own: another one that ends meanwhile has nothing to do with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_a_saga_let_go_of_is_not_taken_along_by_another_saga() {
    for replay_always in [false, true] {
        let town = Town::default();
        let gate = town.gate("1");
        let world = world(&town, JobOptions { replay_always, ..patient() }).await;
        let job = world.submit("neighbours", Value::Null).await;
        world.until_seen_times(job, "tool_invocation_started", 2).await;
        for (n, key) in [(1, "go"), (2, "end"), (3, "fail")] {
            world.signal(job, key, Value::Null).await;
            world.until_seen_times(job, "wait_completed", n).await;
        }
        gate.add_permits(5);
        world.until(job, "failed").await;
        let mut said = town.said();
        said.retain(|s| s != "3");
        assert_eq!(said, there_and_back(1), "{}", world.story(job).await);
        world.check().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_was_let_go_of_before_its_saga_lost_a_race_is_undone_before_the_winner_goes_on()
{
    for replay_always in [false, true] {
        let town = Town::default();
        let gate = town.gate("1");
        let world = world(&town, JobOptions { replay_always, ..patient() }).await;
        let job = world.submit("twice_lost", Value::Null).await;
        world.until_seen(job, "tool_invocation_started").await;
        for (n, key) in [(1, "go"), (2, "end")] {
            world.signal(job, key, Value::Null).await;
            world.until_seen_times(job, "wait_completed", n).await;
        }
        gate.add_permits(5);
        assert_eq!(world.until(job, "completed").await.output, Some(json!("done")));
        assert_eq!(town.said(), lost(1), "{}", world.story(job).await);
        world.check().await;
    }
}

async fn cancelled(world: &World, job: EntityId) -> (JobState, Value) {
    let state = world.until(job, "cancelled").await;
    let story = world.story(job).await;
    let last = story.lines().rev().find(|l| l.contains("job_cancelled")).unwrap().to_owned();
    let body = &last[last.find('{').unwrap()..];
    (state, serde_json::from_str(body).unwrap())
}

/// Waits until the second step of `trip` has begun. That there are two calls does not say so: a worker that takes over
/// makes a second call of the first step.
async fn until_second_step(world: &World, job: EntityId) {
    let begun = |l: &str| l.contains("tool_invocation_started") && l.contains("\"step\":\"4\"");
    let seen = async || world.story(job).await.lines().any(begun);
    world.place.until("the second step begins", seen).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_at_any_step_undoes_what_happened_also_what_was_running() {
    for replay_always in [false, true] {
        // Not in the last one: with its end the saga is complete.
        for at in 1..=2u64 {
            let town = Town::default();
            let gate = town.gate(&at.to_string());
            let world = world(&town, JobOptions { replay_always, ..quick() }).await;
            let job = world.submit("trip", Value::Null).await;
            let begun = usize::try_from(at).unwrap();
            world.until_seen_times(job, "tool_invocation_started", begun).await;
            world.cancel(job).await;
            world.until_seen(job, "job_cancelling").await;
            // It had begun, and does not hear that it should stop.
            gate.add_permits(1);
            let (_, end) = cancelled(&world, job).await;
            assert_eq!(town.said(), there_and_back(at), "{}", world.story(job).await);
            let undone = end["undone"]["undone"].as_array().unwrap().len();
            assert_eq!(undone, usize::try_from(at).unwrap(), "{end}");
            world.check().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_saga_that_is_complete_is_not_undone_by_a_later_cancel() {
    let town = Town::default();
    let world = world(&town, quick()).await;
    let job = world.submit("trip", Value::Null).await;
    world.until(job, "parked").await;
    assert_eq!(world.state(job).await.undos, 0);
    world.cancel(job).await;
    let (_, end) = cancelled(&world, job).await;
    assert_eq!(town.said(), ["1", "2", "3"]);
    assert_eq!(end.get("undone"), None);
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_of_a_job_that_nobody_holds_undoes_it_by_whoever_claims_it() {
    let town = Town::default();
    let world = world(&town, quick()).await;
    let step = |n: u64| json!({"tool": "book", "input": {"n": n}, "undo": {"tool": "unbook", "input": {"n": "${{ output.n }}"}}});
    let mut second = step(2);
    second["after"] = json!(["a"]);
    let plan = json!({"version": 1, "steps": {
        "a": step(1), "b": second, "c": {"wait": {"for": "approval"}, "after": ["b"]}}});
    let job = world.submit(plan::FLOW, json!({"plan": plan})).await;
    world.until(job, "parked").await;
    world.cancel(job).await;
    let (_, end) = cancelled(&world, job).await;
    assert_eq!(town.said(), there_and_back(2), "{}", world.story(job).await);
    assert_eq!(end["undone"]["undone"].as_array().unwrap().len(), 2);
    let steps = tenure_jobs::view::detail(&world.store, job).await.unwrap().unwrap().steps;
    let undone: Vec<&str> =
        steps.iter().filter(|s| s.outcome == "undone").map(|s| s.place.as_str()).collect();
    assert_eq!(undone, ["a", "b"]);
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_cancel_and_an_undo_that_fails_change_nothing_for_the_others() {
    let town = Town::default();
    town.stuck.lock().unwrap().push("un2".into());
    let gate = town.gate("2");
    let world = world(&town, quick()).await;
    let job = world.submit("trip", Value::Null).await;
    until_second_step(&world, job).await;
    world.cancel(job).await;
    world.until_seen(job, "job_cancelling").await;
    let body = tenure_jobs::decide::AskMail { by: Some("eve".into()), why: None };
    let again = tenure_kernel::stream::Body::json(&body);
    world.mail(job, tenure_kernel::mail::kinds::CANCEL, "again", again).await;
    gate.add_permits(1);
    let (_, end) = cancelled(&world, job).await;
    assert_eq!(town.said(), ["1", "2", "un1"]);
    assert_eq!(end["undone"]["undone"].as_array().unwrap().len(), 1, "{end}");
    assert_eq!(end["undone"]["left"][0][1], "not refundable", "{end}");
    assert_eq!(end["by"], "ann");
    world.check().await;
}

/// A worker that stops in the middle of undoing leaves the rest to the next one.
#[tokio::test(flavor = "multi_thread")]
async fn another_worker_goes_on_where_the_first_stopped_undoing() {
    let town = Town::default();
    let (started, gate) = (town.gate("2"), town.clone());
    let first = world(&town, quick()).await;
    let job = first.submit("trip", Value::Null).await;
    until_second_step(&first, job).await;
    first.cancel(job).await;
    first.until_seen(job, "job_cancelling").await;
    let undo = gate.gate("un1");
    started.add_permits(1);
    // The second is undone; the first waits at its gate while the worker is told to go.
    town.said.until(|said| said.iter().any(|s| s == "un2")).await;
    let World { store, node, mut crew, .. } = first;
    let stopping = async move {
        crew.stop().await;
        drop(node);
    };
    let second = World::on(store, flows(), town.tools(), quick()).await;
    undo.add_permits(8);
    let (_, (_, end)) = tokio::join!(stopping, cancelled(&second, job));
    assert_eq!(town.said(), there_and_back(2), "{}", second.story(job).await);
    assert_eq!(end["undone"]["undone"].as_array().unwrap().len(), 2, "{end}");
    second.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_was_undone_is_submitted_anew_and_not_tried_again() {
    let town = Town::default();
    let world = world(&town, quick()).await;
    let job = world.submit("trip", json!(3)).await;
    world.until(job, "failed").await;
    let refused = world.jobs.fork(job, None, None, None).await.unwrap_err();
    let said = |e: &SubmitError| matches!(e, SubmitError::BadOrigin(why) if why.contains("submit it anew"));
    assert!(said(&refused), "{refused}");
    assert_eq!(town.said(), there_and_back(2));
    // One that failed before anything happened has nothing that was undone.
    let job = world.submit("trip", json!(1)).await;
    world.until(job, "failed").await;
    world.jobs.fork(job, None, None, None).await.unwrap();
}

/// A step of a plan that books, and what undoes it.
fn booking(input: Value, after: &[&str], undo: &str) -> Value {
    json!({"tool": "book", "input": input, "after": after,
           "undo": {"tool": undo, "input": {"n": "${{ output.n }}"}}})
}

/// The call of a step of a plan.
async fn step_of(world: &World, job: EntityId, name: &str) -> StepId {
    let detail = tenure_jobs::view::detail(&world.store, job).await.unwrap().unwrap();
    let is_it = |s: &&tenure_jobs::view::StepView| s.place == name && s.kind == "tool";
    detail.steps.iter().find(is_it).unwrap().step.clone()
}

/// A fork before this step is refused, and told before which step it may be, and in which words.
async fn no_fork(world: &World, job: EntityId, before: &StepId, instead: &StepId, why: &str) {
    let refused = world.jobs.fork(job, Some(before.clone()), None, None).await.unwrap_err();
    let SubmitError::BadOrigin(said) = refused else { panic!("{refused}") };
    let instead = format!("fork it before step {instead},");
    assert!(said.contains(&instead) && said.contains(why), "{said}");
}

fn times(said: &[String], word: &str) -> usize {
    said.iter().filter(|s| *s == word).count()
}

/// Both would cancel the same flight, or one would complete with a flight that the other has cancelled.
#[tokio::test(flavor = "multi_thread")]
async fn a_fork_does_not_take_over_what_its_origin_may_still_undo() {
    let town = Town::default();
    let gate = town.gate("2");
    let world = world(&town, quick()).await;
    let plan = json!({"version": 1, "on_failure": "undo", "steps": {
        "flight": booking(json!({"n": 1}), &[], "unbook"),
        "hotel": booking(json!({"n": 2, "fails": 2}), &["flight"], "unbook")}});
    let job = world.submit(plan::FLOW, json!({"plan": plan})).await;
    world.until_seen_times(job, "tool_invocation_started", 2).await;
    let (flight, hotel) =
        (step_of(&world, job, "flight").await, step_of(&world, job, "hotel").await);
    no_fork(&world, job, &hotel, &flight, "undoes it itself").await;
    // Nor from where the flow would say again what undoes it.
    let registered = StepId(flight.0.replace(".1", ".2"));
    no_fork(&world, job, &registered, &flight, "undoes it itself").await;
    let fork = world.jobs.fork(job, Some(flight), None, None).await.unwrap().id;
    gate.add_permits(9);
    for job in [job, fork] {
        world.until(job, "failed").await;
    }
    let said = town.said();
    assert_eq!((times(&said, "1"), times(&said, "un1")), (2, 2), "each its own: {said:?}");
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_completed_job_did_is_not_undone_by_its_fork() {
    let town = Town::default();
    let world = world(&town, quick()).await;
    let plan = json!({"version": 1, "on_failure": "undo", "steps": {
        "flight": booking(json!({"n": 1}), &[], "unbook"),
        "notify": {"tool": "book", "input": {"n": 2}, "after": ["flight"]}}});
    let job = world.submit(plan::FLOW, json!({"plan": plan})).await;
    world.until(job, "completed").await;
    let (flight, notify) =
        (step_of(&world, job, "flight").await, step_of(&world, job, "notify").await);
    no_fork(&world, job, &notify, &flight, "is complete").await;
    let fork = world.jobs.fork(job, Some(flight), None, None).await.unwrap().id;
    world.until(fork, "completed").await;
    // What belongs to a saga that is complete is nobody's to undo: such a job can be forked behind it.
    let job = world.submit("trip", Value::Null).await;
    world.until(job, "parked").await;
    let wait = world.state(job).await.waits[0].step.clone();
    let fork = world.jobs.fork(job, Some(wait), None, None).await.unwrap().id;
    world.until(fork, "parked").await;
    world.cancel(fork).await;
    world.until(fork, "cancelled").await;
    assert!(!town.said().iter().any(|s| s.starts_with("un")), "{:?}", town.said());
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_failed_job_has_not_undone_is_taken_over_by_its_one_retry_and_by_nobody_else() {
    let town = Town::default();
    let first = world(&town, quick()).await;
    let plan = json!({"version": 1, "on_failure": "undo", "steps": {
        "flight": booking(json!({"n": 1}), &[], "give_back"),
        "hotel": booking(json!({"n": 2, "fails": 2}), &["flight"], "give_back")}});
    let job = first.submit(plan::FLOW, json!({"plan": plan})).await;
    // Nobody has the tool that undoes.
    let failure = first.until(job, "failed").await.failure.unwrap();
    assert!(failure.error.contains("could not be undone"), "{failure:?}");
    let World { store, node, mut crew, .. } = first;
    crew.stop().await;
    drop(node);
    let tools = town.tools().with(town.tool("give_back"));
    let world = World::on(store, flows(), tools, quick()).await;
    let (flight, hotel) =
        (step_of(&world, job, "flight").await, step_of(&world, job, "hotel").await);
    no_fork(&world, job, &hotel, &flight, "only the retry").await;
    let retry = world.jobs.fork(job, None, None, None).await.unwrap().id;
    for key in [None, Some("k"), Some("l")] {
        let ask = ForkAsk { key: key.map(str::to_owned), ..ForkAsk::default() };
        let again = world.jobs.fork_once(job, ask).await.unwrap();
        assert_eq!((again.id, again.existed), (retry, true), "{key:?}");
    }
    no_fork(&world, job, &hotel, &flight, "only the retry").await;
    world.until(retry, "failed").await;
    assert_eq!(town.said(), there_and_back(1), "{}", world.story(retry).await);
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_that_succeeds_after_another_has_failed_is_undone_too() {
    for input in ["${{ item }}", "${{ output.nix }}"] {
        let town = Town::default();
        let gate = town.gate("2");
        let world = world(&town, quick()).await;
        let plan = json!({"version": 1, "on_failure": "undo", "steps": {"all": {
            "tool": "book", "for_each": [1, 2], "input": {"n": "${{ item }}", "fails": 1},
            "undo": {"tool": "unbook", "input": {"n": input}}}}});
        let job = world.submit(plan::FLOW, json!({"plan": plan})).await;
        world.until_seen(job, "node_finished").await;
        gate.add_permits(1);
        let failure = world.until(job, "failed").await.failure.unwrap();
        assert!(failure.error.contains("item 0: full"), "{failure:?}");
        if input.contains("item") {
            assert_eq!(town.said(), ["2", "un2"]);
            assert!(failure.error.contains("undone: "), "{failure:?}");
        } else {
            assert_eq!(town.said(), ["2"]);
            assert!(failure.error.contains("could not be undone: "), "{failure:?}");
        }
        world.check().await;
    }
}

/// Where a worker dies, as a process dies: with its session, in the middle of everything.
const DEADLY: [&str; 3] = [points::BEFORE_CALL, points::AFTER_CALL, points::AFTER_COMMIT];
/// More of these points than any of these jobs passes; a test says if that is no longer so.
const POINTS: usize = 40;

/// What is played with a job.
#[derive(Clone, Copy, PartialEq)]
enum Play {
    /// Its third step fails.
    Fails,
    /// It is cancelled in its second step.
    Cancelled,
}

/// The same however often it is played: the second worker's world begins where the first one's was.
async fn play(world: &World, job: EntityId, town: &Town, how: Play) {
    if how == Play::Fails {
        world.until(job, "failed").await;
        return;
    }
    until_second_step(world, job).await;
    world.cancel(job).await;
    world.until_seen(job, "job_cancelling").await;
    let gate = town.gate.lock().unwrap().clone();
    gate.unwrap().1.add_permits(8);
    world.until(job, "cancelled").await;
}

/// A worker dies at the nth point, and another one goes on. Whether the first got there at all.
async fn dies_at(nth: usize, how: Play) -> bool {
    let (town, store) = (Town::default(), support::store());
    let input = match how {
        Play::Fails => json!(3),
        Play::Cancelled => {
            town.gate("2");
            Value::Null
        }
    };
    let (passed, reached) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let dead = reached.clone();
    let probe: Probe = Arc::new(move |point| {
        let dies = DEADLY.contains(&point) && passed.fetch_add(1, Ordering::SeqCst) + 1 >= nth;
        let dead = dead.clone();
        Box::pin(async move {
            if dies {
                dead.notify_one();
                std::future::pending::<()>().await;
            }
        })
    });
    let shop = Shop::new(flows(), town.tools(), quick()).with_probe(probe);
    let (theirs, there) = (store.clone(), town.clone());
    let life = move || async move {
        let world = World::of(theirs, shop).await;
        let job = world.submit("trip", input).await;
        let died = tokio::select! {
            () = play(&world, job, &there, how) => false,
            () = reached.notified() => true,
        };
        // Nothing of it says goodbye.
        std::mem::forget(world);
        (job, died)
    };
    let (job, died) = support::killed_after(life).await;
    let world = World::on(store, flows(), town.tools(), quick()).await;
    play(&world, job, &town, how).await;
    let (said, story) = (town.said(), world.story(job).await);
    // A call that was cut off by the death of its worker is called again, and then undone.
    assert_eq!(said, there_and_back(2), "{nth}: {story}");
    assert!(!story.contains("\"unknown\""), "{nth}: {story}");
    world.check().await;
    died
}

async fn dies_everywhere(how: Play) {
    let all: Vec<usize> = (1..=POINTS).collect();
    let mut died = Vec::new();
    for some in all.chunks(8) {
        died.extend(futures_util::future::join_all(some.iter().map(|n| dies_at(*n, how))).await);
    }
    assert!(died[..10].iter().all(|d| *d), "it has more points than that: {died:?}");
    assert!(!died[POINTS - 1], "it has more points than POINTS");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_saga_that_fails_is_undone_once_wherever_its_worker_dies() {
    dies_everywhere(Play::Fails).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_saga_that_is_cancelled_is_undone_once_wherever_its_worker_dies() {
    dies_everywhere(Play::Cancelled).await;
}
