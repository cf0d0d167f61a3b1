//! A worker and a command line that know several servers of one deployment go on when one of them is gone.

use crate::support::{Database, Guarded, complained, own_database, run, said, tenure};
use serde_json::Value;
use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::Stdio,
};

/// A process of the binary, and the first line that it prints.
fn start(dir: &Path, words: &[&str]) -> (Guarded, Value) {
    let mut command = tenure();
    command.args(words).args(["--json", "--set", "log.filter=error"]).current_dir(dir);
    let mut child = Guarded(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, serde_json::from_str(&line).unwrap_or_else(|e| panic!("{words:?}: {e}: {line:?}")))
}

fn server(dir: &Path, db: &Database) -> (Guarded, String) {
    let words = ["server", "--store", &db.url, "--set", "server.listen=127.0.0.1:0"];
    let (child, said) = start(dir, &words);
    (child, said["url"].as_str().unwrap().to_owned())
}

#[test]
fn a_job_is_done_although_the_first_server_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let db = own_database("several_servers");
    let (first, one) = server(dir.path(), &db);
    let (_second, two) = server(dir.path(), &db);
    let both = format!("{one},{two}");
    let _worker = start(dir.path(), &["worker", "--server", &both]);
    let plan =
        r#"{"version": 1, "steps": {"a": {"value": 41}}, "output": "${{ steps.a.output + 1 }}"}"#;
    std::fs::write(dir.path().join("plan.json"), plan).unwrap();
    let done = || {
        let words = ["job", "submit", "--plan", "plan.json", "--wait=60", "--server", &both];
        let output = run(&words, dir.path());
        assert!(output.status.success(), "{}", complained(&output));
        assert!(said(&output).ends_with("42\n"), "{}", said(&output));
    };
    done();
    drop(first);
    done();
}
