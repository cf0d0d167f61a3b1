//! The rooms of the crate against plain models, and the defects of earlier systems by name.

mod arbitration;
mod ask;
mod keep;
mod order;
mod simulated;
mod size;
mod support;
mod tree;
mod wire;

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
