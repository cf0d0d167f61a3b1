//! Keys over HTTP, sessions of the console, and what ends with them.

use super::{
    jobs_support::{Jobs, start, start_in_postgres},
    support::{self, options, rt, start_at},
};
use reqwest::{Client, Method, Response, StatusCode, header};
use serde_json::{Value, json};
use std::net::SocketAddr;
use tenure_proving::patience::{self, PATIENCE};
use tenure_server::{
    ServerOptions,
    keys::{self, Scope},
};

fn client() -> Client {
    Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).build().unwrap()
}

/// Signs in to the console and returns what the cookie holds.
pub async fn sign_in(client: &Client, base: &str, key: &str) -> String {
    let answer = post_key(client, base, key, &[]).await;
    assert_eq!(answer.status(), StatusCode::SEE_OTHER);
    let cookie = cookie(&answer);
    cookie.split(['=', ';']).nth(1).unwrap().to_owned()
}

async fn post_key(client: &Client, base: &str, key: &str, more: &[(&str, &str)]) -> Response {
    let mut request = client.post(format!("{base}/console/sign-in"));
    for (name, value) in more {
        request = request.header(*name, *value);
    }
    request.header("sec-fetch-site", "same-origin").form(&[("key", key)]).send().await.unwrap()
}

fn cookie(answer: &Response) -> String {
    let mut set = answer.headers().get_all(header::SET_COOKIE).iter();
    let ours = set.find(|v| v.to_str().unwrap().starts_with("tenure_session=")).unwrap();
    ours.to_str().unwrap().to_owned()
}

fn session(of: &str) -> String {
    format!("tenure_session={of}")
}

async fn page(server: &Jobs, path: &str, session_of: &str) -> StatusCode {
    let request =
        client().get(format!("{}{path}", server.base)).header("cookie", session(session_of));
    // Without the cookie nobody is anybody.
    request.header("x-forwarded-for", "203.0.113.7").send().await.unwrap().status()
}

