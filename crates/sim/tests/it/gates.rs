//! Gates and cascades: never more at once than they let through, never stuck; and whoever is told to stop stops, down
//! to the last grandchild. `TENURE_SIM_SEEDS` sets how many worlds, `TENURE_SIM_FIRST` from which on.

use std::collections::BTreeMap;
use std::time::Duration;
use tenure_sim::{Fault, Off, Options, Report, Scenario, run};

fn number(name: &str, or: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(or)
}

fn gates() -> Options {
    Options::new(Scenario::Gates)
}

/// Runs worlds, and adds up what was there.
fn worlds(options: &Options, count: u64) -> BTreeMap<&'static str, usize> {
    let first = number("TENURE_SIM_FIRST", 0);
    let (mut kinds, mut fenced): (BTreeMap<_, _>, u64) = Default::default();
    for seed in first..first + number("TENURE_SIM_SEEDS", count) {
        let report: Report = run(seed, options).unwrap_or_else(|failure| panic!("{failure}"));
        report.kinds.iter().for_each(|(kind, n)| *kinds.entry(*kind).or_default() += n);
        fenced += report.fenced;
    }
    println!("{kinds:?}, {fenced} refused commits");
    assert!(fenced > 0);
    kinds
}

#[test]
fn gates_let_through_as_many_as_they_should_and_nobody_is_stuck() {
    let kinds = worlds(&gates(), 150);
    assert!(kinds["gate"] > 0);
}

#[test]
fn whoever_is_told_to_stop_stops_down_to_the_last_grandchild() {
    worlds(&Options::new(Scenario::Cascades), 150);
}

#[test]
fn a_line_longer_than_the_window_goes_through_pages_under_every_fault() {
    for seed in 0..number("TENURE_SIM_WIDE_SEEDS", 3) {
        let options = Options { width: Some(230), ..gates() };
        let report = run(seed, &options).unwrap_or_else(|failure| panic!("{failure}"));
        assert!(report.kinds["gate_page"] > 0);
    }
}

/// `TENURE_SIM_LINE` sets how many.
#[test]
fn thousands_pass_a_gate_one_by_one_while_workers_die() {
    let jobs = number("TENURE_SIM_LINE", 2_000);
    let quiet = Duration::from_secs(200 * 3_600);
    // It takes about as many seconds: workers die until half of them are through.
    let storm = Duration::from_secs(jobs / 2);
    let crashes = gates().with_only(&[Fault::Crash]);
    let options = Options { width: Some(jobs), quiet, storm, ..crashes };
    let report = run(7, &options).unwrap_or_else(|failure| panic!("{failure}"));
    println!("{:?}, {} commits, {:?}", report.kinds, report.commits, report.lasted);
    assert_eq!(report.kinds["job"] as u64, jobs);
    assert!(report.kinds["gate_page"] > 0 && report.reclaimed > 0);
}

/// Left alone, they leave with retention; whoever names them next makes them anew.
#[test]
fn gates_and_batches_leave_and_come_again_and_nothing_is_lost() {
    for scenario in [Scenario::Gates, Scenario::Batches] {
        let options = Options { seasons: Some(2), ..Options::new(scenario) };
        let first = number("TENURE_SIM_FIRST", 0);
        let (mut retired, mut reborn) = (0, 0);
        for seed in first..first + number("TENURE_SIM_SEEDS", 40) {
            let report = run(seed, &options).unwrap_or_else(|failure| panic!("{failure}"));
            (retired, reborn) = (retired + report.retired, reborn + report.reborn);
        }
        println!("{}: {retired} left, {reborn} came again", scenario.name());
        assert!(reborn > 0);
    }
}

#[test]
fn a_gate_that_lets_too_many_through_is_noticed() {
    let options = Options { off: Some(Off::GateLimit), width: Some(12), ..gates() };
    let broken = (0..50).find_map(|seed| run(seed, &options).err());
    let failure = broken.expect("nobody notices it in 50 worlds");
    println!("seed {}: {}", failure.seed, failure.broken);
    assert!(failure.broken.contains("past"), "{failure}");
}
