//! Mail: durable, idempotent, and never lost between the last look and the wait.

use super::world::{LONG, World, expect_now, settle_all};
use std::collections::BTreeSet;
use tenure_kernel::{
    commit::{CommitAnswer, MailStance, Refusal, TenureChange},
    evidence::{EvidenceAnswer, NewEvidence},
    limits,
    mail::{MailAnswer, NewMail, kinds},
    store::{Answer, Op},
    stream::Body,
    table::kernel_events as ke,
};

/// Mail that comes after the last look refuses the park; the second look finds it.
pub async fn mail_between_the_last_look_and_the_park_refuses_the_park(world: &World) {
    let id = world.specimen("made_queued").await;
    let session = world.session(LONG).await;
    let held = world.claim(id, session, LONG).await;
    let park = |count, head: &tenure_kernel::head::Head| {
        let mut commit = world.says(id, expect_now(head), "parked");
        commit.events.extend(world.says(id, expect_now(head), ke::TENURE_ENDED).events);
        commit.tenure = TenureChange::End;
        commit.mail = count;
        commit
    };
    assert!(world.store().mail(id, 0, 10).await.expect("mail").is_empty());
    let answer = world.send(world.mail(id, "m1")).await;
    assert_eq!(answer, MailAnswer::Accepted { seq: 1, holder: Some(session) });
    let answer = world.commit(park(MailStance::Unread, &held)).await;
    assert!(matches!(answer, CommitAnswer::Refused(Refusal::MailNotRead("blocked"))), "{answer:?}");
    let answer = world.commit(park(MailStance::ReadAll(0), &held)).await;
    assert_eq!(answer, CommitAnswer::MoreMail { count: 1 });
    let box_ = world.store().mail(id, 0, 10).await.expect("mail");
    assert_eq!((box_.len(), box_[0].seq, box_[0].id.0.as_str()), (1, 1, "m1"));
    let parked = world.commit_ok(park(MailStance::ReadAll(1), &held)).await;
    assert_eq!(parked.mail_waiting, 0);
    let head = world.head(id).await;
    assert_eq!((head.mail_count, head.mail_read, head.holder), (1, 1, None));
    assert!(head.due > Some(parked.at), "nothing waits: due is the deadline");

    // Parked, it is woken by the next one: due is now.
    let answer = world.send(world.mail(id, "m2")).await;
    assert_eq!(answer, MailAnswer::Accepted { seq: 2, holder: None });
    let now = world.now().await;
    let head = world.head(id).await;
    assert!(head.has_mail() && head.due.is_some_and(|due| due <= now));
    assert_eq!(world.store().mail(id, 1, 10).await.expect("mail")[0].id.0, "m2");
}

/// Mail that arrives in the batch of the commit that parks does not refuse it: it wakes the entity.
pub async fn mail_in_the_batch_of_a_park_wakes_the_parked(world: &World) {
    let id = world.specimen("made_queued").await;
    let session = world.session(LONG).await;
    let held = world.claim(id, session, LONG).await;
    let mut park = world.says(id, expect_now(&held), "parked");
    park.events.extend(world.says(id, expect_now(&held), ke::TENURE_ENDED).events);
    park.tenure = TenureChange::End;
    park.mail = MailStance::ReadAll(0);
    let ops = vec![Op::Mail(world.mail(id, "with it")), Op::Commit(Box::new(park))];
    let answers = settle_all(world.store().as_ref(), &world.rt, ops).await;
    assert_eq!(answers[0], Answer::Mail(MailAnswer::Accepted { seq: 1, holder: None }));
    assert!(matches!(answers[1], Answer::Commit(CommitAnswer::Committed(_))), "{answers:?}");
    let (now, head) = (world.now().await, world.head(id).await);
    assert_eq!((head.status.name(), head.has_mail()), ("blocked", true));
    assert!(head.due.is_some_and(|due| due <= now), "the loop decides");
}

