//! A crew for turns: a session, slots and a worker. The same in a server's process and, over a remote store, in one
//! of its own.

use super::worker::{TurnShop, TurnWorker};
use crate::queue_of;
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tenure_engine::{
    config::EngineConfig,
    pipeline::Pipeline,
    session::Keeper,
    stop::{Stopper, stopper},
    worker::Worker,
};
use tenure_kernel::{error::StoreError, sessions::Executor};
use tokio::sync::watch;

/// How a crew is set up.
pub struct TurnCrewOptions {
    /// Who it is, for people.
    pub name: String,
    /// Which process it is, for other processes.
    pub executor: Option<Executor>,
    /// Whose turns it runs.
    pub targets: Vec<String>,
    /// Turns at once.
    pub slots: usize,
    /// How long it waits for what runs when it is asked to stop.
    pub drain: Duration,
}

/// A worker that runs turns. Stops when asked, or when dropped.
pub struct TurnCrew {
    keeper: Keeper,
    work_stopper: Stopper,
    session_stopper: Stopper,
    running: watch::Receiver<usize>,
}

impl TurnCrew {
    /// Opens a session and begins to claim.
    pub async fn start(
        pipeline: Pipeline,
        config: Arc<EngineConfig>,
        shop: Arc<TurnShop>,
        options: TurnCrewOptions,
    ) -> Result<Self, StoreError> {
        let TurnCrewOptions { name, executor, targets, slots, drain } = options;
        let queues: Vec<String> = targets.iter().map(|t| queue_of(t)).collect();
        let says = ("targets", json!(targets));
        let keeper =
            Keeper::open_saying(pipeline.clone(), config, &name, "worker", executor, Some(says))
                .await?;
        let handler = Arc::new(TurnWorker(shop));
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
        Ok(TurnCrew { keeper, work_stopper, session_stopper, running })
    }

    /// Its session.
    pub fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// Claims no more, lets models answer that are nearly done, gives back the rest, and says goodbye.
    pub async fn stop(&mut self) {
        self.work_stopper.stop();
        // An error means that both are gone.
        let _ = self.running.wait_for(|n| *n <= 1).await;
        self.session_stopper.stop();
        let _ = self.running.wait_for(|n| *n == 0).await;
    }
}
