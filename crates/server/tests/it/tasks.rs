//! Tasks on a real socket. What a collector and an executor would say is said by hand.

use super::jobs_support::{is_by, start};
use reqwest::Method;
use serde_json::{Value, json};
use tenure_pods::{pod::name_of_attempt, report::task_of_label};
use tenure_server::keys::Scope;

fn template() -> Value {
    json!({ "spec": { "containers": [{ "name": "main", "image": "busybox" }] } })
}

fn report(task: &str, uid: &str, verdict: Value) -> Value {
    let mut whole = json!({ "status": null, "rule": "row", "since": 1_700_000_000_000_000_i64 });
    whole.as_object_mut().unwrap().extend(verdict.as_object().unwrap().clone());
    let over = whole["status"] != "RUNNING";
    let name = name_of_attempt(task_of_label(task), 1, "", "");
    json!({
        "task_id": task, "tenant_id": "default", "attempt": 1, "verdict": whole, "over": over, "seen_at": 1,
        "collector": "test", "pod": { "namespace": "ml", "name": name, "uid": uid, "node": "n1" },
    })
}

#[tokio::test]
async fn a_task_is_ordered_reported_about_read_and_replayed_over_http() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let bad = server.post("/v1/tasks", json!({ "template": { "spec": {} } })).await;
    assert_eq!(
        (bad.status, bad.text("code"), bad.text("field")),
        (422, "bad_field", "template.spec.containers")
    );
    let bad = server.post("/v1/tasks", json!({ "template": template(), "colour": 1 })).await;
    assert_eq!((bad.status, bad.text("code")), (422, "bad_json"));
    let bad = server
        .post("/v1/tasks", json!({ "template": template(), "retry": { "factor_percent": 1 } }))
        .await;
    assert_eq!((bad.status, bad.text("field")), (422, "retry"));
    for namespace in ["my team", "a/b"] {
        let named = json!({ "template": template(), "namespace": namespace });
        let bad = server.post("/v1/tasks", named).await;
        assert_eq!((bad.status, bad.text("field")), (422, "namespace"), "{bad:?}");
    }
    let body = json!({ "template": template(), "task_id": "wf.train", "retry": { "app": 0 } });
    let made = server.post("/v1/tasks", body.clone()).await;
    assert_eq!((made.status, made.text("task_id")), (202, "wf.train"), "{made:?}");
    assert_eq!(made.location.as_deref(), Some(&*format!("/v1/tasks/{}", made.text("id"))));
    let again = server.post("/v1/tasks", body).await;
    assert_eq!((again.status, &again.body["existed"]), (200, &json!(true)));
    let path = "/v1/tasks/wf.train";
    let shown = server.until_page(path, "queued", |t| t["tended"]["status"] == "wanted").await;
    let why = shown["why"].as_str().unwrap();
    assert!(why.contains("for an executor") && why.contains("\"pods\""), "{why}");
    let silent = server.post("/v1/tasks/wf.train/force-delete", json!({})).await;
    assert_eq!((silent.status, silent.text("field")), (422, "why"), "{silent:?}");
    let early = server.post("/v1/tasks/wf.train/force-delete", json!({ "why": "stuck" })).await;
    assert_eq!((early.status, early.text("code")), (409, "not_now"), "{early:?}");
    let sent = json!({ "reports": [
        report("wf.train", "u1", json!({ "status": "RUNNING" })),
        { "nonsense": true },
        report("wf.train", "u1", json!({ "status": "FAILED", "cause": "app_error", "class": "app", "exit_code": 3, "retryable": true })),
    ] });
    let told = server.post("/v1/tasks/reports", sent.clone()).await;
    assert_eq!(told.status, 200, "{told:?}");
    let outcome = |n: usize| told.body["answers"][n]["outcome"].as_str().unwrap().to_owned();
    assert_eq!([outcome(0), outcome(1), outcome(2)], ["accepted", "refused", "accepted"]);
    assert!(told.body["answers"][1]["why"].as_str().unwrap().contains("can not be read"));
    let failed = server.until_page(path, "failed", |t| t["status"] == "FAILED").await;
    assert_eq!(failed["attempts"][0]["ended"]["exit_code"], 3, "{failed}");
    assert_eq!(failed["attempts"][0]["pod"]["node"], "n1");
    assert_eq!(failed["attempts"][0]["no_retry"], "class_spent");
    assert_eq!(failed["dead_letter"], true);
    let listed = server.get("/v1/tasks?status=failed&cause=app_error").await;
    assert_eq!(listed.body["tasks"][0]["id"], made.body["id"], "{listed:?}");
    assert_eq!(server.get("/v1/tasks?cause=oom").await.body["tasks"], json!([]));
    assert_eq!(server.get("/v1/tasks?status=banana").await.status, 400);
    let letters = server.get("/v1/tasks/dead-letters").await;
    assert_eq!(letters.body["tasks"].as_array().unwrap().len(), 1, "{letters:?}");
    let over = server.post("/v1/tasks/wf.train/cancel", json!({})).await;
    assert_eq!((over.status, over.text("code")), (409, "task_over"));
    let not = server.post("/v1/tasks/wf.train/retry", json!({})).await;
    assert_eq!((not.status, not.text("code")), (409, "task_over"), "{not:?}");
    let replayed = server.post("/v1/tasks/wf.train/replay", json!({ "by": "ada" })).await;
    assert_eq!((replayed.status, &replayed.body["retry_of"]), (202, &made.body["id"]));
    let again = server.post("/v1/tasks/wf.train/replay", json!({})).await;
    assert_eq!((again.status, again.text("id")), (200, replayed.text("id")));
    assert_eq!(server.get("/v1/tasks/dead-letters").await.body["tasks"], json!([]));
    let put = server.post("/v1/tasks/wf.train/discard", json!({})).await;
    assert_eq!((put.status, put.text("outcome")), (202, "accepted"));
    let new = format!("/v1/tasks/{}", replayed.text("id"));
    let stopped = server.post(&format!("{new}/cancel"), json!({ "why": "enough" })).await;
    assert_eq!((stopped.status, stopped.text("outcome")), (202, "accepted"));
    // No executor has begun, so its pod is never made, and that is known.
    let ended = server.until_page(&new, "its end", |t| t["status"] == "CANCELED").await;
    assert!(ended["why"].as_str().unwrap().contains("enough"), "{ended}");
    let events = server.get("/v1/tasks/wf.train/events?limit=2").await;
    assert_eq!(events.body["events"][0]["name"], "task_created");
    let told = server.get("/v1/tasks/wf.train/timeline").await;
    assert!(told.body["timeline"].as_array().unwrap().len() > 4, "{told:?}");
    let log = server.get(&format!("{new}/logs")).await;
    assert_eq!((log.status, log.text("text")), (200, ""), "{log:?}");
    assert_eq!(server.get("/v1/tasks/wf.train/logs?attempt=9").await.status, 404);
    assert_eq!(server.get("/v1/tasks/none").await.status, 404);
}

