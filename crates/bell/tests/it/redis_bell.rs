//! The bell over Redis where everything works, and where it is told what can not.

use crate::support::{hears, in_time, until};
use futures_util::{FutureExt as _, StreamExt as _};
use redis::aio::PubSub;
use std::sync::Arc;
use tenure_bell::{BusOptions, InProcess, RedisBell, Standby, conformance, nats::Credentials};
use tenure_edge::{SystemClock, TokioRuntime};
use tenure_kernel::{
    bell::{Bell as _, Topic},
    runtime::Rt,
};
use tenure_proving::{patience, redis::RedisServer};

/// The server that all tests share who harm nobody.
pub fn shared() -> String {
    std::env::var("TENURE_TEST_REDIS").expect(
        "TENURE_TEST_REDIS is not set: run the tests with ./check with -- cargo test -p tenure-bell",
    )
}

pub fn rt() -> Rt {
    Arc::new(TokioRuntime::current())
}

pub fn start(options: BusOptions) -> RedisBell {
    RedisBell::start(options, InProcess::new(), Arc::new(SystemClock), rt()).unwrap()
}

/// A bell that is connected.
pub async fn bell(url: &str, store: &str) -> RedisBell {
    let bell = start(BusOptions::new(url, store));
    connected(&bell).await;
    bell
}

pub async fn connected(bell: &RedisBell) {
    in_time("a connection", bell.connected()).await;
}

/// Somebody who is no Tenure and publishes.
pub async fn stranger(url: &str) -> redis::aio::MultiplexedConnection {
    let client = redis::Client::open(url).unwrap();
    in_time("a client", client.get_multiplexed_async_connection()).await.unwrap()
}

/// Somebody who is no Tenure and listens.
pub async fn listener(url: &str, channel: &str) -> PubSub {
    let client = redis::Client::open(url).unwrap();
    let mut heard = in_time("a client", client.get_async_pubsub()).await.unwrap();
    heard.subscribe(channel).await.unwrap();
    heard
}

fn queue(target: &str) -> Topic {
    Topic::Queue(format!("agent:{target}"))
}

#[tokio::test]
async fn redis_keeps_the_promises_of_a_bell() {
    let (here, there) = (bell(&shared(), "promises").await, bell(&shared(), "promises").await);
    conformance::across(&here, &there).await;
    conformance::across(&there, &here).await;
    // Alone: what the other one rang could still be on its way.
    conformance::within(&bell(&shared(), "alone").await).await;
}

#[tokio::test]
async fn without_a_redis_the_bell_still_rings_here() {
    let bell = start(BusOptions::new(RedisServer::not_yet().url(), "s"));
    conformance::within(&bell).await;
    assert!(!bell.others().unwrap().connected);
}

#[tokio::test]
async fn redis_bells_of_another_store_are_not_heard() {
    let (here, there) = (bell(&shared(), "one_store").await, bell(&shared(), "another").await);
    let (mut due, mut target) = (there.listen(Topic::Due), there.listen(queue("everybodys-r")));
    here.ring(Topic::Due);
    here.ring(queue("everybodys-r"));
    hears(&mut *target, "a wake-up, which is for everybody").await;
    // The bell of the store goes after wake-ups, so the next wake-up proves that it is not on its way.
    let mut target = there.listen(queue("everybodys-r"));
    here.ring(queue("everybodys-r"));
    hears(&mut *target, "another wake-up").await;
    assert!(due.heard().now_or_never().is_none());
}

