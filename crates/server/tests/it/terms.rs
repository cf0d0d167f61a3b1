//! When and where a job may run, over HTTP: gates, later starts, queues and what a worker can. Each test is a sentence
//! of docs/api.md.

use crate::jobs_support::{Answered, Jobs, is_by, start};
use reqwest::Method;
use serde_json::{Value, json};
use tenure_jobs::{
    crew::Crew,
    terms::Serves,
    view::{self, JobDetail},
};
use tenure_kernel::ids::SessionId;
use tenure_server::keys::Scope;

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|w| (*w).to_owned()).collect()
}

async fn submit(jobs: &Jobs, flow: &str, more: Value) -> Answered {
    let mut body = match flow {
        "greet" => json!({ "flow": flow, "input": { "name": "ada" } }),
        _ => json!({ "flow": flow, "input": "go" }),
    };
    let more = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(more);
    jobs.post("/v1/jobs", body).await
}

async fn put(jobs: &Jobs, path: &str, body: Value) -> Answered {
    let headers = [("content-type", "application/json")];
    jobs.send(Method::PUT, path, &headers, Some(body.to_string())).await
}

async fn why(jobs: &Jobs, id: &str) -> String {
    jobs.get(&format!("/v1/jobs/{id}/why")).await.text("why").to_owned()
}

async fn queue(jobs: &Jobs, name: &str) -> Option<Value> {
    let all = jobs.get("/v1/queues").await.body;
    all["queues"].as_array().unwrap().iter().find(|q| q["queue"] == name).cloned()
}

async fn holders_of(jobs: &Jobs, id: &str) -> Vec<SessionId> {
    let detail: JobDetail = view::detail(jobs.store(), id.parse().unwrap()).await.unwrap().unwrap();
    detail.events.iter().filter_map(|e| e.took).collect()
}

