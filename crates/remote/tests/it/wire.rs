//! Round trips, through text.

use super::specimens::{answer, body, bytes, evidence, hash, head, hold, id, op, tables, time};
use proptest::{collection::vec, prelude::*};
use serde::{Serialize, de::DeserializeOwned};
use std::time::Duration;
use tenure_kernel::{
    claims::{ClaimAnswer, Claimed},
    error::StoreError,
    evidence::Evidence,
    feed::{Cursor, Lost},
    ids::{CommitId, EntityId, MailId},
    mail::Mail,
    sessions::Session,
    store::Op,
    stream::{Hash, Joint, NewEvent, Record, pack},
    time::Timestamp,
};
use tenure_remote::wire::{self, StoreFault, Words};

fn words() -> Words {
    Words::new(tables())
}

/// Through text, inside of something, as everything on the wire is.
fn travel<T: Serialize + DeserializeOwned>(value: T) -> T {
    let text = serde_json::to_string(&[value]).unwrap();
    let [back]: [T; 1] = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    back
}

proptest! {
    #[test]
    fn an_operation_comes_back_as_it_was(op in op()) {
        let back = travel(wire::Op::of(&op).unwrap()).read(&words()).unwrap();
        prop_assert_eq!(back, op);
    }

    #[test]
    fn an_answer_comes_back_as_it_was(answer in answer()) {
        let back = travel(wire::Answer::of(&answer).unwrap()).read(&words()).unwrap();
        prop_assert_eq!(back, answer);
    }

    #[test]
    fn a_record_comes_back_as_it_was_hashed(
        bodies in vec(body(), 1..4), meta in bytes(), entity in id(), previous in hash(), at in time(),
    ) {
        let events: Vec<_> = bodies.into_iter().map(|b| NewEvent::new("e", b)).collect();
        let joint = Joint { previous, first: 7, at, epoch: 3 };
        let record = pack(entity, CommitId::new(1, 2), joint, &meta, &events);
        let on_wire = wire::Record::of(&record);
        prop_assert!(on_wire.raw.is_none(), "what the kernel packs can be read by anybody");
        prop_assert_eq!(travel(on_wire).read().unwrap(), record);
    }

    #[test]
    fn a_row_of_another_form_comes_back_too(bytes in bytes(), entity in id()) {
        let record = Record {
            entity, first: 1, count: 2, commit: CommitId::new(0, 9), at: Timestamp::ZERO, epoch: 1,
            hash: Hash::ZERO, bytes,
        };
        prop_assert_eq!(travel(wire::Record::of(&record)).read().unwrap(), record);
    }

    #[test]
    fn what_a_worker_reads_comes_back_as_it_was(
        head in head(), body in body(), said in evidence(), at in time(), holds in vec(hold(), 0..3),
    ) {
        let mail = Mail { seq: 4, id: MailId("m".into()), kind: "k".into(), body, at };
        let evidence = Evidence { said, at };
        let session = Session {
            id: head.id, name: "n".into(), role: "worker".into(), lease: Duration::from_micros(9),
            renewed_at: at, expires_at: at, holds, ended: false,
        };
        prop_assert_eq!(&travel(wire::Mail::of(&mail)).read().unwrap(), &mail);
        prop_assert_eq!(travel(wire::Evidence::of(&evidence)).read().unwrap(), evidence);
        prop_assert_eq!(travel(wire::Session::of(&session)).read(), session);
        let answer = ClaimAnswer {
            claimed: vec![Claimed { head: head.clone(), mail: vec![mail.clone()], ready_at: at }],
            found: vec![1, 0],
        };
        let back = travel(wire::ClaimAnswer::of(&answer)).read(&words()).unwrap();
        prop_assert_eq!(&back.claimed[0].head, &head);
        prop_assert_eq!(&back.claimed[0].mail[0], &mail);
        prop_assert_eq!(back.found, answer.found);
    }
}

#[test]
fn a_store_error_comes_back_as_it_was() {
    let restart = Cursor { incarnation: 1, transaction: 2, row: 3 };
    let all = [
        StoreError::Unavailable("a".into()),
        StoreError::Indeterminate("b".into()),
        StoreError::DiskFull("c".into()),
        StoreError::ReadOnly("d".into()),
        StoreError::Corrupt("e".into()),
        StoreError::NewerSchema { found: 3, known: 2 },
        StoreError::InUse { path: "/x".into(), pid: "7".into() },
        StoreError::Limit { what: "blob in bytes", actual: 2, limit: 1 },
        StoreError::Refused("f".into()),
        StoreError::FeedLost(Lost::BelowFloor { restart }),
        StoreError::FeedLost(Lost::OtherIncarnation { restart }),
    ];
    for error in all {
        assert_eq!(travel(StoreFault::of(&error)).read(&words()), error);
    }
}

#[test]
fn what_only_a_server_does_has_no_word() {
    let touch = tenure_kernel::store::Touch {
        entity: EntityId::fixed(9, 9),
        epoch: 0,
        version: 0,
        due: None,
        check_at: None,
        faults: 0,
        ring_only: true,
    };
    assert!(wire::Op::of(&Op::Touch(touch)).is_none());
    let error = serde_json::from_str::<wire::Op>(r#"{"touch":{}}"#).unwrap_err().to_string();
    assert!(error.contains("unknown variant `touch`") && error.contains("`commit`"), "{error}");
}

#[test]
fn a_kind_that_nobody_here_knows_names_itself() {
    let text = r#"{"commit":{"id":"00000000000000000000000000000001",
        "entity":"00000000-0000-7000-8000-000000000001",
        "expect":{"absent":{"kind":"banana"}},"events":[]}}"#;
    let op: wire::Op = serde_json::from_str(text).unwrap();
    let error = op.read(&words()).unwrap_err();
    assert_eq!(error.field, "commit.expect.absent.kind");
    assert!(error.why.contains("banana") && error.why.contains("worker"), "{error}");
}

#[test]
fn the_example_of_the_documentation_can_be_read() {
    let page = include_str!("../../../../docs/worker-protocol.md");
    let example = page.split("```json").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let op: wire::Op = serde_json::from_str(example).unwrap();
    let Op::Commit(commit) = op.read(&words()).unwrap() else { panic!("a commit") };
    let body = br#"{"event":"step_started","step":0,"key":"k"}"#;
    assert_eq!(commit.events[0].body.inline(), Some(&body[..]), "verbatim");
}
