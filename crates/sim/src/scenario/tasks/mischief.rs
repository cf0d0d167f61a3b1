//! What goes wrong in the yard while the storm rages, besides what pods do by themselves.

use super::reach::Levels;
use crate::{faults::Fault, scenario::Off, world::World};
use std::{ops::Range, sync::Arc, time::Duration};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mischief {
    /// The API server is away.
    Away,
    /// One process does not reach it.
    Cut,
    /// It has too much to do.
    Busy,
    /// Deeds without answers.
    AnswerLost,
    /// Requests that arrive late.
    Late,
    /// Watches repeat themselves.
    Twisted,
    /// Watches are dead and do not say so.
    DeadWatches,
    /// The past is forgotten: 410.
    Expired,
    /// A node falls silent.
    Node,
}

const ALL: [Mischief; 9] = [
    Mischief::Away,
    Mischief::Cut,
    Mischief::Busy,
    Mischief::AnswerLost,
    Mischief::Late,
    Mischief::Twisted,
    Mischief::DeadWatches,
    Mischief::Expired,
    Mischief::Node,
];

const fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Lets it happen until the storm is over.
pub(super) fn begin(world: &Arc<World>, faults: &[(Fault, u64)]) {
    let drawn: Vec<Mischief> =
        world.sim.draw(|rng| ALL.into_iter().filter(|_| rng.permille(400)).collect());
    let drawn = match world.yard.terms().off {
        // What would be missed happens all the time.
        Some(Off::LateRequests | Off::Sweep) => vec![Mischief::Late],
        Some(Off::Fence) => vec![Mischief::Node],
        // In a world without faults only pods fail.
        _ if faults.is_empty() => Vec::new(),
        _ => drawn,
    };
    let env = world.outsider("mischief");
    world.sim.trace(format!("{drawn:?}"));
    let world = world.clone();
    env.rt.spawn(Box::pin(async move {
        let pace = world.sim.draw(|rng| rng.between(s(1)..s(20)));
        while !world.weather.is_over() {
            let pause = world.sim.draw(|rng| rng.between(Duration::from_millis(20)..pace));
            world.sim.sleep(pause).await;
            if !drawn.is_empty() && !world.weather.is_over() {
                let pick = drawn[world.sim.draw(|rng| rng.index(drawn.len()))];
                strike(&world, pick);
            }
        }
        world.yard.calm(&world);
    }));
}

fn strike(world: &Arc<World>, mischief: Mischief) {
    let level = world.sim.draw(|rng| 50 + rng.below(500) as u32);
    let yard = &world.yard;
    match mischief {
        Mischief::Away => {
            yard.count("API server away");
            window(world, s(1)..s(40), |l| l.away = true, |l| l.away = false);
        }
        Mischief::Cut => {
            let victim = world.sim.draw(|rng| rng.index(world.len()));
            let node = world.node_of(victim);
            window(
                world,
                s(1)..s(60),
                move |l| l.cut.extend([node]),
                move |l| {
                    l.cut.remove(&node);
                },
            );
        }
        Mischief::Busy => window(world, s(1)..s(30), move |l| l.busy = level, |l| l.busy = 0),
        Mischief::AnswerLost => {
            window(world, s(1)..s(60), move |l| l.answer_lost = level, |l| l.answer_lost = 0);
        }
        Mischief::Late => window(world, s(1)..s(60), move |l| l.late = level, |l| l.late = 0),
        Mischief::Twisted => {
            window(world, s(1)..s(60), move |l| l.twisted = level, |l| l.twisted = 0);
        }
        Mischief::DeadWatches => {
            yard.count("dead watches");
            let now = world.sim.now();
            yard.levels(|l| l.dead_before = now);
        }
        Mischief::Expired => {
            yard.count("410");
            let kube = yard.at(world);
            kube.skip_versions(3);
            kube.expire_before(kube.version());
        }
        Mischief::Node => yard.lose_node(world),
    }
    yard.beat();
}

fn window(
    world: &Arc<World>,
    length: Range<Duration>,
    begin: impl FnOnce(&mut Levels),
    end: impl FnOnce(&mut Levels) + Send + 'static,
) {
    world.yard.levels(begin);
    let (later, d) = (world.clone(), world.sim.draw(|rng| rng.between(length)));
    world.sim.after(d, move || {
        later.yard.levels(end);
        later.yard.beat();
    });
}
