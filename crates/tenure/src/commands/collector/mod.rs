//! `tenure collector`: sees pods and tells what became of their tasks, until asked to end.

mod said;
mod server;

use crate::{
    Program, client_tls,
    commands::Failure,
    config::{Origin, Settings},
    probes,
    service::asked_to_end,
    terminal,
};
use clap::Args;
use futures_util::stream::{self, BoxStream};
use serde_json::json;
use server::ServerSink;
use std::{path::PathBuf, sync::Arc, time::Duration};
use tenure_bell::redis::{EventChannel, Heard};
use tenure_edge::{SystemClock, TokioRuntime};
use tenure_kernel::runtime::{Clock, Rt};
use tenure_pods::{
    collect::{
        Area, CollectOptions, Collector, Election, KubeAsker, KubeLease, LeaseOptions, Mode, Parts,
        RedisSink, Sink, SpoolOptions, SyncWhen,
    },
    envelope::{CHANNEL, Envelope},
    follow::{FollowPolicy, KubeSource, LeanNode, LeanPod, Scope, connect},
    report::labels,
    verdict::TaskStatus,
};

/// Options of `collector`. Each is also a setting; see `tenure config`.
#[derive(Args, Clone, Debug, Default)]
pub struct Options {
    /// Which pods: those of one node, of the whole cluster, or those that no collector on a node can see [default: node if a
    /// node is named, else cluster]
    #[arg(long, value_name = "MODE", value_parser = ["node", "cluster", "sweeper"])]
    pub mode: Option<String>,
    /// The node, in mode node [env: NODE_NAME]
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Only pods of this namespace [default: of all]
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// How the cluster is reached [default: the usual places]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The cluster is reached with the service account of this pod
    #[arg(long)]
    pub in_cluster: bool,
    /// Redis servers, with commas between them [setting: redis.addresses; default: 127.0.0.1:6379]; the word none:
    /// nothing is published
    #[arg(long, value_name = "ADDRESSES")]
    pub redis: Option<String>,
    /// The server that is told, durably; without one only Redis is. Also read from TENURE_URL
    #[arg(long, env = "TENURE_SERVER", value_name = "URL", hide_env_values = true)]
    pub server: Option<String>,
    /// An API key with the scope collector, where the server needs one
    #[arg(long, env = "TENURE_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Where reports wait that nobody has taken yet [setting: collector.spool; default: .tenure/collector]; the word
    /// none: in memory, and a restart forgets them
    #[arg(long, value_name = "DIRECTORY")]
    pub spool: Option<String>,
    /// Where /healthz, /readyz and /metrics are answered [setting: collector.listen; default: 127.0.0.1:9091]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
}

impl Options {
    /// The same as settings, for `Settings::load`.
    pub fn flags(&self) -> Vec<String> {
        let path = self.kubeconfig.as_ref().map(|p| p.display().to_string());
        let server = self.server.clone().or_else(|| std::env::var("TENURE_URL").ok());
        let server = server.filter(|url| !url.is_empty());
        let given = [
            ("collector.mode", self.mode.clone()),
            ("kubernetes.node_name", self.node.clone()),
            ("kubernetes.namespace", self.namespace.clone()),
            ("kubernetes.kubeconfig", path),
            ("kubernetes.in_cluster", self.in_cluster.then(|| "true".to_owned())),
            ("redis.addresses", self.redis.clone()),
            ("collector.server", server),
            ("collector.spool", self.spool.clone()),
            ("collector.listen", self.listen.clone()),
        ];
        given.into_iter().filter_map(|(k, v)| Some(format!("{k}={}", v?))).collect()
    }
}

/// What is not there: written as a value, so that it can be asked for in the environment.
fn named<'a>(settings: &'a Settings, key: &str) -> Option<&'a str> {
    Some(settings.text(key).trim()).filter(|v| !v.is_empty() && *v != "none")
}

