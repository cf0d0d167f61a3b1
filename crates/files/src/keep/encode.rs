//! The byte forms of inputs and of all that a snapshot has. Numbers are varints; every form is read as strictly as it is
//! written.

use super::log::{Entry as LogEntry, SegmentEnd};
use crate::{
    arbitrate::{
        Excludes, Protections, Rules,
        apply::{Input, SourceState, WalkOutcome},
        brake::{BrakeMode, BrakeRules, PendingDeletion, PendingDeletions},
        drift::Drift,
    },
    facts::{EntryType, Facts},
    feed::{Change, ChangeKind, Feed, Revision},
    time::{Interval, Tick},
    tree::{
        Entry, Tree,
        dir::{Certificate, Directory},
        leaf::Row,
        sides::{
            BlindCause, BlindDeletion, BlindSpot, ByEntry, DirtyRegion, Doubt, Held, ScoutInfo,
            Sides, Suspect, Tombstone,
        },
        slab::DirectoryId,
    },
    wire::{Frame, Lane, RootIdentity, Tier, WireError, name::shared},
};
use std::collections::{BTreeMap, BTreeSet};
use tenure_kernel::{
    codec::{Damaged, Reader, Writer},
    ids::EntityId,
};

type Read<T> = Result<T, Damaged>;

fn int(out: &mut Writer, v: i64) {
    out.uint(((v << 1) ^ (v >> 63)) as u64);
}

fn flag(out: &mut Writer, v: bool) {
    out.u8(u8::from(v));
}

fn interval(out: &mut Writer, v: Interval) {
    out.uint(v.begin.0);
    out.uint(v.end.0);
}

fn option<T>(out: &mut Writer, v: Option<T>, write: impl FnOnce(&mut Writer, T)) {
    flag(out, v.is_some());
    if let Some(v) = v {
        write(out, v);
    }
}

fn facts(out: &mut Writer, f: &Facts) {
    out.u8(f.entry_type as u8);
    out.uint(u64::from(f.mode));
    out.uint(f.size);
    int(out, f.mtime);
    int(out, f.ctime);
    out.uint(f.inode);
    out.uint(u64::from(f.uid));
    out.uint(u64::from(f.gid));
}

fn root(out: &mut Writer, v: RootIdentity) {
    out.uint(v.magic);
    out.uint(v.inode);
    option(out, v.birth, int);
}

/// One record of the log.
pub(super) fn entry(out: &mut Writer, entry: &LogEntry) -> Result<(), WireError> {
    match entry {
        LogEntry::Epoch { tree, ends } => {
            out.u8(0);
            out.id(*tree);
            out.uint(ends.len() as u64);
            for end in ends {
                out.uint(end.epoch);
                out.uint(end.number);
                out.uint(end.length);
            }
        }
        LogEntry::Segment { tree } => {
            out.u8(1);
            out.id(*tree);
        }
        LogEntry::Input(input) => {
            out.u8(2);
            write_input(out, input)?;
        }
    }
    Ok(())
}

fn write_input(out: &mut Writer, input: &Input) -> Result<(), WireError> {
    match input {
        Input::Frame { scout, frame } => {
            out.u8(0);
            out.u8(*scout);
            out.bytes(&frame.write()?);
        }
        Input::ScoutStarted { scout } => out.0.extend_from_slice(&[1, *scout]),
        Input::ScoutEnded { scout } => out.0.extend_from_slice(&[2, *scout]),
        Input::WalkEnded { walk, tier, began, outcome } => {
            out.u8(3);
            out.id(*walk);
            out.u8(*tier as u8);
            out.uint(began.0);
            out.u8(*outcome as u8);
        }
        Input::RootAccepted { scout } => out.0.extend_from_slice(&[4, *scout]),
        Input::BrakeSettled { delete } => out.0.extend_from_slice(&[5, u8::from(*delete)]),
        Input::RulesSet(rules) => {
            out.u8(6);
            write_rules(out, rules);
        }
        Input::Expired => out.u8(7),
    }
    Ok(())
}

