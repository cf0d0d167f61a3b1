//! Where a path leads, and what speaks against an observation there.

use super::{apply::Apply, order::Observation};
use crate::{
    tree::{Entry, sides::Tombstone, slab::DirectoryId},
    wire::name,
};

/// Why a name that is not there must not be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Barrier {
    /// Nothing speaks against it.
    None,
    /// A deletion or a complete listing overlaps the observation; the tombstone is that of the name itself.
    Overlap(Option<Tombstone>),
    /// A deletion or a complete listing is later.
    Later,
}

/// Where a path leads.
pub(super) enum Place {
    /// To an entry.
    Entry { directory: DirectoryId, entry: Entry, barrier: Barrier },
    /// To a name that is not known. `known` is its deepest ancestor that is.
    Absent { barrier: Barrier, has_tombstone: bool, known: Vec<u8> },
    /// Below something that is no directory. `barrier` is that of the whole path.
    UnderFile { path: Vec<u8>, directory: DirectoryId, entry: Entry, barrier: Barrier },
}

impl Apply<'_> {
    /// Finds a path, and what speaks against an observation there: tombstones of it and its ancestors, and the
    /// certificate of the directory in which it is not.
    pub(super) fn place(&self, path: &[u8], observation: &Observation) -> Place {
        let tree = &self.state.tree;
        let mut directory = DirectoryId::ROOT;
        let (mut barrier, mut end) = (Barrier::None, 0);
        // What was not there had nothing below it.
        let mut top = Some(path).filter(|_| !tree.sides.absences.is_empty());
        while let Some(at) = top {
            if let Some(absence) = tree.sides.absences.get(at) {
                barrier = stronger(barrier, self.tombstone_barrier(absence, observation, false));
            }
            top = name::split(at).map(|(parent, _)| parent);
        }
        let names: Vec<&[u8]> = name::names(path).collect();
        for (i, own) in names.iter().enumerate() {
            let is_last = i + 1 == names.len();
            let tombstone = tree.sides.tombstones.get(directory, own).copied();
            if let Some(tombstone) = tombstone {
                barrier =
                    stronger(barrier, self.tombstone_barrier(&tombstone, observation, is_last));
            }
            let known = path[..end].to_vec();
            end += own.len() + usize::from(i > 0);
            let Some(entry) = tree.entry(directory, own) else {
                barrier = stronger(barrier, self.certificate_barrier(directory, observation));
                return Place::Absent { barrier, has_tombstone: tombstone.is_some(), known };
            };
            match entry.directory {
                _ if is_last => return Place::Entry { directory, entry, barrier },
                Some(next) => directory = next,
                None => {
                    let path = path[..end].to_vec();
                    return Place::UnderFile { path, directory, entry, barrier };
                }
            }
        }
        Place::Entry { directory: DirectoryId::ROOT, entry: tree.root(), barrier }
    }

    pub(super) fn tombstone_barrier(
        &self,
        tombstone: &Tombstone,
        observation: &Observation,
        is_own: bool,
    ) -> Barrier {
        let slack = self.slack_of(tombstone.scout);
        if !self.state.rules.protections.tombstones {
            Barrier::None
        } else if observation.is_before(tombstone.during.begin, tombstone.scout, slack) {
            Barrier::Later
        } else if !observation.is_after(tombstone.during.end, tombstone.scout, slack) {
            Barrier::Overlap(is_own.then_some(*tombstone))
        } else {
            Barrier::None
        }
    }

    /// A complete listing says that names it does not have were not there.
    pub(super) fn certificate_barrier(
        &self,
        id: DirectoryId,
        observation: &Observation,
    ) -> Barrier {
        let tree = &self.state.tree;
        let Some(certificate) = tree.directory(id).and_then(|d| d.certificate()) else {
            return Barrier::None;
        };
        let slack = self.slack_of(0);
        if observation.is_before(tree.absolute(certificate.begin), 0, slack) {
            Barrier::Later
        } else if !observation.is_after(tree.absolute(certificate.end), 0, slack) {
            Barrier::Overlap(None)
        } else {
            Barrier::None
        }
    }

    pub(super) fn is_after(&self, observation: &Observation, entry: &Entry) -> bool {
        !self.state.rules.protections.intervals
            || observation.is_after_entry(entry, self.slack_of(entry.scout))
    }

    /// Whether everything below a directory was seen before the observation.
    pub(super) fn is_older(&self, id: DirectoryId, observation: &Observation) -> bool {
        if !self.state.rules.protections.intervals {
            return true;
        }
        let mut waiting = vec![id];
        while let Some(id) = waiting.pop() {
            let Some(directory) = self.state.tree.directory(id) else { continue };
            let mut older = true;
            directory.for_each(|_, row| {
                let seen = self.state.tree.absolute(row.seen);
                older &= observation.is_after(seen, row.scout, self.slack_of(row.scout));
                if row.is_directory() {
                    waiting.push(DirectoryId(row.size as u32));
                }
            });
            if !older {
                return false;
            }
        }
        true
    }
}

fn stronger(a: Barrier, b: Barrier) -> Barrier {
    match (a, b) {
        (Barrier::Later, _) | (_, Barrier::Later) => Barrier::Later,
        (Barrier::None, other) | (other, Barrier::None) => other,
        // A doubt either way; the inode of one of two deletions proves nothing.
        (Barrier::Overlap(_), Barrier::Overlap(_)) => Barrier::Overlap(None),
    }
}
