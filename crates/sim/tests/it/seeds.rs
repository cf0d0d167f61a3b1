//! Thousands of worlds, every kind of fault. `TENURE_SIM_SEEDS` sets how many of each scenario.

use std::collections::BTreeMap;
use tenure_sim::{Fault, Options, Scenario, run};

fn seeds() -> u64 {
    std::env::var("TENURE_SIM_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(700)
}

fn survives(scenario: Scenario) {
    let mut faults: BTreeMap<Fault, u64> = BTreeMap::new();
    let mut fenced = 0;
    for seed in 0..seeds() {
        match run(seed, &Options::new(scenario)) {
            Ok(report) => {
                report.faults.iter().for_each(|(f, n)| *faults.entry(*f).or_default() += n);
                fenced += report.fenced;
            }
            Err(failure) => panic!("{failure}"),
        }
    }
    // A fault that never bites proves nothing, and neither does a fence that nobody runs into.
    for fault in Fault::ALL {
        assert!(faults.contains_key(&fault), "{fault} never happened");
    }
    assert!(fenced > 0);
}

#[test]
fn errands_have_their_effects_at_most_once_and_end() {
    survives(Scenario::Slice);
}

#[test]
fn a_fan_ends_once_under_a_storm_of_signals() {
    survives(Scenario::Fan);
}

#[test]
fn a_cancelled_parent_ends_after_its_children() {
    survives(Scenario::Cancel);
}

#[test]
fn a_resting_entity_counts_every_message_once() {
    survives(Scenario::Bowl);
}

#[test]
fn a_thousand_parts_end() {
    let wide = Options { width: Some(1_000), ..Options::new(Scenario::Fan) };
    run(1, &wide).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn without_faults_nobody_loses_a_tenure() {
    for scenario in Scenario::ALL {
        for seed in 0..20 {
            let report = run(seed, &Options::new(scenario).with_only(&[]));
            let report = report.unwrap_or_else(|failure| panic!("{failure}"));
            assert_eq!(report.reclaimed, 0);
        }
    }
}
