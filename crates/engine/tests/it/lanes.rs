//! What leaves the store, and creations that clash.

use crate::support::{Order, clock, config, node, node_like, quiet_node, state, store, until};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tenure_bell::InProcess;
use tenure_engine::{
    config::EngineConfig,
    lanes::{Discard, Wire},
};
use tenure_kernel::{
    error::StoreError,
    housekeeping::Retired,
    limits,
    outbox::{Carrier, DeliveryAnswer, Posted},
    runtime::BoxFuture,
    store::{Answer, HeadFilter, Op, Store},
    time::Timestamp,
};
use tenure_proving::{
    layer::{Layer, Layered},
    patience::{self, PATIENCE},
};

/// Remembers what it was given; may be down, or hang.
#[derive(Default)]
struct Listener {
    heard: Mutex<Vec<(String, String)>>,
    down: AtomicBool,
    hangs: AtomicBool,
}

impl Wire for Listener {
    fn publish(&self, subject: &str, posted: &Posted) -> BoxFuture<'_, Result<(), StoreError>> {
        if self.hangs.load(Ordering::SeqCst) {
            return Box::pin(std::future::pending());
        }
        let down = self.down.load(Ordering::SeqCst);
        if !down {
            self.heard.lock().unwrap().push((subject.to_owned(), posted.id.to_string()));
        }
        let answer = if down { Err(StoreError::Unavailable("down".into())) } else { Ok(()) };
        Box::pin(std::future::ready(answer))
    }
}

