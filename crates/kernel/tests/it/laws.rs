//! Random sequences of batches against the model, with every law checked after each batch.

use super::{
    model::Model,
    subject::{HOUR, born, cid, event, expect_now, id, lanes, mail, model, session},
};
use proptest::prelude::*;
use std::{collections::BTreeMap, time::Duration};
use tenure_kernel::{
    commit::{Commit, CommitAnswer, Expect, MailStance, TenureChange},
    evidence::NewEvidence,
    head::{Head, lane_of},
    ids::{EntityId, MessageId},
    mail::{Mail, MailAnswer},
    outbox::{Carrier, Delivery, Handover, Message, Target},
    sessions::{Hold, Renewal, lane_id},
    store::{Answer, Op, Touch},
    stream::Body,
    table::{Claimable, Class, kernel_events as ke},
    time::Timestamp,
    timers::TimerChange,
    verify,
};

const ENTITIES: u16 = 5;

/// One random wish. What it becomes depends on the heads at that moment.
#[derive(Clone, Debug)]
struct Wish {
    what: u8,
    who: u16,
    session: u16,
    event: u8,
    flavour: u8,
    skew: i8,
    after_ms: u32,
}

fn wish() -> impl Strategy<Value = Wish> {
    (0u8..16, 0..ENTITIES, 0u16..3, 0u8..14, any::<u8>(), -1i8..=1, 0u32..100_000).prop_map(
        |(what, who, session, event, flavour, skew, after_ms)| Wish {
            what,
            who,
            session,
            event,
            flavour,
            skew,
            after_ms,
        },
    )
}

const EVENTS: [&str; 14] = [
    "made_queued",
    "made_blocked",
    "made_idle",
    "made_running",
    "parked",
    "rested",
    "woke",
    "noted",
    "ended",
    ke::TENURE_ENDED,
    ke::FORCE_ENDED,
    ke::DEADLINE_MOVED,
    ke::ATTENTION_RAISED,
    ke::SEALED,
];

fn op(model: &Model, sessions: &[EntityId], w: &Wish, n: u64) -> Op {
    let entity = id(w.who);
    let head = model.heads.get(&entity);
    let now = model.now;
    match w.what {
        0..=6 => Op::Commit(Box::new(commit(head, entity, sessions, w, n))),
        7 | 8 => Op::Claim {
            id: cid(n),
            entity,
            session: sessions[w.session as usize],
            lease: Duration::from_millis(w.after_ms.into()),
        },
        9 | 10 => mail(entity, &format!("m{}", w.flavour % 64)),
        11 => Op::Evidence(NewEvidence {
            entity,
            key: format!("k{}", w.flavour % 4),
            epoch: u64::from(w.flavour % 3),
            call: 0,
            who: "w".into(),
            body: Body::Inline(vec![w.flavour % 2]),
        }),
        12 => Op::Touch(Touch {
            entity,
            epoch: skewed(head.map_or(0, |h| h.epoch), w.skew),
            version: head.map_or(0, |h| h.version),
            due: (w.flavour.is_multiple_of(2))
                .then(|| now + Duration::from_millis(w.after_ms.into())),
            check_at: None,
            // A touch that found a fault backs off; the others look when the first rule says.
            faults: 1,
            ring_only: w.flavour.is_multiple_of(3),
        }),
        13 => Op::Renew(Renewal {
            session: sessions[w.session as usize],
            holds: (0..ENTITIES)
                .map(|e| Hold { entity: id(e), epoch: u64::from(w.flavour % 4), mark: 0 })
                .collect(),
        }),
        _ => {
            let first = model.outbox.values().next();
            let (message, with) = match first.map(|p| (p.id, &p.message)) {
                Some((id, Message { to: Target::Mail(to), kind, body })) => {
                    (id, Handover::Mail { to: *to, kind: kind.clone(), body: body.clone() })
                }
                _ => (MessageId { source: entity, version: 1, ordinal: 0 }, Handover::Nothing),
            };
            let lane = model.heads.get(&lane_id(lane_of(message.source)));
            let lane_epoch = skewed(lane.map_or(0, |h| h.epoch), w.skew);
            Op::Deliver(Box::new(Delivery { id: message, by: Carrier::Lane(lane_epoch), with }))
        }
    }
}

