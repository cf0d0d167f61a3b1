//! One server, a cluster that is a double, and executors that can be killed.

use serde_json::{Value, json};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tenure_bell::InProcess;
use tenure_edge::TokioRuntime;
use tenure_engine::{
    birth::create,
    claimer::Claimer,
    config::EngineConfig,
    node::{Node, Parts},
    pipeline::Pipeline,
    session::Keeper,
    worker::Held,
};
use tenure_jobs::{
    Job,
    call::NewCall,
    catalogue::Catalogue,
    crew::{Crew, CrewOptions},
    drive::{
        JobOptions, Shop,
        hands::{self, Hands, Order},
    },
    model::NewJob,
};
use tenure_kernel::{
    bell::Bell,
    head::Head,
    ids::{EntityId, MailId},
    machine::{Machines, decode_event, decode_state},
    mail::{MailAnswer, NewMail},
    outbox::Discard,
    store::Store,
    stream::Body,
    table::Class,
};
use tenure_kubedouble::Cluster;
use tenure_pods::{
    execute::{Executor, ExecutorOptions, ExecutorState, LiveCluster, Patience, PodShop, Probe},
    pod::{Pod, PodEvent, PodState, queue_of},
    step::StepDefaults,
    task::{NewTask, Task, TaskEvent, TaskState, model::tended_id, policy::RetryPolicy},
    verdict::Policy,
};
use tenure_proving::stores::{Engine, Place};
use tenure_steps::{
    Ctx, FlowError,
    flow::{FlowSpec, Flows},
    tool::{ToolSpec, Tools},
};

pub fn machines() -> Machines {
    let machines = Machines::kernel()
        .with::<Job>()
        .with::<tenure_jobs::call::Call>()
        .with::<Catalogue>()
        .with::<tenure_jobs::shared::limit::Limit>()
        .with::<tenure_jobs::shared::limit::LimitBook>();
    tenure_pods::machines(machines)
}

/// Leases of half a second: these tests are not about waiting.
pub fn config() -> EngineConfig {
    EngineConfig::with_lease(Duration::from_millis(600))
}

/// Short, for the same reason.
pub fn patience() -> Patience {
    Patience {
        request: Duration::from_secs(5),
        pause: Duration::from_millis(20),
        pause_max: Duration::from_millis(100),
        log_end: Duration::from_secs(3),
        linger: Duration::from_millis(300),
        late: Duration::from_millis(300),
        poll: Duration::from_millis(100),
        greet: Duration::from_millis(100),
        sweep: None,
    }
}

/// Calls as tasks, as the program composes it.
pub struct PodHands(StepDefaults, Vec<ToolSpec>);

impl Hands for PodHands {
    fn tools(&self) -> &[ToolSpec] {
        &self.1
    }

    fn check(&self, _tool: &str, input: &Value) -> Result<(), String> {
        assert_ne!(input["image"], "a check that panics");
        self.0.check(input)
    }

    fn order(&self, call: &NewCall, tenant: &str) -> Order {
        let call = serde_json::to_value(call).unwrap();
        Order { kind: "task".into(), body: Body::json(&self.0.order(&call, tenant).unwrap()) }
    }
}

pub struct World {
    pub place: Place,
    pub store: Arc<dyn Store>,
    pub bell: Arc<dyn Bell>,
    pub node: Node,
    pub machines: Machines,
    pub cluster: Cluster,
    /// Every pod that was ever made, in order.
    pub made: Arc<Mutex<Vec<String>>>,
    _jobs: Crew,
}

async fn pod(ctx: Ctx, input: Value) -> Result<Value, FlowError> {
    Ok(ctx.tool("pod", input).await?)
}

