//! Schedules, limits and batches over HTTP: each test is a sentence of docs/api.md.

use crate::jobs_support::{Answered, Jobs, start};
use reqwest::Method;
use serde_json::{Value, json};
use tenure_jobs::shared::schedule::model::limits;
use tenure_server::keys::Scope;

async fn put(jobs: &Jobs, path: &str, body: Value) -> Answered {
    let headers = [("content-type", "application/json")];
    jobs.send(Method::PUT, path, &headers, Some(body.to_string())).await
}

async fn delete(jobs: &Jobs, path: &str) -> u16 {
    jobs.send(Method::DELETE, path, &[], None).await.status
}

async fn until_there(jobs: &Jobs, job: &str) -> Value {
    loop {
        let found = jobs.get(&format!("/v1/jobs/{job}")).await;
        if found.status == 200 {
            return found.body;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_is_set_shown_fired_paused_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    let path = "/v1/schedules/nightly";
    let body = json!({ "cron": "30 2 * * *", "zone": "Europe/Berlin", "flow": "greet", "input": { "name": "ada" } });
    let set = put(&jobs, path, body.clone()).await;
    assert_eq!(
        (set.status, &set.body["version"], &set.body["status"]),
        (200, &json!(1), &json!("active"))
    );
    let before = jobs.written().await;
    assert_eq!(put(&jobs, path, body).await.status, 200);
    assert_eq!(jobs.written().await, before, "set twice, written once");
    let shown = jobs.get(&format!("{path}?next=10")).await.body;
    assert_eq!(shown["next"].as_array().map(Vec::len), Some(10));
    assert_eq!(shown["next"][0], shown["next_at"]);
    assert_eq!(jobs.get("/v1/schedules").await.body["schedules"][0]["name"], "nightly");

    let key = [("idempotency-key", "once")];
    let fired = jobs.send(Method::POST, &format!("{path}/fire"), &key, None).await;
    let again = jobs.send(Method::POST, &format!("{path}/fire"), &key, None).await;
    assert_eq!((fired.status, &fired.body["job"]), (202, &again.body["job"]));
    let job = fired.body["job"].as_str().unwrap().to_owned();
    until_there(&jobs, &job).await;
    let done = jobs.until(&job, "completed").await;
    assert_eq!(done["output"], "hello ada");
    assert_eq!(jobs.get(path).await.body["fired"], 1);

    assert_eq!(jobs.post(&format!("{path}/pause"), json!({})).await.body["status"], "paused");
    assert!(jobs.get(path).await.body["next_at"].is_null());
    assert_eq!(jobs.post(&format!("{path}/resume"), json!({})).await.body["status"], "active");
    assert_eq!(delete(&jobs, path).await, 204);
    assert_eq!((jobs.get(path).await.status, delete(&jobs, path).await), (404, 404));
    jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_whose_jobs_may_not_overlap_shows_the_open_ones_and_remembers_no_more_than_so_many()
 {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    let path = "/v1/schedules/nightly";
    let body = json!({ "cron": "30 2 * * *", "flow": "listen", "input": "go", "overlap": "skip" });
    assert_eq!(put(&jobs, path, body).await.status, 200);
    for n in 0..limits::OPEN_MAX {
        let fired = jobs.post(&format!("{path}/fire"), json!({ "key": format!("k{n}") })).await;
        assert_eq!(fired.status, 202, "{:?}", fired.body);
    }
    let refused = jobs.post(&format!("{path}/fire"), json!({ "key": "one more" })).await;
    assert_eq!((refused.status, refused.text("code")), (409, "limit_passed"));
    assert_eq!(jobs.get(path).await.body["open"].as_array().map(Vec::len), Some(limits::OPEN_MAX));
    jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_creates_its_jobs_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    let body = json!({ "every_seconds": 1, "flow": "greet", "input": { "name": "bob" } });
    assert_eq!(put(&jobs, "/v1/schedules/often", body).await.status, 200);
    let job = loop {
        let shown = jobs.get("/v1/schedules/often").await.body;
        if let Some(fire) = shown["fires"].as_array().and_then(|f| f.last()) {
            break fire["job"].as_str().unwrap().to_owned();
        }
        tokio::task::yield_now().await;
    };
    until_there(&jobs, &job).await;
    jobs.until(&job, "completed").await;
    jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_a_schedule_names_its_field_and_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    let before = jobs.written().await;
    let good = json!({ "cron": "0 2 * * *", "flow": "greet", "input": { "name": "ada" } });
    let with = |field: &str, value: Value| {
        let mut body = good.clone();
        body[field] = value;
        body
    };
    for (field, body) in [
        ("cron", with("cron", json!("61 * * * *"))),
        ("cron", with("cron", json!("0 0 30 2 *"))),
        ("zone", with("zone", json!("Mars/Olympus"))),
        ("flow", with("flow", json!("nobody-has-this"))),
        ("every_seconds", with("every_seconds", json!(5))),
        ("start", with("start", json!("tomorrow"))),
        ("missed", with("missed", json!("perhaps"))),
    ] {
        let answer = put(&jobs, "/v1/schedules/bad", body).await;
        assert!((400..500).contains(&answer.status), "{:?}", answer.body);
        assert!(answer.text("field").contains(field), "{field}: {:?}", answer.body);
    }
    let input = put(&jobs, "/v1/schedules/bad", with("input", json!({ "nom": 1 }))).await;
    assert_eq!(input.text("code"), "schema_violation");
    assert_eq!(jobs.written().await, before);
    jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_calendar_is_previewed_with_the_errors_of_a_schedule_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    let before = jobs.written().await;
    let preview = async |body: Value| jobs.post("/v1/calendars/preview", body).await;
    let spring = json!({ "cron": "30 2 * * *", "zone": "Europe/Berlin", "after": "2026-03-28T12:00:00Z", "count": 2 });
    let told = preview(spring).await;
    assert_eq!((told.status, told.text("zone")), (200, "Europe/Berlin"), "{told:?}");
    let times = told.body["times"].as_array().unwrap();
    assert_eq!(times.len(), 2);
    assert_eq!(times[0]["moved_from"], "2026-03-29T02:30:00");
    assert_eq!(times[0]["at"], 1_774_746_000_000_000_i64);
    assert_eq!(times[1].get("moved_from"), None);
    // From now on, ten of them.
    let ten = preview(json!({ "every_seconds": 60 })).await;
    assert_eq!(ten.body["times"].as_array().map(Vec::len), Some(10), "{ten:?}");
    let flow = json!({ "flow": "greet", "input": { "name": "ada" } });
    for bad in [
        json!({ "cron": "61 * * * *" }),
        json!({ "cron": "0 0 30 2 *" }),
        json!({ "cron": "@daily", "zone": "Mars/Olympus" }),
        json!({ "cron": "@daily", "every_seconds": 5 }),
        json!({ "every_seconds": 0 }),
        json!({ "cron": "@daily", "start": "tomorrow" }),
        json!({ "cron": "@daily", "start": 2_000_000, "end": 1_000_000 }),
        json!({}),
    ] {
        let mut schedule = flow.clone();
        for (field, value) in bad.as_object().unwrap() {
            schedule[field] = value.clone();
        }
        let (told, set) = (preview(bad).await, put(&jobs, "/v1/schedules/bad", schedule).await);
        assert_eq!((told.status, told.text("code")), (set.status, set.text("code")));
        for field in ["field", "detail", "fix"] {
            assert_eq!(told.text(field), set.text(field), "{told:?}");
        }
    }
    for (field, body) in [
        ("count", json!({ "cron": "@daily", "count": 0 })),
        ("count", json!({ "cron": "@daily", "count": 101 })),
        ("after", json!({ "cron": "@daily", "after": "soon" })),
    ] {
        let answer = preview(body).await;
        assert_eq!((answer.status, answer.text("field")), (422, field), "{answer:?}");
    }
    assert_eq!(jobs.written().await, before);
    jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_do_not_see_each_others_schedules_limits_and_batches() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    let acme = jobs.key(Some("acme"), &[Scope::Read, Scope::Write]).await;
    let other = jobs.key(Some("other"), &[Scope::Read, Scope::Write]).await;
    let body = json!({ "cron": "@daily", "flow": "greet", "input": { "name": "a" } });
    let set = jobs.with_key(Method::PUT, "/v1/schedules/s", &acme, body.clone()).await;
    assert_eq!(set.body["tenant"], "acme");
    assert_eq!(
        jobs.with_key(Method::GET, "/v1/schedules/s", &other, Value::Null).await.status,
        404
    );
    let listed = jobs.with_key(Method::GET, "/v1/schedules", &other, Value::Null).await;
    assert_eq!(listed.body["schedules"], json!([]));
    let limit = json!({ "rate": "10/s" });
    assert_eq!(
        jobs.with_key(Method::PUT, "/v1/limits/echo", &acme, limit.clone()).await.status,
        200
    );
    assert_eq!(
        jobs.with_key(Method::GET, "/v1/limits/echo", &other, Value::Null).await.status,
        404
    );
    let all = json!({ "rate": "10/s", "tenant": "*" });
    assert_eq!(jobs.with_key(Method::PUT, "/v1/limits/echo", &acme, all).await.status, 403);
    let item = json!({ "flow": "listen", "input": "x", "debounce": { "key": "k", "quiet_seconds": 60, "within_seconds": 60 } });
    let added = jobs.with_key(Method::POST, "/v1/jobs", &acme, item).await;
    let path = added.location.unwrap();
    assert_eq!(jobs.with_key(Method::GET, &path, &acme, Value::Null).await.status, 200);
    assert_eq!(jobs.with_key(Method::GET, &path, &other, Value::Null).await.status, 404);
    jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_is_set_shown_listed_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    let set = put(&jobs, "/v1/limits/echo", json!({ "rate": "10/s", "burst": 20 })).await;
    assert_eq!(
        (set.status, &set.body["block"], &set.body["wait_ms"]),
        (200, &json!(10), &json!(0))
    );
    assert_eq!(
        put(&jobs, "/v1/limits/echo", json!({ "rate": "1/h", "tenant": "*" })).await.status,
        200
    );
    assert_eq!(jobs.get("/v1/limits").await.body["limits"].as_array().map(Vec::len), Some(2));
    let waiting = jobs.get("/v1/limits/echo/waiting?tenant=*").await;
    let nobody = json!({ "steps": [], "calls": 0, "complete": true });
    assert_eq!((waiting.status, waiting.body), (200, nobody));
    for (field, body) in [
        ("rate", json!({})),
        ("rate", json!({ "rate": "fast" })),
        ("burst", json!({ "rate": "1/s", "burst": 0 })),
        ("block", json!({ "rate": "1000/s", "block": 1 })),
    ] {
        let answer = put(&jobs, "/v1/limits/echo", body).await;
        assert_eq!((answer.status, answer.text("field")), (422, field), "{:?}", answer.body);
    }
    // Workers register tools with a slash in their names.
    let slash = "/v1/limits/billing%2Fcharge";
    assert_eq!(put(&jobs, slash, json!({ "rate": "10/s" })).await.body["tool"], "billing/charge");
    assert_eq!((jobs.get(slash).await.status, delete(&jobs, slash).await), (200, 204));
    assert_eq!(delete(&jobs, "/v1/limits/echo?tenant=*").await, 204);
    assert_eq!(jobs.get("/v1/limits/echo?tenant=*").await.status, 404);
    jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_for_each_tenant_is_the_operators_and_every_tenant_sees_what_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    let acme = jobs.key(Some("acme"), &[Scope::Read, Scope::Write]).await;
    let path = "/v1/limits/echo";
    let with = async |method: Method, query: &str, body: Value| {
        jobs.with_key(method, &format!("{path}{query}"), &acme, body).await
    };
    let each = json!({ "rate": "10/s", "burst": 3, "tenant": "*/each" });
    assert_eq!(with(Method::PUT, "", each.clone()).await.status, 403);
    let set = put(&jobs, path, each).await;
    assert_eq!(
        (set.status, set.text("tenant"), &set.body["from_each"]),
        (200, "*/each", &json!(1))
    );
    // A tenant that nobody named, and that has called nothing.
    let mine = with(Method::GET, "", Value::Null).await;
    assert_eq!((mine.status, mine.text("tenant")), (200, "acme"), "{mine:?}");
    assert_eq!((&mine.body["count"], &mine.body["taken"]), (&json!(10), &json!(0)));
    assert_eq!(with(Method::GET, "?tenant=*/each", Value::Null).await.status, 200);
    let listed = jobs.with_key(Method::GET, "/v1/limits", &acme, Value::Null).await.body;
    assert_eq!(listed["limits"].as_array().map(Vec::len), Some(1), "{listed}");
    assert_eq!(listed["limits"][0]["tenant"], "acme");
    assert_eq!(jobs.get("/v1/limits").await.body["limits"][0]["tenant"], "*/each");
    assert_eq!(with(Method::DELETE, "?tenant=*/each", Value::Null).await.status, 403);
    assert_eq!(delete(&jobs, "/v1/limits/echo?tenant=*/each").await, 204);
    assert_eq!(delete(&jobs, "/v1/limits/echo?tenant=*/each").await, 404);
    assert_eq!(with(Method::GET, "", Value::Null).await.status, 404);
    let bad = put(&jobs, path, json!({ "rate": "10/s", "tenant": "a/b" })).await;
    assert_eq!((bad.status, bad.text("field")), (422, "tenant"), "{bad:?}");
    jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_operator_has_set_for_a_tenant_is_not_the_tenants_to_change() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    let acme = jobs.key(Some("acme"), &[Scope::Read, Scope::Write]).await;
    let with = |method: Method, path: &str, body: Value| {
        let (jobs, acme, path) = (&jobs, acme.clone(), path.to_owned());
        async move { jobs.with_key(method, &path, &acme, body).await }
    };
    for (path, body, more) in [
        ("/v1/limits/http", json!({ "rate": "10/s" }), json!({ "rate": "999/s" })),
        ("/v1/gates/db", json!({ "limit": 1 }), json!({ "limit": 99 })),
    ] {
        // Of its own it is.
        assert_eq!(with(Method::PUT, path, more.clone()).await.status, 200);
        let mut operators = body.clone();
        operators["tenant"] = json!("acme");
        assert_eq!(put(&jobs, path, operators).await.status, 200);
        let set = loop {
            let shown = with(Method::GET, path, Value::Null).await.body;
            // A gate reads it a moment later.
            if shown["by_operator"] == true {
                break shown;
            }
            tokio::task::yield_now().await;
        };
        let raised = with(Method::PUT, path, more).await;
        assert_eq!((raised.status, raised.text("code")), (403, "forbidden"), "{raised:?}");
        let shown = with(Method::GET, path, Value::Null).await.body;
        assert_eq!((&shown["limit"], &shown["count"]), (&set["limit"], &set["count"]));
    }
    let removed = with(Method::DELETE, "/v1/limits/http", Value::Null).await;
    assert_eq!((removed.status, removed.text("code")), (403, "forbidden"), "{removed:?}");
    assert_eq!(delete(&jobs, "/v1/limits/http?tenant=acme").await, 204);
    jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gates_and_schedules_are_listed_by_pages_and_jobs_by_tenant() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    for n in 0..5 {
        assert_eq!(put(&jobs, &format!("/v1/gates/g{n}"), json!({ "limit": 1 })).await.status, 200);
        let body = json!({ "cron": "@daily", "flow": "greet", "input": { "name": "a" } });
        assert_eq!(put(&jobs, &format!("/v1/schedules/s{n}"), body).await.status, 200);
    }
    for what in ["gates", "schedules"] {
        let (mut names, mut after) = (Vec::new(), String::new());
        loop {
            let page = jobs.get(&format!("/v1/{what}?limit=2{after}")).await.body;
            let of = page[what].as_array().unwrap().clone();
            assert!(of.len() <= 2, "{page}");
            names.extend(of.iter().map(|g| g["name"].as_str().unwrap().to_owned()));
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => break,
            }
        }
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 5, "{what}: {names:?}");
        let bad = jobs.get(&format!("/v1/{what}?after=banana")).await;
        assert_eq!((bad.status, bad.text("field")), (400, "after"));
    }
    for tenant in ["a", "b"] {
        let body = json!({ "flow": "greet", "input": { "name": "x" }, "tenant": tenant });
        assert_eq!(jobs.post("/v1/jobs", body).await.status, 202);
    }
    let page = jobs.get("/v1/jobs?tenant=b").await.body;
    let of = page["jobs"].as_array().unwrap();
    assert!(of.len() == 1 && of[0]["tenant"] == "b", "{page}");
    let a = jobs.key(Some("a"), &[Scope::Read]).await;
    let theirs = jobs.with_key(Method::GET, "/v1/jobs?tenant=b", &a, Value::Null).await;
    assert_eq!(theirs.status, 403);
    jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_collects_and_its_page_says_what_became_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    let add = async |n: u32| {
        let batch = json!({ "key": "k", "max": 3, "within_seconds": 3600 });
        let body = json!({ "flow": "count", "input": n, "key": format!("n{n}"), "batch": batch });
        jobs.post("/v1/jobs", body).await
    };
    let first = add(1).await;
    assert_eq!(
        (first.status, add(1).await.status),
        (202, 200),
        "the same key is the same submission"
    );
    add(2).await;
    let last = add(3).await;
    let path = last.location.unwrap();
    let made = loop {
        let shown = jobs.get(&path).await.body;
        if shown["generation"] == 1 {
            assert_eq!((&shown["open"], &shown["made"][0]["items"]), (&json!(0), &json!(3)));
            break shown["made"][0]["job"].as_str().unwrap().to_owned();
        }
        tokio::task::yield_now().await;
    };
    until_there(&jobs, &made).await;
    assert_eq!(jobs.until(&made, "completed").await["output"], 3);
    // What is too large to be kept is a job at once.
    let big = json!({ "flow": "count", "input": "x".repeat(5_000), "batch": { "key": "k", "max": 3, "within_seconds": 60 } });
    let alone = jobs.post("/v1/jobs", big).await;
    let id = alone.text("id").to_owned();
    assert_eq!(jobs.until(&id, "completed").await["output"], 1);
    // Of a debounce it supersedes what is collected: that must not run after it.
    let debounce = json!({ "key": "d", "quiet_seconds": 3600, "within_seconds": 3600 });
    let small = json!({ "flow": "count", "input": 1, "debounce": debounce });
    let path = jobs.post("/v1/jobs", small).await.location.unwrap();
    let big = json!({ "flow": "count", "input": "x".repeat(5_000), "debounce": debounce });
    let id = jobs.post("/v1/jobs", big).await.text("id").to_owned();
    loop {
        let shown = jobs.get(&path).await.body;
        if shown["generation"] == 1 {
            assert_eq!(shown["open"], 0);
            let made = &shown["made"][0];
            assert_eq!(
                (&made["job"], &made["why"], &made["items"]),
                (&json!(id), &json!("overtaken"), &json!(2))
            );
            break;
        }
        tokio::task::yield_now().await;
    }
    let both = json!({ "flow": "count", "batch": { "key": "k", "max": 3, "within_seconds": 60 }, "debounce": { "key": "k", "quiet_seconds": 1, "within_seconds": 60 } });
    assert_eq!(jobs.post("/v1/jobs", both).await.text("field"), "debounce");
    let none = json!({ "flow": "count", "batch": { "key": "k", "max": 0, "within_seconds": 60 } });
    assert_eq!(jobs.post("/v1/jobs", none).await.text("field"), "batch.max");
    jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_made_for_a_tenant_whose_name_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    let image = json!({ "spec": { "containers": [{ "name": "main", "image": "i" }] } });
    let doors = [
        (Method::POST, "/v1/jobs", json!({ "flow": "greet", "input": { "name": "ada" } })),
        (Method::PUT, "/v1/gates/g", json!({ "limit": 1 })),
        (Method::PUT, "/v1/limits/echo", json!({ "rate": "10/s" })),
        (Method::PUT, "/v1/schedules/s", json!({ "flow": "greet", "every_seconds": 60 })),
        (Method::PUT, "/v1/agents/a", json!({})),
        (Method::POST, "/v1/agents/a/turns", json!({ "message": "x" })),
        (Method::POST, "/v1/tasks", json!({ "template": image })),
    ];
    let operator = jobs.key(None, &Scope::ALL).await;
    for name in ["acme/x", "*/x", "a b", "none", "a\u{1b}[2J", "", &"a".repeat(129)] {
        for (method, path, body) in &doors {
            let mut body = body.clone();
            body["tenant"] = json!(name);
            let refused = jobs.with_key(method.clone(), path, &operator, body).await;
            let told = (refused.status, refused.text("field").to_owned());
            assert_eq!(told, (422, "tenant".to_owned()), "{method} {path} {name:?}: {refused:?}");
        }
    }
    for name in ["acme%2Fx", "a%20b", "*"] {
        let path = format!("/v1/tasks/budgets/{name}");
        let refused = jobs.with_key(Method::PUT, &path, &operator, json!({ "burst": 1 })).await;
        assert_eq!((refused.status, refused.text("field")), (422, "tenant"), "{refused:?}");
    }
    // What an earlier version stored under such a name can be looked for.
    for name in ["acme%2Fx", "a%20b"] {
        let listed = jobs
            .with_key(Method::GET, &format!("/v1/jobs?tenant={name}"), &operator, Value::Null)
            .await;
        assert_eq!(listed.status, 200, "{listed:?}");
        let none = jobs
            .with_key(Method::GET, &format!("/v1/gates/g?tenant={name}"), &operator, Value::Null)
            .await;
        assert_eq!(none.status, 404, "{none:?}");
    }
    jobs.stop().await;
}
