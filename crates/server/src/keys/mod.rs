//! API keys, as entities of kind `key`: they have a history, survive in every store, and need no table of
//! their own. A key says who calls ([`State`]: name, tenant, scopes) and carries a secret, of which only
//! the SHA-256 is kept; the secret has 256 bits of its own, so a slow hash would protect nothing.
//!
//! A key is written as `tnr_<id>_<secret>`: the id finds the row without an index, the prefix lets scanners of
//! leaked secrets find it.
//!
//! Only [`create`] makes keys, by a commit of its own. The machine refuses to be born from a message, or any
//! job could write itself a key.

mod machine;

pub use machine::{Event, Key, State, TABLE};

use serde::{Deserialize, Serialize};
use std::fmt;
use tenure_engine::{birth::random, pipeline::Pipeline};
use tenure_kernel::{
    commit::{Birth, Commit, CommitAnswer, Expect, MailStance},
    error::StoreError,
    head::Head,
    ids::EntityId,
    limits,
    machine::{Machine as _, decode_state, encode_state},
    store::HeadFilter,
    stream::{Body, Hash, NewEvent},
    table::Class,
    time::Timestamp,
};

/// The kind of the entities.
pub const KIND: &str = "key";
const PREFIX: &str = "tnr_";
/// Keys shown by one listing.
const LIST_MAX: usize = 1_000;
/// How often a revocation looks again when somebody else wrote to the key.
const TRIES: usize = 5;

/// What a key allows.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Everything, keys included.
    Admin,
    /// Saying what was seen of pods, and nothing else.
    Collector,
    /// Looking.
    Read,
    /// Claiming and committing as a worker.
    Worker,
    /// Submitting, signalling, cancelling.
    Write,
}

impl Scope {
    /// All of them.
    pub const ALL: [Scope; 5] =
        [Scope::Admin, Scope::Collector, Scope::Read, Scope::Worker, Scope::Write];

    /// As text.
    pub const fn as_str(self) -> &'static str {
        match self {
            Scope::Admin => "admin",
            Scope::Collector => "collector",
            Scope::Read => "read",
            Scope::Worker => "worker",
            Scope::Write => "write",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for Scope {
    type Err = KeyError;
    fn from_str(text: &str) -> Result<Self, KeyError> {
        let found = Scope::ALL.into_iter().find(|s| s.as_str() == text);
        found.ok_or_else(|| KeyError::Scope(text.to_owned()))
    }
}

/// Why a key could not be made or revoked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// A name or tenant that can not be used.
    #[error("the {what} of a key has 1 to {} bytes, this has {len}", limits::NAME_BYTES_MAX)]
    Length {
        /// Which.
        what: &'static str,
        /// How long it is.
        len: usize,
    },
    /// No scopes.
    #[error("a key without a scope allows nothing; give read, write, worker, collector or admin")]
    NoScope,
    /// An unknown scope.
    #[error("{0:?} is no scope; there are read, write, worker, collector and admin")]
    Scope(String),
    /// No such key.
    #[error("there is no key {0}; `tenure key list` shows them")]
    Unknown(EntityId),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A key to be made.
#[derive(Clone, Debug)]
pub struct NewKey {
    /// Who will use it, for people.
    pub name: String,
    /// Whose entities it reaches; `None` for everybody's.
    pub tenant: Option<String>,
    /// What it allows.
    pub scopes: Vec<Scope>,
}

/// A key that was just made. The secret is not kept and can not be shown again.
#[derive(Clone)]
pub struct Created {
    /// Its id.
    pub id: EntityId,
    /// What the caller sends.
    pub secret: String,
}

impl fmt::Debug for Created {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Created {{ id: {}, secret: … }}", self.id)
    }
}

/// A key as it is listed.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct Listed {
    /// Its id.
    #[schema(value_type = String)]
    pub id: EntityId,
    /// See [`NewKey::name`].
    pub name: String,
    /// See [`NewKey::tenant`].
    pub tenant: Option<String>,
    /// See [`NewKey::scopes`].
    pub scopes: Vec<Scope>,
    /// Whether it can be used.
    pub active: bool,
    /// When it was made.
    #[schema(value_type = i64)]
    pub created_at: Timestamp,
}

/// Makes a key and shows its secret once.
pub async fn create(pipeline: &Pipeline, key: NewKey) -> Result<Created, KeyError> {
    let sized = |what, text: &str| match text.len() {
        1..=limits::NAME_BYTES_MAX => Ok(()),
        len => Err(KeyError::Length { what, len }),
    };
    sized("name", &key.name)?;
    key.tenant.as_deref().map_or(Ok(()), |t| sized("tenant", t))?;
    if key.scopes.is_empty() {
        return Err(KeyError::NoScope);
    }
    let NewKey { name, tenant, mut scopes } = key;
    scopes.sort_unstable();
    scopes.dedup();
    let at = pipeline.store().now().await?;
    let id = EntityId::new(at, random(pipeline));
    let secret = words(pipeline);
    let birth = Birth {
        kind: KIND,
        tenant: tenant.clone().unwrap_or_default(),
        queue: String::new(),
        priority: 0,
    };
    let sha256 = Hash::of(secret.as_bytes()).to_string();
    let event = Event::KeyCreated { name, tenant, scopes, sha256 };
    let commit = commit(pipeline, id, Expect::Absent(birth), State::default(), &event);
    match pipeline.commit(commit).await? {
        CommitAnswer::Committed(_) => {
            Ok(Created { id, secret: format!("{PREFIX}{}_{secret}", id.uuid().simple()) })
        }
        other => Err(KeyError::Store(StoreError::Refused(format!("no key was made: {other:?}")))),
    }
}

