//! Tasks as people meet them: typed at a terminal, and pressed in the console. A server in this process, no cluster; what
//! a collector would say is posted by hand.

use crate::{
    console::{World, administrators_key, settings},
    console_cdp::Tab,
    support::{complained, run, said},
};
use serde_json::{Value, json};
use std::process::Output;
use tempfile::TempDir;
use tenure_kubedouble::{Cluster, Fault, On, Times};
use tenure_lab::lab_process::lab_program;
use tenure_pods::{pod::name_of_attempt, report::task_of_label};
use tenure_proving::patience;

struct Town {
    world: World,
    dir: TempDir,
    store: String,
    key: String,
}

impl Town {
    async fn start() -> Self {
        Self::start_with(&["pods.backoff_seconds=300", "pods.retry_app=1"]).await
    }

    async fn start_with(more: &[&str]) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let served = lab_program().serve(&settings(&home, more), true).await.expect("it starts");
        let dir = tempfile::tempdir().expect("a directory");
        let store = format!("sqlite:{}", home.path().join("store").display());
        let key = administrators_key(&served).await;
        Town { world: World::around(served, home).await, dir, store, key }
    }

    fn type_in(&self, args: &[&str]) -> Output {
        let url = self.world.service.url();
        let mut all = args.to_vec();
        all.extend(["--server", &url, "--api-key", &self.key]);
        tokio::task::block_in_place(|| run(&all, self.dir.path()))
    }

    fn typed(&self, args: &[&str]) -> String {
        let output = self.type_in(args);
        assert!(output.status.success(), "{args:?}: {}{}", said(&output), complained(&output));
        said(&output)
    }

    fn json(&self, args: &[&str]) -> Value {
        let mut all = args.to_vec();
        all.push("--json");
        serde_json::from_str(&self.typed(&all)).unwrap_or_else(|e| panic!("{args:?}: {e}"))
    }

    /// A collector's word about the pod of an attempt.
    async fn report(&self, task: &str, attempt: u32, verdict: Value) -> String {
        let mut whole = json!({ "rule": "terminated.nonzero", "since": 1_700_000_000_000_000_i64 });
        whole.as_object_mut().expect("an object").extend(verdict.as_object().expect("one").clone());
        let over = whole["status"] != "RUNNING";
        let shown = self.json(&["task", "show", task]);
        let text = |field: &str| shown[field].as_str().expect("a text").to_owned();
        let (workflow, name) = (text("workflow_id"), text("name"));
        let name = name_of_attempt(task_of_label(task), attempt, &workflow, &name);
        let report = json!({
            "task_id": task, "tenant_id": "default", "attempt": attempt, "verdict": whole, "over": over, "seen_at": 1,
            "pod": { "namespace": "ml", "name": name, "uid": format!("{task}-{attempt}"), "node": "node-a" },
        });
        let body = json!({ "reports": [report] });
        let url = format!("{}/v1/tasks/reports", self.world.service.url());
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        let request = client.post(url).header("content-type", "application/json");
        let answer = request.body(body.to_string()).send().await.expect("an answer");
        let answer = answer.bytes().await.expect("a body");
        let answer: Value = serde_json::from_slice(&answer).expect("JSON");
        answer["answers"][0]["outcome"].as_str().expect("an outcome").to_owned()
    }

    async fn until(&self, id: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        patience::until(&format!("{id} to be {what}"), async || {
            holds(&self.json(&["task", "show", id]))
        })
        .await;
        self.json(&["task", "show", id])
    }
}

