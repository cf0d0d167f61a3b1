//! Jobs that are born into the hands of a worker out there: a commit less than a queue and a claim, and no job
//! that waits for somebody who does not come.

use super::support::{Listened, Telling, config, operator_key, rt};
use axum::http::Request;
use serde_json::{Value, json};
use std::{
    future::ready,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tenure_engine::{
    lanes::Discard,
    node::{Node, Parts},
    pipeline::Pipeline,
    session::Keeper,
    stop::{Stopper, stopper},
};
use tenure_jobs::{
    Job,
    catalogue::{self, Catalogue},
    crew::{Crew, CrewOptions},
    drive::{JobOptions, Shop},
    gate::{Gate, GatePage},
    submit::{Submission, Submitter},
    terms::{Serves, Terms},
    view,
};
use tenure_kernel::{
    bell::{Ear, Topic},
    claims::{ClaimAnswer, ClaimRequest, Probe},
    error::StoreError,
    head::Head,
    ids::{CommitId, EntityId},
    judge::Judge,
    limits,
    machine::Machines,
    runtime::BoxFuture,
    store::{Answer, Op, Store},
    time::Timestamp,
};
use tenure_proving::{
    layer::{Layer, Layered},
    patience,
    stores::{Engine, Place},
};
use tenure_remote::{RemoteBell, RemoteStore};
use tenure_server::{App, ServerOptions, jobs::Desk, serve};
use tenure_steps::{
    Ctx, FlowError, ToolCtx,
    flow::{FlowSpec, Flows},
    tool::{ToolSpec, Tools},
};
use tokio::{net::TcpListener, sync::watch};
use tower_service::Service as _;

fn machines() -> Machines {
    tenure_server::machines(Machines::kernel())
        .with::<Job>()
        .with::<Gate>()
        .with::<GatePage>()
        .with::<Catalogue>()
}

async fn echo(ctx: Ctx, times: u32) -> Result<u32, FlowError> {
    for i in 0..times {
        let _: Value = ctx.tool("echo", json!(i)).await?;
    }
    Ok(times)
}

fn shop() -> Arc<Shop> {
    let flows = Flows::default().with(FlowSpec::new("echo", echo));
    let echo = ToolSpec::new("echo", |_: ToolCtx, v: Value| async move { Ok(v) }).idempotent();
    Arc::new(Shop::new(flows, Tools::default().with(echo), JobOptions::default()))
}

/// Where the creation of jobs stands.
#[derive(PartialEq)]
enum Births {
    Free,
    Stopped,
    /// One has come, and waits.
    Waits,
}

/// A store whose claims fail, and in which nobody is born, while the test says so.
struct Moody {
    under: Arc<dyn Store>,
    refuses: AtomicBool,
    births: watch::Sender<Births>,
}

/// The server's side of it.
struct Mood(Arc<Moody>);

impl Layer for Mood {
    fn under(&self) -> &dyn Store {
        &*self.0.under
    }

    fn claim(&self, request: ClaimRequest) -> BoxFuture<'_, Result<ClaimAnswer, StoreError>> {
        match self.0.refuses.load(Relaxed) {
            true => Box::pin(ready(Err(StoreError::Unavailable("not now".into())))),
            false => self.0.under.claim(request),
        }
    }

    fn apply_shared(&self, ops: Arc<Vec<Op>>) -> BoxFuture<'_, Result<Vec<Answer>, StoreError>> {
        let birth = |op: &Op| matches!(op, Op::Commit(c) if c.events[0].name == "job_created");
        Box::pin(async move {
            if ops.iter().any(birth) {
                let stopped = |births: &mut Births| {
                    let stopped = *births == Births::Stopped;
                    if stopped {
                        *births = Births::Waits;
                    }
                    stopped
                };
                self.0.births.send_if_modified(stopped);
                // The sender is in `self`.
                let _ = self.0.births.subscribe().wait_for(|b| *b == Births::Free).await;
            }
            self.0.under.apply_shared(ops).await
        })
    }
}

