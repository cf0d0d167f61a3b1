//! What a scraper reads.

use super::{
    jobs_support,
    support::{config, machines, options, rt, serving, start, start_at},
};
use reqwest::{Client, StatusCode};
use serde_json::json;
use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tenure_bell::InProcess;
use tenure_edge::SystemClock;
use tenure_engine::{
    lanes::Discard,
    node::{Node, Parts},
};
use tenure_kernel::{ids::EntityId, judge::Judge, runtime::BoxFuture};
use tenure_server::keys::Scope;
use tenure_store::memory::{Call, Chaos, Fate, MemoryStore};

fn client() -> Client {
    Client::builder().no_proxy().build().unwrap()
}

/// Samples by name and labels, after a check that every one of them has a type.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let mut typed: Vec<&str> = Vec::new();
    let mut found = BTreeMap::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let name = rest.split(' ').next().unwrap();
            assert!(!typed.contains(&name), "{name} twice");
            typed.push(name);
        } else if !line.starts_with('#') {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let bare = name.split('{').next().unwrap();
            let whole = ["_bucket", "_sum", "_count"].iter().find_map(|s| bare.strip_suffix(s));
            let known = typed.contains(&bare) || whole.is_some_and(|w| typed.contains(&w));
            assert!(known, "{bare} has no type");
            assert!(
                found.insert(name.to_owned(), value.parse().unwrap()).is_none(),
                "{name} twice"
            );
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_jobs_did_can_be_scraped() {
    let dir = tempfile::tempdir().unwrap();
    let server = jobs_support::start(dir.path()).await;
    let job = server.submit("greet", json!({ "name": "you" })).await;
    server.until(&job, "completed").await;
    let unclear = server.submit("unclear", json!(null)).await;
    server.until(&unclear, "attention").await;
    let url = format!("{}/metrics", server.base);
    let answer = client().get(&url).bearer_auth(&server.operator).send().await.unwrap();
    assert_eq!(answer.headers()["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let found = samples(&answer.text().await.unwrap());
    let expected = [
        ("tenure_store_up", 1.0),
        ("tenure_jobs_submitted_total", 2.0),
        ("tenure_jobs_ended_total{outcome=\"completed\"}", 1.0),
        ("tenure_jobs_ended_total{outcome=\"failed\"}", 0.0),
        ("tenure_open_entities{kind=\"job\",status=\"attention\"}", 1.0),
        ("tenure_open_entities_complete", 1.0),
        ("tenure_jobs_attention", 1.0),
        ("tenure_unknown_effects", 1.0),
        ("tenure_effects_unknown_total", 1.0),
        ("tenure_past_bound_entities", 0.0),
        ("tenure_sessions{role=\"server\"}", 1.0),
        ("tenure_bell_connected", 1.0),
        ("tenure_commits_total{result=\"stale_epoch\"}", 0.0),
    ];
    for (name, value) in expected {
        assert_eq!(found.get(name), Some(&value), "{name} in {found:#?}");
    }
    assert!(found["tenure_commits_total{result=\"committed\"}"] >= 4.0);
    assert!(found["tenure_batch_seconds_count"] >= 1.0);
    assert_eq!(
        found["tenure_batch_seconds_bucket{le=\"+Inf\"}"],
        found["tenure_batch_seconds_count"]
    );
    assert!(found["tenure_pulse_age_seconds"] < 30.0);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scraper_shows_a_key_that_may_read_and_is_of_no_tenant() {
    let dir = tempfile::tempdir().unwrap();
    let local = start(dir.path()).await;
    let keyless = client().get(format!("{}/metrics", local.base)).send().await.unwrap();
    assert_eq!(keyless.status(), 403, "a caller without a key is of the tenant default");
    let reader = local.key(None, &[Scope::Read]).await;
    let of_tenant = local.key(Some("t"), &[Scope::Read]).await;
    let worker = local.key(None, &[Scope::Worker]).await;
    local.stop().await;
    let outside = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let server = start_at(dir.path(), outside, options()).await;
    let url = format!("http://127.0.0.1:{}/metrics", server.at.port());
    let asked = |key: Option<&str>| {
        let request = client().get(&url);
        match key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
        .send()
    };
    assert_eq!(asked(None).await.unwrap().status(), StatusCode::UNAUTHORIZED);
    assert_eq!(asked(Some(&of_tenant)).await.unwrap().status(), StatusCode::FORBIDDEN);
    assert_eq!(asked(Some(&worker)).await.unwrap().status(), StatusCode::FORBIDDEN);
    assert_eq!(asked(Some(&reader)).await.unwrap().status(), StatusCode::OK);
    server.stop().await;
}

/// A database that can be taken away.
#[derive(Default)]
struct Away(AtomicBool);

impl Chaos for Away {
    fn before(&self, _call: Call) -> BoxFuture<'static, Fate> {
        let away = self.0.load(Ordering::SeqCst);
        Box::pin(std::future::ready(if away { Fate::Unavailable } else { Fate::Done }))
    }

    fn after(&self, _call: Call) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    fn is_locked(&self, _entity: EntityId) -> bool {
        false
    }

    fn keeps_moment(&self) -> bool {
        false
    }

    fn looks_back(&self, _call: Call) -> Duration {
        Duration::ZERO
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_away_is_said_and_nothing_old_is_shown() {
    let away = Arc::new(Away::default());
    let judge = Judge::new(machines().tables());
    let store = MemoryStore::new(judge, Arc::new(SystemClock), 1).handle(away.clone());
    let parts = Parts {
        store: Arc::new(store),
        bell: Arc::new(InProcess::new()),
        rt: rt(),
        machines: machines(),
        config: config(),
        name: "test".into(),
        executor: None,
        wire: Arc::new(Discard),
        protect_outage: true,
    };
    let node = Node::start(parts).await.unwrap();
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let server = serving(node, at, options()).await;
    let get = async |path: &str| {
        let request = client().get(format!("{}{path}", server.base));
        request.bearer_auth(&server.operator).send().await.unwrap()
    };
    assert_eq!(get("/v1/whoami").await.status(), StatusCode::OK);
    away.0.store(true, Ordering::SeqCst);
    let answer = get("/metrics").await;
    assert_eq!(answer.status(), StatusCode::OK, "a scraper is answered all the same");
    let found = samples(&answer.text().await.unwrap());
    assert_eq!(found["tenure_store_up"], 0.0);
    assert!(found.contains_key("tenure_commits_total{result=\"committed\"}"));
    assert!(!found.keys().any(|k| k.starts_with("tenure_pulse_age")), "{found:#?}");
    away.0.store(false, Ordering::SeqCst);
    server.stop().await;
}