#[tokio::test]
async fn a_collectors_key_reports_and_does_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let collector = server.key(None, &[Scope::Collector]).await;
    let reader = server.key(Some("acme"), &[Scope::Read]).await;
    let theirs = server.key(Some("them"), &[Scope::Write, Scope::Read]).await;
    // A tenant has its namespaces, whoever asks.
    let named = json!({ "template": template(), "namespace": "kube-system" });
    let not = server.with_key(Method::POST, "/v1/tasks", &theirs, named.clone()).await;
    assert_eq!((not.status, not.text("code"), not.text("field")), (403, "forbidden", "namespace"));
    let not = server.post("/v1/tasks", named).await;
    assert_eq!((not.status, not.text("field")), (403, "namespace"), "{not:?}");
    let mut seen = report("x-1", "u1", json!({ "status": "RUNNING" }));
    seen["tenant_id"] = json!("acme");
    let body = json!({ "reports": [seen] });
    let told = server.with_key(Method::POST, "/v1/tasks/reports", &reader, body.clone()).await;
    assert_eq!((told.status, told.text("code")), (403, "forbidden"));
    assert!(told.text("detail").contains("collector"), "{told:?}");
    let told = server.with_key(Method::POST, "/v1/tasks/reports", &theirs, body.clone()).await;
    assert_eq!(told.body["answers"][0]["outcome"], "refused", "{told:?}");
    let told = server.with_key(Method::POST, "/v1/tasks/reports", &collector, body.clone()).await;
    assert_eq!(told.body["answers"][0]["outcome"], "adopted", "{told:?}");
    let told = server.with_key(Method::POST, "/v1/tasks/reports", &theirs, body).await;
    assert_eq!(told.body["answers"][0]["outcome"], "refused", "{told:?}");
    assert_eq!(
        server.with_key(Method::GET, "/v1/tasks/x-1", &collector, json!({})).await.status,
        403
    );
    assert_eq!(server.with_key(Method::GET, "/v1/tasks/x-1", &theirs, json!({})).await.status, 404);
    assert_eq!(server.with_key(Method::GET, "/v1/tasks/x-1", &reader, json!({})).await.status, 200);
    assert_eq!(
        server.with_key(Method::GET, "/v1/tasks?tenant=acme", &theirs, json!({})).await.status,
        403
    );
    assert_eq!(
        server.with_key(Method::GET, "/v1/tasks", &theirs, json!({})).await.body["tasks"],
        json!([])
    );
    let ordered = server
        .with_key(Method::POST, "/v1/tasks", &collector, json!({ "template": template() }))
        .await;
    assert_eq!(ordered.status, 403);
    let many: Vec<Value> = (0..1_001).map(|_| json!({})).collect();
    let many = server.post("/v1/tasks/reports", json!({ "reports": many })).await;
    assert_eq!((many.status, many.text("field")), (422, "reports"));
}

