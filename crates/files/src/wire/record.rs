//! Records: what a scout saw, and when. A kernel event is a reason to look and never in a record; what is sent is the
//! look (one `statx`), a listing of a directory, or that nothing changed.
//!
//! Numbers are varints. A path shares a prefix with the path of the record before it, a listed name with the name
//! before it; times and inodes are differences to the entry before. A row takes about 20 bytes after compression.

use super::{
    WireError,
    name::{BadName, check_name, check_path, shared},
};
use crate::{
    facts::{EntryType, Facts},
    time::{Interval, Tick},
};
use tenure_kernel::codec::{Damaged, Reader, Writer};

/// Records of one frame, and entries of its listings together.
pub const ROWS_MAX: usize = 16_384;
/// An interval longer than this many ticks (about 12 days) is malformed; evidence is refused long before.
const INTERVAL_TICKS_MAX: u64 = 1 << 27;

/// What a look found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finding {
    /// The entry exists.
    Exists(Facts),
    /// `ENOENT`, `ENOTDIR` or `ELOOP`: there is no such entry.
    Missing,
    /// Another errno. It says nothing about the entry.
    Failed(u32),
}

/// Why the scout looked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Cause {
    /// Somebody asked: a doubt, the sentinel, a deep check, a scan.
    Asked = 0,
    /// Something about the entry happened that is no write: created, deleted, moved, attributes changed.
    Event = 1,
    /// It was written to and may still be open.
    Written = 2,
    /// A writer closed it.
    Closed = 3,
}

/// One `statx` of one path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Look {
    /// The path below the root.
    pub path: Vec<u8>,
    /// What was found.
    pub finding: Finding,
    /// The parent's descriptor and the entry were read past the caches of the mount.
    pub forced: bool,
    /// Why the scout looked.
    pub cause: Cause,
    /// When.
    pub during: Interval,
}

/// How far a listing can be trusted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Outcome {
    /// No error, and the directory was the same before and after: a name that is not in it is not there.
    Complete = 0,
    /// The directory changed while it was read. Names that are listed exist.
    Racy = 1,
    /// An error in the middle. Names that are listed exist.
    Partial = 2,
}

/// One entry of a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// The name in the directory.
    pub name: Vec<u8>,
    /// What the look at it found, or `None` if only the name is known.
    pub facts: Option<Facts>,
}

/// A directory that was read, or a part of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listing {
    /// The directory.
    pub path: Vec<u8>,
    /// From before the directory was opened to after its last `fstat`; `begin` is the same in all parts.
    pub during: Interval,
    /// What `fstat` of the directory said.
    pub directory: Facts,
    /// Names in ascending order.
    pub entries: Vec<Listed>,
    /// Set in the last part alone: how far all parts together can be trusted.
    pub end: Option<Outcome>,
    /// This is the only part.
    pub is_whole: bool,
}

/// A directory whose `fstat` is what it was when it was last listed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Silent {
    /// The directory.
    pub path: Vec<u8>,
    /// When.
    pub during: Interval,
    /// What `fstat` said.
    pub directory: Facts,
}

/// Two names of a paired rename, and what forced looks after it found at both.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Moved {
    /// The old path.
    pub from: Vec<u8>,
    /// The new path.
    pub to: Vec<u8>,
    /// What is at the old path now.
    pub at_from: Finding,
    /// What is at the new path now.
    pub at_to: Finding,
    /// When both looks were made.
    pub during: Interval,
}

/// One thing that a scout says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// See [`Look`].
    Look(Look),
    /// See [`Listing`].
    Listing(Listing),
    /// See [`Silent`].
    Silent(Silent),
    /// See [`Moved`].
    Moved(Moved),
    /// The scout may have missed changes here.
    Dirty {
        /// The directory.
        path: Vec<u8>,
        /// Everything below it too.
        subtree: bool,
        /// Since when.
        during: Interval,
    },
    /// The scout watches the directory, or does so no more.
    Cover {
        /// The directory.
        path: Vec<u8>,
        /// Whether it is watched from now on.
        watched: bool,
        /// Since when.
        during: Interval,
    },
    /// The scout has these frames of the lane no more; their regions are sent as [`Record::Dirty`].
    Skipped {
        /// The first sequence that is missing.
        first: u64,
        /// The last one.
        last: u64,
    },
}

