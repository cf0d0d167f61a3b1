//! What a tenant may not have is not created, by whichever way it is asked for. The server's settings bind the tenant `acme` to one
//! namespace and to plain pods; everything in front of the judge is set up as if it knew of no bounds.

use super::{
    jobs_support::{Answered, Jobs, Setup, start_with},
    support::pipeline_to,
};
use reqwest::Method;
use serde_json::{Value, json};
use std::sync::Arc;
use tenure_engine::{
    birth::{Wish, birth},
    pipeline::Pipeline,
};
use tenure_jobs::{
    call::NewCall,
    drive::hands::{self, Hands, Order},
    model::{NewJob, Parent},
};
use tenure_kernel::{
    admission::Admissions,
    commit::{Commit, CommitAnswer, Expect, Refusal},
    ids::EntityId,
    machine::Input,
    outbox::{Message, Target},
    store::HeadFilter,
    stream::{Body, NewEvent},
};
use tenure_pods::{
    admission::{PodBounds, TemplatePolicy, admissions as admissions_of_pods},
    namespaces::Namespaces,
    pod::NewPod,
    step::StepDefaults,
    task::{NewTask, model::Asker},
};
use tenure_proving::patience;
use tenure_server::keys::Scope;
use tenure_steps::tool::ToolSpec;

const TENANT: &str = "acme";

fn bounds(namespaces: &str, grants: &str) -> PodBounds {
    let namespaces = Namespaces::read("tenure-tasks", namespaces).unwrap();
    PodBounds { namespaces, templates: TemplatePolicy::read(grants).unwrap() }
}

/// The tool `pod` of a worker whose settings allow everything.
struct Lax(StepDefaults, Vec<ToolSpec>);

impl Hands for Lax {
    fn tools(&self) -> &[ToolSpec] {
        &self.1
    }

    fn check(&self, _tool: &str, input: &Value) -> Result<(), String> {
        self.0.check(input)
    }

    fn order(&self, call: &NewCall, tenant: &str) -> Order {
        let call = serde_json::to_value(call).unwrap();
        Order { kind: "task".into(), body: Body::json(&self.0.order(&call, tenant).unwrap()) }
    }
}

/// A server whose judge knows the bounds, and whose API and worker do not.
async fn bound(dir: &std::path::Path) -> Jobs {
    let everything = || bounds("acme=*", "acme=*");
    let step = StepDefaults { bounds: everything(), ..StepDefaults::default() };
    let pods = tenure_pods::desk::Defaults { bounds: everything(), ..Default::default() };
    let admissions = tenure_agents::admission::admissions(Admissions::default());
    let admissions = tenure_jobs::admission::admissions(admissions);
    let admissions = admissions_of_pods(admissions, bounds("acme=ml", ""));
    let hands: Arc<dyn Hands> = Arc::new(Lax(step, vec![hands::spec("pod")]));
    start_with(dir, Setup { admissions, pods, hands: Some(hands), ..Setup::default() }).await
}

async fn tasks(server: &Jobs) -> usize {
    let filter = HeadFilter { kind: Some("task".into()), ..HeadFilter::default() };
    server.store().heads(filter, 100).await.unwrap().len()
}

