//! Every limit of the kernel, at the limit and one past it.

use super::{
    model::Model,
    subject::{born, cid, event, id, model, says},
};
use std::time::Duration;
use tenure_kernel::{
    claims::Planner,
    commit::{Commit, CommitAnswer, Expect, Refusal, UniqueKey},
    evidence::{EvidenceAnswer, NewEvidence},
    ids::MailId,
    limits::*,
    mail::{MailAnswer, NewMail},
    outbox::{Message, Target},
    store::{Answer, Op},
    stream::{Body, Hash, NewEvent},
    timers::TimerChange,
};

/// A change that is fine at `limit` and refused at `limit + 1`.
fn at_and_past(limit: usize, change: impl Fn(&mut Commit, usize)) {
    for (size, fits) in [(limit, true), (limit + 1, false)] {
        let mut model = model();
        let mut commit = born(id(0), "made_blocked", cid(1));
        change(&mut commit, size);
        let answer = model.commit(&commit);
        match (&answer, fits) {
            (CommitAnswer::Committed(_), true) => {}
            (CommitAnswer::Refused(Refusal::Limit { actual, limit: l, .. }), false) => {
                assert!(*actual > *l, "{answer:?}");
                assert!(model.heads.is_empty(), "a refused commit leaves nothing");
            }
            other => panic!("size {size}: {other:?}"),
        }
    }
}

#[test]
fn head_state_bytes() {
    at_and_past(HEAD_STATE_BYTES_MAX, |c, n| c.state = Some(vec![b'x'; n]));
}

#[test]
fn event_body_bytes() {
    at_and_past(BODY_INLINE_BYTES_MAX, |c, n| {
        c.events.push(NewEvent::new("noted", Body::Inline(vec![0; n])));
    });
}

#[test]
fn message_body_bytes() {
    at_and_past(BODY_INLINE_BYTES_MAX, |c, n| {
        c.messages.push(Message::mail(id(1), "m", Body::Inline(vec![0; n])));
    });
}

#[test]
fn blob_bytes_of_a_body() {
    let blob = |n: usize| Body::Blob { digest: Hash::ZERO, len: n as u64 };
    at_and_past(BLOB_BYTES_MAX, |c, n| c.events.push(NewEvent::new("noted", blob(n))));
    at_and_past(BLOB_BYTES_MAX, |c, n| c.messages.push(Message::mail(id(1), "m", blob(n))));
}

#[test]
fn events_per_commit() {
    at_and_past(EVENTS_PER_COMMIT_MAX, |c, n| {
        c.events.extend((1..n).map(|_| event("noted")));
    });
    let mut model = model();
    let mut nothing = born(id(0), "made_blocked", cid(1));
    nothing.events.clear();
    assert!(matches!(model.commit(&nothing), CommitAnswer::Refused(Refusal::Limit { .. })));
}

#[test]
fn messages_per_commit() {
    at_and_past(MESSAGES_PER_COMMIT_MAX, |c, n| {
        c.messages = (0..n).map(|_| Message::mail(id(1), "m", Body::Inline(vec![]))).collect();
    });
}

#[test]
fn timers_of_an_entity() {
    at_and_past(TIMERS_MAX, |c, n| {
        let timer = |i| TimerChange::set(format!("t{i}"), Duration::from_secs(1));
        c.timers = (0..n).map(timer).collect();
    });
}

#[test]
fn names() {
    at_and_past(NAME_BYTES_MAX, |c, n| {
        let Expect::Absent(birth) = &mut c.expect else { return };
        birth.tenant = "t".repeat(n);
    });
    at_and_past(NAME_BYTES_MAX, |c, n| {
        let Expect::Absent(birth) = &mut c.expect else { return };
        birth.queue = "q".repeat(n);
    });
    at_and_past(NAME_BYTES_MAX, |c, n| {
        c.messages.push(Message::mail(id(1), "k".repeat(n), Body::Inline(vec![])));
    });
    at_and_past(NAME_BYTES_MAX, |c, n| {
        c.timers = vec![TimerChange::set("t".repeat(n), Duration::from_secs(1))];
    });
    // An event's name is in the table or illegal; one too long is a limit, before any table is asked.
    let mut model = model();
    super::subject::ok(model.commit(&born(id(0), "made_blocked", cid(1))));
    let mut long = says(&model, id(0), &["noted"], cid(2));
    long.events = vec![NewEvent::new("e".repeat(NAME_BYTES_MAX + 1), Body::Inline(vec![]))];
    assert!(matches!(model.commit(&long), CommitAnswer::Refused(Refusal::Limit { .. })));
    long.events = vec![NewEvent::new("e".repeat(NAME_BYTES_MAX), Body::Inline(vec![]))];
    assert!(matches!(model.commit(&long), CommitAnswer::Refused(Refusal::Illegal(_))));
}

#[test]
fn keys_and_subjects() {
    at_and_past(KEY_BYTES_MAX, |c, n| {
        c.keys = vec![UniqueKey { key: "k".repeat(n), digest: Hash::ZERO }];
    });
    at_and_past(KEY_BYTES_MAX, |c, n| {
        let to = Target::Wire("s".repeat(n));
        c.messages.push(Message { to, kind: "k".into(), body: Body::Inline(vec![]) });
    });
    at_and_past(KEY_BYTES_MAX, |c, n| c.attention = Some(Some("!".repeat(n))));
}

