//! The crash windows of a tool step, with real processes: a worker ends itself at a named point, another one
//! takes over, and the outside world says how often it happened.
//!
//! | window | where the worker dies | what becomes of the call |
//! |---|---|---|
//! | W1 | before `started` is durable | it runs once |
//! | W2 | started, no effect recorded | unknown: the class settles it |
//! | W3 | effect recorded in a separate store, no event | caught up, the tool is not called |
//! | W4, W5 | the event is committed | injected |

use crate::{
    lab::{Hand, Lab},
    support::{fast, own_database},
};
use rustix::process::Signal;
use serde_json::{Value, json};
use tenure_steps::events::Verdict;

fn act(class: &str) -> Value {
    json!([{ "act": { "class": "idempotent", "name": "first" } }, { "act": { "class": class, "name": "it" } },
           { "act": { "class": "idempotent", "name": "last" } }])
}

/// How a job goes on by itself after its worker was lost.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Goes {
    /// To its end.
    On,
    /// To `attention`, where a person says this.
    Asks(Verdict),
}

struct Case {
    /// Where the first worker ends itself, and at which passage.
    point: &'static str,
    class: &'static str,
    goes: Goes,
    /// How often the outside was asked to act for "it", and how often that was undone.
    acts: (u32, u32),
    separate_effects: bool,
}

const fn case(point: &'static str, class: &'static str, goes: Goes, acts: (u32, u32)) -> Case {
    Case { point, class, goes, acts, separate_effects: false }
}

/// Three steps, one call each; the second is the one that is struck. In the passages of a first worker that runs
/// the job from its claim: claimed 1, replayed 1, commits: 1 starts step 1, 2 ends it and starts step 2, 3 ends that.
const CASES: &[Case] = &[
    // W1: nothing was started.
    case("claimed:1", "idempotent", Goes::On, (1, 0)),
    case("claimed:1", "verifiable", Goes::On, (1, 0)),
    case("claimed:1", "compensatable", Goes::On, (1, 0)),
    case("claimed:1", "irreversible", Goes::On, (1, 0)),
    case("replayed:1", "irreversible", Goes::On, (1, 0)),
    case("after_commit:1", "irreversible", Goes::On, (1, 0)),
    // W2: started, and not called.
    case("before_call:2", "idempotent", Goes::On, (1, 0)),
    case("before_call:2", "verifiable", Goes::On, (1, 0)),
    case("before_call:2", "compensatable", Goes::On, (1, 0)),
    case("before_call:2", "irreversible", Goes::Asks(Verdict::DidNotHappen), (1, 0)),
    // W2: called, and nothing recorded.
    case("after_call:2", "idempotent", Goes::On, (2, 0)),
    case("after_call:2", "verifiable", Goes::On, (1, 0)),
    case("after_call:2", "compensatable", Goes::On, (2, 1)),
    case("after_call:2", "irreversible", Goes::Asks(Verdict::Happened), (1, 0)),
    // W3: the effect lies in a directory, and no event names it.
    Case { separate_effects: true, ..case("after_effect:2", "idempotent", Goes::On, (1, 0)) },
    Case { separate_effects: true, ..case("after_effect:2", "compensatable", Goes::On, (1, 0)) },
    Case { separate_effects: true, ..case("after_effect:2", "irreversible", Goes::On, (1, 0)) },
    Case { separate_effects: true, ..case("after_effect:2", "verifiable", Goes::On, (1, 0)) },
    // The separate store does not help before it has the effect.
    Case {
        separate_effects: true,
        ..case("after_call:2", "irreversible", Goes::Asks(Verdict::Happened), (1, 0))
    },
    // W4 and W5: committed.
    case("after_commit:3", "idempotent", Goes::On, (1, 0)),
    case("after_commit:3", "verifiable", Goes::On, (1, 0)),
    case("after_commit:3", "compensatable", Goes::On, (1, 0)),
    case("after_commit:3", "irreversible", Goes::On, (1, 0)),
];

