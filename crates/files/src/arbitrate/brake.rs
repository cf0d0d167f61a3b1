//! Deletions that listings of one walk conclude wait until the walk ends. If there are too many, all of them are held:
//! the entries stay, flagged, until a second witness or a person decides. A storage that answers wrongly then empties no view.

use crate::time::Interval;

/// What happens to deletions above the limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum BrakeMode {
    /// They are held, and carried out when a second observation, at least a minute later, finds the same.
    #[default]
    Twice,
    /// They are held until a person decides.
    Ask,
    /// They are carried out.
    Off,
}

/// The limits of one source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BrakeRules {
    /// What happens above the limit.
    pub mode: BrakeMode,
    /// Per cent of the entries of the tree.
    pub percent: u64,
    /// Fewer deletions than this are never held.
    pub least: u64,
}

impl Default for BrakeRules {
    fn default() -> Self {
        BrakeRules { mode: BrakeMode::Twice, percent: 10, least: 1_000 }
    }
}

impl BrakeRules {
    /// How many entries one walk may delete in a tree of this many.
    pub fn limit(&self, entries: u64) -> u64 {
        self.least.max(entries.saturating_mul(self.percent) / 100)
    }
}

/// The top of a subtree that a listing does not name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PendingDeletion {
    /// What is to be deleted.
    pub path: Vec<u8>,
    /// When the listing was made.
    pub during: Interval,
    /// By which scout.
    pub scout: u8,
    /// Its slack.
    pub slack: u64,
    /// How many entries it has, itself included.
    pub entries: u64,
}

/// Deletions that one walk concluded so far.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PendingDeletions {
    /// The tops.
    pub tops: Vec<PendingDeletion>,
    /// Entries of all of them.
    pub entries: u64,
    /// The limit was passed: what comes more is held at once.
    pub pulled: bool,
    /// A person must decide, whatever the mode: the root itself is empty.
    pub needs_person: bool,
}

impl PendingDeletions {
    /// One more top.
    pub fn push(&mut self, top: PendingDeletion) {
        self.entries += top.entries;
        self.tops.push(top);
    }

    /// Whether they must be held, in a tree of this many entries.
    pub fn must_hold(&self, rules: &BrakeRules, entries: u64) -> bool {
        self.needs_person
            || self.pulled
            || rules.mode != BrakeMode::Off && self.entries > rules.limit(entries)
    }
}
