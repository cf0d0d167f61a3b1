//! `tenure drill` and `tenure soak` as somebody would type them; and that a drill notices when a protection is off.

use crate::{
    lab::Lab,
    support::{complained, fast, said, tenure},
};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    path::Path,
    process::{Command, Output, Stdio},
};
use tenure_server::keys::{NewKey, Scope, create};

/// The binary, with a place of its own for scratch files.
fn in_dir(dir: &Path) -> Command {
    let mut command = tenure();
    command.current_dir(dir).env("TMPDIR", dir);
    if let Ok(bin) = std::env::var("TENURE_TEST_PG_BIN") {
        command.env("TENURE_TEST_PG_BIN", bin);
    }
    command
}

/// A directory that a PostgreSQL of another user can get through.
fn scratch() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let open = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o711);
    std::fs::set_permissions(dir.path(), open).unwrap();
    dir
}

fn drill(args: &[&str]) -> (Output, Value) {
    let dir = scratch();
    let output = in_dir(dir.path()).args(["drill", "--json", "--seed", "7"]).args(args).output();
    let output = output.expect("the binary starts");
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert!(left.is_empty(), "it cleans up: {left:?}");
    let told = serde_json::from_str(&said(&output)).unwrap_or(Value::Null);
    (output, told)
}

/// Fault, guarantee and verdict of every cell.
fn cells(told: &Value) -> impl Iterator<Item = (&str, &str, &str)> {
    fn text<'a>(of: &'a Value, name: &str) -> &'a str {
        of[name].as_str().unwrap_or("")
    }
    let rows = told["rows"].as_array().into_iter().flatten();
    rows.flat_map(|row| {
        let cells = row["cells"].as_array().into_iter().flatten();
        cells.map(move |c| (text(row, "fault"), text(c, "column"), text(c, "verdict")))
    })
}

fn broken(told: &Value) -> BTreeSet<(&str, &str)> {
    cells(told).filter(|c| c.2 == "broken").map(|c| (c.0, c.1)).collect()
}

/// What is broken comes first: whoever reads only the top of a long failure has seen it.
fn is_green(output: &Output, told: &Value) {
    let rows = told["rows"].as_array().into_iter().flatten();
    let failed: Vec<_> = rows.filter_map(|r| r["failed"].as_array()).flatten().collect();
    let (broken, seen) = (broken(told), complained(output));
    assert!(output.status.success(), "broken: {broken:?}\nfailed: {failed:?}\n{seen}\n{told}");
    assert_eq!(told["clean"], true);
}

#[test]
fn the_whole_matrix_holds_on_sqlite() {
    let (output, told) = drill(&[]);
    is_green(&output, &told);
    assert_eq!(told["rows"].as_array().unwrap().len(), 11);
    assert_eq!(cells(&told).count(), 77);
    for (fault, column, verdict) in cells(&told) {
        let wanted: &[&str] = match (fault, column) {
            ("signal-lost", "signal_kept") => &["held_after_retry"],
            (
                "signal-lost" | "blocked",
                "step_runs" | "effect_once" | "not_replayed" | "tool_once",
            ) => &["not_applicable"],
            ("store-down", _) => &["not_promised"],
            // An irreversible tool in the middle of a call: a person says what is true.
            (_, "step_runs") => &["held", "held_after_retry"],
            _ => &["held"],
        };
        assert!(wanted.contains(&verdict), "{fault} {column}: {verdict}");
    }
    let crash = &told["rows"][0];
    assert!(crash["recovery"]["median_ms"].as_u64().unwrap() < 20_000, "{crash}");
    assert_eq!(crash["settings"]["worker.lease_seconds"], "1.5");
}

#[test]
fn the_whole_matrix_of_agents_holds_on_sqlite() {
    let (output, told) = drill(&["--kind", "agents"]);
    is_green(&output, &told);
    assert_eq!(told["kind"], "agents");
    assert_eq!(cells(&told).count(), 12 * 8);
    for (fault, column, verdict) in cells(&told) {
        let wanted = match (fault, column) {
            ("server-down", _) => "not_promised",
            ("clocks" | "stopped" | "silence", "rules") => "held",
            (_, "rules") => "not_applicable",
            _ => "held",
        };
        assert_eq!(verdict, wanted, "{fault} {column}");
    }
}