async fn strike(case: &Case, database: Option<&str>) {
    let name =
        format!("{} {} on {}", case.point, case.class, database.map_or("sqlite", |_| "postgres"));
    let more: &[&str] =
        if case.separate_effects { &["effects.directory=SCRATCH/effects"] } else { &[] };
    let lab = Lab::open(database, more).await;
    let mut first = lab.doomed_worker(case.point);
    let job = lab.script(act(case.class)).await;
    first.ended().await;
    let _second = lab.worker();
    if let Goes::Asks(verdict) = case.goes {
        let state = lab.until(job, "attention").await;
        assert_eq!(state.attention.unwrap().reason, "unknown_outcome", "{name}");
        let result = match verdict {
            Verdict::Happened => json!({ "name": "it", "key": state.calls[0].key }),
            _ => Value::Null,
        };
        lab.resolve(job, "2", verdict, result).await;
    }
    let state = lab.until(job, "completed").await;
    let output = state.output.unwrap();
    assert_eq!(output.as_array().unwrap().len(), 3, "{name}");
    assert_eq!(output[1]["name"], "it", "{name}");
    let done = lab.outside.done();
    let all = |n: &str| done.values().filter(|d| d.name == n).map(|d| d.acts).sum::<u32>();
    let undone: u32 = done.values().map(|d| d.undone).sum();
    assert_eq!((all("it"), undone), case.acts, "{name}:\n{}", lab.story(job).await);
    assert_eq!((all("first"), all("last")), (1, 1), "{name}: neighbours are injected, not called");
    let idempotent = case.class == "idempotent";
    assert!(idempotent || done.values().all(|d| d.acts - d.undone <= 1), "{name}: {done:?}");
    assert_eq!(lab.count(job, "command_committed").await, 3, "{name}");
    // A machine that stands still for a lease costs the second worker its tenure, too; that is no reason to do anything twice.
    assert!(state.takeovers >= 1, "{name}");
    if case.separate_effects && case.point.starts_with("after_effect") {
        let unknown = lab.count(job, "effect_unknown").await;
        assert!((1..=state.takeovers as usize).contains(&unknown), "{name}: {unknown} times");
        let effects = lab.dir().join("effects");
        let recorded = lab
            .events(job)
            .await
            .into_iter()
            .filter(|e| e.name == "tool_invocation_finished")
            .nth(1)
            .unwrap();
        let recorded: Value = serde_json::from_slice(recorded.body.inline().unwrap()).unwrap();
        let key = recorded["key"].as_str().unwrap();
        let files = std::fs::read_dir(effects).unwrap().map(|f| f.unwrap().path());
        let file = files.into_iter().find(|f| f.to_string_lossy().contains(key)).unwrap();
        let kept = std::fs::read(file).unwrap();
        assert_eq!(
            kept,
            tenure_steps::canonical::bytes(&recorded["result"]),
            "{name}: the same bytes"
        );
    }
    lab.close().await;
}

