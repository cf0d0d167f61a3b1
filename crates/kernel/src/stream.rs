//! Streams: what happened to an entity, in order, chained by hashes.
//!
//! A commit becomes one [`Record`]: the events it wrote and a *meta* block that says what else the
//! commit changed (mail read, timers, tenure, deadline). Meta is part of the chain, so a head can be
//! folded from records alone and nothing in it can be altered unnoticed.
//!
//! The chain is per event. A link covers the previous link, entity, version, time, epoch, event
//! name, length and *digest* of the body, and (first event of a record) the commit id and the meta
//! block. Because it covers digests, erasing a blob for privacy leaves the chain intact.
//!
//! Road not taken: hashing a JSON rendering. A database that normalises JSON, or keeps fewer digits
//! of a timestamp, then makes every recomputation fail. We hash the bytes that are stored.

use crate::{
    codec::{Damaged, Reader, Writer},
    ids::{CommitId, EntityId},
    limits,
    time::Timestamp,
};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use std::{borrow::Cow, fmt};

/// A SHA-256 value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// The link before the first event.
    pub const ZERO: Hash = Hash([0; 32]);

    /// The digest of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Hash(Sha256::digest(bytes).into())
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Hash {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

/// What an event or a message carries: bytes in place, or the name of a blob.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body {
    /// At most [`crate::limits::BODY_INLINE_BYTES_MAX`] bytes.
    Inline(Vec<u8>),
    /// Larger ones live beside the stream, under their digest.
    Blob {
        /// SHA-256 of the bytes.
        digest: Hash,
        /// How many there are.
        len: u64,
    },
}

impl Body {
    /// A JSON rendering of `value`. Struct fields keep their order, so equal values give equal bytes.
    pub fn json(value: &impl Serialize) -> Self {
        // Serialising a value of ours to memory fails only for non-string map keys or a hand-written
        // `Serialize` that errs; both are programmer errors that the first test of a type shows.
        Body::Inline(serde_json::to_vec(value).expect("a body serialises to JSON"))
    }

    /// The digest that the chain covers.
    pub fn digest(&self) -> Hash {
        match self {
            Body::Inline(bytes) => Hash::of(bytes),
            Body::Blob { digest, .. } => *digest,
        }
    }

    /// The bytes, where they are in place.
    pub fn inline(&self) -> Option<&[u8]> {
        match self {
            Body::Inline(bytes) => Some(bytes),
            Body::Blob { .. } => None,
        }
    }

    /// How many bytes the content has, wherever it lives.
    pub fn content_len(&self) -> u64 {
        match self {
            Body::Inline(bytes) => bytes.len() as u64,
            Body::Blob { len, .. } => *len,
        }
    }

    /// Appends the stored form.
    pub fn write(&self, w: &mut Writer) {
        match self {
            Body::Inline(bytes) => {
                w.u8(0);
                w.bytes(bytes);
            }
            Body::Blob { digest, len } => {
                w.u8(1);
                w.0.extend_from_slice(&digest.0);
                w.uint(*len);
            }
        }
    }

    /// Reads the stored form.
    pub fn read(r: &mut Reader<'_>) -> Result<Self, Damaged> {
        match r.u8()? {
            0 => Ok(Body::Inline(r.bytes()?.to_vec())),
            1 => {
                let mut digest = [0; 32];
                digest.copy_from_slice(r.take(32)?);
                Ok(Body::Blob { digest: Hash(digest), len: r.uint()? })
            }
            _ => Err(Damaged { at: 0 }),
        }
    }
}

/// An event that somebody wants to append.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewEvent {
    /// The event's name in the machine's transition table.
    pub name: Cow<'static, str>,
    /// What it says.
    pub body: Body,
    /// Digest of the body, computed where the event is made and not on the store's writer.
    pub digest: Hash,
}

impl NewEvent {
    /// Names an event and hashes its body.
    pub fn new(name: impl Into<Cow<'static, str>>, body: Body) -> Self {
        let digest = body.digest();
        Self { name: name.into(), body, digest }
    }
}

