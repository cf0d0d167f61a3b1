//! Everything wrong with a request is said in the same way: problem+json that names the field and the fix.

use super::support::{Running, options, start, start_at};
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use std::net::SocketAddr;
use tenure_kernel::limits;

struct Answered {
    status: StatusCode,
    allow: Option<String>,
    problem: Value,
}

async fn send(
    server: &Running,
    method: Method,
    path: &str,
    kind: Option<&str>,
    body: impl Into<reqwest::Body>,
) -> Answered {
    let client = Client::builder().no_proxy().build().unwrap();
    let mut request = client
        .request(method, format!("{}{path}", server.base))
        .bearer_auth(&server.operator)
        .body(body);
    if let Some(kind) = kind {
        request = request.header("content-type", kind);
    }
    let response = request.send().await.unwrap();
    let status = response.status();
    let allow = response.headers().get("allow").map(|v| v.to_str().unwrap().to_owned());
    assert_eq!(response.headers()["content-type"], "application/problem+json", "{path}");
    let problem: Value = serde_json::from_slice(&response.bytes().await.unwrap()).unwrap();
    assert_eq!(problem["status"], status.as_u16());
    let code = problem["code"].as_str().unwrap();
    assert_eq!(problem["type"], format!("/errors/{code}"));
    for member in ["title", "detail", "field", "fix"] {
        assert!(problem[member].is_string(), "{member} of {problem}");
    }
    Answered { status, allow, problem }
}

