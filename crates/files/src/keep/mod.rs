//! A tree that survives a crash: a log of inputs, and snapshots so that the log stays short.
//!
//! The log has *inputs*, not effects: arbitration is pure, so the same inputs give the same tree and the same revisions.
//! The holder of a source appends an input, applies it, syncs, and then acknowledges it. What is acknowledged survives; what
//! was only appended may be lost, and the scout sends it again.
//!
//! Files are named by the epoch of the holder that wrote them and a number. The first record of an epoch names all
//! earlier segments and how much of each was read: what an earlier holder writes afterwards is never read.
//! A snapshot `E-N.snap` has everything before segment `E-N.log`.

pub mod disk;
mod encode;
pub mod log;
pub mod snap;

use crate::{
    arbitrate::{
        Rules,
        apply::{Input, SourceState},
    },
    time::Tick,
};
use disk::Disk;
use log::{Entry, SegmentEnd};
use std::{collections::BTreeMap, io};
use tenure_kernel::ids::EntityId;

/// A segment that is longer is followed by a new one.
pub const SEGMENT_BYTES: u64 = 64 << 20;

/// Why a tree cannot be opened or written. A tree that is damaged is begun anew: that costs a walk, never a fact.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The disk said no. What was there before is intact.
    #[error("the disk refused: {0}")]
    Disk(#[from] io::Error),
    /// A file is damaged where it had been durable.
    #[error("{file} is damaged at byte {at}: {what}; the tree must begin anew")]
    Damaged {
        /// The file.
        file: String,
        /// Where.
        at: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// A sync failed: nobody knows what is on the disk. A snapshot with a new segment mends it.
    #[error("an earlier sync failed; write a snapshot before anything else is acknowledged")]
    Unsynced,
    /// The files are of another tree, or of an epoch that is not before this one.
    #[error("{0}")]
    Refused(&'static str),
}

/// How a tree is opened.
#[derive(Clone, Debug)]
pub struct Open {
    /// The tree.
    pub tree: EntityId,
    /// The holder's epoch: higher than that of every holder before it.
    pub epoch: u64,
    /// The rules of a tree that is new.
    pub rules: Rules,
    /// See [`crate::feed::Feed::new`].
    pub feed_bytes_max: usize,
    /// View time now.
    pub now: Tick,
}

/// The files of one tree, written by one holder.
#[derive(Debug)]
pub struct Keeper<D> {
    disk: D,
    epoch: u64,
    number: u64,
    length: u64,
    durable: u64,
    is_unsynced: bool,
}

/// The name of a file of a segment or a snapshot. Names sort as epochs and numbers do.
fn file_name(epoch: u64, number: u64, ending: &str) -> String {
    format!("{epoch:016x}-{number:08x}.{ending}")
}

fn parse_name(name: &str, ending: &str) -> Option<(u64, u64)> {
    let (epoch, number) = name.strip_suffix(ending)?.strip_suffix('.')?.split_once('-')?;
    let read = (u64::from_str_radix(epoch, 16).ok()?, u64::from_str_radix(number, 16).ok()?);
    (file_name(read.0, read.1, ending) == name).then_some(read)
}

impl<D: Disk> Keeper<D> {
    /// Reads what is there, and begins an epoch of its own.
    pub fn open(mut disk: D, open: &Open) -> Result<(Keeper<D>, SourceState), KeepError> {
        let names = disk.list()?;
        for name in names.iter().filter(|name| name.ends_with(".tmp")) {
            disk.remove(name)?;
        }
        let mut snapshots: Vec<(u64, u64)> =
            names.iter().filter_map(|name| parse_name(name, "snap")).collect();
        let mut segments: Vec<(u64, u64)> =
            names.iter().filter_map(|name| parse_name(name, "log")).collect();
        snapshots.sort_unstable();
        segments.sort_unstable();
        if snapshots.iter().chain(&segments).any(|(epoch, _)| *epoch >= open.epoch) {
            return Err(KeepError::Refused(
                "the files are of an epoch that is not before this one",
            ));
        }
        // A snapshot has its name only when it is whole, so one that cannot be read is damage.
        let mut state = match snapshots.last() {
            Some((epoch, number)) => {
                let name = file_name(*epoch, *number, "snap");
                snap::read(&disk.read(&name)?, &name, open.feed_bytes_max)?
            }
            None => SourceState::new(open.tree, open.rules.clone(), open.feed_bytes_max, open.now),
        };
        if state.feed.tree() != open.tree {
            return Err(KeepError::Refused("the files are of another tree"));
        }
        let covered = snapshots.last().copied().unwrap_or_default();
        segments.retain(|segment| *segment >= covered);
        let ends = replay(&mut disk, &segments, &mut state)?;
        let mut keeper = Keeper {
            disk,
            epoch: open.epoch,
            number: 0,
            length: 0,
            durable: 0,
            is_unsynced: false,
        };
        keeper.append_entry(open.now, &Entry::Epoch { tree: open.tree, ends })?;
        keeper.sync()?;
        keeper.disk.sync_directory()?;
        Ok((keeper, state))
    }

    /// Appends an input. It is durable after the next [`Keeper::sync`].
    pub fn append(&mut self, at: Tick, input: &Input) -> Result<(), KeepError> {
        if self.is_unsynced {
            return Err(KeepError::Unsynced);
        }
        self.append_entry(at, &Entry::Input(Box::new(input.clone())))
    }

    fn append_entry(&mut self, at: Tick, entry: &Entry) -> Result<(), KeepError> {
        let bytes = log::record(at, self.durable, entry)
            .map_err(|_| KeepError::Refused("a frame exceeds the bounds of frames"))?;
        let name = file_name(self.epoch, self.number, "log");
        if let Err(refused) = self.disk.append(&name, &bytes) {
            // A part of it may be there: it is cut off, so that the next record follows the last whole one.
            if self.disk.truncate(&name, self.length).is_err() {
                self.is_unsynced = true;
            }
            return Err(refused.into());
        }
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Makes everything durable that was appended.
    pub fn sync(&mut self) -> Result<(), KeepError> {
        if self.is_unsynced {
            return Err(KeepError::Unsynced);
        }
        if self.durable == self.length {
            return Ok(());
        }
        if let Err(failed) = self.disk.sync(&file_name(self.epoch, self.number, "log")) {
            // After a failed sync a second one may succeed for data that was dropped.
            self.is_unsynced = true;
            return Err(failed.into());
        }
        self.durable = self.length;
        Ok(())
    }

    /// Bytes of the current segment.
    pub fn segment_bytes(&self) -> u64 {
        self.length
    }

    /// Begins a new segment, and gives the number that a snapshot of the state at this moment has. Everything before is
    /// synced first.
    pub fn begin_segment(&mut self, at: Tick, tree: EntityId) -> Result<u64, KeepError> {
        self.sync()?;
        self.start_segment(at, tree)?;
        Ok(self.number)
    }

    fn start_segment(&mut self, at: Tick, tree: EntityId) -> Result<(), KeepError> {
        self.number += 1;
        (self.length, self.durable) = (0, 0);
        self.append_entry(at, &Entry::Segment { tree })?;
        self.sync()?;
        self.disk.sync_directory()?;
        Ok(())
    }

    /// After a failed sync: writes a snapshot of the state, which has everything, and goes on in a new segment. The
    /// snapshot comes first, because it takes the place of a segment whose end is not known.
    pub fn mend(&mut self, at: Tick, state: &SourceState) -> Result<(), KeepError> {
        let next = self.number + 1;
        self.snapshot(next, state)?;
        self.is_unsynced = false;
        self.start_segment(at, state.feed.tree())
    }

    /// Writes the snapshot of a state, which may be a frozen copy, as it was when segment `number` began; then removes the
    /// files that it covers.
    pub fn snapshot(&mut self, number: u64, state: &SourceState) -> Result<u64, KeepError> {
        let name = file_name(self.epoch, number, "snap");
        let temporary = format!("{name}.tmp");
        let bytes = snap::write(state);
        let written = self
            .disk
            .append(&temporary, &bytes)
            .and_then(|()| self.disk.sync(&temporary))
            .and_then(|()| self.disk.rename(&temporary, &name))
            .and_then(|()| self.disk.sync_directory());
        if let Err(refused) = written {
            // It is in the way of the next try, and of the space that others need.
            self.disk.remove(&temporary).ok();
            return Err(refused.into());
        }
        let covered = (self.epoch, number);
        for name in self.disk.list()? {
            let place = parse_name(&name, "log").or_else(|| parse_name(&name, "snap"));
            if place.is_some_and(|place| place < covered) {
                self.disk.remove(&name)?;
            }
        }
        Ok(bytes.len() as u64)
    }

    /// The disk, for tests.
    pub fn into_disk(self) -> D {
        self.disk
    }
}

/// Applies the segments to a state; where each of them ended. The torn end of the last one is cut off.
fn replay<D: Disk>(
    disk: &mut D,
    segments: &[(u64, u64)],
    state: &mut SourceState,
) -> Result<Vec<SegmentEnd>, KeepError> {
    let mut limits: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    let mut bodies = Vec::new();
    for (i, (epoch, number)) in segments.iter().enumerate() {
        let name = file_name(*epoch, *number, "log");
        let bytes = disk.read(&name)?;
        let is_last = i + 1 == segments.len();
        if let Some(Entry::Epoch { ends, tree }) = log::first(&bytes) {
            if tree != state.feed.tree() {
                return Err(KeepError::Refused("the files are of another tree"));
            }
            // What this holder did not read of earlier epochs was not there when it claimed.
            for earlier in segments.iter().filter(|(other, _)| other < epoch) {
                let end = ends.iter().find(|end| (end.epoch, end.number) == *earlier);
                let end = end.map_or(0, |end| end.length);
                let limit = limits.entry(*earlier).or_insert(end);
                *limit = (*limit).min(end);
            }
        }
        bodies.push(((*epoch, *number), name, bytes, is_last));
    }
    let mut ends = Vec::new();
    for (place, name, bytes, is_last) in bodies {
        let limit = limits.get(&place).copied();
        let readable = limit.map_or(&bytes[..], |limit| &bytes[..bytes.len().min(limit as usize)]);
        if limit.is_some_and(|limit| limit > bytes.len() as u64) {
            let at = bytes.len() as u64;
            return Err(KeepError::Damaged { file: name, at, what: "it is shorter than it was" });
        }
        let (entries, end) = log::read(readable, &name)?;
        // Only the last segment may have an end that was never synced.
        let may_be_torn = is_last && limit.is_none();
        if end < readable.len() as u64 {
            if !may_be_torn {
                return Err(KeepError::Damaged {
                    file: name,
                    at: end,
                    what: "a record cannot be read",
                });
            }
            disk.truncate(&name, end)?;
            disk.sync(&name)?;
        }
        for (at, entry) in entries {
            if let Entry::Input(input) = entry {
                state.apply(at, &input);
            }
        }
        ends.push(SegmentEnd { epoch: place.0, number: place.1, length: end });
    }
    Ok(ends)
}
