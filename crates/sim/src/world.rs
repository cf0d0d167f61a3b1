//! A world: one store, one bell, servers and workers that can be started again, clients, and the
//! weather over all of them.

use crate::{
    bell::SimBell,
    executor::{NodeId, NodeRuntime, Sim, WallClock},
    faults::Fault,
    oracle::Oracle,
    outside::Outside,
    scenario::{Heard, Town, Yard},
    weather::{Connection, Weather},
};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tenure_engine::{config::EngineConfig, pipeline::Pipeline};
use tenure_kernel::{
    bell::Bell,
    judge::Judge,
    machine::Machines,
    runtime::{BoxFuture, Rt, Runtime as _},
    store::Store,
};
use tenure_store::memory::MemoryStore;
use tokio::sync::watch;

/// What a simulated process gets to see.
#[derive(Clone)]
pub struct Env {
    /// Its clock, tasks and chance.
    pub rt: Rt,
    /// Its connection to the store.
    pub store: Arc<dyn Store>,
    /// Its bell.
    pub bell: Arc<dyn Bell>,
    /// Its name.
    pub name: String,
    /// Which life of which node.
    pub life: (NodeId, u64),
    /// The world outside, and the trace.
    pub world: Arc<World>,
    /// Asks it to leave in order.
    pub stop: Stop,
}

impl Env {
    /// Whether commits of this process carry what they say: by chance, so that messages go either way in every world.
    pub fn carries(&self) -> bool {
        self.rt.random().is_multiple_of(2)
    }

    /// The way to the store of a process that runs beside a server, on this runtime.
    pub fn pipeline(&self, rt: Rt, config: &EngineConfig, machines: Machines) -> Pipeline {
        let config = EngineConfig { carry: self.carries(), ..config.clone() };
        Pipeline::carrying(self.store.clone(), self.bell.clone(), rt, &config, machines)
    }
}

/// Says when to leave in order.
#[derive(Clone)]
pub struct Stop(watch::Receiver<bool>);

impl Stop {
    /// Waits until the process is asked to leave.
    pub async fn asked(&mut self) {
        // An error means that the world is gone, and this process with it.
        let _ = self.0.wait_for(|stop| *stop).await;
    }

    /// Whether it has been asked.
    pub fn is_asked(&self) -> bool {
        *self.0.borrow()
    }
}

/// How a process starts: its `main`.
pub type Boot = Arc<dyn Fn(Env) -> BoxFuture<'static, ()> + Send + Sync>;

struct Process {
    node: NodeId,
    name: String,
    boot: Boot,
    stop: Option<watch::Sender<bool>>,
    is_up: bool,
}

/// See the module.
pub struct World {
    /// Time and tasks.
    pub sim: Sim,
    /// A connection without faults, for checkers.
    pub store: MemoryStore,
    /// What goes wrong.
    pub weather: Arc<Weather>,
    /// The bell.
    pub bell: SimBell,
    /// Effects.
    pub outside: Outside,
    /// What the tools of jobs did.
    pub town: Town,
    /// What was announced outside.
    pub heard: Heard,
    /// The cluster.
    pub yard: Yard,
    /// The one inside the store.
    pub oracle: Arc<Oracle>,
    /// Whether clocks are off.
    skewed: bool,
    processes: Mutex<Vec<Process>>,
}

impl World {
    /// An empty world.
    pub fn new(seed: u64, judge: Judge, skewed: bool) -> Arc<Self> {
        let sim = Sim::new(seed);
        let oracle = Arc::new(Oracle::default());
        let clock = Arc::new(WallClock(sim.clone()));
        let store = MemoryStore::witnessed(judge, clock, seed | 1, Some(oracle.clone()));
        let weather = Arc::new(Weather::default());
        let bell = SimBell::new(sim.clone(), weather.clone());
        let (outside, town, heard) = (Outside::default(), Town::default(), Heard::default());
        let (yard, processes) = (Yard::default(), Mutex::default());
        Arc::new(World {
            sim,
            store,
            weather,
            bell,
            outside,
            town,
            heard,
            yard,
            oracle,
            skewed,
            processes,
        })
    }

    fn processes(&self) -> MutexGuard<'_, Vec<Process>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a process and starts it.
    pub fn add(self: &Arc<Self>, name: &str, boot: Boot) -> usize {
        let node = self.sim.node(name);
        let name = name.to_owned();
        self.processes().push(Process { node, name, boot, stop: None, is_up: false });
        let index = self.processes().len() - 1;
        self.boot(index);
        index
    }

