//! Something is there: a look found it, a listing names it, or its directory is as it was.

use super::{
    apply::Apply,
    order::{Observation, Verdict, order},
    place::{Barrier, Place},
    table::{Action, Known, Told, action},
};
use crate::{
    facts::{EntryType, Facts},
    feed::ChangeKind,
    tree::{Entry, flag, slab::DirectoryId},
    wire::{Cause, Finding, Look, Silent, name},
};

impl Apply<'_> {
    pub(super) fn look(&mut self, look: &Look, observation: &Observation) {
        match &look.finding {
            Finding::Exists(facts) => {
                self.exists(&look.path, facts, observation, Told::Exists, look.cause);
            }
            Finding::Missing => self.missing(&look.path, observation, look.cause),
            Finding::Failed(_) => {}
        }
    }

    /// A look found an entry, or a listing names it.
    pub(super) fn exists(
        &mut self,
        path: &[u8],
        facts: &Facts,
        observation: &Observation,
        told: Told,
        cause: Cause,
    ) {
        let Some((_, own)) = name::split(path) else {
            return self.root_exists(facts, observation);
        };
        if self.state.rules.excludes.is_excluded(own) {
            return;
        }
        let (ancestor, barrier, has_tombstone) = match self.place(path, observation) {
            Place::Entry { barrier: Barrier::Later, .. } => return,
            Place::Entry { directory, entry, .. } => {
                let known = match self.is_after(observation, &entry) {
                    true if entry.has(flag::HELD) => Known::HeldAfter,
                    true => Known::EntryAfter,
                    false => Known::EntryNotAfter,
                };
                if let Action::Order | Action::Release = action(known, told) {
                    self.ordered(path, directory, &entry, facts, observation, cause);
                }
                return;
            }
            Place::Absent { barrier, has_tombstone, known } => (known, barrier, has_tombstone),
            Place::UnderFile { path: top, directory, entry, barrier } => {
                let is_after = self.is_after(observation, &entry);
                match is_after && barrier == Barrier::None {
                    true => self.imply_directory(&top, directory, &entry, observation),
                    // A directory of which nothing is shown would have no moment at which it was seen.
                    false => self.doubt(&top, None, observation, Some(&entry)),
                }
                if !is_after {
                    return;
                }
                (top, barrier, false)
            }
        };
        let known = match barrier {
            Barrier::None if has_tombstone => Known::TombstoneAfter,
            Barrier::None => Known::Nothing,
            _ => Known::TombstoneNotAfter,
        };
        match (action(known, told), barrier) {
            (Action::Add | Action::Revive, _) => {
                self.add(path, &ancestor, facts, observation, cause);
            }
            (Action::DropOrDoubt, Barrier::Overlap(Some(deleted)))
                if deleted.inode == facts.inode && facts.ctime <= deleted.ctime => {}
            (Action::DropOrDoubt, Barrier::Overlap(_)) => {
                self.doubt(path, Some(*facts), observation, None);
            }
            _ => {}
        }
    }

    /// The rules of order decide about an entry that is known.
    fn ordered(
        &mut self,
        path: &[u8],
        directory: DirectoryId,
        known: &Entry,
        facts: &Facts,
        observation: &Observation,
        cause: Cause,
    ) {
        let Some((_, own)) = name::split(path) else { return };
        let doubt = self.state.tree.sides.doubts.get(path).copied();
        let mut verdict = order(known, self.slack_of(known.scout), facts, observation);
        if !self.state.rules.protections.intervals && verdict == Verdict::KeepInDoubt {
            verdict = Verdict::Take;
        }
        // Of a directory that is implied only the type is known.
        let replaces = match known.has(flag::IMPLIED) {
            true => facts.entry_type != EntryType::Directory,
            false => !known.facts.is_same_object(facts),
        };
        // Something below was seen later, or nobody can tell: the content of a directory does not go with a guess.
        let keeps_content = |id| verdict == Verdict::TakeInDoubt || !self.is_older(id, observation);
        if let Verdict::Take | Verdict::TakeInDoubt = verdict
            && replaces
            && known.directory.is_some_and(keeps_content)
        {
            verdict = Verdict::KeepInDoubt;
        }
        match verdict {
            Verdict::Drop => return,
            Verdict::KeepInDoubt => {
                return self.doubt(path, Some(*facts), observation, Some(known));
            }
            Verdict::Confirm => {
                // Owner and mode differ between hosts; they change with the ctime.
                let facts = known.facts;
                let entry =
                    self.new_entry(directory, own, Some(known), &facts, observation, cause, false);
                self.state.tree.put(directory, own, &entry);
            }
            Verdict::Take | Verdict::TakeSetBack | Verdict::TakeInDoubt => {
                let mut entry =
                    self.new_entry(directory, own, Some(known), facts, observation, cause, true);
                let in_doubt = verdict == Verdict::TakeInDoubt || doubt.is_some();
                if (in_doubt || known.has(flag::IMPLIED)) && known.seen > entry.seen {
                    // What comes next must be later than both: the state that is not shown may be the later one.
                    (entry.seen, entry.scout) = (known.seen, 0);
                }
                if verdict == Verdict::TakeSetBack {
                    entry.flags |= flag::SET_BACK | flag::SUSPECT;
                    self.sync_sides(directory, own, known.flags, entry.flags, observation, true);
                }
                if replaces && verdict == Verdict::Take {
                    // Also of a file: what is below a directory of an earlier time must not come back.
                    self.bury(directory, own, known, observation);
                }
                if replaces && known.directory.is_some() {
                    self.remove(directory, own, known, observation);
                    // Another entry takes its place.
                    self.entries += 1;
                    // The removal forgot what is kept for the name.
                    self.sync_sides(directory, own, 0, entry.flags, observation, true);
                }
                self.state.tree.put(directory, own, &entry);
                if let Some(doubt) = doubt {
                    // Another object is there, and the doubt about the name stays until a look can settle it.
                    self.state.tree.sides_mut().doubts.insert(path.to_vec(), doubt);
                    self.set_flag(path, flag::DOUBT, true);
                }
                let kind = match replaces {
                    true => ChangeKind::Replaced(*facts),
                    false => ChangeKind::Changed(*facts),
                };
                self.state.feed.push(path.to_vec(), kind);
                if verdict == Verdict::TakeInDoubt {
                    return self.doubt(path, Some(known.facts), observation, Some(known));
                }
            }
        }
        self.settle_doubt(path, directory, observation);
    }

    /// Adds an entry that is not known, with parents that are implied by it.
    fn add(
        &mut self,
        path: &[u8],
        known: &[u8],
        facts: &Facts,
        observation: &Observation,
        cause: Cause,
    ) {
        let Some((parent, own)) = name::split(path) else { return };
        if observation.live && self.state.rules.case_folding {
            self.mark_dirty(known, false, observation.during.end);
            self.out.relist.insert(known.to_vec());
            return;
        }
        let Some(mut directory) = self.state.tree.find_directory(known) else { return };
        let mut at = known.to_vec();
        for implied in
            name::names(parent[known.len()..].strip_prefix(b"/").unwrap_or(&parent[known.len()..]))
        {
            if !self.has_room() {
                return;
            }
            let entry = implied_directory(observation);
            self.state.tree.put(directory, implied, &entry);
            at = name::join(&at, implied);
            self.state.feed.push(at.clone(), ChangeKind::Added(entry.facts));
            // It was just put there.
            let Some(next) = self.state.tree.entry(directory, implied).and_then(|e| e.directory)
            else {
                return;
            };
            directory = next;
        }
        if known != parent {
            self.out.relist.insert(known.to_vec());
        }
        if !self.has_room() {
            return;
        }
        let entry = self.new_entry(directory, own, None, facts, observation, cause, true);
        self.state.tree.put(directory, own, &entry);
        self.state.feed.push(path.to_vec(), ChangeKind::Added(*facts));
        self.settle_doubt(path, directory, observation);
    }

    /// Something was seen below what was a file: it is a directory now, of which nothing else is known.
    fn imply_directory(
        &mut self,
        path: &[u8],
        directory: DirectoryId,
        known: &Entry,
        observation: &Observation,
    ) {
        let Some((parent, own)) = name::split(path) else { return };
        let implied = implied_directory(observation);
        self.bury(directory, own, known, observation);
        self.state.tree.put(directory, own, &implied);
        self.state.tree.sides_mut().forget_entry(directory, own);
        self.state.feed.push(path.to_vec(), ChangeKind::Replaced(implied.facts));
        self.out.relist.insert(parent.to_vec());
    }

    fn root_exists(&mut self, facts: &Facts, observation: &Observation) {
        let root = self.state.tree.root();
        if facts.entry_type == EntryType::Directory && self.is_after(observation, &root) {
            let entry = Entry {
                facts: *facts,
                seen: observation.during.end,
                scout: observation.scout,
                flags: 0,
                directory: None,
            };
            self.state.tree.set_root(entry);
        }
    }

    pub(super) fn silent(&mut self, silent: &Silent, observation: &Observation) {
        self.exists(&silent.path, &silent.directory, observation, Told::Exists, Cause::Asked);
        let id = self.state.tree.find_directory(&silent.path);
        let known = self.state.tree.find(&silent.path);
        let certificate = id.and_then(|id| self.state.tree.directory(id)?.certificate());
        let (Some(id), Some(known), Some(mut certificate)) = (id, known, certificate) else {
            self.out.relist.insert(silent.path.clone());
            return;
        };
        let is_same = known.facts.inode == silent.directory.inode
            && (certificate.mtime, certificate.ctime)
                == (silent.directory.mtime, silent.directory.ctime);
        if !is_same {
            self.out.relist.insert(silent.path.clone());
        } else if observation.is_after(
            self.state.tree.absolute(certificate.end),
            0,
            observation.slack,
        ) {
            // The names are what they were: the listing might have been made now.
            certificate.begin = self.state.tree.relative(observation.during.begin);
            certificate.end = self.state.tree.relative(observation.during.end);
            self.state.tree.certify(id, Some(certificate));
        }
    }
}

/// A parent of something that was seen: it was there at that moment.
fn implied_directory(observation: &Observation) -> Entry {
    Entry {
        facts: Facts { entry_type: EntryType::Directory, ..Facts::default() },
        seen: observation.during.end,
        scout: observation.scout,
        flags: flag::IMPLIED,
        directory: None,
    }
}