#[test]
fn agents_hold_on_postgres() {
    let mut args = vec!["--store", "postgres", "--fault", "killed-tool-out", "--fault", "bus-down"];
    if !fast() {
        args.extend(["--fault", "rivals", "--fault", "clocks", "--fault", "server-down"]);
        args.extend(["--fault", "silence", "--fault", "stopped", "--fault", "killed-resuming"]);
    }
    let (output, told) = drill(&args);
    is_green(&output, &told);
}

#[test]
fn the_whole_matrix_of_pods_holds_on_sqlite() {
    let (output, told) = drill(&["--kind", "pods"]);
    is_green(&output, &told);
    assert_eq!(told["kind"], "pods");
    assert_eq!(cells(&told).count(), 15 * 9);
    for (fault, column, verdict) in cells(&told) {
        let wanted = match (fault, column) {
            ("api-down" | "tenure-down", _) => "not_promised",
            ("collector-down" | "redis-down", "channel") => "not_promised",
            ("executor-killed-stopping" | "throttled", "cancel") => "held",
            (_, "cancel") => "not_applicable",
            _ => "held",
        };
        assert_eq!(verdict, wanted, "{fault} {column}");
    }
    println!("{} s", told["seconds"]);
}

#[test]
fn pods_hold_on_postgres() {
    let mut args = vec!["--kind", "pods", "--store", "postgres"];
    if fast() {
        args.extend(["--fault", "tenure-down", "--fault", "executor-killed-making"]);
        args.extend(["--fault", "stale-reports"]);
    }
    let (output, told) = drill(&args);
    is_green(&output, &told);
    let server = told["rows"].as_array().unwrap().iter().find(|r| r["fault"] == "tenure-down");
    assert_eq!(server.unwrap()["cases"], 5, "the server, three times; PostgreSQL; the line to it");
    println!("{} s", told["seconds"]);
}

/// What the machine does not have is said, in every row that misses it.
#[test]
fn without_a_redis_the_channel_of_pods_is_left_out() {
    if Path::new("/usr/sbin/redis-server").exists() {
        println!("skipped: here it is found whatever PATH says");
        return;
    }
    let dir = scratch();
    let mut command = in_dir(dir.path());
    command.args(["drill", "--json", "--fault", "redis-down", "--fault", "stale-reports"]);
    let output = command.env("PATH", "/nowhere").output().unwrap();
    let told: Value = serde_json::from_str(&said(&output)).unwrap_or_default();
    is_green(&output, &told);
    for row in told["rows"].as_array().unwrap() {
        let says = row["left_out"][0]["says"].as_str().unwrap();
        assert!(says.contains("there is no redis-server"), "{row:#}");
    }
    let channel: Vec<_> = cells(&told).filter(|c| c.1 == "channel").map(|c| (c.0, c.2)).collect();
    assert_eq!(channel, [("redis-down", "not_run"), ("stale-reports", "not_run")]);
    let ends: Vec<_> = cells(&told).filter(|c| c.1 == "ends").map(|c| c.2).collect();
    assert_eq!(ends, ["not_run", "held"]);
}

#[test]
fn without_marks_what_a_collector_saw_is_lost() {
    let may = ["verdict", "history", "in_time"];
    is_missed("marks", "collector-killed", "both were told", &["ends", "channel"], &may);
}

#[test]
fn without_adoption_a_task_has_two_pods() {
    let may = ["ends", "one_end", "verdict", "history", "channel", "nothing_left", "in_time"];
    is_missed("adoption", "executor-killed-making", "before it is recorded", &["one_pod"], &may);
}

#[test]
fn without_attempts_the_end_of_an_old_pod_counts_for_the_new_one() {
    let may = ["ends", "one_end", "one_pod", "history", "channel", "nothing_left", "in_time"];
    is_missed("attempts", "stale-reports", "earlier attempt", &["verdict"], &may);
}

#[test]
fn without_the_barrier_the_tool_of_a_turn_runs_twice() {
    is_missed("barrier", "killed-tool-out", "its job works", &["effect_once"], &[]);
}

#[test]
fn without_mail_an_answered_result_is_lost() {
    let may = ["one_end", "delivered", "not_asked_again", "rules", "line_moves"];
    is_missed("mail", "server-down", "after it took a result", &["result_once"], &may);
}

#[test]
fn without_the_outbox_the_job_of_a_tool_is_lost() {
    let may = ["one_end", "delivered", "result_once", "not_asked_again", "rules", "line_moves"];
    is_missed("outbox", "server-down", "a job on its way", &[], &may);
}

