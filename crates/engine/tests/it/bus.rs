//! A server with a real bus that is killed under its hands.

use crate::support::{Order, clock, machines, node_with, state, until};
use futures_util::{StreamExt as _, future::join_all};
use std::{collections::HashSet, sync::Arc, time::Duration};
use tenure_bell::{Bus, BusOptions, InProcess};
use tenure_edge::{SystemClock, TokioRuntime};
use tenure_engine::node::Node;
use tenure_kernel::{
    error::StoreError,
    ids::EntityId,
    judge::Judge,
    limits,
    outbox::{Posted, Wire},
    runtime::{BoxFuture, Runtime as _},
    store::Store,
};
use tenure_proving::{nats::NatsServer, patience};
use tenure_store::sqlite::SqliteStore;

async fn store_and_bus(dir: &std::path::Path, url: &str, jetstream: bool) -> (Arc<dyn Store>, Bus) {
    let judge = Judge::new(machines().tables());
    let store = SqliteStore::open(&dir.join("data"), judge, Arc::new(SystemClock), 1).unwrap();
    let options = BusOptions { jetstream, ..BusOptions::new(url, "s") };
    let bus = Bus::start(options, InProcess::new(), Arc::new(SystemClock)).await.unwrap();
    (Arc::new(store), bus)
}

async fn on_sqlite(
    dir: &std::path::Path,
    url: &str,
    jetstream: bool,
) -> (Arc<dyn Store>, Node, Bus) {
    let (store, bus) = store_and_bus(dir, url, jetstream).await;
    let node = node_with(store.clone(), Arc::new(bus.clone()), Arc::new(bus.clone())).await;
    (store, node, bus)
}

async fn announce(node: &Node, n: usize) -> Vec<EntityId> {
    let order = Order { announce: Some("evt.agent.a.task".into()), ..Order::default() };
    join_all((0..n).map(|_| async { clock(node, &order).await })).await
}

async fn outbox_is_empty(store: &Arc<dyn Store>) -> bool {
    store.outbox((0..limits::LANES).collect(), true, 1).await.unwrap().is_empty()
}

async fn stored(url: &str) -> (u64, HashSet<String>) {
    let client = async_nats::connect(url).await.unwrap();
    let ask = async |what: String, with: serde_json::Value| {
        let said =
            client.request(format!("$JS.API.{what}"), with.to_string().into()).await.unwrap();
        serde_json::from_slice::<serde_json::Value>(&said.payload).unwrap()
    };
    let info = ask("STREAM.INFO.tenure_evt".into(), serde_json::json!({})).await;
    let count = info["state"]["messages"].as_u64().unwrap();
    let mut bodies = HashSet::new();
    for seq in 1..=info["state"]["last_seq"].as_u64().unwrap() {
        let got = ask("STREAM.MSG.GET.tenure_evt".into(), serde_json::json!({ "seq": seq })).await;
        bodies.insert(got["message"]["data"].to_string());
    }
    (count, bodies)
}

/// An event per entity, its body the entity's id: everything committed arrives in the stream, through kills of the bus.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_event_reaches_the_stream_though_the_bus_is_killed_under_load() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = NatsServer::with_jetstream(&dir.path().join("js"));
    let (store, node, bus) = on_sqlite(dir.path(), &server.url(), true).await;
    let mut made = Vec::new();
    for _ in 0..3 {
        made.extend(announce(&node, 300).await);
        server.kill();
        made.extend(announce(&node, 100).await);
        server.start_again();
        bus.connected().await;
    }
    patience::until("an empty outbox", async || outbox_is_empty(&store).await).await;
    let (count, bodies) = stored(&server.url()).await;
    assert_eq!(bodies.len(), made.len(), "each of them is there");
    println!("{} events, {count} stored, {} connections", made.len(), bus.state().connections);
}

/// The server that has this wire ends after the bus took its events and before they are off the outbox.
struct TakenAndNotTold(Bus);

