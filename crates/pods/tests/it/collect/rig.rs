//! A cluster, a collector, and whoever is told.

use std::{
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tenure_edge::{SystemClock, TokioRuntime};
use tenure_kernel::{
    runtime::{BoxFuture, Clock, Rt},
    time::Timestamp,
};
use tenure_kubedouble::Cluster;
use tenure_pods::{
    collect::{
        Area, CollectOptions, Collector, CollectorState, KubeAsker, Owed, Parts, Probe, Sent, Sink,
        SinkId, SpoolOptions,
    },
    follow::{FollowPolicy, KubeSource, LeanNode, LeanPod, Scope},
    report::{Report, labels},
    verdict::{Policy, TaskStatus},
};
use tenure_proving::patience;
use tokio::sync::watch;

pub const PATIENCE: Duration = Duration::from_secs(30);
const MS: Duration = Duration::from_millis(1);

/// The machine's clock, set forward by the test.
#[derive(Clone, Default)]
pub struct Ahead(Arc<AtomicI64>);

impl Clock for Ahead {
    fn now(&self) -> Timestamp {
        let micros = SystemClock.now().as_micros() + self.0.load(Ordering::Relaxed);
        Timestamp::from_micros(micros)
    }
}

/// A sink that writes down what it took.
pub struct Told {
    id: SinkId,
    seen: Mutex<Vec<Report>>,
    away: AtomicBool,
    pub sends: AtomicUsize,
    changed: watch::Sender<usize>,
}

impl Told {
    pub fn new(id: SinkId) -> Arc<Told> {
        Arc::new(Told {
            id,
            seen: Mutex::default(),
            away: AtomicBool::new(false),
            sends: AtomicUsize::new(0),
            changed: watch::Sender::new(0),
        })
    }

    pub fn away(&self, away: bool) {
        self.away.store(away, Ordering::Relaxed);
    }

    pub fn all(&self) -> Vec<Report> {
        self.seen.lock().unwrap().clone()
    }

    /// What was said of a task, in short: `RUNNING`, `FAILED:oom`, `FAILED:deleted_externally gone`.
    pub fn of(&self, task: &str) -> Vec<String> {
        self.all().iter().filter(|r| r.task_id == task).map(short).collect()
    }

    /// The same without repetitions under the same key.
    pub fn once(&self, task: &str) -> Vec<String> {
        let mut keys = Vec::new();
        let mut out = Vec::new();
        for report in self.all().iter().filter(|r| r.task_id == task) {
            if !keys.contains(&report.key()) {
                keys.push(report.key());
                out.push(short(report));
            }
        }
        out
    }

    pub async fn until(&self, what: &str, so: impl Fn(&Told) -> bool) {
        let mut changed = self.changed.subscribe();
        let waiting = changed.wait_for(|_| so(self));
        if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
            let all: Vec<String> =
                self.all().iter().map(|r| format!("{} {}", r.task_id, short(r))).collect();
            panic!("{}: waited in vain until {what}; told: {all:#?}", self.id.name());
        }
    }

    /// Waits until this was said of a task, and nothing else.
    pub async fn says(&self, task: &str, expected: &[&str]) {
        self.until(&format!("{task} is {expected:?}"), |t| t.once(task) == expected).await;
    }
}

pub fn short(report: &Report) -> String {
    let status = report.verdict.status.map_or("none", TaskStatus::name);
    let cause = report.verdict.cause.map(|c| format!(":{}", c.name())).unwrap_or_default();
    let how = match (report.gone, report.over) {
        (true, _) => {
            let why = serde_json::to_value(report.terminated_reason).unwrap();
            format!(" gone {}", why.as_str().unwrap())
        }
        (false, true) => " over".to_owned(),
        (false, false) => String::new(),
    };
    format!("{status}{cause}{how}")
}

impl Sink for Told {
    fn id(&self) -> SinkId {
        self.id
    }

    fn send<'a>(&'a self, batch: &'a [Owed]) -> BoxFuture<'a, Sent> {
        self.sends.fetch_add(1, Ordering::Relaxed);
        if self.away.load(Ordering::Relaxed) {
            return Box::pin(async { Sent::none("away".to_owned()) });
        }
        let reports = batch.iter().map(|o| o.saying.report.clone());
        self.seen.lock().unwrap().extend(reports);
        self.changed.send_modify(|n| *n += 1);
        Box::pin(async { Sent::all(batch) })
    }
}

pub struct Rig {
    pub cluster: Cluster,
    pub channel: Arc<Told>,
    pub server: Arc<Told>,
    pub clock: Ahead,
    pub area: Area,
    pub policy: Policy,
    pub follow: FollowPolicy,
    pub spool: SpoolOptions,
    pub nodes: bool,
    pub with_server: bool,
    pub probe: Option<Probe>,
}

