//! Rules that fire over a holder's head, and rules that fail.

use crate::support::{Order, clock, config, node_like, quiet_node, state, store, until};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};
use tenure_bell::InProcess;
use tenure_edge::TokioRuntime;
use tenure_engine::{config::EngineConfig, lanes::Discard, node::Node, session::Keeper};
use tenure_kernel::{
    ids::EntityId,
    runtime::Runtime as _,
    sessions::Executor,
    store::{Answer, Op, Store},
    table::Class,
};
use tenure_proving::patience;

/// A worker that claims by name, renews, and does nothing else: the problem that guards are for.
async fn hold(node: &Node, entity: EntityId) -> Keeper {
    let keeper =
        Keeper::open(node.pipeline.clone(), node.keeper.config().clone(), "idle", "worker", None)
            .await
            .unwrap();
    let sent = TokioRuntime::current().mono();
    let (id, session) = (node.pipeline.commit_id(), keeper.id());
    let op = Op::Claim { id, entity, session, lease: Duration::from_secs(3) };
    let Answer::Claim(Ok(head)) = node.pipeline.submit(op).await.unwrap() else {
        panic!("not claimed")
    };
    keeper.hold(head.id, head.epoch, sent);
    keeper
}

fn order(timers: &[(&str, bool)], guard: &str) -> Order {
    let timers = timers.iter().map(|(n, g)| ((*n).to_owned(), *g)).collect();
    Order { timers, guard: guard.into(), ..Order::default() }
}

/// Nobody serves a clock while no server runs: it is made, held, and only then looked at.
async fn held_clock(order: &Order) -> (std::sync::Arc<dyn Store>, Node, EntityId, Keeper) {
    let store = store();
    let mut maker = quiet_node(store.clone()).await;
    maker.stop().await;
    let id = clock(&maker, order).await;
    let keeper = hold(&maker, id).await;
    let node = quiet_node(store.clone()).await;
    (store, node, id, keeper)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_timer_of_a_held_entity_is_told_to_its_holder() {
    let (store, _node, id, _keeper) =
        held_clock(&order(&[("one", false), ("two", false)], "")).await;
    let head = until(&*store, id, "two mails", |h| h.mail_count == 2).await;
    assert!(head.holder.is_some(), "the holder keeps it");
    assert_eq!(
        state(&head).fired,
        Vec::<String>::new(),
        "the loop does not serve what is the holder's"
    );
    let kinds: Vec<String> =
        store.mail(id, 0, 10).await.unwrap().into_iter().map(|m| m.kind).collect();
    assert_eq!(kinds, ["timer_due", "timer_due"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_decides_over_the_holders_head_and_ends_the_tenure() {
    let (store, _node, id, _keeper) = held_clock(&order(&[("g", true)], "requeue")).await;
    let head = until(&*store, id, "the guard", |h| state(h).fired == ["g"]).await;
    assert_eq!((head.holder, head.status.name()), (None, "queued"));
    assert_eq!(head.epoch, 2, "one claim, one end of tenure");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_may_end_the_entity() {
    let (store, _node, id, _keeper) = held_clock(&order(&[("g", true)], "end")).await;
    let head = until(&*store, id, "the end", |h| h.class() == Class::Final).await;
    assert_eq!((head.holder, head.status.name(), head.epoch), (None, "stopped", 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_guard_is_pushed_back_and_postpones_nobody() {
    let (store, _node, id, _keeper) =
        held_clock(&order(&[("g", true), ("mine", false)], "fail")).await;
    let head = until(&*store, id, "fault and mail", |h| h.faults > 0 && h.mail_count == 1).await;
    let now = store.now().await.unwrap();
    assert!(
        head.due.is_some_and(|d| d > now - Duration::from_millis(500)),
        "it does not stay due for ever"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_that_no_store_takes_is_a_failed_one() {
    let (store, _node, id, _keeper) = held_clock(&order(&[("g", true)], "huge")).await;
    until(&*store, id, "a counted fault", |h| h.faults > 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn must_end_by_is_kept_even_by_a_machine_whose_end_no_store_takes() {
    let store = store();
    let node = quiet_node(store.clone()).await;
    let id = clock(&node, &Order { huge_end: true, ..Order::default() }).await;
    let head = until(&*store, id, "the forced end", |h| h.class() == Class::Final).await;
    assert_eq!(head.status.name(), "failed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lapsed_session_is_not_revived_while_holders_are_judged() {
    let store = store();
    let node = quiet_node(store.clone()).await;
    let id = clock(&node, &order(&[], "")).await;
    let keeper = hold(&node, id).await;
    let session = keeper.id();
    // It does not renew; nobody needs to have noticed for the store to say so.
    until(&*store, session, "the lapse", |_| !keeper.live()).await;
    until(&*store, id, "the takeover", |h| h.holder.is_none()).await;
    keeper.renew_once().await;
    assert_ne!(keeper.id(), session, "it had to open a new one");
    assert!(!keeper.may_act(id, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_process_held_is_free_before_its_lease_lapses() {
    let store = store();
    let lease = Duration::from_secs(3_600);
    let config = EngineConfig { tick: config().tick, ..EngineConfig::with_lease(lease) };
    let bell = Arc::new(InProcess::new());
    let node = node_like(config.clone(), store.clone(), bell, Arc::new(Discard)).await;
    let process = |pid| Executor {
        machine: "m".into(),
        boot: "b".into(),
        pid_namespace: "n".into(),
        pid,
        started: 1,
    };
    let mut held = Vec::new();
    for pid in [1, 2] {
        let id = clock(&node, &order(&[], "")).await;
        let (pipeline, config) = (node.pipeline.clone(), Arc::new(config.clone()));
        let process = Some(process(pid));
        let keeper = Keeper::open(pipeline, config, "w", "worker", process).await.unwrap();
        let (commit, session) = (node.pipeline.commit_id(), keeper.id());
        // It is claimed after the last renewal: the row of the session does not name it.
        let op = Op::Claim { id: commit, entity: id, session, lease };
        let Answer::Claim(Ok(_)) = node.pipeline.submit(op).await.unwrap() else {
            panic!("not claimed")
        };
        held.push((id, keeper));
    }
    let dead = Arc::new(AtomicU32::new(1));
    let is_dead = dead.clone();
    node.end_sessions_of_dead_processes(Arc::new(move |e| e.pid <= is_dead.load(SeqCst))).await;
    until(&*store, held[0].0, "the end of the tenure", |h| h.holder.is_none()).await;
    let second = store.head(held[1].0).await.unwrap().unwrap();
    assert_eq!(second.holder, Some(held[1].1.id()), "its process lives");
    dead.store(2, SeqCst);
    until(&*store, held[1].0, "the end of the tenure", |h| h.holder.is_none()).await;
    let session = store.session(held[1].1.id()).await.unwrap().unwrap();
    assert!(session.ended);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_that_keeps_failing_marks_the_entity_for_a_person_and_is_counted() {
    let store = store();
    let node = quiet_node(store.clone()).await;
    let id = clock(&node, &order(&[("g", true)], "fail")).await;
    let head = until(&*store, id, "attention", |h| h.attention.is_some()).await;
    assert_eq!(head.attention.as_deref(), Some("this guard does not know"));
    patience::until("the pulse carries the count", async || {
        store.tallies().await.unwrap().get("attention").is_some_and(|t| t.fired > 0)
    })
    .await;
}
