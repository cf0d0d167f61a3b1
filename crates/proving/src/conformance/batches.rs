//! Batches: one transaction of many entities, in which nobody is disturbed by a neighbour.

use super::world::{LONG, World, expect_now, settle_all};
use tenure_kernel::{
    commit::{CommitAnswer, Expect, Refusal, UniqueKey},
    limits,
    mail::MailAnswer,
    store::{Answer, Op},
    stream::{Body, Hash, NewEvent},
};

/// A second commit of one entity in a batch is answered `Busy`; the first one counts.
pub async fn a_second_commit_of_one_entity_in_a_batch_is_busy(world: &World) {
    let id = world.specimen("made_blocked").await;
    let (a, b) = (world.note(id).await, world.note(id).await);
    let session = world.session(LONG).await;
    let queued = world.specimen("made_queued").await;
    let note = world.note(queued).await;
    let claim = Op::Claim { id: world.commit_id(), entity: queued, session, lease: LONG };
    let (first, second) = (Op::Commit(Box::new(a.clone())), Op::Commit(Box::new(b)));
    let answers = world.apply(vec![first, second, Op::Commit(Box::new(note)), claim]).await;
    assert!(matches!(answers[0], Answer::Commit(CommitAnswer::Committed(_))), "{answers:?}");
    assert_eq!(answers[1], Answer::Commit(CommitAnswer::Busy));
    assert!(matches!(answers[2], Answer::Commit(CommitAnswer::Committed(_))), "{answers:?}");
    assert_eq!(answers[3], Answer::Busy, "a claim is a commit too");
    let records = world.records(id).await;
    assert_eq!((records.len(), records[1].commit), (2, a.id));
    assert_eq!(world.head(queued).await.holder, None);
}

/// A refused commit contributes nothing and changes no neighbour's answer.
pub async fn a_refused_neighbour_disturbs_nobody(world: &World) {
    let mut taken = world.birth("made_queued");
    taken.keys = vec![UniqueKey { key: "taken".into(), digest: Hash::ZERO }];
    world.commit_ok(taken.clone()).await;
    let (a, b, c) = (
        world.specimen("made_blocked").await,
        world.specimen("made_blocked").await,
        world.specimen("made_blocked").await,
    );
    let illegal = {
        let head = world.head(b).await;
        world.says(b, expect_now(&head), "parked")
    };
    let too_large = {
        let mut commit = world.note(c).await;
        let body = Body::Inline(vec![0; limits::BODY_INLINE_BYTES_MAX + 1]);
        commit.events = vec![NewEvent::new("noted", body)];
        commit
    };
    let mut key_taken = world.birth("made_queued");
    key_taken.keys = vec![UniqueKey { key: "taken".into(), digest: Hash::ZERO }];
    let missing = world.id();
    let nobody = world.says(missing, Expect::Nobody { epoch: 0, version: 1 }, "noted");
    let stale = world.says(taken.entity, Expect::Holder { epoch: 7, version: 1 }, "noted");
    let fresh = world.birth("made_idle");
    let good = world.note(a).await;
    let ops: Vec<Op> = [illegal, good.clone(), too_large, key_taken.clone(), fresh.clone(), nobody]
        .into_iter()
        .chain([stale])
        .map(|c| Op::Commit(Box::new(c)))
        .chain([
            Op::Mail(world.mail(b, "for b")),
            Op::Mail(world.mail(missing, "for nobody")),
            Op::Mail(world.mail(a, "for a")),
        ])
        .collect();
    let answers = settle_all(world.store().as_ref(), &world.rt, ops).await;
    let commit = |i: usize| match &answers[i] {
        Answer::Commit(answer) => answer.clone(),
        other => panic!("{other:?}"),
    };
    assert!(matches!(commit(0), CommitAnswer::Refused(Refusal::Illegal(_))));
    assert!(matches!(commit(1), CommitAnswer::Committed(c) if c.version == 2 && !c.repeated));
    assert!(matches!(commit(2), CommitAnswer::Refused(Refusal::Limit { .. })));
    assert_eq!(commit(3), CommitAnswer::Exists { entity: taken.entity, same: true });
    assert!(matches!(commit(4), CommitAnswer::Committed(_)));
    assert_eq!(commit(5), CommitAnswer::Refused(Refusal::Unknown(missing)));
    assert_eq!(commit(6), CommitAnswer::StaleEpoch { current: 0 });
    assert_eq!(answers[7], Answer::Mail(MailAnswer::Accepted { seq: 1, holder: None }));
    assert_eq!(answers[8], Answer::Mail(MailAnswer::Unknown));
    assert_eq!(answers[9], Answer::Mail(MailAnswer::Accepted { seq: 1, holder: None }));
    for (id, versions) in [(a, 2), (b, 1), (c, 1), (taken.entity, 1), (fresh.entity, 1)] {
        assert_eq!(world.head(id).await.version, versions);
        world.verify(id).await;
    }
    assert_eq!(world.store().head(key_taken.entity).await, Ok(None));
    assert_eq!(world.store().head(missing).await, Ok(None));
}

