//! Rate limits on a clock that costs nothing: lines of hours, one real server and one real worker, in fair weather. What
//! foul weather does to limits is the scenario's (`jobs.rs`).

use serde_json::{Value, json};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};
use tenure_bell::InProcess;
use tenure_engine::{
    config::EngineConfig,
    lanes::Discard,
    node::{Node, Parts},
};
use tenure_jobs::{
    Job,
    call::{
        Call,
        desk::{self, Counter, Said},
    },
    catalogue::{CallTool, Catalogue, register_calls},
    crew::{Crew, CrewOptions},
    decide::AskMail,
    drive::{JobOptions, Shop},
    gate::{Gate, GatePage},
    shared::limit::{
        Limit, LimitBook, Spec,
        desk::{Limits, id_of},
        model::EVERYBODY,
        waiting::Waiting,
    },
    submit::{Submission, Submitter},
    view,
};
use tenure_kernel::{
    ids::{EntityId, MailId},
    judge::Judge,
    machine::{Machines, decode_state},
    mail::{NewMail, kinds},
    runtime::{BoxFuture, Runtime},
    sessions::Opening,
    store::Store,
    stream::Body,
    table::Class,
    time::Timestamp,
};
use tenure_sim::executor::{NodeRuntime, Sim, WallClock};
use tenure_steps::{
    Ctx, FlowError,
    flow::{FlowSpec, Flows},
    tool::{ToolCtx, ToolError, ToolSpec, Tools},
};
use tenure_store::memory::MemoryStore;

const MINUTE: Duration = Duration::from_secs(60);

fn machines() -> Machines {
    Machines::kernel()
        .with::<Job>()
        .with::<Call>()
        .with::<Gate>()
        .with::<GatePage>()
        .with::<Catalogue>()
        .with::<Limit>()
        .with::<LimitBook>()
}

fn flows() -> Flows {
    let one = |ctx: Ctx, i: u32| async move { ctx.tool::<Value>("raise", json!(i)).await };
    Flows::default()
        .with(FlowSpec::new("call", |ctx: Ctx, tool: String| async move {
            Ok::<Value, FlowError>(ctx.tool::<Value>(&tool, json!(1)).await?)
        }))
        .with(FlowSpec::new("at_once", move |ctx: Ctx, n: u32| async move {
            for call in ctx.parallel(0..n, one).await {
                call?;
            }
            Ok::<Value, FlowError>(json!(n))
        }))
}

/// One server with one worker.
struct Quiet {
    rt: Arc<NodeRuntime>,
    store: Arc<dyn Store>,
    node: Node,
    jobs: Submitter,
    limits: Limits,
    _crew: Crew,
}

