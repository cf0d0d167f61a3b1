//! Agents on a real socket, run by a worker whose every move a test makes by hand.

use super::{
    jobs_support::{Answered, Jobs, is_by, start},
    support::config,
};
use reqwest::Method;
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tenure_agents::limits::RESULT_BYTES_MAX;
use tenure_agents::{
    queue_of,
    turn::{
        Turn,
        act::{self, How, NewWait},
        model::StepDone,
    },
    words::{After, EndStatus},
};
use tenure_engine::{claimer::Claimer, session::Keeper, worker::Held};
use tenure_kernel::{
    ids::{EntityId, MailId},
    machine::Cx,
    mail::NewMail,
    stream::Body,
};
use tenure_proving::patience;
use tenure_server::keys::Scope;

/// A worker's hands.
struct Hands<'a> {
    server: &'a Jobs,
    keeper: Keeper,
}

impl<'a> Hands<'a> {
    async fn of(server: &'a Jobs) -> Self {
        let mut config = config();
        config.lease = Duration::from_secs(30);
        let pipeline = server.app.pipeline().clone();
        let keeper = Keeper::open(pipeline, Arc::new(config), "hands", "worker", None).await;
        Hands { server, keeper: keeper.unwrap() }
    }

    async fn claim(&self, target: &str) -> Held {
        let mut claimer = Claimer::new(self.keeper.clone());
        let fresh = patience::found(&format!("a claim of {target}"), async || {
            let found = claimer.claim(&queue_of(target), 1, true).await.unwrap();
            found.into_iter().next().ok_or("nothing")
        })
        .await;
        let mut held = Held::new(self.keeper.clone(), fresh);
        let (state, cx) = (held.state::<Turn>().unwrap(), self.cx(&held).await);
        let step = act::start_step(&state, &cx, 60_000, json!({ "model": "m" }));
        held.record::<Turn>(step, &[]).await.unwrap();
        held
    }

    async fn cx(&self, held: &Held) -> Cx {
        let head = self.server.store().head(held.id()).await.unwrap().unwrap();
        Cx {
            id: head.id,
            now: self.server.store().now().await.unwrap(),
            version: head.version,
            status: Some(head.status),
            changed_at: Some(head.changed_at),
        }
    }

    async fn suspend(&self, mut held: Held, call: &str, tool: &str) {
        let (state, cx) = (held.state::<Turn>().unwrap(), self.cx(&held).await);
        let message = json!({ "role": "assistant", "content": "let me look" });
        let done = StepDone::new(state.step, message);
        let wait = NewWait {
            call: call.to_owned(),
            tool: tool.to_owned(),
            how: How::Outside(None),
            timeout_ms: None,
            after: After::Suspend,
        };
        let left = Duration::from_secs(3_600);
        let parted = act::suspend(&state, &cx, done, vec![wait], &BTreeMap::new(), left).decision;
        let read = held.unread().await.unwrap().last().map_or(held.head.mail_read, |m| m.seq);
        let id = self.keeper.pipeline().commit_id();
        held.commit(act::parting(&held.head, state, parted, id, Some(read))).await.unwrap();
    }

    async fn finish(&self, mut held: Held, content: Value) {
        let (state, cx) = (held.state::<Turn>().unwrap(), self.cx(&held).await);
        let message = json!({ "role": "assistant", "content": "done" });
        let done = StepDone::new(state.step, message);
        let decision = act::finish(&state, &cx, Some(done), EndStatus::Success, content);
        let mail = held.unread().await.unwrap();
        held.record::<Turn>(decision, &mail).await.unwrap();
    }
}

async fn put(server: &Jobs, path: &str, body: Value) -> Answered {
    let json = [("content-type", "application/json")];
    server.send(Method::PUT, path, &json, Some(body.to_string())).await
}

async fn agent(server: &Jobs, name: &str) {
    let set =
        put(server, &format!("/v1/agents/{name}"), json!({ "target": name, "output_box": "out" }))
            .await;
    assert_eq!(set.status, 200, "{set:?}");
}

