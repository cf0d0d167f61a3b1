//! Events in a channel: acknowledged, in order, with listeners that know what they missed.

use crate::{
    redis_bell::{listener, rt, shared},
    support::{Heard as Order, in_time, until},
};
use bytes::Bytes;
use futures_util::StreamExt as _;
use redis::aio::PubSub;
use std::time::Duration;
use tenure_bell::redis::{
    EventChannel, Heard, PATIENCE, RedisOptions, Subscription, Unpublished,
    events::MESSAGE_BYTES_MAX,
};
use tenure_edge::TokioRuntime;
use tenure_kernel::runtime::Runtime as _;
use tenure_proving::{patience, redis::RedisServer};

async fn channel(addresses: &str) -> EventChannel {
    let events = EventChannel::start(&RedisOptions::new(addresses), rt()).unwrap();
    in_time("a connection", events.connected()).await;
    events
}

async fn heard(listening: &mut Subscription) -> Heard {
    in_time("something to hear", listening.heard()).await
}

/// The text of the next message.
async fn text(listening: &mut PubSub) -> String {
    let message = in_time("a message", listening.on_message().next()).await.unwrap();
    String::from_utf8(message.get_payload_bytes().to_vec()).unwrap()
}

fn numbered(from: usize, to: usize) -> Vec<Bytes> {
    (from..to).map(|n| n.to_string().into()).collect()
}

/// Publishes as a collector does: in order, what was not acknowledged again, from the first such on.
async fn publish_until_taken(events: &EventChannel, channel: &str, messages: &[Bytes]) -> usize {
    let (mut taken, mut tries) = (0, 0);
    while taken < messages.len() {
        let batch = &messages[taken..messages.len().min(taken + 100)];
        let became = events.publish_all(channel, batch).await;
        assert_eq!(became.len(), batch.len());
        let ok = became.iter().take_while(|b| b.is_ok()).count();
        assert!(became[ok..].iter().all(Result::is_err), "nothing counts after one that waits");
        (taken, tries) = (taken + ok, tries + 1);
        if ok < batch.len() {
            TokioRuntime::current().sleep(Duration::from_millis(5)).await;
        }
    }
    tries
}

