//! The outbox: what a commit says to others, durable with it. A *lane* is a fixed share of sources,
//! held by one server, which delivers in order. Within one store, taking a row and inserting the mail
//! are one transaction, so delivery happens exactly once; on a wire, at least once under a stable id.
//!
//! A server that knows what becomes of a message hands it over in the transaction of the very commit that sends it
//! ([`Carrier::Commit`]): one sync instead of two, and no row. What can not be handed over there is posted as ever.

use crate::{
    error::StoreError,
    ids::{EntityId, MessageId, SessionId},
    runtime::BoxFuture,
    stream::Body,
    time::Timestamp,
    wakeup,
};
use std::{borrow::Cow, collections::HashSet};

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
    /// A subject outside this store; or a wake-up, which is a ring ([`wakeup`]).
    Wire(String),
}

impl Target {
    /// Whether it leaves the store on a wire. Only what does waits for one: stores keep it apart by this, so that a
    /// wire that is down holds back neither mail nor wake-ups.
    pub fn leaves(&self) -> bool {
        matches!(self, Target::Wire(subject) if wakeup::target_of(subject).is_none())
    }
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
    /// By what right.
    pub by: Carrier,
    /// What happens in place of the row.
    pub with: Handover,
}

/// Who hands a message over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Carrier {
    /// The holder of its source's lane, under this epoch; a stale one is refused.
    Lane(u64),
    /// The commit that sends it, in the same batch: the message never becomes a row. Needs no lane: nobody else can see
    /// it, and it stays behind what its source said before.
    Commit,
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

impl Handover {
    /// Whether this is what the message says, to whom it says it.
    pub fn stands_for(&self, message: &Message) -> bool {
        match (self, &message.to) {
            (Handover::Mail { to, kind, body }, Target::Mail(target)) => {
                (to, kind, body) == (target, &message.kind, &message.body)
            }
            (Handover::Create(commit), Target::Create { id, .. }) => commit.entity == *id,
            _ => false,
        }
    }
}

/// What became of a delivery.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeliveryAnswer {
    /// Handed over; the row is gone.
    Delivered {
        /// Who holds the target and is worth a ring.
        holder: Option<SessionId>,
        /// Whether the target became due by it, which is worth a ring of the loop.
        due: bool,
    },
    /// Something that its source said before still waits, and it waits behind that: only of what a commit carries.
    Behind,
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

/// Publishes outside of the store: at least once, under one stable id, in order per source.
pub trait Wire: Send + Sync {
    /// Returns once the other side has acknowledged. May be called again with the same id.
    /// [`StoreError::Refused`] says that it never can be published: it is then dropped, with a line in the log. After every
    /// other error it stays in the outbox.
    fn publish(&self, subject: &str, posted: &Posted) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Publishes many and answers for each, in order. After one that failed, no further one of the same source may
    /// go out. One after another by default; a wire that can have many under way at once overrides it. Whoever calls it
    /// gives up after a while and takes all of them for not published: a wire on which single messages may hang has to
    /// bound each of them itself.
    fn publish_all<'a>(&'a self, rows: &'a [Posted]) -> BoxFuture<'a, Vec<Result<(), StoreError>>> {
        Box::pin(async move {
            let mut stuck: HashSet<EntityId> = HashSet::new();
            let mut answers = Vec::with_capacity(rows.len());
            for posted in rows {
                let answer = match &posted.message.to {
                    _ if stuck.contains(&posted.id.source) => {
                        Err(StoreError::Unavailable("an earlier one of its source waits".into()))
                    }
                    Target::Wire(subject) => self.publish(subject, posted).await,
                    _ => Ok(()),
                };
                if matches!(&answer, Err(e) if !matches!(e, StoreError::Refused(_))) {
                    stuck.insert(posted.id.source);
                }
                answers.push(answer);
            }
            answers
        })
    }

    /// Whether it is worth reading what waits for it. One that says no rings [`crate::bell::Topic::Outbox`] in this process when
    /// it is back; until then nothing is read.
    fn is_up(&self) -> bool {
        true
    }
}

/// A wire to nowhere, for a deployment in which nobody outside listens. Chosen, never assumed: a server
/// that was started without its wire would otherwise throw away what others wait for.
#[derive(Clone, Copy, Debug)]
pub struct Discard;

impl Wire for Discard {
    fn publish(&self, _subject: &str, _posted: &Posted) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}
