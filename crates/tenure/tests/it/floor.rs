//! Stores that version 0.1.0 wrote (`fixtures/floor-0.1`, made by `scripts/make-floor`): this version opens them,
//! finds every history intact, serves everything that is open, and ends it as the manifest says.

use crate::support::{
    Guarded, administrators_key_of, complained, own_database, run, said, service, tenure,
};
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};
use tenure::{
    commands::judge,
    config::Settings,
    kernel::{
        ids::EntityId,
        store::{HeadFilter, Store},
        table::Class,
    },
    open::open_read_only,
};
use tenure_kubedouble::Cluster;
use tenure_pods::pod::name_of_attempt;
use tenure_proving::patience;
use tenure_tools::scripted::{Reply, Script, Server as Model};

const NODE: &str = "node-1";
/// A long poll of the workers in this test.
const POLL_MS: u64 = 500;

fn fixture(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/floor-0.1").join(file)
}

fn unpack(file: &str, into: &Path) {
    let status = Command::new("tar").arg("-xzf").arg(fixture(file)).arg("-C").arg(into).status();
    assert!(status.expect("tar starts").success(), "{file}");
}

/// One entity of the manifest.
#[derive(Clone, Debug)]
struct Entry(Value);

impl Entry {
    /// One for each id of a line of the manifest.
    fn all(line: &Value) -> Vec<Self> {
        let Some(ids) = line["ids"].as_array() else { return vec![Entry(line.clone())] };
        let one = |id: &Value| {
            let mut entry = line.clone();
            entry["id"] = id.clone();
            Entry(entry)
        };
        ids.iter().map(one).collect()
    }

    fn text(&self, field: &str) -> &str {
        self.0[field].as_str().unwrap_or_else(|| panic!("{field} of {self:?}"))
    }

    fn name(&self) -> &str {
        self.text("name")
    }

    fn id(&self) -> &str {
        self.text("id")
    }

    fn is(&self, kind: &str) -> bool {
        self.0["kind"] == kind
    }

    /// Where it is read, for kinds that the API shows by id.
    fn path(&self) -> String {
        let collection = match self.text("kind") {
            "job" => "jobs",
            "turn" => "turns",
            "task" => "tasks",
            "agent" => "agents",
            "call" => "calls",
            other => panic!("no path for a {other}"),
        };
        format!("/v1/{collection}/{}", self.id())
    }
}

struct Manifest {
    entities: Vec<Entry>,
    keys: Value,
}

impl Manifest {
    fn of(store: &str) -> Self {
        let text = std::fs::read_to_string(fixture("manifest.json")).expect("the manifest");
        let mut whole: Value = serde_json::from_str(&text).expect("JSON");
        let mut part = whole[store].take();
        let entities = part["entities"].as_array().expect("entities").iter().flat_map(Entry::all);
        let entities = entities.collect();
        Manifest { entities, keys: part["keys"].take() }
    }

    fn named(&self, name: &str) -> &Entry {
        self.entities.iter().find(|e| e.name() == name).unwrap_or_else(|| panic!("{name}"))
    }
}

/// The server and the worker of this version on the old store, in one process.
struct Floor {
    url: String,
    key: String,
    client: Client,
    up: Guarded,
    store: String,
    dir: PathBuf,
    _model: Model,
    cluster: Cluster,
}

