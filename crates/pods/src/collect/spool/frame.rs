//! How things lie in a file of the spool: length, checksum, content, one after the other. Pure.
//!
//! A process that dies leaves the beginning of a record behind, a machine that dies may leave anything. Both end the file at the last
//! record that is whole.

use super::super::Saying;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tenure_kernel::time::Timestamp;

/// How a file begins.
pub(super) const MAGIC: &[u8; 8] = b"TNRSPL1\n";
const HEADER: usize = 12;
/// No record is longer: a report has a message of a kilobyte and a result of four.
pub(super) const RECORD_BYTES_MAX: usize = 1024 * 1024;

const ENTRY: u8 = b'E';
const CURSORS: u8 = b'C';

/// One record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Record {
    /// Something to be said.
    Entry(Entry),
    /// Up to where each sink has taken everything.
    Cursors([u64; 2]),
}

/// Something to be said, with what has to be known without reading it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub seq: u64,
    pub at: Timestamp,
    /// Bits of sinks.
    pub wants: u8,
    pub is_final: bool,
    /// The saying, as JSON.
    pub body: Vec<u8>,
}

/// What was known of a pod when the collector was last sure of it: so that after a restart what has gone meanwhile is
/// missed, clocks go on, and nothing is said twice that was taken.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Mark {
    /// The pod.
    pub uid: String,
    /// Its task.
    pub task: String,
    /// Its workflow.
    pub workflow: String,
    /// Whose it is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    /// Which attempt it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// The key of the last report about it; empty: there was none.
    pub said: String,
    /// That report said that the pod is over.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub over: bool,
    /// What was remembered of the object ([`LeanPod::remember`](crate::follow::LeanPod::remember)).
    pub facts: String,
    /// The last verdict.
    pub last: Option<crate::verdict::Verdict>,
}

pub(super) fn put(out: &mut Vec<u8>, payload: &[u8]) {
    out.extend_from_slice(&u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(&sum(payload));
    out.extend_from_slice(payload);
}

fn sum(payload: &[u8]) -> [u8; 8] {
    let digest = Sha256::digest(payload);
    let mut short = [0; 8];
    short.copy_from_slice(&digest[..8]);
    short
}

/// The payload that begins at `at`, and where the next one begins; `None` where nothing whole begins.
pub(super) fn take(bytes: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let header = bytes.get(at..at + HEADER)?;
    let length = u32::from_le_bytes(header[..4].try_into().ok()?) as usize;
    if length > RECORD_BYTES_MAX {
        return None;
    }
    let payload = bytes.get(at + HEADER..at + HEADER + length)?;
    (sum(payload) == header[4..]).then_some((payload, at + HEADER + length))
}

/// How long a record is in the file.
pub(super) fn framed(payload: usize) -> usize {
    HEADER + payload
}

impl Record {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Record::Entry(entry) => entry.encode(),
            Record::Cursors(cursors) => {
                let mut out = vec![CURSORS];
                cursors.iter().for_each(|c| out.extend_from_slice(&c.to_le_bytes()));
                out
            }
        }
    }

    /// `None`: written by a newer version, or not by us.
    pub fn decode(payload: &[u8]) -> Option<Record> {
        let number = |at: usize| <[u8; 8]>::try_from(payload.get(at..at + 8)?).ok();
        match *payload.first()? {
            ENTRY => Some(Record::Entry(Entry {
                seq: u64::from_le_bytes(number(1)?),
                at: Timestamp::from_micros(i64::from_le_bytes(number(9)?)),
                wants: *payload.get(17)?,
                is_final: *payload.get(18)? != 0,
                body: payload.get(19..)?.to_vec(),
            })),
            CURSORS => Some(Record::Cursors([
                u64::from_le_bytes(number(1)?),
                u64::from_le_bytes(number(9)?),
            ])),
            _ => None,
        }
    }
}

impl Entry {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(19 + self.body.len());
        out.push(ENTRY);
        out.extend_from_slice(&self.seq.to_le_bytes());
        out.extend_from_slice(&self.at.as_micros().to_le_bytes());
        out.push(self.wants);
        out.push(u8::from(self.is_final));
        out.extend_from_slice(&self.body);
        out
    }

    pub fn saying(&self) -> Option<Saying> {
        serde_json::from_slice(&self.body).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Cut anywhere, or with any byte changed, a file gives back a beginning of what was written, never anything else.
        #[test]
        fn a_damaged_file_gives_its_beginning(
            bodies in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 1..12),
            cut in 0usize..2_000, flip in proptest::option::of((0usize..2_000, 1u8..)),
        ) {
            let records: Vec<Record> = bodies.iter().enumerate().map(|(i, body)| match body.len() % 3 {
                0 => Record::Cursors([i as u64, body.len() as u64]),
                _ => Record::Entry(Entry { seq: i as u64, at: Timestamp::from_micros(7), wants: 3, is_final: i % 2 == 0, body: body.clone() }),
            }).collect();
            let mut file = Vec::new();
            for record in &records {
                put(&mut file, &record.encode());
            }
            file.truncate(cut.max(1));
            if let Some((at, with)) = flip && at < file.len() {
                file[at] ^= with;
            }
            let (mut at, mut read) = (0, Vec::new());
            while let Some((payload, next)) = take(&file, at) {
                read.push(Record::decode(payload).unwrap());
                at = next;
            }
            prop_assert!(read.len() <= records.len());
            prop_assert_eq!(&read[..], &records[..read.len()]);
        }
    }
}
