//! Carries frames out on a tree: finds what is known, asks the table and the rules of order, writes what follows, and
//! numbers the changes. The same inputs give the same tree and the same revisions, so the log of a tree keeps inputs.

use super::{Rules, brake::PendingDeletions, drift::Drift, order::Observation};
use crate::{
    feed::Feed,
    time::{Interval, Tick, seconds},
    tree::{Tree, sides::DirtyRegion},
    wire::{Frame, Lane, Record, Tier, name},
};
use std::collections::{BTreeMap, BTreeSet};
use tenure_kernel::ids::EntityId;

/// How a walk ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum WalkOutcome {
    /// Everything was listed.
    Complete = 0,
    /// Something could not be listed.
    Partial = 1,
    /// It was cut off.
    Aborted = 2,
}

/// Everything that changes what is known, with the moment at which the server took it. The log of a tree has these.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// A scout sent a frame.
    Frame {
        /// The scout's number.
        scout: u8,
        /// The frame.
        frame: Box<Frame>,
    },
    /// A scout opened a session: its sequences begin anew.
    ScoutStarted {
        /// Its number.
        scout: u8,
    },
    /// A scout's session ended: nothing is watched by it any more.
    ScoutEnded {
        /// Its number.
        scout: u8,
    },
    /// A walk ended.
    WalkEnded {
        /// The walk.
        walk: EntityId,
        /// What kind of walk it was.
        tier: Tier,
        /// When it began.
        began: Tick,
        /// How it ended.
        outcome: WalkOutcome,
    },
    /// A person says that the new root of a scout is right.
    RootAccepted {
        /// The scout's number.
        scout: u8,
    },
    /// A person decides about all deletions that the brake holds.
    BrakeSettled {
        /// Whether they are carried out; else they are forgotten.
        delete: bool,
    },
    /// The rules of the source are others from now on.
    RulesSet(Box<Rules>),
    /// Time went on: tombstones expire.
    Expired,
}

/// Something that people must know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Attention {
    /// A scout's root is another one than before.
    RootChanged {
        /// The scout's number.
        scout: u8,
    },
    /// Deletions are held.
    BrakePulled {
        /// The walk that concluded them.
        walk: Option<EntityId>,
        /// How many entries.
        entries: u64,
        /// Of how many.
        of: u64,
        /// Some of the paths.
        sample: Vec<Vec<u8>>,
    },
    /// The tree is full: new names are refused.
    TreeFull,
}

/// What a scout is asked for, and what people must know.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// Directories to list.
    pub relist: BTreeSet<Vec<u8>>,
    /// Paths to look at, past all caches, and the moment before which a look settles nothing.
    pub look: BTreeMap<Vec<u8>, Tick>,
    /// See [`Attention`].
    pub attention: Vec<Attention>,
    /// Records that were refused because they are too old.
    pub too_old: u64,
}

/// Whether a frame may be applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// It is the next of its lane.
    Next,
    /// It was applied before: acknowledge it, and do nothing.
    Repeated,
    /// Frames before it are missing.
    Gap {
        /// The sequence that must come.
        expected: u64,
    },
    /// It is about another tree.
    OtherTree,
}

/// What is known of one source, with all that arbitration remembers.
#[derive(Clone, Debug)]
pub struct SourceState {
    /// Entries.
    pub tree: Tree,
    /// Changes.
    pub feed: Feed,
    /// The rules in force.
    pub rules: Rules,
    /// The storage's clock.
    pub drift: Drift,
    /// Deletions of walks that have not ended.
    pub pending: BTreeMap<EntityId, PendingDeletions>,
    /// The last frame of each lane.
    pub sequences: BTreeMap<(u8, Lane), u64>,
    /// Whether a snapshot was complete once.
    pub had_snapshot: bool,
    /// When the last input was taken.
    pub now: Tick,
}

