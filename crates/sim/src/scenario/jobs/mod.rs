//! Jobs: flows from the seed, run by crews of real shells, with tools that act on a town outside. Workers die
//! and stop at every point; answers get lost before and after; people settle what nobody knows. What must hold
//! is in [`check`]: nothing is done twice, nothing is lost, and what is not known is said.
//!
//! | file | what it holds |
//! |---|---|
//! | [`plan`] | the flows, drawn and walked |
//! | [`read`] | the same plan walked over what was recorded |
//! | [`town`] | what is true outside |
//! | [`tools`] | how the town is touched |
//! | [`process`] | a worker process |
//! | [`far`] | a worker in it that runs no flows and takes calls |
//! | [`clients`] | who submits, signals, cancels and settles |
//! | [`shared`] | limits and schedules over all of it |
//! | [`gates`] | the same behind gates |
//! | [`cascades`] | children with children under cancels |
//! | [`sagas`] | steps that are undone together |
//! | [`batches`] | submissions that become one job |
//! | [`seasons`] | what is shared leaves, and comes again |
//! | [`bulk`] | actions on many jobs |
//! | [`intake`] | jobs that were promised in somebody else's transaction |
//! | [`check`] | what must hold |

pub(crate) mod batches;
pub(crate) mod bulk;
pub(crate) mod cascades;
pub(crate) mod check;
mod clients;
mod far;
pub(crate) mod gates;
pub(crate) mod intake;
mod plan;
pub(crate) mod process;
mod read;
pub(crate) mod sagas;
pub(crate) mod seasons;
pub(crate) mod shared;
mod tools;
mod town;

pub(crate) use clients::play;
pub use town::Town;

use crate::{faults::Fault, run::Options, scenario::Scenario, world::World};
use std::{sync::Arc, time::Duration};
use tenure_jobs::{
    Job,
    catalogue::Catalogue,
    gate::{Gate, GatePage},
};
use tenure_kernel::{judge::Judge, machine::Machines};

/// A protection of jobs that is switched off, from outside of them: to show that something then breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Off {
    /// A call that was started does not keep anybody from calling again: every tool says that it is idempotent.
    Ledger,
    /// A worker does not notice that its lease lapsed while it was stopped: its clock stops with it.
    LeaseCheck,
    /// A lost lease is taken for death.
    Death,
    /// Gates let more through than they should.
    GateLimit,
    /// Whoever submits to a batch has no key by which a repetition is known.
    ItemKey,
    /// A batch is asked to wait longer than its submissions may.
    BatchTime,
    /// A wish of the intake becomes a job under an id of its own.
    IntakeId,
    /// A wish of the intake is forgotten before its job is there.
    IntakeOrder,
    /// An action on many does not keep to the time of its preview.
    BulkHorizon,
    /// What undoes is on record, and the flow undoes under other step ids.
    UndoStep,
    /// Nobody waits for a request to make a pod that may still be on its way.
    LateRequests,
    /// A pod of a node that says nothing is taken for over.
    Fence,
    /// Nobody looks for pods that nobody knows any more.
    Sweep,
}

/// What happens to a worker at one exact await point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Strike {
    /// It dies, and starts again later.
    Kill,
    /// It stops for longer than its lease, and goes on.
    Stop,
}

/// How a run of jobs is made.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Setup {
    /// How often in a thousand a worker dies, and stops, at a point of the drive.
    pub kills: u32,
    pub stops: u32,
    /// Effects lie in a store of their own.
    pub apart: bool,
    /// Workers replay after every commit.
    pub replays: bool,
    pub off: Option<Off>,
    /// No clock is off, so a lease means what it says.
    pub punctual: bool,
    /// Short flows.
    pub short: bool,
    /// Some tools are with workers that run no flows.
    pub far: bool,
    /// What is played.
    pub scenario: Option<Scenario>,
    /// How often what is shared is left alone until retention takes it.
    pub seasons: u64,
}

impl Setup {
    fn is(self, scenario: Scenario) -> bool {
        self.scenario == Some(scenario)
    }
}

/// Machines of jobs.
pub(super) fn machines() -> Machines {
    Machines::kernel()
        .with::<Job>()
        .with::<tenure_jobs::call::Call>()
        .with::<Gate>()
        .with::<GatePage>()
        .with::<Catalogue>()
        .with::<tenure_jobs::shared::batch::Batch>()
        .with::<tenure_jobs::shared::limit::Limit>()
        .with::<tenure_jobs::shared::limit::LimitBook>()
        .with::<tenure_jobs::shared::schedule::Schedule>()
}

fn judge() -> Judge {
    Judge::new(machines().tables())
}

/// Draws how this run is made.
pub(crate) fn prepare(world: &Arc<World>, options: &Options, faults: &[(Fault, u64)]) {
    let has = |fault| faults.iter().any(|(f, _)| *f == fault);
    let (crash, pause) = (has(Fault::Crash), has(Fault::Pause));
    let setup = world.sim.draw(|rng| {
        let mut some = |on| if on { [0, 15, 60][rng.index(3)] } else { 0 };
        let (kills, stops) = (some(crash), some(pause));
        let (apart, replays) = (rng.permille(400), rng.permille(150));
        let punctual = !has(Fault::ClockSkew) && !has(Fault::ClockJump);
        let short = options.strike.is_some();
        let far = match options.scenario {
            Scenario::Calls => true,
            Scenario::Sagas => rng.permille(400),
            _ => false,
        };
        let scenario = Some(options.scenario);
        let off = options.off;
        let seasons = match options.scenario {
            // A clock that jumps makes everything old.
            _ if has(Fault::ClockJump) => 0,
            Scenario::Gates | Scenario::Batches => match options.seasons {
                Some(seasons) => seasons,
                None if options.width.is_none() && rng.permille(200) => 1 + rng.below(2),
                None => 0,
            },
            _ => 0,
        };
        Setup { kills, stops, apart, replays, off, punctual, short, far, scenario, seasons }
    });
    world.sim.trace(format!("{setup:?}"));
    world.town.prepare(setup);
    if let Some((at, strike)) = options.strike {
        strike_at(world, at, strike);
    }
}

/// Strikes the first worker right before its n-th poll.
fn strike_at(world: &Arc<World>, at: u64, strike: Strike) {
    let Some(index) = world.index_of("worker-0") else { return };
    let struck = world.clone();
    world.sim.before_poll(world.node_of(index), at, move || match strike {
        Strike::Kill => {
            struck.kill(index);
            let later = struck.clone();
            struck.sim.after(Duration::from_secs(20), move || later.boot(index));
        }
        Strike::Stop => {
            struck.pause(index);
            let later = struck.clone();
            struck.sim.after(Duration::from_secs(40), move || later.resume(index));
        }
    });
}
