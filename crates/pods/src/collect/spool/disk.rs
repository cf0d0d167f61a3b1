//! The files of a spool: segments that are only ever written at their end, and the marks.

use super::frame::{self, MAGIC, Mark, Record};
use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

/// The mode of new files: reports are for nobody else on this machine.
const PRIVATE: u32 = 0o600;
const MARKS: &str = "marks";
const LOCK: &str = "lock";
/// The end of a file's name until it takes the place of another one.
const SCRATCH: &str = ".new";

/// Where an entry is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub segment: u64,
    pub offset: u64,
    pub length: u32,
}

struct Segment {
    file: File,
    bytes: u64,
    /// Entries in it that are still needed.
    live: usize,
}

/// So much of the marks is written before the disk is waited for: a disk that has to take megabytes at once makes everybody wait who wants
/// something from it.
const MARKS_SYNC_BYTES: usize = 256 * 1024;

/// Marks that are being written, under a name that nobody reads.
struct Marking {
    file: File,
    path: PathBuf,
    unsynced: usize,
}

/// A directory of segments; the last one is written to.
pub(super) struct Disk {
    directory: PathBuf,
    segments: BTreeMap<u64, Segment>,
    segment_bytes: u64,
    marking: Option<Marking>,
    _lock: File,
    /// So many changes of the directory are left before the process is as good as killed.
    #[cfg(test)]
    pub lives: Option<usize>,
}

/// What was found when it was opened.
pub(super) struct Found {
    pub disk: Disk,
    pub records: Vec<(Record, Place)>,
    /// Each with the first report that it may know nothing of.
    pub marks: Vec<(u64, Mark)>,
    /// The first report that the marks know nothing of, whatever pod it is about.
    pub marked: u64,
    /// Bytes that could not be read: a torn end, or damage.
    pub lost_bytes: u64,
}

