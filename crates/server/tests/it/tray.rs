//! Jobs that are born into the hands of a worker out there: a commit less than a queue and a claim, and no job
//! that waits for somebody who does not come.

use super::support::{config, rt};
use serde_json::{Value, json};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tenure_bell::InProcess;
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
    bell::{Bell, Ear, Topic},
    head::Head,
    ids::EntityId,
    judge::Judge,
    machine::Machines,
};
use tenure_proving::{
    patience::PATIENCE,
    stores::{Engine, Place},
};
use tenure_remote::{RemoteBell, RemoteStore};
use tenure_server::{App, ServerOptions, jobs::Desk, keys, serve};
use tenure_steps::{
    Ctx, FlowError, ToolCtx,
    flow::{FlowSpec, Flows},
    tool::{ToolSpec, Tools},
};
use tokio::{net::TcpListener, sync::watch};

fn machines() -> Machines {
    Machines::kernel()
        .with::<Job>()
        .with::<Gate>()
        .with::<GatePage>()
        .with::<Catalogue>()
        .with::<keys::Key>()
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

/// The server's bell, which says what is listened to: for workers out there the server does that, from their first question on.
struct Telling {
    under: InProcess,
    listened: watch::Sender<Vec<Topic>>,
}

impl Bell for Telling {
    fn ring(&self, topic: Topic) {
        self.under.ring(topic);
    }

    fn listen(&self, topic: Topic) -> Box<dyn Ear> {
        let ear = self.under.listen(topic.clone());
        self.listened.send_modify(|all| all.push(topic));
        ear
    }
}

/// A server without a worker.
struct Server {
    base: String,
    app: App,
    node: Node,
    place: Place,
    listened: watch::Receiver<Vec<Topic>>,
    _stopper: Stopper,
}

async fn start() -> Server {
    let judge = || Judge::new(machines().tables());
    let place = Place::new(Engine::Sqlite, &machines()).await;
    let (listened, listening) = watch::channel(Vec::new());
    let parts = Parts {
        store: place.store(),
        bell: Arc::new(Telling { under: InProcess::new(), listened }),
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
    let (stopper, stop) = stopper();
    let serving = app.clone();
    rt().spawn(Box::pin(async move { serve(serving, listener, stop).await.unwrap() }));
    Server { base, app, node, place, listened: listening, _stopper: stopper }
}

impl Server {
    /// A pipeline as a worker in another process has it.
    fn remote(&self) -> Pipeline {
        let store = RemoteStore::new(&self.base, None, machines().tables()).unwrap();
        let bell = RemoteBell::new(&self.base, None, rt()).unwrap();
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
        let mut listened = self.listened.clone();
        let both = listened.wait_for(|all| {
            let queue = all.iter().any(|t| matches!(t, Topic::Queue(_)));
            queue && all.iter().any(|t| matches!(t, Topic::Session(_)))
        });
        tokio::time::timeout(PATIENCE, both).await.expect("a question").expect("a bell");
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
    // Before the first claim nobody can know which of the two it is.
    server.laid_out(1).await;
    for _ in 0..20 {
        let job = server.laid_out(1).await;
        assert_eq!(server.commits(job).await, 3, "born into its hands, one step, its end");
    }
    crew.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_comes_for_goes_to_its_queue() {
    let server = start().await;
    // It registers, listens, looks once, and never claims.
    let remote = server.remote();
    let known = shop();
    catalogue::register(&remote, "", known.flows.iter(), known.tools.iter()).await.unwrap();
    let keeper =
        Keeper::open(remote.clone(), Arc::new(config()), "idle", "worker", None).await.unwrap();
    let queue = known.queues().remove(0);
    let _ears = [Topic::Session(keeper.id()), Topic::Queue(queue.clone())]
        .map(|topic| remote.bell().listen(topic));
    assert!(remote.store().ready_groups(&queue).await.unwrap().is_empty());
    server.until_asked().await;
    let job = server.submit(1).await;
    assert_eq!(server.head(job).await.holder, Some(keeper.id()), "it is laid out for the worker");
    let given_back = server.until(job, "queued").await;
    assert_eq!((given_back.holder, given_back.epoch), (None, 2));
    let mut crew = server.crew().await;
    server.until(job, "completed").await;
    crew.stop().await;
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
