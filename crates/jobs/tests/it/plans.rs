//! Plans as jobs: what a plan means, one rule per test.

use crate::support::{Outside, World};
use proptest::{prelude::*, test_runner::TestRunner};
use serde_json::{Map, Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};
use tenure_jobs::{Job, JobState, drive::JobOptions, model::limits, plan};
use tenure_kernel::{ids::EntityId, machine::decode_state, store::HeadFilter, time::Timestamp};
use tenure_steps::{
    ToolError,
    driver::{self, End},
    events::{StepEvent, WaitOutcome},
    flow::{FlowError, Flows},
    history::History,
    tool::{ToolCtx, ToolSpec, Tools},
};

fn quick() -> JobOptions {
    JobOptions { backoff: Duration::from_millis(5), ..JobOptions::default() }
}

/// What was called, in order, by its input.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// `say` gives back its input and writes its `id` down; `fail` fails.
    fn tools(&self) -> Tools {
        let (log, undone) = (self.clone(), self.clone());
        let say = ToolSpec::new("say", move |_: ToolCtx, v: Value| {
            let text = v["id"].as_str().map_or_else(|| v.to_string(), str::to_owned);
            log.0.lock().unwrap().push(text);
            async move { Ok::<_, ToolError>(v) }
        });
        let fail = ToolSpec::new("fail", |_: ToolCtx, _: Value| async {
            Err::<Value, _>(ToolError::permanent("no"))
        });
        let unsay = ToolSpec::new("unsay", move |_: ToolCtx, v: Value| {
            undone.0.lock().unwrap().push(format!("un{}", v["id"].as_str().unwrap_or("?")));
            async move { Ok::<_, ToolError>(v) }
        });
        Tools::default().with(say.idempotent()).with(fail).with(unsay.idempotent())
    }
}

fn steps(steps: Value) -> Value {
    json!({"version": 1, "steps": steps})
}

async fn world(log: &Log, options: JobOptions) -> World {
    World::start(Flows::default().with(plan::flow()), log.tools(), options).await
}

async fn submit(world: &World, plan: Value, input: Value) -> EntityId {
    world.submit(plan::FLOW, json!({"plan": plan, "input": input})).await
}

