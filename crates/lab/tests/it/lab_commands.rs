//! The commands of the laboratory, as they are typed.

use crate::support::{complained, run, said};

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
