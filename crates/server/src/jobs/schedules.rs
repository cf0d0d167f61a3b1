//! Schedules over HTTP. A schedule is named by its owner, so setting it is a `PUT`: the same body twice changes
//! nothing the second time.

use super::{
    body::{Json, Maybe, required},
    catalogue::Name,
    documents::{ScheduleDocument, ScheduleFiredDocument, SchedulesDocument},
    find::who,
    owned::{Listing, Whose, listed},
    submit::{TermsOf, check_submission, idempotency_key, must_end_in, new_tenant, tenant},
};
use crate::{
    App, Caller, Problem,
    extract::{Named, Params},
    keys::Scope,
    problem::ProblemDocument,
};
use axum::{
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;
use tenure_jobs::{
    shared::schedule::{
        Missed, Overlap, Spec,
        calendar::moment,
        desk::{ScheduleError, Schedules},
        view::ScheduleView,
    },
    terms::Terms,
};
use tenure_kernel::{error::Code, time::Timestamp};
use utoipa::{IntoParams, ToSchema};

/// Times that a preview shows at most.
pub(super) const NEXT_MAX: usize = 100;

/// What to run, and when.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct NewSchedule {
    /// A cron expression of 5 or 6 fields (the first of 6 are seconds), or `@hourly`, `@daily`, `@weekly`, `@monthly`,
    /// `@yearly`. Either this or `every_seconds`.
    cron: Option<String>,
    /// An interval, counted from `start`, or from when the schedule was first set.
    every_seconds: Option<u64>,
    /// The IANA time zone of the expression; UTC without one.
    zone: Option<String>,
    /// The flow.
    #[schema(required)]
    flow: Option<String>,
    /// Its version; the newest at this moment without one. It stays so until the schedule is set again.
    version: Option<u32>,
    /// The input of every job.
    input: Value,
    /// Higher is sooner.
    #[schema(minimum = -32768, maximum = 32767)]
    priority: i16,
    /// Every job ends within so many seconds.
    must_end_in_seconds: Option<u64>,
    /// When and where the jobs may run.
    terms: TermsOf,
    /// `skip`, `once` (without a word) or `all`: what happens to times at which nobody served it.
    #[schema(value_type = String)]
    missed: Missed,
    /// `allow` (without a word) or `skip`: what happens to a time at which an earlier job is still open.
    #[schema(value_type = String)]
    overlap: Overlap,
    /// Every job begins up to so many seconds later.
    jitter_seconds: u64,
    /// No time before it: RFC 3339, or microseconds since 1970.
    #[schema(value_type = Object)]
    start: Option<Moment>,
    /// No time after it.
    #[schema(value_type = Object)]
    end: Option<Moment>,
    /// Whose it is; only for callers whose key has no tenant.
    tenant: Option<String>,
    /// Who asks, for people.
    by: Option<String>,
}

/// A moment as people write it, or as this API does.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Moment {
    /// Microseconds since 1970.
    Micros(i64),
    /// RFC 3339.
    Text(String),
}

impl Moment {
    pub(super) fn read(self, field: &'static str) -> Result<Timestamp, Problem> {
        match self {
            Moment::Micros(micros) => Ok(Timestamp::from_micros(micros)),
            Moment::Text(text) => moment(field, &text).map_err(|e| ScheduleError::Bad(e).into()),
        }
    }
}

/// Whose schedule, and how much of it.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Shown {
    /// The tenant, for callers whose key has none.
    tenant: Option<String>,
    /// How many of the next times to show, up to 100.
    next: Option<usize>,
}

/// Who asks, and whose it is.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = ScheduleAsk)]
pub(crate) struct Ask {
    /// The tenant, for callers whose key has none.
    tenant: Option<String>,
    /// Who asks, for people.
    by: Option<String>,
    /// The idempotency key of a fire, instead of the header `Idempotency-Key`.
    key: Option<String>,
}

impl From<ScheduleError> for Problem {
    fn from(e: ScheduleError) -> Self {
        match e {
            ScheduleError::Bad(bad) => Problem::bad_field(bad.field, bad.why).fix(bad.fix),
            ScheduleError::Absent(name) => Problem::not_found(format!("schedule {name:?}"))
                .field("name")
                .fix("GET /v1/schedules lists them"),
            ScheduleError::TooManyOpen(_) => {
                Problem::new(StatusCode::CONFLICT, Code::LimitPassed, e.to_string())
                    .field("overlap")
                    .fix("wait until one of `open` has ended, or cancel one")
            }
            ScheduleError::Store(e) => e.into(),
        }
    }
}