/// A server without a worker.
struct Server {
    base: String,
    app: App,
    operator: String,
    node: Node,
    place: Place,
    moody: Arc<Moody>,
    listened: Listened,
    _stopper: Stopper,
}

async fn start() -> Server {
    let judge = || Judge::new(machines().tables());
    let place = Place::new(Engine::Sqlite, &machines()).await;
    let (bell, listened) = Telling::bell();
    let births = watch::Sender::new(Births::Free);
    let moody = Arc::new(Moody { under: place.store(), refuses: AtomicBool::new(false), births });
    let parts = Parts {
        store: Arc::new(Layered(Mood(moody.clone()))),
        bell,
        rt: rt(),
        machines: machines(),
        config: config(),
        name: "test".into(),
        executor: None,
        wire: Arc::new(Discard),
        protect_outage: false,
    };
    let node = Node::start(parts).await.unwrap();
    let jobs = Submitter::new(node.pipeline.clone(), judge(), Duration::from_secs(60), 5);
    let options = ServerOptions {
        worker_kinds: ["worker", "job", "catalogue"].map(str::to_owned).to_vec(),
        ..ServerOptions::default()
    };
    let desk = Desk::new(jobs, shop(), false);
    let app = App::with_jobs(node.pipeline.clone(), machines(), options, desk);
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let operator = operator_key(&app).await;
    let (stopper, stop) = stopper();
    let serving = app.clone();
    rt().spawn(Box::pin(async move { serve(serving, listener, stop).await.unwrap() }));
    Server { base, app, operator, node, place, moody, listened, _stopper: stopper }
}

impl Server {
    /// A pipeline as a worker in another process has it.
    fn remote(&self) -> Pipeline {
        let store =
            RemoteStore::new(&self.base, Some(&self.operator), machines().tables()).unwrap();
        let bell = RemoteBell::new(&self.base, Some(&self.operator), rt()).unwrap();
        Pipeline::new(Arc::new(store), Arc::new(bell), rt(), &config())
    }

    async fn crew(&self) -> Crew {
        let options =
            CrewOptions { name: "crew".into(), executor: None, slots: 8, drain: Duration::ZERO };
        Crew::start(self.remote(), Arc::new(config()), shop(), options).await.unwrap()
    }

    /// Another one, with these capabilities.
    async fn crew_that_can(&self, can: &[&str]) -> Crew {
        let can = can.iter().map(|c| (*c).to_owned()).collect();
        let serves = Serves::new(Vec::new(), can).unwrap();
        let Ok(shop) = Arc::try_unwrap(shop()) else { unreachable!("it was made just now") };
        let options =
            CrewOptions { name: "able".into(), executor: None, slots: 8, drain: Duration::ZERO };
        let shop = Arc::new(shop.serving(serves));
        Crew::start(self.remote(), Arc::new(config()), shop, options).await.unwrap()
    }

    async fn submit(&self, times: u32) -> EntityId {
        let flow = "echo".to_owned();
        let submission = Submission { flow, input: json!(times), ..Submission::default() };
        let jobs = self.app.jobs().unwrap().submitter();
        jobs.submit(submission).await.unwrap().id
    }

    async fn head(&self, job: EntityId) -> Head {
        self.node.pipeline.store().head(job).await.unwrap().unwrap()
    }

    async fn until(&self, job: EntityId, status: &str) -> Head {
        let there = self.place.find(async || {
            let head = self.head(job).await;
            (head.status.name() == status).then_some(head)
        });
        match there.await {
            Some(head) => head,
            None => panic!("job {job} is {} and not {status}", self.head(job).await.status.name()),
        }
    }

    /// Waits for a question of a worker that names its queue and its session: from then on it hears, and can be given jobs. A ring
    /// from before it would be heard with the tick.
    async fn until_asked(&self) {
        let both = |all: &[Topic]| {
            let queue = all.iter().any(|t| matches!(t, Topic::Queue(_)));
            queue && all.iter().any(|t| matches!(t, Topic::Session(_)))
        };
        self.listened.until(both).await;
    }

