//! A crew: a worker that runs jobs, with its session, its slots and its entry in the catalogue. The same in
//! a server's process and, over a remote store, in one of its own.

use crate::{
    catalogue,
    drive::{JobWorker, Shop},
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
    running: watch::Receiver<usize>,
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
        catalogue::register(&pipeline, shop.flows.iter(), tools).await?;
        let CrewOptions { name, executor, slots, drain } = options;
        let flows = shop.flows.iter().map(|f| queue_of(&f.name, f.version));
        let says = (serving::MEMBER, json!(Serving::new(&shop.serves, flows)));
        let keeper =
            Keeper::open_saying(pipeline.clone(), config, &name, role, executor, Some(says))
                .await?;
        let handler = Arc::new(JobWorker(shop.clone()));
        let worker =
            Worker::new(keeper.clone(), shop.queues(), slots, handler).drains_within(drain);
        let local = Local { shop, slots: worker.slots(), keeper: keeper.clone() };
        let (work_stopper, work_stop) = stopper();
        let (session_stopper, session_stop) = stopper();
        let (count, running) = watch::channel(2usize);
        let count = Arc::new(count);
        let rt = pipeline.rt().clone();
        let done = count.clone();
        rt.spawn(Box::pin(async move {
            worker.run(work_stop).await;
            done.send_modify(|n| *n -= 1);
        }));
        rt.spawn(Box::pin(async move {
            keeper.run(session_stop).await;
            count.send_modify(|n| *n -= 1);
        }));
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
        let _ = self.running.wait_for(|n| *n <= 1).await;
        self.session_stopper.stop();
        let _ = self.running.wait_for(|n| *n == 0).await;
    }
}
