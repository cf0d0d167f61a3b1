//! Identifiers. All entity ids are time-ordered UUIDs (version 7), so that rows of entities created
//! together lie together: spread-out ids cost the embedded store a third of its speed.

use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::{fmt, str::FromStr};
use uuid::Uuid;

/// Names an entity of any kind. Sorts by creation time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EntityId(Uuid);

impl EntityId {
    /// A new id from a moment and ten random bytes; the caller brings both (law 7).
    pub fn new(at: Timestamp, random: [u8; 10]) -> Self {
        let millis = u64::try_from(at.as_micros() / 1_000).unwrap_or(0);
        Self(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid())
    }

    /// The id of an entity that a message creates. It depends on the creator, the name and a moment that the
    /// creator has on record (its own birth, say), so a creation that is decided twice names the same
    /// entity twice.
    pub fn derived(parent: EntityId, name: &str, at: Timestamp) -> Self {
        let hash = Sha256::new().chain_update(parent.as_bytes()).chain_update(name).finalize();
        let mut random = [0u8; 10];
        random.copy_from_slice(&hash[..10]);
        Self::new(at, random)
    }

    /// A well-known entity that exists once per store, such as lane 3. Sorts before everything else.
    pub const fn fixed(kind: u8, number: u16) -> Self {
        let n = number.to_be_bytes();
        Self(Uuid::from_bytes([0, 0, 0, 0, 0, 0, 0x70, 0, 0x80, 0, 0, 0, 0, kind, n[0], n[1]]))
    }

    /// The moment that it was made with, to the millisecond.
    pub fn moment(self) -> Timestamp {
        let [a, b, c, d, e, f, ..] = *self.as_bytes();
        Timestamp::from_micros(i64::from_be_bytes([0, 0, a, b, c, d, e, f]) * 1_000)
    }

    /// Whether it follows from a name: such an id has the moment zero, and everybody who knows the name can work it out.
    pub fn is_named(self) -> bool {
        self.moment() == Timestamp::ZERO
    }

    /// The sixteen bytes, as stored.
    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }

    /// From sixteen stored bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }

    /// As the `uuid` crate's type, for drivers that speak it.
    pub fn uuid(self) -> Uuid {
        self.0
    }

    /// From the `uuid` crate's type.
    pub fn from_uuid(uuid: Uuid) -> Self {
        Self(uuid)
    }
}

impl fmt::Display for EntityId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for EntityId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for EntityId {
    type Err = uuid::Error;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Uuid::parse_str(s).map(Self)
    }
}

/// A worker session is an entity; this alias says where one is meant.
pub type SessionId = EntityId;

/// Names one commit. Asking again with the same id is always safe.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct CommitId(pub [u8; 16]);

impl CommitId {
    /// From two random words.
    pub fn new(a: u64, b: u64) -> Self {
        Self((u128::from(a) << 64 | u128::from(b)).to_be_bytes())
    }

    /// The id of the `n`-th part of something that already has an id.
    pub fn nth(self, n: u64) -> Self {
        Self((u128::from_be_bytes(self.0) ^ (u128::from(n) + 1)).to_be_bytes())
    }
}

/// Makes mail idempotent. For mail from an entity it is the message id; from outside, the sender's.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MailId(pub String);

impl From<MessageId> for MailId {
    fn from(id: MessageId) -> Self {
        Self(id.to_string())
    }
}

/// Source, version and ordinal: where a message came from. Stable for ever, also on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct MessageId {
    /// The entity whose commit sent it.
    pub source: EntityId,
    /// The version of that commit's last event.
    pub version: u64,
    /// Its place among the messages of that commit.
    pub ordinal: u32,
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.source, self.version, self.ordinal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_time() {
        let early = EntityId::new(Timestamp::from_micros(1_000_000), [255; 10]);
        let late = EntityId::new(Timestamp::from_micros(1_002_000), [0; 10]);
        assert!(early < late);
        assert_eq!(late.moment(), Timestamp::from_micros(1_002_000));
        assert!(EntityId::fixed(1, 3) < early);
        assert!(EntityId::fixed(1, 3).is_named() && !early.is_named());
        assert!(EntityId::derived(early, "x", Timestamp::ZERO).is_named());
        assert!(EntityId::fixed(1, 3) < EntityId::fixed(1, 4));
    }

    #[test]
    fn a_derived_id_is_the_same_for_the_same_creator_name_and_moment() {
        let at = Timestamp::from_micros(5_000_000);
        let parent = EntityId::new(at, [1; 10]);
        assert_eq!(
            EntityId::derived(parent, "child-1", at),
            EntityId::derived(parent, "child-1", at)
        );
        assert_ne!(
            EntityId::derived(parent, "child-1", at),
            EntityId::derived(parent, "child-2", at)
        );
    }

    #[test]
    fn text_form_round_trips() {
        let id = EntityId::new(Timestamp::from_micros(7_000_000), [7; 10]);
        assert_eq!(id.to_string().parse::<EntityId>().ok(), Some(id));
    }
}