impl World {
    pub async fn new() -> Self {
        let machines = machines();
        let place = Place::new(Engine::Memory, &machines).await;
        let store = place.store();
        let bell: Arc<dyn Bell> = Arc::new(InProcess::new());
        let parts = Parts {
            store: store.clone(),
            bell: bell.clone(),
            rt: Arc::new(TokioRuntime::current()),
            machines: machines.clone(),
            config: config(),
            name: "test".into(),
            executor: None,
            wire: Arc::new(Discard),
            protect_outage: true,
        };
        let node = Node::start(parts).await.unwrap();
        let mut spec = hands::spec("pod");
        spec.options.timeout = Some(Duration::from_secs(60));
        let retry = RetryPolicy { backoff_ms: 20, backoff_cap_ms: 50, ..RetryPolicy::default() };
        let defaults = StepDefaults { retry, ..StepDefaults::default() };
        let flows = Flows::default().with(FlowSpec::new("pod", pod));
        let options =
            JobOptions { call_patience: Duration::from_millis(50), ..JobOptions::default() };
        let shop = Shop::new(flows, Tools::default(), options)
            .with_hands(Arc::new(PodHands(defaults, vec![spec])));
        let options = CrewOptions {
            name: "jobs".into(),
            executor: tenure_edge::executor_of_this_process(),
            slots: 64,
            drain: Duration::from_secs(5),
        };
        let jobs = Crew::start(node.pipeline.clone(), Arc::new(config()), Arc::new(shop), options);
        let _jobs = jobs.await.unwrap();
        let cluster = Cluster::start();
        cluster.add_node("node-1");
        let made: Arc<Mutex<Vec<String>>> = Arc::default();
        let world = World { place, store, bell, node, machines, cluster, made, _jobs };
        world.on_create(|_, _| {});
        world
    }

    /// What happens to a pod that is made, besides being counted.
    pub fn on_create(&self, hook: impl Fn(&Cluster, &str) + Send + Sync + 'static) {
        let made = self.made.clone();
        self.cluster.on_create(move |cluster, pod| {
            made.lock().unwrap().push(pod.to_owned());
            hook(cluster, pod);
        });
    }

    /// Every pod that was ever made.
    pub fn made(&self) -> Vec<String> {
        self.made.lock().unwrap().clone()
    }

    /// Waits for the only pod, or the last of so many.
    pub async fn pod(&self, nth: usize) -> String {
        self.until("the pod is made", || self.made.lock().unwrap().len() >= nth).await;
        self.made()[nth - 1].clone()
    }

    /// The same, and it is begun on a node.
    pub async fn started(&self, nth: usize) -> String {
        let pod = self.pod(nth).await;
        self.cluster.bind(&pod, "node-1");
        self.cluster.running(&pod);
        pod
    }

    /// The same, and its task knows.
    pub async fn running(&self, task: EntityId, nth: usize) -> String {
        let pod = self.started(nth).await;
        self.status(task, "RUNNING").await;
        pod
    }

    /// Waits until a pod is being deleted, and says how it is then.
    pub async fn deleted(&self, pod: &str) -> Value {
        let leaves = |cluster: &Cluster| {
            cluster.pod(pod).is_some_and(|p| p["metadata"]["deletionTimestamp"].is_string())
        };
        self.cluster.until("it is deleted", leaves).await;
        self.cluster.pod(pod).expect("it is there")
    }

    pub async fn executor(&self) -> Mortal {
        self.executor_with(|shop| shop).await
    }

    pub async fn executor_with(
        &self,
        set: impl FnOnce(PodShop) -> PodShop + Send + 'static,
    ) -> Mortal {
        Mortal::start(self, set).await
    }

    /// The same, for pods of this cluster.
    pub async fn executor_of(&self, cluster: &str) -> Mortal {
        Mortal::start_for(self, cluster, |shop| shop).await
    }

    /// Somebody who can claim pods, and is no executor of ours.
    pub async fn hold(&self, pod: EntityId) -> Held {
        let config = Arc::new(config());
        let pipeline = self.node.pipeline.clone();
        let keeper = Keeper::open(pipeline, config, "forger", "worker", None).await.unwrap();
        let mut claimer = Claimer::new(keeper.clone());
        let claimed = self.place.find(async || {
            let claimed = claimer.claim(&queue_of(""), 1, true).await.unwrap();
            claimed.into_iter().next()
        });
        let held = Held::new(keeper, claimed.await.expect("a pod can be claimed"));
        assert_eq!(held.id(), pod);
        held
    }