impl Quiet {
    async fn start(sim: &Sim, rt: Arc<NodeRuntime>, slots: usize) -> Self {
        let judge = Judge::new(machines().tables());
        let clock = Arc::new(WallClock(sim.clone()));
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(judge.clone(), clock, 1));
        let config = EngineConfig::with_lease(Duration::from_secs(30));
        let parts = Parts {
            store: store.clone(),
            bell: Arc::new(InProcess::new()),
            rt: rt.clone(),
            machines: machines(),
            config: config.clone(),
            name: "server".into(),
            executor: None,
            wire: Arc::new(Discard),
            protect_outage: true,
        };
        let node = Node::start(parts).await.unwrap();
        let sleeper = rt.clone();
        let tools = Tools::default()
            .with(
                ToolSpec::new("raise", |_: ToolCtx, input: Value| async move {
                    Ok::<_, ToolError>(input)
                })
                .idempotent(),
            )
            .with(
                ToolSpec::new("slow", move |_: ToolCtx, input: Value| {
                    let pause = sleeper.sleep(Duration::from_secs(5));
                    async move {
                        pause.await;
                        Ok::<_, ToolError>(input)
                    }
                })
                .idempotent(),
            );
        let shop = Arc::new(Shop::new(flows(), tools, JobOptions::default()));
        let options = CrewOptions {
            name: "crew".into(),
            executor: None,
            slots,
            drain: Duration::from_secs(5),
        };
        let crew = Crew::start(node.pipeline.clone(), Arc::new(config), shop, options).await;
        let crew = crew.unwrap();
        let (jobs, limits) = (crew.submitter(judge), Limits(node.pipeline.clone()));
        Quiet { rt, store, node, jobs, limits, _crew: crew }
    }

    async fn limit(&self, tool: &str, count: u32, per: Duration) -> Spec {
        let per_ms = u64::try_from(per.as_millis()).unwrap();
        let spec = Spec {
            tool: tool.into(),
            tenant: EVERYBODY.into(),
            count,
            per_ms,
            burst: 1,
            block: Spec::block_for(count, per_ms),
            ..Spec::default()
        };
        self.limits.set(spec.clone(), None).await.unwrap();
        // Every worker knows of it within a few seconds.
        self.rt.sleep(Duration::from_secs(5)).await;
        spec
    }

    async fn submit(&self, tenant: &str, flow: &str, input: Value) -> EntityId {
        let (tenant, flow) = (tenant.to_owned(), flow.to_owned());
        let submission = Submission { tenant, flow, input, ..Submission::default() };
        self.jobs.submit(submission).await.unwrap().id
    }

    async fn many(&self, n: usize, tenant: &str, tool: &str) -> Vec<EntityId> {
        let mut jobs = Vec::new();
        for _ in 0..n {
            jobs.push(self.submit(tenant, "call", json!(tool)).await);
        }
        jobs
    }

    async fn completed(&self, jobs: &[EntityId]) -> usize {
        let mut done = 0;
        for job in jobs {
            let head = self.store.head(*job).await.unwrap().unwrap();
            assert!(head.class() != Class::Final || head.status.name() == "completed");
            done += usize::from(head.class() == Class::Final);
        }
        done
    }

    /// How long it takes until all of them are completed; fails if that is longer than this.
    async fn until_done(&self, jobs: &[EntityId], within: Duration) -> Duration {
        let began = self.rt.mono();
        while self.completed(jobs).await < jobs.len() {
            let spent = self.rt.mono() - began;
            let done = self.completed(jobs).await;
            assert!(spent <= within, "{done} of {} after {spent:?}", jobs.len());
            self.rt.sleep(within / 100).await;
        }
        self.rt.mono() - began
    }

    async fn cancel(&self, job: EntityId) {
        let body = Body::json(&AskMail::default());
        let mail = NewMail { to: job, id: MailId("c".into()), kind: kinds::CANCEL.into(), body };
        self.node.pipeline.mail(mail).await.unwrap();
    }

    async fn taken(&self, tool: &str) -> u64 {
        let head = self.store.head(id_of(EVERYBODY, tool)).await.unwrap().unwrap();
        decode_state::<Limit>(&head.state).unwrap().taken
    }

    async fn waiting(&self, tool: &str) -> Waiting {
        self.limits.waiting(None, tool).await.unwrap()
    }
}

/// Plays something until it is over.
fn play(
    slots: usize,
    polls: u64,
    scene: impl FnOnce(Quiet) -> BoxFuture<'static, ()> + Send + 'static,
) {
    let sim = Sim::new(7);
    sim.allow(polls);
    let node = sim.node("server");
    let rt = sim.start(node, Duration::ZERO, 1_000_000);
    let over = Arc::new(AtomicBool::new(false));
    let (told, world, at) = (over.clone(), sim.clone(), rt.clone());
    rt.spawn(Box::pin(async move {
        scene(Quiet::start(&world, at, slots).await).await;
        told.store(true, SeqCst);
    }));
    if let Err(stuck) = sim.run_until(|| over.load(SeqCst)) {
        panic!("{stuck}");
    }
    sim.end();
}