fn announcing() -> Order {
    Order { announce: Some("evt.clock".into()), ..Order::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_announcement_goes_out_under_its_stable_id_and_leaves_the_outbox() {
    let (store, wire) = (store(), Arc::new(Listener::default()));
    let node = node(store.clone(), wire.clone()).await;
    let id = clock(&node, &announcing()).await;
    let message = tenure_kernel::ids::MessageId { source: id, version: 1, ordinal: 0 };
    until(&*store, id, "the announcement", |_| wire.heard.lock().unwrap().len() == 1).await;
    assert_eq!(wire.heard.lock().unwrap()[0], ("evt.clock".to_owned(), message.to_string()));
    while store.outbox_has(message).await.unwrap() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wire_that_is_down_or_hangs_holds_back_only_itself() {
    let (store, wire) = (store(), Arc::new(Listener::default()));
    wire.hangs.store(true, Ordering::SeqCst);
    let node = node(store.clone(), wire.clone()).await;
    let announced = clock(&node, &announcing()).await;
    // A message between entities still arrives: the child is made by one.
    clock(&node, &Order { child_key: Some("k".into()), ..Order::default() }).await;
    let made = || async {
        let filter =
            tenure_kernel::store::HeadFilter { kind: Some("clock".into()), ..Default::default() };
        store.heads(filter, 10).await.unwrap().len()
    };
    while made().await < 3 {
        tokio::task::yield_now().await;
    }
    wire.hangs.store(false, Ordering::SeqCst);
    until(&*store, announced, "the announcement", |_| !wire.heard.lock().unwrap().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_creation_whose_key_is_taken_comes_back_to_its_creator() {
    let store = store();
    let node = quiet_node(store.clone()).await;
    let taken = clock(&node, &Order { guard: "key:k".into(), ..Order::default() }).await;
    let parent = clock(&node, &Order { child_key: Some("k".into()), ..Order::default() }).await;
    let head = until(&*store, parent, "the answer", |h| !state(h).heard.is_empty()).await;
    let heard = state(&head).heard.remove(0);
    assert!(heard.starts_with("returned ") && heard.contains(&taken.to_string()), "{heard}");
}

/// Answers so many times that somebody else has what lanes want to deliver to.
struct Locked {
    under: Arc<dyn Store>,
    left: AtomicUsize,
}

impl Layer for Locked {
    fn under(&self) -> &dyn Store {
        &*self.under
    }

    fn apply_shared(&self, ops: Arc<Vec<Op>>) -> BoxFuture<'_, Result<Vec<Answer>, StoreError>> {
        let by_lane = |op: &Op| matches!(op, Op::Deliver(d) if d.by != Carrier::Commit);
        let took = |n: usize| n.checked_sub(1);
        let locked = ops.iter().all(by_lane)
            && self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, took).is_ok();
        match locked {
            true => {
                let busy = ops.iter().map(|_| Answer::Deliver(DeliveryAnswer::Busy)).collect();
                Box::pin(std::future::ready(Ok(busy)))
            }
            false => self.under.apply_shared(ops),
        }
    }
}

/// Nobody rings when a head is let go: a lane that found it locked looks again soon, and not with the tick.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_for_somebody_who_is_locked_does_not_wait_for_the_tick() {
    let under = store();
    let locked = Locked { under: under.clone(), left: AtomicUsize::new(5) };
    // Twice as long as anybody here waits.
    let config = EngineConfig { tick: PATIENCE * 2, carry: false, ..config() };
    let bell = Arc::new(InProcess::new());
    let node = node_like(config, Arc::new(Layered(locked)), bell, Arc::new(Discard)).await;
    clock(&node, &Order { child_key: Some("k".into()), ..Order::default() }).await;
    patience::until("the child", async || {
        let filter = HeadFilter { kind: Some("clock".into()), ..HeadFilter::default() };
        under.heads(filter, 10).await.unwrap().len() == 2
    })
    .await;
}

/// What has gone out lies in the outbox until it is removed. Where that is not possible now, it goes out again, and not in a circle.
#[tokio::test(flavor = "multi_thread")]
async fn what_can_not_be_removed_is_published_again_after_longer_and_longer_pauses() {
    let wire = Arc::new(Listener::default());
    let locked = Locked { under: store(), left: AtomicUsize::new(4) };
    let bell = Arc::new(InProcess::new());
    let node = node_like(config(), Arc::new(Layered(locked)), bell, wire.clone()).await;
    let before = node.pipeline.rt().mono();
    clock(&node, &announcing()).await;
    patience::until("the fifth time", async || wire.heard.lock().unwrap().len() == 5).await;
    let took = node.pipeline.rt().mono() - before;
    assert!(took >= Duration::from_millis(50 + 100 + 200 + 400), "{took:?}");
}

/// Counts how often retention was asked for.
struct Retaining(Arc<dyn Store>, AtomicUsize);

impl Layer for Retaining {
    fn under(&self) -> &dyn Store {
        &*self.0
    }
    fn retire(
        &self,
        before: Timestamp,
        limit: usize,
    ) -> BoxFuture<'_, Result<Retired, StoreError>> {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.retire(before, limit)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_runs_on_the_server_that_holds_the_first_lane_alone() {
    let shared = store();
    let mut nodes = Vec::new();
    let config = EngineConfig { tick: Duration::from_millis(20), ..config() };
    for _ in 0..2 {
        let layered = Arc::new(Layered(Retaining(shared.clone(), AtomicUsize::new(0))));
        let (bell, wire) = (Arc::new(InProcess::new()), Arc::new(Discard));
        let node = node_like(config.clone(), layered.clone(), bell, wire).await;
        nodes.push((node, layered));
    }
    patience::until("each holds its share", async || {
        nodes.iter().all(|(node, _)| node.lanes.held().len() == usize::from(limits::LANES) / 2)
    })
    .await;
    let holds = |n: usize| nodes[n].0.lanes.held().contains(&0);
    let asked = |n: usize| nodes[n].1.0.1.load(Ordering::SeqCst);
    let leader = usize::from(holds(1));
    let before = (asked(leader), asked(1 - leader));
    patience::until("the leader retains", async || asked(leader) > before.0 + 3).await;
    assert!(holds(leader), "no lane moved");
    // One call may have been on its way while the lanes were shared out.
    assert!(asked(1 - leader) <= before.1 + 1);
}
