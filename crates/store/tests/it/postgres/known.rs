//! A process that believes to know a head, and is wrong: somebody else has changed it meanwhile. What it believes must
//! neither be written nor answered.

use super::db::{TestDb, birth, commit_id, entity, must, note, op};
use std::time::Duration;
use tenure_kernel::{
    commit::{Commit, CommitAnswer, Committed, MailStance, TenureChange},
    ids::{EntityId, MailId},
    mail::NewMail,
    store::{Answer, Op, Store, Touch},
    stream::{Body, NewEvent},
    table::kernel_events as ke,
};
use tenure_store::postgres::PostgresStore;

/// A holder that has written the head twice, so that it knows it, and somebody else.
async fn a_holder(db: &TestDb) -> (PostgresStore, PostgresStore, EntityId, Committed) {
    let (holder, other, id) = (db.store().await, db.store().await, entity());
    let at = must(&holder, birth(id, Some(entity()))).await;
    let at = must(&holder, note(id, &at, "one")).await;
    (holder, other, id, at)
}

async fn answer(store: &PostgresStore, commit: Commit) -> CommitAnswer {
    match store.apply(vec![op(commit)]).await.unwrap().remove(0) {
        Answer::Commit(answer) => answer,
        other => panic!("{other:?}"),
    }
}

fn mail_to(id: EntityId) -> Op {
    let body = Body::Inline(b"hi".to_vec());
    Op::Mail(NewMail { to: id, id: MailId("m".into()), kind: "hello".into(), body })
}

/// Gives the entity back, having read so much.
fn release(id: EntityId, at: &Committed, mail: MailStance) -> Commit {
    let mut commit = note(id, at, "unused");
    commit.events = vec![NewEvent::new(ke::TENURE_ENDED, Body::Inline(b"{}".to_vec()))];
    commit.tenure = TenureChange::End;
    commit.mail = mail;
    commit
}

#[tokio::test]
async fn mail_that_came_from_elsewhere_is_seen() {
    let db = TestDb::new().await;
    let (holder, other, id, at) = a_holder(&db).await;
    other.apply(vec![mail_to(id)]).await.unwrap();
    let parks = answer(&holder, release(id, &at, MailStance::ReadAll(0))).await;
    assert!(matches!(parks, CommitAnswer::MoreMail { .. }), "{parks:?}");
    let at = must(&holder, note(id, &at, "two")).await;
    assert_eq!(at.mail_waiting, 1);
    let head = holder.head(id).await.unwrap().unwrap();
    assert_eq!((head.mail_count, head.mail_read, head.version), (1, 0, 3));
}

#[tokio::test]
async fn mail_from_here_is_seen_too() {
    let db = TestDb::new().await;
    let (holder, _, id, at) = a_holder(&db).await;
    holder.apply(vec![mail_to(id)]).await.unwrap();
    assert_eq!(must(&holder, note(id, &at, "two")).await.mail_waiting, 1);
    let parks = release(id, &at, MailStance::ReadAll(0));
    let parks = answer(&holder, parks).await;
    assert!(matches!(parks, CommitAnswer::VersionConflict { .. }), "{parks:?}");
}

#[tokio::test]
async fn a_holder_that_was_replaced_is_refused() {
    let db = TestDb::new().await;
    let (holder, other, id, at) = a_holder(&db).await;
    let freed = must(&other, release(id, &at, MailStance::Regardless)).await;
    let late = answer(&holder, note(id, &at, "late")).await;
    assert!(matches!(late, CommitAnswer::StaleEpoch { .. }), "{late:?}");
    let claim = Op::Claim {
        id: commit_id(),
        entity: id,
        session: entity(),
        lease: Duration::from_secs(15),
    };
    other.apply(vec![claim]).await.unwrap();
    let late = answer(&holder, note(id, &freed, "late")).await;
    assert!(matches!(late, CommitAnswer::StaleEpoch { .. }), "{late:?}");
    let names = holder.stream(id, 1, 10).await.unwrap();
    assert_eq!(names.len(), 4, "born, noted, freed, claimed");
}

#[tokio::test]
async fn soft_state_that_somebody_else_moved_is_not_moved_back() {
    let db = TestDb::new().await;
    let (holder, other, id, at) = a_holder(&db).await;
    let before = other.head(id).await.unwrap().unwrap();
    let check_at = before.check_at.map(|t| t + Duration::from_secs(7));
    let touch = Touch {
        entity: id,
        epoch: at.epoch,
        version: at.version,
        due: before.due,
        check_at,
        faults: 3,
        ring_only: false,
    };
    let touched = other.apply(vec![Op::Touch(touch)]).await.unwrap();
    assert_eq!(touched, [Answer::Touch(true)]);
    must(&holder, note(id, &at, "two")).await;
    assert_eq!(other.head(id).await.unwrap().unwrap().check_at, check_at);
}

#[tokio::test]
async fn one_that_is_wrong_does_not_fail_its_neighbours() {
    let db = TestDb::new().await;
    let (holder, other, lost, at) = a_holder(&db).await;
    let kept = entity();
    let kept_at = must(&holder, birth(kept, Some(entity()))).await;
    must(&other, note(lost, &at, "faster")).await;
    let born = entity();
    let batch = vec![
        op(note(lost, &at, "late")),
        op(note(kept, &kept_at, "fine")),
        op(birth(born, Some(entity()))),
    ];
    let answers = holder.apply(batch).await.unwrap();
    assert!(matches!(answers[0], Answer::Commit(CommitAnswer::VersionConflict { .. })));
    assert!(matches!(answers[1], Answer::Commit(CommitAnswer::Committed(_))));
    assert!(matches!(answers[2], Answer::Commit(CommitAnswer::Committed(_))));
    assert!(holder.head(born).await.unwrap().is_some());
}

#[tokio::test]
async fn a_batch_of_births_and_steps_is_all_there() {
    let db = TestDb::new().await;
    let (holder, other, id, at) = a_holder(&db).await;
    let (held, queued) = (entity(), entity());
    let batch =
        vec![op(birth(queued, None)), op(note(id, &at, "two")), op(birth(held, Some(entity())))];
    let answers = holder.apply(batch).await.unwrap();
    assert!(answers.iter().all(|a| matches!(a, Answer::Commit(CommitAnswer::Committed(_)))));
    for (entity, version, ready) in [(id, 3, false), (held, 1, false), (queued, 1, true)] {
        let head = other.head(entity).await.unwrap().unwrap();
        assert_eq!((head.version, head.ready_at.is_some()), (version, ready));
        let stream = other.stream(entity, 1, 10).await.unwrap();
        assert_eq!(stream.last().map(|r| r.last()), Some(version));
    }
    assert_eq!(db.ask("SELECT count(*) FROM ready").await, 1);
}
