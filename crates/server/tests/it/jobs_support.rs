//! A server with jobs on a real socket, a worker in its process, and a client that knows only the address.

use super::{
    openapi::Document,
    support::{config, operator_key, rt},
};
use reqwest::{Client, Method};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};
use tenure_bell::InProcess;
use tenure_edge::SystemClock;
use tenure_engine::{
    config::EngineConfig,
    lanes::Discard,
    node::{Node, Parts},
    stop::{Stopper, stopper},
};
use tenure_jobs::{
    Job,
    call::Call,
    catalogue::Catalogue,
    crew::{Crew, CrewOptions},
    drive::{JobOptions, Shop, hands::Hands},
    gate::{Gate, GatePage},
    terms::Serves,
};
use tenure_kernel::{
    admission::Admissions,
    ids::EntityId,
    judge::Judge,
    machine::Machines,
    store::{HeadFilter, Store},
};
use tenure_proving::{
    patience,
    stores::{Engine, Place},
};
use tenure_server::{
    App, ServerOptions,
    jobs::Desk,
    keys::{self, NewKey, Scope},
    serve,
    webhooks::WebhookSecrets,
};
use tenure_steps::{
    Approval, Ctx, FlowError, ToolCtx, ToolError,
    flow::{FlowSpec, Flows},
    tool::{ToolSpec, Tools},
};
use tenure_store::sqlite::SqliteStore;
use tokio::{net::TcpListener, sync::watch};

pub fn machines() -> Machines {
    let others = tenure_pods::machines(tenure_server::machines(Machines::kernel()));
    others
        .with::<Job>()
        .with::<Call>()
        .with::<Gate>()
        .with::<GatePage>()
        .with::<Catalogue>()
        .with::<tenure_jobs::shared::batch::Batch>()
        .with::<tenure_jobs::shared::limit::Limit>()
        .with::<tenure_jobs::shared::limit::LimitBook>()
        .with::<tenure_jobs::shared::schedule::Schedule>()
        .with::<tenure_agents::agent::Agent>()
        .with::<tenure_agents::turn::Turn>()
        .with::<tenure_agents::join::Join>()
}

/// Input of `greet`.
#[derive(Deserialize, JsonSchema)]
struct Greeting {
    name: String,
    #[serde(default)]
    times: u8,
}

async fn greet(_ctx: Ctx, of: Greeting) -> Result<String, FlowError> {
    Ok(format!("hello {}", of.name).repeat(usize::from(of.times.max(1))))
}

async fn listen(ctx: Ctx, key: String) -> Result<Value, FlowError> {
    Ok(ctx.wait_signal(&key).await?)
}

/// Waits for a signal, and once more after it has started afresh.
async fn listen_twice(
    ctx: Ctx,
    (key, mut heard): (String, Vec<Value>),
) -> Result<Value, FlowError> {
    heard.push(ctx.wait_signal(&key).await?);
    match heard.len() {
        1 => Err(ctx.continue_with((key, heard))),
        _ => Ok(json!(heard)),
    }
}

async fn ask(ctx: Ctx, _: Value) -> Result<Value, FlowError> {
    let answer: Approval = ctx.approval("answer").note("may it?").await?;
    Ok(json!({ "approved": answer.approved, "by": answer.by, "said": answer.payload }))
}

/// Calls a tool of which nobody knows what became of it, behind one that is fine.
async fn unclear(ctx: Ctx, _: Value) -> Result<Value, FlowError> {
    let _: Value = ctx.tool("echo", json!(1)).await?;
    Ok(ctx.tool("mumble", json!({})).await?)
}

/// What `pay` returns.
#[derive(Serialize, Deserialize, JsonSchema)]
struct Receipt {
    receipt: String,
    cents: u32,
}

/// Pays with a tool of which nobody knows what became of it, and fails without a receipt.
async fn buys(ctx: Ctx, _: Value) -> Result<Value, FlowError> {
    let paid: Receipt = ctx.tool("pay", json!(5)).await?;
    match paid.receipt.starts_with("R-") {
        true => Ok(json!(paid.receipt)),
        false => Err(FlowError::Failed(format!("{} is no receipt", paid.receipt))),
    }
}

