//! Commits: the one way to change an entity. A commit belongs to one entity and carries its events,
//! the new machine state, timers, messages and side rows, all or nothing.
//!
//! A commit says what it believes ([`Expect`]); the store refuses it when that is no longer so, in
//! the statement that would have written. Durations in it count from the store's time of the batch.

use crate::{
    ids::{CommitId, EntityId, SessionId},
    outbox::Message,
    sessions::Opening,
    stream::{Hash, NewEvent},
    time::Timestamp,
    timers::TimerChange,
};
use std::time::Duration;

/// A change to one entity.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Commit {
    /// Asking again with the same id is always safe.
    pub id: CommitId,
    /// Which entity.
    pub entity: EntityId,
    /// What the committer believes.
    pub expect: Expect,
    /// What happened; at least one.
    pub events: Vec<NewEvent>,
    /// The machine's new state; `None` leaves it.
    pub state: Option<Vec<u8>>,
    /// Changes to timers, in order.
    pub timers: Vec<TimerChange>,
    /// What becomes of the tenure.
    pub tenure: TenureChange,
    /// What the committer says about mail.
    pub mail: MailStance,
    /// `must_end_by` from now, when an entity becomes open, or with `deadline_moved`.
    pub must_end_in: Option<Duration>,
    /// Sets or clears `attention`, with the event that says so.
    pub attention: Option<Option<String>>,
    /// What it says to others.
    pub messages: Vec<Message>,
    /// Unique rows, inserted with a birth.
    pub keys: Vec<UniqueKey>,
}

impl Commit {
    /// A commit of `events` and nothing else.
    pub fn new(id: CommitId, entity: EntityId, expect: Expect, events: Vec<NewEvent>) -> Self {
        Commit {
            id,
            entity,
            expect,
            events,
            state: None,
            timers: Vec::new(),
            tenure: TenureChange::Keep,
            mail: MailStance::Unread,
            must_end_in: None,
            attention: None,
            messages: Vec::new(),
            keys: Vec::new(),
        }
    }

    /// The version this commit's first event would have: where a repetition is looked up.
    pub fn first_version(&self) -> Option<u64> {
        match &self.expect {
            Expect::Absent(_) => Some(1),
            Expect::Holder { version, .. }
            | Expect::Nobody { version, .. }
            | Expect::Overrule { version, .. } => {
                // A worker out there says which version it expects: it may be any number.
                Some(version.saturating_add(1))
            }
            Expect::EndTenure { .. } => None,
        }
    }

    /// Bytes it will write, roughly: closes a batch before it grows too large.
    pub fn weight(&self) -> usize {
        let events: usize = self
            .events
            .iter()
            .map(|e| e.name.len() + e.body.inline().map_or(48, <[u8]>::len))
            .sum();
        let messages: usize =
            self.messages.iter().map(|m| 64 + m.body.inline().map_or(48, <[u8]>::len)).sum();
        events + messages + self.state.as_ref().map_or(0, Vec::len) + 128
    }
}

/// What a committer believes about the entity.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Expect {
    /// It does not exist; this commit creates it.
    Absent(Birth),
    /// I hold it, under this epoch, and it stands at this version.
    Holder {
        /// My epoch.
        epoch: u64,
        /// The version I know.
        version: u64,
    },
    /// Nobody holds it, and epoch and version are these.
    Nobody {
        /// The epoch I saw.
        epoch: u64,
        /// The version I saw.
        version: u64,
    },
    /// Whoever holds it: a guard of the due loop (a lapsed lease, `must_end_by`, a step timeout) ends
    /// the tenure in the same commit. Epoch and version are those the loop decided on.
    Overrule {
        /// The epoch I saw.
        epoch: u64,
        /// The version I saw.
        version: u64,
    },
    /// Ends the tenure of this epoch at whatever version: for a holder that commits so fast that the
    /// loop never sees a version still. Only for a lone `tenure_ended`, which depends on no state.
    EndTenure {
        /// The epoch I saw.
        epoch: u64,
    },
}

/// What is fixed when an entity is created.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Birth {
    /// Its kind.
    pub kind: &'static str,
    /// Whose it is.
    pub tenant: String,
    /// The queue it stands in when it can be claimed from one.
    pub queue: String,
    /// Higher is sooner.
    pub priority: i16,
}

