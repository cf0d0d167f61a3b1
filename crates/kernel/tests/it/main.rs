//! The seven laws as property tests of the pure core, over the smallest store there is.

mod batches;
mod chain;
mod laws;
mod limits;
mod model;
mod planner;
mod subject;
mod tables;
mod tenure;

/// A test file that nobody lists is a test that never runs.
#[test]
fn every_file_here_is_listed() {
    let listed = include_str!("main.rs");
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let module = name.strip_suffix(".rs").unwrap();
        assert!(module == "main" || listed.contains(&format!("mod {module};")), "{name}");
    }
}
