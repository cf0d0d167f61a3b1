//! One directory: its place, its leaves, what it sums up, and how well its content is known.

use super::{
    leaf::{Draft, Leaf, Row},
    slab::DirectoryId,
    sums::Sums,
};

/// The last complete listing of a directory. A name that is not known under it does not exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Certificate {
    /// Ticks since the tree's base: begin of the listing.
    pub begin: u32,
    /// Ticks since the tree's base: its end, or the end of the last look that found the directory unchanged.
    pub end: u32,
    /// The directory's mtime then.
    pub mtime: i64,
    /// The directory's ctime then.
    pub ctime: i64,
}

impl Certificate {
    /// Stands for no certificate, so that a directory has no byte for whether it has one. A listing ends after it begins.
    const NONE: Certificate = Certificate { begin: 1, end: 0, mtime: 0, ctime: 0 };
}

/// See the head of this module.
#[derive(Clone, Debug)]
pub struct Directory {
    /// The directory that it is in; the root is in itself.
    pub parent: DirectoryId,
    /// Its name there; the root's is empty.
    pub name: Box<[u8]>,
    leaves: Box<[Leaf]>,
    /// Of everything below it.
    pub sums: Sums,
    certificate: Certificate,
    /// How many scouts watch it, at most 255.
    pub watched: u8,
}

/// A new state for one name of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change<'a> {
    /// The name.
    pub name: &'a [u8],
    /// The new row; `None` removes the entry.
    pub row: Option<Row>,
}

impl Directory {
    /// An empty one.
    pub fn new(parent: DirectoryId, name: &[u8]) -> Directory {
        Directory {
            parent,
            name: name.into(),
            leaves: Box::default(),
            sums: Sums::default(),
            certificate: Certificate::NONE,
            watched: 0,
        }
    }

    /// Whether and when it was listed completely.
    pub fn certificate(&self) -> Option<Certificate> {
        Some(self.certificate).filter(|certificate| certificate.begin <= certificate.end)
    }

    /// Sets what [`Directory::certificate`] says.
    pub fn certify(&mut self, certificate: Option<Certificate>) {
        self.certificate = certificate.unwrap_or(Certificate::NONE);
    }

    /// Its leaves in the order of names.
    pub fn leaves(&self) -> &[Leaf] {
        &self.leaves
    }

    /// The leaf in which `name` is or would be.
    pub fn leaf_of(&self, name: &[u8]) -> usize {
        self.leaves.partition_point(|leaf| leaf.first_name() <= name).saturating_sub(1)
    }

    /// The entry with this name.
    pub fn get(&self, name: &[u8]) -> Option<Row> {
        let leaf = self.leaves.get(self.leaf_of(name))?;
        leaf.find(name).ok().map(|i| leaf.row(i))
    }

    /// Writes a new row of an entry that is there; whether it is.
    pub fn set(&mut self, name: &[u8], row: &Row) -> bool {
        let at = self.leaf_of(name);
        let Some(leaf) = self.leaves.get_mut(at) else { return false };
        let Ok(i) = leaf.find(name) else { return false };
        leaf.set_row(i, row);
        true
    }

    /// How many entries it has.
    pub fn len(&self) -> usize {
        self.leaves.iter().map(Leaf::len).sum()
    }

    /// Whether it has no entry.
    pub fn is_empty(&self) -> bool {
        self.leaves.is_empty()
    }

    /// Calls `f` for every entry, in the order of names.
    pub fn for_each(&self, mut f: impl FnMut(&[u8], Row)) {
        for leaf in &self.leaves {
            let mut names = leaf.names();
            while let Some(i) = names.advance() {
                f(names.name(), leaf.row(i));
            }
        }
    }

