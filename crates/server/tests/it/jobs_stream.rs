//! The stream of a job over HTTP: pages, and live.

use super::jobs_support::{Jobs, start};
use reqwest::{Client, Method, Response};
use serde_json::{Value, json};

/// Reads a live stream to its end: ids, names and data.
async fn listen(server: &Jobs, id: &str, last: Option<&str>) -> Response {
    let client = Client::builder().no_proxy().build().unwrap();
    let mut request = client
        .request(Method::GET, format!("{}/v1/jobs/{id}/events", server.base))
        .header("accept", "text/event-stream");
    if let Some(last) = last {
        request = request.header("last-event-id", last);
    }
    let response = request.send().await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    response
}

/// What a stream tells to its end.
async fn live(server: &Jobs, id: &str, last: Option<&str>) -> Vec<(String, String, Value)> {
    told(&listen(server, id, last).await.text().await.unwrap())
}

fn told(text: &str) -> Vec<(String, String, Value)> {
    let field = |block: &str, name: &str| {
        let line = block.lines().find_map(|l| l.strip_prefix(name));
        line.map(|l| l.trim().to_owned()).unwrap_or_default()
    };
    let blocks = text.split("\n\n").filter(|b| b.contains("data:"));
    blocks
        .map(|b| {
            let data = serde_json::from_str(&field(b, "data:")).unwrap();
            (field(b, "id:"), field(b, "event:"), data)
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_come_by_pages_that_fit_together() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let id = server.submit("listen", json!("go")).await;
    server.blocked(&id).await;
    let all = server.get(&format!("/v1/jobs/{id}/events")).await.body;
    let all = all["events"].as_array().unwrap().clone();
    assert_eq!(all[0]["name"], "job_created");
    let (mut seen, mut from) = (Vec::new(), 1);
    loop {
        let page = server.get(&format!("/v1/jobs/{id}/events?from={from}&limit=1")).await.body;
        assert_eq!(page["events"].as_array().unwrap().len(), 1);
        seen.push(page["events"][0].clone());
        match page["next"].as_u64() {
            Some(next) => from = next,
            None => break,
        }
    }
    assert_eq!(seen, all);
    let beyond = server.get(&format!("/v1/jobs/{id}/events?from=1000")).await.body;
    assert_eq!(beyond, json!({"events": [], "next": null}));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_stream_follows_a_job_to_its_end_and_goes_on_where_it_was_cut() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let id = server.submit("listen", json!("go")).await;
    server.blocked(&id).await;
    let mut stream = listen(&server, &id, None).await;
    // What is there comes at once; everything after the first piece is told as it happens.
    let first = stream.chunk().await.unwrap().unwrap();
    server.post(&format!("/v1/jobs/{id}/signal"), json!({"key": "go", "payload": 1})).await;
    let rest = stream.bytes().await.unwrap();
    let lived = told(std::str::from_utf8(&[&first[..], &rest[..]].concat()).unwrap());
    let stored = server.get(&format!("/v1/jobs/{id}/events")).await.body;
    let stored = stored["events"].as_array().unwrap();
    let (end, events) = lived.split_last().unwrap();
    assert_eq!((end.1.as_str(), &end.2), ("end", &json!({"status": "completed"})));
    let data: Vec<&Value> = events.iter().map(|(_, _, data)| data).collect();
    assert_eq!(data, stored.iter().collect::<Vec<_>>());
    for (id, name, data) in events {
        assert_eq!(
            (json!(name), id.parse().ok()),
            (data["name"].clone(), data["version"].as_u64())
        );
    }
    let rest = live(&server, &id, Some("3")).await;
    assert_eq!(rest[0].0, "4");
    assert_eq!(rest.len() + 3, lived.len());
    let bad = [("accept", "text/event-stream"), ("last-event-id", "x")];
    let bad = server.send(Method::GET, &format!("/v1/jobs/{id}/events"), &bad, None).await;
    assert_eq!((bad.status, bad.text("field")), (400, "Last-Event-ID"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_lets_go_of_live_streams() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let id = server.submit("listen", json!("go")).await;
    server.blocked(&id).await;
    let client = Client::builder().no_proxy().build().unwrap();
    let url = format!("{}/v1/jobs/{id}/events", server.base);
    let response = client.get(url).header("accept", "text/event-stream").send().await.unwrap();
    let (text, ()) = tokio::join!(response.text(), server.stop());
    assert!(text.unwrap().contains("event: closing"));
}
