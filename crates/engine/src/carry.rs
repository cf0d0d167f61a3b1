//! What a commit takes along. A message that this process knows how to hand over goes in the transaction of the commit that
//! sends it, and its target is rung as soon as that is durable: one sync, no row, and no look into the outbox. Everything
//! else is posted and goes by its lane ([`crate::lanes`]), which also has the last word where a target is locked,
//! is there already, or is over: nothing here decides what becomes of a message that can not be handed over as it is.

use crate::{
    birth::{Wish, birth},
    quota::QuotaKeeper,
};
use tenure_kernel::{
    bell::{Bell, Topic},
    commit::{Commit, Expect},
    ids::{CommitId, EntityId, MessageId},
    limits,
    machine::{Input, Machines},
    mail::{expects_answer, kinds},
    outbox::{Carrier, Delivery, DeliveryAnswer, Handover, Message, Target},
    store::Store,
    stream::Body,
};

/// A commit that says more than this to others inside the store posts all of it: a batch stays a batch.
const CARRIED_MAX: usize = 16;

/// What goes along with a commit, in order: its first messages, up to one that has to be posted.
pub(crate) async fn along(
    store: &dyn Store,
    machines: &Machines,
    commit: &Commit,
    quotas: Option<&QuotaKeeper>,
    fresh: impl Fn() -> CommitId,
) -> Vec<Delivery> {
    let inside = || commit.messages.iter().zip(0u32..).filter(|(m, _)| !m.to.leaves());
    let Some(first) = commit.first_version() else { return Vec::new() };
    if !(1..=CARRIED_MAX).contains(&inside().count()) {
        return Vec::new();
    }
    let version = first + commit.events.len() as u64 - 1;
    let mut along = Vec::new();
    for (message, ordinal) in inside() {
        // Whose the new entity is, and so whether there is room for it, is known to the lane.
        let counted = |kind: &str| quotas.is_some_and(|quotas| quotas.counts(kind));
        if matches!(&message.to, Target::Create { kind, .. } if counted(kind)) {
            break;
        }
        let Some(with) = handover(store, machines, message, &fresh).await else { break };
        let id = MessageId { source: commit.entity, version, ordinal };
        along.push(Delivery { id, by: Carrier::Commit, with });
    }
    along
}

/// What takes the place of a message, if it is that simple.
async fn handover(
    store: &dyn Store,
    machines: &Machines,
    message: &Message,
    fresh: impl Fn() -> CommitId,
) -> Option<Handover> {
    match &message.to {
        Target::Mail(to) => {
            Some(Handover::Mail { to: *to, kind: message.kind.clone(), body: message.body.clone() })
        }
        // What very many ask is there already, as a rule: lanes know of which that is so, and bring all asks together. A
        // cancel of what may not be there yet is theirs as well.
        Target::Create { .. } if expects_answer(&message.kind) => None,
        Target::Create { .. } if message.kind == kinds::CANCEL => None,
        Target::Create { id, kind } => {
            let Body::Inline(_) = message.body else { return None };
            machines.get(kind)?;
            // The transaction knows the creator's tenant and says whose it is.
            let wish = Wish { id: *id, kind, tenant: "", at: store.now().await.ok()? };
            let commit = birth(machines, wish, &Input::Create(&message.body), fresh()).ok()?;
            fits(&commit).then(|| Handover::Create(Box::new(commit)))
        }
        Target::Wire(_) => None,
    }
}

/// Whether no body of it has to become a blob first.
fn fits(commit: &Commit) -> bool {
    let events = commit.events.iter().map(|e| &e.body);
    let bodies = events.chain(commit.messages.iter().map(|m| &m.body));
    bodies.filter_map(Body::inline).all(|bytes| bytes.len() <= limits::BODY_INLINE_BYTES_MAX)
}

/// Whose head a delivery changes, beside the lane's.
pub(crate) fn target(delivery: &Delivery) -> Option<EntityId> {
    match &delivery.with {
        Handover::Mail { to, .. } => Some(*to),
        Handover::Create(commit) => Some(commit.entity),
        Handover::Nothing => None,
    }
}

/// Rings for what was handed over. Whether the message is gone.
pub(crate) fn arrived(bell: &dyn Bell, with: &Handover, answer: &DeliveryAnswer) -> bool {
    match answer {
        DeliveryAnswer::Delivered { holder, due } => {
            if let Some(holder) = holder {
                bell.ring(Topic::Session(*holder));
            }
            if *due {
                bell.ring(Topic::Due);
            }
            if let Some(queue) = queue_of(with) {
                bell.ring(Topic::Queue(queue.to_owned()));
            }
            true
        }
        DeliveryAnswer::TargetFinal => true,
        _ => false,
    }
}

/// The queue in which a created entity may stand: worth a ring.
fn queue_of(with: &Handover) -> Option<&str> {
    match with {
        Handover::Create(commit) => match &commit.expect {
            Expect::Absent(birth) => Some(&*birth.queue).filter(|q| !q.is_empty()),
            _ => None,
        },
        Handover::Mail { .. } | Handover::Nothing => None,
    }
}
