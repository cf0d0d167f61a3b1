//! The outbox: messages leave in order per source, and arrive exactly once within a store.

use super::world::{LONG, World, deliver_on};
use std::collections::BTreeMap;
use tenure_kernel::{
    head::lane_of,
    ids::{EntityId, MailId},
    limits,
    outbox::{Carrier, Delivery, DeliveryAnswer, Handover, Message, Posted, Target},
    sessions::lane_id,
    stream::Body,
};

pub(super) fn all_lanes() -> Vec<u16> {
    (0..limits::LANES).collect()
}

pub(super) async fn outbox(world: &World) -> Vec<Posted> {
    world.store().outbox(all_lanes(), false, 1_000).await.expect("outbox")
}

/// Claims every lane and returns the epochs.
pub(super) async fn serve_lanes(world: &World) -> BTreeMap<u16, u64> {
    let session = world.session(LONG).await;
    let mut epochs = BTreeMap::new();
    for lane in 0..limits::LANES {
        epochs.insert(lane, world.claim(lane_id(lane), session, LONG).await.epoch);
    }
    epochs
}

async fn send(world: &World, source: EntityId, messages: Vec<Message>) {
    let mut commit = world.note(source).await;
    commit.messages = messages;
    world.commit_ok(commit).await;
}

pub(super) fn handover(posted: &Posted, epochs: &BTreeMap<u16, u64>) -> Delivery {
    let with = match &posted.message.to {
        Target::Mail(to) => Handover::Mail {
            to: *to,
            kind: posted.message.kind.clone(),
            body: posted.message.body.clone(),
        },
        _ => Handover::Nothing,
    };
    Delivery { id: posted.id, by: Carrier::Lane(epochs[&lane_of(posted.id.source)]), with }
}

/// A commit's messages are in the outbox with it, in order per source, with names that never change.
pub async fn messages_leave_in_order_per_source(world: &World) {
    let sources = [world.specimen("made_blocked").await, world.specimen("made_blocked").await];
    let target = world.specimen("made_blocked").await;
    for round in 0..3 {
        for source in sources {
            let message =
                |n| Message::mail(target, "m", Body::Inline(format!("{round}.{n}").into_bytes()));
            send(world, source, vec![message(0), message(1)]).await;
        }
    }
    let all = outbox(world).await;
    assert_eq!(all.len(), 12);
    for source in sources {
        let mine: Vec<_> = all.iter().filter(|p| p.id.source == source).collect();
        let names: Vec<_> = mine.iter().map(|p| (p.id.version, p.id.ordinal)).collect();
        assert_eq!(names, [(2, 0), (2, 1), (3, 0), (3, 1), (4, 0), (4, 1)]);
        let bodies: Vec<_> = mine.iter().map(|p| p.message.body.clone()).collect();
        let expected = ["0.0", "0.1", "1.0", "1.1", "2.0", "2.1"];
        assert_eq!(bodies, expected.map(|b| Body::Inline(b.as_bytes().to_vec())));
        assert!(mine.iter().all(|p| p.tenant == "t" && p.message.to == Target::Mail(target)));
        let records = world.records(source).await;
        assert!(
            mine.iter().all(|p| records.iter().any(|r| r.last() == p.id.version && r.at == p.at))
        );
        let lane = world.store().outbox(vec![lane_of(source)], false, 1).await.expect("outbox");
        assert_eq!(lane.len(), 1);
        assert_eq!((lane[0].id.version, lane[0].id.ordinal), (2, 0), "a limit keeps the order");
    }
}

/// Two servers deliver everything at the same time under one tenure: each mail arrives once.
pub async fn two_deliverers_deliver_each_message_once(world: &World) {
    let source = world.specimen("made_blocked").await;
    let target = world.specimen("made_blocked").await;
    let messages = (0..40u8).map(|n| Message::mail(target, "m", Body::Inline(vec![n]))).collect();
    send(world, source, messages).await;
    let epochs = serve_lanes(world).await;
    let all = outbox(world).await;
    assert_eq!(all.len(), 40);
    let answers = world
        .together(2, |_, store, rt| {
            let (all, epochs) = (all.clone(), epochs.clone());
            async move {
                let mut delivered = Vec::new();
                for posted in &all {
                    match deliver_on(store.as_ref(), &rt, handover(posted, &epochs)).await {
                        DeliveryAnswer::Delivered { .. } => delivered.push(posted.id),
                        DeliveryAnswer::Gone => {}
                        other => panic!("{other:?}"),
                    }
                }
                delivered
            }
        })
        .await;
    assert_eq!(answers.iter().map(Vec::len).sum::<usize>(), 40, "each was delivered by one");
    let mail = world.store().mail(target, 0, 100).await.expect("mail");
    let ids: Vec<_> = mail.iter().map(|m| m.id.clone()).collect();
    assert_eq!(ids, all.iter().map(|p| MailId::from(p.id)).collect::<Vec<_>>(), "in order");
    assert_eq!(world.head(target).await.mail_count, 40);
    assert!(outbox(world).await.is_empty());
    assert_eq!(world.store().outbox_has(all[0].id).await, Ok(false));
}