impl Disk {
    pub fn open(directory: &Path, segment_bytes: u64) -> io::Result<Found> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let lock = OpenOptions::new()
            .mode(PRIVATE)
            .create(true)
            .truncate(false)
            .write(true)
            .open(directory.join(LOCK))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::new(
                    io::ErrorKind::ResourceBusy,
                    "another collector uses it: every collector needs a directory of its own",
                ));
            }
            Err(TryLockError::Error(e)) => return Err(e),
        }
        let mut names: Vec<u64> = Vec::new();
        for entry in fs::read_dir(directory)? {
            let name = entry?.file_name();
            let Some(name) = name.to_str() else { continue };
            if let Some(number) = name.strip_suffix(".spool").and_then(|n| n.parse().ok()) {
                names.push(number);
            } else if name.ends_with(SCRATCH) {
                // Somebody died while writing it; what it was to replace is still there.
                fs::remove_file(directory.join(name))?;
            }
        }
        names.sort_unstable();
        let mut disk = Disk {
            directory: directory.to_owned(),
            segments: BTreeMap::new(),
            segment_bytes,
            marking: None,
            _lock: lock,
            #[cfg(test)]
            lives: None,
        };
        let (mut records, mut lost_bytes) = (Vec::new(), 0);
        for number in names {
            lost_bytes += disk.read_segment(number, &mut records)?;
        }
        if disk.segments.is_empty() {
            disk.begin(1)?;
        }
        let (marked, marks) = disk.read_marks();
        Ok(Found { disk, records, marks, marked, lost_bytes })
    }

    /// Before every change of the directory: a test ends the process here.
    #[cfg(test)]
    fn alive(&mut self) -> io::Result<()> {
        match &mut self.lives {
            Some(0) => Err(io::Error::other("killed")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    #[cfg(not(test))]
    #[expect(clippy::unnecessary_wraps, clippy::unused_self, reason = "tests refuse")]
    fn alive(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{number:020}.spool"))
    }

    fn begin(&mut self, number: u64) -> io::Result<()> {
        self.alive()?;
        let mut file = OpenOptions::new()
            .mode(PRIVATE)
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(self.path(number))?;
        self.alive()?;
        file.write_all(MAGIC)?;
        self.segments.insert(number, Segment { file, bytes: MAGIC.len() as u64, live: 0 });
        self.sync_directory()
    }

    /// The name of a new file is not durable before its directory is.
    fn sync_directory(&self) -> io::Result<()> {
        File::open(&self.directory)?.sync_all()
    }

    /// Reads what is whole and cuts off the rest; how much that was.
    fn read_segment(&mut self, number: u64, records: &mut Vec<(Record, Place)>) -> io::Result<u64> {
        let path = self.path(number);
        let bytes = fs::read(&path)?;
        let mut at = MAGIC.len();
        if bytes.get(..at) != Some(MAGIC) {
            // Died while it was begun, or not ours: out of the way, but kept.
            if bytes.len() > at {
                fs::rename(&path, path.with_extension("damaged"))?;
            } else {
                fs::remove_file(&path)?;
            }
            return Ok(bytes.len() as u64);
        }
        let mut live = 0;
        while let Some((payload, next)) = frame::take(&bytes, at) {
            if let Some(record) = Record::decode(payload) {
                live += usize::from(matches!(record, Record::Entry(_)));
                let length = u32::try_from(next - at).unwrap_or(u32::MAX);
                records.push((record, Place { segment: number, offset: at as u64, length }));
            }
            at = next;
        }
        let lost = bytes.len() - at;
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        if lost > 0 {
            file.set_len(at as u64)?;
        }
        self.segments.insert(number, Segment { file, bytes: at as u64, live });
        Ok(lost as u64)
    }

    /// Writes at the end of the last segment; the place of each. All or nothing.
    pub fn append(&mut self, payloads: &[Vec<u8>], sync: bool) -> io::Result<Vec<Place>> {
        self.alive()?;
        let Some(last) = self.segments.last_entry() else {
            return Err(io::Error::other("no segment"));
        };
        let number = *last.key();
        let segment = last.into_mut();
        let (mut out, mut places) = (Vec::new(), Vec::with_capacity(payloads.len()));
        for payload in payloads {
            let offset = segment.bytes + out.len() as u64;
            frame::put(&mut out, payload);
            let length = u32::try_from(frame::framed(payload.len())).unwrap_or(u32::MAX);
            places.push(Place { segment: number, offset, length });
        }
        let written = segment.file.write_all_at(&out, segment.bytes);
        let written = match written {
            Ok(()) if sync => segment.file.sync_data(),
            other => other,
        };
        if let Err(e) = written {
            // What was written of it would be read after a restart; it is overwritten, or cut off, whatever comes first.
            let _ = segment.file.set_len(segment.bytes);
            return Err(e);
        }
        segment.bytes += out.len() as u64;
        Ok(places)
    }

    pub fn read(&self, place: Place) -> io::Result<Option<Record>> {
        let Some(segment) = self.segments.get(&place.segment) else { return Ok(None) };
        let mut bytes = vec![0; place.length as usize];
        segment.file.read_exact_at(&mut bytes, place.offset)?;
        Ok(frame::take(&bytes, 0).and_then(|(payload, _)| Record::decode(payload)))
    }

    pub fn bytes(&self) -> u64 {
        self.segments.values().map(|s| s.bytes).sum()
    }

    /// Entries of the last segment are many enough for a new one.
    pub fn wants_rotation(&self) -> bool {
        self.segments.last_key_value().is_some_and(|(_, s)| s.bytes >= self.segment_bytes)
    }

    /// Begins a new segment, with where everybody is.
    fn rotate(&mut self, cursors: [u64; 2]) -> io::Result<()> {
        let next = self.segments.last_key_value().map_or(1, |(number, _)| number + 1);
        self.begin(next)?;
        self.append(&[Record::Cursors(cursors).encode()], true)?;
        Ok(())
    }

    pub fn keep(&mut self, place: Place) {
        if let Some(segment) = self.segments.get_mut(&place.segment) {
            segment.live += 1;
        }
    }

    pub fn forget(&mut self, place: Place) {
        if let Some(segment) = self.segments.get_mut(&place.segment) {
            segment.live = segment.live.saturating_sub(1);
        }
    }

    pub fn last(&self) -> u64 {
        self.segments.last_key_value().map_or(0, |(number, _)| *number)
    }

    pub fn bytes_of(&self, number: u64) -> u64 {
        self.segments.get(&number).map_or(0, |s| s.bytes)
    }

    /// Removes segments that nobody needs; the last one stays.
    fn sweep(&mut self) {
        let last = self.segments.last_key_value().map(|(n, _)| *n);
        let dead: Vec<u64> = self
            .segments
            .iter()
            .filter(|(n, s)| s.live == 0 && Some(**n) != last)
            .map(|(n, _)| *n)
            .collect();
        for number in dead {
            // One that stays is read again after a restart, and what is in it is known to be taken.
            if self.alive().and_then(|()| fs::remove_file(self.path(number))).is_ok() {
                self.segments.remove(&number);
            }
        }
    }

    /// How large a file is that has nothing but so many bytes of entries.
    pub fn bytes_with(entries: u64) -> u64 {
        let cursors = Record::Cursors([0; 2]).encode().len();
        (MAGIC.len() + frame::framed(cursors)) as u64 + entries
    }

    /// Writes a segment anew with these entries only; their new places, in order. The new file takes the old one's name once all of
    /// it is on the disk, so whoever dies here leaves the one or the other.
    pub fn rewrite(
        &mut self,
        number: u64,
        cursors: [u64; 2],
        entries: &[Vec<u8>],
    ) -> io::Result<Vec<Place>> {
        let path = self.path(number);
        let mut out = MAGIC.to_vec();
        frame::put(&mut out, &Record::Cursors(cursors).encode());
        let mut places = Vec::with_capacity(entries.len());
        for payload in entries {
            let offset = out.len() as u64;
            frame::put(&mut out, payload);
            let length = u32::try_from(frame::framed(payload.len())).unwrap_or(u32::MAX);
            places.push(Place { segment: number, offset, length });
        }
        let file = self.replace(&path, |file| file.write_all(&out))?;
        let segment = Segment { file, bytes: out.len() as u64, live: entries.len() };
        self.segments.insert(number, segment);
        self.sync_directory()?;
        Ok(places)
    }

    /// Puts a new file in the place of one, or of none.
    fn replace(
        &mut self,
        path: &Path,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> io::Result<File> {
        let (mut file, scratch) = self.scratch(path)?;
        self.alive()?;
        write(&mut file)?;
        self.alive()?;
        file.sync_data()?;
        self.alive()?;
        fs::rename(&scratch, path)?;
        Ok(file)
    }

    /// A new file under the name that it has until it takes the place of this one.
    fn scratch(&mut self, path: &Path) -> io::Result<(File, PathBuf)> {
        let mut scratch = path.as_os_str().to_owned();
        scratch.push(SCRATCH);
        let scratch = PathBuf::from(scratch);
        self.alive()?;
        let file = OpenOptions::new()
            .mode(PRIVATE)
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(&scratch)?;
        Ok((file, scratch))
    }

    /// Begins marks that know of every report before `next`. With `rotate` what comes from now on lies in a new segment. What is written is
    /// on the disk before marks can say that it was said.
    pub fn begin_marks(&mut self, next: u64, rotate: bool, cursors: [u64; 2]) -> io::Result<()> {
        self.marking = None;
        self.sync()?;
        if rotate {
            self.rotate(cursors)?;
        }
        let (file, path) = self.scratch(&self.directory.join(MARKS))?;
        let mut out = MAGIC.to_vec();
        frame::put(&mut out, &next.to_le_bytes());
        self.alive()?;
        let marking = self.marking.insert(Marking { file, path, unsynced: out.len() });
        marking.file.write_all(&out)
    }

    /// Whether marks are being written.
    pub fn is_marking(&self) -> bool {
        self.marking.is_some()
    }

    /// Forgets the marks that are being written; those from before stay.
    pub fn drop_marks(&mut self) {
        self.marking = None;
    }

    /// Writes some of them, which know of every report about their pods before `next`.
    pub fn add_marks(
        &mut self,
        next: u64,
        marks: &mut dyn Iterator<Item = Mark>,
    ) -> io::Result<()> {
        self.alive()?;
        let Some(marking) = &mut self.marking else {
            return Err(io::Error::other("no marks were begun"));
        };
        let mut out = Vec::new();
        // A number among marks: from here on they are as new as this.
        frame::put(&mut out, &next.to_le_bytes());
        for mark in marks {
            let mark = serde_json::to_vec(&mark)?;
            // One that could not be read again would hide all behind it.
            if mark.len() <= frame::RECORD_BYTES_MAX {
                frame::put(&mut out, &mark);
            }
            if out.len() >= MARKS_SYNC_BYTES {
                marking.put(&mut out)?;
            }
        }
        marking.put(&mut out)
    }

    /// They take the place of those from before, and segments that nobody needs are removed: what was in them is in the marks.
    pub fn end_marks(&mut self) -> io::Result<()> {
        let Some(Marking { file, path, .. }) = self.marking.take() else {
            return Err(io::Error::other("no marks were begun"));
        };
        self.sync()?;
        self.alive()?;
        file.sync_data()?;
        self.alive()?;
        fs::rename(&path, self.directory.join(MARKS))?;
        self.sync_directory()?;
        self.sweep();
        Ok(())
    }

    fn read_marks(&self) -> (u64, Vec<(u64, Mark)>) {
        let nothing = (0, Vec::new());
        let Ok(bytes) = fs::read(self.directory.join(MARKS)) else { return nothing };
        if bytes.get(..MAGIC.len()) != Some(MAGIC) {
            return nothing;
        }
        let number = |payload: &[u8]| payload.try_into().map(u64::from_le_bytes).ok();
        let Some((payload, mut at)) = frame::take(&bytes, MAGIC.len()) else { return nothing };
        let Some(marked) = number(payload) else { return nothing };
        let (mut marks, mut known) = (Vec::new(), marked);
        while let Some((payload, next)) = frame::take(&bytes, at) {
            match number(payload) {
                Some(number) => known = number,
                None => marks.extend(serde_json::from_slice(payload).ok().map(|m| (known, m))),
            }
            at = next;
        }
        (marked, marks)
    }

    fn sync(&self) -> io::Result<()> {
        self.segments.last_key_value().map_or(Ok(()), |(_, s)| s.file.sync_data())
    }
}

impl Marking {
    fn put(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        self.file.write_all(out)?;
        self.unsynced += out.len();
        out.clear();
        if self.unsynced >= MARKS_SYNC_BYTES {
            self.unsynced = 0;
            self.file.sync_data()?;
        }
        Ok(())
    }
}
