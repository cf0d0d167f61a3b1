//! What a person types: verbs, ids, lists, times, exit codes, and help for who has nothing but the binary.

use crate::support::{Guarded, complained, run, said, tenure, wait_until};
use serde_json::{Value, json};
use std::{
    fs::File,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Output, Stdio},
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(60);

struct Server<'a> {
    _child: Guarded,
    url: String,
    dir: &'a Path,
}

fn up(dir: &Path) -> Server<'_> {
    let mut command = tenure();
    command.args(["up", "--json", "--store", "sqlite:.tenure", "--set", "log.filter=error"]);
    command.args(["--set", "server.listen=127.0.0.1:0"]).current_dir(dir);
    let mut child = Guarded(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let answer: Value = serde_json::from_str(&line).unwrap();
    Server { _child: child, url: answer["url"].as_str().unwrap().to_owned(), dir }
}

impl Server<'_> {
    fn type_in(&self, words: &[&str]) -> Output {
        run(&[words, &["--server", &self.url]].concat(), self.dir)
    }

    fn typed(&self, words: &[&str]) -> String {
        let output = self.type_in(words);
        assert!(output.status.success(), "{words:?}: {}", complained(&output));
        said(&output)
    }

    fn submit(&self, words: &[&str]) -> String {
        let made: Value =
            serde_json::from_str(&self.typed(&[words, &["--json"]].concat())).unwrap();
        made["id"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned()
    }
}

const QUESTION: &str = "{\"question\": \"Ship it?\"}";

#[test]
fn an_exit_code_tells_a_job_that_failed_from_one_that_still_waits() {
    let dir = tempfile::tempdir().unwrap();
    let server = up(dir.path());
    let fails = json!({"version": 1, "steps": {"a": {"value": "${{ 1 / 0 }}"}}});
    std::fs::write(dir.path().join("fails.json"), fails.to_string()).unwrap();
    let code = |words: &[&str]| server.type_in(words).status.code();
    assert_eq!(code(&["job", "submit", "ask", QUESTION, "--wait=0.01"]), Some(4), "still open");
    assert_eq!(code(&["job", "submit", "--plan", "fails.json", "--wait"]), Some(3), "failed");
    assert_eq!(code(&["job", "submit", "--plan", "fails.json", "--wait", "--json"]), Some(3));
    assert_eq!(code(&["job", "submit", "no_such_flow"]), Some(1), "refused");
    assert_eq!(code(&["job", "sumbit", "ask"]), Some(2), "no such command");
    let fine = json!({"version": 1, "steps": {"a": {"value": 1}}});
    std::fs::write(dir.path().join("fine.json"), fine.to_string()).unwrap();
    assert_eq!(code(&["job", "submit", "--plan", "fine.json", "--wait"]), Some(0));
}

#[test]
fn ids_are_known_by_their_beginning_and_by_their_end() {
    let dir = tempfile::tempdir().unwrap();
    let server = up(dir.path());
    let ids = [(); 2].map(|()| server.submit(&["job", "submit", "ask", QUESTION]));
    for id in &ids {
        let shown = |part: &str| server.typed(&["job", "show", part]);
        assert!(shown(&id[24..]).starts_with(id.as_str()), "by its end");
        assert!(shown(&id[19..]).starts_with(id.as_str()), "with a dash in it");
        assert!(shown(&id[..33]).starts_with(id.as_str()), "by its beginning");
    }
    let both = complained(&server.type_in(&["job", "show", &ids[0][..4]]));
    assert!(both.contains("several jobs have ids that begin with"), "{both}");
    let none = complained(&server.type_in(&["job", "show", "ffffffffffff"]));
    assert!(none.contains("no job has an id") && none.contains("tenure job list"), "{none}");
    let bad = complained(&server.type_in(&["job", "show", "banana"]));
    assert!(bad.contains("is not the beginning of an id"), "{bad}");
    assert!(bad.contains("tenure explain bad_field"), "{bad}");
}