async fn breaks(ctx: Ctx, _: Value) -> Result<Value, FlowError> {
    let _: Value = ctx.tool("echo", json!(1)).await?;
    Ok(ctx.tool("broken", json!({})).await?)
}

/// Calls a tool that no worker here has.
async fn far(ctx: Ctx, of: Far) -> Result<Value, FlowError> {
    Ok(ctx.tool(&of.tool, of.input).await?)
}

/// Input of `far`.
#[derive(Deserialize, JsonSchema)]
struct Far {
    tool: String,
    #[serde(default)]
    input: Value,
}

/// Calls one tool, as the product's flow of this name does.
async fn call(ctx: Ctx, input: Value) -> Result<Value, FlowError> {
    Ok(ctx.tool(input["tool"].as_str().unwrap_or_default(), input["input"].clone()).await?)
}

/// Says how many items a batch has.
async fn count(_ctx: Ctx, input: Value) -> Result<usize, FlowError> {
    Ok(input["items"].as_array().map_or(0, Vec::len))
}

fn flows() -> Flows {
    Flows::default()
        .with(FlowSpec::new("greet", greet).doc("Says hello."))
        .with(FlowSpec::new("listen", listen).doc("Waits for a signal."))
        .with(FlowSpec::new("listen_twice", listen_twice))
        .with(FlowSpec::new("ask", ask).doc("Asks a person."))
        .with(FlowSpec::new("unclear", unclear))
        .with(FlowSpec::new("breaks", breaks))
        .with(FlowSpec::new("buys", buys))
        .with(FlowSpec::new("count", count))
        .with(FlowSpec::new("far", far))
        .with(FlowSpec::new("call", call))
        .with(tenure_jobs::plan::flow())
}

fn tools() -> Tools {
    Tools::default()
        .with(ToolSpec::new("echo", |_: ToolCtx, v: Value| async move { Ok(v) }).idempotent())
        .with(
            ToolSpec::new("mumble", |_: ToolCtx, _: Value| async move {
                Err::<Value, _>(ToolError::unknown("it mumbled"))
            })
            .irreversible(),
        )
        .with(
            ToolSpec::new("pay", |_: ToolCtx, _: Value| async move {
                Err::<Receipt, _>(ToolError::unknown("the line went dead"))
            })
            .irreversible(),
        )
        .with(
            ToolSpec::new("broken", |_: ToolCtx, _: Value| async move {
                Err::<Value, _>(ToolError::permanent("it is broken"))
            })
            .idempotent(),
        )
}

/// A server with jobs.
pub struct Jobs {
    pub base: String,
    pub app: App,
    crew: Crew,
    node: Node,
    stopper: Stopper,
    ended: watch::Receiver<bool>,
    client: Client,
    document: Document,
    /// A key that may do everything for every tenant.
    pub operator: String,
}

/// What came back.
#[derive(Debug)]
pub struct Answered {
    pub status: u16,
    pub location: Option<String>,
    pub retry_after: Option<String>,
    pub body: Value,
}

impl Answered {
    /// A text member of the body.
    pub fn text(&self, member: &str) -> &str {
        self.body[member].as_str().unwrap_or_else(|| panic!("{member} in {}", self.body))
    }
}

/// Starts one over a directory.
pub async fn start(dir: &Path) -> Jobs {
    start_with(dir, Setup::default()).await
}

/// What may differ about a server.
pub struct Setup {
    /// Which entities may be created.
    pub admissions: Admissions,
    /// What a task has where its order says nothing.
    pub pods: tenure_pods::desk::Defaults,
    /// Who takes calls of tools in place of the server's worker.
    pub hands: Option<Arc<dyn Hands>>,
    /// The numbers of the engine.
    pub config: EngineConfig,
    /// How webhooks are signed.
    pub webhooks: WebhookSecrets,
    /// Another store than the one in the directory.
    pub store: Option<Arc<dyn Store>>,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            admissions: Admissions::default(),
            pods: tenure_pods::desk::Defaults::default(),
            hands: None,
            config: config(),
            webhooks: WebhookSecrets::default(),
            store: None,
        }
    }
}

/// Starts one over an empty schema of the private Postgres.
pub async fn start_in_postgres() -> Jobs {
    let place = Place::new(Engine::Postgres, &machines()).await;
    start_with(Path::new(""), Setup { store: Some(place.store()), ..Setup::default() }).await
}

