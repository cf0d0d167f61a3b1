//! Plans over HTTP: everything that is wrong is listed at once, and nothing is written; what is right runs.

use super::jobs_support::start;
use reqwest::Method;
use serde_json::{Value, json};
use tenure_server::keys::Scope;

fn plan(steps: Value) -> Value {
    json!({"version": 1, "steps": steps})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_is_submitted_runs_and_shows_its_steps_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let steps = json!({
        "first": {"tool": "echo", "input": {"n": "${{ input.n }}"}},
        "second": {"tool": "echo", "input": "${{ steps.first.output.n + 1 }}"}
    });
    let body = json!({"plan": plan(steps), "input": {"n": 4}, "key": "k"});
    let made = server.post("/v1/jobs?wait=30", body.clone()).await;
    assert_eq!((made.status, made.text("flow")), (200, "plan"), "{made:?}");
    assert_eq!(made.body["output"], json!({"second": 5}));
    let id = made.text("id").to_owned();
    let steps = server.get(&format!("/v1/jobs/{id}/steps")).await;
    let places = steps.body.to_string();
    assert!(
        places.contains("\"place\":\"first\"") && places.contains("\"place\":\"second\""),
        "{places}"
    );
    let again = server.post("/v1/jobs", body).await;
    assert_eq!((again.status, again.text("id")), (200, id.as_str()));
    let replayed = server.get(&format!("/v1/jobs/{id}/replay")).await;
    assert_eq!(replayed.status, 200, "{replayed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_that_can_not_run_is_refused_with_all_its_problems() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let before = server.written().await;
    let wrong = plan(json!({
        "a": {"tool": "ecko"},
        "b": {"job": {"flow": "greet", "input": {"name": "${{ steps.c.status }}", "times": "many"}}},
        "c": {"tool": "echo", "inptu": 1, "after": ["d"]},
        "d": {"tool": "echo", "after": ["c"]}
    }));
    let refused = server.post("/v1/jobs", json!({"plan": wrong.clone()})).await;
    assert_eq!((refused.status, refused.text("code")), (422, "plan_invalid"), "{refused:?}");
    let problems = refused.body["problems"].as_array().unwrap().clone();
    let found: Vec<(&str, &str)> = problems
        .iter()
        .map(|p| (p["at"].as_str().unwrap(), p["wrong"].as_str().unwrap()))
        .collect();
    assert_eq!(
        found,
        [
            ("/steps/a/tool", "unknown_tool"),
            ("/steps/b/job/input/times", "schema"),
            ("/steps/c", "cycle"),
            ("/steps/c/inptu", "unknown_field"),
        ],
        "{refused:?}"
    );
    // The same without a submission, and as the input of the flow.
    let checked = server.post("/v1/plans/check", wrong.clone()).await;
    assert_eq!((checked.status, &checked.body["ok"]), (200, &json!(false)));
    assert_eq!(checked.body["problems"].as_array(), Some(&problems));
    let as_flow = json!({"flow": "plan", "input": {"plan": wrong, "input": 1}});
    assert_eq!(server.post("/v1/jobs", as_flow).await.text("code"), "plan_invalid");
    assert_eq!(server.written().await, before, "nothing was written");
    let fine = server.post("/v1/plans/check", plan(json!({"a": {"tool": "echo"}}))).await;
    assert_eq!((&fine.body["ok"], &fine.body["problems"]), (&json!(true), &json!([])));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_around_a_plan_is_said_with_its_field() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let before = server.written().await;
    let fine = plan(json!({"a": {"value": 1}}));
    let both = server.post("/v1/jobs", json!({"plan": fine, "flow": "greet"})).await;
    assert_eq!((both.text("code"), both.text("field")), ("bad_field", "flow"));
    let mut typed = fine.clone();
    typed["input_schema"] = json!({"type": "object", "required": ["n"]});
    let input = server.post("/v1/jobs", json!({"plan": typed, "input": {}})).await;
    assert_eq!((input.status, input.text("code")), (422, "schema_violation"), "{input:?}");
    let none = server.post("/v1/jobs", json!({"flow": "plan", "input": {}})).await;
    assert_eq!((none.status, none.text("code")), (422, "schema_violation"), "{none:?}");
    assert_eq!(server.written().await, before, "nothing was written");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_of_a_schedule_or_of_a_debounce_is_checked_like_any_other() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let before = server.written().await;
    let unknown = plan(json!({"a": {"tool": "echo"}, "b": {"tool": "chrge", "after": ["a"]}}));
    let circle =
        plan(json!({"a": {"tool": "echo", "after": ["b"]}, "b": {"tool": "echo", "after": ["a"]}}));
    let inside = plan(json!({"a": {"job": {"flow": "plan", "input": {"plan": unknown.clone()}}}}));
    for wrong in [unknown, circle, inside] {
        let body = json!({"every_seconds": 60, "flow": "plan", "input": {"plan": wrong.clone()}});
        let headers = [("content-type", "application/json")];
        let path = "/v1/schedules/nightly";
        let set = server.send(Method::PUT, path, &headers, Some(body.to_string())).await;
        assert_eq!((set.status, set.text("code")), (422, "plan_invalid"), "{set:?}");
        assert_eq!(server.get(path).await.status, 404);
        let debounce = json!({"key": "k", "quiet_seconds": 60, "within_seconds": 60});
        let collected = server.post("/v1/jobs", json!({"plan": wrong, "debounce": debounce})).await;
        assert_eq!((collected.status, collected.text("code")), (422, "plan_invalid"));
    }
    assert_eq!(server.written().await, before, "nothing was written");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_is_checked_against_the_tools_of_the_tenant_it_would_run_for() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let acme = server.key(Some("acme"), &[Scope::Worker]).await;
    let offer = json!({"name": "w", "tools": [{"name": "acme-only"}]});
    let opened = server.with_key(Method::POST, "/v1/calls/sessions", &acme, offer).await;
    assert_eq!(opened.status, 201, "{opened:?}");
    let wanted = plan(json!({"a": {"tool": "acme-only"}}));
    // What is fine here is fine as a submission, and the other way round.
    for (tenant, fine) in [(None, false), (Some("acme"), true), (Some("other"), false)] {
        let query = tenant.map_or_else(String::new, |t| format!("?tenant={t}"));
        let checked = server.post(&format!("/v1/plans/check{query}"), wanted.clone()).await;
        assert_eq!(checked.body["ok"], json!(fine), "{tenant:?}: {checked:?}");
        // Its worker has said nothing about its input.
        let unknown = if fine { json!(["the tool acme-only"]) } else { json!([]) };
        assert_eq!(checked.body["not_checked"], unknown);
        let mut body = json!({"plan": wanted.clone()});
        if let Some(tenant) = tenant {
            body["tenant"] = json!(tenant);
        }
        let submitted = server.post("/v1/jobs", body).await;
        assert_eq!(submitted.status == 202, fine, "{tenant:?}: {submitted:?}");
    }
    server.stop().await;
}