    /// A job that was born into the hands of a worker, and is over. The first ones tell the server how much room the worker has, and
    /// one that comes before its room is known again goes to the queue.
    async fn laid_out(&self, times: u32) -> EntityId {
        for _ in 0..50 {
            let job = self.submit(times).await;
            self.until(job, "completed").await;
            let seen = view::detail(self.node.pipeline.store(), job).await.unwrap().unwrap();
            if seen.events[0].took.is_some() {
                return job;
            }
        }
        panic!("none of 50 jobs was laid out");
    }

    async fn commits(&self, job: EntityId) -> usize {
        self.node.pipeline.store().stream(job, 1, 100).await.unwrap().len()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_for_a_worker_out_there_costs_its_steps_and_two_commits() {
    let server = start().await;
    let mut crew = server.crew().await;
    server.until_asked().await;
    let ten = server.laid_out(10).await;
    assert_eq!(server.commits(ten).await, 12);
    let one = server.laid_out(1).await;
    assert_eq!(server.commits(one).await, 3);
    crew.stop().await;
}

/// A process that lends its tools has a second session, which claims calls and no jobs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_laid_out_for_the_session_that_claims_jobs() {
    let server = start().await;
    let Ok(shop) = Arc::try_unwrap(shop()) else { unreachable!("it was made just now") };
    let options =
        CrewOptions { name: "crew".into(), executor: None, slots: 8, drain: Duration::ZERO };
    let shop = Arc::new(shop.lending(["echo".to_owned()]));
    let crew = Crew::start(server.remote(), Arc::new(config()), shop, options).await;
    let mut crew = crew.unwrap();
    server.until_asked().await;
    for _ in 0..20 {
        let job = server.laid_out(1).await;
        assert_eq!(server.commits(job).await, 3, "born into its hands, one step, its end");
    }
    crew.stop().await;
}

/// A worker out there, as far as its server can see: it claims when the test says so, and does nothing with what it gets.
struct Claimant {
    remote: Pipeline,
    keeper: Keeper,
    queue: String,
    _ears: [Box<dyn Ear>; 2],
}

impl Claimant {
    /// One that registers, listens, and looks once.
    async fn at(server: &Server) -> Self {
        let (remote, known) = (server.remote(), shop());
        catalogue::register(&remote, "", known.flows.iter(), known.tools.iter()).await.unwrap();
        let keeper = Keeper::open(remote.clone(), Arc::new(config()), "claimant", "worker", None);
        let keeper = keeper.await.unwrap();
        let queue = known.queues().remove(0);
        let ears = [Topic::Session(keeper.id()), Topic::Queue(queue.clone())]
            .map(|topic| remote.bell().listen(topic));
        assert!(remote.store().ready_groups(&queue, None).await.unwrap().is_empty());
        server.until_asked().await;
        Claimant { remote, keeper, queue, _ears: ears }
    }

    /// One that has claimed from its queue, so that jobs are laid out for it.
    async fn counted_on(server: &Server) -> Self {
        let claimant = Claimant::at(server).await;
        assert_eq!(claimant.claim(1).await, []);
        claimant
    }

    /// What a claim of two gives.
    async fn claim(&self, commit: u64) -> Vec<EntityId> {
        self.claim_up_to(commit, 2).await
    }

