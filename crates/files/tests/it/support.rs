//! What several test files use.

use proptest::prelude::*;
use std::collections::BTreeMap;
pub use tenure_files::wire::Outcome as Trust;
use tenure_files::{
    arbitrate::{
        Rules,
        apply::{Admission, Input, Outcome, SourceState},
    },
    facts::{EntryType, Facts},
    time::{Interval, Tick},
    tree::{Entry, Tree, flag},
    wire::{
        Cause, Finding, Frame, Lane, Listed, Listing, Look, Preamble, Record, RootIdentity, Tier,
        name,
    },
};
use tenure_kernel::ids::EntityId;

/// The moment at which tests begin: half a year after 2026 began, in ticks.
pub const START: Tick = Tick(223_000_000_000);

/// A regular file.
pub fn file(inode: u64, size: u64, times: i64) -> Facts {
    Facts {
        entry_type: EntryType::File,
        mode: 0o644,
        size,
        mtime: times,
        ctime: times,
        inode,
        uid: 1000,
        gid: 1000,
    }
}

/// A directory.
pub fn directory(inode: u64, times: i64) -> Facts {
    Facts { entry_type: EntryType::Directory, mode: 0o755, size: 0, ..file(inode, 0, times) }
}

/// An entry that scout 1 saw.
pub fn entry(facts: Facts, seen: Tick) -> Entry {
    Entry { facts, seen, scout: 1, flags: 0, directory: None }
}

/// Names of few letters, so that they meet; some are not UTF-8.
pub fn some_name() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::sample::select(b"ab\xff\n".to_vec()), 1..3)
}

/// Paths of few letters.
pub fn some_path(depth: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(some_name(), 1..=depth).prop_map(|names| names.join(&b'/'))
}

/// Facts with every field anywhere in its range.
pub fn some_facts() -> impl Strategy<Value = Facts> {
    let owner = (any::<u32>(), any::<u32>());
    (0u8..8, 0u16..0o10000, any::<u64>(), any::<i64>(), any::<i64>(), any::<u64>(), owner).prop_map(
        |(number, mode, size, mtime, ctime, inode, (uid, gid))| Facts {
            entry_type: EntryType::from_number(number).unwrap(),
            mode,
            size,
            mtime,
            ctime,
            inode,
            uid,
            gid,
        },
    )
}

/// A source with scouts that speak about it, one record in a frame.
pub struct World {
    pub state: SourceState,
    pub at: Tick,
    sequences: BTreeMap<(u8, Lane), u64>,
    /// Of all scouts.
    pub preamble: Preamble,
    pub inputs: Vec<(Tick, Input)>,
}

pub const TREE: [u8; 16] = [9; 16];

impl World {
    pub fn new() -> World {
        Self::with(Rules::default())
    }

    pub fn with(rules: Rules) -> World {
        let preamble = Preamble {
            base: Tick::ZERO,
            slack: 0,
            cache: 0,
            root: RootIdentity { magic: 0xef53, inode: 2, birth: Some(1) },
            excludes: rules.excludes.digest(),
        };
        let state = SourceState::new(EntityId::from_bytes(TREE), rules, usize::MAX, START);
        World { state, at: START, sequences: BTreeMap::new(), preamble, inputs: Vec::new() }
    }

    pub fn input(&mut self, input: Input) -> Outcome {
        self.inputs.push((self.at, input.clone()));
        self.state.apply(self.at, &input)
    }

    /// What a scout says now.
    pub fn tell(&mut self, scout: u8, tier: Tier, walk: Option<u8>, record: Record) -> Outcome {
        let lane = match record {
            Record::Listing(_) | Record::Silent(_) => Lane::Walk,
            _ => Lane::Live,
        };
        let sequence = self.sequences.entry((scout, lane)).or_default();
        *sequence += 1;
        let frame = Frame {
            lane,
            tier,
            sequence: *sequence,
            tree: EntityId::from_bytes(TREE),
            walk: walk.map(|walk| EntityId::from_bytes([walk; 16])),
            preamble: self.preamble,
            records: vec![record],
        };
        let (read, _) = Frame::read(&frame.write().unwrap()).unwrap();
        assert_eq!(read, frame);
        assert_eq!(self.state.admit(scout, &frame), Admission::Next);
        self.input(Input::Frame { scout, frame: Box::new(frame) })
    }

    /// One second passes.
    pub fn pass(&mut self, seconds: u64) {
        self.at = self.at.plus(seconds * 125);
    }

    /// A forced look of the live lane, made just now.
    pub fn look(&mut self, scout: u8, path: &str, finding: Finding, cause: Cause) -> Outcome {
        self.pass(1);
        let during = Interval { begin: self.at.minus(2), end: self.at.minus(1) };
        self.look_at(scout, path, finding, cause, during)
    }

    pub fn look_at(
        &mut self,
        scout: u8,
        path: &str,
        finding: Finding,
        cause: Cause,
        during: Interval,
    ) -> Outcome {
        let path = path.as_bytes().to_vec();
        let look = Look { path, finding, forced: true, cause, during };
        self.tell(scout, Tier::Realtime, None, Record::Look(look))
    }

    /// A listing of a directory, made just now.
    pub fn list(
        &mut self,
        tier: Tier,
        path: &str,
        entries: &[(&str, Facts)],
        end: Trust,
    ) -> Outcome {
        self.pass(1);
        let during = Interval { begin: self.at.minus(2), end: self.at.minus(1) };
        self.list_at(1, tier, None, path, entries, end, during)
    }

    #[expect(clippy::too_many_arguments, reason = "one listing")]
    pub fn list_at(
        &mut self,
        scout: u8,
        tier: Tier,
        walk: Option<u8>,
        path: &str,
        entries: &[(&str, Facts)],
        end: Trust,
        during: Interval,
    ) -> Outcome {
        let known = self.state.tree.find(path.as_bytes()).filter(|e| !e.has(flag::IMPLIED));
        let mut entries: Vec<Listed> = entries
            .iter()
            .map(|(name, facts)| Listed { name: name.as_bytes().to_vec(), facts: Some(*facts) })
            .collect();
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        let listing = Listing {
            path: path.as_bytes().to_vec(),
            during,
            directory: known.map_or(directory(2, 5), |e| e.facts),
            entries,
            end: Some(end),
            is_whole: true,
        };
        self.tell(scout, tier, walk, Record::Listing(listing))
    }

    pub fn shown(&self, path: &str) -> Option<Entry> {
        self.state.tree.find(path.as_bytes())
    }

    pub fn is_doubted(&self, path: &str) -> bool {
        self.state.tree.sides.doubts.contains_key(path.as_bytes())
    }

    /// Every path with its state.
    pub fn content(&self) -> BTreeMap<Vec<u8>, Facts> {
        content(&self.state.tree)
    }
}

pub fn content(tree: &Tree) -> BTreeMap<Vec<u8>, Facts> {
    let mut all = BTreeMap::new();
    for (id, directory) in tree.directories() {
        let top = tree.path_of(id);
        directory.for_each(|own, row| {
            all.insert(name::join(&top, own), tree.entry_of(id, own, &row).facts);
        });
    }
    all
}