async fn all(database: Option<&str>, cases: impl Iterator<Item = &'static Case>) {
    // A few at a time: most of it is waiting for leases.
    let mut running = tokio::task::JoinSet::new();
    let database = database.map(str::to_owned);
    for case in cases {
        if running.len() >= 5 {
            running.join_next().await.unwrap().unwrap();
        }
        let database = database.clone();
        running.spawn(async move { strike(case, database.as_deref()).await });
    }
    while let Some(done) = running.join_next().await {
        done.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn every_crash_window_on_sqlite() {
    all(None, CASES.iter()).await;
}

/// One case at a time: they share a database, and a server serves what it finds there.
#[test]
fn every_crash_window_on_postgres() {
    let cases: Vec<&Case> =
        CASES.iter().filter(|c| !fast() || c.point.starts_with("after_call")).collect();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build();
    let runtime = runtime.unwrap();
    let databases: Vec<_> = (0..cases.len()).map(|i| own_database(&format!("window{i}"))).collect();
    for (group, dbs) in cases.chunks(5).zip(databases.chunks(5)) {
        runtime.block_on(async {
            let runs = group.iter().zip(dbs).map(|(case, db)| strike(case, Some(&db.url)));
            futures_util::future::join_all(runs).await;
        });
    }
}

/// A job that ends the process of every worker that runs it is stopped with its reason, and costs no more workers, however often its
/// tools may be called again.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_job_that_kills_its_workers_is_given_up() {
    let lab = Lab::open(None, &["executor.retry_max=50"]).await;
    // The first of them registers the flow, so it is there before the job is submitted.
    let mut first = lab.doomed_worker("before_call:1");
    let job = lab.script(json!([{ "act": { "class": "idempotent", "name": "deadly" } }])).await;
    first.ended().await;
    for _ in 1..6 {
        lab.doomed_worker("before_call:1").ended().await;
    }
    let state = lab.until(job, "failed").await;
    let failure = state.failure.unwrap();
    assert_eq!(failure.reason, "takeovers_spent");
    assert!(failure.error.contains("6 workers were lost in a row"), "{}", failure.error);
    // The next worker has others to serve, and never meets it.
    let _bystander = lab.worker();
    let other = lab.script(json!([{ "act": { "class": "idempotent", "name": "fine" } }])).await;
    lab.until(other, "completed").await;
    assert_eq!(lab.outside.count("deadly"), 0);
    lab.close().await;
}

async fn stopped(lab: &Lab, point: &str, class: &str) -> (Hand, tenure::kernel::ids::EntityId) {
    let first = lab.doomed_worker(&format!("{point}:stop"));
    let job = lab.script(act(class)).await;
    first.until_said(&format!("drill: {point}")).await;
    (first, job)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_worker_that_was_stopped_before_the_call_does_not_call_when_it_wakes_up() {
    let lab = Lab::open(None, &[]).await;
    let (first, job) = stopped(&lab, "before_call:2", "irreversible").await;
    let _second = lab.worker();
    let key = lab.until(job, "attention").await.calls[0].key.clone();
    first.send(Signal::CONT);
    first.until_said("lost to another worker").await;
    // It says that it never made the call: another one is made under another key, and nobody is asked.
    lab.until(job, "completed").await;
    assert!(!lab.outside.done().contains_key(&key), "the stopped worker did not act late");
    assert_eq!(lab.outside.count("it"), 1);
    let settled = lab.events(job).await.into_iter().find(|e| e.name == "effect_settled").unwrap();
    let settled: Value = serde_json::from_slice(settled.body.inline().unwrap()).unwrap();
    assert_eq!(
        (&settled["by"], &settled["verdict"]),
        (&json!("evidence"), &json!("did_not_happen"))
    );
    lab.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_result_that_comes_late_settles_what_was_unknown() {
    let lab = Lab::open(None, &[]).await;
    let (first, job) = stopped(&lab, "after_call:2", "irreversible").await;
    let _second = lab.worker();
    lab.until(job, "attention").await;
    first.send(Signal::CONT);
    let state = lab.until(job, "completed").await;
    assert_eq!(state.output.unwrap()[1]["name"], "it");
    assert_eq!(lab.outside.count("it"), 1);
    let settled = lab.events(job).await.into_iter().find(|e| e.name == "effect_settled").unwrap();
    let settled: Value = serde_json::from_slice(settled.body.inline().unwrap()).unwrap();
    assert_eq!(settled["by"], "evidence");
    lab.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_probe_that_finds_no_trace_does_not_conclude_while_the_worker_may_wake_up() {
    let lab = Lab::open(None, &[]).await;
    let (mut first, job) = stopped(&lab, "before_call:2", "verifiable").await;
    let _second = lab.worker();
    let state = lab.until(job, "attention").await;
    let why = state.attention.unwrap();
    assert!(why.why.contains("not known to be dead"), "{}", why.why);
    assert!(why.again_in_ms.is_some());
    assert_eq!(lab.outside.count("it"), 0);
    // Killed, it is known to be dead: somebody looks again and goes on.
    first.kill();
    lab.resume(job).await;
    lab.until(job, "completed").await;
    assert_eq!(lab.outside.count("it"), 1);
    lab.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_worker_that_is_asked_to_end_finishes_what_runs_and_gives_back_the_rest() {
    let lab = Lab::open(None, &[]).await;
    let mut first = lab.worker();
    lab.outside.hold_answers_to("it");
    let job = lab.script(act("irreversible")).await;
    lab.outside.until("it", 1).await;
    first.send(Signal::TERM);
    first.until_said("asked to end").await;
    lab.outside.answer_all();
    assert!(first.ended().await.success());
    let state = lab.state(job).await;
    assert!(state.calls.is_empty(), "what ran was recorded: {state:?}");
    let _second = lab.worker();
    let state = lab.until(job, "completed").await;
    assert_eq!((state.takeovers, lab.outside.count("it")), (0, 1));
    lab.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_signal_that_is_accepted_while_the_worker_is_dead_is_applied_once() {
    let lab = Lab::open(None, &[]).await;
    let mut first = lab.doomed_worker("after_call:1");
    let act = |name: &str| json!({ "act": { "class": "verifiable", "name": name } });
    let job = lab.script(json!([act("a"), { "signal": "go" }, act("b")])).await;
    first.ended().await;
    lab.signal(job, "go", json!(1)).await;
    lab.signal(job, "go", json!(2)).await;
    let _second = lab.worker();
    let state = lab.until(job, "completed").await;
    assert_eq!(state.output.unwrap()[1], json!(1));
    assert_eq!(lab.count(job, "wait_completed").await, 1);
    assert_eq!((lab.outside.count("a"), lab.outside.count("b")), (1, 1));
    lab.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_cancel_reaches_a_job_whose_worker_is_dead_and_lists_what_nobody_knows() {
    let lab = Lab::open(None, &[]).await;
    let mut first = lab.doomed_worker("after_call:2");
    let job = lab.script(act("irreversible")).await;
    first.ended().await;
    lab.cancel(job).await;
    let _second = lab.worker();
    lab.until(job, "cancelled").await;
    assert_eq!(lab.outside.count("it"), 1);
    let last = lab.events(job).await.pop().unwrap();
    let last: Value = serde_json::from_slice(last.body.inline().unwrap()).unwrap();
    assert_eq!(last["unknown"], json!(["2"]), "{last}");
    lab.close().await;
}
