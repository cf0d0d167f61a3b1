//! Workers that come with the key of a tenant: what they register is their tenant's, and what is everybody's they read.

use super::{
    jobs_support::{Jobs, start},
    support::{config, rt},
};
use reqwest::Method;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tenure_engine::pipeline::Pipeline;
use tenure_jobs::{
    catalogue::{self, Catalogue, Entry, Event, REGISTERED, Sort, Version},
    crew::{Crew, CrewOptions},
    drive::{JobOptions, Shop},
    shared::limit::{
        Limit, LimitBook, Spec, book,
        decide::{self, Take},
        desk, each,
        model::{Event as LimitEvent, State, Taker},
    },
};
use tenure_kernel::{
    commit::{Birth, Commit, CommitAnswer, Expect, Refusal},
    ids::{CommitId, EntityId},
    machine::{Machine, decode_state, encode_state},
    stream::{Body, NewEvent},
};
use tenure_remote::{RemoteBell, RemoteStore};
use tenure_server::keys::Scope;
use tenure_steps::{
    Ctx, FlowError,
    flow::{FlowSpec, Flows},
    tool::Tools,
};

fn remote(server: &Jobs, key: &str) -> Pipeline {
    let tables = server.machines().tables();
    let store = RemoteStore::new(&server.base, Some(key), tables).unwrap();
    let bell = RemoteBell::new(&server.base, Some(key), rt()).unwrap();
    Pipeline::new(Arc::new(store), Arc::new(bell), rt(), &config())
}

/// Greets by a child that everybody's workers have.
async fn wave(ctx: Ctx, name: String) -> Result<String, FlowError> {
    Ok(ctx.child("greet", json!({ "name": name })).await?)
}

/// A worker of a tenant, as another process has it: a flow of its own under a name that others use too.
async fn crew(server: &Jobs, key: &str, version: u32) -> Crew {
    let flows = Flows::default().with(FlowSpec::new("wave", wave).version(version));
    let shop = Shop::new(flows, Tools::default(), JobOptions::default());
    let options =
        CrewOptions { name: "theirs".into(), executor: None, slots: 4, drain: Duration::ZERO };
    Crew::start(remote(server, key), Arc::new(config()), Arc::new(shop), options).await.unwrap()
}

async fn submit(server: &Jobs, key: &str) -> (u16, Value) {
    let auth = format!("Bearer {key}");
    let headers = [("authorization", auth.as_str()), ("content-type", "application/json")];
    let body = json!({ "flow": "wave", "input": "ada" }).to_string();
    let answer = server.send(Method::POST, "/v1/jobs?wait=20", &headers, Some(body)).await;
    (answer.status, answer.body)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_of_tenants_bring_flows_of_their_own_and_call_everybodys() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let scopes = [Scope::Worker, Scope::Write, Scope::Read];
    let (acme, globex) =
        (server.key(Some("acme"), &scopes).await, server.key(Some("globex"), &scopes).await);
    let initech = server.key(Some("initech"), &scopes).await;
    let mut first = crew(&server, &acme, 1).await;
    let mut second = crew(&server, &globex, 7).await;
    for (key, version) in [(&acme, 1), (&globex, 7)] {
        let (status, body) = submit(&server, key).await;
        assert_eq!((status, &body["status"]), (200, &json!("completed")), "{body:#}");
        assert_eq!(body["version"], json!(version), "each has its own newest: {body:#}");
    }
    let (status, body) = submit(&server, &initech).await;
    assert_eq!((status, &body["code"]), (422, &json!("unknown_flow")), "{body:#}");
    let common = catalogue::entry(server.store(), Sort::Flow, "", "wave").await.unwrap();
    assert_eq!(common, None, "nobody but they know of it");
    // What is everybody's they have not written again.
    let own = server.store().head(catalogue::id_of(Sort::Flow, "acme", "greet")).await.unwrap();
    assert!(own.is_none());
    first.stop().await;
    second.stop().await;
    server.stop().await;
}

async fn refused(pipeline: &Pipeline, commit: Commit) -> bool {
    matches!(pipeline.commit(commit).await.unwrap(), CommitAnswer::Refused(_))
}

