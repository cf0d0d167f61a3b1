//! Something is not there: what is deleted, and what is remembered so that older observations do not bring it back.

use super::{
    apply::Apply,
    brake::BrakeMode,
    order::Observation,
    place::{Barrier, Place},
    table::{Action, Known, Told, action},
};
use crate::{
    feed::ChangeKind,
    tree::{
        Entry, flag,
        sides::{BlindDeletion, Tombstone},
        slab::DirectoryId,
    },
    wire::{Cause, Tier, name},
};

impl Apply<'_> {
    /// A look found that an entry is not there.
    pub(super) fn missing(&mut self, path: &[u8], observation: &Observation, cause: Cause) {
        // A root that is missing is the business of the root guard.
        let Some((_, own)) = name::split(path) else { return };
        let (directory, entry) = match self.place(path, observation) {
            Place::Entry { directory, entry, .. } => (directory, entry),
            place => {
                if !matches!(place, Place::Absent { barrier: Barrier::Later, .. }) {
                    self.note_absence(path, observation);
                }
                let doubt = self.state.tree.sides.doubts.get(path);
                if doubt.is_some_and(|doubt| observation.was_true().begin >= doubt.not_before) {
                    self.state.tree.sides_mut().doubts.remove(path);
                }
                return;
            }
        };
        let known = match self.is_after(observation, &entry) {
            true if entry.has(flag::HELD) => Known::HeldAfter,
            true => Known::EntryAfter,
            false => Known::EntryNotAfter,
        };
        match action(known, Told::Missing) {
            Action::Delete => self.conclude_deletion(path, directory, &entry, observation, cause),
            Action::Witness if observation.forced => {
                let held = self.state.tree.sides.held.get(directory, own).copied();
                let rules = &self.state.rules;
                let is_late = held.is_some_and(|held| {
                    !held.needs_person
                        && rules.brake.mode == BrakeMode::Twice
                        && observation.during.begin >= held.during.end.plus(rules.witness_after)
                });
                if is_late {
                    self.conclude_deletion(path, directory, &entry, observation, Cause::Asked);
                }
            }
            Action::Doubt => self.doubt(path, None, observation, Some(&entry)),
            _ => {}
        }
    }

    /// Nothing is there and nothing was known: an older observation that comes later adds nothing.
    fn note_absence(&mut self, path: &[u8], observation: &Observation) {
        if !self.may_delete || observation.slack > self.state.rules.slack_max {
            return;
        }
        let (during, scout) = (observation.was_true(), observation.scout);
        self.keep_absence(path, Tombstone { during, scout, inode: 0, ctime: i64::MIN });
    }

    fn keep_absence(&mut self, path: &[u8], absence: Tombstone) {
        let forgotten = self.state.tree.sides_mut().note_absence(path, absence);
        if let Some((directory, _)) = forgotten.as_deref().and_then(name::split) {
            self.mark_dirty(directory, false, absence.during.end);
            self.out.relist.insert(directory.to_vec());
        }
    }

    /// A directory goes from its path. Names below that path that were found gone later stay gone: their tombstones
    /// belong to the directory, so they become absences, which belong to the path.
    pub(super) fn keep_later_deletions(&mut self, top: DirectoryId, observation: &Observation) {
        let tree = &self.state.tree;
        // Of two scouts either clock may be the one that is ahead.
        let is_later = |tombstone: &Tombstone| {
            let slack = match tombstone.scout == observation.scout && observation.scout != 0 {
                true => 0,
                false => self.slack_of(tombstone.scout) + observation.slack,
            };
            tombstone.during.end.plus(slack) > observation.during.end
        };
        let since = observation.during.end.minus(self.slack_of(0) + observation.slack);
        let later: Vec<_> = tree
            .sides
            .tombstones_since(since)
            .filter(|(id, _, tombstone)| is_later(tombstone) && tree.is_below(*id, top))
            .map(|(id, own, tombstone)| (id, own.to_vec(), *tombstone))
            .collect();
        for (id, own, tombstone) in later {
            let path = name::join(&self.state.tree.path_of(id), &own);
            self.state.tree.sides_mut().forget_tombstone(id, &own);
            self.keep_absence(&path, tombstone);
        }
    }

    /// Deletes, unless the scout may not or something below was seen later.
    pub(super) fn conclude_deletion(
        &mut self,
        path: &[u8],
        directory: DirectoryId,
        entry: &Entry,
        observation: &Observation,
        cause: Cause,
    ) {
        if !self.may_delete {
            return;
        }
        let is_vague = observation.slack > self.state.rules.slack_max;
        if is_vague || entry.directory.is_some_and(|id| !self.is_older(id, observation)) {
            return self.doubt(path, None, observation, Some(entry));
        }
        let saw_it = observation.tier == Tier::Realtime && cause != Cause::Asked;
        self.delete(path, directory, entry, observation, !saw_it);
    }

    /// Removes a subtree, leaves a tombstone, and tells it.
    pub(super) fn delete(
        &mut self,
        path: &[u8],
        directory: DirectoryId,
        entry: &Entry,
        observation: &Observation,
        blind: bool,
    ) {
        let Some((_, own)) = name::split(path) else { return };
        let cause = self.blind_cause(directory);
        let end = observation.during.end;
        self.remove(directory, own, entry, observation);
        self.bury(directory, own, entry, observation);
        if blind {
            let deletion = BlindDeletion { path: path.to_vec(), at: end, cause };
            self.state.tree.sides_mut().note_blind_deletion(deletion);
        }
        self.state.feed.push(path.to_vec(), ChangeKind::Removed);
    }

    /// Removes an entry with everything below it.
    pub(super) fn remove(
        &mut self,
        directory: DirectoryId,
        own: &[u8],
        entry: &Entry,
        observation: &Observation,
    ) {
        if let Some(id) = entry.directory {
            self.keep_later_deletions(id, observation);
        }
        if let Some(removed) = self.state.tree.remove(directory, own, observation.during.end) {
            self.entries = self.entries.saturating_sub(removed.entries);
        }
    }

    pub(super) fn bury(
        &mut self,
        id: DirectoryId,
        own: &[u8],
        entry: &Entry,
        observation: &Observation,
    ) {
        let tombstone = Tombstone {
            during: observation.was_true(),
            scout: observation.scout,
            inode: entry.facts.inode,
            ctime: entry.facts.ctime,
        };
        self.state.tree.sides_mut().bury(id, own, tombstone);
    }
}
