//! `bench start`: from the start of a process to its first completed job, and how much memory it keeps.
//!
//! `tenure up` is started on an empty directory, one process after the other. As soon as it says where it listens, a
//! job of one step is submitted over HTTP, and its end awaited in the same request. The last process then stands
//! still for a while, is loaded, and stands still again.

use crate::{
    jobs::{FLOW, input, memory_of, wrong},
    report::{Case, percentile},
};
use serde_json::{Value, json};
use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tenure_edge::TokioRuntime;
use tenure_kernel::{error::StoreError, runtime::Runtime as _};

/// How often, and what for the memory.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Processes.
    pub runs: usize,
    /// How long the last one stands still before its memory is read.
    pub quiet: Duration,
    /// How long it is loaded by [`CLIENTS`].
    pub load: Duration,
}

/// What came of it. Every job was answered as completed.
#[derive(Clone, Copy, Debug)]
pub struct Started {
    /// Processes.
    pub runs: usize,
    /// Process start to the line that says where it listens, median.
    pub listening_p50_ms: f64,
    /// Process start to the answer that the first job is completed, median.
    pub completed_p50_ms: f64,
    /// The slowest of them.
    pub completed_max_ms: f64,
    /// Memory after one job and a while of nothing.
    pub idle_rss_mb: f64,
    /// Memory right after the load.
    pub loaded_rss_mb: f64,
    /// Memory after the load and a while of nothing.
    pub idle_again_rss_mb: f64,
    /// Jobs of the load per second, over HTTP with the worker in the same process.
    pub load_per_second: f64,
}

impl Started {
    /// For the report.
    pub fn case(&self) -> Case {
        Case::of("start")
            .with("store", "sqlite")
            .with("runs", self.runs)
            .measured("listening_p50_ms", self.listening_p50_ms)
            .measured("completed_p50_ms", self.completed_p50_ms)
            .measured("completed_max_ms", self.completed_max_ms)
            .measured("idle_rss_mb", self.idle_rss_mb)
            .measured("loaded_rss_mb", self.loaded_rss_mb)
            .measured("idle_again_rss_mb", self.idle_again_rss_mb)
            .measured("load_per_second", self.load_per_second)
    }
}

/// Clients of the load.
pub const CLIENTS: usize = 50;

fn failed(e: impl std::fmt::Display) -> StoreError {
    wrong(e.to_string())
}

/// A process that does not outlive the benchmark.
struct Up {
    child: Child,
    url: String,
}

impl Drop for Up {
    fn drop(&mut self) {
        // One that has ended by itself is as good as one that was ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the suite in scratch directories under `parent`.
pub async fn run(parent: &Path, options: Options) -> Result<Started, StoreError> {
    let rt = TokioRuntime::current();
    let client = reqwest::Client::builder().build().map_err(failed)?;
    let (mut listening, mut completed) = (Vec::new(), Vec::new());
    let mut memory = None;
    for run in 0..options.runs.max(1) {
        let dir = tempfile::Builder::new().prefix("tenure-bench-").tempdir_in(parent);
        let dir = dir.map_err(|e| wrong(format!("{}: {e}", parent.display())))?;
        let began = rt.mono();
        let up = Up::start(dir.path())?;
        listening.push((rt.mono() - began).as_secs_f64() * 1000.0);
        job(&client, &up.url).await?;
        completed.push((rt.mono() - began).as_secs_f64() * 1000.0);
        if run + 1 == options.runs.max(1) {
            memory = Some(remember(&client, &up, options).await?);
        }
    }
    listening.sort_by(f64::total_cmp);
    completed.sort_by(f64::total_cmp);
    // The loop ran at least once, and its last round sets it.
    let [idle, loaded, again, per_second] = memory.unwrap_or_default();
    Ok(Started {
        runs: completed.len(),
        listening_p50_ms: percentile(&listening, 0.5),
        completed_p50_ms: percentile(&completed, 0.5),
        completed_max_ms: percentile(&completed, 1.0),
        idle_rss_mb: idle,
        loaded_rss_mb: loaded,
        idle_again_rss_mb: again,
        load_per_second: per_second,
    })
}

impl Up {
    fn start(dir: &Path) -> Result<Self, StoreError> {
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command
            .args(["up", "--json", "--store", "sqlite:data"])
            .args(["--set", "server.listen=127.0.0.1:0"])
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut up = Up { child: command.spawn().map_err(failed)?, url: String::new() };
        let out = up.child.stdout.take().ok_or_else(|| wrong("the server has no output".into()))?;
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line).map_err(failed)?;
        let said: Value = serde_json::from_str(&line)
            .map_err(|e| wrong(format!("the server said {line:?} first: {e}")))?;
        up.url = said["url"].as_str().unwrap_or_default().to_owned();
        Ok(up)
    }
}

/// One job of one step, from submission to its known end.
async fn job(client: &reqwest::Client, url: &str) -> Result<(), StoreError> {
    let body = json!({ "flow": FLOW, "input": input(1, None) }).to_string();
    let request = client.post(format!("{url}/v1/jobs?wait=60"));
    let answer = request.header("content-type", "application/json").body(body).send().await;
    let text = answer.map_err(failed)?.text().await.map_err(failed)?;
    let answer: Value = serde_json::from_str(&text).map_err(failed)?;
    match answer["status"].as_str() {
        Some("completed") => Ok(()),
        _ => Err(wrong(format!("a job was answered {text}"))),
    }
}

/// Memory idle, after the load, and idle again, in MB; and the load's jobs per second.
async fn remember(
    client: &reqwest::Client,
    up: &Up,
    options: Options,
) -> Result<[f64; 4], StoreError> {
    let rt = TokioRuntime::current();
    let mb = || memory_of(up.child.id()) as f64 / 1e6;
    rt.sleep(options.quiet).await;
    let idle = mb();
    let end = rt.mono() + options.load;
    let done = Arc::new(AtomicU64::new(0));
    let start_one = |_| {
        let (client, url, done, rt) = (client.clone(), up.url.clone(), done.clone(), rt.clone());
        #[expect(clippy::disallowed_methods, reason = "a benchmark is process edge")]
        tokio::task::spawn(async move {
            while rt.mono() < end {
                job(&client, &url).await?;
                done.fetch_add(1, Relaxed);
            }
            Ok::<_, StoreError>(())
        })
    };
    let clients: Vec<_> = (0..CLIENTS).map(start_one).collect();
    for client in clients {
        client.await.map_err(failed)??;
    }
    let loaded = mb();
    rt.sleep(options.quiet).await;
    let per_second = done.load(Relaxed) as f64 / options.load.as_secs_f64().max(1e-3);
    Ok([idle, loaded, mb(), per_second])
}
