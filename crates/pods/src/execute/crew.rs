//! An executor: a session, slots and a worker. The same in a server's process and, over a remote store, in one of its own.

use super::{run::PodWorker, shop::PodShop};
use crate::pod::queue_of;
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tenure_engine::{
    config::EngineConfig,
    pipeline::Pipeline,
    session::Keeper,
    stop::{Stopper, stopper},
    worker::Worker,
};
use tenure_kernel::{error::StoreError, sessions::Executor as Process};
use tokio::sync::watch;

/// How an executor is set up.
pub struct ExecutorOptions {
    /// Who it is, for people.
    pub name: String,
    /// Which process it is, for other processes.
    pub process: Option<Process>,
    /// The name of its cluster, as tasks say it; empty for those that say nothing.
    pub cluster: String,
    /// Pods at once. They cost a little memory each, and one watch per namespace together.
    pub slots: usize,
    /// How long it waits for what it does when it is asked to stop. Pods run on.
    pub drain: Duration,
}

/// A worker that tends pods. Stops when asked, or when dropped; pods run on, and the next executor adopts them.
pub struct Executor {
    keeper: Keeper,
    shop: Arc<PodShop>,
    work_stopper: Stopper,
    session_stopper: Stopper,
    running: watch::Receiver<usize>,
}

impl Executor {
    /// Opens a session and begins to claim.
    pub async fn start(
        pipeline: Pipeline,
        config: Arc<EngineConfig>,
        shop: Arc<PodShop>,
        options: ExecutorOptions,
    ) -> Result<Self, StoreError> {
        let ExecutorOptions { name, process, cluster, slots, drain } = options;
        let says = ("clusters", json!([cluster]));
        let keeper =
            Keeper::open_saying(pipeline.clone(), config, &name, "worker", process, Some(says))
                .await?;
        let handler = Arc::new(PodWorker(shop.clone()));
        let queues = vec![queue_of(&cluster)];
        let worker = Worker::new(keeper.clone(), queues, slots, handler).drains_within(drain);
        let (work_stopper, work_stop) = stopper();
        let (session_stopper, session_stop) = stopper();
        let (count, running) = watch::channel(2usize);
        let count = Arc::new(count);
        let rt = pipeline.rt().clone();
        let (done, session) = (count.clone(), keeper.clone());
        rt.spawn(Box::pin(async move {
            worker.run(work_stop).await;
            done.send_modify(|n| *n -= 1);
        }));
        rt.spawn(Box::pin(async move {
            session.run(session_stop).await;
            count.send_modify(|n| *n -= 1);
        }));
        Ok(Executor { keeper, shop, work_stopper, session_stopper, running })
    }

    /// Its session.
    pub fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// What its pods share.
    pub fn shop(&self) -> &Arc<PodShop> {
        &self.shop
    }

    /// Claims no more, gives its pods back, and says goodbye.
    pub async fn stop(&mut self) {
        self.work_stopper.stop();
        // An error means that both are gone.
        let _ = self.running.wait_for(|n| *n <= 1).await;
        self.session_stopper.stop();
        let _ = self.running.wait_for(|n| *n == 0).await;
    }
}
