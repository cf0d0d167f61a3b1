//! What is played in the world: machines, workers and clients, each set with what it must come to.

mod agents;
pub mod bowl;
mod clients;
pub mod errand;
pub mod fan;
pub(crate) mod jobs;
pub mod part;
mod patience;
mod slice;
pub(crate) mod tasks;

pub use agents::Heard;
pub use clients::Clients;
pub use jobs::{Off, Strike, Town};
pub use tasks::Yard;

use crate::world::{Boot, Env, World};
use std::{sync::Arc, time::Duration};
use tenure_engine::{
    config::EngineConfig,
    lanes::Discard,
    node::{Node, Parts},
    session::Keeper,
    worker::{Handler, Worker},
};
use tenure_kernel::{machine::Machines, time::Timestamp};
use tenure_store::memory::Contents;

/// A play.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scenario {
    /// Errands with two effects each; workers die and are taken over.
    Slice,
    /// A parent with many parts that ends under a storm of signals.
    Fan,
    /// The same, cancelled at any point.
    Cancel,
    /// A resting entity that gets very many messages.
    Bowl,
    /// Flows with tools, waits and children; workers die and stop at every point.
    Jobs,
    /// The same, with tools that workers have who run no flows.
    Calls,
    /// The same, with rate limits in front of the tools.
    Limits,
    /// Schedules that create jobs.
    Schedules,
    /// Jobs behind gates.
    Gates,
    /// Jobs with children that have children, cancelled at any point.
    Cascades,
    /// Jobs whose steps are undone together.
    Sagas,
    /// Submissions that are collected until they become one job.
    Batches,
    /// Jobs that applications ask for in transactions of their own.
    Intake,
    /// Actions on many jobs at once.
    Bulk,
    /// Agents whose turns call tools, delegate and wait.
    Agents,
    /// Tasks that run as pods in a cluster that fails.
    Tasks,
}

impl Scenario {
    /// All of them.
    pub const ALL: [Scenario; 16] = [
        Scenario::Slice,
        Scenario::Fan,
        Scenario::Cancel,
        Scenario::Bowl,
        Scenario::Jobs,
        Scenario::Calls,
        Scenario::Limits,
        Scenario::Schedules,
        Scenario::Gates,
        Scenario::Cascades,
        Scenario::Sagas,
        Scenario::Batches,
        Scenario::Intake,
        Scenario::Bulk,
        Scenario::Agents,
        Scenario::Tasks,
    ];

