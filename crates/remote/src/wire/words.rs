//! Names that the kernel keeps for ever, found or kept.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};
use tenure_kernel::table::{Status, Table, Tables};

/// Sentences of a server that are kept for the life of the process. The judge has a few dozen; a server
/// that sends more than this is not one of ours, and its words are replaced by a general one.
const KEPT_MAX: usize = 512;
/// A longer one is not kept either.
const KEPT_BYTES_MAX: usize = 256;
/// What stands for a word that is not kept.
const UNKEPT: &str = "a reason that this version does not know";

static KEPT: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// Something on the wire that can not be read, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct Unreadable {
    /// Which field.
    pub field: String,
    /// What is wrong with it.
    pub why: String,
}

impl Unreadable {
    /// A field and what is wrong with it.
    pub fn new(field: impl Into<String>, why: impl Into<String>) -> Self {
        Unreadable { field: field.into(), why: why.into() }
    }

    /// The same, seen from outside.
    pub fn within(mut self, outer: &str) -> Self {
        self.field = format!("{outer}.{}", self.field);
        self
    }
}

/// The names that a process knows.
#[derive(Clone, Debug)]
pub struct Words(Tables);

impl Words {
    /// The names in these tables.
    pub fn new(tables: Tables) -> Self {
        Words(tables)
    }

    /// The table of a kind.
    pub fn table(&self, kind: &str) -> Result<&'static Table, Unreadable> {
        let unknown = || {
            let known: Vec<_> = self.0.iter().map(|t| t.kind).collect();
            let why = format!(
                "no machine of kind {kind:?} is known here (known: {}); is one side an older version?",
                known.join(", ")
            );
            Unreadable::new("kind", why)
        };
        self.0.get(kind).ok_or_else(unknown)
    }

    /// A status of a kind.
    pub fn status(&self, kind: &str, name: &str) -> Result<Status, Unreadable> {
        let table = self.table(kind)?;
        let unknown = || Unreadable::new("status", format!("a {kind} is never {name:?} here"));
        table.status(name).ok_or_else(unknown)
    }

    /// A name of a table, or else a sentence that is kept. Only for what a trusted server says: requests
    /// have no such words, so that a stranger can not fill the memory of a server.
    pub(crate) fn keep(&self, word: &str) -> &'static str {
        let known = self
            .0
            .iter()
            .flat_map(|t| std::iter::once(t.kind).chain(t.statuses.iter().map(|s| s.name)));
        known.into_iter().find(|k| *k == word).unwrap_or_else(|| keep(word))
    }
}

fn keep(word: &str) -> &'static str {
    // Nothing panics under this lock but an allocation, and a set of words stays one.
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = kept.get(word) {
        return known;
    }
    if kept.len() >= KEPT_MAX || word.len() > KEPT_BYTES_MAX {
        return UNKEPT;
    }
    let word: &'static str = Box::leak(word.to_owned().into_boxed_str());
    kept.insert(word);
    word
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_kernel::sessions::WORKER;

    #[test]
    fn a_name_of_a_table_is_found_and_a_long_sentence_is_not_kept() {
        let mut tables = Tables::default();
        tables.insert(&WORKER);
        let words = Words::new(tables);
        assert!(std::ptr::eq(words.keep("alive"), WORKER.statuses[0].name));
        assert_eq!(words.keep(&"x".repeat(KEPT_BYTES_MAX)), "x".repeat(KEPT_BYTES_MAX));
        assert_eq!(words.keep(&"x".repeat(KEPT_BYTES_MAX + 1)), UNKEPT);
        assert!(words.status("worker", "dead").is_err() && words.table("job").is_err());
    }
}