#[test]
fn faults_of_stores_and_lines_hold_on_postgres() {
    let mut args = vec!["--store", "postgres", "--fault", "store-down"];
    if !fast() {
        args.extend([
            "--fault",
            "partition",
            "--fault",
            "crash-after-tool",
            "--fault",
            "two-workers",
        ]);
    }
    let (output, told) = drill(&args);
    is_green(&output, &told);
    let store = told["rows"].as_array().unwrap().iter().find(|r| r["fault"] == "store-down");
    assert_eq!(store.unwrap()["cases"], 4, "server, message, PostgreSQL, line");
}

/// Without the protection exactly these cells may turn red, and the first of them must.
fn is_missed(name: &str, fault: &str, only: &str, must: &[&str], may: &[&str]) {
    let (output, told) = drill(&["--break", name, "--fault", fault, "--only", only]);
    assert!(!output.status.success(), "{name} is not missed: {told:#}");
    assert_eq!(told["broken"], name);
    let red: BTreeSet<&str> = broken(&told).into_iter().map(|(_, column)| column).collect();
    for column in must {
        assert!(red.contains(column), "{name}: {column} is not red, but {red:?}");
    }
    let known: BTreeSet<&str> = must.iter().chain(may).copied().collect();
    assert!(red.is_subset(&known), "{name}: {red:?}");
}

#[test]
fn without_fencing_a_late_commit_pollutes_the_stream() {
    let only = "delayed past the lease, verifiable";
    is_missed("fencing", "partition", only, &["stream_clean", "tool_once"], &["not_replayed"]);
}

#[test]
fn without_fencing_a_worker_that_has_lost_a_turn_delivers_for_it() {
    is_missed("fencing", "rivals", "its end is delayed", &["delivered"], &["one_end"]);
}

#[test]
fn without_the_barrier_a_tool_runs_twice() {
    let only = "after the tool, irreversible";
    is_missed(
        "barrier",
        "crash-after-tool",
        only,
        &["effect_once", "tool_once"],
        &["stream_clean"],
    );
}

#[test]
fn without_the_ledger_what_is_recorded_is_called_again() {
    let must = ["effect_once", "not_replayed", "tool_once"];
    is_missed("ledger", "crash-after-commit", "irreversible", &must, &["stream_clean"]);
}

#[test]
fn without_the_effects_a_recorded_result_is_not_caught_up_in_the_separate_layout_only() {
    is_missed("effects", "crash-after-tool", "after the effect", &["not_replayed"], &["step_runs"]);
    let args = ["--break", "effects", "--fault", "crash-after-commit"];
    let (output, told) = drill(&args);
    is_green(&output, &told);
}

#[test]
fn without_blocked_a_job_that_waits_is_claimed() {
    is_missed("blocked", "blocked", "left alone", &["job_kept"], &["stream_clean", "signal_kept"]);
}

#[test]
fn without_mail_an_answered_signal_is_lost() {
    let may = ["job_kept", "step_runs"];
    is_missed("mail", "signal-lost", "killed after it kept", &["signal_kept"], &may);
}