#[tokio::test]
async fn a_wake_up_of_anybody_rings_over_redis_and_ours_is_heard_by_everybody() {
    let channel = "cmd.agent.t-strange.wakeup";
    let (bell, mut other) = (bell(&shared(), "strangers").await, stranger(&shared()).await);
    let mut heard = listener(&shared(), channel).await;
    for payload in ["", "{}", "no json", r#"{"from": 7}"#, r#"{"inbox_id": "x"}"#] {
        let mut ear = bell.listen(queue("t-strange"));
        let told: i64 =
            redis::cmd("PUBLISH").arg(channel).arg(payload).query_async(&mut other).await.unwrap();
        assert_eq!(told, 2, "the bell and the listener");
        hears(&mut *ear, payload).await;
        in_time("its own", heard.on_message().next()).await.unwrap();
    }
    bell.ring(queue("t-strange"));
    let message = in_time("our wake-up", heard.on_message().next()).await.unwrap();
    let said: serde_json::Value = serde_json::from_slice(message.get_payload_bytes()).unwrap();
    assert!(said["reason"].is_string() && said["at"].is_string(), "{said}");
}

#[tokio::test]
async fn what_a_process_rang_itself_is_not_taken_back_from_redis() {
    let server = RedisServer::start();
    let (here, there) = (bell(&server.url(), "own").await, bell(&server.url(), "own").await);
    for topic in [Topic::Due, queue("t-own")] {
        let mut ear = here.listen(topic.clone());
        let mut across = there.listen(topic.clone());
        here.ring(topic);
        hears(&mut *ear, "here at once").await;
        hears(&mut *across, "there").await;
        // Rung back: if ours had come back, it would have come before.
        let mut answer = here.listen(Topic::Outbox);
        there.ring(Topic::Outbox);
        hears(&mut *answer, "the answer").await;
        assert!(ear.heard().now_or_never().is_none(), "heard twice");
    }
    assert_eq!(here.others().unwrap().heard, 2, "the answers alone");
}

#[tokio::test]
async fn rings_of_a_moment_travel_together_over_redis() {
    let (here, there) = (bell(&shared(), "together").await, bell(&shared(), "together").await);
    let names: Vec<Topic> = (0..50).map(|n| Topic::Queue(format!("q{n}"))).collect();
    let mut ears: Vec<_> = names.iter().map(|t| there.listen(t.clone())).collect();
    for _ in 0..200 {
        names.iter().for_each(|t| here.ring(t.clone()));
    }
    for ear in &mut ears {
        hears(&mut **ear, "one of fifty").await;
    }
    let sent = here.ring_messages_sent();
    assert!(sent < 100, "10,000 rings went out in {sent} messages");
}

#[tokio::test]
async fn a_prefix_keeps_deployments_on_one_redis_apart() {
    let mut bells = Vec::new();
    for prefix in ["acme.prod", "acme.prod", "other"] {
        let options = BusOptions { prefix: prefix.into(), ..BusOptions::new(shared(), "same") };
        let bell = start(options);
        connected(&bell).await;
        bells.push(bell);
    }
    let mut heard = listener(&shared(), "acme.prod.cmd.agent.t-pre.wakeup").await;
    let mut apart = bells[2].listen(Topic::Due);
    let (mut ear, mut target) = (bells[1].listen(Topic::Due), bells[1].listen(queue("t-pre")));
    bells[0].ring(Topic::Due);
    bells[0].ring(queue("t-pre"));
    hears(&mut *ear, "the same prefix").await;
    hears(&mut *target, "a wake-up under the same prefix").await;
    in_time("the channel with its prefix", heard.on_message().next()).await.unwrap();
    assert!(apart.heard().now_or_never().is_none());
}

#[tokio::test]
async fn redis_and_postgres_ring_the_same_ears() {
    let mut server = RedisServer::not_yet();
    let standby = async |server: &RedisServer| {
        let local = InProcess::new();
        let options = BusOptions::new(server.url(), "standby");
        let bell = RedisBell::start(options, local.clone(), Arc::new(SystemClock), rt()).unwrap();
        Standby::new(bell, crate::notify_for("standby_redis", local).await)
    };
    let (here, there) = (standby(&server).await, standby(&server).await);
    conformance::across(&here, &there).await;
    assert!(!here.bus().others().unwrap().connected, "it was Postgres");
    server.start_again();
    connected(here.bus()).await;
    connected(there.bus()).await;
    let before = there.bus().others().unwrap().heard;
    conformance::across(&here, &there).await;
    assert!(there.bus().others().unwrap().heard > before, "it was Redis");
}

