//! The tree: what is known of one source. It is compact (measured by `tests/it/size.rs`), its clone is a frozen copy that
//! shares all that is not written to, and it decides nothing: [`crate::arbitrate`] does.

pub mod dir;
pub mod leaf;
mod restore;
pub mod sides;
pub mod signature;
pub mod slab;
pub mod sums;

use crate::{
    facts::{EntryType, Facts},
    time::Tick,
    wire::name,
};
use dir::{Certificate, Change, Directory};
use leaf::{Row, SIZE_MAX};
use sides::Sides;
use slab::{DirectoryId, Slab};
use std::{collections::BTreeMap, sync::Arc};
use sums::{Delta, SeenHistogram, Sums};

/// Flags of a row.
pub mod flag {
    /// New or changed, and no scout saw it happen.
    pub const BLIND: u8 = 1;
    /// May still be written to.
    pub const SUSPECT: u8 = 2;
    /// Its deletion waits for a second witness.
    pub const HELD: u8 = 4;
    /// Another state of it was seen, and nobody can say which is the later one.
    pub const DOUBT: u8 = 8;
    /// The last observation came by the live lane.
    pub const LIVE: u8 = 16;
    /// The last observation came from a snapshot.
    pub const SNAPSHOT: u8 = 32;
    /// A parent of something that was seen; itself it was not.
    pub const IMPLIED: u8 = 64;
    /// The ctime of this inode once went back: it does not order its states any more.
    pub const SET_BACK: u8 = 128;
}

/// An entry as arbitration and queries see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its state.
    pub facts: Facts,
    /// The end of the last interval in which this state was observed.
    pub seen: Tick,
    /// The scout that observed it; 0 = any.
    pub scout: u8,
    /// See [`flag`].
    pub flags: u8,
    /// Of a directory its number; set by the tree.
    pub directory: Option<DirectoryId>,
}

impl Entry {
    /// Whether this flag is set.
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag > 0
    }
}

/// What was removed with an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Removed {
    /// The entry itself.
    pub entry: Entry,
    /// How many entries were removed, itself included.
    pub entries: u64,
}

/// See the head of this module. Its clone is a frozen copy: cheap, and unchanged by later writes.
#[derive(Clone, Debug)]
pub struct Tree {
    slab: Slab,
    base: Tick,
    root: Entry,
    /// Side tables.
    pub sides: Arc<Sides>,
    histogram: SeenHistogram,
    deltas: BTreeMap<DirectoryId, Delta>,
}

/// A base of time is renewed when ticks since it use this much of their four bytes (about 300 days).
const REBASE_AFTER: u64 = 3 << 30;
/// Observations older than this (about 100 days) become as old as the base.
const REBASE_KEEPS: u64 = 1 << 30;

impl Tree {
    /// A tree that knows only its root. Nothing in it was observed before `base`.
    pub fn new(base: Tick) -> Tree {
        let mut slab = Slab::default();
        slab.insert(Directory::new(DirectoryId::ROOT, &[]));
        let facts = Facts { entry_type: EntryType::Directory, ..Facts::default() };
        let root = Entry {
            facts,
            seen: Tick::ZERO,
            scout: 0,
            flags: flag::IMPLIED,
            directory: Some(DirectoryId::ROOT),
        };
        Tree {
            slab,
            base,
            root,
            sides: Arc::default(),
            histogram: SeenHistogram::default(),
            deltas: BTreeMap::new(),
        }
    }

    /// Times in rows count from here.
    pub fn base(&self) -> Tick {
        self.base
    }

    /// The side tables to write to.
    pub fn sides_mut(&mut self) -> &mut Sides {
        Arc::make_mut(&mut self.sides)
    }

    pub(crate) fn relative(&self, at: Tick) -> u32 {
        u32::try_from(at.since(self.base)).unwrap_or(u32::MAX)
    }

    pub(crate) fn absolute(&self, ticks: u32) -> Tick {
        self.base.plus(u64::from(ticks))
    }