/// What becomes of the tenure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TenureChange {
    /// Nothing.
    Keep,
    /// The session takes it, in this commit. At birth (a job that starts in the commit that creates
    /// it), or by a claim. The commit holds the `tenure_claimed` event unless it is a birth.
    Take {
        /// Who.
        session: SessionId,
        /// When to look first whether that session lives.
        lease: Duration,
    },
    /// It ends: park, release, or reclaim. The commit holds the `tenure_ended` event, or is final.
    End,
    /// A new worker session: it takes itself and gets its soft row.
    Open(Opening),
}

/// What a committer says about mail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MailStance {
    /// Read nothing new.
    Unread,
    /// This commit covers everything up to that count.
    Read(u64),
    /// The same, and there must be no more: refused otherwise. Demanded of every commit that parks,
    /// rests or ends by the flow, so no signal slips between the last look and the wait.
    ReadAll(u64),
    /// A release or a forced end (`must_end_by`, cancel, reap): whatever lies there, it happens.
    Regardless,
}

/// A row that can exist once: makes a submission idempotent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UniqueKey {
    /// Scoped by its user, for example `job/tenant/key`.
    pub key: String,
    /// Digest of what was submitted: the same key with other input is another answer.
    pub digest: Hash,
}

/// What became of a commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CommitAnswer {
    /// Durable.
    Committed(Committed),
    /// Another tenure has begun, or this one has ended. The code users see is `stale_attempt`.
    StaleEpoch {
        /// The epoch now.
        current: u64,
    },
    /// Another commit came first.
    VersionConflict {
        /// The version now.
        current: u64,
    },
    /// The entity is over.
    Final {
        /// Its final status.
        status: &'static str,
    },
    /// Mail has come that the commit has not read.
    MoreMail {
        /// How much there is.
        count: u64,
    },
    /// A unique key is taken, or the entity exists.
    Exists {
        /// By whom.
        entity: EntityId,
        /// Whether it was for the same input.
        same: bool,
    },
    /// It can never be accepted as it is.
    Refused(Refusal),
    /// Locked by another batch, or a second commit of the same entity in this one: nothing happened,
    /// try in the next batch. Does not leave the pipeline.
    Busy,
}

/// A commit that is durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Committed {
    /// Version of the last event.
    pub version: u64,
    /// The epoch after it.
    pub epoch: u64,
    /// Chain value after it.
    pub chain: Hash,
    /// Its time.
    pub at: Timestamp,
    /// Mail that waits.
    pub mail_waiting: u64,
    /// It was committed by an earlier try.
    pub repeated: bool,
    /// The queue in which it can be claimed since this commit: worth a ring.
    pub ready_in: Option<String>,
    /// Whether something became due sooner than the loop would look by itself: worth a ring.
    pub due_soon: bool,
}

/// Why a commit can never be accepted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// No such entity.
    #[error("no entity {0}")]
    Unknown(EntityId),
    /// The kind has no machine in this process.
    #[error("no machine of kind {0:?} is known here; is this an older version of the program?")]
    UnknownKind(String),
    /// The transition table does not allow it.
    #[error(transparent)]
    Illegal(#[from] crate::table::Illegal),
    /// A commit that parks, rests or ends did not say that it has read all mail.
    #[error("a commit that leads to {0:?} without a holder has to say that it has read all mail")]
    MailNotRead(&'static str),
    /// The deadline rule of law 4.
    #[error("{0}")]
    Deadline(&'static str),
    /// Tenure change and events do not fit.
    #[error("{0}")]
    Tenure(&'static str),
    /// A seal from which the rest could not be checked.
    #[error("{0}")]
    Seal(&'static str),
    /// A named limit was passed.
    #[error("{what} is {actual}, the limit is {limit}")]
    Limit {
        /// What was measured.
        what: &'static str,
        /// How much it was.
        actual: usize,
        /// How much it may be.
        limit: usize,
    },
    /// The rule of its kind does not let this entity be created ([`crate::admission`]); or a name in it has a character that
    /// no store can keep.
    #[error("{0}")]
    NotAdmitted(String),
    /// The database itself refused the row. The kernel should have done so before: a bug, on record.
    #[error("the database refused the row: {0}")]
    Constraint(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_expected_version_has_a_place_where_a_repetition_is_looked_up() {
        let first = |version| {
            let (id, expect) = (CommitId::new(1, 1), Expect::Nobody { epoch: 0, version });
            Commit::new(id, EntityId::fixed(1, 1), expect, Vec::new()).first_version()
        };
        assert_eq!(first(u64::MAX - 1), Some(u64::MAX));
        assert_eq!(first(u64::MAX), Some(u64::MAX));
    }
}
