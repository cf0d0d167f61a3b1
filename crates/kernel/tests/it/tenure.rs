//! Tenure: sessions, evidence, and beginnings and ends in one commit.

use super::subject::{HOUR, born, cid, claim, event, id, mail, model, ok, park, says, session};
use proptest::prelude::*;
use std::time::Duration;
use tenure_kernel::{
    commit::{CommitAnswer, Expect, MailStance, Refusal, TenureChange},
    evidence::{EvidenceAnswer, NewEvidence},
    sessions::{Hold, Opening, Renewal, RenewalAnswer, Session},
    store::{Answer, Op, Touch},
    stream::Body,
    table::{Class, kernel_events as ke},
    time::Timestamp,
    verify,
};

proptest! {
    /// A session vouches exactly for what it named, while it lives.
    #[test]
    fn a_session_vouches_for_what_it_names_while_it_lives(
        now in 0i64..200, expires in 0i64..200, ended: bool,
        holds in prop::collection::vec((0u16..5, 0u64..4), 0..5), ask in (0u16..5, 0u64..4),
    ) {
        let at = Timestamp::from_micros;
        let row = Session {
            id: id(99), name: "n".into(), role: "worker".into(), lease: HOUR,
            renewed_at: at(0), expires_at: at(expires), ended,
            holds: holds.iter().map(|(e, epoch)| Hold { entity: id(*e), epoch: *epoch, mark: 0 }).collect(),
        };
        let alive = !ended && now < expires;
        prop_assert_eq!(row.vouches_for(id(ask.0), ask.1, at(now)), alive && holds.contains(&ask));
        prop_assert_eq!(row.vouches_for(id(99), 12, at(now)), alive, "it holds itself");
    }

    /// Evidence comes under any epoch, before and after the end. It is kept once and moves no version.
    #[test]
    fn evidence_changes_no_history_and_is_kept_once(
        said in prop::collection::vec((0u64..4, 0u32..3, 0u8..2), 1..20), end_at in 0usize..20,
    ) {
        let mut model = model();
        let s = session(&mut model, 0, 1_000);
        ok(model.commit(&born(id(0), "made_queued", cid(1))));
        claim(&mut model, id(0), s, 1);
        let mut kept = std::collections::BTreeSet::new();
        let mut mailed = 0;
        for (i, (epoch, call, body)) in said.into_iter().enumerate() {
            if i == end_at {
                let mut end = says(&model, id(0), &["ended"], cid(2));
                end.mail = MailStance::Regardless;
                ok(model.commit(&end));
            }
            let before = model.heads[&id(0)].clone();
            let evidence = NewEvidence {
                entity: id(0), key: "k".into(), epoch, call, who: "w".into(), body: Body::Inline(vec![body]),
            };
            let answer = model.apply(&[Op::Evidence(evidence)]).remove(0);
            let open = before.class() == Class::Open;
            let expected = if kept.insert((epoch, call, body)) {
                mailed += u64::from(open);
                EvidenceAnswer::Recorded { mailed: open }
            } else {
                EvidenceAnswer::Duplicate
            };
            prop_assert_eq!(answer, Answer::Evidence(expected));
            let after = &model.heads[&id(0)];
            prop_assert_eq!((after.version, after.epoch, after.chain), (before.version, before.epoch, before.chain));
            prop_assert_eq!(after.mail_count, mailed);
        }
        prop_assert_eq!(model.evidence.len(), kept.len());
        verify::verify(&model.heads[&id(0)], &model.streams[&id(0)], &model.judge.tables).unwrap();
    }

    /// Mail is never lost between the last look and the park: whatever the order of mails and looks.
    #[test]
    fn mail_is_never_asleep(steps in prop::collection::vec(0u8..4, 1..40)) {
        let mut model = model();
        let s = session(&mut model, 0, 1_000);
        ok(model.commit(&born(id(0), "made_queued", cid(1))));
        claim(&mut model, id(0), s, 1);
        let (mut looked, mut n) = (0, 10);
        for step in steps {
            n += 1;
            let head = model.heads[&id(0)].clone();
            match step {
                0 => { model.apply(&[mail(id(0), &format!("m{n}"))]); }
                1 => looked = head.mail_count,
                2 if head.holder.is_some() => {
                    let answer = model.commit(&park(&model, id(0), cid(n), MailStance::ReadAll(looked)));
                    let more = head.mail_count > looked;
                    prop_assert_eq!(matches!(answer, CommitAnswer::MoreMail { .. }), more);
                    prop_assert_eq!(matches!(answer, CommitAnswer::Committed(_)), !more);
                }
                _ if head.status.name() == "blocked" => {
                    ok(model.commit(&says(&model, id(0), &["woke"], cid(n))));
                    claim(&mut model, id(0), s, n);
                }
                _ => {}
            }
            let head = &model.heads[&id(0)];
            let asleep = head.holder.is_none() && head.has_mail() && head.due > Some(model.now);
            prop_assert!(!asleep);
        }
    }
}