#[tokio::test]
async fn an_agent_is_set_paused_resumed_and_removed_over_http() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let path = "/v1/agents/ada";
    assert_eq!(server.get(path).await.status, 404);
    let bad = put(&server, "/v1/agents/a%20b", json!({})).await;
    assert_eq!((bad.status, bad.text("code"), bad.text("field")), (422, "bad_field", "name"));
    let unknown = put(&server, path, json!({ "colour": "red" })).await;
    assert_eq!((unknown.status, unknown.text("code")), (422, "bad_json"));
    let profile = json!({ "profile": { "instructions": "x".repeat(300_000) } });
    let large = put(&server, path, profile).await;
    assert_eq!((large.status, large.text("field")), (413, "profile"));
    let set = put(&server, path, json!({ "target": "pool", "channel": "team" })).await;
    assert_eq!((set.status, set.text("status"), set.text("target")), (200, "idle", "pool"));
    assert_eq!(set.body.get("warnings"), None);
    // What is named and not there is told at once, with what was probably meant. It may come later, so it is no error.
    let tools = json!([
        { "name": "a", "run": { "flow": "gret@1" } }, { "name": "b", "run": { "tool": "ecko" } },
        { "name": "c", "run": { "flow": "greet@7" } }, { "name": "d", "run": { "agent": "bob" } },
        { "name": "e", "run": { "flow": "greet@1" } }, { "name": "f", "run": { "tool": "echo" } },
    ]);
    let profile = json!({ "tools": tools, "delegates": ["ada", "eve"] });
    let set = put(&server, path, json!({ "target": "pool", "profile": profile })).await;
    let told: Vec<&str> =
        set.body["warnings"].as_array().unwrap().iter().map(|w| w.as_str().unwrap()).collect();
    let parts = [
        "did you mean \"greet\"",
        "did you mean \"echo\"",
        "no version 7",
        "no agent \"bob\"",
        "no agent \"eve\"",
    ];
    assert_eq!((set.status, told.len()), (200, parts.len()), "{told:?}");
    for (told, part) in told.iter().zip(parts) {
        assert!(told.contains(part), "{part} is not in {told}");
    }
    let paused = server.post("/v1/agents/ada/pause", json!({ "by": "eve" })).await;
    assert_eq!((paused.status, &paused.body["paused"]), (200, &json!(true)));
    let sent = server.post("/v1/agents/ada/turns", json!({ "message": "hello" })).await;
    assert_eq!((sent.status, sent.text("status")), (202, "queued"), "{sent:?}");
    let line = server.until_page(path, "a line", |a| a["queue"][0]["position"] == 1).await;
    assert_eq!(line["queue"][0]["turn"], sent.body["id"]);
    let inbox = server.get("/v1/agents/ada/inbox?status=queued").await;
    assert_eq!(inbox.body["items"][0]["type"], "turn", "{inbox:?}");
    server.post("/v1/agents/ada/resume", json!({})).await;
    server.until_page(path, "dispatched", |a| a["status"] == "dispatched").await;
    let busy = json!({ "message": "now", "type": "ui_action" });
    let busy = server.post("/v1/agents/ada/turns", busy).await;
    assert_eq!((busy.status, busy.text("code")), (409, "agent_busy"));
    let removed = server.send(Method::DELETE, path, &[], None).await;
    assert_eq!(removed.status, 204);
    let gone = server.post("/v1/agents/ada/turns", json!({ "message": "x" })).await;
    assert_eq!((gone.status, gone.text("code")), (409, "agent_removed"));
    let listed = server.get("/v1/agents?removed=true").await;
    assert_eq!(listed.body["agents"][0]["name"], "ada");
    let nobody = server.post("/v1/agents/bob/turns", json!({ "message": "x" })).await;
    assert_eq!((nobody.status, nobody.text("code")), (404, "not_found"));
    server.stop().await;
}