/// What a commit takes along: often everything, now and then with a gap, or under a version that is not its own.
fn along(op: &Op, w: &Wish) -> Vec<Op> {
    let Op::Commit(commit) = op else { return Vec::new() };
    let Some(first) = commit.first_version() else { return Vec::new() };
    let version = skewed(first + commit.events.len() as u64 - 1, w.skew);
    let carried = commit.messages.iter().zip(0u32..).filter_map(|(message, ordinal)| {
        let Target::Mail(to) = message.to else { return None };
        let with = Handover::Mail { to, kind: message.kind.clone(), body: message.body.clone() };
        let id = MessageId { source: commit.entity, version, ordinal };
        Some(Op::Deliver(Box::new(Delivery { id, by: Carrier::Commit, with })))
    });
    carried.skip(usize::from(w.flavour % 4 == 3)).collect()
}

/// What one source said is heard in the order in which it was said.
fn in_order(heard: &[Mail]) {
    let mut last: BTreeMap<&str, (u64, u32)> = BTreeMap::new();
    for mail in heard {
        // Only what a commit said has such a name.
        let Some((source, place)) = mail.id.0.split_once('/') else { continue };
        let Some((version, ordinal)) = place.split_once('/') else { continue };
        let (Ok(version), Ok(ordinal)) = (version.parse(), ordinal.parse()) else { continue };
        let place = (version, ordinal);
        let before = last.insert(source, place);
        assert!(before.is_none_or(|before| before < place), "{heard:?}");
    }
}

fn skewed(n: u64, skew: i8) -> u64 {
    n.saturating_add_signed(skew.into())
}

fn commit(
    head: Option<&Head>,
    entity: EntityId,
    sessions: &[EntityId],
    w: &Wish,
    n: u64,
) -> Commit {
    let name = EVENTS[w.event as usize];
    let Some(head) = head else {
        let mut commit = born(entity, EVENTS[w.event as usize % 4], cid(n));
        if w.flavour.is_multiple_of(4) {
            let session = sessions[w.session as usize];
            commit.tenure = TenureChange::Take { session, lease: HOUR };
        }
        if w.flavour % 16 == 5 {
            commit.events.push(event("ended"));
            commit.must_end_in = None;
        }
        return commit;
    };
    let (epoch, version) = (skewed(head.epoch, w.skew), head.version);
    let version = if w.after_ms.is_multiple_of(7) { skewed(version, -1) } else { version };
    let expect = match w.flavour % 8 {
        0 => Expect::Overrule { epoch, version },
        1 => Expect::EndTenure { epoch },
        2 => Expect::Nobody { epoch, version },
        3 => Expect::Holder { epoch, version },
        _ => expect_now(head),
    };
    let mut commit = Commit::new(cid(n), entity, expect, vec![event(name)]);
    commit.mail = match w.flavour % 5 {
        0 => MailStance::Unread,
        1 => MailStance::Read(head.mail_count),
        2 => MailStance::ReadAll(head.mail_count),
        3 => MailStance::ReadAll(head.mail_count.saturating_sub(1)),
        _ => MailStance::Regardless,
    };
    if matches!(name, "parked" | "rested") {
        commit.events.push(event(ke::TENURE_ENDED));
    }
    if commit.events.iter().any(|e| e.name == ke::TENURE_ENDED) {
        commit.tenure = TenureChange::End;
    }
    let after = Duration::from_millis(w.after_ms.into());
    match w.after_ms % 5 {
        0 => commit.timers.push(TimerChange::set(format!("t{}", w.flavour % 3), after)),
        1 => commit.timers.push(TimerChange::guard("g", after)),
        2 => commit.timers.push(TimerChange::clear("t1")),
        _ => {}
    }
    if name == "woke" && head.class() == Class::Resting || name == ke::DEADLINE_MOVED {
        commit.must_end_in = Some(after);
    }
    if name == ke::ATTENTION_RAISED {
        let words = ["", "look", "\u{1F440}"];
        commit.attention = Some(Some(words[w.flavour as usize % 3].to_owned()));
    }
    if w.flavour.is_multiple_of(3) && !matches!(commit.expect, Expect::EndTenure { .. }) {
        let body = Body::Inline(vec![w.flavour]);
        let to = |n: u16| id((w.session + n) % ENTITIES);
        let tell = |n| Message::mail(to(n), "told", body.clone());
        commit.messages.extend((0..=u16::from(w.flavour / 3 % 3)).map(tell));
    }
    commit
}

