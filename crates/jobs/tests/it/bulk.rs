//! One ask for many jobs: what was shown is what is done, once, within the tenant, and nothing that is newer.

use crate::support::{World, config};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tenure_jobs::{
    bulk::{self, Action, Filter, Order},
    crew::{Crew, CrewOptions},
    drive::{JobOptions, Shop},
    submit::Submission,
};
use tenure_kernel::{head::Head, ids::EntityId};
use tenure_steps::{
    Ctx, ToolError,
    events::WaitOutcome,
    flow::{FlowSpec, Flows},
    tool::{ToolCtx, ToolSpec, Tools},
};
use tokio::sync::Semaphore;

fn flows() -> Flows {
    Flows::default()
        .with(FlowSpec::new("waits", |ctx: Ctx, _: Value| async move {
            let a: Value = ctx.wait_signal("a").await?;
            Ok(a)
        }))
        .with(FlowSpec::new("works", |ctx: Ctx, _: Value| async move {
            let _: Value = ctx.tool("enter", json!(1)).await?;
            let a: Value = ctx.wait_signal("a").await?;
            Ok(a)
        }))
        .with(FlowSpec::new("breaks", |ctx: Ctx, _: Value| async move {
            let a: Value = ctx.tool("broken", json!(1)).await?;
            Ok(a)
        }))
}

struct Office {
    world: World,
    house: Crew,
    /// The flow `works` waits here in its first step.
    door: Arc<Semaphore>,
}

async fn office() -> Office {
    let broken = ToolSpec::new("broken", |_: ToolCtx, _: Value| async move {
        Err::<Value, _>(ToolError::permanent("it is broken"))
    });
    let door = Arc::new(Semaphore::new(0));
    let here = door.clone();
    let enter = ToolSpec::new("enter", move |_: ToolCtx, v: Value| {
        let door = here.clone();
        async move {
            door.acquire().await.map_err(ToolError::permanent)?.forget();
            Ok(v)
        }
    });
    let tools = Tools::default().with(broken.idempotent()).with(enter.idempotent());
    let world = World::start(flows(), tools, JobOptions::default()).await;
    let pipeline = &world.node.pipeline;
    let shop = Shop::new(
        Flows::default().with(bulk::flow()),
        bulk::tools(pipeline, &world.jobs),
        JobOptions::default(),
    );
    let options = CrewOptions {
        name: "house".into(),
        executor: tenure_edge::executor_of_this_process(),
        slots: 4,
        drain: Duration::ZERO,
    };
    let house =
        Crew::start_as("house", pipeline.clone(), Arc::new(config()), Arc::new(shop), options);
    let house = house.await.unwrap();
    Office { world, house, door }
}

impl Office {
    async fn waiting(&self, tenant: &str, count: usize) -> Vec<EntityId> {
        let mut ids = Vec::new();
        for _ in 0..count {
            let (flow, tenant) = ("waits".to_owned(), tenant.to_owned());
            let submission = Submission { flow, tenant, ..Submission::default() };
            ids.push(self.world.jobs.submit(submission).await.unwrap().id);
        }
        for id in &ids {
            self.world.until_seen(*id, "wait_opened").await;
            self.world.until(*id, "parked").await;
        }
        ids
    }

    async fn order(&self, action: Action, filter: Filter) -> Order {
        let horizon = self.world.store.now().await.unwrap();
        Order { action, filter, horizon, by: Some("ada".into()) }
    }

    async fn run(&self, tenant: &str, order: &Order) -> (EntityId, Value) {
        let submission = Submission {
            flow: bulk::FLOW.into(),
            input: json!({ "order": order }),
            tenant: tenant.into(),
            ..Submission::default()
        };
        let id = self.world.jobs.submit(submission).await.unwrap().id;
        let state = self.world.until(id, "completed").await;
        (id, state.output.unwrap())
    }

    async fn close(mut self) {
        self.world.check().await;
        self.house.stop().await;
    }
}

