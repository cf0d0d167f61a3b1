//! Jobs over HTTP: the server and the clients in this process, the worker in one of its own, which is this program
//! again as `tenure worker`.

use super::{Bench, FLOW, Kit, Way, count::Counting, here::Office, memory_of, processor_of, wrong};
use crate::place::Place;
use serde_json::{Value, json};
use std::{
    io::{BufRead as _, BufReader},
    net::{Ipv4Addr, SocketAddr},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};
use tenure_engine::{
    node::Node,
    stop::{Stop, Stopper, stopper},
};
use tenure_jobs::{
    drive::{JobOptions, Shop},
    submit::Submitter,
};
use tenure_kernel::{
    error::StoreError,
    ids::EntityId,
    runtime::BoxFuture,
    store::{HeadFilter, Store as _},
};
use tenure_server::{App, ServerOptions, jobs::Desk};
use tokio::net::TcpListener;

/// A server in this process and a worker in another.
pub struct Http {
    url: String,
    client: reqwest::Client,
    store: Arc<Counting>,
    worker: Worker,
    // They stop when they are dropped.
    _node: Node,
    _serving: Stopper,
}

/// A process that does not outlive the benchmark.
pub(crate) struct Worker(pub Child);

impl Drop for Worker {
    fn drop(&mut self) {
        // One that has ended by itself is as good as one that was ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn failed(e: impl std::fmt::Display) -> StoreError {
    wrong(e.to_string())
}

impl Http {
    /// Starts them, with as many slots as in one process.
    pub async fn bench(
        place: &Place,
        kit: Kit,
        clients: usize,
        postgres_flights: usize,
    ) -> Result<Bench<'_>, StoreError> {
        let Office { node, store, .. } = Office::open(place, &kit, postgres_flights).await?;
        let rt = node.pipeline.rt().clone();
        let (stopper, stop) = stopper();
        let url = serve(&node, kit, stop).await?;
        let worker = start_worker(&url, clients * 2 + 8)?;
        let client = reqwest::Client::builder().build().map_err(failed)?;
        let way =
            Http { url, client, store: store.clone(), worker, _node: node, _serving: stopper };
        Ok(Bench { place, store, way: Arc::new(way), rt })
    }

    async fn post(&self, path: &str, body: &Value) -> Result<Value, StoreError> {
        let request = self.client.post(format!("{}/v1/jobs{path}", self.url));
        let request = request.header("content-type", "application/json").body(body.to_string());
        let answer = request.send().await.map_err(failed)?;
        let status = answer.status();
        let text = answer.text().await.map_err(failed)?;
        if !status.is_success() {
            return Err(wrong(format!("POST /v1/jobs{path} was answered {status}: {text}")));
        }
        serde_json::from_str(&text).map_err(failed)
    }

    async fn create(&self, query: &str, input: Value) -> Result<(EntityId, Value), StoreError> {
        let answer = self.post(query, &json!({ "flow": FLOW, "input": input })).await?;
        let id = answer["id"].as_str().unwrap_or_default().parse();
        Ok((id.map_err(|e| wrong(format!("no id in {answer}: {e}")))?, answer))
    }
}

pub(crate) async fn serve(node: &Node, kit: Kit, stop: Stop) -> Result<String, StoreError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(failed)?;
    let listen: SocketAddr = listener.local_addr().map_err(failed)?;
    let options = JobOptions::default();
    let submitter = Submitter::new(
        node.pipeline.clone(),
        kit.judge,
        options.must_end_in,
        options.takeovers_max,
    );
    let desk = Desk::new(submitter, Arc::new(Shop::new(kit.flows, kit.tools, options)), false);
    let server = ServerOptions {
        listen,
        worker_kinds: ["worker", "job", "call", "catalogue"].map(str::to_owned).to_vec(),
        ..ServerOptions::default()
    };
    let app = App::with_jobs(node.pipeline.clone(), kit.machines, server, desk);
    node.pipeline.rt().spawn(Box::pin(async move {
        if let Err(e) = tenure_server::serve(app, listener, stop).await {
            eprintln!("the benchmark's server has ended: {e}");
        }
    }));
    Ok(format!("http://{listen}"))
}

pub(crate) fn start_worker(url: &str, slots: usize) -> Result<Worker, StoreError> {
    let program = std::env::current_exe().map_err(failed)?;
    let slots = format!("worker.slots={slots}");
    let child = Command::new(program)
        .args(["worker", "--json", "--server", url, "--set", &slots])
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut worker = Worker(child);
    let out = worker.0.stdout.take().ok_or_else(|| wrong("the worker has no output".into()))?;
    let mut line = String::new();
    // Its first line says that it works; the pipe stays open with the process.
    BufReader::new(out).read_line(&mut line).map_err(failed)?;
    match line.is_empty() {
        true => Err(wrong("the worker did not start".into())),
        false => Ok(worker),
    }
}

impl Way for Http {
    fn done(&self, input: Value) -> BoxFuture<'_, Result<EntityId, StoreError>> {
        Box::pin(async move {
            let (id, answer) = self.create("?wait=60", input).await?;
            match answer["status"].as_str() {
                Some("completed") => Ok(id),
                other => Err(wrong(format!("job {id} is {other:?} after a minute"))),
            }
        })
    }

    fn submit(&self, input: Value) -> BoxFuture<'_, Result<EntityId, StoreError>> {
        Box::pin(async move { self.create("", input).await.map(|(id, _)| id) })
    }

    fn signal(&self, job: EntityId, key: &str) -> BoxFuture<'_, Result<(), StoreError>> {
        let body = json!({ "key": key });
        Box::pin(async move { self.post(&format!("/{job}/signal"), &body).await.map(|_| ()) })
    }

    fn idle(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let busy = ["queued", "running"].map(str::to_owned).to_vec();
            let busy =
                HeadFilter { kind: Some("job".into()), statuses: busy, ..HeadFilter::default() };
            while !self.store.heads(busy.clone(), 1).await?.is_empty() {
                self._node.pipeline.rt().sleep(Duration::from_millis(20)).await;
            }
            Ok(())
        })
    }

    fn commits_max(&self, steps: usize) -> usize {
        steps + 2
    }

    fn memory(&self) -> u64 {
        memory_of(std::process::id()) + memory_of(self.worker.0.id())
    }

    fn processor(&self) -> Duration {
        processor_of(std::process::id()) + processor_of(self.worker.0.id())
    }
}