/// Everything that must hold of one head, by the laws.
fn lawful(model: &Model, head: &Head, latest: Timestamp) {
    match head.class() {
        Class::Open => {
            let (due, end) = head.due.zip(head.must_end_by).expect("open means due");
            assert!(due <= end, "{head:?}");
        }
        Class::Resting => assert_eq!(head.must_end_by, None),
        Class::Final => {
            let rest = (head.holder, head.due, head.check_at, head.must_end_by);
            assert_eq!(rest, (None, None, None, None), "final is final: {head:?}");
            assert!(head.timers.is_empty());
        }
    }
    if head.class() != Class::Final && head.faults == 0 {
        if let Some(earliest) = head.earliest() {
            // What has fired is due now; how long ago it fired does not matter.
            let bound = earliest.max(latest);
            assert!(head.due.is_some_and(|d| d <= bound), "due is a lower bound: {head:?}");
        }
        if head.holder.is_none() && head.has_mail() {
            assert!(head.due.is_some_and(|d| d <= latest), "unread mail is due now: {head:?}");
        }
    }
    assert_eq!(head.holder.is_some(), head.check_at.is_some(), "{head:?}");
    assert!(head.holder.is_none() || head.status.row().claimable == Claimable::No);
    assert_eq!(head.ready_at.is_some(), head.belongs_in_queue());
    let rows = model.mail.get(&head.id).map_or(0, Vec::len) as u64;
    assert_eq!(head.mail_count, rows, "the counter counts rows");
    assert!(head.mail_read <= head.mail_count);
}

