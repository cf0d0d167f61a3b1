//! The world of a case: a cluster that does as it is told, a Redis that is listened to, and executors and collectors as processes.

use super::{
    column,
    witness::{Account, Expected, is_told, judge},
};
use crate::drill::{
    ground::{Ground, until},
    matrix::{Seen, Witnessed},
    points,
    processes::{Hand, Orders, this_program},
    redis::Redis,
};
use reqwest::Client;
use serde_json::{Value, json};
use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use tenure::commands::Failure;
use tenure_edge::TokioRuntime;
use tenure_kernel::runtime::Runtime as _;
use tenure_kubedouble::Cluster;
use tenure_pods::report::labels;

/// The node on which pods run at first.
pub const NODE: &str = "node-1";

/// How long a task may take from its fault to its end. Leases are 1.5 s, pauses after trouble with the API server a few seconds.
const WITHIN: Duration = Duration::from_secs(20);

/// How often a watch hears that nothing has happened.
const BOOKMARKS: Duration = Duration::from_millis(250);

/// The world of a case.
pub struct Town {
    /// The server, and what is shared with others.
    pub ground: Ground,
    /// The cluster.
    pub kube: Cluster,
    /// The Redis, where this machine has one.
    pub redis: Option<Redis>,
    /// Pods that were made by request, in order.
    made: Arc<Mutex<Vec<String>>>,
    kubeconfig: PathBuf,
    name: String,
    hands: AtomicU32,
    http: Client,
}

/// A collector to be started.
#[derive(Clone, Copy, Debug)]
pub struct Looking<'a> {
    /// What it does to itself.
    pub point: Option<&'a str>,
    /// Its spool; `None`: in memory.
    pub spool: Option<&'a str>,
    /// It stands for election.
    pub elected: bool,
}

impl Default for Looking<'_> {
    fn default() -> Self {
        Looking { point: None, spool: Some("spool"), elected: false }
    }
}

/// One attempt that ends well.
pub fn succeeds() -> Expected {
    Expected {
        status: "SUCCEEDED",
        cause: None,
        exit_code: Some(0),
        attempts: 1,
        history: &["pod_wanted", "task_running", "task_succeeded"],
        channel: Some(&["1 RUNNING", "1 SUCCEEDED"]),
        cancelled: false,
        within: WITHIN,
    }
}

/// One that is lost to the cluster, and one that ends well.
pub fn succeeds_again() -> Expected {
    Expected {
        attempts: 2,
        history: &[
            "pod_wanted",
            "task_running",
            "attempt_failed",
            "pod_wanted",
            "task_running",
            "task_succeeded",
        ],
        channel: Some(&["1 RUNNING", "1 FAILED", "2 RUNNING", "2 SUCCEEDED"]),
        ..succeeds()
    }
}

/// An order for a task that is not tried again. Its pod is left to be looked at, however late.
pub fn once() -> Value {
    json!({ "retry": { "app": 0 } })
}

/// One attempt that ends with a code of its own, of a task that is not tried again.
pub fn fails(code: i64) -> Expected {
    Expected {
        status: "FAILED",
        cause: Some("app_error"),
        exit_code: Some(code),
        history: &["pod_wanted", "task_running?", "task_failed"],
        channel: Some(&["1 RUNNING?", "1 FAILED"]),
        ..succeeds()
    }
}

/// One whose pod was made elsewhere, and ended well.
pub fn seen_to_succeed() -> Expected {
    Expected { history: &["pod_seen", "task_running", "task_succeeded"], ..succeeds() }
}

/// One whose pod was made elsewhere, and ended with a code of its own.
pub fn seen_to_fail(code: i64) -> Expected {
    Expected {
        history: &["pod_seen", "task_running", "task_failed"],
        channel: Some(&["1 RUNNING", "1 FAILED"]),
        ..fails(code)
    }
}

/// One that is cancelled while its pod runs.
pub fn canceled() -> Expected {
    Expected {
        status: "CANCELED",
        exit_code: None,
        history: &["pod_wanted", "task_running", "task_canceled"],
        channel: Some(&["1 RUNNING", "1 CANCELED"]),
        cancelled: true,
        ..succeeds()
    }
}

