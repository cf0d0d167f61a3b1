//! The bus where it does not work: absent, killed, silent.

use crate::support::{
    Heard, bus, connected, hears, in_time, listener, publish_until_taken, row, rows, start,
    stranger, until,
};
use futures_util::StreamExt as _;
use std::time::Duration;
use tenure_bell::{Bus, BusOptions, conformance};
use tenure_edge::TokioRuntime;
use tenure_kernel::{
    bell::{Bell as _, Topic},
    outbox::Wire as _,
    runtime::Runtime as _,
};
use tenure_proving::nats::NatsServer;

async fn away(bus: &Bus) {
    until("the bus to be away", || !bus.state().connected).await;
}

#[tokio::test]
async fn a_bus_that_is_absent_at_the_start_costs_nothing_but_time() {
    let mut server = NatsServer::not_yet();
    let (here, there) = (
        start(BusOptions::new(server.url(), "s")).await,
        start(BusOptions::new(server.url(), "s")).await,
    );
    conformance::within(&here).await;
    assert!(!here.is_up() && !here.others().unwrap().connected);
    let began = TokioRuntime::current().mono();
    assert!(here.publish_all(&[row(1, 1)]).await[0].is_err());
    assert!(TokioRuntime::current().mono() - began < Duration::from_secs(1), "at once");
    until("a complaint", || here.state().trouble.is_some()).await;
    // What is rung now is kept; and everybody looks once when the bus is there.
    here.ring(Topic::Queue("kept".into()));
    let mut kept = there.listen(Topic::Queue("kept".into()));
    let mut everybody = here.listen(Topic::Outbox);
    server.start_again();
    hears(&mut *everybody, "a look after the connection").await;
    connected(&here).await;
    connected(&there).await;
    hears(&mut *kept, "a ring from before").await;
    conformance::across(&here, &there).await;
    assert_eq!(here.publish_all(&[row(1, 1)]).await, [Ok(())]);
}

#[tokio::test]
async fn a_killed_bus_comes_back_and_rings_once() {
    let mut server = NatsServer::start();
    let (here, there) = (bus(&server.url(), "s").await, bus(&server.url(), "s").await);
    for _ in 0..3 {
        server.kill();
        away(&here).await;
        away(&there).await;
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

/// A core server delivers to those who are subscribed at that moment. After a reconnect others have time to come back.
#[tokio::test]
async fn after_a_reconnect_events_wait_for_subscribers_to_come_back_and_rings_do_not() {
    let mut server = NatsServer::start();
    let pause = Duration::from_secs(1);
    let options = || BusOptions { reconnect_pause: pause, ..BusOptions::new(server.url(), "s") };
    let (bus, there) = (start(options()).await, start(options()).await);
    connected(&bus).await;
    assert_eq!(
        bus.publish_all(&[row(1, 1)]).await,
        [Ok(())],
        "the first connection is no reconnect"
    );
    server.kill();
    away(&bus).await;
    let rt = TokioRuntime::current();
    let began = rt.mono();
    server.start_again();
    connected(&bus).await;
    connected(&there).await;
    let publishing = bus.clone();
    let (done, mut finished) = tokio::sync::watch::channel(None);
    rt.spawn(Box::pin(async move {
        let answers = publishing.publish_all(&[row(1, 2)]).await;
        done.send_replace(Some((answers, TokioRuntime::current().mono())));
    }));
    conformance::across(&bus, &there).await;
    in_time("an answer", finished.wait_for(Option::is_some)).await.unwrap();
    let (answers, ended) = finished.borrow().clone().unwrap();
    assert_eq!(answers, [Ok(())]);
    assert!(ended - began >= pause, "published after {:?}", ended - began);
}

/// Everything that was acknowledged was heard by who listened all the time; and what was heard, in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_bus_loses_nothing_and_changes_no_order() {
    let server = NatsServer::start();
    let (bus, other) = (bus(&server.url(), "s").await, stranger(&server.url()).await);
    let mut events = listener(&other, "evt.>").await;
    let rows = rows(10, 30);
    let (begun, rest) = rows.split_at(100);
    publish_until_taken(&bus, begun.to_vec()).await;
    server.freeze();
    let rt = TokioRuntime::current();
    let began = rt.mono();
    // Nothing that rings or publishes hangs.
    (0..10_000).for_each(|n| bus.ring(Topic::Queue(n.to_string())));
    let answers = in_time("an answer about a silent bus", bus.publish_all(&rest[..64])).await;
    assert!(answers.iter().all(Result::is_err), "{answers:?}");
    away(&bus).await;
    let noticed = rt.mono() - began;
    assert!(noticed < Duration::from_secs(10), "{noticed:?}");
    println!("a silent bus was noticed after {noticed:?}");
    server.thaw();
    connected(&bus).await;
    let tries = publish_until_taken(&bus, rest.to_vec()).await;
    let mut heard = Heard::default();
    while heard.first.len() < rows.len() {
        heard.note(&in_time("an event", events.next()).await.unwrap());
    }
    heard.check(&rows);
    println!("{} events, {} heard twice, {tries} tries", rows.len(), heard.repeated());
}

/// Nobody rings and nobody publishes: pings find out.
#[tokio::test]
async fn an_idle_bus_that_falls_silent_is_noticed() {
    let server = NatsServer::start();
    let (bus, rt) = (bus(&server.url(), "s").await, TokioRuntime::current());
    server.freeze();
    let began = rt.mono();
    away(&bus).await;
    println!("an idle bus that fell silent was noticed after {:?}", rt.mono() - began);
    server.thaw();
    connected(&bus).await;
}

/// A core server forgets what it has taken when it is killed, so this is about order and ids; nothing lost is
/// shown with a JetStream, which remembers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_in_order_through_kills_and_repetitions_carry_the_same_id() {
    let mut server = NatsServer::start();
    let (bus, other) = (bus(&server.url(), "s").await, stranger(&server.url()).await);
    let events = listener(&other, "evt.>").await;
    let rows = rows(10, 300);
    let (publishing, rt) = (bus.clone(), TokioRuntime::current());
    let all = rows.clone();
    let (done, mut finished) = tokio::sync::watch::channel(0);
    rt.spawn(Box::pin(async move {
        done.send_replace(publish_until_taken(&publishing, all).await);
    }));
    let (heard, mut seen) = tokio::sync::watch::channel(Heard::default());
    rt.spawn(Box::pin(async move {
        let mut events = events;
        while let Some(event) = events.next().await {
            heard.send_modify(|h| h.note(&event));
        }
    }));
    for share in [1, 2, 3] {
        let so_far = rows.len() * share / 5;
        let come = seen.wait_for(|h| h.first.len() >= so_far);
        // A kill may have swallowed some; then it is enough that all was acknowledged.
        tokio::select! { _ = in_time("events", come) => {}, _ = finished.wait_for(|n| *n > 0) => {} }
        server.kill();
        server.start_again();
    }
    let tries = *in_time("everything acknowledged", finished.wait_for(|n| *n > 0)).await.unwrap();
    let heard = seen.borrow();
    for source in 0..10u16 {
        let prefix = row(source, 1).id.source.to_string();
        let versions: Vec<u64> = heard
            .first
            .iter()
            .filter(|id| id.starts_with(&prefix))
            .map(|id| id.split('/').nth(1).unwrap().parse().unwrap())
            .collect();
        assert!(versions.is_sorted(), "{versions:?}");
    }
    println!(
        "{} of {} heard, {} twice, {tries} tries",
        heard.first.len(),
        rows.len(),
        heard.repeated()
    );
}
