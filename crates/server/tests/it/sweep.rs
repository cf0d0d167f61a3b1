//! Every route × every kind of caller. The routes come from the OpenAPI document and from the console's own list, so a new
//! route is tried without anybody adding it here; `docs/security.md` has the same table for people.

use super::jobs_support::{Jobs, start};
use super::keys::sign_in;
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use std::{collections::BTreeSet, time::Duration};
use tenure_kernel::time::Timestamp;
use tenure_server::keys::{self, NewKey, Scope};

/// The tenant whose job is tried to be reached.
const TENANT: &str = "acme";

/// One route, with the job of [`TENANT`] wherever its path names an entity.
#[derive(Clone, Debug)]
struct Route {
    method: Method,
    template: String,
    path: String,
    is_page: bool,
}

/// Who may use a route.
#[derive(Debug, PartialEq, Eq)]
enum Needs {
    /// Nobody is asked who they are.
    Nothing,
    /// Any caller that is known.
    Caller,
    /// A caller with one of these scopes.
    Scope(&'static [Scope]),
}

impl Route {
    fn needs(&self) -> Needs {
        let reads = self.method == Method::GET;
        match self.template.as_str() {
            "/healthz" | "/readyz" | "/console/sign-in" | "/console/sign-out" => Needs::Nothing,
            "/v1/openapi.json" | "/v1/whoami" | "/errors/{code}" => Needs::Caller,
            admin if admin.starts_with("/v1/keys") => Needs::Scope(&[]),
            "/v1/audit" | "/audit" => Needs::Scope(&[]),
            "/v1/tasks/reports" => Needs::Scope(&[Scope::Collector, Scope::Write]),
            "/v1/tasks/budgets/{tenant}" if !reads => Needs::Scope(&[]),
            "/v1/blocks" | "/v1/blocks/{kind}/{name}" => Needs::Scope(&[]),
            "/v1/calls/{call}" if reads => Needs::Scope(&[Scope::Read, Scope::Worker]),
            "/v1/plans/check" | "/v1/calendars/preview" => Needs::Scope(&[Scope::Read]),
            "/v1/turns/{id}/step"
            | "/v1/turns/{id}/finish"
            | "/v1/turns/{id}/fail"
            | "/v1/turns/{id}/release" => Needs::Scope(&[Scope::Worker]),
            worker if worker.starts_with("/v1/worker/") => Needs::Scope(&[Scope::Worker]),
            call if call.starts_with("/v1/calls/") || call.starts_with("/v1/turns/sessions") => {
                Needs::Scope(&[Scope::Worker])
            }
            _ if reads => Needs::Scope(&[Scope::Read]),
            // A button needs both: its page shows what came of it.
            _ => Needs::Scope(&[Scope::Write]),
        }
    }
}

async fn routes(server: &Jobs, job: &str) -> Vec<Route> {
    let filled = |template: &str| {
        let parts = template.split('/').map(|part| match part {
            "{id}" | "{call}" | "{session}" => job,
            "{action}" => "pause",
            part if part.starts_with('{') => "some-name",
            part => part,
        });
        parts.collect::<Vec<_>>().join("/")
    };
    let document = server.get("/v1/openapi.json").await.body;
    let mut routes = Vec::new();
    let mut add = |method: Method, template: &str, is_page: bool| {
        let (template, path) = (template.to_owned(), filled(template));
        routes.push(Route { method, template, path, is_page });
    };
    for (template, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            add(method.to_uppercase().parse().unwrap(), template, false);
        }
    }
    add(Method::GET, "/v1/openapi.json", false);
    for line in include_str!("../../src/console/mod.rs").lines() {
        let Some((_, rest)) = line.split_once(".route(\"") else { continue };
        let (template, handlers) = rest.split_once('"').unwrap();
        for (word, method) in [("get(", Method::GET), ("post(", Method::POST)] {
            if handlers.contains(word) {
                add(method, template, true);
            }
        }
    }
    routes
}

/// Who asks.
enum Asks<'a> {
    Key(&'a str),
    /// Without a key, from this machine.
    Nobody,
    /// Without a key, through a proxy on this machine.
    Forwarded,
}

struct Answer {
    status: StatusCode,
    code: String,
    body: String,
}

async fn ask(client: &Client, base: &str, route: &Route, who: &Asks<'_>) -> Answer {
    let mut request = client.request(route.method.clone(), format!("{base}{}", route.path));
    request = match who {
        Asks::Key(key) => request.bearer_auth(key),
        Asks::Nobody => request,
        Asks::Forwarded => request.header("x-forwarded-for", "203.0.113.7"),
    };
    request = match (&route.method, route.is_page) {
        (&Method::GET, _) => request,
        (_, true) => request
            .header("sec-fetch-site", "same-origin")
            .header("content-type", "application/x-www-form-urlencoded"),
        (_, false) => request.header("content-type", "application/json").body("{}"),
    };
    let response = request.send().await.unwrap();
    let status = response.status();
    // A stream ends only when its reader leaves, and its beginning says enough.
    let read = tokio::time::timeout(Duration::from_millis(200), response.text()).await;
    let body = read.ok().and_then(Result::ok).unwrap_or_default();
    let problem = serde_json::from_str::<Value>(&body).unwrap_or_default();
    let code = problem["code"].as_str().unwrap_or_default().to_owned();
    Answer { status, code, body }
}