/// What may have happened between two looks at one head.
fn lawful_step(before: &Head, after: &Head) {
    assert!(after.epoch >= before.epoch && after.version >= before.version);
    assert!(after.mail_count >= before.mail_count && after.mail_read >= before.mail_read);
    assert!(after.changed_at >= before.changed_at);
    if before.class() == Class::Final {
        assert_eq!(before, after, "final is final");
    }
    if before.version == after.version {
        let hard =
            |h: &Head| (h.status, h.epoch, h.holder, h.chain, h.mail_read, h.must_end_by, h.sealed);
        assert_eq!(hard(before), hard(after), "nothing hard changes without an event");
        assert_eq!((&before.timers, &before.state), (&after.timers, &after.state));
    }
    if before.holder != after.holder {
        assert!(after.epoch > before.epoch, "the epoch rises with every change of holder");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn random_batches_keep_every_law(
        batches in prop::collection::vec(
            (prop::collection::vec(wish(), 1..7), 0u32..40_000_000, any::<bool>()), 1..40),
    ) {
        let mut model = model();
        lanes(&mut model);
        let sessions: Vec<_> = (0..3).map(|n| session(&mut model, n, 10_000)).collect();
        for lane in 0..tenure_kernel::limits::LANES {
            super::subject::claim(&mut model, lane_id(lane), sessions[0], u64::from(lane));
        }
        let mut n = 0u64;
        let mut latest = model.now;
        let mut told: BTreeMap<MessageId, u64> = BTreeMap::new();
        for (wishes, pass_micros, back) in batches {
            // Time mostly passes; sometimes the store's clock is set back.
            let micros = model.now.as_micros() + i64::from(pass_micros) / if back { -4 } else { 1 };
            model.now = Timestamp::from_micros(micros);
            let mut ops: Vec<_> = wishes.iter().map(|w| { n += 1; op(&model, &sessions, w, n) }).collect();
            let along: Vec<_> = ops.iter().zip(&wishes).flat_map(|(op, w)| along(op, w)).collect();
            ops.extend(along);
            latest = latest.max(model.now);
            let before = model.clone();
            let answers = model.apply(&ops);
            prop_assert_eq!(answers.len(), ops.len());
            for (op, answer) in ops.iter().zip(&answers) {
                fenced(&before, op, answer);
                if let (Op::Deliver(d), Answer::Deliver(tenure_kernel::outbox::DeliveryAnswer::Delivered { .. })) = (op, answer) {
                    *told.entry(d.id).or_default() += 1;
                }
            }
            for head in model.heads.values() {
                lawful(&model, head, latest);
                verify::verify(head, &model.streams[&head.id], &model.judge.tables).unwrap();
            }
            for (id, head) in &before.heads {
                lawful_step(head, &model.heads[id]);
                prop_assert!(model.streams[id].starts_with(&before.streams[id]), "append only");
            }
            prop_assert!(told.values().all(|times| *times == 1), "delivered once");
            for heard in model.mail.values() {
                in_order(heard);
            }
        }
    }
}

/// A commit or claim that was accepted believed what was so; one that was stale wrote nothing.
fn fenced(before: &Model, op: &Op, answer: &Answer) {
    let Op::Commit(commit) = op else { return };
    let Answer::Commit(answer) = answer else { panic!("{answer:?}") };
    let head = before.heads.get(&commit.entity);
    if let CommitAnswer::Committed(c) = answer {
        assert!(!c.repeated);
        match (&commit.expect, head) {
            (Expect::Absent(_), None) => assert!(c.version == commit.events.len() as u64),
            (Expect::Holder { epoch, version }, Some(h)) => {
                assert_eq!((*epoch, *version, true), (h.epoch, h.version, h.holder.is_some()));
            }
            (Expect::Nobody { epoch, version }, Some(h)) => {
                assert_eq!((*epoch, *version, false), (h.epoch, h.version, h.holder.is_some()));
            }
            (Expect::Overrule { epoch, version }, Some(h)) => {
                assert_eq!((*epoch, *version), (h.epoch, h.version));
            }
            (Expect::EndTenure { epoch }, Some(h)) => {
                assert_eq!((*epoch, true), (h.epoch, h.holder.is_some()));
            }
            other => panic!("accepted against {other:?}"),
        }
        if let MailStance::ReadAll(n) = commit.mail {
            assert!(head.is_none_or(|h| n >= h.mail_count), "mail slipped through");
        }
    }
}

proptest! {
    /// Law 1: whatever a commit holds, a stale epoch or version is refused before anything else.
    #[test]
    fn a_stale_writer_is_refused_whatever_it_writes(w in wish(), by in 1u64..9, held: bool) {
        let mut model = model();
        let s = session(&mut model, 0, 1_000);
        super::subject::ok(model.commit(&born(id(0), "made_queued", cid(1))));
        if held {
            super::subject::claim(&mut model, id(0), s, 1);
        }
        let head = model.heads[&id(0)].clone();
        let mut commit = commit(Some(&head), id(0), &[s, s, s], &Wish { skew: 0, ..w }, 9);
        let (epoch, version) = (head.epoch, head.version);
        let wrong = epoch + by;
        for expect in [
            Expect::Holder { epoch: wrong, version },
            Expect::Nobody { epoch: wrong, version },
            Expect::Overrule { epoch: wrong, version },
            Expect::EndTenure { epoch: wrong },
            // The right numbers with a wrong belief about the holder are stale too.
            if held { Expect::Nobody { epoch, version } } else { Expect::Holder { epoch, version } },
        ] {
            commit.expect = expect;
            prop_assert_eq!(model.commit(&commit), CommitAnswer::StaleEpoch { current: epoch });
        }
        for expect in [
            Expect::Overrule { epoch, version: version + by },
            Expect::Overrule { epoch, version: version - 1 },
        ] {
            commit.expect = expect;
            prop_assert_eq!(model.commit(&commit), CommitAnswer::VersionConflict { current: version });
        }
        prop_assert_eq!(&model.heads[&id(0)], &head);
    }
}

#[test]
fn the_random_walk_reaches_everything_it_claims_to() {
    // A walk that never commits proves nothing: count what one fixed walk reaches.
    use proptest::{strategy::ValueTree, test_runner::TestRunner};
    let mut runner = TestRunner::deterministic();
    let mut model = model();
    lanes(&mut model);
    let sessions: Vec<_> = (0..3).map(|n| session(&mut model, n, 10_000)).collect();
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    for n in 0..6_000u64 {
        if n % 300 == 0 {
            for entity in (0..ENTITIES).map(id) {
                model.heads.remove(&entity);
                model.streams.remove(&entity);
                model.mail.remove(&entity);
            }
        }
        let w = wish().new_tree(&mut runner).unwrap().current();
        let op = op(&model, &sessions, &w, n);
        let answer = model.apply(&[op]).remove(0);
        let name = match answer {
            Answer::Commit(CommitAnswer::Refused(r)) => format!("{r:?}"),
            Answer::Commit(a) => format!("{a:?}"),
            Answer::Claim(Ok(_)) => "claimed".into(),
            Answer::Mail(MailAnswer::Accepted { holder, .. }) => {
                format!("mail {}", holder.is_some())
            }
            other => format!("{other:?}"),
        };
        let words = name.split(['{', '(', '[']).next().unwrap_or_default();
        *seen.entry(words.trim().to_owned()).or_default() += 1;
    }
    for what in [
        "Committed",
        "StaleEpoch",
        "VersionConflict",
        "Final",
        "MoreMail",
        "MailNotRead",
        "Illegal",
        "Deadline",
        "Tenure",
        "claimed",
        "mail true",
        "mail false",
        "Evidence",
        "Touch",
        "Renew",
        "Deliver",
    ] {
        assert!(seen.get(what).is_some_and(|n| *n > 3), "{what} is not reached: {seen:?}");
    }
}