fn session(crew: &Crew) -> SessionId {
    crew.local().keeper.id()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_taken_only_by_a_worker_that_serves_its_queue_and_has_what_it_needs() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    // The server's own worker has free slots, and does not serve it.
    let new = submit(&jobs, "greet", json!({ "queue": "night", "needs": ["gpu"] })).await;
    assert_eq!((new.status, new.text("status")), (202, "queued"));
    let id = new.text("id").to_owned();
    let mut half = jobs.hire("half", Serves::new(words(&["night"]), vec![]).unwrap()).await;
    let said = why(&jobs, &id).await;
    assert!(said.contains("no live worker serves queue night (needs gpu)"), "{said}");
    let seen = queue(&jobs, "greet@1/night+gpu").await.unwrap();
    assert_eq!((&seen["depth"], &seen["workers"]), (&json!(1), &json!(0)), "{seen}");
    assert_eq!((&seen["named"], &seen["needs"]), (&json!("night"), &json!(["gpu"])));
    assert_eq!(seen["groups"][0]["tenant"], "default");
    let served = queue(&jobs, "greet@1/night").await.unwrap();
    assert_eq!(served["served_by"][0]["name"], "half", "{served}");
    assert_eq!(queue(&jobs, "greet@1").await.unwrap()["served_by"][0]["name"], "crew");

    let gpu = Serves::new(words(&["night"]), words(&["gpu", "big"])).unwrap();
    let mut whole = jobs.hire("whole", gpu).await;
    jobs.until(&id, "completed").await;
    assert_eq!(holders_of(&jobs, &id).await, [session(&whole)]);
    // What comes now goes there too, as often as one likes; what needs nothing never does.
    for _ in 0..5 {
        let next = submit(&jobs, "greet", json!({ "queue": "night", "needs": ["gpu"] })).await;
        jobs.until(next.text("id"), "completed").await;
        assert_eq!(holders_of(&jobs, next.text("id")).await, [session(&whole)]);
        let plain = submit(&jobs, "greet", json!({})).await;
        jobs.until(plain.text("id"), "completed").await;
        let took = holders_of(&jobs, plain.text("id")).await;
        assert!(!took.contains(&session(&whole)) && !took.contains(&session(&half)));
    }
    half.stop().await;
    whole.stop().await;
    jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_sees_its_own_jobs_in_a_queue_and_no_names_of_workers() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    let scopes = [Scope::Read, Scope::Write];
    let acme = jobs.key(Some("acme"), &scopes).await;
    let other = jobs.key(Some("other"), &scopes).await;
    let body = json!({ "flow": "greet", "input": { "name": "a" }, "needs": ["gpu"] });
    let new = jobs.with_key(Method::POST, "/v1/jobs", &acme, body).await;
    assert_eq!(new.status, 202);
    let seen = |key: String| {
        let jobs = &jobs;
        async move {
            let all = jobs.with_key(Method::GET, "/v1/queues", &key, Value::Null).await.body;
            let all = all["queues"].as_array().unwrap().clone();
            let of = |name: &str| all.iter().find(|q| q["queue"] == name).cloned();
            (of("greet@1+gpu"), of("greet@1").unwrap())
        }
    };
    let (mine, idle) = seen(acme).await;
    assert_eq!(mine.unwrap()["depth"], 1);
    assert_eq!((&idle["workers"], &idle["served_by"]), (&json!(1), &json!([])));
    assert!(seen(other).await.0.is_none());
    jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_is_named_by_jobs_set_by_people_and_shows_who_waits() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    assert_eq!(jobs.get("/v1/gates/narrow").await.status, 404);
    let gate = json!({ "gate": { "name": "narrow", "limit": 1 } });
    let first = submit(&jobs, "listen", gate.clone()).await.text("id").to_owned();
    let holds = |job: &str| {
        let (jobs, job) = (&jobs, job.to_owned());
        async move {
            jobs.until_it(&job, "past the gate", |j| {
                j["gate"].is_null() && j["waits"][0]["key"] == "go"
            })
            .await
        }
    };
    holds(&first).await;
    let second = submit(&jobs, "listen", json!({ "gate": "narrow" })).await.text("id").to_owned();
    let shown = loop {
        let shown = jobs.get("/v1/gates/narrow").await.body;
        if shown["waiting"] == 1 {
            break shown;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!((&shown["limit"], &shown["holders"][0]["job"]), (&json!(1), &json!(first)));
    assert_eq!(shown["next"][0]["job"], json!(second));
    assert_eq!(jobs.get("/v1/gates").await.body["gates"][0]["name"], "narrow");
    let said = why(&jobs, &second).await;
    assert!(said.contains("gate narrow") && said.contains(&first), "{said}");

    let set = put(&jobs, "/v1/gates/narrow", json!({ "limit": 2, "by": "ann" })).await;
    assert_eq!((set.status, &set.body["limit"]), (200, &json!(2)));
    holds(&second).await;
    let shown = jobs.get("/v1/gates/narrow").await.body;
    assert_eq!(shown["limit"], 2);
    assert!(is_by(&shown["set_by"], "ann"), "{shown}");
    assert_eq!(shown["holders"].as_array().map(Vec::len), Some(2));

    for (path, body, field) in [
        ("/v1/gates/narrow", json!({ "limit": 0 }), "limit"),
        ("/v1/gates/narrow", json!({ "limit": 151 }), "limit"),
        ("/v1/gates/narrow", json!({}), "limit"),
        ("/v1/gates/Narrow", json!({ "limit": 1 }), "name"),
    ] {
        let answer = put(&jobs, path, body.clone()).await;
        assert!((400..500).contains(&answer.status), "{body}: {:?}", answer.body);
        assert!(answer.text("field").contains(field), "{body}: {:?}", answer.body);
    }
    assert_eq!(jobs.get("/v1/gates").await.body["gates"].as_array().map(Vec::len), Some(1));
    assert_eq!(jobs.get("/v1/gates/narrow").await.body["limit"], 2);
    jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_starts_no_sooner_than_it_was_told() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    for later in
        [json!({ "start_in_seconds": 86_400 }), json!({ "start_at": "2100-01-01T00:00:00Z" })]
    {
        if later["start_at"].is_string() {
            // Further away than a start may be.
            let far = submit(&jobs, "greet", later).await;
            assert_eq!((far.status, far.text("field")), (422, "start"));
            continue;
        }
        let id = submit(&jobs, "greet", later).await.text("id").to_owned();
        let job = jobs.get(&format!("/v1/jobs/{id}")).await.body;
        assert_eq!(
            (&job["status"], job["starts_at"].is_null()),
            (&json!("parked"), false),
            "{job}"
        );
        assert!(why(&jobs, &id).await.starts_with("Starts"), "{}", why(&jobs, &id).await);
        assert_eq!(jobs.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await.status, 202);
        jobs.until(&id, "cancelled").await;
    }
    let past = submit(&jobs, "greet", json!({ "start_at": "2001-01-01T00:00:00Z" })).await;
    jobs.until(past.text("id"), "completed").await;
    let soon = submit(&jobs, "greet", json!({ "start_in_seconds": 1 })).await;
    let done = jobs.until(soon.text("id"), "completed").await;
    let took = done["changed_at"].as_i64().unwrap() - done["created_at"].as_i64().unwrap();
    assert!(took >= 1_000_000, "{done}");
    jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn terms_that_can_not_be_kept_name_their_field_and_create_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    let before = jobs.written().await;
    let both = json!({ "start_in_seconds": 5, "start_at": "2030-01-01T00:00:00Z" });
    for (field, terms) in [
        ("start", json!({ "start_in_seconds": 366_u64 * 24 * 3_600 + 1 })),
        ("start_in_seconds", json!({ "start_in_seconds": -1 })),
        ("start_at", json!({ "start_at": "tomorrow" })),
        ("start_at", both),
        ("gate", json!({ "gate": "Narrow Gate" })),
        ("gate", json!({ "gate": { "name": "narrow", "limit": 0 } })),
        ("gate", json!({ "gate": { "name": "narrow", "limt": 5 } })),
        ("gate", json!({ "gate": 7 })),
        ("queue", json!({ "queue": "a/b" })),
        ("queue", json!({ "queue": "" })),
        ("needs", json!({ "needs": ["gpu+big"] })),
        ("needs", json!({ "needs": ["a", "b", "c", "d", "e"] })),
        ("needs", json!({ "needs": "gpu" })),
    ] {
        let answer = submit(&jobs, "greet", terms.clone()).await;
        assert!((400..500).contains(&answer.status), "{terms}: {:?}", answer.body);
        assert!(answer.text("field").contains(field), "{terms}: {:?}", answer.body);
    }
    // Of a schedule they are the same, with the same names.
    for (field, terms) in [
        ("terms.need", json!({ "need": ["gpu"] })),
        ("terms.start_in_ms", json!({ "start_in_ms": 5 })),
        ("terms.tell", json!({ "tell": "0190b5e0-1234-7abc-8def-001122334455" })),
        ("terms.gate", json!({ "gate": { "name": "narrow", "limt": 5 } })),
        ("terms.gate", json!({ "gate": "Narrow Gate" })),
        ("terms.queue", json!({ "queue": "a/b" })),
        ("terms.start", json!({ "start_in_seconds": 366_u64 * 24 * 3_600 + 1 })),
    ] {
        let body = json!({ "every_seconds": 60, "flow": "greet", "input": { "name": "ada" }, "terms": terms });
        let answer = put(&jobs, "/v1/schedules/s", body.clone()).await;
        assert_eq!((answer.status, answer.text("field")), (422, field), "{:?}", answer.body);
    }
    assert_eq!(jobs.written().await, before);
    assert_eq!(jobs.get("/v1/gates").await.body["gates"], json!([]));
    let terms = json!({ "start_in_seconds": 5, "gate": { "name": "narrow", "limit": 2 }, "queue": "night", "needs": ["gpu"] });
    let body =
        json!({ "every_seconds": 60, "flow": "greet", "input": { "name": "ada" }, "terms": terms });
    let set = put(&jobs, "/v1/schedules/s", body).await;
    assert_eq!((set.status, &set.body["terms"]), (200, &terms), "{:?}", set.body);
    jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_queue_hides_no_other() {
    use tenure_jobs::view::queues::JOBS_MAX;
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    let many = |queue: &str, count: usize| {
        let (jobs, queue) = (&jobs, json!({ "queue": queue }));
        async move {
            for _ in 0..count.div_ceil(100) {
                let some = (0..count.min(100)).map(|_| submit(jobs, "greet", queue.clone()));
                for made in futures_util::future::join_all(some).await {
                    assert_eq!(made.status, 202, "{made:?}");
                }
            }
        }
    };
    // Where nobody reads: in the middle. And where one look comes to.
    many("long", JOBS_MAX).await;
    many("hidden", 1).await;
    many("long", JOBS_MAX).await;
    many("short", 1).await;
    let all = jobs.get("/v1/queues").await.body;
    assert_eq!(all["complete"], json!(true), "none is missed");
    let hidden = queue(&jobs, "greet@1/hidden").await.expect("it is listed");
    assert_eq!((&hidden["depth"], &hidden["counted_all"]), (&json!(1), &json!(false)), "{hidden}");
    let long = queue(&jobs, "greet@1/long").await.unwrap();
    assert!(long["depth"].as_u64().unwrap() >= JOBS_MAX as u64, "{long}");
    assert_eq!(long["counted_all"], json!(false));
    assert_eq!(queue(&jobs, "greet@1/short").await.unwrap()["depth"], json!(1));
    let named = |query: &str| {
        let (jobs, path) = (&jobs, format!("/v1/queues?queue={query}"));
        async move { jobs.get(&path).await.body["queues"][0].clone() }
    };
    let hidden = named("greet@1/hidden").await;
    assert_eq!((&hidden["depth"], &hidden["counted_all"]), (&json!(1), &json!(false)), "{hidden}");
    assert_eq!(hidden["workers"], json!(0));
    assert_eq!(named("greet@1/nowhere").await["depth"], json!(0));
    // Another tenant has much, and does not learn where others wait.
    let key = jobs.key(Some("c"), &[Scope::Read]).await;
    for _ in 0..JOBS_MAX.div_ceil(100) {
        let some =
            (0..100).map(|_| submit(&jobs, "greet", json!({ "queue": "own", "tenant": "c" })));
        futures_util::future::join_all(some).await;
    }
    let theirs = jobs.with_key(Method::GET, "/v1/queues", &key, Value::Null).await.body;
    let names: Vec<&str> = theirs["queues"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|q| q["depth"] != json!(0))
        .map(|q| q["queue"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["greet@1/own"]);
    let seen = |name: &str| theirs["queues"].as_array().unwrap().iter().any(|q| q["queue"] == name);
    assert!(!seen("greet@1/hidden") && !seen("greet@1/long"), "{theirs}");
    // Of a tenant with less, everything is read.
    submit(&jobs, "greet", json!({ "queue": "short", "tenant": "b" })).await;
    let theirs = named("greet@1/short&tenant=b").await;
    assert_eq!((&theirs["depth"], &theirs["counted_all"]), (&json!(1), &json!(true)), "{theirs}");
    jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_is_seen_behind_hundreds_that_only_take_calls() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = start(dir.path()).await;
    for n in 0..201 {
        let offer = json!({ "name": format!("w{n}"), "tools": [{ "name": "far" }] });
        assert_eq!(jobs.post("/v1/calls/sessions", offer).await.status, 201);
    }
    let mut late = jobs.hire("late", Serves::new(words(&["night"]), vec![]).unwrap()).await;
    let seen = queue(&jobs, "greet@1/night").await.unwrap();
    assert_eq!((&seen["workers"], &seen["served_by"][0]["name"]), (&json!(1), &json!("late")));
    late.stop().await;
    jobs.stop().await;
}
