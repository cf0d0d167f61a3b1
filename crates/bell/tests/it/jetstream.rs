//! Events that a stream keeps.

use crate::support::{
    Heard, connected, in_time, listener, publish_until_taken, row, rows, start, stranger,
};
use async_nats::Client;
use futures_util::{StreamExt as _, future::join};
use serde_json::{Value, json};
use tenure_bell::{Bus, BusOptions};
use tenure_edge::TokioRuntime;
use tenure_kernel::{error::StoreError, outbox::Wire as _, runtime::Runtime as _};
use tenure_proving::nats::NatsServer;

async fn bus(url: &str) -> Bus {
    let bus = start(BusOptions { jetstream: true, ..BusOptions::new(url, "s") }).await;
    connected(&bus).await;
    bus
}

async fn ask(client: &Client, what: &str, with: Value) -> Value {
    let asking = client.request(format!("$JS.API.{what}"), with.to_string().into());
    let answer = in_time(what, asking).await.unwrap();
    serde_json::from_slice(&answer.payload).unwrap()
}

async fn stored(client: &Client) -> (u64, Heard) {
    let info = ask(client, "STREAM.INFO.tenure_evt", json!({})).await;
    let state = &info["state"];
    let mut heard = Heard::default();
    for seq in state["first_seq"].as_u64().unwrap()..=state["last_seq"].as_u64().unwrap() {
        let got = ask(client, "STREAM.MSG.GET.tenure_evt", json!({ "seq": seq })).await;
        // The headers come in base64; the id is in their text.
        let headers = decode(got["message"]["hdrs"].as_str().unwrap_or_else(|| panic!("{got}")));
        let line = headers.lines().find_map(|l| l.strip_prefix("Nats-Msg-Id: ")).expect("an id");
        heard.add(line.trim());
    }
    (state["messages"].as_u64().unwrap(), heard)
}

fn decode(base64: &str) -> String {
    let digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut word, mut out) = (0, 0u32, Vec::new());
    for digit in base64.chars().filter_map(|c| digits.find(c)) {
        (word, bits) = (word << 6 | digit as u32, bits + 6);
        if bits >= 8 {
            bits -= 8;
            out.push((word >> bits & 0xff) as u8);
        }
    }
    String::from_utf8(out).unwrap()
}

#[tokio::test]
async fn the_stream_is_made_where_it_is_missing_and_stores_a_repetition_once() {
    let dir = tempfile::tempdir().unwrap();
    let server = NatsServer::with_jetstream(dir.path());
    let (bus, other) = (bus(&server.url()).await, stranger(&server.url()).await);
    let rows = rows(5, 4);
    for _ in 0..3 {
        let answers = bus.publish_all(&rows).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    }
    let (messages, heard) = stored(&other).await;
    assert_eq!(messages as usize, rows.len());
    heard.check(&rows);
    let info = ask(&other, "STREAM.INFO.tenure_evt", json!({})).await;
    assert_eq!(info["config"]["subjects"], json!(["evt.>"]));
}

#[tokio::test]
async fn somebody_elses_stream_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let server = NatsServer::with_jetstream(dir.path());
    let other = stranger(&server.url()).await;
    let theirs = json!({ "name": "theirs", "subjects": ["evt.>"], "storage": "memory" });
    assert!(ask(&other, "STREAM.CREATE.theirs", theirs).await.get("error").is_none());
    let bus = bus(&server.url()).await;
    assert_eq!(bus.publish_all(&[row(1, 1)]).await, [Ok(())]);
    let info = ask(&other, "STREAM.INFO.theirs", json!({})).await;
    assert_eq!(info["state"]["messages"], 1);
    // Removed under our hands: made anew with the second try.
    assert_eq!(ask(&other, "STREAM.DELETE.theirs", json!({})).await["success"], true);
    assert!(matches!(bus.publish_all(&[row(1, 2)]).await[..], [Err(StoreError::Unavailable(_))]));
    assert_eq!(bus.publish_all(&[row(1, 2)]).await, [Ok(())]);
}

