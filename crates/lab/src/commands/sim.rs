//! `tenure sim`: replays runs of the deterministic world.

use crate::cli;
use tenure::commands::Failure;
use tenure_sim::{Options, Report, Scenario};

/// Runs seeds and says what happened; the first failure ends it.
pub fn run(options: &cli::Sim, json: bool) -> Result<String, Failure> {
    let mut out = String::new();
    for seed in options.seed..options.seed.saturating_add(options.runs) {
        let scenario = match &options.scenario {
            Some(name) => Scenario::parse(name).ok_or_else(|| unknown(name))?,
            None => {
                let n = Scenario::ALL.len() as u64;
                Scenario::ALL[usize::try_from(seed % n).unwrap_or(0)]
            }
        };
        match tenure_sim::run(seed, &Options::new(scenario)) {
            Ok(report) if json => out.push_str(&format!("{}\n", as_json(&report))),
            Ok(report) => {
                if options.trace {
                    report.trace.iter().for_each(|line| out.push_str(&format!("{line}\n")));
                }
                out.push_str(&in_words(&report));
            }
            Err(failure) => {
                print!("{out}");
                return Err(Failure::Found(failure.to_string()));
            }
        }
    }
    Ok(out)
}

fn in_words(r: &Report) -> String {
    let faults: Vec<_> = r.faults.iter().map(|(f, n)| format!("{f:?} x{n}")).collect();
    format!(
        "seed {} {}: held. {:.0} s of virtual time, {} entities, {} commits ({} refused as late, {} recognised as \
         repeated), {} effects outside; trace {:016x}\n  faults: {}\n",
        r.seed,
        r.scenario.name(),
        r.lasted.as_secs_f64(),
        r.entities,
        r.commits,
        r.fenced,
        r.repeated,
        r.effects,
        r.hash,
        faults.join(", ")
    )
}

fn as_json(r: &Report) -> serde_json::Value {
    let faults: serde_json::Map<_, _> =
        r.faults.iter().map(|(f, n)| (format!("{f:?}"), (*n).into())).collect();
    serde_json::json!({
        "seed": r.seed, "scenario": r.scenario.name(), "virtual_seconds": r.lasted.as_secs_f64(),
        "entities": r.entities, "commits": r.commits, "refused_as_late": r.fenced, "repeated": r.repeated,
        "effects": r.effects, "faults": faults, "trace_hash": format!("{:016x}", r.hash),
    })
}

fn unknown(name: &str) -> Failure {
    let all: Vec<_> = Scenario::ALL.iter().map(|s| s.name()).collect();
    Failure::Found(format!("there is no scenario {name:?}; there are: {}", all.join(", ")))
}