impl Wire for TakenAndNotTold {
    fn publish(&self, _: &str, _: &Posted) -> BoxFuture<'_, Result<(), StoreError>> {
        unreachable!("it takes batches")
    }

    fn publish_all<'a>(&'a self, rows: &'a [Posted]) -> BoxFuture<'a, Vec<Result<(), StoreError>>> {
        Box::pin(async move {
            self.0.publish_all(rows).await;
            std::future::pending().await
        })
    }

    fn is_up(&self) -> bool {
        self.0.is_up()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_server_may_have_published_goes_out_again_under_the_same_id() {
    let dir = tempfile::tempdir().unwrap();
    let server = NatsServer::start();
    let (store, bus) = store_and_bus(dir.path(), &server.url(), false).await;
    bus.connected().await;
    let client = async_nats::connect(server.url()).await.unwrap();
    let mut events = client.subscribe("evt.>").await.unwrap();
    client.flush().await.unwrap();
    let first = Arc::new(TakenAndNotTold(bus.clone()));
    let node = node_with(store.clone(), Arc::new(bus.clone()), first).await;
    announce(&node, 20).await;
    let mut hear = async |n: usize| {
        let mut ids = std::collections::BTreeMap::<String, usize>::new();
        while ids.len() < n {
            let next = tokio::time::timeout(Duration::from_secs(30), events.next()).await;
            let headers = next.expect("in time").expect("an event").headers.expect("headers");
            *ids.entry(headers.get("Nats-Msg-Id").expect("an id").to_string()).or_default() += 1;
        }
        ids.into_keys().collect::<Vec<_>>()
    };
    let heard = hear(20).await;
    assert!(!outbox_is_empty(&store).await);
    drop(node);
    let _successor = node_with(store.clone(), Arc::new(bus.clone()), Arc::new(bus)).await;
    assert_eq!(hear(20).await, heard, "the same ids");
    patience::until("an empty outbox", async || outbox_is_empty(&store).await).await;
}

/// Ten thousand events wait for a bus that is away; mail does not, and they leave when it is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn measured_mail_beside_events_that_wait() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = NatsServer::not_yet();
    let (store, node, bus) = on_sqlite(dir.path(), &server.url(), false).await;
    let rt = TokioRuntime::current();
    clock(&node, &Order { guard: "key:k".into(), ..Order::default() }).await;
    // Its message comes back, because the key is taken: out of one outbox lane, and decided about.
    let mail = async || {
        let mut took = Vec::new();
        for _ in 0..50 {
            let order = Order { child_key: Some("k".into()), ..Order::default() };
            let began = rt.mono();
            let parent = clock(&node, &order).await;
            until(&*store, parent, "the answer", |h| !state(h).heard.is_empty()).await;
            took.push(rt.mono() - began);
        }
        took.sort_unstable();
        (took[25], took[49])
    };
    let idle = mail().await;
    for _ in 0..20 {
        announce(&node, 500).await;
    }
    let waiting = mail().await;
    server.start_again();
    let began = rt.mono();
    bus.connected().await;
    patience::until("an empty outbox", async || outbox_is_empty(&store).await).await;
    let drained = rt.mono() - began;
    println!(
        "mail, p50 and worst of 50: {idle:?}; beside 10,000 events that wait: {waiting:?}; they left within {drained:?}"
    );
    assert!(waiting.0 < Duration::from_millis(500), "{waiting:?}");
}

/// What one server can say to the bus, beside its own commits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn measured_events_of_one_server() {
    let dir = tempfile::tempdir().unwrap();
    let server = NatsServer::start();
    let (store, node, _bus) = on_sqlite(dir.path(), &server.url(), false).await;
    let rt = TokioRuntime::current();
    let began = rt.mono();
    for _ in 0..10 {
        announce(&node, 500).await;
    }
    let committed = rt.mono() - began;
    patience::until("an empty outbox", async || outbox_is_empty(&store).await).await;
    let took = rt.mono() - began;
    let rate = |d: Duration| 5_000.0 / d.as_secs_f64();
    println!(
        "5,000 events: {:.0} committed a second, {:.0} a second on the bus and out of the outbox",
        rate(committed),
        rate(took)
    );
}
