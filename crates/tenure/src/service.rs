//! A server, a worker, or both, put together from settings. What `tenure server`, `tenure worker` and
//! `tenure up` run, and what a user's own program starts with its own flows.

use crate::{
    alterations::{Alterations, Unaltered},
    client_tls,
    commands::{Failure, judge, machines},
    config::{Key, Origin, Settings},
    listening,
    open::{AnyBus, open},
};
use reqwest::{Client, redirect::Policy};
use std::{
    collections::BTreeSet,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock, OnceLock},
    time::Duration,
};
use tenure_agents::drive::TurnCrew;
use tenure_bell::redis::EventChannel;
use tenure_edge::{
    SystemClock, TokioRuntime, executor_of_this_process, is_known_dead, is_known_dead_in_this_boot,
    vitals,
};
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
    address::Address,
    error::StoreError,
    judge::Judge,
    runtime::{Clock as _, Rt, Runtime as _},
    sessions::Executor as Process,
    store::Store,
};
use tenure_pods::execute::Executor;
use tenure_remote::{RemoteBell, RemoteStore, Servers, addresses};
use tenure_server::{
    App, ServerOptions,
    auth::DEFAULT_TENANT,
    jobs::Desk,
    metrics::{About, AskBus, AskMore, BusVitals},
    webhooks::WebhookSecrets,
};
use tenure_steps::{
    effects::Directory,
    flow::{FlowSpec, Flows},
    tool::{ToolSpec, Tools},
};
use tenure_tools::{
    BuiltinOptions, CommandOptions, Egress, Grants, HttpOptions, LlmOptions, OwnListeners, Secrets,
    Tenants,
    command::{SandboxOptions, Writable, paths},
};
use tokio::net::TcpListener;

/// Flows and tools of a program: the built-in ones, and those that are added.
#[derive(Clone)]
pub struct Program {
    flows: Flows,
    tools: Tools,
    /// Tools that every worker has, as it has the built-in ones.
    common_tools: Tools,
    /// Its workers run turns of agents, too.
    turns: bool,
    alterations: Arc<dyn Alterations>,
}

impl Default for Program {
    fn default() -> Self {
        Program::new()
    }
}

impl Program {
    /// Nothing but the built-in flows and tools.
    pub fn new() -> Self {
        Program {
            flows: crate::flows::builtin(),
            tools: Tools::default(),
            common_tools: Tools::default(),
            turns: true,
            alterations: Arc::new(Unaltered),
        }
    }

    /// Exactly these flows, without the built-in ones.
    pub fn only(mut self, flows: Flows) -> Self {
        self.flows = flows;
        self
    }

    /// Its workers do not run turns of agents.
    pub fn without_turns(mut self) -> Self {
        self.turns = false;
        self
    }

    /// Altered by a laboratory. Never used in production.
    pub fn altered(mut self, alterations: Arc<dyn Alterations>) -> Self {
        self.alterations = alterations;
        self
    }

    /// What a laboratory has altered: nothing, in production.
    pub(crate) fn alterations(&self) -> &dyn Alterations {
        &*self.alterations
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

    /// Adds a tool that every worker of the deployment has: its calls are never handed from one worker to another.
    pub fn common_tool(mut self, tool: ToolSpec) -> Self {
        self.common_tools = self.common_tools.with(tool);
        self
    }

    /// Everything a worker of this program shares among its jobs.
    pub fn shop(&self, settings: &Settings) -> Result<Arc<Shop>, Failure> {
        let mut tools = builtin_tools(settings);
        for tool in self.common_tools.iter().chain(self.tools.iter()) {
            tools = tools.with(tool.clone());
        }
        let options = self.alterations.jobs(settings.jobs());
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
            shop = shop.with_effects(self.alterations.effects(Arc::new(directory)));
        }
        if let Some(probe) = self.alterations.probe() {
            shop = shop.with_probe(probe);
        }
        Ok(Arc::new(shop))
    }