fn failed(why: impl Into<String>) -> Failure {
    Failure::System(why.into())
}

impl Town {
    /// An empty cluster.
    pub async fn open(ground: Ground) -> Result<Self, Failure> {
        let kube = Cluster::start();
        kube.bookmarks_every(BOOKMARKS);
        kube.add_node(NODE);
        let made: Arc<Mutex<Vec<String>>> = Arc::default();
        let noted = made.clone();
        kube.on_create(move |_, pod| lock(&noted).push(pod.to_owned()));
        let redis = match Redis::is_here() {
            true => Some(Redis::start(ground.dir()).await?),
            false => None,
        };
        let kubeconfig = kube.kubeconfig(ground.dir());
        let name = ground.target();
        let http = Client::builder().no_proxy().build().map_err(|e| failed(e.to_string()))?;
        let hands = AtomicU32::new(0);
        Ok(Town { ground, kube, redis, made, kubeconfig, name, hands, http })
    }

    /// The time of this process.
    pub fn mono(&self) -> Duration {
        TokioRuntime::current().mono()
    }

    /// Waits for as long as it takes everybody to notice that something is away.
    pub async fn a_while(&self) {
        tokio::time::sleep(self.ground.base.lease).await;
    }

    // ---- processes ----

    fn process(&self, words: &[&str], more: &[&str], point: Option<&str>) -> Result<Hand, Failure> {
        let base = &self.ground.base;
        let mut sets = base.sets.clone();
        sets.extend(more.iter().map(|s| (*s).to_owned()));
        let mut command = this_program(words, &sets)?;
        let orders = Orders {
            flow: self.ground.flow(),
            point: point.map(str::to_owned),
            broken: base.broken,
            key: base.key.clone(),
            ..Orders::default()
        };
        orders.give(&mut command);
        let number = self.hands.fetch_add(1, Ordering::SeqCst);
        let name = words.first().copied().unwrap_or_default();
        Hand::start(command, self.ground.dir(), &format!("{name}-{number}"))
    }

    /// An executor of this cluster; `point` is what it does to itself. It is ready when this returns: one that still begins gives up when
    /// the server goes away.
    pub async fn executor(&self, point: Option<&str>) -> Result<Hand, Failure> {
        let kubeconfig = self.kubeconfig.display().to_string();
        let words = [
            "executor",
            "--server",
            &self.ground.base.url,
            "--cluster",
            &self.name,
            "--kubeconfig",
            &kubeconfig,
            "--listen",
            "127.0.0.1:0",
        ];
        let mut hand = self.process(&words, &[], point)?;
        hand.until_said("an executor of cluster").await?;
        Ok(hand)
    }

    /// A collector of this cluster, which has seen everything once.
    pub async fn collector(&self, looking: Looking<'_>) -> Result<Hand, Failure> {
        let kubeconfig = self.kubeconfig.display().to_string();
        let redis = self.redis.as_ref().map_or_else(|| "none".to_owned(), Redis::address);
        let spool = match looking.spool {
            Some(name) => self.ground.dir().join(name).display().to_string(),
            None => "none".to_owned(),
        };
        let words = [
            "collector",
            "--mode",
            "cluster",
            "--server",
            &self.ground.base.url,
            "--kubeconfig",
            &kubeconfig,
            "--redis",
            &redis,
            "--spool",
            &spool,
            "--listen",
            "127.0.0.1:0",
        ];
        let lease: &[&str] = if looking.elected { &[] } else { &["collector.lease=none"] };
        let mut hand = self.process(&words, lease, looking.point)?;
        hand.until_said("(Ctrl-C ends it)").await?;
        self.until_page(&hand, "readyz", |_| true).await?;
        Ok(hand)
    }

    /// Waits until a page of a collector is fine and says so.
    async fn until_page(
        &self,
        hand: &Hand,
        page: &str,
        so: impl Fn(&str) -> bool,
    ) -> Result<(), Failure> {
        let said = hand.said();
        let address = said.split_once(" at http://").map_or("", |(_, rest)| rest);
        let address = address.split_whitespace().next().unwrap_or_default();
        let url = format!("http://{address}/{page}");
        let come = until(self.ground.base.patience, || async {
            let answer = self.http.get(&url).send().await.ok()?.error_for_status().ok()?;
            so(&answer.text().await.ok()?).then_some(())
        });
        let words = || failed(format!("/{page} of a collector: {}", hand.last_words()));
        come.await.ok_or_else(words)
    }

