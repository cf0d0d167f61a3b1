//! Jobs: nothing is done twice, nothing is lost, and what is not known is said. `TENURE_SIM_SEEDS` sets how many
//! worlds.

use std::collections::BTreeMap;
use tenure_kernel::judge::Protections;
use tenure_sim::{Fault, Off, Options, Scenario, Strike, run};

fn number(name: &str, or: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(or)
}

fn jobs() -> Options {
    Options::new(Scenario::Jobs)
}

#[test]
fn jobs_do_everything_once_and_end() {
    let mut faults: BTreeMap<Fault, u64> = BTreeMap::new();
    let (mut fenced, mut effects) = (0, 0);
    for seed in 0..number("TENURE_SIM_SEEDS", 350) {
        let report = run(seed, &jobs()).unwrap_or_else(|failure| panic!("{failure}"));
        report.faults.iter().for_each(|(f, n)| *faults.entry(*f).or_default() += n);
        (fenced, effects) = (fenced + report.fenced, effects + report.effects);
    }
    for fault in Fault::ALL {
        assert!(faults.contains_key(&fault), "{fault} never happened");
    }
    assert!(fenced > 0 && effects > 0);
}

#[test]
fn calls_in_the_hands_of_other_workers_happen_once_and_end() {
    let mut effects = 0;
    for seed in 0..number("TENURE_SIM_SEEDS", 350) {
        let report = run(seed, &Options::new(Scenario::Calls));
        effects += report.unwrap_or_else(|failure| panic!("{failure}")).effects;
    }
    assert!(effects > 0);
}

/// A short flow, and the worker that runs it is struck at its first, second, third … poll.
fn sweep(strike: Strike) {
    let every = number("TENURE_SIM_SWEEP", 3) as usize;
    for seed in 0..4 {
        for at in (1..420).step_by(every) {
            // Another offset per seed, so that together they meet every point.
            let at = at + seed % every as u64;
            let options = Options { strike: Some((at, strike)), ..jobs().with_only(&[]) };
            run(seed, &options).unwrap_or_else(|failure| panic!("struck at {at}: {failure}"));
        }
    }
}

#[test]
fn a_worker_may_die_at_every_await_point() {
    sweep(Strike::Kill);
}

#[test]
fn a_worker_may_stop_at_every_await_point_for_longer_than_its_lease() {
    sweep(Strike::Stop);
}

/// Without it something breaks within so many worlds, and with it nothing does.
fn is_missed(on: &Options, off: &Options) {
    for seed in 0..10 {
        run(seed, on).unwrap_or_else(|failure| panic!("{failure}"));
    }
    let broken = (0..1_500).find_map(|seed| run(seed, off).err());
    let failure = broken.expect("nobody misses it in 1,500 worlds");
    println!("seed {}: {}", failure.seed, failure.broken);
}

fn hard() -> Options {
    jobs().with_only(&[Fault::Pause, Fault::Crash])
}

#[test]
fn without_fencing_a_stale_worker_writes() {
    let protections = Protections { fencing: false, ..Protections::default() };
    is_missed(&hard(), &hard().protected(protections));
}

#[test]
fn without_the_ledger_something_is_done_twice() {
    is_missed(&hard(), &Options { off: Some(Off::Ledger), ..hard() });
}

#[test]
fn without_the_lease_check_a_woken_worker_calls_for_a_job_it_has_lost() {
    is_missed(&hard(), &Options { off: Some(Off::LeaseCheck), ..hard() });
}

#[test]
fn a_lost_lease_is_not_death() {
    is_missed(&hard(), &Options { off: Some(Off::Death), ..hard() });
}

/// Runs a scenario, and insists that something happened in it.
fn holds(scenario: Scenario) {
    let (mut effects, mut fenced, mut entities) = (0, 0, 0);
    for seed in 0..number("TENURE_SIM_SEEDS", 120) {
        let report =
            run(seed, &Options::new(scenario)).unwrap_or_else(|failure| panic!("{failure}"));
        effects += report.effects;
        fenced += report.fenced;
        entities += report.entities;
    }
    println!("{effects} effects, {fenced} refused commits, {entities} entities");
    assert!(effects > 0 && fenced > 0 && entities > 0);
}

#[test]
fn under_limits_nothing_is_called_without_a_token_or_before_its_time() {
    holds(Scenario::Limits);
}

#[test]
fn every_time_of_a_schedule_is_dealt_with_once() {
    holds(Scenario::Schedules);
}
