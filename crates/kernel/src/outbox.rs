//! The outbox: what a commit says to others, durable with it. A *lane* is a fixed share of sources,
//! held by one server, which delivers in order. Within one store, taking a row and inserting the mail
//! are one transaction, so delivery happens exactly once; on a wire, at least once under a stable id.

use crate::{
    ids::{EntityId, MessageId, SessionId},
    stream::Body,
    time::Timestamp,
};
use std::borrow::Cow;

/// Where a message goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// Mail to an entity.
    Mail(EntityId),
    /// A new entity: the machine of this kind decides its first events from the body. Mail if it exists.
    Create {
        /// Its id, chosen by the creator so that a repetition names the same one.
        id: EntityId,
        /// Its kind.
        kind: Cow<'static, str>,
    },
    /// A subject outside this store.
    Wire(String),
}

/// A message that a commit sends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// Where to.
    pub to: Target,
    /// What it is about.
    pub kind: Cow<'static, str>,
    /// What it says.
    pub body: Body,
}

impl Message {
    /// Mail to an entity.
    pub fn mail(to: EntityId, kind: impl Into<Cow<'static, str>>, body: Body) -> Self {
        Message { to: Target::Mail(to), kind: kind.into(), body }
    }
}

/// A message in the outbox.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Posted {
    /// Its stable name.
    pub id: MessageId,
    /// The tenant of the source; a created entity belongs to the same.
    pub tenant: String,
    /// The message.
    pub message: Message,
    /// When it was sent.
    pub at: Timestamp,
}

/// One delivery: the outbox row is removed and the mail inserted, or neither.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delivery {
    /// Which row.
    pub id: MessageId,
    /// The lane's tenure under which it is delivered; a stale one is refused.
    pub lane_epoch: u64,
    /// What happens in place of the row.
    pub with: Handover,
}

/// What takes the place of an outbox row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Handover {
    /// Mail in an entity's box, under the message's own id.
    Mail {
        /// To whom.
        to: EntityId,
        /// What about.
        kind: Cow<'static, str>,
        /// What it says.
        body: Body,
    },
    /// A new entity.
    Create(Box<crate::commit::Commit>),
    /// Nothing: it went out on a wire and was acknowledged, or has nowhere to go.
    Nothing,
}

/// What became of a delivery.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeliveryAnswer {
    /// Handed over; the row is gone.
    Delivered {
        /// Who holds the target and is worth a ring.
        holder: Option<SessionId>,
    },
    /// The row was gone already: somebody else delivered it.
    Gone,
    /// The lane has another holder by now.
    StaleLane,
    /// The target does not exist, and the row is still there: the caller creates it, returns the
    /// message to its sender, or drops it on record.
    UnknownTarget,
    /// The target is over; the row is gone.
    TargetFinal,
    /// The target is over and will never give the answer that is expected
    /// ([`crate::mail::expects_answer`]). The row is still there: the caller returns the message.
    Unanswered,
    /// A creation found its entity there, and the row still is: the caller hands it over as mail.
    TargetExists,
    /// The new entity was refused, and the row is still there: the caller returns the message.
    Refused(String),
    /// The target was locked by another batch; try again.
    Busy,
}
