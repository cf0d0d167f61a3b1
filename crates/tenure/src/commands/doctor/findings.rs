//! What was looked at. Plain data: a test makes an ill deployment by changing a field.

use super::{chains::Chains, places::Place, server::ServerSays};
use crate::config::Settings;
use std::{collections::BTreeSet, time::Duration};
use tenure_kernel::{
    blocks::Block, health::Health, ids::EntityId, rules::Tallies, time::Timestamp,
};

/// One look at a deployment.
#[derive(Clone, Debug)]
pub struct Findings {
    /// Where the store is, without secrets.
    pub store: String,
    /// The settings that this doctor was given.
    pub settings: Settings,
    /// A message, or a record of the feed, that waits for longer than this is stuck, not under way.
    pub stuck_after: Duration,
    /// How the store is.
    pub health: Health,
    /// The clock of this machine less the store's, in microseconds; `None` where the store has no clock of its own.
    pub skew_us: Option<i64>,
    /// What the rules did.
    pub tallies: Tallies,
    /// Sessions that are alive.
    pub sessions: Vec<Alive>,
    /// What is overdue, the longest first.
    pub late: Vec<Late>,
    /// Whether that is all of it.
    pub late_is_all: bool,
    /// Streams that were checked.
    pub chains: Chains,
    /// Entities that the kernel marked for a person.
    pub marked: Vec<Marked>,
    /// What operators keep from running.
    pub blocks: Vec<Block>,
    /// Jobs.
    pub jobs: Jobs,
    /// Turns of agents.
    pub turns: Turns,
    /// Tasks.
    pub tasks: Tasks,
    /// API keys that are valid.
    pub keys: usize,
    /// The tenants that they are bound to.
    pub key_tenants: BTreeSet<String>,
    /// Accounts of this machine that people sign in to.
    pub accounts: usize,
    /// Whether the kernel of this machine can confine the files of a program.
    pub confines_files: bool,
    /// What the server said, if one was asked; or why it did not answer.
    pub server: Option<Result<ServerSays, String>>,
    /// Whether the bus of the settings answered this doctor, or why not; `None` where there is none.
    pub bus: Option<Result<(), String>>,
    /// Directories that the settings name.
    pub places: Vec<Place>,
}

/// A session that is alive.
#[derive(Clone, Debug)]
pub struct Alive {
    /// Its name for people.
    pub name: String,
    /// `server` or `worker`.
    pub role: String,
    /// The machine of its process, where it said so.
    pub machine: Option<String>,
    /// Its lease.
    pub lease: Duration,
    /// Since it was renewed.
    pub renewed_ago: Duration,
    /// How much it holds.
    pub holds: usize,
}

/// Something that is overdue.
#[derive(Clone, Debug)]
pub struct Late {
    /// Which entity.
    pub id: EntityId,
    /// Its kind.
    pub kind: String,
    /// Its status.
    pub status: String,
    /// Since when it is due.
    pub due: Timestamp,
    /// When it had to end, if it is owed an outcome.
    pub must_end_by: Option<Timestamp>,
    /// Decisions about it that failed in a row.
    pub faults: u16,
}

/// An entity that is marked for a person.
#[derive(Clone, Debug)]
pub struct Marked {
    /// Which.
    pub id: EntityId,
    /// Its kind.
    pub kind: String,
    /// Why.
    pub why: String,
}

/// What was seen of jobs.
#[derive(Clone, Debug, Default)]
pub struct Jobs {
    /// Jobs in `attention`, the oldest first, up to a limit.
    pub attention: Vec<Asking>,
    /// Effects that nobody knows about.
    pub unknown: Vec<Unknown>,
    /// Failed jobs that nobody has put aside: how many were counted, and when the newest failed.
    pub dead_letters: usize,
    /// Whether there are more.
    pub more_dead_letters: bool,
    /// When the newest of them failed.
    pub newest_dead_letter: Option<Timestamp>,
    /// Open jobs, among those looked at, that lost a worker: id, how often, how often they may.
    pub taken_over: Vec<(EntityId, u32, u32)>,
}

/// What was seen of turns, among the newest.
#[derive(Clone, Debug, Default)]
pub struct Turns {
    /// Dead letters that nobody has dealt with.
    pub dead_letters: u64,
    /// A turn that has some.
    pub with_letters: Option<EntityId>,
    /// Turns that wait for a worker: dispatched, or resumed and taken by nobody.
    pub waiting: usize,
    /// The target and the id of the one that has waited longest, and since when.
    pub longest: Option<(String, EntityId, Timestamp)>,
}

/// What was seen of tasks.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    /// Failed ones that nobody has replayed or put aside, and the newest of them.
    pub dead_letters: usize,
    /// The newest of them.
    pub newest_dead: Option<EntityId>,
    /// Pods that no executor has taken.
    pub unclaimed: usize,
    /// The queue and the id of the one that has waited longest, and since when.
    pub longest: Option<(String, EntityId, Timestamp)>,
}

/// A job that waits for a person.
#[derive(Clone, Debug)]
pub struct Asking {
    /// Which.
    pub id: EntityId,
    /// `unknown_outcome`, `diverged`, `broken`.
    pub reason: String,
    /// Since when.
    pub since: Timestamp,
    /// When it ends by itself.
    pub must_end_by: Option<Timestamp>,
}

/// An effect that nobody knows about.
#[derive(Clone, Debug)]
pub struct Unknown {
    /// Of which job.
    pub job: EntityId,
    /// Which step.
    pub step: String,
    /// Since when the job stands so.
    pub since: Timestamp,
    /// The job has ended.
    pub ended: bool,
}
