//! A batch: nobody is disturbed by a neighbour, and repetition is safe.

use super::{
    model::Model,
    subject::{born, cid, claim, id, lanes, mail, model, ok, park, says, session},
};
use proptest::prelude::*;
use tenure_kernel::{
    commit::{Commit, CommitAnswer, Expect, MailStance, Refusal, TenureChange, UniqueKey},
    head::lane_of,
    ids::{EntityId, MessageId},
    mail::MailAnswer,
    outbox::{Carrier, Delivery, DeliveryAnswer, Handover, Message, Target},
    sessions::lane_id,
    store::{Answer, Op},
    stream::{Body, Hash},
    table::kernel_events as ke,
};

fn op(commit: Commit) -> Op {
    Op::Commit(Box::new(commit))
}

fn keyed(n: u16, key: &str, digest: &[u8]) -> Commit {
    let mut birth = born(id(n), "made_queued", cid(u64::from(n)));
    birth.keys = vec![UniqueKey { key: key.into(), digest: Hash::of(digest) }];
    birth
}

proptest! {
    /// A refused commit, put anywhere into a batch, changes no answer and no row of the others.
    #[test]
    fn a_refused_commit_leaves_its_neighbours_as_without_it(kind in 0u8..6, at in 0usize..6) {
        let mut model = model();
        let s = session(&mut model, 0, 1_000);
        for n in 0..4 {
            ok(model.commit(&born(id(n), "made_queued", cid(u64::from(n)))));
        }
        ok(model.commit(&keyed(8, "taken", b"x")));
        claim(&mut model, id(3), s, 1);
        let good = vec![
            op(says(&model, id(0), &["noted"], cid(20))),
            mail(id(0), "a"),
            op(born(id(5), "made_idle", cid(21))),
            Op::Claim { id: cid(22), entity: id(1), session: s, lease: super::subject::HOUR },
            mail(id(7), "to nobody"),
        ];
        let bad = op(match kind {
            0 => says(&model, id(2), &["parked"], cid(30)),
            1 => {
                let mut c = says(&model, id(2), &["noted"], cid(30));
                c.state = Some(vec![0; tenure_kernel::limits::HEAD_STATE_BYTES_MAX + 1]);
                c
            }
            2 => keyed(9, "taken", b"y"),
            3 => Commit { entity: id(77), ..says(&model, id(2), &["noted"], cid(30)) },
            4 => Commit { expect: Expect::Holder { epoch: 9, version: 1 }, ..says(&model, id(2), &["noted"], cid(30)) },
            _ => {
                let mut c = born(id(9), "made_queued", cid(30));
                c.must_end_in = None;
                c
            }
        });
        let mut without = model.clone();
        let expected = without.apply(&good);
        let mut ops = good.clone();
        let at = at.min(ops.len());
        ops.insert(at, bad);
        let mut answers = model.apply(&ops);
        let refused = answers.remove(at);
        prop_assert!(!matches!(refused, Answer::Commit(CommitAnswer::Committed(_))), "{refused:?}");
        prop_assert_eq!(answers, expected);
        prop_assert_eq!(&model.heads, &without.heads);
        prop_assert_eq!(&model.streams, &without.streams);
        prop_assert_eq!(&model.mail, &without.mail);
        prop_assert_eq!(&model.keys, &without.keys);
    }

    /// Asking again with the same id gives the first answer and changes nothing, whatever came since.
    #[test]
    fn a_repeated_commit_gets_its_first_answer_whatever_came_since(later in 0u8..5) {
        let mut model = model();
        let (a, b) = (session(&mut model, 0, 1_000), session(&mut model, 1, 1_000));
        let birth = keyed(0, "k", b"d");
        let mut said = vec![(birth.clone(), ok(model.commit(&birth)))];
        claim(&mut model, id(0), a, 1);
        let mut note = says(&model, id(0), &["noted"], cid(50));
        note.messages = vec![Message::mail(id(0), "echo", Body::Inline(vec![]))];
        said.push((note.clone(), ok(model.commit(&note))));
        if later > 0 {
            let park = park(&model, id(0), cid(51), MailStance::ReadAll(0));
            said.push((park.clone(), ok(model.commit(&park))));
        }
        if later > 1 {
            let wake = says(&model, id(0), &["woke"], cid(52));
            said.push((wake.clone(), ok(model.commit(&wake))));
            claim(&mut model, id(0), b, 2);
        }
        if later > 2 {
            model.apply(&[mail(id(0), "m")]);
            let mut end = says(&model, id(0), &["ended"], cid(53));
            end.mail = MailStance::Regardless;
            said.push((end.clone(), ok(model.commit(&end))));
        }
        let before = model.clone();
        for (commit, first) in &said {
            let again = ok(model.commit(commit));
            prop_assert!(again.repeated);
            prop_assert_eq!((again.version, again.epoch), (first.version, first.epoch));
            prop_assert_eq!((again.chain, again.at), (first.chain, first.at));
        }
        prop_assert_eq!(&model.heads, &before.heads);
        prop_assert_eq!(&model.streams, &before.streams);
        prop_assert_eq!(&model.outbox, &before.outbox);
        let mut other = said[1].0.clone();
        other.id = cid(99);
        prop_assert!(!matches!(model.commit(&other), CommitAnswer::Committed(_)), "another id is another commit");
    }
}

