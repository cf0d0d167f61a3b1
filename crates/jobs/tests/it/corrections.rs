//! What a person says about an unknown effect is checked, and can be corrected while nothing has come of it.

use crate::support::{Outside, World};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tenure_jobs::{
    ask::{self, AskError, ResolveAnswer, ResolveAsk},
    drive::JobOptions,
    submit::{ForkAsk, SubmitError},
    view::{self, Repeat},
};
use tenure_kernel::ids::EntityId;
use tenure_steps::{
    Ctx, FlowError, StepError,
    events::{StepId, Verdict},
    flow::{FlowSpec, Flows},
    tool::{ToolCtx, ToolError, ToolSpec, Tools},
};

fn quick() -> JobOptions {
    JobOptions { backoff: Duration::from_millis(5), ..JobOptions::default() }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
struct Receipt {
    receipt: String,
    cents: u32,
}

/// A payment of which nobody knows whether it happened, while `doubtful`.
fn pay(outside: &Outside, doubtful: &Arc<AtomicBool>) -> ToolSpec {
    let (outside, doubtful) = (outside.clone(), doubtful.clone());
    ToolSpec::new("pay", move |ctx: ToolCtx, _: Value| {
        outside.act(&ctx.key);
        let doubtful = doubtful.load(Ordering::SeqCst);
        async move {
            match doubtful {
                true => Err(ToolError::Unknown("the line went dead".into())),
                false => Ok(Receipt { receipt: "of the bank".into(), cents: 5 }),
            }
        }
    })
    .irreversible()
}

/// Pays, and fails if the receipt is not what it asks for. With `then`, it does something with the receipt first.
fn purchase(then: bool) -> FlowSpec {
    FlowSpec::new("purchase", move |ctx: Ctx, _: Value| async move {
        let paid: Receipt = ctx.tool("pay", json!(5)).await?;
        if then {
            ctx.tool::<Value>("note", paid.clone()).await?;
        }
        match paid.receipt.starts_with("R-") {
            true => Ok::<_, FlowError>(json!(paid.receipt)),
            false => Err(FlowError::Failed(format!("{} is no receipt", paid.receipt))),
        }
    })
}

struct Shop {
    world: World,
    outside: Outside,
    doubtful: Arc<AtomicBool>,
    job: EntityId,
}

/// A job that has paid, and nobody knows whether.
async fn in_doubt(flow: FlowSpec) -> Shop {
    let (outside, doubtful) = (Outside::default(), Arc::new(AtomicBool::new(true)));
    let tools = Tools::default().with(pay(&outside, &doubtful)).with(outside.tool("note"));
    let world = World::start(Flows::default().with(flow), tools, quick()).await;
    let job = world.submit("purchase", Value::Null).await;
    world.until(job, "attention").await;
    Shop { world, outside, doubtful, job }
}

fn word(step: &str, verdict: Verdict, result: Value) -> ResolveAsk {
    let (step, by) = (StepId(step.into()), Some("ann".into()));
    ResolveAsk { step, verdict, result, by, note: Some("I looked".into()), correct: false }
}

fn happened(receipt: &str) -> ResolveAsk {
    word("1", Verdict::Happened, json!({ "receipt": receipt, "cents": 5 }))
}

fn corrected(ask: ResolveAsk) -> ResolveAsk {
    ResolveAsk { correct: true, ..ask }
}

impl Shop {
    async fn say(&self, job: EntityId, ask: ResolveAsk) -> Result<ResolveAnswer, AskError> {
        ask::resolve(&self.world.node.pipeline, job, None, ask).await
    }

    /// Somebody says that it happened, with a receipt that the flow refuses.
    async fn with_a_wrong_word(&self) {
        assert_eq!(self.say(self.job, happened("X-1")).await.unwrap(), ResolveAnswer::Accepted);
        self.world.until(self.job, "failed").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_the_tool_could_not_have_returned_is_refused_with_its_place() {
    let shop = in_doubt(purchase(false)).await;
    for (result, place) in
        [(Value::Null, "at result: null"), (json!({"receipt": 1, "cents": 5}), "at result/receipt")]
    {
        let no = shop.say(shop.job, word("1", Verdict::Happened, result)).await.unwrap_err();
        assert!(matches!(&no, AskError::BadResult { tool, .. } if tool == "pay"), "{no}");
        assert!(no.to_string().contains(place), "{no}");
    }
    assert_eq!(shop.world.head(shop.job).await.status.name(), "attention");
    assert_eq!(shop.say(shop.job, happened("R-1")).await.unwrap(), ResolveAnswer::Accepted);
    let output = shop.world.until(shop.job, "completed").await.output;
    assert_eq!(output, Some(json!("R-1")));
    assert_eq!(shop.outside.total(), 1);
    shop.world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_word_about_a_failed_job_is_corrected_beside_its_history_and_its_retry_goes_on_from_it() {
    let shop = in_doubt(purchase(false)).await;
    shop.with_a_wrong_word().await;
    let (world, job) = (&shop.world, shop.job);
    // It has to be asked for: somebody who did not know of the first word is told.
    let no = shop.say(job, happened("R-1")).await.unwrap_err();
    assert!(matches!(no, AskError::NotUnknown { .. }), "{no}");
    let bad = corrected(word("1", Verdict::Happened, Value::Null));
    assert!(matches!(shop.say(job, bad).await, Err(AskError::BadResult { .. })));
    let version = world.head(job).await.version;
    for (receipt, answer) in [
        ("X-1", ResolveAnswer::Duplicate),
        ("X-2", ResolveAnswer::RecordedAfterTheEnd),
        ("X-2", ResolveAnswer::Duplicate),
        ("X-1", ResolveAnswer::RecordedAfterTheEnd),
        ("R-1", ResolveAnswer::RecordedAfterTheEnd),
    ] {
        assert_eq!(shop.say(job, corrected(happened(receipt))).await.unwrap(), answer, "{receipt}");
    }
    assert_eq!(world.head(job).await.version, version, "nothing is overwritten");
    let retry = world.jobs.fork(job, None, None, None).await.unwrap().id;
    assert_eq!(world.until(retry, "completed").await.output, Some(json!("R-1")));
    assert_eq!(shop.outside.total(), 1);
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_did_not_happen_after_all_is_done_by_the_retry_and_what_is_retried_can_be_corrected() {
    let shop = in_doubt(purchase(false)).await;
    shop.with_a_wrong_word().await;
    let (world, job) = (&shop.world, shop.job);
    // A retry without a correction fails in the same way; what it took over can be corrected as well.
    let retry = world.jobs.fork(job, None, None, None).await.unwrap().id;
    world.until(retry, "failed").await;
    let no = corrected(word("1", Verdict::DidNotHappen, Value::Null));
    let said = shop.say(retry, no).await.unwrap();
    assert_eq!(said, ResolveAnswer::RecordedAfterTheEnd);
    shop.doubtful.store(false, Ordering::SeqCst);
    let again = world.jobs.fork(retry, None, None, None).await.unwrap().id;
    let failure = world.until(again, "failed").await.failure.unwrap();
    assert!(failure.error.contains("of the bank is no receipt"), "{failure:?}");
    assert_eq!(shop.outside.total(), 2);
    // What a worker has seen is nobody's to correct.
    let no = shop.say(again, corrected(happened("R-1"))).await.unwrap_err();
    assert!(matches!(no, AskError::NotCorrectable { .. }), "{no}");
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_used_the_wrong_result_is_not_taken_over() {
    let shop = in_doubt(purchase(true)).await;
    shop.with_a_wrong_word().await;
    let (world, job) = (&shop.world, shop.job);
    let said = shop.say(job, corrected(happened("R-1"))).await.unwrap();
    assert_eq!(said, ResolveAnswer::RecordedAfterTheEnd);
    let no = world.jobs.fork(job, None, None, None).await.unwrap_err();
    let SubmitError::WouldRepeat(why) = no else { panic!("{no}") };
    assert!(why.contains("step 2 of job") && why.contains("--step 2"), "{why}");
    let fork = world.jobs.fork(job, Some(StepId("2".into())), None, None).await.unwrap().id;
    assert_eq!(world.until(fork, "completed").await.output, Some(json!("R-1")));
    let detail = view::detail(&world.store, fork).await.unwrap().unwrap();
    let noted = detail.steps.iter().find(|s| s.step.0 == "2").unwrap();
    assert!(noted.arguments.as_ref().unwrap().contains("R-1"), "{noted:?}");
    world.check().await;
}

/// Two payments at once, of which nobody knows whether they happened; both receipts are asked for.
fn two() -> FlowSpec {
    FlowSpec::new("purchase", |ctx: Ctx, _: Value| async move {
        let paid = ctx.parallel(0..2, |ctx, n| async move {
            let paid: Receipt = ctx.tool("pay", json!(n)).await?;
            Ok::<_, StepError>(paid.receipt)
        });
        let paid: Result<Vec<_>, _> = paid.await.into_iter().collect();
        Ok::<_, FlowError>(json!(paid?))
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_word_about_a_job_in_attention_is_corrected_by_one_more_event() {
    let shop = in_doubt(two()).await;
    let (world, job) = (&shop.world, shop.job);
    world
        .until_state(job, "both are unknown", |s| {
            s.calls.iter().filter(|c| c.unknown.is_some()).count() == 2 && s.attention.is_some()
        })
        .await;
    let of =
        |step: &str, receipt: &str| ResolveAsk { step: StepId(step.into()), ..happened(receipt) };
    // The other one keeps it in attention.
    let rests = async || {
        world
            .until_state(job, "one is unknown", |s| {
                s.attention.is_some() && s.calls.iter().filter(|c| c.unknown.is_some()).count() == 1
            })
            .await;
    };
    assert_eq!(shop.say(job, of("1.1", "X-1")).await.unwrap(), ResolveAnswer::Accepted);
    rests().await;
    assert_eq!(shop.say(job, corrected(of("1.1", "R-1"))).await.unwrap(), ResolveAnswer::Corrected);
    rests().await;
    assert!(matches!(shop.say(job, of("1.1", "R-9")).await, Err(AskError::NotUnknown { .. })));
    let again = shop.say(job, corrected(of("1.1", "R-1"))).await.unwrap();
    assert_eq!(again, ResolveAnswer::Duplicate);
    assert_eq!(shop.say(job, of("2.1", "R-2")).await.unwrap(), ResolveAnswer::Accepted);
    let output = world.until(job, "completed").await.output;
    assert_eq!(output, Some(json!(["R-1", "R-2"])));
    assert_eq!(world.count(job, "effect_settled").await, 2, "what was said stays on record");
    assert_eq!(world.count(job, "effect_corrected").await, 1);
    assert_eq!(shop.outside.total(), 2);
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_repeats_what_is_irreversible_only_if_that_is_asked_for() {
    let shop = in_doubt(purchase(true)).await;
    let (world, job) = (&shop.world, shop.job);
    assert_eq!(shop.say(job, happened("R-1")).await.unwrap(), ResolveAnswer::Accepted);
    world.until(job, "completed").await;
    shop.doubtful.store(false, Ordering::SeqCst);
    let before = Some(StepId("1".into()));
    let no = world.jobs.fork(job, before.clone(), None, None).await.unwrap_err();
    let SubmitError::WouldRepeat(why) = no else { panic!("{no}") };
    assert!(why.contains("step 1 of job") && why.contains("\"pay\""), "{why}");
    assert!(why.contains("irreversible") && why.contains("--repeat"), "{why}");
    assert_eq!(shop.outside.total(), 2);
    let repeat = Repeat::Irreversible;
    let ask = ForkAsk { before, repeat, ..ForkAsk::default() };
    let fork = world.jobs.fork_once(job, ask).await.unwrap().id;
    world.until(fork, "failed").await;
    assert_eq!(shop.outside.total(), 4);
    // What may be done again by its class needs no more than the step.
    let fork = world.jobs.fork(job, Some(StepId("2".into())), None, None).await.unwrap().id;
    world.until(fork, "completed").await;
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_does_not_repeat_what_a_child_did_for_good() {
    let (outside, doubtful) = (Outside::default(), Arc::new(AtomicBool::new(false)));
    let tools = Tools::default().with(pay(&outside, &doubtful));
    let child = FlowSpec::new("child", |ctx: Ctx, _: Value| async move {
        let paid: Receipt = ctx.tool("pay", json!(5)).await?;
        Ok::<_, FlowError>(json!(paid.receipt))
    });
    let parent = FlowSpec::new("parent", |ctx: Ctx, _: Value| async move {
        Ok::<_, FlowError>(ctx.child::<Value>("child", Value::Null).await?)
    });
    let flows = Flows::default().with(child).with(parent);
    let world = World::start(flows, tools, quick()).await;
    let job = world.submit("parent", Value::Null).await;
    world.until(job, "completed").await;
    let no = world.jobs.fork(job, Some(StepId("1".into())), None, None).await.unwrap_err();
    let SubmitError::WouldRepeat(why) = no else { panic!("{no}") };
    assert!(why.contains("child \"child\" with step 1"), "{why}");
    assert_eq!(outside.total(), 1);
    world.check().await;
}
