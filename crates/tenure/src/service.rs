//! A server, a worker, or both, put together from settings. What `tenure server`, `tenure worker` and
//! `tenure up` run, and what a user's own program starts with its own flows.

use crate::{
    commands::{Failure, judge, machines},
    config::{Key, Origin, Settings},
    drill::{self, breaks::Break},
    open::{AnyBus, open},
};
use std::{
    collections::BTreeSet,
    net::SocketAddr,
    path::Path,
    sync::{Arc, OnceLock},
};
use tenure_agents::drive::TurnCrew;
use tenure_bell::redis::EventChannel;
use tenure_edge::{SystemClock, TokioRuntime, executor_of_this_process, is_known_dead, vitals};
use tenure_engine::{
    config::EngineConfig,
    node::{Node, Parts},
    pipeline::Pipeline,
    stop::{Stopper, stopper},
};
use tenure_jobs::{
    bulk,
    crew::{Crew, CrewOptions},
    drive::{Calls, JobOptions, Liveness, Shop},
    submit::Submitter,
    terms::Serves,
};
use tenure_kernel::{
    error::StoreError,
    judge::Judge,
    runtime::{Clock as _, Rt, Runtime as _},
    sessions::Executor as Process,
    store::Store,
};
use tenure_pods::execute::Executor;
use tenure_remote::{RemoteBell, RemoteStore};
use tenure_server::{
    App, ServerOptions,
    jobs::Desk,
    metrics::{About, AskBus, AskMore, BusVitals},
};
use tenure_steps::{
    effects::Directory,
    flow::{FlowSpec, Flows},
    tool::{ToolSpec, Tools},
};
use tenure_tools::{BuiltinOptions, CommandOptions, Grants, LlmOptions, Secrets, Tenants};
use tokio::net::TcpListener;

/// Flows and tools of a program: the built-in ones, and those that are added.
#[derive(Clone, Default)]
pub struct Program {
    flows: Flows,
    tools: Tools,
    /// Its workers run turns of agents, too.
    turns: bool,
}

impl Program {
    /// Nothing but the built-in flows and tools.
    pub fn new() -> Self {
        Program { flows: crate::flows::builtin(), tools: Tools::default(), turns: true }
    }

    /// What a worker process runs: the same, unless a drill started it for a flow of its own.
    pub fn of_this_process() -> Result<Self, Failure> {
        let flows = drill::child::flows_from_environment().map_err(Failure::System)?;
        Ok(flows.map_or_else(Program::new, |flows| Program {
            flows,
            tools: Tools::default(),
            turns: drill::child::runs_turns(),
        }))
    }

    /// Adds a flow.
    pub fn flow(mut self, flow: FlowSpec) -> Self {
        self.flows = self.flows.with(flow);
        self
    }

    /// Adds a tool; one of the same name as a built-in one replaces it.
    pub fn tool(mut self, tool: ToolSpec) -> Self {
        self.tools = self.tools.with(tool);
        self
    }

    /// Everything a worker of this program shares among its jobs.
    pub fn shop(&self, settings: &Settings) -> Result<Arc<Shop>, Failure> {
        let mut tools = builtin_tools(settings);
        for tool in drill::flows::tools().iter().chain(self.tools.iter()) {
            tools = tools.with(tool.clone());
        }
        let broken = Break::from_environment().map_err(Failure::System)?;
        let mut options = settings.jobs();
        if let Some(broken) = broken {
            broken.weaken_jobs(&mut options);
        }
        let words = |key: &str| {
            let words = settings.text(key).split(',').map(str::trim).filter(|w| !w.is_empty());
            words.map(str::to_owned).collect::<Vec<String>>()
        };
        let serves = Serves::new(words("worker.queues"), words("worker.capabilities"))
            .map_err(|bad| Failure::System(format!("worker.{}: {}", bad.field, bad.why)))?;
        // The built-in ones everybody has.
        let own: Vec<String> = self.tools.iter().map(|tool| tool.name.clone()).collect();
        let mut shop = Shop::new(self.flows.clone(), tools, options)
            .serving(serves)
            .lending(own)
            .with_liveness(Arc::new(SameMachine))
            .with_calls(CALLS.get_or_init(Calls::default).clone())
            .with_hands(crate::executor::hands(settings));
        let effects = settings.text("effects.directory");
        if !effects.is_empty() {
            let directory = Directory::open(Path::new(effects)).map_err(|e| {
                Failure::System(format!("effects.directory = {effects:?} can not be used: {e}"))
            })?;
            shop = shop.with_effects(Arc::new(directory));
        }
        if let Some(probe) = drill::points::from_environment().map_err(Failure::System)? {
            shop = shop.with_probe(probe);
        }
        Ok(Arc::new(match broken {
            Some(broken) => broken.weaken_shop(shop),
            None => shop,
        }))
    }