#[tokio::test]
async fn a_password_is_in_the_address_or_in_the_credentials() {
    let server = RedisServer::with(&["--requirepass", "s3cret"]);
    let with = |credentials: Option<&str>, url: String| BusOptions {
        credentials: credentials.map(|c| Credentials::parse(c).unwrap()),
        ..BusOptions::new(&url, "s")
    };
    let in_the_address = format!("redis://:s3cret@{}", server.address());
    for options in [
        with(None, in_the_address),
        with(Some("s3cret"), server.url()),
        with(Some("default:s3cret"), server.url()),
    ] {
        connected(&start(options)).await;
    }
    for options in [with(None, server.url()), with(Some("wrong"), server.url())] {
        let bell = start(options);
        until("a complaint", || bell.state().trouble.is_some()).await;
        let trouble = bell.state().trouble.unwrap();
        assert!(!bell.state().connected && !trouble.contains("s3cret"), "{trouble}");
        assert!(trouble.contains(&server.address()), "it says where: {trouble}");
    }
}

/// A user who may ring and listen and do nothing else.
#[tokio::test]
async fn few_permissions_are_enough() {
    let user = ["--user", "ringer", "on", ">pw", "resetkeys", "resetchannels"];
    let may =
        ["&tenure.bell.*", "&cmd.agent.*.wakeup", "-@all", "+publish", "+subscribe", "+psubscribe"];
    let server = RedisServer::with(&[&user[..], &may[..]].concat());
    let url = format!("redis://ringer:pw@{}", server.address());
    let (here, there) = (bell(&url, "s").await, bell(&url, "s").await);
    conformance::across(&here, &there).await;
    // Pings are refused, which is an answer.
    let mut operator = stranger(&server.url()).await;
    let mut info = redis::cmd("INFO");
    info.arg("commandstats");
    patience::until("pings of both connections of both bells", async || {
        let said: String = info.query_async(&mut operator).await.unwrap();
        let pings = said.lines().find_map(|l| l.strip_prefix("cmdstat_ping:")).unwrap_or("");
        let refused = pings.split(',').find_map(|w| w.strip_prefix("rejected_calls="));
        refused.is_some_and(|n| n.trim().parse::<u32>().is_ok_and(|n| n >= 8))
    })
    .await;
    assert_eq!((here.state().connected, here.state().connections), (true, 1), "{:?}", here.state());
    // One who may not listen to wake-ups, and says so.
    let few = ["--user", "mute", "on", ">pw", "&tenure.bell.*", "+publish", "+subscribe"];
    let server = RedisServer::with(&few);
    let mute = start(BusOptions::new(format!("redis://mute:pw@{}", server.address()), "s"));
    let said = |word: &str| mute.state().trouble.is_some_and(|t| t.contains(word));
    until("a complaint", || said("psubscribe")).await;
    assert!(!mute.state().connected);
}

#[tokio::test]
async fn what_can_never_be_a_redis_is_refused() {
    let refused = |options: BusOptions| {
        let started = RedisBell::start(options, InProcess::new(), Arc::new(SystemClock), rt());
        started.err().expect("refused").to_string()
    };
    assert!(refused(BusOptions::new("nats://h", "s")).contains("redis://HOST:PORT"));
    assert!(refused(BusOptions::new("redis://h:0", "s")).contains("port 0"));
    assert!(refused(BusOptions::new("redis://h", "no token")).contains("token"));
    let stream = BusOptions { jetstream: true, ..BusOptions::new("redis://h", "s") };
    assert!(refused(stream).contains("JetStream"));
}
