//! What is pressed in the console is what is asked of the API; what is said about a step is checked; names have no NUL.

use super::jobs_support::{Jobs, start};
use reqwest::{Client, Method, redirect::Policy};
use serde_json::{Value, json};
use tenure_jobs::view;
use tenure_kernel::ids::EntityId;

/// Presses a button; where it leads, or the page with the refusal.
async fn press(jobs: &Jobs, path: &str, fields: &[(&str, &str)]) -> Result<String, String> {
    let client = Client::builder().no_proxy().redirect(Policy::none()).build().unwrap();
    let mut form = form_urlencoded::Serializer::new(String::new());
    form.extend_pairs(fields);
    let request = client
        .post(format!("{}{path}", jobs.base))
        .bearer_auth(&jobs.operator)
        .header("sec-fetch-site", "same-origin")
        .header("content-type", "application/x-www-form-urlencoded")
        .body(form.finish());
    let answer = request.send().await.unwrap();
    let to = answer.headers().get("location").map(|v| v.to_str().unwrap().to_owned());
    match to {
        Some(to) => Ok(to),
        None => Err(answer.text().await.unwrap()),
    }
}

/// The events of a job that say what somebody has asked for, without the names of its calls.
async fn asked(jobs: &Jobs, id: &str) -> Vec<(String, Value)> {
    let id: EntityId = id.parse().unwrap();
    let detail = view::detail(jobs.store(), id).await.unwrap().unwrap();
    let of = [
        "wait_completed",
        "signal_kept",
        "job_parked",
        "job_resumed",
        "job_cancelling",
        "job_cancelled",
        "effect_settled",
    ];
    let events = detail.events.into_iter().filter(|e| of.contains(&e.name.as_str()));
    let plain = |mut body: Value| {
        if let Some(members) = body.as_object_mut() {
            members.remove("key");
        }
        body
    };
    events.map(|e| (e.name, plain(e.body))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_button_writes_what_the_api_writes() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    let result = json!({"receipt": "R-1", "cents": 5});
    let text = result.to_string();
    let cases = [
        (
            "ask",
            "approve",
            json!({"key": "answer", "comment": "fine"}),
            "answer",
            vec![("key", "answer"), ("outcome", "approved"), ("comment", "fine")],
            "completed",
        ),
        (
            "ask",
            "reject",
            json!({"key": "answer"}),
            "answer",
            vec![("key", "answer"), ("outcome", "rejected"), ("comment", "")],
            "completed",
        ),
        (
            "listen",
            "signal",
            json!({"key": "go", "payload": {"a": [1]}}),
            "signal",
            vec![("key", "go"), ("payload", "{\"a\": [1]}")],
            "completed",
        ),
        (
            "listen",
            "cancel",
            json!({"why": "wrong"}),
            "cancel",
            vec![("why", "wrong")],
            "cancelled",
        ),
        (
            "buys",
            "resolve",
            json!({"step": "1", "verdict": "happened", "result": result, "note": "saw it"}),
            "resolve",
            vec![
                ("step", "1"),
                ("verdict", "happened"),
                ("result", text.as_str()),
                ("note", "saw it"),
            ],
            "completed",
        ),
        (
            "buys",
            "resolve",
            json!({"step": "1", "verdict": "abandoned"}),
            "resolve",
            vec![("step", "1"), ("verdict", "abandoned"), ("result", "what was there")],
            "failed",
        ),
    ];
    for (flow, ask, mut body, action, fields, end) in cases {
        let mut told = Vec::new();
        for pressed in [false, true] {
            let input = if flow == "listen" { json!("go") } else { json!({}) };
            let id = jobs.submit(flow, input).await;
            match flow {
                "buys" => drop(jobs.until(&id, "attention").await),
                _ => drop(jobs.blocked(&id).await),
            }
            if pressed {
                let to = press(&jobs, &format!("/jobs/{id}/{action}"), &fields).await.unwrap();
                assert!(to.starts_with(&format!("/jobs/{id}?did=")), "{to}");
            } else {
                body["by"] = json!("console");
                let answer = jobs.post(&format!("/v1/jobs/{id}/{ask}"), body.clone()).await;
                assert!(answer.status < 300, "{answer:?}");
            }
            jobs.until(&id, end).await;
            told.push(asked(&jobs, &id).await);
        }
        assert_eq!(told[0], told[1], "{flow} {ask}");
        assert!(!told[0].is_empty());
    }
    jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_said_about_a_step_is_checked_and_can_be_corrected() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    let id = jobs.submit("buys", json!({})).await;
    jobs.until(&id, "attention").await;
    // The form has the members of the schema, and nothing that could be sent as it is.
    let page = String::from_utf8(jobs.fetch(&format!("/jobs/{id}"), &jobs.operator).await).unwrap();
    assert!(
        page.contains("&quot;receipt&quot;: null") && page.contains("receipt: string"),
        "{page}"
    );
    assert!(!page.contains("button class=\"yes\""), "nothing is the way to go");
    let resolve = format!("/v1/jobs/{id}/resolve");
    let said = |result: Value| json!({"step": "1", "verdict": "happened", "result": result});
    for (result, field) in
        [(Value::Null, "result"), (json!({"receipt": 7, "cents": 5}), "result/receipt")]
    {
        let no = jobs.post(&resolve, said(result)).await;
        assert_eq!((no.status, no.text("code")), (422, "schema_violation"), "{no:?}");
        assert_eq!(no.text("field"), field);
        assert!(no.body["violations"].is_array());
    }
    let form = [("step", "1"), ("verdict", "happened"), ("result", "null")];
    let no = press(&jobs, &format!("/jobs/{id}/resolve"), &form).await.unwrap_err();
    assert!(no.contains("does not fit the output schema"), "{no}");
    let form = [("step", "1"), ("verdict", "happened"), ("result", "")];
    let no = press(&jobs, &format!("/jobs/{id}/resolve"), &form).await.unwrap_err();
    assert!(no.contains("what happened has a result"), "{no}");
    assert_eq!(jobs.post(&resolve, said(json!({"receipt": "X", "cents": 5}))).await.status, 202);
    jobs.until(&id, "failed").await;
    // Nobody corrects by accident.
    let right = said(json!({"receipt": "R-1", "cents": 5}));
    let no = jobs.post(&resolve, right.clone()).await;
    assert_eq!((no.status, no.text("code")), (409, "effect_known"));
    let mut correct = right;
    correct["correct"] = json!(true);
    let kept = jobs.post(&resolve, correct).await;
    assert_eq!((kept.status, kept.text("outcome")), (200, "recorded_after_the_end"), "{kept:?}");
    let retry = jobs.post(&format!("/v1/jobs/{id}/retry"), json!({})).await;
    let job = jobs.until(retry.text("id"), "completed").await;
    assert_eq!(job["output"], "R-1");
    // What was paid is paid again only by who asks for it.
    let fork = format!("/v1/jobs/{}/fork", retry.text("id"));
    let no = jobs.post(&fork, json!({"step": "1"})).await;
    assert_eq!((no.status, no.text("field")), (409, "step"), "{no:?}");
    assert!(no.text("detail").contains("step 1") && no.text("fix").contains("repeat"), "{no:?}");
    let form = [("step", "1")];
    let no = press(&jobs, &format!("/jobs/{}/retry", retry.text("id")), &form).await.unwrap_err();
    assert!(no.contains("irreversible"), "{no}");
    let again = jobs.post(&fork, json!({"step": "1", "repeat": true})).await;
    assert_eq!(again.status, 202, "{again:?}");
    jobs.until(again.text("id"), "attention").await;
    jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nul_in_a_name_is_refused_with_its_field() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    let new = |member: &str, value: Value| {
        let mut new = json!({"flow": "greet", "input": {"name": "ann"}});
        new[member] = value;
        new
    };
    for (member, value) in [
        ("key", json!("a\0b")),
        ("tenant", json!("a\0b")),
        ("terms", json!({"queue": "a\0b"})),
        ("terms", json!({"gate": "a\0b"})),
        ("terms", json!({"needs": ["a\0b"]})),
        ("flow", json!("greet\0")),
    ] {
        let no = jobs.post("/v1/jobs", new(member, value.clone())).await;
        assert_eq!(no.status, 422, "{member} {value}: {no:?}");
        assert!(!no.text("detail").contains("database"), "{no:?}");
    }
    for (path, field) in [
        ("/v1/jobs?flow=a%00b", "flow"),
        ("/v1/jobs?tenant=a%00b", "tenant"),
        ("/v1/queues?queue=a%00b", "queue"),
        ("/v1/schedules/a%00b", "id"),
        ("/v1/tools/a%00b", "id"),
        ("/v1/agents/a%00b", "id"),
    ] {
        let no = jobs.send(Method::GET, path, &[], None).await;
        assert_eq!((no.status, no.text("field")), (400, field), "{path}: {no:?}");
    }
    jobs.stop().await;
}