fn write_rules(out: &mut Writer, rules: &Rules) {
    let p = &rules.protections;
    for on in [p.certificates, p.tombstones, p.root, p.intervals, p.too_old, p.brake] {
        flag(out, on);
    }
    let b = &rules.brake;
    out.u8(match b.mode {
        BrakeMode::Twice => 0,
        BrakeMode::Ask => 1,
        BrakeMode::Off => 2,
    });
    for number in [
        b.percent,
        b.least,
        rules.evidence_age_max,
        rules.tombstone_ttl,
        rules.hot_threshold,
        rules.slack_max,
        rules.witness_after,
        rules.entries_max,
    ] {
        out.uint(number);
    }
    flag(out, rules.case_folding);
    out.uint(rules.excludes.names.len() as u64);
    for name in &rules.excludes.names {
        out.bytes(name);
    }
}

/// Everything of a state but its directories and its feed.
pub(super) fn head(out: &mut Writer, state: &SourceState) {
    out.id(state.feed.tree());
    out.uint(state.feed.revision().0);
    out.uint(state.now.0);
    out.uint(state.tree.base().0);
    flag(out, state.had_snapshot);
    write_rules(out, &state.rules);
    write_entry(out, &state.tree.root());
    out.uint(state.sequences.len() as u64);
    for ((scout, lane), sequence) in &state.sequences {
        out.0.extend_from_slice(&[*scout, *lane as u8]);
        out.uint(*sequence);
    }
    let (samples, known) = state.drift.parts();
    out.uint(samples.len() as u64);
    for (at, drift) in samples {
        out.uint(at.0);
        int(out, drift);
    }
    option(out, known, int);
    out.uint(state.pending.len() as u64);
    for (walk, pending) in &state.pending {
        out.id(*walk);
        flag(out, pending.pulled);
        flag(out, pending.needs_person);
        out.uint(pending.tops.len() as u64);
        for top in &pending.tops {
            out.bytes(&top.path);
            interval(out, top.during);
            out.u8(top.scout);
            out.uint(top.slack);
            out.uint(top.entries);
        }
    }
    write_sides(out, &state.tree.sides);
}

fn write_entry(out: &mut Writer, entry: &Entry) {
    facts(out, &entry.facts);
    out.uint(entry.seen.0);
    out.0.extend_from_slice(&[entry.scout, entry.flags]);
}

fn by_entry<V>(out: &mut Writer, table: &ByEntry<V>, write: impl Fn(&mut Writer, &V)) {
    out.uint(table.len() as u64);
    for (id, own, value) in table.iter() {
        out.uint(u64::from(id.0));
        out.bytes(own);
        write(out, value);
    }
}

fn write_sides(out: &mut Writer, sides: &Sides) {
    by_entry(out, &sides.tombstones, |out, t| {
        interval(out, t.during);
        out.u8(t.scout);
        out.uint(t.inode);
        int(out, t.ctime);
    });
    by_entry(out, &sides.suspects, |out, s| {
        out.uint(s.since.0);
        option(out, s.equal_since, |out, at| out.uint(at.0));
    });
    by_entry(out, &sides.blind, |out, b| {
        out.u8(b.cause as u8);
        out.uint(b.since.0);
    });
    by_entry(out, &sides.held, |out, h| {
        option(out, h.walk, Writer::id);
        interval(out, h.during);
        out.u8(h.scout);
        flag(out, h.needs_person);
    });
    by_entry(out, &sides.sizes, |out, size| out.uint(*size));
    out.uint(sides.absences.len() as u64);
    for (path, absence) in &sides.absences {
        out.bytes(path);
        interval(out, absence.during);
        out.u8(absence.scout);
    }
    out.uint(sides.doubts.len() as u64);
    for (path, doubt) in &sides.doubts {
        out.bytes(path);
        out.uint(doubt.since.0);
        out.uint(doubt.not_before.0);
        option(out, doubt.other, |out, other| facts(out, &other));
    }
    out.uint(sides.blind_deletions.len() as u64);
    for deletion in &sides.blind_deletions {
        out.bytes(&deletion.path);
        out.uint(deletion.at.0);
        out.u8(deletion.cause as u8);
    }
    out.uint(sides.dirty.len() as u64);
    for (path, region) in &sides.dirty {
        out.bytes(path);
        out.uint(region.since.0);
        flag(out, region.subtree);
    }
    out.uint(sides.watches.len() as u64);
    for (scout, watched) in &sides.watches {
        out.u8(*scout);
        out.uint(watched.len() as u64);
        watched.iter().for_each(|id| out.uint(u64::from(id.0)));
    }
    out.uint(sides.scouts.len() as u64);
    for (scout, info) in &sides.scouts {
        out.u8(*scout);
        out.uint(info.slack);
        option(out, info.root, root);
        option(out, info.new_root, root);
    }
    out.uint(sides.owners.len() as u64);
    for (uid, gid) in &sides.owners {
        out.uint(u64::from(*uid));
        out.uint(u64::from(*gid));
    }
}

