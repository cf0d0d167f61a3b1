//! Entities that are held from their birth on.

use crate::support::{Clock, Event, machines, quiet_node, running_clock, session, store, until};
use tenure_engine::{
    birth::{NotBorn, take_at_birth},
    session::Keeper,
};
use tenure_kernel::{
    commit::CommitAnswer, judge::Judge, machine::Decision, sessions::Opening, table::Class,
};

fn judge() -> Judge {
    Judge::new(machines().tables())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_born_held_has_the_head_of_the_store_and_goes_on_without_a_claim() {
    let store = store();
    let node = quiet_node(store.clone()).await;
    let (keeper, _stopper) = session(&node).await;
    let commit = running_clock(&node).await;
    let id = commit.entity;
    let born = take_at_birth(&keeper, &judge(), commit).await.unwrap();
    let mut held = born.held.unwrap();
    let mut stored = store.head(id).await.unwrap().unwrap();
    // The loop may already have told the holder of its timer: soft.
    (stored.mail_count, stored.due) = (held.head.mail_count, held.head.due);
    assert_eq!(held.head, stored);
    assert_eq!((stored.status.name(), stored.holder), ("running", Some(keeper.id())));
    assert_eq!((stored.epoch, stored.version), (1, 2));
    assert!(held.may_act());
    let heard = Event::Heard { kind: "k".into(), body: String::new() };
    held.record::<Clock>(Decision::event(heard), &[]).await.unwrap().unwrap();
    let stopped = Event::Stopped { ballast: String::new() };
    let end = Decision::event(stopped).regardless();
    held.record::<Clock>(end, &[]).await.unwrap().unwrap();
    assert!(!held.may_act());
    assert_eq!(store.head(id).await.unwrap().unwrap().class(), Class::Final);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_over_in_its_first_commit_is_held_by_nobody() {
    let store = store();
    let node = quiet_node(store.clone()).await;
    let (keeper, _stopper) = session(&node).await;
    let mut commit = running_clock(&node).await;
    commit.events.push(tenure_kernel::stream::NewEvent::new(
        "stopped",
        tenure_kernel::stream::Body::json(&()),
    ));
    commit.must_end_in = None;
    let id = commit.entity;
    let born = take_at_birth(&keeper, &judge(), commit).await.unwrap();
    assert!(born.held.is_none());
    assert_eq!(keeper.held(), 0);
    assert_eq!(store.head(id).await.unwrap().unwrap().class(), Class::Final);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_birth_is_told_that_it_exists() {
    let node = quiet_node(store()).await;
    let (keeper, _stopper) = session(&node).await;
    let commit = running_clock(&node).await;
    let mut again = commit.clone();
    again.id = node.pipeline.commit_id();
    let id = commit.entity;
    take_at_birth(&keeper, &judge(), commit).await.unwrap();
    let answer = take_at_birth(&keeper, &judge(), again).await.err().unwrap();
    assert_eq!(answer, NotBorn::Answered(CommitAnswer::Exists { entity: id, same: false }));
    assert_eq!(keeper.held(), 1, "the first one is not disturbed");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_birth_again_is_the_same_tenure() {
    let node = quiet_node(store()).await;
    let (keeper, _stopper) = session(&node).await;
    let commit = running_clock(&node).await;
    let first = take_at_birth(&keeper, &judge(), commit.clone()).await.unwrap();
    let again = take_at_birth(&keeper, &judge(), commit).await.unwrap();
    assert!(again.committed.repeated);
    let (first, again) = (first.held.unwrap().head, again.held.unwrap().head);
    assert_eq!(
        (first.epoch, first.version, first.chain),
        (again.epoch, again.version, again.chain)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_has_lapsed_takes_nothing() {
    let store = store();
    let node = quiet_node(store.clone()).await;
    let config = node.keeper.config().clone();
    let keeper = Keeper::open(node.pipeline.clone(), config, "w", "worker", None).await.unwrap();
    let opened = store.stream(keeper.id(), 1, 1).await.unwrap();
    assert_eq!(Opening::of(&opened[0]).map(|o| (o.name, o.executor)), Some(("w".into(), None)));
    keeper.end().await;
    let commit = running_clock(&node).await;
    let id = commit.entity;
    assert_eq!(take_at_birth(&keeper, &judge(), commit).await.err(), Some(NotBorn::Lapsed));
    assert_eq!(store.head(id).await.unwrap(), None);
}

/// The process dies after its commit and before it names the entity in a renewal.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_nobody_vouches_for_goes_to_its_queue() {
    let store = store();
    let node = quiet_node(store.clone()).await;
    let (keeper, _stopper) = session(&node).await;
    let commit = running_clock(&node).await;
    let id = commit.entity;
    let held = take_at_birth(&keeper, &judge(), commit).await.unwrap().held.unwrap();
    keeper.drop_hold(id, held.head.epoch);
    assert!(!held.may_act());
    let head = until(&*store, id, "freed", |h| h.holder.is_none()).await;
    assert_eq!((head.status.name(), head.epoch), ("queued", 2));
}
