//! Every page and every listing × tenants: nobody sees a name that another tenant gave. The listings come from the OpenAPI
//! document and the pages from the console's own list, so a new one is tried without being added here.

use super::jobs_support::{Jobs, start};
use reqwest::{Client, Method};
use serde_json::{Value, json};
use std::{collections::BTreeSet, time::Duration};
use tenure_server::keys::Scope;

/// In every name that a tenant gives here.
fn mark(tenant: &str) -> String {
    format!("{tenant}-mark")
}

/// Puts something of every kind into a tenant.
async fn furnish(server: &Jobs, tenant: &str) -> String {
    let key = server.key(Some(tenant), &Scope::ALL).await;
    let mark = mark(tenant);
    let send = async |method: Method, path: String, body: Value| {
        let answered = server.with_key(method, &path, &key, body).await;
        assert!(answered.status < 300, "{path}: {answered:?}");
        answered
    };
    let job = json!({"flow": "listen", "input": mark});
    let job = send(Method::POST, "/v1/jobs".into(), job).await.text("id").to_owned();
    server.blocked(&job).await;
    send(Method::PUT, format!("/v1/gates/{mark}"), json!({"limit": 2})).await;
    send(Method::PUT, format!("/v1/limits/{mark}"), json!({"rate": "1/s"})).await;
    let schedule = json!({"flow": "listen", "cron": "0 2 * * *", "zone": "UTC", "input": mark});
    send(Method::PUT, format!("/v1/schedules/{mark}"), schedule).await;
    send(Method::PUT, format!("/v1/agents/{mark}"), json!({"profile": {"instructions": mark}}))
        .await;
    let session = json!({"name": mark, "tools": [{"name": mark}]});
    send(Method::POST, "/v1/calls/sessions".into(), session).await;
    send(Method::POST, "/v1/keys".into(), json!({"name": mark, "scopes": ["read"]})).await;
    send(Method::POST, format!("/v1/jobs/{job}/pause"), json!({"by": mark})).await;
    key
}

/// Paths without parameters that can be read.
async fn readable(server: &Jobs) -> BTreeSet<String> {
    let document = server.get("/v1/openapi.json").await.body;
    let paths = document["paths"].as_object().unwrap().iter();
    let paths =
        paths.filter(|(_, methods)| methods.get("get").is_some()).map(|(path, _)| path.clone());
    let pages = include_str!("../../src/console/mod.rs").lines().filter_map(|line| {
        let (template, handlers) = line.split_once(".route(\"")?.1.split_once('"')?;
        handlers.contains("get(").then(|| template.to_owned())
    });
    paths.chain(pages).filter(|path| !path.contains('{')).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_page_and_no_listing_shows_a_name_of_another_tenant() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let tenants = ["acme", "globex"];
    let mut keys = Vec::new();
    for tenant in tenants {
        keys.push((tenant, furnish(&server, tenant).await));
    }
    let client = Client::builder().no_proxy().build().unwrap();
    let (mut wrong, mut own, mut cells) = (Vec::new(), BTreeSet::new(), 0);
    for path in readable(&server).await {
        for (tenant, key) in &keys {
            let request = client.get(format!("{}{path}", server.base)).bearer_auth(key);
            let mut response = request.send().await.unwrap();
            assert!(!response.status().is_server_error(), "{path}");
            // A live page does not end; its first event has all of it.
            let mut body = String::new();
            while let Ok(Ok(Some(chunk))) =
                tokio::time::timeout(Duration::from_millis(300), response.chunk()).await
            {
                body.push_str(&String::from_utf8_lossy(&chunk));
            }
            cells += 1;
            for other in tenants.iter().filter(|other| *other != tenant) {
                if body.contains(&mark(other)) {
                    wrong.push(format!("{path} shows {tenant} a name of {other}"));
                }
            }
            if body.contains(&mark(tenant)) {
                own.insert(path.clone());
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(cells >= 60, "only {cells} cells");
    // What shows nothing proves nothing.
    for path in [
        "/workers",
        "/v1/workers",
        "/lines",
        "/flows",
        "/agents",
        "/v1/keys",
        "/v1/audit",
        "/audit",
    ] {
        assert!(own.contains(path), "{path} shows a tenant its own; {own:?}");
    }
    server.stop().await;
}
