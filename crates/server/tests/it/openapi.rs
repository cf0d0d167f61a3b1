//! What holds for the whole OpenAPI document, whatever it describes.

use super::jobs_support::start;
use serde_json::Value;
use std::{collections::BTreeMap, fs, path::Path};

async fn document() -> Value {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path()).await;
    let document = server.get("/v1/openapi.json").await.body;
    server.stop().await;
    document
}

fn sources(dir: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => sources(&path, found),
            false => found.push(fs::read_to_string(&path).unwrap()),
        }
    }
}

/// The name under which a type stands in the document: `as = …` of its attributes, or its own.
fn name_of(attributes_and_type: &str) -> String {
    let word = |text: &str| {
        text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>()
    };
    let lines = attributes_and_type.lines().map(str::trim);
    for line in lines.filter(|l| !l.starts_with("//")) {
        if let Some((_, name)) = line.split_once("schema(as = ") {
            return word(name);
        }
        let declared = line.split_once("struct ").or_else(|| line.split_once("enum "));
        if let Some((_, name)) = declared.filter(|_| !line.starts_with('#')) {
            return word(name);
        }
    }
    panic!("no type behind this derive: {attributes_and_type:.80}");
}

/// Two types of one name become one schema, and the one that was merged last describes both: nothing in the document
/// shows it. So the names are counted where they are given.
#[tokio::test]
async fn no_two_types_share_a_name_in_the_document() {
    let mut texts = Vec::new();
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The worker protocol brings its own types.
    for dir in ["src", "../remote/src"] {
        sources(&here.join(dir), &mut texts);
    }
    let mut given: BTreeMap<String, u32> = BTreeMap::new();
    for text in &texts {
        for behind in text.split("#[derive(").skip(1) {
            let derived = behind.split(")]").next().unwrap_or_default();
            if derived.split(',').any(|d| d.trim() == "ToSchema") {
                *given.entry(name_of(behind)).or_default() += 1;
            }
        }
    }
    let twice: Vec<_> = given.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "several types have these names: {twice:?}");
    let document = document().await;
    for name in document["components"]["schemas"].as_object().unwrap().keys() {
        assert!(given.contains_key(name), "where does {name} come from? it was not counted");
    }
}
