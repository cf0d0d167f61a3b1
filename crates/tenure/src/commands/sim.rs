//! `tenure sim`: replays runs of the deterministic world.

use super::Failure;
use crate::cli;
use tenure_sim::{Options, Scenario};

/// Runs seeds and says what happened; the first failure ends it.
pub fn run(options: &cli::Sim, json: bool) -> Result<String, Failure> {
    let mut out = String::new();
    for seed in options.seed..options.seed.saturating_add(options.runs) {
        let scenario = match &options.scenario {
            Some(name) => Scenario::by_name(name).ok_or_else(|| unknown(name))?,
            None => Scenario::of_seed(seed),
        };
        match tenure_sim::run(seed, &Options::new(scenario)) {
            Ok(report) if json => out.push_str(&format!("{}\n", report.to_json())),
            Ok(report) => {
                if options.trace {
                    report.trace.iter().for_each(|line| out.push_str(&format!("{line}\n")));
                }
                out.push_str(&format!("{report}\n"));
            }
            Err(failure) => {
                print!("{out}");
                return Err(Failure::Found(failure.to_string()));
            }
        }
    }
    Ok(out)
}

fn unknown(name: &str) -> Failure {
    let all: Vec<_> = Scenario::ALL.iter().map(|s| s.name()).collect();
    Failure::Found(format!("there is no scenario {name:?}; there are: {}", all.join(", ")))
}
