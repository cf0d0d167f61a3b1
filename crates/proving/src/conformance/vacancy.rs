//! What rests and is not needed any more leaves with retention, and comes again under the same id. Mail may come to it at any
//! moment: it is kept, or answered "unknown", and never lost.

use super::{
    specimen::GUEST,
    world::{LONG, World, commit_on, expect_now, settle},
};
use tenure_kernel::{
    commit::{Birth, Commit, CommitAnswer, Expect, MailStance},
    head::{Head, lane_of},
    housekeeping::Retired,
    ids::EntityId,
    mail::MailAnswer,
    outbox::{Carrier, Delivery, DeliveryAnswer, Handover, Message},
    sessions::lane_id,
    store::{Answer, Op, Touch},
    stream::{Body, NewEvent},
    time::Timestamp,
};

fn birth(world: &World, id: EntityId) -> Commit {
    let (kind, tenant, queue) = (GUEST.kind, "t".to_owned(), String::new());
    let birth = Birth { kind, tenant, queue, priority: 0 };
    let event = NewEvent::new("came", Body::Inline(b"{}".to_vec()));
    Commit::new(world.commit_id(), id, Expect::Absent(birth), vec![event])
}

async fn say(world: &World, id: EntityId, event: &'static str) -> Commit {
    world.says(id, expect_now(&world.head(id).await), event)
}

/// One that is vacant.
async fn vacant(world: &World) -> EntityId {
    let id = world.id();
    world.commit_ok(birth(world, id)).await;
    world.commit_ok(say(world, id, "vacated").await).await;
    id
}

/// A moment after everything so far.
async fn later(world: &World) -> Timestamp {
    world.until_after(world.now().await).await;
    world.now().await
}

async fn retire(world: &World) -> Retired {
    world.store().retire(later(world).await, 100).await.expect("retire")
}

async fn is_gone(world: &World, id: EntityId) -> bool {
    world.store().head(id).await.expect("read a head").is_none()
}

/// What has been vacant since before the moment leaves with everything it had, no more than asked; what rests otherwise,
/// or has not been vacant for long, stays.
pub async fn what_is_vacant_leaves_like_what_is_over(world: &World) {
    let (rests, woken) = (world.id(), vacant(world).await);
    world.commit_ok(birth(world, rests)).await;
    let old = [vacant(world).await, vacant(world).await, vacant(world).await];
    world.send(world.mail(old[0], "read")).await;
    let mut reads = say(world, old[0], "noted").await;
    reads.mail = MailStance::Read(1);
    world.commit_ok(reads).await;
    let over = world.specimen("made_done").await;
    let before = later(world).await;
    world.until_after(before).await;
    world.commit_ok(say(world, woken, "woken").await).await;
    let young = vacant(world).await;
    let some = world.store().retire(before, 2).await.expect("retire");
    assert_eq!(some.entities, 2);
    let rest = world.store().retire(before, 100).await.expect("retire");
    assert_eq!(rest.entities, 2);
    for id in [old[0], old[1], old[2], over] {
        assert!(is_gone(world, id).await && world.records(id).await.is_empty());
        assert!(world.store().mail(id, 0, 10).await.expect("mail").is_empty());
    }
    for id in [rests, woken, young] {
        world.verify(id).await;
    }
}