/// A directory, without its entries.
pub(super) fn directory(out: &mut Writer, tree: &Tree, id: DirectoryId, directory: &Directory) {
    out.uint(u64::from(id.0));
    out.uint(u64::from(directory.parent.0));
    out.bytes(&directory.name);
    option(out, directory.certificate(), |out, c| {
        out.uint(u64::from(c.begin));
        out.uint(u64::from(c.end));
        int(out, c.mtime);
        int(out, c.ctime);
    });
    let sums = tree.sums(id).unwrap_or_default();
    out.uint(u64::from(sums.last_activity));
    int(out, sums.newest_mtime);
    out.uint(directory.len() as u64);
}

/// One change of the feed.
pub(super) fn change(out: &mut Writer, change: &Change) {
    out.uint(change.revision.0);
    out.bytes(&change.path);
    let (kind, state, to) = match &change.kind {
        ChangeKind::Added(f) => (0, Some(f), None),
        ChangeKind::Changed(f) => (1, Some(f), None),
        ChangeKind::Replaced(f) => (2, Some(f), None),
        ChangeKind::Removed => (3, None, None),
        ChangeKind::Moved { to, facts } => (4, Some(facts), Some(to)),
    };
    out.u8(kind);
    if let Some(state) = state {
        facts(out, state);
    }
    if let Some(to) = to {
        out.bytes(to);
    }
}

/// The entry before, to which a row is a difference.
#[derive(Default)]
pub(super) struct RowBefore {
    name: Vec<u8>,
    row: Row,
}

impl RowBefore {
    pub(super) fn write(&mut self, out: &mut Writer, own: &[u8], row: &Row) {
        let last = &self.row;
        let same = shared(&self.name, own);
        out.uint(same as u64);
        out.bytes(&own[same..]);
        // Most entries have the type, mode, owner, scout, flags and moment of the one before.
        let rest = (row.type_and_mode, row.owner, row.scout, row.flags);
        let is_like = rest == (last.type_and_mode, last.owner, last.scout, last.flags);
        flag(out, !is_like);
        if !is_like {
            out.uint(u64::from(row.type_and_mode));
            out.uint(u64::from(row.owner));
            out.0.extend_from_slice(&[row.scout, row.flags]);
        }
        out.uint(row.size);
        int(out, row.mtime.wrapping_sub(last.mtime));
        int(out, row.ctime.wrapping_sub(row.mtime));
        int(out, row.inode.wrapping_sub(last.inode) as i64);
        int(out, i64::from(row.seen) - i64::from(last.seen));
        self.name.truncate(same);
        self.name.extend_from_slice(&own[same..]);
        self.row = *row;
    }

    pub(super) fn read(&mut self, input: &mut Reading<'_>) -> Read<Row> {
        let same = input.small::<usize>()?;
        let rest = input.bytes()?;
        if same > self.name.len() {
            return Err(input.damaged());
        }
        let before = self.name.clone();
        self.name.truncate(same);
        self.name.extend_from_slice(rest);
        if self.name.is_empty() || !before.is_empty() && self.name <= before {
            return Err(input.damaged());
        }
        let mut row = self.row;
        if input.flag()? {
            row.type_and_mode = input.small()?;
            row.owner = input.small()?;
            (row.scout, row.flags) = (input.u8()?, input.u8()?);
        }
        row.size = input.uint()?;
        row.mtime = self.row.mtime.wrapping_add(input.int()?);
        row.ctime = row.mtime.wrapping_add(input.int()?);
        row.inode = self.row.inode.wrapping_add(input.int()? as u64);
        let seen = i64::from(self.row.seen).wrapping_add(input.int()?);
        row.seen = u32::try_from(seen).map_err(|_| input.damaged())?;
        self.row = row;
        Ok(row)
    }

    pub(super) fn name(&self) -> &[u8] {
        &self.name
    }
}

/// Reads what the functions above write.
pub(super) struct Reading<'a> {
    reader: Reader<'a>,
    length: usize,
}

