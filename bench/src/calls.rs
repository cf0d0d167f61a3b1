//! `bench calls`: how long a job of one call takes when its tool runs in another process, which speaks the HTTP protocol of
//! `/v1/calls` and knows nothing else, beside one durable write of the same engine.
//!
//! Server, flow worker and client are in this process; the peer is this program again. A job, then some one-row commits of
//! the database alone, then the next job: both meet the same disk and the same neighbours. What one durable write of the engine
//! takes is seen on the way: each commit and each claim of these jobs.
//!
//! What a job of one call writes, one after the other: its birth with the start and the creation of the call; the claim; the
//! answer, with the mail to the job; the end. Each is synced before the next can begin, so four are the floor.

use crate::{
    jobs::{
        Kit,
        count::{Asked, Counting},
        here::Office,
        http::Worker,
        wrong,
    },
    place::Place,
    raw::Raw,
    report::{Case, percentile},
};
use serde_json::{Value, json};
use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::Ipv4Addr,
    process::{Command, Stdio},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
use tenure_edge::executor_of_this_process;
use tenure_engine::stop::stopper;
use tenure_jobs::{
    crew::{Crew, CrewOptions},
    drive::{JobOptions, Shop},
    submit::{Submission, Submitter},
};
use tenure_kernel::{error::StoreError, runtime::Rt};
use tenure_server::{App, ServerOptions, jobs::Desk};
use tokio::net::TcpListener;

/// The flow that calls any tool.
const FLOW: &str = "call";
/// The tool of the peer.
const TOOL: &str = "bench.far";
/// Jobs before anything is measured.
const WARM_UP: usize = 20;
/// Durable writes of the engine alone after each job.
const RAW: usize = 8;

/// How many jobs, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Jobs.
    pub jobs: usize,
    /// Tells of the last jobs, line by line, what the store was asked for and when.
    pub journal: bool,
}