#[test]
fn a_repeated_end_of_tenure_at_any_version_is_safe() {
    let mut model = model();
    let s = session(&mut model, 0, 1_000);
    ok(model.commit(&born(id(0), "made_queued", cid(1))));
    let held = claim(&mut model, id(0), s, 1);
    let mut end = says(&model, id(0), &[ke::TENURE_ENDED], cid(2));
    end.expect = Expect::EndTenure { epoch: held.epoch };
    end.tenure = TenureChange::End;
    end.mail = MailStance::Regardless;
    ok(model.commit(&end));
    let next = claim(&mut model, id(0), s, 2);
    // It names no version, so it can not be looked up; it is refused as stale, which is as safe.
    assert_eq!(model.commit(&end), CommitAnswer::StaleEpoch { current: next.epoch });
}

#[test]
fn a_second_commit_of_an_entity_in_a_batch_is_busy() {
    let mut model = model();
    let s = session(&mut model, 0, 1_000);
    ok(model.commit(&born(id(0), "made_queued", cid(1))));
    let first = op(says(&model, id(0), &["noted"], cid(2)));
    let second = op(says(&model, id(0), &["noted"], cid(3)));
    let third = Op::Claim { id: cid(4), entity: id(0), session: s, lease: super::subject::HOUR };
    let answers = model.apply(&[first, second, third]);
    assert!(matches!(answers[0], Answer::Commit(CommitAnswer::Committed(_))));
    assert_eq!(answers[1], Answer::Commit(CommitAnswer::Busy));
    assert_eq!(answers[2], Answer::Busy);
    // A refused first one leaves the place to the second.
    let bad = op(says(&model, id(0), &["parked"], cid(5)));
    let good = op(says(&model, id(0), &["noted"], cid(6)));
    let answers = model.apply(&[bad, good]);
    assert!(matches!(answers[0], Answer::Commit(CommitAnswer::Refused(Refusal::Illegal(_)))));
    assert!(matches!(answers[1], Answer::Commit(CommitAnswer::Committed(_))));
}

#[test]
fn what_another_batch_has_locked_is_busy_and_untouched() {
    let mut model = model();
    lanes(&mut model);
    let s = session(&mut model, 0, 1_000);
    ok(model.commit(&born(id(0), "made_queued", cid(1))));
    let ops = [
        op(says(&model, id(0), &["noted"], cid(2))),
        Op::Claim { id: cid(3), entity: id(0), session: s, lease: super::subject::HOUR },
        mail(id(0), "m"),
    ];
    model.busy.insert(id(0));
    let before = model.clone();
    let answers = model.apply(&ops);
    assert_eq!(answers[0], Answer::Commit(CommitAnswer::Busy));
    assert_eq!(answers[1..], [Answer::Busy, Answer::Busy]);
    assert_eq!(model.heads, before.heads);
    assert_eq!(model.mail, before.mail);
}

#[test]
fn one_key_is_one_entity_and_the_digest_tells_the_input() {
    let mut model = model();
    ok(model.commit(&keyed(0, "k", b"same")));
    let same = CommitAnswer::Exists { entity: id(0), same: true };
    let other = CommitAnswer::Exists { entity: id(0), same: false };
    assert_eq!(model.commit(&keyed(1, "k", b"same")), same);
    assert_eq!(model.commit(&keyed(2, "k", b"else")), other);
    // Within one batch too.
    let answers = model.apply(&[op(keyed(3, "j", b"1")), op(keyed(4, "j", b"1"))]);
    assert!(matches!(answers[0], Answer::Commit(CommitAnswer::Committed(_))));
    assert_eq!(answers[1], Answer::Commit(CommitAnswer::Exists { entity: id(3), same: true }));
    assert!(!model.heads.contains_key(&id(4)));
    // Keys come with a birth only.
    let mut late = says(&model, id(0), &["noted"], cid(70));
    late.keys = vec![UniqueKey { key: "late".into(), digest: Hash::ZERO }];
    assert!(matches!(model.commit(&late), CommitAnswer::Refused(Refusal::Tenure(_))));
}