fn pod(spec: Value) -> Value {
    let mut template =
        json!({ "spec": { "containers": [{ "name": "main", "image": "busybox" }] } });
    template["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    template
}

/// What acme may not have, as the input of a step or an order of a task, and the words of the refusal.
fn forbidden() -> Vec<(Value, &'static str)> {
    vec![
        (json!({ "template": pod(json!({})), "namespace": "kube-system" }), "\"kube-system\""),
        (json!({ "template": pod(json!({})) }), "default namespace"),
        (
            json!({ "template": pod(json!({ "serviceAccountName": "tenure-executor" })), "namespace": "ml" }),
            "service-accounts",
        ),
        (
            json!({ "template": pod(json!({ "volumes": [{ "name": "s", "secret": { "secretName": "tenure" } }] })), "namespace": "ml" }),
            "secrets",
        ),
        (json!({ "template": pod(json!({ "hostNetwork": true })), "namespace": "ml" }), "host"),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_creates_no_task_beyond_the_bounds_of_its_tenant() {
    let dir = tempfile::tempdir().unwrap();
    let server = bound(dir.path()).await;
    let key = server.key(Some(TENANT), &[Scope::Read, Scope::Write]).await;
    for (order, why) in forbidden() {
        let as_operator = json!({ "tenant": TENANT, "template": order["template"], "namespace": order["namespace"] });
        for refused in [
            server.with_key(Method::POST, "/v1/tasks", &key, order).await,
            server.post("/v1/tasks", as_operator).await,
        ] {
            assert_eq!((refused.status, refused.text("code")), (403, "forbidden"), "{refused:?}");
            assert!(refused.text("detail").contains(why), "{refused:?}");
        }
    }
    assert_eq!(tasks(&server).await, 0);
    let fine = json!({ "template": pod(json!({})), "namespace": "ml" });
    assert_eq!(server.with_key(Method::POST, "/v1/tasks", &key, fine).await.status, 202);
    server.stop().await;
}

/// A job, a plan, a schedule and a child: each ends in a step whose worker asks for the task by a message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_step_of_a_job_creates_a_task_beyond_the_bounds_of_its_tenant() {
    let dir = tempfile::tempdir().unwrap();
    let server = bound(dir.path()).await;
    let key = server.key(Some(TENANT), &[Scope::Read, Scope::Write]).await;
    let send = async |method: Method, path: &str, body: Value| -> Answered {
        server.with_key(method, path, &key, body).await
    };
    let mut jobs = Vec::new();
    for (input, why) in forbidden() {
        let far = json!({ "tool": "pod", "input": input });
        let flow = send(Method::POST, "/v1/jobs", json!({ "flow": "far", "input": far })).await;
        let step = json!({ "tool": "pod", "input": input });
        let plan = json!({ "version": 1, "steps": { "only": step } });
        let plan = send(Method::POST, "/v1/jobs", json!({ "plan": plan })).await;
        let schedule = json!({ "cron": "30 2 * * *", "flow": "far", "input": far });
        let set = send(Method::PUT, "/v1/schedules/nightly", schedule).await;
        assert_eq!(set.status, 200, "{set:?}");
        let fired = send(Method::POST, "/v1/schedules/nightly/fire", json!({ "key": why })).await;
        for (made, id) in [(&flow, "id"), (&plan, "id"), (&fired, "job")] {
            assert_eq!(made.status, 202, "{made:?}");
            jobs.push((made.text(id).to_owned(), why));
        }
    }
    for (job, why) in jobs {
        let failed = server.until(&job, "failed").await;
        let said = failed["failure"].to_string().replace("\\\"", "\"");
        assert!(said.contains(why), "{why}: {failed}");
    }
    assert_eq!(tasks(&server).await, 0);
    // The same way leads to a task that its tenant may have.
    let far = json!({ "tool": "pod", "input": { "image": "busybox", "namespace": "ml" } });
    let job = send(Method::POST, "/v1/jobs", json!({ "flow": "far", "input": far })).await;
    assert_eq!(job.status, 202, "{job:?}");
    patience::found("its task", async || {
        if tasks(&server).await == 1 { Ok(()) } else { Err(tasks(&server).await) }
    })
    .await;
    server.stop().await;
}

/// The birth of a job whose first commit says this too, as a worker may send it.
async fn job_that_says(server: &Jobs, pipeline: &Pipeline, messages: Vec<Message>) -> Commit {
    let at = server.store().now().await.unwrap();
    let id = EntityId::new(at, tenure_engine::birth::random(pipeline));
    let new = NewJob {
        flow: "nobody-has-it".into(),
        version: 1,
        must_end_in_ms: 60_000,
        ..NewJob::default()
    };
    let body = Body::json(&new);
    let wish = Wish { id, kind: "job", tenant: TENANT, at };
    let commit = pipeline.commit_id();
    let mut commit = birth(&server.machines(), wish, &Input::Create(&body), commit).unwrap();
    commit.messages.extend(messages);
    commit
}

fn creation(server: &Jobs, kind: &'static str, body: Body) -> (EntityId, Message) {
    let random = tenure_engine::birth::random(server.app.pipeline());
    let id =
        EntityId::new(tenure_kernel::time::Timestamp::from_micros(1_800_000_000_000_000), random);
    (id, Message { to: Target::Create { id, kind: kind.into() }, kind: "create".into(), body })
}

fn task(order: &Value) -> NewTask {
    NewTask {
        tenant_id: TENANT.into(),
        template: order["template"].clone(),
        namespace: order["namespace"].as_str().map(str::to_owned),
        must_end_in_ms: 60_000,
        ..NewTask::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workers_commit_creates_no_task_beyond_the_bounds_of_its_tenant() {
    let dir = tempfile::tempdir().unwrap();
    let server = bound(dir.path()).await;
    let key = server.key(Some(TENANT), &[Scope::Worker]).await;
    let pipeline = pipeline_to(&server.base, &key);
    let mut wanted: Vec<(NewTask, &str)> =
        forbidden().into_iter().map(|(order, why)| (task(&order), why)).collect();
    let fine = task(&json!({ "template": pod(json!({})), "namespace": "ml" }));
    wanted.push((NewTask { tenant_id: "beta".into(), ..fine.clone() }, "tenant_id"));
    for (new, why) in wanted {
        let (id, message) = creation(&server, "task", Body::json(&new));
        let commit = job_that_says(&server, &pipeline, vec![message]).await;
        let job = commit.entity;
        // The job is the worker's own; the task comes back to it.
        let answer = pipeline.commit(commit).await.unwrap();
        assert!(matches!(answer, CommitAnswer::Committed(_)), "{answer:?}");
        let returned = patience::found("the message comes back", async || {
            let mail = server.store().mail(job, 0, 10).await.unwrap();
            mail.into_iter().find(|m| m.kind == "returned").ok_or("no mail")
        })
        .await;
        let said = String::from_utf8_lossy(returned.body.inline().unwrap()).replace("\\\"", "\"");
        assert!(said.contains(why), "{why}: {said}");
        assert!(server.store().head(id).await.unwrap().is_none(), "{why}");
    }
    assert_eq!(tasks(&server).await, 0);
    let (id, message) = creation(&server, "task", Body::json(&fine));
    let commit = job_that_says(&server, &pipeline, vec![message]).await;
    pipeline.commit(commit).await.unwrap();
    patience::found("a task within the bounds", async || {
        server.store().head(id).await.unwrap().ok_or("none")
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workers_commit_creates_only_what_its_kind_creates() {
    let dir = tempfile::tempdir().unwrap();
    let server = bound(dir.path()).await;
    let key = server.key(Some(TENANT), &[Scope::Worker]).await;
    let pipeline = pipeline_to(&server.base, &key);
    let new_pod = NewPod {
        task: EntityId::fixed(9, 9),
        attempt: 1,
        name: "x".into(),
        workflow_id: String::new(),
        tenant_id: TENANT.into(),
        label: None,
        namespace: Some("kube-system".into()),
        cluster: String::new(),
        priority: 0,
        must_end_in_ms: 60_000,
    };
    let kinds = [
        "pod",
        "budget",
        "agent",
        "turn",
        "join",
        "schedule",
        "batch",
        "limit",
        "limit_book",
        "key",
        "lane",
        "worker",
    ];
    for kind in kinds {
        let (id, message) = creation(&server, kind, Body::json(&new_pod));
        let commit = job_that_says(&server, &pipeline, vec![message]).await;
        let job = commit.entity;
        let answer = pipeline.commit(commit).await.unwrap();
        let refused = matches!(answer, CommitAnswer::Refused(Refusal::Tenure(why)) if why.contains("does not create"));
        assert!(refused, "{kind}: {answer:?}");
        assert!(server.store().head(job).await.unwrap().is_none(), "{kind}");
        assert!(server.store().head(id).await.unwrap().is_none(), "{kind}");
    }
    // Nothing is created where every server looks for something of its own, directly or by a message.
    let book = tenure_kernel::blocks::book_id();
    let mut squats = job_that_says(&server, &pipeline, Vec::new()).await;
    squats.entity = book;
    let to = Target::Create { id: book, kind: "job".into() };
    let message = Message { to, kind: "create".into(), body: Body::json(&NewJob::default()) };
    let says = job_that_says(&server, &pipeline, vec![message]).await;
    for commit in [squats, says] {
        let answer = pipeline.commit(commit).await.unwrap();
        let refused = matches!(answer, CommitAnswer::Refused(Refusal::Tenure(why)) if why.contains("the server keeps"));
        assert!(refused, "{answer:?}");
    }
    assert!(server.store().head(book).await.unwrap().is_none());
    // What is created tells its creator how it ended, and nobody else: another tenant's job would believe it.
    let theirs = EntityId::fixed(9, 9);
    let parent = Some(Parent { job: theirs, ordinal: 0, depth: 0 });
    let child = NewJob {
        flow: "x".into(),
        version: 1,
        parent,
        must_end_in_ms: 60_000,
        ..NewJob::default()
    };
    let asker = Some(Asker { to: theirs, kind: "call_ended".into(), call: Default::default() });
    let (call, large) = (json!({ "job": theirs }), "x".repeat(100_000));
    for (kind, body) in [
        ("job", Body::json(&child)),
        ("job", Body::json(&NewJob { input: json!(large), ..child.clone() })),
        ("call", Body::json(&call)),
        (
            "task",
            Body::json(&NewTask {
                asker,
                ..task(&json!({ "template": pod(json!({})), "namespace": "ml" }))
            }),
        ),
    ] {
        let (_, message) = creation(&server, kind, body);
        let commit = job_that_says(&server, &pipeline, vec![message]).await;
        let answer = pipeline.commit(commit).await.unwrap();
        let refused = matches!(answer, CommitAnswer::Refused(Refusal::Tenure(why)) if why.contains("reports to"));
        assert!(refused, "{kind}: {answer:?}");
    }
    let at = server.store().now().await.unwrap();
    let id = EntityId::new(at, tenure_engine::birth::random(&pipeline));
    let (wish, body) = (Wish { id, kind: "job", tenant: TENANT, at }, Body::json(&child));
    let commit = pipeline.commit_id();
    let commit = birth(&server.machines(), wish, &Input::Create(&body), commit).unwrap();
    let answer = pipeline.commit(commit).await.unwrap();
    assert!(matches!(answer, CommitAnswer::Refused(Refusal::Tenure(_))), "{answer:?}");
    // And no task or pod directly: these are made by steps and by tasks.
    for (kind, body) in [
        ("task", Body::json(&task(&json!({ "template": pod(json!({})), "namespace": "ml" })))),
        ("pod", Body::json(&new_pod)),
    ] {
        let at = server.store().now().await.unwrap();
        let id = EntityId::new(at, tenure_engine::birth::random(&pipeline));
        let wish = Wish { id, kind, tenant: TENANT, at };
        let commit = pipeline.commit_id();
        let commit = birth(&server.machines(), wish, &Input::Create(&body), commit).unwrap();
        let answer = pipeline.commit(commit).await.unwrap();
        assert!(matches!(answer, CommitAnswer::Refused(Refusal::Tenure(_))), "{kind}: {answer:?}");
    }
    server.stop().await;
}

/// What belongs to the tenant beta and is found by its name, so that everybody can work out its id.
fn named_of_another_tenant() -> Vec<(EntityId, &'static str)> {
    use tenure_jobs::{gate::gate_id, shared::limit::book};
    vec![
        (tenure_agents::agent::agent_id("beta", "helper"), "an agent"),
        (tenure_pods::budget::budget_id("beta"), "a budget"),
        (tenure_pods::report::task_of("beta", "train"), "a task"),
        (gate_id("beta", "door"), "a gate"),
        (book::id_of("beta"), "a book of limits"),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_worker_takes_the_place_of_what_another_tenant_finds_by_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let server = bound(dir.path()).await;
    let key = server.key(Some(TENANT), &[Scope::Worker]).await;
    let pipeline = pipeline_to(&server.base, &key);
    let job = NewJob { flow: "x".into(), version: 1, must_end_in_ms: 60_000, ..NewJob::default() };
    let fine = task(&json!({ "template": pod(json!({})), "namespace": "ml" }));
    let labelled = NewTask { label: Some("train".into()), ..fine.clone() };
    let mut jobs = Vec::new();
    for (id, what) in named_of_another_tenant() {
        let mut direct = job_that_says(&server, &pipeline, Vec::new()).await;
        direct.entity = id;
        let answer = pipeline.commit(direct).await.unwrap();
        assert!(
            matches!(&answer, CommitAnswer::Refused(Refusal::NotAdmitted(_))),
            "{what}: {answer:?}"
        );
        let ask = json!({ "gate": "door", "job": id, "priority": 0, "limit": 1 });
        for (kind, body) in [
            ("job", Body::json(&job)),
            ("call", Body::json(&json!({}))),
            ("gate", Body::json(&ask)),
            ("task", Body::json(&fine)),
            ("task", Body::json(&labelled)),
        ] {
            let to = Target::Create { id, kind: kind.into() };
            let message = Message { to, kind: "create".into(), body };
            let commit = job_that_says(&server, &pipeline, vec![message]).await;
            jobs.push((commit.entity, what, kind));
            let answer = pipeline.commit(commit).await.unwrap();
            assert!(matches!(answer, CommitAnswer::Committed(_)), "{what}: {answer:?}");
        }
    }
    for (job, what, kind) in jobs {
        patience::found("the message comes back", async || {
            let mail = server.store().mail(job, 0, 10).await.unwrap();
            mail.into_iter().find(|m| m.kind == "returned").ok_or((what, kind))
        })
        .await;
    }
    for (id, what) in named_of_another_tenant() {
        assert!(server.store().head(id).await.unwrap().is_none(), "{what}");
    }
    // The tenant's own task has the id of its label.
    let id = tenure_pods::report::task_of(TENANT, "train");
    let to = Target::Create { id, kind: "task".into() };
    let message = Message { to, kind: "create".into(), body: Body::json(&labelled) };
    let commit = job_that_says(&server, &pipeline, vec![message]).await;
    pipeline.commit(commit).await.unwrap();
    patience::found("its own task", async || server.store().head(id).await.unwrap().ok_or("none"))
        .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_state_that_a_worker_writes_names_another_entity_to_report_to() {
    let dir = tempfile::tempdir().unwrap();
    let server = bound(dir.path()).await;
    let key = server.key(Some(TENANT), &[Scope::Worker]).await;
    let pipeline = pipeline_to(&server.base, &key);
    let theirs = EntityId::fixed(9, 9);
    let tampered = |state: &Option<Vec<u8>>| {
        let mut state: Value = serde_json::from_slice(state.as_ref().unwrap()).unwrap();
        state["parent"] = json!({ "job": theirs, "ordinal": 0, "depth": 0 });
        let as_list = json!([theirs, 0, 0]);
        let list = Value::Object(
            state
                .as_object()
                .unwrap()
                .clone()
                .into_iter()
                .chain([("parent".into(), as_list)])
                .collect(),
        );
        [state, list].map(|state| Some(serde_json::to_vec(&state).unwrap()))
    };
    let is_refused = |answer: &CommitAnswer| matches!(answer, CommitAnswer::Refused(Refusal::Tenure(why)) if why.contains("reports to"));
    let born = job_that_says(&server, &pipeline, Vec::new()).await;
    for state in tampered(&born.state) {
        let commit = Commit { state, id: pipeline.commit_id(), ..born.clone() };
        let answer = pipeline.commit(commit).await.unwrap();
        assert!(is_refused(&answer), "{answer:?}");
        assert!(server.store().head(born.entity).await.unwrap().is_none());
    }
    let answer = pipeline.commit(born.clone()).await.unwrap();
    assert!(matches!(answer, CommitAnswer::Committed(_)), "{answer:?}");
    let head = server.store().head(born.entity).await.unwrap().unwrap();
    for state in tampered(&born.state) {
        let expect = Expect::Nobody { epoch: head.epoch, version: head.version };
        let events = vec![NewEvent::new("mail_noted", Body::json(&json!({})))];
        let mut commit = Commit::new(pipeline.commit_id(), head.id, expect, events);
        commit.state = state;
        let answer = pipeline.commit(commit).await.unwrap();
        assert!(is_refused(&answer), "{answer:?}");
    }
    server.stop().await;
}
