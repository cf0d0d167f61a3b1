//! The console on a real socket: every status has its page, every button does what it says, and what jobs say
//! about themselves does no harm.

use reqwest::{Client, Response, StatusCode, header, redirect::Policy};
use serde_json::{Value, json};
use std::time::Duration;
use tempfile::TempDir;
use tenure::{
    Ctx, FlowError, FlowSpec, Program, ToolCtx, ToolError, ToolSpec,
    config::Settings,
    jobs::{catalogue, submit::Submission},
    kernel::ids::EntityId,
    service::Service,
};
use tenure_lab::{drill::outside::Outside, lab_process::lab_program};
use tenure_proving::patience;
use tenure_server::keys::{self, NewKey, Scope};

/// A server with a worker in this process, an outside world, and a browser of sorts.
pub struct World {
    pub service: Service,
    pub outside: Outside,
    http: Client,
    _dir: TempDir,
}

/// Short leases and a pause before retries that a test can look at.
pub fn settings(dir: &TempDir, more: &[&str]) -> Settings {
    let store = format!("store.url=sqlite:{}", dir.path().join("store").display());
    let mut flags: Vec<String> = vec![store];
    for flag in [
        "server.listen=127.0.0.1:0",
        "worker.lease_seconds=1.2",
        "worker.renewal_seconds=0.3",
        "server.tick_seconds=0.2",
        "server.pulse_gap_seconds=0.6",
        "executor.backoff=30",
        "egress.allow=*=127.0.0.1",
    ] {
        flags.push(flag.to_owned());
    }
    flags.extend(more.iter().map(|f| (*f).to_owned()));
    Settings::load(None, [], &flags).expect("the settings are valid")
}

/// A key of this server that may do everything for every tenant.
pub async fn administrators_key(service: &Service) -> String {
    let key = NewKey { name: "test".into(), tenant: None, scopes: vec![Scope::Admin] };
    keys::create(&service.node.pipeline, key).await.expect("a key is made").secret
}

const HOSTILE: &str = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>\"'`";

fn program() -> Program {
    let hostile =
        |_: ToolCtx, _: Value| async move { Err::<Value, _>(ToolError::permanent(HOSTILE)) };
    let large = |_: Ctx, _: Value| async move { Ok::<_, FlowError>("y".repeat(1_000_000)) };
    lab_program()
        .tool(ToolSpec::new("<script>alert(3)</script>", hostile).doc(HOSTILE))
        .flow(FlowSpec::new("large", large))
        .flow(FlowSpec::new("hostile", |ctx: Ctx, input: Value| async move {
            Ok::<Value, FlowError>(ctx.tool("<script>alert(3)</script>", input).await?)
        }))
}

impl World {
    async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let service = program().serve(&settings(&dir, &[]), true).await.expect("it starts");
        World::around(service, dir).await
    }

    pub async fn around(service: Service, dir: TempDir) -> Self {
        let outside = Outside::open().await.expect("the outside opens");
        let http = Client::builder().redirect(Policy::none()).build().expect("a client");
        World { service, outside, http, _dir: dir }
    }

    pub async fn submit(&self, flow: &str, input: Value) -> EntityId {
        let tenant = "default".into();
        let submission = Submission { flow: flow.into(), input, tenant, ..Submission::default() };
        self.service.submitter.submit(submission).await.expect("it is accepted").id
    }

    /// The same, once a worker has told the catalogue about the flow.
    pub async fn submit_when_known(&self, flow: &str, input: Value) -> EntityId {
        patience::until("the flow", async || {
            catalogue::newest(&self.service.store, "", flow).await.is_ok_and(|f| f.is_some())
        })
        .await;
        self.submit(flow, input).await
    }

    pub async fn script(&self, lines: Value) -> EntityId {
        let input = json!({ "outside": self.outside.address(), "lines": lines });
        self.submit("drill.script", input).await
    }

    pub async fn until(&self, job: EntityId, status: &str) {
        patience::until(&format!("{job} is {status}"), async || {
            let head = self.service.store.head(job).await.expect("the store answers");
            head.is_some_and(|h| h.status.name() == status)
        })
        .await;
    }

    pub async fn get(&self, path: &str) -> (StatusCode, String) {
        let answer = self.http.get(format!("{}{path}", self.service.url())).send().await;
        let answer = answer.expect("it answers");
        (answer.status(), answer.text().await.expect("text"))
    }

    async fn page(&self, job: EntityId) -> String {
        let (status, page) = self.get(&format!("/jobs/{job}")).await;
        assert_eq!(status, StatusCode::OK, "{page}");
        page
    }

    /// Presses a button as a browser does.
    async fn press(&self, job: EntityId, action: &str, fields: &[(&str, &str)]) -> Response {
        self.post(job, action, fields, "same-origin").await
    }

    async fn post(
        &self,
        job: EntityId,
        action: &str,
        fields: &[(&str, &str)],
        site: &str,
    ) -> Response {
        let pairs = fields.iter().map(|(n, v)| format!("{n}={}", encoded(v)));
        let request = self
            .http
            .post(format!("{}/jobs/{job}/{action}", self.service.url()))
            .header("sec-fetch-site", site)
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(pairs.collect::<Vec<_>>().join("&"));
        request.send().await.expect("it answers")
    }

    /// Presses a button and is sent back to the page.
    async fn pressed(&self, job: EntityId, action: &str, fields: &[(&str, &str)]) -> String {
        let answer = self.press(job, action, fields).await;
        let status = answer.status();
        let to = answer.headers().get(header::LOCATION).cloned();
        let text = answer.text().await.expect("text");
        assert_eq!(status, StatusCode::SEE_OTHER, "{text}");
        to.expect("a place").to_str().expect("text").to_owned()
    }
}

