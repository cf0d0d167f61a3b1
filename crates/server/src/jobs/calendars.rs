//! The times that a schedule would have, without one. A path of its own: `preview` may be the name of a schedule.

use super::{
    body::Json,
    documents::CalendarDocument,
    schedules::{Moment, NEXT_MAX},
};
use crate::{App, Caller, Problem, keys::Scope, problem::ProblemDocument};
use axum::extract::State;
use serde::{Deserialize, Serialize};
use tenure_jobs::shared::schedule::{
    Spec,
    calendar::{Calendar, Nominal},
    desk::ScheduleError,
};
use utoipa::ToSchema;

/// A calendar, in the words in which a schedule is set.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct CalendarAsk {
    /// A cron expression, as of a schedule. Either this or `every_seconds`.
    cron: Option<String>,
    /// An interval, counted from `start`, or from now.
    every_seconds: Option<u64>,
    /// The IANA time zone of the expression; UTC without one.
    zone: Option<String>,
    /// No time before it: RFC 3339, or microseconds since 1970.
    #[schema(value_type = Object)]
    start: Option<Moment>,
    /// No time after it.
    #[schema(value_type = Object)]
    end: Option<Moment>,
    /// The times after this moment; from now on without it.
    #[schema(value_type = Object)]
    after: Option<Moment>,
    /// How many, 1 to 100; 10 without it.
    count: Option<usize>,
}

/// Times.
#[derive(Serialize)]
pub(super) struct Times {
    zone: String,
    times: Vec<Nominal>,
}

/// The next times of a calendar, and which of them the clock on the wall moves. Nothing is created; what is wrong with it is
/// said as of a schedule.
#[utoipa::path(
    post, path = "/v1/calendars/preview", tag = "schedules", request_body = CalendarAsk,
    responses(
        (status = 200, body = CalendarDocument),
        (status = 422, description = "A bad expression, interval, zone or moment.", body = ProblemDocument),
    )
)]
pub(super) async fn preview(
    State(app): State<App>,
    caller: Caller,
    Json(ask): Json<CalendarAsk>,
) -> Result<axum::Json<Times>, Problem> {
    caller.need(Scope::Read)?;
    let count = ask.count.unwrap_or(10);
    if !(1..=NEXT_MAX).contains(&count) {
        let detail = format!("count = {count}: 1 to {NEXT_MAX} times are shown");
        return Err(Problem::bad_field("count", detail).fix("ask for fewer, or for one"));
    }
    let spec = Spec {
        cron: ask.cron,
        every_ms: ask.every_seconds.map(|s| s.saturating_mul(1_000)),
        zone: ask.zone.unwrap_or_else(|| "UTC".to_owned()),
        start: ask.start.map(|m| m.read("start")).transpose()?,
        end: ask.end.map(|m| m.read("end")).transpose()?,
        ..Spec::default()
    };
    let after = ask.after.map(|m| m.read("after")).transpose()?;
    let now = app.pipeline().store().now().await?;
    let calendar = Calendar::of(&spec, now).map_err(ScheduleError::Bad)?;
    let times = calendar.explained(after.unwrap_or(now), count);
    Ok(axum::Json(Times { zone: spec.zone, times }))
}
