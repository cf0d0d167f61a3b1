//! The dependencies are what `deny.toml` allows: their licences, and where they come from.

use serde_json::Value;
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Command,
};
use toml::Table;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn table(file: &str) -> Table {
    std::fs::read_to_string(root().join(file)).unwrap().parse().unwrap()
}

fn allowed_licences() -> BTreeSet<String> {
    let allowed = table("deny.toml")["licenses"]["allow"].as_array().unwrap().clone();
    allowed.iter().map(|licence| licence.as_str().unwrap().to_owned()).collect()
}

/// What `cargo metadata` says about the packages that this platform needs: those are at hand without a network.
fn packages() -> Vec<Value> {
    let version = Command::new("rustc").arg("-vV").output().unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap().to_owned();
    let arguments =
        ["metadata", "--offline", "--locked", "--format-version=1", "--filter-platform", &host];
    let said = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(arguments)
        .current_dir(root())
        .output()
        .unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let said: Value = serde_json::from_slice(&said.stdout).unwrap();
    said["packages"].as_array().unwrap().clone()
}

/// Whether a licence expression can be kept with these licences alone. `/` is how packages used to write `OR`.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    let answer = either(&mut words, allowed);
    answer && words.next().is_none()
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn either(words: &mut Words<'_>, allowed: &BTreeSet<String>) -> bool {
    let mut answer = both(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        answer |= both(words, allowed);
    }
    answer
}

fn both(words: &mut Words<'_>, allowed: &BTreeSet<String>) -> bool {
    let mut answer = one(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        answer &= one(words, allowed);
    }
    answer
}

fn one(words: &mut Words<'_>, allowed: &BTreeSet<String>) -> bool {
    let Some(word) = words.next() else { return false };
    if word == "(" {
        let answer = either(words, allowed);
        return words.next() == Some(")") && answer;
    }
    match words.next_if_eq(&"WITH").and_then(|_| words.next()) {
        Some(exception) => allowed.contains(&format!("{word} WITH {exception}")),
        None => allowed.contains(word),
    }
}

#[test]
fn licence_expressions_are_read() {
    let allowed: BTreeSet<String> = ["MIT", "ISC", "A WITH b"].map(str::to_owned).into();
    for (expression, expected) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("GPL-3.0 OR MIT", true),
        ("GPL-3.0/MIT", true),
        ("GPL-3.0 AND MIT", false),
        ("MIT AND ISC", true),
        ("(GPL-3.0 OR MIT) AND ISC", true),
        ("(GPL-3.0 OR MIT) AND BSD", false),
        ("A WITH b", true),
        ("A", false),
        ("MIT WITH b", false),
        ("(MIT", false),
        ("MIT ISC", false),
        ("", false),
    ] {
        assert_eq!(is_allowed(expression, &allowed), expected, "{expression:?}");
    }
}

#[test]
fn every_dependency_has_a_licence_that_is_allowed() {
    let allowed = allowed_licences();
    let packages = packages();
    let wrong: Vec<String> = packages
        .iter()
        .filter(|p| !p["source"].is_null())
        .filter(|p| !is_allowed(p["license"].as_str().unwrap_or_default(), &allowed))
        .map(|p| format!("{} {}: {}", p["name"], p["version"], p["license"]))
        .collect();
    assert!(wrong.is_empty(), "not in deny.toml: {wrong:#?}");
    assert!(packages.len() > 100, "only {} packages", packages.len());
    // What is allowed and not needed by anybody would let the next one in unseen.
    let used: String =
        packages.iter().filter_map(|p| p["license"].as_str()).collect::<Vec<_>>().join(" ");
    let unused: Vec<_> =
        allowed.iter().filter(|licence| !used.contains(licence.as_str())).collect();
    assert!(unused.is_empty(), "nobody needs {unused:?}");
}

#[test]
fn every_dependency_comes_from_the_one_registry_with_a_checksum() {
    let lock = table("Cargo.lock");
    let mut sources = BTreeSet::new();
    for package in lock["package"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        match package.get("source").map(|source| source.as_str().unwrap()) {
            Some(source) => {
                assert!(source.starts_with("registry+"), "{name} comes from {source}");
                assert!(package.get("checksum").is_some(), "{name} has no checksum");
                sources.insert(source);
            }
            None => assert!(name.starts_with("tenure"), "{name} is of no registry and not ours"),
        }
    }
    assert_eq!(sources.len(), 1, "{sources:?}");
    let deny = &table("deny.toml")["sources"];
    assert_eq!(deny["unknown-registry"].as_str(), Some("deny"));
    assert_eq!(deny["unknown-git"].as_str(), Some("deny"));
}
