//! Lists of what few entries have: suspects, blind spots, held deletions, doubts. In pages, by path.

use super::page::{Cursor, PAGE_MAX, Page};
use crate::{
    tree::{
        Tree,
        sides::{BlindDeletion, BlindSpot, ByEntry, Doubt, Held, Suspect},
    },
    wire::name,
};

fn page<T: Clone>(
    rows: impl Iterator<Item = (Vec<u8>, T)>,
    cursor: Option<&Cursor>,
    limit: usize,
) -> Page<(Vec<u8>, T)> {
    let mut items: Vec<(Vec<u8>, T)> =
        rows.filter(|(path, _)| cursor.is_none_or(|cursor| *path > cursor.0)).collect();
    items.sort_by(|a, b| a.0.cmp(&b.0));
    let limit = limit.clamp(1, PAGE_MAX);
    let next = (items.len() > limit).then(|| Cursor(items[limit - 1].0.clone()));
    items.truncate(limit);
    Page { items, next }
}

fn by_path<'a, V: Copy>(
    tree: &'a Tree,
    table: &'a ByEntry<V>,
) -> impl Iterator<Item = (Vec<u8>, V)> + 'a {
    table.iter().map(|(id, own, value)| (name::join(&tree.path_of(id), own), *value))
}

/// Entries that may still be written to.
pub fn suspects(tree: &Tree, cursor: Option<&Cursor>, limit: usize) -> Page<(Vec<u8>, Suspect)> {
    page(by_path(tree, &tree.sides.suspects), cursor, limit)
}

/// Entries that are new or changed, and no scout saw it happen.
pub fn blind_spots(
    tree: &Tree,
    cursor: Option<&Cursor>,
    limit: usize,
) -> Page<(Vec<u8>, BlindSpot)> {
    page(by_path(tree, &tree.sides.blind), cursor, limit)
}

/// Deletions that wait for a second witness or a person.
pub fn held(tree: &Tree, cursor: Option<&Cursor>, limit: usize) -> Page<(Vec<u8>, Held)> {
    page(by_path(tree, &tree.sides.held), cursor, limit)
}

/// Entries in doubt: nobody can say which of two states is the later one.
pub fn doubts(tree: &Tree, cursor: Option<&Cursor>, limit: usize) -> Page<(Vec<u8>, Doubt)> {
    page(tree.sides.doubts.iter().map(|(path, doubt)| (path.clone(), *doubt)), cursor, limit)
}

/// The last deletions that no scout saw, newest first.
pub fn blind_deletions(tree: &Tree, limit: usize) -> Vec<&BlindDeletion> {
    tree.sides.blind_deletions.iter().rev().take(limit.clamp(1, PAGE_MAX)).collect()
}