/// Without being asked to make a stream: one that takes the subject of an event has to have stored it, and what none takes is published.
#[tokio::test]
async fn a_stream_that_is_there_is_used_and_none_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let server = NatsServer::with_jetstream(dir.path());
    let other = stranger(&server.url()).await;
    let full = json!({ "name": "full", "subjects": ["evt.tenant.acme.agent.*.task"], "storage": "memory",
        "max_msgs": 1, "discard": "new" });
    assert!(ask(&other, "STREAM.CREATE.full", full).await.get("error").is_none());
    let bus = start(BusOptions::new(server.url(), "s")).await;
    connected(&bus).await;
    let mut step = row(2, 1);
    step.message.to = tenure_kernel::outbox::Target::Wire("evt.agent.a2.step".into());
    assert_eq!(bus.publish_all(&[row(1, 1), step.clone()]).await, [Ok(()), Ok(())]);
    let answers = bus.publish_all(&[row(1, 2), step.clone()]).await;
    assert!(
        matches!(&answers[..], [Err(StoreError::Unavailable(why)), Ok(())] if why.contains("refuses")),
        "{answers:?}"
    );
    // Removed under our hands: published as without one, with the second try.
    assert_eq!(ask(&other, "STREAM.DELETE.full", json!({})).await["success"], true);
    assert!(matches!(bus.publish_all(&[row(1, 2)]).await[..], [Err(StoreError::Unavailable(_))]));
    assert_eq!(bus.publish_all(&[row(1, 2)]).await, [Ok(())]);
    let streams = ask(&other, "STREAM.NAMES", json!({})).await;
    assert_eq!(streams["total"], 0, "{streams}");
}

/// Such a stream would be waited for in vain.
#[tokio::test]
async fn a_stream_that_acknowledges_nothing_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let server = NatsServer::with_jetstream(dir.path());
    let other = stranger(&server.url()).await;
    let mute =
        json!({ "name": "mute", "subjects": ["evt.>"], "storage": "memory", "no_ack": true });
    assert!(ask(&other, "STREAM.CREATE.mute", mute).await.get("error").is_none());
    let bus = start(BusOptions::new(server.url(), "s")).await;
    connected(&bus).await;
    in_time("published", publish_until_taken(&bus, vec![row(1, 1)])).await;
}

/// With somebody subscribed, the server does not say that nobody takes it.
#[tokio::test]
async fn a_stream_that_is_removed_is_noticed_by_its_silence() {
    let dir = tempfile::tempdir().unwrap();
    let server = NatsServer::with_jetstream(dir.path());
    let other = stranger(&server.url()).await;
    let theirs = json!({ "name": "theirs", "subjects": ["evt.>"], "storage": "memory" });
    assert!(ask(&other, "STREAM.CREATE.theirs", theirs).await.get("error").is_none());
    let bus = start(BusOptions::new(server.url(), "s")).await;
    connected(&bus).await;
    let _subscribed = listener(&other, "evt.>").await;
    in_time("stored", publish_until_taken(&bus, vec![row(1, 1)])).await;
    assert_eq!(ask(&other, "STREAM.DELETE.theirs", json!({})).await["success"], true);
    in_time("published", publish_until_taken(&bus, vec![row(1, 2)])).await;
}

/// A JetStream that cannot say yet what streams there are is asked again with the next batch.
#[tokio::test]
async fn streams_are_looked_for_until_that_is_answered() {
    let server = NatsServer::start();
    let other = stranger(&server.url()).await;
    let mut asked = listener(&other, "$JS.API.STREAM.NAMES").await;
    let bus = start(BusOptions::new(server.url(), "s")).await;
    connected(&bus).await;
    let busy = json!({ "error": { "code": 503, "err_code": 10_008 } });
    for (n, answer) in [(1, busy), (2, json!({ "streams": null }))] {
        let answers = async {
            let question = asked.next().await.unwrap();
            other.publish(question.reply.unwrap(), answer.to_string().into()).await.unwrap();
        };
        let rows = [row(1, n)];
        let (published, ()) = in_time("asked", join(bus.publish_all(&rows), answers)).await;
        assert_eq!(published, [Ok(())]);
    }
}