    /// Works for a server in another process, until asked to stop.
    pub async fn work(
        &self,
        settings: &Settings,
        server: &str,
        api_key: Option<&str>,
    ) -> Result<Remote, Failure> {
        let (pipeline, config) = reach(settings, server, api_key)?;
        let shop = self.shop(settings)?;
        let turns = match self.turns {
            true => crate::turns::crew(pipeline.clone(), config.clone(), settings).await?,
            false => None,
        };
        let crew = crew(pipeline.clone(), config, shop, settings).await?;
        Ok(Remote { crew, turns, pipeline })
    }

    /// A server on the store of the settings; with a worker in the same process if asked for.
    pub async fn serve(&self, settings: &Settings, with_worker: bool) -> Result<Service, Failure> {
        let listen: SocketAddr = settings.text("server.listen").parse().map_err(|_| {
            Failure::System(format!(
                "server.listen = {:?} is not an address",
                settings.text("server.listen")
            ))
        })?;
        // Before the store is opened: a second server must not begin to serve and then find its address taken.
        let listener = TcpListener::bind(listen)
            .await
            .map_err(|e| Failure::System(format!("the server can not listen at {listen}: {e}")))?;
        self.serve_at(listener, settings, with_worker).await
    }

    /// The same, where somebody else has chosen the address.
    pub async fn serve_at(
        &self,
        listener: TcpListener,
        settings: &Settings,
        with_worker: bool,
    ) -> Result<Service, Failure> {
        let mut judge = judge();
        let broken = Break::from_environment().map_err(Failure::System)?;
        if let Some(broken) = broken {
            broken.insist_on_scratch(settings.text("store.url")).map_err(Failure::System)?;
            broken.weaken_judge(&mut judge);
        }
        let mut opened = open(settings, judge.clone()).await?;
        if let Some(broken) = broken {
            opened.store = broken.weaken_store(opened.store);
        }
        let mut config = settings.engine();
        config.flights = opened.flights;
        let parts = Parts {
            store: opened.store.clone(),
            bell: opened.bell.clone(),
            rt: Arc::new(TokioRuntime::current()),
            machines: machines(),
            config: config.clone(),
            name: format!("server, pid {}", std::process::id()),
            executor: executor_of_this_process(),
            wire: opened.wire.clone(),
            protect_outage: true,
        };
        let node = Node::start(parts).await?;
        let shop = self.shop(settings)?;
        let options = shop.options.clone();
        let turns = match with_worker && self.turns {
            true => crate::turns::crew(node.pipeline.clone(), config.clone(), settings).await?,
            false => None,
        };
        let executor = match settings.is_on("pods.executor") {
            true => {
                Some(crate::executor::start(node.pipeline.clone(), config.clone(), settings).await?)
            }
            false => None,
        };
        let crew = match with_worker {
            true => Some(crew(node.pipeline.clone(), config, shop.clone(), settings).await?),
            false => None,
        };
        let house = house(&node.pipeline, &judge, settings, options.clone()).await?;
        let submitter = match &crew {
            Some(crew) => crew.submitter(judge),
            None => Submitter::new(
                node.pipeline.clone(),
                judge,
                options.must_end_in,
                options.takeovers_max,
            ),
        };
        let address = listener.local_addr()?;
        let server_options = ServerOptions {
            listen: address,
            payload_bytes_max: usize::try_from(settings.number("server.payload_bytes_max"))
                .unwrap_or(usize::MAX),
            worker_kinds: WORKER_KINDS.map(str::to_owned).to_vec(),
            lease: settings.seconds("worker.lease_seconds"),
            agents: settings.agents(),
            pods: settings.pods(),
            about: About {
                bus: opened.bus.clone().map(ask_bus),
                more: executor.as_ref().map(ask_executor).into_iter().collect(),
                ..about(settings)
            },
            ..ServerOptions::default()
        };
        let key = crate::commands::evidence::signing_key(settings)?;
        let desk = Desk::new(submitter.clone(), shop, with_worker).with_signing_key(key);
        let app = App::with_jobs(node.pipeline.clone(), machines(), server_options, desk);
        let (http_stopper, http_stop) = stopper();
        let routes = tenure_server::router(app.clone());
        app.auth()
            .protect(address, &node.pipeline)
            .await
            .map_err(|e| Failure::System(e.to_string()))?;
        #[expect(clippy::disallowed_methods, reason = "a command is process edge")]
        let http =
            tokio::spawn(tenure_server::serve_router(app.clone(), routes, listener, http_stop));
        let hearing = app.clone();
        let intake = opened.intake.map(|intake| {
            let (stopper, stop) = stopper();
            let (rt, tick) = (node.pipeline.rt().clone(), settings.seconds("server.tick_seconds"));
            let serving = crate::intake::run(intake, app, opened.bell, rt, tick, stop);
            #[expect(clippy::disallowed_methods, reason = "a command is process edge")]
            let task = tokio::spawn(serving);
            (stopper, task)
        });
        let listener = match (settings.listens(), hearing.tasks()) {
            (true, Some(tasks)) => Some(listen(settings, tasks.clone(), &node.pipeline)?),
            _ => None,
        };
        let store = opened.store;
        Ok(Service {
            listener,
            store,
            node,
            crew,
            turns,
            executor,
            house,
            submitter,
            address,
            http_stopper,
            http,
            intake,
        })
    }
}