    /// The directory with this number.
    pub fn directory(&self, id: DirectoryId) -> Option<&Directory> {
        self.slab.get(id)
    }

    /// All directories.
    pub fn directories(&self) -> impl Iterator<Item = (DirectoryId, &Directory)> {
        self.slab.iter()
    }

    /// The root's own entry.
    pub fn root(&self) -> Entry {
        self.root
    }

    /// Sets what is known of the root itself.
    pub fn set_root(&mut self, root: Entry) {
        self.root = Entry { directory: Some(DirectoryId::ROOT), ..root };
    }

    /// The number of the directory at this path.
    pub fn find_directory(&self, path: &[u8]) -> Option<DirectoryId> {
        let mut at = DirectoryId::ROOT;
        for name in name::names(path) {
            let row = self.slab.get(at)?.get(name)?;
            at = row.is_directory().then_some(DirectoryId(row.size as u32))?;
        }
        Some(at)
    }

    /// The entry at this path.
    pub fn find(&self, path: &[u8]) -> Option<Entry> {
        match name::split(path) {
            None => Some(self.root),
            Some((directory, name)) => self.entry(self.find_directory(directory)?, name),
        }
    }

    /// The entry with this name.
    pub fn entry(&self, directory: DirectoryId, name: &[u8]) -> Option<Entry> {
        let row = self.slab.get(directory)?.get(name)?;
        Some(self.entry_of(directory, name, &row))
    }

    /// A row with what the side tables say about it.
    pub fn entry_of(&self, directory: DirectoryId, name: &[u8], row: &Row) -> Entry {
        let is_directory = row.is_directory();
        let size = match row.size {
            _ if is_directory => 0,
            SIZE_MAX => self.sides.sizes.get(directory, name).copied().unwrap_or(SIZE_MAX),
            size => size,
        };
        let (uid, gid) =
            self.sides.owners.get(usize::from(row.owner)).copied().unwrap_or((u32::MAX, u32::MAX));
        Entry {
            facts: Facts {
                entry_type: row.entry_type(),
                mode: row.type_and_mode & 0o7777,
                size,
                mtime: row.mtime,
                ctime: row.ctime,
                inode: row.inode,
                uid,
                gid,
            },
            seen: self.absolute(row.seen),
            scout: row.scout,
            flags: row.flags,
            directory: is_directory.then_some(DirectoryId(row.size as u32)),
        }
    }

    /// The path of a directory.
    pub fn path_of(&self, id: DirectoryId) -> Vec<u8> {
        let mut names = Vec::new();
        let mut at = id;
        while at != DirectoryId::ROOT
            && let Some(directory) = self.slab.get(at)
        {
            names.push(&*directory.name);
            at = directory.parent;
        }
        names.reverse();
        names.join(&b'/')
    }

    /// Adds an entry or replaces its state. A directory keeps its content; remove it first if it is another one.
    pub fn put(&mut self, directory: DirectoryId, name: &[u8], entry: &Entry) {
        self.put_all(directory, &[(name, *entry)]);
    }

    /// The same for many names of one directory, which ascend.
    pub fn put_all(&mut self, directory: DirectoryId, entries: &[(&[u8], Entry)]) {
        let mut changes = Vec::with_capacity(entries.len());
        for (name, entry) in entries {
            let Some(parent) = self.slab.get(directory) else { return };
            let old = parent.get(name);
            if let Some(old) = old
                && old.is_directory()
                && entry.facts.entry_type != EntryType::Directory
            {
                self.remove_content(DirectoryId(old.size as u32), directory, name);
            }
            let old_entry = old.map(|old| self.entry_of(directory, name, &old));
            let row = self.row_of(directory, name, entry, old.as_ref());
            self.account(directory, old.as_ref().zip(old_entry), Some((&row, entry)));
            changes.push(Change { name, row: Some(row) });
        }
        if let Some(directory) = self.slab.get_mut(directory) {
            directory.edit(&changes);
        }
    }