async fn post(server: &Running, path: &str, body: &str) -> Answered {
    send(server, Method::POST, path, Some("application/json"), body.to_owned()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_names_as_many_entities_as_a_session_may_hold() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let id = "00000000-0000-7000-8000-000000000001";
    let renewal = |holds: usize| {
        let holds = vec![json!({ "entity": id, "epoch": 1, "mark": 0 }); holds];
        json!({ "ops": [{ "renew": { "session": id, "holds": holds } }] }).to_string()
    };
    let client = Client::builder().no_proxy().build().unwrap();
    let request = client
        .post(format!("{}/v1/worker/apply", server.base))
        .bearer_auth(&server.operator)
        .bearer_auth(&server.operator);
    let request = request.header("content-type", "application/json");
    let most = request.body(renewal(limits::HOLDS_MAX)).send().await.unwrap();
    assert_eq!(most.status().as_u16(), 200);
    let more = post(&server, "/v1/worker/apply", &renewal(limits::HOLDS_MAX + 1)).await;
    assert_eq!((more.status.as_u16(), &more.problem["field"]), (422, &json!("ops[0].holds")));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_or_method_that_is_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let lost = send(&server, Method::GET, "/v1/nowhere", None, "").await;
    assert_eq!((lost.status.as_u16(), &lost.problem["code"]), (404, &json!("no_route")));
    assert!(lost.problem["detail"].as_str().unwrap().contains("/v1/nowhere"));
    let wrong = send(&server, Method::DELETE, "/v1/worker/apply", None, "").await;
    assert_eq!(
        (wrong.status.as_u16(), &wrong.problem["code"]),
        (405, &json!("method_not_allowed"))
    );
    assert_eq!(wrong.allow.as_deref(), Some("POST"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_can_not_be_read_names_the_place() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let apply = "/v1/worker/apply";
    let torn = post(&server, apply, "{\"ops\": [\n  {,").await;
    assert_eq!((torn.status.as_u16(), &torn.problem["code"]), (400, &json!("bad_json")));
    assert_eq!((&torn.problem["line"], &torn.problem["field"]), (&json!(2), &json!("ops[0]")));
    let short = post(&server, apply, "{\"ops\": [").await;
    assert_eq!(short.status.as_u16(), 400);
    let twice = post(&server, apply, "{\"ops\": []} {}").await;
    assert_eq!(twice.status.as_u16(), 400);

    let id = "00000000-0000-7000-8000-000000000001";
    let name = "00000000000000000000000000000001";
    let cases = [
        (json!({}), "body", "missing field `ops`"),
        (json!({"ops": [], "more": 1}), "more", "unknown field `more`"),
        (json!({"ops": [{"touch": {}}]}), "ops[0]", "unknown variant `touch`"),
        (
            json!({"ops": [{"renew": {"session": "x", "holds": []}}]}),
            "ops[0].renew.session",
            "UUID",
        ),
        (
            json!({"ops": [{"commit": {"id": "12", "entity": id, "expect": {"holder": {"epoch": 1, "version": 1}}, "events": []}}]}),
            "ops[0].commit.id",
            "32 hexadecimal digits",
        ),
        (
            json!({"ops": [{"commit": {"id": name, "entity": id, "expect": {"absent": {"kind": "banana"}}, "events": []}}]}),
            "ops[0].commit.expect.absent.kind",
            "banana",
        ),
        (
            json!({"ops": [{"mail": {"to": id, "id": "m", "kind": "k", "body": {}}}]}),
            "ops[0].mail.body.json",
            "either json or base64",
        ),
    ];
    for (body, field, said) in cases {
        let answered = post(&server, apply, &body.to_string()).await;
        assert_eq!(answered.status.as_u16(), 422, "{body}");
        assert_eq!(answered.problem["field"].as_str().unwrap_or(""), field, "{}", answered.problem);
        assert!(
            answered.problem["detail"].as_str().unwrap().contains(said),
            "{}",
            answered.problem
        );
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_content_type_and_a_body_that_is_too_large() {
    let dir = tempfile::tempdir().unwrap();
    let small = tenure_server::ServerOptions {
        payload_bytes_max: 1_000,
        worker_bytes_max: 2_000,
        ..options()
    };
    let server = start_at(dir.path(), SocketAddr::from(([127, 0, 0, 1], 0)), small).await;
    for kind in [None, Some("text/plain"), Some("application/x-www-form-urlencoded")] {
        let answered = send(&server, Method::POST, "/v1/worker/apply", kind, "{\"ops\":[]}").await;
        assert_eq!(answered.status.as_u16(), 415);
        assert_eq!(answered.problem["field"], "Content-Type");
    }
    let padded = |n: usize| format!("{{\"ops\":[]{}}}", " ".repeat(n - 10));
    let at_the_limit = Client::builder()
        .no_proxy()
        .build()
        .unwrap()
        .post(format!("{}/v1/worker/apply", server.base))
        .bearer_auth(&server.operator)
        .header("content-type", "application/json; charset=utf-8")
        .body(padded(2_000));
    assert!(at_the_limit.send().await.unwrap().status().is_success());
    let past = post(&server, "/v1/worker/apply", &padded(2_001)).await;
    assert_eq!((past.status.as_u16(), &past.problem["code"]), (413, &json!("payload_too_large")));
    assert!(past.problem["detail"].as_str().unwrap().contains("2001"));
    let other = post(&server, "/v1/worker/bell", &" ".repeat(1_001)).await;
    assert_eq!(other.status.as_u16(), 413, "other routes have their own limit");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_queries_and_topics_that_can_not_be_used() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let get = |path: &'static str| send(&server, Method::GET, path, None, "");
    let id = get("/v1/worker/entities/banana").await;
    assert_eq!((id.status.as_u16(), &id.problem["field"]), (400, &json!("id")));
    let digest = get("/v1/worker/blobs/123").await;
    assert_eq!(digest.status.as_u16(), 400);
    let missing = get("/v1/worker/ready").await;
    assert_eq!(missing.status.as_u16(), 400);
    assert!(missing.problem["detail"].as_str().unwrap().contains("queue"));
    let number = get("/v1/worker/entities/00000000-0000-7000-8000-000000000001/mail?limit=x").await;
    assert_eq!((number.status.as_u16(), &number.problem["field"]), (400, &json!("limit")));
    let gone = get("/v1/worker/entities/00000000-0000-7000-8000-000000000001").await;
    assert_eq!((gone.status.as_u16(), &gone.problem["code"]), (404, &json!("not_found")));
    let ready = |bytes: usize| format!("/v1/worker/ready?queue={}", "q".repeat(bytes));
    let longest = reqwest::get(format!("{}{}", server.base, ready(limits::NAME_BYTES_MAX))).await;
    assert_eq!(longest.unwrap().status().as_u16(), 200);
    let longer =
        send(&server, Method::GET, &ready(limits::NAME_BYTES_MAX + 1), None, String::new()).await;
    assert_eq!((longer.status.as_u16(), &longer.problem["field"]), (422, &json!("queue")));
    let claim = json!({
        "id": "0".repeat(32), "session": "00000000-0000-7000-8000-000000000001", "lease_us": 1,
        "queue": "q".repeat(limits::NAME_BYTES_MAX + 1), "probes": [], "limit": 1,
    });
    let longer = post(&server, "/v1/worker/claim", &claim.to_string()).await;
    assert_eq!((longer.status.as_u16(), &longer.problem["field"]), (422, &json!("queue")));
    for topic in ["due", "outbox", "from/the/future", &format!("queue/{}", "q".repeat(129))] {
        let body = json!({"topics": ["queue/ok", topic], "wait_ms": 0}).to_string();
        let answered = post(&server, "/v1/worker/bell", &body).await;
        assert_eq!(
            (answered.status.as_u16(), &answered.problem["field"]),
            (422, &json!("topics[1]"))
        );
    }
    let many: Vec<_> = (0..257).map(|n| format!("queue/{n}")).collect();
    let body = json!({"topics": many, "wait_ms": 0}).to_string();
    assert_eq!(post(&server, "/v1/worker/bell", &body).await.status.as_u16(), 422);
    let renew = json!({"renew": {"session": "00000000-0000-7000-8000-000000000001", "holds": []}});
    let body = json!({"ops": vec![renew; 513]}).to_string();
    let answered = post(&server, "/v1/worker/apply", &body).await;
    assert_eq!((answered.status.as_u16(), &answered.problem["field"]), (422, &json!("ops")));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_document_lists_every_path() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let client = Client::builder().no_proxy().build().unwrap();
    let response = client.get(format!("{}/v1/openapi.json", server.base)).send().await.unwrap();
    let document: Value = serde_json::from_slice(&response.bytes().await.unwrap()).unwrap();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    let paths = document["paths"].as_object().unwrap();
    for path in [
        "/healthz",
        "/readyz",
        "/v1/worker/apply",
        "/v1/worker/bell",
        "/v1/worker/blobs",
        "/v1/worker/blobs/{digest}",
        "/v1/worker/claim",
        "/v1/worker/entities/{id}",
        "/v1/worker/entities/{id}/evidence",
        "/v1/worker/entities/{id}/mail",
        "/v1/worker/entities/{id}/stream",
        "/v1/worker/now",
        "/v1/worker/ready",
        "/v1/worker/sessions/{id}",
    ] {
        assert!(paths.contains_key(path), "{path}");
    }
    // Every reference leads somewhere.
    let text = document.to_string();
    for name in text.split("#/components/schemas/").skip(1).filter_map(|r| r.split('"').next()) {
        assert!(document["components"]["schemas"].get(name).is_some(), "{name}");
    }
    server.stop().await;
}