impl Floor {
    async fn start(store: &str, dir: &Path) -> Self {
        let model = Model::start(Script::new().otherwise(Reply::text("done"))).await;
        let model = model.expect("a model");
        let cluster = Cluster::start();
        cluster.add_node(NODE);
        // After its creation was answered, as in a real cluster.
        let (created, pods) = std::sync::mpsc::channel::<String>();
        cluster.on_create(move |_, pod| drop(created.send(pod.to_owned())));
        let kubelet = cluster.clone();
        let life = move || {
            for pod in pods {
                kubelet.bind(&pod, NODE);
                kubelet.running(&pod);
                kubelet.succeed(&pod);
            }
        };
        std::thread::Builder::new().spawn(life).expect("a thread");
        let kubeconfig = cluster.kubeconfig(dir);
        let mut command = tenure();
        command.args(["up", "--json", "--store", store]).current_dir(dir);
        let sets = [
            "server.listen=127.0.0.1:0".to_owned(),
            "server.retention_days=36500".to_owned(),
            "server.tick_seconds=0.25".to_owned(),
            "server.pulse_gap_seconds=0.6".to_owned(),
            "worker.lease_seconds=2".to_owned(),
            "worker.renewal_seconds=0.5".to_owned(),
            "worker.queues=default,later".to_owned(),
            "worker.capabilities=gpu".to_owned(),
            "executor.backoff=0.05".to_owned(),
            "llm.model=scripted".to_owned(),
            // In 0.1 every tenant could use the operator's model; the changelog says to name them.
            "llm.tenants=*".to_owned(),
            format!("llm.base_url={}", model.base_url()),
            "pods.executor=true".to_owned(),
            "pods.cluster=here".to_owned(),
            "pods.request_late_seconds=1".to_owned(),
            "kubernetes.namespace=work".to_owned(),
            format!("kubernetes.kubeconfig={}", kubeconfig.display()),
            "log.filter=error".to_owned(),
        ];
        for set in &sets {
            command.args(["--set", set]);
        }
        command.env("OPENAI_API_KEY", "none");
        let mut up = Guarded(command.stdout(Stdio::piped()).spawn().expect("it starts"));
        let out = up.0.stdout.take().expect("it is piped");
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line).expect("its first line");
        let said: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{line:?}: {e}"));
        let url = said["url"].as_str().expect("its address").to_owned();
        let client = Client::builder().no_proxy().build().expect("a client");
        let key = administrators_key_of(dir, store);
        let (store, dir) = (store.to_owned(), dir.to_owned());
        Floor { url, key, client, up, store, dir, _model: model, cluster }
    }

    async fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> (StatusCode, Value) {
        self.ask_with(method, path, body, &[]).await
    }

    async fn ask_with(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        headers: &[(&str, &str)],
    ) -> (StatusCode, Value) {
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        let mut request = self.client.request(method, format!("{}{path}", self.url));
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        if !headers.iter().any(|(name, _)| *name == "authorization") {
            request = request.bearer_auth(&self.key);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = request.send().await.unwrap_or_else(|e| panic!("{path}: {e}"));
        let status = answer.status();
        let bytes = answer.bytes().await.expect("a body");
        (status, tenure::kernel::stored::from_slice(&bytes).unwrap_or_default())
    }

    async fn get(&self, path: &str) -> Value {
        let (status, body) = self.ask("GET", path, None).await;
        assert_eq!(status, StatusCode::OK, "{path}: {body}");
        body
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        let (status, answer) = self.ask("POST", path, Some(&body)).await;
        assert!(status.is_success(), "{path}: {status} {answer}");
        answer
    }

    async fn status_is(&self, path: &str, wanted: &str) {
        patience::found(&format!("{path} to be {wanted}"), async || {
            let found = self.get(path).await;
            if found["status"] == wanted { Ok(()) } else { Err(found) }
        })
        .await;
    }

    fn typed(&self, args: &[&str]) -> String {
        let mut all = args.to_vec();
        all.extend(["--server", &self.url]);
        let output = tokio::task::block_in_place(|| run(&all, &self.dir));
        assert!(output.status.success(), "{args:?}: {}{}", said(&output), complained(&output));
        said(&output)
    }

    /// Sends the requests of an entry. Jobs that they create have to complete as well.
    async fn finish(&self, entry: &Entry) -> Vec<String> {
        let mut made = Vec::new();
        for need in entry.0["finish"].as_array().into_iter().flatten() {
            made.extend(self.send(entry, need).await);
        }
        made
    }

    /// Sends one of them. Answers with the job that it created.
    async fn send(&self, entry: &Entry, need: &Value) -> Option<String> {
        if let Some(status) = need["when"].as_str() {
            self.status_is(&entry.path(), status).await;
        }
        let (method, path) = (need["method"].as_str().unwrap(), need["path"].as_str().unwrap());
        let key = need["key"].as_str().map(|key| ("idempotency-key", key));
        let headers: Vec<(&str, &str)> = key.into_iter().collect();
        let (status, answer) = self.ask_with(method, path, need.get("body"), &headers).await;
        let expected = match need["expect"].as_array() {
            Some(codes) => codes.contains(&json!(status.as_u16())),
            None => status.is_success(),
        };
        assert!(expected, "{}: {path}: {status} {answer}", entry.name());
        answer["job"].as_str().filter(|job| *job != entry.id()).map(str::to_owned)
    }

    /// Tells how the pods of a task end that no executor of this test makes.
    async fn report(&self, task: &Value, verdict: Value) -> String {
        let text = |field: &str| task[field].as_str().unwrap_or_default().to_owned();
        let attempt = task["attempt"].as_u64().unwrap_or(1).max(1) as u32;
        let id: EntityId = text("id").parse().expect("an id");
        let known = task["attempts"].as_array().into_iter().flatten();
        let pod = known.filter(|a| a["attempt"] == attempt).find_map(|a| a["pod"].as_object());
        let name = name_of_attempt(id, attempt, &text("workflow_id"), &text("name"));
        let pod = pod.map_or_else(
            || json!({ "namespace": "work", "name": name, "uid": format!("{id}-{attempt}"), "node": NODE }),
            |pod| json!({ "namespace": pod["namespace"], "name": pod["name"], "uid": pod["uid"], "node": NODE }),
        );
        let report = json!({
            "task_id": task["task_id"].as_str().unwrap_or(&text("id")), "tenant_id": "default",
            "workflow_id": text("workflow_id"), "attempt": attempt, "verdict": verdict, "over": true,
            "seen_at": 2, "pod": pod,
        });
        let answer = self.post("/v1/tasks/reports", json!({ "reports": [report] })).await;
        answer["answers"][0]["outcome"].as_str().expect("an outcome").to_owned()
    }

    /// Ends a task by what collectors say about its pods, whatever attempt it is at.
    async fn end_by_reports(&self, entry: &Entry) {
        let verdict =
            json!({ "status": "SUCCEEDED", "exit_code": 0, "rule": "terminated.zero", "since": 2 });
        patience::found(&format!("{} to be over", entry.name()), async || {
            let task = self.get(&entry.path()).await;
            if task["is_final"] == true {
                return Ok(());
            }
            let outcome = match task["status"].as_str() {
                Some("RETRYING") => "later".to_owned(),
                _ => self.report(&task, verdict.clone()).await,
            };
            Err((outcome, task))
        })
        .await;
    }

    /// SIGTERM, and the store is at rest.
    async fn stop(mut self) -> String {
        // Ends the thread that plays the kubelet.
        self.cluster.on_create(|_, _| {});
        let pid = rustix::process::Pid::from_child(&self.up.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
        patience::until("the server to end", async || {
            self.up.0.try_wait().expect("a child").is_some()
        })
        .await;
        self.store.clone()
    }
}

/// A worker in another language: answers every call of the fixture's tools.
async fn answer_calls(floor: &Floor) {
    let tools = json!([
        { "name": "idem", "class": "idempotent", "retry_max": 3, "backoff_ms": 50 },
        { "name": "once", "class": "irreversible" },
        { "name": "probed", "class": "verifiable", "probe": true },
        { "name": "undone", "class": "compensatable", "compensate": true },
        { "name": "undo", "class": "idempotent" },
        { "name": "unclaimed", "class": "idempotent" },
    ]);
    let body = json!({ "name": "floor", "lease_ms": 20_000, "tools": tools });
    let session = floor.post("/v1/calls/sessions", body).await;
    let session = session["session"].as_str().expect("a session").to_owned();
    loop {
        let path = format!("/v1/calls/sessions/{session}");
        let poll = json!({ "max": 16, "wait_ms": POLL_MS });
        let polled = floor.post(&format!("{path}/poll"), poll).await;
        for call in polled["calls"].as_array().expect("calls") {
            let result = match call["what"].as_str() {
                // The worker of the old version may still run, so only a "yes" settles it.
                Some("probe") => json!({ "happened": true, "result": "it happened" }),
                _ => json!({ "tool": call["tool"], "input": call["input"] }),
            };
            let body = json!({ "session": session, "epoch": call["epoch"], "result": result });
            let path = format!("/v1/calls/{}/complete", call["call"].as_str().expect("an id"));
            floor.post(&path, body).await;
        }
        floor.post(&format!("{path}/renew"), json!({ "calls": [] })).await;
    }
}

/// A worker in another language: every turn delivers what its tools said.
async fn run_turns(floor: &Floor) {
    let body = json!({ "name": "floor", "targets": ["floor", "nobody"], "lease_ms": 20_000 });
    let session = floor.post("/v1/turns/sessions", body).await;
    let session = session["session"].as_str().expect("a session").to_owned();
    loop {
        let path = format!("/v1/turns/sessions/{session}");
        let poll = json!({ "max": 16, "wait_ms": POLL_MS });
        let polled = floor.post(&format!("{path}/poll"), poll).await;
        for turn in polled["turns"].as_array().expect("turns") {
            let result = json!({ "results": turn["results"] });
            let body = json!({ "session": session, "epoch": turn["epoch"], "result": result });
            let path = format!("/v1/turns/{}/finish", turn["turn"].as_str().expect("an id"));
            floor.post(&path, body).await;
        }
        floor.post(&format!("{path}/renew"), json!({ "turns": [] })).await;
    }
}

type Heads = BTreeMap<String, (String, String, Class)>;

/// Kind, status and class of every entity, read from the store itself.
async fn heads(url: &str) -> Heads {
    let settings = Settings::load(None, [], &[format!("store.url={url}")]).expect("settings");
    let store: Arc<dyn Store> = open_read_only(&settings, judge()).await.expect("it opens");
    let (mut all, mut after) = (Heads::new(), None);
    loop {
        let page = store.heads(HeadFilter { after, ..HeadFilter::default() }, 500).await;
        let page = page.expect("it can be read");
        let Some(last) = page.last() else { return all };
        after = Some(last.id);
        for head in &page {
            let row = (head.kind().to_owned(), head.status.name().to_owned(), head.class());
            all.insert(head.id.to_string(), row);
        }
    }
}

fn verifies(store: &str, dir: &Path) {
    let output = tokio::task::block_in_place(|| run(&["verify", "--store", store], dir));
    assert!(output.status.success(), "{}{}", said(&output), complained(&output));
    assert!(said(&output).contains("every stream is intact"), "{}", said(&output));
}

/// Every list and every page of an entity answers with the fixture in the store.
async fn everything_is_served(floor: &Floor, manifest: &Manifest) {
    for path in [
        "/v1/jobs?limit=200",
        "/v1/jobs?status=completed&limit=200",
        "/v1/jobs?status=parked,waiting,attention",
        "/v1/jobs?flow=plan",
        "/v1/dead-letters",
        "/v1/calls?limit=100",
        "/v1/queues",
        "/v1/gates",
        "/v1/gates/printer",
        "/v1/limits",
        "/v1/schedules",
        "/v1/schedules/active?next=3",
        "/v1/workers",
        "/v1/flows",
        "/v1/tools",
        "/v1/agents",
        "/v1/turns?limit=100",
        "/v1/inbox?status=error",
        "/v1/watchdog",
        "/v1/tasks",
        "/v1/tasks/dead-letters",
        "/v1/tasks/budgets",
    ] {
        floor.get(path).await;
    }
    let bulk = json!({ "action": "cancel", "filter": { "tenant": "acme" }, "preview": true });
    floor.post("/v1/jobs/bulk", bulk).await;
    for entry in
        manifest.entities.iter().filter(|e| ["job", "turn", "task"].iter().any(|k| e.is(k)))
    {
        floor.get(&entry.path()).await;
        floor.get(&format!("{}/why", entry.path())).await;
        floor.get(&format!("{}/events", entry.path())).await;
    }
}

/// The job whose signal was nested 126 arrays deep is served as any other, and our own commands read the answers.
async fn the_deep_job_is_served(floor: &Floor, manifest: &Manifest) {
    let deep = manifest.named("struck by a deep signal");
    let job = floor.get(&deep.path()).await;
    let arrays = "[".repeat(126);
    assert!(job["output"].to_string().contains(&arrays), "{job}");
    for part in ["why", "steps", "events", "trace", "verify", "replay"] {
        floor.get(&format!("{}/{part}", deep.path())).await;
    }
    for page in ["/jobs".to_owned(), format!("/jobs/{}", deep.id())] {
        assert_eq!(floor.ask("GET", &page, None).await.0, StatusCode::OK, "{page}");
    }
    assert!(floor.typed(&["job", "list", "--limit", "200"]).contains(deep.id()));
    assert!(floor.typed(&["job", "show", deep.id(), "--json"]).contains(&arrays));
    floor.typed(&["job", "show", deep.id()]);
    floor.typed(&["job", "verify", deep.id()]);
    let file = floor.dir.join("deep.tenure");
    let file = file.to_str().expect("UTF-8");
    floor.typed(&["export", deep.id(), "-o", file]);
    let checked =
        tokio::task::block_in_place(|| run(&["verify", file, "--allow-unsigned"], &floor.dir));
    assert!(checked.status.success(), "{}{}", said(&checked), complained(&checked));
}

/// Keys of the old version open the same doors, and submissions that it accepted are known.
async fn keys_are_known(floor: &Floor, manifest: &Manifest) {
    let bearer = |name: &str| format!("Bearer {}", manifest.keys[name].as_str().expect("a key"));
    let (status, page) =
        floor.ask_with("GET", "/v1/jobs", None, &[("authorization", &bearer("reader"))]).await;
    assert_eq!(status, StatusCode::OK, "{page}");
    let seen: BTreeSet<&str> =
        page["jobs"].as_array().expect("jobs").iter().filter_map(|j| j["id"].as_str()).collect();
    let own = ["completed of a tenant", "parked of a tenant"].map(|name| manifest.named(name).id());
    assert_eq!(seen, BTreeSet::from(own));
    let revoked =
        floor.ask_with("GET", "/v1/jobs", None, &[("authorization", &bearer("revoked"))]).await;
    assert_eq!(revoked.0, StatusCode::UNAUTHORIZED, "{}", revoked.1);
    let entry = manifest.named("completed");
    let headers = [("idempotency-key", entry.text("key"))];
    let (status, again) =
        floor.ask_with("POST", "/v1/jobs", Some(&entry.0["submitted"]), &headers).await;
    assert_eq!((status, again["id"].as_str()), (StatusCode::OK, Some(entry.id())), "{again}");
}

async fn ends_are_reached(floor: &Floor, manifest: &Manifest) {
    let mut made = Vec::new();
    for entry in &manifest.entities {
        made.extend(floor.finish(entry).await);
    }
    for entry in manifest.entities.iter().filter(|e| e.is("task") && e.0["reported"] == true) {
        floor.end_by_reports(entry).await;
    }
    for entry in &manifest.entities {
        if let Some(end) = entry.0["end"].as_str() {
            floor.status_is(&entry.path(), end).await;
        }
        if entry.is("batch") {
            let path = format!("/v1/batches/{}", entry.id());
            let batch = patience::found("the job of a batch", async || {
                let batch = floor.get(&path).await;
                if batch["made"][0]["job"].is_string() { Ok(batch) } else { Err(batch) }
            })
            .await;
            let jobs = batch["made"].as_array().expect("jobs").iter();
            for job in jobs.map(|j| j["job"].as_str().expect("an id").to_owned()) {
                floor.status_is(&format!("/v1/jobs/{job}"), entry.text("job_end")).await;
            }
        }
    }
    for id in made {
        floor.status_is(&format!("/v1/jobs/{id}"), "completed").await;
    }
    for entry in manifest.entities.iter().filter(|e| e.is("job")) {
        let verified = floor.get(&format!("{}/verify", entry.path())).await;
        assert_eq!(verified["ok"], true, "{}: {verified}", entry.name());
    }
}

/// Opens, verifies and finishes a store of the old version.
async fn finishes(manifest: &Manifest, store: &str, dir: &Path) {
    verifies(store, dir);
    let before = heads(store).await;
    for entry in manifest.entities.iter().filter(|e| e.0["status"].is_string()) {
        let status = before.get(entry.id()).map(|(_, status, _)| status.as_str());
        assert_eq!(status, entry.0["status"].as_str(), "{}", entry.name());
    }
    let floor = Floor::start(store, dir).await;
    everything_is_served(&floor, manifest).await;
    the_deep_job_is_served(&floor, manifest).await;
    keys_are_known(&floor, manifest).await;
    tokio::select! {
        () = ends_are_reached(&floor, manifest) => {}
        () = answer_calls(&floor) => {}
        () = run_turns(&floor) => {}
    }
    let store = floor.stop().await;
    verifies(&store, dir);
    // Also what the manifest does not name: children, calls, joins, pods, sessions.
    let after = heads(&store).await;
    let open = before.keys().filter_map(|id| {
        let (kind, status, class) = after.get(id)?;
        let left = *class == Class::Open || kind == "worker" && status == "alive";
        left.then(|| format!("{kind} {id} is {status}"))
    });
    let open: Vec<String> = open.collect();
    assert!(open.is_empty(), "{open:#?}");
    assert!(before.keys().all(|id| after.contains_key(id)), "nothing was removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sqlite_store_of_version_0_1_is_finished() {
    let dir = tempfile::tempdir().unwrap();
    unpack("sqlite.tar.gz", dir.path());
    let store = format!("sqlite:{}", dir.path().join("store").display());
    finishes(&Manifest::of("sqlite"), &store, dir.path()).await;
}

fn psql(url: &str) -> Command {
    let mut command = Command::new(Path::new(&service("TENURE_TEST_PG_BIN")).join("psql"));
    command
        .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", url])
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

#[test]
fn a_postgres_store_of_version_0_1_is_finished() {
    let dir = tempfile::tempdir().unwrap();
    // It is dropped after the runtime: dropping it starts one of its own.
    let database = own_database("floor");
    let sql = std::fs::File::open(fixture("postgres.sql.gz")).unwrap();
    let unzipped = Command::new("gzip").arg("-dc").stdin(sql).stdout(Stdio::piped()).spawn();
    let mut unzipped = unzipped.expect("gzip starts");
    let dump = unzipped.stdout.take().expect("it is piped");
    assert!(psql(&database.url).stdin(dump).status().expect("psql starts").success());
    assert!(unzipped.wait().unwrap().success());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(finishes(&Manifest::of("postgres"), &database.url, dir.path()));
}

/// The Python package of version 0.1.0 against the server of this version: a call, a plan, a turn.
#[tokio::test(flavor = "multi_thread")]
async fn the_python_package_of_version_0_1_works_with_this_server() {
    let dir = tempfile::tempdir().unwrap();
    unpack("python.tar.gz", dir.path());
    let floor = Floor::start("sqlite:data", dir.path()).await;
    let program = r#"
import json, sys
from tenure import Agent, Call, Client, Finish, Turn, Worker, call, tool

@tool(class_="idempotent", timeout=30)
def charge(call: Call, order: str, cents: int) -> dict:
    return {"order": order, "cents": cents, "keyed": bool(call.key)}

def answer(turn: Turn):
    if turn.step == 1:
        return call("charge", order="o-3", cents=7)
    return Finish({"heard": turn.results[0]["result"]})

url = sys.argv[1]
with Worker(url, tools=[charge]), Agent(answer, url, targets=["py"]), Client(url) as client:
    called = client.submit("call", {"tool": "charge", "input": {"order": "o-1", "cents": 1}}, key="k", wait=60)
    again = client.submit("call", {"tool": "charge", "input": {"order": "o-1", "cents": 1}}, key="k", wait=60)
    plan = {"version": 1, "steps": {"a": {"tool": "charge", "input": {"order": "o-2", "cents": 2}},
                                    "w": {"wait": {"for": "signal"}, "after": ["a"]}}, "output": "${{ steps.w.output }}"}
    planned = client.submit(plan=plan)
    client.signal(planned.id, "w", {"go": True}, early=True)
    planned = client.wait(planned.id, 60)
    client.agents.set("ada", {"tools": [{"name": "charge", "run": {"tool": "charge"}}]}, target="py", channel="c")
    turn = client.agents.send("ada", "charge it", wait=60)
    print(json.dumps({
        "called": [called.status, called.output], "again": [again.existed, again.id == called.id],
        "planned": [planned.status, planned.output], "turn": [turn.status, turn.raw.get("end")],
        "listed": len(list(client.list())),
    }))
"#;
    let output = tokio::task::block_in_place(|| {
        let mut python = Command::new("python3");
        python.args(["-c", program, &floor.url]).env("PYTHONPATH", dir.path().join("python/src"));
        python.stdin(Stdio::null()).output().expect("python3 starts")
    });
    assert!(output.status.success(), "{}{}", said(&output), complained(&output));
    let told: Value = serde_json::from_str(&said(&output)).unwrap();
    let receipt =
        |order: &str, cents: u32| json!({ "order": order, "cents": cents, "keyed": true });
    assert_eq!(told["called"], json!(["completed", receipt("o-1", 1)]));
    assert_eq!(told["again"], json!([true, true]));
    assert_eq!(told["planned"], json!(["completed", { "go": true }]));
    assert_eq!(told["turn"][0], "success", "{told}");
    assert!(told["turn"][1].to_string().contains("o-3"), "{told}");
    let store = floor.stop().await;
    verifies(&store, dir.path());
}

/// A server that meets the schema of a later version writes nothing and names the code with which it stops.
#[test]
fn a_newer_schema_stops_a_server_with_its_code() {
    let dir = tempfile::tempdir().unwrap();
    unpack("sqlite.tar.gz", dir.path());
    let file = rusqlite::Connection::open(dir.path().join("store/tenure.db")).unwrap();
    file.pragma_update(None, "user_version", 999).unwrap();
    drop(file);
    let database = own_database("newer");
    let created = run(&["key", "create", "k", "--store", &database.url], dir.path());
    assert!(created.status.success(), "{}", complained(&created));
    let newer = "UPDATE tenure.meta SET schema_version = 999";
    assert!(psql(&database.url).args(["-c", newer]).status().unwrap().success());
    for store in ["sqlite:store", &database.url] {
        for command in ["up", "server", "verify"] {
            let listen = ["--set", "server.listen=127.0.0.1:0"];
            let args: Vec<&str> = [command, "--store", store].into_iter().chain(listen).collect();
            let refused = run(&args, dir.path());
            let words = complained(&refused) + &said(&refused);
            assert!(!refused.status.success(), "{command} on {store}: {words}");
            assert!(words.contains("newer_schema"), "{command} on {store}: {words}");
        }
    }
}
