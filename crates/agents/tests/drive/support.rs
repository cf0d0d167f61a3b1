//! One server with crews for jobs and turns, a scripted model, and ears that hear what is announced outside.

use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};
use tenure_agents::{
    agent::{Agent, Spec, agent_id},
    drive::{
        TurnCrew, TurnCrewOptions, TurnShop,
        calls::{Jobs, Order},
        model::{ChatModel, Model},
        profile::Run,
    },
    join::Join,
    rules::Rules,
    turn::{
        NewTurn, Turn, TurnEvent, TurnState,
        model::{Sort, TurnEnd},
    },
    words::Change,
};
use tenure_bell::InProcess;
use tenure_edge::TokioRuntime;
use tenure_engine::{
    birth::{Wish, birth, create},
    config::EngineConfig,
    lanes::Wire,
    node::{Node, Parts},
    outside::NoBus,
};
use tenure_jobs::{
    Job, JobState,
    catalogue::Catalogue,
    crew::{Crew, CrewOptions},
    drive::{JobOptions, Shop},
    model::{NewJob, Parent},
};
use tenure_kernel::{
    bell::Bell,
    error::StoreError,
    head::Head,
    ids::{EntityId, MailId},
    machine::{Input, Machines, decode_event, decode_state},
    mail::{MailAnswer, NewMail},
    outbox::{Message, Posted, Target},
    runtime::BoxFuture,
    store::Store,
    stream::Body,
    table::Class,
};
use tenure_proving::stores::{Place, Scene};
use tenure_steps::{
    Ctx, FlowError,
    flow::{FlowSpec, Flows},
    tool::{ToolCtx, ToolError, ToolSpec, Tools},
};
use tenure_tools::{
    LlmOptions, Secrets,
    llm::Llm,
    scripted::{Script, Server},
};

/// A subject that the bus does not take anything for.
pub const DENIED: &str = "tools.denied";

/// What was announced outside, by subject, each message once.
#[derive(Clone, Default)]
pub struct Ears(Arc<Mutex<BTreeMap<String, (String, Value)>>>);

impl Ears {
    /// Bodies on subjects that end so.
    pub fn heard(&self, ending: &str) -> Vec<Value> {
        let heard = self.0.lock().unwrap();
        heard.values().filter(|(s, _)| s.ends_with(ending)).map(|(_, b)| b.clone()).collect()
    }
}

impl Wire for Ears {
    fn publish(&self, subject: &str, posted: &Posted) -> BoxFuture<'_, Result<(), StoreError>> {
        if subject == DENIED {
            return Box::pin(std::future::ready(Err(StoreError::Refused("not permitted".into()))));
        }
        let body = posted.message.body.inline().and_then(|b| serde_json::from_slice(b).ok());
        let id = format!("{:?}", posted.id);
        self.0.lock().unwrap().insert(id, (subject.to_owned(), body.unwrap_or_default()));
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Calls as jobs.
pub struct AsJobs;

impl Jobs for AsJobs {
    fn job(&self, order: &Order<'_>) -> (EntityId, Message) {
        let (flow, version, input) = match order.run {
            Run::Flow { name, version } => (name.clone(), *version, order.arguments.clone()),
            Run::Tool(tool) => {
                ("call".into(), 1, json!({ "tool": tool, "input": order.arguments }))
            }
            other => panic!("no job is made of {other:?}"),
        };
        let new = NewJob {
            flow,
            version,
            input,
            must_end_in_ms: order.must_end_in_ms,
            takeovers_max: 5,
            parent: Some(Parent { job: order.turn, ordinal: order.ordinal, depth: 0 }),
            ..NewJob::default()
        };
        let id = JobState::child_id(order.turn, order.ordinal);
        let to = Target::Create { id, kind: "job".into() };
        (id, Message { to, kind: "create".into(), body: Body::json(&new) })
    }
}

pub fn machines() -> Machines {
    Machines::kernel()
        .with::<Agent>()
        .with::<Turn>()
        .with::<Join>()
        .with::<Job>()
        .with::<tenure_jobs::call::Call>()
        .with::<Catalogue>()
        .with::<tenure_jobs::shared::limit::Limit>()
        .with::<tenure_jobs::shared::limit::LimitBook>()
}

/// What those wait for who wait for the turns of a worker that was killed.
pub const LEASE: Duration = Duration::from_millis(1_500);

/// The loops' round, whatever the lease.
const TICK: Duration = Duration::from_millis(200);

/// Of workers: a lease that outlasts whatever a busy machine does to its processes. Nobody loses a turn here who is not
/// killed.
pub fn config() -> EngineConfig {
    EngineConfig { tick: TICK, ..EngineConfig::with_lease(Duration::from_secs(30)) }
}

/// Of the server. A short one: for one lease after it starts it takes nobody for lost.
fn serving() -> EngineConfig {
    EngineConfig { tick: TICK, ..EngineConfig::with_lease(LEASE) }
}

/// A model behind HTTP.
pub fn chat(server: &Server) -> Arc<dyn Model> {
    let options = LlmOptions {
        base_url: server.base_url(),
        api_key_env: None,
        model: Some("scripted".into()),
        system_proxy: false,
        egress: tenure_tools::Egress::read("*=127.0.0.0/8").unwrap(),
        ..LlmOptions::default()
    };
    Arc::new(ChatModel::new(Llm::new(options, Secrets::default())))
}

pub struct World {
    pub place: Arc<Place>,
    pub store: Arc<dyn Store>,
    pub bell: Arc<dyn Bell>,
    pub node: Node,
    pub machines: Machines,
    pub ears: Ears,
    pub rules: Rules,
    _jobs: Crew,
}

async fn add(_: Ctx, input: Value) -> Result<Value, FlowError> {
    let number = |name: &str| input[name].as_i64().unwrap_or(0);
    Ok(json!(number("a") + number("b")))
}

/// Waits for a signal that never comes.
async fn hang(ctx: Ctx, _: Value) -> Result<Value, FlowError> {
    Ok(ctx.wait_signal::<Value>("never").await?)
}

async fn call(ctx: Ctx, wanted: Value) -> Result<Value, FlowError> {
    Ok(ctx.tool(wanted["tool"].as_str().unwrap_or_default(), wanted["input"].clone()).await?)
}

async fn large(_: Ctx, input: Value) -> Result<Value, FlowError> {
    Ok(json!("x".repeat(usize::try_from(input["bytes"].as_u64().unwrap_or(0)).unwrap())))
}

impl Scene for World {
    fn machines() -> Machines {
        machines()
    }

