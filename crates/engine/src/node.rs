//! What a server runs: a session, its lanes, the due loop and retention, on one store.

use crate::{
    config::EngineConfig,
    due::DueLoop,
    lanes::{LaneServer, Lanes, Wire},
    outside::Outside,
    pipeline::Pipeline,
    serve::Server,
    session::Keeper,
    stop::{Stop, Stopper, stopper},
};
use std::sync::Arc;
use tenure_kernel::{
    bell::Bell, error::StoreError, limits, machine::Machines, runtime::Rt, sessions::Executor,
    store::Store,
};
use tokio::sync::watch;

/// A running server. Stops when asked, or when dropped.
pub struct Node {
    /// Carries commits and mail to the store.
    pub pipeline: Pipeline,
    /// This server's session.
    pub keeper: Keeper,
    /// The lanes it holds.
    pub lanes: Lanes,
    stopper: Stopper,
    session_stopper: Stopper,
    running: watch::Receiver<usize>,
}

/// What a node is made of.
pub struct Parts {
    /// Where everything lives.
    pub store: Arc<dyn Store>,
    /// Hints.
    pub bell: Arc<dyn Bell>,
    /// Time, tasks and randomness.
    pub rt: Rt,
    /// The kinds of work it knows.
    pub machines: Machines,
    /// The numbers.
    pub config: EngineConfig,
    /// Who it is, for people.
    pub name: String,
    /// Which process it is, for other processes.
    pub executor: Option<Executor>,
    /// Where messages for outside go.
    pub wire: Arc<dyn Wire>,
    /// Drills only: `false` judges holders at once after an outage.
    pub protect_outage: bool,
}

impl Node {
    /// Opens a session and starts the loops.
    pub async fn start(parts: Parts) -> Result<Self, StoreError> {
        let Parts { store, bell, rt, machines, config, name, executor, wire, protect_outage } =
            parts;
        let pipeline = Pipeline::carrying(store, bell, rt.clone(), &config, machines.clone());
        let config = Arc::new(config);
        LaneServer::found(&pipeline).await?;
        let keeper =
            Keeper::open(pipeline.clone(), config.clone(), &name, "server", executor).await?;
        let lanes = Lanes::default();
        let lane_server = LaneServer::new(keeper.clone(), machines.clone(), lanes.clone());
        let outside = Outside::new(keeper.clone(), lanes.clone(), wire);
        // The loop tries again. Giving up here would leave a session that nobody renews, with lanes.
        if let Err(e) = lane_server.balance().await {
            tracing::warn!(error = %e, "no lanes yet");
        }
        let server = Server { pipeline: pipeline.gathering(), machines, config: config.clone() };
        let mut due = DueLoop::new(server, lanes.clone());
        if !protect_outage {
            due = due.without_outage_protection();
        }
        let (stopper, stop) = stopper();
        let (session_stopper, session_stop) = crate::stop::stopper();
        let (count, running) = watch::channel(0usize);
        let count = Arc::new(count);
        let session = keeper.clone();
        start(&rt, &count, Box::pin(async move { session.run(session_stop).await }));
        let due_stop = stop.clone();
        start(&rt, &count, Box::pin(async move { due.run(due_stop).await }));
        let lane_stop = stop.clone();
        start(&rt, &count, Box::pin(async move { lane_server.run(lane_stop).await }));
        let wire_stop = stop.clone();
        start(&rt, &count, Box::pin(async move { outside.run(wire_stop).await }));
        let (tidy, tidy_rt) = (pipeline.clone(), rt.clone());
        start(&rt, &count, Box::pin(async move { retain(&tidy, &tidy_rt, &config, stop).await }));
        Ok(Node { pipeline, keeper, lanes, stopper, session_stopper, running })
    }

    /// Stops the loops, then says goodbye, so that another server takes over at once.
    pub async fn stop(&mut self) {
        self.stopper.stop();
        // An error means that every loop is gone.
        let _ = self.running.wait_for(|n| *n <= 1).await;
        self.session_stopper.stop();
        let _ = self.running.wait_for(|n| *n == 0).await;
    }
}

fn start(
    rt: &Rt,
    count: &Arc<watch::Sender<usize>>,
    work: tenure_kernel::runtime::BoxFuture<'static, ()>,
) {
    count.send_modify(|n| *n += 1);
    let done = Done(count.clone());
    rt.spawn(Box::pin(async move {
        let _done = done;
        work.await;
    }));
}

struct Done(Arc<watch::Sender<usize>>);

impl Drop for Done {
    fn drop(&mut self) {
        self.0.send_modify(|n| *n -= 1);
    }
}

/// Removes what is past its retention, a bounded amount at a time.
async fn retain(pipeline: &Pipeline, rt: &Rt, config: &EngineConfig, mut stop: Stop) {
    let mut full = false;
    while full || stop.unless(rt.sleep(config.tick * 12)).await.is_some() {
        if stop.asked() {
            return;
        }
        let store = pipeline.store();
        let retired = match store.now().await {
            Ok(now) => store.retire(now - config.retention, limits::DUE_BATCH_MAX).await,
            Err(e) => Err(e),
        };
        // More may be waiting: what ends faster than a batch per pause would only pile up.
        full = matches!(&retired, Ok(r) if r.entities >= limits::DUE_BATCH_MAX as u64);
        match retired {
            Ok(r) if r.entities + r.records + r.blobs > 0 => {
                tracing::info!(?r, "retention removed")
            }
            Ok(_) => {}
            Err(e) => tracing::warn!(error = %e, "retention waits"),
        }
    }
}