    /// Something that no fault kills: a client, or the fault injector itself. `store` of its
    /// environment has the weather of everybody.
    pub fn outsider(self: &Arc<Self>, name: &str) -> Env {
        let node = self.sim.node(name);
        let rt = self.sim.start(node, Duration::ZERO, 1_000_000);
        let (keep, stop) = watch::channel(false);
        // Nobody asks an outsider to leave.
        std::mem::forget(keep);
        self.env(name, rt, Stop(stop))
    }

    fn env(self: &Arc<Self>, name: &str, rt: Arc<NodeRuntime>, stop: Stop) -> Env {
        let (sim, weather) = (self.sim.clone(), self.weather.clone());
        let life = rt.life();
        let chaos = Connection { sim, weather, node: life.0 };
        Env {
            rt,
            store: Arc::new(self.store.handle(Arc::new(chaos))),
            bell: Arc::new(self.bell.clone()),
            name: name.to_owned(),
            life,
            world: self.clone(),
            stop,
        }
    }

    /// Number of processes.
    pub fn len(&self) -> usize {
        self.processes().len()
    }

    /// Whether there are no processes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Those that were killed or asked to leave, and not started since.
    pub fn down(&self) -> Vec<usize> {
        let processes = self.processes();
        (0..processes.len()).filter(|i| !processes[*i].is_up).collect()
    }

    /// Starts a process, killing what is left of its earlier life.
    pub fn boot(self: &Arc<Self>, index: usize) {
        let (offset, rate) = self.sim.draw(|rng| {
            if !self.skewed {
                return (Duration::ZERO, 1_000_000);
            }
            self.weather.count(Fault::ClockSkew);
            let offset = rng.between(Duration::ZERO..Duration::from_secs(1_000_000));
            let spread = if rng.permille(200) { 200_000 } else { 10_000 };
            (offset, 1_000_000 - spread + rng.below(2 * spread))
        });
        let (node, name, boot, stop) = {
            let mut processes = self.processes();
            let p = &mut processes[index];
            let (sender, receiver) = watch::channel(false);
            (p.stop, p.is_up) = (Some(sender), true);
            (p.node, p.name.clone(), p.boot.clone(), Stop(receiver))
        };
        self.sim.trace(format!("boot {name}"));
        let rt = self.sim.start(node, offset, rate);
        let main = boot(self.env(&name, rt.clone(), stop));
        rt.spawn(main);
    }

    /// Kills a process where it stands.
    pub fn kill(&self, index: usize) {
        let (node, name) = self.name_of(index);
        self.sim.trace(format!("kill {name}"));
        self.processes()[index].is_up = false;
        self.sim.kill(node);
    }

    /// Stops polling a process.
    pub fn pause(&self, index: usize) {
        let (node, name) = self.name_of(index);
        self.sim.trace(format!("pause {name}"));
        self.sim.pause(node);
    }

    /// Lets it go on.
    pub fn resume(&self, index: usize) {
        let (node, name) = self.name_of(index);
        self.sim.trace(format!("resume {name}"));
        self.sim.resume(node);
    }

    /// Asks it to leave in order.
    pub fn ask_to_stop(&self, index: usize) {
        let (_, name) = self.name_of(index);
        self.sim.trace(format!("stop {name}"));
        let stop = {
            let mut processes = self.processes();
            processes[index].is_up = false;
            processes[index].stop.clone()
        };
        if let Some(stop) = stop {
            stop.send_replace(true);
        }
    }

    /// A law was broken.
    pub fn fail(&self, broken: String) {
        self.oracle.seen().broken.push(broken);
    }

    pub(crate) fn forget_processes(&self) {
        let processes = std::mem::take(&mut *self.processes());
        drop(processes);
    }

    /// A process by its name.
    pub fn index_of(&self, name: &str) -> Option<usize> {
        self.processes().iter().position(|p| p.name == name)
    }

    /// Its node.
    pub fn node_of(&self, index: usize) -> NodeId {
        self.processes()[index].node
    }

    fn name_of(&self, index: usize) -> (NodeId, String) {
        let processes = self.processes();
        (processes[index].node, processes[index].name.clone())
    }
}
