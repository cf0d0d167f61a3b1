//! The HTTP API: composes what the other crates do, and adds nothing but who may ask and how answers look.
//!
//! **Invariant:** no handler writes to a store except through [`Pipeline::submit`], so requests of many
//! callers share batches, and no handler decides what the judge decides.
//!
//! Read first: [`App`] (what handlers share), [`problem::Problem`] (everything that is not a success),
//! [`auth::Caller`] (who asks), [`audit`] (what administrators did), [`workers`] (the worker protocol), [`jobs`] (what people ask of jobs). To add
//! routes, write a module with `pub fn routes() -> OpenApiRouter<App>` and merge it in [`router_with`]: path and
//! documentation then come from the same line.

mod agents;
pub mod audit;
pub mod auth;
mod bounds;
mod calls;
mod console;
pub mod console_sessions;
pub mod extract;
mod far;
mod health;
pub mod jobs;
pub mod keys;
pub mod metrics;
mod objects;
mod open_requests;
mod pages;
mod paging;
pub mod problem;
mod quotas;
mod security;
mod sign_ins;
mod tasks;
pub mod turns;
pub mod webhooks;
mod whoami;
pub mod workers;

pub use auth::{Caller, NotProtected};
pub use pages::{error_codes, error_page};
pub use problem::{ApiCode, Problem};

use audit::{AuditTrail, RefusedActs};
use auth::Auth;
use axum::{
    Router,
    extract::DefaultBodyLimit,
    http::{Method, StatusCode, Uri, header},
    middleware::from_fn_with_state,
    routing::get,
};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tenure_engine::{pipeline::Pipeline, stop::Stop};
use tenure_jobs::call::desk::Counter;
use tenure_kernel::{
    error::StoreError,
    machine::Machines,
    runtime::{First, first},
};
use tenure_listener::{Connections, Limits, Listening, Tls};
use tenure_remote::wire::Words;
use tokio::{
    net::TcpListener,
    sync::{oneshot, watch},
};
use utoipa::OpenApi as _;
use utoipa_axum::router::OpenApiRouter;
use workers::{Board, Identities, Tray};

/// How long requests that are running may take to end after the server was asked to stop.
const GRACE: Duration = Duration::from_secs(10);

/// What a server is told.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where it listens. Anything but a loopback address needs keys.
    pub listen: SocketAddr,
    /// The largest body of a request, in general.
    pub payload_bytes_max: usize,
    /// The largest body of a request of a worker: a batch of commits.
    pub worker_bytes_max: usize,
    /// The kinds of entities that workers may touch.
    pub worker_kinds: Vec<String>,
    /// The longest lease that a worker may ask for: for so long nobody takes its work when it is gone.
    pub lease_max: Duration,
    /// The lease under which a job is born into the hands of a worker out there: that of the workers.
    pub lease: Duration,
    /// What turns of agents get that say nothing.
    pub agents: tenure_agents::desk::Defaults,
    /// What tasks get that say nothing.
    pub pods: tenure_pods::desk::Defaults,
    /// Keys of one address that are not valid and are looked up all the same, in a minute; 0 for no limit.
    pub failed_sign_ins_per_minute: u32,
    /// Administrative acts of one key that are refused, in a minute, before its acts are answered 429; 0 for no limit.
    pub refused_acts_per_minute: u32,
    /// What it says about itself in `/metrics`.
    pub about: metrics::About,
    /// How many connections it takes, and how long they may wait.
    pub limits: Limits,
    /// Encrypts connections.
    pub tls: Option<Arc<Tls>>,
    /// How webhooks are signed.
    pub webhooks: webhooks::WebhookSecrets,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            listen: SocketAddr::from(([127, 0, 0, 1], 7777)),
            payload_bytes_max: 1024 * 1024,
            worker_bytes_max: 64 * 1024 * 1024,
            worker_kinds: vec!["worker".into(), "job".into(), "call".into()],
            lease_max: Duration::from_secs(3_600),
            lease: tenure_kernel::limits::LEASE,
            agents: tenure_agents::desk::Defaults::default(),
            pods: tenure_pods::desk::Defaults::default(),
            failed_sign_ins_per_minute: 30,
            refused_acts_per_minute: 120,
            about: metrics::About::default(),
            limits: Limits::default(),
            tls: None,
            webhooks: webhooks::WebhookSecrets::default(),
        }
    }
}