    async fn on(place: Place) -> Self {
        let ears = Ears::default();
        Self::with(place, serving(), ears.clone(), Arc::new(ears)).await
    }
}

impl World {
    /// Without a bus.
    pub async fn mute(place: Place) -> Self {
        let config = EngineConfig { mute: true, ..serving() };
        Self::with(place, config, Ears::default(), Arc::new(NoBus)).await
    }

    async fn with(place: Place, config: EngineConfig, ears: Ears, wire: Arc<dyn Wire>) -> Self {
        let store = place.store();
        let machines = machines();
        let bell: Arc<dyn Bell> = Arc::new(InProcess::new());
        let parts = Parts {
            store: store.clone(),
            bell: bell.clone(),
            rt: Arc::new(TokioRuntime::current()),
            machines: machines.clone(),
            config: config.clone(),
            name: "test".into(),
            executor: None,
            wire,
            protect_outage: true,
        };
        let node = Node::start(parts).await.unwrap();
        let flows = Flows::default()
            .with(FlowSpec::new("add", add))
            .with(FlowSpec::new("hang", hang))
            .with(FlowSpec::new("large", large))
            .with(FlowSpec::new("call", call));
        let echo = ToolSpec::new("echo", |_: ToolCtx, input: Value| async move {
            Ok::<_, ToolError>(json!({ "echo": input }))
        });
        let shop =
            Shop::new(flows, Tools::default().with(echo.idempotent()), JobOptions::default());
        let options = CrewOptions {
            name: "jobs".into(),
            executor: tenure_edge::executor_of_this_process(),
            slots: 64,
            drain: Duration::from_secs(5),
        };
        let jobs = Crew::start(node.pipeline.clone(), Arc::new(config), Arc::new(shop), options);
        let _jobs = jobs.await.unwrap();
        let rules = Rules { tick_ms: 200, ..Rules::default() };
        World { place: Arc::new(place), store, bell, node, machines, ears, rules, _jobs }
    }

    /// A scripted model and one worker.
    pub async fn scripted(&self, script: Script) -> (Server, TurnCrew) {
        let server = Server::start(script).await.unwrap();
        let crew = self.crew(chat(&server)).await;
        (server, crew)
    }

    /// A crew for turns of target `t`.
    pub async fn crew(&self, model: Arc<dyn Model>) -> TurnCrew {
        self.crew_of(TurnShop::new(model, Arc::new(AsJobs))).await
    }

    pub async fn crew_of(&self, shop: TurnShop) -> TurnCrew {
        let shop = TurnShop { backoff: Duration::from_millis(10), ..shop };
        let options = TurnCrewOptions {
            name: "turns".into(),
            executor: None,
            targets: vec!["t".into()],
            slots: 64,
            drain: Duration::from_secs(5),
        };
        let pipeline = self.node.pipeline.clone();
        TurnCrew::start(pipeline, Arc::new(config()), Arc::new(shop), options).await.unwrap()
    }

    pub async fn agent(&self, name: &str, profile: Value) {
        let spec = Spec {
            name: name.into(),
            target: "t".into(),
            channel: Some("c".into()),
            output_box: Some("box".into()),
            profile,
        };
        let body = Body::json(&Change::Set { spec: Box::new(spec), by: None });
        let at = self.store.now().await.unwrap();
        let wish = Wish { id: agent_id("acme", name), kind: "agent", tenant: "acme", at };
        let pipeline = &self.node.pipeline;
        let commit =
            birth(&self.machines, wish, &Input::Create(&body), pipeline.commit_id()).unwrap();
        pipeline.commit(commit).await.unwrap();
    }

