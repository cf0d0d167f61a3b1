//! Totals of a subtree: read from its directory, without a walk.

use super::{Coverage, NotFound, coverage, find};
use crate::{
    time::Tick,
    tree::{Tree, sums::Sums},
};

/// See the head of this module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stats {
    /// Totals below the directory; of a file, those of itself.
    pub sums: Sums,
    /// When something below it last changed, as far as it was seen.
    pub last_activity: Tick,
    /// When the directory itself was last observed.
    pub observed_at: Tick,
    /// How well its own content is known.
    pub coverage: Option<Coverage>,
    /// Of the whole tree: nothing was last observed before this.
    pub oldest_observation: Option<Tick>,
    /// Of the whole tree: entries of which nobody can say which state is the later one.
    pub doubts: usize,
    /// Of the whole tree: deletions that the brake holds.
    pub held: usize,
    /// Of the whole tree: regions in which changes may have been missed.
    pub dirty_regions: usize,
}

/// The totals at a path.
pub fn stats(tree: &Tree, path: &[u8]) -> Result<Stats, NotFound> {
    let top = find(tree, path)?;
    let sums = match top.entry.directory {
        Some(id) => tree.sums(id).unwrap_or_default(),
        None => Sums {
            files: 1,
            bytes: top.entry.facts.size,
            newest_mtime: top.entry.facts.mtime,
            last_activity: tree.relative(top.entry.seen),
            ..Sums::default()
        },
    };
    Ok(Stats {
        sums,
        last_activity: tree.absolute(sums.last_activity),
        observed_at: top.entry.seen,
        coverage: top.entry.directory.map(|id| coverage(tree, id, &top.entry)),
        oldest_observation: tree.oldest_seen(),
        doubts: tree.sides.doubts.len(),
        held: tree.sides.held.len(),
        dirty_regions: tree.sides.dirty.len(),
    })
}
