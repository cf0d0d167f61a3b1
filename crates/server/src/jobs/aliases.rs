//! The paths under which these things were known before. Same handlers, same answers; only a signal calls its
//! key `correlation_key` here.

use super::{
    asks::{self, Ask},
    body::{Json, Maybe, required},
    documents::{
        AskedDocument, EventsDocument, JobDocument, ReplayedDocument, SignalledDocument,
        TraceDocument, VerificationDocument,
    },
    events::{self, Stretch},
    find::who,
    read::{self, JobAnswer},
    submit::Waiting,
};
use crate::{
    App, Caller, Problem,
    extract::{Named, Params},
    problem::ProblemDocument,
};
use axum::{extract::State, http::HeaderMap, response::Response};
use serde::Deserialize;
use serde_json::Value;
use tenure_jobs::{
    ask::SignalAsk,
    view::{Replayed, Timeline, Verification},
};
use tenure_kernel::ids::EntityId;
use tenure_steps::events::WaitOutcome;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(job))
        .routes(routes!(events))
        .routes(routes!(trace))
        .routes(routes!(verify))
        .routes(routes!(replay))
        .routes(routes!(signal))
        .routes(routes!(stop))
        .routes(routes!(pause))
        .routes(routes!(resume))
}

/// A signal in the older words.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
struct OlderSignal {
    /// The correlation key of the wait.
    #[schema(required)]
    correlation_key: Option<String>,
    /// What the flow gets.
    payload: Value,
}

/// See `POST /v1/jobs/{id}/signal`.
#[utoipa::path(
    post, path = "/api/jobs/{id}/signal", tag = "aliases", request_body = OlderSignal,
    params(("id" = String, Path, description = "The job.")),
    responses(
        (status = 200, body = SignalledDocument), (status = 202, body = SignalledDocument),
        (status = 404, body = ProblemDocument), (status = 409, body = ProblemDocument),
    )
)]
async fn signal(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
    Json(signal): Json<OlderSignal>,
) -> Result<Response, Problem> {
    let key = required("correlation_key", signal.correlation_key)?;
    let (by, outcome) = (Some(who(&caller, None)), WaitOutcome::Signalled);
    let ask = SignalAsk { key, outcome, payload: signal.payload, by, early: false };
    asks::send(&app, &caller, id, ask).await
}

/// See `POST /v1/jobs/{id}/cancel`.
#[utoipa::path(
    post, path = "/api/jobs/{id}/stop", tag = "aliases", request_body = Ask,
    params(("id" = String, Path, description = "The job.")),
    responses((status = 202, body = AskedDocument), (status = 409, body = ProblemDocument))
)]
async fn stop(
    app: State<App>,
    caller: Caller,
    id: Named<EntityId>,
    ask: Maybe<Ask>,
) -> Result<Response, Problem> {
    asks::cancel(app, caller, id, ask).await
}

/// See `POST /v1/jobs/{id}/pause`.
#[utoipa::path(
    post, path = "/api/jobs/{id}/pause", tag = "aliases", request_body = Ask,
    params(("id" = String, Path, description = "The job.")),
    responses((status = 202, body = AskedDocument), (status = 409, body = ProblemDocument))
)]
async fn pause(
    app: State<App>,
    caller: Caller,
    id: Named<EntityId>,
    ask: Maybe<Ask>,
) -> Result<Response, Problem> {
    asks::pause(app, caller, id, ask).await
}

/// See `POST /v1/jobs/{id}/resume`.
#[utoipa::path(
    post, path = "/api/jobs/{id}/resume", tag = "aliases", request_body = Ask,
    params(("id" = String, Path, description = "The job.")),
    responses((status = 202, body = AskedDocument), (status = 409, body = ProblemDocument))
)]
async fn resume(
    app: State<App>,
    caller: Caller,
    id: Named<EntityId>,
    ask: Maybe<Ask>,
) -> Result<Response, Problem> {
    asks::resume(app, caller, id, ask).await
}

/// See `GET /v1/jobs/{id}`.
#[utoipa::path(
    get, path = "/api/jobs/{id}", tag = "aliases",
    params(("id" = String, Path, description = "The job."), Waiting),
    responses((status = 200, body = JobDocument), (status = 404, body = ProblemDocument))
)]
async fn job(
    app: State<App>,
    caller: Caller,
    id: Named<EntityId>,
    waiting: Params<Waiting>,
) -> Result<axum::Json<JobAnswer>, Problem> {
    read::job(app, caller, id, waiting).await
}

/// See `GET /v1/jobs/{id}/events`.
#[utoipa::path(
    get, path = "/api/jobs/{id}/events", tag = "aliases",
    params(("id" = String, Path, description = "The job."), Stretch),
    responses((status = 200, body = EventsDocument), (status = 404, body = ProblemDocument))
)]
async fn events(
    app: State<App>,
    caller: Caller,
    id: Named<EntityId>,
    stretch: Params<Stretch>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    events::events(app, caller, id, stretch, headers).await
}

/// See `GET /v1/jobs/{id}/trace`.
#[utoipa::path(
    get, path = "/api/jobs/{id}/trace", tag = "aliases",
    params(("id" = String, Path, description = "The job.")),
    responses((status = 200, body = TraceDocument), (status = 404, body = ProblemDocument))
)]
async fn trace(
    app: State<App>,
    caller: Caller,
    id: Named<EntityId>,
) -> Result<axum::Json<Timeline>, Problem> {
    read::trace(app, caller, id).await
}

/// See `GET /v1/jobs/{id}/verify`.
#[utoipa::path(
    get, path = "/api/jobs/{id}/verify", tag = "aliases",
    params(("id" = String, Path, description = "The job.")),
    responses((status = 200, body = VerificationDocument), (status = 404, body = ProblemDocument))
)]
async fn verify(
    app: State<App>,
    caller: Caller,
    id: Named<EntityId>,
) -> Result<axum::Json<Verification>, Problem> {
    read::verify(app, caller, id).await
}

/// See `GET /v1/jobs/{id}/replay`.
#[utoipa::path(
    get, path = "/api/jobs/{id}/replay", tag = "aliases",
    params(("id" = String, Path, description = "The job.")),
    responses((status = 200, body = ReplayedDocument), (status = 404, body = ProblemDocument))
)]
async fn replay(
    app: State<App>,
    caller: Caller,
    id: Named<EntityId>,
) -> Result<axum::Json<Replayed>, Problem> {
    read::replay(app, caller, id).await
}