    /// Its name in `regressions.txt`.
    pub fn name(self) -> &'static str {
        match self {
            Scenario::Slice => "slice",
            Scenario::Fan => "fan",
            Scenario::Cancel => "cancel",
            Scenario::Bowl => "bowl",
            Scenario::Jobs => "jobs",
            Scenario::Calls => "calls",
            Scenario::Limits => "limits",
            Scenario::Schedules => "schedules",
            Scenario::Gates => "gates",
            Scenario::Cascades => "cascades",
            Scenario::Sagas => "sagas",
            Scenario::Batches => "batches",
            Scenario::Intake => "intake",
            Scenario::Bulk => "bulk",
            Scenario::Agents => "agents",
            Scenario::Tasks => "tasks",
        }
    }

    /// Whether it is played by crews that run jobs.
    pub(crate) fn is_jobs(self) -> bool {
        !matches!(
            self,
            Scenario::Slice
                | Scenario::Fan
                | Scenario::Cancel
                | Scenario::Bowl
                | Scenario::Agents
                | Scenario::Tasks
        )
    }

    /// By its name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.name() == name)
    }

    pub(crate) fn machines(self) -> Machines {
        if self.is_jobs() {
            return jobs::machines();
        }
        if self == Scenario::Agents {
            return agents::machines();
        }
        if self == Scenario::Tasks {
            return tasks::machines();
        }
        Machines::kernel()
            .with::<errand::Errand>()
            .with::<fan::Fan>()
            .with::<part::Part>()
            .with::<bowl::Bowl>()
    }

    /// Starts the clients; what they do is over when [`Clients::left`] is zero.
    pub(crate) fn play(self, world: &Arc<World>, width: Option<u64>) -> Clients {
        let clients = Clients::new(world, self.machines());
        match self {
            Scenario::Slice => slice::play(&clients),
            Scenario::Fan => fan::play(&clients, false, width),
            Scenario::Cancel => fan::play(&clients, true, width),
            Scenario::Bowl => bowl::play(&clients),
            Scenario::Jobs | Scenario::Calls => jobs::play(&clients, width),
            Scenario::Limits => jobs::shared::play_limits(&clients, width),
            Scenario::Schedules => jobs::shared::play_schedules(&clients),
            Scenario::Gates => jobs::gates::play(&clients, width),
            Scenario::Cascades => jobs::cascades::play(&clients, width),
            Scenario::Sagas => jobs::sagas::play(&clients, width),
            Scenario::Batches => jobs::batches::play(&clients, width),
            Scenario::Intake => jobs::intake::play(&clients, width),
            Scenario::Bulk => jobs::bulk::play(&clients, width),
            Scenario::Agents => agents::play(&clients),
            Scenario::Tasks => tasks::play(&clients, width),
        }
        clients
    }

    /// What must be true when everything is over.
    pub(crate) fn check(
        self,
        world: &World,
        contents: &Contents,
        calm_at: Timestamp,
    ) -> Result<(), String> {
        if self.is_jobs() {
            jobs::check::check(world, contents, calm_at)?;
            return match self {
                Scenario::Limits => jobs::shared::check_limits(world, contents),
                Scenario::Schedules => jobs::shared::check_schedules(contents),
                Scenario::Gates => jobs::gates::check(contents),
                Scenario::Cascades => jobs::cascades::check(world, contents, calm_at),
                Scenario::Sagas => jobs::sagas::check(world, contents),
                Scenario::Batches => jobs::batches::check(world, contents, calm_at),
                Scenario::Intake => jobs::intake::check(world, contents),
                Scenario::Bulk => jobs::bulk::check(world, contents),
                _ => Ok(()),
            };
        }
        if self == Scenario::Agents {
            return agents::check(world, contents);
        }
        if self == Scenario::Tasks {
            return tasks::check(world, contents, calm_at);
        }
        for (key, effects) in world.outside.all() {
            if effects.len() > 1 {
                return Err(format!("effect {key} happened {} times: {effects:?}", effects.len()));
            }
        }
        slice::check(world, contents)?;
        fan::check(world, contents)?;
        bowl::check(world, contents)
    }

    fn queue(self) -> &'static str {
        match self {
            Scenario::Fan | Scenario::Cancel => part::QUEUE,
            _ => errand::QUEUE,
        }
    }

    fn handler(self, env: &Env) -> Arc<dyn Handler> {
        match self {
            Scenario::Fan | Scenario::Cancel => Arc::new(part::Runner(env.clone())),
            _ => Arc::new(slice::Runner(env.clone())),
        }
    }

    /// The `main` of a server.
    pub(crate) fn server(self, protect_outage: bool) -> Boot {
        Arc::new(move |env: Env| {
            let machines = self.machines();
            Box::pin(async move {
                let mut stop = env.stop.clone();
                if self == Scenario::Intake {
                    env.rt.spawn(Box::pin(jobs::intake::serve(env.clone())));
                }
                loop {
                    let parts = Parts {
                        store: env.store.clone(),
                        bell: env.bell.clone(),
                        rt: env.rt.clone(),
                        machines: machines.clone(),
                        config: EngineConfig {
                            carry: env.carries(),
                            ..jobs::seasons::config(&env.world, config())
                        },
                        name: env.name.clone(),
                        executor: None,
                        wire: match self {
                            Scenario::Agents => Arc::new(agents::Bus(env.clone())),
                            _ => Arc::new(Discard),
                        },
                        protect_outage,
                    };
                    match Node::start(parts).await {
                        Ok(mut node) => {
                            stop.asked().await;
                            node.stop().await;
                            return;
                        }
                        Err(e) => env.world.sim.trace(format!("{}: no start: {e}", env.name)),
                    }
                    if stop.is_asked() {
                        return;
                    }
                    env.rt.sleep(Duration::from_secs(1)).await;
                }
            })
        })
    }

    /// The `main` of a worker.
    pub(crate) fn worker(self) -> Boot {
        if self.is_jobs() {
            return jobs::process::worker();
        }
        if self == Scenario::Agents {
            return agents::worker();
        }
        if self == Scenario::Tasks {
            return tasks::executor();
        }
        Arc::new(move |env: Env| {
            Box::pin(async move {
                let config = Arc::new(config());
                let pipeline = env.pipeline(env.rt.clone(), &config, self.machines());
                let keeper = loop {
                    let opened =
                        Keeper::open(pipeline.clone(), config.clone(), &env.name, "worker", None)
                            .await;
                    match opened {
                        Ok(keeper) => break keeper,
                        Err(e) => env.world.sim.trace(format!("{}: no session: {e}", env.name)),
                    }
                    env.rt.sleep(Duration::from_secs(1)).await;
                };
                let (stopper, stop) = tenure_engine::stop::stopper();
                let (last, last_stop) = tenure_engine::stop::stopper();
                let renewing = keeper.clone();
                env.rt.spawn(Box::pin(async move { renewing.run(last_stop).await }));
                let handler = self.handler(&env);
                let worker = Worker::new(keeper, vec![self.queue().to_owned()], 3, handler);
                let mut asked = env.stop.clone();
                env.rt.spawn(Box::pin(async move {
                    asked.asked().await;
                    stopper.stop();
                }));
                worker.run(stop).await;
                last.stop();
            })
        })
    }
}

fn config() -> EngineConfig {
    EngineConfig { segment_events: 40, ..EngineConfig::default() }
}
