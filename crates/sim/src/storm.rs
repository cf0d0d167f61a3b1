//! The storm: draws faults from the seed and lets them happen, until it is over and everything that
//! can be started is started again.

use crate::{
    executor::WallClock,
    faults::{Fault, Faults},
    rng::Rng,
    weather::Levels,
    world::World,
};
use std::{sync::Arc, time::Duration};
use tenure_kernel::runtime::Clock as _;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// What a seed draws: some of the allowed faults, each with a weight.
pub fn draw(rng: &mut Rng, faults: &Faults, all: bool) -> Vec<(Fault, u64)> {
    let weighed = |f: Fault| (f, 1 + rng.below(8));
    let drawn: Vec<_> = faults.iter().map(weighed).collect();
    if all {
        return drawn;
    }
    // About a third of the kinds at a time: everything at once hides what one alone would break.
    drawn.into_iter().filter(|_| rng.permille(350)).collect()
}

/// Rages for a while.
pub async fn rage(world: Arc<World>, faults: Vec<(Fault, u64)>, length: Duration) {
    let end = world.sim.now() + length;
    world.weather.change(|levels| levels.over = false);
    let total: u64 = faults.iter().map(|(_, w)| w).sum();
    // Some storms are a few strikes, some are hail.
    let pace = world.sim.draw(|rng| rng.between(ms(400)..ms(20_000)));
    while total > 0 && world.sim.now() < end {
        let (pause, mut pick) = world.sim.draw(|rng| (rng.between(ms(20)..pace), rng.below(total)));
        world.sim.sleep(pause).await;
        let hit = faults.iter().find(|(_, w)| {
            let here = pick < *w;
            pick = pick.saturating_sub(*w);
            here
        });
        if let Some((fault, _)) = hit {
            strike(&world, *fault).await;
        }
    }
    calm(&world);
}

/// The sky clears and every process is up.
pub fn calm(world: &Arc<World>) {
    world.sim.trace("calm");
    world.weather.clear();
    (0..world.len()).for_each(|index| world.resume(index));
    world.down().into_iter().for_each(|index| world.boot(index));
}

async fn strike(world: &Arc<World>, fault: Fault) {
    let victim = world.sim.draw(|rng| rng.index(world.len()));
    let level = world.sim.draw(|rng| 20 + rng.below(400) as u32);
    match fault {
        Fault::Crash => {
            world.weather.count(fault);
            world.kill(victim);
            restart_later(world, victim, ms(0)..ms(30_000));
        }
        Fault::Pause => {
            world.weather.count(fault);
            world.pause(victim);
            let (world, d) =
                (world.clone(), world.sim.draw(|rng| rng.between(ms(100)..ms(45_000))));
            world.sim.clone().after(d, move || {
                if !world.weather.is_over() {
                    world.resume(victim);
                }
            });
        }
        Fault::Shutdown => {
            world.weather.count(fault);
            world.ask_to_stop(victim);
            restart_later(world, victim, ms(1_000)..ms(30_000));
        }
        Fault::RestartStorm => {
            for _ in 0..3 {
                world.weather.count(fault);
                (0..world.len()).for_each(|i| world.boot(i));
                let d = world.sim.draw(|rng| rng.between(ms(5)..ms(4_000)));
                world.sim.sleep(d).await;
            }
        }
        Fault::ClockJump => {
            world.weather.count(fault);
            let by = world.sim.draw(|rng| {
                let top = if rng.permille(200) { 900_000 } else { 20_000 };
                rng.between(ms(1)..ms(top))
            });
            world.sim.trace(format!("the wall clock jumps by {by:?}"));
            world.sim.jump_wall_clock(by);
        }
        Fault::Partition => {
            let node = world.node_of(victim);
            world.sim.trace(format!("cut node {node}"));
            let cut = move |l: &mut Levels| l.cut.extend([node]);
            window(world, ms(1_000)..ms(60_000), cut, move |l| l.cut.retain(|n| *n != node));
        }
        // Clocks are set at each start.
        Fault::ClockSkew => {}
        Fault::Unavailable => {
            window(world, SHORT, move |l| l.unavailable = level, |l| l.unavailable = 0);
        }
        // One at a time: the end of one would cut the other short.
        Fault::Outage if world.weather.is_out() => {}
        Fault::Outage => {
            world.sim.trace("outage");
            let (from, clock) = (WallClock(world.sim.clone()).now(), WallClock(world.sim.clone()));
            let weather = world.weather.clone();
            world.weather.change(|l| l.outage = true);
            let d = world.sim.draw(|rng| rng.between(ms(5_000)..ms(300_000)));
            world.sim.after(d, move || {
                if !weather.is_over() {
                    weather.change(|l| l.outage = false);
                    weather.note_outage(from, clock.now());
                }
            });
        }
        Fault::AnswerLost => {
            window(world, SHORT, move |l| l.answer_lost = level, |l| l.answer_lost = 0);
        }
        Fault::RequestLost => {
            window(world, SHORT, move |l| l.request_lost = level, |l| l.request_lost = 0);
        }
        Fault::Latency => window(world, SHORT, move |l| l.latency = level, |l| l.latency = 0),
        Fault::Busy => window(world, SHORT, move |l| l.busy = level, |l| l.busy = 0),
        Fault::StaleReads => window(world, SHORT, move |l| l.stale = level, |l| l.stale = 0),
        Fault::BellLost => window(world, SHORT, move |l| l.bell_lost = level, |l| l.bell_lost = 0),
        Fault::BellLate => window(world, SHORT, move |l| l.bell_late = level, |l| l.bell_late = 0),
        Fault::BellSilent => {
            window(world, SHORT, |l| l.bell_silent = true, |l| l.bell_silent = false);
        }
    }
}

const SHORT: std::ops::Range<Duration> = ms(500)..ms(40_000);

/// Sets a level now and resets it after a while.
fn window(
    world: &Arc<World>,
    length: std::ops::Range<Duration>,
    begin: impl FnOnce(&mut Levels),
    end: impl FnOnce(&mut Levels) + Send + 'static,
) {
    world.weather.change(begin);
    let (weather, d) = (world.weather.clone(), world.sim.draw(|rng| rng.between(length)));
    world.sim.after(d, move || weather.change(end));
}

/// Starts a process again after a while, if the storm still rages; its end starts everything.
pub fn restart_later(world: &Arc<World>, index: usize, range: std::ops::Range<Duration>) {
    let d = world.sim.draw(|rng| rng.between(range));
    let later = world.clone();
    world.sim.after(d, move || {
        if !later.weather.is_over() {
            later.boot(index);
        }
    });
}