fn registration(id: EntityId, expect: Expect, tenant: &str, before: Entry) -> Commit {
    let (sort, name, tenant) = (Sort::Flow, "greet".to_owned(), tenant.to_owned());
    let (input_schema, output_schema) = (Value::Null, Value::Null);
    let version = Version {
        version: 999,
        doc: String::new(),
        class: None,
        input_schema,
        output_schema,
        calls: None,
    };
    let event = Event::EntryRegistered { sort, name, tenant, version };
    let mut entry = before;
    Catalogue::apply(&mut entry, &event);
    let event = NewEvent::new(REGISTERED, Body::json(&event));
    let mut commit = Commit::new(CommitId::new(9, 9), id, expect, vec![event]);
    commit.state = Some(encode_state::<Catalogue>(&entry));
    commit
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_registers_nothing_for_others() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let acme = server.key(Some("acme"), &[Scope::Worker]).await;
    let pipeline = remote(&server, &acme);
    let birth = || {
        let (kind, tenant) = (catalogue::TABLE.kind, "acme".to_owned());
        Expect::Absent(Birth { kind, tenant, queue: String::new(), priority: 0 })
    };
    // A name that nobody has used yet, under everybody's id and under another tenant's.
    for (id, tenant) in [
        (catalogue::id_of(Sort::Flow, "", "later"), ""),
        (catalogue::id_of(Sort::Flow, "", "later"), "acme"),
        (catalogue::id_of(Sort::Flow, "globex", "greet"), "globex"),
        (catalogue::id_of(Sort::Flow, "globex", "greet"), "acme"),
    ] {
        assert!(refused(&pipeline, registration(id, birth(), tenant, Entry::default())).await);
    }
    // One that everybody has: to be read, not to be changed.
    let id = catalogue::id_of(Sort::Flow, "", "greet");
    let head = pipeline.store().head(id).await.unwrap().expect("everybody reads it");
    let expect = Expect::Nobody { epoch: head.epoch, version: head.version };
    let before = decode_state::<Catalogue>(&head.state).unwrap();
    assert!(refused(&pipeline, registration(id, expect, "", before)).await);
    assert_eq!(server.store().head(id).await.unwrap().unwrap().version, head.version);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_limit_a_worker_takes_tokens_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let acme = server.key(Some("acme"), &[Scope::Worker]).await;
    let admin = format!("Bearer {}", server.key(None, &[Scope::Write]).await);
    let headers = [("authorization", admin.as_str()), ("content-type", "application/json")];
    let body = json!({ "rate": "10/s", "tenant": "*" }).to_string();
    let set = server.send(Method::PUT, "/v1/limits/echo", &headers, Some(body)).await;
    assert!(set.status < 300, "{:#}", set.body);
    let (pipeline, id) = (remote(&server, &acme), desk::id_of("*", "echo"));
    let head = pipeline.store().head(id).await.unwrap().expect("everybody takes tokens there");
    let before = decode_state::<Limit>(&head.state).unwrap();
    let now = pipeline.store().now().await.unwrap();
    let commit = |event: &LimitEvent, after: Option<State>| {
        let mut state = before.clone();
        Limit::apply(&mut state, event);
        let expect = Expect::Nobody { epoch: head.epoch, version: head.version };
        let said = NewEvent::new(Limit::name(event), Body::json(event));
        let mut commit = Commit::new(pipeline.commit_id(), id, expect, vec![said]);
        commit.state = Some(encode_state::<Limit>(&after.unwrap_or(state)));
        commit
    };
    let Some(Take::Given(take, tokens)) = decide::take(&before, 3, ("acme", true), now) else {
        panic!("there is room")
    };
    assert_eq!(tokens.len(), 3);
    let LimitEvent::TokensTaken { count, next_ns, taker } = take.clone() else {
        panic!("{take:?}")
    };
    let taken = |count, next_ns| {
        let taker = taker.clone();
        LimitEvent::TokensTaken { count, next_ns, taker }
    };
    let place = |tenant: &str, at_ns| LimitEvent::PlaceTaken { tenant: tenant.into(), at_ns };
    let another = taker.clone().map(|taker| Taker { tenant: "globex".into(), ..taker });
    let mut spec = before.spec.clone().unwrap();
    spec.count = 1_000_000;
    for (why, event, after) in [
        ("removed", LimitEvent::LimitRemoved { by: None }, None),
        ("raised", LimitEvent::LimitSet { spec: spec.clone(), by: None, next_ns: None }, None),
        ("for years", taken(count, i64::MAX / 2), None),
        ("for nothing", taken(count, before.next_ns), None),
        ("too many", taken(1_000_000, next_ns), None),
        ("none", taken(0, next_ns), None),
        ("for another", LimitEvent::TokensTaken { count, next_ns, taker: another }, None),
        ("a place in a year", place("acme", next_ns + (1 << 55)), None),
        ("a place for another", place("globex", next_ns), None),
        ("with another state", take.clone(), Some(State { spec: Some(spec), ..before.clone() })),
    ] {
        let answer = pipeline.commit(commit(&event, after)).await.unwrap();
        assert!(matches!(answer, CommitAnswer::Refused(Refusal::Tenure(_))), "{why}: {answer:?}");
    }
    // The judge goes by the name: under that of a removal it would be one, and every call of the tool would wait.
    let mut misnamed = commit(&take, None);
    misnamed.events = vec![NewEvent::new("limit_removed", Body::json(&take))];
    let answer = pipeline.commit(misnamed).await.unwrap();
    assert!(matches!(answer, CommitAnswer::Refused(Refusal::Tenure(_))), "{answer:?}");
    let answer = pipeline.commit(commit(&take, None)).await.unwrap();
    assert!(matches!(answer, CommitAnswer::Committed(_)), "{answer:?}");
    // What came too late is told so by the store, and is asked again.
    let answer = pipeline.commit(commit(&take, None)).await.unwrap();
    assert!(
        !matches!(answer, CommitAnswer::Committed(_) | CommitAnswer::Refused(Refusal::Tenure(_))),
        "{answer:?}"
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_makes_the_limit_of_its_tenant_as_the_one_for_each_says_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let acme = server.key(Some("acme"), &[Scope::Worker]).await;
    let admin = format!("Bearer {}", server.key(None, &[Scope::Write]).await);
    let headers = [("authorization", admin.as_str()), ("content-type", "application/json")];
    let set = async |rate: &str| {
        let body = json!({ "rate": rate, "burst": 5, "tenant": "*/each" }).to_string();
        let set = server.send(Method::PUT, "/v1/limits/echo", &headers, Some(body)).await;
        assert_eq!(set.status, 200, "{:#}", set.body);
    };
    set("10/s").await;
    let pipeline = remote(&server, &acme);
    let book = pipeline.store().head(book::id_of("*")).await.unwrap().expect("it is read by all");
    let rule = decode_state::<LimitBook>(&book.state).unwrap().each["echo"].clone();
    let now = pipeline.store().now().await.unwrap();
    let birth = |id: EntityId, spec: Spec| {
        let (kind, tenant) = ("limit", "acme".to_owned());
        let expect = Expect::Absent(Birth { kind, tenant, queue: String::new(), priority: 0 });
        let event = each::follow(None, &spec, now).unwrap();
        let mut state = State::default();
        Limit::apply(&mut state, &event);
        let said = NewEvent::new(Limit::name(&event), Body::json(&event));
        let mut commit = Commit::new(pipeline.commit_id(), id, expect, vec![said]);
        commit.state = Some(encode_state::<Limit>(&state));
        commit
    };
    let mine = each::for_tenant(&rule, "acme");
    for (why, id, spec) in [
        ("under another id", desk::id_of("acme", "echo"), mine.clone()),
        ("of all", desk::id_of("*", "echo"), Spec { tenant: "*".into(), ..mine.clone() }),
        ("raised", mine.id(), Spec { count: 1_000, ..mine.clone() }),
        ("of another tenant", each::id_of("eve", "echo"), each::for_tenant(&rule, "eve")),
        ("of no rule", mine.id(), Spec { from_each: None, ..mine.clone() }),
        (
            "of another tool",
            each::id_of("acme", "http"),
            Spec { tool: "http".into(), ..mine.clone() },
        ),
    ] {
        assert!(refused(&pipeline, birth(id, spec)).await, "{why}");
    }
    let answer = pipeline.commit(birth(mine.id(), mine.clone())).await.unwrap();
    assert!(matches!(answer, CommitAnswer::Committed(_)), "{answer:?}");
    // A newer rule is followed, an older one is not brought back.
    set("20/s").await;
    let head = pipeline.store().head(mine.id()).await.unwrap().unwrap();
    let state = decode_state::<Limit>(&head.state).unwrap();
    let change = |spec: Spec| {
        let event = LimitEvent::LimitSet { spec, by: None, next_ns: None };
        let mut after = state.clone();
        Limit::apply(&mut after, &event);
        let expect = Expect::Nobody { epoch: head.epoch, version: head.version };
        let said = NewEvent::new(Limit::name(&event), Body::json(&event));
        let mut commit = Commit::new(pipeline.commit_id(), mine.id(), expect, vec![said]);
        commit.state = Some(encode_state::<Limit>(&after));
        commit
    };
    let newer = Spec { count: 20, from_each: Some(2), block: 20, ..mine.clone() };
    for spec in [mine.clone(), Spec { count: 30, ..newer.clone() }] {
        assert!(refused(&pipeline, change(spec)).await);
    }
    let answer = pipeline.commit(change(newer)).await.unwrap();
    assert!(matches!(answer, CommitAnswer::Committed(_)), "{answer:?}");
    server.stop().await;
}
