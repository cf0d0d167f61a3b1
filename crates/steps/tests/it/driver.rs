//! One rule per test.

use proptest::prelude::*;
use serde_json::{Value, json};
use std::{collections::BTreeSet, time::Duration};
use tenure_kernel::{ids::EntityId, time::Timestamp};
use tenure_steps::{
    Class, Ctx, Either, FlowError,
    desk::{Ask, Asked},
    driver::{Driver, End, Turn, World},
    events::{CallOutcome, StepEvent, StepId, TimerWhy, WaitOutcome, idempotency_key},
    flow::FlowSpec,
    history::History,
};

fn world() -> World {
    let job = EntityId::fixed(9, 1);
    World { job, tenant: "t".into(), run: 1, now: Timestamp::from_micros(7), entropy: 42 }
}

/// A flow, its history, and what it waits for.
struct Live {
    flow: FlowSpec,
    input: Value,
    driver: Driver,
    history: History,
    events: Vec<StepEvent>,
    open: Vec<Asked>,
    delivered: usize,
    end: Option<End>,
}

impl Live {
    fn start(flow: FlowSpec, input: Value, history: History) -> Self {
        let (driver, turn) = Driver::start(&flow, input.clone(), &history, world());
        let delivered = history.order.len();
        let mut live = Live {
            flow,
            input,
            driver,
            history,
            events: Vec::new(),
            open: Vec::new(),
            delivered,
            end: None,
        };
        live.take(turn);
        live
    }

    fn record(&mut self, event: StepEvent) {
        self.history.apply(&event, Timestamp::from_micros(9), 1);
        self.events.push(event);
    }

    fn take(&mut self, turn: Turn) {
        turn.records.into_iter().for_each(|r| self.record(r));
        for asked in turn.asks {
            if !asked.known {
                self.record(begin(&asked));
            }
            let done = self.history.steps.get(&asked.step).is_some_and(|r| r.outcome.is_some());
            if !done {
                self.open.push(asked);
            }
        }
        self.open.retain(|a| !turn.dropped.contains(&a.step));
        self.end = turn.end.or(self.end.take());
    }

    /// The world answers the n-th open step.
    fn answer(&mut self, n: usize) {
        let asked = self.open.remove(n % self.open.len());
        self.record(finish(&asked, n));
        while self.delivered < self.history.order.len() {
            let step = self.history.order[self.delivered].clone();
            self.delivered += 1;
            let outcome = self.history.steps[&step].outcome.clone().unwrap();
            self.open.retain(|a| a.step != step);
            let turn = self.driver.deliver(&step, outcome);
            self.take(turn);
        }
    }

    /// Where a replay of everything so far leads: open steps, and the output.
    fn replayed(&self) -> Live {
        Live::start(self.flow.clone(), self.input.clone(), self.history.clone())
    }

    fn open_steps(&self) -> BTreeSet<StepId> {
        self.open.iter().map(|a| a.step.clone()).collect()
    }

    fn output(&self) -> Option<Value> {
        match &self.end {
            Some(End::Returned(Ok(v))) => Some(v.clone()),
            Some(End::Returned(Err(e))) => Some(json!(e.to_string())),
            Some(other) => panic!("{other:?}"),
            None => None,
        }
    }
}

fn begin(asked: &Asked) -> StepEvent {
    let (step, place) = (asked.step.clone(), asked.place.clone());
    match &asked.ask {
        Ask::Tool { tool, arguments_hash, .. } => StepEvent::ToolInvocationStarted {
            key: idempotency_key(EntityId::fixed(9, 1), &step, tool, 0),
            step,
            tool: tool.clone(),
            ordinal: 0,
            call: 1,
            class: Class::Idempotent,
            arguments_hash: arguments_hash.clone(),
            arguments: None,
            timeout_ms: 1,
            place,
            undoable: false,
        },
        Ask::Wait { kind, key, .. } => {
            let (kind, key) = (*kind, key.clone());
            StepEvent::WaitOpened { step, kind, key, within_ms: None, note: None, place }
        }
        Ask::Sleep(_) => {
            let (why, limit) = (TimerWhy::Sleep, None);
            StepEvent::TimerSet { step, why, after_ms: 1, place, limit }
        }
        Ask::Child { flow, arguments_hash, .. } => StepEvent::ChildStarted {
            step,
            ordinal: 0,
            child: EntityId::fixed(9, 2),
            flow: flow.clone(),
            arguments_hash: arguments_hash.clone(),
            place,
            undoable: false,
        },
    }
}