/// A message to nobody stays until the server decides; one to a final entity is gone and says so.
pub async fn a_message_to_nobody_stays_and_one_to_a_final_entity_goes(world: &World) {
    let source = world.specimen("made_blocked").await;
    let done = world.specimen("made_done").await;
    let nobody = world.id();
    let to = |id| Message::mail(id, "m", Body::Inline(Vec::new()));
    let wire = Message {
        to: Target::Wire("orders.\u{2713}".into()),
        kind: "announced".into(),
        body: Body::Inline(b"w".to_vec()),
    };
    send(world, source, vec![to(nobody), to(done), wire.clone()]).await;
    let epochs = serve_lanes(world).await;
    let mut all = outbox(world).await;
    assert_eq!(all.len(), 2, "what goes out on a wire is listed apart");
    all.extend(world.store().outbox(all_lanes(), true, 9).await.expect("outbox"));
    assert_eq!(all[2].message, wire);
    let answer = world.deliver(handover(&all[0], &epochs)).await;
    assert_eq!(answer, DeliveryAnswer::UnknownTarget);
    assert_eq!(world.store().outbox_has(all[0].id).await, Ok(true));
    let dropped = Delivery { with: Handover::Nothing, ..handover(&all[0], &epochs) };
    assert_eq!(
        world.deliver(dropped).await,
        DeliveryAnswer::Delivered { holder: None, due: false }
    );
    assert_eq!(world.deliver(handover(&all[1], &epochs)).await, DeliveryAnswer::TargetFinal);
    assert_eq!(world.store().mail(done, 0, 9).await.expect("mail"), []);
    assert_eq!(
        world.deliver(handover(&all[2], &epochs)).await,
        DeliveryAnswer::Delivered { holder: None, due: false }
    );
    assert!(outbox(world).await.is_empty());
}

/// A wake-up is a ring and not an event: it stands among the mail, so that it waits for no wire.
pub async fn a_wake_up_does_not_wait_for_a_wire(world: &World) {
    let source = world.specimen("made_blocked").await;
    let to_subject = |subject: &str| Message {
        to: Target::Wire(subject.into()),
        kind: "k".into(),
        body: Body::Inline(Vec::new()),
    };
    let (wakeup, event) = (to_subject("cmd.agent.t-1.wakeup"), to_subject("cmd.agent.t.1.wakeup"));
    send(world, source, vec![event.clone(), wakeup.clone()]).await;
    let inside = outbox(world).await;
    let outside = world.store().outbox(all_lanes(), true, 9).await.expect("outbox");
    let messages = |rows: &[Posted]| rows.iter().map(|p| p.message.clone()).collect::<Vec<_>>();
    assert_eq!((messages(&inside), messages(&outside)), (vec![wakeup], vec![event]));
    let epochs = serve_lanes(world).await;
    let gone = world.deliver(handover(&inside[0], &epochs)).await;
    assert_eq!(gone, DeliveryAnswer::Delivered { holder: None, due: false });
    assert!(outbox(world).await.is_empty());
}

/// Mail that expects an answer is not swallowed by an entity that is over: the row stays, and its return arrives
/// once. A return expects none, so two ends never write to each other for ever.
pub async fn mail_that_expects_an_answer_comes_back_from_a_final_entity(world: &World) {
    let source = world.specimen("made_blocked").await;
    let done = world.specimen("made_done").await;
    let ask = Message::mail(done, "grant?", Body::Inline(b"1".to_vec()));
    send(world, source, vec![ask]).await;
    let epochs = serve_lanes(world).await;
    let posted = outbox(world).await.remove(0);
    for _ in 0..2 {
        let answer = world.deliver(handover(&posted, &epochs)).await;
        assert_eq!(answer, DeliveryAnswer::Unanswered);
        assert_eq!(world.store().outbox_has(posted.id).await, Ok(true), "nothing is lost");
    }
    let back = |to| Delivery {
        with: Handover::Mail { to, kind: "returned".into(), body: Body::Inline(b"back".to_vec()) },
        ..handover(&posted, &epochs)
    };
    let answer = world.deliver(back(source)).await;
    assert_eq!(answer, DeliveryAnswer::Delivered { holder: None, due: true });
    assert_eq!(world.deliver(back(source)).await, DeliveryAnswer::Gone, "exactly once");
    let mail = world.store().mail(source, 0, 9).await.expect("mail");
    assert_eq!(mail.len(), 1);
    assert_eq!((mail[0].id.clone(), mail[0].kind.as_str()), (MailId::from(posted.id), "returned"));
    assert_eq!(world.store().mail(done, 0, 9).await.expect("mail"), []);
    // What comes back to a sender that is over by now ends there.
    send(world, source, vec![Message::mail(done, "grant?", Body::Inline(Vec::new()))]).await;
    let posted = outbox(world).await.remove(0);
    assert_eq!(world.deliver(handover(&posted, &epochs)).await, DeliveryAnswer::Unanswered);
    let late = Delivery {
        with: Handover::Mail { to: done, kind: "returned".into(), body: Body::Inline(Vec::new()) },
        ..handover(&posted, &epochs)
    };
    assert_eq!(world.deliver(late).await, DeliveryAnswer::TargetFinal);
    assert!(outbox(world).await.is_empty());
}

