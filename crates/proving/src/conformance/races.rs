//! Law 1 under contention: one owner, and a stale writer is refused in everything it tries.

use super::world::{LONG, SHORT, World, commit_on, expect_now, settle};
use tenure_kernel::{
    commit::{CommitAnswer, Expect, MailStance, TenureChange},
    evidence::{EvidenceAnswer, NewEvidence},
    head::lane_of,
    outbox::{Carrier, Delivery, DeliveryAnswer, Handover, Message},
    sessions::{Hold, Renewal, RenewalAnswer, lane_id},
    store::{Answer, Op, Touch},
    stream::Body,
    table::kernel_events as ke,
};

/// Sixty-four claim one entity by name: one wins and the others are told.
pub async fn of_64_claimers_of_one_entity_one_wins(world: &World) {
    let id = world.specimen("made_queued").await;
    let mut sessions = Vec::new();
    for _ in 0..64 {
        sessions.push(world.session(LONG).await);
    }
    let answers = world
        .together(64, |i, store, rt| {
            let session = sessions[i];
            let op = Op::Claim { id: world.commit_id(), entity: id, session, lease: LONG };
            async move { settle(store.as_ref(), &rt, op).await }
        })
        .await;
    let mut won = Vec::new();
    for (answer, session) in answers.iter().zip(&sessions) {
        match answer {
            Answer::Claim(Ok(head)) => {
                won.push(*session);
                assert_eq!((head.epoch, head.holder), (1, Some(*session)));
            }
            Answer::Claim(Err(CommitAnswer::StaleEpoch { current: 1 })) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(won.len(), 1);
    let head = world.head(id).await;
    assert_eq!((head.epoch, head.version, head.holder), (1, 2, Some(won[0])));
    // Asking again after a lost answer: it is the winner's already, and nothing happens.
    assert_eq!(world.claim(id, won[0], LONG).await, head);
}

/// Sixty-four commit under one epoch and version: one wins, and versions are dense afterwards.
pub async fn of_64_committers_of_one_version_one_wins(world: &World) {
    let id = world.specimen("made_queued").await;
    let session = world.session(LONG).await;
    for round in 0..3u64 {
        let head =
            if round == 0 { world.claim(id, session, LONG).await } else { world.head(id).await };
        let answers = world
            .together(64, |_, store, rt| {
                let commit = world.says(id, expect_now(&head), "noted");
                async move { (commit.id, commit_on(store.as_ref(), &rt, commit).await) }
            })
            .await;
        let mut winners = answers.iter().filter(|(_, a)| matches!(a, CommitAnswer::Committed(_)));
        let (winner, _) = winners.next().expect("one wins");
        assert!(winners.next().is_none(), "only one wins");
        let conflict = CommitAnswer::VersionConflict { current: head.version + 1 };
        assert!(answers.iter().all(|(i, a)| i == winner || *a == conflict), "{answers:?}");
        let last = world.records(id).await.pop().expect("a record");
        assert_eq!((last.commit, last.first), (*winner, head.version + 1));
    }
    world.verify(id).await;
}

/// A claim that lands between a writer's look and its write refuses the write: there is no moment
/// between check and write.
pub async fn a_claim_between_look_and_write_refuses_the_write(world: &World) {
    let id = world.specimen("made_queued").await;
    let seen = world.head(id).await;
    let session = world.session(LONG).await;
    let held = world.claim(id, session, LONG).await;
    for event in ["noted", "ended"] {
        let mut late = world.says(id, expect_now(&seen), event);
        late.mail = MailStance::Regardless;
        assert_eq!(world.commit(late).await, CommitAnswer::StaleEpoch { current: held.epoch });
    }
    assert_eq!(world.head(id).await, held);

    // The same race, run for real: many writers without tenure against one claimer.
    let id = world.specimen("made_queued").await;
    let answers = world
        .together(9, |i, store, rt| {
            let claim = Op::Claim { id: world.commit_id(), entity: id, session, lease: LONG };
            let ids: Vec<_> = (0..20).map(|_| world.commit_id()).collect();
            async move {
                if i == 4 {
                    loop {
                        let answer = settle(store.as_ref(), &rt, claim.clone()).await;
                        if matches!(answer, Answer::Claim(Ok(_))) {
                            return Vec::new();
                        }
                    }
                }
                let mut committed = Vec::new();
                for commit_id in ids {
                    let head = store.head(id).await.expect("head").expect("exists");
                    let (epoch, version) = (head.epoch, head.version);
                    let mut commit = tenure_kernel::commit::Commit::new(
                        commit_id,
                        id,
                        Expect::Nobody { epoch, version },
                        vec![tenure_kernel::stream::NewEvent::new(
                            "noted",
                            Body::Inline(Vec::new()),
                        )],
                    );
                    commit.mail = MailStance::Unread;
                    if let CommitAnswer::Committed(c) = commit_on(store.as_ref(), &rt, commit).await
                    {
                        committed.push(c.version);
                    }
                }
                committed
            }
        })
        .await;
    let claimed_at = world
        .records(id)
        .await
        .iter()
        .find(|r| r.events().expect("events")[0].name == ke::CLAIMED)
        .expect("the claim is there")
        .first;
    let head = world.head(id).await;
    assert_eq!(head.holder, Some(session));
    assert_eq!(head.version, claimed_at, "nobody wrote after the claim");
    assert!(answers.iter().flatten().all(|v| *v < claimed_at));
    world.verify(id).await;
}

/// A writer that was paused and comes back after a takeover is refused in every kind of write; what
/// it has learnt is accepted as evidence.
pub async fn a_paused_writer_is_refused_in_every_way_after_a_takeover(world: &World) {
    let id = world.specimen("made_queued").await;
    let (old, new) = (world.session(LONG).await, world.session(LONG).await);
    let stale = world.claim(id, old, SHORT).await;
    world.reclaim(id).await;
    let now_held = world.claim(id, new, LONG).await;
    assert_eq!(now_held.epoch, stale.epoch + 2);

    // Every kind of commit a holder makes, at its own version and at the current one.
    for version in [stale.version, now_held.version] {
        let mine = Expect::Holder { epoch: stale.epoch, version };
        let refused = CommitAnswer::StaleEpoch { current: now_held.epoch };
        let mut writes = vec![
            world.says(id, mine.clone(), "noted"),
            world.says(id, mine.clone(), "parked"),
            world.says(id, mine.clone(), "ended"),
            world.says(id, mine.clone(), ke::DEADLINE_MOVED),
            world.says(id, Expect::EndTenure { epoch: stale.epoch }, ke::TENURE_ENDED),
            world.says(id, Expect::Overrule { epoch: stale.epoch, version }, ke::FORCE_ENDED),
            world.says(id, Expect::Nobody { epoch: stale.epoch, version }, "noted"),
        ];
        writes[1].events.extend(world.says(id, mine, ke::TENURE_ENDED).events);
        for i in [1, 4] {
            writes[i].tenure = TenureChange::End;
        }
        for mut write in writes {
            write.mail = MailStance::Regardless;
            write.messages = if matches!(write.expect, Expect::EndTenure { .. }) {
                Vec::new()
            } else {
                vec![Message::mail(id, "never", Body::Inline(Vec::new()))]
            };
            assert_eq!(world.commit(write.clone()).await, refused, "{write:?}");
        }
    }
    // Touches that belong to the old tenure are ignored.
    let touch = Touch {
        entity: id,
        epoch: stale.epoch,
        version: stale.version,
        due: None,
        check_at: Some(now_held.changed_at + LONG + LONG),
        faults: 9,
        ring_only: false,
    };
    assert_eq!(world.one(Op::Touch(touch)).await, Answer::Touch(false));
    assert_eq!(world.head(id).await, now_held);
    assert!(world.store().outbox((0..16).collect(), false, 10).await.expect("outbox").is_empty());
    // Its renewal says what it has lost.
    let hold = Hold { entity: id, epoch: stale.epoch, mark: 1 };
    let renewal = Renewal { session: old, holds: vec![hold] };
    match world.one(Op::Renew(renewal)).await {
        Answer::Renew(RenewalAnswer::Renewed { lost, mail, .. }) => {
            assert_eq!((lost, mail), (vec![id], vec![]));
        }
        other => panic!("{other:?}"),
    }
    let row = world.store().session(old).await.expect("session").expect("row");
    assert!(row.holds.is_empty(), "what is lost is not vouched for");
    // What it knows is still worth keeping.
    let evidence = NewEvidence {
        entity: id,
        key: "call-1".into(),
        epoch: stale.epoch,
        call: 1,
        who: "the old holder".into(),
        body: Body::Inline(b"it worked".to_vec()),
    };
    let answer = world.one(Op::Evidence(evidence.clone())).await;
    assert_eq!(answer, Answer::Evidence(EvidenceAnswer::Recorded { mailed: true }));
    let answer = world.one(Op::Evidence(evidence.clone())).await;
    assert_eq!(answer, Answer::Evidence(EvidenceAnswer::Duplicate));
    let after = world.head(id).await;
    assert_eq!((after.version, after.epoch), (now_held.version, now_held.epoch));
    assert_eq!(after.mail_count, 1);
    world.end(id).await;
    let late = NewEvidence { call: 2, ..evidence.clone() };
    let ended = world.head(id).await;
    let answer = world.one(Op::Evidence(late.clone())).await;
    assert_eq!(answer, Answer::Evidence(EvidenceAnswer::Recorded { mailed: false }));
    assert_eq!(world.head(id).await, ended);
    let said: Vec<_> = world.store().evidence(id).await.expect("evidence");
    assert_eq!(said.iter().map(|e| &e.said).collect::<Vec<_>>(), [&evidence, &late]);
    world.verify(id).await;
}

/// A server that lost a lane delivers nothing under its old tenure.
pub async fn a_delivery_under_a_lost_lane_is_refused(world: &World) {
    let (source, target) =
        (world.specimen("made_blocked").await, world.specimen("made_blocked").await);
    let mut sends = world.note(source).await;
    sends.messages = vec![Message::mail(target, "hello", Body::Inline(b"hi".to_vec()))];
    world.commit_ok(sends).await;
    let lane = lane_of(source);
    let posted = world.store().outbox(vec![lane], false, 10).await.expect("outbox").remove(0);
    let (a, b) = (world.session(LONG).await, world.session(LONG).await);
    let never_held = world.head(lane_id(lane)).await.epoch;
    let delivery = |lane_epoch| Delivery {
        id: posted.id,
        by: Carrier::Lane(lane_epoch),
        with: Handover::Mail {
            to: target,
            kind: "hello".into(),
            body: posted.message.body.clone(),
        },
    };
    assert_eq!(
        world.deliver(delivery(never_held)).await,
        DeliveryAnswer::StaleLane,
        "a lane that nobody holds delivers nothing"
    );
    let first = world.claim(lane_id(lane), a, LONG).await;
    world.reclaim(lane_id(lane)).await;
    assert_eq!(world.deliver(delivery(first.epoch)).await, DeliveryAnswer::StaleLane);
    let second = world.claim(lane_id(lane), b, LONG).await;
    assert_eq!(world.deliver(delivery(first.epoch)).await, DeliveryAnswer::StaleLane);
    assert_eq!(world.head(target).await.mail_count, 0);
    assert_eq!(world.store().outbox_has(posted.id).await, Ok(true));
    assert_eq!(
        world.deliver(delivery(second.epoch)).await,
        DeliveryAnswer::Delivered { holder: None, due: true }
    );
    assert_eq!(world.head(target).await.mail_count, 1);
    assert_eq!(world.deliver(delivery(second.epoch)).await, DeliveryAnswer::Gone);
}