fn tell(journal: &[Asked], sent: Duration, took: Duration) {
    let us = |at: Duration| at.saturating_sub(sent).as_micros();
    println!("a job of {} us:", took.as_micros());
    for asked in journal {
        println!("{:>7} {:>7}  {}", us(asked.began), us(asked.ended), asked.what);
    }
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Calls {
    /// The engine.
    pub store: &'static str,
    /// Jobs that were measured; all of them completed.
    pub jobs: usize,
    /// One row, committed by the database alone, in milliseconds.
    pub raw_p50: f64,
    /// One durable write of the engine, as these jobs made them: a commit with its checks, or a claim.
    pub engine_p50: f64,
    /// A job of one call.
    pub job_p50: f64,
    /// The slowest in a hundred.
    pub job_p99: f64,
    /// Batches that the store wrote per job.
    pub batches: f64,
    /// Reads of the store per job, by anybody.
    pub reads: f64,
}

impl Calls {
    /// For the report.
    pub fn case(&self) -> Case {
        Case::of("calls")
            .with("store", self.store)
            .with("jobs", self.jobs)
            .measured("raw_commit_p50_ms", self.raw_p50)
            .measured("job_p50_ms", self.job_p50)
            .measured("job_p99_ms", self.job_p99)
            .measured("job_to_raw", self.job_p50 / self.raw_p50)
            .measured("engine_write_p50_ms", self.engine_p50)
            .measured("job_to_engine_write", self.job_p50 / self.engine_p50)
            .measured("batches_per_job", self.batches)
            .measured("reads_per_job", self.reads)
    }
}

fn failed(e: impl std::fmt::Display) -> StoreError {
    wrong(e.to_string())
}

/// Runs the suite.
pub async fn run(
    place: &Place,
    kit: Kit,
    postgres_flights: usize,
    options: Options,
) -> Result<Calls, StoreError> {
    let Office { node, store, config } = Office::open(place, &kit, postgres_flights).await?;
    let rt = node.pipeline.rt().clone();
    let shop = Arc::new(Shop::new(kit.flows, kit.tools, JobOptions::default()));
    let crew = CrewOptions {
        name: "bench".into(),
        executor: executor_of_this_process(),
        slots: 16,
        drain: Duration::from_secs(5),
    };
    let crew = Crew::start(node.pipeline.clone(), config, shop.clone(), crew).await?;
    let jobs = crew.submitter(kit.judge);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(failed)?;
    let listen = listener.local_addr().map_err(failed)?;
    let desk = Desk::new(jobs.clone(), shop, true);
    let server = ServerOptions { listen, ..ServerOptions::default() };
    let app = App::with_jobs(node.pipeline.clone(), kit.machines, server, desk);
    let (_serving, stop) = stopper();
    rt.spawn(Box::pin(async move {
        if let Err(e) = tenure_server::serve(app, listener, stop).await {
            eprintln!("the benchmark's server has ended: {e}");
        }
    }));
    let url = format!("http://{listen}");
    // Starting a process blocks for as long as it takes: not on a thread that the server needs to answer it.
    let started = tokio::task::spawn_blocking(move || start_peer(&url)).await;
    let _peer = started.map_err(failed)??;
    let raw = place.raw().await?;
    #[expect(clippy::disallowed_methods, reason = "a benchmark is process edge")]
    let client = tokio::task::spawn(async move { client(&store, &jobs, &rt, raw, options).await });
    let Figures { mut took, mut raw, mut engine, reads, batches } =
        client.await.map_err(failed)??;
    for times in [&mut took, &mut raw, &mut engine] {
        times.sort_by(f64::total_cmp);
    }
    let per_job = |n: f64| n / took.len().max(1) as f64;
    Ok(Calls {
        store: place.engine(),
        jobs: took.len(),
        raw_p50: percentile(&raw, 0.5),
        engine_p50: percentile(&engine, 0.5),
        job_p50: percentile(&took, 0.5),
        job_p99: percentile(&took, 0.99),
        batches: per_job(batches as f64),
        reads: per_job(reads as f64),
    })
}

async fn client(
    store: &Counting,
    jobs: &Submitter,
    rt: &Rt,
    mut raw: Raw,
    options: Options,
) -> Result<Figures, StoreError> {
    let ms = |d: Duration| d.as_secs_f64() * 1000.0;
    let mut figures = Figures::default();
    let Figures { took, raw: writes, engine, reads, batches } = &mut figures;
    let input = json!({ "tool": TOOL, "input": "x".repeat(200) });
    for n in 0..WARM_UP + options.jobs {
        let submission =
            Submission { flow: FLOW.into(), input: input.clone(), ..Submission::default() };
        store.keep_journal();
        let (sent, before) = (rt.mono(), store.batches.load(Relaxed));
        let (job, ending) = jobs.submit_and_listen(submission).await.map_err(failed)?;
        let mut ending = ending.ok_or_else(|| wrong("there is no worker here".into()))?;
        let status = ending.heard().await;
        let done = rt.mono() - sent;
        if status != "completed" {
            return Err(wrong(format!("job {} is {status}", job.id)));
        }
        let journal = store.take_journal();
        if options.journal && n + 3 >= WARM_UP + options.jobs {
            tell(&journal, sent, done);
        }
        let wrote = store.batches.load(Relaxed) - before;
        for _ in 0..RAW {
            let one = raw.one_row().await?;
            if n >= WARM_UP {
                writes.push(ms(one));
            }
        }
        if n >= WARM_UP {
            took.push(ms(done));
            *batches += wrote;
            let (own, looked): (Vec<_>, Vec<_>) = journal.iter().partition(|a| a.is_write());
            engine.extend(own.iter().map(|a| ms(a.ended - a.began)));
            *reads += looked.len();
        }
    }
    Ok(figures)
}

/// What was seen of all jobs. Times in milliseconds.
#[derive(Default)]
struct Figures {
    took: Vec<f64>,
    raw: Vec<f64>,
    engine: Vec<f64>,
    reads: usize,
    batches: u64,
}

fn start_peer(url: &str) -> Result<Worker, StoreError> {
    let program = std::env::current_exe().map_err(failed)?;
    let child = Command::new(program)
        .args(["bench", "calls-peer", "--server", url])
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut peer = Worker(child);
    let out = peer.0.stdout.take().ok_or_else(|| wrong("the peer has no output".into()))?;
    let mut line = String::new();
    // Its first line says that it has registered its tool; the pipe stays open with the process.
    BufReader::new(out).read_line(&mut line).map_err(failed)?;
    match line.is_empty() {
        true => Err(wrong("the peer did not start".into())),
        false => Ok(peer),
    }
}

/// The peer: takes calls over HTTP and returns what they got. Never ends by itself while the server answers.
pub async fn peer(url: &str) -> Result<(), StoreError> {
    let client = reqwest::Client::builder().no_proxy().build().map_err(failed)?;
    let post = |path: String, body: Value| {
        let request = client.post(format!("{url}/v1/calls/{path}"));
        let request = request.header("content-type", "application/json").body(body.to_string());
        async move {
            let answer = request.send().await.map_err(failed)?;
            let status = answer.status();
            let text = answer.text().await.map_err(failed)?;
            match status.is_success() {
                true => serde_json::from_str::<Value>(&text).map_err(failed),
                false => Err(wrong(format!("{path} was answered {status}: {text}"))),
            }
        }
    };
    // Longer than any run: this is about calls, not about leases.
    let tools = json!([{ "name": TOOL, "class": "idempotent" }]);
    let open = json!({ "name": "bench peer", "lease_ms": 3_600_000, "tools": tools });
    let opened = post("sessions".into(), open).await?;
    let session = opened["session"].as_str().unwrap_or_default().to_owned();
    println!("ready");
    std::io::stdout().flush().map_err(failed)?;
    loop {
        let ask = json!({ "max": 8, "wait_ms": 20_000 });
        let mut polled = post(format!("sessions/{session}/poll"), ask).await?;
        for call in polled["calls"].as_array_mut().into_iter().flatten() {
            let id = call["call"].as_str().unwrap_or_default().to_owned();
            let (epoch, result) = (call["epoch"].take(), call["input"].take());
            let body = json!({ "session": session, "epoch": epoch, "result": result });
            post(format!("{id}/complete"), body).await?;
        }
    }
}