impl Rig {
    /// A cluster with two nodes, and times that are short.
    pub fn new() -> Rig {
        let cluster = Cluster::start();
        cluster.add_node("node-1");
        cluster.add_node("node-2");
        cluster.bookmarks_every(100 * MS);
        Rig {
            cluster,
            channel: Told::new(SinkId::Channel),
            server: Told::new(SinkId::Server),
            clock: Ahead::default(),
            area: Area::cluster(),
            policy: Policy::default(),
            follow: FollowPolicy {
                silence: 1_000 * MS,
                pause: 10 * MS,
                pause_max: 200 * MS,
                healthy: 500 * MS,
                patience: 5_000 * MS,
                ..FollowPolicy::default()
            },
            spool: SpoolOptions::default(),
            nodes: false,
            with_server: true,
            probe: None,
        }
    }

    pub fn in_directory(mut self, directory: &Path) -> Rig {
        self.spool.directory = Some(directory.to_owned());
        self
    }

    pub fn client(&self) -> kube::Client {
        let mut config = kube::Config::new(self.cluster.url().parse().unwrap());
        config.default_retry = false;
        kube::Client::try_from(config).unwrap()
    }

    pub fn parts(&self) -> Parts {
        let client = self.client();
        let mut scope = Scope::core("pods", "");
        scope.labels = format!("{}=true", labels::WORKLOAD);
        scope.fields = self.area.fields();
        let nodes = self.nodes.then(|| {
            let source = KubeSource::<LeanNode>::new(client.clone(), Scope::core("nodes", ""));
            Arc::new(source) as Arc<_>
        });
        let mut sinks: Vec<Arc<dyn Sink>> = vec![self.channel.clone()];
        if self.with_server {
            sinks.push(self.server.clone());
        }
        Parts {
            pods: Arc::new(KubeSource::<LeanPod>::new(client.clone(), scope)),
            nodes,
            asker: Arc::new(KubeAsker(client)),
            sinks,
            election: None,
            heard: None,
            rt: self.rt(),
            clock: Arc::new(self.clock.clone()),
            probe: self.probe.clone(),
        }
    }

    pub fn rt(&self) -> Rt {
        Arc::new(TokioRuntime::current())
    }

    pub fn options(&self) -> CollectOptions {
        CollectOptions {
            name: "test".to_owned(),
            area: self.area.clone(),
            policy: self.policy.clone(),
            follow: self.follow.clone(),
            spool: self.spool.clone(),
            drain: Duration::from_secs(5),
        }
    }

    pub fn start(&self) -> Collector {
        Collector::start(self.options(), self.parts()).unwrap()
    }

    /// Starts, after a predecessor that may not be quite gone.
    pub async fn start_again(&self) -> Collector {
        let starting = async {
            loop {
                match Collector::start(self.options(), self.parts()) {
                    Ok(collector) => return collector,
                    Err(e) if e.kind() == std::io::ErrorKind::ResourceBusy => {
                        tokio::task::yield_now().await;
                    }
                    Err(e) => panic!("{e}"),
                }
            }
        };
        tokio::time::timeout(PATIENCE, starting).await.expect("the spool is free")
    }

    /// Started, and has seen everything.
    pub async fn synced(&self) -> Collector {
        let collector = self.start();
        state(&collector, "synced", |s| s.synced).await;
        collector
    }

    /// A pod of a task, on its way to a node.
    pub fn task(&self, task: &str) {
        self.cluster.add_task(task, &labels_of(task, 1));
    }

    /// A pod of a task that runs.
    pub fn runs(&self, task: &str) {
        self.task(task);
        self.cluster.bind(task, "node-1");
        self.cluster.running(task);
    }

    /// Time goes on, in the cluster and here.
    pub fn later(&self, by: Duration) {
        self.cluster.advance_clock(by);
        let micros = i64::try_from(by.as_micros()).unwrap();
        self.clock.0.fetch_add(micros, Ordering::Relaxed);
    }
}

pub fn labels_of(task: &str, attempt: u32) -> [(&str, &str); 5] {
    let attempt = if attempt == 1 { "1" } else { "2" };
    [
        (labels::WORKLOAD, "true"),
        (labels::TASK_ID, task),
        (labels::WORKFLOW_ID, "w-1"),
        (labels::TENANT_ID, "acme"),
        (labels::ATTEMPT, attempt),
    ]
}

/// Waits until a collector is like this.
pub async fn state(collector: &Collector, what: &str, so: impl Fn(&CollectorState) -> bool) {
    patience::found(what, async || {
        let seen = collector.state();
        if so(&seen) { Ok(()) } else { Err(seen) }
    })
    .await;
}
