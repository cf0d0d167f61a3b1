//! One server with a crew on the memory store, and an outside world that counts.

use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};
use tenure_bell::InProcess;
use tenure_edge::{SystemClock, TokioRuntime};
use tenure_engine::{
    config::EngineConfig,
    lanes::Discard,
    node::{Node, Parts},
};
use tenure_jobs::{
    Job, JobState,
    catalogue::Catalogue,
    crew::{Crew, CrewOptions},
    decide::{AskMail, ResolveMail, SignalMail, mail},
    drive::{JobOptions, Shop},
    gate::{Gate, GatePage},
    submit::{Submission, Submitter},
};
use tenure_kernel::{
    head::Head,
    ids::{EntityId, MailId},
    judge::Judge,
    machine::{Machines, decode_state},
    mail::{MailAnswer, NewMail},
    store::Store,
    stream::Body,
    table::Class,
};
use tenure_proving::{patience::PATIENCE, stores::Place};
use tenure_steps::{
    events::{StepId, Verdict, WaitOutcome},
    flow::Flows,
    tool::{Probe, ToolCtx, ToolError, ToolSpec, Tools},
};
use tenure_store::memory::MemoryStore;
use tokio::sync::watch;

/// What happened outside: how often each key was acted upon.
#[derive(Clone, Default)]
pub struct Outside(Arc<Mutex<BTreeMap<String, u32>>>);

impl Outside {
    pub fn act(&self, key: &str) -> u32 {
        let mut counts = self.0.lock().unwrap();
        let count = counts.entry(key.to_owned()).or_insert(0);
        *count += 1;
        *count
    }
    pub fn total(&self) -> u32 {
        self.0.lock().unwrap().values().sum()
    }
    pub fn has(&self, key: &str) -> bool {
        self.0.lock().unwrap().contains_key(key)
    }
    /// A tool that raises the count of its key.
    pub fn tool(&self, name: &str) -> ToolSpec {
        let (outside, other) = (self.clone(), self.clone());
        ToolSpec::new(name, move |ctx: ToolCtx, input: Value| {
            let outside = outside.clone();
            async move {
                outside.act(&ctx.key);
                Ok::<_, ToolError>(json!({ "did": input }))
            }
        })
        .verifiable(move |ctx: ToolCtx, input: Value| {
            let there = other.has(&ctx.key);
            async move {
                Ok(if there {
                    Probe::Happened(json!({ "did": input }))
                } else {
                    Probe::NotHappened
                })
            }
        })
    }
}

/// What was said outside, in order, and to be waited for.
#[derive(Clone)]
pub struct Said(Arc<watch::Sender<Vec<String>>>);

impl Default for Said {
    fn default() -> Self {
        Said(Arc::new(watch::Sender::new(Vec::new())))
    }
}

impl Said {
    pub fn push(&self, word: String) {
        self.0.send_modify(|said| said.push(word));
    }

    pub fn all(&self) -> Vec<String> {
        self.0.borrow().clone()
    }

    /// Waits until this holds of it.
    pub async fn until(&self, holds: impl Fn(&[String]) -> bool) {
        let mut said = self.0.subscribe();
        let waits = said.wait_for(|said| holds(said));
        let within = tokio::time::timeout(PATIENCE, waits).await;
        assert!(within.is_ok(), "it was never said: {:?}", self.all());
    }
}

/// A server, a crew and a store.
pub struct World {
    /// The store, and who tells of what is written to it.
    pub place: Place,
    pub store: Arc<dyn Store>,
    pub node: Node,
    pub crew: Crew,
    pub jobs: Submitter,
    pub machines: Machines,
}

pub fn machines() -> Machines {
    Machines::kernel()
        .with::<Job>()
        .with::<tenure_jobs::call::Call>()
        .with::<Gate>()
        .with::<GatePage>()
        .with::<Catalogue>()
        .with::<tenure_jobs::shared::batch::Batch>()
        .with::<tenure_jobs::shared::limit::Limit>()
        .with::<tenure_jobs::shared::limit::LimitBook>()
        .with::<tenure_jobs::shared::schedule::Schedule>()
}