#[test]
fn a_final_entity_has_no_holder_however_it_ended() {
    let mut model = model();
    let s = session(&mut model, 0, 1_000);
    let take = TenureChange::Take { session: s, lease: HOUR };
    // Born, taken and ended in one commit: a job whose flow never waits.
    let mut at_once = born(id(0), "made_running", cid(1));
    at_once.events.push(event("ended"));
    at_once.must_end_in = None;
    at_once.tenure = take.clone();
    let done = ok(model.commit(&at_once));
    assert_eq!(done.epoch, 2, "taken and ended");
    // Claimed and ended in one commit.
    ok(model.commit(&born(id(1), "made_queued", cid(2))));
    let mut claims = says(&model, id(1), &[ke::CLAIMED, "ended"], cid(3));
    claims.tenure = take;
    claims.mail = MailStance::ReadAll(0);
    ok(model.commit(&claims));
    for n in [0, 1] {
        let head = &model.heads[&id(n)];
        assert_eq!((head.class(), head.holder, head.check_at), (Class::Final, None, None));
        assert_eq!(head.epoch, 2);
        verify::verify(head, &model.streams[&id(n)], &model.judge.tables).unwrap();
        let hold = Hold { entity: id(n), epoch: 1, mark: 0 };
        let renewal = Renewal { session: s, holds: vec![hold] };
        let answer = model.apply(&[Op::Renew(renewal)]).remove(0);
        assert!(
            matches!(&answer, Answer::Renew(RenewalAnswer::Renewed { lost, .. }) if *lost == [id(n)]),
            "{answer:?}"
        );
    }
}

#[test]
fn only_a_worker_session_opens_a_session_row() {
    let mut model = model();
    let opening = Opening { name: "n".into(), role: "worker".into(), lease_ms: 5, executor: None };
    let mut fake = born(id(0), "made_running", cid(1));
    fake.tenure = TenureChange::Open(opening);
    let answer = model.commit(&fake);
    assert!(matches!(answer, CommitAnswer::Refused(Refusal::Tenure(_))), "{answer:?}");
    assert!(model.sessions.is_empty());
}

#[test]
fn tenure_changes_only_with_its_event() {
    let mut model = model();
    let s = session(&mut model, 0, 1_000);
    ok(model.commit(&born(id(0), "made_queued", cid(1))));
    let take = TenureChange::Take { session: s, lease: HOUR };
    let refused = |model: &mut super::model::Model, commit| {
        let answer = model.commit(&commit);
        assert!(matches!(answer, CommitAnswer::Refused(_)), "{answer:?}");
    };
    let mut silent = says(&model, id(0), &["noted"], cid(2));
    silent.tenure = take.clone();
    refused(&mut model, silent);
    let empty = says(&model, id(0), &[ke::CLAIMED], cid(3));
    refused(&mut model, empty);
    claim(&mut model, id(0), s, 1);
    let mut twice = says(&model, id(0), &["noted"], cid(4));
    twice.tenure = take;
    refused(&mut model, twice);
    let mut unsaid = says(&model, id(0), &["parked"], cid(5));
    unsaid.tenure = TenureChange::End;
    unsaid.mail = MailStance::ReadAll(0);
    refused(&mut model, unsaid);
    let kept = says(&model, id(0), &[ke::TENURE_ENDED], cid(6));
    refused(&mut model, kept);
    // A guard that overrules a holder ends its tenure.
    let head = &model.heads[&id(0)];
    let mut guard = says(&model, id(0), &["noted"], cid(7));
    guard.expect = Expect::Overrule { epoch: head.epoch, version: head.version };
    refused(&mut model, guard);
    // At any version only a lone end of tenure.
    let mut more = says(&model, id(0), &[ke::TENURE_ENDED, "noted"], cid(8));
    more.expect = Expect::EndTenure { epoch: head_epoch(&model) };
    more.tenure = TenureChange::End;
    more.mail = MailStance::Regardless;
    refused(&mut model, more);
}

fn head_epoch(model: &super::model::Model) -> u64 {
    model.heads[&id(0)].epoch
}

#[test]
fn a_deadline_moves_only_on_record() {
    let mut model = model();
    ok(model.commit(&born(id(0), "made_blocked", cid(1))));
    let end = model.heads[&id(0)].must_end_by;
    let mut sneaks = says(&model, id(0), &["noted"], cid(2));
    sneaks.must_end_in = Some(HOUR * 9);
    let answer = model.commit(&sneaks);
    assert!(matches!(answer, CommitAnswer::Refused(Refusal::Deadline(_))), "{answer:?}");
    assert_eq!(model.heads[&id(0)].must_end_by, end);
    let mut moves = says(&model, id(0), &[ke::DEADLINE_MOVED], cid(3));
    moves.must_end_in = Some(Duration::from_secs(1));
    let done = ok(model.commit(&moves));
    let head = &model.heads[&id(0)];
    assert_eq!(head.must_end_by, Some(done.at + Duration::from_secs(1)));
    assert!(head.due <= head.must_end_by, "earlier at once");
}

#[test]
fn a_touch_never_moves_due_past_the_deadline_or_mail() {
    let mut model = model();
    ok(model.commit(&born(id(0), "made_blocked", cid(1))));
    let head = model.heads[&id(0)].clone();
    let touch = |due, faults| {
        Op::Touch(Touch {
            entity: id(0),
            epoch: head.epoch,
            version: head.version,
            due,
            check_at: None,
            faults,
            ring_only: false,
        })
    };
    for due in [None, Some(Timestamp::MAX)] {
        assert_eq!(model.apply(&[touch(due, 0)]), [Answer::Touch(true)]);
        assert_eq!(model.heads[&id(0)].due, head.must_end_by);
    }
    model.apply(&[mail(id(0), "m")]);
    assert_eq!(model.apply(&[touch(Some(Timestamp::MAX), 0)]), [Answer::Touch(true)]);
    assert_eq!(model.heads[&id(0)].due, Some(model.now));
}
