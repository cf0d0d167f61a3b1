//! The simulation's tests: one binary, named after rules.

mod agents;
mod determinism;
mod executor;
mod gates;
mod jobs;
mod limits;
mod protections;
mod regressions;
mod seeds;
mod tasks;
mod together;

#[test]
fn every_file_here_is_a_module() {
    let here = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it");
    let main = std::fs::read_to_string(format!("{here}/main.rs")).unwrap();
    for entry in std::fs::read_dir(here).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let module = name.trim_end_matches(".rs");
        assert!(module == "main" || main.contains(&format!("mod {module};")), "{name}");
    }
}