/// A message creates its entity once; a second one that wants the same is told that it exists and
/// keeps its row, so that nothing it says is lost.
pub async fn a_create_is_delivered_once_and_a_second_one_is_told(world: &World) {
    let source = world.specimen("made_blocked").await;
    let birth = world.birth("made_blocked");
    let child = birth.entity;
    let create = Message {
        to: Target::Create { id: child, kind: "specimen".into() },
        kind: "create".into(),
        body: Body::Inline(b"{}".to_vec()),
    };
    send(world, source, vec![create.clone(), create]).await;
    let epochs = serve_lanes(world).await;
    let all = outbox(world).await;
    let target = Target::Create { id: child, kind: "specimen".into() };
    assert!(all.iter().all(|p| p.message.to == target));
    let creation = |posted: &Posted, commit| Delivery {
        with: Handover::Create(Box::new(commit)),
        ..handover(posted, &epochs)
    };
    let answer = world.deliver(creation(&all[0], birth.clone())).await;
    assert_eq!(answer, DeliveryAnswer::Delivered { holder: None, due: false });
    let born = world.head(child).await;
    assert_eq!((born.version, born.status.name()), (1, "blocked"));
    assert_eq!(world.deliver(creation(&all[0], birth.clone())).await, DeliveryAnswer::Gone);
    let mut second = birth.clone();
    second.id = world.commit_id();
    let answer = world.deliver(creation(&all[1], second.clone())).await;
    assert_eq!(answer, DeliveryAnswer::TargetExists);
    assert_eq!(world.store().outbox_has(all[1].id).await, Ok(true), "nothing is lost");
    let as_mail = Delivery {
        with: Handover::Mail { to: child, kind: "create".into(), body: Body::Inline(Vec::new()) },
        ..handover(&all[1], &epochs)
    };
    assert_eq!(world.deliver(as_mail).await, DeliveryAnswer::Delivered { holder: None, due: true });
    assert_eq!(world.head(child).await.mail_count, 1);
    assert_eq!(world.records(child).await.len(), 1);
    // A creation that the judge refuses keeps its row too.
    send(world, source, vec![Message::mail(world.id(), "m", Body::Inline(Vec::new()))]).await;
    let posted = outbox(world).await.remove(0);
    let mut endless = world.birth("made_blocked");
    endless.must_end_in = None;
    let answer = world.deliver(creation(&posted, endless)).await;
    assert!(matches!(answer, DeliveryAnswer::Refused(_)), "{answer:?}");
    assert_eq!(world.store().outbox_has(posted.id).await, Ok(true));
}

/// Two servers that create one entity from two messages at once: one entity comes of it.
pub async fn two_creates_that_race_make_one_entity(world: &World) {
    let source = world.specimen("made_blocked").await;
    let child = world.id();
    let create = Message {
        to: Target::Create { id: child, kind: "specimen".into() },
        kind: "create".into(),
        body: Body::Inline(b"{}".to_vec()),
    };
    send(world, source, vec![create; 8]).await;
    let epochs = serve_lanes(world).await;
    let all = outbox(world).await;
    let answers = world
        .together(8, |i, store, rt| {
            let mut birth = world.birth("made_blocked");
            birth.entity = child;
            let delivery =
                Delivery { with: Handover::Create(Box::new(birth)), ..handover(&all[i], &epochs) };
            async move { deliver_on(store.as_ref(), &rt, delivery).await }
        })
        .await;
    let delivered =
        answers.iter().filter(|a| matches!(a, DeliveryAnswer::Delivered { .. })).count();
    let told = answers.iter().filter(|a| **a == DeliveryAnswer::TargetExists).count();
    assert_eq!((delivered, told), (1, 7), "{answers:?}");
    assert_eq!(world.head(child).await.version, 1);
    world.verify(child).await;
    assert_eq!(outbox(world).await.len(), 7);
}
