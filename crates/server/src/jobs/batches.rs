//! Submissions that are collected: `batch` and `debounce` of `POST /v1/jobs`, and what became of them.

use super::{
    documents::{BatchDocument, BatchPageDocument},
    find,
    owned::listed,
    submit,
};
use crate::{
    App, Caller, Problem,
    extract::{Named, Params},
    keys::Scope,
    paging,
    problem::ProblemDocument,
};
use axum::{
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::Duration;
use tenure_jobs::{
    shared::batch::{
        Batch, Mode,
        desk::{self, BatchError, BatchView, Batches, is_too_large},
        model::{Item, Wanted},
    },
    submit::Submission,
};
use tenure_kernel::{ids::EntityId, store::HeadFilter};
use utoipa::{IntoParams, ToSchema};

/// Collected until enough are there: one job gets all of them, as `{"items": […]}`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BatchOf {
    /// What belongs together, within tenant and flow.
    key: String,
    /// Becomes a job when so many are there, up to 1,000.
    max: u32,
    /// Becomes a job so long after the first.
    within_seconds: u64,
}

/// Collected until there is silence: one job gets the last of them.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DebounceOf {
    /// What belongs together, within tenant and flow.
    key: String,
    /// Becomes a job after so long a silence.
    quiet_seconds: u64,
    /// Becomes a job so long after the first, silence or not.
    within_seconds: u64,
}

impl From<BatchError> for Problem {
    fn from(e: BatchError) -> Self {
        match e {
            BatchError::Bad { field, why, fix } => Problem::bad_field(field, why).fix(fix),
            BatchError::Store(e) => e.into(),
        }
    }
}

/// How a submission wants to be collected, if it does.
pub(super) fn mode(
    batch: Option<BatchOf>,
    debounce: Option<DebounceOf>,
) -> Result<Option<(String, Mode)>, Problem> {
    let ms = |seconds: u64| seconds.saturating_mul(1_000);
    let (field, key, mode) = match (batch, debounce) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => {
            return Err(Problem::bad_field("debounce", "a submission is collected in one way")
                .fix("send batch or debounce"));
        }
        (Some(b), None) => {
            let mode = Mode::Batch { max: b.max, within_ms: ms(b.within_seconds) };
            ("batch", b.key, mode)
        }
        (None, Some(d)) => {
            let (quiet_ms, within_ms) = (ms(d.quiet_seconds), ms(d.within_seconds));
            ("debounce", d.key, Mode::Debounce { quiet_ms, within_ms })
        }
    };
    match desk::check(&key, mode) {
        Err(BatchError::Bad { field: part, why, fix }) => {
            Err(Problem::bad_field(format!("{field}.{part}"), why).fix(fix))
        }
        Err(e) => Err(e.into()),
        Ok(()) => Ok(Some((key, mode))),
    }
}

/// The input that a job gets of one submission alone.
pub(super) fn alone(mode: Mode, input: Value) -> Value {
    match mode {
        Mode::Batch { .. } => json!({ "items": [input] }),
        Mode::Debounce { .. } => input,
    }
}

/// Takes a submission in. 202 with the batch; a job of its own at once where the input is too large to be kept.
pub(super) async fn collect(
    app: &App,
    submission: Submission,
    (key, mode): (String, Mode),
    wait: Option<Duration>,
) -> Result<Response, Problem> {
    if wait.is_some() {
        return Err(Problem::bad_field("wait", "which job it becomes is not known yet")
            .fix("leave wait out, and look at GET /v1/batches/{id}"));
    }
    if !submission.terms.labels.is_empty() {
        let detail =
            "what is collected becomes a job together with others, which may have other labels";
        return Err(Problem::bad_field("labels", detail).fix("leave labels out"));
    }
    let submitter = super::desk(app)?.submitter();
    let (must_end_in, takeovers_max) = submitter.defaults();
    let must_end_in = submission.must_end_in.unwrap_or(must_end_in);
    let job = Wanted {
        version: submission.version.unwrap_or(1),
        priority: submission.priority,
        must_end_in_ms: u64::try_from(must_end_in.as_millis()).unwrap_or(u64::MAX),
        takeovers_max,
        terms: submission.terms.clone(),
        by: submission.by.clone(),
    };
    let item = Item { input: submission.input.clone(), mode, job };
    if is_too_large(&item) {
        let input = alone(mode, submission.input);
        let (tenant, flow) = (submission.tenant.clone(), submission.flow.clone());
        let submitted = submitter.submit(Submission { input, ..submission }).await?;
        if let Mode::Debounce { .. } = mode {
            let batches = Batches(app.pipeline().clone());
            batches.overtaken(&tenant, &flow, &key, mode, submitted.id).await?;
        }
        return submit::created(app, submitted, None).await;
    }
    let Submission { tenant, flow, key: idempotency, .. } = submission;
    let batches = Batches(app.pipeline().clone());
    let added = batches.add(&tenant, &flow, &key, item, idempotency.as_deref()).await?;
    let status = if added.existed { StatusCode::OK } else { StatusCode::ACCEPTED };
    let location = [(header::LOCATION, format!("/v1/batches/{}", added.batch))];
    Ok((status, location, axum::Json(added)).into_response())
}

/// Which batches.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(super) struct Which {
    /// Only of this flow.
    flow: Option<String>,
    /// Only of this tenant, for callers whose key has none.
    tenant: Option<String>,
    /// Only batches before this one: `next` of the page before.
    before: Option<String>,
    /// How many, 1 to 200; 50 without it.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
}

/// A page.
#[derive(Serialize)]
pub(super) struct Page {
    batches: Vec<BatchView>,
    next: Option<EntityId>,
}

/// Batches, the newest first. A page may be short and not be the last: go on while there is `next`.
#[utoipa::path(
    get, path = "/v1/batches", tag = "jobs", params(Which),
    responses((status = 200, body = BatchPageDocument), (status = 400, body = ProblemDocument))
)]
pub(super) async fn list(
    State(app): State<App>,
    caller: Caller,
    Params(which): Params<Which>,
) -> Result<axum::Json<Page>, Problem> {
    caller.need(Scope::Read)?;
    let limit = paging::limit(which.limit)?;
    let filter = HeadFilter {
        tenant: listed(&caller, which.tenant)?,
        before: paging::cursor(which.before.as_deref())?,
        ..HeadFilter::default()
    };
    let flow = which.flow;
    let (heads, next) = paging::newest::<Batch>(&app, filter, limit, |state| {
        flow.as_ref().is_none_or(|flow| state.flow == *flow)
    })
    .await?;
    // One that cannot be read does not hide the others.
    let batches = heads.iter().filter_map(|(head, _)| desk::view(head).ok()).collect();
    Ok(axum::Json(Page { batches, next }))
}

/// What became of a batch: what is open, and the last jobs.
#[utoipa::path(
    get, path = "/v1/batches/{id}", tag = "jobs",
    params(("id" = String, Path, description = "The batch, as the answer to a submission names it.")),
    responses((status = 200, body = BatchDocument), (status = 404, body = ProblemDocument))
)]
pub(super) async fn batch(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
) -> Result<axum::Json<BatchView>, Problem> {
    caller.need(Scope::Read)?;
    let shown = Batches(app.pipeline().clone()).show(id).await?;
    let theirs = shown.filter(|b| caller.sees(&b.tenant));
    theirs.map(axum::Json).ok_or_else(|| find::absent_batch(id))
}
