//! The bus where everything works.

use crate::support::{
    Heard, bus, hears, in_time, listener, publish_until_taken, row, rows, shared, start, stranger,
    until,
};
use futures_util::{FutureExt as _, StreamExt as _};
use std::time::Duration;
use tenure_bell::{BusOptions, conformance};
use tenure_edge::TokioRuntime;
use tenure_kernel::{
    bell::{Bell, Silent, Topic},
    error::StoreError,
    outbox::{Target, Wire as _},
    runtime::{First, Runtime as _, first},
    stream::Body,
};
use tenure_proving::nats::NatsServer;

fn queue(target: &str) -> Topic {
    Topic::Queue(format!("agent:{target}"))
}

#[tokio::test]
async fn nats_keeps_the_promises_of_a_bell() {
    let (here, there) = (bus(&shared(), "promises").await, bus(&shared(), "promises").await);
    conformance::across(&here, &there).await;
    conformance::across(&there, &here).await;
    // Alone: what the other one rang could still be on its way.
    conformance::within(&bus(&shared(), "alone").await).await;
}

#[tokio::test]
async fn bells_of_another_store_are_not_heard() {
    let (here, there) = (bus(&shared(), "one_store").await, bus(&shared(), "another").await);
    let (mut due, mut target) = (there.listen(Topic::Due), there.listen(queue("everybodys")));
    here.ring(Topic::Due);
    here.ring(queue("everybodys"));
    // They travel in this order, over the same connections.
    hears(&mut *target, "a wake-up, which is for everybody").await;
    assert!(due.heard().now_or_never().is_none());
}

#[tokio::test]
async fn a_wake_up_of_anybody_rings_whatever_it_says_and_ours_is_heard_by_everybody() {
    let (bus, other) = (bus(&shared(), "strangers").await, stranger(&shared()).await);
    let mut heard = listener(&other, "cmd.agent.t-str.wakeup").await;
    for payload in ["", "{}", "no json", r#"{"from": 7}"#, r#"{"inbox_id": "x", "reason": "y"}"#] {
        let mut ear = bus.listen(queue("t-str"));
        other.publish("cmd.agent.t-str.wakeup", payload.into()).await.unwrap();
        hears(&mut *ear, payload).await;
        in_time("its own", heard.next()).await.unwrap();
    }
    bus.ring(queue("t-str"));
    let message = in_time("our wake-up", heard.next()).await.unwrap();
    let said: serde_json::Value = serde_json::from_slice(&message.payload).unwrap();
    assert!(said["reason"].is_string() && said["at"].is_string(), "{said}");
}

