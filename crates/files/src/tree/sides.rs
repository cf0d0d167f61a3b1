//! What few entries have: it is kept beside the rows, so that rows stay short. Keys are (directory, name), which a
//! renamed directory keeps; what must outlive its directory has a path.

use super::slab::DirectoryId;
use crate::{
    facts::Facts,
    time::{Interval, Tick},
    wire::RootIdentity,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tenure_kernel::ids::EntityId;

/// Blind deletions that are remembered.
pub const BLIND_DELETIONS_MAX: usize = 100_000;

/// Looks that found nothing at a name that was not known, as long as they are kept.
pub const ABSENCES_MAX: usize = 100_000;

/// Values by directory and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByEntry<V>(BTreeMap<DirectoryId, BTreeMap<Box<[u8]>, V>>);

impl<V> Default for ByEntry<V> {
    fn default() -> Self {
        ByEntry(BTreeMap::new())
    }
}

impl<V> ByEntry<V> {
    /// The value of an entry.
    pub fn get(&self, directory: DirectoryId, name: &[u8]) -> Option<&V> {
        self.0.get(&directory)?.get(name)
    }

    /// Sets the value of an entry.
    pub fn insert(&mut self, directory: DirectoryId, name: &[u8], value: V) {
        self.0.entry(directory).or_default().insert(name.into(), value);
    }

    /// Takes the value of an entry.
    pub fn remove(&mut self, directory: DirectoryId, name: &[u8]) -> Option<V> {
        let names = self.0.get_mut(&directory)?;
        let taken = names.remove(name);
        if names.is_empty() {
            self.0.remove(&directory);
        }
        taken
    }

    /// Forgets all entries of a directory.
    pub fn remove_directory(&mut self, directory: DirectoryId) {
        self.0.remove(&directory);
    }

    /// All values, by directory and name.
    pub fn iter(&self) -> impl Iterator<Item = (DirectoryId, &[u8], &V)> {
        self.0.iter().flat_map(|(directory, names)| {
            names.iter().map(|(name, value)| (*directory, &**name, value))
        })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.values().map(BTreeMap::len).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// An entry was here and is gone, with everything that was below it. It stops evidence that is older than the deletion,
/// for the entry and for all that was below it, also when the entry exists again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tombstone {
    /// When it was found gone.
    pub during: Interval,
    /// By which scout.
    pub scout: u8,
    /// The inode that was deleted.
    pub inode: u64,
    /// Its last ctime that was known.
    pub ctime: i64,
}

/// Two observations whose order nobody can decide. A forced look settles it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Doubt {
    /// When it arose.
    pub since: Tick,
    /// A look that begins before this settles nothing.
    pub not_before: Tick,
    /// The state that is not shown, or `None` if the entry may be gone.
    pub other: Option<Facts>,
}

/// An entry that may still be written to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Suspect {
    /// Since when.
    pub since: Tick,
    /// The end of the first of two looks that found the same state.
    pub equal_since: Option<Tick>,
}

/// Why no scout saw a change happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum BlindCause {
    /// Nobody watches the directory.
    NotWatched = 0,
    /// A scout lost events there.
    Overflow = 1,
    /// The directory is watched, and the writer was another host.
    NobodySaw = 2,
}

impl BlindCause {
    /// The word that answers use.
    pub fn word(self) -> &'static str {
        match self {
            BlindCause::NotWatched => "not_watched",
            BlindCause::Overflow => "overflow",
            BlindCause::NobodySaw => "nobody_saw",
        }
    }
}

/// An entry that is new or changed, and no scout saw it happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlindSpot {
    /// Why.
    pub cause: BlindCause,
    /// When it was found.
    pub since: Tick,
}

/// A deletion that no scout saw happen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlindDeletion {
    /// What was deleted.
    pub path: Vec<u8>,
    /// When that was found.
    pub at: Tick,
    /// Why nobody saw it.
    pub cause: BlindCause,
}

/// A deletion that waits for a second witness or for a person.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// The walk that concluded it.
    pub walk: Option<EntityId>,
    /// When the listing was made that does not name the entry.
    pub during: Interval,
    /// The scout that made it.
    pub scout: u8,
    /// A second witness is not enough.
    pub needs_person: bool,
}