/// Which pods.
fn area(settings: &Settings) -> Result<Area, Failure> {
    let kubernetes = settings.kubernetes()?;
    let node = kubernetes.node.as_deref();
    let mode = match (settings.text("collector.mode"), node) {
        ("node", _) | ("auto", Some(_)) => Mode::Node,
        ("sweeper", _) => Mode::Sweeper,
        _ => Mode::Cluster,
    };
    Ok(match (mode, node) {
        (Mode::Node, Some(node)) => Area::node(node),
        (Mode::Node, None) => {
            return Err(Failure::System(
                "collector.mode = \"node\" needs the name of its node: set NODE_NAME (in a DaemonSet by the Downward API) \
                or --node"
                    .to_owned(),
            ));
        }
        (Mode::Sweeper, _) => Area::sweeper(settings.seconds("collector.sweep_after_seconds")),
        (Mode::Cluster, _) => Area::cluster(),
    })
}

fn spool(settings: &Settings) -> SpoolOptions {
    SpoolOptions {
        directory: named(settings, "collector.spool").map(PathBuf::from),
        bytes_max: settings.number("collector.spool_bytes_max"),
        age_max: settings.seconds("collector.spool_age_max_seconds"),
        sync: match settings.text("collector.spool_sync") {
            "always" => SyncWhen::Always,
            "never" => SyncWhen::Never,
            _ => SyncWhen::Final,
        },
    }
}

/// Runs until asked to end.
pub async fn run(
    program: &Program,
    settings: &Settings,
    options: &Options,
    json: bool,
) -> Result<String, Failure> {
    let rt: Rt = Arc::new(TokioRuntime::current());
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    settings.collector()?;
    let area = area(settings)?;
    let name = name_of_this(&area);
    let mut sinks: Vec<Arc<dyn Sink>> = Vec::new();
    let server = named(settings, "collector.server");
    let mut heard = None;
    let redis = match named(settings, "redis.addresses") {
        None => None,
        Some(addresses) => {
            let bad = |e| Failure::System(format!("redis.addresses: {e}"));
            let events = EventChannel::start(&settings.redis()?, rt.clone()).map_err(bad)?;
            // Who sees what others on nodes see first leaves the channel to them, and has to know whether they are there.
            heard = (area.mode != Mode::Node).then(|| ends_heard(&events));
            sinks.push(Arc::new(RedisSink::new(events, clock.clone(), server.is_some())));
            Some(addresses)
        }
    };
    if server.is_some() {
        let url = settings.address("collector.server");
        let tls = client_tls::read(settings)?;
        sinks.push(Arc::new(ServerSink::new(&url, options.api_key.as_deref(), &tls)?));
    }
    if sinks.is_empty() {
        return Err(Failure::System(
            "nobody would be told: name Redis servers (FLOWFORGE_REDIS_ADDRESSES), or a server (--server), or both"
                .to_owned(),
        ));
    }
    sinks = sinks.into_iter().map(|sink| program.alterations().sink(sink, &rt)).collect();
    let probes = probes::listen(settings, "collector.listen", rt.clone()).await?;
    let address = probes.url.clone();
    let connection = settings.kubernetes()?.connection();
    let client = connect(&connection).await.map_err(Failure::System)?;
    let mut parts = parts(settings, &client, &area, &name, sinks, &rt, clock);
    parts.heard = heard;
    parts.probe = program.alterations().probe();
    let work = CollectOptions {
        name: name.clone(),
        area: area.clone(),
        policy: settings.pod_policy(),
        follow: FollowPolicy {
            silence: settings.seconds("collector.silence_seconds"),
            relist: settings.seconds("collector.relist_seconds"),
            ..FollowPolicy::default()
        },
        spool: spool(settings),
        drain: settings.seconds("collector.drain_seconds"),
    };
    let waits = match &work.spool.directory {
        Some(directory) => format!("waits in {}", directory.display()),
        None => "waits in memory only: a restart forgets it".to_owned(),
    };
    let collector = Collector::start(work, parts).map_err(|e| {
        let directory = settings.text("collector.spool");
        Failure::System(format!(
            "collector.spool = {directory:?} can not be used: {e}; name another directory, or none"
        ))
    })?;
    let look = collector.watcher();
    rt.spawn(Box::pin(probes::serve(probes, move || said::said(look()))));
    let (mode, node) = (area.mode.name(), area.node.as_str());
    if json {
        terminal::line(&format_args!(
            "{}",
            json!({ "listen": address, "mode": mode, "node": node, "redis": redis, "server": server,
                "pid": std::process::id() })
        ));
    } else {
        let node = if node.is_empty() { String::new() } else { format!(" {node}") };
        terminal::line(&format_args!(
            "tenure: a collector in mode {mode}{node}, at {address} (Ctrl-C ends it)"
        ));
        terminal::line(&format_args!(
            "        {}; what is not told yet {waits}",
            whom(redis, server)
        ));
    }
    asked_to_end().await?;
    tracing::info!("asked to end; telling what is left");
    let left = collector.stop().await;
    if left > 0 {
        tracing::warn!(reports = left, "not everything was told; {waits}");
    }
    Ok(String::new())
}

