//! Everything that is wrong with a request about jobs is said, with field and fix, and nothing is written.

use super::jobs_support::{Answered, Jobs, start};
use reqwest::Method;
use serde_json::{Value, json};
use tenure_server::keys::Scope;

/// Asks, and makes sure that nothing was written.
async fn refused(server: &Jobs, path: &str, body: Value, status: u16, code: &str) -> Answered {
    let before = server.written().await;
    let answered = server.post(path, body.clone()).await;
    assert_eq!(
        (answered.status, answered.text("code")),
        (status, code),
        "{path} {body}: {answered:?}"
    );
    assert_eq!(server.written().await, before, "{path} {body}");
    answered
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_submission_that_can_not_run_is_refused_before_it_is_a_job() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let submit = "/v1/jobs";
    let unknown = refused(&server, submit, json!({"flow": "gret"}), 422, "unknown_flow").await;
    assert_eq!((unknown.text("field"), unknown.text("nearest")), ("flow", "greet"));
    assert_eq!(unknown.body["known"].as_array().unwrap().len(), 11);
    let call = json!({"flow": "call", "input": {"tool": "ehco"}});
    let tool = refused(&server, submit, call, 422, "unknown_tool").await;
    assert_eq!((tool.text("field"), tool.text("nearest")), ("tool", "echo"));
    let version = json!({"flow": "greet", "version": 9});
    let version = refused(&server, submit, version, 422, "unknown_flow").await;
    assert_eq!((version.text("field"), &version.body["known"]), ("version", &json!([1])));

    let wrong = json!({"flow": "greet", "input": {"name": 7, "times": 300}});
    let wrong = refused(&server, submit, wrong, 422, "schema_violation").await;
    let at: Vec<&str> = wrong.body["violations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v["at"].as_str().unwrap())
        .collect();
    assert_eq!(at, ["/name", "/times"]);
    assert!(wrong.text("detail").contains("string"), "{wrong:?}");
    let missing = json!({"flow": "greet", "input": {}});
    let missing = refused(&server, submit, missing, 422, "schema_violation").await;
    assert!(missing.text("detail").contains("\"name\" is a required property"));

    let flow = refused(&server, submit, json!({"flow": "file_wait"}), 422, "later_version").await;
    assert_eq!(flow.text("field"), "flow");
    let field = json!({"flow": "greet", "file_wait": {}});
    let field = refused(&server, submit, field, 422, "later_version").await;
    assert_eq!(field.text("field"), "file_wait");
    assert!(field.text("detail").contains("comes with a later version"));
    let fine = json!({"name": "x"});
    let cases = [
        (json!({}), "bad_field", "flow"),
        (json!({"flow": 7}), "bad_json", "flow"),
        (json!({"flow": "greet", "input": fine, "banana": 1}), "bad_json", "banana"),
        (json!({"flow": "greet", "input": fine, "priority": 40_000}), "bad_json", "priority"),
        (
            json!({"flow": "greet", "input": fine, "must_end_in_seconds": 0}),
            "bad_field",
            "must_end_in_seconds",
        ),
        (json!({"flow": "greet", "input": fine, "key": ""}), "bad_field", "key"),
        (json!({"flow": "greet", "input": fine, "key": "x".repeat(256)}), "bad_field", "key"),
        (json!({"flow": "greet", "input": fine, "tenant": "a/b"}), "bad_field", "tenant"),
    ];
    for (body, code, field) in cases {
        let answered = refused(&server, submit, body, 422, code).await;
        assert_eq!(answered.text("field"), field);
    }
    let two = [("content-type", "application/json"), ("idempotency-key", "a")];
    let body = json!({"flow": "greet", "input": fine, "key": "b"}).to_string();
    let two = server.send(Method::POST, submit, &two, Some(body)).await;
    assert_eq!((two.status, two.text("field")), (422, "Idempotency-Key"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_oversized_body_names_the_limit_and_its_setting() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let max = server.app.options().payload_bytes_max;
    let wish = |letters: usize| json!({"flow": "greet", "input": {"name": "x".repeat(letters)}});
    let frame = wish(0).to_string().len();
    let large = refused(&server, "/v1/jobs", wish(max - frame + 1), 413, "payload_too_large").await;
    assert_eq!(
        (&large.body["limit"], large.text("setting")),
        (&json!(max), "server.payload_bytes_max")
    );
    assert_eq!(server.post("/v1/jobs", wish(max - frame)).await.status, 202);

    let id = server.submit("listen", json!("go")).await;
    server.blocked(&id).await;
    let signal = json!({"key": "go", "payload": "x".repeat(24 * 1024)});
    let signal =
        refused(&server, &format!("/v1/jobs/{id}/signal"), signal, 413, "payload_too_large").await;
    assert_eq!((signal.text("field"), signal.text("setting")), ("payload", "SIGNAL_BYTES_MAX"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_that_is_nested_deeper_than_the_limit_is_refused_at_every_door() {
    let nested = |levels: usize| (0..levels).fold(json!(1), |inner, _| json!([inner]));
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let id = server.submit("listen", json!("go")).await;
    server.blocked(&id).await;
    let signal = format!("/v1/jobs/{id}/signal");
    // The members around the value count as well: 99 levels in an object are 100.
    let deep = json!({"key": "go", "payload": nested(100)});
    let deep = refused(&server, &signal, deep, 422, "bad_json").await;
    assert_eq!((deep.text("field"), &deep.body["limit"]), ("body", &json!(100)));
    refused(&server, &format!("/v1/webhooks/{id}/go"), nested(101), 422, "bad_json").await;
    let submission = json!({"flow": "listen", "input": nested(100)});
    refused(&server, "/v1/jobs", submission, 422, "bad_json").await;
    let taken = server.post(&signal, json!({"key": "go", "payload": nested(99)})).await;
    assert_eq!((taken.status, taken.text("outcome")), (200, "completed"), "{taken:?}");
    server.until(&id, "completed").await;
    let listed = server.get("/v1/jobs").await;
    assert_eq!((listed.status, listed.body["jobs"].as_array().map(Vec::len)), (200, Some(1)));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_that_nobody_can_hear_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let id = server.submit("listen", json!("go")).await;
    server.blocked(&id).await;
    let signal = format!("/v1/jobs/{id}/signal");
    let wrong = refused(&server, &signal, json!({"key": "og"}), 409, "nobody_waits").await;
    assert_eq!((wrong.text("field"), &wrong.body["open_keys"]), ("key", &json!(["go"])));
    let older = format!("/api/jobs/{id}/signal");
    let wrong =
        refused(&server, &older, json!({"correlation_key": "og"}), 409, "nobody_waits").await;
    assert_eq!(wrong.body["open_keys"], json!(["go"]));
    let keyless = refused(&server, &signal, json!({"payload": 1}), 422, "bad_field").await;
    assert_eq!(keyless.text("field"), "key");
    let keyless = refused(&server, &older, json!({"payload": 1}), 422, "bad_field").await;
    assert_eq!(keyless.text("field"), "correlation_key");
    refused(&server, &signal, json!({"key": ""}), 422, "bad_field").await;
    let yes = json!({"key": "go"});
    refused(&server, &format!("/v1/jobs/{id}/approve"), yes, 409, "not_now").await;
    refused(&server, &format!("/v1/jobs/{id}/resume"), json!({}), 409, "not_now").await;
    refused(&server, &format!("/v1/jobs/{id}/retry"), json!({}), 409, "not_now").await;
    refused(&server, &format!("/v1/jobs/{id}/discard"), json!({}), 409, "not_now").await;

    // A content type without a body: many clients always send one.
    let json = [("content-type", "application/json")];
    let cancel = server.send(Method::POST, &format!("/v1/jobs/{id}/cancel"), &json, None).await;
    assert_eq!(cancel.status, 202, "{cancel:?}");
    server.until(&id, "cancelled").await;
    let late = refused(&server, &signal, json!({"key": "go"}), 409, "job_finished").await;
    assert_eq!(late.text("job_status"), "cancelled");
    refused(&server, &format!("/v1/jobs/{id}/pause"), json!({}), 409, "job_finished").await;
    refused(&server, &format!("/v1/jobs/{id}/resume"), json!({}), 409, "job_finished").await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_what_is_unknown_can_be_settled() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let id = server.submit("unclear", json!(null)).await;
    let job = server.until(&id, "attention").await;
    let step = job["attention"]["step"].clone();
    let path = format!("/v1/jobs/{id}/resolve");
    let settled = json!({"step": "1", "verdict": "did_not_happen"});
    let settled = refused(&server, &path, settled, 409, "effect_known").await;
    assert!(settled.text("detail").contains("its result is recorded"), "{settled:?}");
    let nowhere = json!({"step": "99", "verdict": "abandoned"});
    let nowhere = refused(&server, &path, nowhere, 409, "effect_known").await;
    assert!(nowhere.text("detail").contains("no such step"), "{nowhere:?}");
    let cases = [
        (json!({"step": step}), "verdict"),
        (json!({"verdict": "abandoned"}), "step"),
        (json!({"step": step, "verdict": "compensated"}), "verdict"),
        (json!({"step": step, "verdict": "happened"}), "result"),
        (json!({"step": step, "verdict": "abandoned", "result": 1}), "result"),
    ];
    for (body, field) in cases {
        assert_eq!(refused(&server, &path, body, 422, "bad_field").await.text("field"), field);
    }
    let fork = json!({"step": "99"});
    let fork = refused(&server, &format!("/v1/jobs/{id}/fork"), fork, 422, "bad_field").await;
    assert_eq!(fork.text("field"), "step");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_there_or_not_readable_is_said_so() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let nobody = "0190b5e0-1234-7abc-8def-001122334455";
    for what in ["", "/events", "/trace", "/why", "/verify", "/replay", "/steps", "/steps/1"] {
        let lost = server.get(&format!("/v1/jobs/{nobody}{what}")).await;
        assert_eq!((lost.status, lost.text("code")), (404, "not_found"), "{what}");
        let bad = server.get(&format!("/v1/jobs/banana{what}")).await;
        assert_eq!((bad.status, bad.text("field")), (400, "id"), "{what}");
    }
    for what in ["signal", "approve", "reject", "cancel", "pause", "resume", "discard"] {
        let path = format!("/v1/jobs/{nobody}/{what}");
        refused(
            &server,
            &path,
            json!({"key": "k"}),
            if ["signal", "approve", "reject"].contains(&what) { 404 } else { 422 },
            if ["signal", "approve", "reject"].contains(&what) { "not_found" } else { "bad_json" },
        )
        .await;
        refused(&server, &format!("/v1/jobs/banana/{what}"), json!({"key": "k"}), 400, "bad_field")
            .await;
    }
    for what in ["cancel", "pause", "resume", "discard", "retry"] {
        refused(&server, &format!("/v1/jobs/{nobody}/{what}"), json!({}), 404, "not_found").await;
    }
    // A session is an entity too, and no job.
    let worker = server.get("/v1/workers").await.body[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(server.get(&format!("/v1/jobs/{worker}")).await.status, 404);
    let id = server.submit("greet", json!({"name": "x"})).await;
    server.until(&id, "completed").await;
    assert_eq!(server.get(&format!("/v1/jobs/{id}/steps/9")).await.text("field"), "step");

    let queries = [
        ("/v1/jobs?status=banana", "status"),
        ("/v1/jobs?limit=0", "limit"),
        ("/v1/jobs?limit=201", "limit"),
        ("/v1/jobs?limit=x", "limit"),
        ("/v1/jobs?attention=maybe", "attention"),
        ("/v1/jobs?before=banana", "before"),
        ("/v1/jobs?id=xyz", "id"),
        ("/v1/jobs?banana=1", "banana"),
        ("/v1/dead-letters?before=1", "before"),
        (&format!("/v1/jobs/{id}/events?limit=0"), "limit"),
        (&format!("/v1/jobs/{id}?wait=-1"), "wait"),
    ];
    for (path, field) in queries {
        let bad = server.get(path).await;
        assert_eq!((bad.status, bad.text("field")), (400, field), "{path}");
    }
    let status = server.get("/v1/jobs?status=banana").await;
    assert!(status.text("detail").contains("cancelling"));
    let tool = server.get("/v1/tools/ehco").await;
    assert_eq!(
        (tool.status, tool.text("code"), tool.text("nearest")),
        (404, "unknown_tool", "echo")
    );
    assert_eq!(server.get("/v1/flows/banana").await.text("code"), "unknown_flow");

    for (kind, body, status, code) in [
        ("application/json", "{\"flow\": ", 400, "bad_json"),
        ("application/json", "{\"flow\": \"greet\"} x", 400, "bad_json"),
        ("text/plain", "{}", 415, "unsupported_media_type"),
    ] {
        let before = server.written().await;
        let headers = [("content-type", kind)];
        let bad = server.send(Method::POST, "/v1/jobs", &headers, Some(body.into())).await;
        assert_eq!((bad.status, bad.text("code")), (status, code));
        assert_eq!(server.written().await, before);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_sees_and_moves_its_own_jobs_only() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let ada = server.key(Some("ada"), &[Scope::Read, Scope::Write]).await;
    let bob = server.key(Some("bob"), &[Scope::Read, Scope::Write]).await;
    let reader = server.key(Some("ada"), &[Scope::Read]).await;
    let writer = server.key(Some("ada"), &[Scope::Write]).await;
    let wish = json!({"flow": "listen", "input": "go", "key": "one"});
    let mine = server.with_key(Method::POST, "/v1/jobs", &ada, wish.clone()).await;
    assert_eq!((mine.status, mine.text("tenant")), (202, "ada"));
    let id = mine.text("id").to_owned();
    server.blocked(&id).await;
    // The same key of another tenant is another key.
    let theirs = server.with_key(Method::POST, "/v1/jobs", &bob, wish.clone()).await;
    assert_eq!(theirs.status, 202);
    assert_ne!(theirs.text("id"), id);
    server.blocked(theirs.text("id")).await;
    let before = server.written().await;
    for what in ["", "/events", "/trace", "/why", "/verify", "/replay", "/steps", "/steps/1"] {
        let lost =
            server.with_key(Method::GET, &format!("/v1/jobs/{id}{what}"), &bob, json!({})).await;
        assert_eq!((lost.status, lost.text("code")), (404, "not_found"), "{what}");
    }
    let asks = [
        ("signal", json!({"key": "go"})),
        ("approve", json!({"key": "go"})),
        ("reject", json!({"key": "go"})),
        ("resolve", json!({"step": "1", "verdict": "abandoned"})),
        ("fork", json!({"step": "1"})),
        ("cancel", json!({})),
        ("pause", json!({})),
        ("resume", json!({})),
        ("retry", json!({})),
        ("discard", json!({})),
    ];
    for (what, body) in asks {
        let path = format!("/v1/jobs/{id}/{what}");
        let lost = server.with_key(Method::POST, &path, &bob, body.clone()).await;
        assert_eq!(lost.status, 404, "{what}");
        let forbidden = server.with_key(Method::POST, &path, &reader, body).await;
        assert_eq!((forbidden.status, forbidden.text("code")), (403, "forbidden"), "{what}");
    }
    let hook =
        server.with_key(Method::POST, &format!("/v1/webhooks/{id}/go"), &bob, json!(1)).await;
    assert_eq!(hook.status, 404);
    let listed = server.with_key(Method::GET, "/v1/jobs", &bob, json!({})).await;
    assert_eq!(listed.body["jobs"].as_array().unwrap().len(), 1);
    assert_eq!(listed.body["jobs"][0]["id"], theirs.body["id"]);
    let short = server.with_key(Method::GET, &format!("/v1/jobs?id={id}"), &bob, json!({})).await;
    assert_eq!(short.body["jobs"], json!([]));
    let workers = server.with_key(Method::GET, "/v1/workers", &bob, json!({})).await;
    assert_eq!(workers.body, json!([]));
    for path in
        ["/v1/jobs", "/v1/flows", "/v1/workers", "/v1/dead-letters", &format!("/v1/jobs/{id}")]
    {
        let blind = server.with_key(Method::GET, path, &writer, json!({})).await;
        assert_eq!((blind.status, blind.text("code")), (403, "forbidden"), "{path}");
    }
    let other = json!({"flow": "listen", "input": "go", "tenant": "ada"});
    let other = server.with_key(Method::POST, "/v1/jobs", &bob, other).await;
    assert_eq!((other.status, other.text("field")), (403, "tenant"));
    assert_eq!(server.written().await, before);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_page_in_a_browser_moves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let id = server.submit("listen", json!("go")).await;
    server.blocked(&id).await;
    let before = server.written().await;
    for path in [format!("/v1/jobs/{id}/cancel"), format!("/v1/webhooks/{id}/go")] {
        let from = [("origin", "https://evil.example")];
        let bad = server.send(Method::POST, &path, &from, None).await;
        assert_eq!((bad.status, bad.text("field")), (403, "Origin"), "{path}");
    }
    assert_eq!(server.written().await, before);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_is_not_read_as_the_members_of_an_object() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let id = server.submit("listen", json!("go")).await;
    server.blocked(&id).await;
    let paths = [
        ("/v1/jobs".to_owned(), json!(["greet", null, {"name": "x"}])),
        (format!("/v1/jobs/{id}/signal"), json!(["go", 1])),
        (format!("/v1/jobs/{id}/cancel"), json!(["because"])),
        ("/v1/calls/sessions".to_owned(), json!(["far", 30_000, []])),
    ];
    for (path, body) in paths {
        let bad = refused(&server, &path, body, 400, "bad_json").await;
        assert_eq!(bad.text("field"), "body", "{path}");
        assert!(bad.text("detail").contains("takes an object"), "{bad:?}");
    }
    // Nor deeper within.
    let tools = json!({"name": "far", "tools": [["charge", "doc"]]});
    let bad = refused(&server, "/v1/calls/sessions", tools, 422, "bad_json").await;
    assert_eq!(bad.text("field"), "tools[0]");
    assert!(bad.text("detail").contains("expected an object"), "{bad:?}");
    server.stop().await;
}
