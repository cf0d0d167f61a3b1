//! What is below a directory, in the order of paths.

use super::{
    Answer, NotFound, answer, find,
    page::{Cursor, PAGE_MAX, Page},
    walk::Walk,
};
use crate::tree::Tree;

/// A question for entries.
#[derive(Clone, Debug)]
pub struct TreeQuery {
    /// The directory, or a file, which is the whole answer then.
    pub path: Vec<u8>,
    /// Levels below it; 1 = what is directly in it.
    pub max_depth: usize,
    /// Where to go on.
    pub cursor: Option<Cursor>,
    /// Entries of the page, at most [`PAGE_MAX`].
    pub limit: usize,
}

/// The entries below a path, without itself; for a file, itself.
pub fn tree(tree: &Tree, query: &TreeQuery) -> Result<Page<Answer>, NotFound> {
    let top = find(tree, &query.path)?;
    let Some(id) = top.entry.directory else {
        return Ok(Page { items: vec![top], next: None });
    };
    if query.max_depth == 0 {
        return Ok(Page { items: Vec::new(), next: None });
    }
    let after = query.cursor.as_ref().map(|cursor| cursor.0.as_slice());
    let mut walk = Walk::new(tree, &query.path, id, after, query.max_depth, |_| true);
    let limit = query.limit.clamp(1, PAGE_MAX);
    let mut items: Vec<Answer> = Vec::new();
    while let Some(step) = walk.next() {
        if items.len() == limit {
            let next = items.last().map(|last| Cursor(last.path.clone()));
            return Ok(Page { items, next });
        }
        let own = crate::wire::name::split(&step.path).map_or(&[][..], |(_, own)| own);
        let entry = tree.entry_of(step.directory, own, &step.row);
        items.push(answer(tree, step.path, entry));
    }
    Ok(Page { items, next: None })
}