/// The way to a server in another process.
pub(crate) fn reach(
    settings: &Settings,
    server: &str,
    api_key: Option<&str>,
) -> Result<(Pipeline, EngineConfig), Failure> {
    let rt: Rt = Arc::new(TokioRuntime::current());
    let bad = |e: tenure_remote::BadAddress| Failure::System(e.to_string());
    let store = RemoteStore::new(server, api_key, machines().tables()).map_err(bad)?;
    let bell = RemoteBell::new(server, api_key, rt.clone()).map_err(bad)?;
    let mut config = settings.engine();
    config.flights = REMOTE_FLIGHTS;
    // Whether anybody outside listens is known to the server, and only to it.
    config.mute = false;
    Ok((Pipeline::new(Arc::new(store), Arc::new(bell), rt, &config), config))
}

/// Every call of a tool in this process, whichever worker in it made it.
static CALLS: OnceLock<Calls> = OnceLock::new();

/// Kinds of entities that workers in other processes may touch.
const WORKER_KINDS: [&str; 11] = [
    "worker",
    "job",
    "call",
    "catalogue",
    "limit",
    "limit_book",
    "agent",
    "turn",
    "join",
    "task",
    "pod",
];

/// Batches on their way to a server at once.
const REMOTE_FLIGHTS: usize = 4;

async fn crew(
    pipeline: Pipeline,
    config: EngineConfig,
    shop: Arc<Shop>,
    settings: &Settings,
) -> Result<Crew, StoreError> {
    let options = CrewOptions {
        name: format!("worker, pid {}", std::process::id()),
        executor: executor_of_this_process(),
        slots: usize::try_from(settings.number("worker.slots")).unwrap_or(usize::MAX),
        drain: settings.seconds("worker.drain_seconds"),
    };
    Crew::start(pipeline, Arc::new(config), shop, options).await
}

/// Bulk actions of one server at once.
const HOUSE_SLOTS: usize = 4;

/// Runs what a server does for itself: bulk actions, so far. In every server, because workers elsewhere may not reach
/// jobs that are not in their hands; under a role of its own, because it is no worker that anybody could count on.
async fn house(
    pipeline: &Pipeline,
    judge: &Judge,
    settings: &Settings,
    options: JobOptions,
) -> Result<Crew, StoreError> {
    let (must_end_in, takeovers_max) = (options.must_end_in, options.takeovers_max);
    let jobs = Submitter::new(pipeline.clone(), judge.clone(), must_end_in, takeovers_max);
    let (flows, tools) = (Flows::default().with(bulk::flow()), bulk::tools(pipeline, &jobs));
    let shop = Shop::new(flows, tools, options)
        .with_liveness(Arc::new(SameMachine))
        .with_calls(CALLS.get_or_init(Calls::default).clone());
    let crew = CrewOptions {
        name: format!("house, pid {}", std::process::id()),
        executor: executor_of_this_process(),
        slots: HOUSE_SLOTS,
        drain: settings.seconds("worker.drain_seconds"),
    };
    let config = Arc::new(settings.engine());
    Crew::start_as("house", pipeline.clone(), config, Arc::new(shop), crew).await
}

/// Hears collectors that are not ours.
fn listen(
    settings: &Settings,
    desk: tenure_pods::desk::Desk,
    pipeline: &Pipeline,
) -> Result<(Stopper, tokio::task::JoinHandle<()>), Failure> {
    let channel = EventChannel::start(&settings.redis()?, pipeline.rt().clone())
        .map_err(|e| Failure::System(e.to_string()))?;
    let (stopper, stop) = stopper();
    #[expect(clippy::disallowed_methods, reason = "a command is process edge")]
    let task = tokio::spawn(crate::listen::run(channel, desk, stop));
    Ok((stopper, task))
}

/// What a server says about itself to whoever scrapes it.
fn about(settings: &Settings) -> About {
    let number = |(key, value, _): (&'static Key, &str, &Origin)| {
        Some((key.name.to_owned(), value.parse().ok()?))
    };
    About {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_at: Some(SystemClock.now()),
        settings: settings.iter().filter_map(number).collect(),
        vitals: Some(vitals),
        bus: None,
        more: Vec::new(),
    }
}

