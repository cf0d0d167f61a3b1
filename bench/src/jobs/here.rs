//! Jobs in this process: a server, a worker and the clients together.

use super::{Bench, FLOW, Kit, Way, count::Counting, wrong};
use crate::place::Place;
use serde_json::Value;
use std::{sync::Arc, time::Duration};
use tenure_bell::InProcess;
use tenure_edge::{TokioRuntime, executor_of_this_process};
use tenure_engine::{
    config::EngineConfig,
    lanes::Discard,
    node::{Node, Parts},
};
use tenure_jobs::{
    crew::{Crew, CrewOptions},
    decide::{SignalMail, mail},
    drive::{JobOptions, Shop},
    submit::{Submission, SubmitError, Submitter},
};
use tenure_kernel::{
    error::StoreError,
    ids::{EntityId, MailId},
    mail::{MailAnswer, NewMail},
    runtime::{BoxFuture, Rt},
    stream::Body,
};
use tenure_steps::events::WaitOutcome;

/// A server in this process, without a worker and without HTTP.
pub(crate) struct Office {
    pub node: Node,
    pub store: Arc<Counting>,
    pub config: Arc<EngineConfig>,
}

impl Office {
    pub async fn open(
        place: &Place,
        kit: &Kit,
        postgres_flights: usize,
    ) -> Result<Self, StoreError> {
        let rt: Rt = Arc::new(TokioRuntime::current());
        let store = Counting::new(place.store.clone(), rt.clone());
        let flights = place.flights(postgres_flights);
        // As a server without a bus.
        let config = EngineConfig { flights, mute: true, ..EngineConfig::default() };
        let parts = Parts {
            store: store.clone(),
            bell: Arc::new(InProcess::new()),
            rt,
            machines: kit.machines.clone(),
            config: config.clone(),
            name: "bench".into(),
            executor: executor_of_this_process(),
            wire: Arc::new(Discard),
            protect_outage: true,
        };
        Ok(Office { node: Node::start(parts).await?, store, config: Arc::new(config) })
    }
}

/// A server and a worker in this process.
pub struct Here {
    node: Node,
    crew: Crew,
    jobs: Submitter,
}

impl Here {
    /// Starts them with a slot for each client and as many again: while the worker looks into its queue it keeps
    /// half of what is free, and a submission that meets it would be queued.
    pub async fn bench(
        place: &Place,
        kit: Kit,
        clients: usize,
        postgres_flights: usize,
    ) -> Result<Bench<'_>, StoreError> {
        let Office { node, store, config } = Office::open(place, &kit, postgres_flights).await?;
        let rt = node.pipeline.rt().clone();
        let shop = Arc::new(Shop::new(kit.flows, kit.tools, JobOptions::default()));
        let options = CrewOptions {
            name: "bench".into(),
            executor: executor_of_this_process(),
            slots: clients * 2 + 8,
            drain: Duration::from_secs(5),
        };
        let crew = Crew::start(node.pipeline.clone(), config, shop, options).await?;
        let jobs = crew.submitter(kit.judge);
        Ok(Bench { place, store, way: Arc::new(Here { node, crew, jobs }), rt })
    }

    fn submission(input: Value) -> Submission {
        Submission { flow: FLOW.into(), input, tenant: "bench".into(), ..Submission::default() }
    }
}

fn refused(e: SubmitError) -> StoreError {
    match e {
        SubmitError::Store(e) => e,
        other => wrong(other.to_string()),
    }
}

impl Way for Here {
    fn done(&self, input: Value) -> BoxFuture<'_, Result<EntityId, StoreError>> {
        Box::pin(async move {
            let submission = Here::submission(input);
            let (job, ending) = self.jobs.submit_and_listen(submission).await.map_err(refused)?;
            let mut ending = ending.ok_or_else(|| wrong("there is no worker here".into()))?;
            match ending.heard().await {
                "completed" => Ok(job.id),
                other => Err(wrong(format!("job {} is {other}", job.id))),
            }
        })
    }

    fn submit(&self, input: Value) -> BoxFuture<'_, Result<EntityId, StoreError>> {
        Box::pin(async move {
            let submission = Here::submission(input);
            self.jobs.submit(submission).await.map(|s| s.id).map_err(refused)
        })
    }

    fn signal(&self, job: EntityId, key: &str) -> BoxFuture<'_, Result<(), StoreError>> {
        let (key, outcome) = (key.to_owned(), WaitOutcome::Signalled);
        let id = MailId(format!("signal/{key}"));
        let body = Body::json(&SignalMail { key, outcome, payload: Value::Null, by: None });
        let mail = NewMail { to: job, id, kind: mail::SIGNAL.into(), body };
        Box::pin(async move {
            match self.node.pipeline.mail(mail).await? {
                MailAnswer::Accepted { .. } => Ok(()),
                other => Err(wrong(format!("a signal was answered {other:?}"))),
            }
        })
    }

    fn idle(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            while self.crew.local().slots.running() > 0 {
                self.node.pipeline.rt().sleep(Duration::from_millis(5)).await;
            }
            Ok(())
        })
    }

    fn commits_max(&self, steps: usize) -> usize {
        steps + 1
    }

    fn memory(&self) -> u64 {
        super::memory_of(std::process::id())
    }

    fn processor(&self) -> Duration {
        super::processor_of(std::process::id())
    }
}
