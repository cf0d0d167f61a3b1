//! Arbitrary operations, answers and rows.

use proptest::{collection::vec, option, prelude::*};
use std::time::Duration;
use tenure_kernel::{
    commit::{
        Birth, Commit, CommitAnswer, Committed, Expect, MailStance, Refusal, TenureChange,
        UniqueKey,
    },
    evidence::{EvidenceAnswer, NewEvidence},
    head::Head,
    ids::{CommitId, EntityId, MailId},
    mail::{MailAnswer, NewMail},
    outbox::{Message, Target},
    sessions::{Hold, Opening, Renewal, RenewalAnswer, WORKER},
    store::{Answer, Op},
    stream::{Body, Hash, NewEvent},
    table::{Illegal, Tables},
    time::Timestamp,
    timers::{TimerChange, Timers},
};

/// The tables both sides know.
pub fn tables() -> Tables {
    let mut tables = Tables::default();
    tables.insert(&WORKER);
    tables
}

pub fn id() -> impl Strategy<Value = EntityId> {
    any::<[u8; 16]>().prop_map(EntityId::from_bytes)
}

pub fn hash() -> impl Strategy<Value = Hash> {
    any::<[u8; 32]>().prop_map(Hash)
}

pub fn time() -> impl Strategy<Value = Timestamp> {
    any::<i64>().prop_map(Timestamp::from_micros)
}

fn commit_id() -> impl Strategy<Value = CommitId> {
    any::<[u8; 16]>().prop_map(CommitId)
}

fn span() -> impl Strategy<Value = Duration> {
    any::<u64>().prop_map(Duration::from_micros)
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z_/ ]{0,12}", ".{0,6}"]
}

/// JSON of many spellings, and what is not JSON.
pub fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        vec(any::<u8>(), 0..24),
        "[{}\\[\\]\",: 0-9a-z\\\\\\n]{0,16}".prop_map(String::into_bytes),
        ("[a-z]{0,4}", any::<f64>(), ".{0,6}", " {0,2}").prop_map(|(key, n, text, gap)| {
            let text = serde_text(&text);
            format!("{{{gap}\"{key}\" :{n:?},\"{key}\":{text},\"l\":[1,{gap}2.0,1e400]}}")
                .into_bytes()
        }),
        Just(b"null".to_vec()),
        Just(b" {}".to_vec()),
        Just("\"\\ud800 \u{2028}\"".into()),
    ]
}