fn ask_bus(bus: AnyBus) -> AskBus {
    AskBus(Arc::new(move || {
        let state = bus.state();
        BusVitals { connected: state.connected, connections: state.connections }
    }))
}

fn ask_executor(executor: &Executor) -> AskMore {
    let look = executor.watcher();
    AskMore(Arc::new(move || look().1))
}

fn builtin_tools(settings: &Settings) -> Tools {
    // What can not be read was refused at start; nobody may then, rather than all.
    let tenants = Tenants::read(settings.text("tools.command_tenants"))
        .unwrap_or(Tenants::Only(BTreeSet::new()));
    tenure_tools::builtin(&BuiltinOptions {
        llm: Some(llm_options(settings)),
        command: Some(CommandOptions { tenants, ..CommandOptions::default() }),
        secrets: secrets(settings),
        ..BuiltinOptions::default()
    })
}

/// Where secrets are, and which of them the jobs and agents of a tenant may name.
pub(crate) fn secrets(settings: &Settings) -> Secrets {
    // As above.
    Secrets::default().given(Grants::read(settings.text("tools.secrets")).unwrap_or_default())
}

/// Where the operator's model is.
pub(crate) fn llm_options(settings: &Settings) -> LlmOptions {
    let defaults = LlmOptions::default();
    LlmOptions {
        base_url: Some(settings.text("llm.base_url").to_owned())
            .filter(|u| !u.is_empty())
            .unwrap_or(defaults.base_url.clone()),
        api_key_env: Some(settings.text("llm.api_key_env").to_owned()).filter(|u| !u.is_empty()),
        model: Some(settings.text("llm.model").to_owned()).filter(|u| !u.is_empty()),
        ..defaults
    }
}

/// Processes of this machine, by the word of its kernel.
struct SameMachine;

impl Liveness for SameMachine {
    fn known_dead(&self, executor: &Process) -> bool {
        is_known_dead(executor)
    }
}

/// A worker for a server in another process.
pub struct Remote {
    /// The worker.
    pub crew: Crew,
    /// The worker for turns of agents.
    pub turns: Option<TurnCrew>,
    /// Its way to the server.
    pub pipeline: Pipeline,
}

impl Remote {
    /// Drains and says goodbye.
    pub async fn stop(&mut self) {
        if let Some(turns) = &mut self.turns {
            turns.stop().await;
        }
        self.crew.stop().await;
    }
}

/// A running server.
pub struct Service {
    /// Where everything lives.
    pub store: Arc<dyn Store>,
    /// Its loops.
    pub node: Node,
    /// The worker in its process.
    pub crew: Option<Crew>,
    /// The worker for turns in its process.
    turns: Option<TurnCrew>,
    /// What tends pods in its process.
    executor: Option<Executor>,
    /// What runs the server's own jobs.
    house: Crew,
    /// Creates jobs.
    pub submitter: Submitter,
    /// Where it listens.
    pub address: SocketAddr,
    http_stopper: Stopper,
    http: tokio::task::JoinHandle<Result<(), tenure_server::ServeError>>,
    /// On a store in which applications can leave wishes.
    intake: Option<(Stopper, tokio::task::JoinHandle<()>)>,
    /// Where collectors that are not ours are heard.
    listener: Option<(Stopper, tokio::task::JoinHandle<()>)>,
}

impl Service {
    /// Its address for browsers and clients.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Takes no more requests, drains the worker, and says goodbye.
    pub async fn stop(mut self) -> Result<(), Failure> {
        self.http_stopper.stop();
        if let Some((stopper, task)) = self.listener.take() {
            stopper.stop();
            task.await.map_err(|e| Failure::System(e.to_string()))?;
        }
        if let Some((stopper, task)) = self.intake.take() {
            stopper.stop();
            task.await.map_err(|e| Failure::System(e.to_string()))?;
        }
        if let Some(turns) = &mut self.turns {
            turns.stop().await;
        }
        if let Some(executor) = &mut self.executor {
            executor.stop().await;
        }
        if let Some(crew) = &mut self.crew {
            crew.stop().await;
        }
        self.house.stop().await;
        let served = self.http.await.map_err(|e| Failure::System(e.to_string()))?;
        self.node.stop().await;
        served.map_err(|e| Failure::System(e.to_string()))
    }
}

/// Returns when the process is asked to end: SIGTERM or Ctrl-C.
pub async fn asked_to_end() -> Result<(), Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut term = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = term.recv() => {}
        done = tokio::signal::ctrl_c() => done?,
    }
    Ok(())
}

/// A random word, for names that must differ.
pub fn random() -> u64 {
    TokioRuntime::current().random()
}
