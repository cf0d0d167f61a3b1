//! What the retries of a tenant may cost together.

use super::{
    desk,
    documents::{TaskBudgetDocument, TaskBudgetsDocument},
};
use crate::{
    ApiCode, App, Caller, Problem,
    extract::Named,
    jobs::{
        body::Json,
        catalogue::Name,
        find::who,
        submit::{new_tenant, tenant},
    },
    keys::Scope,
    problem::ProblemDocument,
};
use axum::{extract::State, http::StatusCode};
use serde::{Deserialize, Serialize};
use tenure_pods::{budget::BudgetTerms, desk::BudgetView};
use utoipa::ToSchema;

/// Budgets.
#[derive(Serialize)]
pub(super) struct Budgets {
    budgets: Vec<BudgetView>,
}

/// The budgets that tasks have asked so far, by tenant.
#[utoipa::path(
    get, path = "/v1/tasks/budgets", tag = "tasks",
    responses((status = 200, body = TaskBudgetsDocument))
)]
pub(super) async fn list(
    State(app): State<App>,
    caller: Caller,
) -> Result<axum::Json<Budgets>, Problem> {
    caller.need(Scope::Read)?;
    let budgets = desk(&app)?.budgets(caller.tenant.as_deref()).await?;
    Ok(axum::Json(Budgets { budgets }))
}

/// The budget of a tenant: what it may, what is used, and how often a retry was put off.
#[utoipa::path(
    get, path = "/v1/tasks/budgets/{tenant}", tag = "tasks",
    params(("tenant" = String, Path, description = "The tenant.")),
    responses((status = 200, body = TaskBudgetDocument), (status = 403, body = ProblemDocument))
)]
pub(super) async fn show(
    State(app): State<App>,
    caller: Caller,
    Named(Name(of)): Named<Name>,
) -> Result<axum::Json<BudgetView>, Problem> {
    caller.need(Scope::Read)?;
    let of = tenant(&caller, Some(of))?;
    Ok(axum::Json(desk(&app)?.budget(&of).await?))
}

/// What a tenant may; a field that is left out stays as it is.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TaskBudgetTerms {
    /// Retries that may start in a minute.
    #[schema(minimum = 1, maximum = 600000)]
    per_minute: Option<u32>,
    /// How many of them at once, after a quiet time.
    #[schema(minimum = 1, maximum = 600000)]
    burst: Option<u32>,
    /// Retried attempts under way at once.
    #[schema(minimum = 1, maximum = 200)]
    in_flight: Option<u32>,
    /// Who says so, for people.
    by: Option<String>,
}

/// A tenant does not raise its own budget.
fn above_tenants(caller: &Caller, of: String) -> Result<String, Problem> {
    caller.need(Scope::Admin)?;
    if caller.tenant.is_some() {
        let detail = "a budget protects others from the tenant, and this key is the tenant's";
        return Err(Problem::new(StatusCode::FORBIDDEN, ApiCode::Forbidden, detail)
            .field("Authorization")
            .fix("use a key without a tenant and with the scope admin"));
    }
    tenant(caller, Some(of))
}

/// Says what the retries of a tenant may cost. It counts before the server's settings, from the next retry on. Needs the
/// scope `admin`: a budget protects others from the tenant.
#[utoipa::path(
    put, path = "/v1/tasks/budgets/{tenant}", tag = "tasks", request_body = TaskBudgetTerms,
    params(("tenant" = String, Path, description = "The tenant.")),
    responses(
        (status = 200, body = TaskBudgetDocument),
        (status = 403, body = ProblemDocument), (status = 422, body = ProblemDocument),
    )
)]
pub(crate) async fn set(
    State(app): State<App>,
    caller: Caller,
    Named(Name(of)): Named<Name>,
    Json(new): Json<TaskBudgetTerms>,
) -> Result<axum::Json<BudgetView>, Problem> {
    let of = new_tenant(&caller, Some(above_tenants(&caller, of)?))?;
    let desk = desk(&app)?;
    let now = desk.budget(&of).await?;
    let terms = BudgetTerms {
        per_minute: new.per_minute.unwrap_or(now.per_minute),
        burst: new.burst.unwrap_or(now.burst),
        in_flight: new.in_flight.unwrap_or(now.in_flight_max),
    };
    Ok(axum::Json(desk.set_budget(&of, terms, who(&caller, new.by)).await?))
}

/// From the next retry on the budget is what the server's settings say.
#[utoipa::path(
    delete, path = "/v1/tasks/budgets/{tenant}", tag = "tasks",
    params(("tenant" = String, Path, description = "The tenant.")),
    responses((status = 200, body = TaskBudgetDocument), (status = 403, body = ProblemDocument))
)]
pub(super) async fn clear(
    State(app): State<App>,
    caller: Caller,
    Named(Name(of)): Named<Name>,
) -> Result<axum::Json<BudgetView>, Problem> {
    let of = above_tenants(&caller, of)?;
    Ok(axum::Json(desk(&app)?.clear_budget(&of).await?))
}