/// An event as it stands in a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// Dense, from 1.
    pub version: u64,
    /// The store's time of the commit; never before the previous event's.
    pub at: Timestamp,
    /// The epoch it was written under.
    pub epoch: u64,
    /// Its name in the transition table.
    pub name: String,
    /// What it says.
    pub body: Body,
}

/// One committed row: everything a commit did to its entity.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Whose stream.
    pub entity: EntityId,
    /// Version of the first event.
    pub first: u64,
    /// Number of events, at least one.
    pub count: u32,
    /// Makes repetition safe.
    pub commit: CommitId,
    /// The store's time.
    pub at: Timestamp,
    /// The epoch the events were written under.
    pub epoch: u64,
    /// Chain value after the last event.
    pub hash: Hash,
    /// Meta block and events, as written.
    pub bytes: Vec<u8>,
}

impl Record {
    /// Version of the last event.
    pub fn last(&self) -> u64 {
        // A record may come from a file that anybody wrote: its numbers are whatever they like.
        self.first.saturating_add(u64::from(self.count).saturating_sub(1))
    }

    /// The encoded meta block.
    pub fn meta(&self) -> Result<&[u8], Damaged> {
        Reader::new(&self.bytes).bytes()
    }

    /// The events. A record with more than [`limits::EVENTS_PER_COMMIT_MAX`] is damaged: no commit has made it. In a file that
    /// anybody wrote, a count could otherwise demand many times the memory that the file has bytes.
    pub fn events(&self) -> Result<Vec<Event>, Damaged> {
        let mut r = Reader::new(&self.bytes);
        r.bytes()?;
        let count = usize::try_from(self.count).unwrap_or(usize::MAX);
        if count > limits::EVENTS_PER_COMMIT_MAX {
            return Err(Damaged { at: 0 });
        }
        let mut events = Vec::with_capacity(count);
        for i in 0..u64::from(self.count) {
            let name = r.text()?.to_owned();
            let body = Body::read(&mut r)?;
            events.push(Event {
                version: self.first.saturating_add(i),
                at: self.at,
                epoch: self.epoch,
                name,
                body,
            });
        }
        if r.is_done() { Ok(events) } else { Err(Damaged { at: self.bytes.len() }) }
    }
}

/// Digests of the bodies in these records that lie beside the stream.
pub fn blobs_of(records: &[Record]) -> Vec<Hash> {
    let events = records.iter().flat_map(|r| r.events().unwrap_or_default());
    let digest = |e: Event| match e.body {
        Body::Blob { digest, .. } => Some(digest),
        Body::Inline(_) => None,
    };
    events.filter_map(digest).collect()
}

/// Where a record joins the chain.
#[derive(Clone, Copy, Debug)]
pub struct Joint {
    /// Chain value before it.
    pub previous: Hash,
    /// Version of its first event.
    pub first: u64,
    /// Its time.
    pub at: Timestamp,
    /// Its epoch.
    pub epoch: u64,
}

/// Packs events and meta into a record and advances the chain.
pub fn pack(
    entity: EntityId,
    commit: CommitId,
    joint: Joint,
    meta: &[u8],
    events: &[NewEvent],
) -> Record {
    let size: usize =
        events.iter().map(|e| e.name.len() + e.body.inline().map_or(48, <[u8]>::len) + 8).sum();
    let mut w = Writer(Vec::with_capacity(size + meta.len() + 8));
    w.bytes(meta);
    let mut hash = joint.previous;
    for (i, event) in events.iter().enumerate() {
        w.bytes(event.name.as_bytes());
        event.body.write(&mut w);
        let covered = (i == 0).then_some((commit, meta));
        let body = (event.digest, event.body.content_len());
        hash = link(hash, entity, joint.first + i as u64, joint, &event.name, body, covered);
    }
    Record {
        entity,
        first: joint.first,
        count: u32::try_from(events.len()).unwrap_or(u32::MAX),
        commit,
        at: joint.at,
        epoch: joint.epoch,
        hash,
        bytes: w.0,
    }
}

/// Recomputes a record's chain value from its stored bytes.
pub fn rehash(previous: Hash, record: &Record) -> Result<Hash, Damaged> {
    let joint = Joint { previous, first: record.first, at: record.at, epoch: record.epoch };
    let meta = record.meta()?;
    let mut hash = previous;
    for (i, event) in record.events()?.iter().enumerate() {
        let covered = (i == 0).then_some((record.commit, meta));
        let body = (event.body.digest(), event.body.content_len());
        hash = link(hash, record.entity, event.version, joint, &event.name, body, covered);
    }
    Ok(hash)
}