#[test]
fn every_list_has_a_heading_and_times_are_local_unless_utc_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let server = up(dir.path());
    let id = server.submit(&["job", "submit", "ask", QUESTION]);
    server.typed(&[
        "job",
        "submit",
        "ask",
        QUESTION,
        "--debounce",
        "d",
        "--quiet",
        "600",
        "--within",
        "900",
    ]);
    server.typed(&["gate", "set", "deploys", "--limit", "2"]);
    server.typed(&["limit", "set", "--tool", "http", "--rate", "10/s"]);
    server.typed(&["schedule", "set", "nightly", QUESTION, "--cron", "0 2 * * *", "--flow", "ask"]);
    server.typed(&["block", "set", "flow", "resize", "--why", "kills its workers"]);
    for (kind, heading, row) in [
        ("job", "ID ", id.as_str()),
        ("flow", "FLOW ", "ask"),
        ("tool", "TOOL ", "http"),
        ("worker", "SESSION ", "server, pid"),
        ("batch", "BATCH ", "ask"),
        ("gate", "GATE ", "deploys"),
        ("limit", "TOOL ", "10/s"),
        ("schedule", "SCHEDULE ", "nightly"),
        ("block", "KIND ", "kills its workers"),
        ("queue", "QUEUE ", "ask@1"),
    ] {
        let listed = server.typed(&[kind, "list"]);
        assert!(listed.starts_with(heading), "{kind}: {listed}");
        assert!(listed.lines().skip(1).any(|line| line.contains(row)), "{kind}: {listed}");
        let as_json = server.typed(&[kind, "list", "--json"]);
        assert!(serde_json::from_str::<Value>(&as_json).is_ok(), "{kind}: {as_json}");
    }
    assert!(server.typed(&["flow", "show", "ask"]).starts_with("ask\n"));
    assert!(server.typed(&["tool", "show", "http"]).contains("input_schema"));

    let shown = |words: &[&str], zone: &str| {
        let mut command = tenure();
        command.args(["job", "show", &id, "--server", &server.url]).args(words);
        let output = command.env("TZ", zone).current_dir(dir.path()).output().unwrap();
        said(&output)
    };
    let created = |text: &str| {
        let line = text.lines().find(|line| line.trim_start().starts_with("created"));
        line.unwrap_or_else(|| panic!("{text}")).to_owned()
    };
    assert!(created(&shown(&[], "Asia/Tokyo")).contains("+09:00 (tenant"));
    assert!(created(&shown(&["--utc"], "Asia/Tokyo")).contains("Z (tenant"));
    assert!(created(&shown(&[], "UTC")).contains("Z (tenant"));
    let in_json = |zone: &str| {
        let job: Value = serde_json::from_str(&shown(&["--json"], zone)).unwrap();
        job["created_at"].clone()
    };
    assert!(in_json("UTC").is_i64());
    assert_eq!(in_json("Asia/Tokyo"), in_json("UTC"), "JSON has one form");
}

/// The lines of a list, without its heading.
fn rows(text: &str) -> Vec<&str> {
    text.lines().skip(1).collect()
}

#[test]
fn jobs_are_found_by_a_text_in_their_name_and_by_when_they_were_created() {
    let dir = tempfile::tempdir().unwrap();
    let server = up(dir.path());
    let plan = json!({"version": 1, "name": "Book a trip", "steps": {"a": {"value": 1}}});
    std::fs::write(dir.path().join("trip.json"), plan.to_string()).unwrap();
    let trip = server.submit(&["job", "submit", "--plan", "trip.json"]);
    let ask = server.submit(&["job", "submit", "ask", QUESTION]);
    let list = |words: &[&str]| server.typed(&[&["job", "list"], words].concat());
    let found = list(&["--name", "TRIP"]);
    assert_eq!(rows(&found).len(), 1, "{found}");
    assert!(found.contains(&trip) && found.contains("Book a trip"), "{found}");
    assert!(rows(&list(&["--name", "as"]))[0].contains(&ask), "of a flow");
    assert_eq!(list(&["--name", "nothing has this"]), "no such jobs\n");
    let made: Value =
        serde_json::from_str(&server.typed(&["job", "show", &ask, "--json"])).unwrap();
    let micros = made["created_at"].as_i64().unwrap();
    let moment = |micros| tenure::kernel::time::Timestamp::from_micros(micros).to_string();
    let (at, after) = (moment(micros), moment(micros + 1));
    assert_eq!(rows(&list(&["--until", &at])).len(), 1, "the one before it");
    assert_eq!(rows(&list(&["--since", &at])).len(), 1, "the moment itself belongs to it");
    assert_eq!(rows(&list(&["--since", &at, "--until", &after])).len(), 1);
    assert_eq!(list(&["--since", &after]), "no such jobs\n");
    let labels = ["--label", "customer=42", "--label", "region=eu"];
    let mine = server
        .submit(&[&["job", "submit", "ask", QUESTION, "--key", "order/7"], &labels[..]].concat());
    server.submit(&["job", "submit", "ask", QUESTION, "--label", "customer=421"]);
    for words in [&["--key", "order/7"], &labels[..2], &labels[..], &["--label", "region=eu"]] {
        let found = list(words);
        assert!(rows(&found).len() == 1 && found.contains(&mine), "{words:?}: {found}");
    }
    let shown = server.typed(&["job", "show", &mine]);
    for words in ["order/7", "customer=42", "region=eu"] {
        assert!(shown.contains(words), "{shown}");
    }
    assert_eq!(list(&["--key", "order/"]), "no such jobs\n");
    assert_eq!(list(&["--key", "order/7", "--status", "failed"]), "no such jobs\n");
    assert_eq!(list(&["--label", "customer=42", "--label", "region=us"]), "no such jobs\n");
    let bad = complained(&server.type_in(&["job", "submit", "ask", QUESTION, "--label", "A b=c"]));
    assert!(bad.contains("labels"), "{bad}");
    let bad = complained(&server.type_in(&["job", "list", "--since", "yesterday"]));
    assert!(bad.contains("created_after"), "{bad}");
}

