//! The product binary itself under SIGKILL: `tenure server` and `tenure worker`, without anything of the laboratory. All
//! other drills kill `tenure-lab`, which runs the same libraries.

use crate::support::{Guarded, clean, complained, said, wait_until};
use axum::{Router, extract::State, http::HeaderMap, routing::post};
use serde_json::{Value, json};
use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::sync::watch;

/// The product, which cargo puts beside the laboratory.
fn product() -> Command {
    let path = PathBuf::from(crate::BINARY).with_file_name("tenure");
    assert!(
        path.exists(),
        "{} is missing: build it with `cargo build -p tenure` (`cargo test --workspace` does)",
        path.display()
    );
    clean(Command::new(path))
}

/// The keys of all requests so far, and whether requests are answered.
#[derive(Clone)]
struct Bank {
    keys: Arc<Mutex<Vec<String>>>,
    open: watch::Receiver<bool>,
}

async fn charge(State(mut bank): State<Bank>, headers: HeaderMap) -> &'static str {
    let key = headers.get("idempotency-key").map(|k| k.to_str().unwrap().to_owned());
    bank.keys.lock().unwrap().push(key.unwrap());
    // The sender lives until the end of the test.
    let _ = bank.open.wait_for(|open| *open).await;
    "charged"
}

struct Site {
    dir: tempfile::TempDir,
    listen: String,
}

impl Site {
    fn start(&self, words: &[&str]) -> Guarded {
        let mut command = product();
        command.args(words).current_dir(self.dir.path()).stdout(Stdio::null());
        let quick = [
            "worker.lease_seconds=0.9",
            "worker.renewal_seconds=0.25",
            "server.tick_seconds=0.25",
            "server.pulse_gap_seconds=0.6",
            "executor.backoff=0.05",
            "log.filter=error",
            "egress.allow=default=127.0.0.1",
        ];
        for set in quick.iter().copied().chain([&*format!("server.listen={}", self.listen)]) {
            command.args(["--set", set]);
        }
        Guarded(command.spawn().expect("the product starts"))
    }

    fn server(&self) -> Guarded {
        let server = self.start(&["server", "--store", "sqlite:data"]);
        wait_until("the server", Duration::from_secs(20), || {
            self.job(&["list"]).is_ok_and(|jobs| jobs["jobs"].is_array())
        });
        server
    }

    fn worker(&self) -> Guarded {
        self.start(&["worker", "--server", &format!("http://{}", self.listen)])
    }

    fn job(&self, words: &[&str]) -> Result<Value, String> {
        let server = format!("http://{}", self.listen);
        let mut command = product();
        command.arg("job").args(words).args(["--json", "--server", &server]);
        let output = command.current_dir(self.dir.path()).output().unwrap();
        serde_json::from_str(&said(&output)).map_err(|_| complained(&output))
    }
}

fn kill(mut process: Guarded) {
    process.0.kill().unwrap();
    process.0.wait().unwrap();
}

fn is_intact(dir: &Path) {
    let verified = product().args(["verify", "--store", "sqlite:data"]).current_dir(dir).output();
    let verified = verified.unwrap();
    assert!(verified.status.success(), "{}{}", said(&verified), complained(&verified));
}

#[test]
fn a_killed_product_finishes_its_job_and_repeats_an_idempotent_call_under_its_key() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (answers, open) = watch::channel(false);
    let bank = Bank { keys: Arc::default(), open };
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let url = format!("http://{}/charge", listener.local_addr().unwrap());
    let routes = Router::new().route("/charge", post(charge)).with_state(bank.clone());
    runtime.spawn(async move { axum::serve(listener, routes).await });

    // A port that was free a moment ago; the server comes back to the same one.
    let listen = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let site = Site { dir: tempfile::tempdir().unwrap(), listen };
    let (server, worker) = (site.server(), site.worker());
    let plan = json!({
        "version": 1,
        "steps": {
            "charge": {
                "tool": "http", "class": "idempotent", "input": { "method": "POST", "url": url },
            },
            "go": { "wait": { "for": "signal" }, "after": ["charge"] },
        },
        "output": "${{ steps.charge.output.status }}",
    });
    std::fs::write(site.dir.path().join("plan.json"), plan.to_string()).unwrap();
    let mut id = String::new();
    // The worker registers the flow `plan` when it starts; the submission may be faster.
    wait_until("the job", Duration::from_secs(20), || {
        let job = site.job(&["submit", "--plan", "plan.json", "--key", "one"]);
        id = job.unwrap_or_default()["id"].as_str().unwrap_or_default().to_owned();
        !id.is_empty()
    });
    let calls = || bank.keys.lock().unwrap().len();
    wait_until("the call", Duration::from_secs(20), || calls() == 1);

    kill(worker);
    let _second = site.worker();
    wait_until("the second call", Duration::from_secs(30), || calls() == 2);
    kill(server);
    answers.send(true).unwrap();
    let server = site.server();
    wait_until("the signal", Duration::from_secs(30), || {
        site.job(&["signal", &id, "go", "1", "--early"]).is_ok()
    });
    let mut shown = Value::Null;
    wait_until("the end of the job", Duration::from_secs(40), || {
        shown = site.job(&["show", &id]).unwrap_or_default();
        shown["is_final"] == true
    });
    assert_eq!((&shown["status"], &shown["output"]), (&json!("completed"), &json!(200)), "{shown}");
    let keys = bank.keys.lock().unwrap().clone();
    assert!(keys.iter().all(|key| *key == keys[0]), "{keys:?}");
    kill(server);
    is_intact(site.dir.path());
}
