//! Which of two states of one name is shown. Time decides where it can: an observation that began after the last one
//! ended is later. Storage time (ctime) orders states of *one* inode and nothing else. What neither orders is a doubt.

use crate::{
    facts::{EntryType, Facts},
    time::{Interval, Tick},
    tree::{Entry, flag},
    wire::Tier,
};

/// One observation: who made it, when, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Observation {
    /// When.
    pub during: Interval,
    /// The scout's number; 0 = any.
    pub scout: u8,
    /// Ticks by which its view time may be wrong.
    pub slack: u64,
    /// Ticks for which its answer may be old: the mount's attribute cache, or zero if it was forced.
    pub cache: u64,
    /// It went past the caches of the mount.
    pub forced: bool,
    /// What made the scout look.
    pub tier: Tier,
    /// A look of the live lane, of which one is under way for each path and scout.
    pub live: bool,
}

impl Observation {
    fn widening(&self, scout: u8, slack: u64) -> u64 {
        // Within one scout there is one clock.
        if scout == self.scout && scout != 0 { 0 } else { self.slack + slack }
    }

    /// When what it says was true: an answer out of a cache may be older than the question.
    pub fn was_true(&self) -> Interval {
        Interval { begin: self.during.begin.minus(self.cache), end: self.during.end }
    }

    /// Whether it was made after `end`, which `scout` observed with this slack.
    pub fn is_after(&self, end: Tick, scout: u8, slack: u64) -> bool {
        let begin = self.was_true().begin.minus(self.widening(scout, slack));
        begin > end
    }

    /// Whether it ended before `begin`, which `scout` observed with this slack.
    pub fn is_before(&self, begin: Tick, scout: u8, slack: u64) -> bool {
        self.during.end.plus(self.widening(scout, slack)) < begin
    }

    /// Whether it was made after the last observation of an entry. Looks of one path by one scout on the live lane come
    /// in order; everything else goes by intervals.
    pub fn is_after_entry(&self, known: &Entry, slack: u64) -> bool {
        let in_order =
            self.live && known.has(flag::LIVE) && known.scout == self.scout && self.scout != 0;
        in_order || self.is_after(known.seen, known.scout, slack)
    }
}

/// What becomes of the facts of an observation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The same state: it was seen once more.
    Confirm,
    /// The new state is shown.
    Take,
    /// The new state is shown; the storage's clock went back, so the entry is suspect.
    TakeSetBack,
    /// The observation is older than what is known.
    Drop,
    /// What is known stays, and is in doubt.
    KeepInDoubt,
    /// The new state is shown because its source is better, and is in doubt.
    TakeInDoubt,
}

/// The rules of order; the first that matches decides. `slack` is that of the scout that observed `known`.
pub fn order(known: &Entry, slack: u64, facts: &Facts, observation: &Observation) -> Verdict {
    let after = observation.is_after_entry(known, slack);
    let same_inode = known.facts.inode == facts.inode && known.facts.entry_type == facts.entry_type;
    // Of a directory that is implied only the type is known.
    if known.has(flag::IMPLIED) && (after || facts.entry_type == EntryType::Directory) {
        return Verdict::Take;
    }
    if known.facts.is_same_state(facts) {
        return Verdict::Confirm;
    }
    if same_inode && facts.ctime > known.facts.ctime && (!known.has(flag::SET_BACK) || after) {
        return Verdict::Take;
    }
    if same_inode && facts.ctime < known.facts.ctime {
        return match observation.forced && after {
            true => Verdict::TakeSetBack,
            false => Verdict::Drop,
        };
    }
    if after {
        return Verdict::Take;
    }
    let known_rank = match known.flags & (flag::LIVE | flag::SNAPSHOT) {
        0 => Tier::Audit.rank(),
        flag::SNAPSHOT => Tier::Snapshot.rank(),
        _ => Tier::Realtime.rank(),
    };
    match observation.tier.rank() > known_rank {
        true => Verdict::TakeInDoubt,
        false => Verdict::KeepInDoubt,
    }
}
