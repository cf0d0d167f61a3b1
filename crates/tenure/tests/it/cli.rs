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
        ["worker.lease_seconds", "\"-1\"", "0.1 to 3600 seconds", "docs/errors/bad_config.md"]
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
fn a_seed_replays_exactly() {
    let dir = tempfile::tempdir().unwrap();
    let once = run(&["sim", "--seed", "7", "--json"], dir.path());
    let again = run(&["sim", "--seed", "7", "--json"], dir.path());
    assert!(once.status.success(), "{}", complained(&once));
    assert!(!said(&once).is_empty());
    assert_eq!(said(&once), said(&again));
    let unknown = run(&["sim", "--seed", "7", "--scenario", "nonsense"], dir.path());
    assert!(complained(&unknown).contains("there are: "), "{}", complained(&unknown));
}

#[test]
fn a_benchmark_prints_one_line_of_json_per_figure() {
    let dir = tempfile::tempdir().unwrap();
    let args =
        ["bench", "commit", "--store", "sqlite", "--json", "--callers", "2", "--seconds", "0.2"];
    let output = run(&args, dir.path());
    assert!(output.status.success(), "{}", complained(&output));
    let figures: Vec<serde_json::Value> =
        said(&output).lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let ratio = figures.iter().find(|f| f["metric"] == "ratio_to_raw").unwrap();
    assert_eq!((&ratio["suite"], &ratio["case"]), (&"commit".into(), &"callers=2".into()));
    assert!(ratio["value"].as_f64().unwrap() > 0.0);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the scratch file is gone");
}

#[test]
fn help_names_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let help = said(&run(&["--help"], dir.path()));
    for command in ["demo", "rules", "config", "verify", "sim", "bench"] {
        assert!(help.contains(command), "{help}");
    }
    assert!(!help.contains("torture"));
}