/// Batches that overlap and name their entities in any order: no deadlock, everything is answered.
pub async fn unordered_overlapping_batches_are_all_answered(world: &World) {
    const ENTITIES: usize = 12;
    const ROUNDS: usize = 15;
    let mut ids = Vec::new();
    for _ in 0..ENTITIES {
        ids.push(world.specimen("made_blocked").await);
    }
    let committed = world
        .together(4, |writer, store, rt| {
            let ids = ids.clone();
            async move {
                let mut committed = 0u64;
                for round in 0..ROUNDS {
                    let mut order = ids.clone();
                    for i in (1..order.len()).rev() {
                        let j = usize::try_from(rt.random() % (i as u64 + 1)).unwrap_or(0);
                        order.swap(i, j);
                    }
                    let mut ops = Vec::new();
                    for (place, id) in order.iter().enumerate() {
                        let head = store.head(*id).await.expect("head").expect("exists");
                        let commit = tenure_kernel::commit::Commit::new(
                            tenure_kernel::ids::CommitId::new(rt.random(), rt.random()),
                            *id,
                            expect_now(&head),
                            vec![NewEvent::new("noted", Body::Inline(Vec::new()))],
                        );
                        ops.push(Op::Commit(Box::new(commit)));
                        if place % 3 == 0 {
                            let mail = tenure_kernel::mail::NewMail {
                                to: *id,
                                id: tenure_kernel::ids::MailId(format!("{writer}/{round}")),
                                kind: "signal".into(),
                                body: Body::Inline(Vec::new()),
                            };
                            ops.push(Op::Mail(mail));
                        }
                    }
                    for answer in settle_all(store.as_ref(), &rt, ops).await {
                        match answer {
                            Answer::Commit(CommitAnswer::Committed(_)) => committed += 1,
                            Answer::Commit(CommitAnswer::VersionConflict { .. })
                            | Answer::Mail(MailAnswer::Accepted { .. }) => {}
                            other => panic!("{other:?}"),
                        }
                    }
                }
                committed
            }
        })
        .await;
    let (mut versions, mut mails) = (0, 0);
    for id in &ids {
        let head = world.head(*id).await;
        versions += head.version - 1;
        mails += head.mail_count;
        world.verify(*id).await;
    }
    assert_eq!(versions, committed.iter().sum::<u64>(), "what was answered is there, and no more");
    assert_eq!(mails, (4 * ROUNDS * ENTITIES.div_ceil(3)) as u64);
    assert!(versions >= (ROUNDS * ENTITIES) as u64, "somebody wins every version");
}

/// The answers stand in the order of the operations, in a batch of the largest size.
pub async fn a_batch_of_the_largest_size_is_answered_in_order(world: &World) {
    let births: Vec<_> = (0..limits::BATCH_OPS_MAX)
        .map(|i| world.birth(if i % 2 == 0 { "made_idle" } else { "made_queued" }))
        .collect();
    let ops = births.iter().cloned().map(|c| Op::Commit(Box::new(c))).collect();
    let answers = settle_all(world.store().as_ref(), &world.rt, ops).await;
    for (birth, answer) in births.iter().zip(&answers) {
        let Answer::Commit(CommitAnswer::Committed(c)) = answer else { panic!("{answer:?}") };
        assert_eq!((c.version, c.repeated), (1, false));
        let head = world.head(birth.entity).await;
        assert_eq!(head.chain, c.chain, "the answer is this entity's");
    }
}
