//! What may be said to a turn. 202: durable, the turn follows it; 200: it was said before. What could only become a dead
//! letter is refused with its reason, and nothing is written.

use super::{desk, documents::TurnAskDocument};
use crate::{
    App, Caller, Problem,
    extract::Named,
    jobs::{
        body::{Json, Maybe},
        find::who,
        submit::idempotency_key,
    },
    keys::Scope,
    problem::ProblemDocument,
};
use axum::{
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::Value;
use tenure_agents::{
    desk::{Answer, Outcome},
    words::{
        After, EndStatus, Fault, ForceFinish, Progress, ResumeNow, Stop, ToolResult, ToolStatus,
    },
};
use tenure_kernel::ids::EntityId;
use utoipa::ToSchema;

pub(super) fn answered(answer: Answer) -> Response {
    let status = match answer.outcome {
        Outcome::Already => StatusCode::OK,
        Outcome::Accepted | Outcome::Kept | Outcome::TooLate => StatusCode::ACCEPTED,
    };
    (status, axum::Json(answer)).into_response()
}

/// The result of a tool.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NewResult {
    /// The wait it answers, as the turn names it.
    wait: Option<String>,
    /// Or the id that the model gave the call.
    tool_call_id: Option<String>,
    /// The counter under which the tool was called; one that is not the turn's own is refused.
    turn_epoch: Option<u64>,
    /// `success` (without a word), `failed`, `timeout`, `canceled`, `partial`, `skipped`.
    #[schema(value_type = String)]
    status: ToolStatus,
    /// What it returned.
    result: Value,
    /// What went wrong: `code`, `message`.
    #[schema(value_type = Object)]
    error: Option<Fault>,
    /// `suspend` goes on with the turn, `terminate` ends it with this result; as the tool's definition says without it.
    #[schema(value_type = String)]
    after_execution: Option<After>,
    /// Who says so, for people.
    by: Option<String>,
}

/// A tool has answered.
#[utoipa::path(
    post, path = "/v1/turns/{id}/results", tag = "agents", request_body = NewResult,
    params(
        ("id" = String, Path, description = "The turn."),
        ("Idempotency-Key" = Option<String>, Header, description = "The same twice is one result; without it, the same content is.")
    ),
    responses(
        (status = 202, description = "`outcome`: accepted, kept (for a suspend that has not come), too_late (noted).", body = TurnAskDocument),
        (status = 200, description = "It was said before.", body = TurnAskDocument),
        (status = 404, body = ProblemDocument),
        (status = 409, description = "About nothing that is waited for; or the turn is over, and it is kept as evidence.", body = ProblemDocument),
        (status = 413, body = ProblemDocument),
    )
)]
pub(crate) async fn result(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
    headers: HeaderMap,
    Json(new): Json<NewResult>,
) -> Result<Response, Problem> {
    caller.need(Scope::Write)?;
    let key = idempotency_key(&headers, None)?;
    let said = ToolResult {
        wait: new.wait,
        tool_call_id: new.tool_call_id,
        turn_epoch: new.turn_epoch,
        status: new.status,
        result: new.result,
        error: new.error,
        after_execution: new.after_execution,
        by: Some(who(&caller, new.by)),
    };
    let tenant = caller.tenant.as_deref();
    Ok(answered(desk(&app)?.result(tenant, id, said, key.as_deref()).await?))
}

/// A tool is still at it.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct NewProgress {
    /// The wait.
    wait: Option<String>,
    /// Or the id that the model gave the call.
    tool_call_id: Option<String>,
    /// The counter under which the tool was called.
    turn_epoch: Option<u64>,
    /// How far it is, for people.
    note: String,
}

