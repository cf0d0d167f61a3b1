//! A saga that is cancelled while one of its steps runs, and whose worker is then killed: the next worker finds out what
//! became of that step, by its class, and undoes what happened.

use crate::support::{self, Outside, Said, World};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tenure_jobs::{
    call::desk::{self, Counter},
    catalogue::{CallTerms, CallTool, register_calls},
    drive::{JobOptions, Shop},
    model::limits,
    plan,
};
use tenure_kernel::{
    head::Head,
    ids::{EntityId, SessionId},
    sessions::Opening,
    store::Store,
};
use tenure_steps::{
    Class, Ctx, FlowError, Saga,
    events::StepId,
    flow::{FlowSpec, Flows},
    tool::{Probe, ToolCtx, ToolError, ToolSpec, Tools},
};

/// Nobody waits for a tool that does not hear.
fn patient() -> JobOptions {
    JobOptions { stop_grace: Duration::from_secs(60), ..hasty() }
}

fn hasty() -> JobOptions {
    JobOptions {
        backoff: Duration::from_millis(5),
        stop_grace: Duration::from_millis(50),
        call_patience: Duration::from_millis(20),
        ..JobOptions::default()
    }
}

/// Where a call of a tool hangs, in the first process.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Hangs {
    Never,
    Before,
    After,
}

/// What happened, in order, each key once.
#[derive(Clone, Default)]
struct Town {
    said: Said,
    seen: Outside,
    /// Calls that hang now.
    hung: Said,
}

impl Town {
    fn said(&self) -> Vec<String> {
        self.said.all()
    }

    fn act(&self, key: &str, name: String) {
        if self.seen.act(key) == 1 {
            self.said.push(name);
        }
    }

    fn book(&self, class: Class, at: u64, hangs: Hangs) -> ToolSpec {
        let (town, probed, compensated) = (self.clone(), self.clone(), self.clone());
        let spec = ToolSpec::new("book", move |ctx: ToolCtx, v: Value| {
            let town = town.clone();
            let hangs = if v["n"] == at { hangs } else { Hangs::Never };
            async move {
                if hangs != Hangs::Before {
                    town.act(&ctx.key, v["n"].to_string());
                }
                if hangs != Hangs::Never {
                    town.hung.push(v["n"].to_string());
                    std::future::pending::<()>().await;
                }
                Ok::<_, ToolError>(v)
            }
        });
        match class {
            Class::Idempotent => spec.idempotent(),
            Class::Irreversible => spec.irreversible(),
            Class::Verifiable => spec.verifiable(move |ctx: ToolCtx, v: Value| {
                let there = probed.seen.has(&ctx.key);
                async move { Ok(if there { Probe::Happened(v) } else { Probe::NotHappened }) }
            }),
            Class::Compensatable => spec.compensatable(move |ctx: ToolCtx, v: Value| {
                let town = compensated.clone();
                async move {
                    if town.seen.has(&ctx.key) {
                        town.act(&format!("back/{}", ctx.key), format!("back{}", v["n"]));
                    }
                    Ok(())
                }
            }),
        }
    }

    fn tools(&self, class: Class, at: u64, hangs: Hangs) -> Tools {
        let town = self.clone();
        let unbook = ToolSpec::new("unbook", move |ctx: ToolCtx, v: Value| {
            town.act(&ctx.key, format!("un{}", v["n"]));
            async move { Ok::<_, ToolError>(v) }
        });
        Tools::default().with(self.book(class, at, hangs)).with(unbook.idempotent())
    }
}

async fn trip(ctx: Ctx, _: Value) -> Result<Value, FlowError> {
    ctx.saga(|s: Saga| async move {
        for n in 1..=3u64 {
            let book = s.tool::<Value>("book", json!({"n": n}));
            book.undo("unbook", |v: &Value| json!({"n": v["n"]})).await?;
        }
        Ok(Value::Null)
    })
    .await
}

