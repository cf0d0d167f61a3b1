//! A tree from its snapshot: directories come with the numbers that they had, in any order.

use super::{
    Entry, Tree,
    dir::{Certificate, Directory},
    flag,
    leaf::Draft,
    sides::Sides,
    slab::{DirectoryId, Slab},
    sums::{Delta, SeenHistogram},
};
use crate::{
    facts::{EntryType, Facts},
    time::Tick,
};
use std::{collections::BTreeMap, sync::Arc};

impl Tree {
    /// A tree without directories; [`Tree::finish_restore`] must follow.
    pub(crate) fn restored(base: Tick, sides: Sides) -> Tree {
        let facts = Facts { entry_type: EntryType::Directory, ..Facts::default() };
        let directory = Some(DirectoryId::ROOT);
        Tree {
            slab: Slab::default(),
            base,
            root: Entry { facts, seen: Tick::ZERO, scout: 0, flags: flag::IMPLIED, directory },
            sides: Arc::new(sides),
            histogram: SeenHistogram::default(),
            deltas: BTreeMap::new(),
        }
    }

    /// One directory with its entries.
    pub(crate) fn restore_directory(
        &mut self,
        id: DirectoryId,
        parent: DirectoryId,
        name: &[u8],
        certificate: Option<Certificate>,
        entries: Draft,
    ) {
        let mut directory = Directory::new(parent, name);
        directory.fill(entries);
        directory.certify(certificate);
        self.slab.insert_at(id, directory);
    }

    /// What of the sums does not follow from the entries.
    pub(crate) fn restore_sums(&mut self, id: DirectoryId, last_activity: u32, newest_mtime: i64) {
        if let Some(directory) = self.slab.get_mut(id) {
            directory.sums.last_activity = last_activity;
            directory.sums.newest_mtime = newest_mtime;
        }
    }

    /// Counts sums, ages and watches. False if the directories are no tree.
    pub(crate) fn finish_restore(&mut self) -> bool {
        if self.slab.get(DirectoryId::ROOT).is_none() {
            return false;
        }
        self.slab.collect_free();
        let directories = self.slab.len();
        let mut reached = 0;
        let mut waiting = vec![DirectoryId::ROOT];
        let mut deltas: Vec<(DirectoryId, Delta)> = Vec::new();
        while let Some(id) = waiting.pop() {
            let Some(directory) = self.slab.get(id) else { return false };
            reached += 1;
            if reached > directories {
                return false;
            }
            let mut delta = Delta::default();
            let mut is_tree = true;
            let histogram = &mut self.histogram;
            let sizes = &self.sides.sizes;
            let slab = &self.slab;
            directory.for_each(|own, row| {
                histogram.add(row.seen);
                delta.suspects += i64::from(row.has(flag::SUSPECT));
                delta.blind += i64::from(row.has(flag::BLIND));
                if row.is_directory() {
                    let below = DirectoryId(row.size as u32);
                    delta.directories += 1;
                    is_tree &= slab.get(below).is_some_and(|b| b.parent == id && &*b.name == own);
                    waiting.push(below);
                    return;
                }
                delta.files += 1;
                if row.entry_type() == EntryType::File {
                    let exact = sizes.get(id, own).copied().unwrap_or(row.size);
                    delta.bytes += i128::from(exact);
                }
            });
            if !is_tree {
                return false;
            }
            deltas.push((id, delta));
        }
        self.deltas.extend(deltas);
        self.settle();
        let watched: Vec<DirectoryId> = self.sides.watches.values().flatten().copied().collect();
        for id in watched {
            if let Some(directory) = self.slab.get_mut(id) {
                directory.watched = directory.watched.saturating_add(1);
            }
        }
        reached == directories
    }
}
