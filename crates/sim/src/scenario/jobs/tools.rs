//! Tools that act on the town, in all the ways in which tools go wrong: late, before and after they acted,
//! saying so, saying something else, panicking, deaf to being stopped.

use super::{
    plan::Luck,
    town::{Craft, Town},
};
use crate::{executor::WallClock, rng::Rng, scenario::Scenario, world::Env};
use serde_json::Value;
use std::{panic::resume_unwind, sync::Arc, time::Duration};
use tenure_kernel::runtime::{BoxFuture, Clock as _, First, first};
use tenure_steps::tool::{Class, Probe, Tool, ToolCtx, ToolError, ToolSpec, Tools};

/// What the clocks of the machines differ by at most, well below what settling allows for.
const SKEW: Duration = Duration::from_secs(4);

/// Those of a worker that runs flows.
pub(super) fn tools(env: &Env) -> Tools {
    let setup = env.world.town.setup();
    some(env, |craft| !setup.far || !super::far::crafts(setup).contains(&craft))
}

/// Those of a worker that takes calls.
pub(super) fn far(env: &Env) -> Tools {
    let setup = env.world.town.setup();
    some(env, |craft| super::far::crafts(setup).contains(&craft))
}

fn some(env: &Env, wanted: impl Fn(Craft) -> bool) -> Tools {
    let mut tools = Tools::default();
    let back = if env.world.town.setup().is(Scenario::Sagas) { &Craft::BACK[..] } else { &[] };
    for craft in Craft::ALL.into_iter().chain(back.iter().copied()).filter(|c| wanted(*c)) {
        let tool = Arc::new(Work { craft, env: env.clone() });
        let mut spec = ToolSpec::of(craft.name(), tool);
        // Nobody declares `irreversible`: it is what a tool is that declares nothing.
        spec.options.class = Some(craft.class()).filter(|c| *c != Class::Irreversible);
        if env.world.town.setup().off == Some(super::Off::Ledger) {
            spec.options.class = Some(Class::Idempotent);
        }
        spec.fenced = craft == Craft::Seal;
        spec.honours_not_after = craft == Craft::Train;
        tools = tools.with(spec);
    }
    tools
}

struct Work {
    craft: Craft,
    env: Env,
}

/// How a call fares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Well,
    /// Says, before it acted, that another try may help.
    Retryable,
    /// Says, before it acted, that none would.
    Permanent,
    /// Does not know, and it did not act.
    UnknownBefore,
    /// Does not know, and it did.
    UnknownAfter,
    PanicsBefore,
    PanicsAfter,
    /// Acted, and says that it has to be undone.
    Half,
}

impl Fate {
    fn draw(rng: &mut Rng, craft: Craft, luck: Luck) -> Self {
        use Fate::*;
        if !rng.permille(luck.fails) {
            return Well;
        }
        let bad = [
            Retryable,
            Retryable,
            Permanent,
            UnknownBefore,
            UnknownAfter,
            PanicsBefore,
            PanicsAfter,
            Half,
        ];
        match bad[rng.index(bad.len())] {
            Half if craft != Craft::Book => Retryable,
            other => other,
        }
    }
}

/// A call's code, as long as it exists.
struct AtWork<'a> {
    town: &'a Town,
    key: String,
    call: (u64, u32),
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.town.leave(&self.key, self.call);
    }
}

