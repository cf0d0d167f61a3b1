//! Buses, rows and listeners of the tests.

use async_nats::{Client, Message, Subscriber};
use futures_util::StreamExt as _;
use serde_json::json;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tenure_bell::{Bus, BusOptions, InProcess};
use tenure_edge::{SystemClock, TokioRuntime};
use tenure_kernel::{
    bell::Ear,
    ids::{EntityId, MessageId},
    outbox::{Message as Said, Posted, Target, Wire as _},
    runtime::Runtime as _,
    stream::Body,
    time::Timestamp,
};
use tenure_proving::patience;

/// How long a test waits for anything.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The server that all tests share who harm nobody.
pub fn shared() -> String {
    std::env::var("TENURE_TEST_NATS").expect(
        "TENURE_TEST_NATS is not set: run the tests with ./check with -- cargo test -p tenure-bell",
    )
}

pub async fn start(options: BusOptions) -> Bus {
    start_for(options, InProcess::new()).await
}

pub async fn start_for(options: BusOptions, local: InProcess) -> Bus {
    Bus::start(options, local, Arc::new(SystemClock)).await.unwrap()
}

/// A bus that is connected.
pub async fn bus(url: &str, store: &str) -> Bus {
    let bus = start(BusOptions::new(url, store)).await;
    connected(&bus).await;
    bus
}

pub async fn connected(bus: &Bus) {
    in_time("a connection", bus.connected()).await;
}

pub async fn in_time<T>(what: &str, work: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(PATIENCE, work).await;
    done.unwrap_or_else(|_| panic!("not in time: {what}"))
}

pub async fn hears(ear: &mut dyn Ear, what: &str) {
    in_time(what, ear.heard()).await;
}

/// Waits until something is so.
pub async fn until(what: &str, so: impl Fn() -> bool) {
    patience::until(what, async || so()).await;
}

/// Somebody who is no Tenure.
pub async fn stranger(url: &str) -> Client {
    in_time("a client", async_nats::connect(url)).await.unwrap()
}

/// Somebody who listens, and whose subscription stands.
pub async fn listener(client: &Client, subject: &str) -> Subscriber {
    let heard = client.subscribe(subject.to_owned()).await.unwrap();
    // A round trip: the server has read the subscription before.
    let echo = client.new_inbox();
    let mut back = client.subscribe(echo.clone()).await.unwrap();
    client.publish(echo, "".into()).await.unwrap();
    in_time("an echo", back.next()).await.unwrap();
    heard
}

/// A row of the outbox: the `n`-th message of a source.
pub fn row(source: u16, n: u64) -> Posted {
    let body = Body::json(&json!({ "turn_id": format!("turn-{source}"), "turn_epoch": 3, "n": n }));
    let to = Target::Wire(format!("evt.agent.a{source}.task"));
    Posted {
        id: MessageId { source: EntityId::fixed(7, source), version: n, ordinal: 0 },
        tenant: "acme".into(),
        message: Said { to, kind: "task".into(), body },
        at: Timestamp::from_micros(1),
    }
}

/// Rows of several sources, in the order of an outbox.
pub fn rows(sources: u16, each: u64) -> Vec<Posted> {
    (1..=each).flat_map(|n| (0..sources).map(move |s| row(s, n))).collect()
}

/// Publishes as the outbox does, until everything is acknowledged: in order, what failed again with the next try. How many
/// tries it took.
pub async fn publish_until_taken(bus: &Bus, mut rows: Vec<Posted>) -> usize {
    let mut tries = 0;
    while !rows.is_empty() {
        let batch: Vec<Posted> = rows.iter().take(64).cloned().collect();
        let answers = bus.publish_all(&batch).await;
        let taken: Vec<bool> = answers.iter().map(Result::is_ok).collect();
        let mut nth = 0;
        rows.retain(|_| {
            nth += 1;
            !taken.get(nth - 1).copied().unwrap_or(false)
        });
        tries += 1;
        if !taken.contains(&true) {
            TokioRuntime::current().sleep(Duration::from_millis(10)).await;
        }
    }
    tries
}

/// What was heard, by its id, with how often.
#[derive(Default, Debug)]
pub struct Heard {
    /// Ids in the order in which they were heard for the first time.
    pub first: Vec<String>,
    /// How often each was heard.
    pub times: BTreeMap<String, usize>,
}

impl Heard {
    pub fn add(&mut self, id: &str) {
        let times = self.times.entry(id.to_owned()).or_default();
        *times += 1;
        if *times == 1 {
            self.first.push(id.to_owned());
        }
    }

    pub fn note(&mut self, message: &Message) {
        let headers = message.headers.as_ref().expect("headers");
        self.add(headers.get("Nats-Msg-Id").expect("an id").as_str());
    }

    /// Every row was heard, and of each source in order.
    #[track_caller]
    pub fn check(&self, rows: &[Posted]) {
        for source in rows.iter().map(|r| r.id.source).collect::<std::collections::BTreeSet<_>>() {
            let of_source = |id: &&String| id.starts_with(&source.to_string());
            let heard: Vec<&String> = self.first.iter().filter(of_source).collect();
            let sent: Vec<String> =
                rows.iter().filter(|r| r.id.source == source).map(|r| r.id.to_string()).collect();
            assert_eq!(heard, sent.iter().collect::<Vec<_>>(), "all of {source}, in order");
        }
    }

    pub fn repeated(&self) -> usize {
        self.times.values().filter(|n| **n > 1).count()
    }
}