fn serde_text(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

pub fn body() -> impl Strategy<Value = Body> {
    prop_oneof![
        bytes().prop_map(Body::Inline),
        (hash(), any::<u64>()).prop_map(|(digest, len)| Body::Blob { digest, len }),
    ]
}

fn expect() -> impl Strategy<Value = Expect> {
    let seen = (any::<u64>(), any::<u64>());
    prop_oneof![
        (name(), name(), any::<i16>()).prop_map(|(tenant, queue, priority)| {
            Expect::Absent(Birth { kind: "worker", tenant, queue, priority })
        }),
        (seen, 0..4u8).prop_map(|((epoch, version), which)| match which {
            0 => Expect::Holder { epoch, version },
            1 => Expect::Nobody { epoch, version },
            2 => Expect::Overrule { epoch, version },
            _ => Expect::EndTenure { epoch },
        }),
    ]
}

fn timer_change() -> impl Strategy<Value = TimerChange> {
    (name(), span(), any::<bool>(), 0..3u8).prop_map(|(name, after, guard, which)| match which {
        0 => TimerChange::Set { name: name.into(), after, guard },
        1 => TimerChange::clear(name),
        _ => TimerChange::ClearAll,
    })
}

fn tenure() -> impl Strategy<Value = TenureChange> {
    // Read from JSON, so that a field added to it later needs no change here.
    let opening = |(name, lease_ms): (String, u64)| {
        let json = serde_json::json!({ "name": name, "role": "worker", "lease_ms": lease_ms });
        TenureChange::Open(serde_json::from_value::<Opening>(json).unwrap())
    };
    prop_oneof![
        Just(TenureChange::Keep),
        Just(TenureChange::End),
        (id(), span()).prop_map(|(session, lease)| TenureChange::Take { session, lease }),
        (name(), any::<u64>()).prop_map(opening),
    ]
}

fn stance() -> impl Strategy<Value = MailStance> {
    (any::<u64>(), 0..4u8).prop_map(|(n, which)| match which {
        0 => MailStance::Unread,
        1 => MailStance::Read(n),
        2 => MailStance::ReadAll(n),
        _ => MailStance::Regardless,
    })
}

fn message() -> impl Strategy<Value = Message> {
    let to = prop_oneof![
        id().prop_map(Target::Mail),
        (id(), name()).prop_map(|(id, kind)| Target::Create { id, kind: kind.into() }),
        name().prop_map(Target::Wire),
    ];
    (to, name(), body()).prop_map(|(to, kind, body)| Message { to, kind: kind.into(), body })
}

fn commit() -> impl Strategy<Value = Commit> {
    let event = (name(), body()).prop_map(|(name, body)| NewEvent::new(name, body));
    let key = (name(), hash()).prop_map(|(key, digest)| UniqueKey { key, digest });
    let what = (commit_id(), id(), expect(), vec(event, 0..4), option::of(bytes()));
    let rest = (
        vec(timer_change(), 0..3),
        tenure(),
        stance(),
        option::of(span()),
        option::of(option::of(name())),
        vec(message(), 0..3),
        vec(key, 0..2),
    );
    (what, rest).prop_map(|((id, entity, expect, events, state), rest)| {
        let (timers, tenure, mail, must_end_in, attention, messages, keys) = rest;
        Commit {
            id,
            entity,
            expect,
            events,
            state,
            timers,
            tenure,
            mail,
            must_end_in,
            attention,
            messages,
            keys,
        }
    })
}

pub fn evidence() -> impl Strategy<Value = NewEvidence> {
    (id(), name(), any::<u64>(), any::<u32>(), name(), body()).prop_map(
        |(entity, key, epoch, call, who, body)| NewEvidence { entity, key, epoch, call, who, body },
    )
}

pub fn hold() -> impl Strategy<Value = Hold> {
    (id(), any::<u64>(), any::<u64>()).prop_map(|(entity, epoch, mark)| Hold {
        entity,
        epoch,
        mark,
    })
}

/// Everything a worker may ask.
pub fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => commit().prop_map(|c| Op::Commit(Box::new(c))),
        1 => (commit_id(), id(), id(), span()).prop_map(|(id, entity, session, lease)| Op::Claim {
            id,
            entity,
            session,
            lease
        }),
        1 => (id(), name(), name(), body()).prop_map(|(to, id, kind, body)| {
            Op::Mail(NewMail { to, id: MailId(id), kind: kind.into(), body })
        }),
        1 => evidence().prop_map(Op::Evidence),
        1 => (id(), vec(hold(), 0..4)).prop_map(|(session, holds)| {
            Op::Renew(Renewal { session, holds })
        }),
    ]
}

fn refusal() -> impl Strategy<Value = Refusal> {
    let counts = (any::<u32>(), any::<u32>());
    prop_oneof![
        id().prop_map(Refusal::Unknown),
        name().prop_map(Refusal::UnknownKind),
        name().prop_map(|event| {
            Refusal::Illegal(Illegal { kind: "worker", from: "not created", event })
        }),
        Just(Refusal::MailNotRead("ended")),
        Just(Refusal::Deadline("an open entity has to end some time")),
        Just(Refusal::Tenure("who holds it?")),
        Just(Refusal::Seal("a seal of nothing")),
        counts.prop_map(|(a, l)| Refusal::Limit {
            what: "events of a commit",
            actual: a as usize,
            limit: l as usize
        }),
        name().prop_map(Refusal::Constraint),
    ]
}

