//! What the two protocols of workers in any language have in common: [`crate::calls`] (tools) and [`crate::turns`] (agents).
//! A worker opens a session, asks for work (a long poll), says what became of it, and renews its session meanwhile. What
//! is handed out and what may be said about it is each protocol's own.

use crate::{ApiCode, App, Caller, Problem, keys::Scope};
use axum::{Json, http::StatusCode};
use futures_util::future::select_all;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tenure_jobs::call::desk::end_session;
use tenure_kernel::{
    bell::{Ear, Topic},
    error::StoreError,
    ids::{EntityId, SessionId},
    limits,
    runtime::{First, first},
    sessions::{Executor, Hold, Opening, Renewal, RenewalAnswer, Session},
    store::{Answer, Op},
};
use utoipa::ToSchema;

/// The shortest lease: with less, a slow network costs work.
const LEASE_MIN: Duration = Duration::from_millis(200);
/// The longest wait of a poll.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// A process, said so that others on the same machine can conclude that it is dead.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProcessName {
    /// The machine's id: `/etc/machine-id`.
    machine: String,
    /// The id of its boot: `/proc/sys/kernel/random/boot_id`.
    boot: String,
    /// The namespace in which the process has its number: the link `/proc/self/ns/pid`.
    pid_namespace: String,
    /// Its number.
    pid: u32,
    /// When it started, in clock ticks since the boot: the 22nd field of `/proc/self/stat`.
    started: u64,
}

/// A session.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = WorkerSession)]
pub(crate) struct Opened {
    /// Its id.
    #[schema(value_type = String)]
    session: SessionId,
    /// How long a renewal lasts, from before it was sent.
    lease_ms: u64,
    /// Renew this often.
    renew_ms: u64,
}

/// Something that is given back, not begun.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReleaseRequest {
    /// The session that has it.
    #[schema(value_type = String)]
    pub(crate) session: SessionId,
    /// Under which epoch.
    pub(crate) epoch: u64,
    /// In words.
    #[serde(default)]
    pub(crate) why: Option<String>,
}

/// How a session begins; refuses what can not be a name or a lease.
pub(crate) fn opening(
    app: &App,
    name: String,
    lease_ms: Option<u64>,
    process: Option<ProcessName>,
) -> Result<Opening, Problem> {
    let lease = lease_ms.map_or(app.options().lease, Duration::from_millis);
    if !(LEASE_MIN..=app.options().lease_max).contains(&lease) {
        let (min, max) = (LEASE_MIN.as_millis(), app.options().lease_max.as_millis());
        return Err(Problem::bad_field("lease_ms", format!("a lease has {min} to {max} ms"))
            .fix("leave it out for the server's own"));
    }
    if name.trim().is_empty() || name.len() > limits::NAME_BYTES_MAX {
        let detail = format!("a name has 1 to {} bytes", limits::NAME_BYTES_MAX);
        return Err(Problem::bad_field("name", detail).fix("say which program runs where"));
    }
    let executor = process.map(|process| {
        let ProcessName { machine, boot, pid_namespace, pid, started } = process;
        Executor { machine, boot, pid_namespace, pid, started }
    });
    Ok(Opening { name, role: "worker".into(), lease_ms: millis(lease), executor })
}

/// The answer to whoever opened one.
pub(crate) fn opened(session: SessionId, lease_ms: u64) -> (StatusCode, Json<Opened>) {
    (StatusCode::CREATED, Json(Opened { session, lease_ms, renew_ms: (lease_ms / 3).max(1) }))
}

pub(crate) fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

/// A session that is not the caller's, or not there.
fn absent(id: SessionId) -> Problem {
    Problem::not_found(format!("session {id}")).field("session")
}

fn ended(session: SessionId) -> Problem {
    let detail =
        format!("session {session} is over: it was ended, or not renewed within its lease");
    Problem::new(StatusCode::GONE, ApiCode::SessionEnded, detail)
        .field("session")
        .fix("stop what was running for it, and open a new session")
}

/// A session of the caller that is not over.
pub(crate) async fn session_of(
    app: &App,
    caller: &Caller,
    id: SessionId,
) -> Result<Session, Problem> {
    caller.need(Scope::Worker)?;
    if !app.identities().is_session_of(app, caller, id).await? {
        return Err(absent(id));
    }
    let session = app.pipeline().store().session(id).await?.ok_or_else(|| absent(id))?;
    if session.ended { Err(ended(id)) } else { Ok(session) }
}

