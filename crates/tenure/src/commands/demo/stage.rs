//! The server in this process, the outside world, and worker processes that can be killed.

use super::{super::Failure, order::Order, outside::Outside};
use crate::{
    config::Settings,
    service::{Program, Service},
};
use std::{
    fs::OpenOptions,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};
use tenure_engine::pipeline::Pipeline;
use tenure_jobs::submit::Submission;
use tenure_kernel::{ids::EntityId, store::Store, time::Timestamp};
use tenure_server::auth::DEFAULT_TENANT;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    net::TcpListener,
    process::{Child, Command},
};

/// A takeover takes this long instead of the default fifteen seconds.
pub(super) const LEASE_SECONDS: u64 = 3;

/// How long anything is waited for. On an idle machine nothing takes longer than a lease.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// Where a browser finds the demo, unless somebody else is there.
const ADDRESS: &str = "127.0.0.1:7777";

/// Everything that runs.
pub(super) struct Stage {
    service: Service,
    /// Shop, bank and carrier.
    pub outside: Outside,
    workers: Vec<Child>,
    /// Every process that was started.
    pub pids: Vec<u32>,
    dir: PathBuf,
}

/// What server and workers have to agree about.
fn sets() -> Vec<String> {
    vec![
        format!("worker.lease_seconds={LEASE_SECONDS}"),
        "worker.renewal_seconds=1".to_owned(),
        "server.tick_seconds=1".to_owned(),
        "server.pulse_gap_seconds=1.8".to_owned(),
        "log.filter=warn".to_owned(),
        // The model of the demo's agent is a script in this process.
        "egress.allow=default=127.0.0.1".to_owned(),
    ]
}

impl Stage {
    /// A server on a new store in this directory.
    pub async fn open(dir: &Path) -> Result<Self, Failure> {
        let mut flags = sets();
        flags.push(format!("store.url=sqlite:{}", dir.join("store").display()));
        let settings = Settings::load(None, [], &flags)?;
        let listener = match TcpListener::bind(ADDRESS).await {
            Ok(listener) => listener,
            Err(_) => TcpListener::bind("127.0.0.1:0").await?,
        };
        let service = Program::new().serve_at(listener, &settings, false).await?;
        let outside = Outside::open().await?;
        let (workers, pids, dir) = (Vec::new(), Vec::new(), dir.to_owned());
        Ok(Stage { service, outside, workers, pids, dir })
    }

    /// Where the server is.
    pub fn url(&self) -> String {
        self.service.url()
    }

    /// Where the data is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where everything is kept.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.service.store
    }

    /// The way to write there.
    pub fn pipeline(&self) -> &Pipeline {
        &self.service.node.pipeline
    }

    /// The store's time.
    pub async fn now(&self) -> Result<Timestamp, Failure> {
        Ok(self.store().now().await?)
    }

    /// Submits an order.
    pub async fn submit(&self, number: u32, item: &str) -> Result<EntityId, Failure> {
        let order = Order { number, item: item.to_owned(), outside: self.outside.address() };
        let submission = Submission {
            flow: "demo.order".to_owned(),
            input: serde_json::json!(order),
            tenant: DEFAULT_TENANT.to_owned(),
            key: Some(format!("order-{number}")),
            by: Some("tenure demo".to_owned()),
            ..Submission::default()
        };
        let submitted = self.service.submitter.submit(submission).await;
        submitted.map(|s| s.id).map_err(|e| Failure::Found(format!("order {number}: {e}")))
    }

    /// Starts a worker process and waits until it says that it works.
    pub async fn start_worker(&mut self) -> Result<u32, Failure> {
        let log = OpenOptions::new().create(true).append(true).open(self.log())?;
        let mut command = Command::new(std::env::current_exe()?);
        for (name, _) in std::env::vars().filter(|(n, _)| n.starts_with("TENURE_")) {
            command.env_remove(name);
        }
        command.args(["demo-worker", "--json", "--server", &self.url()]);
        for set in sets() {
            command.args(["--set", &set]);
        }
        // A configuration file in this directory is none of the demo's business.
        command.current_dir(&self.dir).stdin(Stdio::null()).stderr(log).stdout(Stdio::piped());
        let mut child = command.kill_on_drop(true).spawn()?;
        let pid = child.id().unwrap_or(0);
        let out = child.stdout.take();
        self.workers.push(child);
        self.pids.push(pid);
        let mut line = String::new();
        let Some(out) = out else { return Ok(pid) };
        let mut out = BufReader::new(out);
        match tokio::time::timeout(PATIENCE, out.read_line(&mut line)).await {
            Ok(Ok(read)) if read > 0 => Ok(pid),
            _ => Err(self.failed(&format!("worker {pid} did not start"))),
        }
    }

    /// Kills a worker process: no destructor, no goodbye. Returns when it is gone.
    pub async fn kill_worker(&mut self, pid: u32) -> Result<(), Failure> {
        let place = self.workers.iter().position(|w| w.id() == Some(pid));
        let Some(place) = place else {
            return Err(self.failed(&format!("worker {pid} has ended by itself")));
        };
        // `kill` sends SIGKILL and waits.
        Ok(self.workers.remove(place).kill().await?)
    }

    /// What went wrong, with the last words of the workers.
    pub fn failed(&self, what: &str) -> Failure {
        let log = std::fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let last = &lines[lines.len().saturating_sub(5)..];
        let heard = if last.is_empty() { "" } else { "; the workers' last words:\n" };
        Failure::Found(format!("{what}{heard}{}", last.join("\n")))
    }

    fn log(&self) -> PathBuf {
        self.dir.join("workers.log")
    }

    /// Ends every process and the server.
    pub async fn close(mut self) -> Result<(), Failure> {
        for worker in &mut self.workers {
            // It may be gone: a Ctrl-C reaches everybody at the terminal.
            let _ = worker.kill().await;
        }
        self.service.stop().await
    }
}
