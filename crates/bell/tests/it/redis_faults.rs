//! The bell over a Redis that is killed, stopped, and elsewhere.

use crate::{
    redis_bell::{bell, connected, rt, start},
    support::{hears, in_time, until},
};
use std::time::Duration;
use tenure_bell::{
    BusOptions, conformance,
    redis::{EventChannel, RedisOptions},
};
use tenure_kernel::bell::{Bell as _, Topic};
use tenure_proving::redis::RedisServer;

#[tokio::test]
async fn a_killed_redis_comes_back_and_rings_from_the_time_between_are_heard() {
    let mut server = RedisServer::start();
    let (here, there) = (bell(&server.url(), "s").await, bell(&server.url(), "s").await);
    for _ in 0..3 {
        server.kill();
        for bell in [&here, &there] {
            until("away", || !bell.state().connected).await;
        }
        here.ring(Topic::Due);
        let mut ear = there.listen(Topic::Due);
        server.start_again();
        hears(&mut *ear, "a ring from the time between").await;
        connected(&here).await;
        connected(&there).await;
        conformance::across(&here, &there).await;
    }
    assert_eq!(here.state().connections, 4);
}

/// Connections stand and nobody answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_redis_is_noticed_and_nobody_who_rings_waits_for_it() {
    let server = RedisServer::start();
    let (here, there) = (bell(&server.url(), "s").await, bell(&server.url(), "s").await);
    server.freeze();
    let rt = rt();
    let began = rt.mono();
    (0..10_000).for_each(|n| here.ring(Topic::Queue(n.to_string())));
    let rung = rt.mono() - began;
    assert!(rung < Duration::from_secs(2), "10,000 rings took {rung:?}");
    until("away", || !here.state().connected).await;
    let under_load = rt.mono() - began;
    until("away, without a ring", || !there.state().connected).await;
    let idle = rt.mono() - began;
    assert!(idle < Duration::from_secs(10), "{idle:?}");
    println!("a silent Redis was noticed after {under_load:?} under load, {idle:?} without");
    server.thaw();
    connected(&here).await;
    connected(&there).await;
    conformance::across(&here, &there).await;
}

#[tokio::test]
async fn a_list_is_tried_in_turn() {
    let (dead, mut first, second) =
        (RedisServer::not_yet(), RedisServer::start(), RedisServer::start());
    let list = [dead.url(), first.url(), second.url()].join(",");
    let (here, there) = (bell(&list, "s").await, bell(&list, "s").await);
    conformance::across(&here, &there).await;
    first.kill();
    until("the second one", || here.state().connections > 1 && here.state().connected).await;
    until("the second one", || there.state().connections > 1 && there.state().connected).await;
    conformance::across(&here, &there).await;
}

/// What is published at a replica is heard there and nowhere else.
#[tokio::test]
async fn a_replica_is_passed_over_until_it_is_the_primary() {
    let mut primary = RedisServer::start();
    let port = primary.port().to_string();
    let replica = RedisServer::with(&["--replicaof", "127.0.0.1", &port]);
    let list = format!("{},{}", replica.address(), primary.address());
    let events = EventChannel::start(&RedisOptions::new(&list), rt()).unwrap();
    in_time("a connection", events.connected()).await;
    assert_eq!(events.probe().await.unwrap().at, primary.address());
    primary.kill();
    let mut operator = crate::redis_bell::stranger(&replica.url()).await;
    let mut promote = redis::cmd("REPLICAOF");
    promote.arg("NO").arg("ONE").exec_async(&mut operator).await.unwrap();
    until("the new primary", || events.state().connections > 1).await;
    in_time("a connection", events.connected()).await;
    assert_eq!(events.probe().await.unwrap().at, replica.address());
}

/// Two nodes of a cluster, and a bell at each.
#[tokio::test]
async fn nodes_of_a_cluster_tell_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let node = |name: &str| {
        let file = dir.path().join(name).display().to_string();
        let bus = RedisServer::not_yet().port().to_string();
        let more = ["--cluster-enabled", "yes", "--cluster-config-file", &file];
        let server = RedisServer::with(&[&more[..], &["--cluster-port", &bus]].concat());
        (server, bus)
    };
    let ((one, _), (other, other_bus)) = (node("one"), node("other"));
    let mut operator = crate::redis_bell::stranger(&one.url()).await;
    let mut meet = redis::cmd("CLUSTER");
    meet.arg("MEET").arg("127.0.0.1").arg(other.port()).arg(other_bus);
    meet.exec_async(&mut operator).await.unwrap();
    let (here, there) = (start(BusOptions::new(one.url(), "s")), bell(&other.url(), "s").await);
    connected(&here).await;
    // Until the nodes know each other rings are lost.
    let (mut ear, rt) = (there.listen(Topic::Due), rt());
    let ringing = async {
        loop {
            here.ring(Topic::Due);
            rt.sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! { () = hears(&mut *ear, "the first ring") => {}, () = ringing => {} }
    conformance::across(&here, &there).await;
}
