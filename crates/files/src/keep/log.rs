//! Records of the log: marker, length, crc32, how much of the segment was durable when it was written, the moment, and
//! an input. A record that cannot be read is the torn end of the log if nothing after it says that it had been durable.

use super::{
    KeepError,
    encode::{self, Reading},
};
use crate::{arbitrate::apply::Input, time::Tick, wire::WireError};
use tenure_kernel::{codec::Writer, ids::EntityId};

const MARKER: &[u8; 4] = b"TNLR";
const HEADER: usize = 28;

/// How much of an earlier segment was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentEnd {
    /// The epoch of its holder.
    pub epoch: u64,
    /// Its number.
    pub number: u64,
    /// Bytes.
    pub length: u64,
}

/// What a record has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Entry {
    /// The first record of an epoch: what was read of the segments before.
    Epoch { tree: EntityId, ends: Vec<SegmentEnd> },
    /// The first record of a further segment.
    Segment { tree: EntityId },
    /// What happened.
    Input(Box<Input>),
}

/// The bytes of a record; `durable` bytes of the segment were synced before it.
pub(super) fn record(at: Tick, durable: u64, entry: &Entry) -> Result<Vec<u8>, WireError> {
    let mut body = Writer::default();
    encode::entry(&mut body, entry)?;
    let mut bytes = Vec::with_capacity(HEADER + body.0.len());
    bytes.extend_from_slice(MARKER);
    bytes.extend_from_slice(&(body.0.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&durable.to_le_bytes());
    bytes.extend_from_slice(&at.0.to_le_bytes());
    bytes.extend_from_slice(&body.0);
    let crc = checksum(&bytes);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    Ok(bytes)
}

/// Of everything but the checksum itself.
fn checksum(record: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&record[..8]);
    hasher.update(&record[12..]);
    hasher.finalize()
}

fn number(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte))
}

/// The whole record at the begin of `bytes`, if its checksum is right.
fn whole(bytes: &[u8]) -> Option<&[u8]> {
    if bytes.len() < HEADER || &bytes[..4] != MARKER {
        return None;
    }
    let length = number(bytes, 4) as u32 as usize;
    let record = bytes.get(..HEADER.checked_add(length)?)?;
    (u64::from(checksum(record)) == number(record, 8) & 0xffff_ffff).then_some(record)
}

/// The first entry of a segment.
pub(super) fn first(bytes: &[u8]) -> Option<Entry> {
    let record = whole(bytes)?;
    Reading::new(&record[HEADER..]).entry().ok()
}

type Entries = Vec<(Tick, Entry)>;

/// The entries of a segment, and where the last whole one ends.
pub(super) fn read(bytes: &[u8], file: &str) -> Result<(Entries, u64), KeepError> {
    let mut entries = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let damaged = |what| KeepError::Damaged { file: file.to_owned(), at: at as u64, what };
        let Some(record) = whole(&bytes[at..]) else {
            if was_durable(bytes, at) {
                return Err(damaged("a record that had been durable cannot be read"));
            }
            break;
        };
        let entry = Reading::new(&record[HEADER..])
            .entry()
            .map_err(|_| damaged("a record with a right checksum cannot be understood"))?;
        entries.push((Tick(number(record, 20)), entry));
        at += record.len();
    }
    Ok((entries, at as u64))
}

/// Whether a whole record after `at` says that the segment was durable beyond `at`.
fn was_durable(bytes: &[u8], at: usize) -> bool {
    (at + 1..bytes.len().saturating_sub(HEADER)).any(|next| {
        bytes[next..].starts_with(MARKER)
            && whole(&bytes[next..]).is_some_and(|record| number(record, 12) > at as u64)
    })
}
