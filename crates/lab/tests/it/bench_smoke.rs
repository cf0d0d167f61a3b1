//! Every suite of `tenure bench` runs, tells what it should, and has all of its jobs completed (a suite fails
//! otherwise). Nothing here is about speed.

use crate::support::{complained, own_database, run, said};
use serde_json::Value;
use std::path::Path;

/// Runs a suite in a scratch directory; its cases.
fn bench(store: &str, suite: &[&str]) -> Vec<Value> {
    let dir = tempfile::tempdir().unwrap();
    let mut args = vec!["--json", "--store", store, "bench"];
    args.extend(suite);
    let output = run(&args, dir.path());
    assert!(output.status.success(), "{suite:?} on {store}: {}", complained(&output));
    said(&output).lines().map(|l| serde_json::from_str(l).expect("a line of JSON")).collect()
}

fn number(case: &Value, name: &str) -> f64 {
    case[name].as_f64().unwrap_or_else(|| panic!("no number {name} in {case}"))
}

fn drains(store: &str, engine: &str, more: &[&str]) {
    let cases = bench(store, &[&["drain", "--jobs", "40", "--slots", "16"], more].concat());
    let [case] = &cases[..] else { panic!("{cases:?}") };
    assert_eq!((&case["suite"], &case["store"]), (&"drain".into(), &engine.into()));
    assert_eq!((number(case, "jobs"), number(case, "completed")), (40.0, 40.0));
    assert_eq!(number(case, "steps"), 1.0);
    assert!(number(case, "seconds") > 0.0 && number(case, "per_second") > 0.0, "{case}");
}

fn is_serial(store: &str) {
    let cases = bench(store, &["serial", "--jobs", "2", "--steps", "3"]);
    let case = &cases[0];
    assert_eq!(number(case, "steps"), 3.0);
    for name in ["raw_commit_p50_ms", "step_p50_ms", "step_to_raw", "submit_to_start_p99_ms"] {
        assert!(number(case, name) > 0.0, "{name} in {case}");
    }
}

fn grows(store: &str, slices: usize) {
    let cases = bench(
        store,
        &[
            &["growth", "--finished", "20,40", "--clients", "4", "--seconds", "0.1"],
            &["--snapshot-seconds", "0.1"][..],
        ]
        .concat(),
    );
    let named = |start: &str| {
        cases.iter().filter(|c| c["case"].as_str().is_some_and(|n| n.starts_with(start))).count()
    };
    assert_eq!(named("finished="), 2, "{cases:?}");
    assert_eq!(named("snapshot_held_s="), slices, "{cases:?}");
    let verdict = cases.iter().find(|c| c["case"] == "sizes").expect("a verdict");
    assert!(number(verdict, "last_to_first") > 0.0, "{verdict}");
}

#[test]
fn a_queue_is_drained() {
    drains("sqlite", "sqlite", &[]);
    drains("sqlite", "sqlite", &["--http"]);
}

#[test]
fn a_queue_is_drained_on_postgres() {
    drains(&own_database("bench_drain").url, "postgres", &[]);
}

/// In this process a job is born into the hands of its worker and takes a commit for each step and one for its end; over HTTP its
/// birth is one more. The suite itself fails where more than a few jobs take more.
#[test]
fn a_plain_job_pays_for_nothing_that_it_does_not_use() {
    for (way, more) in [(&[][..], 1.0), (&["--http"][..], 2.0)] {
        let plain = ["jobs", "--steps", "1,3", "--concurrency", "4", "--seconds", "1"];
        let cases = bench("sqlite", &[&plain[..], way].concat());
        let of = |steps: usize, metric: &str| {
            let name = format!("steps={steps} concurrency=4");
            let found = cases.iter().find(|c| c["case"] == *name && c["metric"] == metric);
            found.unwrap_or_else(|| panic!("no {metric} of {name} in {cases:?}"))["value"].as_f64()
        };
        for steps in [1, 3] {
            let commits = of(steps, "commits_per_job").expect("a number");
            let least = steps as f64 + more;
            assert!((least..least + 0.5).contains(&commits), "{commits} of {steps} steps {way:?}");
        }
    }
}

#[test]
fn one_job_at_a_time_stands_beside_the_raw_write() {
    is_serial("sqlite");
    is_serial(&own_database("bench_serial").url);
}

#[test]
fn growth_has_a_verdict() {
    grows("sqlite", 0);
    grows(&own_database("bench_growth").url, 2);
}

/// The suite itself fails where a call does not remove what it should.
#[test]
fn retention_has_a_rate() {
    let postgres = own_database("bench_retention");
    for store in ["sqlite", &postgres.url] {
        let small = ["retention", "--jobs", "300,600", "--values", "50", "--calls", "1"];
        let cases = bench(store, &small);
        assert_eq!(cases.len(), 3, "{cases:?}");
        assert!(number(&cases[1], "jobs_per_second") > 0.0, "{cases:?}");
        assert!(cases[2]["verdict"].is_string(), "{cases:?}");
    }
}

/// The suite itself fails if the disk was not slowed.
#[test]
fn a_disk_can_be_made_slow() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/private-postgres");
    for store in ["sqlite", "postgres://"] {
        let slow = ["slow-disk", "--fsync-ms", "3", "--concurrency", "8", "--seconds", "0.2"];
        let more = ["--rounds", "1", "--private-postgres", script.to_str().expect("a path")];
        let cases = bench(store, &[&slow[..], &more].concat());
        assert!(number(&cases[0], "slow_lone_commit_p50_ms") >= 3.0, "{cases:?}");
        assert!(number(&cases[0], "slow_jobs_per_second") > 0.0, "{cases:?}");
    }
}

#[test]
fn a_process_starts_and_says_what_it_keeps() {
    let quick = ["--runs", "2", "--quiet-seconds", "0.1", "--load-seconds", "0.1"];
    let cases = bench("sqlite", &[&["start"], &quick[..]].concat());
    assert_eq!(number(&cases[0], "runs"), 2.0);
    for name in ["completed_p50_ms", "idle_rss_mb", "load_per_second"] {
        assert!(number(&cases[0], name) > 0.0, "{name} in {cases:?}");
    }
}
