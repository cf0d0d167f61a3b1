//! What a person types and reads.

use crate::support::{complained, run, said, tenure};

#[test]
fn config_says_every_value_and_who_set_it() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tenure.toml"), "[worker]\nlease_seconds = 30\n").unwrap();
    let output = run(&["config", "--set", "server.tick_seconds=2"], dir.path());
    let text = said(&output);
    let line = |key: &str| {
        text.lines().find(|l| l.starts_with(key)).unwrap_or_else(|| panic!("{key} in {text}"))
    };
    assert!(line("worker.lease_seconds = 30").contains("file tenure.toml"));
    assert!(line("server.tick_seconds = 2").contains("command line"));
    assert!(line("log.format = text").contains("default"));
    let json = run(&["config", "--json"], dir.path());
    let rows: serde_json::Value = serde_json::from_str(&said(&json)).unwrap();
    assert!(
        rows.as_array()
            .unwrap()
            .iter()
            .any(|r| r["key"] == "store.url" && r["variable"] == "TENURE_STORE_URL")
    );
}

#[test]
fn config_says_which_of_the_seeds_variables_set_a_value_and_what_is_wrong_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let with = |args: &[&str]| {
        let mut command = tenure();
        command.env("FLOWFORGE_REDIS_ADDRESSES", "redis://u:s3cret@10.0.0.1:6379");
        command.env("FLOWFORGE_KUBERNETES_IN_CLUSTER", "perhaps").env("NODE_NAME", "node-7");
        command.args(args).current_dir(dir.path()).output().unwrap()
    };
    let output = with(&["config"]);
    let text = said(&output);
    let line = |key: &str| {
        text.lines().find(|l| l.starts_with(key)).unwrap_or_else(|| panic!("{key} in {text}"))
    };
    assert!(output.status.success() && !text.contains("s3cret"), "{text}");
    assert!(
        line("redis.addresses = redis://u:***@10.0.0.1:6379").contains("FLOWFORGE_REDIS_ADDRESSES")
    );
    assert!(line("kubernetes.node_name = node-7").contains("environment NODE_NAME"));
    assert!(line("problem: ").contains("FLOWFORGE_KUBERNETES_IN_CLUSTER"));
    let rows: serde_json::Value =
        serde_json::from_str(&said(&with(&["config", "--json"]))).unwrap();
    let rows = rows.as_array().unwrap();
    let row = |key: &str| rows.iter().find(|r| r["key"] == key).unwrap().clone();
    assert_eq!(row("kubernetes.namespace")["other_variable"], "FLOWFORGE_KUBERNETES_NAMESPACE");
    assert!(row("kubernetes.in_cluster")["problem"].as_str().unwrap().contains("neither true nor"));
    assert!(row("redis.addresses")["problem"].is_null());
    // Others do not mind.
    assert!(with(&["sim", "--seed", "1"]).status.success());
}

#[test]
fn a_bad_setting_stops_the_start_with_key_value_fix_and_page() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(&["rules", "--set", "worker.lease_seconds=-1"], dir.path());
    assert!(!output.status.success());
    let said = complained(&output);
    for words in
        ["worker.lease_seconds", "\"-1\"", "0.1 to 3600 seconds", "tenure explain bad_config"]
    {
        assert!(said.contains(words), "{words:?} in {said}");
    }
    std::fs::write(dir.path().join("tenure.toml"), "[worker\n").unwrap();
    let output = run(&["config"], dir.path());
    assert!(complained(&output).contains("tenure.toml"), "{}", complained(&output));
}

#[test]
fn looking_at_a_store_that_is_not_there_creates_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for command in ["rules", "verify"] {
        let output = run(&[command], dir.path());
        assert!(!output.status.success());
        assert!(
            complained(&output).contains("there is no store in .tenure"),
            "{}",
            complained(&output)
        );
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn help_names_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let help = said(&run(&["--help"], dir.path()));
    for command in ["demo", "rules", "config", "verify", "drill", "soak", "sim", "bench"] {
        assert!(help.contains(command), "{help}");
    }
    assert!(!help.contains("torture") && !help.contains("demo-worker"), "{help}");
}

/// A copy of the binary in a directory of its own, where no `tenure-lab` is installed beside it.
#[test]
fn commands_of_the_laboratory_say_how_to_get_it_where_it_is_not_installed() {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("tenure");
    std::fs::copy(crate::BINARY, &copy).unwrap();
    for command in ["drill", "soak", "sim", "bench"] {
        let output = std::process::Command::new(&copy).args([command, "--help"]).output().unwrap();
        let words = complained(&output);
        assert!(!output.status.success(), "{command}");
        for part in ["tenure-lab", "not installed", "cargo build --release -p tenure-lab"] {
            assert!(words.contains(part), "{command}: {words}");
        }
    }
}

/// With a `tenure-lab` beside it, the arguments are passed on as they were typed.
#[test]
fn commands_of_the_laboratory_pass_their_arguments_on() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("tenure");
    std::fs::copy(crate::BINARY, &copy).unwrap();
    let lab = dir.path().join("tenure-lab");
    std::fs::write(&lab, "#!/bin/sh\nprintf '%s|' \"$@\"\nexit 7\n").unwrap();
    std::fs::set_permissions(&lab, std::fs::Permissions::from_mode(0o755)).unwrap();
    let typed = ["--json", "drill", "--store", "postgres", "--kind", "jobs", "--help"];
    let output = std::process::Command::new(&copy).args(typed).output().unwrap();
    assert_eq!(said(&output), "--json|drill|--store|postgres|--kind|jobs|--help|");
    assert_eq!(output.status.code(), Some(7));
}

/// Names that only the laboratory has: flows, tools, switches, kill points, and its crates.
const OF_THE_LABORATORY: [&str; 14] = [
    "TENURE_DRILL",
    "drill.noops",
    "drill.script",
    "drill.either",
    "drill.ground",
    "outside.idempotent",
    "outside.irreversible",
    "tenure_bench",
    "tenure_kubedouble",
    "tenure_lab",
    "tenure_proving",
    "tenure_sim",
    "crates/lab/",
    "crates/sim/",
];

#[test]
fn the_product_contains_nothing_of_the_laboratory() {
    let program = std::fs::read(crate::BINARY).unwrap();
    let has = |name: &str| memchr::memmem::find(&program, name.as_bytes()).is_some();
    assert!(has("demo.order") && has("tenure_jobs"), "the search finds what is there");
    let found: Vec<&str> = OF_THE_LABORATORY.into_iter().filter(|name| has(name)).collect();
    assert_eq!(found, Vec::<&str>::new());
}
