//! Workers that take calls, over HTTP: what they may say, and what becomes of it.

use super::jobs_support::{Answered, Jobs, start};
use reqwest::Method;
use serde_json::{Value, json};

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
        let path = format!("/v1/calls/sessions/{}/poll", self.session);
        let polled = self.jobs.post(&path, json!({ "max": 8, "wait_ms": 20_000 })).await;
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
