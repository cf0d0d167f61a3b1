//! Sessions of the console. A browser that signs in with a key gets a session of its own, not the key: 256 random bits in a
//! cookie, of which the store keeps the SHA-256. A session has the tenant and the scopes of its key, and ends with it; it
//! also ends by signing out, after [`LIFE`], or when an administrator ends it. Only the console takes a session.

mod machine;

pub use machine::{ConsoleSession, Event, State, TABLE};

use crate::keys::{self, KeyError};
use std::time::Duration;
use tenure_engine::{birth::random, pipeline::Pipeline};
use tenure_kernel::{
    commit::{Birth, Commit, CommitAnswer, Expect, MailStance},
    error::StoreError,
    head::Head,
    ids::EntityId,
    machine::{Machine as _, decode_state, encode_state},
    stream::{Body, Hash, NewEvent},
    table::Class,
    time::Timestamp,
    timers::TimerChange,
};

/// The kind of the entities.
pub const KIND: &str = "console_session";
const PREFIX: &str = "tns_";
/// A session ends after this time, however much it is used.
pub const LIFE: Duration = Duration::from_secs(12 * 3_600);
/// How often an end looks again when somebody else wrote to the session.
const TRIES: usize = 5;

/// The key that a session is opened with.
pub(crate) struct Opener<'a> {
    pub key: EntityId,
    /// The secret that was shown.
    pub secret: &'a str,
    pub tenant: Option<String>,
    pub expires_at: Option<Timestamp>,
}

/// Opens a session of a key, and returns what the cookie holds. It lives no longer than the key, and has its tenant. A key has a
/// bounded number of sessions: the oldest ends for a new one.
pub(crate) async fn open(pipeline: &Pipeline, by: Opener<'_>) -> Result<String, KeyError> {
    let now = pipeline.store().now().await?;
    let (id, secret) = (EntityId::new(now, random(pipeline)), keys::words(pipeline));
    let known = keys::sessions_of(pipeline, by.key).await?;
    let mut ended = Vec::new();
    if known.len() >= keys::SESSIONS_MAX {
        for one in known {
            let head = pipeline.store().head(one).await?;
            if head.is_none_or(|head| head.class() == Class::Final) {
                ended.push(one);
            }
        }
    }
    let out = keys::signs_in(pipeline, by.key, id, &ended).await?;
    let expires_at = by.expires_at.map_or(now + LIFE, |end| end.min(now + LIFE));
    let sha256 = Hash::of(secret.as_bytes()).to_string();
    let opened_with = Hash::of(by.secret.as_bytes()).to_string();
    let event = Event::ConsoleSessionOpened { key: by.key, sha256, opened_with, expires_at };
    let tenant = by.tenant.unwrap_or_default();
    let birth = Birth { kind: KIND, tenant, queue: String::new(), priority: 0 };
    let mut commit = commit(pipeline, id, Expect::Absent(birth), State::default(), &event);
    commit.timers = vec![TimerChange::guard(machine::EXPIRES, expires_at.since(now))];
    match pipeline.commit(commit).await? {
        CommitAnswer::Committed(_) => {}
        other => {
            return Err(StoreError::Refused(format!("no session was opened: {other:?}")).into());
        }
    }
    for one in out {
        end(pipeline, one, "its key has too many sessions").await?;
    }
    Ok(format!("{PREFIX}{}_{secret}", id.uuid().simple()))
}

/// The id and the secret of a session as a cookie holds it; `None` for anything else.
pub(crate) fn split(cookie: &str) -> Option<(EntityId, &str)> {
    keys::split_after(PREFIX, cookie)
}

/// The key of a session and the digest of the secret that opened it, if the session can be used at this moment and the digest is
/// of its own secret.
pub(crate) fn verify(head: &Head, given: Hash, now: Timestamp) -> Option<(EntityId, String)> {
    if head.kind() != KIND || head.class() == Class::Final {
        return None;
    }
    let state = state(head).ok()?;
    let is_valid = now < state.expires_at && keys::is_same(&state.sha256, &given.to_string());
    Some((state.key?, state.opened_with)).filter(|_| is_valid)
}

/// Ends a session. One that has ended, or never was, is fine.
pub(crate) async fn end(pipeline: &Pipeline, id: EntityId, why: &str) -> Result<bool, StoreError> {
    for _ in 0..TRIES {
        let head = pipeline.store().head(id).await?;
        let Some(head) = head.filter(|h| h.kind() == KIND && h.class() != Class::Final) else {
            return Ok(false);
        };
        let event = Event::ConsoleSessionEnded { why: why.to_owned() };
        let expect = Expect::Nobody { epoch: head.epoch, version: head.version };
        match pipeline.commit(commit(pipeline, id, expect, state(&head)?, &event)).await? {
            CommitAnswer::Committed(_) => return Ok(true),
            CommitAnswer::Final { .. } => return Ok(false),
            CommitAnswer::VersionConflict { .. } | CommitAnswer::StaleEpoch { .. } => {}
            other => {
                return Err(StoreError::Refused(format!("the session did not end: {other:?}")));
            }
        }
    }
    Err(StoreError::Unavailable("the session changes all the time".into()))
}

/// Ends all sessions of a key, and says how many there were.
pub async fn end_all_of(
    pipeline: &Pipeline,
    key: EntityId,
    why: &str,
) -> Result<usize, StoreError> {
    let mut ended = 0;
    for session in keys::sessions_of(pipeline, key).await? {
        ended += usize::from(end(pipeline, session, why).await?);
    }
    Ok(ended)
}

fn state(head: &Head) -> Result<State, StoreError> {
    decode_state::<ConsoleSession>(&head.state).map_err(|e| StoreError::Corrupt(e.to_string()))
}

fn commit(
    pipeline: &Pipeline,
    id: EntityId,
    expect: Expect,
    mut state: State,
    event: &Event,
) -> Commit {
    ConsoleSession::apply(&mut state, event);
    let events = vec![NewEvent::new(ConsoleSession::name(event), Body::json(event))];
    let mut commit = Commit::new(pipeline.commit_id(), id, expect, events);
    commit.state = Some(encode_state::<ConsoleSession>(&state));
    commit.mail = MailStance::Regardless;
    commit
}