    fn row_of(&mut self, dir: DirectoryId, name: &[u8], entry: &Entry, old: Option<&Row>) -> Row {
        let facts = &entry.facts;
        let is_directory = facts.entry_type == EntryType::Directory;
        let size = if is_directory {
            match old.filter(|old| old.is_directory()) {
                Some(old) => old.size,
                None => u64::from(self.slab.insert(Directory::new(dir, name)).0),
            }
        } else {
            facts.size.min(SIZE_MAX)
        };
        if old.is_some_and(|old| !old.is_directory() && old.size == SIZE_MAX) {
            self.sides_mut().sizes.remove(dir, name);
        }
        if !is_directory && facts.size >= SIZE_MAX {
            self.sides_mut().sizes.insert(dir, name, facts.size);
        }
        let owner = match self.sides.known_owner((facts.uid, facts.gid)) {
            Some(owner) => owner,
            None => self.sides_mut().owner((facts.uid, facts.gid)),
        };
        Row {
            size,
            mtime: facts.mtime,
            ctime: facts.ctime,
            inode: facts.inode,
            type_and_mode: (facts.entry_type as u16) << 12 | facts.mode & 0o7777,
            owner,
            seen: self.relative(entry.seen),
            scout: entry.scout,
            flags: entry.flags,
        }
    }

    /// What a change of one row means for the sums of its directory.
    fn account(
        &mut self,
        directory: DirectoryId,
        old: Option<(&Row, Entry)>,
        new: Option<(&Row, &Entry)>,
    ) {
        let mut delta = Delta::default();
        let mut count = |row: &Row, size: u64, sign: i64| {
            if row.is_directory() {
                delta.directories += sign;
            } else {
                delta.files += sign;
            }
            if row.entry_type() == EntryType::File {
                delta.bytes += i128::from(sign) * i128::from(size);
            }
            delta.suspects += sign * i64::from(row.has(flag::SUSPECT));
            delta.blind += sign * i64::from(row.has(flag::BLIND));
        };
        if let Some((row, entry)) = &old {
            count(row, entry.facts.size, -1);
            self.histogram.remove(row.seen);
        }
        if let Some((row, entry)) = new {
            count(row, entry.facts.size, 1);
            self.histogram.add(row.seen);
            if !row.is_directory() {
                delta.newest_mtime = row.mtime;
            }
            if old.is_none_or(|(_, old)| !old.facts.is_same_state(&entry.facts)) {
                delta.activity = row.seen;
            }
        }
        self.deltas.entry(directory).or_default().add(&delta);
    }

    /// Removes an entry with everything below it; `at` counts as activity of its directory.
    pub fn remove(&mut self, directory: DirectoryId, name: &[u8], at: Tick) -> Option<Removed> {
        let row = self.slab.get(directory)?.get(name)?;
        let entry = self.entry_of(directory, name, &row);
        let mut entries = 1;
        if row.is_directory() {
            entries += self.remove_content(DirectoryId(row.size as u32), directory, name);
        }
        let top = name::join(&self.path_of(directory), name);
        self.account(directory, Some((&row, entry)), None);
        self.touch(directory, at);
        self.slab.get_mut(directory)?.edit(&[Change { name, row: None }]);
        let sides = self.sides_mut();
        sides.forget_entry(directory, name);
        sides.forget_paths(&top);
        Some(Removed { entry, entries })
    }

    /// Counts `at` as activity of a directory.
    pub fn touch(&mut self, directory: DirectoryId, at: Tick) {
        let activity = self.relative(at);
        self.deltas.entry(directory).or_default().add(&Delta { activity, ..Delta::default() });
    }

