//! What was seen and not yet taken by everybody who should know.
//!
//! A line of reports, in the order in which they were seen, with a cursor for each sink. A sink that is away stands still while the other
//! goes on, and finds everything in order when it is back. On disk, so that a collector that is killed between seeing and telling
//! tells it after its restart, when the pod may be gone; bounded, because the disk is somebody's node.
//!
//! **When it is full** something has to give, in this order: hints for the channel that the server has taken already (nothing is lost by
//! that); then states that are not final, oldest first (a later one says more); then nothing. A final state is never dropped: the push
//! is refused, whoever reads the watch stops reading it, and the API server keeps the truth until there is room.
//!
//! **On disk** room is bytes of files. A file goes when nothing in it is needed; between, when room is wanted, files are written anew without
//! what nobody needs, the emptiest first ([`Spool::relieve`]). So a push is refused only where that which waits takes the room, not where files
//! are full of what was let go. A file is replaced under its own name, so at every moment a record lies in exactly one file.
//!
//! **A disk that fails** does not stop the news: what can not be written is kept in memory, and said to be so.

mod disk;
mod frame;

pub use frame::Mark;

use super::{Saying, SinkId};
use bytes::Bytes;
use disk::{Disk, Place};
use frame::{Entry, Record};
use std::{
    collections::{BTreeMap, VecDeque},
    io,
    path::PathBuf,
    time::Duration,
};
use tenure_kernel::time::Timestamp;

/// When it is made sure that the disk has what was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SyncWhen {
    /// After every write.
    Always,
    /// After a write with a final state in it. Others survive the death of the process, not of the machine.
    #[default]
    Final,
    /// Never: the operating system does it when it likes.
    Never,
}

/// What a spool may use.
#[derive(Clone, PartialEq, Debug)]
pub struct SpoolOptions {
    /// Where; none: in memory only, and a restart forgets it.
    pub directory: Option<PathBuf>,
    /// The most bytes it may have.
    pub bytes_max: u64,
    /// States that are not final, and hints that the server has taken, are not worth telling after so long.
    pub age_max: Duration,
    /// See [`SyncWhen`].
    pub sync: SyncWhen,
}

impl Default for SpoolOptions {
    fn default() -> Self {
        SpoolOptions {
            directory: None,
            bytes_max: 64 * 1024 * 1024,
            age_max: Duration::from_secs(24 * 3_600),
            sync: SyncWhen::default(),
        }
    }
}

/// The smallest bound that makes sense.
pub const SPOOL_BYTES_MIN: u64 = 64 * 1024;
/// So much of what is on disk is also kept in memory, not to be read again. More would help only where sinks are slower than the disk.
const WARM_BYTES_MAX: u64 = 1024 * 1024;
/// Room for so many is kept when the line gets shorter.
const ITEMS_KEPT: usize = 1_024;

/// There is no room, and nothing in it may be dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

/// Something that a sink has to take.
#[derive(Clone, PartialEq, Debug)]
pub struct Owed {
    /// Its place in the line.
    pub seq: u64,
    /// What it is.
    pub saying: Saying,
}

/// How full it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpoolState {
    /// Reports that somebody has not taken yet.
    pub depth: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes on disk.
    pub disk_bytes: u64,
    /// Bytes that count against the bound.
    pub used_bytes: u64,
    /// The bound.
    pub bytes_max: u64,
    /// When the oldest was seen.
    pub oldest: Option<Timestamp>,
    /// The last push was refused.
    pub full: bool,
    /// Writes that failed.
    pub disk_failures: u64,
    /// States that were dropped for want of room, or for their age.
    pub dropped: u64,
    /// Hints that were dropped although the server has them.
    pub dropped_hints: u64,
    /// Bytes that could not be read when it was opened.
    pub lost_bytes: u64,
}

struct Item {
    seq: u64,
    at: Timestamp,
    wants: u8,
    is_final: bool,
    length: u32,
    warm: Option<Bytes>,
    place: Option<Place>,
}

/// See the module.
pub struct Spool {
    options: SpoolOptions,
    lanes: u8,
    items: VecDeque<Item>,
    next: u64,
    cursors: [u64; 2],
    disk: Option<Disk>,
    warm_bytes: u64,
    /// The bytes of the push that was refused last.
    refused: u64,
    state: SpoolState,
}

fn bit(sink: SinkId) -> u8 {
    1 << (sink as u8)
}