/// The same id again is a duplicate, also after the end; a final entity says so; an unknown one too.
pub async fn mail_is_idempotent_and_answers_final_and_unknown(world: &World) {
    let id = world.specimen("made_blocked").await;
    assert_eq!(
        world.send(world.mail(id, "a")).await,
        MailAnswer::Accepted { seq: 1, holder: None }
    );
    assert_eq!(world.send(world.mail(id, "a")).await, MailAnswer::Duplicate);
    let both = vec![Op::Mail(world.mail(id, "b")), Op::Mail(world.mail(id, "b"))];
    let answers = settle_all(world.store().as_ref(), &world.rt, both).await;
    let accepted = Answer::Mail(MailAnswer::Accepted { seq: 2, holder: None });
    assert_eq!(answers, [accepted, Answer::Mail(MailAnswer::Duplicate)]);
    assert_eq!(world.head(id).await.mail_count, 2);
    // Another entity's mail has its own ids.
    let other = world.specimen("made_blocked").await;
    let answer = world.send(world.mail(other, "a")).await;
    assert_eq!(answer, MailAnswer::Accepted { seq: 1, holder: None });
    world.end(id).await;
    assert_eq!(world.send(world.mail(id, "a")).await, MailAnswer::Duplicate);
    assert_eq!(world.send(world.mail(id, "c")).await, MailAnswer::Final { status: "done" });
    assert_eq!(world.send(world.mail(world.id(), "a")).await, MailAnswer::Unknown);
    let ids: Vec<_> = world.store().mail(id, 0, 10).await.expect("mail");
    assert_eq!(ids.iter().map(|m| m.id.0.as_str()).collect::<Vec<_>>(), ["a", "b"]);
}

/// Mail and evidence at their limits come back as they were; past them they are refused, alone.
pub async fn mail_and_evidence_keep_their_limits(world: &World) {
    let id = world.specimen("made_blocked").await;
    let kind = "\u{1F4EC}".repeat(limits::NAME_BYTES_MAX / 4);
    let full = NewMail {
        kind: kind.clone().into(),
        body: Body::Inline(vec![255; limits::BODY_INLINE_BYTES_MAX]),
        ..world.mail(id, &"i".repeat(limits::KEY_BYTES_MAX))
    };
    let long = world.mail(id, &"i".repeat(limits::KEY_BYTES_MAX + 1));
    let evidence = |key: usize| NewEvidence {
        entity: id,
        key: "k".repeat(key),
        epoch: 0,
        call: u32::MAX,
        who: "\u{00e9}".repeat(limits::NAME_BYTES_MAX / 2),
        body: Body::Inline(vec![0; limits::BODY_INLINE_BYTES_MAX]),
    };
    let ops = vec![
        Op::Mail(long),
        Op::Mail(full.clone()),
        Op::Evidence(evidence(limits::EVIDENCE_KEY_BYTES_MAX + 1)),
        Op::Evidence(evidence(limits::EVIDENCE_KEY_BYTES_MAX)),
    ];
    let answers = settle_all(world.store().as_ref(), &world.rt, ops).await;
    assert!(matches!(answers[0], Answer::Mail(MailAnswer::Refused(_))), "{answers:?}");
    assert_eq!(answers[1], Answer::Mail(MailAnswer::Accepted { seq: 1, holder: None }));
    assert!(matches!(answers[2], Answer::Evidence(EvidenceAnswer::Refused(_))), "{answers:?}");
    assert_eq!(answers[3], Answer::Evidence(EvidenceAnswer::Recorded { mailed: true }));
    let mail = world.store().mail(id, 0, 10).await.expect("mail");
    assert_eq!(mail.len(), 2);
    assert_eq!((&mail[0].id, &mail[0].kind, &mail[0].body), (&full.id, &kind, &full.body));
    assert_eq!(mail[1].kind, kinds::EVIDENCE);
    let said = world.store().evidence(id).await.expect("evidence");
    assert_eq!(said.len(), 1);
    assert_eq!(said[0].said, evidence(limits::EVIDENCE_KEY_BYTES_MAX));
}

/// An entity takes evidence up to its limit, and refuses what comes after; the same again is still a duplicate.
pub async fn evidence_about_one_entity_has_a_limit(world: &World) {
    let (id, other) = (world.specimen("made_blocked").await, world.specimen("made_blocked").await);
    let evidence = |entity, call: usize| {
        let call = u32::try_from(call).expect("it fits");
        let (key, who) = ("k".to_owned(), "w".to_owned());
        Op::Evidence(NewEvidence { entity, key, epoch: 0, call, who, body: Body::json(&call) })
    };
    let recorded = Answer::Evidence(EvidenceAnswer::Recorded { mailed: true });
    let calls: Vec<usize> = (0..limits::EVIDENCE_MAX - 1).collect();
    for calls in calls.chunks(limits::BATCH_OPS_MAX) {
        let ops = calls.iter().map(|call| evidence(id, *call)).collect();
        let answers = settle_all(world.store().as_ref(), &world.rt, ops).await;
        assert!(answers.iter().all(|a| *a == recorded), "{answers:?}");
    }
    // The last one that fits, and the first that does not, in one batch.
    let (last, past) = (limits::EVIDENCE_MAX - 1, limits::EVIDENCE_MAX);
    let ops = vec![evidence(id, last), evidence(id, past), evidence(other, past)];
    let answers = settle_all(world.store().as_ref(), &world.rt, ops).await;
    let (what, actual, limit) = ("pieces of evidence", past + 1, limits::EVIDENCE_MAX);
    let refused = EvidenceAnswer::Refused(Refusal::Limit { what, actual, limit });
    assert_eq!(answers, [recorded.clone(), Answer::Evidence(refused.clone()), recorded]);
    assert_eq!(world.one(evidence(id, past)).await, Answer::Evidence(refused));
    assert_eq!(world.one(evidence(id, 0)).await, Answer::Evidence(EvidenceAnswer::Duplicate));
    let kept = world.store().evidence(id).await.expect("evidence");
    assert_eq!(kept.len(), limits::EVIDENCE_MAX);
}

