//! Tenants stay within their quotas, at every door.

use super::{
    jobs_support::{Answered, Jobs, Setup, start_with},
    support::config,
};
use reqwest::Method;
use serde_json::{Value, json};
use std::path::Path;
use tenure_engine::config::EngineConfig;
use tenure_kernel::quota::Quotas;
use tenure_proving::patience;
use tenure_server::keys::Scope;

async fn server(dir: &Path, quotas: &str) -> Jobs {
    let quotas = Quotas::read(quotas).unwrap();
    let config = EngineConfig { quotas, quota_kinds: &["job", "task", "turn"], ..config() };
    start_with(dir, Setup { config, ..Setup::default() }).await
}

/// A job of the tenant that waits until it is told to go on.
async fn submit(server: &Jobs, tenant: &str) -> Answered {
    server.post("/v1/jobs", json!({"flow": "listen", "input": "go", "tenant": tenant})).await
}

fn refused(answer: &Answered, code: &str) {
    assert_eq!((answer.status, answer.text("code")), (429, code), "{answer:?}");
    let seconds: u64 = answer.retry_after.as_ref().unwrap().parse().unwrap();
    assert!(seconds > 0);
}

async fn used(server: &Jobs, tenant: &str, quota: &str) -> Value {
    let all = server.get("/v1/quotas").await.body;
    let one = |q: &&Value| q["tenant"] == tenant && q["quota"] == quota;
    all["quotas"].as_array().unwrap().iter().find(one).cloned().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_jobs_up_to_the_quota_and_again_when_some_have_ended() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), "acme=open:3").await;
    let mut jobs = Vec::new();
    for _ in 0..3 {
        let answer = submit(&server, "acme").await;
        assert_eq!(answer.status, 202, "{answer:?}");
        jobs.push(answer.text("id").to_owned());
    }
    refused(&submit(&server, "acme").await, "quota_open");
    assert_eq!(submit(&server, "globex").await.status, 202, "nobody else is limited");
    let shown = used(&server, "acme", "open").await;
    assert_eq!((&shown["used"], &shown["limit"]), (&json!(3), &json!(3)));
    assert!(shown["refused"].as_u64().unwrap() >= 1);
    // A tenant sees its own use, and no other's.
    let key = server.key(Some("acme"), &[Scope::Read]).await;
    let own = server.with_key(Method::GET, "/v1/quotas", &key, json!(null)).await.body;
    assert_eq!(own["quotas"].as_array().unwrap().len(), 1);
    let key = server.key(Some("globex"), &[Scope::Read]).await;
    let others = server.with_key(Method::GET, "/v1/quotas", &key, json!(null)).await.body;
    assert_eq!(others["quotas"], json!([]));
    let page = String::from_utf8(server.fetch("/metrics", &server.operator).await).unwrap();
    assert!(page.contains("tenure_quota_used{tenant=\"acme\",quota=\"open\"} 3"), "{page}");
    let path = format!("/v1/jobs/{}/signal", jobs[0]);
    server.post(&path, json!({"key": "go", "payload": 1})).await;
    patience::until("room for one more", async || submit(&server, "acme").await.status == 202)
        .await;
    refused(&submit(&server, "acme").await, "quota_open");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_child_beyond_the_quota_fails_its_step_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), "acme=open:2").await;
    let child = json!({"job": {"flow": "listen", "input": "go"}});
    let plan = json!({"version": 1, "steps": {"a": child, "b": child, "c": child}});
    let answer = server.post("/v1/jobs", json!({"plan": plan, "tenant": "acme"})).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    let id = answer.text("id").to_owned();
    let why = async || {
        let events = server.get(&format!("/v1/jobs/{id}/events")).await.body.to_string();
        events.contains("the child could not be created") && events.contains("its quota is 2")
    };
    patience::until("the plan to learn that there is no room", why).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_submissions_in_a_second_than_the_quota_says() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), "*=per_second:2").await;
    let mut statuses = Vec::new();
    for _ in 0..20 {
        statuses.push(submit(&server, "acme").await.status);
    }
    assert_eq!(statuses[..2], [202, 202]);
    assert!(statuses.contains(&429), "{statuses:?}");
    assert_eq!(submit(&server, "globex").await.status, 202, "each tenant by itself");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_are_counted_and_refused_for_jobs_signals_and_values() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), "acme=bytes:100KiB").await;
    let big = "x".repeat(40_000);
    let body = json!({"flow": "greet", "input": {"name": big}, "tenant": "acme"});
    let first = server.post("/v1/jobs", body.clone()).await;
    assert_eq!(first.status, 202, "{first:?}");
    let mut last = server.post("/v1/jobs", body.clone()).await;
    for _ in 0..5 {
        if last.status == 429 {
            break;
        }
        last = server.post("/v1/jobs", body.clone()).await;
    }
    refused(&last, "quota_bytes");
    let small = submit(&server, "acme").await;
    let key = server.key(Some("acme"), &[Scope::Write, Scope::Worker, Scope::Read]).await;
    if small.status == 202 {
        let path = format!("/v1/jobs/{}/signal", small.text("id"));
        let signal = json!({"key": "go", "payload": "y".repeat(60_000)});
        let answer = server.with_key(Method::POST, &path, &key, signal).await;
        refused(&answer, "quota_bytes");
    }
    let bearer = format!("Bearer {key}");
    let headers =
        [("content-type", "application/octet-stream"), ("authorization", bearer.as_str())];
    let value = Some("z".repeat(120_000));
    refused(&server.send(Method::PUT, "/v1/worker/blobs", &headers, value).await, "quota_bytes");
    server.stop().await;
}