/// Starts one over a directory that is set up like this.
pub async fn start_with(dir: &Path, setup: Setup) -> Jobs {
    let Setup { admissions, pods, hands, config, webhooks, store } = setup;
    let judge = || Judge::new(machines().tables()).admitting(admissions.clone());
    let store = store.unwrap_or_else(|| {
        Arc::new(SqliteStore::open(dir, judge(), Arc::new(SystemClock), 1).unwrap())
    });
    let parts = Parts {
        store,
        bell: Arc::new(InProcess::new()),
        rt: rt(),
        machines: machines(),
        config: config.clone(),
        name: "test".into(),
        executor: None,
        wire: Arc::new(Discard),
        protect_outage: false,
    };
    let node = Node::start(parts).await.unwrap();
    let mut shop = Shop::new(flows(), tools(), JobOptions::default());
    if let Some(hands) = hands {
        shop = shop.with_hands(hands);
    }
    let shop = Arc::new(shop);
    let options =
        CrewOptions { name: "crew".into(), executor: None, slots: 8, drain: Duration::ZERO };
    let crew = Crew::start(node.pipeline.clone(), Arc::new(config), shop.clone(), options);
    let crew = crew.await.unwrap();
    let desk = Desk::new(crew.submitter(judge()), shop, true);
    let kinds =
        "worker job call agent turn join catalogue limit limit_book block_book task pod".split(' ');
    let options = ServerOptions {
        payload_bytes_max: 64 * 1024,
        worker_kinds: kinds.map(str::to_owned).collect(),
        pods,
        webhooks,
        // The sweep shows hundreds of keys that are not valid.
        failed_sign_ins_per_minute: 0,
        ..ServerOptions::default()
    };
    let app = App::with_jobs(node.pipeline.clone(), machines(), options, desk);
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let (stopper, stop) = stopper();
    let (end, ended) = watch::channel(false);
    let serving = app.clone();
    rt().spawn(Box::pin(async move {
        serve(serving, listener, stop).await.unwrap();
        end.send_replace(true);
    }));
    let operator = operator_key(&app).await;
    let client = Client::builder().no_proxy().build().unwrap();
    let document = client.get(format!("{base}/v1/openapi.json")).send().await.unwrap();
    let document = Document(serde_json::from_slice(&document.bytes().await.unwrap()).unwrap());
    Jobs { base, app, crew, node, stopper, ended, client, document, operator }
}

impl Jobs {
    pub async fn stop(mut self) {
        self.stopper.stop();
        self.ended.wait_for(|ended| *ended).await.unwrap();
        self.crew.stop().await;
        self.node.stop().await;
    }

    /// One more worker, which serves this.
    pub async fn hire(&self, name: &str, serves: Serves) -> Crew {
        let shop = Shop::new(flows(), tools(), JobOptions::default()).serving(serves);
        let options =
            CrewOptions { name: name.into(), executor: None, slots: 8, drain: Duration::ZERO };
        let pipeline = self.node.pipeline.clone();
        Crew::start(pipeline, Arc::new(config()), Arc::new(shop), options).await.unwrap()
    }

    pub fn machines(&self) -> Machines {
        machines()
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        self.app.pipeline().store()
    }

    pub async fn key(&self, tenant: Option<&str>, scopes: &[Scope]) -> String {
        let (name, tenant, scopes) = ("test".into(), tenant.map(str::to_owned), scopes.to_vec());
        keys::create(self.app.pipeline(), NewKey { name, tenant, scopes }).await.unwrap().secret
    }