#[tokio::test]
async fn budgets_are_shown_to_their_tenant_and_set_from_above() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let admin = server.key(Some("acme"), &[Scope::Admin]).await;
    let path = "/v1/tasks/budgets/acme";
    assert_eq!(server.with_key(Method::GET, path, &admin, json!({})).await.body["per_minute"], 120);
    assert_eq!(
        server.with_key(Method::GET, "/v1/tasks/budgets/them", &admin, json!({})).await.status,
        403
    );
    let json = [("content-type", "application/json")];
    let put = |body: Value| server.send(Method::PUT, path, &json, Some(body.to_string()));
    let set = put(json!({ "per_minute": 6, "by": "ada" })).await;
    assert_eq!(
        (set.status, &set.body["per_minute"], &set.body["burst"]),
        (200, &json!(6), &json!(20))
    );
    let bad = put(json!({ "in_flight": 100_000 })).await;
    assert_eq!((bad.status, bad.text("field")), (422, "budget"));
    let bearer = format!("Bearer {admin}");
    let own = [("content-type", "application/json"), ("authorization", bearer.as_str())];
    let own = server.send(Method::PUT, path, &own, Some("{}".into())).await;
    assert_eq!(own.status, 403, "a tenant does not raise its own: {own:?}");
    let budgets = server.get("/v1/tasks/budgets").await.body;
    assert!(is_by(&budgets["budgets"][0]["set_by"], "ada"), "{budgets}");
    let cleared = server.send(Method::DELETE, path, &[], None).await;
    assert_eq!((cleared.status, &cleared.body["per_minute"]), (200, &json!(120)));
}

#[tokio::test]
async fn what_is_sent_about_tasks_is_what_the_document_says() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let made = server.post("/v1/tasks", json!({ "template": template() })).await;
    let path = format!("/v1/tasks/{}", made.text("id"));
    let sent = json!({ "reports": [
        report(made.text("id"), "u1", json!({ "status": "FAILED", "cause": "oom", "class": "oom", "retryable": false })),
    ] });
    server.post("/v1/tasks/reports", sent).await;
    let shown = server.until_page(&path, "failed", |t| t["status"] == "FAILED").await;
    let api = server.get("/v1/openapi.json").await.body;
    let names = |schema: &str| {
        let mut found: Vec<String> = Vec::new();
        let mut open = vec![api["components"]["schemas"][schema].clone()];
        while let Some(part) = open.pop() {
            if let Some(all) = part["allOf"].as_array() {
                open.extend(all.iter().cloned());
            }
            let of = part["properties"].as_object().into_iter().flatten();
            found.extend(of.map(|(name, _)| name.clone()));
        }
        assert!(!found.is_empty(), "{schema} is not in the document");
        found
    };
    let compare = |schema: &str, value: &Value| {
        let known = names(schema);
        for name in value.as_object().unwrap().keys() {
            assert!(known.contains(name), "{name} is sent and not in {schema}");
        }
    };
    compare("TaskDetailDocument", &shown);
    compare("TaskAttemptDocument", &shown["attempts"][0]);
    compare("TaskEndedDocument", &shown["attempts"][0]["ended"]);
    compare("TaskPodDocument", &shown["pod"]);
    compare("TaskEntryDocument", &shown["timeline"][0]);
    compare("TaskOrderedDocument", &made.body);
    compare("TaskBudgetDocument", &server.get("/v1/tasks/budgets/acme").await.body);
    compare("TaskLogDocument", &server.get(&format!("{path}/logs")).await.body);
    compare("TaskWhyDocument", &server.get(&format!("{path}/why")).await.body);
    assert_eq!(shown["status"], "FAILED", "an order of a pod has attempts of its own: {shown}");
}
