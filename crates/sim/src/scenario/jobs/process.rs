//! A worker process: a crew with tools of the town, that is killed and stopped at the points of the drive as
//! well as wherever the storm finds it.

use super::{Off, plan, tools};
use crate::{
    faults::Fault,
    scenario::Scenario,
    storm,
    world::{Boot, Env, World},
};
use serde_json::Value;
use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tenure_engine::{config::EngineConfig, pipeline::Pipeline};
use tenure_jobs::{
    bulk,
    crew::{Crew, CrewOptions},
    drive::{JobOptions, Liveness, Probe, Shop},
    submit::Submitter,
};
use tenure_kernel::{
    runtime::{BoxFuture, Rt, Runtime},
    sessions::Executor,
};
use tenure_steps::{
    effects::{EffectName, Effects},
    tool::Tools,
};

/// The `main` of a worker.
pub(crate) fn worker() -> Boot {
    Arc::new(|env: Env| {
        Box::pin(async move {
            let config = Arc::new(config());
            let setup = env.world.town.setup();
            let rt: Rt = match setup.off == Some(Off::LeaseCheck) {
                true => Arc::new(Drowsy { rt: env.rt.clone(), seen: Mutex::default() }),
                false => env.rt.clone(),
            };
            let pipeline = env.pipeline(rt, &config, super::machines());
            let shop = Arc::new(shop(&env, &pipeline));
            let executor = executor(&env);
            let mut stop = env.stop.clone();
            let mut crew = loop {
                let options = CrewOptions {
                    name: env.name.clone(),
                    executor: Some(executor.clone()),
                    slots: 3,
                    drain: Duration::from_secs(20),
                };
                let crew = Crew::start(pipeline.clone(), config.clone(), shop.clone(), options);
                match crew.await {
                    Ok(crew) => break crew,
                    Err(e) => env.world.sim.trace(format!("{}: no crew: {e}", env.name)),
                }
                if stop.is_asked() {
                    return;
                }
                env.rt.sleep(Duration::from_secs(1)).await;
            };
            env.rt.spawn(Box::pin(super::clients::take_orders(
                env.clone(),
                crew.submitter(super::judge()),
            )));
            if setup.far {
                let far = super::far::work(env.clone(), pipeline.clone());
                env.rt.spawn(Box::pin(far));
            }
            stop.asked().await;
            crew.stop().await;
        })
    })
}

pub(super) fn config() -> EngineConfig {
    EngineConfig { segment_events: 40, ..EngineConfig::default() }
}

/// Settings of jobs in the simulation.
pub(super) fn options(world: &World) -> JobOptions {
    let replay_always = world.town.setup().replays;
    JobOptions {
        step_timeout: Duration::from_secs(30),
        backoff_max: Duration::from_secs(20),
        memory_bytes_max: 40_000,
        replay_always,
        ..JobOptions::default()
    }
}

fn shop(env: &Env, pipeline: &Pipeline) -> Shop {
    let setup = env.world.town.setup();
    let (mut flows, mut tools) = (plan::flows(setup.off), tools::tools(env));
    if setup.is(Scenario::Bulk) {
        let (judge, within) = (super::judge(), Duration::from_secs(900));
        let jobs = Submitter::new(pipeline.clone(), judge, within, 50);
        flows = flows.with(bulk::flow());
        tools = bulk::tools(pipeline, &jobs).iter().cloned().fold(tools, Tools::with);
    }
    if setup.is(Scenario::Batches) {
        flows = flows.with(super::batches::flow());
    }
    let shop = Shop::new(flows, tools, options(&env.world))
        .with_liveness(Arc::new(Coroner(env.world.clone())))
        .with_probe(probe(env.clone()));
    match env.world.town.setup().apart {
        true => shop.with_effects(Arc::new(Apart(env.clone()))),
        false => shop,
    }
}

pub(super) fn executor(env: &Env) -> Executor {
    let pid = env.world.town.enrol(env.life);
    let (machine, boot, pid_namespace) = ("sim".into(), "1".into(), String::new());
    Executor { machine, boot, pid_namespace, pid, started: u64::from(pid) }
}

