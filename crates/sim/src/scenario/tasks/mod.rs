//! Tasks: pods in a cluster that fails in every way, made by executors, seen by collectors, wanted by jobs and by people. All of it
//! the real shells: servers, a crew of jobs, executors and collectors, each of which dies, stops and is cut off.
//!
//! | file | what it holds |
//! |---|---|
//! | [`yard`] | the cluster in simulated time, and which containers are really there |
//! | [`reach`] | how processes reach it, and what gets lost on the way |
//! | [`mischief`] | what goes wrong in it |
//! | [`process`] | executors, collectors, the crew of jobs |
//! | [`clients`] | who orders, cancels, asks for retries, and makes pods elsewhere |
//! | [`check`] | what must hold |

mod check;
mod clients;
mod mischief;
mod process;
mod reach;
mod yard;

pub(crate) use check::check;
pub(crate) use clients::play;
pub(crate) use process::executor;
pub use yard::Yard;

/// By then a stray is gone, after everything else has come to rest: made, seen in two rounds, told to end, and ended.
pub(crate) const CLEANED: Duration = Duration::from_secs(reach::COPIES_MAX.as_secs() + 300);

use super::{Off, jobs};
use crate::{faults::Fault, run::Options, world::World};
use std::{sync::Arc, time::Duration};
use tenure_kernel::machine::Machines;
use tenure_pods::{budget::BudgetTerms, verdict::Policy};

/// How a run of tasks is made.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Terms {
    /// What the tenant's retries may cost.
    pub budget: BudgetTerms,
    /// What is switched off, to show that something then breaks.
    pub off: Option<Off>,
    /// Whether collectors run at all, and whether they also speak on the channel.
    pub collectors: usize,
    pub channel: bool,
}

/// Machines of tasks, and of the jobs that want them.
pub(super) fn machines() -> Machines {
    tenure_pods::machines(jobs::machines())
}

/// Opens the yard and starts everybody who is not started for every scenario.
pub(crate) fn prepare(world: &Arc<World>, options: &Options, faults: &[(Fault, u64)]) {
    let terms = world.sim.draw(|rng| Terms {
        budget: BudgetTerms {
            per_minute: 6 + u32::try_from(rng.below(60)).unwrap_or(0),
            burst: 1 + u32::try_from(rng.below(4)).unwrap_or(0),
            in_flight: 1 + u32::try_from(rng.below(4)).unwrap_or(0),
        },
        off: options.off,
        collectors: if options.off == Some(Off::Fence) { 2 } else { rng.index(3) },
        channel: rng.permille(500),
    });
    world.sim.trace(format!("{terms:?}"));
    world.sim.allow(2_000_000);
    world.yard.set_terms(terms);
    world.yard.open(world);
    world.add("crew", process::crew());
    for i in 0..terms.collectors {
        world.add(&format!("collector-{i}"), process::collector());
    }
    mischief::begin(world, faults);
}

/// As it is in production, but in minutes instead of quarters of an hour.
fn policy() -> Policy {
    Policy {
        schedule_timeout_seconds: 200,
        start_timeout_seconds: 120,
        image_pull_grace_seconds: 40,
        image_pull_long_grace_seconds: 60,
        config_grace_seconds: 20,
        create_grace_seconds: 40,
        terminating_grace_seconds: 40,
        node_lost_grace_seconds: 60,
        ..Policy::default()
    }
}
