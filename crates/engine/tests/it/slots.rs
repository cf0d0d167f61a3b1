//! A worker's slots, shared by what it claims and what others bring.

use crate::support::{
    Order, clock, machines, node_with, quiet_node, running_clock, session, store, until,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tenure_bell::InProcess;
use tenure_edge::TokioRuntime;
use tenure_engine::{
    birth::take_at_birth,
    lanes::Discard,
    node::Node,
    pipeline::Pipeline,
    session::Keeper,
    slots::Slots,
    stop::{Stopper, stopper},
    worker::{Handler, Held, Worker},
};
use tenure_kernel::{
    bell::{Bell, Ear, Topic},
    error::StoreError,
    ids::EntityId,
    judge::Judge,
    runtime::{BoxFuture, Runtime as _},
    store::Store,
};
use tenure_proving::{
    layer::{Layer, Layered},
    patience,
};
use tokio::sync::{Semaphore, watch};

/// Holds on until it is let go, or asked to stop.
struct Patient {
    let_go: Semaphore,
    at_once: AtomicUsize,
    most: AtomicUsize,
    panics: bool,
    stubborn: bool,
}

impl Patient {
    fn new(panics: bool, stubborn: bool) -> Arc<Self> {
        let (at_once, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Patient { let_go: Semaphore::new(0), at_once, most, panics, stubborn })
    }
}

struct Shared(Arc<Patient>);

impl Handler for Shared {
    fn run(&self, held: Held) -> BoxFuture<'static, Held> {
        let p = self.0.clone();
        Box::pin(async move {
            assert!(!p.panics, "this handler panics");
            assert!(held.may_act());
            let now = p.at_once.fetch_add(1, Ordering::SeqCst) + 1;
            p.most.fetch_max(now, Ordering::SeqCst);
            let until_stopping = held.until_stopping();
            tokio::select! {
                permit = p.let_go.acquire() => permit.unwrap().forget(),
                () = until_stopping, if !p.stubborn => assert!(held.stopping()),
            }
            p.at_once.fetch_sub(1, Ordering::SeqCst);
            held
        })
    }
}

struct Running {
    slots: Slots,
    stopper: Stopper,
    over: watch::Receiver<bool>,
}

fn run(node: &Node, keeper: &Keeper, slots: usize, p: &Arc<Patient>, drain: Duration) -> Running {
    serve(&["clocks"], node, keeper, slots, p, drain)
}

fn serve(
    queues: &[&str],
    node: &Node,
    keeper: &Keeper,
    slots: usize,
    p: &Arc<Patient>,
    drain: Duration,
) -> Running {
    let handler = Arc::new(Shared(p.clone()));
    let queues = queues.iter().map(|q| (*q).to_owned()).collect();
    let worker = Worker::new(keeper.clone(), queues, slots, handler).drains_within(drain);
    let slots = worker.slots();
    let (stopper, stop) = stopper();
    let (ended, over) = watch::channel(false);
    node.pipeline.rt().spawn(Box::pin(async move {
        worker.run(stop).await;
        ended.send_replace(true);
    }));
    Running { slots, stopper, over }
}

async fn born(node: &Node, keeper: &Keeper) -> (EntityId, Held) {
    let commit = running_clock(node).await;
    let judge = Judge::new(machines().tables());
    let id = commit.entity;
    (id, take_at_birth(keeper, &judge, commit).await.unwrap().held.unwrap())
}

/// A claim takes all slots for a moment; who asks in that moment asks again.
async fn take(slots: &Slots) -> tenure_engine::slots::Slot {
    let taken = std::cell::RefCell::new(None);
    patience::until("a slot", async || {
        *taken.borrow_mut() = slots.try_take();
        taken.borrow().is_some()
    })
    .await;
    taken.into_inner().unwrap()
}

