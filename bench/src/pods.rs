//! `bench pods`: changes of pods through list and watch, the verdict, the spool and the bus into the record of their tasks.
//!
//! The API server is a double in this process, the server with its store is in this process too, and the collector is
//! this program again, as it runs on a node: its processor time and its memory are its own. Three parts:
//!
//! 1. *memory*: what the collector's resident set grows by from no pods to all of them, running, per pod. Once at rest, when all is told and
//!    what the burst needed was given back (that is what a pod costs), and once at the end of the burst;
//! 2. *flood*: every pod changes as often as asked, as fast as they come, until all tasks are recorded as ended;
//! 3. *steady*: pods that end at a fixed rate; from the moment of the change to the moment that the end is recorded, which is when its commit
//!    is on disk, not when it was decided. It begins when the pods of this part run and are recorded as running, without a pause.

mod stages;

use crate::{
    jobs::{Kit, count::Counting, here::Office, wrong},
    place::Place,
    report::Case,
};
use serde_json::{Value, json};
use stages::{Clocks, Ledger, Stages};
use std::{
    net::Ipv4Addr,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tenure_engine::stop::stopper;
use tenure_kernel::{error::StoreError, ids::EntityId, runtime::Rt, store::Store};
use tenure_kubedouble::{Cluster, Life, Step};
use tenure_pods::report::{labels, task_of_label};
use tenure_server::{App, ServerOptions};
use tokio::net::TcpListener;

const NODE: &str = "bench-node";

/// How much.
#[derive(Clone, Debug)]
pub struct Options {
    /// Pods.
    pub pods: usize,
    /// Changes of each, in the flood.
    pub changes: usize,
    /// Ends a second, in the steady part.
    pub rate: f64,
    /// How long the steady part takes.
    pub time: Duration,
    /// Redis, if events are published too.
    pub redis: Option<String>,
    /// Tells when the steady part was slow, and where.
    pub journal: bool,
}

fn failed(e: impl std::fmt::Display) -> StoreError {
    wrong(e.to_string())
}

/// The collector, ended with the benchmark.
struct Collector(Child);

impl Drop for Collector {
    fn drop(&mut self) {
        // It is ours; that it is gone already is fine.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Collector {
    fn start(
        cluster: &Cluster,
        scratch: &Path,
        url: &str,
        options: &Options,
    ) -> Result<Self, StoreError> {
        let program = std::env::current_exe().map_err(failed)?;
        let kubeconfig = cluster.kubeconfig(scratch);
        let mut command = Command::new(program);
        command
            .args(["collector", "--mode", "node", "--node", NODE, "--listen", "127.0.0.1:0"])
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(["--server", url])
            .args(["--redis", options.redis.as_deref().unwrap_or("none")])
            .arg("--spool")
            .arg(scratch.join("spool"))
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        Ok(Collector(command.spawn().map_err(failed)?))
    }

    /// Resident bytes of its own: pages of the program's file are read in while it works, whatever it remembers.
    fn memory(&self) -> Result<f64, StoreError> {
        let text =
            std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).map_err(failed)?;
        let line = text.lines().find_map(|l| l.strip_prefix("RssAnon:"));
        let kib = line
            .and_then(|l| l.trim().strip_suffix(" kB"))
            .and_then(|n| n.trim().parse::<f64>().ok());
        kib.map(|k| k * 1024.0).ok_or_else(|| wrong("RssAnon can not be read".into()))
    }

    /// Resident bytes when they fall no more: an allocator gives back what a burst needed within a second or two.
    async fn at_rest(&self, rt: &Rt) -> Result<f64, StoreError> {
        let (began, mut since, mut least) = (rt.mono(), rt.mono(), self.memory()?);
        let passed = |from| rt.mono().saturating_sub(from);
        while passed(since) < Duration::from_secs(5) && passed(began) < Duration::from_secs(60) {
            rt.sleep(Duration::from_millis(100)).await;
            let now = self.memory()?;
            if now < least * 0.995 {
                (least, since) = (now, rt.mono());
            }
        }
        Ok(least)
    }

    /// Seconds of processor time so far.
    fn processor(&self) -> Result<f64, StoreError> {
        let text =
            std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).map_err(failed)?;
        // The name in parentheses may have spaces in it; fields are counted from behind it.
        let rest = text.rsplit(')').next().unwrap_or_default();
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let ticks = |n: usize| fields.get(n).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
        // utime and stime, in hundredths of a second on every Linux that this runs on.
        Ok((ticks(11) + ticks(12)) / 100.0)
    }
}

