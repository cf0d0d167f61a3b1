//! The collector as a process: a cluster of the test's own, a real Redis, a server, and SIGKILL.

use crate::{
    console::{administrators_key, settings},
    support::{Guarded, complained, run, tenure},
};
use reqwest::Client;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _},
    path::Path,
    process::{Command, Stdio},
    sync::{Arc, Mutex},
};
use tempfile::TempDir;
use tenure::service::Service;
use tenure_bell::redis::{EventChannel, Heard, RedisOptions};
use tenure_edge::TokioRuntime;
use tenure_kubedouble::{Cluster, InCluster};
use tenure_lab::{
    drill::proxy::{Proxy, Weather},
    lab_process::lab_program,
};
use tenure_pods::{
    access,
    envelope::{CHANNEL, Envelope, TaskEvent},
    report::labels,
};
use tenure_proving::{patience, redis::RedisServer};

struct Town {
    cluster: Cluster,
    _redis: RedisServer,
    /// Between the collectors and Redis.
    line: Proxy,
    heard: Arc<Mutex<Vec<TaskEvent>>>,
    server: Service,
    /// Of the server, for every tenant.
    key: String,
    dir: TempDir,
    _home: TempDir,
    http: Client,
}

impl Town {
    async fn start() -> Town {
        let redis = RedisServer::start();
        let line = Proxy::open(redis.address()).await.expect("a proxy");
        let home = tempfile::tempdir().expect("a directory");
        // It hears on the channel what it is also told, as a server of an installation does.
        let hears = format!("redis.addresses={}", redis.address());
        let set = settings(&home, &["pods.witness_seconds=0.2", &hears]);
        let server = lab_program().serve(&set, true).await.expect("it starts");
        let key = administrators_key(&server).await;
        let cluster = Cluster::start();
        cluster.add_node("node-1");
        let heard = listen(&redis).await;
        let http = Client::builder().no_proxy().build().expect("a client");
        let dir = tempfile::tempdir().expect("a directory");
        Town { cluster, _redis: redis, line, heard, server, key, dir, _home: home, http }
    }

    /// A pod of a task that runs.
    fn runs(&self, task: &str) {
        let labels = [
            (labels::WORKLOAD, "true"),
            (labels::TASK_ID, task),
            (labels::WORKFLOW_ID, "w-1"),
            (labels::TENANT_ID, "acme"),
            (labels::ATTEMPT, "1"),
        ];
        self.cluster.add_task(task, &labels);
        self.cluster.bind(task, "node-1");
        self.cluster.running(task);
    }