fn schedules(app: &App) -> Schedules {
    Schedules(app.pipeline().clone())
}

async fn shown(
    app: &App,
    tenant: &str,
    name: &str,
    next: usize,
) -> Result<axum::Json<Value>, Problem> {
    Ok(axum::Json(said(&schedules(app).show(tenant, name, next).await?)))
}

/// Its terms are shown in the words in which they are set.
fn said(schedule: &ScheduleView) -> Value {
    let mut said = serde_json::to_value(schedule).unwrap_or_default();
    said["terms"] = schedule.spec.terms.said();
    said
}

/// Sets a schedule, for the first time or anew. Times that have come by now are served as they were set before.
#[utoipa::path(
    put, path = "/v1/schedules/{name}", tag = "schedules", request_body = NewSchedule,
    params(("name" = String, Path, description = "Its name, within the tenant.")),
    responses(
        (status = 200, description = "Set; or so already.", body = ScheduleDocument),
        (status = 422, description = "A bad expression, an unknown zone or flow, an input that does not fit.", body = ProblemDocument),
    )
)]
pub(super) async fn set(
    State(app): State<App>,
    caller: Caller,
    Named(Name(name)): Named<Name>,
    Json(new): Json<NewSchedule>,
) -> Result<axum::Json<Value>, Problem> {
    caller.need(Scope::Write)?;
    let desk = super::desk(&app)?;
    let tenant = new_tenant(&caller, new.tenant)?;
    let flow = required("flow", new.flow)?;
    let version = check_submission(&app, desk, &tenant, &flow, new.version, &new.input).await?;
    let terms = Terms::from(new.terms).of_tenant(&tenant).map_err(|bad| {
        Problem::bad_field(format!("terms.{}", bad.field), bad.why).fix("change the terms")
    })?;
    let (default_end, takeovers_max) = desk.submitter().defaults();
    let must_end_in = must_end_in(new.must_end_in_seconds)?.unwrap_or(default_end);
    let spec = Spec {
        cron: new.cron,
        every_ms: new.every_seconds.map(|s| s.saturating_mul(1_000)),
        zone: new.zone.unwrap_or_else(|| "UTC".to_owned()),
        flow,
        version,
        input: new.input,
        priority: new.priority,
        must_end_in_ms: millis(must_end_in),
        takeovers_max,
        terms,
        missed: new.missed,
        overlap: new.overlap,
        jitter_ms: new.jitter_seconds.saturating_mul(1_000),
        start: new.start.map(|m| m.read("start")).transpose()?,
        end: new.end.map(|m| m.read("end")).transpose()?,
    };
    schedules(&app).set(&tenant, &name, spec, Some(who(&caller, new.by))).await?;
    shown(&app, &tenant, &name, 0).await
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

/// One schedule; with `next`, its next times.
#[utoipa::path(
    get, path = "/v1/schedules/{name}", tag = "schedules",
    params(("name" = String, Path, description = "Its name."), Shown),
    responses((status = 200, body = ScheduleDocument), (status = 404, body = ProblemDocument))
)]
pub(super) async fn show(
    State(app): State<App>,
    caller: Caller,
    Named(Name(name)): Named<Name>,
    Params(whose): Params<Shown>,
) -> Result<axum::Json<Value>, Problem> {
    caller.need(Scope::Read)?;
    let tenant = tenant(&caller, whose.tenant)?;
    let next = whose.next.unwrap_or(0);
    if next > NEXT_MAX {
        let detail = format!("next = {next}: at most {NEXT_MAX} times are shown");
        return Err(Problem::bad_field("next", detail).fix("ask for fewer"));
    }
    shown(&app, &tenant, &name, next).await
}