fn parked() -> Filter {
    Filter { flow: Some("waits".into()), status: vec!["parked".into()], ..Filter::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_shown_is_done_and_nothing_newer_nor_of_another_tenant() {
    let office = office().await;
    let mine = office.waiting("mine", 130).await;
    let theirs = office.waiting("theirs", 3).await;
    let order = office.order(Action::Cancel { why: Some("enough".into()) }, parked()).await;
    let preview = bulk::preview(&office.world.store, &order, "mine").await.unwrap();
    assert_eq!((preview.count, preview.exact, preview.first.len()), (130, true, 20));
    assert!(preview.skipped.is_empty());
    let newer = office.waiting("mine", 2).await;
    let (bulk_job, account) = office.run("mine", &order).await;
    assert_eq!(account, json!({ "done": 130, "skipped": {}, "failed": {} }));
    for id in &mine {
        let state = office.world.until(*id, "cancelled").await;
        let (by, why) = state.cancel.unwrap();
        assert_eq!(why.as_deref(), Some("enough"));
        assert_eq!(by.unwrap(), format!("ada (bulk {bulk_job})"));
        assert_eq!(office.world.head(*id).await.mail_count, 1);
    }
    for id in theirs.iter().chain(&newer) {
        assert_eq!(office.world.head(*id).await.status.name(), "parked");
    }
    // The same order again finds nothing that fits, and says why.
    let again = Order { filter: Filter { status: Vec::new(), ..parked() }, ..order };
    let (_, account) = office.run("mine", &again).await;
    assert_eq!(account["skipped"]["finished"], 130);
    assert_eq!(account["done"], 0);
    office.close().await;
}

/// A page is asked again after a crash: its jobs have been asked, and count as done.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_is_asked_again_does_nothing_twice() {
    let office = office().await;
    let jobs = office.waiting("mine", 5).await;
    let (world, bulk_job) = (&office.world, EntityId::fixed(77, 7));
    let pipeline = &world.node.pipeline;
    let pause = office.order(Action::Pause { why: None }, parked()).await;
    for round in 0..2 {
        let acted =
            bulk::act(pipeline, &world.jobs, &pause, (bulk_job, "mine"), &jobs).await.unwrap();
        assert_eq!((acted.done, acted.skipped.len(), acted.failed.len()), (5, 0, 0), "{round}");
    }
    for id in &jobs {
        world.until_paused(*id).await;
        assert_eq!(world.head(*id).await.mail_count, 1);
    }
    let resume = office.order(Action::Resume { why: None }, Filter::default()).await;
    let other = EntityId::fixed(77, 8);
    let acted = bulk::act(pipeline, &world.jobs, &resume, (other, "mine"), &jobs).await.unwrap();
    assert_eq!(acted.done, 5);
    for id in &jobs {
        world.until_seen(*id, "job_resumed").await;
    }
    // Somebody resumed them meanwhile: the late repetition of the pause does not pause them again, nor does the
    // repetition of the resume miss its own.
    for order in [(&pause, bulk_job), (&resume, other)] {
        let acted =
            bulk::act(pipeline, &world.jobs, order.0, (order.1, "mine"), &jobs).await.unwrap();
        assert_eq!((acted.done, acted.skipped.len()), (5, 0), "{}", order.0.action.name());
    }
    for id in &jobs {
        assert!(!world.state(*id).await.paused);
        assert_eq!(world.head(*id).await.mail_count, 2);
    }
    // Another tenant's bulk job reaches none of them.
    let cancel = office.order(Action::Cancel { why: None }, Filter::default()).await;
    let acted =
        bulk::act(pipeline, &world.jobs, &cancel, (bulk_job, "theirs"), &jobs).await.unwrap();
    assert_eq!((acted.done, acted.skipped["not_found"]), (0, 5));
    office.close().await;
}

/// Somebody looked at two paused jobs and let them go on. A third that was paused after that was not looked at.
#[tokio::test(flavor = "multi_thread")]
async fn what_has_changed_since_it_was_shown_is_left_alone() {
    let office = office().await;
    let jobs = office.waiting("mine", 3).await;
    let (world, by) = (&office.world, tenure_jobs::decide::AskMail::default());
    let pipeline = &world.node.pipeline;
    let pause = |id: EntityId| tenure_jobs::ask::pause(pipeline, id, None, by.clone());
    for id in &jobs[..2] {
        pause(*id).await.unwrap();
        world.until_paused(*id).await;
    }
    let order = office.order(Action::Resume { why: None }, parked()).await;
    let preview = bulk::preview(&world.store, &order, "mine").await.unwrap();
    assert_eq!((preview.count, &preview.skipped["not_now"]), (2, &1));
    pause(jobs[2]).await.unwrap();
    world.until_paused(jobs[2]).await;
    // Named by a page before it changed, and found changed when its turn came.
    let stale =
        bulk::act(pipeline, &world.jobs, &order, (EntityId::fixed(77, 9), "mine"), &jobs[2..]);
    assert_eq!(stale.await.unwrap().skipped["changed_since_preview"], 1);
    let (_, account) = office.run("mine", &order).await;
    assert_eq!(
        (&account["done"], &account["skipped"]["changed_since_preview"]),
        (&json!(2), &json!(1))
    );
    assert!(world.state(jobs[2]).await.paused);
    office.close().await;
}

/// A preview of three that wait. A fourth, which is older, comes to wait before the yes.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_came_into_the_filter_after_the_preview_is_not_asked() {
    let office = office().await;
    let (world, tenant) = (&office.world, "mine".to_owned());
    let submission = Submission { flow: "works".into(), tenant, ..Submission::default() };
    let late = world.jobs.submit(submission).await.unwrap().id;
    world.until_seen(late, "tool_invocation_started").await;
    office.waiting("mine", 3).await;
    let filter = Filter { status: vec!["parked".into()], ..Filter::default() };
    let order = office.order(Action::Cancel { why: None }, filter).await;
    assert_eq!(bulk::preview(&world.store, &order, "mine").await.unwrap().count, 3);
    office.door.add_permits(1);
    world.until(late, "parked").await;
    let (_, account) = office.run("mine", &order).await;
    assert_eq!(account["done"], 3, "{account}");
    assert_eq!(account["skipped"]["changed_since_preview"], 1, "{account}");
    assert_eq!(world.head(late).await.status.name(), "parked");
    office.close().await;
}

