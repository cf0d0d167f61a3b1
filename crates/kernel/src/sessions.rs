//! Worker sessions: the lease of everything a worker holds, in one row. The session is an entity of
//! kind `worker` with a stream of its own (opened, ended); beside it lies a *soft* row with the expiry
//! and what the worker says it holds. Renewing touches only that row.
//!
//! A claim sets `check_at` in the entity it claims. When that moment comes the due loop reads the
//! session row: alive and naming the entity, look again one lease later; else end the tenure. The end
//! of a session moves these checks to now; it fences nothing itself.

use crate::{
    ids::{EntityId, SessionId},
    stream::Record,
    table::{BIRTH, Claimable, Class, Move, StatusRow, Table},
    time::Timestamp,
};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// One entity that a session says it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hold {
    /// Which.
    pub entity: EntityId,
    /// Under which epoch.
    pub epoch: u64,
    /// Rises with progress; a holder that renews and does not move is visible.
    pub mark: u64,
}

/// The soft row of a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Session {
    /// Which.
    pub id: SessionId,
    /// Who, for people: host, process, role.
    pub name: String,
    /// `server` or `worker`.
    pub role: String,
    /// How long a renewal lasts.
    pub lease: Duration,
    /// When it was renewed last.
    pub renewed_at: Timestamp,
    /// Until when it is believed alive.
    pub expires_at: Timestamp,
    /// What it holds, as of the last renewal.
    pub holds: Vec<Hold>,
    /// The entity is final.
    pub ended: bool,
}

impl Session {
    /// Whether this session is alive at `now` and says that it holds the entity under that epoch.
    /// A claim younger than the last renewal is not named yet; the claim's own lease covers it.
    pub fn vouches_for(&self, entity: EntityId, epoch: u64, now: Timestamp) -> bool {
        let alive = !self.ended && now < self.expires_at;
        alive
            && (entity == self.id
                || self.holds.iter().any(|h| h.entity == entity && h.epoch == epoch))
    }
}

/// Asks for another lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Renewal {
    /// Which session.
    pub session: SessionId,
    /// Everything it holds.
    pub holds: Vec<Hold>,
}

/// What became of a renewal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RenewalAnswer {
    /// Good until `expires_at` of the store's clock.
    Renewed {
        /// The new expiry.
        expires_at: Timestamp,
        /// Named entities that this session holds no longer. It MUST stop working on them.
        lost: Vec<EntityId>,
        /// Named entities with unread mail.
        mail: Vec<EntityId>,
    },
    /// The session is over or unknown. It MUST stop everything and open a new one.
    Ended,
}

/// What opens a session; the body of its first event.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Opening {
    /// See [`Session::name`].
    pub name: String,
    /// See [`Session::role`].
    pub role: String,
    /// See [`Session::lease`], in milliseconds.
    pub lease_ms: u64,
    /// The process behind it, where it can say. Openings from before there was one read as `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor: Option<Executor>,
}

impl Opening {
    /// Reads it from the first record of a session's stream.
    pub fn of(record: &Record) -> Option<Self> {
        let opened = record.events().ok()?.into_iter().find(|e| e.name == events::OPENED)?;
        crate::stored::from_slice(opened.body.inline()?).ok()
    }
}

/// A process, said so that somebody else can conclude that it is dead: on the same machine, after another
/// boot, or once its number is free or belongs to a process that started at another time. What can not be
/// concluded is not known, and the lease decides.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Executor {
    /// The machine's id.
    pub machine: String,
    /// The id of its boot: no process outlives it.
    pub boot: String,
    /// The namespace in which the process has its number.
    pub pid_namespace: String,
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since the boot: numbers are used again.
    pub started: u64,
}

/// Event names of a session.
pub mod events {
    /// First event; body is [`super::Opening`].
    pub const OPENED: &str = "session_opened";
    /// Last event.
    pub const ENDED: &str = "session_ended";
}

/// The machine of a worker session.
pub static WORKER: Table = Table {
    kind: "worker",
    doc: "A worker session: the lease of everything it holds. It holds itself.",
    statuses: &[
        StatusRow {
            name: "alive",
            class: Class::Resting,
            claimable: Claimable::No,
            doc: "Renews its row.",
        },
        StatusRow {
            name: "ended",
            class: Class::Final,
            claimable: Claimable::No,
            doc: "Said goodbye, or was not heard for a lease.",
        },
    ],
    moves: &[
        Move { from: BIRTH, event: events::OPENED, to: "alive" },
        Move { from: &["alive"], event: events::ENDED, to: "ended" },
        Move { from: &["alive"], event: crate::table::kernel_events::TENURE_ENDED, to: "ended" },
    ],
    forced: "ended",
};

/// The machine of an outbox lane.
pub static LANE: Table = Table {
    kind: "lane",
    doc: "A fixed share of sources, whose messages one server delivers in order.",
    statuses: &[
        StatusRow {
            name: "free",
            class: Class::Resting,
            claimable: Claimable::ByName,
            doc: "No server delivers it.",
        },
        StatusRow {
            name: "served",
            class: Class::Resting,
            claimable: Claimable::No,
            doc: "One server delivers it.",
        },
    ],
    moves: &[
        Move { from: BIRTH, event: "lane_created", to: "free" },
        Move { from: &["free"], event: crate::table::kernel_events::CLAIMED, to: "served" },
        Move { from: &["served"], event: crate::table::kernel_events::TENURE_ENDED, to: "free" },
    ],
    forced: "",
};

/// The entity of a lane.
pub const fn lane_id(lane: u16) -> EntityId {
    EntityId::fixed(1, lane)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_opening_without_a_process_reads_and_writes_as_it_always_did() {
        let old = r#"{"name":"n","role":"worker","lease_ms":5}"#;
        let opening: Opening = serde_json::from_str(old).unwrap();
        assert_eq!(opening.executor, None);
        assert_eq!(serde_json::to_string(&opening).unwrap(), old);
        let executor = Executor {
            machine: "m".into(),
            boot: "b".into(),
            pid_namespace: "p".into(),
            pid: 7,
            started: 9,
        };
        let new = Opening { executor: Some(executor), ..opening };
        let text = serde_json::to_string(&new).unwrap();
        assert_eq!(serde_json::from_str::<Opening>(&text).unwrap(), new);
    }
}