#[tokio::test]
async fn a_server_without_streams_keeps_events_in_the_outbox() {
    let server = NatsServer::start();
    let bus = bus(&server.url()).await;
    let answers = bus.publish_all(&[row(1, 1)]).await;
    assert!(
        matches!(&answers[..], [Err(StoreError::Unavailable(why))] if why.contains("JetStream")),
        "{answers:?}"
    );
}

/// A full stream takes nothing: then nothing of a source overtakes what was refused.
#[tokio::test]
async fn a_stream_that_refuses_changes_no_order() {
    let dir = tempfile::tempdir().unwrap();
    let server = NatsServer::with_jetstream(dir.path());
    let other = stranger(&server.url()).await;
    let narrow = json!({
        "name": "narrow", "subjects": ["evt.>"], "storage": "memory", "max_msgs": 7, "discard": "new"
    });
    assert!(ask(&other, "STREAM.CREATE.narrow", narrow).await.get("error").is_none());
    let bus = bus(&server.url()).await;
    let rows = rows(3, 4);
    let answers = bus.publish_all(&rows).await;
    assert_eq!(answers.iter().filter(|a| a.is_ok()).count(), 7, "{answers:?}");
    for (row, answer) in rows.iter().zip(&answers) {
        let earlier_failed = rows.iter().zip(&answers).any(|(r, a)| {
            r.id.source == row.id.source && r.id.version < row.id.version && a.is_err()
        });
        assert!(!(earlier_failed && answer.is_ok()), "{} overtook", row.id);
    }
}

/// Two turns of an agent are two sources. What the first said comes before what the second says.
#[tokio::test]
async fn what_is_said_about_one_agent_is_stored_in_the_order_of_the_outbox() {
    let dir = tempfile::tempdir().unwrap();
    let server = NatsServer::with_jetstream(dir.path());
    let (bus, other) = (bus(&server.url()).await, stranger(&server.url()).await);
    let mut rows = vec![row(1, 1), row(1, 2), row(1, 3), row(2, 1), row(2, 2)];
    let to = rows[0].message.to.clone();
    rows.iter_mut().for_each(|r| r.message.to = to.clone());
    assert!(bus.publish_all(&rows).await.iter().all(Result::is_ok));
    let (_, heard) = stored(&other).await;
    assert_eq!(heard.first, rows.iter().map(|r| r.id.to_string()).collect::<Vec<_>>());
}

/// `kill -9`, three times, under load: everything is stored, once, in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_under_load_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = NatsServer::with_jetstream(dir.path());
    let bus = bus(&server.url()).await;
    let rows = rows(20, 100);
    let (publishing, all) = (bus.clone(), rows.clone());
    let (done, mut finished) = tokio::sync::watch::channel(0);
    let (went, mut going) = tokio::sync::watch::channel(0);
    TokioRuntime::current().spawn(Box::pin(async move {
        let mut tries = 0;
        for part in all.chunks(200) {
            tries += publish_until_taken(&publishing, part.to_vec()).await;
            went.send_modify(|n| *n += part.len());
        }
        done.send_replace(tries);
    }));
    for share in [1, 2, 3] {
        in_time("progress", going.wait_for(|n| *n >= rows.len() * share / 4)).await.unwrap();
        server.kill();
        server.start_again();
    }
    let tries = *in_time("everything stored", finished.wait_for(|n| *n > 0)).await.unwrap();
    let (messages, heard) = stored(&stranger(&server.url()).await).await;
    heard.check(&rows);
    println!(
        "{messages} stored of {} events in {tries} tries, {} twice",
        rows.len(),
        heard.repeated()
    );
}