#[test]
fn mail_in_the_batch_of_a_park_wakes_the_parked_and_refuses_nothing() {
    let mut model = model();
    let s = session(&mut model, 0, 1_000);
    ok(model.commit(&born(id(0), "made_queued", cid(1))));
    claim(&mut model, id(0), s, 1);
    let park = op(park(&model, id(0), cid(2), MailStance::ReadAll(0)));
    let answers = model.apply(&[mail(id(0), "with it"), park]);
    assert_eq!(answers[0], Answer::Mail(MailAnswer::Accepted { seq: 1, holder: None }));
    let head = &model.heads[&id(0)];
    assert_eq!((head.due, head.has_mail(), head.holder), (Some(model.now), true, None));
}

#[test]
fn a_park_that_has_not_read_all_mail_is_refused() {
    let mut model = model();
    let s = session(&mut model, 0, 1_000);
    ok(model.commit(&born(id(0), "made_queued", cid(1))));
    claim(&mut model, id(0), s, 1);
    model.apply(&[mail(id(0), "slips in")]);
    let before = model.heads.clone();
    for stance in
        [MailStance::Unread, MailStance::Read(1), MailStance::ReadAll(0), MailStance::ReadAll(2)]
    {
        let answer = model.commit(&park(&model, id(0), cid(2), stance));
        assert!(
            matches!(answer, CommitAnswer::MoreMail { count: 1 } | CommitAnswer::Refused(_)),
            "{stance:?}: {answer:?}"
        );
    }
    assert_eq!(model.heads, before);
    ok(model.commit(&park(&model, id(0), cid(2), MailStance::ReadAll(1))));
}

#[test]
fn nobody_is_born_having_read_mail() {
    let mut model = model();
    for (n, stance) in [MailStance::Read(3), MailStance::ReadAll(3)].into_iter().enumerate() {
        let mut birth = born(id(n as u16), "made_blocked", cid(n as u64));
        birth.mail = stance;
        let answer = model.commit(&birth);
        assert!(matches!(answer, CommitAnswer::Refused(_)), "{answer:?}");
    }
}