    fn command(&self, more: &[&str]) -> Command {
        let kubeconfig = self.cluster.kubeconfig(self.dir.path());
        let mut command = tenure();
        command
            .args(["collector", "--json", "--listen", "127.0.0.1:0"])
            .args(["--kubeconfig", &kubeconfig.display().to_string()])
            .args(["--redis", &self.line.address()])
            .env("TENURE_SERVER", self.server.url())
            .env("TENURE_API_KEY", &self.key)
            .args(["--set", "collector.silence_seconds=5", "--set", "collector.lease_seconds=1"])
            .args(more)
            .current_dir(self.dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs one, and waits until it has seen everything.
    async fn collect(&self, more: &[&str]) -> Running {
        let running = tokio::task::block_in_place(|| Running::start(self.command(more)));
        patience::until("ready", async || {
            let answer = self.http.get(format!("{}/readyz", running.url)).send().await;
            answer.is_ok_and(|a| a.status().is_success())
        })
        .await;
        running
    }

    fn heard(&self, task: &str) -> Vec<String> {
        let heard = self.heard.lock().expect("not poisoned");
        heard.iter().filter(|e| e.task_id == task).map(|e| e.status.clone()).collect()
    }

    async fn hears(&self, task: &str, expected: &[&str]) {
        let once = || {
            let mut seen = Vec::new();
            for status in self.heard(task) {
                if seen.last() != Some(&status) {
                    seen.push(status);
                }
            }
            seen
        };
        patience::until(
            &format!("{task} to be heard as {expected:?}, heard {:?}", once()),
            async || once() == expected,
        )
        .await;
    }

    /// What the server knows of a task.
    async fn task(&self, task: &str) -> Value {
        let id = tenure_pods::report::task_of("acme", task);
        let url = format!("{}/v1/tasks/{id}", self.server.url());
        let answer = self.http.get(url).bearer_auth(&self.key).send().await.expect("an answer");
        serde_json::from_str(&answer.text().await.expect("text")).unwrap_or_default()
    }

    async fn is(&self, task: &str, status: &str) -> Value {
        patience::until(&format!("{task} to be {status}"), async || {
            self.task(task).await["status"] == status
        })
        .await;
        self.task(task).await
    }

    async fn metrics(&self, running: &Running) -> String {
        let answer = self.http.get(format!("{}/metrics", running.url)).send().await;
        answer.expect("an answer").text().await.expect("text")
    }
}

/// Writes down what is published.
async fn listen(redis: &RedisServer) -> Arc<Mutex<Vec<TaskEvent>>> {
    let rt = Arc::new(TokioRuntime::current());
    let channel = EventChannel::start(&RedisOptions::new(redis.address()), rt).expect("a channel");
    let mut subscription = channel.subscribe(CHANNEL);
    loop {
        if let Heard::Connected { .. } = subscription.heard().await {
            break;
        }
    }
    let heard: Arc<Mutex<Vec<TaskEvent>>> = Arc::default();
    let to = heard.clone();
    #[expect(clippy::disallowed_methods, reason = "a test listens beside itself")]
    tokio::spawn(async move {
        let _channel = channel;
        loop {
            if let Heard::Message { payload, .. } = subscription.heard().await {
                let event = Envelope::read(&payload).expect("an envelope").data;
                to.lock().expect("not poisoned").push(event);
            }
        }
    });
    heard
}

/// Why the last attempt ended.
fn last_cause(task: &Value) -> &str {
    let attempts = task["attempts"].as_array().map_or(&[][..], Vec::as_slice);
    attempts.last().and_then(|a| a["ended"]["cause"].as_str()).unwrap_or("")
}

/// A collector that runs.
pub struct Running {
    child: Guarded,
    pub url: String,
}

impl Running {
    pub fn start(mut command: Command) -> Running {
        let mut child = Guarded(command.spawn().expect("it starts"));
        let mut line = String::new();
        let stdout = child.0.stdout.take().expect("its output");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        if line.is_empty() {
            let mut said = String::new();
            let stderr = child.0.stderr.as_mut().expect("its complaints");
            stderr.read_to_string(&mut said).expect("text");
            panic!("it said nothing but: {said}");
        }
        let said: Value = serde_json::from_str(&line).expect("JSON");
        Running { child, url: said["listen"].as_str().expect("an address").to_owned() }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child.0)
    }

    fn signal(&mut self, signal: Signal) -> std::process::ExitStatus {
        kill_process(self.pid(), signal).expect("it is there");
        self.child.0.wait().expect("it ends")
    }

    /// Bytes of its own: pages of the program's file are read in while it works, whatever it remembers.
    fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.0.id()));
        let status = status.expect("it is there");
        let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:")).expect("a number");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1_024
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pods_life_reaches_redis_and_the_server() {
    let town = Town::start().await;
    let mut collector = town.collect(&[]).await;
    town.runs("t-1");
    town.is("t-1", "RUNNING").await;
    town.cluster.oom("t-1");
    let task = town.is("t-1", "FAILED").await;
    assert_eq!(last_cause(&task), "oom", "{task:#}");
    town.hears("t-1", &["RUNNING", "FAILED"]).await;
    town.runs("t-2");
    town.is("t-2", "RUNNING").await;
    town.cluster.force_delete("t-2");
    let task = town.is("t-2", "FAILED").await;
    assert_eq!(last_cause(&task), "deleted_externally", "{task:#}");
    town.hears("t-2", &["RUNNING"]).await;
    let text = town.metrics(&collector).await;
    for line in [
        "tenure_collector_events_total{status=\"FAILED\",class=\"oom\",tenant=\"acme\"} 1",
        "tenure_collector_told_total{sink=\"server\"} 4",
        "tenure_collector_told_total{sink=\"channel\"} 3",
        "tenure_collector_publish_latency_seconds_count{sink=\"channel\"} 3",
        "tenure_collector_ready 1",
        "tenure_collector_spool_depth 0",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    // Of pods that end at once, too, it is the report that counts, whichever is faster.
    for n in 0..20 {
        let task = format!("short-{n}");
        town.runs(&task);
        town.cluster.succeed(&task);
    }
    for n in 0..20 {
        let task = town.is(&format!("short-{n}"), "SUCCEEDED").await;
        assert_ne!(task["ended"]["rule"], "channel", "{task:#}");
        assert_eq!(task["pod_may_run"], false, "{task:#}");
    }
    // What it asked for is what its role grants.
    let granted: Vec<(&str, &str)> = access::SWEEPER
        .iter()
        .flat_map(|a| a.verbs.iter().map(|verb| (a.resource, *verb)))
        .collect();
    for (_, resource, verb) in town.cluster.permissions_used() {
        assert!(granted.contains(&(resource.as_str(), verb.as_str())), "{verb} {resource}");
    }
    let ended = tokio::task::block_in_place(|| collector.signal(Signal::TERM));
    assert!(ended.success(), "{ended}");
}

/// Redis is away from the collector for a while; whoever listens to it directly hears everything afterwards, in order.
#[tokio::test(flavor = "multi_thread")]
async fn redis_away_loses_nothing_and_keeps_the_order() {
    let town = Town::start().await;
    let collector = town.collect(&[]).await;
    town.runs("t-0");
    town.hears("t-0", &["RUNNING"]).await;
    for weather in [Weather::Cut, Weather::Swallowed] {
        let name = |n: usize| {
            format!("t-{}-{n}", if weather == Weather::Cut { "cut" } else { "swallowed" })
        };
        town.line.turn(weather);
        for n in 0..10 {
            town.runs(&name(n));
            match n % 2 {
                0 => town.cluster.succeed(&name(n)),
                _ => town.cluster.terminate(&name(n), 1, "Error", "no"),
            };
        }
        // The durable way does not wait for it.
        for n in 0..10 {
            town.is(&name(n), if n % 2 == 0 { "SUCCEEDED" } else { "FAILED" }).await;
        }
        patience::until("the channel to be down", async || {
            town.metrics(&collector).await.contains("tenure_collector_sink_up{sink=\"channel\"} 0")
        })
        .await;
        town.line.turn(Weather::Clear);
        for n in 0..10 {
            let end = if n % 2 == 0 { "SUCCEEDED" } else { "FAILED" };
            town.hears(&name(n), &["RUNNING", end]).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_killed_tells_the_rest_when_it_is_back() {
    let town = Town::start().await;
    let mut collector = town.collect(&[]).await;
    town.runs("t-1");
    town.runs("t-2");
    town.hears("t-1", &["RUNNING"]).await;
    town.hears("t-2", &["RUNNING"]).await;
    town.is("t-2", "RUNNING").await;
    town.line.turn(Weather::Cut);
    town.cluster.terminate("t-1", 3, "Error", "no");
    town.is("t-1", "FAILED").await;
    // Killed with a report that Redis has not taken; then its pod goes, and another one too.
    tokio::task::block_in_place(|| collector.signal(Signal::KILL));
    town.cluster.force_delete("t-1");
    town.cluster.force_delete("t-2");
    town.line.turn(Weather::Clear);
    let mut collector = town.collect(&[]).await;
    town.hears("t-1", &["RUNNING", "FAILED"]).await;
    let task = town.is("t-2", "FAILED").await;
    assert_eq!(last_cause(&task), "deleted_externally", "{task:#}");
    let ids: Vec<_> = {
        let heard = town.heard.lock().expect("not poisoned");
        heard.iter().map(|e| (e.task_id.clone(), e.status.clone(), e.event_id.clone())).collect()
    };
    let mut by_id = BTreeMap::new();
    for (task, status, id) in ids {
        let said =
            by_id.entry(id.expect("an id")).or_insert_with(|| (task.clone(), status.clone()));
        assert_eq!(*said, (task, status), "one id, one thing");
    }
    let ended = tokio::task::block_in_place(|| collector.signal(Signal::TERM));
    assert!(ended.success());
}

/// The collector of a node is killed, the pod ends and is deleted, and then there is a collector again, which only misses the pod.
#[tokio::test(flavor = "multi_thread")]
async fn what_ended_while_its_collector_was_dead_is_proven_by_the_sweeper() {
    let town = Town::start().await;
    let on_node = ["--mode", "node", "--node", "node-1"];
    let mut collector = town.collect(&on_node).await;
    // It leaves pods of nodes that are well to their collectors for an hour.
    let later = "collector.sweep_after_seconds=3600";
    let sweeper = town.collect(&["--mode", "sweeper", "--spool", "none", "--set", later]).await;
    town.runs("t-1");
    town.is("t-1", "RUNNING").await;
    patience::until("the sweeper to speak, and to know the pod", async || {
        let text = town.metrics(&sweeper).await;
        text.contains("tenure_collector_active 1") && text.contains("tenure_collector_pods 1\n")
    })
    .await;
    tokio::task::block_in_place(|| collector.signal(Signal::KILL));
    town.cluster.succeed("t-1");
    town.cluster.force_delete("t-1");
    let task = town.is("t-1", "SUCCEEDED").await;
    assert_eq!(task["ended"]["exit_code"], 0, "{task:#}");
    let again = town.collect(&on_node).await;
    patience::until("it to miss the pod, and to say so", async || {
        let text = town.metrics(&again).await;
        text.contains("tenure_collector_absent_total 1\n")
            && text.contains("tenure_collector_spool_depth 0\n")
    })
    .await;
    assert_eq!(town.task("t-1").await["status"], "SUCCEEDED");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_collectors_one_speaks_and_the_other_takes_over() {
    let town = Town::start().await;
    let mut first = town.collect(&["--spool", "none"]).await;
    patience::until("it to speak", async || {
        town.metrics(&first).await.contains("tenure_collector_active 1")
    })
    .await;
    let second = town.collect(&["--spool", "none"]).await;
    town.runs("t-1");
    town.hears("t-1", &["RUNNING"]).await;
    assert!(town.metrics(&second).await.contains("tenure_collector_active 0"));
    tokio::task::block_in_place(|| first.signal(Signal::KILL));
    town.cluster.succeed("t-1");
    town.runs("t-2");
    town.hears("t-2", &["RUNNING"]).await;
    town.hears("t-1", &["RUNNING", "SUCCEEDED"]).await;
    assert!(town.metrics(&second).await.contains("tenure_collector_active 1"));
}

/// Measured from outside: everything that the process has, its buffers too, and with few pods: what the burst needed is
/// given back.
#[tokio::test(flavor = "multi_thread")]
async fn a_live_pod_costs_less_than_four_kilobytes() {
    let town = Town::start().await;
    let collector = town.collect(&["--server", "", "--spool", "none"]).await;
    let empty = collector.resident();
    let count = 5_000;
    let pods = (0..count).map(|n| {
        let task = format!("0190b5e0-1234-7abc-8def-{n:012}");
        let labels = json!({ labels::WORKLOAD: "true", labels::TASK_ID: task, labels::TENANT_ID: "acme",
            labels::WORKFLOW_ID: "0190b5e0-1234-7abc-8def-0123456789ab", labels::ATTEMPT: "1" });
        json!({ "metadata": { "name": format!("ff-{n}"), "labels": labels },
            "spec": { "nodeName": "node-1", "containers": [{ "name": "main", "image": "work:1" }] } })
    });
    town.cluster.load_pods(pods);
    for n in 0..count {
        town.cluster.running(&format!("ff-{n}"));
    }
    patience::until("all to be known and told", async || {
        let text = town.metrics(&collector).await;
        text.contains(&format!("tenure_collector_told_total{{sink=\"channel\"}} {count}\n"))
            && text.contains("tenure_collector_spool_depth 0\n")
    })
    .await;
    let bound = 4 * 1_024;
    let per_pod = || collector.resident().saturating_sub(empty) / count;
    println!("{} bytes of resident memory for each of {count} live pods", per_pod());
    patience::until("a pod to cost less than four kilobytes", async || per_pod() < bound).await;
    println!("{} bytes at rest", per_pod());
}

#[test]
fn what_can_not_work_is_said_at_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let refused = |args: &[&str], word: &str| {
        let mut all = vec!["collector", "--listen", "127.0.0.1:0"];
        all.extend(args);
        let output = run(&all, dir.path());
        let said = complained(&output);
        assert!(!output.status.success() && said.contains(word), "{args:?}: {said}");
    };
    refused(&["--redis", "none"], "nobody would be told");
    refused(&["--mode", "node"], "NODE_NAME");
    refused(&["--kubeconfig", "/nowhere"], "/nowhere");
    refused(&["--server", "ftp://x"], "http or https");
    refused(&["--in-cluster"], "KUBERNETES_SERVICE_HOST");
    refused(&["--mode", "sideways"], "sideways");
    refused(&["--set", "collector.spool_bytes_max=1"], "collector.spool_bytes_max = \"1\"");
    let config = dir.path().join("config");
    std::fs::write(&config, "apiVersion: v1\nkind: Config\nclusters: []\n").expect("written");
    refused(&["--kubeconfig", &config.display().to_string()], "can not be used");
    let file = dir.path().join("file");
    std::fs::write(&file, "").expect("written");
    let good = kubeconfig(dir.path());
    refused(&["--kubeconfig", &good, "--spool", &file.display().to_string()], "collector.spool");
}

/// A wrong word about collectors in a file that all commands share stops the collector, with its place, and nobody else.
#[test]
fn wrong_settings_of_a_collector_stop_collectors_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("tenure.toml");
    std::fs::write(&file, "[collector]\nsilence_seconds = \"soon\"\n").expect("written");
    let file = file.display().to_string();
    let output = run(&["--config", &file, "config"], dir.path());
    assert!(output.status.success(), "{}", complained(&output));
    let output = run(&["--config", &file, "collector"], dir.path());
    let said = complained(&output);
    assert!(!output.status.success(), "{said}");
    for word in [file.as_str(), "collector.silence_seconds = \"soon\""] {
        assert!(said.contains(word), "{word}: {said}");
    }
}

/// A collector that runs as if in a pod, with the files of a service account.
fn inside(account: &InCluster, dir: &Path) -> Command {
    let mut command = tenure();
    command
        .args([
            "collector",
            "--json",
            "--listen",
            "127.0.0.1:0",
            "--in-cluster",
            "--mode",
            "cluster",
        ])
        .args(["--redis", "none", "--server", "http://127.0.0.1:9", "--spool", "none"])
        .arg("--set")
        .arg(format!("kubernetes.service_account={}", account.directory.display()))
        .envs(account.env())
        .current_dir(dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

async fn readiness(running: &Running) -> (bool, String) {
    let http = Client::builder().no_proxy().build().expect("a client");
    let answer = http.get(format!("{}/readyz", running.url)).send().await.expect("an answer");
    (answer.status().is_success(), answer.text().await.expect("text"))
}

async fn says(running: &Running, ready: bool, word: &str) {
    patience::until(&format!("it to say {word:?}"), async || {
        let (is_ready, text) = readiness(running).await;
        is_ready == ready && text.contains(word)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_cluster_it_is_the_service_account_and_reads_a_new_token() {
    let cluster = Cluster::start_tls();
    let dir = tempfile::tempdir().expect("a directory");
    let account = cluster.in_cluster(dir.path(), "first");
    let collector = tokio::task::block_in_place(|| Running::start(inside(&account, dir.path())));
    says(&collector, true, "").await;
    // Its namespace is the account's: that is where the Lease is.
    let leased = |c: &Cluster| {
        let in_default = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
        c.requests().iter().any(|r| r.path.starts_with(in_default))
    };
    cluster.until("a Lease was asked for", leased).await;
    // The file is new before the old token ends, as a kubelet has it.
    cluster.require_token("second");
    std::fs::write(account.token_file(), "second\n").expect("written");
    cluster.revoke_token("first");
    let before = cluster.requests().len();
    let answered = |c: &Cluster, verb: &str, code: u16| {
        let requests = c.requests();
        requests[before..].iter().any(|r| r.verb == verb && r.code == Some(code))
    };
    cluster.cut_watches();
    cluster.until("it watches again", |c| answered(c, "watch", 200)).await;
    assert!(!answered(&cluster, "watch", 401) && !answered(&cluster, "list", 401));
    // One that comes late is not missed either.
    cluster.require_token("third");
    cluster.revoke_token("second");
    cluster.cut_watches();
    cluster.until("it is refused", |c| answered(c, "watch", 401)).await;
    std::fs::write(account.token_file(), "third").expect("written");
    let before = cluster.requests().len();
    let heard = |c: &Cluster| {
        let requests = c.requests();
        requests[before..].iter().any(|r| r.verb == "watch" && r.code == Some(200))
    };
    cluster.until("it watches with the third", heard).await;
    says(&collector, true, "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_of_another_authority_is_not_trusted() {
    let (cluster, other) = (Cluster::start_tls(), Cluster::start_tls());
    let (dir, elsewhere) = (tempfile::tempdir(), tempfile::tempdir());
    let (dir, elsewhere) = (dir.expect("a directory"), elsewhere.expect("a directory"));
    let account = cluster.in_cluster(dir.path(), "token");
    let wrong = other.in_cluster(elsewhere.path(), "token").authority_file();
    std::fs::copy(wrong, account.authority_file()).expect("copied");
    let collector = tokio::task::block_in_place(|| Running::start(inside(&account, dir.path())));
    says(&collector, false, "certificate is not trusted").await;
    let (_, text) = readiness(&collector).await;
    assert!(text.contains("ca.crt"), "{text}");
}

#[test]
fn a_file_of_the_account_that_is_not_there_is_named() {
    let cluster = Cluster::start_tls();
    for (name, content) in [
        ("token", None),
        ("ca.crt", None),
        ("namespace", None),
        ("token", Some(" ")),
        ("ca.crt", Some("x")),
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        let account = cluster.in_cluster(dir.path(), "token");
        let file = account.directory.join(name);
        match content {
            None => std::fs::remove_file(&file).expect("removed"),
            Some(text) => std::fs::write(&file, text).expect("written"),
        }
        let output = inside(&account, dir.path()).output().expect("it runs");
        let said = complained(&output);
        assert!(!output.status.success(), "{name}: {said}");
        assert!(said.contains(&file.display().to_string()), "{name}: {said}");
    }
}

fn kubeconfig(dir: &Path) -> String {
    let cluster = Cluster::start();
    cluster.kubeconfig(dir).display().to_string()
}
