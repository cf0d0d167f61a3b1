//! Keys and the audit trail on the command line, while a server has the store open and after it.

use super::support::{Guarded, complained, run, said, tenure};
use serde_json::Value;
use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::Stdio,
};

const STORE: [&str; 2] = ["--store", "sqlite:data"];

/// Starts a server on the store and returns its address.
fn serve(dir: &Path) -> (Guarded, String) {
    let listen = ["--set", "server.listen=127.0.0.1:0", "--json"];
    let mut server = tenure();
    server.arg("server").args(STORE).args(listen).current_dir(dir).stdout(Stdio::piped());
    let mut server = server.spawn().expect("the binary starts");
    let mut line = String::new();
    let stdout = server.stdout.take().expect("it is piped");
    BufReader::new(stdout).read_line(&mut line).expect("it says where it is");
    let said: Value = serde_json::from_str(&line).expect("JSON");
    (Guarded(server), said["url"].as_str().expect("an address").to_owned())
}

fn ask(dir: &Path, args: &[&str]) -> String {
    let output = run(&[args, &STORE].concat(), dir);
    assert!(output.status.success(), "{args:?}: {}", complained(&output));
    said(&output)
}

fn made(text: &str) -> (String, String) {
    let made: Value = serde_json::from_str(text).expect("JSON");
    let text = |member: &str| made[member].as_str().expect("text").to_owned();
    (text("id"), text("secret"))
}

fn acts(dir: &Path, more: &[&str]) -> Vec<Value> {
    let lines = ask(dir, &[&["audit"], more].concat());
    lines.lines().map(|line| serde_json::from_str(line).expect("JSON lines")).collect()
}

#[test]
fn keys_are_managed_while_a_server_has_the_store_open_and_every_act_is_on_record() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (server, url) = serve(dir);
    let args = ["key", "create", "ci", "--scope", "read", "--json", "--by", "ada"];
    let (id, first) = made(&ask(dir, &[&args[..], &["--expires-in", "3600"]].concat()));
    let may_read = |key: &str| {
        let output = run(&["job", "list", "--server", &url, "--api-key", key], dir);
        output.status.success()
    };
    assert!(may_read(&first));
    let (same, second) = made(&ask(dir, &["key", "rotate", &id, "--json", "--by", "ada"]));
    assert_eq!(same, id);
    assert!(may_read(&second) && !may_read(&first));
    let listed = ask(dir, &["key", "list"]);
    assert!(listed.contains(&id) && listed.contains("administrator on this machine"), "{listed}");
    assert_eq!(ask(dir, &["key", "revoke", &id]), "revoked\n");
    assert!(!may_read(&second));

    // Of the server itself, and read beside it.
    let names = |acts: &[Value]| -> Vec<String> {
        acts.iter().map(|act| act["act"].as_str().unwrap().to_owned()).collect()
    };
    let on_record = acts(dir, &["--act", "keys."]);
    let expected = ["keys.revoke", "keys.rotate", "keys.create", "keys.create"];
    assert_eq!(names(&on_record), expected);
    assert!(on_record.iter().all(|act| act["outcome"] == "done"), "{on_record:?}");
    assert!(on_record[2]["by"].as_str().unwrap().starts_with("ada (key "), "{on_record:?}");
    let started = acts(dir, &["--act", "server.start"]);
    assert_eq!(started.len(), 1);
    assert_eq!(started[0]["details"]["settings"]["store.url"]["value"], "sqlite:data");
    let failures = acts(dir, &["--act", "sign_ins.failed"]);
    assert_eq!(failures[0]["from"], "127.0.0.1");
    assert!(!ask(dir, &["audit"]).contains(&second[37..]), "no secret is on record");
    drop(server);

    let (offline, _) = made(&ask(dir, &["key", "create", "later", "--json", "--by", "ada"]));
    let last = &acts(dir, &["--limit", "1"])[0];
    assert_eq!((&last["act"], &last["outcome"]), (&"keys.create".into(), &"done".into()));
    assert_eq!(last["by"], "ada (command line, in the store)");
    ask(dir, &["key", "revoke", &offline]);
    let again = ask(dir, &["key", "list"]);
    assert_eq!(again.matches("  revoked  ").count(), 2, "{again}");
    assert!(run(&["verify", "--store", "sqlite:data"], dir).status.success());
}