impl Record {
    /// How many rows it counts as.
    pub fn rows(&self) -> usize {
        match self {
            Record::Listing(listing) => 1 + listing.entries.len(),
            _ => 1,
        }
    }
}

/// What the next record or entry is a difference to.
#[derive(Default)]
struct Before {
    path: Vec<u8>,
    facts: Facts,
}

const LOOK: u8 = 1;
const LISTING: u8 = 2;
const SILENT: u8 = 3;
const MOVED: u8 = 4;
const DIRTY: u8 = 5;
const COVER: u8 = 6;
const SKIPPED: u8 = 7;

/// Writes records; `base` is not after the begin of any of them.
pub fn write(records: &[Record], base: Tick, out: &mut Writer) {
    let mut before = Before::default();
    for record in records {
        match record {
            Record::Look(look) => {
                out.u8(LOOK);
                path(out, &mut before, &look.path);
                interval(out, base, look.during);
                out.u8(look.cause as u8 | u8::from(look.forced) << 4);
                finding(out, &mut before, &look.finding);
            }
            Record::Listing(listing) => {
                out.u8(LISTING);
                path(out, &mut before, &listing.path);
                interval(out, base, listing.during);
                let end = listing.end.map_or(3, |end| end as u8);
                out.u8(end | u8::from(listing.is_whole) << 4);
                facts(out, &mut before, &listing.directory);
                out.uint(listing.entries.len() as u64);
                let mut last: &[u8] = &[];
                for entry in &listing.entries {
                    front_coded(out, last, &entry.name);
                    last = &entry.name;
                    match &entry.facts {
                        Some(found) => facts(out, &mut before, found),
                        None => out.u8(NAME_ALONE),
                    }
                }
            }
            Record::Silent(silent) => {
                out.u8(SILENT);
                path(out, &mut before, &silent.path);
                interval(out, base, silent.during);
                facts(out, &mut before, &silent.directory);
            }
            Record::Moved(moved) => {
                out.u8(MOVED);
                path(out, &mut before, &moved.from);
                path(out, &mut before, &moved.to);
                interval(out, base, moved.during);
                finding(out, &mut before, &moved.at_from);
                finding(out, &mut before, &moved.at_to);
            }
            Record::Dirty { path: at, subtree: flag, during }
            | Record::Cover { path: at, watched: flag, during } => {
                out.u8(if matches!(record, Record::Dirty { .. }) { DIRTY } else { COVER });
                path(out, &mut before, at);
                interval(out, base, *during);
                out.u8(u8::from(*flag));
            }
            Record::Skipped { first, last } => {
                out.u8(SKIPPED);
                out.uint(*first);
                out.uint(*last);
            }
        }
    }
}

fn path(out: &mut Writer, before: &mut Before, path: &[u8]) {
    front_coded(out, &before.path, path);
    before.path.clear();
    before.path.extend_from_slice(path);
}

fn front_coded(out: &mut Writer, before: &[u8], bytes: &[u8]) {
    let same = shared(before, bytes);
    out.uint(same as u64);
    out.bytes(&bytes[same..]);
}

fn interval(out: &mut Writer, base: Tick, during: Interval) {
    out.uint(during.begin.since(base));
    out.uint(during.end.since(during.begin));
}

/// The byte for the type of an entry whose name alone is known.
const NAME_ALONE: u8 = 0xff;
const MISSING: u8 = 0xfe;
const FAILED: u8 = 0xfd;
/// Bit of the type's byte: owner and group are those of the entry before.
const SAME_OWNER: u8 = 0x10;
/// Bit of the type's byte: mode is that of the entry before.
const SAME_MODE: u8 = 0x20;

fn finding(out: &mut Writer, before: &mut Before, finding: &Finding) {
    match finding {
        Finding::Exists(found) => facts(out, before, found),
        Finding::Missing => out.u8(MISSING),
        Finding::Failed(errno) => {
            out.u8(FAILED);
            out.uint(u64::from(*errno));
        }
    }
}