fn whom(redis: Option<&str>, server: Option<&str>) -> String {
    match (redis, server) {
        (Some(redis), Some(server)) => {
            format!("tells {server}, and ff:events:task of Redis at {redis}")
        }
        (None, Some(server)) => format!("tells {server}"),
        (redis, None) => format!(
            "tells ff:events:task of Redis at {} alone: who does not listen misses it, and pods that are deleted are told to \
            nobody (name a server with --server)",
            redis.unwrap_or("nowhere")
        ),
    }
}

/// The pods whose end is told on the channel.
fn ends_heard(events: &EventChannel) -> BoxStream<'static, String> {
    let heard = stream::unfold(events.subscribe(CHANNEL), |mut heard| async {
        loop {
            if let Heard::Message { payload, .. } = heard.heard().await
                && let Ok(Envelope { data, .. }) = Envelope::read(&payload)
                && data.known_status().is_some_and(TaskStatus::is_final)
                && let Some(uid) = data.pod_uid
            {
                return Some((uid, heard));
            }
        }
    });
    Box::pin(heard)
}

fn parts(
    settings: &Settings,
    client: &kube::Client,
    area: &Area,
    name: &str,
    sinks: Vec<Arc<dyn Sink>>,
    rt: &Rt,
    clock: Arc<dyn Clock>,
) -> Parts {
    let mut pods = Scope::core("pods", named(settings, "kubernetes.namespace").unwrap_or(""));
    pods.labels = format!("{}=true", labels::WORKLOAD);
    pods.fields = area.fields();
    let nodes = area.sees_nodes().then(|| {
        let source = KubeSource::<LeanNode>::new(client.clone(), Scope::core("nodes", ""));
        Arc::new(source) as Arc<_>
    });
    Parts {
        pods: Arc::new(KubeSource::<LeanPod>::new(client.clone(), pods)),
        nodes,
        asker: Arc::new(KubeAsker(client.clone())),
        sinks,
        election: election(settings, client, area, name, rt),
        heard: None,
        rt: rt.clone(),
        clock,
        probe: None,
    }
}

/// Several collectors for one cluster agree on who speaks.
fn election(
    settings: &Settings,
    client: &kube::Client,
    area: &Area,
    name: &str,
    rt: &Rt,
) -> Option<Arc<dyn Election>> {
    let lease = named(settings, "collector.lease").filter(|_| area.mode != Mode::Node)?;
    // The sweeper and a collector for everything are not each other's replicas.
    let lease = match settings.origin("collector.lease") {
        Origin::Default => format!("{lease}-{}", area.mode.name()),
        _ => lease.to_owned(),
    };
    let namespace = named(settings, "collector.lease_namespace")
        .unwrap_or_else(|| client.default_namespace())
        .to_owned();
    let options = LeaseOptions {
        namespace,
        name: lease,
        holder: format!("{name}_{:08x}", rt.random() & 0xffff_ffff),
        lasts: settings.seconds("collector.lease_seconds").max(Duration::from_secs(1)),
    };
    Some(Arc::new(KubeLease::new(client.clone(), options, rt.clone())))
}

/// Who saw it: the node, else this machine (in a cluster that is the name of the pod).
fn name_of_this(area: &Area) -> String {
    if !area.node.is_empty() {
        return area.node.clone();
    }
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if host.is_empty() { area.mode.name().to_owned() } else { host }
}
