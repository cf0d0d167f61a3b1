//! The audit trail: who did what, and whether it was carried out.

use super::{
    jobs_support::{self, Jobs, Setup, start, start_in_postgres, start_with},
    support::{self, Running},
};
use reqwest::Method;
use serde_json::{Value, json};
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};
use tenure_kernel::{
    error::StoreError,
    ids::EntityId,
    runtime::BoxFuture,
    store::{Answer, HeadFilter, Op, Store},
    stream::Record,
};
use tenure_proving::{
    layer::{Layer, Layered},
    patience,
    stores::{Engine, Place},
};
use tenure_server::{
    ServerOptions,
    audit::{self, Act, AuditFilter, AuditTrail},
    keys::Scope,
};

async fn acts(server: &Jobs, query: &str) -> Vec<Value> {
    let page = server.get(&format!("/v1/audit?limit=200&{query}")).await;
    assert_eq!(page.status, 200, "{page:?}");
    page.body["acts"].as_array().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn administrative_acts_are_on_record_with_who_did_them_and_what_came_of_them() {
    let dir = tempfile::tempdir().unwrap();
    acts_on_record(start(dir.path()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn administrative_acts_are_on_record_with_who_did_them_and_what_came_of_them_in_postgres() {
    acts_on_record(start_in_postgres().await).await;
}

async fn acts_on_record(server: Jobs) {
    let writer = server.key(Some("acme"), &[Scope::Read, Scope::Write]).await;
    let (key, _) = tenure_server::keys::split(&writer).unwrap();
    let new = json!({"flow": "ask", "input": null});
    let job = server.with_key(Method::POST, "/v1/jobs", &writer, new.clone()).await;
    let job = job.text("id").to_owned();
    server.blocked(&job).await;
    let post =
        async |path: String, body| server.with_key(Method::POST, &path, &writer, body).await.status;
    assert_eq!(post(format!("/v1/jobs/{job}/approve"), json!({"key": "answer"})).await, 200);
    server.until(&job, "completed").await;
    assert_eq!(post(format!("/v1/jobs/{job}/cancel"), json!({})).await, 409, "it is over");
    let exported = server.fetch(&format!("/v1/jobs/{job}/export"), &writer).await;
    assert!(!exported.is_empty());
    assert_eq!(server.post(&format!("/v1/jobs/{job}/discard"), json!({})).await.status, 409);
    let limit = json!({"rate": "1/s", "tenant": "acme"});
    let json_type = [("content-type", "application/json")];
    let set =
        server.send(Method::PUT, "/v1/limits/echo", &json_type, Some(limit.to_string())).await;
    assert_eq!(set.status, 200, "{set:?}");

    let of_job = acts(&server, &format!("target={job}")).await;
    let seen: Vec<_> = of_job
        .iter()
        .map(|act| (act["act"].as_str().unwrap(), act["outcome"].as_str().unwrap()))
        .collect();
    let expected = [
        ("jobs.discard", "refused"),
        ("jobs.export", "done"),
        ("jobs.cancel", "refused"),
        ("jobs.approve", "done"),
    ];
    assert_eq!(seen, expected, "the newest first, submissions and signals not at all");
    assert!(of_job.iter().all(|act| act["tenant"] == "acme" && act["from"] == "127.0.0.1"));
    assert_eq!(acts(&server, &format!("by={key}")).await.len(), 3);
    let limits = acts(&server, "act=limits.").await;
    assert_eq!((limits.len(), &limits[0]["target"]), (1, &json!("echo")));
    assert_eq!(acts(&server, "until=2020-01-01T00:00:00Z").await, Vec::<Value>::new());
    assert_eq!(acts(&server, "since=2020-01-01T00:00:00Z").await, acts(&server, "").await);

    // A tenant's administrator sees that tenant's, and nobody else sees any.
    let (mine, other) = (
        server.key(Some("acme"), &[Scope::Admin]).await,
        server.key(Some("globex"), &[Scope::Admin]).await,
    );
    let read = async |key: &str| server.with_key(Method::GET, "/v1/audit", key, Value::Null).await;
    assert_eq!(read(&mine).await.body["acts"].as_array().unwrap().len(), 4);
    assert_eq!(read(&other).await.body["acts"], json!([]));
    assert_eq!(read(&writer).await.status, 403);
    let foreign = server.with_key(Method::GET, "/v1/audit?tenant=acme", &other, Value::Null).await;
    assert_eq!(foreign.status, 403);
    for bad in ["before=x", "since=yesterday", "limit=0"] {
        let status = server.get(&format!("/v1/audit?{bad}")).await.status;
        assert!([400, 422].contains(&status), "{bad}: {status}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_without_the_scope_writes_nothing_to_the_trail() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let job = server.submit("listen", json!("go")).await;
    let before = acts(&server, "").await.len();
    for scope in [Scope::Read, Scope::Worker, Scope::Collector] {
        let key = server.key(None, &[scope]).await;
        let path = format!("/v1/jobs/{job}/cancel");
        assert_eq!(server.with_key(Method::POST, &path, &key, json!({})).await.status, 403);
    }
    assert_eq!(acts(&server, "").await.len(), before);
    server.stop().await;
}

async fn all(server: &Running, limit: usize) -> Vec<audit::AuditEntry> {
    let (mut found, mut before) = (Vec::new(), None::<String>);
    loop {
        let filter = AuditFilter::default();
        let page = audit::page(server.store(), &filter, before.as_deref(), limit).await.unwrap();
        found.extend(page.acts);
        before = page.next;
        if before.is_none() {
            return found;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn segments_follow_each_other_and_pages_lose_and_repeat_nothing() {
    const ACTS: usize = 2_100;
    let dir = tempfile::tempdir().unwrap();
    let server = support::start(dir.path()).await;
    let trail = AuditTrail::new(server.app.pipeline().clone(), &support::machines());
    for n in 0..ACTS {
        trail.note(Act::new("test.act", "ada").target(n)).await.unwrap();
    }
    let refused = trail.carry_out(Act::new("test.act", "ada").target(ACTS), async {
        Err::<(), _>(StoreError::Refused("no".into()))
    });
    assert!(refused.await.is_err());
    let found = all(&server, 150).await;
    let targets: Vec<_> = found.iter().map(|act| act.target.clone().unwrap()).collect();
    let expected: Vec<_> = (0..=ACTS).rev().map(|n| n.to_string()).collect();
    assert_eq!(targets, expected);
    assert_eq!(found[0].outcome.as_deref(), Some("refused"));
    assert_eq!(found[1].outcome, None);

    let filter = HeadFilter { kind: Some(audit::KIND.into()), ..HeadFilter::default() };
    let heads = server.store().heads(filter.clone(), 10).await.unwrap();
    assert!(heads.len() >= 2, "two days, or more than one segment has room for");
    for pair in heads.windows(2) {
        let opened = &server.store().stream(pair[1].id, 1, 1).await.unwrap()[0];
        let opened = opened.events().unwrap();
        let event: audit::Event = serde_json::from_slice(opened[0].body.inline().unwrap()).unwrap();
        let audit::Event::AuditSegmentOpened { previous: Some(previous), .. } = event else {
            panic!("{event:?}")
        };
        assert_eq!(previous.segment, pair[0].id);
        let records = server.store().stream(pair[0].id, previous.version, 1).await.unwrap();
        let at = records.iter().find(|record| record.last() == previous.version).unwrap();
        assert_eq!(at.hash.to_string(), previous.chain);
    }
    assert_eq!(audit::broken_links(&**server.store()).await.unwrap(), Vec::<String>::new());
    let hidden = Layered(Without { under: server.store().clone(), segment: heads[0].id });
    let broken = audit::broken_links(&hidden).await.unwrap();
    assert!(matches!(&broken[..], [one] if one.contains("and it has none")), "{broken:?}");
    patience::until("all records are in the chain", async || {
        let heads = server.store().heads(filter.clone(), 10).await.unwrap();
        heads.iter().all(|head| head.mail_read == head.mail_count)
    })
    .await;
    assert_eq!(all(&server, 200).await, found, "mail that is not covered yet reads the same");
    support::sound(&server).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_whose_acts_are_refused_too_often_writes_no_more_to_the_trail() {
    let dir = tempfile::tempdir().unwrap();
    let options = ServerOptions { refused_acts_per_minute: 1, ..support::options() };
    let at = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut server = support::start_at(dir.path(), at, options).await;
    let store = server.app.pipeline().store().clone();
    let acts = async |act: &str| {
        let filter = AuditFilter { act: Some(act.into()), ..AuditFilter::default() };
        audit::page(&store, &filter, None, 200).await.unwrap().acts
    };
    let rotate = async |key: &str, id: EntityId| {
        let path = format!("{}/v1/keys/{id}/rotate", server.base);
        let body = serde_json::json!({ "overlap_seconds": 3_000_000 });
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let ask = client.post(path).bearer_auth(key).header("content-type", "application/json");
        ask.body(body.to_string()).send().await.unwrap().status().as_u16()
    };
    let admin = server.key(Some("acme"), &[Scope::Admin]).await;
    let (id, _) = tenure_server::keys::split(&admin).unwrap();
    assert_eq!(rotate(&admin, id).await, 422);
    for _ in 0..5 {
        assert_eq!(rotate(&admin, id).await, 429);
    }
    assert_eq!(rotate(&server.operator, id).await, 422, "other keys are not concerned");
    let refused = acts("keys.rotate").await;
    assert_eq!(refused.iter().filter(|act| act.key == Some(id)).count(), 1);
    // Their number is recorded after a while, and when the server stops.
    server.close().await;
    patience::until("the number is on record", async || {
        let left_out = acts("acts.left_out").await;
        matches!(&left_out[..], [one] if one.key == Some(id) && one.tenant.as_deref() == Some("acme") && one.details == json!({ "count": 5 }))
    })
    .await;
    server.stop().await;
}

/// A store in which the history of a segment is not there.
struct Without {
    under: Arc<dyn Store>,
    segment: EntityId,
}

impl Layer for Without {
    fn under(&self) -> &dyn Store {
        &*self.under
    }

    fn stream(
        &self,
        entity: EntityId,
        from: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Record>, StoreError>> {
        if entity == self.segment {
            return Box::pin(async { Ok(Vec::new()) });
        }
        self.under.stream(entity, from, limit)
    }
}

/// A store that, while it is mute, takes no records of acts.
struct Mute {
    under: Arc<dyn Store>,
    is_mute: Arc<AtomicBool>,
}

impl Layer for Mute {
    fn under(&self) -> &dyn Store {
        &*self.under
    }

    fn apply_shared(&self, ops: Arc<Vec<Op>>) -> BoxFuture<'_, Result<Vec<Answer>, StoreError>> {
        let is_act = |op: &Op| matches!(op, Op::Mail(mail) if mail.kind == "act");
        if self.is_mute.load(SeqCst) && ops.iter().any(is_act) {
            return Box::pin(async { Err(StoreError::Refused("no records today".into())) });
        }
        self.under.apply_shared(ops)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_act_that_cannot_be_recorded_is_not_carried_out() {
    let is_mute = Arc::new(AtomicBool::new(false));
    let under = Place::new(Engine::Memory, &jobs_support::machines()).await.store();
    let store = Arc::new(Layered(Mute { under, is_mute: is_mute.clone() }));
    let setup = Setup { store: Some(store), ..Setup::default() };
    let server = start_with(std::path::Path::new(""), setup).await;
    let job = server.submit("listen", json!("go")).await;
    server.blocked(&job).await;
    let key = server.key(Some("acme"), &[Scope::Read]).await;
    let (id, _) = tenure_server::keys::split(&key).unwrap();
    is_mute.store(true, SeqCst);
    let asks = [
        (Method::POST, format!("/v1/jobs/{job}/cancel"), json!({})),
        (Method::PUT, "/v1/blocks/flow/listen".to_owned(), json!({ "why": "x" })),
        (Method::POST, format!("/v1/keys/{id}/revoke"), json!({})),
        (Method::POST, "/v1/keys".to_owned(), json!({ "name": "n", "scopes": ["read"] })),
    ];
    for (method, path, body) in asks {
        let ask = reqwest::Client::builder().no_proxy().build().unwrap();
        let ask = ask.request(method, format!("{}{path}", server.base));
        let ask = ask.bearer_auth(&server.operator).header("content-type", "application/json");
        let refused = ask.body(body.to_string()).send().await.unwrap();
        assert_eq!(refused.status(), 409, "{path}");
        let problem: Value = serde_json::from_slice(&refused.bytes().await.unwrap()).unwrap();
        assert!(problem["detail"].as_str().unwrap().contains("no records today"), "{problem}");
    }
    is_mute.store(false, SeqCst);
    assert_eq!(server.get(&format!("/v1/jobs/{job}")).await.body["is_final"], false);
    assert_eq!(server.get("/v1/blocks").await.body, json!({ "blocks": [] }));
    assert_eq!(server.get(&format!("/v1/keys/{id}")).await.body["status"], "active");
    assert_eq!(server.get("/v1/keys").await.body["keys"].as_array().unwrap().len(), 2);
    assert_eq!(acts(&server, "").await, Vec::<Value>::new());
    // Signals are no acts, and are taken meanwhile.
    is_mute.store(true, SeqCst);
    let signal = json!({ "key": "go", "payload": 1 });
    assert_eq!(server.post(&format!("/v1/jobs/{job}/signal"), signal).await.status, 200);
    server.until(&job, "completed").await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_act_is_recorded_under_the_names_that_its_handler_reads() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let body = json!({ "why": "it kills workers" });
    let set =
        server.with_key(Method::PUT, "/v1/blocks/flow/a%20%C3%A9%2Fb", &server.operator, body);
    assert_eq!(set.await.status, 200);
    let job = server.submit("listen", json!("go")).await;
    server.blocked(&job).await;
    let client = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
    let url = format!("{}/jobs/{job}/%63ancel", server.base);
    let press = client.build().unwrap().post(url).bearer_auth(&server.operator);
    let pressed = press.header("sec-fetch-site", "same-origin").send().await.unwrap();
    assert_eq!(pressed.status(), 303);
    server.until(&job, "cancelled").await;
    let cancelled = acts(&server, "act=jobs.cancel").await;
    assert_eq!((cancelled.len(), &cancelled[0]["target"]), (1, &json!(job)));
    let blocked = acts(&server, "act=blocks").await;
    assert_eq!(blocked[0]["details"], json!({ "name": "a é/b" }), "{blocked:?}");
    server.stop().await;
}
