//! From a server with a key to a file that is checked where there is no server.

use crate::support::{Guarded, complained, run, said, tenure};
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Stdio,
};

/// A server in a process of its own, and its address.
fn up(dir: &Path, more: &[&str]) -> (Guarded, String) {
    let mut command = tenure();
    command.args(["up", "--json", "--store", "sqlite:data", "--set", "server.listen=127.0.0.1:0"]);
    let child =
        command.args(more).current_dir(dir).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut child = Guarded(child);
    let mut line = String::new();
    let out = child.0.stdout.take().expect("it is piped");
    BufReader::new(out).read_line(&mut line).unwrap();
    let said: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
    (child, said["url"].as_str().unwrap().to_owned())
}

#[test]
fn an_export_is_signed_checked_offline_and_not_trusted_once_changed() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    let made = run(&["evidence", "key", "--out", "key.pem", "--json"], dir);
    assert!(made.status.success(), "{}", complained(&made));
    let made: Value = serde_json::from_str(&said(&made)).unwrap();
    let mode = fs::metadata(dir.join("key.pem")).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    let again = run(&["evidence", "key", "--out", "key.pem"], dir);
    assert!(!again.status.success(), "a key is never overwritten");
    let (server, url) = up(dir, &["--set", "evidence.key_file=key.pem"]);
    let input = json!({ "question": "Ship it?", "within_seconds": 0 }).to_string();
    let args =
        ["job", "submit", "ask", &input, "--json", "--wait", "--by", "ada", "--server", &url];
    let job: Value = serde_json::from_str(&said(&run(&args, dir))).unwrap();
    let id = job["id"].as_str().unwrap();
    let out = run(&["export", id, "-o", "job.tenure", "--server", &url, "--by", "ada"], dir);
    assert!(out.status.success(), "{}", complained(&out));
    let out = run(&["export", id, "-o", "job.tenure", "--server", &url], dir);
    assert!(complained(&out).contains("can not be written"), "{}", complained(&out));
    let none = run(&["export", "0190b5e0-1234-7abc-8def-001122334455", "--server", &url], dir);
    assert!(complained(&none).contains("not_found"), "{}", complained(&none));
    drop(server);
    fs::remove_dir_all(dir.join("data")).unwrap();

    let key = made["public_key"].as_str().unwrap();
    for key in [key, "key.pem.pub.pem"] {
        let checked = run(&["verify", "job.tenure", "--key", key], dir);
        assert!(checked.status.success(), "{}{}", said(&checked), complained(&checked));
        let text = said(&checked);
        for words in ["ask@1 is", "Ship it?", "by ada", "signed with the key you gave"] {
            assert!(text.contains(words), "{words:?} in {text}");
        }
    }
    let unvouched = said(&run(&["verify", "job.tenure"], dir));
    assert!(unvouched.contains("whose key that is you have to know"), "{unvouched}");
    let stranger = run(&["verify", "job.tenure", "--key", &"5".repeat(64)], dir);
    assert!(!stranger.status.success());
    let private = run(&["verify", "job.tenure", "--key", "key.pem"], dir);
    assert!(complained(&private).contains("private"), "{}", complained(&private));
    let text = fs::read_to_string(dir.join("job.tenure")).unwrap();
    fs::write(dir.join("forged.tenure"), text.replace("Ship it?", "Ship me?")).unwrap();
    let forged = run(&["verify", "forged.tenure", "--key", key], dir);
    assert!(!forged.status.success());
    assert!(said(&forged).contains("WRONG: line "), "{}", said(&forged));
    assert!(complained(&forged).contains("not to be trusted"), "{}", complained(&forged));
    let json = run(&["verify", "forged.tenure", "--json"], dir);
    let report: Value = serde_json::from_str(&said(&json)).unwrap();
    assert_eq!(report["ok"], false);
    assert!(!dir.join("data").exists(), "verify needs no store");
}

#[test]
fn a_key_that_everybody_can_read_or_that_is_none_stops_the_start() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    let start = || {
        let args =
            ["up", "--set", "server.listen=127.0.0.1:0", "--set", "evidence.key_file=key.pem"];
        complained(&run(&args, dir))
    };
    assert!(start().contains("evidence.key_file = \"key.pem\" can not be used"), "{}", start());
    fs::write(dir.join("key.pem"), "no key").unwrap();
    fs::set_permissions(dir.join("key.pem"), fs::Permissions::from_mode(0o604)).unwrap();
    assert!(start().contains("chmod 600"), "{}", start());
    fs::set_permissions(dir.join("key.pem"), fs::Permissions::from_mode(0o600)).unwrap();
    assert!(start().contains("no Ed25519 private key"), "{}", start());
}