/// These machines, and those of this crate: keys, sessions of the console, and the audit trail.
pub fn machines(others: Machines) -> Machines {
    others
        .with::<keys::Key>()
        .with::<console_sessions::ConsoleSession>()
        .with::<audit::AuditSegment>()
}

/// What all handlers share. Cheap to clone.
#[derive(Clone)]
pub struct App(Arc<Inner>);

struct Inner {
    pipeline: Pipeline,
    machines: Machines,
    options: ServerOptions,
    auth: Auth,
    audit: AuditTrail,
    refused_acts: RefusedActs,
    words: Words,
    identities: Identities,
    board: Board,
    tray: Tray,
    counter: Counter,
    jobs: Option<jobs::Desk>,
    turns: Option<tenure_agents::drive::far::Far>,
    agents: Option<tenure_agents::desk::Desk>,
    tasks: Option<tenure_pods::desk::Desk>,
    looks: metrics::Looks,
    connections: Connections,
    closing: watch::Sender<bool>,
}

impl App {
    /// A server over this pipeline. `machines` are those that the store's judge knows, [`keys::Key`] among
    /// them.
    pub fn new(pipeline: Pipeline, machines: Machines, options: ServerOptions) -> Self {
        App::build(pipeline, machines, options, None)
    }

    /// The same with jobs: their routes are served too.
    pub fn with_jobs(
        pipeline: Pipeline,
        machines: Machines,
        options: ServerOptions,
        jobs: jobs::Desk,
    ) -> Self {
        App::build(pipeline, machines, options, Some(jobs))
    }

    fn build(
        pipeline: Pipeline,
        machines: Machines,
        options: ServerOptions,
        jobs: Option<jobs::Desk>,
    ) -> Self {
        let auth = Auth::new(options.failed_sign_ins_per_minute);
        let audit = AuditTrail::new(pipeline.clone(), &machines);
        let refused_acts = RefusedActs::new(options.refused_acts_per_minute);
        if !options.listen.ip().is_loopback() {
            auth.require();
        }
        let runs = jobs.is_some() && machines.get(tenure_agents::turn::table::TABLE.kind).is_some();
        let turns = runs.then(|| {
            let tools = Arc::new(turns::tools::AsJobs::default());
            tenure_agents::drive::far::Far::new(pipeline.clone(), tools)
        });
        // Where the store's judge knows turns, agents are served.
        let knows = machines.get(tenure_agents::turn::table::TABLE.kind).is_some();
        let agents =
            knows.then(|| tenure_agents::desk::Desk::new(pipeline.clone(), options.agents.clone()));
        let knows = machines.get(tenure_pods::task::table::TABLE.kind).is_some();
        let tasks =
            knows.then(|| tenure_pods::desk::Desk::new(pipeline.clone(), options.pods.clone()));
        let tray = Tray::new(pipeline.clone(), options.lease);
        let jobs = jobs.map(|desk| desk.with_outposts(Arc::new(tray.clone())));
        let connections = Connections::new(options.limits, pipeline.rt().clone());
        App(Arc::new(Inner {
            connections,
            tray,
            counter: Counter::default(),
            words: Words::new(machines.tables()),
            board: Board::new(pipeline.bell().clone(), pipeline.rt().clone()),
            pipeline,
            machines,
            options,
            auth,
            audit,
            refused_acts,
            identities: Identities::default(),
            jobs,
            turns,
            agents,
            tasks,
            looks: metrics::Looks::default(),
            closing: watch::Sender::new(false),
        }))
    }

    /// Carries operations to the store.
    pub fn pipeline(&self) -> &Pipeline {
        &self.0.pipeline
    }

