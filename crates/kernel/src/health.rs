//! What a store says about how it is: one bounded read, for `/metrics` and `tenure doctor`.
//!
//! Facts only, no verdicts: what is too old or too much is decided by whoever asks, who knows the settings. Every
//! count stops at a limit, so that a look costs the same whatever the history.

use crate::time::Timestamp;

/// Rows of each table that one look counts at most.
pub const COUNTED_MAX: usize = 10_000;
/// Outbox rows that one look counts at most: their bodies lie beside their times.
pub const OUTBOX_COUNTED_MAX: usize = 1_000;
/// Transactions that one look names at most.
pub const HOLDERS_BACK_MAX: usize = 20;

/// How a store is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Health {
    /// The store's time.
    pub now: Timestamp,
    /// The last pulse that a server left.
    pub pulse_at: Option<Timestamp>,
    /// No holder is judged before this moment.
    pub judge_after: Timestamp,
    /// Entities that are owed an outcome, by kind and status.
    pub open: Vec<OpenCount>,
    /// Whether there are no more open entities than were counted.
    pub open_is_all: bool,
    /// What waits to be claimed, by queue; no more than [`COUNTED_MAX`] in all.
    pub ready: Vec<ReadyCount>,
    /// What waits to be delivered, by lane; no more than [`OUTBOX_COUNTED_MAX`] of each side in all.
    pub outbox: Vec<OutboxCount>,
    /// Wishes of applications that are not jobs yet; `None` where none can be left.
    pub intake: Option<IntakeCount>,
    /// Sessions that are alive, by role.
    pub sessions: Vec<(String, u64)>,
    /// When the oldest record was written that is committed and that the feed can not show yet.
    pub feed_held_since: Option<Timestamp>,
    /// Transactions that hold the feed back, the oldest first; always empty where there is one writer.
    pub holding_back: Vec<HoldsBack>,
    /// Connections that listen for bells; `None` where bells do not go through the store.
    pub bells_listening: Option<u64>,
    /// Settings of the database that durability rests on, as the database says them.
    pub database: Vec<(String, String)>,
}

/// Open entities of one kind in one status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenCount {
    /// The kind.
    pub kind: String,
    /// The status.
    pub status: String,
    /// How many.
    pub count: u64,
    /// When the one that has not changed for longest changed.
    pub oldest_change: Timestamp,
}

/// What stands in one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyCount {
    /// The queue.
    pub queue: String,
    /// How many.
    pub count: u64,
    /// Since when the one that stands there for longest does.
    pub oldest: Timestamp,
}

/// What waits in one lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxCount {
    /// The lane.
    pub lane: u16,
    /// Whether it goes out on a wire.
    pub wire: bool,
    /// How many.
    pub count: u64,
    /// When the oldest one was sent.
    pub oldest: Timestamp,
}

/// Wishes that wait to become jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IntakeCount {
    /// How many; counting stops at [`COUNTED_MAX`].
    pub count: u64,
    /// When the oldest one was left there.
    pub oldest: Option<Timestamp>,
}

/// A transaction that is open and has written: the feed shows nothing that came after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldsBack {
    /// The process of the database behind it; `None` for a prepared transaction.
    pub pid: Option<i32>,
    /// The name of a prepared transaction.
    pub prepared: Option<String>,
    /// The database it runs in.
    pub database: String,
    /// Its user.
    pub user: String,
    /// What its program calls itself.
    pub application: String,
    /// What it does, in the database's word, such as `idle in transaction`.
    pub state: String,
    /// When it began, where that may be seen.
    pub since: Option<Timestamp>,
    /// Its last statement, cut short, where that may be seen.
    pub query: String,
}

impl Health {
    /// How long the oldest message that stays within the store, or that leaves it, has been waiting.
    pub fn oldest_message(&self, wire: bool) -> Option<&OutboxCount> {
        self.outbox.iter().filter(|o| o.wire == wire).min_by_key(|o| o.oldest)
    }

    /// What the database says about one of its settings.
    pub fn database_setting(&self, name: &str) -> Option<&str> {
        self.database.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }
}

/// How a process is, as its operating system says. What it does not say is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vitals {
    /// The wall clock of its machine.
    pub clock: Option<Timestamp>,
    /// Memory in use.
    pub resident_bytes: Option<u64>,
    /// Processor time spent.
    pub cpu: Option<std::time::Duration>,
    /// Open files and sockets.
    pub open_files: Option<u64>,
}
