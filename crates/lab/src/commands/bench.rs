//! `tenure bench`.

use crate::{
    cli::{self, Suite},
    drill,
};
use crate::{judge, machines};
use std::{path::Path, time::Duration};
use tenure::commands::Failure;
use tenure::open::POSTGRES_FLIGHTS;
use tenure_bench::{
    agents, aims, calls, claim, commit, drain, growth, jobs,
    place::Place,
    pods,
    report::{Case, Report, tell},
    retention, serial, slow_disk, start,
};

/// Measures and prints.
pub async fn run(store: Option<&str>, options: &cli::Bench, json: bool) -> Result<String, Failure> {
    let store = store.unwrap_or("sqlite");
    // These bring their own places: other processes.
    let cases = match &options.suite {
        Suite::SlowDisk { fsync_ms, concurrency, seconds, rounds, private_postgres } => {
            let options = slow_disk::Options {
                store: store.to_owned(),
                fsync: Duration::from_millis(*fsync_ms),
                concurrency: *concurrency,
                time: Duration::from_secs_f64(*seconds),
                rounds: *rounds,
                private_postgres: private_postgres.clone(),
            };
            vec![slow_disk::run(options)?.case()]
        }
        Suite::Start { runs, quiet_seconds, load_seconds } => {
            let options = start::Options {
                runs: *runs,
                quiet: Duration::from_secs_f64(*quiet_seconds),
                load: Duration::from_secs_f64(*load_seconds),
            };
            vec![start::run(scratch(store)?, options).await?.case()]
        }
        Suite::Aims { quick, private_postgres } => {
            return all_aims(store, *quick, private_postgres).await;
        }
        Suite::CallsPeer { server } => {
            calls::peer(server).await?;
            return Ok(String::new());
        }
        here => return in_this_process(store, here, json).await,
    };
    Ok(tell(&cases, json))
}

/// Every aim, SQLite first.
async fn all_aims(store: &str, quick: bool, private_postgres: &Path) -> Result<String, Failure> {
    let size = if quick { Size::QUICK } else { Size::FULL };
    let (embedded, postgres) = match store.starts_with("postgres") {
        true => ("sqlite", Some(store)),
        false => (store, None),
    };
    let mut aims = Vec::new();
    for store in std::iter::once(embedded).chain(postgres) {
        aims_of(store, &size, private_postgres, &mut aims).await?;
    }
    let options = start::Options { runs: size.runs, quiet: size.quiet, load: size.time };
    eprintln!("start");
    aims.extend(aims::start(&start::run(scratch(embedded)?, options).await?));
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let sort = if quick { "a quick run with small numbers" } else { "a full run" };
    let about = format!(
        "Written by `tenure bench aims`, {sort}, version {}, on a machine with {cores} cores that clients, server, \
         worker and database share; everything is synced.",
        env!("CARGO_PKG_VERSION")
    );
    Ok(aims::markdown(&aims, &about))
}

/// How much is enough to judge.
struct Size {
    serial_jobs: usize,
    time: Duration,
    rounds: usize,
    drain: usize,
    finished: &'static [usize],
    waiting: usize,
    snapshot: Duration,
    runs: usize,
    quiet: Duration,
}

impl Size {
    const FULL: Size = Size {
        serial_jobs: 1_000,
        time: Duration::from_secs(5),
        rounds: 3,
        drain: 50_000,
        finished: &[1_000, 10_000, 100_000, 1_000_000],
        waiting: 100_000,
        snapshot: Duration::from_secs(600),
        runs: 21,
        quiet: Duration::from_secs(5),
    };
    const QUICK: Size = Size {
        serial_jobs: 100,
        time: Duration::from_secs(1),
        rounds: 1,
        drain: 5_000,
        finished: &[1_000, 20_000],
        waiting: 2_000,
        snapshot: Duration::from_secs(5),
        runs: 5,
        quiet: Duration::from_secs(2),
    };
}

/// The aims of one engine, each in a place of its own.
async fn aims_of(
    store: &str,
    size: &Size,
    private_postgres: &Path,
    aims: &mut Vec<aims::Aim>,
) -> Result<(), Failure> {
    // Nobody should wonder for half an hour whether something happens.
    let doing = |suite: &str| eprintln!("{suite} on {}", store.split(':').next().unwrap_or(store));
    doing("serial");
    let place = Place::open(store, judge()).await?;
    let bench = jobs::Here::bench(&place, kit(), 1, POSTGRES_FLIGHTS).await?;
    let options = serial::Options { jobs: size.serial_jobs, steps: 10 };
    aims.extend(aims::serial(&serial::run(&bench, options).await?));
    drop(bench);
    place.remove().await?;

    doing("drain");
    let place = Place::open(store, judge()).await?;
    let options = drain::Options { jobs: size.drain, steps: 1, slots: DRAIN_SLOTS, http: false };
    aims.push(aims::drain(&drain::run(&place, kit(), POSTGRES_FLIGHTS, options).await?));
    place.remove().await?;

    doing("slow-disk");
    aims.push(aims::slow_disk(&slow_disk::run(slow_disk::Options {
        store: if store.starts_with("postgres") { "postgres://" } else { store }.to_owned(),
        fsync: Duration::from_millis(5),
        concurrency: 200,
        time: size.time,
        rounds: size.rounds,
        private_postgres: private_postgres.to_owned(),
    })?));

    doing("growth");
    let place = Place::open(store, judge()).await?;
    let bench = jobs::Here::bench(&place, kit(), growth::FILLING, POSTGRES_FLIGHTS).await?;
    let options = growth::Options {
        finished: size.finished.to_vec(),
        waiting: size.waiting,
        clients: 50,
        time: size.time,
        snapshot: size.snapshot,
    };
    let command = format!(
        "tenure bench growth --waiting {} --snapshot-seconds {}",
        size.waiting,
        size.snapshot.as_secs()
    );
    aims.extend(aims::growth(&growth::run(&bench, &options).await?, &command));
    drop(bench);
    Ok(place.remove().await?)
}

