//! What jobs promise over HTTP: each test is a sentence of docs/api.md.

use super::jobs_support::{is_by, start};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use reqwest::Method;
use serde_json::{Value, json};
use tenure_jobs::export::{Trust, verify};
use tenure_server::keys::Scope;

macro_rules! server {
    ($name:ident) => {
        let dir = tempfile::tempdir().unwrap();
        let $name = start(dir.path()).await;
    };
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_submitted_runs_and_can_be_waited_for() {
    server!(server);
    let wish = json!({"flow": "greet", "input": {"name": "Ada"}, "priority": 3, "by": "test"});
    let made = server.post("/v1/jobs", wish.clone()).await;
    assert_eq!(made.status, 202, "{made:?}");
    let id = made.text("id").to_owned();
    assert_eq!(made.location.as_deref(), Some(format!("/v1/jobs/{id}").as_str()));
    assert_eq!((&made.body["flow"], &made.body["existed"]), (&json!("greet"), &json!(false)));
    let job = server.get(&format!("/v1/jobs/{id}?wait=20")).await;
    assert_eq!((job.status, job.text("status")), (200, "completed"));
    assert_eq!((&job.body["output"], &job.body["priority"]), (&json!("hello Ada"), &json!(3)));
    assert!(!job.text("why").is_empty());

    let waited = server.post("/v1/jobs?wait=20", wish).await;
    assert_eq!((waited.status, waited.text("status")), (200, "completed"));
    let blocked = json!({"flow": "listen", "input": "k"});
    let blocked = server.post("/v1/jobs?wait=0.2", blocked).await;
    assert_eq!((blocked.status, &blocked.body["is_final"]), (202, &json!(false)));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_key_with_the_same_input_is_the_same_job() {
    server!(server);
    let wish = |name: &str| json!({"flow": "greet", "input": {"name": name}}).to_string();
    let headers = [("content-type", "application/json"), ("idempotency-key", "order/7")];
    let once = server.send(Method::POST, "/v1/jobs", &headers, Some(wish("a"))).await;
    let again = server.send(Method::POST, "/v1/jobs", &headers, Some(wish("a"))).await;
    assert_eq!((once.status, again.status), (202, 200));
    assert_eq!((&again.body["id"], &again.body["existed"]), (&once.body["id"], &json!(true)));
    let field = json!({"flow": "greet", "input": {"name": "a"}, "key": "order/7"});
    assert_eq!(server.post("/v1/jobs", field).await.body["id"], once.body["id"]);
    let before = server.written().await;
    let other = server.send(Method::POST, "/v1/jobs", &headers, Some(wish("b"))).await;
    assert_eq!((other.status, other.text("code")), (409, "other_input"));
    assert_eq!(other.body["job"], once.body["id"]);
    assert_eq!(server.written().await, before);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_completes_a_wait_once_and_is_kept_when_it_comes_early() {
    server!(server);
    let id = server.submit("listen", json!("go")).await;
    server.blocked(&id).await;
    let signal = format!("/v1/jobs/{id}/signal");
    let kept = server.post(&signal, json!({"key": "later", "early": true})).await;
    assert_eq!((kept.status, kept.text("outcome")), (202, "kept"));
    let heard = server.post(&signal, json!({"key": "go", "payload": {"n": 1}})).await;
    assert_eq!((heard.status, heard.text("outcome")), (200, "completed"));
    let again = server.post(&signal, json!({"key": "go", "payload": {"n": 2}})).await;
    assert_eq!((again.status, again.text("outcome")), (200, "duplicate"));
    let job = server.get(&format!("/v1/jobs/{id}?wait=20")).await;
    assert_eq!((job.text("status"), &job.body["output"]), ("completed", &json!({"n": 1})));
    let after = server.post(&signal, json!({"key": "go", "payload": {"n": 1}})).await;
    assert_eq!((after.status, after.text("outcome")), (200, "duplicate"), "{after:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_is_a_signal_whose_body_is_the_payload() {
    server!(server);
    let cases = [
        (vec![("content-type", "application/json")], "{\"n\":1}", json!({"n": 1})),
        (vec![("content-type", "text/plain")], "plain words", json!("plain words")),
        (vec![], "", Value::Null),
    ];
    for (headers, body, expected) in cases {
        let id = server.submit("listen", json!("hook/it")).await;
        server.blocked(&id).await;
        let path = format!("/v1/webhooks/{id}/hook%2Fit");
        let heard = server.send(Method::POST, &path, &headers, Some(body.into())).await;
        assert_eq!((heard.status, heard.text("outcome")), (200, "completed"), "{heard:?}");
        let job = server.get(&format!("/v1/jobs/{id}?wait=20")).await;
        assert_eq!(job.body["output"], expected);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_says_yes_or_no_and_both_are_answers() {
    server!(server);
    for (word, approved) in [("approve", true), ("reject", false)] {
        let id = server.submit("ask", json!(null)).await;
        let waiting = server.blocked(&id).await;
        assert_eq!(waiting["waits"][0]["note"], "may it?");
        let said = json!({"key": "answer", "comment": "because", "by": "ada"});
        let said = server.post(&format!("/v1/jobs/{id}/{word}"), said).await;
        assert_eq!((said.status, said.text("outcome")), (200, "completed"));
        let job = server.get(&format!("/v1/jobs/{id}?wait=20")).await;
        let output = &job.body["output"];
        assert_eq!((&output["approved"], &output["said"]), (&json!(approved), &json!("because")));
        assert!(is_by(&output["by"], "ada"), "{word}: {output}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_paused_resumed_and_cancelled_without_a_body_too() {
    server!(server);
    let id = server.submit("listen", json!("go")).await;
    server.blocked(&id).await;
    let ask = async |what: &str| {
        server.send(Method::POST, &format!("/v1/jobs/{id}/{what}"), &[], None).await
    };
    let paused = ask("pause").await;
    assert_eq!((paused.status, paused.text("outcome")), (202, "accepted"));
    server.until_it(&id, "a pause", |job| job["paused"] == true).await;
    let again = ask("pause").await;
    assert_eq!((again.status, again.text("outcome")), (200, "already"));
    assert_eq!(ask("resume").await.status, 202);
    server.blocked(&id).await;
    let why = json!({"why": "not needed", "by": "ada"});
    assert_eq!(server.post(&format!("/v1/jobs/{id}/cancel"), why).await.status, 202);
    let job = server.until(&id, "cancelled").await;
    assert_eq!(job["cancel"]["why"], "not needed");
    assert!(is_by(&job["cancel"]["by"], "ada"), "{job}");
    assert_eq!(ask("cancel").await.text("outcome"), "already");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_settles_what_nobody_knows_and_the_job_goes_on() {
    server!(server);
    let id = server.submit("unclear", json!(null)).await;
    let job = server.until(&id, "attention").await;
    assert_eq!(job["attention"]["reason"], "unknown_outcome");
    let step = job["attention"]["step"].as_str().unwrap().to_owned();
    let listed = server.get("/v1/jobs?attention=true").await;
    assert_eq!(listed.body["jobs"][0]["id"], json!(id));
    let path = format!("/v1/jobs/{id}/resolve");
    let said = json!({"step": step, "verdict": "happened", "result": {"n": 1}, "note": "I saw it"});
    let said = server.post(&path, said).await;
    assert_eq!((said.status, said.text("outcome")), (202, "accepted"));
    let job = server.get(&format!("/v1/jobs/{id}?wait=20")).await;
    assert_eq!((job.text("status"), &job.body["output"]), ("completed", &json!({"n": 1})));
    let shown = server.get(&format!("/v1/jobs/{id}/steps/{step}")).await;
    assert_eq!(
        (shown.text("kind"), shown.text("of"), shown.text("outcome")),
        ("tool", "mumble", "ok")
    );
    assert_eq!(server.get("/v1/jobs?attention=true").await.body["jobs"], json!([]));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_job_is_a_dead_letter_until_it_is_put_aside_and_can_be_tried_again() {
    server!(server);
    let id = server.submit("breaks", json!(null)).await;
    let job = server.get(&format!("/v1/jobs/{id}?wait=20")).await;
    assert_eq!(job.text("status"), "failed", "{job:?}");
    assert_eq!(server.get("/v1/dead-letters").await.body["jobs"][0]["id"], json!(id));
    let retried = server.post(&format!("/v1/jobs/{id}/retry?wait=20"), json!({})).await;
    assert_eq!((retried.status, &retried.body["retry_of"]), (200, &json!(id)), "{retried:?}");
    assert_eq!(retried.text("status"), "failed");
    let again = server.post(&format!("/v1/jobs/{id}/retry"), json!({})).await;
    assert_eq!((again.status, &again.body["existed"]), (200, &json!(true)), "{again:?}");
    assert_eq!(again.text("id"), retried.text("id"));
    let fork = server.post(&format!("/v1/jobs/{id}/fork"), json!({"step": "1"})).await;
    assert_eq!((fork.status, &fork.body["forked_from"]["job"]), (202, &json!(id)), "{fork:?}");
    server.until(fork.text("id"), "failed").await;
    for (outcome, status) in [("accepted", 202), ("already", 200)] {
        let aside = server.post(&format!("/v1/jobs/{id}/discard"), json!({})).await;
        assert_eq!((aside.status, aside.text("outcome")), (status, outcome));
    }
    let letters = server.get("/v1/dead-letters").await;
    assert!(letters.body["jobs"].as_array().unwrap().iter().all(|j| j["id"] != json!(id)));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_sees_the_dead_letters_of_one_tenant_and_a_tenant_its_own() {
    server!(server);
    let mut failed = Vec::new();
    for tenant in ["acme", "other"] {
        let body = json!({"flow": "breaks", "input": null, "tenant": tenant});
        let id = server.post("/v1/jobs", body).await.text("id").to_owned();
        server.until(&id, "failed").await;
        failed.push(id);
    }
    let ids = |answer: &Value| -> Vec<String> {
        let jobs = answer["jobs"].as_array().unwrap().iter();
        jobs.map(|j| j["id"].as_str().unwrap().to_owned()).collect()
    };
    let all = server.get("/v1/dead-letters").await;
    assert_eq!(ids(&all.body), [failed[1].as_str(), &failed[0]]);
    for (tenant, id) in [("acme", Some(&failed[0])), ("other", Some(&failed[1])), ("none", None)] {
        let of = server.get(&format!("/v1/dead-letters?tenant={tenant}")).await;
        assert_eq!(ids(&of.body).iter().collect::<Vec<_>>(), Vec::from_iter(id), "{tenant}");
    }
    let acme = server.key(Some("acme"), &[Scope::Read]).await;
    for (query, status) in [("", 200), ("?tenant=acme", 200), ("?tenant=other", 403)] {
        let path = format!("/v1/dead-letters{query}");
        let theirs = server.with_key(Method::GET, &path, &acme, Value::Null).await;
        assert_eq!(theirs.status, status, "{theirs:?}");
        if status == 200 {
            assert_eq!(ids(&theirs.body), [failed[0].as_str()]);
        }
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_under_a_key_is_made_once_and_the_key_is_for_one_step() {
    server!(server);
    let id = server.submit("breaks", json!(null)).await;
    server.until(&id, "failed").await;
    let path = format!("/v1/jobs/{id}/fork");
    let headers = [("content-type", "application/json"), ("idempotency-key", "k")];
    let body = Some(json!({"step": "2"}).to_string());
    let first = server.send(Method::POST, &path, &headers, body).await;
    let again = server.post(&path, json!({"step": "2", "key": "k"})).await;
    assert_eq!((first.status, again.status), (202, 200), "{first:?} {again:?}");
    assert_eq!(first.text("id"), again.text("id"));
    let other = server.post(&path, json!({"step": "1", "key": "k"})).await;
    assert_eq!((other.status, other.text("code")), (409, "other_input"), "{other:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_knows_is_settled_before_a_job_is_tried_again() {
    server!(server);
    let new = json!({"flow": "unclear", "must_end_in_seconds": 1});
    let id = server.post("/v1/jobs", new).await.text("id").to_owned();
    server.until(&id, "failed").await;
    for (path, body) in [("retry", json!({})), ("fork", json!({"step": "2"}))] {
        let refused = server.post(&format!("/v1/jobs/{id}/{path}"), body).await;
        assert_eq!((refused.status, refused.text("code")), (409, "not_now"), "{refused:?}");
        assert!(refused.text("detail").contains("tenure job resolve"), "{refused:?}");
    }
    let said = json!({"step": "2", "verdict": "happened", "result": 7});
    let said = server.post(&format!("/v1/jobs/{id}/resolve"), said).await;
    assert_eq!(said.text("outcome"), "recorded_after_the_end", "{said:?}");
    let retried = server.post(&format!("/v1/jobs/{id}/retry?wait=20"), json!({})).await;
    assert_eq!((retried.text("status"), &retried.body["output"]), ("completed", &json!(7)));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listings_go_backwards_by_pages_and_by_what_is_asked_for() {
    server!(server);
    let mut ids = Vec::new();
    for i in 0..5 {
        ids.push(server.submit("greet", json!({"name": i.to_string()})).await);
    }
    let waits = server.submit("listen", json!("k")).await;
    server.blocked(&waits).await;
    for id in &ids {
        server.until(id, "completed").await;
    }
    ids.sort();
    ids.reverse();
    let (mut seen, mut path) =
        (Vec::new(), "/v1/jobs?flow=greet&status=completed&limit=2".to_owned());
    loop {
        let page = server.get(&path).await;
        assert_eq!(page.status, 200, "{page:?}");
        let jobs = page.body["jobs"].as_array().unwrap();
        seen.extend(jobs.iter().map(|j| j["id"].as_str().unwrap().to_owned()));
        let Some(next) = page.body["next"].as_str() else { break };
        path = format!("/v1/jobs?flow=greet&status=completed&limit=2&before={next}");
    }
    assert_eq!(seen, ids);
    let waiting = server.get("/v1/jobs?status=waiting,parked").await;
    assert_eq!(waiting.body["jobs"].as_array().unwrap().len(), 1);
    let short = server.get(&format!("/v1/jobs?id={}", &waits[..30])).await;
    assert_eq!(short.body["jobs"][0]["id"], json!(waits));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flows_tools_and_workers_are_listed() {
    server!(server);
    let flows = server.get("/v1/flows").await;
    let names: Vec<&str> =
        flows.body.as_array().unwrap().iter().map(|f| f["name"].as_str().unwrap()).collect();
    let all = [
        "ask",
        "breaks",
        "buys",
        "call",
        "count",
        "far",
        "greet",
        "listen",
        "listen_twice",
        "plan",
        "unclear",
    ];
    assert_eq!(names, all);
    let greet = server.get("/v1/flows/greet").await;
    assert_eq!(greet.body["versions"][0]["input_schema"]["required"], json!(["name"]));
    let echo = server.get("/v1/tools/echo").await;
    assert_eq!(echo.body["versions"][0]["class"], json!("idempotent"));
    let workers = server.get("/v1/workers").await;
    let roles: Vec<&str> =
        workers.body.as_array().unwrap().iter().map(|w| w["role"].as_str().unwrap()).collect();
    assert!(roles.contains(&"worker") && roles.contains(&"server"), "{roles:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_older_paths_answer_the_same_and_stand_in_the_document() {
    server!(server);
    let id = server.submit("listen", json!("go")).await;
    server.blocked(&id).await;
    for what in ["", "/events", "/trace"] {
        let (old, new) = (format!("/api/jobs/{id}{what}"), format!("/v1/jobs/{id}{what}"));
        let (old, new) = (server.get(&old).await, server.get(&new).await);
        assert_eq!((old.status, &old.body["id"]), (200, &new.body["id"]), "{what}");
    }
    let older = |what: &str| format!("/api/jobs/{id}/{what}");
    assert_eq!(server.post(&older("pause"), json!({})).await.status, 202);
    server.until_it(&id, "a pause", |job| job["paused"] == true).await;
    assert_eq!(server.post(&older("resume"), json!({})).await.status, 202);
    server.blocked(&id).await;
    let heard = json!({"correlation_key": "go", "payload": 7});
    assert_eq!(server.post(&older("signal"), heard).await.text("outcome"), "completed");
    server.until(&id, "completed").await;
    let stopped = server.submit("listen", json!("go")).await;
    assert_eq!(server.post(&format!("/api/jobs/{stopped}/stop"), json!({})).await.status, 202);
    server.until(&stopped, "cancelled").await;

    let document = server.get("/v1/openapi.json").await.body;
    for path in
        ["", "/events", "/trace", "/verify", "/replay", "/signal", "/stop", "/pause", "/resume"]
    {
        assert!(document["paths"].get(format!("/api/jobs/{{id}}{path}")).is_some(), "{path}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_document_names_every_field_of_a_job() {
    server!(server);
    let id = server.submit("greet", json!({"name": "x"})).await;
    let job = server.get(&format!("/v1/jobs/{id}")).await.body;
    let document = server.get("/v1/openapi.json").await.body;
    let described = &document["components"]["schemas"]["JobDocument"]["properties"];
    let names = |v: &Value| v.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let (mut sent, mut described) = (names(&job), names(described));
    sent.sort();
    described.sort();
    // Only of a job that has them.
    described.retain(|name| !["blocked", "gate", "queue", "starts_at"].contains(&name.as_str()));
    assert_eq!(sent, described);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_is_a_file_and_of_another_tenants_job_there_is_none() {
    server!(server);
    let all = server.key(None, &[Scope::Read, Scope::Write]).await;
    let eve = server.key(Some("eve"), &[Scope::Read]).await;
    let wish = json!({"flow": "greet", "input": {"name": "Ada"}, "tenant": "ada"});
    let made = server.with_key(Method::POST, "/v1/jobs?wait=20", &all, wish).await;
    let id = made.text("id").to_owned();
    let path = format!("/v1/jobs/{id}/export");
    let refused = server.with_key(Method::GET, &path, &eve, Value::Null).await;
    assert_eq!((refused.status, refused.text("code")), (404, "not_found"));
    let file = server.fetch(&format!("{path}?children=true&by=ada"), &all).await;
    let trust = Trust { allow_unsigned: true, ..Trust::default() };
    let report = verify(&file, &server.app.machines().tables(), &trust);
    assert!(report.ok, "{:?}", report.problems);
    assert_eq!(report.jobs[0].id.to_string(), id);
    let first = std::str::from_utf8(&file).unwrap().lines().next().unwrap();
    let first: Value = serde_json::from_str(first).unwrap();
    assert!(first["exported_by"].as_str().unwrap().starts_with("ada (key "), "{first}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_jobs_are_asked_only_with_the_token_of_a_preview_and_within_the_tenant() {
    server!(server);
    let ada = server.key(Some("ada"), &[Scope::Read, Scope::Write]).await;
    let eve = server.key(Some("eve"), &[Scope::Read, Scope::Write]).await;
    for _ in 0..3 {
        let wish = json!({"flow": "listen", "input": "go"});
        let made = server.with_key(Method::POST, "/v1/jobs", &ada, wish).await;
        assert_eq!(made.status, 202, "{made:?}");
    }
    let second = server.key(Some("ada"), &[Scope::Read, Scope::Write]).await;
    let path = "/v1/jobs/bulk";
    let ask =
        json!({"action": "cancel", "filter": {"flow": "listen"}, "preview": true, "by": "ada"});
    let mut blunt = ask.clone();
    blunt["preview"] = json!(false);
    let refused = server.with_key(Method::POST, path, &ada, blunt).await;
    assert_eq!((refused.status, refused.text("field")), (422, "preview"));
    let preview = server.with_key(Method::POST, path, &ada, ask.clone()).await;
    assert_eq!(
        (preview.status, &preview.body["count"], &preview.body["exact"]),
        (200, &json!(3), &json!(true))
    );
    assert_eq!(preview.body["first"].as_array().unwrap().len(), 3);
    let theirs = server.with_key(Method::POST, path, &eve, ask.clone()).await;
    assert_eq!(theirs.body["count"], 0);
    let mut across = ask;
    across["filter"]["tenant"] = json!("ada");
    assert_eq!(server.with_key(Method::POST, path, &eve, across).await.status, 403);
    // A token is no permission.
    let token = json!({"token": preview.body["token"]});
    assert_eq!(server.with_key(Method::POST, path, &eve, token.clone()).await.status, 403);
    for (bad, field) in [
        (json!({"token": "nonsense"}), "token"),
        (json!({"token": preview.body["token"], "action": "pause"}), "token"),
        (json!({"action": "explode", "preview": true}), "action"),
        (json!({"action": "signal", "preview": true}), "key"),
        (json!({"action": "resolve", "step": "1", "preview": true}), "verdict"),
    ] {
        let answer = server.with_key(Method::POST, path, &ada, bad.clone()).await;
        assert_eq!((answer.status, answer.text("field")), (422, field), "{bad}");
    }
    // Nobody runs the flow in this server: the order stands all the same, once.
    server.register_bulk().await;
    let made = server.with_key(Method::POST, path, &second, token.clone()).await;
    assert_eq!((made.status, made.text("flow")), (202, "bulk"), "{made:?}");
    // Also in the name of another who sends it: it is the same.
    let mut named = token.clone();
    named["by"] = json!("bob");
    for (key, token) in [(&second, &token), (&ada, &token), (&ada, &named)] {
        let again = server.with_key(Method::POST, path, key, token.clone()).await;
        assert_eq!((again.status, &again.body["id"]), (200, &made.body["id"]), "{again:?}");
    }
    assert_eq!(made.text("tenant"), "ada");
    // On record is who sent it, and not who looked at the preview or whom a token names.
    let key_of = |secret: &str| {
        let (server, secret) = (&server, secret.to_owned());
        async move {
            let job = json!({"flow": "listen", "input": "key"});
            let made = server.with_key(Method::POST, "/v1/jobs", &secret, job).await;
            let events = server.get(&format!("/v1/jobs/{}/events", made.text("id"))).await;
            let by = events.body["events"][0]["body"]["by"].as_str().unwrap().to_owned();
            by.strip_prefix("key ").expect("no name was given").to_owned()
        }
    };
    let (first, second_key) = (key_of(&ada).await, key_of(&second).await);
    let asked = |job: String| {
        let server = &server;
        async move {
            let events = server.get(&format!("/v1/jobs/{job}/events")).await;
            events.body["events"][0]["body"].clone()
        }
    };
    let born = asked(made.text("id").to_owned()).await;
    let expected = json!(format!("key {second_key}"));
    assert_eq!((&born["by"], &born["input"]["order"]["by"]), (&expected, &expected), "{born}");
    let text = preview.body["token"].as_str().unwrap();
    let mut forged: Value =
        serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(text).unwrap()).unwrap();
    forged["order"]["by"] = json!(format!("ada (key {first})"));
    forged["order"]["action"]["why"] = json!("another");
    let forged = BASE64_URL_SAFE_NO_PAD.encode(forged.to_string());
    let made = server.with_key(Method::POST, path, &second, json!({"token": forged})).await;
    assert_eq!(made.status, 202, "{made:?}");
    let born = asked(made.text("id").to_owned()).await;
    assert_eq!((&born["by"], &born["input"]["order"]["by"]), (&expected, &expected), "{born}");
    server.stop().await;
}