/// All keys, oldest first, up to a thousand.
pub async fn list(pipeline: &Pipeline) -> Result<Vec<Listed>, KeyError> {
    let filter = HeadFilter { kind: Some(KIND.into()), ..HeadFilter::default() };
    let heads = pipeline.store().heads(filter, LIST_MAX).await?;
    heads.iter().map(|head| Ok(listed(head, state(head)?))).collect()
}

/// Whether some key can be used at all.
pub async fn any_active(pipeline: &Pipeline) -> Result<bool, StoreError> {
    let filter = HeadFilter {
        kind: Some(KIND.into()),
        status: Some("active".into()),
        ..HeadFilter::default()
    };
    Ok(!pipeline.store().heads(filter, 1).await?.is_empty())
}

/// Ends a key. One that has ended already is fine.
pub async fn revoke(pipeline: &Pipeline, id: EntityId) -> Result<(), KeyError> {
    for _ in 0..TRIES {
        let head = pipeline.store().head(id).await?.filter(|h| h.kind() == KIND);
        let head = head.ok_or(KeyError::Unknown(id))?;
        if head.class() == Class::Final {
            return Ok(());
        }
        let expect = Expect::Nobody { epoch: head.epoch, version: head.version };
        let commit = commit(pipeline, id, expect, state(&head)?, &Event::KeyRevoked);
        match pipeline.commit(commit).await? {
            CommitAnswer::Committed(_) | CommitAnswer::Final { .. } => return Ok(()),
            CommitAnswer::VersionConflict { .. } | CommitAnswer::StaleEpoch { .. } => {}
            other => {
                let why = format!("the key was not revoked: {other:?}");
                return Err(KeyError::Store(StoreError::Refused(why)));
            }
        }
    }
    Err(KeyError::Store(StoreError::Unavailable("the key changes all the time".into())))
}

/// The id and the secret of a key as a caller sends it; `None` for anything else.
pub fn split(key: &str) -> Option<(EntityId, &str)> {
    let (id, secret) = key.strip_prefix(PREFIX)?.split_once('_')?;
    let plain = |s: &str| s.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    let well_formed = id.len() == 32 && secret.len() == 64 && plain(id) && plain(secret);
    well_formed.then(|| id.parse().ok().map(|id| (id, secret))).flatten()
}

/// What a head says about a secret: the key, if it is active and the secret is its own. The comparison
/// takes the same time wherever the first difference is.
pub fn verify(head: &Head, secret: &str) -> Option<Listed> {
    if head.kind() != KIND || head.status.name() != "active" {
        return None;
    }
    let state = state(head).ok()?;
    let given = Hash::of(secret.as_bytes()).to_string();
    let differences = given.bytes().zip(state.sha256.bytes()).fold(0, |d, (a, b)| d | (a ^ b));
    let same = given.len() == state.sha256.len() && std::hint::black_box(differences) == 0;
    same.then(|| listed(head, state))
}

fn listed(head: &Head, state: State) -> Listed {
    Listed {
        id: head.id,
        name: state.name,
        tenant: state.tenant,
        scopes: state.scopes,
        active: head.class() != Class::Final,
        created_at: head.created_at,
    }
}

fn state(head: &Head) -> Result<State, StoreError> {
    decode_state::<Key>(&head.state).map_err(|e| StoreError::Corrupt(e.to_string()))
}

fn commit(
    pipeline: &Pipeline,
    id: EntityId,
    expect: Expect,
    mut state: State,
    event: &Event,
) -> Commit {
    Key::apply(&mut state, event);
    let events = vec![NewEvent::new(Key::name(event), Body::json(event))];
    let mut commit = Commit::new(pipeline.commit_id(), id, expect, events);
    commit.state = Some(encode_state::<Key>(&state));
    commit.mail = MailStance::Regardless;
    commit
}

/// 256 random bits in hexadecimal.
fn words(pipeline: &Pipeline) -> String {
    (0..4).map(|_| format!("{:016x}", pipeline.rt().random())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_key_is_split() {
        let id = EntityId::fixed(7, 7);
        let key = format!("tnr_{}_{}", id.uuid().simple(), "0f".repeat(32));
        assert_eq!(split(&key), Some((id, &*"0f".repeat(32))));
        let long = format!("{key}0");
        for bad in
            ["", "tnr_", "tnr__", &key[1..], &key[..key.len() - 1], &long, &key.to_uppercase()]
        {
            assert_eq!(split(bad), None, "{bad}");
        }
    }
}
