//! What a listing says: about the names that it has, and, if it is complete, about those that it does not have.

use super::{
    apply::{Apply, Attention, WalkOutcome},
    brake::{BrakeMode, PendingDeletion, PendingDeletions},
    order::{Observation, Verdict, order},
    place::{Barrier, Place},
    table::{Action, Known, Told, action},
};
use crate::{
    feed::ChangeKind,
    time::Tick,
    tree::{Entry, dir::Certificate, flag, sides::Held, slab::DirectoryId},
    wire::{Cause, Frame, Listed, Listing, Outcome, Tier, name},
};
use tenure_kernel::ids::EntityId;

/// Paths that attention names.
const SAMPLE: usize = 10;

impl Apply<'_> {
    pub(super) fn listing(&mut self, listing: &Listing, observation: &Observation, frame: &Frame) {
        self.exists(&listing.path, &listing.directory, observation, Told::Named, Cause::Asked);
        let id = self.state.tree.find_directory(&listing.path);
        let entry = self.state.tree.find(&listing.path);
        let (Some(id), Some(entry)) = (id, entry) else { return };
        if entry.facts.inode != listing.directory.inode {
            // Another directory is shown at this path, so these names are not its names.
            return;
        }
        let full = self.named(listing, id, observation);
        if let Some(end) = listing.end {
            let end = self.trusted(end, full, observation, frame);
            self.not_named(listing, id, end, observation, frame);
            self.certify(listing, id, end, observation);
        }
    }

    /// How far the end of a listing can be trusted here.
    fn trusted(
        &self,
        end: Outcome,
        full: bool,
        observation: &Observation,
        frame: &Frame,
    ) -> Outcome {
        let rules = &self.state.rules;
        if !rules.protections.certificates {
            return Outcome::Complete;
        }
        let took = observation.during.end.since(observation.during.begin);
        if full || frame.preamble.excludes != rules.excludes.digest() || !self.may_delete {
            return Outcome::Partial;
        }
        // Tombstones of what was deleted since its begin may be gone.
        if end == Outcome::Complete && took > rules.evidence_age_max {
            return Outcome::Racy;
        }
        end
    }

    /// Takes the names that a listing has; whether some found no room. Most of them are plain, and go into the tree
    /// together; the others go the way of looks.
    fn named(&mut self, listing: &Listing, id: DirectoryId, observation: &Observation) -> bool {
        // What speaks against the directory speaks against every name in it.
        let is_clear = match name::split(&listing.path) {
            None => true,
            Some(_) => matches!(
                self.place(&listing.path, observation),
                Place::Entry { barrier: Barrier::None, .. }
            ),
        };
        let is_clear = is_clear && self.certificate_barrier(id, observation) == Barrier::None;
        let mut plain: Vec<(&[u8], Entry)> = Vec::with_capacity(listing.entries.len());
        let mut full = false;
        let mut special = Vec::new();
        for listed in &listing.entries {
            if self.state.rules.excludes.is_excluded(&listed.name) {
                continue;
            }
            let known = self.state.tree.entry(id, &listed.name);
            match is_clear
                .then(|| self.plain(listing, id, listed, known.as_ref(), observation))
                .flatten()
            {
                Some(Plain::Put(entry)) => plain.push((&listed.name, entry)),
                Some(Plain::NoRoom) => full = true,
                None => special.push(listed),
            }
        }
        self.state.tree.put_all(id, &plain);
        for listed in special {
            let path = name::join(&listing.path, &listed.name);
            match &listed.facts {
                Some(facts) => self.exists(&path, facts, observation, Told::Named, Cause::Asked),
                None => self.name_alone(&path, id, &listed.name, listing.is_whole, observation),
            }
        }
        full || self.out.attention.contains(&Attention::TreeFull)
    }

    /// An entry without a doubt, a tombstone, a brake or a change of what it is.
    fn plain(
        &mut self,
        listing: &Listing,
        id: DirectoryId,
        listed: &Listed,
        known: Option<&Entry>,
        observation: &Observation,
    ) -> Option<Plain> {
        let facts = listed.facts.as_ref()?;
        let sides = &self.state.tree.sides;
        if sides.tombstones.get(id, &listed.name).is_some() {
            return None;
        }
        if !(sides.doubts.is_empty() && sides.absences.is_empty()) {
            let path = name::join(&listing.path, &listed.name);
            if sides.doubts.contains_key(&path) || sides.absences.contains_key(&path) {
                return None;
            }
        }
        let changed = match known {
            None => {
                if !self.has_room() {
                    return Some(Plain::NoRoom);
                }
                true
            }
            Some(known) if known.flags & (flag::DOUBT | flag::HELD | flag::IMPLIED) > 0 => {
                return None;
            }
            Some(known) if !known.facts.is_same_object(facts) => return None,
            Some(known) => match order(known, self.slack_of(known.scout), facts, observation) {
                Verdict::Confirm => false,
                Verdict::Take => true,
                _ => return None,
            },
        };
        let facts = known.filter(|_| !changed).map_or(*facts, |known| known.facts);
        let entry =
            self.new_entry(id, &listed.name, known, &facts, observation, Cause::Asked, changed);
        if changed {
            let path = name::join(&listing.path, &listed.name);
            let kind = match known {
                None => ChangeKind::Added(facts),
                Some(_) => ChangeKind::Changed(facts),
            };
            self.state.feed.push(path, kind);
        }
        Some(Plain::Put(entry))
    }

    /// The name is there, and nothing else is known: it is not deleted, and somebody looks at it.
    fn name_alone(
        &mut self,
        path: &[u8],
        id: DirectoryId,
        own: &[u8],
        is_whole: bool,
        observation: &Observation,
    ) {
        self.out.look.insert(path.to_vec(), observation.during.end.plus(1));
        // Of a listing in parts only the time says which names it had.
        if !is_whole
            && let Some(mut entry) = self.state.tree.entry(id, own)
            && entry.seen < observation.during.end
        {
            (entry.seen, entry.scout) = (observation.during.end, observation.scout);
            entry.flags &= !flag::LIVE;
            self.state.tree.put(id, own, &entry);
        }
    }

    /// Judges the entries that the listing does not name.
    fn not_named(
        &mut self,
        listing: &Listing,
        id: DirectoryId,
        end: Outcome,
        observation: &Observation,
        frame: &Frame,
    ) {
        let told = match end {
            Outcome::Complete => Told::NotNamedComplete,
            Outcome::Racy => Told::NotNamedRacy,
            Outcome::Partial => return,
        };
        // Times and ages of a listing count from its begin.
        let from_begin = Observation { cache: 0, ..*observation };
        let mut absent: Vec<(Vec<u8>, Entry)> = Vec::new();
        if let Some(directory) = self.state.tree.directory(id) {
            directory.for_each(|own, row| {
                let entry = self.state.tree.entry_of(id, own, &row);
                let is_named = match listing.is_whole {
                    true => {
                        listing.entries.binary_search_by(|e| e.name.as_slice().cmp(own)).is_ok()
                    }
                    false => {
                        entry.scout == observation.scout
                            && !entry.has(flag::LIVE)
                            && entry.seen >= observation.during.begin
                    }
                };
                if !is_named && !self.state.rules.excludes.is_excluded(own) {
                    absent.push((own.to_vec(), entry));
                }
            });
        }
        if absent.is_empty() {
            return;
        }
        let mut deletions = PendingDeletions::default();
        for (own, entry) in absent {
            let path = name::join(&listing.path, &own);
            let after = !self.state.rules.protections.intervals
                || from_begin.is_after(entry.seen, entry.scout, self.slack_of(entry.scout));
            let known = match after {
                true if entry.has(flag::HELD) => Known::HeldAfter,
                true => Known::EntryAfter,
                false => Known::EntryNotAfter,
            };
            match action(known, told) {
                Action::DeleteBraked if self.is_vague(&entry, &from_begin) => {
                    self.doubt(&path, None, observation, Some(&entry));
                }
                Action::DeleteBraked => deletions.push(PendingDeletion {
                    path,
                    during: observation.during,
                    scout: observation.scout,
                    slack: observation.slack,
                    entries: self.subtree_entries(&entry),
                }),
                Action::Witness => self.second_witness(&path, id, &own, &entry, observation),
                Action::Doubt => self.doubt(&path, None, observation, Some(&entry)),
                _ => {}
            }
        }
        // An empty root is what a lost mount looks like.
        deletions.needs_person = listing.path.is_empty()
            && listing.entries.is_empty()
            && !deletions.tops.is_empty()
            && self.state.rules.protections.brake;
        self.brake(deletions, frame.walk);
    }

    /// How many entries go with one, itself included.
    fn subtree_entries(&mut self, entry: &Entry) -> u64 {
        self.state.tree.settle();
        let sums = entry.directory.and_then(|id| self.state.tree.sums(id)).unwrap_or_default();
        1 + u64::from(sums.files) + u64::from(sums.directories)
    }

    /// Whether the deletion of an entry must be doubted: the clock is vague, or something below was seen later.
    fn is_vague(&self, entry: &Entry, observation: &Observation) -> bool {
        observation.slack > self.state.rules.slack_max
            || entry.directory.is_some_and(|id| !self.is_older(id, observation))
    }

    fn second_witness(
        &mut self,
        path: &[u8],
        id: DirectoryId,
        own: &[u8],
        entry: &Entry,
        observation: &Observation,
    ) {
        let rules = &self.state.rules;
        let is_late = self.state.tree.sides.held.get(id, own).is_some_and(|held| {
            !held.needs_person
                && rules.brake.mode == BrakeMode::Twice
                && observation.during.begin >= held.during.end.plus(rules.witness_after)
        });
        if is_late {
            self.conclude_deletion(path, id, entry, observation, Cause::Asked);
        }
    }

    /// Deletions of a walk wait for its end; others are judged at once.
    fn brake(&mut self, deletions: PendingDeletions, walk: Option<EntityId>) {
        if deletions.tops.is_empty() {
            return;
        }
        let Some(walk) = walk else { return self.judge_deletions(deletions, None) };
        let pending = self.state.pending.entry(walk).or_default();
        pending.needs_person |= deletions.needs_person;
        for top in deletions.tops {
            pending.push(top);
        }
        if pending.must_hold(&self.state.rules.brake, self.entries) {
            let all = PendingDeletions { pulled: true, ..std::mem::take(pending) };
            pending.pulled = true;
            pending.needs_person = all.needs_person;
            self.judge_deletions(all, Some(walk));
        }
    }

    /// Carries deletions out, or holds them all.
    fn judge_deletions(&mut self, deletions: PendingDeletions, walk: Option<EntityId>) {
        let rules = &self.state.rules;
        let hold = rules.protections.brake && deletions.must_hold(&rules.brake, self.entries);
        let mut held = Vec::new();
        for top in &deletions.tops {
            let observation = Observation {
                during: top.during,
                scout: top.scout,
                slack: top.slack,
                cache: 0,
                forced: true,
                tier: Tier::Audit,
                live: false,
            };
            let Some((directory, own)) = name::split(&top.path) else { continue };
            let Some(id) = self.state.tree.find_directory(directory) else { continue };
            let Some(mut entry) = self.state.tree.entry(id, own) else { continue };
            // It may have been seen while the deletion waited.
            if !self.is_after(&observation, &entry) {
                continue;
            }
            if !hold {
                self.conclude_deletion(&top.path, id, &entry, &observation, Cause::Asked);
                continue;
            }
            entry.flags |= flag::HELD;
            self.state.tree.put(id, own, &entry);
            let needs_person =
                deletions.needs_person || self.state.rules.brake.mode == BrakeMode::Ask;
            let during = top.during;
            let value = Held { walk, during, scout: top.scout, needs_person };
            self.state.tree.sides_mut().held.insert(id, own, value);
            if !needs_person {
                let not_before = top.during.end.plus(self.state.rules.witness_after);
                self.out.look.insert(top.path.clone(), not_before);
            }
            held.push(top.path.clone());
        }
        if !held.is_empty() {
            held.truncate(SAMPLE);
            self.out.attention.push(Attention::BrakePulled {
                walk,
                entries: deletions.entries,
                of: self.entries,
                sample: held,
            });
        }
    }

    fn certify(
        &mut self,
        listing: &Listing,
        id: DirectoryId,
        end: Outcome,
        observation: &Observation,
    ) {
        let tree = &mut self.state.tree;
        let begin = tree.relative(observation.during.begin);
        let known = tree.directory(id).and_then(|directory| directory.certificate());
        if end != Outcome::Complete || known.is_some_and(|known| known.begin > begin) {
            return;
        }
        let certificate = Certificate {
            begin,
            end: tree.relative(observation.during.end),
            mtime: listing.directory.mtime,
            ctime: listing.directory.ctime,
        };
        tree.certify(id, Some(certificate));
        let is_paid = tree
            .sides
            .dirty
            .get(&listing.path)
            .is_some_and(|region| !region.subtree && region.since < observation.during.begin);
        if is_paid {
            tree.sides_mut().dirty.remove(&listing.path);
        }
    }

    pub(super) fn walk_ended(
        &mut self,
        walk: EntityId,
        tier: Tier,
        began: Tick,
        outcome: WalkOutcome,
    ) {
        if let Some(pending) = self.state.pending.remove(&walk) {
            self.judge_deletions(pending, Some(walk));
        }
        if outcome != WalkOutcome::Complete {
            return;
        }
        match tier {
            Tier::Snapshot => self.state.had_snapshot = true,
            Tier::Audit => {}
            _ => return,
        }
        self.state.tree.settle();
        self.state.tree.recount_newest();
        self.state.tree.sides_mut().dirty.retain(|_, region| region.since >= began);
    }

    /// A person decides about everything that the brake holds.
    pub(super) fn settle_brake(&mut self, delete: bool) {
        let held: Vec<(DirectoryId, Vec<u8>, Held)> = self
            .state
            .tree
            .sides
            .held
            .iter()
            .map(|(id, own, held)| (id, own.to_vec(), *held))
            .collect();
        for (id, own, held) in held {
            // The directory itself may be gone with one that was deleted before it.
            let Some(mut entry) = self.state.tree.entry(id, &own) else { continue };
            let path = name::join(&self.state.tree.path_of(id), &own);
            entry.flags &= !flag::HELD;
            self.state.tree.put(id, &own, &entry);
            self.state.tree.sides_mut().held.remove(id, &own);
            if delete {
                let observation = Observation {
                    during: held.during,
                    scout: held.scout,
                    slack: 0,
                    cache: 0,
                    forced: true,
                    tier: Tier::Audit,
                    live: false,
                };
                if self.is_after(&observation, &entry) {
                    self.conclude_deletion(&path, id, &entry, &observation, Cause::Asked);
                }
            }
        }
        for pending in self.state.pending.values_mut() {
            (pending.pulled, pending.needs_person) = (false, false);
        }
    }
}

enum Plain {
    Put(Entry),
    NoRoom,
}