fn pod(name: &str, task: &str) -> Value {
    json!({
        "metadata": {
            "name": name,
            "labels": {
                labels::WORKLOAD: "true",
                labels::TASK_ID: task,
                labels::WORKFLOW_ID: "bench",
                labels::TENANT_ID: "default",
                labels::ATTEMPT: "1",
            },
        },
        "spec": {
            "nodeName": NODE,
            "restartPolicy": "Never",
            "containers": [{
                "name": "main",
                "image": "registry.example/team/work:1.2.3",
                "command": ["work", "--input", "s3://bucket/a", "--output", "s3://bucket/b"],
                "env": [{ "name": "A", "value": "1" }, { "name": "B", "value": "2" }],
                "resources": { "limits": { "cpu": "1", "memory": "1Gi" } },
            }],
        },
    })
}

fn succeeded() -> Life {
    let (container, reason, message) = Default::default();
    Life::Terminated { container, exit_code: 0, reason, message }
}

/// Waits until something is so; gives up after a bound.
async fn until<F: Future<Output = Result<bool, StoreError>>>(
    rt: &Rt,
    what: &str,
    mut so: impl FnMut() -> F,
) -> Result<(), StoreError> {
    let began = rt.mono();
    while !so().await? {
        if rt.mono().saturating_sub(began) > Duration::from_secs(300) {
            return Err(wrong(format!("after five minutes still waiting for {what}")));
        }
        rt.sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

async fn all_in(
    store: &Arc<dyn Store>,
    rt: &Rt,
    tasks: &[EntityId],
    status: &'static str,
) -> Result<(), StoreError> {
    let mut left: Vec<EntityId> = tasks.to_vec();
    let began = rt.mono();
    while let Some(task) = left.last().copied() {
        let head = store.head(task).await?;
        if head.is_some_and(|h| h.status.name() == status) {
            left.pop();
            continue;
        }
        if rt.mono().saturating_sub(began) > Duration::from_secs(300) {
            return Err(wrong(format!("after five minutes {} tasks are not {status}", left.len())));
        }
        rt.sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Runs the suite.
pub async fn run(
    place: &Place,
    kit: Kit,
    postgres_flights: usize,
    options: &Options,
) -> Result<Vec<Case>, StoreError> {
    let Office { node, store: counting, .. } = Office::open(place, &kit, postgres_flights).await?;
    let rt = node.pipeline.rt().clone();
    let store = node.pipeline.store().clone();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(failed)?;
    let listen = listener.local_addr().map_err(failed)?;
    let server = ServerOptions { listen, ..ServerOptions::default() };
    let app = App::new(node.pipeline.clone(), kit.machines, server);
    let (_serving, stop) = stopper();
    rt.spawn(Box::pin(async move {
        if let Err(e) = tenure_server::serve(app, listener, stop).await {
            eprintln!("the benchmark's server has ended: {e}");
        }
    }));
    let scratch = tempfile::tempdir().map_err(failed)?;
    let cluster = Cluster::start();
    cluster.remember(options.pods * (options.changes + 4) + 100_000);
    let url = format!("http://{listen}");
    let collector = Collector::start(&cluster, scratch.path(), &url, options)?;
    until(&rt, "the collector's watch", || async { Ok(!cluster.watches().is_empty()) }).await?;

    // ---- memory ----
    let empty = collector.at_rest(&rt).await?;
    let names: Vec<String> = (0..options.pods).map(|n| format!("p{n}")).collect();
    let tasks: Vec<EntityId> = names.iter().map(|n| task_of_label(&format!("bench-{n}"))).collect();
    cluster.load_pods(names.iter().map(|n| pod(n, &format!("bench-{n}"))));
    for name in &names {
        cluster.running(name);
    }
    all_in(&store, &rt, &tasks, "RUNNING").await?;
    let burst = collector.memory()?;
    let full = collector.at_rest(&rt).await?;

    // ---- flood ----
    let before = collector.processor()?;
    let began = rt.mono();
    let (player, played) = (cluster.clone(), names.clone());
    let changes = options.changes.max(1);
    let steps = tokio::task::spawn_blocking(move || {
        let wobble = (0..changes - 1).flat_map(|round| {
            played.iter().map(move |name| Step::Live(name.clone(), Life::Ready(round % 2 == 1)))
        });
        let ends = played.iter().map(|name| Step::Live(name.clone(), succeeded()));
        player.play(None, wobble.chain(ends)).steps
    });
    let steps = steps.await.map_err(failed)?;
    let changed = rt.mono().saturating_sub(began).as_secs_f64();
    all_in(&store, &rt, &tasks, "SUCCEEDED").await?;
    let took = rt.mono().saturating_sub(began).as_secs_f64();
    let processor = (collector.processor()? - before).max(0.01);

    let ends = steady(&cluster, &store, &counting, &rt, options).await?;
    let bus = options.redis.is_some();
    Ok(vec![
        Case::of("pods_memory")
            .with("pods", options.pods)
            .measured("collector_mib", full / (1024.0 * 1024.0))
            .measured("bytes_per_pod", (full - empty) / options.pods as f64)
            .measured("bytes_per_pod_in_burst", (burst - empty) / options.pods as f64),
        Case::of("pods_flood")
            .with("store", place.engine())
            .with("pods", options.pods)
            .with("events", steps)
            .with("redis", bus)
            .measured("events_per_second", steps as f64 / took)
            .measured("changes_per_second", steps as f64 / changed)
            .measured("events_per_processor_second", steps as f64 / processor),
        Case::of("pods_steady")
            .with("store", place.engine())
            .with("ends", ends.len())
            .with("redis", bus)
            .measured("ends_per_second", options.rate)
            .measured("observed_to_recorded_p50_ms", stages::of(&ends, |s| s.all, 0.5))
            .measured("observed_to_recorded_p99_ms", stages::of(&ends, |s| s.all, 0.99))
            .measured("observed_to_recorded_max_ms", stages::of(&ends, |s| s.all, 1.0))
            .measured("seen_p99_ms", stages::of(&ends, |s| s.seen, 0.99))
            .measured("taken_p99_ms", stages::of(&ends, |s| s.taken, 0.99))
            .measured("decided_p99_ms", stages::of(&ends, |s| s.decided, 0.99)),
    ])
}

/// Pods that end at a fixed rate: the stages of every end.
async fn steady(
    cluster: &Cluster,
    store: &Arc<dyn Store>,
    counting: &Counting,
    rt: &Rt,
    options: &Options,
) -> Result<Vec<Stages>, StoreError> {
    let count = (options.rate * options.time.as_secs_f64()) as usize;
    let names: Vec<String> = (0..count).map(|n| format!("s{n}")).collect();
    let ended: Vec<EntityId> = names.iter().map(|n| task_of_label(&format!("bench-{n}"))).collect();
    cluster.load_pods(names.iter().map(|n| pod(n, &format!("bench-{n}"))));
    for name in &names {
        cluster.running(name);
    }
    all_in(store, rt, &ended, "RUNNING").await?;
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    let noting = ledger.clone();
    counting.tell(Box::new(move |op, at| {
        noting.lock().unwrap_or_else(PoisonError::into_inner).note(op, at);
    }));
    if options.journal {
        counting.keep_journal();
    }
    let clocks = Clocks { mono: rt.mono(), wall: store.now().await? };
    let (player, rate, clock) = (cluster.clone(), options.rate, rt.clone());
    let changed = tokio::task::spawn_blocking(move || {
        let steps = names.into_iter().map(|name| Step::Live(name, succeeded()));
        let began = player.play(Some(rate), steps);
        (began, clock.mono())
    });
    let (played, over) = changed.await.map_err(failed)?;
    all_in(store, rt, &ended, "SUCCEEDED").await?;
    // Instants of the double, on the clock of this process: counted back from the end.
    let last = played.moments.last().map(|(_, at)| *at);
    let moment = |at| over.saturating_sub(last.map_or(Duration::ZERO, |last| last - at));
    let ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
    let changes = ended.iter().zip(&played.moments);
    let ends: Option<Vec<Stages>> =
        changes.map(|(task, (_, at))| ledger.stages(*task, moment(*at), clocks)).collect();
    let ends = ends.ok_or_else(|| wrong("an end was recorded that nobody saw".into()))?;
    if options.journal {
        stages::tell(&ends, &counting.take_journal(), clocks.mono);
    }
    Ok(ends)
}