    pub async fn task(&self, new: NewTask) -> EntityId {
        let body = Body::json(&new);
        create(&self.node.pipeline, &self.machines, "task", "acme", &body).await.unwrap()
    }

    pub async fn job(&self, input: Value) -> EntityId {
        let new = NewJob {
            flow: "pod".into(),
            version: 1,
            input,
            must_end_in_ms: 60_000,
            takeovers_max: 5,
            ..NewJob::default()
        };
        let body = Body::json(&new);
        create(&self.node.pipeline, &self.machines, "job", "acme", &body).await.unwrap()
    }

    pub async fn head(&self, id: EntityId) -> Option<Head> {
        self.store.head(id).await.unwrap()
    }

    pub async fn task_state(&self, task: EntityId) -> TaskState {
        decode_state::<Task>(&self.head(task).await.unwrap().state).unwrap()
    }

    /// Waits until this holds: looked at after every write, and with every round of the server.
    pub async fn until(&self, what: &str, holds: impl Fn() -> bool) {
        self.place.until(what, async || holds()).await;
    }

    /// Waits until an entity has this status.
    pub async fn status(&self, id: EntityId, status: &str) {
        let found = self.place.find(async || {
            let head = self.head(id).await?;
            let there = head.status.name() == status;
            // What is over does not change any more.
            (there || head.class() == Class::Final).then_some(there)
        });
        if found.await != Some(true) {
            let head = self.head(id).await.map(|h| h.status.name());
            panic!("{id} is {head:?} and never {status}:\n{}", self.story(id).await);
        }
    }

    /// The entity that stands for the pod of an attempt.
    pub fn tended(&self, task: EntityId, attempt: u32) -> EntityId {
        tended_id(task, attempt)
    }

    pub async fn pod_state(&self, pod: EntityId) -> PodState {
        decode_state::<Pod>(&self.head(pod).await.unwrap().state).unwrap()
    }

    /// Waits until this holds of a pod's head.
    pub async fn until_pod(&self, pod: EntityId, what: &str, holds: impl Fn(&PodState) -> bool) {
        let found = self.place.find(async || {
            let head = self.head(pod).await?;
            holds(&decode_state::<Pod>(&head.state).unwrap()).then_some(())
        });
        if found.await.is_none() {
            panic!("{pod}: never {what}:\n{}", self.story(pod).await);
        }
    }

    /// The names of everything that happened to an entity.
    pub async fn story(&self, id: EntityId) -> String {
        let mut lines = Vec::new();
        for record in self.store.stream(id, 1, 1_000).await.unwrap() {
            for event in record.events().unwrap() {
                let body = event.body.inline().map(String::from_utf8_lossy).unwrap_or_default();
                lines.push(format!("{} {body}", event.name));
            }
        }
        lines.join("\n")
    }

    pub async fn pod_events(&self, pod: EntityId) -> Vec<PodEvent> {
        let mut all = Vec::new();
        for record in self.store.stream(pod, 1, 1_000).await.unwrap() {
            for event in record.events().unwrap() {
                all.extend(decode_event::<Pod>(&event.name, &event.body).unwrap());
            }
        }
        all
    }

    pub async fn task_events(&self, task: EntityId) -> Vec<TaskEvent> {
        let mut all = Vec::new();
        for record in self.store.stream(task, 1, 1_000).await.unwrap() {
            for event in record.events().unwrap() {
                all.extend(decode_event::<Task>(&event.name, &event.body).unwrap());
            }
        }
        all
    }

    /// The log that was kept of a pod.
    pub async fn log_of(&self, pod: EntityId) -> String {
        let pieces = self.pod_events(pod).await;
        let text = pieces.into_iter().filter_map(|e| match e {
            PodEvent::LogAppended { text, .. } => Some(text),
            _ => None,
        });
        text.collect()
    }

    pub async fn mail(&self, to: EntityId, kind: &'static str, body: &Value) -> MailAnswer {
        let id = MailId(format!("test/{kind}"));
        let mail = NewMail { to, id, kind: kind.into(), body: Body::json(body) };
        self.node.pipeline.mail(mail).await.unwrap()
    }

    pub async fn cancel(&self, id: EntityId) {
        self.mail(id, "cancel", &json!({ "why": "not needed" })).await;
    }