#[test]
fn mail_from_anybody() {
    let long = |n: usize, what: u8| NewMail {
        to: id(0),
        id: MailId(if what == 0 { "i".repeat(n) } else { format!("{what}/{n}") }),
        kind: if what == 1 { "k".repeat(n).into() } else { "k".into() },
        body: Body::Inline(vec![0; if what == 2 { n } else { 0 }]),
    };
    let limits = [KEY_BYTES_MAX, NAME_BYTES_MAX, BODY_INLINE_BYTES_MAX];
    for (what, limit) in (0u8..).zip(limits) {
        let mut model = model();
        super::subject::ok(model.commit(&born(id(0), "made_idle", cid(1))));
        let fits = model.apply(&[Op::Mail(long(limit, what))]).remove(0);
        assert!(matches!(fits, Answer::Mail(MailAnswer::Accepted { .. })), "{what}: {fits:?}");
        let past = model.apply(&[Op::Mail(long(limit + 1, what))]).remove(0);
        assert!(
            matches!(past, Answer::Mail(MailAnswer::Refused(Refusal::Limit { .. }))),
            "{what}: {past:?}"
        );
        assert_eq!(model.heads[&id(0)].mail_count, 1);
    }
}

#[test]
fn evidence_and_the_mail_that_tells_of_it() {
    let evidence = |key: usize, who: usize, body: usize| {
        Op::Evidence(NewEvidence {
            entity: id(0),
            key: "k".repeat(key),
            epoch: u64::MAX,
            call: u32::MAX,
            who: "w".repeat(who),
            body: Body::Inline(vec![0; body]),
        })
    };
    let mut model = model();
    super::subject::ok(model.commit(&born(id(0), "made_blocked", cid(1))));
    let (key, who, body) = (EVIDENCE_KEY_BYTES_MAX, NAME_BYTES_MAX, BODY_INLINE_BYTES_MAX);
    // At every limit at once, the mail that tells of it fits its own limits.
    let fits = model.apply(&[evidence(key, who, body)]).remove(0);
    assert_eq!(fits, Answer::Evidence(EvidenceAnswer::Recorded { mailed: true }));
    for past in [evidence(key + 1, 1, 1), evidence(1, who + 1, 1), evidence(1, 1, body + 1)] {
        let answer = model.apply(&[past]).remove(0);
        assert!(matches!(answer, Answer::Evidence(EvidenceAnswer::Refused(_))), "{answer:?}");
    }
    assert_eq!(model.evidence.len(), 1);
}

#[test]
fn a_clipped_text_fits_and_stays_text() {
    for n in 0..20 {
        let clipped = clip("a\u{00e9}\u{1F440}zz", n);
        assert!(clipped.len() <= n && "a\u{00e9}\u{1F440}zz".starts_with(clipped));
    }
    assert_eq!(clip("a\u{00e9}", 2), "a");
}

#[test]
fn a_claim_plans_no_more_than_the_limit() {
    let mut planner = Planner::default();
    planner.refresh(vec![(0, "a".into())]);
    for (ask, get) in [(CLAIM_MAX, CLAIM_MAX), (CLAIM_MAX + 1, CLAIM_MAX)] {
        assert_eq!(planner.plan(ask).iter().map(|p| p.want).max(), Some(get));
    }
}

/// A head at its limit can still be sealed: the seal repeats the state, whatever is in it.
#[test]
fn a_head_at_its_limit_can_be_sealed() {
    let quotes = "\"".repeat(4_000);
    let mut state = serde_json::to_vec(&serde_json::json!({ "q": quotes })).unwrap();
    while state.len() < HEAD_STATE_BYTES_MAX {
        state.push(b' ');
    }
    let deep = {
        let inner = "\\\"".repeat((HEAD_STATE_BYTES_MAX - 2) / 2);
        format!("\"{inner}\"").into_bytes()
    };
    for state in [state, deep] {
        assert!(state.len() <= HEAD_STATE_BYTES_MAX);
        let mut model: Model = model();
        let mut birth = born(id(0), "made_idle", cid(1));
        birth.state = Some(state);
        super::subject::ok(model.commit(&birth));
        let mut sealing = says(&model, id(0), &["noted"], cid(2));
        sealing.events = vec![tenure_kernel::housekeeping::seal(&model.heads[&id(0)])];
        super::subject::ok(model.commit(&sealing));
    }
}

#[test]
fn the_named_numbers_fit_each_other() {
    const { assert!(BODY_INLINE_BYTES_MAX > HEAD_STATE_BYTES_MAX, "a seal holds a state") };
    const { assert!(BODY_INLINE_BYTES_MAX < BATCH_BYTES_MAX && BATCH_BYTES_MAX < BLOB_BYTES_MAX) };
    const { assert!(RENEWAL.as_millis() * 2 < LEASE.as_millis(), "one renewal may be lost") };
    const { assert!(PULSE_GAP.as_millis() * 2 >= TICK.as_millis() * 3, "a tick may be late") };
    const {
        let survived = LEASE.as_millis() - RENEWAL.as_millis();
        assert!(PULSE_GAP.as_millis() <= survived, "an outage that costs leases is seen");
    };
    const { assert!(PULSE_GAP.as_millis() < LEASE.as_millis(), "an outage is seen before a lapse") };
    const { assert!(LANES > 0 && BATCH_OPS_MAX >= DUE_BATCH_MAX && HOLDS_MAX >= CLAIM_MAX) };
}