/// A region in which a scout may have missed changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirtyRegion {
    /// A listing that begins after this ends it.
    pub since: Tick,
    /// Whether everything below is dirty too.
    pub subtree: bool,
}

/// What is remembered of a scout.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ScoutInfo {
    /// Ticks by which its view time may be wrong.
    pub slack: u64,
    /// The root that it had first, or that a person accepted.
    pub root: Option<RootIdentity>,
    /// Another root that it has now: nothing that it says deletes until somebody accepts it.
    pub new_root: Option<RootIdentity>,
}

/// All side tables of a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sides {
    /// See [`Tombstone`].
    pub tombstones: ByEntry<Tombstone>,
    tombstones_by_age: BTreeSet<(Tick, DirectoryId, Box<[u8]>)>,
    /// Looks that found nothing where nothing was known, by path: the directory may not be known either. They stop a
    /// listing that is older and comes later, such as one of a snapshot that is overtaken by the live lane. Also
    /// tombstones that are later than the deletion of their directory.
    pub absences: BTreeMap<Vec<u8>, Tombstone>,
    absences_by_age: BTreeSet<(Tick, Vec<u8>)>,
    /// By path, because an entry that is not known can be in doubt.
    pub doubts: BTreeMap<Vec<u8>, Doubt>,
    /// See [`Suspect`].
    pub suspects: ByEntry<Suspect>,
    /// See [`BlindSpot`].
    pub blind: ByEntry<BlindSpot>,
    /// The last deletions that nobody saw, oldest first. No session wipes them.
    pub blind_deletions: VecDeque<BlindDeletion>,
    /// See [`Held`].
    pub held: ByEntry<Held>,
    /// Sizes that six bytes do not hold.
    pub sizes: ByEntry<u64>,
    /// See [`DirtyRegion`].
    pub dirty: BTreeMap<Vec<u8>, DirtyRegion>,
    /// Directories that each scout watches.
    pub watches: BTreeMap<u8, BTreeSet<DirectoryId>>,
    /// By number; 0 = any scout.
    pub scouts: BTreeMap<u8, ScoutInfo>,
    /// Pairs of owner and group; rows have their index.
    pub owners: Vec<(u32, u32)>,
    owners_index: BTreeMap<(u32, u32), u16>,
}

/// The index of every pair of owner and group beyond 65,535 pairs.
pub const OWNER_UNKNOWN: u16 = u16::MAX;

impl Sides {
    /// The index of a pair of owner and group.
    pub fn owner(&mut self, owner: (u32, u32)) -> u16 {
        if let Some(index) = self.owners_index.get(&owner) {
            return *index;
        }
        let index = u16::try_from(self.owners.len()).unwrap_or(OWNER_UNKNOWN);
        if index != OWNER_UNKNOWN {
            self.owners.push(owner);
            self.owners_index.insert(owner, index);
        }
        index
    }

    /// The index of a pair that has one.
    pub fn known_owner(&self, owner: (u32, u32)) -> Option<u16> {
        self.owners_index.get(&owner).copied()
    }

    /// Leaves a tombstone; a later one replaces an earlier one.
    pub fn bury(&mut self, directory: DirectoryId, name: &[u8], tombstone: Tombstone) {
        if let Some(old) = self.tombstones.get(directory, name) {
            if old.during.end > tombstone.during.end {
                return;
            }
            self.tombstones_by_age.remove(&(old.during.end, directory, name.into()));
        }
        self.tombstones_by_age.insert((tombstone.during.end, directory, name.into()));
        self.tombstones.insert(directory, name, tombstone);
    }

    /// Tombstones whose interval ended after `end`.
    pub fn tombstones_since(
        &self,
        end: Tick,
    ) -> impl Iterator<Item = (DirectoryId, &[u8], &Tombstone)> {
        let first = (end.plus(1), DirectoryId::ROOT, Box::default());
        self.tombstones_by_age.range(first..).filter_map(|(_, directory, name)| {
            Some((*directory, &**name, self.tombstones.get(*directory, name)?))
        })
    }

    /// Forgets a tombstone.
    pub fn forget_tombstone(&mut self, directory: DirectoryId, name: &[u8]) {
        if let Some(tombstone) = self.tombstones.remove(directory, name) {
            self.tombstones_by_age.remove(&(tombstone.during.end, directory, name.into()));
        }
    }