/// The same, and then it waits in the saga.
async fn waits(ctx: Ctx, _: Value) -> Result<Value, FlowError> {
    ctx.saga(|s: Saga| async move {
        for n in 1..=3u64 {
            let book = s.tool::<Value>("book", json!({"n": n}));
            book.undo("unbook", |v: &Value| json!({"n": v["n"]})).await?;
        }
        Ok(s.wait_signal("go").await?)
    })
    .await
}

/// Without anything that undoes.
async fn plain(ctx: Ctx, _: Value) -> Result<Value, FlowError> {
    Ok(ctx.tool("book", json!({"n": 1})).await?)
}

fn flows() -> Flows {
    Flows::default()
        .with(FlowSpec::new("trip", trip))
        .with(FlowSpec::new("waits", waits))
        .with(FlowSpec::new("plain", plain))
        .with(plan::flow())
}

/// The process ends, and with it its workers.
async fn stop(world: World) -> Arc<dyn Store> {
    let World { store, node, mut crew, .. } = world;
    crew.stop().await;
    drop(node);
    store
}

/// The same as a plan.
fn planned() -> Value {
    let step = |n: u64, after: &[&str]| {
        json!({"tool": "book", "input": {"n": n}, "after": after,
               "undo": {"tool": "unbook", "input": {"n": "${{ output.n }}"}}})
    };
    json!({"plan": {"version": 1, "steps": {
        "a": step(1, &[]), "b": step(2, &["a"]), "c": step(3, &["b"])}}})
}

/// The first worker calls until a call hangs; then the job is cancelled, and its process killed.
async fn cut_off(town: &Town, tools: Tools, flow: &'static str) -> (Arc<dyn Store>, EntityId) {
    let store = support::store();
    let (theirs, hung) = (store.clone(), town.hung.clone());
    let input = if flow == plan::FLOW { planned() } else { Value::Null };
    let life = move || async move {
        let world = World::of(theirs, Shop::new(flows(), tools, patient())).await;
        let job = world.submit(flow, input).await;
        hung.until(|hung| !hung.is_empty()).await;
        world.cancel(job).await;
        world.until_seen(job, "job_cancelling").await;
        // Nothing of it says goodbye.
        std::mem::forget(world);
        job
    };
    (store, support::killed_after(life).await)
}

async fn end_of(world: &World, job: EntityId) -> Value {
    world.until(job, "cancelled").await;
    let story = world.story(job).await;
    let last = story.lines().rev().find(|l| l.contains("job_cancelled")).unwrap();
    serde_json::from_str(&last[last.find('{').unwrap()..]).unwrap()
}

