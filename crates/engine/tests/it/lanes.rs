//! What leaves the store, and creations that clash.

use crate::support::{Order, clock, node, quiet_node, state, store, until};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};
use tenure_engine::lanes::Wire;
use tenure_kernel::{error::StoreError, outbox::Posted, runtime::BoxFuture};

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
