//! API keys, as entities of kind `key`: they have a history, survive in every store, and need no table of
//! their own. A key says who calls ([`State`]: name, tenant, scopes) and carries a secret, of which only
//! the SHA-256 is kept; the secret has 256 bits of its own, so a slow hash would protect nothing.
//!
//! A key is written as `tnr_<id>_<secret>`: the id finds the row without an index, the prefix lets scanners of
//! leaked secrets find it.
//!
//! Only [`create`] makes keys, by a commit of its own. The machine refuses to be born from a message, or any
//! job could write itself a key.
//!
//! Administrators make, rotate and revoke keys over HTTP (`api`); the command line does the same in a store that no server
//! has open. Both record who did it, in the key and in the audit trail.

mod api;
mod machine;

pub(crate) use api::routes;
pub use machine::{Event, Key, PreviousSecret, SESSIONS_MAX, State, TABLE};

use serde::{Deserialize, Serialize};
use std::{fmt, time::Duration};
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
    tenant,
    time::Timestamp,
    timers::TimerChange,
};
use utoipa::ToSchema;

/// The kind of the entities.
pub const KIND: &str = "key";
const PREFIX: &str = "tnr_";
/// Keys shown by one listing.
const LIST_MAX: usize = 1_000;
/// How often a change looks again when somebody else wrote to the key.
const TRIES: usize = 5;
/// The use of a key is written at most this often.
const USE_WRITTEN: Duration = Duration::from_secs(15 * 60);
/// The longest life that a key may be given: longer is no expiry.
pub const LIFE_MAX: Duration = Duration::from_secs(10 * 366 * 86_400);
/// The longest time for which a secret that was replaced is still taken.
pub const OVERLAP_MAX: Duration = Duration::from_secs(30 * 86_400);

/// What a key allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = KeyScope)]
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
    /// A name that can not be used.
    #[error("the name of a key has 1 to {max} bytes, this has {0}", max = limits::NAME_BYTES_MAX)]
    Length(usize),
    /// A tenant that cannot exist.
    #[error("{0:?} cannot be the name of a tenant: give {form}", form = tenant::FORM)]
    Tenant(String),
    /// No scopes.
    #[error("a key without a scope allows nothing; give read, write, worker, collector or admin")]
    NoScope,
    /// An unknown scope.
    #[error("{0:?} is no scope; there are read, write, worker, collector and admin")]
    Scope(String),
    /// No such key.
    #[error("there is no key {0}; `tenure key list` shows them")]
    Unknown(EntityId),
    /// The key has ended.
    #[error("the key {0} is {1}, and an ended key stays so; make a new one")]
    Ended(EntityId, &'static str),
    /// A length of time that can not be used.
    #[error("{field} has 1 to {max} seconds, this has {seconds}")]
    Time {
        /// Which.
        field: &'static str,
        /// How long it is.
        seconds: u64,
        /// The longest.
        max: u64,
    },
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

/// What else is said when a key is made.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// It ends after this time.
    pub expires_in: Option<Duration>,
    /// It ends at this moment at the latest: that of the key that makes it.
    pub not_after: Option<Timestamp>,
    /// Who makes it.
    pub by: Option<String>,
}

/// A key that was just made. The secret is not kept and can not be shown again.
#[derive(Clone)]
pub struct Created {
    /// Its id.
    pub id: EntityId,
    /// What the caller sends.
    pub secret: String,
    /// When it ends by itself.
    pub expires_at: Option<Timestamp>,
}

impl fmt::Debug for Created {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Created {{ id: {}, secret: … }}", self.id)
    }
}

/// A key as it is listed.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = ListedKey)]
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
    /// `active`, `expired` or `revoked`.
    pub status: &'static str,
    /// When it was made. Times are microseconds since 1970.
    #[schema(value_type = i64)]
    pub created_at: Timestamp,
    /// Who made it; not known of keys that 0.1 made.
    pub created_by: Option<String>,
    /// When it ends by itself.
    #[schema(value_type = Option<i64>)]
    pub expires_at: Option<Timestamp>,
    /// When its secret was replaced last.
    #[schema(value_type = Option<i64>)]
    pub rotated_at: Option<Timestamp>,
    /// Until when the secret before is taken as well.
    #[schema(value_type = Option<i64>)]
    pub previous_until: Option<Timestamp>,
    /// About when it was used last, to a quarter of an hour.
    #[schema(value_type = Option<i64>)]
    pub last_used_at: Option<Timestamp>,
    /// Who revoked it.
    pub revoked_by: Option<String>,
}

/// Makes a key without an expiry and shows its secret once.
pub async fn create(pipeline: &Pipeline, key: NewKey) -> Result<Created, KeyError> {
    create_with(pipeline, key, Terms::default()).await
}