    /// Carries changes out, whose names ascend. Leaves without a change stay as they are.
    pub fn edit(&mut self, changes: &[Change<'_>]) {
        if self.set_all(changes) {
            return;
        }
        let mut leaves = std::mem::take(&mut self.leaves).into_vec();
        if leaves.is_empty() {
            self.leaves = Self::leaves_of(changes).into();
            return;
        }
        // From the last leaf to the first, so that a leaf that becomes two moves none that is still to come.
        let mut left = changes;
        while let Some(last) = left.last() {
            let found = leaves.partition_point(|leaf| leaf.first_name() <= last.name);
            let at = found.saturating_sub(1);
            let first = if at == 0 {
                0
            } else {
                left.partition_point(|c| c.name < leaves[at].first_name())
            };
            let (before, mine) = left.split_at(first);
            left = before;
            rebuild(&mut leaves, at, mine);
            if leaves.is_empty() {
                leaves.extend(Self::leaves_of(left));
                break;
            }
        }
        self.leaves = leaves.into();
    }

    fn leaves_of(changes: &[Change<'_>]) -> Vec<Leaf> {
        let mut draft = Draft::default();
        for change in changes {
            if let Some(row) = change.row {
                draft.push(change.name, row);
            }
        }
        draft.into_leaves()
    }

    /// Writes rows in place, if every change is of an entry that is there; whether it did.
    fn set_all(&mut self, changes: &[Change<'_>]) -> bool {
        let is_there = |change: &Change<'_>| {
            let leaf = self.leaves.get(self.leaf_of(change.name));
            change.row.is_some() && leaf.is_some_and(|leaf| leaf.find(change.name).is_ok())
        };
        if !changes.iter().all(is_there) {
            return false;
        }
        for change in changes {
            if let Some(row) = change.row {
                self.set(change.name, &row);
            }
        }
        true
    }

    /// Replaces every row; for a new base of time.
    pub fn map_rows(&mut self, mut f: impl FnMut(&mut Row)) {
        for leaf in &mut self.leaves {
            for i in 0..leaf.len() {
                let mut row = leaf.row(i);
                f(&mut row);
                leaf.set_row(i, &row);
            }
        }
    }

    /// Replaces all entries; their names ascend.
    pub fn fill(&mut self, draft: Draft) {
        self.leaves = draft.into_leaves().into();
    }

    /// Bytes that it points to: name, leaves and their counters.
    pub fn heap_bytes(&self) -> usize {
        const COUNTERS: usize = 16;
        let leaves: usize = self.leaves.iter().map(|l| l.bytes() + COUNTERS).sum();
        self.name.len() + self.leaves.len() * size_of::<Leaf>() + leaves
    }
}

/// Carries out the changes of one leaf. A small neighbour is taken in, so that many removals do not leave many small
/// leaves.
fn rebuild(leaves: &mut Vec<Leaf>, at: usize, changes: &[Change<'_>]) {
    let mut draft = Draft::default();
    let expected = leaves[at].len() + changes.len();
    let from = match at.checked_sub(1) {
        Some(before) if leaves[before].len() + expected <= super::leaf::ENTRIES_MAX / 2 => before,
        _ => at,
    };
    if from < at {
        leaves[from].copy_to(&mut draft);
    }
    merge(&leaves[at], changes, &mut draft);
    leaves.splice(from..=at, draft.into_leaves());
}

fn merge(leaf: &Leaf, changes: &[Change<'_>], draft: &mut Draft) {
    let mut left = changes.iter().peekable();
    let mut names = leaf.names();
    while let Some(i) = names.advance() {
        while let Some(change) = left.next_if(|c| c.name < names.name()) {
            if let Some(row) = change.row {
                draft.push(change.name, row);
            }
        }
        match left.next_if(|c| c.name == names.name()) {
            Some(Change { row: Some(row), .. }) => draft.push(names.name(), *row),
            Some(Change { row: None, .. }) => {}
            None => draft.push(names.name(), leaf.row(i)),
        }
    }
    for change in left {
        if let Some(row) = change.row {
            draft.push(change.name, row);
        }
    }
}