    /// What a claim of up to `limit` gives.
    async fn claim_up_to(&self, commit: u64, limit: usize) -> Vec<EntityId> {
        let (tenant, floor) = (String::new(), Timestamp::ZERO);
        let all = Probe { priority: 0, tenant, floor, want: limit };
        let request = ClaimRequest {
            id: CommitId::new(commit, 1),
            session: self.keeper.id(),
            lease: Duration::from_secs(60),
            queue: self.queue.clone(),
            probes: vec![all],
            limit,
        };
        let answer = self.remote.store().claim(request).await.unwrap();
        answer.claimed.iter().map(|c| c.head.id).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_laid_out_for_a_session_that_has_not_claimed() {
    let server = start().await;
    let claimant = Claimant::at(&server).await;
    let job = server.submit(1).await;
    assert_eq!(server.head(job).await.holder, None);
    assert_eq!(claimant.claim(1).await, [job]);
    let next = server.submit(1).await;
    assert_eq!(server.head(next).await.holder, Some(claimant.keeper.id()));
}

/// A worker says for itself how much it can take. Any number is answered, and beyond the entities that one session may hold
/// it makes no difference.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_of_any_size_is_answered() {
    let server = start().await;
    let claimant = Claimant::at(&server).await;
    for (commit, limit) in [(1, limits::HOLDS_MAX), (2, limits::HOLDS_MAX + 1), (3, usize::MAX)] {
        assert_eq!(claimant.claim_up_to(commit, limit).await, []);
        let job = server.submit(1).await;
        assert_eq!(server.head(job).await.holder, Some(claimant.keeper.id()), "{limit}");
        assert_eq!(claimant.claim_up_to(100 + commit, limit).await, [job], "{limit}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_comes_for_goes_to_its_queue() {
    let server = start().await;
    let claimant = Claimant::counted_on(&server).await;
    let job = server.submit(1).await;
    assert_eq!(server.head(job).await.holder, Some(claimant.keeper.id()), "it is laid out");
    let given_back = server.until(job, "queued").await;
    assert_eq!((given_back.holder, given_back.epoch), (None, 2));
    let mut crew = server.crew().await;
    server.until(job, "completed").await;
    crew.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_fails_brings_what_was_laid_out() {
    let server = start().await;
    let claimant = Claimant::counted_on(&server).await;
    let job = server.submit(1).await;
    server.moody.refuses.store(true, Relaxed);
    assert_eq!(claimant.claim(2).await, [job], "it holds that one already");
}

/// Else it would belong to a worker that never hears of it, for a lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_comes_into_its_worker_s_hands_though_who_submitted_it_has_left() {
    let server = start().await;
    let claimant = Claimant::counted_on(&server).await;
    server.moody.births.send_replace(Births::Stopped);
    let mut born = server.moody.births.subscribe();
    let request = Request::post("/v1/jobs")
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {}", server.operator));
    let body = json!({"flow": "echo", "input": 1}).to_string();
    let answer = tenure_server::router(server.app.clone()).call(request.body(body).unwrap());
    tokio::select! {
        answer = answer => panic!("answered before it was born: {answer:?}"),
        waits = born.wait_for(|b| *b == Births::Waits) => drop(waits.unwrap()),
    }
    server.moody.births.send_replace(Births::Free);
    let laid_out = patience::found("a job that is laid out", async || {
        let jobs = claimant.claim(2).await;
        jobs.first().copied().ok_or("an empty claim")
    });
    let job = laid_out.await;
    assert_eq!(server.head(job).await.epoch, 1, "it was born into these hands");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_laid_out_only_for_a_worker_that_has_what_it_needs() {
    let server = start().await;
    let (mut plain, mut able) = (server.crew().await, server.crew_that_can(&["gpu"]).await);
    // The first ones tell the server how much room each has; later ones are born into its hands.
    for _ in 0..10 {
        let flow = "echo".to_owned();
        let terms = Terms { needs: vec!["gpu".into()], ..Terms::default() };
        let submission = Submission { flow, input: json!(1), terms, ..Submission::default() };
        let job = server.app.jobs().unwrap().submitter().submit(submission).await.unwrap().id;
        server.until(job, "completed").await;
        let seen = view::detail(server.node.pipeline.store(), job).await.unwrap().unwrap();
        let took: Vec<_> = seen.events.iter().filter_map(|e| e.took).collect();
        assert_eq!(took, [able.local().keeper.id()]);
    }
    plain.stop().await;
    able.stop().await;
}
