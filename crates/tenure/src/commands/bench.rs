//! `tenure bench`.

use super::{Failure, judge};
use crate::{
    cli::{self, Suite},
    open::POSTGRES_FLIGHTS,
};
use std::time::Duration;
use tenure_bench::{claim, commit, place::Place, report::Report};

/// Measures and prints.
pub async fn run(store: Option<&str>, options: &cli::Bench, json: bool) -> Result<String, Failure> {
    let mut place = Place::open(store.unwrap_or("sqlite"), judge()).await?;
    let report: Report = match &options.suite {
        Suite::Commit { callers, seconds } => {
            let options = commit::Options {
                callers: callers.clone(),
                time: Duration::from_secs_f64(*seconds),
            };
            commit::run(&mut place, POSTGRES_FLIGHTS, &options).await?
        }
        Suite::Claim { finished } => claim::run(&mut place, finished).await?,
    };
    place.remove().await?;
    Ok(if json { report.to_json_lines() } else { report.to_table() })
}
