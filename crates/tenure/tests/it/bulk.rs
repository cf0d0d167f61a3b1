//! Many jobs asked at once, from the command line, by a server that does not live to see the end of it.

use crate::support::{Guarded, complained, fast, said, tenure, wait_until};
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::{
    net::TcpListener,
    path::Path,
    process::{Output, Stdio},
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(120);

fn up(dir: &Path, listen: &str) -> Guarded {
    let mut command = tenure();
    command.args(["up", "--store", "sqlite:data", "--set", "log.filter=error"]).current_dir(dir);
    let quick = [
        "worker.lease_seconds=0.9",
        "worker.renewal_seconds=0.25",
        "server.tick_seconds=0.25",
        "server.pulse_gap_seconds=0.6",
        "executor.backoff=0.05",
    ];
    for set in quick.iter().copied().chain([&*format!("server.listen={listen}")]) {
        command.args(["--set", set]);
    }
    Guarded(command.stdout(Stdio::null()).spawn().expect("the binary starts"))
}

fn job(listen: &str, args: &[&str]) -> Output {
    let mut command = tenure();
    command.arg("job").args(args).args(["--json", "--server", &format!("http://{listen}")]);
    command.output().expect("the binary starts")
}

fn answer(output: &Output) -> Value {
    serde_json::from_str(&said(output))
        .unwrap_or_else(|e| panic!("{e}: {}{}", said(output), complained(output)))
}

fn submit_many(listen: &str, count: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let url = format!("http://{listen}/v1/jobs");
        let body = json!({ "flow": "ask", "input": { "question": "Ship it?" } }).to_string();
        for _ in 0..count / 50 {
            let post = || {
                let request = client.post(&url).header("content-type", "application/json");
                request.body(body.clone()).send()
            };
            for sent in join_all((0..50).map(|_| post())).await {
                assert_eq!(sent.unwrap().status().as_u16(), 202);
            }
        }
    });
}

#[test]
fn a_thousand_jobs_are_cancelled_once_each_although_the_server_dies_on_the_way() {
    let count = if fast() { 300 } else { 1_000 };
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    let listen = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut server = up(dir, &listen);
    let answers = || job(&listen, &["list"]).status.success();
    wait_until("the server", PATIENCE, answers);
    submit_many(&listen, count);
    let bulk = |more: &[&str]| {
        let mut args = vec!["bulk", "cancel", "--flow", "ask", "--why", "enough"];
        args.extend(more);
        job(&listen, &args)
    };
    let preview = answer(&bulk(&["--preview"]));
    assert_eq!((&preview["count"], &preview["exact"]), (&json!(count), &json!(true)));
    let nobody = bulk(&[]);
    assert!(complained(&nobody).contains("--yes"), "{}", complained(&nobody));
    let made = answer(&bulk(&["--yes"]));
    let id = made["id"].as_str().unwrap().to_owned();
    let some = || {
        let page = job(&listen, &["list", "--status", "cancelled", "--limit", "1"]);
        !answer(&page)["jobs"].as_array().unwrap().is_empty()
    };
    wait_until("the first cancelled job", PATIENCE, some);
    server.0.kill().unwrap();
    server.0.wait().unwrap();
    let server = up(dir, &listen);
    wait_until("the server again", PATIENCE, answers);
    let ended = || answer(&job(&listen, &["show", &id]))["is_final"] == true;
    wait_until("the account", PATIENCE, ended);
    let account = answer(&job(&listen, &["show", &id]));
    assert_eq!(account["status"], "completed", "{account}");
    assert_eq!(account["output"], json!({ "done": count, "skipped": {}, "failed": {} }));
    drop(server);
    let file = rusqlite::Connection::open(dir.join("data").join("tenure.db")).unwrap();
    let ask = |sql: &str| file.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    let asked = i64::try_from(count).unwrap();
    assert_eq!(ask("SELECT count(*) FROM mail WHERE kind = 'cancel'"), asked);
    assert_eq!(ask("SELECT count(DISTINCT entity) FROM mail WHERE kind = 'cancel'"), asked);
    let verified = tenure().args(["verify", "--store", "sqlite:data"]).current_dir(dir).output();
    let verified = verified.unwrap();
    assert!(verified.status.success(), "{}", said(&verified));
}
