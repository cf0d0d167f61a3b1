//! A kind of entity with one status of every sort, and shorthand for commits about it.

use super::model::Model;
use std::time::Duration;
use tenure_kernel::{
    commit::{Birth, Commit, CommitAnswer, Committed, Expect, MailStance, TenureChange},
    head::Head,
    ids::{CommitId, EntityId, MailId},
    judge::Judge,
    limits::LANES,
    machine::Machines,
    mail::NewMail,
    sessions::{Opening, events, lane_id},
    store::{Answer, Op},
    stream::{Body, NewEvent},
    table::{BIRTH, Claimable, Class, Move, SAME, StatusRow, Table, kernel_events as ke},
};

const fn row(name: &'static str, class: Class, claimable: Claimable) -> StatusRow {
    StatusRow { name, class, claimable, doc: "For tests." }
}

const fn step(from: &'static [&'static str], event: &'static str, to: &'static str) -> Move {
    Move { from, event, to }
}

pub static SUBJECT: Table = Table {
    kind: "subject",
    doc: "One status of every sort.",
    statuses: &[
        row("queued", Class::Open, Claimable::Queued),
        row("named", Class::Open, Claimable::ByName),
        row("running", Class::Open, Claimable::No),
        row("blocked", Class::Open, Claimable::No),
        row("idle", Class::Resting, Claimable::No),
        row("done", Class::Final, Claimable::No),
        row("failed", Class::Final, Claimable::No),
    ],
    moves: &[
        step(BIRTH, "made_queued", "queued"),
        step(BIRTH, "made_named", "named"),
        step(BIRTH, "made_running", "running"),
        step(BIRTH, "made_blocked", "blocked"),
        step(BIRTH, "made_idle", "idle"),
        step(BIRTH, "made_done", "done"),
        step(&["queued", "named"], ke::CLAIMED, "running"),
        step(&["running"], ke::TENURE_ENDED, "queued"),
        step(&["blocked", "idle"], ke::TENURE_ENDED, SAME),
        step(&["running"], "parked", "blocked"),
        step(&["running", "blocked"], "rested", "idle"),
        step(&["blocked", "idle"], "woke", "queued"),
        step(&["queued", "named", "running", "blocked", "idle"], "noted", SAME),
        step(&["queued", "named", "running", "blocked", "idle"], "ended", "done"),
    ],
    forced: "failed",
};

pub const HOUR: Duration = Duration::from_secs(3_600);

pub fn model() -> Model {
    let mut tables = Machines::kernel().tables();
    tables.insert(&SUBJECT);
    Model::new(Judge::new(tables))
}

pub fn id(n: u16) -> EntityId {
    EntityId::fixed(100, n)
}

pub fn cid(n: u64) -> CommitId {
    CommitId::new(7, n)
}

pub fn event(name: &'static str) -> NewEvent {
    NewEvent::new(name, Body::Inline(b"{}".to_vec()))
}

pub fn born(entity: EntityId, name: &'static str, commit: CommitId) -> Commit {
    let birth = Birth { kind: "subject", tenant: "t".into(), queue: "q".into(), priority: 0 };
    let mut commit = Commit::new(commit, entity, Expect::Absent(birth), vec![event(name)]);
    commit.must_end_in = (!matches!(name, "made_idle" | "made_done")).then_some(HOUR);
    commit
}

pub fn expect_now(head: &Head) -> Expect {
    let (epoch, version) = (head.epoch, head.version);
    match head.holder {
        Some(_) => Expect::Holder { epoch, version },
        None => Expect::Nobody { epoch, version },
    }
}

/// A commit of some events by whoever may write now.
pub fn says(model: &Model, entity: EntityId, names: &[&'static str], commit: CommitId) -> Commit {
    let head = &model.heads[&entity];
    Commit::new(commit, entity, expect_now(head), names.iter().map(|n| event(n)).collect())
}

/// Park: the holder gives up tenure to wait.
pub fn park(model: &Model, entity: EntityId, commit: CommitId, mail: MailStance) -> Commit {
    let mut commit = says(model, entity, &["parked", ke::TENURE_ENDED], commit);
    commit.tenure = TenureChange::End;
    commit.mail = mail;
    commit
}

pub fn mail(to: EntityId, name: &str) -> Op {
    Op::Mail(NewMail {
        to,
        id: MailId(name.to_owned()),
        kind: "signal".into(),
        body: Body::Inline(name.as_bytes().to_vec()),
    })
}

pub fn session(model: &mut Model, n: u16, lease_ms: u64) -> EntityId {
    let opening = Opening { name: "w".into(), role: "worker".into(), lease_ms, executor: None };
    let birth = Birth { kind: "worker", tenant: String::new(), queue: String::new(), priority: 0 };
    let entity = EntityId::fixed(101, n);
    let opened = NewEvent::new(events::OPENED, Body::json(&opening));
    let id = cid(1_000_000 + u64::from(n));
    let mut commit = Commit::new(id, entity, Expect::Absent(birth), vec![opened]);
    commit.tenure = TenureChange::Open(opening);
    ok(model.commit(&commit));
    entity
}

pub fn lanes(model: &mut Model) {
    for n in 0..LANES {
        let birth =
            Birth { kind: "lane", tenant: String::new(), queue: String::new(), priority: 0 };
        let id = cid(2_000_000 + u64::from(n));
        let made = Commit::new(id, lane_id(n), Expect::Absent(birth), vec![event("lane_created")]);
        ok(model.commit(&made));
    }
}

pub fn claim(model: &mut Model, entity: EntityId, session: EntityId, n: u64) -> Head {
    let op = Op::Claim { id: cid(3_000_000 + n), entity, session, lease: HOUR };
    match model.apply(&[op]).remove(0) {
        Answer::Claim(Ok(head)) => *head,
        other => panic!("{other:?}"),
    }
}

pub fn ok(answer: CommitAnswer) -> Committed {
    match answer {
        CommitAnswer::Committed(c) => c,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_subject_is_sound() {
    assert_eq!(SUBJECT.problems(), Vec::<String>::new());
}
