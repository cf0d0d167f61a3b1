//! `tenure up` is killed with SIGKILL in the middle of many jobs and started again on the same data: no job, no
//! accepted signal and no effect is lost, and nothing happens twice.

use crate::support::{Guarded, complained, said, tenure, wait_until};
use serde_json::{Value, json};
use std::{
    net::TcpListener,
    path::Path,
    process::{Output, Stdio},
    time::Duration,
};
use tenure_lab::drill::outside::Outside;

const JOBS: usize = 12;

struct Up {
    child: Guarded,
}

const FAST: [&str; 5] = [
    "worker.lease_seconds=0.9",
    "worker.renewal_seconds=0.25",
    "server.tick_seconds=0.25",
    "server.pulse_gap_seconds=0.6",
    "executor.backoff=0.05",
];

fn up(dir: &Path, listen: &str, sets: &[&str]) -> Up {
    let mut command = tenure();
    command.args(["up", "--store", "sqlite:data", "--set", "log.filter=error"]).current_dir(dir);
    for set in sets.iter().copied().chain([&*format!("server.listen={listen}")]) {
        command.args(["--set", set]);
    }
    let child = command.stdout(Stdio::null()).spawn().expect("the binary starts");
    Up { child: Guarded(child) }
}

fn job(listen: &str, dir: &Path, args: &[&str]) -> Output {
    let mut command = tenure();
    command.arg("job").args(args).args(["--json", "--server", &format!("http://{listen}")]);
    command.current_dir(dir).output().expect("the binary starts")
}

fn completed(listen: &str, dir: &Path, ids: &[String]) -> bool {
    ids.iter().all(|id| {
        let shown = job(listen, dir, &["show", id]);
        let shown: Value = serde_json::from_str(&said(&shown)).unwrap_or_default();
        shown["status"] == "completed" || shown["job"]["status"] == "completed"
    })
}

#[test]
fn a_killed_server_loses_no_job_and_no_signal() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.unwrap();
    let outside = runtime.block_on(Outside::open()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    // A port that was free a moment ago; the server comes back to the same one.
    let listen = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut first = up(dir.path(), &listen, &FAST);
    wait_until("the server", Duration::from_secs(20), || {
        job(&listen, dir.path(), &["list"]).status.success()
    });
    let act = |class: &str, name: String| json!({ "act": { "class": class, "name": name } });
    let mut ids = Vec::new();
    for i in 0..JOBS {
        let lines = json!([act("verifiable", format!("a{i}")), { "signal": "go" }, act("verifiable", format!("b{i}"))]);
        let input = json!({ "outside": outside.address(), "lines": lines }).to_string();
        let submitted = job(
            &listen,
            dir.path(),
            &["submit", "drill.script", &input, "--key", &format!("k{i}")],
        );
        assert!(submitted.status.success(), "{}", complained(&submitted));
        let answer: Value = serde_json::from_str(&said(&submitted)).unwrap();
        ids.push(answer["id"].as_str().unwrap().to_owned());
    }
    // Half of them are signalled, accepted, and then the server is gone, wherever each of them is.
    for id in &ids[..JOBS / 2] {
        let signalled = job(&listen, dir.path(), &["signal", id, "go", "1", "--early"]);
        assert!(signalled.status.success(), "{}", complained(&signalled));
    }
    first.child.0.kill().unwrap();
    first.child.0.wait().unwrap();
    let _second = up(dir.path(), &listen, &FAST);
    wait_until("the server again", Duration::from_secs(20), || {
        job(&listen, dir.path(), &["list"]).status.success()
    });
    for id in &ids {
        // Those that were signalled before are told that it is known.
        let signalled = job(&listen, dir.path(), &["signal", id, "go", "1", "--early"]);
        assert!(signalled.status.success(), "{}", complained(&signalled));
    }
    wait_until("all jobs", Duration::from_secs(40), || completed(&listen, dir.path(), &ids));
    for i in 0..JOBS {
        let counts = (outside.count(&format!("a{i}")), outside.count(&format!("b{i}")));
        assert_eq!(counts, (1, 1), "job {i}");
    }
    for id in &ids {
        let verified = job(&listen, dir.path(), &["verify", id]);
        assert!(verified.status.success(), "{}", complained(&verified));
    }
}

/// The lease is ten minutes: the job goes on because the new process knows that the old one is dead.
#[test]
fn what_a_killed_server_ran_goes_on_without_waiting_for_its_lease() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.unwrap();
    let outside = runtime.block_on(Outside::open()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let listen = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let long = ["worker.lease_seconds=600", "worker.renewal_seconds=200"];
    let mut first = up(dir.path(), &listen, &long);
    wait_until("the server", Duration::from_secs(20), || {
        job(&listen, dir.path(), &["list"]).status.success()
    });
    // The worker of the first process holds the job and waits for the answer of its tool.
    outside.hold_answers_to("a");
    let act = json!({ "act": { "class": "idempotent", "name": "a" } });
    let input = json!({ "outside": outside.address(), "lines": [act] }).to_string();
    let submitted = job(&listen, dir.path(), &["submit", "drill.script", &input]);
    assert!(submitted.status.success(), "{}", complained(&submitted));
    let answer: Value = serde_json::from_str(&said(&submitted)).unwrap();
    let id = answer["id"].as_str().unwrap().to_owned();
    wait_until("the call", Duration::from_secs(20), || outside.count("a") == 1);
    first.child.0.kill().unwrap();
    first.child.0.wait().unwrap();
    let _second = up(dir.path(), &listen, &long);
    // An idempotent tool is called again by the worker that takes the job over.
    wait_until("the second call", Duration::from_secs(40), || outside.count("a") == 2);
    outside.answer_all();
    wait_until("the job", Duration::from_secs(40), || {
        completed(&listen, dir.path(), std::slice::from_ref(&id))
    });
}