impl Spool {
    /// Opens it, for these sinks; with what was known of pods when it was last used.
    pub fn open(options: SpoolOptions, sinks: &[SinkId]) -> io::Result<(Spool, Vec<Mark>)> {
        let lanes = sinks.iter().fold(0, |lanes, sink| lanes | bit(*sink));
        let mut spool = Spool {
            lanes,
            items: VecDeque::new(),
            next: 1,
            cursors: [0; 2],
            disk: None,
            warm_bytes: 0,
            refused: 0,
            state: SpoolState::default(),
            options,
        };
        let Some(directory) = spool.options.directory.clone() else {
            return Ok((spool, Vec::new()));
        };
        let segment_bytes = (spool.options.bytes_max / 16).max(16 * 1024);
        let found = Disk::open(&directory, segment_bytes)?;
        spool.disk = Some(found.disk);
        spool.state.lost_bytes = found.lost_bytes;
        let marks = spool.replay(found.records, found.marks, found.marked);
        Ok((spool, marks))
    }

    /// Puts the line together again. What was said after the marks were written is newer than they are.
    fn replay(
        &mut self,
        records: Vec<(Record, Place)>,
        marks: Vec<(u64, Mark)>,
        marked: u64,
    ) -> Vec<Mark> {
        self.next = self.next.max(marked);
        for (record, _) in &records {
            match record {
                Record::Cursors(cursors) => {
                    for (mine, theirs) in self.cursors.iter_mut().zip(cursors) {
                        *mine = (*mine).max(*theirs);
                    }
                    self.next = self.next.max(cursors[0].max(cursors[1]) + 1);
                }
                Record::Entry(entry) => self.next = self.next.max(entry.seq + 1),
            }
        }
        // Marks are made one after the other, and what was said in between must not make one older than it is.
        let from: BTreeMap<String, u64> =
            marks.iter().map(|(next, mark)| (mark.uid.clone(), *next)).collect();
        let mut known: BTreeMap<String, Mark> =
            marks.into_iter().map(|(_, mark)| (mark.uid.clone(), mark)).collect();
        for (record, place) in records {
            let Record::Entry(entry) = record else { continue };
            if entry.seq >= marked
                && let Some(saying) = entry.saying()
                && from.get(&saying.report.pod.uid).is_none_or(|next| entry.seq >= *next)
            {
                saying.mark_in(&mut known);
            }
            let item = Item {
                seq: entry.seq,
                at: entry.at,
                wants: entry.wants & self.lanes,
                is_final: entry.is_final,
                length: place.length,
                warm: None,
                place: Some(place),
            };
            let in_order = self.items.back().is_none_or(|last| last.seq < item.seq);
            if self.is_owed(&item) && in_order {
                self.state.bytes += u64::from(item.length);
                self.items.push_back(item);
            } else if let Some(disk) = &mut self.disk {
                disk.forget(place);
            }
        }
        known.into_values().collect()
    }

    fn is_owed(&self, item: &Item) -> bool {
        [SinkId::Channel, SinkId::Server]
            .iter()
            .any(|s| item.wants & bit(*s) != 0 && item.seq > self.cursors[*s as usize])
    }

    /// Adds to the line, all or nothing.
    pub fn push(&mut self, sayings: &[Saying], now: Timestamp) -> Result<(), Full> {
        let mut fresh = Vec::with_capacity(sayings.len());
        for saying in sayings {
            let wants = saying.wants() & self.lanes;
            if wants != 0 {
                let seq = self.next + fresh.len() as u64;
                // A report is texts and numbers under names: always JSON.
                let body = serde_json::to_vec(saying).unwrap_or_default();
                let is_final = saying.is_final();
                fresh.push(Entry { seq, at: now, wants, is_final, body });
            }
        }
        if fresh.is_empty() {
            return Ok(());
        }
        let payloads: Vec<Vec<u8>> = fresh.iter().map(Entry::encode).collect();
        let bytes: u64 = payloads.iter().map(|p| frame::framed(p.len()) as u64).sum();
        // A batch that is larger than everything is taken by an empty spool, or it would wait for ever.
        self.state.full = self.used() + bytes > self.options.bytes_max && !self.items.is_empty();
        if self.state.full {
            self.refused = bytes;
            return Err(Full);
        }
        let finals = fresh.iter().any(|e| e.is_final);
        let places = self.write(&payloads, finals);
        for (i, (entry, payload)) in fresh.into_iter().zip(payloads).enumerate() {
            let place = places.as_ref().and_then(|p| p.get(i).copied());
            self.add(entry, frame::framed(payload.len()), place);
        }
        Ok(())
    }