/// Jobs that a worker runs at once while a queue is emptied: the default of `bench drain`.
const DRAIN_SLOTS: usize = 512;

/// Where scratch directories of an embedded store go.
fn scratch(store: &str) -> Result<&Path, Failure> {
    match store.split_once(':') {
        None if store == "sqlite" => Ok(Path::new(".")),
        Some(("sqlite", dir)) => Ok(Path::new(dir)),
        _ => Err(Failure::System("this suite starts processes on the embedded store only".into())),
    }
}

async fn in_this_process(store: &str, suite: &Suite, json: bool) -> Result<String, Failure> {
    if matches!(suite, Suite::Jobs { .. }) {
        jobs::count::trace_sqlite();
    }
    let mut place = Place::open(store, judge()).await?;
    let told = match figures(&mut place, suite).await? {
        Some(report) if json => report.to_json_lines(),
        Some(report) => report.to_table(),
        None => tell(&cases(&place, suite).await?, json),
    };
    place.remove().await?;
    Ok(told)
}

/// The suites that tell single figures.
async fn figures(place: &mut Place, suite: &Suite) -> Result<Option<Report>, Failure> {
    Ok(Some(match suite {
        Suite::Commit { callers, seconds } => {
            let options = commit::Options {
                callers: callers.clone(),
                time: Duration::from_secs_f64(*seconds),
            };
            commit::run(place, POSTGRES_FLIGHTS, &options).await?
        }
        Suite::Jobs { steps, concurrency, seconds, http, waiting } => {
            let options = jobs::Options {
                steps: steps.clone(),
                concurrency: concurrency.clone(),
                time: Duration::from_secs_f64(*seconds),
                waiting: *waiting,
            };
            let clients = concurrency.iter().copied().max().unwrap_or(1);
            let bench = match http {
                true => jobs::Http::bench(place, kit(), clients, POSTGRES_FLIGHTS).await?,
                false => jobs::Here::bench(place, kit(), clients, POSTGRES_FLIGHTS).await?,
            };
            bench.run(&options).await?
        }
        Suite::Claim { finished } => claim::run(place, finished).await?,
        _ => return Ok(None),
    }))
}

/// The suites that tell cases.
async fn cases(place: &Place, suite: &Suite) -> Result<Vec<Case>, Failure> {
    Ok(match suite {
        Suite::Agents { clients, seconds, bus } => {
            let time = Duration::from_secs_f64(*seconds);
            let options = agents::Options { clients: (*clients).max(1), time, bus: bus.clone() };
            agents::run(place, machines(), POSTGRES_FLIGHTS, &options).await?
        }
        Suite::Drain { jobs, steps, slots, http } => {
            let options = drain::Options { jobs: *jobs, steps: *steps, slots: *slots, http: *http };
            vec![drain::run(place, kit(), POSTGRES_FLIGHTS, options).await?.case()]
        }
        Suite::Serial { jobs, steps } => {
            let options = serial::Options { jobs: *jobs, steps: *steps };
            let bench = jobs::Here::bench(place, kit(), 1, POSTGRES_FLIGHTS).await?;
            vec![serial::run(&bench, options).await?.case()]
        }
        Suite::Calls { jobs, journal } => {
            let flows = tenure::flows::builtin();
            let kit = jobs::Kit { flows, ..kit() };
            let options = calls::Options { jobs: *jobs, journal: *journal };
            vec![calls::run(place, kit, POSTGRES_FLIGHTS, options).await?.case()]
        }
        Suite::Pods { pods, changes, rate, seconds, redis, journal } => {
            let options = pods::Options {
                pods: (*pods).max(1),
                changes: *changes,
                rate: rate.max(1.0),
                time: Duration::from_secs_f64(*seconds),
                redis: redis.clone(),
                journal: *journal,
            };
            pods::run(place, kit(), POSTGRES_FLIGHTS, &options).await?
        }
        Suite::Growth { finished, waiting, clients, seconds, snapshot_seconds } => {
            let options = growth::Options {
                finished: finished.clone(),
                waiting: *waiting,
                clients: *clients,
                time: Duration::from_secs_f64(*seconds),
                snapshot: Duration::from_secs_f64(*snapshot_seconds),
            };
            let clients = growth::FILLING.max(*clients);
            let bench = jobs::Here::bench(place, kit(), clients, POSTGRES_FLIGHTS).await?;
            growth::run(&bench, &options).await?.cases()
        }
        Suite::Retention { jobs, values, calls } => {
            let options = retention::Options { jobs: jobs.clone(), values: *values, calls: *calls };
            retention::run(place, &options).await?.cases()
        }
        _ => Vec::new(),
    })
}

/// The flow that the suite runs, and its tool.
fn kit() -> jobs::Kit {
    let (flows, tools) = (drill::flows::flows(), drill::flows::tools());
    jobs::Kit { flows, tools, machines: machines(), judge: judge() }
}
