//! Workers that take calls, over HTTP: what they may say, and what becomes of it.

use super::jobs_support::{Answered, Jobs, start};
use reqwest::Method;
use serde_json::{Value, json};
use tenure_server::keys::Scope;

/// A worker in another language.
struct Far<'a> {
    jobs: &'a Jobs,
    session: String,
}

impl<'a> Far<'a> {
    async fn open(jobs: &'a Jobs, tools: Value) -> Far<'a> {
        Far::open_for(jobs, tools, 30_000).await
    }

    async fn open_for(jobs: &'a Jobs, tools: Value, lease_ms: u64) -> Far<'a> {
        let body = json!({ "name": "far", "lease_ms": lease_ms, "tools": tools, "executor": null });
        let opened = jobs.post("/v1/calls/sessions", body).await;
        assert_eq!(opened.status, 201, "{opened:?}");
        assert_eq!(opened.body["renew_ms"], json!(lease_ms / 3));
        Far { jobs, session: opened.text("session").to_owned() }
    }

    async fn poll(&self) -> Vec<Value> {
        self.poll_with(json!({ "max": 8, "wait_ms": 20_000 })).await
    }

    async fn poll_with(&self, body: Value) -> Vec<Value> {
        let path = format!("/v1/calls/sessions/{}/poll", self.session);
        let polled = self.jobs.post(&path, body).await;
        assert_eq!(polled.status, 200, "{polled:?}");
        polled.body["calls"].as_array().unwrap().clone()
    }

    /// The one call that comes.
    async fn one(&self) -> Value {
        let mut calls = self.poll().await;
        assert_eq!(calls.len(), 1, "{calls:?}");
        calls.remove(0)
    }

    async fn say(&self, call: &Value, word: &str, more: Value) -> Answered {
        let mut body = json!({ "session": self.session, "epoch": call["epoch"] });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let call = call["call"].as_str().unwrap();
        self.jobs.post(&format!("/v1/calls/{call}/{word}"), body).await
    }

    async fn complete(&self, call: &Value, result: Value) -> Answered {
        self.say(call, "complete", json!({ "result": result })).await
    }

    async fn renew(&self, calls: &[&Value]) -> Answered {
        let held = |c: &&Value| json!({ "call": c["call"], "epoch": c["epoch"], "progress": 1 });
        let calls: Vec<Value> = calls.iter().map(held).collect();
        let path = format!("/v1/calls/sessions/{}/renew", self.session);
        self.jobs.post(&path, json!({ "calls": calls })).await
    }
}

fn echo(class: &str) -> Value {
    json!([{ "name": "far.echo", "class": class, "backoff_ms": 1 }])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_goes_to_a_worker_and_its_result_ends_the_step() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    let far = Far::open(&jobs, echo("idempotent")).await;
    let job = jobs.submit("far", json!({ "tool": "far.echo", "input": { "n": 7 } })).await;
    let call = far.one().await;
    assert_eq!(call["tool"], "far.echo");
    assert_eq!(call["what"], "call");
    assert_eq!(call["input"], json!({ "n": 7 }));
    assert_eq!((&call["job"], &call["call_number"]), (&json!(job), &json!(1)));
    let done = far.complete(&call, json!({ "n": 8 })).await;
    assert_eq!((done.status, &done.body), (200, &json!({ "accepted": true })));
    let ended = jobs.until(&job, "completed").await;
    assert_eq!(ended["output"], json!({ "n": 8 }));
    // The same again is answered the same.
    let again = far.complete(&call, json!({ "n": 8 })).await;
    assert_eq!((again.status, &again.body), (200, &json!({ "accepted": true })));
    let shown = jobs.get(&format!("/v1/calls?job={job}")).await;
    assert_eq!(shown.body["calls"][0]["status"], "completed", "{shown:?}");
    let id = shown.body["calls"][0]["id"].as_str().unwrap();
    let whole = jobs.get(&format!("/v1/calls/{id}")).await;
    assert_eq!(whole.body["result"], json!({ "n": 8 }));
    assert_eq!(whole.body["had_by"], json!(far.session));
    let path = format!("/v1/calls/sessions/{}", far.session);
    assert_eq!(jobs.send(Method::DELETE, &path, &[], None).await.status, 204);
    assert_eq!(far.renew(&[]).await.status, 410);
    jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_lost_its_call_is_told_so_and_its_result_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    let far = Far::open_for(&jobs, echo("irreversible"), 300).await;
    let job = jobs.submit("far", json!({ "tool": "far.echo" })).await;
    let call = far.one().await;
    // It is never named in a renewal, so the check of its lease finds nobody.
    jobs.until(&job, "attention").await;
    let late = far.complete(&call, json!("late")).await;
    assert_eq!((late.status, late.text("code")), (409, "stale_attempt"), "{late:?}");
    assert_eq!((late.text("kept"), late.text("call_status")), ("evidence", "lost"));
    let ended = jobs.until(&job, "completed").await;
    assert_eq!(ended["output"], "late");
    jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_released_comes_again_and_a_failure_is_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    let far = Far::open(&jobs, echo("irreversible")).await;
    let job = jobs.submit("far", json!({ "tool": "far.echo" })).await;
    let call = far.one().await;
    assert_eq!(far.say(&call, "release", json!({ "why": "busy" })).await.status, 200);
    let again = far.one().await;
    assert_eq!((&again["call"], &again["key"]), (&call["call"], &call["key"]));
    assert_ne!(again["epoch"], call["epoch"]);
    let stale = far.complete(&call, json!(0)).await;
    assert_eq!(stale.status, 409, "{stale:?}");
    let failed = json!({ "kind": "retryable", "error": "down" });
    assert_eq!(far.say(&again, "fail", failed.clone()).await.status, 200);
    assert_eq!(far.say(&again, "fail", failed).await.status, 200, "the same again");
    let third = far.one().await;
    assert_ne!(third["key"], call["key"], "not applied: another key");
    assert_eq!(far.complete(&third, json!(3)).await.status, 200);
    assert_eq!(jobs.until(&job, "completed").await["output"], 3);
    jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_got_lost_is_given_again_under_the_same_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    let far = Far::open(&jobs, echo("irreversible")).await;
    let first = jobs.submit("far", json!({ "tool": "far.echo", "input": 1 })).await;
    let had = far.one().await;
    let second = jobs.submit("far", json!({ "tool": "far.echo", "input": 2 })).await;
    let lost = far.one().await;
    // It has the first, and never heard of the second.
    let have = json!([{ "call": had["call"], "epoch": had["epoch"] }]);
    let again = far.poll_with(json!({ "max": 8, "wait_ms": 20_000, "have": have })).await;
    assert_eq!(again.len(), 1, "{again:?}");
    for same in ["call", "epoch", "key", "call_number", "input", "job"] {
        assert_eq!(again[0][same], lost[same], "{same}");
    }
    assert!(again[0]["not_after"].as_i64() >= lost["not_after"].as_i64());
    // Lost once more, and a poll that says nothing of what it has gets nothing again.
    let silent = far.poll_with(json!({ "max": 8, "wait_ms": 0 })).await;
    assert_eq!(silent, Vec::<Value>::new());
    let third = far.poll_with(json!({ "max": 8, "wait_ms": 20_000, "have": have })).await;
    assert_eq!(third[0]["call"], lost["call"]);
    assert_eq!(far.complete(&third[0], json!(2)).await.status, 200);
    assert_eq!(jobs.until(&second, "completed").await["output"], 2);
    // What has ended is nobody's, whether it is named or not.
    let none = far.poll_with(json!({ "max": 8, "wait_ms": 0, "have": have })).await;
    assert_eq!(none, Vec::<Value>::new());
    assert_eq!(far.complete(&had, json!(1)).await.status, 200);
    assert_eq!(jobs.until(&first, "completed").await["output"], 1);
    jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_more_than_there_is_room_for_goes_back_to_the_queue() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    let far = Far::open(&jobs, echo("irreversible")).await;
    for n in 0..3 {
        jobs.submit("far", json!({ "tool": "far.echo", "input": n })).await;
    }
    let mut lost = Vec::new();
    while lost.len() < 3 {
        lost.extend(far.poll().await);
    }
    let one = far.poll_with(json!({ "max": 1, "wait_ms": 20_000, "have": [] })).await;
    assert_eq!(one.len(), 1);
    assert!(lost.iter().any(|l| l["call"] == one[0]["call"] && l["epoch"] == one[0]["epoch"]));
    let mut rest = Vec::new();
    while rest.len() < 2 {
        rest.extend(far.poll().await);
    }
    for call in &rest {
        let before = lost.iter().find(|l| l["call"] == call["call"]).unwrap();
        assert_ne!(call["epoch"], before["epoch"], "it was given back");
    }
    jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_comes_with_the_next_renewal() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    let far = Far::open(&jobs, echo("irreversible")).await;
    let job = jobs.submit("far", json!({ "tool": "far.echo" })).await;
    let call = far.one().await;
    let renewed = far.renew(&[&call]).await;
    assert_eq!(renewed.body, json!({ "lease_ms": 30_000, "lost": [], "stop": [] }));
    let asked = jobs.post(&format!("/v1/jobs/{job}/cancel"), json!({})).await;
    assert!(asked.status < 300, "{asked:?}");
    let mut renewed = far.renew(&[&call]).await;
    while renewed.body["stop"] == json!([]) {
        renewed = far.renew(&[&call]).await;
    }
    assert_eq!(renewed.body["stop"], json!([call["call"]]));
    let said = json!({ "kind": "cancelled", "error": "stopped" });
    assert_eq!(far.say(&call, "fail", said).await.status, 200);
    jobs.until(&job, "cancelled").await;
    jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_says_goodbye_loses_what_it_named_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    let far = Far::open(&jobs, echo("idempotent")).await;
    let job = jobs.submit("far", json!({ "tool": "far.echo" })).await;
    let call = far.one().await;
    far.renew(&[&call]).await;
    let path = format!("/v1/calls/sessions/{}", far.session);
    assert_eq!(jobs.send(Method::DELETE, &path, &[], None).await.status, 204);
    assert_eq!(jobs.send(Method::DELETE, &path, &[], None).await.status, 204, "twice");
    let poll = format!("{path}/poll");
    let gone = jobs.post(&poll, json!({ "max": 1 })).await;
    assert_eq!((gone.status, gone.text("code")), (410, "session_ended"));
    let other = Far::open(&jobs, echo("idempotent")).await;
    let again = other.one().await;
    assert_eq!((&again["key"], &again["call_number"]), (&call["key"], &json!(2)));
    other.complete(&again, json!(1)).await;
    jobs.until(&job, "completed").await;
    jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn inputs_and_results_may_be_larger_than_an_event() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    let far = Far::open(&jobs, echo("irreversible")).await;
    let (input, result) = ("i".repeat(50_000), "r".repeat(300_000));
    let job = jobs.submit("far", json!({ "tool": "far.echo", "input": input })).await;
    let call = far.one().await;
    assert_eq!(call["input"], json!(input));
    assert_eq!(far.complete(&call, json!(result)).await.status, 200);
    assert_eq!(jobs.until(&job, "completed").await["output"], json!(result));
    jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_of_a_tenant_gets_and_answers_the_calls_of_that_tenant_only() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    let scopes = [Scope::Read, Scope::Write, Scope::Worker];
    let (a, b) = (jobs.key(Some("a"), &scopes).await, jobs.key(Some("b"), &scopes).await);
    let open = json!({ "name": "w", "tools": echo("irreversible") });
    let of_a = jobs.with_key(Method::POST, "/v1/calls/sessions", &a, open.clone()).await;
    let of_b = jobs.with_key(Method::POST, "/v1/calls/sessions", &b, open).await;
    let (sa, sb) = (of_a.text("session").to_owned(), of_b.text("session").to_owned());
    let submit = json!({ "flow": "far", "input": { "tool": "far.echo" } });
    let job = jobs.with_key(Method::POST, "/v1/jobs", &a, submit).await.text("id").to_owned();
    let path = |s: &str| format!("/v1/calls/sessions/{s}/poll");
    let ask = json!({ "max": 1, "wait_ms": 20_000 });
    let polled = jobs.with_key(Method::POST, &path(&sa), &a, ask.clone()).await;
    let call = polled.body["calls"][0].clone();
    assert_eq!((&call["job"], &call["tenant"]), (&json!(job), &json!("a")));
    // Neither its session nor its call is there for the other.
    let now = json!({ "max": 1 });
    assert_eq!(jobs.with_key(Method::POST, &path(&sa), &b, now.clone()).await.status, 404);
    let mine = jobs.with_key(Method::POST, &path(&sb), &b, now).await;
    assert_eq!(mine.body["calls"], json!([]));
    let id = call["call"].as_str().unwrap();
    let body = json!({ "session": sb, "epoch": call["epoch"], "result": 1 });
    let complete = format!("/v1/calls/{id}/complete");
    assert_eq!(jobs.with_key(Method::POST, &complete, &b, body).await.status, 404);
    let show = format!("/v1/calls/{id}");
    assert_eq!(jobs.with_key(Method::GET, &show, &b, Value::Null).await.status, 404);
    let list = jobs.with_key(Method::GET, "/v1/calls", &b, Value::Null).await;
    assert_eq!(list.body["calls"], json!([]));
    let body = json!({ "session": sa, "epoch": call["epoch"], "result": 1 });
    assert_eq!(jobs.with_key(Method::POST, &complete, &a, body).await.status, 200);
    jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_tenant_says_about_a_tool_holds_for_that_tenant_only() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    let scopes = [Scope::Read, Scope::Write, Scope::Worker];
    let (a, b) = (jobs.key(Some("a"), &scopes).await, jobs.key(Some("b"), &scopes).await);
    let open = |class: &str| json!({ "name": "w", "tools": echo(class) });
    let sessions = "/v1/calls/sessions";
    // The last one to speak does not decide for the first.
    for (key, class) in [(&a, "irreversible"), (&b, "idempotent")] {
        assert_eq!(jobs.with_key(Method::POST, sessions, key, open(class)).await.status, 201);
    }
    let tool = "/v1/tools/far.echo";
    for (key, class) in [(&a, "irreversible"), (&b, "idempotent")] {
        let shown = jobs.with_key(Method::GET, tool, key, Value::Null).await;
        assert_eq!(shown.body["versions"][0]["class"], json!(class), "{shown:?}");
        let listed = jobs.with_key(Method::GET, "/v1/tools", key, Value::Null).await;
        let all = listed.body.as_array().unwrap().clone();
        let mine = all.iter().filter(|t| t["name"] == "far.echo");
        assert_eq!(mine.count(), 1, "{listed:?}");
        let submit = json!({ "flow": "far", "input": { "tool": "far.echo" } });
        let job = jobs.with_key(Method::POST, "/v1/jobs", key, submit).await.text("id").to_owned();
        let path = format!("/v1/calls?job={job}");
        let mut calls = jobs.with_key(Method::GET, &path, key, Value::Null).await;
        while calls.body["calls"] == json!([]) {
            calls = jobs.with_key(Method::GET, &path, key, Value::Null).await;
        }
        assert_eq!(calls.body["calls"][0]["class"], json!(class), "{calls:?}");
    }
    // A tenant of which nobody has spoken has the common one, and there is none yet.
    let c = jobs.key(Some("c"), &scopes).await;
    assert_eq!(jobs.with_key(Method::GET, tool, &c, Value::Null).await.status, 404);
    Far::open(&jobs, echo("idempotent")).await;
    assert_eq!(jobs.with_key(Method::GET, tool, &c, Value::Null).await.status, 200);
    jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_a_request_is_said_with_its_field_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    let before = jobs.written().await;
    let open = |tools: Value| json!({ "name": "w", "tools": tools });
    let long = "t".repeat(101);
    for (body, field) in [
        (open(json!([])), "tools"),
        (open(json!([{ "name": "" }])), "tools[0].name"),
        (open(json!([{ "name": "a b" }])), "tools[0].name"),
        (open(json!([{ "name": long }])), "tools[0].name"),
        (open(json!([{ "name": "a" }, { "name": "a" }])), "tools[1].name"),
        (open(json!([{ "name": "a", "class": "verifiable" }])), "tools[0].probe"),
        (open(json!([{ "name": "a", "class": "compensatable" }])), "tools[0].compensate"),
        (open(json!([{ "name": "a", "class": "safe" }])), "tools[0].class"),
        (open(json!([{ "name": "a", "timeout_ms": 0 }])), "tools[0].timeout_ms"),
        (json!({ "name": " ", "tools": echo("idempotent") }), "name"),
        (json!({ "name": "w", "lease_ms": 1, "tools": echo("idempotent") }), "lease_ms"),
    ] {
        let refused = jobs.post("/v1/calls/sessions", body.clone()).await;
        assert_eq!((refused.status, refused.text("field")), (422, field), "{body}: {refused:?}");
    }
    assert_eq!(jobs.written().await, before);
    let far = Far::open(&jobs, echo("irreversible")).await;
    let poll = format!("/v1/calls/sessions/{}/poll", far.session);
    for (body, field) in [
        (json!({ "max": 0 }), "max"),
        (json!({ "max": 65 }), "max"),
        (json!({ "max": 1, "tools": ["other"] }), "tools"),
        (json!({ "max": 1, "tools": [] }), "tools"),
    ] {
        let refused = jobs.post(&poll, body.clone()).await;
        assert_eq!((refused.status, refused.text("field")), (422, field), "{body}: {refused:?}");
    }
    let job = jobs.submit("far", json!({ "tool": "far.echo" })).await;
    let call = far.one().await;
    let wrong = json!({ "kind": "retryable", "error": "x", "over": false });
    let refused = far.say(&call, "fail", wrong).await;
    assert_eq!((refused.status, refused.text("field")), (422, "over"), "{refused:?}");
    let left = json!({ "kind": "unknown", "error": "a thread goes on", "over": false });
    assert_eq!(far.say(&call, "fail", left.clone()).await.status, 200);
    assert_eq!(far.say(&call, "fail", left).await.status, 200, "the same again");
    jobs.until(&job, "attention").await;
    let nobody = "01976f3e-8a10-7c3b-9d21-4f0e6b7a5c11";
    let body = json!({ "session": far.session, "epoch": 1, "result": 1 });
    let unknown = jobs.post(&format!("/v1/calls/{nobody}/complete"), body).await;
    assert_eq!((unknown.status, unknown.text("field")), (404, "call"));
    let unknown =
        jobs.post(&format!("/v1/calls/sessions/{nobody}/poll"), json!({ "max": 1 })).await;
    assert_eq!((unknown.status, unknown.text("field")), (404, "session"));
    for query in ["status=nope", "limit=0", "job=x", "after=x", "what=1"] {
        assert_eq!(jobs.get(&format!("/v1/calls?{query}")).await.status, 400, "{query}");
    }
    jobs.stop().await;
}
