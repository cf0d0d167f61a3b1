//! `tenure doctor` on deployments that are well and on some that are not, and the alerts beside the metrics they name.

use crate::{
    collector::Running,
    support::{Guarded, administrators_key_of, complained, own_database, said, tenure, wait_until},
};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Output, Stdio},
    sync::Mutex,
    time::Duration,
};
use tenure_kubedouble::Cluster;
use tenure_lab::drill::run::BOARDS;
use tenure_proving::patience;

const PATIENCE: Duration = Duration::from_secs(30);

/// A directory of its own that is no temporary one, as doctor would say.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A server with a worker, and where it is.
fn up(dir: &Path, store: &str) -> (Guarded, String) {
    let mut command = tenure();
    let sets = ["log.filter=error", "server.listen=127.0.0.1:0"];
    command.args(["up", "--json", "--store", store]).args(sets.iter().flat_map(|s| ["--set", s]));
    let mut child = command.current_dir(dir).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let said: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"));
    (Guarded(child), said["url"].as_str().unwrap().to_owned())
}

fn stop(mut server: Guarded) {
    server.0.kill().unwrap();
    server.0.wait().unwrap();
}

fn doctor(dir: &Path, store: &str, more: &[&str]) -> Output {
    tenure().args(["doctor", "--store", store]).args(more).current_dir(dir).output().unwrap()
}

/// The report as data: what each check says.
fn report(output: &Output) -> Vec<Value> {
    let report: Value = serde_json::from_str(&said(output))
        .unwrap_or_else(|e| panic!("{e}: {} {}", said(output), complained(output)));
    report["diagnoses"].as_array().unwrap().clone()
}

fn not_fine(output: &Output) -> Vec<Value> {
    report(output).into_iter().filter(|d| d["verdict"] != "ok").collect()
}

#[track_caller]
fn find(output: &Output, check: &str, verdict: &str) -> String {
    let all = report(output);
    let found = all.iter().find(|d| d["check"] == check && d["verdict"] == verdict);
    found.unwrap_or_else(|| panic!("{check} is {verdict} in {all:#?}")).to_string()
}

/// Waits until everything is fine: a bell connects, a first pulse is left.
fn until_well(dir: &Path, store: &str, more: &[&str]) -> Output {
    let args: Vec<&str> = ["--json", "--strict"].iter().chain(more).copied().collect();
    let mut last = doctor(dir, store, &args);
    wait_until("all to be well", PATIENCE, || {
        if !is_well(&last) {
            last = doctor(dir, store, &args);
        }
        is_well(&last) || panic_if_wrong(&last)
    });
    last
}

/// That the project was checked out into a temporary directory, on a machine of several people, is nothing to wait for.
fn is_well(output: &Output) -> bool {
    let says = |d: &Value, words| d["says"].as_str().is_some_and(|s| s.contains(words));
    let of_this_place = |d: &Value| {
        (d["check"] == "disk" && says(d, "temporary directory"))
            || (d["check"] == "security" && says(d, "accounts that people sign in to"))
    };
    let left = not_fine(output);
    output.status.success() || !left.is_empty() && left.iter().all(of_this_place)
}

/// Never true: what is wrong on a healthy deployment is not waited for.
fn panic_if_wrong(output: &Output) -> bool {
    let wrong: Vec<_> = not_fine(output).into_iter().filter(|d| d["verdict"] == "wrong").collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    false
}

fn submit(dir: &Path, url: &str, input: &str) {
    let mut command = tenure();
    command.args(["job", "submit", "drill.noops", input, "--wait", "--server", url]);
    let output = command.current_dir(dir).output().unwrap();
    assert!(output.status.success(), "{}", complained(&output));
}

fn database(dir: &Path) -> rusqlite::Connection {
    rusqlite::Connection::open(dir.join("data/tenure.db")).unwrap()
}

fn bytes(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(dir.join("data")).unwrap().map(|f| f.unwrap().path());
    // The index of the log is memory that readers share; it is rebuilt by whoever comes first.
    let kept = files.filter(|p| !p.to_string_lossy().ends_with("-shm"));
    kept.map(|p| (p.display().to_string(), fs::read(&p).unwrap())).collect()
}