/// Leases of half a second: these tests are not about waiting.
pub fn config() -> EngineConfig {
    EngineConfig::with_lease(Duration::from_millis(600))
}

/// The life of a process that is killed when it is over: what it has not ended by then says no goodbye.
pub async fn killed_after<T, F>(life: impl FnOnce() -> F + Send + 'static) -> T
where
    T: Send + 'static,
    F: Future<Output = T>,
{
    let lived = tokio::task::spawn_blocking(move || {
        let mut process = tokio::runtime::Builder::new_multi_thread();
        let process = process.worker_threads(1).enable_all().build().unwrap();
        let told = process.block_on(life());
        process.shutdown_background();
        told
    });
    lived.await.unwrap()
}

/// An empty store.
pub fn store() -> Arc<dyn Store> {
    let judge = Judge::new(machines().tables());
    Arc::new(MemoryStore::new(judge, Arc::new(SystemClock), 1))
}

impl World {
    pub async fn start(flows: Flows, tools: Tools, options: JobOptions) -> Self {
        Self::on(store(), flows, tools, options).await
    }

    pub async fn on(
        store: Arc<dyn Store>,
        flows: Flows,
        tools: Tools,
        options: JobOptions,
    ) -> Self {
        Self::of(store, Shop::new(flows, tools, options)).await
    }

    pub async fn of(store: Arc<dyn Store>, shop: Shop) -> Self {
        let machines = machines();
        let judge = Judge::new(machines.tables());
        let place = Place::over(store);
        let store = place.store();
        let rt = Arc::new(TokioRuntime::current());
        let parts = Parts {
            store: store.clone(),
            bell: Arc::new(InProcess::new()),
            rt,
            machines: machines.clone(),
            config: config(),
            name: "test".into(),
            executor: None,
            wire: Arc::new(Discard),
            protect_outage: true,
        };
        let node = Node::start(parts).await.unwrap();
        let shop = Arc::new(shop);
        let crew = CrewOptions {
            name: "crew".into(),
            executor: tenure_edge::executor_of_this_process(),
            slots: 64,
            drain: Duration::from_secs(5),
        };
        let crew =
            Crew::start(node.pipeline.clone(), Arc::new(config()), shop, crew).await.unwrap();
        let jobs = crew.submitter(judge);
        World { place, store, node, crew, jobs, machines }
    }

    pub async fn submit(&self, flow: &str, input: Value) -> EntityId {
        let submission = Submission { flow: flow.into(), input, ..Submission::default() };
        self.jobs.submit(submission).await.unwrap().id
    }

    pub async fn head(&self, job: EntityId) -> Head {
        self.store.head(job).await.unwrap().unwrap()
    }

    pub async fn state(&self, job: EntityId) -> JobState {
        decode_state::<Job>(&self.head(job).await.state).unwrap()
    }

    /// Waits until the job has this status.
    pub async fn until(&self, job: EntityId, status: &str) -> JobState {
        decode_state::<Job>(&self.until_head(job, status).await.state).unwrap()
    }

    /// Waits until anything has this status.
    pub async fn until_head(&self, id: EntityId, status: &str) -> Head {
        let over = |head: &Head| head.status.name() == status || head.class() == Class::Final;
        let found = self.place.find(async || Some(self.head(id).await).filter(over)).await;
        match found {
            Some(head) if head.status.name() == status => head,
            _ => panic!("{id} does not become {status}:\n{}", self.story(id).await),
        }
    }

    /// Waits until a job's state is as this says.
    pub async fn until_state(&self, job: EntityId, what: &str, holds: impl Fn(&JobState) -> bool) {
        let looked = self.place.find(async || holds(&self.state(job).await).then_some(())).await;
        assert!(
            looked.is_some(),
            "{job}: it never came to this: {what}\n{}",
            self.story(job).await
        );
    }

    /// Waits until its stream has this event.
    pub async fn until_seen(&self, job: EntityId, event: &str) {
        self.until_seen_times(job, event, 1).await;
    }

    /// Waits until its stream has this event as often as that.
    pub async fn until_seen_times(&self, job: EntityId, event: &str, times: usize) {
        let seen = async || (self.count(job, event).await >= times).then_some(());
        let looked = self.place.find(seen).await;
        assert!(looked.is_some(), "{job} has no {times} {event}:\n{}", self.story(job).await);
    }

    /// Waits until nobody holds it.
    pub async fn until_free(&self, id: EntityId) {
        let free = async || self.head(id).await.holder.is_none();
        self.place.until("nobody holds it", free).await;
    }

    /// Waits until the worker has looked once and found nothing. Only then a job starts in the commit that creates it.
    pub async fn until_known_empty(&self, queue: &str) {
        let empty = async || self.crew.local().slots.queue_is_known_empty(queue);
        self.place.until("the queue is known to be empty", empty).await;
    }

    /// Waits until it is paused.
    pub async fn until_paused(&self, job: EntityId) {
        self.until_state(job, "it is paused", |s| s.paused).await;
    }

    /// The names of its events.
    pub async fn story(&self, job: EntityId) -> String {
        let records = self.store.stream(job, 1, 1_000).await.unwrap();
        let mut lines = Vec::new();
        for record in records {
            for event in record.events().unwrap() {
                let body = event.body.inline().map(|b| String::from_utf8_lossy(b).into_owned());
                lines.push(format!(
                    "{} e{} {}",
                    event.version,
                    event.epoch,
                    body.unwrap_or(event.name)
                ));
            }
        }
        lines.join("\n")
    }

    pub async fn commits(&self, job: EntityId) -> usize {
        self.store.stream(job, 1, 10_000).await.unwrap().len()
    }

    pub async fn count(&self, job: EntityId, event: &str) -> usize {
        let records = self.store.stream(job, 1, 10_000).await.unwrap();
        let events = records.iter().flat_map(|r| r.events().unwrap());
        events.filter(|e| e.name == event).count()
    }

    pub async fn mail(
        &self,
        job: EntityId,
        kind: &'static str,
        id: &str,
        body: Body,
    ) -> MailAnswer {
        let mail = NewMail { to: job, id: MailId(id.into()), kind: kind.into(), body };
        self.node.pipeline.mail(mail).await.unwrap()
    }

    pub async fn signal(&self, job: EntityId, key: &str, payload: Value) -> MailAnswer {
        self.answer(job, key, WaitOutcome::Signalled, payload).await
    }

    pub async fn answer(
        &self,
        job: EntityId,
        key: &str,
        outcome: WaitOutcome,
        payload: Value,
    ) -> MailAnswer {
        let body = SignalMail { key: key.into(), outcome, payload, by: Some("ann".into()) };
        self.mail(job, mail::SIGNAL, &format!("signal/{key}"), Body::json(&body)).await
    }

    pub async fn cancel(&self, job: EntityId) -> MailAnswer {
        let body = AskMail { by: Some("ann".into()), why: None };
        self.mail(job, tenure_kernel::mail::kinds::CANCEL, "cancel", Body::json(&body)).await
    }

    pub async fn ask(&self, job: EntityId, kind: &'static str) -> MailAnswer {
        self.mail(job, kind, kind, Body::json(&AskMail::default())).await
    }

    pub async fn resolve(
        &self,
        job: EntityId,
        step: &str,
        verdict: Verdict,
        result: Value,
    ) -> MailAnswer {
        let step = StepId(step.into());
        let body =
            ResolveMail { step, of: None, verdict, result, by: Some("ann".into()), note: None };
        self.mail(job, mail::RESOLVE, &format!("resolve/{verdict:?}"), Body::json(&body)).await
    }

    /// Everything in the store is sound. It is in use: what a second look does not find again was a commit between
    /// two reads of the first.
    pub async fn check(&self) {
        let tables = self.machines.tables();
        let look =
            || tenure_engine::checkers::check_everything(&*self.store, &self.machines, &tables);
        let first = look().await;
        if first.is_empty() {
            return;
        }
        let mut found = look().await;
        found.retain(|problem| first.contains(problem));
        assert!(found.is_empty(), "{}", found.join("\n"));
    }
}