impl Work {
    async fn work(craft: Craft, env: Env, ctx: ToolCtx, input: Value) -> Result<Value, ToolError> {
        let luck: Luck = serde_json::from_value(input.clone()).unwrap_or_default();
        let (world, call) = (env.world.clone(), (ctx.epoch, ctx.call));
        super::check::call_begins(&world, &ctx, craft);
        world.town.enter(craft, &ctx.key, ctx.job, &ctx.step, call);
        let _here = AtWork { town: &world.town, key: ctx.key.clone(), call };
        let (fate, heeds, before, after) = world.sim.draw(|rng| {
            let mut some = |slow| {
                let top = if rng.permille(slow) { 60_000 } else { 900 };
                rng.between(Duration::from_millis(1)..Duration::from_millis(top))
            };
            let (before, after) = (some(luck.slow), some(luck.slow));
            (Fate::draw(rng, craft, luck), rng.permille(500), before, after)
        });
        let stopped = async {
            match heeds {
                true => ctx.cancelled().await,
                false => std::future::pending().await,
            }
        };
        if let First::Right(()) = first(env.rt.sleep(before), stopped).await {
            return Err(ToolError::Cancelled);
        }
        match fate {
            Fate::Retryable => return Err(ToolError::retryable("not now")),
            Fate::Permanent => return Err(ToolError::permanent("never")),
            Fate::UnknownBefore => return Err(ToolError::unknown("no answer")),
            // Without the hook: this is not news.
            Fate::PanicsBefore => resume_unwind(Box::new("before")),
            Fate::Well | Fate::UnknownAfter | Fate::PanicsAfter | Fate::Half => {}
        }
        let clock = WallClock(world.sim.clone()).now();
        let skew = world.sim.draw(|rng| rng.between(Duration::ZERO..SKEW));
        if craft == Craft::Train && clock > ctx.not_after + skew {
            return Err(ToolError::retryable("the train has left"));
        }
        let Some(receipt) = world.town.act(&ctx.key, &env.name, call) else {
            return Err(ToolError::retryable("the target knows a younger attempt"));
        };
        if Craft::BACK.contains(&craft) {
            world.town.take_back(&input["of"], &ctx.key);
        }
        world.sim.trace(format!("{}: {} {}.{}", env.name, craft.name(), ctx.job, ctx.step));
        env.rt.sleep(after).await;
        match fate {
            Fate::UnknownAfter => Err(ToolError::unknown("the answer was lost")),
            Fate::PanicsAfter => resume_unwind(Box::new("after")),
            Fate::Half => Err(ToolError::Compensatable("half of it".into())),
            _ => Ok(receipt),
        }
    }
}

impl Tool for Work {
    fn call(&self, ctx: ToolCtx, input: Value) -> BoxFuture<'static, Result<Value, ToolError>> {
        Box::pin(Work::work(self.craft, self.env.clone(), ctx, input))
    }

    fn probe(&self, ctx: ToolCtx, _: Value) -> BoxFuture<'static, Result<Probe, ToolError>> {
        let (craft, env) = (self.craft, self.env.clone());
        Box::pin(async move {
            let (town, sim) = (&env.world.town, &env.world.sim);
            if craft == Craft::Seal {
                town.fence(ctx.job, ctx.epoch);
            }
            env.rt.sleep(sim.draw(some_time)).await;
            match sim.draw(|rng| rng.below(12)) {
                0 => return Ok(Probe::Unclear("busy".into())),
                1 => return Err(ToolError::retryable("no answer")),
                _ => {}
            }
            let found = town.receipt(&ctx.key);
            env.rt.sleep(sim.draw(some_time)).await;
            Ok(found.map_or(Probe::NotHappened, Probe::Happened))
        })
    }

    fn compensate(&self, ctx: ToolCtx, _: Value) -> BoxFuture<'static, Result<(), ToolError>> {
        let env = self.env.clone();
        Box::pin(async move {
            let (town, sim) = (&env.world.town, &env.world.sim);
            env.rt.sleep(sim.draw(some_time)).await;
            let luck = sim.draw(|rng| rng.below(12));
            match luck {
                0 => return Err(ToolError::retryable("not now")),
                1 => resume_unwind(Box::new("while undoing")),
                _ => {}
            }
            town.undo(&ctx.key);
            sim.trace(format!("{}: undoes {}.{}", env.name, ctx.job, ctx.step));
            env.rt.sleep(sim.draw(some_time)).await;
            if luck == 2 { Err(ToolError::unknown("the answer was lost")) } else { Ok(()) }
        })
    }
}

fn some_time(rng: &mut Rng) -> Duration {
    rng.between(Duration::from_millis(1)..Duration::from_millis(700))
}