fn link(
    previous: Hash,
    entity: EntityId,
    version: u64,
    joint: Joint,
    name: &str,
    body: (Hash, u64),
    record: Option<(CommitId, &[u8])>,
) -> Hash {
    let mut h = Sha256::new();
    h.update(previous.0);
    h.update(entity.as_bytes());
    h.update(version.to_be_bytes());
    h.update(joint.at.as_micros().to_be_bytes());
    h.update(joint.epoch.to_be_bytes());
    h.update((name.len() as u64).to_be_bytes());
    h.update(name);
    h.update(body.0.0);
    h.update(body.1.to_be_bytes());
    if let Some((commit, meta)) = record {
        h.update(commit.0);
        h.update(meta);
    }
    Hash(h.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample(bodies: &[Vec<u8>], meta: &[u8]) -> (Hash, Record) {
        let events: Vec<_> = bodies
            .iter()
            .map(|b| NewEvent::new("thing_happened", Body::Inline(b.clone())))
            .collect();
        let joint = Joint {
            previous: Hash::of(b"before"),
            first: 4,
            at: Timestamp::from_micros(9),
            epoch: 2,
        };
        (joint.previous, pack(EntityId::fixed(9, 9), CommitId::new(1, 2), joint, meta, &events))
    }

    proptest! {
        #[test]
        fn a_packed_record_reads_back_and_rehashes(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..5),
            meta in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            let (previous, record) = sample(&bodies, &meta);
            let events = record.events().unwrap();
            prop_assert_eq!(events.len(), bodies.len());
            prop_assert_eq!(record.meta().unwrap(), &meta[..]);
            prop_assert_eq!(rehash(previous, &record), Ok(record.hash));
        }

        #[test]
        fn any_changed_byte_is_noticed(at in 0usize..60, flip in 1u8..) {
            let (previous, mut record) = sample(&[b"one".to_vec(), b"two".to_vec()], b"meta");
            let i = at % record.bytes.len();
            record.bytes[i] ^= flip;
            prop_assert_ne!(rehash(previous, &record), Ok(record.hash));
        }
    }

    #[test]
    fn numbers_that_no_store_wrote_are_damage_and_nothing_worse() {
        let (previous, record) = sample(&[b"one".to_vec(), b"two".to_vec()], b"meta");
        for (first, count) in [(4, u32::MAX), (u64::MAX, 2), (u64::MAX, u32::MAX), (0, 0)] {
            let forged = Record { first, count, ..record.clone() };
            assert_ne!(rehash(previous, &forged), Ok(record.hash), "{first} {count}");
            assert!(forged.last() >= first, "{first} {count}");
        }
        let forged = Record { count: u32::MAX, ..record };
        assert!(forged.events().is_err());
    }

    #[test]
    fn a_record_has_no_more_events_than_a_commit() {
        let (_, full) = sample(&vec![Vec::new(); limits::EVENTS_PER_COMMIT_MAX], b"meta");
        assert_eq!(full.events().unwrap().len(), limits::EVENTS_PER_COMMIT_MAX);
        let (_, over) = sample(&vec![Vec::new(); limits::EVENTS_PER_COMMIT_MAX + 1], b"meta");
        assert_eq!(over.events(), Err(Damaged { at: 0 }));
    }

    #[test]
    fn erasing_a_blob_keeps_the_chain() {
        let inline = NewEvent::new("e", Body::Inline(b"secret".to_vec()));
        let blob = NewEvent::new("e", Body::Blob { digest: Hash::of(b"secret"), len: 6 });
        let joint = Joint { previous: Hash::ZERO, first: 1, at: Timestamp::ZERO, epoch: 0 };
        let id = EntityId::fixed(1, 1);
        let a = pack(id, CommitId::new(0, 0), joint, &[], &[inline]);
        let b = pack(id, CommitId::new(0, 0), joint, &[], &[blob]);
        assert_eq!(a.hash, b.hash);
    }
}