impl SourceState {
    /// Nothing is known.
    pub fn new(tree: EntityId, rules: Rules, feed_bytes_max: usize, now: Tick) -> SourceState {
        SourceState {
            tree: Tree::new(now),
            feed: Feed::new(tree, feed_bytes_max),
            rules,
            drift: Drift::default(),
            pending: BTreeMap::new(),
            sequences: BTreeMap::new(),
            had_snapshot: false,
            now,
        }
    }

    /// Whether this frame of this scout may be applied.
    pub fn admit(&self, scout: u8, frame: &Frame) -> Admission {
        if frame.tree != self.feed.tree() {
            return Admission::OtherTree;
        }
        let expected = self.sequences.get(&(scout, frame.lane)).copied().unwrap_or(0) + 1;
        match frame.sequence {
            sequence if sequence < expected => Admission::Repeated,
            sequence if sequence == expected => Admission::Next,
            _ => Admission::Gap { expected },
        }
    }

    /// Takes an input at `at`, in view time of the server. A frame that is not admitted changes nothing.
    pub fn apply(&mut self, at: Tick, input: &Input) -> Outcome {
        self.now = self.now.max(at);
        self.tree.renew_base(self.now);
        let mut apply = Apply::new(self);
        match input {
            Input::Frame { scout, frame } => {
                if apply.state.admit(*scout, frame) == Admission::Next {
                    apply.frame(*scout, frame);
                }
            }
            Input::ScoutStarted { scout } => {
                apply.state.sequences.remove(&(*scout, Lane::Live));
                apply.state.sequences.remove(&(*scout, Lane::Walk));
            }
            Input::ScoutEnded { scout } => apply.state.tree.end_watches(*scout),
            Input::WalkEnded { walk, tier, began, outcome } => {
                apply.walk_ended(*walk, *tier, *began, *outcome);
            }
            Input::RootAccepted { scout } => {
                if let Some(info) = apply.state.tree.sides_mut().scouts.get_mut(scout)
                    && let Some(root) = info.new_root.take()
                {
                    info.root = Some(root);
                }
            }
            Input::BrakeSettled { delete } => apply.settle_brake(*delete),
            Input::RulesSet(rules) => apply.state.rules = (**rules).clone(),
            Input::Expired => {}
        }
        let outcome = apply.out;
        let before = self.now.minus(self.rules.tombstone_ttl);
        let week = self.now.minus(seconds(7 * 86_400));
        self.tree.sides_mut().expire_tombstones(before);
        while self.tree.sides.blind_deletions.front().is_some_and(|first| first.at < week) {
            self.tree.sides_mut().blind_deletions.pop_front();
        }
        self.tree.settle();
        outcome
    }
}

/// One input on its way.
pub(super) struct Apply<'a> {
    pub(super) state: &'a mut SourceState,
    pub(super) out: Outcome,
    /// Entries before this input and those that it added.
    pub(super) entries: u64,
    /// The scout that speaks may conclude deletions.
    pub(super) may_delete: bool,
}

