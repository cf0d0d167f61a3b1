//! One job, as people read it. Nothing here writes, and nothing runs a tool.

use super::{
    body::JobAnd,
    documents::{
        JobDocument, ReplayedDocument, StepDocument, TraceDocument, VerificationDocument,
        WhyDocument,
    },
    find,
    submit::Waiting,
    wait::until_final,
};
use crate::{
    App, Caller, Problem,
    extract::{Named, Params},
    problem::ProblemDocument,
};
use axum::{Json, extract::State};
use serde::Serialize;
use serde_json::Value;
use tenure_jobs::view::{self, JobDetail, JobView, Replayed, StepView, Timeline, Verification};
use tenure_kernel::{head::Head, ids::EntityId};

/// A job with the sentence about it.
#[derive(Serialize)]
pub(super) struct JobAnswer {
    #[serde(flatten)]
    pub(super) job: JobView,
    pub(super) why: String,
}

/// Everything about a job that the caller may read.
async fn detail(app: &App, caller: &Caller, id: EntityId) -> Result<JobDetail, Problem> {
    find::readable(app, caller, id).await?;
    // It may have been retired since.
    view::detail(app.pipeline().store(), id).await?.ok_or_else(|| find::absent(id))
}

/// A job with its input and output, also where they are too large for its head.
pub(super) async fn full(app: &App, head: &Head) -> Result<JobView, Problem> {
    let detail = view::detail(app.pipeline().store(), head.id).await?;
    Ok(detail.ok_or_else(|| find::absent(head.id))?.job)
}

/// Where a job stands.
#[utoipa::path(
    get, path = "/v1/jobs/{id}", tag = "jobs",
    params(("id" = String, Path, description = "The job."), Waiting),
    responses((status = 200, body = JobDocument), (status = 404, body = ProblemDocument))
)]
pub(super) async fn job(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
    Params(waiting): Params<Waiting>,
) -> Result<Json<JobAnswer>, Problem> {
    let head = find::readable(&app, &caller, id).await?;
    if let Some(wait) = waiting.duration()? {
        until_final(&app, id, wait).await?;
    }
    let job = full(&app, &head).await?;
    let why = view::why(&job, app.pipeline().store().now().await?);
    Ok(Json(JobAnswer { job, why }))
}

/// Why it is where it is, and what moves it, in one sentence.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/why", tag = "jobs",
    params(("id" = String, Path, description = "The job.")),
    responses((status = 200, body = WhyDocument), (status = 404, body = ProblemDocument))
)]
pub(super) async fn why(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
) -> Result<Json<Value>, Problem> {
    let job = detail(&app, &caller, id).await?.job;
    let why = view::why(&job, app.pipeline().store().now().await?);
    Ok(Json(serde_json::json!({ "id": id, "status": job.status, "why": why })))
}

/// All steps, in the order in which they began.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/steps", tag = "jobs",
    params(("id" = String, Path, description = "The job.")),
    responses((status = 200, body = Vec<StepDocument>), (status = 404, body = ProblemDocument))
)]
pub(super) async fn steps(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
) -> Result<Json<Vec<StepView>>, Problem> {
    Ok(Json(detail(&app, &caller, id).await?.steps))
}

/// One step, with its calls.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/steps/{step}", tag = "jobs",
    params(
        ("id" = String, Path, description = "The job."),
        ("step" = String, Path, description = "The step, such as 3 or 3.1.")
    ),
    responses((status = 200, body = StepDocument), (status = 404, body = ProblemDocument))
)]
pub(super) async fn step(
    State(app): State<App>,
    caller: Caller,
    JobAnd(id, step): JobAnd,
) -> Result<Json<StepView>, Problem> {
    let steps = detail(&app, &caller, id).await?.steps;
    let known: Vec<String> = steps.iter().map(|s| s.step.0.clone()).collect();
    steps.into_iter().find(|s| s.step.0 == step).map(Json).ok_or_else(|| {
        Problem::not_found(format!("step {step:?} in job {id}")).field("step").with("steps", known)
    })
}

/// What happened when: leases, steps as bars, and marks.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/trace", tag = "jobs",
    params(("id" = String, Path, description = "The job.")),
    responses((status = 200, body = TraceDocument), (status = 404, body = ProblemDocument))
)]
pub(super) async fn trace(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
) -> Result<Json<Timeline>, Problem> {
    let detail = detail(&app, &caller, id).await?;
    Ok(Json(view::timeline(&detail, app.pipeline().store().now().await?)))
}

/// Whether anybody touched its history, and whether it keeps the rules. Repairs nothing.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/verify", tag = "jobs",
    params(("id" = String, Path, description = "The job.")),
    responses((status = 200, body = VerificationDocument), (status = 404, body = ProblemDocument))
)]
pub(super) async fn verify(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
) -> Result<Json<Verification>, Problem> {
    find::readable(&app, &caller, id).await?;
    let (store, tables) = (app.pipeline().store(), app.machines().tables());
    let verified = view::verify(store, &tables, id, super::desk(&app)?.effects()).await?;
    verified.map(Json).ok_or_else(|| find::absent(id))
}

/// Leads the code of the flow through the history and calls nothing. Says whether they still agree.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/replay", tag = "jobs",
    params(("id" = String, Path, description = "The job.")),
    responses((status = 200, body = ReplayedDocument), (status = 404, body = ProblemDocument))
)]
pub(super) async fn replay(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
) -> Result<Json<Replayed>, Problem> {
    find::readable(&app, &caller, id).await?;
    let replayed = view::replay(super::desk(&app)?.flows(), app.pipeline().store(), id).await?;
    replayed.map(Json).ok_or_else(|| find::absent(id))
}
