//! Workers that run agents, over HTTP: what they get, what they may say, and what becomes of it.

use super::jobs_support::{Answered, Jobs, start};
use reqwest::Method;
use serde_json::{Value, json};
use std::sync::Arc;
use tenure_agents::{
    agent::Spec,
    desk::{Defaults, Desk, send::Sending},
    turn::{Turn, TurnEvent, TurnState, model::Sort},
};
use tenure_bell::InProcess;
use tenure_edge::TokioRuntime;
use tenure_engine::{config::EngineConfig, pipeline::Pipeline, session::Keeper};
use tenure_kernel::{
    commit::{Commit, CommitAnswer, Expect, Refusal},
    ids::{EntityId, MailId},
    machine::decode_state,
    mail::NewMail,
    outbox::{Message, Target},
    store::{Answer, Op},
    stream::{Body, NewEvent},
};
use tenure_proving::patience;
use tenure_server::keys::Scope;

/// A worker in another language.
struct Far<'a> {
    jobs: &'a Jobs,
    session: String,
}

impl<'a> Far<'a> {
    async fn open(jobs: &'a Jobs, lease_ms: u64) -> Far<'a> {
        Self::open_for(jobs, lease_ms, &["py"]).await
    }

    async fn open_for(jobs: &'a Jobs, lease_ms: u64, targets: &[&str]) -> Far<'a> {
        let body = json!({ "name": "far", "lease_ms": lease_ms, "targets": targets });
        let opened = jobs.post("/v1/turns/sessions", body).await;
        assert_eq!(opened.status, 201, "{opened:?}");
        Far { jobs, session: opened.text("session").to_owned() }
    }

    async fn poll(&self, max: usize) -> Vec<Value> {
        let path = format!("/v1/turns/sessions/{}/poll", self.session);
        let polled = self.jobs.post(&path, json!({ "max": max, "wait_ms": 20_000 })).await;
        assert_eq!(polled.status, 200, "{polled:?}");
        polled.body["turns"].as_array().unwrap().clone()
    }

    /// The one turn that comes.
    async fn one(&self) -> Value {
        let mut turns = self.poll(8).await;
        assert_eq!(turns.len(), 1, "{turns:?}");
        turns.remove(0)
    }

    async fn say(&self, turn: &Value, word: &str, more: Value) -> Answered {
        let mut body = json!({ "session": self.session, "epoch": turn["epoch"] });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let turn = turn["turn"].as_str().unwrap();
        self.jobs.post(&format!("/v1/turns/{turn}/{word}"), body).await
    }

    async fn step(&self, turn: &Value, message: Value) -> Answered {
        self.say(turn, "step", json!({ "step": turn["step"], "message": message })).await
    }

    async fn renew(&self, turns: &[(&Value, Option<&str>)]) -> Answered {
        let held = |(t, note): &(&Value, Option<&str>)| json!({ "turn": t["turn"], "epoch": t["epoch"], "note": note });
        let turns: Vec<Value> = turns.iter().map(held).collect();
        let path = format!("/v1/turns/sessions/{}/renew", self.session);
        self.jobs.post(&path, json!({ "turns": turns })).await
    }
}

fn call(id: &str, tool: &str, arguments: &Value) -> Value {
    json!({ "role": "assistant", "content": null, "tool_calls": [
        { "id": id, "type": "function", "function": { "name": tool, "arguments": arguments.to_string() } },
    ]})
}

fn desk(jobs: &Jobs) -> Desk {
    Desk::new(jobs.app.pipeline().clone(), Defaults::default())
}

async fn agent(jobs: &Jobs, name: &str, profile: Value) {
    agent_of(jobs, name, "py", profile).await;
}

async fn agent_of(jobs: &Jobs, name: &str, target: &str, profile: Value) {
    let spec = Spec {
        name: name.into(),
        target: target.into(),
        channel: Some("c".into()),
        output_box: Some("box".into()),
        profile,
    };
    desk(jobs).set_agent("", spec, None).await.unwrap();
}

async fn send(jobs: &Jobs, agent: &str, text: &str) -> EntityId {
    let sending = Sending {
        tenant: String::new(),
        agent: agent.into(),
        messages: vec![json!({ "role": "user", "content": text })],
        sort: Sort::Turn,
        ..Sending::default()
    };
    desk(jobs).send(sending).await.unwrap().turn
}

async fn until(jobs: &Jobs, turn: EntityId, status: &str) -> TurnState {
    let head = patience::found(&format!("{turn} is {status}"), async || {
        let head = jobs.store().head(turn).await.unwrap().unwrap();
        if head.status.name() == status { Ok(head) } else { Err(head) }
    })
    .await;
    decode_state::<Turn>(&head.state).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_with_a_tool_goes_through_a_worker_in_another_language() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    let greet = json!({ "name": "greet", "run": { "flow": "greet@1" } });
    let absent = json!({ "name": "absent", "run": { "flow": "gret@1" } });
    agent(&jobs, "a", json!({ "instructions": "Be kind.", "tools": [greet, absent] })).await;
    let far = Far::open(&jobs, 30_000).await;
    let id = send(&jobs, "a", "greet Ann").await;
    let turn = far.one().await;
    assert_eq!(turn["turn"], json!(id));
    assert_eq!(
        (&turn["step"], &turn["agent"], &turn["turn_epoch"]),
        (&json!(1), &json!("a"), &json!(1))
    );
    assert_eq!(turn["messages"][0]["content"], "Be kind.");
    assert_eq!(turn["task"][0]["content"], "greet Ann");
    // The profile names the flow alone: what it does and what it takes is in the catalogue.
    let offered = &turn["tools"][0]["function"];
    assert_eq!(
        (&offered["name"], &offered["description"]),
        (&json!("greet"), &json!("Says hello."))
    );
    assert_eq!(offered["parameters"]["required"][0], "name", "{offered}");
    // A tool that is not there is answered at once, and the next step comes with the answer; and so is one that runs a flow
    // which nobody ever registered.
    let mut both = call("x", "nothing", &json!({}));
    let flow = call("y", "absent", &json!({}))["tool_calls"][0].clone();
    both["tool_calls"].as_array_mut().unwrap().push(flow);
    let said = far.step(&turn, both.clone()).await;
    assert_eq!((said.status, said.text("status")), (200, "running"), "{said:?}");
    let second = said.body["next"].clone();
    assert_eq!(second["step"], 2);
    assert!(second["results"][0].to_string().contains("unknown_tool"));
    let told = second["results"][1].to_string();
    assert!(told.contains("unknown_flow") && told.contains("greet"), "{told}");
    // The same again is answered the same.
    let again = far.step(&turn, both).await;
    assert_eq!((again.status, &again.body["next"]["step"]), (200, &json!(2)), "{again:?}");
    let said = far.step(&second, call("c", "greet", &json!({ "name": "Ann" }))).await;
    assert_eq!((said.status, said.text("status")), (200, "suspended"), "{said:?}");
    let third = far.one().await;
    assert_eq!((&third["step"], &third["turn_epoch"]), (&json!(3), &json!(2)));
    assert_eq!(third["results"][0]["result"], "hello Ann");
    let late = far.step(&second, call("c", "greet", &json!({ "name": "Bob" }))).await;
    assert_eq!((late.status, late.text("code")), (409, "stale_attempt"), "{late:?}");
    let done = json!({ "result": { "said": "hello" } });
    let ended = far.say(&third, "finish", done.clone()).await;
    assert_eq!((ended.status, ended.text("status")), (200, "success"), "{ended:?}");
    let again = far.say(&third, "finish", done).await;
    assert_eq!(again.status, 200, "{again:?}");
    let other = far.say(&third, "finish", json!({ "result": 2 })).await;
    assert_eq!(other.status, 409, "{other:?}");
    until(&jobs, id, "success").await;
    let path = format!("/v1/turns/sessions/{}", far.session);
    assert_eq!(jobs.send(Method::DELETE, &path, &[], None).await.status, 204);
    assert_eq!(far.renew(&[]).await.status, 410);
    jobs.stop().await;
}

/// A worker of several targets looks into another one first each time.
#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_of_one_target_does_not_starve_another() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    let mut backlog = Vec::new();
    for n in 0..20 {
        let name = format!("bulk-{n}");
        agent_of(&jobs, &name, "bulk", Value::Null).await;
        backlog.push(send(&jobs, &name, "go").await);
    }
    agent_of(&jobs, "urgent", "urgent", Value::Null).await;
    let urgent = send(&jobs, "urgent", "go").await;
    for turn in backlog.iter().chain([&urgent]) {
        until(&jobs, *turn, "dispatched").await;
    }
    let far = Far::open_for(&jobs, 30_000, &["bulk", "urgent"]).await;
    // One time out of two each; twenty in a row of one kind happen once in a million.
    let mut polls = 0;
    loop {
        polls += 1;
        let got = far.poll(1).await;
        assert_eq!(got.len(), 1);
        if got[0]["turn"] == json!(urgent) {
            break;
        }
    }
    assert!(polls <= 20, "it came last, after the whole backlog");
    // And the rest comes at once, however many claims that takes.
    assert_eq!(far.poll(64).await.len(), 21 - polls);
    jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_step_brings_the_whole_conversation_and_the_true_status() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    let greet = json!({ "name": "greet", "run": { "flow": "greet@1" } });
    agent(&jobs, "a", json!({ "tools": [greet] })).await;
    let far = Far::open(&jobs, 30_000).await;
    send(&jobs, "a", "greet Ann").await;
    let turn = far.one().await;
    // Too large for mail: it is read from the job.
    let name = "Ann".repeat(80);
    let arguments = json!({ "name": name, "times": 150 });
    assert_eq!(far.step(&turn, call("c", "greet", &arguments)).await.text("status"), "suspended");
    let second = far.one().await;
    let large = second["messages"].as_array().unwrap().last().unwrap().clone();
    assert!(large["content"].as_str().unwrap().len() > 30_000);
    let said = far.step(&second, call("x", "nothing", &json!({}))).await;
    assert_eq!((said.status, said.text("status")), (200, "running"), "{said:?}");
    let again = far.step(&second, call("x", "nothing", &json!({}))).await;
    assert_eq!(again.body["next"]["messages"], said.body["next"]["messages"]);
    assert!(again.body["next"]["messages"].as_array().unwrap().contains(&large));
    far.say(&said.body["next"], "finish", json!({ "result": 1 })).await;
    // A last step that ends nothing: the answer says what became of the turn.
    agent(&jobs, "b", json!({ "max_steps": 1 })).await;
    let id = send(&jobs, "b", "go").await;
    let turn = far.one().await;
    assert_eq!(turn["last_step"], true);
    let said = far.step(&turn, call("x", "nothing", &json!({}))).await;
    assert_eq!((said.status, said.text("status")), (200, "failed"), "{said:?}");
    assert!(said.body["next"].is_null());
    let state = until(&jobs, id, "failed").await;
    assert_eq!(state.outcome.unwrap().error.unwrap().code, "max_steps_exceeded");
    jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_are_failed_given_back_lost_and_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    agent(&jobs, "a", Value::Null).await;
    let far = Far::open(&jobs, 30_000).await;
    // Given back, then failed.
    let id = send(&jobs, "a", "one").await;
    let turn = far.one().await;
    assert_eq!(far.say(&turn, "release", json!({ "why": "busy" })).await.status, 200);
    let again = far.one().await;
    assert_eq!((&again["turn"], &again["attempt"]), (&turn["turn"], &json!(2)));
    assert_eq!(far.step(&turn, json!({ "content": "late" })).await.status, 409);
    let failed = json!({ "code": "no_idea", "message": "I do not know" });
    assert_eq!(far.say(&again, "fail", failed.clone()).await.status, 200);
    assert_eq!(far.say(&again, "fail", failed).await.status, 200, "the same again");
    until(&jobs, id, "failed").await;
    // A stop is told with the next renewal.
    let id = send(&jobs, "a", "two").await;
    let turn = far.one().await;
    let renewed = far.renew(&[(&turn, Some("thinking"))]).await;
    assert_eq!((renewed.status, &renewed.body["lost"]), (200, &json!([])), "{renewed:?}");
    let body = Body::json(&json!({ "by": "ann" }));
    let mail = NewMail { to: id, id: MailId("stop".into()), kind: "stop".into(), body };
    jobs.app.pipeline().mail(mail).await.unwrap();
    let renewed = far.renew(&[(&turn, None)]).await;
    assert_eq!(renewed.body["lost"], json!([id]), "{renewed:?}");
    until(&jobs, id, "failed").await;
    assert_eq!(far.say(&turn, "finish", json!({ "result": 1 })).await.status, 409);
    // A worker that dies: somebody else goes on with the same step.
    let mortal = Far::open(&jobs, 300).await;
    let id = send(&jobs, "a", "three").await;
    mortal.one().await;
    let turn = far.one().await;
    assert_eq!((&turn["turn"], &turn["step"]), (&json!(id), &json!(1)));
    let said = far.step(&turn, json!({ "content": "three is a number" })).await;
    assert_eq!((said.status, said.text("status")), (200, "success"), "{said:?}");
    jobs.stop().await;
}

/// The only worker of a target does not want a turn. It ends, with a reason, instead of going round for a day.
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_is_always_given_back_ends() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    agent(&jobs, "a", Value::Null).await;
    let far = Far::open(&jobs, 30_000).await;
    let id = send(&jobs, "a", "go").await;
    for _ in 0..20 {
        let turn = far.one().await;
        let said = far.say(&turn, "release", json!({ "why": "not mine" })).await;
        assert_eq!((said.status, said.text("status")), (200, "ready"), "{said:?}");
    }
    let turn = far.one().await;
    let said = far.say(&turn, "release", json!({ "why": "not mine" })).await;
    assert_eq!((said.status, said.text("status")), (200, "failed"), "{said:?}");
    let again = far.say(&turn, "release", json!({ "why": "not mine" })).await;
    assert_eq!(again.status, 200, "the same again: {again:?}");
    let state = until(&jobs, id, "failed").await;
    assert_eq!(state.outcome.unwrap().error.unwrap().code, "given_back_too_often");
    assert!(jobs.store().head(id).await.unwrap().unwrap().version < 100);
    jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    for (body, field) in [
        (json!({ "name": "x", "targets": [] }), "targets"),
        (json!({ "name": "x", "targets": ["a b"] }), "targets[0]"),
        (json!({ "name": "", "targets": ["a"] }), "name"),
        (json!({ "name": "x", "targets": ["a"], "lease_ms": 1 }), "lease_ms"),
    ] {
        let refused = jobs.post("/v1/turns/sessions", body).await;
        assert_eq!((refused.status, refused.text("field")), (422, field), "{refused:?}");
    }
    agent(&jobs, "a", Value::Null).await;
    let far = Far::open(&jobs, 30_000).await;
    send(&jobs, "a", "one").await;
    let turn = far.one().await;
    assert_eq!(far.step(&turn, json!("text")).await.status, 422);
    let wrong = far.say(&turn, "step", json!({ "step": 7, "message": { "content": "x" } })).await;
    assert_eq!((wrong.status, wrong.text("field")), (409, "step"), "{wrong:?}");
    let wrong = far.say(&turn, "finish", json!({ "result": 1, "status": "failed" })).await;
    assert_eq!((wrong.status, wrong.text("field")), (422, "status"));
    let nobody = json!({ "turn": EntityId::fixed(9, 9), "epoch": 1, "step": 1 });
    assert_eq!(far.step(&nobody, json!({ "content": "x" })).await.status, 404);
    let done = far.step(&turn, json!({ "content": "fine" })).await;
    assert_eq!((done.status, done.text("status")), (200, "success"), "{done:?}");
    jobs.stop().await;
}