#[tokio::test]
async fn a_turn_is_sent_suspended_answered_and_delivers() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let hands = Hands::of(&server).await;
    agent(&server, "ada").await;
    let body = json!({ "message": "find out", "correlation_id": "q-1", "by": "eve" });
    let sent = server.post("/v1/agents/ada/turns", body.clone()).await;
    assert_eq!((sent.status, &sent.body["existed"]), (202, &json!(false)));
    let id = sent.text("id").to_owned();
    assert_eq!(sent.location, Some(format!("/v1/turns/{id}")));
    let again = server.post("/v1/agents/ada/turns", body).await;
    assert_eq!((again.status, again.text("id")), (200, id.as_str()));
    let other = json!({ "message": "another", "correlation_id": "q-1" });
    let other = server.post("/v1/agents/ada/turns", other).await;
    assert_eq!((other.status, other.text("code")), (409, "other_input"));
    let turn = format!("/v1/turns/{id}");

    let held = hands.claim("ada").await;
    hands.suspend(held, "call-1", "search").await;
    let shown = server.get(&turn).await.body;
    assert_eq!(shown["status"], "suspended");
    assert_eq!(shown["waits"][0]["wait"], "1.1");
    assert!(shown["resume_deadline"].is_i64());
    let why = server.get(&format!("{turn}/why")).await;
    assert!(why.text("why").contains("waits for search"), "{why:?}");
    let early = server.get(&format!("{turn}/deliverable")).await;
    assert_eq!((early.status, early.text("code")), (409, "not_now"));

    let results = format!("{turn}/results");
    let wrong = server.post(&results, json!({ "wait": "4.2", "result": 1 })).await;
    assert_eq!((wrong.status, wrong.text("code")), (409, "unknown_call"));
    assert_eq!(wrong.body["open_waits"], json!(["1.1"]));
    let future = json!({ "wait": "1.1", "turn_epoch": 99 });
    let future = server.post(&results, future).await;
    assert_eq!((future.status, future.text("code")), (409, "epoch_from_the_future"));
    assert_eq!(future.text("field"), "turn_epoch");
    let huge = json!({ "wait": "1.1", "result": "x".repeat(40_000) });
    let huge = server.post(&results, huge).await;
    assert_eq!((huge.status, huge.text("code")), (413, "payload_too_large"));
    let odd = server.post(&results, json!({ "wait": "1.1", "status": "banana" })).await;
    assert_eq!((odd.status, odd.text("code")), (422, "bad_json"));
    let progress = json!({ "wait": "1.1", "note": "half" });
    assert_eq!(server.post(&format!("{turn}/progress"), progress).await.status, 202);
    let dry = server.get(&format!("/v1/watchdog?turn={id}")).await;
    assert_eq!(dry.body["would"][0]["rule"], "tool_timeout", "{dry:?}");
    // What is said to a turn is mail, and read from one row: what does not fit is refused where it is said.
    let large = json!({ "wait": "1.1", "result": "x".repeat(RESULT_BYTES_MAX) });
    let refused = server.post(&results, large).await;
    assert_eq!((refused.status, refused.text("code")), (413, "payload_too_large"), "{refused:?}");
    assert!(refused.text("detail").contains(&RESULT_BYTES_MAX.to_string()), "{refused:?}");
    let answer = json!({ "wait": "1.1", "result": { "n": 3 } });
    let taken = server.post(&results, answer.clone()).await;
    assert_eq!((taken.status, taken.text("outcome")), (202, "accepted"));
    let held = hands.claim("ada").await;
    let twice = server.post(&results, answer).await;
    assert_eq!((twice.status, twice.text("outcome")), (200, "already"));
    hands.finish(held, json!({ "answer": 42 })).await;

    let over = server.get(&format!("{turn}?wait=10")).await.body;
    assert_eq!((&over["status"], &over["is_final"]), (&json!("success"), &json!(true)));
    assert_eq!(over["end"]["deliverable"]["content"], json!({ "answer": 42 }));
    let delivered = server.get(&format!("{turn}/deliverable")).await;
    assert_eq!(delivered.body["content"], json!({ "answer": 42 }));
    let told = server.get(&format!("{turn}/timeline")).await.body;
    assert_eq!(told["steps"][0]["calls"][0]["result"], json!({ "n": 3 }));
    assert_eq!(told["messages"][0]["content"], "find out");
    let late = server.post(&results, json!({ "wait": "1.1", "result": 9 })).await;
    assert_eq!(
        (late.status, late.text("code"), &late.body["kept"]),
        (409, "turn_over", &json!(true))
    );
    let items = server.get(&format!("{turn}/inbox?status=error")).await;
    assert_eq!(items.body["items"][0]["code"], "turn_over", "{items:?}");
    // It is found without knowing where to look, and not any more once somebody has dealt with it.
    let all = server.get("/v1/inbox?status=error").await.body;
    let dead = &all["items"][0];
    assert_eq!((&dead["code"], &dead["turn"]), (&json!("turn_over"), &over["id"]), "{all}");
    let item = dead["id"].as_str().unwrap().replace('/', "%2F");
    let skipped = server.post(&format!("{turn}/inbox/{item}/skip"), json!({})).await;
    assert!(skipped.status < 300, "{skipped:?}");
    let none = server.get("/v1/inbox?status=error").await.body;
    assert_eq!(none["items"], json!([]), "{none}");
    let key = server.key(None, &[Scope::Read]).await;
    let bytes = server.fetch(&format!("{turn}/watch"), &key).await;
    let text = String::from_utf8(bytes).unwrap();
    assert!(text.contains("event: turn_created") && text.contains("event: end"), "{text}");
    let page = server.get(&format!("{turn}/events?limit=2")).await.body;
    assert_eq!((&page["events"][0]["name"], &page["next"]), (&json!("turn_created"), &json!(3)));
    let listed = server.get("/v1/turns?agent=ada&status=success").await.body;
    assert_eq!(listed["turns"].as_array().unwrap().len(), 1);
    assert_eq!(server.get("/v1/turns?status=banana").await.status, 400);
    server.stop().await;
}