/// What a snapshot has of a directory before its entries.
pub(super) struct DirectoryHead {
    pub id: u32,
    pub parent: u32,
    pub name: Vec<u8>,
    pub certificate: Option<Certificate>,
    pub last_activity: u32,
    pub newest_mtime: i64,
    pub entries: u64,
}

/// What a snapshot has before its directories.
pub(super) struct Head {
    tree: EntityId,
    revision: Revision,
    now: Tick,
    pub base: Tick,
    had_snapshot: bool,
    rules: Rules,
    pub root: Entry,
    sequences: BTreeMap<(u8, Lane), u64>,
    drift: Drift,
    pending: BTreeMap<EntityId, PendingDeletions>,
    pub sides: Sides,
}

impl Head {
    pub(super) fn into_state(
        self,
        tree: Tree,
        changes: Vec<Change>,
        feed_bytes_max: usize,
    ) -> SourceState {
        SourceState {
            tree,
            feed: Feed::resume(self.tree, feed_bytes_max, self.revision, changes),
            rules: self.rules,
            drift: self.drift,
            pending: self.pending,
            sequences: self.sequences,
            had_snapshot: self.had_snapshot,
            now: self.now,
        }
    }
}

impl<'a> Reading<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Reading<'a> {
        Reading { reader: Reader::new(bytes), length: bytes.len() }
    }

    pub(super) fn is_done(&self) -> bool {
        self.reader.is_done()
    }

    pub(super) fn damaged(&self) -> Damaged {
        Damaged { at: self.length - self.reader.rest() }
    }

    pub(super) fn uint(&mut self) -> Read<u64> {
        self.reader.uint()
    }

    fn u8(&mut self) -> Read<u8> {
        self.reader.u8()
    }

    fn bytes(&mut self) -> Read<&'a [u8]> {
        self.reader.bytes()
    }

    pub(super) fn flag(&mut self) -> Read<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.damaged()),
        }
    }

    fn int(&mut self) -> Read<i64> {
        let v = self.uint()?;
        Ok((v >> 1) as i64 ^ -((v & 1) as i64))
    }

    fn small<T: TryFrom<u64>>(&mut self) -> Read<T> {
        let v = self.uint()?;
        T::try_from(v).map_err(|_| self.damaged())
    }

    fn tick(&mut self) -> Read<Tick> {
        Ok(Tick(self.uint()?))
    }

    fn interval(&mut self) -> Read<Interval> {
        Ok(Interval { begin: self.tick()?, end: self.tick()? })
    }

    fn option<T>(&mut self, read: impl FnOnce(&mut Self) -> Read<T>) -> Read<Option<T>> {
        Ok(if self.flag()? { Some(read(self)?) } else { None })
    }

    fn facts(&mut self) -> Read<Facts> {
        let number = self.u8()?;
        Ok(Facts {
            entry_type: EntryType::from_number(number).ok_or(self.damaged())?,
            mode: self.small()?,
            size: self.uint()?,
            mtime: self.int()?,
            ctime: self.int()?,
            inode: self.uint()?,
            uid: self.small()?,
            gid: self.small()?,
        })
    }

    fn root(&mut self) -> Read<RootIdentity> {
        Ok(RootIdentity {
            magic: self.uint()?,
            inode: self.uint()?,
            birth: self.option(Self::int)?,
        })
    }

    fn tier(&mut self) -> Read<Tier> {
        Ok(match self.u8()? {
            0 => Tier::Realtime,
            1 => Tier::Snapshot,
            2 => Tier::Audit,
            3 => Tier::Scan,
            4 => Tier::Region,
            _ => return Err(self.damaged()),
        })
    }

    pub(super) fn entry(&mut self) -> Read<LogEntry> {
        let entry = match self.u8()? {
            0 => {
                let tree = self.reader.id()?;
                let mut ends = Vec::new();
                for _ in 0..self.uint()? {
                    let (epoch, number, length) = (self.uint()?, self.uint()?, self.uint()?);
                    ends.push(SegmentEnd { epoch, number, length });
                }
                LogEntry::Epoch { tree, ends }
            }
            1 => LogEntry::Segment { tree: self.reader.id()? },
            2 => LogEntry::Input(Box::new(self.input()?)),
            _ => return Err(self.damaged()),
        };
        if self.is_done() { Ok(entry) } else { Err(self.damaged()) }
    }

    fn input(&mut self) -> Read<Input> {
        Ok(match self.u8()? {
            0 => {
                let scout = self.u8()?;
                let bytes = self.bytes()?;
                let (frame, used) = Frame::read(bytes).map_err(|_| self.damaged())?;
                if used != bytes.len() {
                    return Err(self.damaged());
                }
                Input::Frame { scout, frame: Box::new(frame) }
            }
            1 => Input::ScoutStarted { scout: self.u8()? },
            2 => Input::ScoutEnded { scout: self.u8()? },
            3 => Input::WalkEnded {
                walk: self.reader.id()?,
                tier: self.tier()?,
                began: self.tick()?,
                outcome: match self.u8()? {
                    0 => WalkOutcome::Complete,
                    1 => WalkOutcome::Partial,
                    2 => WalkOutcome::Aborted,
                    _ => return Err(self.damaged()),
                },
            },
            4 => Input::RootAccepted { scout: self.u8()? },
            5 => Input::BrakeSettled { delete: self.flag()? },
            6 => Input::RulesSet(Box::new(self.rules()?)),
            7 => Input::Expired,
            _ => return Err(self.damaged()),
        })
    }

    fn rules(&mut self) -> Read<Rules> {
        let protections = Protections {
            certificates: self.flag()?,
            tombstones: self.flag()?,
            root: self.flag()?,
            intervals: self.flag()?,
            too_old: self.flag()?,
            brake: self.flag()?,
        };
        let mode = match self.u8()? {
            0 => BrakeMode::Twice,
            1 => BrakeMode::Ask,
            2 => BrakeMode::Off,
            _ => return Err(self.damaged()),
        };
        let brake = BrakeRules { mode, percent: self.uint()?, least: self.uint()? };
        let mut rules = Rules {
            protections,
            brake,
            evidence_age_max: self.uint()?,
            tombstone_ttl: self.uint()?,
            hot_threshold: self.uint()?,
            slack_max: self.uint()?,
            witness_after: self.uint()?,
            entries_max: self.uint()?,
            case_folding: self.flag()?,
            excludes: Excludes { names: Vec::new() },
        };
        for _ in 0..self.uint()? {
            rules.excludes.names.push(self.bytes()?.to_vec());
        }
        Ok(rules)
    }

    pub(super) fn head(&mut self) -> Read<Head> {
        let (tree, revision) = (self.reader.id()?, Revision(self.uint()?));
        let (now, base, had_snapshot) = (self.tick()?, self.tick()?, self.flag()?);
        let rules = self.rules()?;
        let root = Entry {
            facts: self.facts()?,
            seen: self.tick()?,
            scout: self.u8()?,
            flags: self.u8()?,
            directory: None,
        };
        let mut sequences = BTreeMap::new();
        for _ in 0..self.uint()? {
            let scout = self.u8()?;
            let lane = if self.flag()? { Lane::Walk } else { Lane::Live };
            sequences.insert((scout, lane), self.uint()?);
        }
        let mut samples = Vec::new();
        for _ in 0..self.uint()? {
            samples.push((self.tick()?, self.int()?));
        }
        let drift = Drift::from_parts(samples, self.option(Self::int)?);
        let mut pending = BTreeMap::new();
        for _ in 0..self.uint()? {
            let (walk, deletions) = self.pending()?;
            pending.insert(walk, deletions);
        }
        let sides = self.sides()?;
        Ok(Head {
            tree,
            revision,
            now,
            base,
            had_snapshot,
            rules,
            root,
            sequences,
            drift,
            pending,
            sides,
        })
    }

    fn pending(&mut self) -> Read<(EntityId, PendingDeletions)> {
        let walk = self.reader.id()?;
        let (pulled, needs_person) = (self.flag()?, self.flag()?);
        let mut pending = PendingDeletions { pulled, needs_person, ..PendingDeletions::default() };
        for _ in 0..self.uint()? {
            pending.push(PendingDeletion {
                path: self.bytes()?.to_vec(),
                during: self.interval()?,
                scout: self.u8()?,
                slack: self.uint()?,
                entries: self.uint()?,
            });
        }
        Ok((walk, pending))
    }

    fn by_entry<V>(&mut self, mut read: impl FnMut(&mut Self) -> Read<V>) -> Read<ByEntry<V>> {
        let mut table = ByEntry::default();
        for _ in 0..self.uint()? {
            let id = DirectoryId(self.small()?);
            let own = self.bytes()?;
            let value = read(self)?;
            table.insert(id, own, value);
        }
        Ok(table)
    }

    fn blind_cause(&mut self) -> Read<BlindCause> {
        Ok(match self.u8()? {
            0 => BlindCause::NotWatched,
            1 => BlindCause::Overflow,
            2 => BlindCause::NobodySaw,
            _ => return Err(self.damaged()),
        })
    }

    fn sides(&mut self) -> Read<Sides> {
        let mut sides = Sides::default();
        let tombstones = self.by_entry(|input| {
            Ok(Tombstone {
                during: input.interval()?,
                scout: input.u8()?,
                inode: input.uint()?,
                ctime: input.int()?,
            })
        })?;
        for (id, own, tombstone) in tombstones.iter() {
            sides.bury(id, own, *tombstone);
        }
        sides.suspects = self.by_entry(|input| {
            Ok(Suspect { since: input.tick()?, equal_since: input.option(Self::tick)? })
        })?;
        sides.blind = self.by_entry(|input| {
            Ok(BlindSpot { cause: input.blind_cause()?, since: input.tick()? })
        })?;
        sides.held = self.by_entry(|input| {
            Ok(Held {
                walk: input.option(|input| input.reader.id())?,
                during: input.interval()?,
                scout: input.u8()?,
                needs_person: input.flag()?,
            })
        })?;
        sides.sizes = self.by_entry(Self::uint)?;
        for _ in 0..self.uint()? {
            let path = self.bytes()?;
            let (during, scout) = (self.interval()?, self.u8()?);
            sides.note_absence(path, Tombstone { during, scout, inode: 0, ctime: i64::MIN });
        }
        for _ in 0..self.uint()? {
            let path = self.bytes()?.to_vec();
            let doubt = Doubt {
                since: self.tick()?,
                not_before: self.tick()?,
                other: self.option(Self::facts)?,
            };
            sides.doubts.insert(path, doubt);
        }
        for _ in 0..self.uint()? {
            sides.note_blind_deletion(BlindDeletion {
                path: self.bytes()?.to_vec(),
                at: self.tick()?,
                cause: self.blind_cause()?,
            });
        }
        for _ in 0..self.uint()? {
            let path = self.bytes()?.to_vec();
            let region = DirtyRegion { since: self.tick()?, subtree: self.flag()? };
            sides.dirty.insert(path, region);
        }
        for _ in 0..self.uint()? {
            let scout = self.u8()?;
            let mut watched = BTreeSet::new();
            for _ in 0..self.uint()? {
                watched.insert(DirectoryId(self.small()?));
            }
            sides.watches.insert(scout, watched);
        }
        for _ in 0..self.uint()? {
            let scout = self.u8()?;
            let info = ScoutInfo {
                slack: self.uint()?,
                root: self.option(Self::root)?,
                new_root: self.option(Self::root)?,
            };
            sides.scouts.insert(scout, info);
        }
        for _ in 0..self.uint()? {
            let owner = (self.small()?, self.small()?);
            sides.owner(owner);
        }
        Ok(sides)
    }

    pub(super) fn directory(&mut self) -> Read<DirectoryHead> {
        Ok(DirectoryHead {
            id: self.small()?,
            parent: self.small()?,
            name: self.bytes()?.to_vec(),
            certificate: self.option(|input| {
                Ok(Certificate {
                    begin: input.small()?,
                    end: input.small()?,
                    mtime: input.int()?,
                    ctime: input.int()?,
                })
            })?,
            last_activity: self.small()?,
            newest_mtime: self.int()?,
            entries: self.uint()?,
        })
    }

    pub(super) fn change(&mut self) -> Read<Change> {
        let (revision, path) = (Revision(self.uint()?), self.bytes()?.to_vec());
        let kind = match self.u8()? {
            0 => ChangeKind::Added(self.facts()?),
            1 => ChangeKind::Changed(self.facts()?),
            2 => ChangeKind::Replaced(self.facts()?),
            3 => ChangeKind::Removed,
            4 => {
                let facts = self.facts()?;
                ChangeKind::Moved { to: self.bytes()?.to_vec(), facts }
            }
            _ => return Err(self.damaged()),
        };
        Ok(Change { revision, path, kind })
    }
}