    /// The kinds of work it knows.
    pub fn machines(&self) -> &Machines {
        &self.0.machines
    }

    /// What it was told.
    pub fn options(&self) -> &ServerOptions {
        &self.0.options
    }

    /// Who may call.
    pub fn auth(&self) -> &Auth {
        &self.0.auth
    }

    /// Where administrative acts are recorded.
    pub fn audit(&self) -> &AuditTrail {
        &self.0.audit
    }

    pub(crate) fn refused_acts(&self) -> &RefusedActs {
        &self.0.refused_acts
    }

    /// What is needed to create and to replay jobs; `None` on a server without them.
    pub fn jobs(&self) -> Option<&jobs::Desk> {
        self.0.jobs.as_ref()
    }

    /// What may be asked of agents; `None` on a server whose machines do not know them.
    pub fn agents(&self) -> Option<&tenure_agents::desk::Desk> {
        self.0.agents.as_ref()
    }

    /// What may be asked of tasks; `None` on a server whose machines do not know them.
    pub fn tasks(&self) -> Option<&tenure_pods::desk::Desk> {
        self.0.tasks.as_ref()
    }

    /// Admits bytes that a caller brings beside entities: a value, a signal. A key without a tenant is not limited.
    pub(crate) async fn admit_bytes(
        &self,
        caller: &Caller,
        bytes: usize,
    ) -> Result<(), StoreError> {
        match (self.pipeline().quotas(), &caller.tenant) {
            (Some(quotas), Some(tenant)) => quotas.admit_bytes(tenant, bytes).await,
            _ => Ok(()),
        }
    }

    /// Returns when the server is stopping: what waits long, such as a stream, ends then.
    pub async fn closing(&self) {
        // The sender lives in `self`, so this ends only when it is true.
        let _ = self.0.closing.subscribe().wait_for(|closing| *closing).await;
    }

    /// Does something to its end, whether or not who asked for it waits so long: a request that is left takes its future
    /// along, in the middle of whatever that does.
    pub(crate) async fn to_the_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (tx, rx) = oneshot::channel();
        self.pipeline().rt().spawn(Box::pin(async move { drop(tx.send(work.await)) }));
        rx.await.map_err(|_| StoreError::Unavailable("the server stops".into()))
    }

    /// Hands turns to workers in any language; `None` on a server whose machines do not know turns.
    pub(crate) fn turns(&self) -> Option<&tenure_agents::drive::far::Far> {
        self.0.turns.as_ref()
    }

    pub(crate) fn words(&self) -> &Words {
        &self.0.words
    }

    pub(crate) fn identities(&self) -> &Identities {
        &self.0.identities
    }

    pub(crate) fn board(&self) -> &Board {
        &self.0.board
    }

    pub(crate) fn looks(&self) -> &metrics::Looks {
        &self.0.looks
    }

    /// The connections to it.
    pub fn connections(&self) -> &Connections {
        &self.0.connections
    }

    pub(crate) fn counter(&self) -> &Counter {
        &self.0.counter
    }

    pub(crate) fn tray(&self) -> &Tray {
        &self.0.tray
    }
}

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Tenure",
        description = "Runs work that must not be lost, done twice, or left hanging."
    ),
    tags(
        (name = "keys", description = "Keys, who a caller is, and the audit trail; see docs/security.md."),
        (name = "blocks", description = "What an operator keeps from running; see docs/security.md."),
        (name = "limits", description = "How often tools may be called; see docs/limits.md."),
        (name = "schedules", description = "Jobs at the times of a calendar; see docs/schedules.md."),
        (name = "jobs", description = "What people and programs ask of jobs; see docs/api.md."),
        (name = "agents", description = "Agents, their turns and inboxes; see docs/agents.md."),
        (name = "tasks", description = "Tasks that run as pods, and what collectors say about them; see docs/tasks.md."),
        (name = "calls", description = "Workers that run tools, in any language; see docs/api.md."),
        (name = "turns", description = "Workers that run agents, in any language; see docs/agents-in-any-language.md."),
        (name = "aliases", description = "Paths of the systems that came before, with the same answers."),
        (name = "worker", description = "The worker protocol; see docs/worker-protocol.md."),
    ),
    components(schemas(problem::ProblemDocument))
)]
struct ApiDoc;