/// It was paused when it was shown, so there was nothing to pause; then somebody let it go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_the_action_fits_only_since_the_preview_is_not_asked() {
    let office = office().await;
    let jobs = office.waiting("mine", 3).await;
    let (world, by) = (&office.world, tenure_jobs::decide::AskMail::default());
    let pipeline = &world.node.pipeline;
    tenure_jobs::ask::pause(pipeline, jobs[0], None, by.clone()).await.unwrap();
    world.until_paused(jobs[0]).await;
    let order = office.order(Action::Pause { why: None }, parked()).await;
    let shown = bulk::preview(&world.store, &order, "mine").await.unwrap();
    assert_eq!((shown.count, shown.skipped["already"]), (2, 1));
    tenure_jobs::ask::resume(pipeline, jobs[0], None, by).await.unwrap();
    world.until_seen_times(jobs[0], "job_parked", 3).await;
    // Named by a page, and looked at again when its turn comes.
    let bulk_job = (EntityId::fixed(77, 10), "mine");
    let acted = bulk::act(pipeline, &world.jobs, &order, bulk_job, &jobs[..1]).await.unwrap();
    assert_eq!((acted.done, acted.skipped["changed_since_preview"]), (0, 1));
    let (_, account) = office.run("mine", &order).await;
    assert_eq!(account["done"], 2, "{account}");
    assert_eq!(account["skipped"]["changed_since_preview"], 1, "{account}");
    assert!(!world.state(jobs[0]).await.paused);
    office.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_jobs_are_retried_once_or_put_aside_and_waits_are_signalled() {
    let office = office().await;
    let world = &office.world;
    let mut failed = Vec::new();
    for _ in 0..4 {
        let submission =
            Submission { flow: "breaks".into(), tenant: "mine".into(), ..Submission::default() };
        failed.push(world.jobs.submit(submission).await.unwrap().id);
    }
    for id in &failed {
        world.until(*id, "failed").await;
    }
    let of = |reason: &str| Filter {
        reason: Some(reason.into()),
        status: vec!["failed".into()],
        ..Filter::default()
    };
    let retry = office.order(Action::Retry { version: None }, of("step_failed")).await;
    let none = office.order(Action::Retry { version: None }, of("deadline_passed")).await;
    assert_eq!(bulk::preview(&world.store, &none, "mine").await.unwrap().count, 0);
    let (_, account) = office.run("mine", &retry).await;
    assert_eq!(account["done"], 4, "{account}");
    // What it made is newer than the order: a repetition makes nothing.
    let (_, account) = office.run("mine", &retry).await;
    assert_eq!(account["done"], 4);
    let all = tenure_kernel::store::HeadFilter {
        kind: Some("job".into()),
        tenant: Some("mine".into()),
        ..Default::default()
    };
    let heads = world.store.heads(all, 100).await.unwrap();
    let is_retry = |h: &&Head| String::from_utf8_lossy(&h.state).contains("retry_of");
    let retries: Vec<_> = heads.iter().filter(is_retry).map(|h| h.id).collect();
    assert_eq!(retries.len(), 4);
    for id in retries {
        world.until(id, "failed").await;
    }
    let discard = office.order(Action::Discard {}, of("step_failed")).await;
    let (_, account) = office.run("mine", &discard).await;
    assert_eq!(account["done"], 8);
    let letters =
        tenure_jobs::ask::dead_letters(&world.store, Some("mine"), None, 50).await.unwrap();
    assert!(letters.jobs.is_empty());
    let waits = office.waiting("mine", 3).await;
    let signal = |key: &str| Action::Signal {
        key: key.into(),
        outcome: WaitOutcome::Signalled,
        payload: json!(7),
        early: false,
    };
    let wrong = office.order(signal("z"), parked()).await;
    assert_eq!(
        bulk::preview(&world.store, &wrong, "mine").await.unwrap().skipped["nobody_waits"],
        3
    );
    let right = office.order(signal("a"), parked()).await;
    let (_, account) = office.run("mine", &right).await;
    assert_eq!(account["done"], 3);
    for id in waits {
        assert_eq!(world.until(id, "completed").await.output, Some(json!(7)));
    }
    office.close().await;
}