    /// Works for a server in another process, until asked to stop. `server` may name several servers of one deployment, with commas between
    /// their addresses: the next is asked when one does not answer.
    pub async fn work(
        &self,
        settings: &Settings,
        server: &str,
        api_key: Option<&str>,
    ) -> Result<Remote, Failure> {
        let (pipeline, config) = reach(settings, server, api_key)?;
        for one in addresses(server) {
            no_commands_without_keys(settings, one).await?;
            refuse_egress_to(one).await;
        }
        let shop = self.shop(settings)?;
        // First the jobs, whose crew registers flows and tools: a turn is told at once of a tool that nobody has.
        let crew = crew(pipeline.clone(), config.clone(), shop, settings).await?;
        let turns = match self.turns {
            true => crate::turns::crew(self, pipeline.clone(), config, settings).await?,
            false => None,
        };
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
        listening::check_plain_http(settings, "server.listen", listen)?;
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
        self.alterations
            .check_store(settings.address("store.url").expose())
            .map_err(Failure::System)?;
        let tls = listening::tls(settings)?;
        let url = listening::url(listener.local_addr()?, tls.is_some());
        let judge = self.alterations.judge(judge().admitting(settings.admissions()));
        let mut opened = open(settings, judge.clone()).await?;
        opened.store = self.alterations.store(opened.store);
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
        node.end_sessions_of_dead_processes(Arc::new(is_known_dead_in_this_boot)).await;
        let shop = self.shop(settings)?;
        let options = shop.options.clone();
        let executor = match settings.is_on("pods.executor") {
            true => {
                let pipeline = node.pipeline.clone();
                Some(crate::executor::start(self, pipeline, config.clone(), settings).await?)
            }
            false => None,
        };
        let crew = match with_worker {
            true => {
                Some(crew(node.pipeline.clone(), config.clone(), shop.clone(), settings).await?)
            }
            false => None,
        };
        // After the jobs, as in a worker of its own.
        let turns = match with_worker && self.turns {
            true => crate::turns::crew(self, node.pipeline.clone(), config, settings).await?,
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
        OWN_LISTENERS.add(address);
        let server_options = ServerOptions {
            listen: address,
            payload_bytes_max: usize::try_from(settings.number("server.payload_bytes_max"))
                .unwrap_or(usize::MAX),
            worker_kinds: WORKER_KINDS.map(str::to_owned).to_vec(),
            lease: settings.seconds("worker.lease_seconds"),
            webhooks: webhooks(settings)?,
            failed_sign_ins_per_minute: u32::try_from(
                settings.number("server.failed_sign_ins_per_minute"),
            )
            .unwrap_or(u32::MAX),
            refused_acts_per_minute: u32::try_from(
                settings.number("server.refused_acts_per_minute"),
            )
            .unwrap_or(u32::MAX),
            agents: settings.agents(),
            pods: settings.pods(),
            about: About {
                bus: opened.bus.clone().map(ask_bus),
                more: executor.as_ref().map(ask_executor).into_iter().collect(),
                ..about(settings)
            },
            limits: listening::limits(settings),
            tls,
            ..ServerOptions::default()
        };
        let key = crate::commands::evidence::signing_key(settings)?;
        let desk = Desk::new(submitter.clone(), shop, with_worker).with_signing_key(key);
        let app = App::with_jobs(node.pipeline.clone(), machines(), server_options, desk);
        let (http_stopper, http_stop) = stopper();
        let routes = tenure_server::router(app.clone());
        if requires_keys(settings) {
            app.auth().require();
        }
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
            url,
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
    let tls = client_tls::read(settings)?;
    let servers = Servers::new(server, api_key, &tls).map_err(bad)?;
    let store = RemoteStore::at(&servers, machines().tables());
    let bell = RemoteBell::at(&servers, rt.clone());
    let mut config = settings.engine();
    config.flights = REMOTE_FLIGHTS;
    // Whether anybody outside listens is known to the server, and only to it.
    config.mute = false;
    // The server keeps them.
    config.quotas = tenure_kernel::quota::Quotas::default();
    Ok((Pipeline::new(Arc::new(store), Arc::new(bell), rt, &config), config))
}

/// Every call of a tool in this process, whichever worker in it made it.
static CALLS: OnceLock<Calls> = OnceLock::new();

/// Kinds of entities that workers in other processes may touch.
const WORKER_KINDS: [&str; 12] = [
    "block_book",
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
    let tenants = tenants(settings, "tools.command_tenants");
    tenure_tools::builtin(&BuiltinOptions {
        http: Some(HttpOptions { egress: egress(settings), ..HttpOptions::default() }),
        llm: Some(llm_options(settings)),
        command: Some(CommandOptions {
            tenants,
            sandbox: sandbox(settings),
            ..CommandOptions::default()
        }),
        secrets: secrets(settings),
    })
}

/// What programs are kept from.
fn sandbox(settings: &Settings) -> SandboxOptions {
    let limit = |key: &str| Some(settings.number(key)).filter(|limit| *limit > 0);
    let mut hidden = paths(settings.text("tools.command_hidden"));
    hidden.extend(settings.text("store.url").strip_prefix("sqlite:").map(PathBuf::from));
    hidden.extend(settings.files().into_iter().map(PathBuf::from));
    for key in ["effects.directory", "evidence.key_file"] {
        hidden.extend(paths(settings.text(key)));
    }
    SandboxOptions {
        writable: Writable::read(settings.text("tools.command_writable")),
        hidden,
        open_files_max: limit("tools.command_files_max"),
        file_bytes_max: limit("tools.command_file_bytes_max"),
        memory_bytes_max: limit("tools.command_memory_bytes_max"),
        processes_max: limit("tools.command_processes_max"),
        ..SandboxOptions::default()
    }
}

/// The secrets by which webhooks are signed.
fn webhooks(settings: &Settings) -> Result<WebhookSecrets, Failure> {
    let window = Duration::from_secs(settings.number("webhooks.window_seconds"));
    let look_up = |name: &str| std::env::var(name).ok();
    WebhookSecrets::read(settings.text("webhooks.secrets"), window, look_up)
        .map_err(|why| Failure::System(format!("webhooks.secrets: {why}")))
}

/// The tenants of a setting. What cannot be read was refused at start; if it were not, nobody would be allowed.
fn tenants(settings: &Settings, key: &str) -> Tenants {
    Tenants::read(settings.text(key)).unwrap_or(Tenants::Only(BTreeSet::new()))
}

/// Whether callers on this machine need a key. A caller without one is of the tenant `default` and must not run programs; and a
/// program of another tenant runs on this machine, and must not be taken for such a caller.
fn requires_keys(settings: &Settings) -> bool {
    let programs = tenants(settings, "tools.command_tenants") != Tenants::Only(BTreeSet::new());
    settings.is_on("server.require_keys") || programs
}

fn runs_commands_for_default(settings: &Settings) -> bool {
    tenants(settings, "tools.command_tenants").contain(DEFAULT_TENANT)
}

/// Refuses to run programs for the tenant `default` if the server takes requests of that tenant from callers without a key.
async fn no_commands_without_keys(settings: &Settings, server: &str) -> Result<(), Failure> {
    if !runs_commands_for_default(settings) {
        return Ok(());
    }
    let shown = Address::from(server);
    let client = Client::builder().no_proxy().redirect(Policy::none()).timeout(KEYLESS_PROBE);
    let client = client_tls::read(settings)?
        .apply(client)
        .build()
        .map_err(|e| Failure::System(e.to_string()))?;
    let asked = client.get(format!("{}/v1/whoami", server.trim_end_matches('/'))).send().await;
    // A server that does not answer now is asked by nobody without a key either; it starts with settings of its own.
    match asked.is_ok_and(|answer| answer.status().is_success()) {
        false => Ok(()),
        true => Err(Failure::System(format!(
            "tools.command_tenants lets jobs of the tenant default run programs, and the server {shown} takes jobs of that \
             tenant from callers without a key: set server.require_keys = true there, or name other tenants here"
        ))),
    }
}

/// How long the server may take to say whether it needs keys.
const KEYLESS_PROBE: Duration = Duration::from_secs(10);

/// Addresses at which this process listens, and the server that it works for. No tool may connect to them.
pub(crate) static OWN_LISTENERS: LazyLock<OwnListeners> = LazyLock::new(OwnListeners::default);

/// Where tools may connect to on behalf of tenants.
fn egress(settings: &Settings) -> Egress {
    // As above: the strictest policy if it could not be read.
    let allowed = Egress::read(settings.text("egress.allow")).unwrap_or_default();
    let proxy = Egress::read_proxy(settings.address("egress.proxy").expose()).unwrap_or_default();
    allowed.through(proxy).except(OWN_LISTENERS.clone())
}

/// Refuses tools the server that this worker works for. A name that cannot be resolved now is left out: the worker does not reach
/// the server either.
async fn refuse_egress_to(server: &str) {
    let Ok(url) = reqwest::Url::parse(server) else { return };
    let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else { return };
    if let Ok(addresses) = tokio::net::lookup_host((host.trim_matches(['[', ']']), port)).await {
        addresses.for_each(|address| OWN_LISTENERS.add(address));
    }
}

/// Where secrets are, and which of them the jobs and agents of a tenant may name.
pub(crate) fn secrets(settings: &Settings) -> Secrets {
    // What cannot be read was refused at start.
    Secrets::default().given(Grants::read(settings.text("tools.secrets")).unwrap_or_default())
}

/// Where the operator's model is.
pub(crate) fn llm_options(settings: &Settings) -> LlmOptions {
    let defaults = LlmOptions::default();
    LlmOptions {
        base_url: Some(settings.address("llm.base_url").expose().to_owned())
            .filter(|u| !u.is_empty())
            .unwrap_or(defaults.base_url.clone()),
        api_key_env: Some(settings.text("llm.api_key_env").to_owned()).filter(|u| !u.is_empty()),
        model: Some(settings.text("llm.model").to_owned()).filter(|u| !u.is_empty()),
        tenants: tenants(settings, "llm.tenants"),
        egress: egress(settings),
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
    url: String,
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
        self.url.clone()
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
        // The last write was the goodbye.
        if let Err(error) = self.node.pipeline.store().close().await {
            tracing::warn!(%error, "the store was not closed in order; nothing is lost");
        }
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