/// In every window at most rate × window + burst + block.
fn fits(spec: &Spec, moments: &[Timestamp]) {
    let interval = spec.interval().as_nanos();
    for (i, first) in moments.iter().enumerate() {
        for (n, last) in moments.iter().enumerate().skip(i) {
            let window = last.since(*first);
            let allowed = window.as_nanos() / interval + u128::from(spec.burst + spec.block);
            assert!((n - i + 1) as u128 <= allowed, "{} in {window:?}", n - i + 1);
        }
    }
}

#[test]
fn a_fan_out_under_a_slow_limit_costs_few_events_for_each_call() {
    play(8, 4_000_000, |quiet| {
        Box::pin(async move {
            quiet.limit("raise", 1, MINUTE).await;
            let calls = 400;
            let job = quiet.submit("t", "at_once", json!(calls)).await;
            let took = quiet.until_done(&[job], MINUTE * (calls + 10)).await;
            let head = quiet.store.head(job).await.unwrap().unwrap();
            let events = view::of_head(&head).unwrap().events;
            assert!(events < 10 * calls, "{events} events for {calls} calls");
            assert_eq!(quiet.taken("raise").await, u64::from(calls), "no token is lost");
            assert!(took >= MINUTE * (calls - 2), "{took:?}");
        })
    });
}

#[test]
fn a_line_moves_as_fast_as_the_limit_allows_and_looks_rarely() {
    play(16, 8_000_000, |quiet| {
        Box::pin(async move {
            quiet.limit("raise", 5, Duration::from_secs(1)).await;
            let jobs = quiet.many(1_000, "t", "raise").await;
            let took = quiet.until_done(&jobs, Duration::from_secs(240)).await;
            assert!(took >= Duration::from_secs(180), "{took:?}");
            let mut events = 0;
            for job in &jobs {
                let head = quiet.store.head(*job).await.unwrap().unwrap();
                events += view::of_head(&head).unwrap().events;
            }
            assert!(events < 16 * 1_000, "{events} events for a thousand jobs");
        })
    });
}

#[test]
fn one_tenant_keeps_no_other_waiting_and_what_is_cancelled_holds_nobody_back() {
    play(32, 8_000_000, |quiet| {
        Box::pin(async move {
            quiet.limit("raise", 5, Duration::from_secs(1)).await;
            let many = quiet.many(1_000, "many", "raise").await;
            quiet.rt.sleep(Duration::from_secs(20)).await;
            let before = quiet.completed(&many).await;
            assert!(before < 300, "{before}: there is a line");
            let waiting = quiet.waiting("raise").await;
            assert!(waiting.complete && waiting.steps.len() > 500, "{}", waiting.steps.len());
            let first = &waiting.steps[0];
            assert_eq!(first.limit_of.as_deref(), Some(EVERYBODY));
            assert!(first.about.is_some() && first.asks_at.is_some(), "{first:?}");
            let few = quiet.many(10, "few", "raise").await;
            quiet.until_done(&few, Duration::from_secs(30)).await;
            assert!(quiet.completed(&many).await < 600, "the others are not over");
            for job in &many {
                quiet.cancel(*job).await;
            }
            quiet.rt.sleep(Duration::from_secs(20)).await;
            // A rush, with the places of those who are gone still before it.
            let next = quiet.many(100, "next", "raise").await;
            quiet.until_done(&next, MINUTE).await;
        })
    });
}

#[test]
fn who_is_claimed_late_takes_the_next_token() {
    play(8, 8_000_000, |quiet| {
        Box::pin(async move {
            quiet.limit("raise", 10, Duration::from_secs(1)).await;
            let mut jobs = quiet.many(300, "t", "raise").await;
            // Every slot is busy for five seconds, again and again: whoever waits comes back late.
            jobs.extend(quiet.many(160, "t", "slow").await);
            quiet.until_done(&jobs, MINUTE * 6).await;
            let taken = quiet.taken("raise").await;
            assert!(taken <= 2 * 300, "{taken} tokens for 300 calls");
        })
    });
}

