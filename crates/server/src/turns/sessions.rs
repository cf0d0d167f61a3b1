//! Sessions of workers that run agents: opened for targets, renewed, ended.

use crate::{
    App, Caller, Problem,
    extract::{Body, Named},
    far::{self, Opened, ProcessName, session_of},
    keys::Scope,
    problem::ProblemDocument,
};
use axum::{Json, extract::State, http::StatusCode};
use serde::{Deserialize, Serialize};
use tenure_agents::{drive::far::open_session, is_token};
use tenure_kernel::{ids::EntityId, sessions::Hold};
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
    let opening = far::opening(&app, request.name, request.lease_ms, request.executor)?;
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
    let lease_ms = opening.lease_ms;
    let session = open_session(app.pipeline(), &tenant, opening, &request.targets).await?;
    Ok(far::opened(session, lease_ms))
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
    let hold = |t: &HeldTurn| Hold { entity: t.turn, epoch: t.epoch, mark: 0 };
    let holds = request.turns.iter().map(hold).collect();
    let far::Renewed { mut lost, mail } = far::renew(&app, id, holds, "turns").await?;
    let desk = super::desk(&app)?;
    for held in &request.turns {
        let (note, has_mail) = (held.note.as_deref(), mail.contains(&held.turn));
        if lost.contains(&held.turn) || (note.is_none() && !has_mail) {
            continue;
        }
        if !desk.alive(held.turn, (id, held.epoch), note, has_mail).await? {
            lost.push(held.turn);
        }
    }
    Ok(Json(Renewed { lease_ms: far::millis(session.lease), lost }))
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
    far::end(&app, &caller, id).await
}
