//! `tenure bench`.

use super::{Failure, judge, machines};
use crate::{
    cli::{self, Suite},
    drill,
    open::POSTGRES_FLIGHTS,
};
use std::time::Duration;
use tenure_bench::{claim, commit, jobs, place::Place, report::Report};

/// Measures and prints.
pub async fn run(store: Option<&str>, options: &cli::Bench, json: bool) -> Result<String, Failure> {
    if matches!(options.suite, Suite::Jobs { .. }) {
        jobs::count::trace_sqlite();
    }
    let mut place = Place::open(store.unwrap_or("sqlite"), judge()).await?;
    let report: Report = match &options.suite {
        Suite::Commit { callers, seconds } => {
            let options = commit::Options {
                callers: callers.clone(),
                time: Duration::from_secs_f64(*seconds),
            };
            commit::run(&mut place, POSTGRES_FLIGHTS, &options).await?
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
                true => jobs::Http::bench(&place, kit(), clients, POSTGRES_FLIGHTS).await?,
                false => jobs::Here::bench(&place, kit(), clients, POSTGRES_FLIGHTS).await?,
            };
            bench.run(&options).await?
        }
        Suite::Claim { finished } => claim::run(&mut place, finished).await?,
    };
    place.remove().await?;
    Ok(if json { report.to_json_lines() } else { report.to_table() })
}

/// The flow that the suite runs, and its tool.
fn kit() -> jobs::Kit {
    let (flows, tools) = (drill::flows::flows(), drill::flows::tools());
    jobs::Kit { flows, tools, machines: machines(), judge: judge() }
}