async fn run(plan: Value, input: Value, status: &str) -> (JobState, Vec<String>) {
    let log = Log::default();
    let world = world(&log, quick()).await;
    let job = submit(&world, plan, input).await;
    let state = world.until(job, status).await;
    world.check().await;
    (state, log.all())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_gives_what_its_steps_gave() {
    let plan = json!({"version": 1, "steps": {
        "a": {"tool": "say", "input": {"id": "a", "n": "${{ input.n }}"}},
        "b": {"value": "${{ steps.a.output.n * 2 }}"},
        "c": {"tool": "say", "for_each": "input.list", "input": {"id": "c${{ item }}-${{ index }}"}}
    }, "output": {"b": "${{ steps.b.output }}", "c": "${{ steps.c.output | map(attribute='id') | list }}"}});
    let (state, mut log) = run(plan, json!({"n": 21, "list": ["x", "y"]}), "completed").await;
    assert_eq!(state.output, Some(json!({"b": 42, "c": ["cx-0", "cy-1"]})));
    log.sort();
    assert_eq!(log, ["a", "cx-0", "cy-1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_output_a_plan_gives_what_its_last_steps_gave() {
    let plan = steps(
        json!({"a": {"value": 1}, "b": {"value": "${{ steps.a.output + 1 }}"}, "c": {"value": "x"},
        "e": {"value": 1, "for_each": []}}),
    );
    let (state, _) = run(plan, Value::Null, "completed").await;
    assert_eq!(state.output, Some(json!({"b": 2, "c": "x", "e": []})));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_without_a_valid_plan_fails_and_runs_nothing() {
    for plan in [
        json!(7),
        steps(json!({"a": {"tool": "say", "after": ["zz"]}, "b": {"tool": "say", "input": 1}})),
        json!({"version": 1, "input_schema": {"type": "string"}, "steps": {"a": {"tool": "say"}}}),
    ] {
        let (state, log) = run(plan, json!(1), "failed").await;
        assert!(log.is_empty());
        let failure = state.failure.unwrap();
        assert!(failure.error.contains("the plan can not be run"), "{failure:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_digest_of_the_plan_is_the_first_value_and_steps_are_shown_by_name() {
    let log = Log::default();
    let world = world(&log, quick()).await;
    let plan = steps(json!({"first": {"tool": "say", "input": {"id": "x"}}}));
    let job = submit(&world, plan.clone(), Value::Null).await;
    world.until(job, "completed").await;
    let story = world.story(job).await;
    let digest = plan::Plan::digest(&plan);
    let value = story.lines().find(|l| l.contains("value_recorded")).unwrap();
    assert!(value.contains(&digest), "{story}");
    assert!(story.contains("\"place\":\"first\""), "{story}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_skipped_step_skips_those_that_need_its_output_and_no_others() {
    let plan = json!({"version": 1, "steps": {
        "a": {"tool": "say", "input": {"id": "a"}, "when": "input.go"},
        "needs": {"tool": "say", "input": {"id": "needs ${{ steps.a.output.id }}"}},
        "after": {"tool": "say", "after": ["a"], "input": {"id": "after ${{ steps.a.status }}"}},
        "instead": {"value": "${{ 'none' if steps.a.status == 'skipped' else steps.a.output.id }}"},
        "asks": {"value": 1, "when": "steps.a.output is defined"}
    }, "output": {"a": "${{ steps.a.output.id }}", "instead": "${{ steps.instead.output }}",
        "asks": "${{ steps.asks.status }}", "why": "${{ steps.needs.error }}"}});
    let (state, log) = run(plan.clone(), json!({"go": false}), "completed").await;
    assert_eq!(log, ["after skipped"]);
    let output = state.output.unwrap();
    assert_eq!((&output["a"], &output["instead"]), (&Value::Null, &json!("none")));
    assert_eq!(output["asks"], "skipped");
    assert!(output["why"].as_str().unwrap().contains("`a`, which was skipped"), "{output}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_for_each_is_skipped_like_any_step_that_needs_what_is_not_there() {
    let plan = json!({"version": 1, "steps": {
        "a": {"tool": "say", "input": {"id": "a"}, "when": "input.go"},
        "each": {"tool": "say", "for_each": [1, 2],
            "input": {"id": "each ${{ steps.a.output.id }}", "n": "${{ item }}"}},
        "some": {"tool": "say", "for_each": [0, 1], "on_error": "continue",
            "input": {"id": "${{ 'some' if item else steps.a.output.id }}"}},
        "none": {"tool": "say", "for_each": [], "input": "${{ steps.a.output.id }}"}
    }, "output": {"each": "${{ steps.each.status }}", "why": "${{ steps.each.error }}",
        "some": "${{ steps.some.status }}", "error": "${{ steps.some.error }}",
        "none": "${{ steps.none.output }}"}});
    let (state, log) = run(plan, json!({"go": false}), "completed").await;
    assert_eq!(log, ["some"], "what only some items need fails those");
    let output = state.output.unwrap();
    assert_eq!((&output["each"], &output["some"]), (&json!("skipped"), &json!("failed")));
    assert_eq!(output["none"], json!([]));
    for said in [&output["why"], &output["error"]] {
        assert!(said.as_str().unwrap().contains("`a`, which was skipped"), "{output}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mistake_is_not_excused_by_a_skipped_step_beside_it() {
    let input = |text: &str| {
        json!({"version": 1, "steps": {
            "a": {"value": 1, "when": "input.go"},
            "b": {"tool": "say", "input": {"id": text, "was": "${{ steps.a.status }}"}}}})
    };
    let mut output = steps(json!({"a": {"value": 1, "when": "input.go"}}));
    output["output"] = json!({"x": "${{ [steps.a.status, input.cnets] }}"});
    for plan in [
        input("${{ input.cnets }}"),
        input("${{ steps.a.status ~ input.cnets }}"),
        input("${{ (steps.a.output | default(1)) + input.cnets }}"),
        input("${{ input.cnets ~ steps.a.output }}"),
        output,
    ] {
        let (state, log) = run(plan, json!({"go": false}), "failed").await;
        assert!(log.is_empty(), "{log:?}");
        let error = state.failure.unwrap().error;
        assert!(error.contains("input.cnets"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_of_values_ends_with_a_reason_before_it_has_made_too_much() {
    let log = Log::default();
    let world = world(&log, quick()).await;
    let many: Vec<u32> = (0..1_000).collect();
    let step = json!({"value": "${{ input.s }}", "for_each": many});
    let plan = steps(json!({"a": step, "b": step, "c": step}));
    let job = submit(&world, plan, json!({"s": "x".repeat(900_000)})).await;
    let failure = world.until(job, "failed").await.failure.unwrap();
    assert!(failure.error.contains("of the plan: item "), "{failure:?}");
    assert!(failure.error.contains("would record more than"), "{failure:?}");
    let recorded = world.count(job, "value_recorded").await;
    assert!((10..=20).contains(&recorded), "{recorded} values of 900 kB");
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_stops_what_has_not_begun_and_names_the_step() {
    let plan = steps(json!({
        "bad": {"tool": "fail"},
        "side": {"tool": "say", "input": {"id": "side"}},
        "later": {"tool": "say", "after": ["bad"], "input": {"id": "later"}},
        "much_later": {"tool": "say", "after": ["side", "bad"], "input": {"id": "much later"}}
    }));
    let (state, log) = run(plan, Value::Null, "failed").await;
    assert_eq!(log, ["side"], "what runs is finished");
    let failure = state.failure.unwrap();
    assert!(failure.error.contains("step `bad` of the plan: no"), "{failure:?}");
    assert_eq!(failure.reason, "step_failed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_may_fail_lets_the_plan_go_on() {
    let plan = json!({"version": 1, "steps": {
        "bad": {"tool": "fail", "on_error": "continue"},
        "each": {"tool": "fail", "for_each": [1, 2], "on_error": "continue"},
        "next": {"value": "${{ steps.bad.status }}: ${{ steps.bad.error }}"},
        "needs": {"value": "${{ steps.bad.output }}"}
    }, "output": ["${{ steps.next.output }}", "${{ steps.needs.status }}", "${{ steps.each.output }}",
        "${{ steps.each.status }}"]});
    let (state, _) = run(plan, Value::Null, "completed").await;
    assert_eq!(state.output, Some(json!(["failed: no", "skipped", [null, null], "failed"])));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expression_that_is_wrong_fails_its_step_and_not_the_program() {
    for (step, said) in [
        (json!({"value": "${{ input.x.y }}"}), "is not there"),
        (json!({"value": "${{ input.n / 'x' }}"}), "input.n"),
        (json!({"value": 1, "for_each": "input.n"}), "needs a list"),
        (json!({"value": 1, "for_each": {"items": "[1, 2]", "at_most": 1}}), "2 items"),
        (json!({"sleep": {"seconds": "${{ 'x' }}"}}), "seconds"),
        (json!({"value": 1, "when": "input.x.y > 1"}), "not there"),
    ] {
        let (state, _) = run(steps(json!({"a": step})), json!({"n": 1}), "failed").await;
        let failure = state.failure.unwrap();
        assert!(failure.error.contains("step `a`") && failure.error.contains(said), "{failure:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn plans_wait_for_people_signals_times_and_other_jobs() {
    let plan = json!({"version": 1, "steps": {
        "ask": {"wait": {"for": "approval", "note": "May ${{ input.who }}?"}},
        "hear": {"wait": {"for": "signal", "name": "go-${{ input.who }}"}},
        "rest": {"sleep": {"seconds": 0.01}, "after": ["ask"]},
        "child": {"job": {"flow": "plan", "input": {"plan": {"version": 1, "steps": {"x": {"value": 5}}}}},
            "after": ["rest"]}
    }, "output": {"by": "${{ steps.ask.output.by }}", "heard": "${{ steps.hear.output }}",
        "child": "${{ steps.child.output.x }}"}});
    let log = Log::default();
    let world = world(&log, quick()).await;
    let job = submit(&world, plan, json!({"who": "bob"})).await;
    let state = world.until(job, "parked").await;
    let mut keys: Vec<&str> = state.waits.iter().map(|w| w.key.as_str()).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["ask", "go-bob"]);
    assert!(world.story(job).await.contains("May bob?"));
    world.signal(job, "go-bob", json!(7)).await;
    world.answer(job, "ask", WaitOutcome::Approved, Value::Null).await;
    let state = world.until(job, "completed").await;
    assert_eq!(state.output, Some(json!({"by": "ann", "heard": 7, "child": 5})));
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_no_and_a_time_that_passes_are_failures() {
    let log = Log::default();
    let world = world(&log, quick()).await;
    let ask = |on_error: &str| {
        json!({"version": 1, "steps": {
            "ask": {"wait": {"for": "approval"}, "on_error": on_error},
            "next": {"tool": "say", "input": {"id": "${{ steps.ask.output.approved }}!"}}}})
    };
    let job = submit(&world, ask("fail"), Value::Null).await;
    world.until(job, "parked").await;
    world.answer(job, "ask", WaitOutcome::Rejected, Value::Null).await;
    let failure = world.until(job, "failed").await.failure.unwrap();
    assert!(failure.error.contains("rejected by ann"), "{failure:?}");
    let job = submit(&world, ask("continue"), Value::Null).await;
    world.until(job, "parked").await;
    world.answer(job, "ask", WaitOutcome::Rejected, Value::Null).await;
    world.until(job, "completed").await;
    assert_eq!(log.all(), ["false!"]);
    let late = steps(json!({"ask": {"wait": {"for": "signal", "within_seconds": 0.01}}}));
    let job = submit(&world, late, Value::Null).await;
    let failure = world.until(job, "failed").await.failure.unwrap();
    assert!(failure.error.contains("nothing came in time"), "{failure:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_failure_what_was_done_is_undone_the_last_first() {
    let step = |id: &str, after: &[&str]| {
        json!({"tool": "say", "after": after, "input": {"id": id},
            "undo": {"tool": "unsay", "input": {"id": "${{ output.id }}"}}})
    };
    let plan = |on_failure: Value| {
        let mut plan = steps(json!({
            "a": step("a", &[]), "b": step("b", &["a"]),
            "c": {"tool": "say", "for_each": ["x", "y"], "after": ["b"], "input": {"id": "${{ item }}"},
                "undo": {"tool": "unsay", "input": {"id": "${{ item }}"}}},
            "d": {"tool": "fail", "after": ["c"]}
        }));
        if !on_failure.is_null() {
            plan["on_failure"] = on_failure;
        }
        plan
    };
    let (state, log) = run(plan(Value::Null), Value::Null, "failed").await;
    assert_eq!(log[..2], ["a", "b"]);
    assert_eq!(log[6..], ["unb", "una"]);
    let (did, undid): (Vec<_>, Vec<_>) = (log[2..4].to_vec(), log[4..6].to_vec());
    let back: Vec<String> = did.iter().rev().map(|d| format!("un{d}")).collect();
    assert_eq!(undid, back);
    let error = state.failure.unwrap().error;
    assert!(error.contains("step `d`") && error.contains("undone: "), "{error}");
    let (_, log) = run(plan(json!("stop")), Value::Null, "failed").await;
    assert_eq!(log.len(), 4);
}

/// Whoever is asked may never answer; what was done is undone all the same.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_failure_nothing_is_waited_for_but_calls_and_jobs() {
    for options in [quick(), JobOptions { replay_always: true, ..quick() }] {
        let log = Log::default();
        let world = world(&log, options).await;
        let plan = steps(json!({
            "approve": {"wait": {"for": "approval", "within_seconds": 600_000}, "after": ["flight"]},
            "flight": {"tool": "say", "input": {"id": "flight"},
                "undo": {"tool": "unsay", "input": {"id": "${{ output.id }}"}}},
            "hotel": {"tool": "fail", "after": ["flight"]},
            "nap": {"sleep": {"seconds": 600_000}, "after": ["flight"]},
            "side": {"tool": "say", "after": ["flight"], "input": {"id": "side"}}
        }));
        let job = submit(&world, plan, Value::Null).await;
        let state = world.until(job, "failed").await;
        assert_eq!(log.all(), ["flight", "side", "unflight"]);
        let error = state.failure.unwrap().error;
        assert!(error.contains("step `hotel`") && error.contains("undone: "), "{error}");
        assert!(!error.contains("could not"), "{error}");
        assert_eq!(world.count(job, "step_dropped").await, 2, "the wait and the sleep");
        world.check().await;
    }
}

/// Where a history lies that an earlier program has written. `TENURE_BLESS=1` writes it anew.
const HISTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/plans/history.json");

async fn write_history() {
    let undo = json!({"tool": "unsay", "input": {"id": "${{ output.id }}"}});
    let plan = steps(json!({
        "ask": {"wait": {"for": "approval"}, "after": ["flight"]},
        "bad": {"tool": "fail", "after": ["each", "flight", "needs", "total"]},
        "each": {"tool": "say", "for_each": "input.guests", "undo": undo,
            "input": {"id": "${{ item | upper }}-${{ index }}"}},
        "flight": {"tool": "say", "input": {"id": "flight ${{ input.n // 2 }}"}, "undo": undo},
        "needs": {"value": "${{ steps.off.output }}"},
        "off": {"value": 1, "when": "input.n > 5"},
        "total": {"value": "${{ {'n': input.n * 2.5, 'all': input.guests | map('upper') | join('-')} }}"}
    }));
    let input = json!({"n": 3, "guests": ["ann", "bob"]});
    let log = Log::default();
    let world = world(&log, quick()).await;
    let job = submit(&world, plan.clone(), input.clone()).await;
    let end = world.until(job, "failed").await.failure.unwrap().error;
    let records = world.store.stream(job, 1, 1_000).await.unwrap();
    let events = records.iter().flat_map(|r| r.events().unwrap());
    let steps = events.filter(|e| StepEvent::NAMES.contains(&e.name.as_str()));
    let events: Vec<Value> =
        steps.map(|e| serde_json::from_slice(e.body.inline().unwrap()).unwrap()).collect();
    let written = json!({"input": {"plan": plan, "input": input}, "events": events, "end": end});
    std::fs::write(HISTORY, serde_json::to_string_pretty(&written).unwrap() + "\n").unwrap();
}

/// A job that began under an earlier program goes on under this one, and comes to the same end.
#[tokio::test(flavor = "multi_thread")]
async fn a_history_that_was_written_before_is_replayed() {
    if std::env::var_os("TENURE_BLESS").is_some() {
        write_history().await;
    }
    let mut written: Value = serde_json::from_slice(&std::fs::read(HISTORY).unwrap()).unwrap();
    let Value::Array(events) = written["events"].take() else { panic!("no events") };
    // Also where the wait was answered after the failure: there was a time when that was waited for.
    let answered = |event: &Value| match event["event"].as_str() {
        Some("step_dropped") => json!({"event": "wait_completed", "step": event["step"],
            "key": "ask", "outcome": "approved", "by": "ann"}),
        _ => event.clone(),
    };
    let earlier: Vec<Value> = events.iter().map(answered).collect();
    assert_ne!(events, earlier);
    for events in [events, earlier] {
        let mut history = History::default();
        for (n, event) in events.into_iter().enumerate() {
            let event: StepEvent = serde_json::from_value(event).unwrap();
            history.apply(&event, Timestamp::from_micros(n as i64), 1);
        }
        let (job, tenant) = (EntityId::fixed(7, 1), String::new());
        let world = driver::World { job, tenant, run: 1, now: Timestamp::ZERO, entropy: 0 };
        let input = written["input"].clone();
        let (_, turn) = driver::Driver::start(&plan::flow(), input, &history, world);
        let Some(End::Returned(Err(FlowError::Step(e)))) = &turn.end else {
            panic!("it comes to another end: {:?}", turn.end)
        };
        assert_eq!(written["end"], e.why);
        assert!(turn.records.is_empty(), "{:?}", turn.records);
    }
}

/// A plan that runs itself.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_children_of_each_other_to_a_depth_and_not_past_it() {
    let log = Log::default();
    let world = world(&log, quick()).await;
    let own = json!({"plan": "${{ input.plan }}", "input": {"plan": "${{ input.plan }}"}});
    let plan = steps(json!({"again": {"job": {"flow": "plan", "input": own}}}));
    let job = submit(&world, plan.clone(), json!({"plan": plan})).await;
    world.until(job, "failed").await;
    let filter = HeadFilter { kind: Some("job".into()), ..HeadFilter::default() };
    let heads = world.store.heads(filter, 100).await.unwrap();
    let states = heads.iter().map(|h| decode_state::<Job>(&h.state).unwrap());
    let mut jobs: Vec<(u32, String)> =
        states.map(|s| (s.parent.map_or(0, |p| p.depth), s.failure.unwrap().error)).collect();
    jobs.sort();
    let depths: Vec<u32> = jobs.iter().map(|j| j.0).collect();
    assert_eq!(depths, (0..=limits::DEPTH_MAX).collect::<Vec<_>>());
    let (_, deepest) = jobs.last().unwrap();
    assert!(deepest.contains("16 are the most"), "{deepest}");
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_a_job_can_hold_at_once_waits_its_turn() {
    let many: Vec<u32> = (0..60).collect();
    let plan = json!({"version": 1, "steps": {
        "sleeps": {"sleep": {"seconds": 0.001}, "for_each": {"items": many, "parallel": 24}},
        "more": {"sleep": {"seconds": 0.001}, "for_each": {"items": many, "parallel": 24}},
        "tools": {"tool": "say", "for_each": {"items": many, "parallel": 24}, "input": {"id": "x"}}
    }, "output": "${{ steps.sleeps.output | length + steps.more.output | length }}"});
    let (state, log) = run(plan, Value::Null, "completed").await;
    assert_eq!((state.output, log.len()), (Some(json!(120)), 60));
}

/// A graph: each step may need earlier ones.
fn graphs() -> impl Strategy<Value = Vec<BTreeSet<usize>>> {
    let needs = |i: usize| prop::collection::btree_set(0..i.max(1), 0..3.min(i + 1));
    (1usize..9).prop_flat_map(move |n| (0..n).map(needs).collect::<Vec<_>>()).prop_map(
        |mut needs| {
            needs.iter_mut().enumerate().for_each(|(i, n)| n.retain(|m| *m < i));
            needs
        },
    )
}

fn plan_of(needs: &[BTreeSet<usize>]) -> Value {
    let step = |(i, needs): (usize, &BTreeSet<usize>)| {
        // Names in another order than the graph's: the order of running must come from the needs.
        let sum = needs.iter().map(|n| format!("steps.s{}.output.n", 9 - n));
        let sum = sum.chain(["1".to_owned()]).collect::<Vec<_>>().join(" + ");
        let input = json!({"id": format!("s{}", 9 - i), "n": format!("${{{{ {sum} }}}}")});
        (format!("s{}", 9 - i), json!({"tool": "say", "input": input}))
    };
    let all: Map<String, Value> = needs.iter().enumerate().map(step).collect();
    let outputs: Map<String, Value> = all
        .keys()
        .map(|id| (id.clone(), json!(format!("${{{{ steps.{id}.output.n }}}}"))))
        .collect();
    json!({"version": 1, "steps": all, "output": outputs})
}

/// Whatever the graph: everything once, nothing before what it needs, also when the flow is replayed after every
/// commit; and a plan is as deep in commits as its longest chain, so what is independent runs side by side.
#[test]
fn any_graph_runs_in_order_once_and_side_by_side() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let log = Log::default();
    let options = JobOptions { replay_always: true, ..quick() };
    let world = runtime.block_on(world(&log, options));
    let mut runner = TestRunner::new(ProptestConfig { cases: 24, ..ProptestConfig::default() });
    let ran = runner.run(&graphs(), |needs| {
        log.0.lock().unwrap().clear();
        let (state, order) = runtime.block_on(async {
            let job = submit(&world, plan_of(&needs), Value::Null).await;
            (world.until(job, "completed").await, log.all())
        });
        let at: BTreeMap<&str, usize> =
            order.iter().enumerate().map(|(i, s)| (s.as_str(), i)).collect();
        prop_assert_eq!(order.len(), needs.len());
        prop_assert_eq!(at.len(), needs.len());
        let mut worth: Vec<u64> = Vec::new();
        for (i, needs) in needs.iter().enumerate() {
            let name = format!("s{}", 9 - i);
            for need in needs {
                let before = at[format!("s{}", 9 - need).as_str()] < at[name.as_str()];
                prop_assert!(before, "{} ran before s{}", name, 9 - need);
            }
            worth.push(1 + needs.iter().map(|n| worth[*n]).sum::<u64>());
            prop_assert_eq!(&state.output.as_ref().unwrap()[&name], &json!(worth[i]));
        }
        Ok(())
    });
    ran.unwrap();
    runtime.block_on(world.check());
}

#[tokio::test(flavor = "multi_thread")]
async fn independent_steps_run_at_the_same_time() {
    let meet = Arc::new(tokio::sync::Barrier::new(3));
    let tool = ToolSpec::new("meet", move |_: ToolCtx, v: Value| {
        let meet = meet.clone();
        async move {
            // Only if all three are under way does any of them return.
            meet.wait().await;
            Ok::<_, ToolError>(v)
        }
    });
    let flows = Flows::default().with(plan::flow());
    let world = World::start(flows, Tools::default().with(tool), quick()).await;
    let plan = steps(json!({"a": {"tool": "meet"}, "b": {"tool": "meet"}, "c": {"tool": "meet"}}));
    let job = submit(&world, plan, Value::Null).await;
    world.until(job, "completed").await;
}

/// The ids of steps follow from the plan, not from what finished first.
#[tokio::test(flavor = "multi_thread")]
async fn step_ids_do_not_depend_on_what_finishes_first() {
    let outside = Outside::default();
    let flows = Flows::default().with(plan::flow());
    let world = World::start(flows, Tools::default().with(outside.tool("raise")), quick()).await;
    let plan = steps(
        json!({"a": {"tool": "raise"}, "b": {"tool": "raise", "after": ["c"]}, "c": {"tool": "raise"}}),
    );
    let job = submit(&world, plan, Value::Null).await;
    world.until(job, "completed").await;
    let steps = tenure_jobs::view::detail(&world.store, job).await.unwrap().unwrap().steps;
    let named: BTreeMap<String, String> = steps
        .iter()
        .filter(|s| s.kind == "tool")
        .map(|s| (s.place.clone(), s.step.0.clone()))
        .collect();
    let expected = [("a", "2.1"), ("b", "3.1"), ("c", "4.1")];
    let expected = expected.map(|(a, b)| (a.to_owned(), b.to_owned()));
    assert_eq!(named, BTreeMap::from(expected));
}
