//! Sessions of workers that run agents: opened for targets, renewed, ended.

use crate::{
    App, Caller, Problem,
    calls::{LEASE_MIN, ProcessName, ended, session_of},
    extract::{Body, Named},
    keys::Scope,
    problem::ProblemDocument,
};
use axum::{Json, extract::State, http::StatusCode};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tenure_agents::{drive::far, is_token};
use tenure_jobs::call::desk::end_session;
use tenure_kernel::{
    error::StoreError,
    ids::{EntityId, SessionId},
    limits as kernel_limits,
    sessions::{Hold, Opening, Renewal, RenewalAnswer},
    store::{Answer, Op},
};
use utoipa::ToSchema;

/// Targets of one session.
const TARGETS_MAX: usize = 64;

/// A worker that runs agents.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TurnSessionRequest)]
pub(super) struct OpenRequest {
    /// Who it is, for people: program, host, process.
    name: String,
    /// How long a renewal lasts; the server's own lease without it.
    #[serde(default)]
    lease_ms: Option<u64>,
    /// Whose turns it runs: the targets of agents.
    targets: Vec<String>,
    /// The process behind it, where it can say.
    #[serde(default)]
    executor: Option<ProcessName>,
}

/// A session.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TurnSession)]
pub(super) struct Opened {
    /// Its id.
    #[schema(value_type = String)]
    session: SessionId,
    /// How long a renewal lasts, from before it was sent.
    lease_ms: u64,
    /// Renew this often.
    renew_ms: u64,
}

/// Opens a session.
#[utoipa::path(
    post, path = "/v1/turns/sessions", tag = "turns", request_body = OpenRequest,
    responses((status = 201, body = Opened), (status = 422, body = ProblemDocument))
)]
pub(super) async fn open(
    State(app): State<App>,
    caller: Caller,
    Body(request): Body<OpenRequest>,
) -> Result<(StatusCode, Json<Opened>), Problem> {
    caller.need(Scope::Worker)?;
    let lease = request.lease_ms.map_or(app.options().lease, Duration::from_millis);
    if !(LEASE_MIN..=app.options().lease_max).contains(&lease) {
        let (min, max) = (LEASE_MIN.as_millis(), app.options().lease_max.as_millis());
        return Err(Problem::bad_field("lease_ms", format!("a lease has {min} to {max} ms"))
            .fix("leave it out for the server's own"));
    }
    if request.name.trim().is_empty() || request.name.len() > kernel_limits::NAME_BYTES_MAX {
        let detail = format!("a name has 1 to {} bytes", kernel_limits::NAME_BYTES_MAX);
        return Err(Problem::bad_field("name", detail).fix("say which program runs where"));
    }
    if request.targets.is_empty() || request.targets.len() > TARGETS_MAX {
        let detail = format!("{} targets; a session has 1 to {TARGETS_MAX}", request.targets.len());
        return Err(Problem::bad_field("targets", detail).fix("name the targets it serves"));
    }
    if let Some((i, bad)) = request.targets.iter().enumerate().find(|(_, t)| !is_token(t)) {
        let detail = format!("{bad:?} is no target: 1 to 64 letters, digits, _ or -");
        let field = format!("targets[{i}]");
        return Err(Problem::bad_field(field, detail).fix("use the target of an agent"));
    }
    let tenant = caller.tenant.clone().unwrap_or_default();
    let lease_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
    let executor = request.executor.map(ProcessName::executor);
    let opening = Opening { name: request.name, role: "worker".into(), lease_ms, executor };
    let session = far::open_session(app.pipeline(), &tenant, opening, &request.targets).await?;
    Ok((StatusCode::CREATED, Json(Opened { session, lease_ms, renew_ms: (lease_ms / 3).max(1) })))
}

/// What a worker still has.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TurnRenewRequest)]
pub(super) struct RenewRequest {
    /// Every turn that it holds. One that is not named is taken from it.
    turns: Vec<HeldTurn>,
}

/// A turn that a worker has.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct HeldTurn {
    /// Which.
    #[schema(value_type = String)]
    turn: EntityId,
    /// Under which epoch.
    epoch: u64,
    /// How far it is, for people. Said only while something moves: it is taken as progress.
    #[serde(default)]
    note: Option<String>,
}

/// Another lease.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TurnRenewed)]
pub(super) struct Renewed {
    /// How long it lasts, from before the renewal was sent.
    lease_ms: u64,
    /// Turns that this session holds no longer: they were taken over, stopped, or have ended. Stop working on them.
    #[schema(value_type = Vec<String>)]
    lost: Vec<EntityId>,
}

/// Renews a session: mail of its turns is read, their progress is recorded now and then, and it is said which are lost.
#[utoipa::path(
    post, path = "/v1/turns/sessions/{id}/renew", tag = "turns", request_body = RenewRequest,
    params(("id" = String, Path, description = "The session.")),
    responses(
        (status = 200, body = Renewed),
        (status = 404, body = ProblemDocument),
        (status = 410, description = "The session is over.", body = ProblemDocument),
    )
)]
pub(super) async fn renew(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
    Body(request): Body<RenewRequest>,
) -> Result<Json<Renewed>, Problem> {
    let session = session_of(&app, &caller, id).await?;
    if request.turns.len() > kernel_limits::HOLDS_MAX {
        let detail =
            format!("{} turns, the limit is {}", request.turns.len(), kernel_limits::HOLDS_MAX);
        return Err(Problem::bad_field("turns", detail).fix("hold fewer in one session"));
    }
    let hold = |t: &HeldTurn| Hold { entity: t.turn, epoch: t.epoch, mark: 0 };
    let holds = request.turns.iter().map(hold).collect();
    match app.pipeline().submit(Op::Renew(Renewal { session: id, holds })).await? {
        Answer::Renew(RenewalAnswer::Renewed { mut lost, mail, .. }) => {
            let Some(far) = app.turns() else { return Err(ended(id)) };
            for held in &request.turns {
                if lost.contains(&held.turn) {
                    continue;
                }
                let has_mail = mail.contains(&held.turn);
                if !has_mail && held.note.is_none() {
                    continue;
                }
                let note = held.note.as_deref();
                if !far.alive(held.turn, (id, held.epoch), note, has_mail).await? {
                    lost.push(held.turn);
                }
            }
            let lease_ms = u64::try_from(session.lease.as_millis()).unwrap_or(u64::MAX);
            Ok(Json(Renewed { lease_ms, lost }))
        }
        Answer::Renew(RenewalAnswer::Ended) => Err(ended(id)),
        other => Err(StoreError::Refused(format!("a renewal was answered with {other:?}")).into()),
    }
}

/// Ends a session. Turns that it still holds are taken over at once.
#[utoipa::path(
    delete, path = "/v1/turns/sessions/{id}", tag = "turns",
    params(("id" = String, Path, description = "The session.")),
    responses((status = 204), (status = 404, body = ProblemDocument))
)]
pub(super) async fn end(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
) -> Result<StatusCode, Problem> {
    caller.need(Scope::Worker)?;
    if !app.identities().is_session_of(&app, &caller, id).await? {
        return Err(Problem::not_found(format!("session {id}")).field("session"));
    }
    end_session(app.pipeline(), id).await?;
    Ok(StatusCode::NO_CONTENT)
}