/// A worker of a tenant speaks outside for the turn that it holds, and for nobody else.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_of_a_tenant_speaks_outside_for_its_own_turn_only() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    let key = jobs.key(Some("mine"), &[Scope::Worker]).await;
    let tool = json!({ "name": "t", "run": { "external": { "subject": "tools.mine" } } });
    let spec = Spec {
        name: "ada".into(),
        target: "py".into(),
        channel: Some("c".into()),
        output_box: Some("box".into()),
        profile: json!({ "tools": [tool] }),
    };
    desk(&jobs).set_agent("mine", spec.clone(), None).await.unwrap();
    let messages = vec![json!({ "role": "user", "content": "go" })];
    let sending =
        Sending { tenant: "mine".into(), agent: "ada".into(), messages, ..Sending::default() };
    let turn = desk(&jobs).send(sending).await.unwrap().turn;
    until(&jobs, turn, "dispatched").await;
    let tables = jobs.machines().tables();
    let store = tenure_remote::RemoteStore::new(&jobs.base, Some(&key), tables).unwrap();
    let (rt, config) = (Arc::new(TokioRuntime::current()), EngineConfig::default());
    let pipeline = Pipeline::new(Arc::new(store), Arc::new(InProcess::new()), rt, &config);
    let lease = config.lease;
    let keeper = Keeper::open(pipeline.clone(), Arc::new(config), "far", "worker", None);
    let keeper = keeper.await.unwrap();
    let (id, session) = (pipeline.commit_id(), keeper.id());
    let claim = Op::Claim { id, entity: turn, session, lease };
    assert!(matches!(pipeline.submit(claim).await.unwrap(), Answer::Claim(Ok(_))));
    let says = async |subject: &str| {
        let head = jobs.store().head(turn).await.unwrap().unwrap();
        let expect = Expect::Holder { epoch: head.epoch, version: head.version };
        let event = TurnEvent::ProgressMade { note: String::new() };
        let events = vec![NewEvent::new("progress_made", Body::json(&event))];
        let mut commit = Commit::new(pipeline.commit_id(), turn, expect, events);
        let (to, body) = (Target::Wire(subject.into()), Body::json(&json!({})));
        commit.messages.push(Message { to, kind: "x".into(), body });
        match pipeline.submit(Op::Commit(Box::new(commit))).await.unwrap() {
            Answer::Commit(CommitAnswer::Committed(_)) => true,
            Answer::Commit(CommitAnswer::Refused(Refusal::Tenure(why))) => {
                assert!(why.contains("speaks outside"), "{why}");
                false
            }
            other => panic!("{subject}: {other:?}"),
        }
    };
    for refused in ["evt.agent.eve.task", "evt.agent.ada.bill", "billing.paid", "tools.theirs"] {
        assert!(!says(refused).await, "{refused}");
    }
    for admitted in
        ["evt.agent.ada.task", "evt.agent.ada.step", "tools.mine", "cmd.agent.py.wakeup"]
    {
        assert!(says(admitted).await, "{admitted}");
    }
    // A turn that is under way keeps what it began with, whatever becomes of its agent.
    let other = json!({ "name": "t", "run": { "external": { "subject": "tools.other" } } });
    let mut changed = spec;
    changed.profile = json!({ "tools": [other] });
    desk(&jobs).set_agent("mine", changed, None).await.unwrap();
    assert!(says("tools.mine").await && says("tools.other").await, "changed");
    desk(&jobs).remove_agent("mine", "ada", None).await.unwrap();
    assert!(says("tools.mine").await, "removed");
    assert!(!says("tools.theirs").await);
    keeper.end().await;
    jobs.stop().await;
}
