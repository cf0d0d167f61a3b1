//! An entry after a state of it was taken or confirmed, with its flags and side tables.

use super::{
    apply::Apply,
    flags::{self, Circumstances},
    order::Observation,
};
use crate::{
    facts::Facts,
    time::{Tick, seconds},
    tree::{
        Entry, flag,
        sides::{BlindCause, BlindSpot, Suspect},
        slab::DirectoryId,
    },
    wire::Cause,
};

impl Apply<'_> {
    /// The entry after a state was taken or confirmed, with its side tables.
    #[expect(clippy::too_many_arguments, reason = "one entry, one observation")]
    pub(super) fn new_entry(
        &mut self,
        directory: DirectoryId,
        own: &[u8],
        known: Option<&Entry>,
        facts: &Facts,
        observation: &Observation,
        cause: Cause,
        changed: bool,
    ) -> Entry {
        let state = &mut *self.state;
        let circumstances = Circumstances {
            changed,
            first_snapshot: !state.had_snapshot,
            hot: changed
                && state.drift.is_hot(
                    facts.mtime.max(facts.ctime),
                    observation.during.end,
                    state.rules.hot_threshold,
                ),
        };
        let mut flags = flags::after(known, facts, observation, cause, circumstances);
        if cause == Cause::Closed && observation.live {
            self.sample_drift(directory, own, facts, observation);
        }
        if flags & flag::SUSPECT > 0 && observation.forced && cause == Cause::Asked {
            flags &= !self.sentinel(directory, own, observation, changed);
        }
        let before = known.map_or(0, |known| known.flags);
        let newer = known.is_none_or(|known| changed || known.seen <= observation.during.end);
        if !newer {
            // Who observed it last stays.
            flags = flags & !(flag::LIVE | flag::SNAPSHOT) | before & (flag::LIVE | flag::SNAPSHOT);
        }
        self.sync_sides(directory, own, before, flags, observation, cause == Cause::Written);
        Entry {
            facts: *facts,
            seen: if newer { observation.during.end } else { known.map_or(Tick::ZERO, |k| k.seen) },
            scout: if newer { observation.scout } else { known.map_or(0, |k| k.scout) },
            flags,
            directory: None,
        }
    }

    /// A look that was asked for, at a suspect: two that find the same, a threshold apart, clear it.
    fn sentinel(
        &mut self,
        directory: DirectoryId,
        own: &[u8],
        observation: &Observation,
        changed: bool,
    ) -> u8 {
        let threshold = self.state.rules.hot_threshold;
        let known = self.state.tree.sides.suspects.get(directory, own).copied();
        let since = known.map_or(observation.during.end, |suspect| suspect.since);
        let equal_since = known.and_then(|suspect| suspect.equal_since).filter(|_| !changed);
        if equal_since.is_some_and(|first| observation.during.begin >= first.plus(threshold)) {
            return flag::SUSPECT;
        }
        let equal_since = Some(equal_since.unwrap_or(observation.during.end));
        self.state.tree.sides_mut().suspects.insert(directory, own, Suspect { since, equal_since });
        0
    }

    fn sample_drift(
        &mut self,
        id: DirectoryId,
        own: &[u8],
        facts: &Facts,
        observation: &Observation,
    ) {
        let written = self.state.tree.sides.suspects.get(id, own).map(|suspect| suspect.since);
        let just_now = |at: Tick| observation.during.begin.since(at) <= seconds(1);
        if written.is_some_and(just_now) {
            self.state.drift.sample(observation.during.end, facts.ctime);
        }
    }

    /// Brings side tables in line with flags.
    pub(super) fn sync_sides(
        &mut self,
        directory: DirectoryId,
        own: &[u8],
        before: u8,
        flags: u8,
        observation: &Observation,
        written: bool,
    ) {
        let since = observation.during.end;
        if flags & flag::SUSPECT > 0 {
            let is_known = self.state.tree.sides.suspects.get(directory, own).is_some();
            // Every write counts anew.
            if !is_known || written {
                let suspect = Suspect { since, equal_since: None };
                self.state.tree.sides_mut().suspects.insert(directory, own, suspect);
            }
        } else if before & flag::SUSPECT > 0 {
            self.state.tree.sides_mut().suspects.remove(directory, own);
        }
        if flags & flag::BLIND > 0 {
            if self.state.tree.sides.blind.get(directory, own).is_none() {
                let cause = self.blind_cause(directory);
                self.state.tree.sides_mut().blind.insert(
                    directory,
                    own,
                    BlindSpot { cause, since },
                );
            }
        } else if before & flag::BLIND > 0 {
            self.state.tree.sides_mut().blind.remove(directory, own);
        }
        if before & flag::HELD > 0 {
            self.state.tree.sides_mut().held.remove(directory, own);
        }
    }

    pub(super) fn blind_cause(&self, id: DirectoryId) -> BlindCause {
        let tree = &self.state.tree;
        if tree.directory(id).is_none_or(|directory| directory.watched == 0) {
            return BlindCause::NotWatched;
        }
        match crate::ask::is_dirty(tree, id) {
            true => BlindCause::Overflow,
            false => BlindCause::NobodySaw,
        }
    }
}