    /// Removes a directory's content and its number; how many entries it had.
    fn remove_content(&mut self, id: DirectoryId, parent: DirectoryId, name: &[u8]) -> u64 {
        debug_assert!(self.slab.get(id).is_none_or(|d| d.parent == parent && &*d.name == name));
        self.settle();
        let Some(sums) = self.slab.get(id).map(|d| d.sums) else { return 0 };
        let gone = Delta { activity: 0, ..Delta::of(&sums, -1) };
        self.deltas.entry(parent).or_default().add(&gone);
        let mut waiting = vec![id];
        while let Some(id) = waiting.pop() {
            let Some(directory) = self.slab.remove(id) else { continue };
            self.sides_mut().forget_directory(id);
            directory.for_each(|_, row| {
                self.histogram.remove(row.seen);
                if row.is_directory() {
                    waiting.push(DirectoryId(row.size as u32));
                }
            });
        }
        u64::from(sums.files) + u64::from(sums.directories)
    }

    /// Moves an entry with everything below it to a name that is free. Nothing happens if the new place is below the
    /// entry; whether it moved.
    pub fn relink(
        &mut self,
        from: (DirectoryId, &[u8]),
        to: (DirectoryId, &[u8]),
        entry: &Entry,
        at: Tick,
    ) -> bool {
        let Some(row) = self.slab.get(from.0).and_then(|d| d.get(from.1)) else { return false };
        let is_free = self.slab.get(to.0).is_some_and(|d| d.get(to.1).is_none());
        let moves = row.is_directory().then_some(DirectoryId(row.size as u32));
        let same_kind = row.is_directory() == (entry.facts.entry_type == EntryType::Directory);
        if !is_free || !same_kind || moves.is_some_and(|moves| self.is_below(to.0, moves)) {
            return false;
        }
        self.settle();
        let (old_path, new_path) =
            (name::join(&self.path_of(from.0), from.1), name::join(&self.path_of(to.0), to.1));
        let old = self.entry_of(from.0, from.1, &row);
        self.account(from.0, Some((&row, old)), None);
        self.touch(from.0, at);
        if let Some(directory) = self.slab.get_mut(from.0) {
            directory.edit(&[Change { name: from.1, row: None }]);
        }
        self.sides_mut().forget_entry(from.0, from.1);
        self.sides_mut().move_paths(&old_path, &new_path);
        let mut new_row = self.row_of(to.0, to.1, entry, Some(&row));
        if let Some(moves) = moves {
            new_row.size = row.size;
            let sums = self.slab.get_mut(moves).map(|directory| {
                (directory.parent, directory.name) = (to.0, to.1.into());
                directory.sums
            });
            if let Some(sums) = sums {
                self.deltas.entry(from.0).or_default().add(&Delta::of(&sums, -1));
                self.deltas.entry(to.0).or_default().add(&Delta::of(&sums, 1));
            }
        }
        self.account(to.0, None, Some((&new_row, entry)));
        self.touch(to.0, at);
        if let Some(directory) = self.slab.get_mut(to.0) {
            directory.edit(&[Change { name: to.1, row: Some(new_row) }]);
        }
        true
    }

    /// Whether `id` is `top` or below it.
    pub fn is_below(&self, id: DirectoryId, top: DirectoryId) -> bool {
        let mut at = id;
        loop {
            if at == top {
                return true;
            }
            match self.slab.get(at) {
                Some(directory) if at != DirectoryId::ROOT => at = directory.parent,
                _ => return false,
            }
        }
    }

    /// Sets the certificate of a directory.
    pub fn certify(&mut self, id: DirectoryId, certificate: Option<Certificate>) {
        if let Some(directory) = self.slab.get_mut(id) {
            directory.certify(certificate);
        }
    }

    /// Notes that a scout watches a directory, or does so no more.
    pub fn set_watched(&mut self, id: DirectoryId, scout: u8, watched: bool) {
        let scouts = self.sides_mut().watches.entry(scout).or_default();
        let changed = if watched { scouts.insert(id) } else { scouts.remove(&id) };
        if changed && let Some(directory) = self.slab.get_mut(id) {
            directory.watched = if watched {
                directory.watched.saturating_add(1)
            } else {
                directory.watched.saturating_sub(1)
            };
        }
    }