fn finish(asked: &Asked, n: usize) -> StepEvent {
    let step = asked.step.clone();
    match &asked.ask {
        Ask::Tool { tool, .. } => StepEvent::ToolInvocationFinished {
            key: idempotency_key(EntityId::fixed(9, 1), &step, tool, 0),
            step,
            call: 1,
            outcome: CallOutcome::Success,
            result: Some(json!(n)),
            error: None,
        },
        Ask::Wait { key, .. } => StepEvent::WaitCompleted {
            step,
            key: key.clone(),
            outcome: WaitOutcome::Signalled,
            payload: json!(n),
            by: None,
        },
        Ask::Sleep(_) => StepEvent::TimerFired { step },
        Ask::Child { .. } => StepEvent::ChildEnded {
            step,
            ordinal: 0,
            status: "completed".into(),
            output: Some(json!(n)),
            error: None,
        },
    }
}

async fn busy(ctx: Ctx, width: u32) -> Result<Value, FlowError> {
    let seed = ctx.random();
    let parts = ctx
        .parallel(0..width, |ctx, i| async move {
            let first: usize = ctx.tool("one", i).await?;
            let raced = match ctx
                .race(ctx.wait_signal::<usize>(&format!("s{i}")), ctx.sleep(Duration::from_secs(1)))
                .await
            {
                Either::Left(got) => got?,
                Either::Right(_) => 1_000,
            };
            let last: usize = ctx.tool("two", (first, raced)).await?;
            let now = ctx.now();
            Ok::<_, FlowError>((first, raced, last, now.as_micros()))
        })
        .await;
    let mut done = Vec::new();
    for part in parts {
        done.push(part?);
    }
    let total = ctx.pure("total", || done.iter().map(|d| d.0 + d.1).sum::<usize>()).await?;
    Ok(json!([seed, done, total]))
}

proptest! {
    /// The order in which the world answers is all that a flow can see of it. A replay of any prefix stands where
    /// the flow stood, and a flow that was replayed half way ends like one that never was.
    #[test]
    fn a_replay_stands_where_the_flow_stood(order in prop::collection::vec(0usize..20, 1..60), cut in 0usize..60) {
        let flow = FlowSpec::new("busy", busy);
        let mut live = Live::start(flow, json!(4), History::default());
        for (i, n) in order.iter().cycle().take(100).enumerate() {
            if live.end.is_some() {
                break;
            }
            live.answer(*n);
            let again = live.replayed();
            prop_assert_eq!(again.output(), live.output());
            if live.end.is_none() {
                prop_assert_eq!(again.open_steps(), live.open_steps());
            }
            if i == cut {
                live = again;
            }
        }
        prop_assert!(live.end.is_some());
    }
}

#[test]
fn changed_code_stops_with_the_recorded_step_the_expected_one_and_both_places() {
    let old = FlowSpec::new("f", |ctx: Ctx, _: Value| async move {
        let _: Value = ctx.tool("reserve", 1).await?;
        let _: Value = ctx.tool("charge", 2).await?;
        Ok(Value::Null)
    });
    let mut live = Live::start(old, Value::Null, History::default());
    live.answer(0);
    let new = FlowSpec::new("f", |ctx: Ctx, _: Value| async move {
        let _: Value = ctx.tool("reserve", 1).await?;
        let _: Value = ctx.tool("invoice", 2).await?;
        Ok(Value::Null)
    });
    let again = Live::start(new, Value::Null, live.history.clone());
    let Some(End::Diverged(d)) = again.end else { panic!("{:?}", again.end) };
    assert_eq!(d.step, StepId("2".into()));
    let text = d.to_string();
    assert!(text.contains("tool \"charge\"") && text.contains("tool \"invoice\""), "{text}");
    assert_eq!(text.matches("it/driver.rs:").count(), 2, "{text}");
    // Other arguments under a known step are a divergence too.
    let other = FlowSpec::new("f", |ctx: Ctx, _: Value| async move {
        let _: Value = ctx.tool("reserve", 7).await?;
        Ok(Value::Null)
    });
    let again = Live::start(other, Value::Null, live.history.clone());
    assert!(matches!(again.end, Some(End::Diverged(_))), "{:?}", again.end);
    // And so is a flow that ends before its history does.
    let short = FlowSpec::new("f", |ctx: Ctx, _: Value| async move {
        let _: Value = ctx.tool("reserve", 1).await?;
        Ok(Value::Null)
    });
    let again = Live::start(short, Value::Null, live.history.clone());
    let Some(End::Diverged(d)) = again.end else { panic!("{:?}", again.end) };
    assert!(d.to_string().contains("nothing after"), "{d}");
}

