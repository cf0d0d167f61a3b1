//! The page about the table.

use std::{fs, path::Path};

/// `TENURE_BLESS=1` writes the page instead of comparing it.
#[test]
fn the_page_of_the_reasons_is_what_the_table_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pods/reasons.md");
    let page = tenure_pods::verdict::page();
    if std::env::var_os("TENURE_BLESS").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == page, "docs/pods/reasons.md is old: TENURE_BLESS=1 writes it");
}