/// A tool is still at it: its time counts from here.
#[utoipa::path(
    post, path = "/v1/turns/{id}/progress", tag = "agents", request_body = NewProgress,
    params(("id" = String, Path, description = "The turn.")),
    responses(
        (status = 202, body = TurnAskDocument), (status = 404, body = ProblemDocument),
        (status = 409, body = ProblemDocument),
    )
)]
pub(super) async fn progress(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
    headers: HeaderMap,
    Json(new): Json<NewProgress>,
) -> Result<Response, Problem> {
    caller.need(Scope::Write)?;
    let key = idempotency_key(&headers, None)?;
    let NewProgress { wait, tool_call_id, turn_epoch, note } = new;
    let said = Progress { wait, tool_call_id, turn_epoch, note };
    let tenant = caller.tenant.as_deref();
    Ok(answered(desk(&app)?.progress(tenant, id, said, key.as_deref()).await?))
}

/// Why it is stopped.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NewStop {
    /// As the sender knew it; one from the future is refused.
    turn_epoch: Option<u64>,
    /// Why, for people.
    why: Option<String>,
    /// Who asks, for people.
    by: Option<String>,
}

/// Ends a turn, with a fallback deliverable; one that waits in line is taken back. What it waits for is cancelled.
#[utoipa::path(
    post, path = "/v1/turns/{id}/stop", tag = "agents", request_body = NewStop,
    params(("id" = String, Path, description = "The turn.")),
    responses(
        (status = 202, body = TurnAskDocument), (status = 200, body = TurnAskDocument),
        (status = 404, body = ProblemDocument), (status = 409, body = ProblemDocument),
    )
)]
pub(crate) async fn stop(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
    Maybe(new): Maybe<NewStop>,
) -> Result<Response, Problem> {
    caller.need(Scope::Write)?;
    let by = Some(who(&caller, new.by));
    let said = Stop { turn_epoch: new.turn_epoch, why: new.why, by };
    Ok(answered(desk(&app)?.stop(caller.tenant.as_deref(), id, said).await?))
}

/// How a person ends it.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NewFinish {
    /// `success`, `partial` or `failed` (without a word).
    #[schema(value_type = String)]
    status: EndStatus,
    /// What is delivered; a fallback without it.
    deliverable: Value,
    /// Why, for people.
    why: Option<String>,
    /// Who asks, for people.
    by: Option<String>,
}

/// A person ends a turn, with this deliverable. It is on record as forced.
#[utoipa::path(
    post, path = "/v1/turns/{id}/force-finish", tag = "agents", request_body = NewFinish,
    params(("id" = String, Path, description = "The turn.")),
    responses(
        (status = 202, body = TurnAskDocument), (status = 200, body = TurnAskDocument),
        (status = 404, body = ProblemDocument), (status = 409, body = ProblemDocument),
        (status = 422, body = ProblemDocument),
    )
)]
pub(crate) async fn force_finish(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
    Json(new): Json<NewFinish>,
) -> Result<Response, Problem> {
    caller.need(Scope::Write)?;
    let NewFinish { status, deliverable, why, by } = new;
    let said = ForceFinish { status, deliverable, why, by: Some(who(&caller, by)) };
    Ok(answered(desk(&app)?.force_finish(caller.tenant.as_deref(), id, said).await?))
}

/// What is not waited for any longer.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NewResume {
    /// Only this wait; all open ones without it.
    wait: Option<String>,
    /// Why, for people.
    why: Option<String>,
    /// Who asks, for people.
    by: Option<String>,
}

/// Waits no longer: open waits end as `skipped`, and the turn goes on.
#[utoipa::path(
    post, path = "/v1/turns/{id}/resume", tag = "agents", request_body = NewResume,
    params(("id" = String, Path, description = "The turn.")),
    responses(
        (status = 202, body = TurnAskDocument), (status = 200, body = TurnAskDocument),
        (status = 404, body = ProblemDocument), (status = 409, body = ProblemDocument),
    )
)]
pub(crate) async fn resume(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
    Maybe(new): Maybe<NewResume>,
) -> Result<Response, Problem> {
    caller.need(Scope::Write)?;
    let said = ResumeNow { wait: new.wait, why: new.why, by: Some(who(&caller, new.by)) };
    Ok(answered(desk(&app)?.resume_now(caller.tenant.as_deref(), id, said).await?))
}