    fn add(&mut self, entry: Entry, length: usize, place: Option<Place>) {
        let keep = place.is_none() || self.warm_bytes + length as u64 <= WARM_BYTES_MAX;
        self.warm_bytes += if keep { length as u64 } else { 0 };
        self.state.bytes += length as u64;
        if let (Some(disk), Some(place)) = (&mut self.disk, place) {
            disk.keep(place);
        }
        self.next = entry.seq + 1;
        self.items.push_back(Item {
            seq: entry.seq,
            at: entry.at,
            wants: entry.wants,
            is_final: entry.is_final,
            length: u32::try_from(length).unwrap_or(u32::MAX),
            // Copied: the text has grown into room for twice as much.
            warm: keep.then(|| Bytes::copy_from_slice(&entry.body)),
            place,
        });
    }

    fn write(&mut self, payloads: &[Vec<u8>], finals: bool) -> Option<Vec<Place>> {
        let sync = match self.options.sync {
            SyncWhen::Always => true,
            SyncWhen::Final => finals,
            SyncWhen::Never => false,
        };
        let disk = self.disk.as_mut()?;
        match disk.append(payloads, sync) {
            Ok(places) => Some(places),
            Err(e) => {
                if self.state.disk_failures == 0 {
                    tracing::error!(error = %e, "the spool can not be written; going on in memory");
                }
                self.state.disk_failures += 1;
                None
            }
        }
    }

    /// Bytes that count against the bound: on a disk what the files have, else what waits.
    fn used(&self) -> u64 {
        self.disk.as_ref().map_or(0, Disk::bytes).max(self.state.bytes)
    }

    /// After a push was refused: drops what may be dropped, and gives back what nobody needs. Answers with what was dropped and
    /// nobody has taken.
    pub fn relieve(&mut self, marks: &mut dyn Iterator<Item = Mark>) -> Vec<Saying> {
        let most = self.options.bytes_max;
        // Some more than is needed, not to be here again at once.
        let target = (most / 8 * 7).min(most.saturating_sub(self.refused)).max(most / 2);
        let mut dropped = Vec::new();
        if self.state.bytes > target {
            self.drop_hints(target);
        }
        if self.state.bytes > target {
            dropped = self.drop_states(target);
        }
        // What waits takes the room: nothing that is done to files would help. Else: files that are removed or written anew take with
        // them what they knew; it has to be written down before.
        if self.state.bytes + self.refused <= most && self.note(marks, true) {
            self.compact(target);
        }
        dropped
    }

    /// Hints that the server has taken.
    fn drop_hints(&mut self, target: u64) {
        let server = bit(SinkId::Server);
        if self.lanes & server == 0 {
            return;
        }
        let taken = self.cursors[SinkId::Server as usize];
        let (mut bytes, mut gone) = (self.state.bytes, 0);
        let mut kept = VecDeque::with_capacity(self.items.len());
        for item in std::mem::take(&mut self.items) {
            if bytes > target && item.wants & server != 0 && item.seq <= taken {
                bytes -= u64::from(item.length);
                gone += 1;
                self.let_go(&item);
            } else {
                kept.push_back(item);
            }
        }
        self.items = kept;
        self.state.dropped_hints += gone;
    }

    /// States that are not final, oldest first.
    fn drop_states(&mut self, target: u64) -> Vec<Saying> {
        let mut bytes = self.state.bytes;
        let (mut kept, mut dropped) = (VecDeque::with_capacity(self.items.len()), Vec::new());
        for item in std::mem::take(&mut self.items) {
            if bytes > target && !item.is_final {
                bytes -= u64::from(item.length);
                dropped.extend(self.read(&item));
                self.let_go(&item);
            } else {
                kept.push_back(item);
            }
        }
        self.items = kept;
        self.state.dropped += dropped.len() as u64;
        dropped
    }

    fn let_go(&mut self, item: &Item) {
        self.state.bytes = self.state.bytes.saturating_sub(u64::from(item.length));
        if item.warm.is_some() {
            self.warm_bytes = self.warm_bytes.saturating_sub(u64::from(item.length));
        }
        if let (Some(disk), Some(place)) = (&mut self.disk, item.place) {
            disk.forget(place);
        }
    }