/// What is lost to a session that was renewed, and what of the rest has mail.
pub(crate) struct Renewed {
    pub(crate) lost: Vec<EntityId>,
    pub(crate) mail: Vec<EntityId>,
}

/// Refuses a renewal that names more entities than one session may hold.
pub(crate) fn within_holds(field: &str, holds: usize) -> Result<(), Problem> {
    if holds <= limits::HOLDS_MAX {
        return Ok(());
    }
    let detail = format!("{holds} entities, the limit is {}", limits::HOLDS_MAX);
    Err(Problem::bad_field(field, detail).fix("hold fewer in one session"))
}

/// Renews a session with all that it holds; `field` is where the request said so.
pub(crate) async fn renew(
    app: &App,
    session: SessionId,
    holds: Vec<Hold>,
    field: &str,
) -> Result<Renewed, Problem> {
    within_holds(field, holds.len())?;
    match app.pipeline().submit(Op::Renew(Renewal { session, holds })).await? {
        Answer::Renew(RenewalAnswer::Renewed { lost, mut mail, .. }) => {
            mail.retain(|entity| !lost.contains(entity));
            Ok(Renewed { lost, mail })
        }
        Answer::Renew(RenewalAnswer::Ended) => Err(ended(session)),
        other => Err(StoreError::Refused(format!("a renewal was answered with {other:?}")).into()),
    }
}

/// Ends a session of the caller.
pub(crate) async fn end(app: &App, caller: &Caller, id: SessionId) -> Result<StatusCode, Problem> {
    caller.need(Scope::Worker)?;
    if !app.identities().is_session_of(app, caller, id).await? {
        return Err(absent(id));
    }
    end_session(app.pipeline(), id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Whether an entity and a session are the caller's. A session that is over may still bring what it knows.
pub(crate) async fn admit(
    app: &App,
    caller: &Caller,
    (entity, kind): (EntityId, &str),
    session: SessionId,
) -> Result<(), Problem> {
    caller.need(Scope::Worker)?;
    if !app.identities().is_of(app, caller, entity, kind).await? {
        return Err(not_there(entity, kind));
    }
    match app.identities().is_session_of(app, caller, session).await? {
        true => Ok(()),
        false => Err(absent(session)),
    }
}

/// What was handed out is not there, or not the caller's.
pub(crate) fn not_there(entity: EntityId, kind: &str) -> Problem {
    Problem::not_found(format!("{kind} {entity}")).field(kind)
}

/// A poll that waits for work.
pub(crate) struct Poll {
    ears: Vec<Box<dyn Ear>>,
    until: Duration,
    tick: Duration,
}

impl Poll {
    /// Made before the first look: what rings from here on is heard, what was there before is seen.
    pub(crate) fn new(
        app: &App,
        session: &Session,
        queues: impl Iterator<Item = String>,
        wait_ms: u64,
    ) -> Self {
        let bell = app.pipeline().bell();
        let wait = Duration::from_millis(wait_ms).min(WAIT_MAX);
        Poll {
            ears: queues.map(|queue| bell.listen(Topic::Queue(queue))).collect(),
            until: app.pipeline().rt().mono() + wait,
            tick: session.lease / 3,
        }
    }

    /// For how long it still waits.
    pub(crate) fn left(&self, app: &App) -> Duration {
        self.until.saturating_sub(app.pipeline().rt().mono())
    }

    /// Until something may be there. Bells are hints: once per tick it looks without one. `false` if the server stops.
    pub(crate) async fn pause(&mut self, app: &App) -> bool {
        self.pause_within(app, None).await
    }

    /// The same, where it is known that something will be there by itself.
    pub(crate) async fn pause_within(&mut self, app: &App, within: Option<Duration>) -> bool {
        let tick = within.map_or(self.tick, |within| within.min(self.tick));
        let nap = app.pipeline().rt().sleep(self.left(app).min(tick));
        let rung = select_all(self.ears.iter_mut().map(|e| e.heard()));
        !matches!(first(first(rung, app.closing()), nap).await, First::Left(First::Right(())))
    }
}
