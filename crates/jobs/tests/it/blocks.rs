//! What an operator has blocked is not run, nothing is lost by it, and it goes on when the block is removed.

use crate::support::World;
use serde_json::{Value, json};
use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::SeqCst},
};
use tenure_engine::blocks;
use tenure_jobs::{drive::JobOptions, submit::Submission};
use tenure_kernel::blocks::BlockKind;
use tenure_steps::{
    Ctx, FlowError, ToolCtx, flow::FlowSpec, flow::Flows, tool::ToolSpec, tool::Tools,
};
use tokio::sync::Notify;

#[derive(Clone, Default)]
struct Outside {
    began: Arc<Notify>,
    go_on: Arc<Notify>,
    second: Arc<AtomicU32>,
}

async fn world(outside: &Outside) -> World {
    let (first, second) = (outside.clone(), outside.clone());
    let tools = Tools::default()
        .with(
            ToolSpec::new("first", move |_: ToolCtx, v: Value| {
                let outside = first.clone();
                async move {
                    outside.began.notify_one();
                    outside.go_on.notified().await;
                    Ok(v)
                }
            })
            .idempotent(),
        )
        .with(
            ToolSpec::new("second", move |_: ToolCtx, v: Value| {
                let outside = second.clone();
                async move {
                    outside.second.fetch_add(1, SeqCst);
                    Ok(v)
                }
            })
            .idempotent(),
        );
    let two = |ctx: Ctx, input: Value| async move {
        let one: Value = ctx.tool("first", input).await?;
        Ok::<_, FlowError>(ctx.tool::<Value>("second", one).await?)
    };
    let one = |ctx: Ctx, input: Value| async move { Ok(ctx.tool::<Value>("second", input).await?) };
    let flows = Flows::default().with(FlowSpec::new("two", two)).with(FlowSpec::new("one", one));
    World::start(flows, tools, JobOptions::default()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_job_of_a_blocked_flow_finishes_its_step_and_goes_back_to_its_queue() {
    for kind in [BlockKind::Flow, BlockKind::Tenant] {
        let outside = Outside::default();
        let world = world(&outside).await;
        let (flow, tenant) = ("two".to_owned(), "acme".to_owned());
        let submission = Submission { flow, tenant, input: json!(1), ..Submission::default() };
        let job = world.jobs.submit(submission).await.unwrap().id;
        outside.began.notified().await;
        let pipeline = &world.node.pipeline;
        let name = match kind {
            BlockKind::Tenant => world.head(job).await.tenant,
            _ => "two".to_owned(),
        };
        blocks::set(pipeline, kind, &name, "it misbehaves", "ada").await.unwrap();
        outside.go_on.notify_one();
        let state = world.until(job, "queued").await;
        assert_eq!((state.steps, state.takeovers), (1, 0), "the step that ran is on record");
        // The worker is there, and has room for others.
        if kind == BlockKind::Flow {
            let other = world.submit("one", json!(2)).await;
            world.until(other, "completed").await;
            assert_eq!(outside.second.swap(0, SeqCst), 1);
        }
        assert_eq!(
            (world.head(job).await.status.name(), outside.second.load(SeqCst)),
            ("queued", 0)
        );
        blocks::remove(pipeline, kind, &name, "ada").await.unwrap();
        assert_eq!(world.until(job, "completed").await.output, Some(json!(1)));
        assert_eq!(outside.second.load(SeqCst), 1);
        world.check().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_whose_tool_is_blocked_waits_and_is_called_once_afterwards() {
    let outside = Outside::default();
    let world = world(&outside).await;
    let pipeline = &world.node.pipeline;
    blocks::set(pipeline, BlockKind::Tool, "second", "it misbehaves", "ada").await.unwrap();
    let job = world.submit("one", json!(7)).await;
    world.until(job, "waiting").await;
    assert_eq!(outside.second.load(SeqCst), 0);
    let detail = tenure_jobs::view::detail(&world.store, job).await.unwrap().unwrap();
    let said = detail.job.blocked.expect("what it waits for");
    assert!(said.contains("tool second") && said.contains("it misbehaves"), "{said}");
    blocks::remove(pipeline, BlockKind::Tool, "second", "ada").await.unwrap();
    assert_eq!(world.until(job, "completed").await.output, Some(json!(7)));
    assert_eq!(outside.second.load(SeqCst), 1);
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_a_blocked_flow_that_comes_into_being_is_queued() {
    let outside = Outside::default();
    let world = world(&outside).await;
    let pipeline = &world.node.pipeline;
    blocks::set(pipeline, BlockKind::Flow, "one", "it misbehaves", "ada").await.unwrap();
    let job = world.submit("one", json!(7)).await;
    assert_eq!(world.head(job).await.status.name(), "queued");
    blocks::remove(pipeline, BlockKind::Flow, "one", "ada").await.unwrap();
    world.until(job, "completed").await;
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_are_checked_counted_and_on_record() {
    use tenure_engine::blocks::BlockError;
    use tenure_kernel::blocks::{BLOCKS_MAX, book_id};
    let world = world(&Outside::default()).await;
    let pipeline = &world.node.pipeline;
    let set = async |name: &str, why: &str| {
        blocks::set(pipeline, BlockKind::Flow, name, why, "ada").await
    };
    for (name, why) in [("", "x"), ("a\nb", "x"), ("a", " "), ("a", &"x".repeat(201))] {
        assert!(matches!(set(name, why).await, Err(BlockError::Bad { .. })), "{name:?} {why:?}");
    }
    assert!(world.store.head(book_id()).await.unwrap().is_none(), "nothing was written");
    let first = set("a", "x").await.unwrap();
    let again = set("a", "y").await.unwrap();
    assert_eq!((first.since, again.why.as_str()), (again.since, "y"));
    for n in 1..BLOCKS_MAX {
        set(&format!("f{n}"), "x").await.unwrap();
    }
    assert!(matches!(set("one-more", "x").await, Err(BlockError::Bad { field: "name", .. })));
    blocks::remove(pipeline, BlockKind::Flow, "a", "bob").await.unwrap();
    let gone = blocks::remove(pipeline, BlockKind::Flow, "a", "bob").await;
    assert!(matches!(gone, Err(BlockError::Absent(..))));
    set("one-more", "x").await.unwrap();
    assert_eq!(world.count(book_id(), "block_removed").await, 1);
    assert_eq!(world.count(book_id(), "block_set").await, BLOCKS_MAX + 2);
    world.check().await;
}
