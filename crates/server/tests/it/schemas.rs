//! Schemas and patterns that a tenant writes do not stop the server: they are refused, or answered in bounded work.

use super::{jobs_support::start, support::pipeline_to};
use reqwest::Method;
use serde_json::{Map, Value, json};
use std::time::Duration;
use tenure_engine::amend::amend;
use tenure_jobs::catalogue::{Catalogue, Event, Sort, Version, id_of};
use tenure_kernel::{
    commit::{Birth, Commit, CommitAnswer, Expect, Refusal},
    error::StoreError,
    machine::{Decision, Machine as _, decode_state, encode_state},
    stream::{Body, NewEvent},
};
use tenure_server::keys::Scope;

/// Three inputs of 8.6 KB against this pattern took a server of two cores 36 s.
const BACKTRACKS: &str = "^(?:(?:a|a)*(?=c)|a*)$";
/// Much more than it takes, and much less than it took.
const SOON: Duration = Duration::from_secs(10);

/// Definitions that refer to the next one twice.
fn twice(depth: usize) -> Value {
    let next = |i: usize| json!({"$ref": format!("#/$defs/a{}", i + 1)});
    let mut defs: Map<String, Value> =
        (0..depth).map(|i| (format!("a{i}"), json!({"anyOf": [next(i), next(i)]}))).collect();
    defs.insert(format!("a{depth}"), json!({"type": "string"}));
    json!({"properties": {"x": {"$ref": "#/$defs/a0"}}, "$defs": defs})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_cannot_register_a_schema_that_cannot_be_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let open = async |schema: Value| {
        let tools = json!([{ "name": "far.echo", "class": "idempotent", "input_schema": schema }]);
        let body = json!({ "name": "far", "lease_ms": 30_000, "tools": tools, "executor": null });
        server.post("/v1/calls/sessions", body).await
    };
    let refused = open(json!({"properties": {"s": {"pattern": BACKTRACKS}}})).await;
    assert_eq!((refused.status, refused.text("field")), (422, "tools[0].input_schema"));
    let detail = refused.text("detail");
    assert!(detail.contains(BACKTRACKS) && detail.contains("look-around"), "{detail}");
    assert!(detail.contains("far.echo"), "{detail}");
    assert_eq!(open(twice(20)).await.status, 422);
    assert_eq!(open(json!({"pattern": "^[a-z]{1,40}$"})).await.status, 201);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_cannot_have_a_tool_whose_parameters_cannot_be_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let put = async |parameters: Value| {
        let run = json!({ "external": {} });
        let tool = json!({ "name": "look", "parameters": parameters, "run": run });
        let body = json!({ "profile": { "tools": [tool] } });
        server.with_key(Method::PUT, "/v1/agents/ada", &server.operator, body).await
    };
    let fine = put(json!({"type": "object", "properties": {"s": {"pattern": "^a+$"}}})).await;
    assert!(fine.status < 300, "{fine:?}");
    for parameters in [twice(20), json!({"properties": {"s": {"pattern": BACKTRACKS}}})] {
        let refused = put(parameters).await;
        assert_eq!(refused.status, 422, "{refused:?}");
        assert!(refused.text("detail").contains("tools[0].parameters"), "{refused:?}");
    }
    server.stop().await;
}

/// A worker that commits to the catalogue itself, without asking the routine that registers.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_to_the_catalogue_brings_no_schema_that_cannot_be_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let key = server.key(Some("acme"), &[Scope::Worker]).await;
    let pipeline = pipeline_to(&server.base, &key);
    let id = id_of(Sort::Flow, "acme", "pay");
    let event = |number: u32, input_schema: Value| {
        let version = Version {
            version: number,
            doc: String::new(),
            class: None,
            input_schema,
            output_schema: Value::Null,
            calls: None,
        };
        let (sort, name, tenant) = (Sort::Flow, "pay".to_owned(), "acme".to_owned());
        Event::EntryRegistered { sort, name, tenant, version }
    };
    let fine = || json!({"properties": {"s": {"pattern": "^a+$"}}});
    // The event, and what the state says that it did.
    let commit = async |said: Event, kept: Event| {
        let head = server.store().head(id).await.unwrap();
        let mut state = head
            .as_ref()
            .map_or_else(Default::default, |h| decode_state::<Catalogue>(&h.state).unwrap());
        Catalogue::apply(&mut state, &kept);
        let expect = match &head {
            Some(head) => Expect::Nobody { epoch: head.epoch, version: head.version },
            None => Expect::Absent(Birth {
                kind: "catalogue",
                tenant: "acme".into(),
                queue: String::new(),
                priority: 0,
            }),
        };
        let events = vec![NewEvent::new(Catalogue::name(&said), Body::json(&said))];
        let mut commit = Commit::new(pipeline.commit_id(), id, expect, events);
        commit.state = Some(encode_state::<Catalogue>(&state));
        pipeline.commit(commit).await.unwrap()
    };
    let is_refused = |answer: &CommitAnswer| matches!(answer, CommitAnswer::Refused(Refusal::Tenure(why)) if why.contains("schema"));
    for number in [1, 2] {
        for hostile in [twice(20), json!({"properties": {"s": {"pattern": BACKTRACKS}}})] {
            let (bad, good) = (event(number, hostile), event(number, fine()));
            for (said, kept) in [(bad.clone(), bad.clone()), (good, bad)] {
                let answer = commit(said, kept).await;
                assert!(is_refused(&answer), "version {number}: {answer:?}");
            }
        }
        let answer = commit(event(number, fine()), event(number, fine())).await;
        assert!(matches!(answer, CommitAnswer::Committed(_)), "version {number}: {answer:?}");
    }
    server.stop().await;
}

/// What an older version has registered is there, and is evaluated in bounded work.
#[tokio::test(flavor = "multi_thread")]
async fn stored_schemas_are_answered_in_bounded_work() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let old = async |name: &str, input_schema: Value| {
        let version = Version {
            version: 1,
            doc: String::new(),
            class: None,
            input_schema,
            output_schema: Value::Null,
            calls: None,
        };
        let (sort, tenant) = (Sort::Flow, String::new());
        let event = Event::EntryRegistered { sort, name: name.to_owned(), tenant, version };
        let id = id_of(sort, "", name);
        let written = amend::<Catalogue, StoreError>(server.app.pipeline(), id, "", |_, _| {
            Ok(Decision::event(event.clone()))
        });
        assert!(written.await.unwrap().changed);
    };
    let pattern = json!({"type": "string", "pattern": BACKTRACKS});
    old("look-ahead", json!({"type": "object", "properties": {"s": pattern}, "required": ["s"]}))
        .await;
    old("doubling", twice(24)).await;
    let submit = async |flow: &str, input: Value| {
        let body = json!({"flow": flow, "input": input});
        let answer = tokio::time::timeout(SOON, server.post("/v1/jobs", body)).await;
        answer.expect("an answer in bounded time")
    };
    let text = "a".repeat(8_600) + "b";
    let three =
        futures_util::future::join_all((0..3).map(|_| submit("look-ahead", json!({ "s": text }))));
    for answered in three.await {
        assert_eq!(answered.status, 202, "the pattern is not checked: {answered:?}");
    }
    let refused = submit("look-ahead", json!({ "s": 5 })).await;
    assert_eq!(refused.text("code"), "schema_violation", "the rest of the schema is checked");
    let refused = submit("doubling", json!({ "x": 5 })).await;
    assert_eq!((refused.status, refused.text("code")), (422, "schema_violation"), "{refused:?}");
    assert!(refused.text("detail").contains("comparisons"), "{refused:?}");
    server.stop().await;
}
