//! A crew: a worker that runs jobs, with its session, its slots and its entry in the catalogue. The same in
//! a server's process and, over a remote store, in one of its own. One with tools that others have not also takes calls of
//! these for others (`drive/lend`), under a second session.

use crate::{
    call,
    catalogue::{self, CallTool},
    drive::{
        JobWorker, Shop,
        lend::{self, Lender},
    },
    serving::{self, Serving},
    submit::{Local, Submitter},
};
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tenure_engine::{
    config::EngineConfig,
    pipeline::Pipeline,
    session::Keeper,
    stop::{Stopper, stopper},
    worker::Worker,
};
use tenure_kernel::{error::StoreError, judge::Judge, sessions::Executor};
use tenure_steps::flow::queue_of;
use tokio::sync::watch;

/// How a crew is set up.
pub struct CrewOptions {
    /// Who it is, for people.
    pub name: String,
    /// Which process it is, for other processes.
    pub executor: Option<Executor>,
    /// Jobs at once.
    pub slots: usize,
    /// How long it waits for running tools when it is asked to stop.
    pub drain: Duration,
}

/// A worker that runs jobs. Stops when asked, or when dropped.
pub struct Crew {
    local: Local,
    pipeline: Pipeline,
    work_stopper: Stopper,
    session_stopper: Stopper,
    running: watch::Receiver<Running>,
}

/// What of it still runs.
#[derive(Clone, Copy, Debug)]
struct Running {
    workers: usize,
    sessions: usize,
}

impl Crew {
    /// Opens a session, registers flows and tools, and begins to claim.
    pub async fn start(
        pipeline: Pipeline,
        config: Arc<EngineConfig>,
        shop: Arc<Shop>,
        options: CrewOptions,
    ) -> Result<Self, StoreError> {
        Self::start_as("worker", pipeline, config, shop, options).await
    }

    /// The same under another role: what a server runs for itself is not counted among the workers.
    pub async fn start_as(
        role: &str,
        pipeline: Pipeline,
        config: Arc<EngineConfig>,
        shop: Arc<Shop>,
        options: CrewOptions,
    ) -> Result<Self, StoreError> {
        let handed = shop.hands.iter().flat_map(|h| h.tools());
        let tools = shop.tools.iter().chain(handed.filter(|t| shop.tools.get(&t.name).is_none()));
        let CrewOptions { name, executor, slots, drain } = options;
        let flows = shop.flows.iter().map(|f| queue_of(&f.name, f.version));
        let says = (serving::MEMBER, json!(Serving::new(&shop.serves, flows)));
        let (opened, whoami) = (pipeline.clone(), executor.clone());
        let open = |says, name: &str, executor| {
            let (pipeline, config) = (opened.clone(), config.clone());
            let name = name.to_owned();
            async move { Keeper::open_saying(pipeline, config, &name, role, executor, Some(says)).await }
        };
        let keeper = open(says, &name, executor).await?;
        // A worker that comes with a tenant's key learns whose it is by its session.
        let session = pipeline.store().head(keeper.id()).await?;
        let tenant = session.map(|head| head.tenant).unwrap_or_default();
        catalogue::register(&pipeline, &tenant, shop.flows.iter(), tools).await?;
        let handler = Arc::new(JobWorker(shop.clone()));
        let worker =
            Worker::new(keeper.clone(), shop.queues(), slots, handler).drains_within(drain);
        let local = Local { shop: shop.clone(), slots: worker.slots(), keeper: keeper.clone() };
        let mut workers = vec![(worker, keeper)];
        let lent: Vec<CallTool> = shop
            .lends
            .iter()
            .filter_map(|name| shop.tools.get(name))
            .map(|tool| lend::offer(tool))
            .collect();
        if !lent.is_empty() {
            catalogue::register_calls(&pipeline, &tenant, &lent).await?;
            let names: Vec<&str> = lent.iter().map(|t| t.name.as_str()).collect();
            // As a worker in another language says it: whoever asks who takes calls of a tool finds both.
            let says = ("tools", json!(names));
            let keeper = open(says, &format!("{name} (tools)"), whoami).await?;
            let queues = names.iter().map(|name| call::queue_of(name)).collect();
            let lender = Worker::new(keeper.clone(), queues, slots, Arc::new(Lender(shop)));
            workers.push((lender.drains_within(drain), keeper));
        }
        let (work_stopper, work_stop) = stopper();
        let (session_stopper, session_stop) = stopper();
        let (left, running) =
            watch::channel(Running { workers: workers.len(), sessions: workers.len() });
        let (left, rt) = (Arc::new(left), pipeline.rt().clone());
        for (worker, keeper) in workers {
            let (stop, done) = (work_stop.clone(), left.clone());
            rt.spawn(Box::pin(async move {
                worker.run(stop).await;
                done.send_modify(|left| left.workers -= 1);
            }));
            let (stop, done) = (session_stop.clone(), left.clone());
            rt.spawn(Box::pin(async move {
                keeper.run(stop).await;
                done.send_modify(|left| left.sessions -= 1);
            }));
        }
        Ok(Crew { local, pipeline, work_stopper, session_stopper, running })
    }

    /// For submissions in this process: jobs start here where they can.
    pub fn local(&self) -> Local {
        self.local.clone()
    }

    /// Creates jobs that start here where they can.
    pub fn submitter(&self, judge: Judge) -> Submitter {
        let options = &self.local.shop.options;
        Submitter::new(self.pipeline.clone(), judge, options.must_end_in, options.takeovers_max)
            .with_local(self.local())
    }

    /// Claims no more, lets running tools finish, gives back the rest, and says goodbye.
    pub async fn stop(&mut self) {
        self.work_stopper.stop();
        // An error means that both are gone.
        let _ = self.running.wait_for(|left| left.workers == 0).await;
        self.session_stopper.stop();
        let _ = self.running.wait_for(|left| left.sessions == 0).await;
    }
}