#[tokio::test]
async fn what_a_process_rang_itself_is_not_taken_back() {
    let server = NatsServer::start();
    let (here, there) = (bus(&server.url(), "own").await, bus(&server.url(), "own").await);
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
async fn rings_of_a_moment_travel_together_each_topic_once() {
    let (here, there) = (bus(&shared(), "together").await, bus(&shared(), "together").await);
    let names: Vec<Topic> = (0..50).map(|n| Topic::Queue(format!("q{n}"))).collect();
    let mut ears: Vec<_> = names.iter().map(|t| there.listen(t.clone())).collect();
    let before = here.ring_messages_sent();
    for _ in 0..200 {
        names.iter().for_each(|t| here.ring(t.clone()));
    }
    for ear in &mut ears {
        hears(&mut **ear, "one of fifty").await;
    }
    let sent = here.ring_messages_sent() - before;
    assert!(sent < 100, "10,000 rings went out in {sent} messages");
}

#[tokio::test]
async fn a_prefix_stands_before_every_subject_and_keeps_deployments_apart() {
    let with =
        |prefix: &str| BusOptions { prefix: prefix.to_owned(), ..BusOptions::new("", "same") };
    let mut buses = Vec::new();
    for prefix in ["acme.prod", "acme.prod", "other"] {
        let bus = start(BusOptions { url: shared().into(), ..with(prefix) }).await;
        crate::support::connected(&bus).await;
        buses.push(bus);
    }
    let other = stranger(&shared()).await;
    let mut events = listener(&other, "acme.prod.evt.>").await;
    let mut apart = buses[2].listen(Topic::Due);
    let (mut ear, mut target) = (buses[1].listen(Topic::Due), buses[1].listen(queue("t")));
    buses[0].ring(Topic::Due);
    buses[0].ring(queue("t"));
    hears(&mut *ear, "the same prefix").await;
    hears(&mut *target, "a wake-up under the same prefix").await;
    assert!(apart.heard().now_or_never().is_none());
    // The events of a tenant carry its name, so that the permissions of a bus can keep tenants apart; those of tenant
    // default have the plain form.
    let mut plain = row(1, 2);
    plain.tenant = "default".into();
    assert_eq!(buses[0].publish_all(&[row(1, 1), plain]).await, [Ok(()), Ok(())]);
    for subject in ["acme.prod.evt.tenant.acme.agent.a1.task", "acme.prod.evt.agent.a1.task"] {
        let event = in_time("the event", events.next()).await.unwrap();
        assert_eq!(event.subject.as_str(), subject);
    }
}

#[tokio::test]
async fn a_wake_up_says_on_the_bus_whom_it_is_about() {
    let server = NatsServer::start();
    let (here, there) = (bus(&server.url(), "s").await, bus(&server.url(), "s").await);
    let other = stranger(&server.url()).await;
    let mut wakeups = listener(&other, "cmd.agent.*.wakeup").await;
    let mut ear = there.listen(queue("t"));
    let about = serde_json::json!({ "agent_id": "ada", "agent_turn_id": "7", "reason": "dispatched_retry" });
    here.ring_about(queue("t"), about.to_string().as_bytes());
    hears(&mut *ear, "a ring").await;
    let heard = in_time("a wake-up", wakeups.next()).await.unwrap();
    let said: serde_json::Value = serde_json::from_slice(&heard.payload).unwrap();
    for (name, value) in about.as_object().unwrap() {
        assert_eq!(&said[name], value, "{said}");
    }
}

#[tokio::test]
async fn an_event_carries_its_id_its_trace_and_who_it_is_about() {
    let server = NatsServer::start();
    let (bus, other) = (bus(&server.url(), "s").await, stranger(&server.url()).await);
    let mut events = listener(&other, "evt.>").await;
    let row = row(3, 9);
    assert_eq!(bus.publish_all(std::slice::from_ref(&row)).await, [Ok(())]);
    let event = in_time("the event", events.next()).await.unwrap();
    assert_eq!(&event.payload[..], row.message.body.inline().unwrap());
    let headers = event.headers.unwrap();
    let header = |name: &str| headers.get(name).map(|v| v.as_str().to_owned()).unwrap_or_default();
    assert_eq!(header("Nats-Msg-Id"), row.id.to_string());
    assert!(header("traceparent").starts_with("00-"), "{headers:?}");
    let about = ["Tenure-Tenant", "CG-Agent-Id", "CG-Turn-Id", "CG-Turn-Epoch", "CG-Msg-Type"];
    assert_eq!(about.map(header), ["acme", "a3", "turn-3", "3", "task"]);
}

#[tokio::test]
async fn events_go_out_in_order_per_source() {
    let server = NatsServer::start();
    let (bus, other) = (bus(&server.url(), "s").await, stranger(&server.url()).await);
    let mut events = listener(&other, "evt.>").await;
    let rows = rows(20, 50);
    publish_until_taken(&bus, rows.clone()).await;
    let mut heard = Heard::default();
    for _ in &rows {
        heard.note(&in_time("an event", events.next()).await.unwrap());
    }
    heard.check(&rows);
    assert_eq!(heard.repeated(), 0);
}

#[tokio::test]
async fn what_can_never_be_published_is_refused_and_holds_nothing_back() {
    let server = NatsServer::start();
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(config.path(), "max_payload = 2048\n").unwrap();
    let small = NatsServer::with(None, &["-c", config.path().to_str().unwrap()]);
    for (url, bad) in [
        (server.url(), Target::Wire("evt.agent..task".into())),
        (server.url(), Target::Wire("evt.agent.* .task".into())),
        (small.url(), Target::Wire("evt.agent.a.task".into())),
    ] {
        let bus = bus(&url, "s").await;
        let mut refused = row(1, 1);
        refused.message.to = bad;
        refused.message.body = Body::json(&"x".repeat(3_000));
        let mut later = row(1, 2);
        later.message.body = Body::json(&1);
        let answers = bus.publish_all(&[refused, later]).await;
        assert!(matches!(&answers[..], [Err(StoreError::Refused(_)), Ok(())]), "{answers:?}");
    }
}

#[tokio::test]
async fn events_that_are_not_permitted_stay_in_the_outbox() {
    let config = tempfile::NamedTempFile::new().unwrap();
    let rules = r#"authorization { users = [ { user: u, password: p, permissions: {
        publish: { deny: ["evt.>"] } } }, { user: v, password: w } ] }"#;
    std::fs::write(config.path(), rules).unwrap();
    let server = NatsServer::with(None, &["-c", config.path().to_str().unwrap()]);
    let login = |text: &str| tenure_bell::nats::Credentials::parse(text).unwrap();
    let as_user = |text: &str| BusOptions {
        credentials: Some(login(text)),
        ..BusOptions::new(server.url(), "s")
    };
    let (denied, welcome) = (start(as_user("u:p")).await, start(as_user("v:w")).await);
    crate::support::connected(&denied).await;
    crate::support::connected(&welcome).await;
    conformance::across(&denied, &welcome).await;
    // The complaint comes beside the first batch, so the second knows in any case.
    let _ = denied.publish_all(&[row(1, 1)]).await;
    until("the complaint", || denied.state().trouble.is_some()).await;
    assert!(matches!(
        denied.publish_all(&[row(1, 2)]).await[..],
        [Err(StoreError::Unavailable(_))]
    ));
    assert_eq!(welcome.publish_all(&[row(1, 2)]).await, [Ok(())]);
    let stranger = start(as_user("x:y")).await;
    until("its complaint", || stranger.state().trouble.is_some()).await;
    assert!(!stranger.state().connected && stranger.state().trouble.unwrap().contains("auth"));
}

