//! The project's own promises about itself.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};
use tenure::kernel::{error::Code, machine::Machines};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn files(dir: &Path, ending: &str, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            files(&path, ending, out);
        } else if name.ends_with(ending) {
            out.push(path);
        }
    }
}

fn all(ending: &str) -> Vec<PathBuf> {
    let mut out = Vec::new();
    files(&root(), ending, &mut out);
    out
}

#[test]
fn every_error_code_has_a_page_and_every_page_a_code() {
    let pages: BTreeSet<String> = fs::read_dir(root().join("docs/errors"))
        .unwrap()
        .map(|e| e.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    let codes: BTreeSet<String> = Code::ALL.iter().map(|c| c.to_string()).collect();
    assert_eq!(pages, codes);
    for code in Code::ALL {
        let page = fs::read_to_string(root().join(format!("docs/errors/{code}.md"))).unwrap();
        assert!(page.contains("**What happened.**") && page.contains("**What to do.**"), "{code}");
    }
}

/// `TENURE_BLESS=1` writes the page instead of comparing it.
#[test]
fn the_pages_of_the_machines_are_what_their_tables_say() {
    let mut page = "# Machines\n\nGenerated from the transition tables; `TENURE_BLESS=1 cargo test -p tenure tidy` writes it.\n".to_owned();
    let product = tenure_pods::machines(Machines::kernel())
        .with::<tenure::jobs::Job>()
        .with::<tenure::jobs::call::Call>()
        .with::<tenure::jobs::gate::Gate>()
        .with::<tenure::jobs::gate::GatePage>()
        .with::<tenure::jobs::catalogue::Catalogue>()
        .with::<tenure::jobs::shared::batch::Batch>()
        .with::<tenure::jobs::shared::limit::Limit>()
        .with::<tenure::jobs::shared::limit::LimitBook>()
        .with::<tenure::jobs::shared::schedule::Schedule>()
        .with::<tenure_agents::agent::Agent>()
        .with::<tenure_agents::turn::Turn>()
        .with::<tenure_agents::join::Join>();
    let product = tenure_server::machines(product);
    for table in product.tables().iter() {
        page.push('\n');
        page.push_str(&table.to_markdown());
    }
    let path = root().join("docs/machines.md");
    if std::env::var_os("TENURE_BLESS").is_some() {
        fs::write(&path, &page).unwrap();
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), page);
}

#[test]
fn links_in_the_documentation_resolve() {
    let mut broken = Vec::new();
    for page in all(".md") {
        let text = fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap_or("");
            let local = !target.is_empty() && !target.contains("://");
            if local && !page.parent().unwrap().join(target).exists() {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn files_stay_readable() {
    let mut found = Vec::new();
    for file in all(".rs") {
        let text = fs::read_to_string(&file).unwrap();
        let lines = text.lines().count();
        if lines > 1_200 {
            found.push(format!("{} has {lines} lines", file.display()));
        }
        if text.contains(concat!("dbg", "!(")) || text.contains(concat!("#[ign", "ore")) {
            found.push(format!("{} has a leftover", file.display()));
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// A file that no module names is dead.
#[test]
fn every_test_file_is_listed() {
    for main in all("tests/it/main.rs")
        .into_iter()
        .chain(all("main.rs"))
        .filter(|p| p.ends_with("tests/it/main.rs"))
    {
        let text = fs::read_to_string(&main).unwrap();
        for file in fs::read_dir(main.parent().unwrap()).unwrap() {
            let path = file.unwrap().path();
            let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
            let is_rust = path.extension().is_some_and(|e| e == "rs") || path.is_dir();
            if is_rust && stem != "main" {
                assert!(
                    text.contains(&format!("mod {stem};")),
                    "{} is not listed in {}",
                    path.display(),
                    main.display()
                );
            }
        }
    }
}

/// Paths of the tree in backticks, as ``crates/kernel/src/judge.rs``. Braces name several.
fn paths_of(text: &str) -> Vec<String> {
    let roots = ["crates/", "sdk/", "docs/", "deploy/", "bench/", "scripts/", ".config/"];
    let named = text.split('`').skip(1).step_by(2);
    let named = named.filter(|t| roots.iter().any(|r| t.starts_with(r)));
    let named = named.filter(|t| !t.contains(|c: char| c.is_whitespace() || "<*…".contains(c)));
    named
        .flat_map(|path| match (path.split_once('{'), path.split_once('}')) {
            (Some((before, _)), Some((inner, after))) => {
                let inner = inner.split_once('{').map_or("", |(_, names)| names);
                inner.split(',').map(|name| format!("{before}{}{after}", name.trim())).collect()
            }
            _ => vec![path.to_owned()],
        })
        .collect()
}

#[test]
fn paths_named_by_the_architecture_exist() {
    let decisions = fs::read_dir(root().join("docs/decisions")).unwrap();
    let pages = decisions.map(|e| e.unwrap().path()).chain([root().join("ARCHITECTURE.md")]);
    let mut missing = Vec::new();
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        for path in paths_of(&text).into_iter().filter(|p| !root().join(p).exists()) {
            missing.push(format!("{} names {path}", page.display()));
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn the_first_pages_stay_short() {
    for (page, bytes_max) in [("README.md", 12_000), ("ARCHITECTURE.md", 16_000)] {
        let bytes = fs::metadata(root().join(page)).unwrap().len();
        assert!(bytes <= bytes_max, "{page} has {bytes} bytes, more than {bytes_max}");
    }
}
