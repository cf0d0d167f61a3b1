//! What collectors saw. A 2xx answer means that every report is durable or will never be accepted, so that the collector
//! may forget all of them; anything else, and it sends the same again, which is always safe.

use super::{desk, documents::TaskReportsDocument};
use crate::{App, Caller, Problem, jobs::body::Json, keys::Scope, problem::ProblemDocument};
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_pods::{
    desk::{ReportAnswer, Reporter},
    report::Report,
};
use utoipa::ToSchema;

/// Reports of one request.
const REPORTS_MAX: usize = 1_000;

/// Reports, in the order in which things were seen.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TaskReports {
    /// At most 1000. Each: `task_id`, `workflow_id`, `tenant_id`, `pod`, `attempt`, `verdict`, `over`,
    /// `gone`, `terminated_reason`, `result`, `seen_at`, `collector`; see docs/tasks.md.
    #[schema(value_type = Vec<super::documents::TaskReportDocument>)]
    reports: Vec<Value>,
}

/// What became of them.
#[derive(Serialize)]
pub(super) struct Answers {
    answers: Vec<ReportAnswer>,
}

/// Takes what collectors saw of pods. Needs the scope `collector` or `write`; a key of one tenant reports about that
/// tenant's tasks only. A task that nobody ordered is taken in (`pods.adopt_unknown`).
#[utoipa::path(
    post, path = "/v1/tasks/reports", tag = "tasks", request_body = TaskReports,
    responses(
        (status = 200, description = "One answer for each, in order: each report is durable, or never will be accepted.", body = TaskReportsDocument),
        (status = 403, body = ProblemDocument), (status = 422, body = ProblemDocument),
    )
)]
pub(super) async fn reports(
    State(app): State<App>,
    caller: Caller,
    Json(sent): Json<TaskReports>,
) -> Result<axum::Json<Answers>, Problem> {
    if !caller.may(Scope::Write) {
        caller.need(Scope::Collector)?;
    }
    let count = sent.reports.len();
    if count > REPORTS_MAX {
        let detail = format!("{count} reports; at most {REPORTS_MAX} go together");
        return Err(Problem::bad_field("reports", detail).fix("send them in several requests"));
    }
    // One that can not be read is refused alone: a newer collector may know words that this server does not.
    let read: Vec<Result<Report, String>> = sent
        .reports
        .into_iter()
        .map(|value| Report::read(value).map_err(|e| format!("it can not be read: {e}")))
        .collect();
    let good: Vec<Report> = read.iter().filter_map(|r| r.as_ref().ok().cloned()).collect();
    let from = Reporter { tenant: caller.tenant.clone() };
    let mut answers = desk(&app)?.report(&good, &from).await?.into_iter();
    let in_order = read.into_iter().map(|read| match read {
        Ok(report) => answers
            .next()
            .unwrap_or_else(|| ReportAnswer::refused(report.key(), "it was not answered")),
        Err(why) => ReportAnswer::refused(String::new(), why),
    });
    Ok(axum::Json(Answers { answers: in_order.collect() }))
}
