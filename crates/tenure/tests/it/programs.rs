//! The tool `command` on a real server: off until it is switched on, and confined when it is.

use crate::support::{Guarded, administrators_key_of, tenure, wait_until};
use serde_json::{Value, json};
use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::Stdio,
    time::Duration,
};
use tokio::runtime::Runtime;

const PATIENCE: Duration = Duration::from_secs(60);
const SECRET: &str = "a-secret-of-the-environment";

struct Server {
    _child: Guarded,
    url: String,
    key: String,
    runtime: Runtime,
    client: reqwest::Client,
}

fn up(dir: &Path, more: &[&str]) -> Server {
    let mut command = tenure();
    command.args(["up", "--json", "--store", "sqlite:data", "--set", "server.listen=127.0.0.1:0"]);
    command.args(["--set", "log.filter=error"]).args(more).current_dir(dir);
    command.env("TENURE_SECRET_OF_OTHERS", SECRET);
    let mut child = Guarded(command.stdout(Stdio::piped()).spawn().expect("it starts"));
    let mut line = String::new();
    let out = child.0.stdout.take().expect("it is piped");
    BufReader::new(out).read_line(&mut line).expect("its first line");
    let said: Value = serde_json::from_str(&line).expect("JSON");
    Server {
        url: said["url"].as_str().expect("its address").to_owned(),
        key: administrators_key_of(dir, "sqlite:data"),
        runtime: tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
        client: reqwest::Client::builder().no_proxy().build().unwrap(),
        _child: child,
    }
}

impl Server {
    fn send(&self, request: reqwest::RequestBuilder) -> Value {
        self.runtime.block_on(async {
            let answer = request.bearer_auth(&self.key).send().await.unwrap();
            serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap()
        })
    }

    fn submit(&self, tenant: &str, lines: &str) -> String {
        let input = json!({"program": "/bin/sh", "args": ["-c", lines]});
        let body = json!({"flow": "command", "input": input, "tenant": tenant}).to_string();
        let request = self.client.post(format!("{}/v1/jobs", self.url));
        let answer = self.send(request.header("content-type", "application/json").body(body));
        answer["id"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    /// The job when it stands there.
    fn until(&self, id: &str, status: &str) -> Value {
        let mut job = Value::Null;
        wait_until(&format!("job {id} to be {status}"), PATIENCE, || {
            job = self.send(self.client.get(format!("{}/v1/jobs/{id}", self.url)));
            assert!(job["status"] == status || job["status"] != "failed", "{job}");
            job["status"] == status
        });
        job
    }
}

#[test]
fn a_job_that_may_run_no_program_waits_for_a_person_who_is_told_the_setting() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace");
    let server = up(dir.path(), &[]);
    let id = server.submit("default", &format!("touch {}", trace.display()));
    let job = server.until(&id, "attention");
    assert!(job.to_string().contains("tools.command_tenants"), "{job}");
    assert!(!trace.exists(), "nothing ran");
}

#[test]
fn a_program_reaches_neither_the_environment_nor_the_files_of_its_server() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("work")).unwrap();
    let server = up(
        dir.path(),
        &["--set", "tools.command_tenants=acme", "--set", "tools.command_writable=work"],
    );
    let lines = "cat /proc/$PPID/environ /proc/$PPID/task/*/environ /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'
        cat data/* 2>/dev/null; ls data 2>/dev/null
        (echo x > stolen) 2>/dev/null; (echo x > data/stolen) 2>/dev/null; echo x > work/mine; echo done";
    let job = server.until(&server.submit("acme", lines), "completed");
    let said = job["output"]["stdout"].as_str().unwrap_or_else(|| panic!("{job}"));
    assert!(said.ends_with("done\n"), "{said}");
    assert!(dir.path().join("work/mine").exists());
    if tenure_tools::command::confines_files() {
        assert!(!said.contains(SECRET), "it read an environment");
        // The administrator's key is kept in the data directory.
        assert!(!said.contains(&server.key), "it read the data directory");
        assert!(!dir.path().join("stolen").exists() && !dir.path().join("data/stolen").exists());
    }
    // A program runs on this machine, and is not taken for a developer at it.
    let keyless = server.runtime.block_on(async {
        server.client.get(format!("{}/v1/jobs", server.url)).send().await.unwrap().status()
    });
    assert_eq!(keyless.as_u16(), 401);
}