fn commit_answer() -> impl Strategy<Value = CommitAnswer> {
    let committed = (any::<[u64; 3]>(), hash(), time(), any::<[bool; 2]>(), option::of(name()))
        .prop_map(|([version, epoch, mail_waiting], chain, at, [repeated, due_soon], ready_in)| {
            CommitAnswer::Committed(Committed {
                version,
                epoch,
                chain,
                at,
                mail_waiting,
                repeated,
                ready_in,
                due_soon,
            })
        });
    prop_oneof![
        committed,
        refusal().prop_map(CommitAnswer::Refused),
        (id(), any::<bool>()).prop_map(|(entity, same)| CommitAnswer::Exists { entity, same }),
        (any::<u64>(), 0..5u8).prop_map(|(n, which)| match which {
            0 => CommitAnswer::StaleEpoch { current: n },
            1 => CommitAnswer::VersionConflict { current: n },
            2 => CommitAnswer::Final { status: "ended" },
            3 => CommitAnswer::MoreMail { count: n },
            _ => CommitAnswer::Busy,
        }),
    ]
}

fn timers() -> impl Strategy<Value = Timers> {
    let one = (name(), any::<u32>(), any::<bool>());
    vec(one, 0..4).prop_map(|all| {
        let mut timers = Timers::default();
        for (name, after, guard) in all {
            let after = Duration::from_micros(u64::from(after));
            let set = TimerChange::Set { name: name.into(), after, guard };
            timers.change(&set, Timestamp::from_micros(-1_000));
        }
        timers
    })
}

pub fn head() -> impl Strategy<Value = Head> {
    let who = (id(), 0..2usize, name(), name(), any::<i16>(), option::of(id()));
    let numbers = (any::<[u64; 5]>(), hash(), any::<u16>());
    let times = (
        time(),
        time(),
        [option::of(time()), option::of(time()), option::of(time()), option::of(time())],
    );
    let rest = (option::of(name()), timers(), bytes());
    (who, numbers, times, rest).prop_map(|(who, numbers, times, rest)| {
        let (id, status, tenant, queue, priority, holder) = who;
        let ([version, epoch, mail_count, mail_read, sealed], chain, faults) = numbers;
        let (created_at, changed_at, [due, must_end_by, check_at, ready_at]) = times;
        let (attention, timers, state) = rest;
        Head {
            id,
            status: WORKER.status(WORKER.statuses[status].name).unwrap(),
            tenant,
            queue,
            priority,
            version,
            epoch,
            holder,
            chain,
            created_at,
            changed_at,
            mail_count,
            mail_read,
            due,
            must_end_by,
            check_at,
            faults,
            ready_at,
            attention,
            sealed,
            timers,
            state,
        }
    })
}

/// Everything a worker may be answered.
pub fn answer() -> impl Strategy<Value = Answer> {
    let mail = prop_oneof![
        (any::<u64>(), option::of(id()))
            .prop_map(|(seq, holder)| MailAnswer::Accepted { seq, holder }),
        Just(MailAnswer::Duplicate),
        Just(MailAnswer::Final { status: "ended" }),
        Just(MailAnswer::Unknown),
        refusal().prop_map(MailAnswer::Refused),
    ];
    let evidence = prop_oneof![
        any::<bool>().prop_map(|mailed| EvidenceAnswer::Recorded { mailed }),
        Just(EvidenceAnswer::Duplicate),
        Just(EvidenceAnswer::Unknown),
        refusal().prop_map(EvidenceAnswer::Refused),
    ];
    let renewed = (time(), vec(id(), 0..3), vec(id(), 0..3))
        .prop_map(|(expires_at, lost, mail)| RenewalAnswer::Renewed { expires_at, lost, mail });
    prop_oneof![
        commit_answer().prop_map(Answer::Commit),
        head().prop_map(|h| Answer::Claim(Ok(Box::new(h)))),
        commit_answer().prop_map(|a| Answer::Claim(Err(a))),
        mail.prop_map(Answer::Mail),
        evidence.prop_map(Answer::Evidence),
        prop_oneof![renewed, Just(RenewalAnswer::Ended)].prop_map(Answer::Renew),
        Just(Answer::Busy),
    ]
}
