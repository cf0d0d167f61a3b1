//! What a commit carries: handed over in its own transaction, exactly once, never before what its source said earlier.

use super::{
    outbox::{all_lanes, handover, outbox, serve_lanes},
    world::{World, deliver_on, expect_now},
};
use std::{collections::BTreeMap, time::Duration};
use tenure_kernel::{
    commit::{Commit, CommitAnswer},
    ids::{EntityId, MailId, MessageId},
    outbox::{Carrier, Delivery, DeliveryAnswer, Handover, Message, Target},
    runtime::Rt,
    store::{Answer, Op, Store},
    stream::{Body, NewEvent},
};

fn mail_of(message: &Message) -> Handover {
    let Target::Mail(to) = message.to else { panic!("{message:?} is no mail") };
    Handover::Mail { to, kind: message.kind.clone(), body: message.body.clone() }
}

/// A commit, and what carries its mail.
fn carrying(commit: Commit) -> Vec<Op> {
    let version = commit.first_version().map_or(0, |v| v + commit.events.len() as u64 - 1);
    let carry = |(message, ordinal): (&Message, u32)| {
        let id = MessageId { source: commit.entity, version, ordinal };
        let delivery = Delivery { id, by: Carrier::Commit, with: mail_of(message) };
        Op::Deliver(Box::new(delivery))
    };
    let along: Vec<Op> = commit.messages.iter().zip(0u32..).map(carry).collect();
    std::iter::once(Op::Commit(Box::new(commit))).chain(along).collect()
}

fn say(to: EntityId, n: u8) -> Message {
    Message::mail(to, "m", Body::Inline(vec![n]))
}

const HEARD: Answer = Answer::Deliver(DeliveryAnswer::Delivered { holder: None, due: true });

/// One transaction: the commit, its mail in the other's box, and no row. Asked again it is the same one.
pub async fn what_a_commit_carries_arrives_with_it_once(world: &World) {
    let (source, target) =
        (world.specimen("made_blocked").await, world.specimen("made_blocked").await);
    let mut commit = world.note(source).await;
    commit.messages = vec![say(target, 0), say(target, 1)];
    let ops = carrying(commit);
    let answers = world.apply(ops.clone()).await;
    assert_eq!(answers[1..], [HEARD, HEARD]);
    assert!(outbox(world).await.is_empty());
    let again = world.apply(ops).await;
    assert!(
        matches!(&again[0], Answer::Commit(CommitAnswer::Committed(c)) if c.repeated),
        "{again:?}"
    );
    assert_eq!(again[1], Answer::Deliver(DeliveryAnswer::Gone));
    let mail = world.store().mail(target, 0, 10).await.expect("mail");
    let heard: Vec<_> = mail.iter().map(|m| (m.id.clone(), m.body.clone())).collect();
    let name = |ordinal| MailId::from(MessageId { source, version: 2, ordinal });
    let said = |n| Body::Inline(vec![n]);
    assert_eq!(heard, [(name(0), said(0)), (name(1), said(1))]);
    assert_eq!(world.head(target).await.mail_count, 2);
}

/// A creation too: the child is born with its parent's commit, and belongs to the same tenant.
pub async fn what_a_commit_creates_is_born_with_it(world: &World) {
    let source = world.specimen("made_blocked").await;
    let birth = world.birth("made_blocked");
    let child = birth.entity;
    let to = Target::Create { id: child, kind: "specimen".into() };
    let create = Message { to, kind: "create".into(), body: Body::Inline(b"{}".to_vec()) };
    let creation = |ordinal, commit: &Commit| {
        let id = MessageId { source, version: 2, ordinal };
        let with = Handover::Create(Box::new(commit.clone()));
        Op::Deliver(Box::new(Delivery { id, by: Carrier::Commit, with }))
    };
    let mut commit = world.note(source).await;
    commit.messages = vec![create.clone(), create];
    let second = Commit { id: world.commit_id(), ..birth.clone() };
    let ops = vec![Op::Commit(Box::new(commit)), creation(0, &birth), creation(1, &second)];
    let answers = world.apply(ops).await;
    assert!(matches!(answers[1], Answer::Deliver(DeliveryAnswer::Delivered { .. })), "{answers:?}");
    // The second finds it there, which is for whoever reads the outbox.
    let posted = outbox(world).await;
    let left: Vec<u32> = posted.iter().map(|p| p.id.ordinal).collect();
    assert_eq!(left, [1], "{answers:?}");
    let (parent, child) = (world.head(source).await, world.head(child).await);
    assert_eq!((child.tenant, child.version), (parent.tenant, 1));
}

