//! An operator blocks a flow, a tool or a tenant over HTTP.

use super::jobs_support::{Answered, Jobs, start, start_in_postgres};
use reqwest::Method;
use serde_json::{Value, json};
use tenure_server::keys::Scope;

async fn set(server: &Jobs, what: &str) -> Answered {
    let why = json!({ "why": "it kills workers", "by": "ada" });
    server.with_key(Method::PUT, &format!("/v1/blocks/{what}"), &server.operator, why).await
}

async fn remove(server: &Jobs, what: &str) {
    let path = format!("/v1/blocks/{what}");
    let gone = server.with_key(Method::DELETE, &path, &server.operator, Value::Null).await;
    assert_eq!(gone.status, 204, "{gone:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_flow_is_refused_and_what_was_submitted_waits() {
    let dir = tempfile::tempdir().unwrap();
    a_blocked_flow(start(dir.path()).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_flow_is_refused_and_what_was_submitted_waits_in_postgres() {
    a_blocked_flow(start_in_postgres().await).await;
}

async fn a_blocked_flow(server: Jobs) {
    let job = server.submit("listen", json!("go")).await;
    server.blocked(&job).await;
    let block = set(&server, "flow/listen").await;
    assert_eq!((block.status, block.text("name")), (200, "listen"), "{block:?}");
    assert!(block.text("by").starts_with("ada (key "), "{block:?}");
    let refused = server.post("/v1/jobs", json!({"flow": "listen", "input": "x"})).await;
    assert_eq!((refused.status, refused.text("code")), (423, "blocked"), "{refused:?}");
    assert!(refused.text("detail").contains("it kills workers"), "{refused:?}");
    let attempt = server.get(&format!("/v1/jobs/{job}")).await.body["attempt"].clone();
    let signal = json!({"key": "go", "payload": 1});
    assert!(server.post(&format!("/v1/jobs/{job}/signal"), signal).await.status < 300);
    let queued = server.until(&job, "queued").await;
    assert!(queued["blocked"].as_str().unwrap().contains("flow listen"), "{queued}");
    // The worker is there, and has room for others.
    let other = server.submit("greet", json!({"name": "you"})).await;
    server.until(&other, "completed").await;
    let still = server.get(&format!("/v1/jobs/{job}")).await.body;
    assert_eq!((&still["status"], &still["attempt"]), (&json!("queued"), &attempt));
    let why = server.get(&format!("/v1/jobs/{job}/why")).await.body.to_string();
    assert!(why.contains("Blocked: an operator has blocked the flow listen"), "{why}");
    let page = server.fetch("/lines", &server.operator).await;
    assert!(String::from_utf8_lossy(&page).contains("it kills workers"));
    remove(&server, "flow/listen").await;
    server.until(&job, "completed").await;
    assert_eq!(server.get("/v1/blocks").await.body, json!({ "blocks": [] }));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_tenant_stands_still_and_others_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let acme = server.key(Some("acme"), &[Scope::Read, Scope::Write]).await;
    let globex = server.key(Some("globex"), &[Scope::Read, Scope::Write]).await;
    assert_eq!(set(&server, "tenant/acme").await.status, 200);
    let greet = json!({"flow": "greet", "input": {"name": "you"}});
    let refused = server.with_key(Method::POST, "/v1/jobs", &acme, greet.clone()).await;
    assert_eq!((refused.status, refused.text("field")), (423, "tenant"), "{refused:?}");
    let turn = json!({"message": "hello"});
    let refused = server.with_key(Method::POST, "/v1/agents/a/turns", &acme, turn).await;
    assert_eq!((refused.status, refused.text("code")), (423, "blocked"), "{refused:?}");
    let fine = server.with_key(Method::POST, "/v1/jobs", &globex, greet.clone()).await;
    server.until(fine.text("id"), "completed").await;
    remove(&server, "tenant/acme").await;
    let fine = server.with_key(Method::POST, "/v1/jobs", &acme, greet).await;
    server.until(fine.text("id"), "completed").await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_a_blocked_tool_are_not_handed_out() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let tools = json!([{ "name": "far/echo", "class": "idempotent" }]);
    let open = json!({ "name": "far", "lease_ms": 30_000, "tools": tools, "executor": null });
    let opened = server.post("/v1/calls/sessions", open).await;
    let poll = format!("/v1/calls/sessions/{}/poll", opened.text("session"));
    assert_eq!(set(&server, "tool/far%2Fecho").await.status, 200);
    let job = server.submit("far", json!({ "tool": "far/echo", "input": 1 })).await;
    let waits = |job: &Value| job["blocked"].as_str().is_some_and(|b| b.contains("tool far/echo"));
    server.until_it(&job, "blocked", waits).await;
    let polled = server.post(&poll, json!({ "max": 8, "wait_ms": 0 })).await;
    assert_eq!(polled.body["calls"], json!([]), "{polled:?}");
    remove(&server, "tool/far%2Fecho").await;
    let polled = server.post(&poll, json!({ "max": 8, "wait_ms": 20_000 })).await;
    assert_eq!(polled.body["calls"][0]["job"], json!(job), "{polled:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_an_operator_blocks_and_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let why = json!({ "why": "x" });
    let tenants = server.key(Some("acme"), &Scope::ALL).await;
    let writer = server.key(None, &[Scope::Read, Scope::Write, Scope::Worker]).await;
    for key in [&tenants, &writer] {
        for method in [Method::PUT, Method::DELETE] {
            let refused = server.with_key(method, "/v1/blocks/flow/x", key, why.clone()).await;
            assert_eq!(refused.status, 403, "{refused:?}");
        }
        assert_eq!(server.with_key(Method::GET, "/v1/blocks", key, Value::Null).await.status, 403);
    }
    for (path, body, field) in [
        ("/v1/blocks/agent/x", why.clone(), "kind"),
        ("/v1/blocks/flow/x", json!({}), "why"),
        ("/v1/blocks/flow/x", json!({ "why": "  " }), "why"),
        ("/v1/blocks/flow/x", json!({ "why": "x".repeat(201) }), "why"),
    ] {
        let refused = server.with_key(Method::PUT, path, &server.operator, body).await;
        assert_eq!((refused.status, refused.text("field")), (422, field), "{refused:?}");
    }
    let path = "/v1/blocks/flow/x";
    let absent = server.with_key(Method::DELETE, path, &server.operator, Value::Null).await;
    assert_eq!(absent.status, 404, "{absent:?}");
    server.stop().await;
}