fn template() -> String {
    json!({ "spec": { "containers": [{ "name": "main", "image": "busybox" }] } }).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_run_shown_explained_retried_and_dealt_with_at_a_terminal() {
    let town = Town::start().await;
    assert!(town.typed(&["task", "list"]).contains("no such tasks"));
    let bad = town.type_in(&["task", "run", "{\"spec\": {}}"]);
    assert!(complained(&bad).contains("which  template.spec.containers"), "{}", complained(&bad));
    let ordered = town.typed(&["task", "run", &template(), "--name", "train", "--key", "k"]);
    let id = ordered.lines().next().expect("an id").to_owned();
    assert!(ordered.contains("tenure task watch"), "{ordered}");
    let again = town.typed(&["task", "run", &template(), "--name", "train", "--key", "k"]);
    assert!(again.starts_with(&id) && again.contains("ordered before"), "{again}");
    town.until(&id, "wanted", |t| t["tended"]["status"] == "wanted").await;
    let why = town.typed(&["task", "why", &id[..30]]);
    assert!(why.contains("for an executor to make its pod (attempt 1)"), "{why}");
    assert_eq!(town.report(&id, 1, json!({ "status": "RUNNING" })).await, "accepted");
    town.until(&id, "running", |t| t["status"] == "RUNNING").await;
    let end = json!({ "status": "FAILED", "cause": "app_error", "class": "app", "exit_code": 2, "retryable": true });
    assert_eq!(town.report(&id, 1, end.clone()).await, "accepted");
    assert_eq!(town.report(&id, 1, end.clone()).await, "duplicate");
    town.until(&id, "retrying", |t| t["status"] == "RETRYING").await;
    let shown = town.typed(&["task", "show", &id]);
    for words in [
        "attempt 1",
        "ml/ff-train-1-",
        " on node-a",
        "exit code 2",
        "rule terminated.nonzero",
        "task_retry",
    ] {
        assert!(shown.contains(words), "{words:?} in {shown}");
    }
    assert!(town.typed(&["task", "retry", &id]).contains("accepted"));
    town.until(&id, "at its second attempt", |t| t["attempt"] == 2).await;
    let early = town.type_in(&["task", "retry", &id]);
    assert!(complained(&early).contains("does not wait"), "{}", complained(&early));
    town.report(&id, 2, end).await;
    town.until(&id, "failed", |t| t["status"] == "FAILED").await;
    let dead = town.typed(&["task", "dead-letters", "--cause", "app_error"]);
    assert!(dead.contains(&id) && dead.contains("app_error"), "{dead}");
    let told = town.typed(&["task", "timeline", &id]);
    for words in ["ordered", "attempt 2: an executor is asked", "ends: FAILED", "a place"] {
        assert!(told.contains(words), "{words:?} in {told}");
    }
    let watched = town.typed(&["task", "watch", &id]);
    assert!(watched.contains("the task is FAILED"), "{watched}");
    let budget = town.typed(&["task", "budget"]);
    assert!(budget.contains("default") && budget.contains("settings"), "{budget}");
    let set = town.typed(&["task", "budget", "default", "--per-minute", "9", "--by", "ada"]);
    assert!(set.contains("9 retries a minute") && set.contains("set by ada"), "{set}");
    assert!(town.typed(&["task", "budget", "default", "--clear"]).contains("(settings)"));
    let replayed = town.typed(&["task", "retry", &id]);
    assert!(replayed.contains("ordered once more"), "{replayed}");
    let new = replayed.lines().next().expect("an id").to_owned();
    assert!(town.typed(&["task", "dead-letters"]).contains("no dead letters"));
    assert!(town.typed(&["task", "show", &id]).contains(&format!("replayed as  {new}")));
    town.typed(&["task", "cancel", &new, "--why", "enough", "--by", "ada"]);
    town.until(&new, "cancelled", |t| t["status"] == "CANCELED").await;
    assert!(town.typed(&["task", "why", &new]).contains("Cancelled by ada"));
    assert_eq!(town.typed(&["task", "logs", &new, "--follow"]), "");
    let listed = town.typed(&["task", "list", "--status", "failed,canceled"]);
    assert!(listed.contains(&id) && listed.contains(&new), "{listed}");
    town.typed(&["task", "discard", &id]);
    let rules = said(&run(&["rules", "--store", &town.store], town.dir.path()));
    assert!(rules.contains("task_fence") && rules.contains("pods.fence_seconds = 1800"), "{rules}");
}

/// Publishes as a collector does that knows nothing but FlowForge's fields.
#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_only_publishes_is_heard_again_after_redis_was_away() {
    use tenure_bell::redis::{EventChannel, RedisOptions};
    let mut redis = tenure_proving::redis::RedisServer::start();
    let home = tempfile::tempdir().expect("a directory");
    let addresses = format!("redis.addresses={}", redis.address());
    let served = lab_program().serve(&settings(&home, &[&addresses]), false).await;
    let store = format!("sqlite:{}", home.path().join("store").display());
    let dir = tempfile::tempdir().expect("a directory");
    let served = served.expect("it starts");
    let key = administrators_key(&served).await;
    let town = Town { world: World::around(served, home).await, dir, store, key };
    let rt: tenure_kernel::runtime::Rt = std::sync::Arc::new(tenure_edge::TokioRuntime::current());
    let channel = EventChannel::start(&RedisOptions::new(redis.address()), rt).expect("a channel");
    let publish = async |task: &str, status: &str| {
        let data =
            json!({ "task_id": task, "workflow_id": "wf", "status": status, "exit_code": 0 });
        let said = json!({ "type": "task_status", "timestamp": 1_700_000_000, "data": data });
        // The number of those who hear it is 0 until the server listens.
        patience::until("somebody who listens", async || {
            channel.publish("ff:events:task", said.to_string()).await.is_ok_and(|heard| heard > 0)
        })
        .await;
    };
    publish("their-1", "RUNNING").await;
    let there = |id: &'static str| {
        let town = &town;
        async move { town.world.get(&format!("/v1/tasks/{id}")).await.0.is_success() }
    };
    patience::until("the task", async || there("their-1").await).await;
    publish("their-1", "SUCCEEDED").await;
    let done = town.until("their-1", "over", |t| t["status"] == "SUCCEEDED").await;
    assert_eq!(
        (&done["external"], &done["attempts"][0]["ended"]["exit_code"]),
        (&json!(true), &json!(0))
    );
    redis.kill();
    redis.start_again();
    publish("their-2", "FAILED").await;
    patience::until("the second task", async || there("their-2").await).await;
    town.until("their-2", "over", |t| t["status"] == "FAILED").await;
    town.world.service.stop().await.expect("it stops");
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_have_pages_that_escape_what_pods_say_and_buttons_that_do_what_they_say() {
    let town = Town::start().await;
    let (_, empty) = town.world.get("/tasks").await;
    assert!(empty.contains("No task yet"), "{empty}");
    let evil = "<img src=x onerror=alert(2)>";
    let ordered =
        town.typed(&["task", "run", &template(), "--name", evil, "--workflow", "nightly"]);
    let id = ordered.lines().next().expect("an id").to_owned();
    town.report(&id, 1, json!({ "status": "RUNNING" })).await;
    town.until(&id, "running", |t| t["status"] == "RUNNING").await;
    let end = json!({
        "status": "FAILED", "cause": "oom", "class": "oom", "exit_code": 137, "signal": 9, "retryable": true,
        "reason": "OOMKilled", "message": "<script>alert(1)</script>",
    });
    town.report(&id, 1, end).await;
    town.until(&id, "retrying", |t| t["status"] == "RETRYING").await;
    let (_, list) = town.world.get("/tasks").await;
    assert!(list.contains(&format!("/tasks/{id}")) && !list.contains("<img src=x"), "{list}");
    let (_, page) = town.world.get(&format!("/tasks/{id}")).await;
    assert!(!page.contains("<script>alert(1)") && !page.contains("<img src=x"), "{page}");
    for words in [
        "&lt;script&gt;alert(1)",
        "oom",
        "exit 137",
        "signal 9",
        "OOMKilled",
        "Retry now",
        "data-until",
        "task_retry",
        "terminated.nonzero",
        "ml/ff-nightly-",
        "on node-a",
        "nightly",
        "Cancel",
    ] {
        assert!(page.contains(words), "{words:?} in {page}");
    }
    let profile = town.dir.path().join("profile");
    let Some(mut tab) = Tab::unless_fast(&profile).await else { return };
    let url = town.world.service.url();
    tab.go_live(&format!("{url}/tasks/{id}")).await;
    tab.picture("task-retrying").await;
    tab.click("#moves button.go").await;
    tab.until("document.querySelector('#attempts tbody tr:nth-child(2)')").await;
    let end = json!({ "status": "FAILED", "cause": "rejected_spec", "class": "config" });
    town.report(&id, 2, end).await;
    // Live: the page that is open shows the end.
    tab.until("document.querySelector('.pill.big.failed')").await;
    tab.go(&format!("{url}/tasks/{id}")).await;
    tab.picture("task-failed").await;
    tab.click("#moves button.go").await;
    tab.until("location.search === '?did=replay'").await;
    tab.until("document.querySelector('.pill.big.queued')").await;
    tab.go_live(&format!("{url}/tasks")).await;
    tab.until("document.querySelector('#budgets table')").await;
    tab.picture("tasks").await;
    assert_eq!(tab.complaints, Vec::<String>::new());
}