/// Schedules that the caller may see, by pages: go on with `after` while there is `next`.
#[utoipa::path(
    get, path = "/v1/schedules", tag = "schedules", params(Listing),
    responses((status = 200, body = SchedulesDocument))
)]
pub(super) async fn list(
    State(app): State<App>,
    caller: Caller,
    Params(query): Params<Listing>,
) -> Result<axum::Json<Value>, Problem> {
    caller.need(Scope::Read)?;
    let (after, limit) = query.page()?;
    let mine = listed(&caller, query.tenant)?;
    let (found, next) = schedules(&app).page(mine.as_deref(), after, limit).await?;
    let found: Vec<Value> = found.iter().map(said).collect();
    Ok(axum::Json(json!({ "schedules": found, "next": next })))
}

/// Removes a schedule. Jobs that it has created go on.
#[utoipa::path(
    delete, path = "/v1/schedules/{name}", tag = "schedules",
    params(("name" = String, Path, description = "Its name."), Whose),
    responses((status = 204, description = "It is gone."), (status = 404, body = ProblemDocument))
)]
pub(super) async fn remove(
    State(app): State<App>,
    caller: Caller,
    Named(Name(name)): Named<Name>,
    Params(whose): Params<Whose>,
) -> Result<StatusCode, Problem> {
    caller.need(Scope::Write)?;
    let tenant = tenant(&caller, whose.tenant)?;
    schedules(&app).remove(&tenant, &name, Some(who(&caller, None))).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Creates nothing by itself until it is resumed.
#[utoipa::path(
    post, path = "/v1/schedules/{name}/pause", tag = "schedules", request_body = Ask,
    params(("name" = String, Path, description = "Its name.")),
    responses((status = 200, body = ScheduleDocument), (status = 404, body = ProblemDocument))
)]
pub(crate) async fn pause(
    State(app): State<App>,
    caller: Caller,
    Named(Name(name)): Named<Name>,
    Maybe(ask): Maybe<Ask>,
) -> Result<axum::Json<Value>, Problem> {
    caller.need(Scope::Write)?;
    let tenant = tenant(&caller, ask.tenant)?;
    schedules(&app).pause(&tenant, &name, Some(who(&caller, ask.by))).await?;
    shown(&app, &tenant, &name, 0).await
}

/// Goes on from now: times that passed in the pause are not made up for.
#[utoipa::path(
    post, path = "/v1/schedules/{name}/resume", tag = "schedules", request_body = Ask,
    params(("name" = String, Path, description = "Its name.")),
    responses((status = 200, body = ScheduleDocument), (status = 404, body = ProblemDocument))
)]
pub(crate) async fn resume(
    State(app): State<App>,
    caller: Caller,
    Named(Name(name)): Named<Name>,
    Maybe(ask): Maybe<Ask>,
) -> Result<axum::Json<Value>, Problem> {
    caller.need(Scope::Write)?;
    let tenant = tenant(&caller, ask.tenant)?;
    schedules(&app).resume(&tenant, &name, Some(who(&caller, ask.by))).await?;
    shown(&app, &tenant, &name, 0).await
}

/// One job now, whatever the calendar says; also while it is paused. The job is created a moment later.
#[utoipa::path(
    post, path = "/v1/schedules/{name}/fire", tag = "schedules", request_body = Ask,
    params(
        ("name" = String, Path, description = "Its name."),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes it safe to ask again.")
    ),
    responses(
        (status = 202, description = "`job` will be there shortly; `Location` names it.", body = ScheduleFiredDocument),
        (status = 404, body = ProblemDocument),
        (status = 409, description = "Its jobs may not overlap, and 16 are open.", body = ProblemDocument)
    )
)]
pub(crate) async fn fire(
    State(app): State<App>,
    caller: Caller,
    Named(Name(name)): Named<Name>,
    headers: HeaderMap,
    Maybe(ask): Maybe<Ask>,
) -> Result<Response, Problem> {
    caller.need(Scope::Write)?;
    let tenant = tenant(&caller, ask.tenant)?;
    let key = idempotency_key(&headers, ask.key)?;
    let by = Some(who(&caller, ask.by));
    let job = schedules(&app).fire(&tenant, &name, key.as_deref(), by).await?;
    let location = [(header::LOCATION, format!("/v1/jobs/{job}"))];
    let body = axum::Json(json!({ "schedule": name, "job": job }));
    Ok((StatusCode::ACCEPTED, location, body).into_response())
}