async fn whoami(server: &Jobs, key: &str) -> u16 {
    server.with_key(Method::GET, "/v1/whoami", key, Value::Null).await.status
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_made_listed_rotated_and_revoked_while_the_server_runs() {
    let dir = tempfile::tempdir().unwrap();
    keys_while_it_runs(start(dir.path()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_made_listed_rotated_and_revoked_while_the_server_runs_in_postgres() {
    keys_while_it_runs(start_in_postgres().await).await;
}

async fn keys_while_it_runs(server: Jobs) {
    let wanted = json!({"name": "ci", "tenant": "acme", "scopes": ["read", "write"], "by": "ada"});
    let made = server.post("/v1/keys", wanted).await;
    assert_eq!(made.status, 201, "{made:?}");
    let (id, first) = (made.text("id").to_owned(), made.text("secret").to_owned());
    assert_eq!(whoami(&server, &first).await, 200);

    // Its use is written, about.
    let shown = server
        .until_page(&format!("/v1/keys/{id}"), "used", |key| !key["last_used_at"].is_null())
        .await;
    assert_eq!((&shown["status"], &shown["tenant"]), (&json!("active"), &json!("acme")));
    assert!(shown["created_by"].as_str().unwrap().starts_with("ada (key "), "{shown}");
    assert!(!shown.to_string().contains(&first[37..]), "no secret, and no hash of it");
    let listed = server.get("/v1/keys?tenant=acme").await.body;
    assert_eq!(listed["keys"].as_array().unwrap().len(), 1);
    assert_eq!(listed["keys"][0]["id"], json!(id));

    // With an overlap both secrets are taken, and without one only the last.
    let path = format!("/v1/keys/{id}/rotate");
    let second =
        server.post(&path, json!({"overlap_seconds": 3600})).await.text("secret").to_owned();
    assert_eq!((whoami(&server, &first).await, whoami(&server, &second).await), (200, 200));
    let third = server.post(&path, json!({})).await.text("secret").to_owned();
    let all = [whoami(&server, &first).await, whoami(&server, &second).await];
    assert_eq!((all, whoami(&server, &third).await), ([401, 401], 200));
    let too_long = server.post(&path, json!({"overlap_seconds": 2_592_001})).await;
    assert_eq!((too_long.status, too_long.text("field")), (422, "overlap_seconds"));

    for _ in 0..2 {
        let revoked = server.post(&format!("/v1/keys/{id}/revoke"), json!({"by": "ada"})).await;
        assert_eq!((revoked.status, revoked.text("outcome")), (200, "revoked"));
        assert_eq!(whoami(&server, &third).await, 401);
    }
    let own = server.key(None, &[Scope::Admin]).await;
    let (own_id, _) = keys::split(&own).unwrap();
    let path_of_own = format!("/v1/keys/{own_id}/revoke");
    let revoked = server.with_key(Method::POST, &path_of_own, &own, json!({})).await;
    assert_eq!(
        (revoked.status, whoami(&server, &own).await),
        (200, 401),
        "its own, and it is told so"
    );
    let late = server.post(&path, json!({})).await;
    assert_eq!((late.status, late.text("code")), (409, "not_now"));
    let shown = server.get(&format!("/v1/keys/{id}")).await.body;
    assert_eq!(shown["status"], "revoked");
    assert!(shown["revoked_by"].as_str().unwrap().starts_with("ada (key "), "{shown}");
    assert_eq!(server.get("/v1/keys?tenant=acme&active=true").await.body["keys"], json!([]));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_administrator_of_a_tenant_has_that_tenants_keys_and_gives_no_more_than_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let admin = server
        .post(
            "/v1/keys",
            json!({"name": "a", "tenant": "acme", "scopes": ["admin"], "expires_in_seconds": 3600}),
        )
        .await;
    let ends = admin.body["expires_at"].as_i64().unwrap();
    let admin = admin.text("secret").to_owned();
    let other = server.key(Some("globex"), &[Scope::Read]).await;
    let (other, _) = keys::split(&other).unwrap();
    let ask =
        async |path: &str, body: Value| server.with_key(Method::POST, path, &admin, body).await;

    for tenant in ["globex", "default"] {
        let refused =
            ask("/v1/keys", json!({"name": "n", "tenant": tenant, "scopes": ["read"]})).await;
        assert_eq!((refused.status, refused.text("field")), (403, "tenant"));
    }
    let own = ask("/v1/keys", json!({"name": "n", "scopes": ["worker", "admin"]})).await;
    assert_eq!(own.status, 201, "{own:?}");
    assert_eq!(own.body["expires_at"], ends, "it does not outlive the key that made it");
    let shorter = json!({"name": "n", "scopes": ["read"], "expires_in_seconds": 60});
    assert!(ask("/v1/keys", shorter).await.body["expires_at"].as_i64().unwrap() < ends);
    let longer = json!({"name": "n", "scopes": ["read"], "expires_in_seconds": 86400});
    assert_eq!(ask("/v1/keys", longer).await.body["expires_at"], ends);
    let listed = server.with_key(Method::GET, "/v1/keys", &admin, Value::Null).await.body;
    let all = listed["keys"].as_array().unwrap();
    assert!(all.len() == 4 && all.iter().all(|key| key["tenant"] == "acme"), "{listed}");
    for act in ["rotate", "revoke", "sign-out"] {
        assert_eq!(ask(&format!("/v1/keys/{other}/{act}"), json!({})).await.status, 404, "{act}");
    }
    for (bad, field) in [
        (json!({"scopes": ["read"]}), "name"),
        (json!({"name": "n"}), "scopes"),
        (json!({"name": "n", "scopes": []}), "scopes"),
        (json!({"name": "n", "scopes": ["root"]}), "scopes"),
        (json!({"name": "n", "scopes": ["read"], "expires_in_seconds": 0}), "expires_in_seconds"),
    ] {
        let refused = ask("/v1/keys", bad.clone()).await;
        assert_eq!((refused.status, refused.text("field")), (422, field), "{bad}");
    }
    for scope in [Scope::Read, Scope::Write, Scope::Worker, Scope::Collector] {
        let key = server.key(None, &[scope]).await;
        let wanted = json!({"name": "n", "scopes": ["read"]});
        let refused = server.with_key(Method::POST, "/v1/keys", &key, wanted).await;
        assert_eq!(refused.status, 403, "{scope}");
    }
    server.stop().await;
}

/// A live stream, a long poll and a live page that showed these.
async fn open_all(server: &Jobs, job: &str, key: &str, session_of: &str) -> [Response; 2] {
    let client = client();
    let events = client.get(format!("{}/v1/jobs/{job}/events", server.base)).bearer_auth(key);
    let events = events.header("accept", "text/event-stream").send().await.unwrap();
    let live = client.get(format!("{}/console/live/jobs/{job}", server.base));
    let live = live.header("cookie", session(session_of)).send().await.unwrap();
    assert_eq!((events.status(), live.status()), (StatusCode::OK, StatusCode::OK));
    [events, live]
}

async fn ends(what: &str, mut stream: Response) {
    let end = async { while let Ok(Some(_)) = stream.chunk().await {} };
    tokio::time::timeout(PATIENCE, end).await.unwrap_or_else(|_| panic!("{what} goes on"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_open_ends_with_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let job = server.submit("listen", json!("go")).await;
    server.blocked(&job).await;
    for revoked_here in [true, false] {
        let key = server.key(None, &Scope::ALL).await;
        let (id, _) = keys::split(&key).unwrap();
        let session = sign_in(&client(), &server.base, &key).await;
        let [events, live] = open_all(&server, &job, &key, &session).await;
        let url = format!("{}/v1/jobs/{job}?wait=250", server.base);
        let (answer, poll) = tokio::sync::oneshot::channel();
        let request = client().get(url).bearer_auth(&key);
        rt().spawn(Box::pin(async move { drop(answer.send(request.send().await)) }));
        let others = open_all(
            &server,
            &job,
            &server.operator,
            &sign_in(&client(), &server.base, &server.operator).await,
        )
        .await;
        // In this process it is known at once; what another process does is found by looking.
        match revoked_here {
            true => {
                let answer = server.post(&format!("/v1/keys/{id}/revoke"), json!({})).await;
                assert_eq!(answer.body["sessions"], 1);
            }
            false => keys::revoke(server.app.pipeline(), id).await.unwrap(),
        }
        ends("a live stream", events).await;
        ends("a live page", live).await;
        let polled = tokio::time::timeout(PATIENCE, poll).await.expect("the poll ends").unwrap();
        assert_eq!(polled.unwrap().status(), StatusCode::UNAUTHORIZED);
        assert_eq!(page(&server, "/jobs", &session).await, StatusCode::UNAUTHORIZED);
        for mut other in others {
            let first = tokio::time::timeout(PATIENCE, other.chunk()).await.unwrap().unwrap();
            assert!(first.is_some(), "streams of other keys go on");
        }
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_ends_by_itself_and_what_is_open_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let job = server.submit("listen", json!("go")).await;
    server.blocked(&job).await;
    let wanted = json!({"name": "short", "scopes": ["read"], "expires_in_seconds": 2});
    let made = server.post("/v1/keys", wanted).await;
    let (id, key) = (made.text("id").to_owned(), made.text("secret").to_owned());
    let request = client().get(format!("{}/v1/jobs/{job}/events", server.base)).bearer_auth(&key);
    let stream = request.header("accept", "text/event-stream").send().await.unwrap();
    assert_eq!(stream.status(), StatusCode::OK);
    ends("a live stream", stream).await;
    assert_eq!(whoami(&server, &key).await, 401);
    server.until_page(&format!("/v1/keys/{id}"), "expired", |key| key["status"] == "expired").await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_consoles_cookie_is_a_session_and_not_the_key() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let key = server.key(None, &[Scope::Read, Scope::Write]).await;
    let (id, secret) = keys::split(&key).unwrap();
    let client = client();
    let plain = cookie(&post_key(&client, &server.base, &key, &[]).await);
    assert!(plain.contains("; HttpOnly") && plain.contains("; SameSite=Strict"), "{plain}");
    assert!(!plain.contains(secret) && !plain.contains("Secure") && !plain.contains("Max-Age"));
    let tls = post_key(&client, &server.base, &key, &[("x-forwarded-proto", "https")]).await;
    assert!(cookie(&tls).contains("; Secure"));

    let (one, two) =
        (sign_in(&client, &server.base, &key).await, sign_in(&client, &server.base, &key).await);
    assert_ne!(one, two);
    assert_eq!(page(&server, "/jobs", &one).await, StatusCode::OK);
    assert_eq!(page(&server, "/jobs", &key).await, StatusCode::UNAUTHORIZED, "a key is no session");
    assert_eq!(whoami(&server, &one).await, 401, "the API takes no session");
    let as_key = one.replacen("tns_", "tnr_", 1);
    assert_ne!(as_key, one);
    assert_eq!(whoami(&server, &as_key).await, 401, "nor one that was just used, spelled as a key");
    let stored = server.store().heads(Default::default(), 10_000).await.unwrap();
    let found = stored.iter().filter(|head| head.kind() == "console_session");
    for head in found {
        let state = String::from_utf8_lossy(&head.state).into_owned();
        assert!(!state.contains(one.split('_').nth(2).unwrap()), "the secret is not kept");
    }
    let out = client.post(format!("{}/console/sign-out", server.base));
    let out = out.header("cookie", session(&one)).header("sec-fetch-site", "same-origin");
    assert!(cookie(&out.send().await.unwrap()).contains("Max-Age=0"));
    assert_eq!(page(&server, "/jobs", &one).await, StatusCode::UNAUTHORIZED, "signed out");
    assert_eq!(page(&server, "/jobs", &two).await, StatusCode::OK);
    let ended = server.post(&format!("/v1/keys/{id}/sign-out"), json!({})).await;
    assert!(ended.body["sessions"].as_u64().unwrap() >= 1, "{ended:?}");
    assert_eq!(page(&server, "/jobs", &two).await, StatusCode::UNAUTHORIZED);
    assert_eq!(whoami(&server, &key).await, 200, "the key stays");
    let three = sign_in(&client, &server.base, &key).await;
    assert_eq!(page(&server, "/jobs", &three).await, StatusCode::OK);
    let rotated = server.post(&format!("/v1/keys/{id}/rotate"), json!({})).await;
    assert_eq!(rotated.status, 200, "{rotated:?}");
    assert_eq!(
        page(&server, "/jobs", &three).await,
        StatusCode::UNAUTHORIZED,
        "its secret is gone"
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_ends_gets_no_secret_that_lasts_longer() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let wanted = json!({"name": "short", "scopes": ["admin"], "expires_in_seconds": 600});
    let short = server.post("/v1/keys", wanted).await;
    let (id, short) = (short.text("id").to_owned(), short.text("secret").to_owned());
    let lasting = server.post("/v1/keys", json!({"name": "lasting", "scopes": ["read"]})).await;
    let rotate = |id: &str| format!("/v1/keys/{id}/rotate");
    let other = rotate(lasting.text("id"));
    let refused = server.with_key(Method::POST, &other, &short, json!({})).await;
    assert_eq!((refused.status, refused.text("code")), (403, "forbidden"), "{refused:?}");
    let own = server.with_key(Method::POST, &rotate(&id), &short, json!({})).await;
    assert_eq!(own.status, 200, "{own:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_sign_ins_are_counted_recorded_and_limited() {
    let dir = tempfile::tempdir().unwrap();
    let options = ServerOptions { failed_sign_ins_per_minute: 5, ..options() };
    let at = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = start_at(dir.path(), at, options).await;
    let ask = async |key: &str, path: &str| {
        client().get(format!("{}{path}", server.base)).bearer_auth(key).send().await.unwrap()
    };
    assert_eq!(ask(&server.operator, "/v1/whoami").await.status(), StatusCode::OK);
    let unseen = server.key(None, &[Scope::Read]).await;
    let garbage = format!("tnr_{}_{}", "0".repeat(32), "0".repeat(64));
    for n in 0..5 {
        assert_eq!(ask(&garbage, "/v1/whoami").await.status(), StatusCode::UNAUTHORIZED, "{n}");
    }
    let limited = ask(&garbage, "/v1/whoami").await;
    assert_eq!(limited.status(), StatusCode::TOO_MANY_REQUESTS);
    let wait: u64 = limited.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=13).contains(&wait), "{wait}");
    let problem: Value = serde_json::from_slice(&limited.bytes().await.unwrap()).unwrap();
    assert_eq!(problem["code"], "too_many_failures");
    assert_eq!(ask(&unseen, "/v1/whoami").await.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(
        ask(&server.operator, "/v1/whoami").await.status(),
        StatusCode::OK,
        "known keys go on"
    );
    let metrics = ask(&server.operator, "/metrics").await.text().await.unwrap();
    for line in ["{reason=\"not_valid\"} 5", "{reason=\"limited\"} 2"] {
        let line = format!("tenure_sign_in_failures_total{line}");
        assert!(metrics.contains(&line), "{line} in {metrics}");
    }
    patience::until("the first failure is on record", async || {
        let page = ask(&server.operator, "/v1/audit?act=sign_ins.failed").await;
        let page: Value = serde_json::from_slice(&page.bytes().await.unwrap()).unwrap();
        page["acts"][0]["from"] == "127.0.0.1" && page["acts"].as_array().unwrap().len() == 1
    })
    .await;
    support::sound(&server).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn known_keys_go_on_behind_an_address_that_failed_when_another_key_is_changed() {
    let dir = tempfile::tempdir().unwrap();
    let options = ServerOptions { failed_sign_ins_per_minute: 2, ..options() };
    let at = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = start_at(dir.path(), at, options).await;
    let whoami = async |key: &str| {
        let request = client().get(format!("{}/v1/whoami", server.base)).bearer_auth(key);
        request.send().await.unwrap().status()
    };
    let (known, other) =
        (server.key(None, &[Scope::Read]).await, server.key(None, &[Scope::Read]).await);
    for key in [&server.operator, &known, &other] {
        assert_eq!(whoami(key).await, StatusCode::OK);
    }
    let garbage = format!("tnr_{}_{}", "0".repeat(32), "0".repeat(64));
    assert_eq!(whoami(&garbage).await, StatusCode::UNAUTHORIZED);
    assert_eq!(whoami(&garbage).await, StatusCode::UNAUTHORIZED);
    assert_eq!(whoami(&garbage).await, StatusCode::TOO_MANY_REQUESTS);
    let (id, _) = keys::split(&other).unwrap();
    for act in ["rotate", "sign-out", "revoke"] {
        let path = format!("{}/v1/keys/{id}/{act}", server.base);
        let changed = client().post(path).bearer_auth(&server.operator);
        assert_eq!(changed.send().await.unwrap().status(), StatusCode::OK, "{act}");
        assert_eq!(whoami(&known).await, StatusCode::OK, "after {act} of another key");
        assert_eq!(whoami(&other).await, StatusCode::TOO_MANY_REQUESTS, "{act}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_has_a_bounded_number_of_sessions_and_they_are_of_its_tenant() {
    let dir = tempfile::tempdir().unwrap();
    sessions_of_a_key(start(dir.path()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_has_a_bounded_number_of_sessions_and_they_are_of_its_tenant_in_postgres() {
    sessions_of_a_key(start_in_postgres().await).await;
}

async fn sessions_of_a_key(server: Jobs) {
    let key = server.key(Some("acme"), &[Scope::Read]).await;
    let (id, _) = keys::split(&key).unwrap();
    let client = client();
    let first = sign_in(&client, &server.base, &key).await;
    let second = sign_in(&client, &server.base, &key).await;
    let heads = async |tenant: &str| {
        let filter = tenure_kernel::store::HeadFilter {
            kind: Some(tenure_server::console_sessions::KIND.into()),
            tenant: Some(tenant.into()),
            status: Some("active".into()),
            ..Default::default()
        };
        server.store().heads(filter, 200).await.unwrap().len()
    };
    assert_eq!((heads("acme").await, heads("").await), (2, 0));
    for _ in 2..keys::SESSIONS_MAX {
        sign_in(&client, &server.base, &key).await;
    }
    assert_eq!(page(&server, "/jobs", &first).await, StatusCode::OK);
    // One more: the oldest ends. Where one has ended by itself, that one makes room.
    let newest = sign_in(&client, &server.base, &key).await;
    assert_eq!(heads("acme").await, keys::SESSIONS_MAX);
    patience::until("the oldest has ended", async || {
        page(&server, "/jobs", &first).await == StatusCode::UNAUTHORIZED
    })
    .await;
    let out = client.post(format!("{}/console/sign-out", server.base));
    let out = out.header("cookie", session(&newest)).header("sec-fetch-site", "same-origin");
    assert_eq!(out.send().await.unwrap().status(), StatusCode::SEE_OTHER);
    sign_in(&client, &server.base, &key).await;
    assert_eq!(page(&server, "/jobs", &second).await, StatusCode::OK);
    let revoked = server.post(&format!("/v1/keys/{id}/revoke"), json!({})).await;
    assert_eq!(revoked.body["sessions"], keys::SESSIONS_MAX, "{revoked:?}");
    assert_eq!(heads("acme").await, 0);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_sign_in_is_counted_once() {
    let dir = tempfile::tempdir().unwrap();
    let options = ServerOptions { failed_sign_ins_per_minute: 0, ..options() };
    let at = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = start_at(dir.path(), at, options).await;
    let garbage = format!("tnr_{}_{}", "0".repeat(32), "0".repeat(64));
    // An act over the API, one over the console, and a request that is no act.
    let url = |path: &str| format!("{}{path}", server.base);
    let asks = [
        client().put(url("/v1/limits/x")).header("content-type", "application/json").body("{}"),
        client().post(url("/lines/schedules/pause")).header("sec-fetch-site", "same-origin"),
        client().get(url("/v1/whoami")),
    ];
    let mut counted = 0;
    for ask in asks {
        let answer = ask.bearer_auth(&garbage).send().await.unwrap();
        // This server has no jobs, and so no console.
        counted += u32::from(answer.status() == StatusCode::UNAUTHORIZED);
    }
    assert!(counted >= 1);
    let metrics = client().get(url("/metrics")).bearer_auth(&server.operator);
    let metrics = metrics.send().await.unwrap().text().await.unwrap();
    let line = format!("tenure_sign_in_failures_total{{reason=\"not_valid\"}} {counted}\n");
    assert!(metrics.contains(&line), "{line} in {metrics}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_form_of_a_sign_in_is_small() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let large = "x".repeat(9_000);
    let refused = post_key(&client(), &server.base, &large, &[]).await;
    assert_eq!(refused.status(), StatusCode::PAYLOAD_TOO_LARGE);
    server.stop().await;
}