fn deliver(model: &mut Model, delivery: Delivery) -> DeliveryAnswer {
    match model.apply(&[Op::Deliver(Box::new(delivery))]).remove(0) {
        Answer::Deliver(answer) => answer,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lane_that_nobody_holds_delivers_nothing() {
    let mut model = model();
    lanes(&mut model);
    let s = session(&mut model, 0, 1_000);
    ok(model.commit(&born(id(0), "made_idle", cid(1))));
    let mut tells = says(&model, id(0), &["noted"], cid(2));
    tells.messages = vec![Message::mail(id(0), "m", Body::Inline(vec![]))];
    ok(model.commit(&tells));
    let message = *model.outbox.keys().next().unwrap();
    let lane = lane_id(lane_of(id(0)));
    let delivery = |lane_epoch| Delivery {
        id: message,
        by: Carrier::Lane(lane_epoch),
        with: Handover::Mail { to: id(0), kind: "m".into(), body: Body::Inline(vec![]) },
    };
    assert_eq!(deliver(&mut model, delivery(0)), DeliveryAnswer::StaleLane);
    let held = claim(&mut model, lane, s, 1);
    assert_eq!(deliver(&mut model, delivery(held.epoch + 1)), DeliveryAnswer::StaleLane);
    assert_eq!(
        deliver(&mut model, delivery(held.epoch)),
        DeliveryAnswer::Delivered { holder: None, due: true }
    );
    assert_eq!(deliver(&mut model, delivery(held.epoch)), DeliveryAnswer::Gone);
}

/// A cancel that creates its target cancelled, and the creation of that target, race. Whoever comes
/// second is told, and keeps its row: a cancel that is dropped as delivered would be lost.
#[test]
fn a_creation_that_finds_its_entity_there_keeps_its_row() {
    let mut model = model();
    lanes(&mut model);
    let s = session(&mut model, 0, 1_000);
    ok(model.commit(&born(id(0), "made_idle", cid(1))));
    let mut tells = says(&model, id(0), &["noted"], cid(2));
    let to = Target::Create { id: id(1), kind: "subject".into() };
    let create = Message { to, kind: "create".into(), body: Body::Inline(vec![]) };
    tells.messages = vec![create.clone(), create.clone(), create];
    ok(model.commit(&tells));
    let rows: Vec<_> = model.outbox.keys().copied().collect();
    let lane_epoch = claim(&mut model, lane_id(lane_of(id(0))), s, 1).epoch;
    let creation = |id, commit| Delivery {
        id,
        by: Carrier::Lane(lane_epoch),
        with: Handover::Create(Box::new(commit)),
    };
    let alive = born(id(1), "made_blocked", cid(3));
    assert_eq!(
        deliver(&mut model, creation(rows[0], alive)),
        DeliveryAnswer::Delivered { holder: None, due: false }
    );
    let cancelled = born(id(1), "made_done", cid(4));
    assert_eq!(deliver(&mut model, creation(rows[1], cancelled)), DeliveryAnswer::TargetExists);
    assert!(model.outbox.contains_key(&rows[1]), "the cancel is still to be delivered");
    let mut endless = born(id(2), "made_blocked", cid(5));
    endless.must_end_in = None;
    let answer = deliver(&mut model, creation(rows[2], endless));
    assert!(matches!(answer, DeliveryAnswer::Refused(_)), "{answer:?}");
    assert!(model.outbox.contains_key(&rows[2]), "a refused creation is not dropped in silence");
}

/// A commit of `source` that says one thing to each, and what carries that, in order.
fn carrying(model: &Model, source: EntityId, n: u64, to: &[EntityId]) -> Vec<Op> {
    let mut tells = says(model, source, &["noted"], cid(n));
    let say = |to: &EntityId| Message::mail(*to, "m", Body::Inline(vec![]));
    tells.messages = to.iter().map(say).collect();
    let version = tells.first_version().unwrap();
    let carried = to.iter().zip(0u32..).map(|(to, ordinal)| {
        let id = MessageId { source, version, ordinal };
        let with = Handover::Mail { to: *to, kind: "m".into(), body: Body::Inline(vec![]) };
        Op::Deliver(Box::new(Delivery { id, by: Carrier::Commit, with }))
    });
    std::iter::once(Op::Commit(Box::new(tells))).chain(carried).collect()
}

fn deliveries(answers: &[Answer]) -> Vec<&DeliveryAnswer> {
    let arrivals = answers.iter().filter_map(|a| match a {
        Answer::Deliver(answer) => Some(answer),
        _ => None,
    });
    arrivals.collect()
}

const HEARD: &DeliveryAnswer = &DeliveryAnswer::Delivered { holder: None, due: true };

fn three(model: &mut Model) -> [EntityId; 3] {
    let all = [id(0), id(1), id(2)];
    for (n, entity) in all.iter().enumerate() {
        ok(model.commit(&born(*entity, "made_idle", cid(n as u64))));
    }
    all
}

#[test]
fn what_a_commit_carries_arrives_with_it_once_and_is_never_a_row() {
    let mut model = model();
    let [source, b, c] = three(&mut model);
    let ops = carrying(&model, source, 10, &[b, c, b]);
    let answers = model.apply(&ops);
    assert_eq!(deliveries(&answers), [HEARD; 3]);
    assert!(model.outbox.is_empty());
    let heard =
        |model: &Model| -> Vec<String> { model.mail[&b].iter().map(|m| m.id.0.clone()).collect() };
    assert_eq!(heard(&model), [format!("{source}/2/0"), format!("{source}/2/2")]);
    assert_eq!(model.heads[&c].mail_count, 1);
    // Asked again, because its answer was lost: the commit is the one there is, and carries nothing a second time.
    let before = model.heads.clone();
    let again = model.apply(&ops);
    assert!(matches!(&again[0], Answer::Commit(CommitAnswer::Committed(c)) if c.repeated));
    assert_eq!(deliveries(&again), [&DeliveryAnswer::Gone; 3]);
    assert_eq!((model.heads.clone(), heard(&model).len()), (before, 2));
}

#[test]
fn what_a_commit_carries_stays_behind_what_its_source_said_before() {
    let mut model = model();
    let [source, b, c] = three(&mut model);
    let posted = carrying(&model, source, 10, &[c]);
    model.apply(&posted[..1]);
    assert_eq!(model.outbox.len(), 1, "nobody carried it");
    let ops = carrying(&model, source, 11, &[b]);
    assert_eq!(deliveries(&model.apply(&ops)), [&DeliveryAnswer::Behind]);
    assert_eq!((model.outbox.len(), model.heads[&b].mail_count), (2, 0));
    // What leaves the store is another line, which this one does not wait for.
    model.outbox.clear();
    let mut wire = says(&model, source, &["noted"], cid(12));
    let to = Target::Wire("evt.subject".into());
    wire.messages = vec![Message { to, kind: "m".into(), body: Body::Inline(vec![]) }];
    ok(model.commit(&wire));
    let ops = carrying(&model, source, 13, &[b]);
    assert_eq!(deliveries(&model.apply(&ops)), [HEARD]);
}

#[test]
fn what_can_not_be_carried_is_posted_and_so_is_all_behind_it() {
    let mut model = model();
    let [source, b, c] = three(&mut model);
    let ops = carrying(&model, source, 10, &[b, id(9), c]);
    let expected = [HEARD, &DeliveryAnswer::UnknownTarget, &DeliveryAnswer::Behind];
    assert_eq!(deliveries(&model.apply(&ops)), expected);
    let left: Vec<u32> = model.outbox.keys().map(|id| id.ordinal).collect();
    assert_eq!((left, model.heads[&c].mail_count), (vec![1, 2], 0));

    let mut model = super::subject::model();
    let [source, b, _] = three(&mut model);
    model.busy.insert(b);
    let ops = carrying(&model, source, 10, &[b]);
    assert_eq!(deliveries(&model.apply(&ops)), [&DeliveryAnswer::Busy]);
    assert_eq!((model.outbox.len(), model.heads[&b].mail_count), (1, 0));

    // Another commit under the same version was refused: what it says is not said.
    let mut model = super::subject::model();
    let [source, b, c] = three(&mut model);
    let (mut ops, other) = (carrying(&model, source, 10, &[b]), carrying(&model, source, 11, &[c]));
    ops[1] = other[0].clone();
    ops.push(other[1].clone());
    assert_eq!(deliveries(&model.apply(&ops)), [&DeliveryAnswer::Gone]);
    assert_eq!((model.outbox.len(), model.heads[&c].mail_count), (1, 0));

    // One that is left out is not overtaken.
    let mut model = super::subject::model();
    let [source, b, c] = three(&mut model);
    let mut ops = carrying(&model, source, 10, &[b, c]);
    ops.remove(1);
    assert_eq!(deliveries(&model.apply(&ops)), [&DeliveryAnswer::Behind]);
    assert_eq!(model.outbox.len(), 2);
}

#[test]
fn a_refused_commit_carries_nothing() {
    let mut model = model();
    let [source, b, _] = three(&mut model);
    let stale = carrying(&model, source, 10, &[b]);
    ok(model.commit(&says(&model, source, &["noted"], cid(11))));
    let answers = model.apply(&stale);
    assert!(matches!(answers[0], Answer::Commit(CommitAnswer::VersionConflict { .. })));
    assert_eq!(deliveries(&answers), [&DeliveryAnswer::Gone]);
    assert_eq!((model.outbox.len(), model.heads[&b].mail_count), (0, 0));
}

#[test]
fn what_is_born_on_the_way_belongs_to_its_creators_tenant() {
    let mut model = model();
    let mut creator = born(id(0), "made_idle", cid(1));
    if let Expect::Absent(birth) = &mut creator.expect {
        birth.tenant = "acme".into();
    }
    let to = Target::Create { id: id(1), kind: "subject".into() };
    creator.messages = vec![Message { to, kind: "create".into(), body: Body::Inline(vec![]) }];
    let with = Handover::Create(Box::new(born(id(1), "made_queued", cid(2))));
    let message = MessageId { source: id(0), version: 1, ordinal: 0 };
    let delivery = Delivery { id: message, by: Carrier::Commit, with };
    let answers = model.apply(&[Op::Commit(Box::new(creator)), Op::Deliver(Box::new(delivery))]);
    let [DeliveryAnswer::Delivered { holder: None, .. }] = deliveries(&answers)[..] else {
        panic!("{answers:?}")
    };
    assert_eq!(model.heads[&id(1)].tenant, "acme");
    assert!(model.outbox.is_empty());
}