    /// Requests of a verb on pods, as `name` alone, in order.
    pub fn asked(&self, verb: &str) -> Vec<String> {
        let all = self.cluster.requests();
        let mine = all.iter().filter(|r| r.verb == verb && r.resource == "pods");
        mine.map(|r| r.name.clone().unwrap_or_default()).collect()
    }
}

/// A task of one container, tried again at once.
pub fn new_task() -> NewTask {
    NewTask {
        name: "work".into(),
        workflow_id: "wf".into(),
        tenant_id: "acme".into(),
        template: json!({ "spec": { "containers": [{ "image": "busybox", "command": ["true"] }] } }),
        retry: RetryPolicy { backoff_ms: 20, backoff_cap_ms: 50, ..RetryPolicy::default() },
        must_end_in_ms: 60_000,
        ..NewTask::default()
    }
}

/// A pod that asks for a second to end.
pub fn impatient() -> Value {
    json!({ "spec": { "terminationGracePeriodSeconds": 1, "containers": [{ "image": "busybox" }] } })
}

/// A pod counts as lost, and as stuck, at once.
pub fn hasty(mut shop: PodShop) -> PodShop {
    shop.policy.terminating_grace_seconds = 0;
    shop.policy.node_lost_grace_seconds = 0;
    shop
}

/// Only what is shown, said and due wakes an executor: a pod is not asked for by name.
pub fn never_polls(mut shop: PodShop) -> PodShop {
    shop.patience.poll = Duration::from_secs(3_600);
    shop
}

/// Well within the half minute after which a clock of an executor wakes it anyway.
pub const SOON: Duration = Duration::from_secs(20);

/// An executor in a runtime of its own, which is dropped with it: as a process that is killed.
pub struct Mortal {
    runtime: Option<tokio::runtime::Runtime>,
    executor: Option<Executor>,
}

impl Mortal {
    async fn start(world: &World, set: impl FnOnce(PodShop) -> PodShop + Send + 'static) -> Self {
        Self::start_for(world, "", set).await
    }

    async fn start_for(
        world: &World,
        cluster: &str,
        set: impl FnOnce(PodShop) -> PodShop + Send + 'static,
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (store, bell) = (world.store.clone(), world.bell.clone());
        let url = world.cluster.url();
        let options = ExecutorOptions {
            name: "executor".into(),
            process: None,
            cluster: cluster.to_owned(),
            slots: 100,
            drain: Duration::from_secs(5),
        };
        let executor = runtime.spawn(async move {
            let rt = Arc::new(TokioRuntime::current());
            let client = kube::Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap();
            let cluster = Arc::new(LiveCluster::new(client, "default"));
            let mut shop = PodShop::new(cluster, rt.clone(), Policy::default());
            shop.patience = patience();
            let shop = Arc::new(set(shop));
            let pipeline = Pipeline::new(store, bell, rt, &config());
            Executor::start(pipeline, Arc::new(config()), shop, options).await.unwrap()
        });
        Mortal { executor: Some(executor.await.unwrap()), runtime: Some(runtime) }
    }

    /// Asks how it is.
    pub fn watcher(&self) -> impl Fn() -> (ExecutorState, String) + Send + Sync + 'static {
        let executor = self.executor.as_ref().unwrap();
        let _inside = self.runtime.as_ref().unwrap().enter();
        executor.watcher()
    }

    pub fn shop(&self) -> &Arc<PodShop> {
        self.executor.as_ref().unwrap().shop()
    }

    /// As a process that is killed: no goodbye, nothing more.
    pub fn kill(mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    /// As a process that is asked to end.
    pub async fn stop(mut self) {
        if let Some(mut executor) = self.executor.take() {
            executor.stop().await;
        }
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Stands still at a point for ever, and says so.
pub fn stands_at(point: &'static str, told: tokio::sync::mpsc::UnboundedSender<()>) -> Probe {
    Arc::new(move |at| {
        let told = told.clone();
        Box::pin(async move {
            if at == point {
                let _ = told.send(());
                std::future::pending::<()>().await;
            }
        })
    })
}
