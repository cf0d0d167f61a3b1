//! Plans from the command line: checked, shown, and run by a server.

use crate::support::{Guarded, complained, run, said, tenure, wait_until};
use serde_json::{Value, json};
use std::{net::TcpListener, path::Path, process::Stdio, time::Duration};

const PATIENCE: Duration = Duration::from_secs(120);

fn write(dir: &Path, name: &str, plan: &Value) {
    std::fs::write(dir.join(name), plan.to_string()).unwrap();
}

fn good() -> Value {
    json!({"version": 1, "name": "sums", "steps": {
        "one": {"value": "${{ input.n + 1 }}"},
        "two": {"value": "${{ steps.one.output * 2 }}"},
        "nap": {"sleep": {"seconds": 0.01}, "after": ["two"]}
    }, "output": "${{ steps.two.output }}"})
}

#[test]
fn a_plan_is_checked_without_a_server_and_every_problem_has_its_place() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    write(dir, "good.json", &good());
    let fine = run(&["plan", "check", "good.json"], dir);
    assert!(fine.status.success(), "{}", complained(&fine));
    assert!(said(&fine).starts_with("The plan is fine in itself."), "{}", said(&fine));

    let mut bad = good();
    bad["steps"]["two"]["value"] = json!("${{ steps.oen.output }}");
    bad["steps"]["nap"]["afer"] = json!(["one"]);
    bad["steps"]["big"] = json!({"value": "${{ 'a' | indent(100000000000) }}"});
    write(dir, "bad.json", &bad);
    let wrong = run(&["plan", "check", "bad.json"], dir);
    assert!(!wrong.status.success());
    for words in ["/steps/two/value", "oen", "/steps/nap", "afer", "/steps/big/value", "indent"] {
        assert!(said(&wrong).contains(words), "{words:?} in {}", said(&wrong));
    }
    let as_json = run(&["plan", "check", "bad.json", "--json"], dir);
    let found: Value = serde_json::from_str(&said(&as_json)).unwrap();
    assert_eq!(found["ok"], false);
    assert!(found["problems"].as_array().unwrap().len() >= 3, "{found}");
    let missing = run(&["plan", "check", "nix.json"], dir);
    assert!(complained(&missing).contains("nix.json can not be read"), "{}", complained(&missing));
}

#[test]
fn a_plan_is_shown_as_text_and_drawn() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    write(dir, "good.json", &good());
    let shown = run(&["plan", "show", "good.json", "--svg", "out.svg"], dir);
    assert!(shown.status.success(), "{}", complained(&shown));
    let text = said(&shown);
    let at = |id: &str| text.find(id).unwrap_or_else(|| panic!("{id} in {text}"));
    assert!(at("one") < at("two") && at("two") < at("nap"), "{text}");
    let svg = std::fs::read_to_string(dir.join("out.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
    let graph = run(&["plan", "show", "good.json", "--json"], dir);
    let graph: Value = serde_json::from_str(&said(&graph)).unwrap();
    assert_eq!(graph["layers"], json!([["one"], ["two"], ["nap"]]));
}

#[test]
fn a_plan_that_is_submitted_runs_and_one_that_is_wrong_creates_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    let listen = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let (set, url) = (format!("server.listen={listen}"), format!("http://{listen}"));
    let mut up = tenure();
    up.args(["up", "--store", "sqlite:data", "--set", "log.filter=error", "--set", &set]);
    let _server = Guarded(up.current_dir(dir).stdout(Stdio::null()).spawn().unwrap());
    let jobs = || run(&["job", "list", "--json", "--server", &url], dir);
    wait_until("the server", PATIENCE, || jobs().status.success());
    let none = said(&jobs());

    let mut unknown = good();
    unknown["steps"]["one"] = json!({"tool": "htpp", "input": {"url": "x"}});
    write(dir, "unknown.json", &unknown);
    let checked = run(&["plan", "check", "unknown.json", "--server", &url], dir);
    assert!(!checked.status.success());
    assert!(said(&checked).contains("htpp"), "{}", said(&checked));
    let args = ["job", "submit", "--plan", "unknown.json", "{\"n\": 1}", "--server", &url];
    let refused = run(&args, dir);
    assert!(!refused.status.success());
    let words = said(&refused) + &complained(&refused);
    assert!(words.contains("htpp"), "{words}");
    assert_eq!(said(&jobs()), none);

    write(dir, "good.json", &good());
    let args = [
        "job",
        "submit",
        "--plan",
        "good.json",
        "{\"n\": 20}",
        "--wait",
        "--json",
        "--server",
        &url,
    ];
    let done = run(&args, dir);
    assert!(done.status.success(), "{}{}", said(&done), complained(&done));
    let job: Value = serde_json::from_str(said(&done).lines().last().unwrap()).unwrap();
    assert_eq!((&job["status"], &job["output"]), (&json!("completed"), &json!(42)), "{job}");
}