    /// Arms the point of a collector, once it has told everything that it has seen.
    pub async fn arm(&self, collector: &Hand) -> Result<(), Failure> {
        let told = |text: &str| text.contains("tenure_collector_spool_depth 0\n");
        self.until_page(collector, "metrics", told).await?;
        Ok(std::fs::write(self.ground.dir().join(points::ARMED), "")?)
    }

    // ---- tasks ----

    /// Orders a task whose pod an executor of this cluster makes. `more` is added to the order.
    pub async fn order(&self, more: Value) -> Result<String, Failure> {
        let mut body = json!({
            "name": "drill",
            "cluster": self.name,
            "key": format!("drill-{:x}", tenure::service::random()),
            "template": { "spec": { "containers": [{ "name": "main", "image": "drill" }] } },
        });
        if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
            body.extend(more);
        }
        let ordered = self.ground.api().post(&["tasks"], &body).await?;
        Ok(ordered["id"].as_str().unwrap_or_default().to_owned())
    }

    /// A pod that somebody else made, which runs; the task that its label names.
    pub fn comes(&self, name: &str) -> Result<String, Failure> {
        let task = format!("{}-{name}", self.name);
        let labels = [
            (labels::WORKLOAD, "true"),
            (labels::TASK_ID, task.as_str()),
            (labels::WORKFLOW_ID, "drill"),
            (labels::TENANT_ID, "drill"),
            (labels::ATTEMPT, "1"),
        ];
        self.kube.add_task(&task, &labels);
        self.runs(&task, NODE)?;
        Ok(task)
    }

    /// The pod that was made as the n-th by request.
    pub async fn pod(&self, nth: usize) -> Result<String, Failure> {
        let found =
            until(self.ground.base.patience, || async { lock(&self.made).get(nth - 1).cloned() });
        found.await.ok_or_else(|| failed(format!("there was never a pod number {nth}")))
    }

    /// How many pods were made by request.
    pub fn pods_made(&self) -> usize {
        lock(&self.made).len()
    }

    fn is_there(&self, pod: &str) -> Result<(), Failure> {
        match self.kube.pod(pod) {
            Some(_) => Ok(()),
            None => Err(failed(format!("pod {pod} is not there any more"))),
        }
    }

    /// The scheduler and the kubelet start a pod.
    pub fn runs(&self, pod: &str, node: &str) -> Result<(), Failure> {
        self.is_there(pod)?;
        self.kube.bind(pod, node);
        self.kube.running(pod);
        Ok(())
    }

    /// Its program ends.
    pub fn ends(&self, pod: &str, code: i32) -> Result<(), Failure> {
        self.is_there(pod)?;
        self.kube.terminate(pod, code, "", "");
        Ok(())
    }

    /// A task as the API shows it; `None` while the server does not answer, or does not know it.
    pub async fn task(&self, task: &str) -> Option<Value> {
        self.ground.api().get(&["tasks", task], &[]).await.ok()
    }

    async fn until_task(
        &self,
        task: &str,
        what: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> Result<Value, Failure> {
        let found = until(self.ground.base.patience, || async {
            self.task(task).await.filter(|t| wanted(t) || t["is_final"] == true)
        });
        match found.await {
            Some(found) if wanted(&found) => Ok(found),
            other => {
                let why = other.or(self.task(task).await).unwrap_or_default()["why"].to_string();
                Err(failed(format!("task {task} was never {what}: {why}")))
            }
        }
    }

    /// Waits for a status.
    pub async fn until_status(&self, task: &str, status: &str) -> Result<(), Failure> {
        self.until_task(task, status, |t| t["status"] == status).await.map(drop)
    }

    /// Waits until something is so.
    pub async fn until(&self, what: &str, so: impl Fn() -> bool) -> Result<(), Failure> {
        let come = until(self.ground.base.patience, || async { so().then_some(()) });
        come.await.ok_or_else(|| failed(format!("waited in vain: {what}")))
    }

    /// Waits until these words about a task were heard, where there is a channel.
    pub async fn until_told(&self, task: &str, words: &[&str]) -> Result<(), Failure> {
        let Some(redis) = &self.redis else { return Ok(()) };
        let told = until(self.ground.base.patience, || async {
            is_told(words, &redis.heard(), task).then_some(())
        });
        told.await.ok_or_else(|| failed(format!("{words:?} was never heard of task {task}")))
    }

    /// A task of this cluster whose pod runs, as everybody knows. A collector is there.
    pub async fn running(&self, more: Value) -> Result<(String, String), Failure> {
        let (task, pod) = self.running_untold(more).await?;
        self.until_told(&task, &["1 RUNNING"]).await?;
        Ok((task, pod))
    }

    /// The same without a collector.
    pub async fn running_untold(&self, more: Value) -> Result<(String, String), Failure> {
        let task = self.order(more).await?;
        let pod = self.pod(1).await?;
        self.runs(&pod, NODE)?;
        self.until_status(&task, "RUNNING").await?;
        Ok((task, pod))
    }

    /// Waits until a pod that exists is in the hands of an executor, of another one than this; whose.
    pub async fn tended(&self, task: &str, not: Option<&str>) -> Result<String, Failure> {
        let by = |t: &Value| t["tended"]["executor"].as_str().map(str::to_owned);
        let other = |t: &Value| {
            t["tended"]["made"] == true && by(t).is_some_and(|by| Some(by.as_str()) != not)
        };
        Ok(by(&self.until_task(task, "taken over", other).await?).unwrap_or_default())
    }

    /// Somebody wants it to end.
    pub async fn cancel(&self, task: &str) -> Result<(), Failure> {
        let body = json!({ "why": "the drill wants it", "by": "drill" });
        self.ground.api().post(&["tasks", task, "cancel"], &body).await.map(drop)
    }

    /// Lets the pod of the second attempt run to a good end.
    pub async fn second_succeeds(&self, task: &str, node: &str) -> Result<(), Failure> {
        let pod = self.pod(2).await?;
        self.runs(&pod, node)?;
        self.until_status(task, "RUNNING").await?;
        self.until_told(task, &["1 RUNNING", "1 FAILED?", "2 RUNNING"]).await?;
        self.ends(&pod, 0)
    }

    // ---- what came of it ----

    async fn events(&self, task: &str) -> Vec<Value> {
        let query = [("limit", "1000".to_owned())];
        let page = self.ground.api().get(&["tasks", task, "events"], &query).await;
        page.ok().and_then(|p| p["events"].as_array().cloned()).unwrap_or_default()
    }

    async fn account(&self, task: &str, took: Duration) -> Account {
        Account {
            task: self.task(task).await,
            events: self.events(task).await,
            past: self.kube.past("pods"),
            heard: self.redis.as_ref().map(Redis::heard),
            took,
        }
    }

    /// Waits for the end of a task, and judges it by everything that can be read then. `from` is when the fault happened, or ended.
    pub async fn judged(&self, task: &str, expected: &Expected, from: Duration) -> Witnessed {
        let patience = self.ground.base.patience;
        let over =
            until(patience, || async { self.task(task).await.filter(|t| t["is_final"] == true) });
        let over = over.await.is_some();
        let took = self.mono().saturating_sub(from);
        // What is told, and what is cleaned up, comes a moment later.
        let later = [column::CHANNEL, column::NOTHING_LEFT];
        let settled = until(patience, || async {
            let seen = judge(expected, &self.account(task, took).await);
            let waits = later.iter().any(|c| matches!(seen.of(c), Some(Seen::Broken(_))));
            (!over || !waits).then_some(seen)
        });
        let mut seen = match settled.await {
            Some(seen) => seen,
            None => judge(expected, &self.account(task, took).await),
        };
        if over {
            seen.recoveries.push(took);
        }
        seen
    }
}

fn lock(made: &Mutex<Vec<String>>) -> MutexGuard<'_, Vec<String>> {
    // Nothing panics under this lock.
    made.lock().unwrap_or_else(PoisonError::into_inner)
}