/// With the permissions that the documentation names, a tool's subject that nobody added to them costs its own message.
#[tokio::test]
async fn a_subject_that_is_not_permitted_holds_back_nothing_but_itself() {
    for jetstream in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("nats.conf");
        let rules = r#"authorization { users = [ { user: u, password: p, permissions: {
            publish: { allow: ["evt.>", "cmd.agent.*.wakeup", "tenure.bell.*", "_INBOX.>", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.CREATE.*"] },
            subscribe: { allow: ["cmd.agent.*.wakeup", "tenure.bell.*", "_INBOX.>"] } } } ] }"#;
        let stored = format!("jetstream {{ store_dir: {:?} }}", dir.path().join("js"));
        let text = format!("{rules}\n{}\n", if jetstream { stored.as_str() } else { "" });
        std::fs::write(&config, text).unwrap();
        let server = NatsServer::with(None, &["-c", config.to_str().unwrap()]);
        let login = tenure_bell::nats::Credentials::parse("u:p").unwrap();
        let options = BusOptions {
            credentials: Some(login),
            jetstream,
            ..BusOptions::new(server.url(), "s")
        };
        let bus = start(options).await;
        crate::support::connected(&bus).await;
        let mut tool = row(1, 1);
        tool.message.to = Target::Wire("tools.approve".into());
        // The complaint comes beside the first batch, so a later one knows in any case. Events go with every one.
        let mut n = 1;
        loop {
            n += 1;
            let answers = bus.publish_all(&[tool.clone(), row(1, n)]).await;
            assert_eq!(answers[1], Ok(()), "{jetstream}");
            match &answers[0] {
                Err(StoreError::Refused(why)) => {
                    assert!(why.contains("tools.approve"), "{why}");
                    break;
                }
                other => assert_eq!(*other, Ok(()), "not known yet"),
            }
            until("the complaint", || bus.state().trouble.is_some()).await;
        }
    }
}

/// How long it is from the work to the look of somebody who listens to this bell, and looks every tick anyway.
async fn looks(rings: &dyn Bell, hears: &dyn Bell, tick: Duration, samples: u32) -> Vec<Duration> {
    let rt = TokioRuntime::current();
    let mut took = Vec::new();
    for n in 0..samples {
        // Work comes at any moment of a tick.
        let moment = tick * (n * 37 % 100) / 100;
        let mut ear = hears.listen(Topic::Due);
        let looking = async {
            let mut slept = Duration::ZERO;
            while slept < tick {
                let began = rt.mono();
                let heard = first(ear.heard(), rt.sleep(tick - slept)).await;
                slept += rt.mono() - began;
                if heard == First::Left(()) {
                    break;
                }
            }
            rt.mono()
        };
        let working = async {
            rt.sleep(moment).await;
            let at = rt.mono();
            rings.ring(Topic::Due);
            at
        };
        let (looked, at) = futures_util::future::join(looking, working).await;
        took.push(looked.saturating_sub(at));
    }
    took.sort_unstable();
    took
}

/// How much later work begins with every bell silent. The tick is a fiftieth of the usual one, or this would take minutes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn measured_with_and_without_bells() {
    let (here, there) = (bus(&shared(), "silent").await, bus(&shared(), "silent").await);
    let tick = tenure_kernel::limits::TICK / 50;
    let with = looks(&here, &there, tick, 50).await;
    let without = looks(&here, &Silent, tick, 50).await;
    let at = |took: &[Duration], share: usize| took[took.len() * share / 100];
    println!(
        "work to look, a tick of {tick:?}: with NATS p50 {:?}, p99 {:?}; with bells silent p50 {:?}, p99 {:?} (at the usual tick fifty times that)",
        at(&with, 50),
        at(&with, 99),
        at(&without, 50),
        at(&without, 99)
    );
    assert!(at(&with, 50) < at(&without, 50));
}

/// Prints what a bell is worth. Not a benchmark: the bound only says that it is not a tick.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn measured_from_a_ring_to_the_look() {
    let (here, there) = (bus(&shared(), "measured").await, bus(&shared(), "measured").await);
    let rt = TokioRuntime::current();
    let mut took = Vec::new();
    for n in 0..500u32 {
        let topic = if n % 2 == 0 { Topic::Due } else { queue("t-measured") };
        let mut ear = there.listen(topic.clone());
        let began = rt.mono();
        here.ring(topic);
        hears(&mut *ear, "a ring").await;
        took.push(rt.mono() - began);
        // As work comes: not within the pause between two sendings.
        rt.sleep(Duration::from_micros(u64::from(1_200 + n % 7 * 300))).await;
    }
    took.sort_unstable();
    let at = |share: usize| took[took.len() * share / 100];
    let tick = tenure_kernel::limits::TICK;
    println!(
        "ring to look over NATS: p50 {:?}, p99 {:?}, worst {:?}",
        at(50),
        at(99),
        took[took.len() - 1],
    );
    assert!(at(50) < tick / 10, "{:?}", at(50));
}