    /// Writes files anew without what nobody needs, the emptiest first: those that are mostly empty in any case, others as long as there is
    /// more than `target`, and, until the refused push fits, whatever gives any room at all.
    fn compact(&mut self, target: u64) {
        let Some(disk) = &self.disk else { return };
        let last = disk.last();
        let mut by_segment: BTreeMap<u64, (u64, Vec<usize>)> = BTreeMap::new();
        for (i, item) in self.items.iter().enumerate() {
            if let Some(place) = item.place.filter(|p| p.segment != last) {
                let (bytes, indices) = by_segment.entry(place.segment).or_default();
                *bytes += u64::from(item.length);
                indices.push(i);
            }
        }
        let mut files: Vec<(u64, u64, u64, Vec<usize>)> = by_segment
            .into_iter()
            .map(|(number, (live, indices))| {
                let bytes = disk.bytes_of(number);
                (number, bytes, bytes.saturating_sub(Disk::bytes_with(live)), indices)
            })
            .collect();
        files.sort_by_key(|(_, bytes, dead, _)| std::cmp::Reverse(dead * 1_000 / (bytes + 1)));
        for (number, bytes, dead, indices) in files {
            let used = self.used();
            let tight = used + self.refused > self.options.bytes_max;
            if dead * 2 >= bytes || used > target && dead * 8 >= bytes || tight && dead > 0 {
                self.rewrite(number, indices);
            }
        }
    }

    fn rewrite(&mut self, number: u64, indices: Vec<usize>) {
        let payloads: Option<Vec<Vec<u8>>> =
            indices.iter().map(|i| self.payload(&self.items[*i])).collect();
        let (Some(payloads), Some(disk)) = (payloads, &mut self.disk) else { return };
        match disk.rewrite(number, self.cursors, &payloads) {
            Ok(places) => {
                for (i, place) in indices.into_iter().zip(places) {
                    self.items[i].place = Some(place);
                }
            }
            Err(e) => tracing::warn!(error = %e, "a file of the spool can not be made smaller"),
        }
    }

    fn payload(&self, item: &Item) -> Option<Vec<u8>> {
        let body = match &item.warm {
            Some(body) => body.to_vec(),
            None => match self.disk.as_ref()?.read(item.place?) {
                Ok(Some(Record::Entry(entry))) => entry.body,
                _ => return None,
            },
        };
        let (seq, at, wants, is_final) = (item.seq, item.at, item.wants, item.is_final);
        Some(Entry { seq, at, wants, is_final, body }.encode())
    }

    fn read(&self, item: &Item) -> Option<Saying> {
        if let Some(body) = &item.warm {
            return serde_json::from_slice(body).ok();
        }
        match self.disk.as_ref()?.read(item.place?) {
            Ok(Some(Record::Entry(entry))) => entry.saying(),
            Ok(_) => None,
            Err(e) => {
                tracing::error!(error = %e, "a report in the spool can not be read");
                None
            }
        }
    }

    /// The next ones that a sink has to take, in order. Those behind them that are none of its business count as taken
    /// with them: see [`Spool::settle`].
    pub fn batch(&mut self, sink: SinkId, most: usize) -> Vec<Owed> {
        let cursor = self.cursors[sink as usize];
        let from = self.items.partition_point(|i| i.seq <= cursor);
        let wanted = self.items.range(from..).filter(|i| i.wants & bit(sink) != 0);
        let wanted: Vec<(u64, Option<Saying>)> =
            wanted.take(most).map(|item| (item.seq, self.read(item))).collect();
        // One that can not be read would stand in the way of all behind it.
        if let [(seq, None), ..] = wanted[..] {
            self.state.dropped += 1;
            self.settle(sink, seq);
            return self.batch(sink, most);
        }
        wanted.into_iter().map_while(|(seq, saying)| Some(Owed { seq, saying: saying? })).collect()
    }

    /// This sink has taken everything up to here.
    pub fn settle(&mut self, sink: SinkId, seq: u64) {
        let cursor = &mut self.cursors[sink as usize];
        if seq <= *cursor {
            return;
        }
        *cursor = seq;
        while let Some(front) = self.items.front() {
            if self.is_owed(front) {
                break;
            }
            if let Some(item) = self.items.pop_front() {
                self.let_go(&item);
            }
        }
        // What a burst needed is given back.
        if self.items.capacity() > 4 * self.items.len().max(ITEMS_KEPT) {
            self.items.shrink_to(2 * self.items.len().max(ITEMS_KEPT));
        }
        let cursors = Record::Cursors(self.cursors).encode();
        if let Some(disk) = &mut self.disk
            && let Err(e) = disk.append(&[cursors], false)
        {
            // Then some of it is told again after a restart.
            tracing::debug!(error = %e, "the spool did not note what was taken");
            self.state.disk_failures += 1;
        }
    }