    /// Notes that a look found nothing at a path that is not known. If there are too many, the oldest is forgotten and
    /// returned: its directory must be listed.
    pub fn note_absence(&mut self, path: &[u8], absence: Tombstone) -> Option<Vec<u8>> {
        if let Some(old) = self.absences.get(path) {
            if old.during.end > absence.during.end {
                return None;
            }
            self.absences_by_age.remove(&(old.during.end, path.to_vec()));
        }
        self.absences_by_age.insert((absence.during.end, path.to_vec()));
        self.absences.insert(path.to_vec(), absence);
        if self.absences.len() <= ABSENCES_MAX {
            return None;
        }
        let (_, oldest) = self.absences_by_age.pop_first()?;
        self.absences.remove(&oldest);
        Some(oldest)
    }

    /// Forgets tombstones and absences whose interval ended before `before`; how many.
    pub fn expire_tombstones(&mut self, before: Tick) -> usize {
        let mut expired = 0;
        while let Some(first) = self.tombstones_by_age.first() {
            if first.0 >= before {
                break;
            }
            // It was just seen.
            let Some((_, directory, name)) = self.tombstones_by_age.pop_first() else { break };
            self.tombstones.remove(directory, &name);
            expired += 1;
        }
        while self.absences_by_age.first().is_some_and(|(end, _)| *end < before) {
            let Some((_, path)) = self.absences_by_age.pop_first() else { break };
            self.absences.remove(&path);
            expired += 1;
        }
        expired
    }

    /// Remembers a deletion that nobody saw.
    pub fn note_blind_deletion(&mut self, deletion: BlindDeletion) {
        if self.blind_deletions.len() == BLIND_DELETIONS_MAX {
            self.blind_deletions.pop_front();
        }
        self.blind_deletions.push_back(deletion);
    }

    /// Forgets what is kept for one entry, but not its tombstone.
    pub(crate) fn forget_entry(&mut self, directory: DirectoryId, name: &[u8]) {
        self.suspects.remove(directory, name);
        self.blind.remove(directory, name);
        self.held.remove(directory, name);
        self.sizes.remove(directory, name);
    }

    /// Forgets a directory that is removed, with the tombstones in it: the directory's own tombstone covers those that
    /// are not later.
    pub(crate) fn forget_directory(&mut self, directory: DirectoryId) {
        self.suspects.remove_directory(directory);
        self.blind.remove_directory(directory);
        self.held.remove_directory(directory);
        self.sizes.remove_directory(directory);
        if let Some(names) = self.tombstones.0.remove(&directory) {
            for (name, tombstone) in names {
                self.tombstones_by_age.remove(&(tombstone.during.end, directory, name));
            }
        }
        for watched in self.watches.values_mut() {
            watched.remove(&directory);
        }
    }

    /// Moves what is kept by path from below `from` to below `to`.
    pub(crate) fn move_paths(&mut self, from: &[u8], to: &[u8]) {
        move_below(&mut self.doubts, from, to);
        move_below(&mut self.dirty, from, to);
    }

    /// Forgets what is kept by path at `top` and below it.
    pub(crate) fn forget_paths(&mut self, top: &[u8]) {
        for path in below(&self.doubts, top) {
            self.doubts.remove(&path);
        }
        for path in below(&self.dirty, top) {
            self.dirty.remove(&path);
        }
    }
}

fn below<V>(map: &BTreeMap<Vec<u8>, V>, top: &[u8]) -> Vec<Vec<u8>> {
    let paths = map.range(top.to_vec()..).map(|(path, _)| path);
    // Paths that begin with the bytes of `top` are together; among them are names that are only longer.
    paths
        .take_while(|path| path.starts_with(top))
        .filter(|path| crate::wire::name::is_within(path, top))
        .cloned()
        .collect()
}

fn move_below<V>(map: &mut BTreeMap<Vec<u8>, V>, from: &[u8], to: &[u8]) {
    for path in below(map, from) {
        if let Some(value) = map.remove(&path) {
            map.insert([to, &path[from.len()..]].concat(), value);
        }
    }
}
