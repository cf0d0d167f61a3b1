//! A turn from end to end with a real NATS: what is heard of it, how often, in which order; with its worker in the server's process and
//! in one of its own. The listener is the drill's, which speaks the protocol itself.

use crate::support::{Guarded, tenure};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader},
    path::Path,
    process::Stdio,
};
use tenure_lab::drill::bus::{Bus, Heard};
use tenure_proving::patience;
use tenure_tools::scripted::{Reply, Script, Server};

/// A server, with a worker in its process for `up`; and where it is.
fn server(command: &str, dir: &Path, bus: &Bus) -> (Guarded, String) {
    let mut server = tenure();
    let bus = format!("bus.url={}", bus.url());
    server.args([command, "--json", "--store", "sqlite:data", "--set", &bus]);
    server.args(["--set", "server.listen=127.0.0.1:0", "--set", "log.filter=error"]);
    server.args(["--set", "egress.allow=default=127.0.0.1"]);
    let mut child = Guarded(server.current_dir(dir).stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let said: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"));
    (child, said["url"].as_str().unwrap().to_owned())
}

struct Town {
    bus: Bus,
    url: String,
    client: reqwest::Client,
    _model: Server,
    _processes: Vec<Guarded>,
    _dir: tempfile::TempDir,
}

impl Town {
    async fn start(worker_of_its_own: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let bus = Bus::start(dir.path()).await.unwrap();
        let command = if worker_of_its_own { "server" } else { "up" };
        let (process, url) = tokio::task::block_in_place(|| server(command, dir.path(), &bus));
        let mut processes = vec![process];
        if worker_of_its_own {
            let mut worker = tenure();
            worker.args(["worker", "--server", &url, "--target", "default"]);
            worker.args(["--set", "egress.allow=default=127.0.0.1"]);
            worker.current_dir(dir.path()).stdout(Stdio::null());
            processes.push(Guarded(worker.spawn().unwrap()));
        }
        let script = Script::new()
            .when("please ask", Reply::tool_call("c1", "oracle", &json!({})))
            .otherwise(Reply::text("it is done"));
        let model = Server::start(script).await.unwrap();
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let base_url = model.base_url();
        let town = Town { bus, url, client, _model: model, _processes: processes, _dir: dir };
        let profile = json!({
            "model": { "name": "scripted", "base_url": base_url },
            "tools": [{ "name": "oracle", "run": { "external": { "subject": "tools.oracle" } } }],
        });
        let spec =
            json!({ "target": "default", "channel": "c", "output_box": "out", "profile": profile });
        let put = town.client.put(format!("{}/v1/agents/ada", town.url));
        let put = put.header("content-type", "application/json").body(spec.to_string()).send();
        assert!(put.await.unwrap().status().is_success());
        town
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        let post = self.client.post(format!("{}/v1/{path}", self.url));
        let post = post.header("content-type", "application/json").body(body.to_string());
        let bytes = post.send().await.unwrap().bytes().await.unwrap();
        serde_json::from_slice(&bytes).unwrap()
    }

    async fn turn(&self, id: &str) -> Value {
        let got = self.client.get(format!("{}/v1/turns/{id}", self.url)).send().await.unwrap();
        serde_json::from_slice(&got.bytes().await.unwrap()).unwrap()
    }

    async fn until(&self, what: &str, is_so: impl AsyncFn() -> bool) {
        patience::found(what, async || if is_so().await { Ok(()) } else { Err(self.bus.heard()) })
            .await;
    }

    /// What was heard of a turn for the first time, in order.
    fn of(&self, turn: &str) -> Vec<Heard> {
        let mut seen = BTreeSet::new();
        let mine = |h: &Heard| h.body["agent_turn_id"] == turn && h.subject.starts_with("evt.");
        self.bus.heard().into_iter().filter(|h| mine(h) && seen.insert(h.id.clone())).collect()
    }
}

fn words(heard: &[Heard]) -> Vec<String> {
    let word = |h: &Heard| {
        let kind = h.subject.rsplit('.').next().unwrap_or_default();
        let says = ["status", "phase"].iter().find_map(|f| h.body[*f].as_str()).unwrap_or_default();
        format!("{kind} {says}")
    };
    heard.iter().map(word).collect()
}

async fn a_turn(town: &Town) {
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let sent =
        town.post("agents/ada/turns", json!({ "message": "please ask", "trace": trace })).await;
    let turn = sent["id"].as_str().unwrap().to_owned();
    town.until("it waits for its tool", async || town.turn(&turn).await["status"] == "suspended")
        .await;
    let result = json!({ "wait": "1.1", "result": 7 });
    town.post(&format!("turns/{turn}/results"), result).await;
    town.until("its end is told", async || {
        town.of(&turn).iter().any(|h| h.subject == "evt.agent.ada.task")
    })
    .await;
    let heard = town.of(&turn);
    assert_eq!(
        words(&heard),
        [
            "state dispatched",
            "state running",
            "step started",
            "step completed",
            "state suspended",
            "state running",
            "step started",
            "step completed",
            "state idle",
            "task success",
        ]
    );
    let end = town.turn(&turn).await;
    let task = &heard[9].body;
    assert_eq!(task["deliverable_card_id"], end["deliverable_card_id"]);
    assert_eq!(task["trace"], trace);
    let ids: BTreeSet<&str> = heard.iter().map(|h| h.id.as_str()).collect();
    assert!(ids.len() == heard.len() && !ids.contains(""), "each has an id of its own: {ids:?}");
    let epochs: Vec<u64> = heard.iter().filter_map(|h| h.body["turn_epoch"].as_u64()).collect();
    assert!(epochs.is_sorted(), "{epochs:?}");
    let wakeup = |h: &Heard| h.subject == "cmd.agent.default.wakeup";
    assert!(town.bus.heard().iter().any(wakeup), "the workers of the target are rung for");
    // Nothing more is said of a turn that is over: the next one of the agent comes after it.
    let next = town.post("agents/ada/turns?wait=30", json!({ "message": "hello" })).await;
    let next = next["id"].as_str().unwrap().to_owned();
    town.until("the next end is told", async || {
        town.of(&next).iter().any(|h| h.subject == "evt.agent.ada.task")
    })
    .await;
    assert_eq!(town.of(&turn).len(), heard.len());
    let order: Vec<String> = town
        .bus
        .heard()
        .iter()
        .filter(|h| h.subject == "evt.agent.ada.task")
        .filter_map(|h| h.body["agent_turn_id"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(order.first(), Some(&turn));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_is_told_once_and_in_order() {
    a_turn(&Town::start(false).await).await;
}

/// Such a worker knows no bus: what it commits is told by the server.
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_of_a_worker_in_a_process_of_its_own_is_told_all_the_same() {
    a_turn(&Town::start(true).await).await;
}

/// A ring from anybody makes workers look, and is never believed.
#[tokio::test(flavor = "multi_thread")]
async fn a_wake_up_from_outside_changes_nothing() {
    let town = Town::start(false).await;
    let sent = town.post("agents/ada/turns", json!({ "message": "please ask" })).await;
    let turn = sent["id"].as_str().unwrap().to_owned();
    town.until("it waits for its tool", async || town.turn(&turn).await["status"] == "suspended")
        .await;
    let lie = json!({ "agent_turn_id": turn, "status": "success", "turn_epoch": 9 }).to_string();
    for _ in 0..20 {
        town.bus.publish("cmd.agent.default.wakeup", &lie).await.unwrap();
    }
    town.post(&format!("turns/{turn}/results"), json!({ "wait": "1.1", "result": 7 })).await;
    town.until("its end is told", async || {
        town.of(&turn).iter().any(|h| h.subject == "evt.agent.ada.task")
    })
    .await;
    let ends: Vec<String> =
        words(&town.of(&turn)).into_iter().filter(|w| w.starts_with("task")).collect();
    assert_eq!(ends, ["task success"]);
    assert_eq!(
        town.turn(&turn).await["turn_epoch"],
        2,
        "a dispatch and a resume, and nothing else"
    );
}