#[test]
fn a_healthy_deployment_on_sqlite_is_fine_while_it_runs() {
    let dir = scratch();
    let (server, url) = up(dir.path(), "sqlite:data");
    submit(dir.path(), &url, r#"{"steps": 3}"#);
    let well = until_well(dir.path(), "sqlite:data", &["--server", &url]);
    let checks: BTreeSet<String> =
        report(&well).iter().map(|d| d["check"].as_str().unwrap().to_owned()).collect();
    for check in [
        "servers", "bounds", "due", "chains", "outbox", "feed", "clocks", "bells", "rules",
        "settings",
    ] {
        assert!(checks.contains(check), "{check} in {checks:?}");
    }
    let text = said(&doctor(dir.path(), "sqlite:data", &["--all"]));
    assert!(text.contains("ok       chains      all ") && text.contains("0 wrong, "), "{text}");
    let in_one_line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(in_one_line.contains("the rules of the ledger hold in 1 job"), "{text}");
    stop(server);
}

#[test]
fn looking_changes_not_a_byte() {
    let dir = scratch();
    let (server, url) = up(dir.path(), "sqlite:data");
    submit(dir.path(), &url, r#"{"steps": 1}"#);
    stop(server);
    let before = bytes(dir.path());
    let output = doctor(dir.path(), "sqlite:data", &["--all", "--json"]);
    assert!(!report(&output).is_empty());
    assert_eq!(before.keys().collect::<Vec<_>>(), bytes(dir.path()).keys().collect::<Vec<_>>());
    assert!(before == bytes(dir.path()), "the files are the same, byte by byte");
}

#[test]
fn a_tampered_history_is_found() {
    let dir = scratch();
    let (server, url) = up(dir.path(), "sqlite:data");
    submit(dir.path(), &url, r#"{"steps": 2}"#);
    stop(server);
    let changed = database(dir.path())
        .execute("UPDATE records SET at = at + 1 WHERE entity IN (SELECT id FROM heads WHERE kind = 'job')", [])
        .unwrap();
    assert!(changed > 0);
    let output = doctor(dir.path(), "sqlite:data", &["--json"]);
    assert!(!output.status.success());
    assert!(find(&output, "chains", "wrong").contains("do not write"));
    assert!(complained(&output).contains("wrong"), "{}", complained(&output));
}

#[test]
fn what_hangs_and_what_is_not_delivered_is_found() {
    let dir = scratch();
    let (server, url) = up(dir.path(), "sqlite:data");
    let mut command = tenure();
    let wait = r#"{"outside": "http://127.0.0.1:9", "lines": [{"signal": "never"}]}"#;
    command.args(["job", "submit", "drill.script", wait, "--json", "--server", &url]);
    let submitted = command.current_dir(dir.path()).output().unwrap();
    assert!(submitted.status.success(), "{}", complained(&submitted));
    let submitted: Value = serde_json::from_str(&said(&submitted)).unwrap();
    let id = submitted["id"].as_str().unwrap();
    stop(server);
    let store = database(dir.path());
    let past = "UPDATE heads SET due = 1, must_end_by = 1 WHERE kind = 'job'";
    assert_eq!(store.execute(past, []).unwrap(), 1);
    let stuck = "INSERT INTO outbox (lane, source, version, ordinal, tenant, target, entity, word, kind, body, at)
        SELECT lane, id, version, 0, tenant, 0, id, NULL, 'k', x'00', 1 FROM heads WHERE kind = 'job'";
    assert_eq!(store.execute(stuck, []).unwrap(), 1);
    drop(store);
    let output = doctor(dir.path(), "sqlite:data", &["--json"]);
    assert!(!output.status.success());
    assert!(find(&output, "bounds", "wrong").contains(id));
    assert!(find(&output, "due", "wrong").contains("overdue"));
    assert!(find(&output, "outbox", "wrong").contains("1 message waits"));
    let text = said(&doctor(dir.path(), "sqlite:data", &[]));
    let (wrong, ok) = (text.find("WRONG").unwrap(), text.find("ok  ").unwrap());
    assert!(wrong < ok, "the worst first: {text}");
}

#[test]
fn a_store_that_can_not_be_looked_at_is_one_clear_line() {
    let dir = scratch();
    let absent = doctor(dir.path(), "sqlite:data", &[]);
    assert_eq!(absent.status.code(), Some(1));
    assert!(complained(&absent).contains("there is no store in data"), "{}", complained(&absent));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing was created");
    let away = doctor(dir.path(), "postgres://nobody@127.0.0.1:1/nothing", &[]);
    let first = complained(&away).lines().next().unwrap().to_owned();
    assert!(first.contains("can not be reached") || first.contains("refused"), "{first}");
    assert_eq!((away.status.code(), said(&away).as_str()), (Some(1), ""));
    let bad = doctor(dir.path(), "mysql://x", &[]);
    assert!(complained(&bad).contains("postgres://USER@HOST/DATABASE"), "{}", complained(&bad));
    let bad = doctor(dir.path(), "sqlite:data", &["--server", "nonsense"]);
    assert!(complained(&bad).contains("write it as http://"), "{}", complained(&bad));
}

#[test]
fn a_server_that_does_not_answer_is_wrong_and_the_store_is_looked_at_all_the_same() {
    let dir = scratch();
    let (server, _) = up(dir.path(), "sqlite:data");
    let output = doctor(dir.path(), "sqlite:data", &["--json", "--server", "http://127.0.0.1:1"]);
    assert!(find(&output, "server", "wrong").contains("refused"));
    assert!(report(&output).iter().any(|d| d["check"] == "chains" && d["verdict"] == "ok"));
    stop(server);
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().unwrap()
}

/// A connection to the database, and what runs on it.
async fn client(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    #[expect(clippy::disallowed_methods, reason = "a test's own connection")]
    tokio::spawn(connection);
    client
}

/// Everything in the store's tables, table by table.
async fn rows(client: &tokio_postgres::Client) -> Vec<(String, String)> {
    let tables =
        "SELECT relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'tenure' AND c.relkind = 'r' ORDER BY 1";
    let mut all = Vec::new();
    for row in client.query(tables, &[]).await.unwrap() {
        let table: String = row.get(0);
        let digest = format!(
            "SELECT coalesce(md5(string_agg(t::text, '/' ORDER BY t::text)), '') FROM tenure.{table} t"
        );
        all.push((table, client.query_one(&digest, &[]).await.unwrap().get(0)));
    }
    all
}

#[test]
fn on_postgres_a_healthy_deployment_is_fine_and_nothing_is_written() {
    let dir = scratch();
    let database = own_database("doctor_well");
    let (server, url) = up(dir.path(), &database.url);
    submit(dir.path(), &url, r#"{"steps": 3}"#);
    let key = administrators_key_of(dir.path(), &database.url);
    let well = until_well(dir.path(), &database.url, &["--server", &url, "--api-key", &key]);
    assert!(find(&well, "bells", "ok").contains("1 of 1 server"));
    assert!(find(&well, "database", "ok").contains("Postgres"));
    stop(server);
    let runtime = runtime();
    let client = runtime.block_on(client(&database.url));
    let before = runtime.block_on(rows(&client));
    assert!(before.iter().any(|(table, digest)| table == "records" && !digest.is_empty()));
    let again = doctor(dir.path(), &database.url, &["--all", "--json"]);
    assert!(!report(&again).is_empty());
    assert_eq!(before, runtime.block_on(rows(&client)));
}

#[test]
fn a_foreign_transaction_that_holds_the_feed_back_is_named() {
    let dir = scratch();
    let database = own_database("doctor_feed");
    let (server, url) = up(dir.path(), &database.url);
    let runtime = runtime();
    let foreign = runtime.block_on(client(&database.url));
    let open = "SET application_name = 'somebody else'; BEGIN; SELECT pg_current_xact_id()";
    runtime.block_on(foreign.batch_execute(open)).unwrap();
    let pid = runtime.block_on(foreign.query_one("SELECT pg_backend_pid()", &[])).unwrap();
    let pid: i32 = pid.get(0);
    // Records that come after it are withheld.
    submit(dir.path(), &url, r#"{"steps": 1}"#);
    let strict = ["--json", "--stuck-after", "0.01"];
    let mut found = String::new();
    wait_until("the transaction to be old enough", PATIENCE, || {
        let output = doctor(dir.path(), &database.url, &strict);
        let about = |d: &Value| d["check"] == "feed" && d["numbers"]["pid"] == pid;
        found =
            not_fine(&output).into_iter().find(about).map(|d| d.to_string()).unwrap_or_default();
        !found.is_empty()
    });
    for words in [
        "\"wrong\"",
        "somebody else",
        "idle in transaction",
        &format!("SELECT pg_terminate_backend({pid});"),
    ] {
        assert!(found.contains(words), "{words} in {found}");
    }
    runtime.block_on(foreign.batch_execute("ROLLBACK")).unwrap();
    until_well(dir.path(), &database.url, &[]);
    stop(server);
}

/// One rule of the file.
struct Alert {
    name: String,
    expr: String,
    runbook: String,
}

fn alerts() -> Vec<Alert> {
    let text = fs::read_to_string(root().join("deploy/alerts.yaml")).unwrap();
    let file: serde_yaml_ng::Value = serde_yaml_ng::from_str(&text).unwrap();
    let text = |v: &serde_yaml_ng::Value| v.as_str().unwrap_or_else(|| panic!("{v:?}")).to_owned();
    let mut all = Vec::new();
    for group in file["groups"].as_sequence().unwrap() {
        assert!(!text(&group["name"]).is_empty());
        for rule in group["rules"].as_sequence().unwrap() {
            let notes = &rule["annotations"];
            assert!(!text(&notes["summary"]).is_empty() && !text(&notes["description"]).is_empty());
            assert!(["page", "ticket"].contains(&&*text(&rule["labels"]["severity"])));
            assert!(text(&rule["for"]).ends_with('m'));
            let (name, expr) = (text(&rule["alert"]), text(&rule["expr"]));
            all.push(Alert { name, expr, runbook: text(&notes["runbook_url"]) });
        }
    }
    all
}

fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

#[test]
fn every_alert_has_a_page_and_every_row_of_the_matrix_its_settings_there() {
    let page = fs::read_to_string(root().join("docs/operations.md")).unwrap();
    let anchors: Vec<String> = page
        .lines()
        .filter_map(|l| Some(l.strip_prefix("## ")?.to_lowercase().replace(' ', "-")))
        .collect();
    for alert in alerts() {
        let anchor = alert
            .runbook
            .strip_prefix("docs/operations.md#")
            .unwrap_or_else(|| panic!("{}", alert.name));
        assert!(anchors.iter().any(|a| a == anchor), "{}: {anchor}", alert.name);
        assert!(page.contains(&format!("`{}`", alert.name)), "{} is explained", alert.name);
    }
    let (_, table) = page.split_once("## Configuration and what it guarantees").unwrap();
    for row in BOARDS.iter().flat_map(|b| b.rows) {
        for setting in row.settings {
            assert!(table.contains(setting), "{setting} of {:?}", row.title);
        }
    }
}

/// One comparison of an expression: `max(metric{label="x"}) > 60`.
struct Comparison {
    metric: String,
    labels: String,
    /// It is about growth, not about a value.
    grows: bool,
    operator: String,
    bound: f64,
}

fn comparisons(expr: &str) -> Vec<Comparison> {
    let comparison = |part: &str| {
        let at = part.find("tenure_").unwrap_or_else(|| panic!("a metric of ours in {part}"));
        let metric: String =
            part[at..].chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
        let labels = part[at + metric.len()..].strip_prefix('{').and_then(|l| l.split('}').next());
        let mut end = part.rsplit(' ');
        let bound = end.next().unwrap().parse().unwrap_or_else(|_| panic!("a number ends {part}"));
        Comparison {
            labels: labels.unwrap_or("").to_owned(),
            grows: part.contains("increase("),
            operator: end.next().unwrap().to_owned(),
            bound,
            metric,
        }
    };
    expr.split(" and ").filter(|p| !p.starts_with("absent(")).map(comparison).collect()
}

impl Comparison {
    fn holds(&self, value: f64) -> bool {
        match self.operator.as_str() {
            ">" => value > self.bound,
            "==" => value == self.bound,
            other => panic!("an operator that this test does not know: {other}"),
        }
    }
}

/// An alert that names a metric which does not exist never fires, and nobody notices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alerts_name_metrics_that_exist_and_are_quiet_on_a_healthy_server() {
    let dir = scratch();
    let (server, url) = up(dir.path(), "sqlite:data");
    submit(dir.path(), &url, r#"{"steps": 1}"#);
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let key = administrators_key_of(dir.path(), "sqlite:data");
    let scraped = client.get(format!("{url}/metrics")).bearer_auth(&key).send().await.unwrap();
    let mut text = scraped.text().await.unwrap();
    let cluster = Cluster::start();
    let mut command = tenure();
    command
        .args([
            "collector",
            "--json",
            "--listen",
            "127.0.0.1:0",
            "--redis",
            "none",
            "--spool",
            "none",
        ])
        .args(["--server", &url, "--kubeconfig"])
        .arg(cluster.kubeconfig(dir.path()))
        .current_dir(dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let collector = tokio::task::block_in_place(|| Running::start(command));
    let told = Mutex::new(String::new());
    patience::until("a collector that is well", async || {
        let answer = client.get(format!("{}/metrics", collector.url)).send().await.unwrap();
        let text = answer.text().await.unwrap();
        let well = text.contains("tenure_collector_ready 1");
        *told.lock().unwrap() = text;
        well
    })
    .await;
    text.push_str(&told.into_inner().unwrap());
    let mut command = tenure();
    command
        .args(["executor", "--json", "--listen", "127.0.0.1:0", "--server", &url, "--kubeconfig"])
        .arg(cluster.kubeconfig(dir.path()))
        .current_dir(dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let executor = tokio::task::block_in_place(|| Running::start(command));
    let told = Mutex::new(String::new());
    patience::until("an executor that is well", async || {
        let answer = client.get(format!("{}/metrics", executor.url)).send().await.unwrap();
        let text = answer.text().await.unwrap();
        let well = text.contains("tenure_executor_ready 1");
        *told.lock().unwrap() = text;
        well
    })
    .await;
    text.push_str(&told.into_inner().unwrap());
    let there = |metric: &str| text.lines().any(|l| l.starts_with(&format!("# TYPE {metric} ")));
    let all = alerts();
    assert!(all.len() >= 12);
    for Alert { name, expr, .. } in &all {
        let part = |p: &str| Some(p.strip_prefix("absent(")?.strip_suffix(')')?.to_owned());
        let absent: Vec<String> = expr.split(" and ").filter_map(part).collect();
        for metric in &absent {
            assert!(there(metric), "{name}: {metric}");
        }
        let all = comparisons(expr);
        assert!(!all.is_empty() || !absent.is_empty(), "{name} compares something");
        // What must be absent is there: the rest may be as it likes.
        let mut fires = absent.is_empty();
        for c in &all {
            assert!(there(&c.metric), "{name}: {} is not a metric", c.metric);
            let samples: Vec<f64> = text
                .lines()
                .filter_map(|l| l.strip_prefix(&c.metric)?.rsplit_once(' '))
                .filter(|(labels, _)| labels.contains(&c.labels) && !labels.starts_with('_'))
                .map(|(_, value)| value.parse().unwrap())
                .collect();
            assert!(c.labels.is_empty() || !samples.is_empty(), "{name}: nothing has {}", c.labels);
            fires &= !c.grows && samples.iter().any(|v| c.holds(*v));
            // The other way round: the worst that the metric can say lets it fire.
            let worst = if c.operator == "==" { c.bound } else { f64::MAX };
            assert!(c.holds(worst), "{name}");
        }
        assert!(!fires, "{name} fires on a healthy server");
    }
    for wanted in [
        "TenureStoreDown",
        "TenureReclaimRate",
        "TenureUnknownEffects",
        "TenureCollectorBlind",
        "TenureExecutorNotReady",
    ] {
        assert!(all.iter().any(|a| a.name == wanted), "{wanted}");
    }
    stop(server);
}