impl<'a> Apply<'a> {
    fn new(state: &'a mut SourceState) -> Apply<'a> {
        let entries = state.tree.len();
        Apply { state, out: Outcome::default(), entries, may_delete: true }
    }

    fn frame(&mut self, scout: u8, frame: &Frame) {
        self.state.sequences.insert((scout, frame.lane), frame.sequence);
        self.meet_root(scout, frame);
        for record in &frame.records {
            self.record(scout, frame, record);
        }
    }

    /// Remembers the scout's slack and root; one whose root changed may not delete.
    fn meet_root(&mut self, scout: u8, frame: &Frame) {
        let preamble = &frame.preamble;
        let info = self.state.tree.sides_mut().scouts.entry(scout).or_default();
        info.slack = preamble.slack;
        let root = *info.root.get_or_insert(preamble.root);
        if root.is_same(&preamble.root) {
            info.new_root = None;
        } else if info
            .new_root
            .replace(preamble.root)
            .is_none_or(|new| !new.is_same(&preamble.root))
        {
            self.out.attention.push(Attention::RootChanged { scout });
        }
        let is_same =
            self.state.tree.sides.scouts.get(&scout).is_some_and(|s| s.new_root.is_none());
        self.may_delete = is_same || !self.state.rules.protections.root;
    }

    fn record(&mut self, scout: u8, frame: &Frame, record: &Record) {
        let observation = |during: Interval, forced: bool, live: bool| Observation {
            during: Interval {
                // Nothing was observed after it arrived: a scout that says so has a wrong clock.
                begin: during.begin.min(self.state.now),
                end: during.end.min(self.state.now),
            },
            scout,
            slack: frame.preamble.slack,
            cache: if forced { 0 } else { frame.preamble.cache },
            forced,
            tier: frame.tier,
            live: live && frame.lane == Lane::Live,
        };
        match record {
            Record::Look(look) => {
                let observation = observation(look.during, look.forced, true);
                if self.is_recent(&look.path, &observation) {
                    self.look(look, &observation);
                }
            }
            Record::Listing(listing) => {
                let observation = observation(listing.during, false, false);
                if self.is_recent(&listing.path, &observation) {
                    self.listing(listing, &observation, frame);
                }
            }
            Record::Silent(silent) => {
                let observation = observation(silent.during, true, false);
                if self.is_recent(&silent.path, &observation) {
                    self.silent(silent, &observation);
                }
            }
            Record::Moved(moved) => {
                let observation = observation(moved.during, true, true);
                if self.is_recent(&moved.from, &observation) {
                    self.moved(moved, &observation);
                }
            }
            Record::Dirty { path, subtree, during } => self.mark_dirty(path, *subtree, during.end),
            Record::Cover { path, watched, .. } => {
                if let Some(id) = self.state.tree.find_directory(path) {
                    self.state.tree.set_watched(id, scout, *watched);
                }
            }
            Record::Skipped { last, .. } => {
                let sequence = self.state.sequences.entry((scout, frame.lane)).or_default();
                *sequence = (*sequence).max(*last);
            }
        }
    }

    /// Whether a tombstone that would stop the observation is still there; else it is refused.
    fn is_recent(&mut self, path: &[u8], observation: &Observation) -> bool {
        let rules = &self.state.rules;
        let age = self.state.now.since(observation.during.begin);
        if age <= rules.evidence_age_max || !rules.protections.too_old {
            return true;
        }
        // A listing that took long, and just ended: what it names is there, see `listing`.
        if self.state.now.since(observation.during.end) <= rules.evidence_age_max
            && observation.tier != Tier::Realtime
        {
            return true;
        }
        self.out.too_old += 1;
        let directory = name::split(path).map_or(&[][..], |(directory, _)| directory).to_vec();
        self.mark_dirty(&directory, false, self.state.now);
        self.out.relist.insert(directory);
        false
    }

    pub(super) fn mark_dirty(&mut self, path: &[u8], subtree: bool, since: Tick) {
        let dirty = &mut self.state.tree.sides_mut().dirty;
        let region = dirty.entry(path.to_vec()).or_insert(DirtyRegion { since, subtree });
        region.since = region.since.max(since);
        region.subtree |= subtree;
    }

    /// Ticks by which a scout's view time may be wrong; of any scout (0) the most.
    pub(super) fn slack_of(&self, scout: u8) -> u64 {
        let scouts = &self.state.tree.sides.scouts;
        match scout {
            0 => scouts.values().map(|info| info.slack).max().unwrap_or(0),
            _ => scouts.get(&scout).map_or(0, |info| info.slack),
        }
    }

    /// Counts a new entry, unless the tree is full.
    pub(super) fn has_room(&mut self) -> bool {
        let max = self.state.rules.entries_max;
        if max > 0 && self.entries >= max {
            if !self.out.attention.contains(&Attention::TreeFull) {
                self.out.attention.push(Attention::TreeFull);
            }
            return false;
        }
        self.entries += 1;
        true
    }
}
