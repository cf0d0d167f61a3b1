//! What a server runs: a session, its lanes, the due loop and retention, on one store.

use crate::{
    config::EngineConfig,
    dead_sessions::{DeadSessions, IsDead},
    due::DueLoop,
    lanes::{LaneServer, Lanes, Wire},
    outside::Outside,
    pipeline::Pipeline,
    serve::Server,
    session::Keeper,
    stop::{Stop, Stopper, stopper},
};
use std::{sync::Arc, time::Duration};
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
        if let Some(quotas) = pipeline.quotas().cloned() {
            let (tick, quota_stop) = (config.tick, stop.clone());
            start(&rt, &count, Box::pin(async move { quotas.run(tick, quota_stop).await }));
        }
        let (tidy, tidy_lanes) = (pipeline.clone(), lanes.clone());
        start(
            &rt,
            &count,
            Box::pin(async move { retain(&tidy, &tidy_lanes, &config, stop).await }),
        );
        Ok(Node { pipeline, keeper, lanes, stopper, session_stopper, running })
    }

    /// Ends sessions whose process is dead: those that are there now before it returns, later ones within a tick.
    pub async fn end_sessions_of_dead_processes(&self, is_dead: IsDead) {
        let mut dead = DeadSessions::new(self.pipeline.clone(), is_dead);
        let (rt, tick) = (self.pipeline.rt().clone(), self.keeper.config().tick);
        let mut stop = self.stopper.watch();
        let mut sweep = async move || {
            if let Err(e) = dead.sweep().await {
                tracing::debug!(error = %e, "sessions of dead processes were not looked for");
            }
        };
        sweep().await;
        self.pipeline.rt().spawn(Box::pin(async move {
            while stop.unless(rt.sleep(tick)).await.is_some() {
                sweep().await;
            }
        }));
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

/// The server that holds this lane removes for all.
const RETENTION_LANE: u16 = 0;

/// How long retention pauses after a call that took so long, and after which there may be more to remove: it takes a
/// quarter of the time of one connection (SQLite: of the writer), whatever there is to remove.
fn pause_after(took: Duration) -> Duration {
    (took * 3).clamp(Duration::from_millis(10), Duration::from_secs(5))
}

/// How much the next call of retention may remove. A store that does not manage one call within its deadline would not
/// manage the same call again.
fn next_limit(limit: usize, managed: bool) -> usize {
    let next = if managed { limit * 2 } else { limit / 2 };
    next.clamp(1, limits::DUE_BATCH_MAX)
}

/// Removes what is past its retention, a bounded amount at a time, on one server of all.
async fn retain(pipeline: &Pipeline, lanes: &Lanes, config: &EngineConfig, mut stop: Stop) {
    let rt = pipeline.rt();
    let idle = config.tick * 12;
    let mut pause = idle;
    let mut limit = limits::DUE_BATCH_MAX;
    while stop.unless(rt.sleep(pause)).await.is_some() && !stop.asked() {
        pause = idle;
        if !lanes.held().contains(&RETENTION_LANE) {
            continue;
        }
        let (store, since) = (pipeline.store(), rt.mono());
        let asked = limit;
        let retired = match store.now().await {
            Ok(now) => {
                let retired = store.retire(now - config.retention, asked).await;
                limit = next_limit(asked, retired.is_ok());
                retired
            }
            Err(e) => Err(e),
        };
        // More may be waiting: what ends faster than a batch per pause would only pile up.
        if matches!(&retired, Ok(r) if r.entities >= asked as u64) {
            pause = pause_after(rt.mono() - since);
        }
        match retired {
            Ok(r) if r.entities + r.records + r.blobs > 0 => {
                tracing::info!(?r, "retention removed")
            }
            Ok(_) => {}
            Err(e) => tracing::warn!(error = %e, limit, "retention waits"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retention_asks_for_less_after_an_error_and_for_more_after_a_success() {
        let after = |limit, answers: &[bool]| {
            answers.iter().fold(limit, |limit, managed| next_limit(limit, *managed))
        };
        let most = limits::DUE_BATCH_MAX;
        assert_eq!(after(most, &[false]), most / 2);
        assert_eq!(after(most, &[false, false, true]), most / 2);
        assert_eq!(after(most, &[false; 64]), 1, "never nothing");
        assert_eq!(after(1, &[true]), 2);
        assert_eq!(after(1, &[true; 64]), most, "never more than without errors");
    }
}