/// What the cluster does not do is said to whoever asks, and not only to the log of an executor.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_cluster_refuses_is_told_at_the_terminal() {
    let cluster = Cluster::start();
    cluster.add_node("node-1");
    cluster.on_create(|cluster, pod| {
        cluster.bind(pod, "node-1");
        cluster.running(pod);
        cluster.terminate(pod, 3, "Error", "no");
    });
    cluster.forbid("get", "pods/log");
    let quota = cluster.fault(On::create("pods"), Fault::quota_exceeded(), Times::Always);
    let dir = tempfile::tempdir().expect("a directory");
    let kubeconfig = format!("kubernetes.kubeconfig={}", cluster.kubeconfig(dir.path()).display());
    let set =
        ["pods.executor=true", "kubernetes.namespace=default", "pods.retry_app=0", &kubeconfig];
    let town = Town::start_with(&set).await;
    let template = json!({ "spec": { "containers": [{ "name": "main", "image": "busybox" }] } });
    let id = town.typed(&["task", "run", &template.to_string(), "--name", "hello"]);
    let id = id.split_whitespace().next().expect("an id").to_owned();
    patience::until("why it is not made", async || {
        let why = town.typed(&["task", "why", &id]);
        why.contains("exceeded quota: compute") && why.contains("its quota is raised")
    })
    .await;
    cluster.clear_fault(quota);
    patience::until("an error instead of an empty log", async || {
        !town.type_in(&["task", "logs", &id]).status.success()
    })
    .await;
    let unread = complained(&town.type_in(&["task", "logs", &id]));
    assert!(unread.contains("the log of attempt 1 cannot be read"), "{unread}");
    assert!(unread.contains("kubectl logs"), "{unread}");
}
