//! Who may call.

use super::support::{Running, machines, node, options, rt, start, start_at};
use reqwest::{Client, Response, StatusCode};
use serde_json::Value;
use std::{net::SocketAddr, time::Duration};
use tenure_engine::stop::stopper;
use tenure_proving::patience;
use tenure_server::{
    App, NotProtected, ServeError,
    keys::{self, KeyError, NewKey, Scope},
    serve,
};

const OUTSIDE: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);

fn client() -> Client {
    Client::builder().no_proxy().build().unwrap()
}

async fn now(server: &Running, key: Option<&str>) -> Response {
    let mut request = client().get(format!("http://127.0.0.1:{}/v1/worker/now", server.at.port()));
    if let Some(key) = key {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    request.send().await.unwrap()
}

async fn code(response: Response) -> (StatusCode, String) {
    let status = response.status();
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let problem: Value = serde_json::from_slice(&response.bytes().await.unwrap()).unwrap();
    assert!(problem["fix"].is_string() && problem["field"].is_string(), "{problem}");
    (status, problem["code"].as_str().unwrap().to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_loopback_no_key_is_needed_but_one_that_is_shown_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    assert!(now(&server, None).await.status().is_success());
    let worker = server.key(None, &[Scope::Worker]).await;
    assert!(now(&server, Some(&worker)).await.status().is_success());
    let admin = server.key(None, &[Scope::Admin]).await;
    assert!(now(&server, Some(&admin)).await.status().is_success(), "admin allows everything");
    let reader = server.key(None, &[Scope::Read, Scope::Write]).await;
    let forbidden = code(now(&server, Some(&reader)).await).await;
    assert_eq!(forbidden, (StatusCode::FORBIDDEN, "forbidden".into()));
    let (head, last) = worker.split_at(worker.len() - 1);
    let mistyped = format!("{head}{}", if last == "0" { "1" } else { "0" });
    for bad in [&*mistyped, "tnr_x", "", &"x".repeat(5_000)] {
        let refused = code(now(&server, Some(bad)).await).await;
        assert_eq!(refused, (StatusCode::UNAUTHORIZED, "unauthenticated".into()), "{bad}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_key_a_request_has_to_name_this_machine() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let url = format!("{}/v1/worker/now", server.base);
    let rebound = client().get(&url).header("host", "evil.example:7777").send().await.unwrap();
    assert_eq!(code(rebound).await, (StatusCode::FORBIDDEN, "forbidden".into()));
    let key = server.key(None, &[Scope::Worker]).await;
    let proxied = client().get(&url).header("host", "tenure.example").bearer_auth(key);
    assert!(proxied.send().await.unwrap().status().is_success());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_others_reach_is_refused_until_there_is_a_key() {
    let dir = tempfile::tempdir().unwrap();
    let mut node = node(dir.path()).await;
    // Also where the options say loopback: what counts is what is bound.
    let app = App::new(node.pipeline.clone(), machines(), options());
    let listener = tokio::net::TcpListener::bind(OUTSIDE).await.unwrap();
    let (_stopper, stop) = stopper();
    let error = serve(app, listener, stop).await.unwrap_err();
    assert!(matches!(error, ServeError::NotProtected(NotProtected::NoKey(_))), "{error}");
    assert!(error.to_string().contains("tenure key create"), "{error}");
    let key = NewKey { name: "first".into(), tenant: None, scopes: vec![Scope::Worker] };
    let key = keys::create(&node.pipeline, key).await.unwrap().secret;
    node.stop().await;
    drop(node);

    let server = start_at(dir.path(), OUTSIDE, options()).await;
    let refused = code(now(&server, None).await).await;
    assert_eq!(refused, (StatusCode::UNAUTHORIZED, "unauthenticated".into()));
    assert!(now(&server, Some(&key)).await.status().is_success());
    for closed in ["v1/openapi.json", "errors/forbidden", "v1/worker/ready?queue=q"] {
        let url = format!("http://127.0.0.1:{}/{closed}", server.at.port());
        assert_eq!(client().get(url).send().await.unwrap().status(), 401, "{closed}");
    }
    for open in ["healthz", "readyz"] {
        let url = format!("http://127.0.0.1:{}/{open}", server.at.port());
        assert!(client().get(url).send().await.unwrap().status().is_success(), "{open}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_revoked_ends_within_seconds() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let key = server.key(Some("t"), &[Scope::Worker]).await;
    assert!(now(&server, Some(&key)).await.status().is_success());
    let pipeline = server.app.pipeline();
    let listed = keys::list(pipeline).await.unwrap();
    let listed: Vec<_> = listed.into_iter().filter(|k| k.name == "test").collect();
    assert_eq!((listed.len(), listed[0].active), (1, true));
    assert_eq!(listed[0].tenant.as_deref(), Some("t"));
    let (id, secret) = keys::split(&key).unwrap();
    assert_eq!(id, listed[0].id);
    for _ in 0..2 {
        keys::revoke(pipeline, id).await.unwrap();
    }
    let after = keys::list(pipeline).await.unwrap();
    assert!(!after.iter().find(|k| k.id == id).unwrap().active);
    let end = rt().mono() + Duration::from_secs(10);
    patience::until("it is not believed any more", async || {
        now(&server, Some(&key)).await.status() == StatusCode::UNAUTHORIZED
    })
    .await;
    assert!(rt().mono() < end, "believed for too long");
    let head = server.store().head(id).await.unwrap().unwrap();
    assert!(!String::from_utf8_lossy(&head.state).contains(secret), "the secret is not kept");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_says_nothing_is_not_made() {
    let dir = tempfile::tempdir().unwrap();
    let mut node = node(dir.path()).await;
    let key = |name: &str, tenant: Option<&str>, scopes: &[Scope]| NewKey {
        name: name.into(),
        tenant: tenant.map(str::to_owned),
        scopes: scopes.to_vec(),
    };
    let make = |k| keys::create(&node.pipeline, k);
    let no_name = make(key("", None, &[Scope::Read])).await.unwrap_err();
    assert_eq!(no_name, KeyError::Length(0));
    let long = "x".repeat(129);
    for tenant in [&long, "", "*", "*/each", "acme/x", "a b", "none", "a\u{1b}[2J"] {
        let refused = make(key("n", Some(tenant), &[Scope::Read])).await.unwrap_err();
        assert_eq!(refused, KeyError::Tenant(tenant.to_owned()));
    }
    assert_eq!(make(key("n", None, &[])).await.unwrap_err(), KeyError::NoScope);
    assert!("root".parse::<Scope>().is_err());
    let unknown = keys::revoke(&node.pipeline, node.keeper.id()).await.unwrap_err();
    assert_eq!(unknown, KeyError::Unknown(node.keeper.id()), "a session is no key");
    assert!(make(key(&long[1..], Some(&long[1..]), &Scope::ALL)).await.is_ok());
    node.stop().await;
}