    pub async fn send(&self, agent: &str, text: &str) -> EntityId {
        self.send_at(agent, text, 0).await
    }

    pub async fn send_at(&self, agent: &str, text: &str, depth: u32) -> EntityId {
        let new = NewTurn {
            agent: agent_id("acme", agent),
            agent_name: agent.into(),
            target: "t".into(),
            sort: Sort::Turn,
            channel: Some("c".into()),
            output_box: Some("box".into()),
            messages: vec![json!({ "role": "user", "content": text })],
            correlation_id: None,
            asker: None,
            depth,
            above: Vec::new(),
            trace: None,
            must_end_in_ms: 60_000,
            rules: self.rules,
            priority: 0,
            by: None,
        };
        let body = Body::json(&new);
        create(&self.node.pipeline, &self.machines, "turn", "acme", &body).await.unwrap()
    }

    pub async fn head(&self, turn: EntityId) -> Head {
        self.store.head(turn).await.unwrap().unwrap()
    }

    pub async fn state(&self, turn: EntityId) -> TurnState {
        decode_state::<Turn>(&self.head(turn).await.state).unwrap()
    }

    /// Waits until this holds of the turn.
    pub async fn until(
        &self,
        turn: EntityId,
        what: &str,
        holds: impl Fn(&Head, &TurnState) -> bool,
    ) {
        let so = |head: &Head| holds(head, &decode_state::<Turn>(&head.state).unwrap());
        if !self.comes_to(turn, so).await {
            panic!("{turn} is never {what}:\n{}", self.story(turn).await);
        }
    }

    /// Waits until there is such an entity, of any kind, and this holds of it.
    pub async fn until_head(&self, id: EntityId, what: &str, holds: impl Fn(&Head) -> bool) {
        assert!(self.comes_to(id, holds).await, "{id} is never {what}");
    }

    async fn comes_to(&self, id: EntityId, holds: impl Fn(&Head) -> bool) -> bool {
        let look = async || self.store.head(id).await.unwrap().filter(|head| holds(head));
        self.place.find(look).await.is_some()
    }

    pub async fn until_status(&self, turn: EntityId, status: &str) {
        self.until(turn, status, |head, _| head.status.name() == status).await;
    }

    /// Waits for its end.
    pub async fn ended(&self, turn: EntityId) -> TurnEnd {
        self.until(turn, "over", |head, _| head.class() == Class::Final).await;
        let events = self.events(turn).await;
        let end = events.iter().find_map(|e| e.as_end().cloned());
        end.unwrap_or_else(|| panic!("{turn} has no end"))
    }

    pub async fn delivered(&self, turn: EntityId) -> Value {
        let end = self.ended(turn).await;
        let story = self.story(turn).await;
        end.deliverable.unwrap_or_else(|| panic!("nothing delivered:\n{story}")).content
    }

    pub async fn events(&self, turn: EntityId) -> Vec<TurnEvent> {
        let mut all = Vec::new();
        for record in self.store.stream(turn, 1, 1_000).await.unwrap() {
            let events = tenure_engine::events::of_record(&self.store, &record).await.unwrap();
            for event in events {
                all.extend(decode_event::<Turn>(&event.name, &event.body).unwrap());
            }
        }
        all
    }

    pub async fn story(&self, turn: EntityId) -> String {
        let events = self.events(turn).await;
        events.iter().map(|e| format!("{e:?}")).collect::<Vec<_>>().join("\n")
    }

    pub async fn count(&self, turn: EntityId, is: impl Fn(&TurnEvent) -> bool) -> usize {
        self.events(turn).await.iter().filter(|e| is(e)).count()
    }

    pub async fn mail(
        &self,
        turn: EntityId,
        kind: &'static str,
        id: &str,
        body: &Value,
    ) -> MailAnswer {
        let mail =
            NewMail { to: turn, id: MailId(id.into()), kind: kind.into(), body: Body::json(body) };
        self.node.pipeline.mail(mail).await.unwrap()
    }

    /// Waits until so many final events were heard, and says that no turn has two.
    pub async fn tasks(&self, count: usize) -> Vec<Value> {
        let heard = self.place.find(async || {
            // What was published is struck off the outbox next, which is a write.
            let heard = self.ears.heard(".task");
            (heard.len() >= count).then_some(heard)
        });
        let Some(heard) = heard.await else {
            panic!("{} of {count} final events", self.ears.heard(".task").len());
        };
        let mut turns: Vec<String> = heard.iter().map(|t| t["agent_turn_id"].to_string()).collect();
        turns.sort();
        turns.dedup();
        assert_eq!((turns.len(), heard.len()), (count, count), "each turn ends once");
        heard
    }
}