/// What the town says in the end, and which steps are listed as unknown.
async fn played(class: Class, flow: &'static str, at: u64, hangs: Hangs) -> (Vec<String>, usize) {
    let town = Town::default();
    let (store, job) = cut_off(&town, town.tools(class, at, hangs), flow).await;
    let tools = town.tools(class, at, Hangs::Never);
    let world = World::on(store, flows(), tools, hasty()).await;
    let end = end_of(&world, job).await;
    world.check().await;
    (town.said(), end["unknown"].as_array().map_or(0, Vec::len))
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|n| (*n).to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotent_step_is_called_again_and_then_undone() {
    for flow in ["trip", plan::FLOW] {
        for hangs in [Hangs::Before, Hangs::After] {
            let first = played(Class::Idempotent, flow, 1, hangs).await;
            assert_eq!(first, (names(&["1", "un1"]), 0), "{flow} {hangs:?}");
            let second = played(Class::Idempotent, flow, 2, hangs).await;
            assert_eq!(second, (names(&["1", "2", "un2", "un1"]), 0), "{flow} {hangs:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verifiable_step_is_undone_if_its_probe_finds_it() {
    for flow in ["trip", plan::FLOW] {
        let there = played(Class::Verifiable, flow, 2, Hangs::After).await;
        assert_eq!(there, (names(&["1", "2", "un2", "un1"]), 0), "{flow}");
        let not = played(Class::Verifiable, flow, 2, Hangs::Before).await;
        assert_eq!(not, (names(&["1", "un1"]), 0), "{flow}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compensatable_step_is_compensated_and_needs_no_undo() {
    let there = played(Class::Compensatable, "trip", 2, Hangs::After).await;
    assert_eq!(there, (names(&["1", "2", "back2", "un1"]), 0));
    let not = played(Class::Compensatable, "trip", 1, Hangs::Before).await;
    assert_eq!(not, (names(&[]), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_irreversible_step_stays_unknown_and_the_others_are_undone() {
    let second = played(Class::Irreversible, "trip", 2, Hangs::After).await;
    assert_eq!(second, (names(&["1", "2", "un1"]), 1));
    let first = played(Class::Irreversible, plan::FLOW, 1, Hangs::After).await;
    assert_eq!(first, (names(&["1"]), 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_nothing_undoes_is_not_called_again_for_a_cancelled_job() {
    let said = played(Class::Idempotent, "plain", 1, Hangs::Before).await;
    assert_eq!(said, (names(&[]), 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_call_that_was_not_applied_says_nothing_about_the_first() {
    let town = Town::default();
    let tools = town.tools(Class::Idempotent, 2, Hangs::After);
    let (store, job) = cut_off(&town, tools, "trip").await;
    let refuses = ToolSpec::new("book", |_: ToolCtx, _: Value| async move {
        Err::<Value, _>(ToolError::permanent("it knows nothing of it"))
    });
    let tools = town.tools(Class::Idempotent, 2, Hangs::Never).with(refuses.idempotent());
    let world = World::on(store, flows(), tools, hasty()).await;
    let end = end_of(&world, job).await;
    assert_eq!(town.said(), ["1", "2", "un1"], "{}", world.story(job).await);
    assert_eq!(end["unknown"], json!(["4"]), "{end}");
    world.check().await;
}

/// Every mail wakes it, as the time between two looks would. How many it took.
async fn wake_until_cancelled(world: &World, job: EntityId) -> u32 {
    let mut woken = 0;
    loop {
        let rests = |head: &Head| {
            let status = head.status.name();
            status == "cancelled" || (status == "cancelling" && head.holder.is_none())
        };
        let head = world.place.find(async || Some(world.head(job).await).filter(rests)).await;
        let head = head.expect("it comes to rest");
        if head.status.name() == "cancelled" {
            return woken;
        }
        woken += 1;
        world.signal(job, &format!("look {woken}"), Value::Null).await;
        let moved = async || world.head(job).await.version > head.version;
        world.place.until("the mail is read", moved).await;
    }
}

/// Two of them in a row: each is looked at as often, and neither holds up what was done before it.
#[tokio::test(flavor = "multi_thread")]
async fn an_undo_that_stays_unclear_is_listed_and_those_before_it_are_called() {
    let town = Town::default();
    let there = town.clone();
    let unclear = ToolSpec::new("unbook", move |ctx: ToolCtx, v: Value| {
        there.act(&ctx.key, format!("un{}", v["n"]));
        async move {
            match v["n"] == 1 {
                true => Ok(v),
                false => Err(ToolError::Unknown("the line went dead".into())),
            }
        }
    });
    let probe = |_: ToolCtx, _: Value| async move { Ok(Probe::<Value>::Unclear("down".into())) };
    let tools = town.tools(Class::Idempotent, 0, Hangs::Never).with(unclear.verifiable(probe));
    let world = World::on(support::store(), flows(), tools, hasty()).await;
    let job = world.submit("waits", Value::Null).await;
    world.until(job, "parked").await;
    world.cancel(job).await;
    let woken = wake_until_cancelled(&world, job).await;
    let end = end_of(&world, job).await;
    assert!((4..=16).contains(&woken), "they were looked at {woken} times");
    let said = ["1", "2", "3", "un3", "un2", "un1"];
    assert_eq!(town.said(), said, "{}", world.story(job).await);
    assert_eq!(end["undone"]["undone"], json!(["2"]), "{end}");
    assert_eq!(end["undone"]["left"].as_array().unwrap().len(), 2, "{end}");
    assert_eq!(end["unknown"].as_array().unwrap().len(), 2, "{end}");
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stays_unclear_is_looked_at_a_few_times_and_then_listed() {
    let town = Town::default();
    let there = town.clone();
    let unclear = ToolSpec::new("book", move |ctx: ToolCtx, v: Value| {
        let town = there.clone();
        async move {
            town.act(&ctx.key, v["n"].to_string());
            if v["n"] == 2 {
                std::future::pending::<()>().await;
            }
            Ok::<_, ToolError>(v)
        }
    });
    let probe = |_: ToolCtx, _: Value| async move { Ok(Probe::<Value>::Unclear("down".into())) };
    let tools = town.tools(Class::Verifiable, 0, Hangs::Never).with(unclear.verifiable(probe));
    let world = World::on(support::store(), flows(), tools, hasty()).await;
    let job = world.submit("trip", Value::Null).await;
    town.said.until(|said| said.len() >= 2).await;
    world.cancel(job).await;
    let woken = wake_until_cancelled(&world, job).await;
    let end = end_of(&world, job).await;
    assert!((2..=8).contains(&woken), "it was looked at {woken} times");
    assert_eq!(town.said(), ["1", "2", "un1"], "{}", world.story(job).await);
    assert_eq!(end["unknown"], json!(["4"]), "{end}");
    world.check().await;
}

/// The worker lives, and the tool does not hear that it should stop.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_finds_out_itself_what_became_of_a_call_that_it_had_to_give_up() {
    let town = Town::default();
    let tools = town.tools(Class::Verifiable, 2, Hangs::After);
    let world = World::on(support::store(), flows(), tools, hasty()).await;
    let job = world.submit("trip", Value::Null).await;
    town.said.until(|said| said.len() >= 2).await;
    world.cancel(job).await;
    let end = end_of(&world, job).await;
    assert_eq!(town.said(), ["1", "2", "un2", "un1"]);
    assert_eq!(end.get("unknown"), None, "{end}");
    world.check().await;
}

/// All calls that a job may have are unknown: to settle one takes no more room.
#[tokio::test(flavor = "multi_thread")]
async fn as_many_unknown_calls_as_a_job_may_have_are_settled_all_the_same() {
    let many = limits::CALLS_MAX as u64 + 3;
    let flow = FlowSpec::new("many", move |ctx: Ctx, _: Value| async move {
        let call =
            |ctx: Ctx, n: u64| async move { ctx.tool::<Value>("book", json!({"n": n})).await };
        let got = ctx.parallel(0..many, call).await;
        Ok::<_, FlowError>(json!(got.into_iter().filter(Result::is_ok).count()))
    });
    let flows = Flows::default().with(flow);
    let (town, store) = (Town::default(), support::store());
    let hung = town.clone();
    let hangs = ToolSpec::new("book", move |ctx: ToolCtx, v: Value| {
        hung.act(&ctx.key, v["n"].to_string());
        std::future::pending::<Result<Value, ToolError>>()
    });
    let (theirs, there, first) = (store.clone(), town.clone(), flows.clone());
    let life = move || async move {
        let tools = Tools::default().with(hangs.idempotent());
        let world = World::of(theirs, Shop::new(first, tools, patient())).await;
        let job = world.submit("many", Value::Null).await;
        there.said.until(|said| said.len() >= limits::CALLS_MAX).await;
        std::mem::forget(world);
        job
    };
    let job = support::killed_after(life).await;
    let tools = town.tools(Class::Idempotent, 0, Hangs::Never);
    let world = World::on(store, flows, tools, hasty()).await;
    assert_eq!(world.until(job, "completed").await.output, Some(json!(many)));
    world.check().await;
}

/// A job whose first step is with a worker in another language: the job, the call, and who has it.
async fn called_elsewhere(world: &World) -> (EntityId, EntityId, (SessionId, u64)) {
    let terms = CallTerms::default();
    let class = Some(Class::Irreversible);
    let tool = CallTool { name: "book".into(), class, terms, ..CallTool::default() };
    register_calls(&world.node.pipeline, "", &[tool]).await.unwrap();
    let lease = Duration::from_secs(30);
    let opening = Opening {
        name: "far".into(),
        role: "worker".into(),
        lease_ms: u64::try_from(lease.as_millis()).unwrap(),
        executor: None,
    };
    let names = ["book".to_owned()];
    let pipeline = &world.node.pipeline;
    let session = desk::open_session(pipeline, "", opening, &names).await.unwrap();
    let counter = Counter::default();
    let job = world.submit("trip", Value::Null).await;
    world.until(job, "waiting").await;
    let take = async || {
        let some = counter.take(pipeline, (session, lease), &names, 1, |_| true).await;
        some.unwrap().pop()
    };
    let taken = world.place.find(take).await.expect("a call");
    (job, taken.head.id, (session, taken.head.epoch))
}

/// The flow would have said what undoes it, and its code is another one now.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_happened_is_listed_if_the_flow_that_knew_how_to_undo_it_is_gone() {
    let world = World::on(support::store(), flows(), Tools::default(), hasty()).await;
    let (job, call, held) = called_elsewhere(&world).await;
    let store = stop(world).await;
    let nobody = World::on(store, Flows::default(), Tools::default(), hasty()).await;
    nobody.cancel(job).await;
    nobody.until(job, "cancelling").await;
    let said = desk::Said::Completed(json!({"n": 1}));
    desk::say(&nobody.node.pipeline, call, held, &said).await.unwrap();
    nobody.until(job, "undoing").await;
    let other = FlowSpec::new("trip", |ctx: Ctx, _: Value| async move {
        Ok(ctx.wait_signal::<Value>("go").await?)
    });
    let flows = Flows::default().with(other);
    let world = World::on(stop(nobody).await, flows, Tools::default(), hasty()).await;
    let end = end_of(&world, job).await;
    assert_eq!(end["undone"]["left"][0][0], "2", "{end}");
    assert_eq!(end.get("unknown"), None, "{end}");
    world.check().await;
}

/// The plan goes on, and nobody ever says what undoes that step.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_of_a_plan_whose_undo_can_not_be_worked_out_is_listed_by_a_cancel() {
    let town = Town::default();
    let tools = town.tools(Class::Idempotent, 0, Hangs::Never);
    let world = World::on(support::store(), flows(), tools, hasty()).await;
    let step = |n: u64, undo: &str| {
        json!({"tool": "book", "input": {"n": n}, "on_error": "continue",
               "undo": {"tool": "unbook", "input": {"n": undo}}})
    };
    let plan = json!({"version": 1, "steps": {
        "a": step(1, "${{ output.n }}"), "b": step(2, "${{ output.nix.nix }}"),
        "c": {"wait": {"for": "approval"}, "after": ["a", "b"]}}});
    let job = world.submit(plan::FLOW, json!({"plan": plan})).await;
    world.until(job, "parked").await;
    let unsaid = world.state(job).await.unheard;
    assert_eq!(unsaid.len(), 1);
    world.cancel(job).await;
    let end = end_of(&world, job).await;
    assert!(town.said().contains(&"un1".to_owned()), "{:?}", town.said());
    assert_eq!(end["undone"]["undone"].as_array().unwrap().len(), 1, "{end}");
    assert_eq!(end["undone"]["left"][0][0], unsaid[0].0, "{end}");
    world.check().await;
}

/// Its end is on record, and its parent waits behind others for a worker.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_completes_while_nobody_has_its_parent_is_undone_by_a_cancel() {
    let town = Town::default();
    let child = || {
        FlowSpec::new("child", |ctx: Ctx, _: Value| async move {
            Ok(ctx.wait_signal::<Value>("go").await?)
        })
    };
    let tools = || town.tools(Class::Idempotent, 0, Hangs::Never);
    let world = World::on(support::store(), flows().with(child()), tools(), hasty()).await;
    let plan = json!({"version": 1, "steps": {
        "a": {"job": {"flow": "child"}, "undo": {"tool": "unbook", "input": {"n": "${{ output.n }}"}}},
        "b": {"wait": {"for": "approval"}, "after": ["a"]}}});
    let job = world.submit(plan::FLOW, json!({"plan": plan})).await;
    world.until(job, "waiting").await;
    let its = tenure_jobs::JobState::child_id(job, 0);
    world.until(its, "parked").await;
    let store = stop(world).await;
    let children = Flows::default().with(child());
    let nobody = World::on(store, children, Tools::default(), hasty()).await;
    nobody.signal(its, "go", json!({"n": 7})).await;
    nobody.until_seen(job, "child_ended").await;
    nobody.cancel(job).await;
    nobody.until(job, "undoing").await;
    let world = World::on(stop(nobody).await, flows(), tools(), hasty()).await;
    let end = end_of(&world, job).await;
    assert_eq!(town.said(), ["un7"], "{}", world.story(job).await);
    assert_eq!(end["undone"]["undone"].as_array().unwrap().len(), 1, "{end}");
    world.check().await;
}

/// Nobody may run it any more, and what it had done is undone from the list all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_over_which_too_many_workers_were_lost_is_undone_and_then_fails() {
    let (town, store) = (Town::default(), support::store());
    let (theirs, hung) = (store.clone(), town.hung.clone());
    let tools = town.tools(Class::Idempotent, 2, Hangs::After);
    let life = move || async move {
        let options = JobOptions { takeovers_max: 0, ..patient() };
        let world = World::of(theirs, Shop::new(flows(), tools, options)).await;
        let job = world.submit("trip", Value::Null).await;
        hung.until(|hung| !hung.is_empty()).await;
        // Nothing of it says goodbye.
        std::mem::forget(world);
        job
    };
    let job = support::killed_after(life).await;
    let tools = town.tools(Class::Idempotent, 0, Hangs::Never);
    let world = World::on(store, flows(), tools, hasty()).await;
    let failure = world.until(job, "failed").await.failure.unwrap();
    assert_eq!(failure.reason, "takeovers_spent");
    assert_eq!(town.said(), ["1", "2", "un1"], "{}", world.story(job).await);
    assert!(failure.error.contains("; undone: step 2 (by unbook)"), "{failure:?}");
    assert_eq!(failure.unknown, [StepId("4".into())], "the flow is not asked, so nobody knows");
    world.check().await;
}

/// The call is with a worker in another language, and nobody holds the job.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_elsewhere_that_completes_while_its_job_is_cancelled_is_undone() {
    for large in [false, true] {
        let town = Town::default();
        let here = town.clone();
        let unbook = ToolSpec::new("unbook", move |ctx: ToolCtx, v: Value| {
            here.act(&ctx.key, format!("un{}", v["n"]));
            async move { Ok::<_, ToolError>(v) }
        });
        let tools = Tools::default().with(unbook.idempotent());
        let world = World::on(support::store(), flows(), tools, hasty()).await;
        let (job, call, held) = called_elsewhere(&world).await;
        world.cancel(job).await;
        world.until(job, "cancelling").await;
        let mut result = json!({"n": 1});
        if large {
            result["text"] = Value::from("x".repeat(200_000));
        }
        let said = desk::Said::Completed(result);
        desk::say(&world.node.pipeline, call, held, &said).await.unwrap();
        let end = end_of(&world, job).await;
        assert_eq!(town.said(), ["un1"], "{}", world.story(job).await);
        assert_eq!(end["undone"]["undone"], json!(["2"]), "{end}");
        assert_eq!(end.get("unknown"), None, "{end}");
        world.check().await;
    }
}