/// Unread mail keeps it, a mark for a person, and a message of its own that has not arrived. Then it leaves.
pub async fn what_is_vacant_stays_while_something_is_open(world: &World) {
    let (mailed, marked, sending) = (vacant(world).await, vacant(world).await, vacant(world).await);
    world.send(world.mail(mailed, "unread")).await;
    let mut marks = say(world, marked, "noted").await;
    marks.attention = Some(Some("look".into()));
    world.commit_ok(marks).await;
    let mut sends = say(world, sending, "noted").await;
    let target = world.specimen("made_idle").await;
    sends.messages = vec![Message::mail(target, "hello", Body::Inline(Vec::new()))];
    world.commit_ok(sends).await;
    assert_eq!(retire(world).await.entities, 0);

    let mut reads = say(world, mailed, "noted").await;
    reads.mail = MailStance::Read(1);
    world.commit_ok(reads).await;
    let mut clears = say(world, marked, "noted").await;
    clears.attention = Some(None);
    world.commit_ok(clears).await;
    let lane = lane_of(sending);
    let session = world.session(LONG).await;
    let lane_epoch = world.claim(lane_id(lane), session, LONG).await.epoch;
    let posted = world.store().outbox(vec![lane], false, 10).await.expect("outbox").remove(0);
    let with = Handover::Mail { to: target, kind: "hello".into(), body: Body::Inline(Vec::new()) };
    let delivery = Delivery { id: posted.id, by: Carrier::Lane(lane_epoch), with };
    assert_eq!(
        world.deliver(delivery).await,
        DeliveryAnswer::Delivered { holder: None, due: true }
    );
    assert_eq!(retire(world).await.entities, 3);
}

/// Who has seen the former life is refused in everything, also where the new one has the same version; and what was
/// unique in the former life is free.
pub async fn a_new_life_is_not_taken_for_the_former_one(world: &World) {
    let id = vacant(world).await;
    world.send(world.mail(id, "m")).await;
    let mut reads = say(world, id, "noted").await;
    reads.mail = MailStance::Read(1);
    world.commit_ok(reads).await;
    let former: Head = world.head(id).await;
    assert_eq!(retire(world).await.entities, 1);
    assert_eq!(world.send(world.mail(id, "m")).await, MailAnswer::Unknown);

    world.commit_ok(birth(world, id)).await;
    world.commit_ok(say(world, id, "vacated").await).await;
    world.commit_ok(say(world, id, "noted").await).await;
    let head = world.head(id).await;
    assert_eq!(head.version, former.version, "only then the epoch has to tell");
    assert!(head.epoch > former.epoch, "{} after {}", head.epoch, former.epoch);
    let stale = world.says(id, expect_now(&former), "woken");
    let current = head.epoch;
    assert_eq!(world.commit(stale).await, CommitAnswer::StaleEpoch { current });
    let touch = Touch {
        entity: id,
        epoch: former.epoch,
        version: former.version,
        due: Some(former.changed_at),
        check_at: None,
        faults: 3,
        ring_only: false,
    };
    assert_eq!(world.one(Op::Touch(touch)).await, Answer::Touch(false));
    let again = world.send(world.mail(id, "m")).await;
    assert_eq!(again, MailAnswer::Accepted { seq: 1, holder: None });
    world.verify(id).await;
}

/// Mail and retention meet again and again: it is in the box of one that stays, or nobody took it. A reader who wakes the
/// entity and retention do not both have it.
pub async fn mail_that_meets_retention_is_kept_or_answered_unknown(world: &World) {
    for round in 0..20u64 {
        let id = vacant(world).await;
        let (before, wakes) = (later(world).await, say(world, id, "woken").await);
        let told = world
            .together(4, |i, store, rt| {
                let mail = Op::Mail(world.mail(id, &format!("m{i}")));
                let (wakes, first) = (wakes.clone(), (round + i as u64) % 4);
                async move {
                    match first {
                        0 => {
                            store.retire(before, 100).await.expect("retire");
                            None
                        }
                        1 if round % 5 == 0 => {
                            let woken = commit_on(store.as_ref(), &rt, wakes).await;
                            Some(matches!(woken, CommitAnswer::Committed(_)))
                        }
                        _ => match settle(store.as_ref(), &rt, mail).await {
                            Answer::Mail(MailAnswer::Accepted { .. }) => Some(true),
                            Answer::Mail(MailAnswer::Unknown) => Some(false),
                            other => panic!("{other:?}"),
                        },
                    }
                }
            })
            .await;
        let heard = told.contains(&Some(true));
        let boxed = world.store().mail(id, 0, 10).await.expect("mail").len();
        assert_eq!(heard, !is_gone(world, id).await, "{told:?}");
        assert!(heard || boxed == 0, "{told:?}: mail of nobody");
    }
}