/// What waits in the outbox is not overtaken, and neither is what could not be carried.
pub async fn what_a_commit_carries_stays_behind_what_waits(world: &World) {
    let (source, target) =
        (world.specimen("made_blocked").await, world.specimen("made_blocked").await);
    let mut first = world.note(source).await;
    first.messages = vec![say(target, 0)];
    world.commit_ok(first).await;
    let mut second = world.note(source).await;
    second.messages = vec![say(target, 1)];
    let answers = world.apply(carrying(second)).await;
    assert_eq!(answers[1], Answer::Deliver(DeliveryAnswer::Behind));
    assert_eq!((outbox(world).await.len(), world.head(target).await.mail_count), (2, 0));
    let other = world.specimen("made_blocked").await;
    let mut third = world.note(other).await;
    third.messages = vec![say(world.id(), 0), say(target, 1)];
    let answers = world.apply(carrying(third)).await;
    let expected = [DeliveryAnswer::UnknownTarget, DeliveryAnswer::Behind].map(Answer::Deliver);
    assert_eq!(answers[1..], expected);
    assert_eq!((outbox(world).await.len(), world.head(target).await.mail_count), (4, 0));
}

/// Senders whose commits carry, and a server that delivers what they could not: each message arrives once, in the order of
/// its source.
pub async fn senders_and_a_lane_deliver_each_message_once_in_order(world: &World) {
    const SENDERS: usize = 4;
    const EACH: u8 = 12;
    let target = world.specimen("made_blocked").await;
    let mut sources = Vec::new();
    for _ in 0..SENDERS {
        sources.push(world.specimen("made_blocked").await);
    }
    let epochs = serve_lanes(world).await;
    world
        .together(SENDERS + 1, |i, store, rt| {
            let (source, epochs) = (sources.get(i).copied(), epochs.clone());
            let ids: Vec<_> = (0..EACH).map(|_| world.commit_id()).collect();
            async move {
                let Some(source) = source else {
                    // The server: it looks as often as there is something.
                    for _ in 0..EACH {
                        deliver_all(store.as_ref(), &rt, &epochs).await;
                    }
                    return;
                };
                for (id, n) in ids.into_iter().zip(0..) {
                    let head = store.head(source).await.expect("head").expect("there");
                    let noted = NewEvent::new("noted", Body::Inline(b"{}".to_vec()));
                    let mut commit = Commit::new(id, source, expect_now(&head), vec![noted]);
                    commit.messages = vec![say(target, n), say(target, n)];
                    let ops = carrying(commit);
                    // Every third is left to the lane.
                    let some = if n % 3 == 2 { ops[..1].to_vec() } else { ops };
                    loop {
                        let answers = store.apply(some.clone()).await.expect("apply");
                        match &answers[0] {
                            Answer::Commit(CommitAnswer::Busy) | Answer::Busy => {
                                rt.sleep(Duration::from_millis(1)).await;
                            }
                            Answer::Commit(CommitAnswer::Committed(_)) => break,
                            other => panic!("{other:?}"),
                        }
                    }
                }
            }
        })
        .await;
    let rt = world.rt.clone();
    while !outbox(world).await.is_empty() {
        deliver_all(world.store().as_ref(), &rt, &epochs).await;
    }
    let mail = world.store().mail(target, 0, 1_000).await.expect("mail");
    let heard = |source: &EntityId| -> Vec<Body> {
        let of = format!("{source}/");
        mail.iter().filter(|m| m.id.0.starts_with(&of)).map(|m| m.body.clone()).collect()
    };
    let said: Vec<Body> = (0..EACH).flat_map(|n| [n, n]).map(|n| Body::Inline(vec![n])).collect();
    for source in &sources {
        assert_eq!(heard(source), said, "{source}");
    }
    assert_eq!(mail.len(), SENDERS * usize::from(EACH) * 2);
}

/// Delivers what waits, as the server of all lanes.
async fn deliver_all(store: &dyn Store, rt: &Rt, epochs: &BTreeMap<u16, u64>) {
    for posted in store.outbox(all_lanes(), false, 1_000).await.expect("outbox") {
        let answer = deliver_on(store, rt, handover(&posted, epochs)).await;
        let gone = matches!(answer, DeliveryAnswer::Delivered { .. } | DeliveryAnswer::Gone);
        assert!(gone, "{answer:?}");
    }
}
