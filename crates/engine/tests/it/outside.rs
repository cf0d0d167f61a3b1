//! What leaves the store, and what does not wait for it.

use crate::support::{Order, clock, node, store};
use futures_util::future::join_all;
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tenure_edge::TokioRuntime;
use tenure_engine::{lanes::Wire, node::Node};
use tenure_kernel::{
    bell::Topic,
    error::StoreError,
    ids::MessageId,
    outbox::Posted,
    runtime::{BoxFuture, Runtime as _},
    store::{HeadFilter, Store},
};
use tenure_proving::patience;

/// A wire that takes batches; may be down, hang, or refuse what it does not like.
#[derive(Default)]
struct Exchange {
    heard: Mutex<Vec<MessageId>>,
    /// Sizes of the batches that it was asked to publish.
    asked: Mutex<Vec<usize>>,
    down: AtomicBool,
    hangs: AtomicBool,
    fails: AtomicBool,
    ups: AtomicUsize,
}

impl Wire for Exchange {
    fn publish(&self, _: &str, _: &Posted) -> BoxFuture<'_, Result<(), StoreError>> {
        unreachable!("it takes batches")
    }

    fn publish_all<'a>(&'a self, rows: &'a [Posted]) -> BoxFuture<'a, Vec<Result<(), StoreError>>> {
        self.asked.lock().unwrap().push(rows.len());
        if self.hangs.load(SeqCst) {
            return Box::pin(std::future::pending());
        }
        let one = |posted: &Posted| match posted.message.to {
            _ if self.fails.load(SeqCst) => Err(StoreError::Unavailable("no".into())),
            tenure_kernel::outbox::Target::Wire(ref s) if s == "bad subject" => {
                Err(StoreError::Refused("never".into()))
            }
            _ => {
                self.heard.lock().unwrap().push(posted.id);
                Ok(())
            }
        };
        Box::pin(std::future::ready(rows.iter().map(one).collect()))
    }

    fn is_up(&self) -> bool {
        self.ups.fetch_add(1, SeqCst);
        !self.down.load(SeqCst)
    }
}

impl Exchange {
    fn heard(&self) -> usize {
        self.heard.lock().unwrap().len()
    }

    fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

fn announcing(subject: &str) -> Order {
    Order { announce: Some(subject.into()), ..Order::default() }
}

async fn announce(node: &Node, n: usize) {
    join_all((0..n).map(|_| async { clock(node, &announcing("evt.clock")).await })).await;
}

async fn clocks(store: &Arc<dyn Store>) -> usize {
    let filter = HeadFilter { kind: Some("clock".into()), ..HeadFilter::default() };
    store.heads(filter, 10_000).await.unwrap().len()
}

/// How long a message between entities takes: a child is made by one.
async fn mail_takes(node: &Node, store: &Arc<dyn Store>) -> Duration {
    let (rt, before) = (TokioRuntime::current(), clocks(store).await);
    let began = rt.mono();
    let key = Some(format!("k{before}"));
    clock(node, &Order { child_key: key, ..Order::default() }).await;
    patience::until("the child", async || clocks(store).await == before + 2).await;
    rt.mono() - began
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_is_published_in_batches_and_leaves_the_outbox() {
    let (store, wire) = (store(), Arc::new(Exchange::default()));
    wire.down.store(true, SeqCst);
    let node = node(store.clone(), wire.clone()).await;
    announce(&node, 300).await;
    assert_eq!(wire.asked(), 0, "one that is down is not asked");
    wire.down.store(false, SeqCst);
    node.pipeline.bell().ring(Topic::Outbox);
    patience::until("all to be published", async || wire.heard() == 300).await;
    let sizes = wire.asked.lock().unwrap().clone();
    assert_eq!(sizes[0], tenure_kernel::limits::OUTBOX_BATCH_MAX, "{sizes:?}");
    let lanes: Vec<u16> = (0..tenure_kernel::limits::LANES).collect();
    let empty = async || store.outbox(lanes.clone(), true, 1).await.unwrap().is_empty();
    patience::until("an empty outbox", empty).await;
    assert_eq!(node.pipeline.meter().published.get(), 300);
}

#[tokio::test(flavor = "multi_thread")]
async fn mail_does_not_wait_behind_thousands_for_a_wire_that_hangs_fails_or_is_down() {
    let (store, wire) = (store(), Arc::new(Exchange::default()));
    let node = node(store.clone(), wire.clone()).await;
    let idle = mail_takes(&node, &store).await;
    wire.hangs.store(true, SeqCst);
    announce(&node, 3_000).await;
    let hanging = mail_takes(&node, &store).await;
    wire.fails.store(true, SeqCst);
    wire.hangs.store(false, SeqCst);
    let failing = mail_takes(&node, &store).await;
    wire.down.store(true, SeqCst);
    let down = mail_takes(&node, &store).await;
    println!(
        "mail: {idle:?} idle; with 3,000 messages behind a wire that hangs {hanging:?}, fails {failing:?}, is down {down:?}"
    );
    for took in [hanging, failing, down] {
        assert!(took < Duration::from_secs(2), "{took:?}");
    }
    wire.fails.store(false, SeqCst);
    wire.down.store(false, SeqCst);
    patience::until("all to be published", async || wire.heard() == 3_000).await;
}

/// However much comes, a wire that fails is tried at its own pace.
#[tokio::test(flavor = "multi_thread")]
async fn a_wire_that_fails_is_tried_ever_less_often() {
    let (store, wire) = (store(), Arc::new(Exchange::default()));
    wire.fails.store(true, SeqCst);
    let node = node(store.clone(), wire.clone()).await;
    let rt = TokioRuntime::current();
    let began = rt.mono();
    announce(&node, 500).await;
    for _ in 0..20 {
        mail_takes(&node, &store).await;
    }
    patience::until("some tries", async || wire.asked() >= 4).await;
    // Pauses double from 50 ms on: so many tries take at least so long.
    let (tries, took) = (wire.asked(), rt.mono() - began);
    let least = Duration::from_millis(50) * (2u32.pow(tries.min(5) as u32 - 1) - 1);
    assert!(took >= least, "{tries} tries within {took:?}");
    assert_eq!(node.pipeline.meter().published.get(), 0);
    assert!(node.pipeline.meter().publish_failed.get() > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_never_be_published_is_dropped_and_counted() {
    let (store, wire) = (store(), Arc::new(Exchange::default()));
    let node = node(store.clone(), wire.clone()).await;
    let bad = clock(&node, &announcing("bad subject")).await;
    announce(&node, 1).await;
    let message = MessageId { source: bad, version: 1, ordinal: 0 };
    let gone = async || wire.heard() == 1 && !store.outbox_has(message).await.unwrap();
    patience::until("the good one out, the bad one gone", gone).await;
    assert_eq!(node.pipeline.meter().publish_refused.get(), 1);
}

/// Rule 2.7 and its like send one: it is a ring, with or without a bus.
#[tokio::test(flavor = "multi_thread")]
async fn a_wake_up_rings_and_is_gone_whatever_the_wire_does() {
    let (store, wire) = (store(), Arc::new(Exchange::default()));
    wire.hangs.store(true, SeqCst);
    let node = node(store.clone(), wire.clone()).await;
    announce(&node, 600).await;
    let mut ear = node.pipeline.bell().listen(Topic::Queue("agent:t-1".into()));
    let id = clock(&node, &announcing("cmd.agent.t-1.wakeup")).await;
    let heard = tokio::time::timeout(Duration::from_secs(20), ear.heard()).await;
    assert!(heard.is_ok(), "the bell of its target");
    let message = MessageId { source: id, version: 1, ordinal: 0 };
    patience::until("its row gone", async || !store.outbox_has(message).await.unwrap()).await;
}
