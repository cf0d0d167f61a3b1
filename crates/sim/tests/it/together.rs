//! What jobs are made of and with: sagas, batches, wishes of applications, actions on many. `TENURE_SIM_SEEDS` sets how
//! many worlds, `TENURE_SIM_FIRST` from which on.

use tenure_sim::{Fault, Off, Options, Scenario, run};

fn number(name: &str, or: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(or)
}

/// Runs worlds, and insists that something happened in them.
fn holds(scenario: Scenario) {
    let first = number("TENURE_SIM_FIRST", 0);
    let (mut effects, mut fenced, mut entities) = (0, 0, 0);
    for seed in first..first + number("TENURE_SIM_SEEDS", 120) {
        let report = run(seed, &Options::new(scenario));
        let report = report.unwrap_or_else(|failure| panic!("{failure}"));
        (effects, fenced) = (effects + report.effects, fenced + report.fenced);
        entities += report.entities;
    }
    println!("{effects} effects, {fenced} refused commits, {entities} entities");
    assert!(effects > 0 && fenced > 0 && entities > 0);
}

/// Without it something breaks within so many worlds, and it is this; with it nothing does.
fn is_missed(on: &Options, off: Off, says: &str) {
    for seed in 0..10 {
        run(seed, on).unwrap_or_else(|failure| panic!("{failure}"));
    }
    let off = Options { off: Some(off), ..on.clone() };
    let broken = (0..400).find_map(|seed| run(seed, &off).err());
    let failure = broken.expect("nobody misses it in 400 worlds");
    println!("seed {}: {}", failure.seed, failure.broken);
    assert!(failure.broken.contains(says), "{failure}");
}

#[test]
fn a_saga_that_fails_or_is_cancelled_is_undone_once_and_in_reverse() {
    holds(Scenario::Sagas);
}

#[test]
fn what_undoes_is_one_step_whoever_runs_it() {
    is_missed(&Options::new(Scenario::Sagas), Off::UndoStep, "was undone 2 times");
}

#[test]
fn every_submission_to_a_batch_is_in_one_job_and_in_time() {
    holds(Scenario::Batches);
}

#[test]
fn without_a_key_a_repeated_submission_is_collected_twice() {
    let on = Options::new(Scenario::Batches).with_only(&[Fault::AnswerLost]);
    is_missed(&on, Off::ItemKey, "collected twice");
}

#[test]
fn a_batch_that_waits_too_long_is_noticed() {
    is_missed(&Options::new(Scenario::Batches).with_only(&[]), Off::BatchTime, "may wait");
}

#[test]
fn every_wish_of_an_application_is_one_job() {
    holds(Scenario::Intake);
}

#[test]
fn a_wish_that_becomes_a_job_under_another_id_is_noticed() {
    is_missed(&Options::new(Scenario::Intake).with_only(&[]), Off::IntakeId, "promised");
}

#[test]
fn a_wish_that_is_forgotten_before_its_job_is_there_is_lost() {
    let on = Options::new(Scenario::Intake).with_only(&[Fault::Crash, Fault::Unavailable]);
    is_missed(&on, Off::IntakeOrder, "promised and is not there");
}

#[test]
fn an_action_on_many_does_what_was_shown_once() {
    holds(Scenario::Bulk);
}

#[test]
fn an_action_that_reaches_newer_jobs_is_noticed() {
    is_missed(&Options::new(Scenario::Bulk).with_only(&[]), Off::BulkHorizon, "not have named");
}