/// Makes a key and shows its secret once.
pub async fn create_with(
    pipeline: &Pipeline,
    key: NewKey,
    terms: Terms,
) -> Result<Created, KeyError> {
    if !(1..=limits::NAME_BYTES_MAX).contains(&key.name.len()) {
        return Err(KeyError::Length(key.name.len()));
    }
    if let Some(bad) = key.tenant.as_deref().filter(|t| !tenant::is_name(t)) {
        return Err(KeyError::Tenant(bad.to_owned()));
    }
    if key.scopes.is_empty() {
        return Err(KeyError::NoScope);
    }
    let Terms { expires_in, not_after, by } = terms;
    expires_in.map_or(Ok(()), |life| timed("the life of a key", life, LIFE_MAX))?;
    let NewKey { name, tenant, mut scopes } = key;
    scopes.sort_unstable();
    scopes.dedup();
    let at = pipeline.store().now().await?;
    let expires_at = [expires_in.map(|life| at + life), not_after].into_iter().flatten().min();
    let id = EntityId::new(at, random(pipeline));
    let secret = words(pipeline);
    let birth = Birth {
        kind: KIND,
        tenant: tenant.clone().unwrap_or_default(),
        queue: String::new(),
        priority: 0,
    };
    let sha256 = Hash::of(secret.as_bytes()).to_string();
    let event = Event::KeyCreated { name, tenant, scopes, sha256, expires_at, by };
    let mut commit = commit(pipeline, id, Expect::Absent(birth), State::default(), &event);
    if let Some(end) = expires_at {
        commit.timers = vec![TimerChange::guard(machine::EXPIRES, end.since(at))];
    }
    match pipeline.commit(commit).await? {
        CommitAnswer::Committed(_) => Ok(Created { id, secret: written(id, &secret), expires_at }),
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

/// One key; `None` if there is none of this id.
pub async fn find(pipeline: &Pipeline, id: EntityId) -> Result<Option<Listed>, StoreError> {
    let head = pipeline.store().head(id).await?.filter(|head| head.kind() == KIND);
    head.map(|head| Ok(listed(&head, state(&head)?))).transpose()
}

/// Ends a key. One that has ended already is fine.
pub async fn revoke(pipeline: &Pipeline, id: EntityId) -> Result<(), KeyError> {
    revoke_by(pipeline, id, None).await
}

/// Ends a key, and says who did it. One that has ended already is fine.
pub async fn revoke_by(
    pipeline: &Pipeline,
    id: EntityId,
    by: Option<String>,
) -> Result<(), KeyError> {
    let revoked = change(pipeline, id, |_| Some(Event::KeyRevoked { by: by.clone() })).await;
    match revoked {
        Err(KeyError::Ended(..)) => Ok(()),
        other => other,
    }
}

/// Replaces the secret of a key. For `overlap` the one before is taken as well. A secret that was replaced earlier ends now.
pub async fn rotate(
    pipeline: &Pipeline,
    id: EntityId,
    overlap: Duration,
    by: &str,
) -> Result<Created, KeyError> {
    if !overlap.is_zero() {
        timed("overlap_seconds", overlap, OVERLAP_MAX)?;
    }
    let at = pipeline.store().now().await?;
    let secret = words(pipeline);
    let sha256 = Hash::of(secret.as_bytes()).to_string();
    let mut expires_at = None;
    let rotated = change(pipeline, id, |state| {
        expires_at = state.expires_at;
        let previous = PreviousSecret { sha256: state.sha256.clone(), until: at + overlap };
        let previous = Some(previous).filter(|_| !overlap.is_zero());
        Some(Event::KeyRotated { sha256: sha256.clone(), previous, at, by: by.to_owned() })
    });
    rotated.await?;
    Ok(Created { id, secret: written(id, &secret), expires_at })
}

/// Writes that a key was used, unless that was written a while ago. Losing against another change loses nothing but this.
pub(crate) async fn used(pipeline: &Pipeline, id: EntityId, now: Timestamp) {
    let written = change(pipeline, id, |state| {
        is_use_stale(state.last_used_at, now).then_some(Event::KeyUsed { at: now })
    });
    if let Err(e) = written.await {
        tracing::debug!(key = %id, error = %e, "the use of a key is not written");
    }
}

/// The sessions of the console that were opened with a key; some may have ended.
pub(crate) async fn sessions_of(
    pipeline: &Pipeline,
    id: EntityId,
) -> Result<Vec<EntityId>, StoreError> {
    let head = pipeline.store().head(id).await?.filter(|head| head.kind() == KIND);
    head.map_or(Ok(Vec::new()), |head| state(&head).map(|state| state.sessions))
}

/// Notes a session in its key before it is opened, so that it is found when the key ends. Returns the sessions that have to
/// end for it: of those in `ended` none is left, and the oldest goes if there are still too many.
pub(crate) async fn signs_in(
    pipeline: &Pipeline,
    id: EntityId,
    session: EntityId,
    ended: &[EntityId],
) -> Result<Vec<EntityId>, KeyError> {
    let mut out = Vec::new();
    change(pipeline, id, |state| {
        let open: Vec<_> = state.sessions.iter().filter(|one| !ended.contains(one)).collect();
        let beyond = (open.len() + 1).saturating_sub(SESSIONS_MAX);
        out = open.into_iter().take(beyond).copied().collect();
        let instead_of = ended.iter().chain(&out).copied().collect();
        Some(Event::KeySignedIn { session, instead_of })
    })
    .await?;
    Ok(out)
}

/// Whether the use of a key is worth a write.
pub(crate) fn is_use_stale(last: Option<Timestamp>, now: Timestamp) -> bool {
    last.is_none_or(|last| now.since(last) >= USE_WRITTEN)
}

/// Changes a key that has not ended; `None` changes nothing.
async fn change(
    pipeline: &Pipeline,
    id: EntityId,
    mut event: impl FnMut(&State) -> Option<Event>,
) -> Result<(), KeyError> {
    for _ in 0..TRIES {
        let head = pipeline.store().head(id).await?.filter(|h| h.kind() == KIND);
        let head = head.ok_or(KeyError::Unknown(id))?;
        if head.class() == Class::Final {
            return Err(KeyError::Ended(id, head.status.name()));
        }
        let state = state(&head)?;
        let Some(event) = event(&state) else { return Ok(()) };
        let expect = Expect::Nobody { epoch: head.epoch, version: head.version };
        match pipeline.commit(commit(pipeline, id, expect, state, &event)).await? {
            CommitAnswer::Committed(_) => return Ok(()),
            CommitAnswer::Final { status } => return Err(KeyError::Ended(id, status)),
            CommitAnswer::VersionConflict { .. } | CommitAnswer::StaleEpoch { .. } => {}
            other => {
                let why = format!("the key was not changed: {other:?}");
                return Err(KeyError::Store(StoreError::Refused(why)));
            }
        }
    }
    Err(KeyError::Store(StoreError::Unavailable("the key changes all the time".into())))
}

fn timed(field: &'static str, time: Duration, max: Duration) -> Result<(), KeyError> {
    if time >= Duration::from_secs(1) && time <= max {
        return Ok(());
    }
    Err(KeyError::Time { field, seconds: time.as_secs(), max: max.as_secs() })
}

/// A key as a caller sends it.
fn written(id: EntityId, secret: &str) -> String {
    format!("{PREFIX}{}_{secret}", id.uuid().simple())
}

/// The id and the secret of a key as a caller sends it; `None` for anything else.
pub fn split(key: &str) -> Option<(EntityId, &str)> {
    split_after(PREFIX, key)
}

/// The same for what has another prefix and the same form.
pub(crate) fn split_after<'a>(prefix: &str, text: &'a str) -> Option<(EntityId, &'a str)> {
    let (id, secret) = text.strip_prefix(prefix)?.split_once('_')?;
    let plain = |s: &str| s.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    let well_formed = id.len() == 32 && secret.len() == 64 && plain(id) && plain(secret);
    well_formed.then(|| id.parse().ok().map(|id| (id, secret))).flatten()
}

/// What a head says about a secret: the key, if it can be used at this moment and the secret is its own.
pub fn verify(head: &Head, secret: &str, now: Timestamp) -> Option<Listed> {
    verify_digest(head, Hash::of(secret.as_bytes()), now)
}

/// The same for the digest of a secret.
pub(crate) fn verify_digest(head: &Head, given: Hash, now: Timestamp) -> Option<Listed> {
    verify_hex(head, &given.to_string(), now)
}

/// The same for a digest in hexadecimal.
pub(crate) fn verify_hex(head: &Head, given: &str, now: Timestamp) -> Option<Listed> {
    let state = usable(head, now)?;
    let previous = state.previous.as_ref().filter(|previous| now < previous.until);
    let is_previous = previous.is_some_and(|previous| is_same(&previous.sha256, given));
    (is_same(&state.sha256, given) || is_previous).then(|| listed(head, state))
}

fn usable(head: &Head, now: Timestamp) -> Option<State> {
    if head.kind() != KIND || head.status.name() != "active" {
        return None;
    }
    // The timer that ends it may be late.
    state(head).ok().filter(|state| state.expires_at.is_none_or(|end| now < end))
}

/// Compares digests in a time that does not depend on where they differ.
pub(crate) fn is_same(kept: &str, given: &str) -> bool {
    let differences = given.bytes().zip(kept.bytes()).fold(0, |d, (a, b)| d | (a ^ b));
    given.len() == kept.len() && std::hint::black_box(differences) == 0
}

fn listed(head: &Head, state: State) -> Listed {
    Listed {
        id: head.id,
        name: state.name,
        tenant: state.tenant,
        scopes: state.scopes,
        active: head.class() != Class::Final,
        status: head.status.name(),
        created_at: head.created_at,
        created_by: state.created_by,
        expires_at: state.expires_at,
        rotated_at: state.rotated_at,
        previous_until: state.previous.map(|previous| previous.until),
        last_used_at: state.last_used_at,
        revoked_by: state.revoked_by,
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
pub(crate) fn words(pipeline: &Pipeline) -> String {
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