#[tokio::test]
async fn people_stop_resume_finish_and_deal_with_dead_letters() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let hands = Hands::of(&server).await;
    agent(&server, "ada").await;
    let sent = server.post("/v1/agents/ada/turns", json!({ "message": "one" })).await;
    let id = sent.text("id").to_owned();
    let turn = format!("/v1/turns/{id}");
    let not_now = server.post(&format!("{turn}/resume"), json!({})).await;
    assert_eq!((not_now.status, not_now.text("code")), (409, "not_now"));
    let held = hands.claim("ada").await;
    hands.suspend(held, "c", "search").await;
    let to: EntityId = id.parse().unwrap();
    let body = Body::json(&json!({ "tool_call_id": "nobody", "result": 5 }));
    let mail = NewMail { to, id: MailId("a/b/c".into()), kind: "tool_result".into(), body };
    server.app.pipeline().mail(mail).await.unwrap();
    let dead = server
        .until_page("/v1/inbox?status=error", "a letter", |i| {
            i["items"].as_array().is_some_and(|i| i.len() == 1)
        })
        .await;
    assert_eq!(
        (&dead["items"][0]["id"], &dead["items"][0]["code"]),
        (&json!("a/b/c"), &json!("unknown_call"))
    );
    let none = server.post(&format!("{turn}/inbox/zzz/skip"), json!({})).await;
    assert_eq!(none.status, 404);
    let again =
        server.post(&format!("{turn}/inbox/a%2Fb%2Fc/requeue"), json!({ "wait": "1.1" })).await;
    assert_eq!(again.status, 202, "{again:?}");
    server.until_page(&turn, "resumed", |t| t["status"] == "running").await;
    let finish = json!({ "status": "partial", "deliverable": { "so": "far" }, "by": "eve" });
    let bad = server.post(&format!("{turn}/force-finish"), json!({ "status": "timeout" })).await;
    assert_eq!((bad.status, bad.text("field")), (422, "status"));
    assert_eq!(server.post(&format!("{turn}/force-finish"), finish).await.status, 202);
    let over = server.until_page(&turn, "over", |t| t["is_final"] == true).await;
    assert_eq!((&over["status"], &over["forced"]), (&json!("partial"), &json!(true)));
    assert!(is_by(&over["end"]["forced"]["by"], "eve"), "{over}");
    let over = server.post(&format!("{turn}/stop"), json!({})).await;
    assert_eq!((over.status, over.text("code")), (409, "turn_over"));
    server.post("/v1/agents/ada/pause", json!({})).await;
    let sent = server.post("/v1/agents/ada/turns", json!({ "message": "two" })).await;
    let turn = format!("/v1/turns/{}", sent.text("id"));
    assert_eq!(server.post(&format!("{turn}/stop"), json!({ "why": "enough" })).await.status, 202);
    server.until_page(&turn, "canceled", |t| t["status"] == "canceled").await;
    let dry = server.get("/v1/watchdog").await;
    assert_eq!(dry.body["looked_at"], 0, "{dry:?}");
    server.stop().await;
}

