//! A rename that the kernel reported in two halves. The event has no date, so the scout looked at both names after it.

use super::{
    apply::Apply,
    order::Observation,
    place::{Barrier, Place},
    table::{Action, Known, Told, action},
};
use crate::{
    feed::ChangeKind,
    tree::{Entry, flag, slab::DirectoryId},
    wire::{Cause, Finding, Moved, name},
};

impl Apply<'_> {
    /// The subtree moves if the inode at the new name is the one that was known at the old name, and nothing later is
    /// known at either. In every other case the two looks are taken for themselves.
    pub(super) fn moved(&mut self, moved: &Moved, observation: &Observation) {
        let Some((directory, entry)) = self.relink(moved, observation) else {
            self.found(&moved.from, &moved.at_from, observation);
            self.found(&moved.to, &moved.at_to, observation);
            return;
        };
        if let Finding::Exists(facts) = &moved.at_from {
            self.exists(&moved.from, facts, observation, Told::Exists, Cause::Event);
        }
        if !matches!(moved.at_from, Finding::Failed(_))
            && let Some((_, own)) = name::split(&moved.from)
        {
            // Also if something else is there: what was below the old name must not come back below it.
            self.bury(directory, own, &entry, observation);
        }
    }

    fn found(&mut self, path: &[u8], finding: &Finding, observation: &Observation) {
        match finding {
            Finding::Exists(facts) => {
                self.exists(path, facts, observation, Told::Exists, Cause::Event);
            }
            Finding::Missing => self.missing(path, observation, Cause::Event),
            Finding::Failed(_) => {}
        }
    }

    /// Moves the subtree; what was at the old name, and in which directory, if it moved.
    fn relink(&mut self, moved: &Moved, observation: &Observation) -> Option<(DirectoryId, Entry)> {
        let Finding::Exists(facts) = &moved.at_to else { return None };
        let ((_, from_name), (to_parent, to_name)) =
            name::split(&moved.from).zip(name::split(&moved.to))?;
        let Place::Entry { directory: from, entry, barrier: Barrier::None } =
            self.place(&moved.from, observation)
        else {
            return None;
        };
        let to = self.state.tree.find_directory(to_parent)?;
        let known = match self.is_after(observation, &entry) {
            true if entry.has(flag::HELD) => Known::HeldAfter,
            true => Known::EntryAfter,
            false => Known::EntryNotAfter,
        };
        if !self.may_delete
            || action(known, Told::Moved) != Action::Relink
            || !entry.facts.is_same_object(facts)
            || self.state.rules.excludes.is_excluded(to_name)
            || name::is_within(&moved.to, &moved.from)
            || entry.directory.is_some_and(|id| !self.is_older(id, observation))
        {
            return None;
        }
        // What was at the new name is gone; if it was seen later than this, nobody can tell.
        match self.place(&moved.to, observation) {
            Place::Entry { directory, entry, .. } => {
                let is_older = entry.directory.is_none_or(|id| self.is_older(id, observation));
                if !self.is_after(observation, &entry)
                    || !is_older
                    || name::is_within(&moved.from, &moved.to)
                {
                    return None;
                }
                self.bury(directory, to_name, &entry, observation);
                self.remove(directory, to_name, &entry, observation);
            }
            Place::Absent { barrier: Barrier::None, .. } => {}
            _ => return None,
        }
        let mut new =
            self.new_entry(to, to_name, Some(&entry), facts, observation, Cause::Event, true);
        new.flags &= !flag::DOUBT;
        let end = observation.during.end;
        if let Some(id) = entry.directory {
            self.keep_later_deletions(id, observation);
        }
        if !self.state.tree.relink((from, from_name), (to, to_name), &new, end) {
            return None;
        }
        let kind = ChangeKind::Moved { to: moved.to.clone(), facts: *facts };
        self.state.feed.push(moved.from.clone(), kind);
        if entry.directory.is_some() {
            // Events below the old name may have been lost with it.
            self.mark_dirty(&moved.to, true, end);
        }
        Some((from, entry))
    }
}