#[tokio::test]
async fn a_message_is_acknowledged_with_the_number_of_those_who_heard_it() {
    let events = channel(&shared()).await;
    assert_eq!(events.publish("ev:none", "x").await, Ok(0));
    let mut one = listener(&shared(), "ev:some").await;
    let mut other = events.subscribe("ev:some");
    assert_eq!(heard(&mut other).await, Heard::Connected { connection: 1 });
    assert_eq!(events.publish("ev:some", "hello").await, Ok(2));
    assert_eq!(text(&mut one).await, "hello");
    let message = Heard::Message { channel: "ev:some".into(), payload: "hello".into() };
    assert_eq!(heard(&mut other).await, message);
    // Bytes are bytes.
    let bytes = Bytes::from_static(&[0, 255, 13, 10]);
    assert_eq!(events.publish("ev:some", bytes.clone()).await, Ok(2));
    assert_eq!(
        heard(&mut other).await,
        Heard::Message { channel: "ev:some".into(), payload: bytes }
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_heard_in_order_and_every_message_has_its_answer() {
    let server = RedisServer::start();
    let events = channel(&server.address()).await;
    let mut listening = events.subscribe("ev");
    assert_eq!(heard(&mut listening).await, Heard::Connected { connection: 1 });
    let rt = rt();
    let (messages, began) = (numbered(0, 10_000), rt.mono());
    let became = in_time("the answers", events.publish_all("ev", &messages)).await;
    let took = rt.mono() - began;
    assert!(became.len() == messages.len() && became.iter().all(|b| *b == Ok(1)));
    for message in messages {
        let payload = message.clone();
        assert_eq!(heard(&mut listening).await, Heard::Message { channel: "ev".into(), payload });
    }
    println!("measured: 10,000 messages acknowledged in {took:?}");
}

/// Several who publish at once: each one's own order is kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_of_several_do_not_change_each_others_order() {
    let server = RedisServer::start();
    let events = channel(&server.address()).await;
    let mut listening = events.subscribe("ev");
    heard(&mut listening).await;
    let of = |who: u8| -> Vec<Bytes> { (0..1_000).map(|n| format!("{who} {n}").into()).collect() };
    let all = [of(1), of(2), of(3)];
    let publishing = all.iter().map(|batch| events.publish_all("ev", batch));
    let became = in_time("the answers", futures_util::future::join_all(publishing)).await;
    assert!(became.iter().flatten().all(Result::is_ok));
    let mut next = [0; 4];
    for _ in 0..3_000 {
        let Heard::Message { payload, .. } = heard(&mut listening).await else {
            panic!("a message")
        };
        let said = String::from_utf8(payload.to_vec()).unwrap();
        let (who, n) = said.split_once(' ').unwrap();
        let who: usize = who.parse().unwrap();
        assert_eq!(n.parse(), Ok(next[who]));
        next[who] += 1;
    }
}

#[tokio::test]
async fn without_a_server_the_answer_comes_at_once_and_says_why() {
    let mut server = RedisServer::not_yet();
    let events = EventChannel::start(&RedisOptions::new(server.address()), rt()).unwrap();
    until("a try", || events.state().trouble.is_some()).await;
    let became = in_time("an answer", events.publish_all("ev", &numbered(0, 3))).await;
    assert!(became.iter().all(|b| matches!(b, Err(Unpublished::Away(_)))), "{became:?}");
    let Err(Unpublished::Away(why)) = events.probe().await else { panic!("nobody is there") };
    assert!(why.contains(&server.address()), "{why}");
    server.start_again();
    in_time("a connection", events.connected()).await;
    assert_eq!(events.publish("ev", "x").await, Ok(0));
    let probe = events.probe().await.unwrap();
    assert_eq!(probe.at, server.address());
    assert!(probe.took < PATIENCE);
}

#[tokio::test]
async fn what_is_never_taken_is_refused_and_holds_nothing_back() {
    let user = ["--user", "teller", "on", ">pw", "resetkeys", "resetchannels", "&ff:events:*"];
    let may = ["-@all", "+publish", "+ping"];
    let server = RedisServer::with(&[&user[..], &may[..]].concat());
    let events = channel(&format!("redis://teller:pw@{}", server.address())).await;
    let mut other = listener(&server.url(), "ff:events:task").await;
    let large = |n: usize| Bytes::from(vec![b'x'; n]);
    let batch = [large(MESSAGE_BYTES_MAX), large(MESSAGE_BYTES_MAX + 1), large(1)];
    let became = events.publish_all("ff:events:task", &batch).await;
    assert!(matches!(&became[..], [Ok(1), Err(Unpublished::Refused(_)), Ok(1)]), "{became:?}");
    assert_eq!(text(&mut other).await.len(), MESSAGE_BYTES_MAX);
    assert_eq!(text(&mut other).await.len(), 1);
    let became = events.publish("somewhere:else", "x").await;
    assert!(
        matches!(&became, Err(Unpublished::Refused(why)) if why.to_lowercase().contains("perm")),
        "{became:?}"
    );
    assert_eq!(events.publish("ff:events:task", "x").await, Ok(1), "the connection stands");
    assert_eq!(events.state().connections, 1);
}

/// How far one may publish ahead of a listener: well below what is kept for that, also when it goes on after a pause.
const AHEAD: usize = 4_000;

/// Down for a while, three times, under load. Redis forgets with its life, and so do listeners; what is heard is in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_under_load_change_no_order_and_listeners_know_when_to_read_again() {
    let mut server = RedisServer::start();
    let events = channel(&server.address()).await;
    let mut listening = events.subscribe("ev");
    assert_eq!(heard(&mut listening).await, Heard::Connected { connection: 1 });
    // Published is until the listener has seen enough, and never further ahead of it than what is kept for it: what was missed then
    // was lost by the channel and not by us.
    let (seen, mut listens) = tokio::sync::watch::channel(Some(0));
    let (at, mut publisher) = tokio::sync::watch::channel((0, 0));
    let publishing = events.clone();
    rt().spawn(Box::pin(async move {
        let (mut published, mut tries) = (0, 0);
        loop {
            let is_near = |seen: &Option<usize>| seen.is_none_or(|n| published < n + AHEAD);
            if !listens.wait_for(is_near).await.is_ok_and(|seen| seen.is_some()) {
                return;
            }
            let batch = numbered(published, published + 100);
            tries += publish_until_taken(&publishing, "ev", &batch).await;
            published += batch.len();
            at.send_replace((published, tries));
        }
    }));
    let mut order = Order::default();
    let (mut connections, mut kills) = (1, 0);
    let (mut heard_on_this_connection, mut is_down) = (0, false);
    while kills < 3 || connections < 4 || heard_on_this_connection < 500 {
        match heard(&mut listening).await {
            Heard::Message { payload, .. } => {
                let number = std::str::from_utf8(&payload).unwrap();
                order.add(number);
                let next = number.parse::<usize>().unwrap() + 1;
                seen.send_modify(|seen| *seen = (*seen).max(Some(next)));
                heard_on_this_connection += 1;
                if kills < 3 && connections > kills && heard_on_this_connection == 500 {
                    server.kill();
                    (is_down, kills) = (true, kills + 1);
                }
            }
            // Lost is told once for each reason: that it closed, and that nobody is there.
            Heard::Lost { .. } if is_down => {
                server.start_again();
                is_down = false;
            }
            Heard::Lost { .. } => {}
            Heard::Connected { connection } => {
                connections += 1;
                heard_on_this_connection = 0;
                assert_eq!(connection, connections);
                assert_eq!(connections, kills + 1, "a connection is lost when its server is");
                // What was published meanwhile nobody hears, and nobody waits for.
                let published = publisher.borrow().0;
                seen.send_modify(|seen| *seen = (*seen).max(Some(published)));
            }
            Heard::Missed(n) => panic!("missed {n}"),
        }
    }
    seen.send_replace(None);
    // It lets go of its end when it has ended.
    in_time("the end", async { while publisher.changed().await.is_ok() {} }).await;
    let (published, tries) = *publisher.borrow();
    let numbers: Vec<usize> = order.first.iter().map(|n| n.parse().unwrap()).collect();
    assert!(numbers.is_sorted(), "{numbers:?}");
    println!("{} of {published} heard, {} twice, {tries} tries", numbers.len(), order.repeated());
}