fn facts(out: &mut Writer, before: &mut Before, f: &Facts) {
    let last = &before.facts;
    let (same_owner, same_mode) = ((f.uid, f.gid) == (last.uid, last.gid), f.mode == last.mode);
    let owner_bit = if same_owner { SAME_OWNER } else { 0 };
    let mode_bit = if same_mode { SAME_MODE } else { 0 };
    out.u8(f.entry_type as u8 | owner_bit | mode_bit);
    if !same_mode {
        out.uint(u64::from(f.mode));
    }
    if !same_owner {
        out.uint(u64::from(f.uid));
        out.uint(u64::from(f.gid));
    }
    out.uint(f.size);
    out.uint(zigzag(f.mtime.wrapping_sub(last.mtime)));
    out.uint(zigzag(f.ctime.wrapping_sub(f.mtime)));
    out.uint(zigzag(f.inode.wrapping_sub(last.inode) as i64));
    before.facts = *f;
}

fn zigzag(v: i64) -> u64 {
    ((v << 1) ^ (v >> 63)) as u64
}

fn unzigzag(v: u64) -> i64 {
    (v >> 1) as i64 ^ -((v & 1) as i64)
}

/// Reads what [`write()`] wrote, `rows` in all.
pub fn read(bytes: &[u8], base: Tick, rows: usize) -> Result<Vec<Record>, WireError> {
    let mut input =
        Input { reader: Reader::new(bytes), length: bytes.len(), base, before: Before::default() };
    let mut records = Vec::new();
    let mut left = rows;
    while !input.reader.is_done() {
        let record = input.record(left)?;
        left = left
            .checked_sub(record.rows())
            .ok_or_else(|| input.malformed("there are more rows than the header says"))?;
        records.push(record);
    }
    if left > 0 {
        return Err(input.malformed("there are fewer rows than the header says"));
    }
    Ok(records)
}

struct Input<'a> {
    reader: Reader<'a>,
    length: usize,
    base: Tick,
    before: Before,
}

