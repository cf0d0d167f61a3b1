//! A frame: 64 bytes of header, then the preamble and the records, compressed if they are longer than 4 KiB.
//!
//! | byte | field |
//! |---|---|
//! | 0 | `TNFR` |
//! | 4 | version, codec (0 plain, 1 lz4), lane, tier |
//! | 8 | sequence in the lane |
//! | 16 | id of the tree |
//! | 32 | id of the walk, or zeros |
//! | 48 | rows |
//! | 52 | length of preamble and records |
//! | 56 | length of what follows the header |
//! | 60 | crc32 of the header before it and of what follows |

use super::{
    WireError,
    record::{self, ROWS_MAX, Record},
};
use crate::time::Tick;
use tenure_kernel::{
    codec::{Reader, Writer},
    ids::EntityId,
};

/// The version that this code writes and reads.
pub const VERSION: u8 = 1;
/// Bytes of preamble and records, before compression and after.
pub const FRAME_BYTES_MAX: usize = 1 << 20;
/// Frames of one request.
pub const FRAMES_MAX: usize = 16;
const HEADER: usize = 64;
const MAGIC: &[u8; 4] = b"TNFR";
/// Shorter payloads are not compressed.
const COMPRESSED_FROM: usize = 4_096;

/// A walk never delays an event: each has a dense sequence of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Lane {
    /// Looks that kernel events caused, and answers to looks that were asked for.
    Live = 0,
    /// Listings.
    Walk = 1,
}

/// What made the scout look. Decides what is shown while a doubt is open, and which flags are set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Tier {
    /// Events of the kernel.
    Realtime = 0,
    /// The leader's first walk of a session.
    Snapshot = 1,
    /// A periodic walk, and deep checks.
    Audit = 2,
    /// A walk that somebody asked for.
    Scan = 3,
    /// A listing of a region where events were lost.
    Region = 4,
}

impl Tier {
    /// Higher is believed more while nobody can tell which state is the later one.
    pub fn rank(self) -> u8 {
        match self {
            Tier::Realtime => 2,
            Tier::Snapshot => 1,
            Tier::Audit | Tier::Scan | Tier::Region => 0,
        }
    }
}

/// What a scout's root is. Not `st_dev`: it changes with every NFS mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RootIdentity {
    /// The file system's magic number.
    pub magic: u64,
    /// The root's inode.
    pub inode: u64,
    /// When the root was created, in nanoseconds since 1970, where the file system knows it.
    pub birth: Option<i64>,
}

impl RootIdentity {
    /// Whether both are the same root. Birth times are compared where both have one.
    pub fn is_same(&self, other: &RootIdentity) -> bool {
        let births = self.birth.zip(other.birth);
        self.magic == other.magic && self.inode == other.inode && births.is_none_or(|(a, b)| a == b)
    }
}

/// What holds for all records of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Preamble {
    /// Not after the begin of any record.
    pub base: Tick,
    /// Ticks by which the scout's view time may be wrong: half a round trip, and 200 ppm since.
    pub slack: u64,
    /// Ticks for which the mount may answer from its attribute cache; zero on local file systems.
    pub cache: u64,
    /// The root that the records are about.
    pub root: RootIdentity,
    /// Digest of the excludes that the scout used.
    pub excludes: u64,
}

/// A frame, decoded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// The lane of its sequence.
    pub lane: Lane,
    /// What made the scout look.
    pub tier: Tier,
    /// Its number in the lane.
    pub sequence: u64,
    /// The tree that the scout believes to speak to.
    pub tree: EntityId,
    /// The walk that it belongs to.
    pub walk: Option<EntityId>,
    /// See [`Preamble`].
    pub preamble: Preamble,
    /// What the scout saw.
    pub records: Vec<Record>,
}