#[test]
fn without_the_outbox_a_child_is_lost() {
    let may = ["not_replayed"];
    is_missed("outbox", "store-down", "message on its way", &["step_runs", "job_kept"], &may);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_deployment_can_be_drilled_in_a_scratch_tenant() {
    let lab = Lab::open(None, &[]).await;
    let (url, pipeline) = (lab.service.url(), &lab.service.node.pipeline);
    let make = async |tenant: Option<&str>| {
        let key = NewKey {
            name: "drill".into(),
            tenant: tenant.map(str::to_owned),
            scopes: vec![Scope::Read, Scope::Write, Scope::Worker],
        };
        create(pipeline, key).await.unwrap().secret
    };
    let (unbound, bound) = (make(None).await, make(Some("drill-scratch")).await);
    let told = tokio::task::spawn_blocking(move || {
        let dir = scratch();
        let args = ["drill", "--against", &url, "--api-key", &unbound];
        let refused = in_dir(dir.path()).args(args).output().unwrap();
        assert!(!refused.status.success());
        assert!(complained(&refused).contains("scratch tenant"), "{}", complained(&refused));
        let (output, told) = drill(&[
            "--against",
            &url,
            "--api-key",
            &bound,
            "--fault",
            "crash-after-tool",
            "--fault",
            "signal-lost",
            "--fault",
            "store-down",
        ]);
        is_green(&output, &told);
        told
    });
    let told = told.await.unwrap();
    let rows = told["rows"].as_array().unwrap();
    let store = rows.iter().find(|r| r["fault"] == "store-down").unwrap();
    assert!(store["left_out"][0]["says"].as_str().unwrap().contains("not the drill's to kill"));
    let jobs = lab.store.heads(
        tenure::kernel::store::HeadFilter { kind: Some("job".into()), ..Default::default() },
        1_000,
    );
    let jobs = jobs.await.unwrap();
    assert!(jobs.len() > 10);
    for job in jobs {
        assert_eq!(job.tenant, "drill-scratch");
        assert_eq!(job.class(), tenure::kernel::table::Class::Final, "nothing is left open");
    }
    lab.close().await;
}

#[test]
fn what_can_not_be_is_refused_in_words() {
    let dir = scratch();
    let refused = |args: &[&str], words: &str| {
        let output = in_dir(dir.path()).args(args).output().unwrap();
        assert!(!output.status.success());
        assert!(complained(&output).contains(words), "{}", complained(&output));
    };
    refused(&["drill", "--fault", "earthquake"], "there are: crash-before-tool");
    refused(&["drill", "--fault", "blocked", "--fault", "clocks"], "is a fault of agents");
    refused(&["drill", "--kind", "fish"], "there are: jobs, agents");
    refused(&["drill", "--store", "mysql://x"], "use sqlite:DIRECTORY or postgres://");
    refused(
        &["drill", "--against", "http://127.0.0.1:1", "--break", "fencing"],
        "never used on a deployment",
    );
    refused(&["drill", "--against", "http://127.0.0.1:1"], "there is no server at");
    refused(&["drill", "--kind", "pods", "--against", "http://127.0.0.1:1"], "leave out --against");
    refused(&["soak", "--minutes=-1"], "is not a time");
}

#[test]
fn a_server_with_a_protection_off_refuses_a_store_that_is_no_drills() {
    let dir = scratch();
    let mut command = in_dir(dir.path());
    command.args(["server", "--store", "sqlite:data"]).env("TENURE_DRILL_BREAK", "fencing");
    let output = command.output().unwrap();
    assert!(!output.status.success());
    assert!(complained(&output).contains("no process of a drill"), "{}", complained(&output));
    command.env("TENURE_DRILL_CHILD", "1").env("TENURE_DRILL_FLOW", "x@1");
    let output = command.output().unwrap();
    assert!(!output.status.success());
    assert!(complained(&output).contains("no scratch store"), "{}", complained(&output));
    assert!(!dir.path().join("data").exists(), "and touches nothing");
    let mut worker = in_dir(dir.path());
    worker.args(["worker", "--server", "http://127.0.0.1:1"]).env("TENURE_DRILL_BREAK", "ledger");
    let output = worker.output().unwrap();
    assert!(complained(&output).contains("no process of a drill"), "{}", complained(&output));
}

#[test]
fn an_interrupted_drill_leaves_nothing() {
    let dir = scratch();
    let mut command = in_dir(dir.path());
    command.args(["drill", "--fault", "reclaim", "--json"]).stdout(Stdio::null());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let workers = || {
        let name = |e: std::fs::DirEntry| e.file_name().into_string().unwrap_or_default();
        let scratch = std::fs::read_dir(dir.path()).unwrap().flatten().map(name);
        scratch.filter(|n| n.starts_with("tenure-drill-")).count()
    };
    crate::support::wait_until("its scratch files", std::time::Duration::from_secs(20), || {
        workers() >= 2
    });
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let status = child.wait().unwrap();
    assert!(!status.success());
    assert_eq!(workers(), 0, "nothing is left");
}

#[test]
fn a_short_soak_comes_out_even() {
    let dir = scratch();
    let mut command = in_dir(dir.path());
    command.args(["soak", "--minutes", "0.15", "--kill-every", "1.5", "--seed", "3", "--json"]);
    let output = command.output().unwrap();
    let told: Value = serde_json::from_str(&said(&output)).unwrap_or_default();
    assert!(output.status.success(), "{}\n{told:#}", complained(&output));
    assert!(told["submitted"].as_u64().unwrap() > 20, "{told:#}");
    assert_eq!(told["submitted"], told["ended"]);
    let sum =
        told["effects_committed"].as_u64().unwrap() + told["effects_unknown"].as_u64().unwrap();
    assert_eq!(told["effects_outside"].as_u64().unwrap(), sum);
}
