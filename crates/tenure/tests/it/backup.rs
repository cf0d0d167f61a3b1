//! What a stopped server leaves, and copies of a store under a server that runs.

use crate::support::{Guarded, complained, run, said, tenure, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::{fs, net::TcpListener, path::Path, process::Stdio, time::Duration};

const PATIENCE: Duration = Duration::from_secs(120);

fn up(dir: &Path, listen: &str) -> Guarded {
    let mut command = tenure();
    command.args(["up", "--store", "sqlite:data", "--set", "log.filter=error"]);
    command.args(["--set", &format!("server.listen={listen}")]).current_dir(dir);
    Guarded(command.stdout(Stdio::null()).spawn().expect("the binary starts"))
}

/// Jobs that wait for a signal.
fn submit(listen: &str, from: usize, count: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let url = format!("http://{listen}/v1/jobs");
        let post = |n: usize| {
            let plan = json!({ "version": 1, "steps": { "w": { "wait": { "for": "signal" } } } });
            let body = json!({ "plan": plan, "key": format!("k{n}") });
            let request = client.post(&url).header("content-type", "application/json");
            request.body(body.to_string()).send()
        };
        for sent in futures_util::future::join_all((from..from + count).map(post)).await {
            let sent = sent.unwrap();
            assert!(sent.status().is_success(), "{:?}", sent.text().await);
        }
    });
}

fn jobs_of(dir: &Path, store: &str) -> i64 {
    let file = rusqlite::Connection::open(dir.join(store).join("tenure.db")).unwrap();
    let count = "SELECT count(*) FROM heads WHERE kind = 'job'";
    file.query_row(count, [], |row| row.get(0)).unwrap()
}

fn works(dir: &Path, args: &[&str]) -> String {
    let done = run(args, dir);
    assert!(done.status.success(), "{args:?}: {}{}", said(&done), complained(&done));
    said(&done)
}

#[test]
fn a_stopped_server_leaves_one_file_and_a_running_one_is_backed_up() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    let listen = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut server = up(dir, &listen);
    let address = format!("http://{listen}");
    let answers = || run(&["job", "list", "--server", &address], dir).status.success();
    wait_until("the server", PATIENCE, answers);
    submit(&listen, 0, 40);
    let made = works(dir, &["backup", "kept.db", "--store", "sqlite:data", "--json"]);
    let made: Value = serde_json::from_str(&made).unwrap();
    assert!(made["entities"].as_u64().unwrap() >= 40, "{made}");
    submit(&listen, 40, 7);
    let refused = run(&["restore", "kept.db", "--replace", "--store", "sqlite:data"], dir);
    assert!(complained(&refused).contains("another process"), "{}", complained(&refused));
    let pid = i32::try_from(server.0.id()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
    assert!(server.0.wait().unwrap().success());

    fs::create_dir(dir.join("alone")).unwrap();
    fs::copy(dir.join("data/tenure.db"), dir.join("alone/tenure.db")).unwrap();
    assert_eq!(jobs_of(dir, "alone"), 47);
    works(dir, &["verify", "--store", "sqlite:alone"]);

    let restored =
        works(dir, &["restore", "kept.db", "--replace", "--store", "sqlite:data", "--json"]);
    let restored: Value = serde_json::from_str(&restored).unwrap();
    let kinds = restored["missing"]["kinds"].as_array().unwrap();
    let jobs = kinds.iter().find(|k| k["kind"] == "job").unwrap_or_else(|| panic!("{restored}"));
    // Of the others some may have begun to wait after the backup.
    assert_eq!(jobs["created"], 7, "{restored}");
    assert_eq!((jobs_of(dir, "data"), jobs_of(dir, "data/before-restore")), (40, 47));
    works(dir, &["verify", "--store", "sqlite:data"]);

    fs::write(dir.join("data/tenure.db"), "").unwrap();
    let refused =
        run(&["server", "--store", "sqlite:data", "--set", "server.listen=127.0.0.1:0"], dir);
    assert!(!refused.status.success());
    assert!(complained(&refused).contains("tenure restore"), "{}", complained(&refused));
    let words = works(dir, &["restore", "kept.db", "--replace", "--store", "sqlite:data"]);
    assert!(
        words.contains("the store before cannot say") && words.contains("before-restore-2"),
        "{words}"
    );
}

#[test]
fn a_postgres_store_is_backed_up_by_its_own_tools() {
    let scratch = tempfile::tempdir().unwrap();
    for (command, tool) in [("backup", "pg_dump"), ("restore", "pg_restore")] {
        let said = run(&[command, "x.db", "--store", "postgres://u@127.0.0.1:1/d"], scratch.path());
        assert!(
            !said.status.success() && complained(&said).contains(tool),
            "{}",
            complained(&said)
        );
    }
}