impl Input<'_> {
    fn malformed(&self, what: &str) -> WireError {
        WireError::Malformed { what: what.to_owned(), at: self.length - self.reader.rest() }
    }

    fn damaged(&self, damaged: Damaged) -> WireError {
        WireError::Malformed { what: "a field cannot be read".to_owned(), at: damaged.at }
    }

    fn byte(&mut self) -> Result<u8, WireError> {
        self.reader.u8().map_err(|e| self.damaged(e))
    }

    fn uint(&mut self) -> Result<u64, WireError> {
        self.reader.uint().map_err(|e| self.damaged(e))
    }

    fn flag(&mut self) -> Result<bool, WireError> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.malformed("a flag is neither 0 nor 1")),
        }
    }

    fn small<T: TryFrom<u64>>(&mut self, what: &str) -> Result<T, WireError> {
        T::try_from(self.uint()?).map_err(|_| self.malformed(&format!("{what} is too large")))
    }

    fn front_coded(&mut self, before: &[u8], max: usize) -> Result<Vec<u8>, WireError> {
        let same: usize = self.small("a shared prefix")?;
        if same > before.len() {
            return Err(self.malformed("a name shares more than the name before it has"));
        }
        let rest = self.reader.bytes().map_err(|e| WireError::Malformed {
            what: "a name cannot be read".to_owned(),
            at: e.at,
        })?;
        if same + rest.len() > max {
            return Err(self.malformed(&BadName::Long.to_string()));
        }
        Ok([&before[..same], rest].concat())
    }

    fn path(&mut self) -> Result<Vec<u8>, WireError> {
        let before = std::mem::take(&mut self.before.path);
        let path = self.front_coded(&before, super::name::PATH_BYTES_MAX)?;
        check_path(&path).map_err(|e| self.malformed(&e.to_string()))?;
        self.before.path.clone_from(&path);
        Ok(path)
    }

    fn interval(&mut self) -> Result<Interval, WireError> {
        let (begin, length) = (self.uint()?, self.uint()?);
        if length > INTERVAL_TICKS_MAX {
            return Err(self.malformed("an interval is longer than twelve days"));
        }
        let begin = self.base.plus(begin);
        Ok(Interval { begin, end: begin.plus(length) })
    }

    fn facts(&mut self) -> Result<Facts, WireError> {
        let first = self.byte()?;
        self.facts_after(first)
    }

    fn facts_after(&mut self, first: u8) -> Result<Facts, WireError> {
        let last = self.before.facts;
        let entry_type = (first & !(SAME_OWNER | SAME_MODE) < 8)
            .then(|| EntryType::from_number(first & 0x07))
            .flatten()
            .ok_or_else(|| self.malformed("a type of entry is not known"))?;
        let mode = if first & SAME_MODE > 0 { last.mode } else { self.small("a mode")? };
        if mode > 0o7777 {
            return Err(self.malformed("a mode has more than twelve bits"));
        }
        let (uid, gid) = if first & SAME_OWNER > 0 {
            (last.uid, last.gid)
        } else {
            (self.small("an owner")?, self.small("a group")?)
        };
        let size = self.uint()?;
        let mtime = last.mtime.wrapping_add(unzigzag(self.uint()?));
        let ctime = mtime.wrapping_add(unzigzag(self.uint()?));
        let inode = last.inode.wrapping_add(unzigzag(self.uint()?) as u64);
        self.before.facts = Facts { entry_type, mode, size, mtime, ctime, inode, uid, gid };
        Ok(self.before.facts)
    }

    fn finding(&mut self) -> Result<Finding, WireError> {
        Ok(match self.byte()? {
            MISSING => Finding::Missing,
            FAILED => Finding::Failed(self.small("an errno")?),
            first => Finding::Exists(self.facts_after(first)?),
        })
    }

    fn record(&mut self, rows_left: usize) -> Result<Record, WireError> {
        Ok(match self.byte()? {
            LOOK => {
                let (path, during, bits) = (self.path()?, self.interval()?, self.byte()?);
                let cause = match bits & !0x10 {
                    0 => Cause::Asked,
                    1 => Cause::Event,
                    2 => Cause::Written,
                    3 => Cause::Closed,
                    _ => return Err(self.malformed("the cause of a look is not known")),
                };
                let finding = self.finding()?;
                Record::Look(Look { path, finding, forced: bits & 0x10 > 0, cause, during })
            }
            LISTING => Record::Listing(self.listing(rows_left)?),
            SILENT => {
                let (path, during, directory) = (self.path()?, self.interval()?, self.facts()?);
                Record::Silent(Silent { path, during, directory })
            }
            MOVED => {
                let (from, to, during) = (self.path()?, self.path()?, self.interval()?);
                let (at_from, at_to) = (self.finding()?, self.finding()?);
                if from.is_empty() || to.is_empty() {
                    return Err(self.malformed("the root does not move"));
                }
                Record::Moved(Moved { from, to, at_from, at_to, during })
            }
            DIRTY => {
                let (path, during, subtree) = (self.path()?, self.interval()?, self.flag()?);
                Record::Dirty { path, subtree, during }
            }
            COVER => {
                let (path, during, watched) = (self.path()?, self.interval()?, self.flag()?);
                Record::Cover { path, watched, during }
            }
            SKIPPED => Record::Skipped { first: self.uint()?, last: self.uint()? },
            _ => return Err(self.malformed("a kind of record is not known")),
        })
    }

    fn listing(&mut self, rows_left: usize) -> Result<Listing, WireError> {
        let (path, during, bits) = (self.path()?, self.interval()?, self.byte()?);
        let end = match bits & !0x10 {
            0 => Some(Outcome::Complete),
            1 => Some(Outcome::Racy),
            2 => Some(Outcome::Partial),
            3 => None,
            _ => return Err(self.malformed("the outcome of a listing is not known")),
        };
        let is_whole = bits & 0x10 > 0;
        if is_whole && end.is_none() {
            return Err(self.malformed("a listing is whole and has no outcome"));
        }
        let directory = self.facts()?;
        let count: usize = self.small("the number of entries")?;
        // The record itself is a row too. Checked before anything is allocated for the number.
        if count >= rows_left.max(1) {
            return Err(self.malformed("there are more rows than the header says"));
        }
        let mut entries: Vec<Listed> = Vec::new();
        for _ in 0..count {
            let last = entries.last().map_or(&[][..], |entry| &entry.name);
            // `last` borrows from `entries`, which is written to below.
            let last = last.to_vec();
            let name = self.front_coded(&last, super::name::NAME_BYTES_MAX)?;
            check_name(&name).map_err(|e| self.malformed(&e.to_string()))?;
            if name <= last {
                return Err(self.malformed("names of a listing are not in ascending order"));
            }
            let facts = match self.byte()? {
                NAME_ALONE => None,
                first => Some(self.facts_after(first)?),
            };
            entries.push(Listed { name, facts });
        }
        Ok(Listing { path, during, directory, entries, end, is_whole })
    }
}