/// Knows the truth, and keeps it to itself now and then.
struct Coroner(Arc<World>);

impl Liveness for Coroner {
    fn known_dead(&self, executor: &Executor) -> bool {
        if self.0.town.setup().off == Some(Off::Death) {
            return true;
        }
        is_dead(&self.0, executor.pid) && self.0.sim.draw(|rng| rng.permille(700))
    }
}

/// Whether a process is dead, in truth.
pub(super) fn is_dead(world: &World, number: u32) -> bool {
    world.town.life(number).is_some_and(|(node, life)| !world.sim.is_alive(node, life))
}

/// Kills or stops its own process at points of the drive.
fn probe(env: Env) -> Probe {
    Arc::new(move |point| {
        let env = env.clone();
        Box::pin(async move {
            let world = &env.world;
            let hazards = world.town.setup();
            if world.weather.is_over() {
                return;
            }
            let hit = |permille| world.sim.draw(|rng| rng.permille(permille));
            let Some(index) = world.index_of(&env.name) else { return };
            if hit(hazards.kills) {
                world.sim.trace(format!("{} dies at {point}", env.name));
                world.weather.count(Fault::Crash);
                world.kill(index);
                storm::restart_later(world, index, Duration::ZERO..Duration::from_secs(30));
                std::future::pending::<()>().await;
            }
            if hit(hazards.stops) {
                world.sim.trace(format!("{} stops at {point}", env.name));
                world.weather.count(Fault::Pause);
                stop_for_a_while(world, index);
                // It stops where it waits next: here.
                env.rt.sleep(Duration::from_micros(1)).await;
            }
        })
    })
}

/// SIGSTOP, often past the lease, and SIGCONT.
pub(super) fn stop_for_a_while(world: &Arc<World>, index: usize) {
    world.pause(index);
    let d = world.sim.draw(|rng| rng.between(Duration::from_secs(1)..Duration::from_secs(70)));
    let later = world.clone();
    world.sim.after(d, move || {
        if !later.weather.is_over() {
            later.resume(index);
        }
    });
}

/// A separate effect store that fails before and after it has written.
struct Apart(Env);

impl Effects for Apart {
    fn put(&self, name: EffectName<'_>, result: &Value) -> io::Result<()> {
        let (world, name) = (&self.0.world, (name.key.to_owned(), name.epoch, name.call));
        let luck = world.sim.draw(|rng| rng.below(20));
        if luck == 0 {
            return Err(io::Error::other("not written"));
        }
        world.town.put_effect(name, result)?;
        if luck == 1 { Err(io::Error::other("written, and nobody knows")) } else { Ok(()) }
    }

    fn get(&self, name: EffectName<'_>) -> io::Result<Option<Value>> {
        let world = &self.0.world;
        if world.sim.draw(|rng| rng.permille(50)) {
            return Err(io::Error::other("can not be read"));
        }
        Ok(world.town.effect(&(name.key.to_owned(), name.epoch, name.call)))
    }
}

/// A clock that does not count the time in which its process is stopped: with it, nobody notices that a lease
/// has lapsed meanwhile. Looks like a skipped lease check, from outside.
struct Drowsy {
    rt: Rt,
    /// When it was asked last, and what it left out so far.
    seen: Mutex<(Duration, Duration)>,
}

impl Runtime for Drowsy {
    fn mono(&self) -> Duration {
        // Loops of a worker ask at least once per tick.
        const ASLEEP: Duration = Duration::from_secs(7);
        let now = self.rt.mono();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let gap = now.saturating_sub(seen.0);
        if !seen.0.is_zero() && gap > ASLEEP {
            seen.1 += gap;
        }
        seen.0 = now;
        now.saturating_sub(seen.1)
    }

    fn sleep(&self, d: Duration) -> BoxFuture<'static, ()> {
        self.rt.sleep(d)
    }

    fn spawn(&self, future: BoxFuture<'static, ()>) {
        self.rt.spawn(future);
    }

    fn random(&self) -> u64 {
        self.rt.random()
    }
}