/// A thousand mails from eight senders, each sent twice: places are dense and nothing is lost.
pub async fn a_thousand_mails_from_eight_senders_are_all_there_once(world: &World) {
    const SENDERS: usize = 8;
    const EACH: usize = 125;
    let id = world.specimen("made_blocked").await;
    let seqs = world
        .together(SENDERS, |sender, store, rt| {
            let all: Vec<_> = (0..EACH).map(|i| world.mail(id, &format!("{sender}/{i}"))).collect();
            async move {
                let mut seqs = Vec::new();
                for chunk in all.chunks(25) {
                    for _ in 0..2 {
                        let ops = chunk.iter().cloned().map(Op::Mail).collect();
                        for answer in settle_all(store.as_ref(), &rt, ops).await {
                            match answer {
                                Answer::Mail(MailAnswer::Accepted { seq, .. }) => seqs.push(seq),
                                Answer::Mail(MailAnswer::Duplicate) => {}
                                other => panic!("{other:?}"),
                            }
                        }
                    }
                }
                seqs
            }
        })
        .await;
    let total = SENDERS * EACH;
    let given: BTreeSet<u64> = seqs.iter().flatten().copied().collect();
    assert_eq!(given, (1..=total as u64).collect(), "every place was given once");
    assert_eq!(seqs.iter().map(Vec::len).sum::<usize>(), total);
    assert_eq!(world.head(id).await.mail_count, total as u64);
    let mut read = Vec::new();
    loop {
        let after = read.len() as u64;
        let page = world.store().mail(id, after, 256).await.expect("mail");
        assert!(page.len() <= 256);
        if page.is_empty() {
            break;
        }
        read.extend(page);
    }
    assert!(read.iter().enumerate().all(|(i, m)| m.seq == i as u64 + 1), "dense and in order");
    let ids: BTreeSet<_> = read.iter().map(|m| m.id.0.clone()).collect();
    assert_eq!(ids.len(), total);
    for sender in 0..SENDERS {
        let prefix = format!("{sender}/");
        let order: Vec<usize> =
            read.iter().filter_map(|m| m.id.0.strip_prefix(&prefix)?.parse().ok()).collect();
        assert!(order.is_sorted(), "one sender's mail keeps its order");
    }
}

/// A park and a mail race for real, many times: either the park is refused, or the mail finds the
/// entity parked and makes it due. Never parked, unread and not due.
pub async fn a_park_and_a_mail_that_race_never_leave_mail_asleep(world: &World) {
    let session = world.session(LONG).await;
    let (mut refused, mut parked) = (0, 0);
    for round in 0..40 {
        let id = world.specimen("made_queued").await;
        let held = world.claim(id, session, LONG).await;
        let answers = world
            .together(2, |i, store, rt| {
                let mut park = world.says(id, expect_now(&held), "parked");
                park.events.extend(world.says(id, expect_now(&held), ke::TENURE_ENDED).events);
                park.tenure = TenureChange::End;
                park.mail = MailStance::ReadAll(0);
                let mail = world.mail(id, "racer");
                // Take turns in who starts first.
                let op =
                    if (i + round) % 2 == 0 { Op::Commit(Box::new(park)) } else { Op::Mail(mail) };
                async move { settle_all(store.as_ref(), &rt, vec![op]).await.remove(0) }
            })
            .await;
        let (now, head) = (world.now().await, world.head(id).await);
        assert_eq!(head.mail_count, 1, "{answers:?}");
        if head.holder.is_some() {
            refused += 1;
            let more = Answer::Commit(CommitAnswer::MoreMail { count: 1 });
            assert!(answers.contains(&more), "{answers:?}");
        } else {
            parked += 1;
            assert!(head.due.is_some_and(|due| due <= now), "parked with mail asleep: {head:?}");
        }
    }
    assert_eq!(refused + parked, 40);
}
