//! Tools that one Rust worker has and another has not: whoever claims a job, its calls reach them.

use super::support::{Outside, World, config};
use serde_json::{Value, json};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};
use tenure_jobs::{
    crew::{Crew, CrewOptions},
    drive::{JobOptions, Shop},
};
use tenure_kernel::{
    error::StoreError, head::Head, ids::EntityId, machine::Machine as _, runtime::BoxFuture,
    store::Store, stream::Record,
};
use tenure_proving::layer::{Layer, Layered};
use tenure_steps::{
    Ctx, FlowError,
    flow::{FlowSpec, Flows},
    tool::{ToolCtx, ToolError, ToolSpec, Tools},
};
use tokio::sync::Notify;

fn flows() -> Flows {
    Flows::default().with(FlowSpec::new("uses", |ctx: Ctx, input: Value| async move {
        let tool = input["tool"].as_str().unwrap_or_default().to_owned();
        Ok::<Value, FlowError>(ctx.tool::<Value>(&tool, input["input"].clone()).await?)
    }))
}

fn quick() -> JobOptions {
    let (stop_grace, backoff) = (Duration::from_millis(50), Duration::from_millis(20));
    JobOptions { stop_grace, backoff, ..JobOptions::default() }
}

/// Another worker on the same store, which lends what it has. It runs no jobs unless it has flows.
async fn lender(world: &World, flows: Flows, tools: Tools) -> Crew {
    let names: Vec<String> = tools.iter().map(|t| t.name.clone()).collect();
    let shop = Arc::new(Shop::new(flows, tools, quick()).lending(names));
    let options = CrewOptions {
        name: "lender".into(),
        executor: tenure_edge::executor_of_this_process(),
        slots: 8,
        drain: Duration::from_secs(5),
    };
    Crew::start(world.node.pipeline.clone(), Arc::new(config()), shop, options).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_uses_a_tool_of_another_worker_whoever_claims_it() {
    let outside = Outside::default();
    let world = World::start(flows(), Tools::default(), quick()).await;
    // Both run the flow; one of them has the tool.
    let mut other = lender(&world, flows(), Tools::default().with(outside.tool("book"))).await;
    let mut jobs = Vec::new();
    for n in 0..20 {
        jobs.push(world.submit("uses", json!({ "tool": "book", "input": n })).await);
    }
    for (n, job) in jobs.iter().enumerate() {
        assert_eq!(world.until(*job, "completed").await.output, Some(json!({ "did": n })));
    }
    assert_eq!(outside.total(), 20, "each once");
    other.stop().await;
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn how_a_lent_tool_ends_is_how_the_step_ends() {
    let world = World::start(flows(), Tools::default(), quick()).await;
    let tried = Arc::new(AtomicU32::new(0));
    let counted = tried.clone();
    let tools = Tools::default()
        .with(
            ToolSpec::new("shaky", move |_: ToolCtx, _: Value| {
                let nth = counted.fetch_add(1, SeqCst);
                async move {
                    match nth {
                        0 => Err(ToolError::retryable("not now")),
                        _ => Ok(json!("then")),
                    }
                }
            })
            .retries(2, Duration::from_millis(5))
            .idempotent(),
        )
        .with(
            ToolSpec::new("broken", |_: ToolCtx, _: Value| async move {
                Err::<Value, _>(ToolError::permanent("it is broken"))
            })
            .idempotent(),
        )
        .with(
            ToolSpec::new("panics", |_: ToolCtx, input: Value| async move {
                assert!(input.is_string(), "no text");
                Ok::<Value, ToolError>(Value::Null)
            })
            .irreversible(),
        )
        .with(
            ToolSpec::new("slow", |_: ToolCtx, _: Value| {
                std::future::pending::<Result<Value, ToolError>>()
            })
            .timeout(Duration::from_millis(50))
            .irreversible(),
        );
    let mut other = lender(&world, Flows::default(), tools).await;
    let shaky = world.submit("uses", json!({ "tool": "shaky" })).await;
    assert_eq!(world.until(shaky, "completed").await.output, Some(json!("then")));
    let broken = world.submit("uses", json!({ "tool": "broken" })).await;
    let failure = world.until(broken, "failed").await.failure.unwrap();
    assert!(failure.error.contains("it is broken"), "{failure:?}");
    // What may have happened is a person's to say, as for a tool of one's own.
    for tool in ["panics", "slow"] {
        let job = world.submit("uses", json!({ "tool": tool, "input": 7 })).await;
        world.until(job, "attention").await;
    }
    other.stop().await;
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_reaches_a_lent_tool() {
    let world = World::start(flows(), Tools::default(), quick()).await;
    let (began, noticed) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begins, notices) = (began.clone(), noticed.clone());
    let tool = ToolSpec::new("listens", move |ctx: ToolCtx, _: Value| {
        let (began, noticed) = (begins.clone(), notices.clone());
        async move {
            began.notify_one();
            ctx.cancelled().await;
            noticed.notify_one();
            Err::<Value, _>(ToolError::Cancelled)
        }
    });
    let mut other =
        lender(&world, Flows::default(), Tools::default().with(tool.idempotent())).await;
    let job = world.submit("uses", json!({ "tool": "listens" })).await;
    let bound = Duration::from_secs(20);
    tokio::time::timeout(bound, began.notified()).await.expect("the tool begins");
    world.cancel(job).await;
    tokio::time::timeout(bound, noticed.notified()).await.expect("the tool is told");
    world.until(job, "cancelled").await;
    other.stop().await;
    world.check().await;
}

/// What a store fails with, once for each that is set, and only where it is asked about calls.
#[derive(Clone, Default)]
struct Fails {
    stream: Arc<Mutex<Vec<StoreError>>>,
    head: Arc<Mutex<Vec<StoreError>>>,
}

struct Faulty(Arc<dyn Store>, Fails);

impl Faulty {
    async fn is_call(&self, id: EntityId) -> bool {
        let head = self.0.head(id).await;
        head.is_ok_and(|h| h.is_some_and(|h| h.kind() == tenure_jobs::call::Call::TABLE.kind))
    }

    async fn fails(&self, id: EntityId, with: &Mutex<Vec<StoreError>>) -> Result<(), StoreError> {
        let is_call = self.is_call(id).await;
        match is_call.then(|| with.lock().unwrap().pop()).flatten() {
            Some(e) => Err(e),
            None => Ok(()),
        }
    }
}

impl Layer for Faulty {
    fn under(&self) -> &dyn Store {
        &*self.0
    }

    fn head(&self, id: EntityId) -> BoxFuture<'_, Result<Option<Head>, StoreError>> {
        Box::pin(async move {
            self.fails(id, &self.1.head).await?;
            self.0.head(id).await
        })
    }

    fn stream(
        &self,
        entity: EntityId,
        from: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Record>, StoreError>> {
        Box::pin(async move {
            self.fails(entity, &self.1.stream).await?;
            self.0.stream(entity, from, limit).await
        })
    }
}

/// Nobody is asked about an irreversible call because a store was away for a moment, before it or after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_fails_for_a_moment_costs_neither_a_call_nor_its_result() {
    let fails = Fails::default();
    let away = || StoreError::Unavailable("for a moment".into());
    // One that is asked again, and one with which the call goes back to its queue.
    fails.stream.lock().unwrap().extend([StoreError::Corrupt("once".into()), away()]);
    let store: Arc<dyn Store> = Arc::new(Layered(Faulty(super::support::store(), fails.clone())));
    let world = World::on(store, flows(), Tools::default(), quick()).await;
    let (outside, after) = (Outside::default(), fails.clone());
    let counted = outside.clone();
    let tool = ToolSpec::new("pay", move |ctx: ToolCtx, input: Value| {
        let (counted, after) = (counted.clone(), after.clone());
        async move {
            counted.act(&ctx.key);
            after.head.lock().unwrap().extend([away(), away()]);
            Ok::<_, ToolError>(json!(input.as_str().map(str::len)))
        }
    });
    let tools = Tools::default().with(tool.irreversible());
    let mut other = lender(&world, Flows::default(), tools).await;
    // So large that it is not in the head of the call: it is read from its stream.
    let input = "x".repeat(100_000);
    let job = world.submit("uses", json!({ "tool": "pay", "input": input })).await;
    assert_eq!(world.until(job, "completed").await.output, Some(json!(100_000)));
    assert_eq!(outside.total(), 1);
    assert!(fails.stream.lock().unwrap().is_empty() && fails.head.lock().unwrap().is_empty());
    other.stop().await;
    world.check().await;
}

/// A worker that dies with a call in its hands: the call is lost, and what settles it is its class.
#[tokio::test(flavor = "multi_thread")]
async fn a_lender_that_is_gone_loses_its_call_and_the_next_one_makes_it() {
    let world = World::start(flows(), Tools::default(), quick()).await;
    let began = Arc::new(Notify::new());
    let begins = began.clone();
    let hangs = ToolSpec::new("work", move |_: ToolCtx, _: Value| {
        let began = begins.clone();
        async move {
            began.notify_one();
            std::future::pending::<Result<Value, ToolError>>().await
        }
    });
    let first = lender(&world, Flows::default(), Tools::default().with(hangs.idempotent())).await;
    let job = world.submit("uses", json!({ "tool": "work", "input": 3 })).await;
    let bound = Duration::from_secs(20);
    tokio::time::timeout(bound, began.notified()).await.expect("the tool begins");
    // It is dropped with its session, and never says a word.
    drop(first);
    let works =
        ToolSpec::new("work", |_: ToolCtx, input: Value| async move { Ok::<_, ToolError>(input) });
    let mut next =
        lender(&world, Flows::default(), Tools::default().with(works.idempotent())).await;
    assert_eq!(world.until(job, "completed").await.output, Some(json!(3)));
    next.stop().await;
    world.check().await;
}