fn encoded(text: &str) -> String {
    text.bytes().map(|b| format!("%{b:02X}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_status_is_on_a_page_with_its_reason_and_its_button() {
    let w = World::start().await;
    let (_, empty) = w.get("/").await;
    assert!(empty.contains("No job yet") && empty.contains("tenure job submit"), "{empty}");
    w.outside.hold_answers_to("slow");

    let nobody =
        FlowSpec::new(
            "nobody.runs.this",
            |_: Ctx, v: Value| async move { Ok::<Value, FlowError>(v) },
        );
    catalogue::register(&w.service.node.pipeline, "", [&nobody].into_iter(), [].into_iter())
        .await
        .expect("it is registered");
    let act = |class: &str, name: &str, ms: u64| json!({ "act": { "class": class, "name": name, "timeout_ms": ms } });
    let jobs = [
        ("queued", w.submit("nobody.runs.this", Value::Null).await),
        ("running", w.script(json!([act("idempotent", "slow", 60_000)])).await),
        ("waiting", w.script(json!([{ "sleep_ms": 30_000 }])).await),
        ("parked", w.script(json!([{ "approval": "release" }])).await),
        ("attention", w.script(json!([act("irreversible", "slow", 50)])).await),
        ("completed", w.submit("drill.noops", json!({ "steps": 2 })).await),
        (
            "failed",
            w.script(json!([{ "sleep_ms": 1 }, { "fail": "the printer is out of paper" }])).await,
        ),
        (
            "retrying",
            w.submit(
                "drill.script",
                json!({ "outside": "127.0.0.1:1", "lines": [act("idempotent", "x", 500)] }),
            )
            .await,
        ),
        ("cancelled", w.script(json!([{ "signal": "never" }])).await),
    ];
    let to_cancel = jobs[8].1;
    w.until(to_cancel, "parked").await;
    let at = w.pressed(to_cancel, "cancel", &[("why", "no longer needed")]).await;
    assert_eq!(at, format!("/jobs/{to_cancel}?did=cancel"));
    for (status, job) in &jobs {
        w.until(*job, status).await;
        let page = w.page(*job).await;
        assert!(page.contains(&format!("class=\"pill {status} big\"")), "{status}: {page}");
        assert!(page.contains("<p class=\"why\""), "{status}");
        let (_, list) = w.get(&format!("/jobs?status={status}")).await;
        assert!(list.contains(&format!("/jobs/{job}")), "{status}: {list}");
    }
    let button = |status: &str, action: &str| {
        let job = jobs.iter().find(|(s, _)| *s == status).expect("one of them").1;
        (job, format!("action=\"/jobs/{job}/{action}\""))
    };
    for (status, action, there) in [
        ("parked", "answer", true),
        ("parked", "pause", true),
        ("attention", "resolve", true),
        ("attention", "resume", true),
        ("attention", "pause", false),
        ("running", "cancel", true),
        ("running", "resume", false),
        ("failed", "retry", true),
        ("cancelled", "retry", true),
        ("completed", "retry", false),
        ("completed", "cancel", false),
    ] {
        let (job, form) = button(status, action);
        assert_eq!(w.page(job).await.contains(&form), there, "{status} {action}");
    }
    let (_, by_flow) = w.get("/jobs?flow=drill.noops").await;
    assert!(by_flow.contains(&jobs[5].1.to_string()) && !by_flow.contains(&jobs[0].1.to_string()));
    let key = administrators_key(&w.service).await;
    let none = w.http.get(format!("{}/jobs?tenant=elsewhere", w.service.url())).bearer_auth(key);
    let none = none.send().await.expect("it answers").text().await.expect("a page");
    assert!(none.contains("No job is like that"), "{none}");
    let (_, workers) = w.get("/workers").await;
    assert!(workers.contains("worker, pid"), "{workers}");
    let (_, flows) = w.get("/flows").await;
    assert!(flows.contains("drill.script") && flows.contains("outside.verifiable"), "{flows}");
    w.outside.answer_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn buttons_do_what_they_say() {
    let w = World::start().await;
    w.outside.hold_answers_to("ship");
    let asks = w.script(json!([{ "approval": "release" }, { "signal": "go" }])).await;
    w.until(asks, "parked").await;
    let paused = w.pressed(asks, "pause", &[]).await;
    assert!(w.get(&paused).await.1.contains("asked to pause"));
    patience::until("the pause", async || w.page(asks).await.contains("/resume\"")).await;
    w.pressed(asks, "resume", &[]).await;
    patience::until("the end of the pause", async || !w.page(asks).await.contains("/resume\""))
        .await;
    w.pressed(asks, "answer", &[("key", "release"), ("outcome", "approved"), ("comment", "fine")])
        .await;
    patience::until("the wait", async || w.page(asks).await.contains("Waits for a signal")).await;

    let wrong = w.press(asks, "signal", &[("key", "go"), ("payload", "{not json")]).await;
    assert_eq!(wrong.status(), StatusCode::UNPROCESSABLE_ENTITY);
    let page = wrong.text().await.expect("text");
    assert!(page.contains("Nothing was done") && page.contains("is not JSON"), "{page}");
    w.pressed(asks, "signal", &[("key", "go"), ("payload", "{\"n\": 7}")]).await;
    w.until(asks, "completed").await;
    let page = w.page(asks).await;
    assert!(page.contains("fine") && page.contains("&quot;n&quot;: 7"), "{page}");
    let late = w.press(asks, "cancel", &[]).await;
    assert_eq!(late.status(), StatusCode::CONFLICT);
    assert!(late.text().await.expect("text").contains("it takes nothing in any more"));

    let says_no = w.script(json!([{ "approval": "release" }])).await;
    w.until(says_no, "parked").await;
    w.pressed(says_no, "answer", &[("key", "release"), ("outcome", "rejected")]).await;
    w.until(says_no, "failed").await;

    let act = json!({ "act": { "class": "irreversible", "name": "ship", "timeout_ms": 50 } });
    for (verdict, ends) in [("happened", "completed"), ("abandoned", "failed")] {
        let job = w.script(json!([act])).await;
        w.until(job, "attention").await;
        let page = w.page(job).await;
        let step = page.split("name=\"step\" value=\"").nth(1).and_then(|p| p.split('"').next());
        let step = step.expect("the step is in the form");
        let fields = [
            ("step", step),
            ("verdict", verdict),
            ("result", "{\"name\":\"ship\",\"key\":\"k\"}"),
            ("note", "I asked them"),
        ];
        w.pressed(job, "resolve", &fields).await;
        w.until(job, ends).await;
    }

    let fails = w.script(json!([{ "sleep_ms": 1 }, { "fail": "no" }])).await;
    w.until(fails, "failed").await;
    let nowhere = w.press(fails, "retry", &[("step", "77")]).await;
    assert_eq!(nowhere.status(), StatusCode::UNPROCESSABLE_ENTITY);
    assert!(nowhere.text().await.expect("text").contains("has no step 77"));
    let again = w.pressed(fails, "retry", &[("step", "1")]).await;
    assert!(!again.contains(&fails.to_string()), "a job of its own: {again}");
    let page = w.get(&again).await.1;
    assert!(page.contains("retry of") && page.contains(&format!("/jobs/{fails}")), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_jobs_say_about_themselves_does_no_harm() {
    let w = World::start().await;
    let hostile = w.submit("hostile", json!({ HOSTILE: HOSTILE })).await;
    w.until(hostile, "failed").await;
    let large = w.submit("large", Value::Null).await;
    w.until(large, "completed").await;
    let asks = w.script(json!([{ "approval": HOSTILE }])).await;
    w.until(asks, "parked").await;
    for path in [
        format!("/jobs/{hostile}"),
        format!("/jobs/{hostile}?verify=1"),
        format!("/jobs/{asks}"),
        "/".into(),
        "/flows".into(),
        format!("/jobs?flow={}", encoded(HOSTILE)),
    ] {
        let (_, page) = w.get(&path).await;
        assert_eq!(page.matches("<script>").count(), 1, "{path}: only our own script");
        assert!(!page.contains("<img"), "{path}");
    }
    let page = w.page(large).await;
    assert!(
        page.len() < 120_000 && page.contains(&format!("href=\"/v1/jobs/{large}\"")),
        "{}",
        page.len()
    );

    let answer = w.http.get(w.service.url()).send().await.expect("it answers");
    let of = |name: &str| answer.headers().get(name).and_then(|v| v.to_str().ok()).unwrap_or("");
    let policy = of("content-security-policy");
    assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
    assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"), "{policy}");
    assert_eq!((of("x-content-type-options"), of("cache-control")), ("nosniff", "no-store"));

    for site in ["cross-site", "same-site", "none"] {
        let answer = w.post(asks, "cancel", &[], site).await;
        assert_eq!(answer.status(), StatusCode::FORBIDDEN, "{site}");
    }
    w.until(asks, "parked").await;
    assert_eq!(w.get("/jobs/not-an-id").await.0, StatusCode::BAD_REQUEST);
    let (status, page) = w.get("/jobs/01890000-0000-7000-8000-000000000000").await;
    assert!(status == StatusCode::NOT_FOUND && page.contains("there is no job"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_page_hears_of_a_change() {
    let w = World::start().await;
    let job = w.script(json!([{ "approval": "release" }])).await;
    w.until(job, "parked").await;
    let url = format!("{}/console/live/jobs/{job}", w.service.url());
    let mut live = w.http.get(url).send().await.expect("it answers");
    let first = next_event(&mut live).await;
    assert!(first.contains("\"top\"") && first.contains("pill parked big"), "{first}");
    w.pressed(job, "answer", &[("key", "release"), ("outcome", "approved")]).await;
    let mut heard = String::new();
    while !heard.contains("pill completed big") {
        heard = next_event(&mut live).await;
    }
    assert!(heard.contains("\"events\"") && heard.contains("job_completed"), "{heard}");
}

async fn next_event(live: &mut Response) -> String {
    let mut text = String::new();
    while !text.contains("\n\n") {
        let chunk = tokio::time::timeout(Duration::from_secs(20), live.chunk()).await;
        let chunk = chunk.expect("in time").expect("it goes on").expect("it is not over");
        text.push_str(&String::from_utf8_lossy(&chunk));
    }
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_opens_what_is_its_own_and_a_cookie_does_for_a_browser() {
    use keys::create;
    let w = World::start().await;
    let pipeline = &w.service.node.pipeline;
    let new = |tenant: Option<&str>, scopes: &[Scope]| NewKey {
        name: "test".into(),
        tenant: tenant.map(str::to_owned),
        scopes: scopes.to_vec(),
    };
    let a = create(pipeline, new(Some("a"), &[Scope::Read])).await.expect("a key").secret;
    let theirs = w.script(json!([{ "approval": "release" }])).await;
    w.until(theirs, "parked").await;
    let base = w.service.url();
    let sign_in = |key: String| {
        w.http
            .post(format!("{base}/console/sign-in"))
            .header("sec-fetch-site", "same-origin")
            .body(format!("key={}", encoded(&key)))
            .send()
    };
    let wrong = sign_in("tnr_nonsense".into()).await.expect("it answers");
    assert_eq!(wrong.status(), StatusCode::UNAUTHORIZED);
    let right = sign_in(a).await.expect("it answers");
    assert_eq!(right.status(), StatusCode::SEE_OTHER);
    let cookie = right.headers().get(header::SET_COOKIE).expect("a cookie").to_str().expect("text");
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    let cookie = cookie.split(';').next().expect("a pair").to_owned();
    let get =
        |path: String| w.http.get(format!("{base}{path}")).header(header::COOKIE, &cookie).send();
    assert_eq!(get("/jobs".into()).await.expect("it answers").status(), StatusCode::OK);
    let other = get(format!("/jobs/{theirs}")).await.expect("it answers");
    assert_eq!(other.status(), StatusCode::NOT_FOUND, "another tenant's");
    let pressed = w
        .http
        .post(format!("{base}/jobs/{theirs}/cancel"))
        .header(header::COOKIE, &cookie)
        .header("sec-fetch-site", "same-origin")
        .send();
    assert_eq!(
        pressed.await.expect("it answers").status(),
        StatusCode::FORBIDDEN,
        "it may only look"
    );
    let api = w
        .http
        .get(format!("{base}/v1/jobs"))
        .header(header::HOST, "tenure.example")
        .header(header::COOKIE, &cookie);
    assert_eq!(
        api.send().await.expect("it answers").status(),
        StatusCode::FORBIDDEN,
        "the API takes no cookie"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lines_page_shows_who_waits_and_its_buttons_move_schedules() {
    use tenure::jobs::terms::{GateTerm, Terms};
    let world = World::start().await;
    let (_, empty) = world.get("/lines").await;
    assert!(empty.contains("tenure schedule set") && empty.contains("tenure limit set"), "{empty}");
    let put = |path: &str, body: Value| {
        let request = world.http.put(format!("{}{path}", world.service.url()));
        request.header(header::CONTENT_TYPE, "application/json").body(body.to_string()).send()
    };
    let nightly = json!({ "cron": "0 2 * * *", "zone": "Europe/Berlin", "flow": "large" });
    let answer = put("/v1/schedules/nightly", nightly).await.expect("it answers");
    assert_eq!(answer.status(), StatusCode::OK);
    let answer = put("/v1/limits/http", json!({ "rate": "10/m" })).await.expect("it answers");
    assert_eq!(answer.status(), StatusCode::OK);
    // The first waits for a person and keeps the permit; the second stands in line.
    let ask = |n: u32| {
        let gate = Some(Box::new(GateTerm { name: "narrow".into(), limit: Some(1), id: None }));
        let (flow, input) = ("ask".to_owned(), json!({ "question": format!("number {n}") }));
        let terms = Terms { gate, ..Terms::default() };
        let tenant = "default".to_owned();
        let submission = Submission { flow, input, terms, tenant, ..Submission::default() };
        world.service.submitter.submit(submission)
    };
    ask(1).await.expect("it is accepted");
    let second = ask(2).await.expect("it is accepted").id;
    patience::until("the gate to have one job through and one in line", async || {
        let (_, page) = world.get("/lines").await;
        page.contains("narrow") && page.contains("<b>1</b>") && page.contains(&second.to_string())
    })
    .await;
    let (_, page) = world.get("/lines").await;
    assert!(
        page.contains("0 2 * * *") && page.contains("Europe/Berlin") && page.contains("nightly")
    );
    assert!(page.contains("10 in 1 min"), "{page}");
    let press = |action: &str, site: &'static str| {
        let url = format!("{}/lines/schedules/{action}", world.service.url());
        let request = world.http.post(url).header("sec-fetch-site", site);
        let form = "application/x-www-form-urlencoded";
        request.header(header::CONTENT_TYPE, form).body("name=nightly&tenant=default").send()
    };
    let foreign = press("pause", "cross-site").await.expect("it answers");
    assert_eq!(foreign.status(), StatusCode::FORBIDDEN, "another site can not press");
    assert_eq!(
        press("pause", "same-origin").await.expect("it answers").status(),
        StatusCode::SEE_OTHER
    );
    let paused = ">paused</span>";
    assert!(world.get("/lines").await.1.contains(paused));
    assert_eq!(
        press("resume", "same-origin").await.expect("it answers").status(),
        StatusCode::SEE_OTHER
    );
    assert_eq!(
        press("fire", "same-origin").await.expect("it answers").status(),
        StatusCode::SEE_OTHER
    );
    let (_, page) = world.get("/lines").await;
    assert!(!page.contains(paused) && page.contains("1 jobs"), "{page}");
    assert_eq!(
        press("dance", "same-origin").await.expect("it answers").status(),
        StatusCode::NOT_FOUND
    );
}
