//! The head: one row that says where an entity stands, from which anybody without its history can
//! decide. A projection of the stream, written in the same transaction as the events behind it;
//! only what is marked *soft* can not be folded from records.

use crate::{
    ids::{EntityId, SessionId},
    stream::Hash,
    table::{Claimable, Class, Status, VACANT},
    time::Timestamp,
    timers::Timers,
};

/// Where an entity stands.
#[derive(Clone, PartialEq, Debug)]
pub struct Head {
    /// Which entity.
    pub id: EntityId,
    /// Where it stands in its machine's table; the table also says its kind.
    pub status: Status,
    /// Whose it is.
    pub tenant: String,
    /// The queue it stands in when it can be claimed from one.
    pub queue: String,
    /// Higher is sooner.
    pub priority: i16,
    /// Version of the last event.
    pub version: u64,
    /// Rises on every claim and on every end of tenure. The fencing token, and nothing else.
    pub epoch: u64,
    /// Who holds it.
    pub holder: Option<SessionId>,
    /// Chain value after the last event.
    pub chain: Hash,
    /// Time of the first event.
    pub created_at: Timestamp,
    /// Time of the last event.
    pub changed_at: Timestamp,
    /// Mail that has arrived. *Soft*: it counts rows of the mail table.
    pub mail_count: u64,
    /// Mail covered by commits.
    pub mail_read: u64,
    /// A lower bound of the moment at which something has to be looked at. *Soft.*
    pub due: Option<Timestamp>,
    /// The moment by which an open entity ends, whatever happens.
    pub must_end_by: Option<Timestamp>,
    /// When the holder's session is looked at next. *Soft.*
    pub check_at: Option<Timestamp>,
    /// Failed decisions in a row. *Soft.*
    pub faults: u16,
    /// Since when it stands in its queue.
    pub ready_at: Option<Timestamp>,
    /// Why a person should look, if one should.
    pub attention: Option<String>,
    /// Version of the last seal; older records may be gone.
    pub sealed: u64,
    /// Named timers.
    pub timers: Timers,
    /// The machine's own state, as its last committer wrote it.
    pub state: Vec<u8>,
}

impl Head {
    /// The kind of entity.
    pub fn kind(&self) -> &'static str {
        self.status.table.kind
    }

    /// What is owed.
    pub fn class(&self) -> Class {
        self.status.class()
    }

    /// Whether it can be claimed now: nobody holds it and its status allows it.
    pub fn can_be_claimed(&self, by_name: bool) -> bool {
        self.holder.is_none()
            && match self.status.row().claimable {
                Claimable::No => false,
                Claimable::ByName => by_name,
                Claimable::Queued => true,
            }
    }

    /// Whether it belongs into the ready table.
    pub fn belongs_in_queue(&self) -> bool {
        self.holder.is_none() && self.status.row().claimable == Claimable::Queued
    }

    /// Whether mail waits that no commit has covered.
    pub fn has_mail(&self) -> bool {
        self.mail_read < self.mail_count
    }

    /// Whether it rests and is not needed any more: see [`VACANT`].
    pub fn is_vacant(&self) -> bool {
        self.class() == Class::Resting && self.status.name() == VACANT
    }

    /// The earliest moment at which a rule of this entity has to be looked at.
    pub fn earliest(&self) -> Option<Timestamp> {
        [self.must_end_by, self.check_at, self.timers.earliest()].into_iter().flatten().min()
    }

    /// Its outbox lane; also the share of the due loop it belongs to.
    pub fn lane(&self) -> u16 {
        lane_of(self.id)
    }
}

/// The lane of a source, fixed for its life. Taken from the random end of the id: ids of one moment
/// share their beginning.
pub fn lane_of(id: EntityId) -> u16 {
    let b = id.as_bytes();
    u16::from_be_bytes([b[14], b[15]]) % crate::limits::LANES
}
