//! The README's first command: workers are killed in the middle of calls, and every effect happened once.

use crate::support::{Guarded, complained, run, said, tenure, wait_until};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::{Value, json};
use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::Stdio,
    time::Duration,
};

fn pid(number: u64) -> Pid {
    Pid::from_raw(i32::try_from(number).unwrap()).unwrap()
}

/// The workers of a demo are gone: not even zombies, whose number would still be taken.
fn all_gone(pids: &[u64]) {
    for number in pids {
        wait_until("a worker to be gone", Duration::from_secs(5), || {
            test_kill_process(pid(*number)).is_err()
        });
    }
}

/// A demo whose scratch directory would be in `dir`.
fn demo(args: &[&str], dir: &Path) -> Guarded {
    let mut command = tenure();
    command.args(args).current_dir(dir).env("TMPDIR", dir).stdout(Stdio::piped());
    Guarded(command.stderr(Stdio::piped()).spawn().expect("the binary starts"))
}

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).unwrap().next().is_none()
}

#[test]
fn two_kills_in_the_middle_of_calls_and_every_effect_happened_once() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(&["demo", "--exit", "--json", "--keep", "data"], dir.path());
    assert!(output.status.success(), "{}{}", said(&output), complained(&output));
    let told: Value = serde_json::from_str(&said(&output)).unwrap();
    assert_eq!(told["kept"], true);
    assert_eq!(
        (&told["verification"]["ok"], &told["verification"]["problems"]),
        (&json!(true), &json!([]))
    );
    assert!(told["seconds"].as_f64().unwrap() < 60.0, "{told}");
    assert!(told["resume_ms"].as_f64().unwrap() < 5_000.0, "{told}");

    let kills = told["kills"].as_array().unwrap();
    let after: Vec<&str> = kills.iter().map(|k| k["after"].as_str().unwrap()).collect();
    assert_eq!(after, ["charge", "ship"]);
    for kill in kills {
        // The server knows that the process is dead, and need not wait for its lease.
        let seconds = kill["takeover_seconds"].as_f64().unwrap();
        assert!((0.0..20.0).contains(&seconds), "{told}");
    }
    let orders: Vec<(u64, &str, u64, &Value)> = told["orders"]
        .as_array()
        .unwrap()
        .iter()
        .map(|o| {
            let (number, takeovers) = (&o["number"], &o["takeovers"]);
            let status = o["status"].as_str().unwrap();
            (number.as_u64().unwrap(), status, takeovers.as_u64().unwrap(), &o["outside"])
        })
        .collect();
    let (shipped, kept_back) = (
        json!({ "reserve": 1, "charge": 1, "ship": 1 }),
        json!({ "reserve": 1, "charge": 1, "ship": 0 }),
    );
    assert_eq!(orders[0], (1001, "completed", 2, &shipped));
    assert!(["waiting", "parked"].contains(&orders[1].1), "{told}");
    assert_eq!((orders[1].2, orders[1].3), (0, &kept_back));
    assert_eq!(orders[2], (1003, "attention", 0, &shipped));
    assert_eq!(orders[3], (1004, "failed", 0, &kept_back));

    assert_eq!((&told["turn"]["status"], &told["turn"]["steps"]), (&json!("success"), &json!(2)));
    assert!(told["turn"]["job"].is_string(), "{told}");
    let pids: Vec<u64> =
        told["workers"].as_array().unwrap().iter().map(|p| p.as_u64().unwrap()).collect();
    assert_eq!(pids.len(), 3);
    all_gone(&pids);
    let verified = run(&["--store", "sqlite:data/store", "verify"], dir.path());
    assert_eq!(said(&verified), "every stream is intact\n", "{}", complained(&verified));
}

#[test]
fn without_a_terminal_it_answers_by_itself_and_stays_until_it_is_asked_to_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = demo(&["demo", "--json"], dir.path());
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let told: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(told["kept"], true, "{told}");
    let pids: Vec<u64> =
        told["workers"].as_array().unwrap().iter().map(|p| p.as_u64().unwrap()).collect();
    let last = *pids.last().unwrap();
    assert!(test_kill_process(pid(last)).is_ok(), "one worker is still up");
    assert!(child.0.try_wait().unwrap().is_none(), "and so is the server");
    kill_process(pid(u64::from(child.0.id())), Signal::INT).unwrap();
    assert!(child.0.wait().unwrap().success());
    all_gone(&pids);
    assert!(is_empty(dir.path()), "the data is gone");
}

#[test]
fn an_interrupted_demo_leaves_no_process_and_no_directory() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = demo(&["demo", "--exit"], dir.path());
    let lines = BufReader::new(child.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut pids = Vec::new();
    // In the middle: one worker is dead, and another one waits for its lease.
    for line in lines {
        let number = line.split("worker ").nth(1).and_then(|l| l.split([',', ' ']).next());
        pids.extend(number.and_then(|n| n.parse::<u64>().ok()));
        if line.contains("has to end") {
            break;
        }
    }
    assert!(pids.len() >= 2, "{pids:?}");
    kill_process(pid(u64::from(child.0.id())), Signal::TERM).unwrap();
    let output = child.0.wait().unwrap();
    assert_eq!(output.code(), Some(1));
    all_gone(&pids);
    assert!(is_empty(dir.path()), "the data is gone");
}

#[test]
fn the_story_is_told_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = tenure();
    command.args(["demo", "--exit"]).current_dir(dir.path()).env("TMPDIR", dir.path());
    let output = command.output().unwrap();
    let story = said(&output);
    assert!(output.status.success(), "{story}{}", complained(&output));
    for words in [
        "kill -9 ",
        "takes over",
        "the bank was asked by the call's key, and says it happened",
        "stops, and asks a person",
        "reservations 1, charges 1, parcels 1",
        "Two parcels are packed",
        "Verified",
    ] {
        assert!(story.contains(words), "{words:?} is missing in:\n{story}");
    }
    assert!(is_empty(dir.path()));
}

#[test]
fn a_directory_with_something_in_it_is_not_written_to() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("letter"), "mine").unwrap();
    let output = run(&["demo", "--exit", "--keep", "."], dir.path());
    assert!(!output.status.success());
    assert!(complained(&output).contains("is not empty"), "{}", complained(&output));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}
