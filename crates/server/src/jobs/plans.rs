//! Plans over HTTP: checked against what workers have registered, before anything is written.

use super::{owned::Whose, submit::tenant};
use crate::{App, Caller, Problem, extract::Params, keys::Scope, problem::ApiCode};
use axum::{Json, extract::State, http::StatusCode};
use serde::Serialize;
use serde_json::Value;
use tenure_jobs::{
    catalogue,
    plan::{self, Library, Problem as Wrong, Strict},
};
use tenure_kernel::runtime::compute;
use tenure_schema::DEADLINE;
use utoipa::ToSchema;

/// Problems whose words stand in the detail.
const DETAILED: usize = 3;

/// The input of the flow that runs plans.
pub(super) async fn check(app: &App, tenant: &str, input: &Value) -> Result<(), Problem> {
    let none = Value::Null;
    let plan = Strict::from(input.get("plan").unwrap_or(&none).clone());
    check_strict(app, tenant, &plan, input.get("input").unwrap_or(&none)).await
}

/// A plan and its input.
pub(super) async fn check_strict(
    app: &App,
    tenant: &str,
    plan: &Strict,
    input: &Value,
) -> Result<(), Problem> {
    let library = library(app, tenant).await?;
    let (plan, input) = (plan.clone(), input.clone());
    let wrong = beside(app, tenant, move || {
        let read = plan::check(&plan, Some(&library))?;
        Ok(plan::check::check_input(&read, &input))
    });
    let wrong = wrong.await?.map_err(|found: Vec<Wrong>| refusal(&found))?;
    let Some(first) = wrong.first() else { return Ok(()) };
    let found: Vec<Value> =
        wrong.iter().map(|p| serde_json::json!({"at": p.at, "says": p.what})).collect();
    let detail = format!("the input does not fit the plan: at input{}: {}", first.at, first.what);
    Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, ApiCode::SchemaViolation, detail)
        .field(format!("input{}", first.at))
        .with("violations", found)
        .fix("input_schema of the plan says what it takes"))
}

/// What is registered.
async fn library(app: &App, tenant: &str) -> Result<Library, Problem> {
    Ok(Library::of(catalogue::list(app.pipeline().store(), Some(tenant)).await?))
}

/// Looks at a plan of a tenant on a thread that serves nobody else.
async fn beside<T: Send + 'static>(
    app: &App,
    tenant: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    compute(app.pipeline().rt(), tenant, DEADLINE, work).await.ok_or_else(|| {
        let detail = format!("the plan was not checked within {} s", DEADLINE.as_secs());
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, ApiCode::PlanInvalid, detail)
            .field("plan")
            .fix("try again; split a large plan in jobs")
            .retry_after_s(1)
    })
}

fn refusal(found: &[Wrong]) -> Problem {
    let mut detail: Vec<String> = found
        .iter()
        .take(DETAILED)
        .map(|p| format!("at {}: {}", if p.at.is_empty() { "the plan" } else { &p.at }, p.what))
        .collect();
    if found.len() > DETAILED {
        detail.push(format!("and {} more", found.len() - DETAILED));
    }
    let first = found.first();
    let detail = format!("the plan can not be run: {}", detail.join("; "));
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, ApiCode::PlanInvalid, detail)
        .field(format!("plan{}", first.map_or("", |p| p.at.as_str())))
        .with("problems", serde_json::to_value(found).unwrap_or(Value::Null))
        .fix(first.map_or("see docs/plans.md", |p| p.fix.as_str()))
}

/// What a check found.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Checked {
    /// Nothing is wrong.
    ok: bool,
    /// Everything that is wrong: `at` (a JSON pointer), `wrong` (a word), `what`, `fix`.
    #[schema(value_type = Vec<Object>)]
    problems: Vec<Wrong>,
    /// Tools and flows of a plan that is fine, whose input could not be looked at: their schemas are not known. They check
    /// it themselves when they are called.
    not_checked: Vec<String>,
}

/// Looks at a plan without running it: its form, and what it refers to, against all that workers have registered for the
/// tenant. What passes here passes as a submission for the same tenant.
#[utoipa::path(
    post, path = "/v1/plans/check", tag = "jobs", request_body = Object, params(Whose),
    responses((status = 200, body = Checked))
)]
pub(super) async fn check_plan(
    State(app): State<App>,
    caller: Caller,
    Params(whose): Params<Whose>,
    super::body::Json(plan): super::body::Json<Strict>,
) -> Result<Json<Checked>, Problem> {
    caller.need(Scope::Read)?;
    let tenant = tenant(&caller, whose.tenant)?;
    let library = library(&app, &tenant).await?;
    let looked = beside(&app, &tenant, move || match plan::check(&plan, Some(&library)) {
        Ok(plan) => (Vec::new(), plan::check::unchecked(&plan, &library)),
        Err(problems) => (problems, Vec::new()),
    });
    let (problems, not_checked) = looked.await?;
    Ok(Json(Checked { ok: problems.is_empty(), problems, not_checked }))
}