/// A listener whose connection outlives the silence hears everything, in order; and nobody waits for long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_server_loses_nothing_and_changes_no_order() {
    let server = RedisServer::start();
    let (events, rt) = (channel(&server.address()).await, rt());
    let mut other = listener(&server.url(), "ev").await;
    let messages = numbered(0, 3_000);
    let (begun, rest) = messages.split_at(1_000);
    publish_until_taken(&events, "ev", begun).await;
    server.freeze();
    let began = rt.mono();
    let became = in_time("an answer", events.publish_all("ev", rest)).await;
    let took = rt.mono() - began;
    assert!(became.iter().all(|b| matches!(b, Err(Unpublished::Away(_)))));
    assert!(took < 2 * PATIENCE, "{took:?}");
    assert!(!events.state().connected && events.probe().await.is_err());
    server.thaw();
    in_time("a connection", events.connected()).await;
    let tries = publish_until_taken(&events, "ev", rest).await;
    let mut order = Order::default();
    while order.first.len() < messages.len() {
        order.add(&text(&mut other).await);
    }
    let numbers: Vec<usize> = order.first.iter().map(|n| n.parse().unwrap()).collect();
    assert!(numbers.is_sorted() && numbers.len() == 3_000);
    println!("answered after {took:?}; {} heard twice, {tries} tries", order.repeated());
}

/// Nobody publishes: pings find out, for who publishes and for who listens.
#[tokio::test]
async fn an_idle_connection_that_falls_silent_is_noticed() {
    let server = RedisServer::start();
    let (events, rt) = (channel(&server.address()).await, rt());
    let mut listening = events.subscribe("ev");
    assert_eq!(heard(&mut listening).await, Heard::Connected { connection: 1 });
    server.freeze();
    let began = rt.mono();
    until("away", || !events.state().connected).await;
    assert!(matches!(heard(&mut listening).await, Heard::Lost { .. }));
    let noticed = rt.mono() - began;
    assert!(noticed < Duration::from_secs(10), "{noticed:?}");
    server.thaw();
    assert_eq!(heard(&mut listening).await, Heard::Connected { connection: 2 });
    in_time("a connection", events.connected()).await;
    assert_eq!(events.publish("ev", "again").await, Ok(1));
    println!("noticed after {noticed:?}");
}

/// The server closes what it calls idle, or an operator does.
#[tokio::test]
async fn a_closed_connection_is_built_anew() {
    let server = RedisServer::start();
    let events = channel(&server.address()).await;
    let mut listening = events.subscribe("ev");
    heard(&mut listening).await;
    let mut operator = crate::redis_bell::stranger(&server.url()).await;
    let mut kill = redis::cmd("CLIENT");
    kill.arg("KILL").arg("SKIPME").arg("yes").exec_async(&mut operator).await.unwrap();
    assert!(matches!(heard(&mut listening).await, Heard::Lost { .. }));
    assert_eq!(heard(&mut listening).await, Heard::Connected { connection: 2 });
    publish_until_taken(&events, "ev", &numbered(0, 1)).await;
    assert_eq!(
        heard(&mut listening).await,
        Heard::Message { channel: "ev".into(), payload: "0".into() }
    );
}

#[tokio::test]
async fn a_subscription_ends_with_its_value() {
    let server = RedisServer::start();
    let events = channel(&server.address()).await;
    let mut listening = events.subscribe("ev");
    heard(&mut listening).await;
    assert_eq!(events.publish("ev", "x").await, Ok(1));
    drop(listening);
    patience::until("its end", async || events.publish("ev", "x").await == Ok(0)).await;
}
