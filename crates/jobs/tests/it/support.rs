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
use tenure_steps::{
    events::{StepId, Verdict, WaitOutcome},
    flow::Flows,
    tool::{Probe, ToolCtx, ToolError, ToolSpec, Tools},
};
use tenure_store::memory::MemoryStore;

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

/// A server, a crew and a store.
pub struct World {
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
        World { store, node, crew, jobs, machines }
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
        for _ in 0..4_000 {
            let head = self.head(job).await;
            if head.status.name() == status {
                return decode_state::<Job>(&head.state).unwrap();
            }
            if head.class() == Class::Final {
                let state = decode_state::<Job>(&head.state).unwrap();
                panic!(
                    "{job} is {} instead of {status}: {state:?}\n{}",
                    head.status.name(),
                    self.story(job).await
                );
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let head = self.head(job).await;
        panic!("{job} stays {} instead of {status}\n{}", head.status.name(), self.story(job).await);
    }

    /// Waits until its stream has this event.
    pub async fn until_seen(&self, job: EntityId, event: &str) {
        for _ in 0..4_000 {
            if self.count(job, event).await > 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        panic!("no {event} of {job}:\n{}", self.story(job).await);
    }

    /// Waits until it is paused.
    pub async fn until_paused(&self, job: EntityId) {
        for _ in 0..4_000 {
            if self.state(job).await.paused {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        panic!("{job} is not paused:\n{}", self.story(job).await);
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
            || tenure_proving::checkers::check_everything(&*self.store, &self.machines, &tables);
        let first = look().await;
        if first.is_empty() {
            return;
        }
        let mut found = look().await;
        found.retain(|problem| first.contains(problem));
        assert!(found.is_empty(), "{}", found.join("\n"));
    }
}
