//! An executor: a session, slots and a worker. The same in a server's process and, over a remote store, in one of its own.

use super::{
    run::PodWorker,
    shop::PodShop,
    state::{ApiServer, ExecutorState, Watcher, text},
    strays::Sweeper,
};
use crate::pod::queue_of;
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tenure_engine::{
    config::EngineConfig,
    pipeline::Pipeline,
    session::Keeper,
    slots::Slots,
    stop::{Stop, Stopper, stopper},
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
    slots: Slots,
    work_stop: Stop,
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
        let slots = worker.slots();
        let (work_stopper, work_stop) = stopper();
        let (session_stopper, session_stop) = stopper();
        let (count, running) = watch::channel(2usize);
        let count = Arc::new(count);
        let rt = pipeline.rt().clone();
        let (done, session, until) = (count.clone(), keeper.clone(), work_stop.clone());
        rt.spawn(Box::pin(async move {
            worker.run(until).await;
            done.send_modify(|n| *n -= 1);
        }));
        let (sweeper, mut until) = (Sweeper::new(shop.clone(), keeper.clone()), work_stop.clone());
        rt.spawn(Box::pin(async move {
            until.unless(Box::pin(sweeper.run())).await;
        }));
        rt.spawn(Box::pin(async move {
            session.run(session_stop).await;
            count.send_modify(|n| *n -= 1);
        }));
        Ok(Executor { keeper, shop, slots, work_stop, work_stopper, session_stopper, running })
    }

    /// Its session.
    pub fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// What its pods share.
    pub fn shop(&self) -> &Arc<PodShop> {
        &self.shop
    }

    /// Answers from elsewhere how it is, and with which numbers. From now on, until it is asked to stop, the API server is asked
    /// now and then whether it is there.
    pub fn watcher(&self) -> impl Fn() -> (ExecutorState, String) + Send + Sync + 'static {
        let (keeper, shop, slots) = (self.keeper.clone(), self.shop.clone(), self.slots.clone());
        let api = Arc::new(ApiServer::default());
        let rt = keeper.pipeline().rt().clone();
        let (shop_asked, api_asked, mut stop) = (shop.clone(), api.clone(), self.work_stop.clone());
        rt.clone().spawn(Box::pin(async move {
            stop.unless(api_asked.look(&shop_asked, &rt)).await;
        }));
        let watcher = Watcher { keeper, shop, slots, api };
        move || {
            let state = watcher.state();
            let text = text(&state, &watcher.shop.counts);
            (state, text)
        }
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