impl Frame {
    /// The bytes, or which bound the frame exceeds.
    pub fn write(&self) -> Result<Vec<u8>, WireError> {
        let rows: usize = self.records.iter().map(Record::rows).sum();
        within("rows of a frame", rows, ROWS_MAX)?;
        let mut payload = Writer::default();
        let p = &self.preamble;
        payload.uint(p.base.0);
        payload.uint(p.slack);
        payload.uint(p.cache);
        payload.uint(p.root.magic);
        payload.uint(p.root.inode);
        payload.u8(u8::from(p.root.birth.is_some()));
        payload.uint(p.root.birth.unwrap_or(0) as u64);
        payload.uint(p.excludes);
        record::write(&self.records, p.base, &mut payload);
        let payload = payload.0;
        within("bytes of a frame", payload.len(), FRAME_BYTES_MAX)?;
        let packed = (payload.len() > COMPRESSED_FROM)
            .then(|| lz4_flex::block::compress(&payload))
            .filter(|packed| packed.len() < payload.len());
        let (codec, stored) = match &packed {
            Some(packed) => (1, packed),
            None => (0, &payload),
        };
        let mut out = Vec::with_capacity(HEADER + stored.len());
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&[VERSION, codec, self.lane as u8, self.tier as u8]);
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.extend_from_slice(self.tree.as_bytes());
        out.extend_from_slice(self.walk.map_or([0; 16], |walk| *walk.as_bytes()).as_slice());
        out.extend_from_slice(&(rows as u32).to_le_bytes());
        out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        out.extend_from_slice(&(stored.len() as u32).to_le_bytes());
        out.extend_from_slice(&checksum(&out, stored).to_le_bytes());
        out.extend_from_slice(stored);
        Ok(out)
    }

    /// Reads the frame at the begin of `bytes`: the frame, and how many bytes it has.
    pub fn read(bytes: &[u8]) -> Result<(Frame, usize), WireError> {
        Self::read_at(bytes, 0)
    }

    fn read_at(bytes: &[u8], at: usize) -> Result<(Frame, usize), WireError> {
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else {
            return Err(WireError::Truncated { at: at + bytes.len() });
        };
        if &header[..4] != MAGIC {
            return Err(WireError::NotAFrame { at });
        }
        if header[4] != VERSION {
            return Err(WireError::Version { version: header[4] });
        }
        let number = |from: usize| {
            let four: [u8; 4] = header[from..from + 4].try_into().unwrap_or_default();
            u32::from_le_bytes(four) as usize
        };
        let (rows, raw, stored) = (number(48), number(52), number(56));
        within("rows of a frame", rows, ROWS_MAX)?;
        within("bytes of a frame", raw, FRAME_BYTES_MAX)?;
        within("bytes of a frame", stored, FRAME_BYTES_MAX)?;
        let stored_bytes =
            rest.get(..stored).ok_or(WireError::Truncated { at: at + bytes.len() })?;
        if checksum(&header[..60], stored_bytes) as usize != number(60) {
            return Err(WireError::Checksum);
        }
        let payload = unpack(header[5], stored_bytes, raw)?;
        let (preamble, used) = read_preamble(&payload)?;
        let sixteen =
            |from: usize| -> [u8; 16] { header[from..from + 16].try_into().unwrap_or_default() };
        let frame = Frame {
            lane: match header[6] {
                0 => Lane::Live,
                1 => Lane::Walk,
                _ => return Err(malformed("the lane of a frame is not known")),
            },
            tier: match header[7] {
                0 => Tier::Realtime,
                1 => Tier::Snapshot,
                2 => Tier::Audit,
                3 => Tier::Scan,
                4 => Tier::Region,
                _ => return Err(malformed("the tier of a frame is not known")),
            },
            sequence: u64::from_le_bytes(header[8..16].try_into().unwrap_or_default()),
            tree: EntityId::from_bytes(sixteen(16)),
            walk: Some(sixteen(32)).filter(|id| *id != [0; 16]).map(EntityId::from_bytes),
            records: record::read(&payload[used..], preamble.base, rows)?,
            preamble,
        };
        Ok((frame, HEADER + stored))
    }
}

/// The frames of a request's body; nothing may be left over.
pub fn read_body(body: &[u8]) -> Result<Vec<Frame>, WireError> {
    let mut frames = Vec::new();
    let mut at = 0;
    while at < body.len() {
        within("frames of a request", frames.len() + 1, FRAMES_MAX)?;
        let (frame, used) = Frame::read_at(&body[at..], at)?;
        frames.push(frame);
        at += used;
    }
    Ok(frames)
}

fn unpack(codec: u8, stored: &[u8], raw: usize) -> Result<Vec<u8>, WireError> {
    match codec {
        0 if stored.len() == raw => Ok(stored.to_vec()),
        0 => Err(malformed("the lengths of a frame that is not compressed differ")),
        1 => match lz4_flex::block::decompress(stored, raw) {
            Ok(payload) if payload.len() == raw => Ok(payload),
            _ => Err(malformed("a frame cannot be decompressed to the length that it names")),
        },
        _ => Err(malformed("the codec of a frame is not known")),
    }
}

fn read_preamble(payload: &[u8]) -> Result<(Preamble, usize), WireError> {
    let mut reader = Reader::new(payload);
    let mut fields = || -> Result<Preamble, tenure_kernel::codec::Damaged> {
        let (base, slack, cache) = (Tick(reader.uint()?), reader.uint()?, reader.uint()?);
        let (magic, inode) = (reader.uint()?, reader.uint()?);
        let (has_birth, birth) = (reader.u8()?, reader.uint()? as i64);
        let root = RootIdentity { magic, inode, birth: (has_birth > 0).then_some(birth) };
        Ok(Preamble { base, slack, cache, root, excludes: reader.uint()? })
    };
    let preamble = fields().map_err(|_| malformed("the preamble of a frame cannot be read"))?;
    Ok((preamble, payload.len() - reader.rest()))
}

fn malformed(what: &str) -> WireError {
    WireError::Malformed { what: what.to_owned(), at: 0 }
}

fn within(what: &'static str, is: usize, max: usize) -> Result<(), WireError> {
    if is > max {
        return Err(WireError::TooMany { what, is: is as u64, max: max as u64 });
    }
    Ok(())
}

fn checksum(header: &[u8], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(header);
    hasher.update(payload);
    hasher.finalize()
}
