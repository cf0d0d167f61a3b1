//! `tenure bench`.

use super::{Failure, judge, machines};
use crate::{
    cli::{self, Suite},
    drill,
    open::POSTGRES_FLIGHTS,
};
use std::{path::Path, time::Duration};
use tenure_bench::{
    claim, commit, drain, growth, jobs,
    place::Place,
    report::{Case, Report, tell},
    serial, slow_disk, start,
};

/// Measures and prints.
pub async fn run(store: Option<&str>, options: &cli::Bench, json: bool) -> Result<String, Failure> {
    let store = store.unwrap_or("sqlite");
    // These bring their own places: other processes.
    let cases = match &options.suite {
        Suite::SlowDisk { fsync_ms, concurrency, steps, seconds, rounds, private_postgres } => {
            let options = slow_disk::Options {
                store: store.to_owned(),
                fsync: Duration::from_millis(*fsync_ms),
                concurrency: *concurrency,
                steps: *steps,
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
        here => return in_this_process(store, here, json).await,
    };
    Ok(tell(&cases, json))
}

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
        Suite::Drain { jobs, steps, slots, http } => {
            let options = drain::Options { jobs: *jobs, steps: *steps, slots: *slots, http: *http };
            vec![drain::run(place, kit(), POSTGRES_FLIGHTS, options).await?.case()]
        }
        Suite::Serial { jobs, steps } => {
            let options = serial::Options { jobs: *jobs, steps: *steps };
            let bench = jobs::Here::bench(place, kit(), 1, POSTGRES_FLIGHTS).await?;
            vec![serial::run(&bench, options).await?.case()]
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
        _ => Vec::new(),
    })
}

/// The flow that the suite runs, and its tool.
fn kit() -> jobs::Kit {
    let (flows, tools) = (drill::flows::flows(), drill::flows::tools());
    jobs::Kit { flows, tools, machines: machines(), judge: judge() }
}