const LONG: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn what_is_brought_and_what_is_claimed_share_the_slots() {
    let store = store();
    let node = quiet_node(store.clone()).await;
    let (keeper, _session) = session(&node).await;
    let p = Patient::new(false, false);
    let worker = run(&node, &keeper, 1, &p, LONG);
    patience::until("nothing waits", async || worker.slots.queue_is_known_empty("clocks")).await;
    let slot = take(&worker.slots).await;
    assert!(worker.slots.try_take().is_none());
    let (brought, held) = born(&node, &keeper).await;
    worker.slots.start(slot, held);
    patience::until("it runs", async || p.at_once.load(Ordering::SeqCst) == 1).await;
    let queued = clock(&node, &Order::default()).await;
    patience::until("the bell rang", async || !worker.slots.queue_is_known_empty("clocks")).await;
    assert!(!worker.slots.queue_is_known_empty("another"));
    let waits = store.head(queued).await.unwrap().unwrap();
    assert_eq!(waits.status.name(), "queued", "there is no slot for it");
    p.let_go.add_permits(1);
    until(&*store, brought, "released", |h| h.epoch > 1).await;
    patience::until("the next one runs", async || p.at_once.load(Ordering::SeqCst) == 1).await;
    assert_eq!(p.most.load(Ordering::SeqCst), 1, "never more than there are slots");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_is_free_again_when_it_is_dropped_or_its_handler_panics() {
    let node = quiet_node(store()).await;
    let (keeper, _session) = session(&node).await;
    let p = Patient::new(true, false);
    let worker = run(&node, &keeper, 1, &p, LONG);
    drop(take(&worker.slots).await);
    let slot = take(&worker.slots).await;
    let (_, held) = born(&node, &keeper).await;
    worker.slots.start(slot, held);
    patience::until("free again", async || worker.slots.free() == 1).await;
    assert_eq!(keeper.held(), 0, "it is named no longer");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_learns_of_the_stop_and_gives_back_early() {
    let store = store();
    let node = quiet_node(store.clone()).await;
    let (keeper, _session) = session(&node).await;
    let p = Patient::new(false, false);
    let mut worker = run(&node, &keeper, 2, &p, LONG);
    let slot = take(&worker.slots).await;
    let (brought, held) = born(&node, &keeper).await;
    assert!(!held.stopping());
    worker.slots.start(slot, held);
    patience::until("it runs", async || p.at_once.load(Ordering::SeqCst) == 1).await;
    worker.stopper.stop();
    worker.over.wait_for(|over| *over).await.unwrap();
    let head = store.head(brought).await.unwrap().unwrap();
    assert_eq!((head.status.name(), head.holder), ("queued", None));
    assert!(worker.slots.try_take().is_none(), "a worker that stops takes nothing");
    assert!(!worker.slots.queue_is_known_empty("clocks"), "and looks no more");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_waits_no_longer_than_its_limit() {
    let node = quiet_node(store()).await;
    let (keeper, _session) = session(&node).await;
    let p = Patient::new(false, true);
    let mut worker = run(&node, &keeper, 1, &p, Duration::from_millis(50));
    let slot = take(&worker.slots).await;
    let (_, held) = born(&node, &keeper).await;
    worker.slots.start(slot, held);
    patience::until("it runs", async || p.at_once.load(Ordering::SeqCst) == 1).await;
    worker.stopper.stop();
    worker.over.wait_for(|over| *over).await.unwrap();
    assert_eq!(worker.slots.running(), 1, "left behind");
}

/// A bell that loses what it rings for one topic, and rings another one without a break.
struct Odd {
    bell: InProcess,
    lost: Option<Topic>,
    rings: fn(&Topic) -> bool,
}

impl Bell for Odd {
    fn ring(&self, topic: Topic) {
        if self.lost.as_ref() != Some(&topic) {
            self.bell.ring(topic);
        }
    }

    fn listen(&self, topic: Topic) -> Box<dyn Ear> {
        match (self.rings)(&topic) {
            true => Box::new(Rung),
            false => self.bell.listen(topic),
        }
    }
}

struct Rung;

impl Ear for Rung {
    fn heard(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// Like any store on a disk it lets others run while it is asked.
struct Slow(Arc<dyn Store>);

impl Layer for Slow {
    fn under(&self) -> &dyn Store {
        &*self.0
    }

    fn ready_groups(
        &self,
        queue: &str,
        below: Option<i16>,
    ) -> BoxFuture<'_, Result<Vec<(i16, String)>, StoreError>> {
        let queue = queue.to_owned();
        Box::pin(async move {
            tokio::task::yield_now().await;
            self.0.ready_groups(&queue, below).await
        })
    }
}

/// A ring is a hint, and one that is lost costs at most a tick: also where another queue is rung all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_queue_that_is_rung_without_a_break_does_not_put_off_the_look_at_all() {
    let rings = |t: &Topic| *t == Topic::Queue("busy".into());
    let lost = Some(Topic::Queue("clocks".into()));
    let bell = Arc::new(Odd { bell: InProcess::new(), lost, rings });
    let store = Arc::new(Layered(Slow(store())));
    let node = node_with(store, bell, Arc::new(Discard)).await;
    let (keeper, _session) = session(&node).await;
    let p = Patient::new(false, false);
    let worker = serve(&["busy", "clocks"], &node, &keeper, 2, &p, LONG);
    patience::until("nothing waits", async || worker.slots.queue_is_known_empty("clocks")).await;
    clock(&node, &Order::default()).await;
    patience::until("it runs", async || p.at_once.load(Ordering::SeqCst) == 1).await;
}

/// Mail that comes all the time rings the session that holds its target: it renews all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_session_that_is_rung_without_a_break_renews() {
    let (store, rings) = (store(), |t: &Topic| matches!(t, Topic::Session(_)));
    let quiet = quiet_node(store.clone()).await;
    let bell = Arc::new(Odd { bell: InProcess::new(), lost: None, rings });
    let rt = Arc::new(TokioRuntime::current());
    let pipeline = Pipeline::new(store.clone(), bell, rt.clone(), quiet.keeper.config());
    let config = quiet.keeper.config().clone();
    let keeper = Keeper::open(pipeline, config, "w", "worker", None).await.unwrap();
    let (_stopper, stop) = stopper();
    let renewed = keeper.clone();
    rt.spawn(Box::pin(async move { renewed.run(stop).await }));
    let first = store.session(keeper.id()).await.unwrap().unwrap().expires_at;
    patience::until("a renewal", async || {
        let now = store.session(keeper.id()).await.unwrap();
        now.is_some_and(|s| s.expires_at > first) && keeper.live()
    })
    .await;
}