#[test]
fn steps_are_numbered_when_they_are_called_not_when_they_are_polled() {
    let flow = FlowSpec::new("f", |ctx: Ctx, swap: bool| async move {
        let (a, b) = (ctx.tool::<Value>("a", 1), ctx.tool::<Value>("b", 2));
        if swap {
            let _ = ctx.join(b, a).await;
        } else {
            let _ = ctx.join(a, b).await;
        }
        Ok(Value::Null)
    });
    let ids = |swap| {
        let live = Live::start(flow.clone(), json!(swap), History::default());
        let named = |a: &Asked| (a.step.to_string(), a.ask.shape().to_string());
        live.open.iter().map(named).collect::<BTreeSet<_>>()
    };
    assert_eq!(ids(false), ids(true));
}

#[test]
fn the_same_name_twice_is_another_key() {
    let flow = FlowSpec::new("f", |ctx: Ctx, _: Value| async move {
        let _ = ctx.join(ctx.wait_signal::<Value>("x"), ctx.wait_signal::<Value>("x")).await;
        Ok(Value::Null)
    });
    let live = Live::start(flow, Value::Null, History::default());
    let keys: Vec<String> = live.open.iter().map(|a| a.ask.shape().to_string()).collect();
    assert_eq!(keys, ["wait for signal \"x\"", "wait for signal \"x#2\""]);
}

#[test]
fn a_flow_that_makes_a_value_too_deep_to_be_read_back_is_stopped() {
    let nested = |levels: usize| (0..levels).fold(Value::Null, |inner, _| json!([inner]));
    let flow = |calls: bool| {
        FlowSpec::new("f", move |ctx: Ctx, value: Value| async move {
            if calls {
                let _: Value = ctx.tool("t", value.clone()).await?;
            }
            Ok(value)
        })
    };
    let fits = Live::start(flow(false), nested(200), History::default());
    assert!(matches!(fits.end, Some(End::Returned(Ok(_)))), "{:?}", fits.end);
    for (calls, what) in [(false, "the output of the flow"), (true, "the input of step")] {
        let live = Live::start(flow(calls), nested(201), History::default());
        let Some(End::Broken(why)) = &live.end else { panic!("{:?}", live.end) };
        assert!(why.starts_with(what) && why.contains("deeper than 200 levels"), "{why}");
    }
}

#[test]
fn a_flow_that_is_woken_from_elsewhere_is_stopped() {
    let (send, receive) = tokio::sync::oneshot::channel::<()>();
    let receive = std::sync::Arc::new(std::sync::Mutex::new(Some(receive)));
    let flow = FlowSpec::new("f", move |ctx: Ctx, _: Value| {
        let receive = receive.lock().unwrap().take();
        async move {
            let both =
                ctx.join(ctx.sleep(Duration::from_secs(9)), async move { receive.unwrap().await });
            let _ = both.await;
            let _: Value = ctx.tool("after", 1).await?;
            Ok(Value::Null)
        }
    });
    let mut live = Live::start(flow, Value::Null, History::default());
    assert!(live.end.is_none());
    send.send(()).unwrap();
    live.answer(0);
    let Some(End::Broken(why)) = &live.end else { panic!("{:?}", live.end) };
    assert!(why.contains("did not come from its ctx"), "{why}");
}