    /// Drops what is too old to be worth telling.
    pub fn expire(&mut self, now: Timestamp) -> Vec<Saying> {
        let limit = now - self.options.age_max;
        if self.items.front().is_none_or(|i| i.at > limit) {
            return Vec::new();
        }
        let taken = self.cursors[SinkId::Server as usize];
        let server = bit(SinkId::Server) & self.lanes;
        let (mut kept, mut dropped) = (VecDeque::with_capacity(self.items.len()), Vec::new());
        for item in std::mem::take(&mut self.items) {
            let hint = server != 0 && item.wants & server != 0 && item.seq <= taken;
            if item.at > limit || item.is_final && !hint {
                kept.push_back(item);
                continue;
            }
            if hint {
                self.state.dropped_hints += 1;
            } else {
                dropped.extend(self.read(&item));
                self.state.dropped += 1;
            }
            self.let_go(&item);
        }
        self.items = kept;
        dropped
    }

    /// A new file is worth beginning: then marks are.
    pub fn wants_marks(&self) -> bool {
        self.disk.as_ref().is_some_and(Disk::wants_rotation)
    }

    /// Begins to write down what is known of pods. Whether it has begun: without a disk there is nothing to do.
    ///
    /// What is pushed from here on is read after the marks when they are read, so they may be made piece by piece ([`Spool::add_marks`]) while
    /// more is pushed. They count from [`Spool::end_marks`] on; until then those from before do.
    pub fn begin_marks(&mut self) -> bool {
        self.begin(self.wants_marks())
    }

    fn begin(&mut self, rotate: bool) -> bool {
        let (cursors, next) = (self.cursors, self.next);
        self.marking(|disk| disk.begin_marks(next, rotate, cursors))
    }

    /// The next ones. Whether it goes on: they are given up when they can not be written, and when room had to be made in between.
    pub fn add_marks(&mut self, marks: &mut dyn Iterator<Item = Mark>) -> bool {
        let next = self.next;
        self.disk.as_ref().is_some_and(Disk::is_marking)
            && self.marking(|disk| disk.add_marks(next, marks))
    }

    /// That was all of them. Whether they are written down.
    pub fn end_marks(&mut self) -> bool {
        self.marking(Disk::end_marks)
    }

    fn marking(&mut self, work: impl FnOnce(&mut Disk) -> io::Result<()>) -> bool {
        let Some(disk) = &mut self.disk else { return false };
        let done = work(disk);
        if let Err(e) = &done {
            tracing::warn!(error = %e, "the spool can not write down what is known");
            disk.drop_marks();
            self.state.disk_failures += 1;
        }
        done.is_ok()
    }

    /// Writes down what is known of pods, at once.
    pub fn keep(&mut self, marks: &mut dyn Iterator<Item = Mark>) {
        let rotate = self.wants_marks();
        self.note(marks, rotate);
    }

    /// Whether it is written down.
    fn note(&mut self, marks: &mut dyn Iterator<Item = Mark>, rotate: bool) -> bool {
        self.begin(rotate) && self.add_marks(marks) && self.end_marks()
    }

    /// Whether there is a directory behind it.
    pub fn is_durable(&self) -> bool {
        self.disk.is_some()
    }

    /// Whether this sink has taken everything.
    pub fn is_settled(&self, sink: SinkId) -> bool {
        let cursor = self.cursors[sink as usize];
        let from = self.items.partition_point(|i| i.seq <= cursor);
        !self.items.range(from..).any(|i| i.wants & bit(sink) != 0)
    }

    /// How it is.
    pub fn state(&self) -> SpoolState {
        SpoolState {
            depth: self.items.len(),
            disk_bytes: self.disk.as_ref().map_or(0, Disk::bytes),
            used_bytes: self.used(),
            bytes_max: self.options.bytes_max,
            oldest: self.items.front().map(|i| i.at),
            ..self.state
        }
    }
}

#[cfg(test)]
mod tests;