#[test]
fn an_error_is_explained_by_the_binary_alone() {
    let dir = tempfile::tempdir().unwrap();
    let failed = complained(&run(&["rules", "--set", "worker.lease_seconds=-1"], dir.path()));
    let (_, advice) = failed.split_once('`').unwrap_or_else(|| panic!("{failed}"));
    let advice: Vec<&str> = advice.split('`').next().unwrap().split(' ').skip(1).collect();
    let explained = run(&advice, dir.path());
    assert!(said(&explained).contains("**What to do.**"), "{advice:?}: {}", complained(&explained));
    let all = said(&run(&["explain"], dir.path()));
    for code in ["disk_full", "unknown_flow", "job_finished"] {
        assert!(all.lines().any(|line| line == code), "{all}");
        let page = said(&run(&["explain", code], dir.path()));
        assert!(page.starts_with(&format!("# `{code}`")), "{page}");
    }
    let unknown = run(&["explain", "disk_ful"], dir.path());
    assert_eq!(unknown.status.code(), Some(1));
    assert!(complained(&unknown).contains("did you mean disk_full?"), "{}", complained(&unknown));
}

#[test]
fn completions_and_manual_pages_are_made_from_the_command_line() {
    let dir = tempfile::tempdir().unwrap();
    for (shell, words) in [
        ("bash", "complete -F _tenure"),
        ("zsh", "#compdef tenure"),
        ("fish", "complete -c tenure"),
    ] {
        let script = said(&run(&["completions", shell], dir.path()));
        for words in [words, "submit", "must-end-in", "completions"] {
            assert!(script.contains(words), "{words:?} for {shell}");
        }
    }
    let script = said(&run(&["completions", "bash"], dir.path()));
    std::fs::write(dir.path().join("script"), script).unwrap();
    let read =
        Command::new("bash").args(["-n", "script"]).current_dir(dir.path()).output().unwrap();
    assert!(read.status.success(), "{}", complained(&read));

    let made = run(&["manual", "--out", "man"], dir.path());
    assert!(made.status.success(), "{}", complained(&made));
    let page = |name: &str| std::fs::read_to_string(dir.path().join("man").join(name)).unwrap();
    assert!(page("tenure.1").contains("tenure\\-job(1)"), "{}", page("tenure.1"));
    assert!(page("tenure-job-submit.1").contains("must\\-end\\-in"));
    assert!(!dir.path().join("man/tenure-demo-worker.1").exists());
}

#[test]
fn with_json_logs_every_line_is_json_and_without_a_terminal_no_line_has_colours() {
    let dir = tempfile::tempdir().unwrap();
    let written = |format: &str| {
        let path = dir.path().join(format);
        let log = File::create(&path).unwrap();
        let mut command = tenure();
        command.args(["up", "--store", &format!("sqlite:{format}-store")]);
        command.args(["--set", "server.listen=127.0.0.1:0", "--set", "log.filter=info"]);
        command.args(["--set", &format!("log.format={format}")]).current_dir(dir.path());
        let mut child =
            Guarded(command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap());
        let text = || std::fs::read_to_string(&path).unwrap();
        wait_until("its address", PATIENCE, || text().contains("http://127.0.0.1:"));
        let pid = child.0.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        wait_until("its end", PATIENCE, || child.0.try_wait().unwrap().is_some());
        text()
    };
    let json = written("json");
    assert!(json.lines().count() > 1, "{json}");
    for line in json.lines() {
        assert!(serde_json::from_str::<Value>(line).is_ok(), "{line:?} in {json}");
    }
    let text = written("text");
    assert!(text.contains("INFO") && !text.contains('\u{1b}'), "{text:?}");
    // Also why it does not start.
    let bad = ["server", "--set", "log.format=json", "--set", "worker.lease_seconds=-1"];
    let output = run(&bad, dir.path());
    assert_eq!(output.status.code(), Some(1));
    let line: Value = serde_json::from_str(complained(&output).trim())
        .unwrap_or_else(|e| panic!("{e}: {}", complained(&output)));
    assert_eq!(line["level"], "ERROR");
    assert_eq!(line["fields"]["code"], "bad_config");
}
