//! Commands and programs of the documentation on a real server.

use super::blocks;
use crate::support::{Guarded, complained, run, said, tenure, wait_until};
use serde_json::{Value, json};
use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::Stdio,
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// A server on a store of its own, with its address.
fn up(dir: &Path) -> (Guarded, String) {
    let mut command = tenure();
    command.args(["up", "--json", "--store", "sqlite:.tenure", "--set", "log.filter=error"]);
    command.args(["--set", "server.listen=127.0.0.1:0"]).current_dir(dir);
    let mut server = Guarded(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let answer: Value = serde_json::from_str(&line).unwrap();
    (server, answer["url"].as_str().unwrap().to_owned())
}

/// The commands of the page that begin so, as they are printed, in their order.
fn commands(page: &str, beginning: &str) -> Vec<Vec<String>> {
    let root = blocks::root();
    let shell = |b: &blocks::Block| ["sh", "console"].contains(&b.language.as_str());
    let of_page = blocks::blocks(&root, page).into_iter().filter(shell);
    let calls = of_page.flat_map(|b| super::shell::calls(&root, &b.commands()).unwrap());
    calls.filter(|call| call.join(" ").starts_with(beginning)).collect()
}

/// Pages whose commands are run in their order, each with the beginning of those that are. All of them end well.
const RUN: [(&str, &str); 4] = [
    ("docs/agents.md", "tenure agent set"),
    ("docs/limits.md", "tenure limit"),
    ("docs/schedules.md", "tenure schedule preview --cron"),
    ("docs/security.md", "tenure block"),
];

#[test]
fn commands_of_the_documentation_end_well_on_a_real_server() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, url) = up(dir.path());
    for (page, beginning) in RUN {
        let found = commands(page, beginning);
        assert!(!found.is_empty(), "{page} has no {beginning:?}");
        for command in found {
            let words: Vec<&str> = command.iter().skip(1).map(String::as_str).collect();
            let output = run(&[&words[..], &["--server", &url]].concat(), dir.path());
            assert!(output.status.success(), "{page}: {command:?}: {}", complained(&output));
        }
    }
}

/// What the page shows as the output of a command is what the command prints.
#[test]
fn a_preview_of_a_calendar_prints_what_the_page_shows() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, url) = up(dir.path());
    let all = blocks::blocks(&blocks::root(), "docs/schedules.md");
    let shown = all.iter().find(|b| !b.output().is_empty()).expect("a block with output");
    let calls = super::shell::calls(&blocks::root(), &shown.commands()).unwrap();
    let words: Vec<&str> = calls[0].iter().skip(1).map(String::as_str).collect();
    let output = run(&[&words[..], &["--server", &url]].concat(), dir.path());
    assert_eq!(said(&output), shown.output(), "{}", complained(&output));
}

/// The README's commands about a job, on a job that asks a person.
#[test]
fn the_commands_of_the_readme_lead_a_job_to_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, url) = up(dir.path());
    let question = "{\"question\": \"Ship it?\"}";
    let made = run(&["job", "submit", "ask", question, "--server", &url], dir.path());
    assert!(made.status.success(), "{}", complained(&made));
    let id = said(&made).lines().next().unwrap().to_owned();
    let status = || {
        let shown = run(&["job", "show", &id, "--json", "--server", &url], dir.path());
        let job: Value = serde_json::from_str(&said(&shown)).unwrap();
        job["status"].as_str().unwrap().to_owned()
    };
    wait_until("the question", PATIENCE, || ["waiting", "parked"].contains(&status().as_str()));
    for verb in ["why", "trace", "approve"] {
        let command = commands("README.md", &format!("tenure job {verb} ID"));
        let [command] = &command[..] else { panic!("{verb}: {command:?}") };
        let words: Vec<&str> =
            command.iter().skip(1).map(|w| if w == "ID" { &id } else { w.as_str() }).collect();
        let output = run(&[&words[..], &["--server", &url]].concat(), dir.path());
        assert!(output.status.success(), "{command:?}: {}", complained(&output));
    }
    wait_until("its end", PATIENCE, || status() == "completed");
}

/// The first request of docs/api.md, as it is printed.
#[test]
fn the_first_request_of_the_api_is_answered_as_the_page_says() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, url) = up(dir.path());
    let calls = commands("docs/api.md", "curl");
    let mut words = calls[0].iter().skip(1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let (mut to, mut headers, mut body) = (String::new(), Vec::new(), String::new());
    while let Some(word) = words.next() {
        match word.as_str() {
            "-s" => {}
            "-H" => headers.push(words.next().unwrap().split_once(": ").unwrap()),
            "-d" => body = words.next().unwrap().clone(),
            address => to = address.replace("localhost:7777", &url),
        }
    }
    let request = headers.iter().fold(client.post(to), |r, (name, value)| r.header(*name, *value));
    let answer: Value = runtime.block_on(async {
        let response = request.body(body).send().await.unwrap();
        serde_json::from_slice(&response.bytes().await.unwrap()).unwrap()
    });
    for (member, expected) in
        [("status", json!("completed")), ("output", json!({"sum": 3})), ("existed", json!(false))]
    {
        assert_eq!(answer[member], expected, "{answer}");
    }
}