#[tokio::test]
async fn another_tenants_agents_and_turns_are_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let acme = server.key(Some("acme"), &[Scope::Read, Scope::Write]).await;
    let evil = server.key(Some("evil"), &[Scope::Read, Scope::Write]).await;
    let reader = server.key(Some("acme"), &[Scope::Read]).await;
    let set = server.with_key(Method::PUT, "/v1/agents/ada", &acme, json!({})).await;
    assert_eq!(set.status, 200, "{set:?}");
    let work = json!({ "message": "secret" });
    let sent = server.with_key(Method::POST, "/v1/agents/ada/turns", &acme, work.clone()).await;
    let turn = format!("/v1/turns/{}", sent.text("id"));
    for (method, path) in [
        (Method::GET, "/v1/agents/ada".to_owned()),
        (Method::DELETE, "/v1/agents/ada".to_owned()),
        (Method::POST, "/v1/agents/ada/turns".to_owned()),
        (Method::GET, turn.clone()),
        (Method::GET, format!("{turn}/timeline")),
        (Method::GET, format!("{turn}/events")),
        (Method::GET, format!("{turn}/watch")),
        (Method::GET, format!("{turn}/inbox")),
        (Method::POST, format!("{turn}/stop")),
        (Method::POST, format!("{turn}/results")),
        (Method::POST, format!("{turn}/inbox/x/skip")),
    ] {
        let body = if path.ends_with("/turns") { work.clone() } else { json!({}) };
        let answered = server.with_key(method, &path, &evil, body).await;
        assert_eq!(answered.status, 404, "{path}: {answered:?}");
    }
    for path in ["/v1/turns", "/v1/agents", "/v1/inbox", "/v1/watchdog"] {
        let seen = server.with_key(Method::GET, path, &evil, Value::Null).await;
        assert!(!seen.body.to_string().contains("ada"), "{path}: {seen:?}");
    }
    let refused = server.with_key(Method::POST, &format!("{turn}/stop"), &reader, json!({})).await;
    assert_eq!((refused.status, refused.text("code")), (403, "forbidden"));
    let other =
        server.with_key(Method::PUT, "/v1/agents/x", &acme, json!({ "tenant": "evil" })).await;
    assert_eq!(other.status, 403);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_are_listed_by_pages_without_profiles_and_without_the_removed() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let all: Vec<String> = (0..5).map(|n| format!("agent-{n}")).collect();
    for name in &all {
        let body = json!({ "profile": { "instructions": "Be brief." } });
        assert_eq!(put(&server, &format!("/v1/agents/{name}"), body).await.status, 200);
    }
    let (mut found, mut path) = (Vec::new(), "/v1/agents?limit=2".to_owned());
    loop {
        let page = server.get(&path).await.body;
        let rows = page["agents"].as_array().unwrap();
        assert!(rows.len() <= 2 && rows.iter().all(|a| a.get("profile").is_none()), "{page}");
        found.extend(rows.iter().map(|a| a["name"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/v1/agents?limit=2&after={next}");
    }
    found.sort();
    assert_eq!(found, all);
    let one = server.get("/v1/agents/agent-0").await.body;
    assert_eq!(one["profile"]["instructions"], "Be brief.");
    // What is not named stays, where that is asked for.
    let kept = put(&server, "/v1/agents/agent-0", json!({ "target": "pool2", "keep": true })).await;
    assert_eq!(kept.body["profile"]["instructions"], "Be brief.");
    assert_eq!((kept.text("target"), kept.text("output_box")), ("pool2", "agent-0"));
    let anew = put(&server, "/v1/agents/agent-0", json!({ "target": "pool3" })).await;
    assert!(anew.body["profile"].is_null(), "{anew:?}");
    server.send(Method::DELETE, "/v1/agents/agent-1", &[], None).await;
    let count = async |path: &str| {
        let page = server.get(path).await.body;
        page["agents"].as_array().unwrap().len()
    };
    assert_eq!((count("/v1/agents").await, count("/v1/agents?removed=true").await), (4, 5));
    server.stop().await;
}

/// Nobody can put aside a turn; so it is not among what waits for a person.
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_failed_before_it_began_is_no_dead_letter() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    agent(&server, "ada").await;
    assert_eq!(server.post("/v1/agents/ada/pause", json!({})).await.status, 200);
    let sent = server.post("/v1/agents/ada/turns", json!({ "message": "go" })).await;
    let turn = format!("/v1/turns/{}", sent.text("id"));
    server.until_page(&turn, "in line", |t| t["line"]["paused"] == true).await;
    server.send(Method::DELETE, "/v1/agents/ada", &[], None).await;
    server.until_page(&turn, "refused", |t| t["status"] == "failed").await;
    let dead = server.get("/v1/inbox?status=error").await.body;
    assert_eq!(dead["items"], json!([]), "{dead}");
    server.stop().await;
}