/// What a request of the wrong form gets, whoever sends it: it says nothing about what is stored.
fn is_of_the_wrong_form(answer: &Answer) -> bool {
    matches!(answer.status.as_u16(), 400 | 415 | 422)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_route_asks_every_caller_who_they_are_and_what_they_may() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let client =
        Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let submitted =
        server.post("/v1/jobs", json!({"flow": "listen", "input": "go", "tenant": TENANT})).await;
    let job = submitted.text("id").to_owned();
    server.blocked(&job).await;
    let before = server.written().await;

    let mut singles = Vec::new();
    for scope in Scope::ALL {
        singles.push((scope, server.key(Some("globex"), &[scope]).await));
    }
    let revoked = server.key(None, &Scope::ALL).await;
    keys::revoke(server.app.pipeline(), keys::split(&revoked).unwrap().0).await.unwrap();
    let ended = keys::Terms { not_after: Some(Timestamp::ZERO), ..keys::Terms::default() };
    let new = NewKey { name: "old".into(), tenant: None, scopes: Scope::ALL.to_vec() };
    let expired = keys::create_with(server.app.pipeline(), new, ended).await.unwrap().secret;
    let session = sign_in(&client, &server.base, &server.operator).await;
    let garbage = format!("tnr_{}_{}", "0".repeat(32), "0".repeat(64));
    let (mut cells, mut wrong) = (0, BTreeSet::new());
    for route in routes(&server, &job).await {
        let needs = route.needs();
        let mut expect = |who: &str, answer: &Answer, fine: bool| {
            cells += 1;
            if !fine {
                let Answer { status, code, .. } = answer;
                wrong.insert(format!(
                    "{} {} as {who}: {status} {code}",
                    route.method, route.template
                ));
            }
        };
        let strangers = [
            ("garbage", Asks::Key(&garbage)),
            ("revoked", Asks::Key(&revoked)),
            ("expired", Asks::Key(&expired)),
            ("a session of the console as a key", Asks::Key(&session)),
            ("forwarded", Asks::Forwarded),
        ];
        for (name, who) in &strangers {
            let answer = ask(&client, &server.base, &route, who).await;
            let refused = answer.status == 401 && !answer.body.contains(&job);
            expect(name, &answer, refused || needs == Needs::Nothing);
        }
        // Keys of another tenant, with one scope each, and a caller on this machine: none of them ever sees the job.
        let known =
            singles.iter().map(|(scope, key)| (scope.as_str(), vec![*scope], Asks::Key(key)));
        let local = vec![Scope::Read, Scope::Write, Scope::Worker];
        for (name, scopes, who) in known.chain([("local", local, Asks::Nobody)]) {
            let answer = ask(&client, &server.base, &route, &who).await;
            // The audit trail of a tenant has what its own keys asked for, also what was refused.
            let is_trail = ["/audit", "/v1/audit"].contains(&route.template.as_str());
            let names_it = route.method == Method::GET && !is_trail && answer.body.contains(&job);
            let admin = scopes.contains(&Scope::Admin);
            let may = match needs {
                Needs::Nothing | Needs::Caller => true,
                Needs::Scope(any) => admin || scopes.iter().any(|s| any.contains(s)),
            };
            let fine = match may {
                // Whoever signs in says so in the form.
                true if route.template == "/console/sign-in" => true,
                true => answer.status != 401 && !answer.status.is_server_error(),
                false => answer.status == 403 || is_of_the_wrong_form(&answer),
            };
            // A problem repeats the id that it was asked for, and nothing else about it.
            expect(name, &answer, fine && (!names_it || !answer.status.is_success()));
        }
    }
    assert!(wrong.is_empty(), "{} of {cells}:\n{wrong:#?}", wrong.len());
    assert!(cells > 1_200, "only {cells} cells");
    let id = job.parse().unwrap();
    let state = |all: &[(tenure_kernel::ids::EntityId, u64, u64)]| {
        all.iter().find(|(entity, ..)| *entity == id).copied()
    };
    assert_eq!(state(&server.written().await), state(&before), "nobody moved the job");
    server.stop().await;
}

#[tokio::test]
async fn the_document_says_who_may_use_each_route() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let document = server.get("/v1/openapi.json").await.body;
    assert_eq!(document["components"]["securitySchemes"]["api_key"]["scheme"], "bearer");
    for route in routes(&server, "none").await {
        let operation = &document["paths"][&route.template][route.method.as_str().to_lowercase()];
        if !operation.is_object() {
            continue;
        }
        let key = |scopes: &[&str]| json!({ "api_key": scopes });
        let said = match route.needs() {
            Needs::Nothing => json!([]),
            Needs::Caller => json!([key(&[])]),
            // Only a key that may do everything.
            Needs::Scope([]) => json!([key(&["admin"])]),
            Needs::Scope(any) => any.iter().map(|scope| key(&[scope.as_str()])).collect(),
        };
        assert_eq!(operation["security"], said, "{} {}", route.method, route.template);
    }
    server.stop().await;
}