    /// Sends anything; with the operator's key if the headers have none.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<String>,
    ) -> Answered {
        let mut request = self.client.request(method.clone(), format!("{}{path}", self.base));
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization")) {
            request = request.bearer_auth(&self.operator);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(body) = body {
            request = request.body(body);
        }
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        let header = |name| response.headers().get(name).map(|v| v.to_str().unwrap().to_owned());
        let (location, kind) = (header("location"), header("content-type"));
        let retry_after = header("retry-after");
        let bytes = response.bytes().await.unwrap();
        if status == 204 {
            return Answered { status, location, retry_after, body: Value::Null };
        }
        let body: Value = serde_json::from_slice(&bytes)
            .unwrap_or_else(|e| panic!("{path}: {e}: {}", String::from_utf8_lossy(&bytes)));
        if status >= 400 {
            assert_eq!(kind.as_deref(), Some("application/problem+json"), "{path}");
            assert_eq!(body["status"], status, "{path}: {body}");
            for member in ["title", "detail", "code", "field", "fix"] {
                assert!(body[member].is_string(), "{path}: {member} of {body}");
            }
        } else {
            self.document.check(&method, path, status, &body);
        }
        Answered { status, location, retry_after, body }
    }

    /// The flow of bulk actions is known, and nobody runs it.
    pub async fn register_bulk(&self) {
        let flow = tenure_jobs::bulk::flow();
        tenure_jobs::catalogue::register(
            self.app.pipeline(),
            "",
            [&flow].into_iter(),
            std::iter::empty(),
        )
        .await
        .unwrap();
    }

    /// The bytes behind a path.
    pub async fn fetch(&self, path: &str, key: &str) -> Vec<u8> {
        let request = self.client.get(format!("{}{path}", self.base)).bearer_auth(key);
        let response = request.send().await.unwrap();
        assert_eq!(response.status().as_u16(), 200, "{path}");
        response.bytes().await.unwrap().to_vec()
    }

    pub async fn get(&self, path: &str) -> Answered {
        self.send(Method::GET, path, &[], None).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answered {
        let json = [("content-type", "application/json")];
        self.send(Method::POST, path, &json, Some(body.to_string())).await
    }

    /// As the owner of a key.
    pub async fn with_key(&self, method: Method, path: &str, key: &str, body: Value) -> Answered {
        let bearer = format!("Bearer {key}");
        let headers = [("content-type", "application/json"), ("authorization", bearer.as_str())];
        let body = (method != Method::GET).then(|| body.to_string());
        self.send(method, path, &headers, body).await
    }

    /// Submits, and says which job it is.
    pub async fn submit(&self, flow: &str, input: Value) -> String {
        let answered = self.post("/v1/jobs", json!({ "flow": flow, "input": input })).await;
        assert_eq!(answered.status, 202, "{answered:?}");
        answered.text("id").to_owned()
    }

    /// Waits until a job has this status.
    pub async fn until(&self, id: &str, status: &str) -> Value {
        self.until_it(id, status, |job| job["status"] == status).await
    }

    /// Waits until a job waits for something from outside: a wait without a deadline is a long one, and parks.
    pub async fn blocked(&self, id: &str) -> Value {
        let blocked = |job: &Value| {
            let waits = job["status"] == "waiting" || job["status"] == "parked";
            waits && job["holder"].is_null() && job["paused"] == false
        };
        self.until_it(id, "blocked", blocked).await
    }

    /// Waits until a job is as it should be.
    pub async fn until_it(&self, id: &str, what: &str, done: impl Fn(&Value) -> bool) -> Value {
        self.until_page(&format!("/v1/jobs/{id}"), what, |job| {
            let so = done(job);
            assert!(so || job["is_final"] != true, "waited for {what}: {job}");
            so
        })
        .await
    }

    /// Waits until what is read there is as it should be.
    pub async fn until_page(
        &self,
        path: &str,
        what: &str,
        holds: impl Fn(&Value) -> bool,
    ) -> Value {
        patience::found(&format!("{path}: {what}"), async || {
            let seen = self.get(path).await.body;
            if holds(&seen) { Ok(seen) } else { Err(seen) }
        })
        .await
    }

    /// How much was ever written: versions and mail of every entity but the sessions, and their number.
    pub async fn written(&self) -> Vec<(EntityId, u64, u64)> {
        let heads = self.store().heads(HeadFilter::default(), 10_000).await.unwrap();
        let lasting = heads.iter().filter(|h| ["job", "catalogue", "key"].contains(&h.kind()));
        // That a key was used is written to it now and then.
        let moved = |h: &tenure_kernel::head::Head| {
            if h.kind() == "key" { (0, 0) } else { (h.version, h.mail_count) }
        };
        lasting.map(|h| (h.id, moved(h).0, moved(h).1)).collect()
    }
}

/// Whether something was done by somebody of this name, who showed a key.
pub fn is_by(by: &Value, name: &str) -> bool {
    by.as_str().is_some_and(|by| by.starts_with(&format!("{name} (key ")))
}