#[test]
fn calls_that_another_worker_takes_keep_the_limit_from_when_it_takes_them() {
    play(16, 8_000_000, |quiet| {
        Box::pin(async move {
            let spec = quiet.limit("far", 5, Duration::from_secs(1)).await;
            let pipeline = quiet.node.pipeline.clone();
            let tool = CallTool { name: "far".into(), ..CallTool::default() };
            register_calls(&pipeline, "", &[tool]).await.unwrap();
            let jobs = quiet.many(100, "", "far").await;
            // Nobody is there to take them.
            quiet.rt.sleep(Duration::from_secs(30)).await;
            let waiting = quiet.waiting("far").await;
            assert_eq!((waiting.steps.len(), waiting.calls), (0, 100));
            let (name, role, lease_ms) = ("far".into(), "worker".into(), 600_000);
            let opening = Opening { name, role, lease_ms, executor: None };
            let tools = ["far".to_owned()];
            let session = desk::open_session(&pipeline, "", opening, &tools).await.unwrap();
            let (counter, moments) = (Counter::default(), Mutex::new(Vec::new()));
            let lease = Duration::from_millis(lease_ms);
            let began = quiet.rt.mono();
            while moments.lock().unwrap().len() < 100 {
                let some = counter.take(&pipeline, (session, lease), &tools, 64, |_| true).await;
                for call in some.unwrap() {
                    moments.lock().unwrap().push(call.head.changed_at);
                    let (said, under) = (Said::Completed(json!(1)), (session, call.head.epoch));
                    desk::say(&pipeline, call.head.id, under, &said).await.unwrap();
                }
                let next = counter.next_leave(&pipeline, &tools);
                quiet.rt.sleep(next.unwrap_or(Duration::from_millis(100))).await;
                let spent = quiet.rt.mono() - began;
                assert!(spent < Duration::from_secs(30), "{spent:?}");
            }
            fits(&spec, &moments.lock().unwrap());
            // Nothing is left, so nobody looks for more.
            let none = counter.take(&pipeline, (session, lease), &tools, 64, |_| true).await;
            assert!(none.unwrap().is_empty());
            assert_eq!(counter.next_leave(&pipeline, &tools), None);
            quiet.until_done(&jobs, Duration::from_secs(30)).await;
        })
    });
}

#[test]
fn why_says_which_limit_and_about_when_and_the_limit_who_waits() {
    play(8, 400_000, |quiet| {
        Box::pin(async move {
            quiet.limit("raise", 1, MINUTE * 60).await;
            let jobs = quiet.many(3, "t", "raise").await;
            quiet.rt.sleep(Duration::from_secs(10)).await;
            let now = quiet.store.now().await.unwrap();
            let waiting = quiet.waiting("raise").await;
            assert_eq!(waiting.steps.len(), 2);
            let turns: Vec<_> = waiting.steps.iter().filter_map(|s| s.about).collect();
            let hour = |n: u32| now + MINUTE * 60 * n;
            assert!(turns[0] < hour(1) && turns[1] > hour(1) && turns[1] < hour(2), "{turns:?}");
            let head = quiet.store.head(waiting.steps[1].job).await.unwrap().unwrap();
            assert!(jobs.contains(&head.id));
            let why = view::why(&view::view(&quiet.store, &head).await.unwrap(), now);
            let says =
                "waits for the rate limit of raise (everybody's together): its turn comes about";
            assert!(why.contains(says) && why.contains("and it asks next"), "{why}");
            let limit = quiet.limits.show(EVERYBODY, "raise").await.unwrap();
            assert_eq!(limit.waiting, 2);
            assert!(limit.wait_ms > 2 * 3_600_000, "behind both of them: {limit:?}");
        })
    });
}
