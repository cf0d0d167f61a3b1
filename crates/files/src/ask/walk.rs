//! Goes through a subtree in the order of paths, from any path on. It decodes a leaf only if somebody wants it.

use crate::{
    tree::{
        Tree,
        leaf::{Leaf, Row},
        slab::DirectoryId,
    },
    wire::name,
};
use std::collections::VecDeque;

/// One step: an entry, in the order of paths (a directory comes before what is in it).
pub(super) struct Step {
    pub path: Vec<u8>,
    pub directory: DirectoryId,
    pub row: Row,
    /// False for a directory of a leaf that nobody wanted: it is only gone through.
    pub is_wanted: bool,
}

struct Level {
    id: DirectoryId,
    path: Vec<u8>,
    next_leaf: usize,
    after: Option<Vec<u8>>,
    ready: VecDeque<(Vec<u8>, Row, bool)>,
}

impl Level {
    fn new(id: DirectoryId, path: Vec<u8>) -> Level {
        Level { id, path, next_leaf: 0, after: None, ready: VecDeque::new() }
    }
}

/// See the head of this module.
pub(super) struct Walk<'t, W> {
    tree: &'t Tree,
    levels: Vec<Level>,
    top_depth: usize,
    max_depth: usize,
    wants: W,
    /// Leaves and entries that were touched: what the walk cost.
    pub work: u64,
}

impl<'t, W: Fn(&Leaf) -> bool> Walk<'t, W> {
    /// Goes through everything below `top`, which is a directory, after `after` if it is given. A path `after` need not
    /// exist any more.
    pub fn new(
        tree: &'t Tree,
        top: &[u8],
        id: DirectoryId,
        after: Option<&[u8]>,
        max_depth: usize,
        wants: W,
    ) -> Walk<'t, W> {
        let mut levels = vec![Level::new(id, top.to_vec())];
        let inside = after.filter(|after| name::is_within(after, top) && *after != top);
        for own in inside.map(|after| &after[top.len()..]).into_iter().flat_map(name::names) {
            // There is always one: the first is above, and a push follows every other step.
            let Some(level) = levels.last_mut() else { break };
            level.after = Some(own.to_vec());
            level.next_leaf = tree.directory(level.id).map_or(0, |d| d.leaf_of(own));
            let entry = tree.entry(level.id, own);
            let Some(next) = entry.and_then(|entry| entry.directory) else { break };
            let path = name::join(&level.path, own);
            levels.push(Level::new(next, path));
        }
        let top_depth = depth(top);
        // A walk that does not go this deep has nothing to go on with there.
        levels.truncate(max_depth.max(1));
        Walk { tree, levels, top_depth, max_depth, wants, work: 0 }
    }

    pub fn next(&mut self) -> Option<Step> {
        loop {
            let level = self.levels.last_mut()?;
            if let Some((own, row, is_wanted)) = level.ready.pop_front() {
                let path = name::join(&level.path, &own);
                let directory = level.id;
                if row.is_directory() && depth(&path) - self.top_depth < self.max_depth {
                    self.levels.push(Level::new(DirectoryId(row.size as u32), path.clone()));
                }
                return Some(Step { path, directory, row, is_wanted });
            }
            let leaf = self.tree.directory(level.id).and_then(|d| d.leaves().get(level.next_leaf));
            let Some(leaf) = leaf else {
                self.levels.pop();
                continue;
            };
            level.next_leaf += 1;
            self.work += 1;
            let after = level.after.take();
            if !(self.wants)(leaf) {
                if leaf.directories() > 0 {
                    self.work +=
                        only_directories(self.tree, leaf, after.as_deref(), &mut level.ready);
                }
                continue;
            }
            self.work += leaf.len() as u64;
            let mut names = leaf.names();
            while let Some(i) = names.advance() {
                if after.as_deref().is_none_or(|after| names.name() > after) {
                    level.ready.push_back((names.name().to_vec(), leaf.row(i), true));
                }
            }
        }
    }
}

/// Directories of a leaf by the names that they have themselves, so that the leaf's names are not decoded.
fn only_directories(
    tree: &Tree,
    leaf: &Leaf,
    after: Option<&[u8]>,
    ready: &mut VecDeque<(Vec<u8>, Row, bool)>,
) -> u64 {
    let mut found = 0;
    for i in 0..leaf.len() {
        if found == u64::from(leaf.directories()) {
            break;
        }
        let row = leaf.row(i);
        if !row.is_directory() {
            continue;
        }
        found += 1;
        if let Some(directory) = tree.directory(DirectoryId(row.size as u32))
            && after.is_none_or(|after| &*directory.name > after)
        {
            ready.push_back((directory.name.to_vec(), row, false));
        }
    }
    found
}

fn depth(path: &[u8]) -> usize {
    name::names(path).count()
}