/// All routes of this crate.
pub fn router(app: App) -> Router {
    router_with(app, OpenApiRouter::new())
}

/// All routes of this crate and more.
pub fn router_with(app: App, more: OpenApiRouter<App>) -> Router {
    let (routes, mut api) = OpenApiRouter::with_openapi(ApiDoc::openapi())
        .merge(health::routes())
        .merge(whoami::routes())
        .merge(quotas::routes())
        .merge(keys::routes())
        .merge(audit::routes())
        .merge(metrics::routes())
        .merge(pages::routes())
        .merge(workers::routes(app.options()))
        .merge(jobs::routes(&app))
        .merge(calls::routes(&app))
        .merge(turns::routes(&app))
        .merge(agents::routes(&app))
        .merge(tasks::routes(&app))
        .merge(console::routes(&app))
        .merge(more)
        .layer(DefaultBodyLimit::max(app.options().payload_bytes_max))
        .split_for_parts();
    security::describe(&mut api);
    // Rendered once: it does not change while the server runs.
    let document = serde_json::to_value(&api).map(|mut document| {
        bounds::describe(&mut document);
        document.to_string()
    });
    let document = document.unwrap_or_else(|e| format!("{{\"error\":\"{e}\"}}"));
    let document =
        get(|_: Caller| async { ([(header::CONTENT_TYPE, "application/json")], document) });
    routes
        .route("/v1/openapi.json", document)
        .method_not_allowed_fallback(wrong_method)
        .fallback(no_route)
        .layer(from_fn_with_state(app.clone(), audit::record_acts))
        .layer(from_fn_with_state(app.clone(), open_requests::end_with_key))
        .with_state(app)
}

async fn wrong_method(method: Method, uri: Uri) -> Problem {
    let detail = format!("{} does not take {method}", uri.path());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, ApiCode::MethodNotAllowed, detail)
        .field("method")
        .fix("the Allow header of this answer, and /v1/openapi.json, say which it takes")
}

async fn no_route(uri: Uri) -> Problem {
    let detail = format!("there is nothing at {}", uri.path());
    Problem::new(StatusCode::NOT_FOUND, ApiCode::NoRoute, detail)
        .field("path")
        .fix("/v1/openapi.json lists all paths")
}

/// Why a server did not start, or ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// It would be open to everybody.
    #[error(transparent)]
    NotProtected(#[from] NotProtected),
    /// The network.
    #[error("the server can not listen: {0}")]
    Io(#[from] std::io::Error),
}

/// Serves [`router`] until asked to stop, then lets running requests end.
pub async fn serve(app: App, listener: TcpListener, stop: Stop) -> Result<(), ServeError> {
    let routes = router(app.clone());
    serve_router(app, routes, listener, stop).await
}

/// Serves a router that was made with [`router_with`] over the same app.
pub async fn serve_router(
    app: App,
    routes: Router,
    listener: TcpListener,
    mut stop: Stop,
) -> Result<(), ServeError> {
    app.auth().protect(listener.local_addr()?, app.pipeline()).await?;
    let watching = app.clone();
    app.pipeline().rt().spawn(Box::pin(async move { watching.watch_requests().await }));
    let closing = app.clone();
    let asked = async move {
        stop.wait().await;
        closing.0.closing.send_replace(true);
    };
    let listening =
        Listening { connections: app.connections().clone(), tls: app.options().tls.clone() };
    let serving = tenure_listener::serve(listener, routes, listening, asked);
    let too_long = async {
        app.closing().await;
        app.pipeline().rt().sleep(GRACE).await;
    };
    if let First::Right(()) = first(serving, too_long).await {
        tracing::warn!("some requests did not end in time; stopping without them");
    }
    Ok(())
}