    /// Forgets all watches of a scout.
    pub fn end_watches(&mut self, scout: u8) {
        for id in self.sides_mut().watches.remove(&scout).unwrap_or_default() {
            if let Some(directory) = self.slab.get_mut(id) {
                directory.watched = directory.watched.saturating_sub(1);
            }
        }
    }

    /// Brings the sums up to date: each directory with changes tells its ancestors once. Called at the end of a slice.
    pub fn settle(&mut self) {
        for (id, delta) in std::mem::take(&mut self.deltas) {
            let mut at = id;
            while let Some(directory) = self.slab.get_mut(at) {
                directory.sums.apply(&delta);
                if at == DirectoryId::ROOT {
                    break;
                }
                at = directory.parent;
            }
        }
    }

    /// The sums of a directory.
    pub fn sums(&self, id: DirectoryId) -> Option<Sums> {
        debug_assert!(self.deltas.is_empty(), "sums are read after a slice");
        self.slab.get(id).map(|directory| directory.sums)
    }

    /// How many entries there are below the root.
    pub fn len(&self) -> u64 {
        self.sums(DirectoryId::ROOT).map_or(0, |s| u64::from(s.files) + u64::from(s.directories))
    }

    /// Whether nothing is known below the root.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A moment not after the oldest observation of an entry.
    pub fn oldest_seen(&self) -> Option<Tick> {
        self.histogram.oldest().map(|ticks| self.absolute(ticks))
    }

    /// Works `newest_mtime` out anew: a maximum cannot be subtracted from.
    pub fn recount_newest(&mut self) {
        // Children come before their parents: the deepest directories first.
        let mut order: Vec<(usize, DirectoryId)> = self
            .slab
            .iter()
            .map(|(id, _)| (self.path_of(id).split(|b| *b == b'/').count(), id))
            .collect();
        order.retain(|(_, id)| *id != DirectoryId::ROOT);
        order.sort_unstable_by(|a, b| b.cmp(a));
        order.push((0, DirectoryId::ROOT));
        for (_, id) in order {
            let mut newest = i64::MIN;
            if let Some(directory) = self.slab.get(id) {
                directory.for_each(|_, row| {
                    let mtime = match row.is_directory() {
                        true => {
                            self.slab.get(DirectoryId(row.size as u32)).map(|d| d.sums.newest_mtime)
                        }
                        false => Some(row.mtime),
                    };
                    newest = newest.max(mtime.unwrap_or(i64::MIN));
                });
            }
            if let Some(directory) = self.slab.get_mut(id) {
                directory.sums.newest_mtime = newest.max(0);
            }
        }
    }

    /// Gives times a new base when those of the old one are about to be used up. `now` is the stamp of a slice, so a
    /// replay does the same.
    pub fn renew_base(&mut self, now: Tick) {
        if now.since(self.base) < REBASE_AFTER {
            return;
        }
        let base = now.minus(REBASE_KEEPS);
        let by = u32::try_from(base.since(self.base)).unwrap_or(u32::MAX);
        let ids: Vec<DirectoryId> = self.slab.iter().map(|(id, _)| id).collect();
        let mut histogram = SeenHistogram::default();
        for id in ids {
            let Some(directory) = self.slab.get_mut(id) else { continue };
            directory.map_rows(|row| {
                row.seen = row.seen.saturating_sub(by);
                histogram.add(row.seen);
            });
            directory.sums.last_activity = directory.sums.last_activity.saturating_sub(by);
            if let Some(mut certificate) = directory.certificate() {
                certificate.begin = certificate.begin.saturating_sub(by);
                certificate.end = certificate.end.saturating_sub(by);
                directory.certify(Some(certificate));
            }
        }
        self.histogram = histogram;
        self.base = base;
    }

    /// Bytes that the tree has, counted: chunks, leaves with their counters, names.
    pub fn counted_bytes(&self) -> usize {
        self.slab.bytes() + self.slab.iter().map(|(_, d)| d.heap_bytes()).sum::<usize>()
    }
}
