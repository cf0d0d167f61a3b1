//! Rate limits over HTTP. A limit is named by tool and tenant; `*` is everybody together, `*/each` each tenant by itself.

use super::{
    body::{Json, required},
    catalogue::Name,
    documents::{LimitDocument, LimitWaitingDocument, LimitsDocument},
    find::who,
    owned::{Whose, listed, operators},
    submit::{new_tenant, tenant},
};
use crate::{
    App, Caller, Problem,
    extract::{Named, Params},
    keys::Scope,
    problem::{ApiCode, ProblemDocument},
};
use axum::{extract::State, http::StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tenure_jobs::shared::limit::{
    Spec,
    desk::{LimitError, LimitView, Limits, rate},
    model::{EACH, EVERYBODY},
    waiting::Waiting,
};
use tenure_kernel::tenant::is_name;
use utoipa::ToSchema;

/// How often a tool may be called.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct NewLimit {
    /// `10/s`, `600/m`, `1000/h` or `5000/d`.
    #[schema(required)]
    rate: Option<String>,
    /// So many at once after a silence; 1 without a word.
    #[schema(minimum = 1, maximum = 1000000)]
    burst: Option<u32>,
    /// The most tokens that a worker takes at once; what a second allows without a word.
    #[schema(minimum = 1, maximum = 1000000)]
    block: Option<u32>,
    /// Whose calls; `*` for all together, `*/each` for each tenant by itself. Both need a key without a tenant.
    tenant: Option<String>,
    /// Who asks, for people.
    by: Option<String>,
}

impl From<LimitError> for Problem {
    fn from(e: LimitError) -> Self {
        match e {
            LimitError::Bad { field, why, fix } => Problem::bad_field(field, why).fix(fix),
            LimitError::Absent { tool, tenant } => {
                Problem::not_found(format!("limit for {tool} of {tenant}"))
                    .field("tool")
                    .fix("GET /v1/limits lists them")
            }
            e @ LimitError::Operators { .. } => operators(e.to_string(), "tool"),
            LimitError::Store(e) => e.into(),
        }
    }
}

fn whose(caller: &Caller, wanted: Option<String>) -> Result<String, Problem> {
    match (&caller.tenant, wanted) {
        (None, Some(each)) if each == EACH => Ok(each),
        (Some(mine), Some(all)) if all == EVERYBODY || all == EACH => {
            let detail =
                format!("the key is for the tenant {mine:?}, the limit would be everybody's");
            Err(Problem::new(StatusCode::FORBIDDEN, ApiCode::Forbidden, detail)
                .field("tenant")
                .fix("use a key without a tenant"))
        }
        // A key of an earlier version may be bound to one of these words.
        (Some(mine), _) if !is_name(mine) => {
            let detail = format!("the key is for {mine:?}, which cannot be the name of a tenant");
            Err(Problem::new(StatusCode::FORBIDDEN, ApiCode::Forbidden, detail)
                .field("Authorization")
                .fix("use a key that is bound to another tenant"))
        }
        (_, wanted) => tenant(caller, wanted),
    }
}

/// The same for a limit that is set.
fn whose_new(caller: &Caller, wanted: Option<String>) -> Result<String, Problem> {
    let whose = whose(caller, wanted)?;
    match [EVERYBODY, EACH].contains(&whose.as_str()) {
        true => Ok(whose),
        false => new_tenant(caller, Some(whose)),
    }
}

fn limits(app: &App) -> Limits {
    Limits(app.pipeline().clone())
}

/// Sets a limit, for the first time or anew. Workers know of it within a few seconds.
#[utoipa::path(
    put, path = "/v1/limits/{tool}", tag = "limits", request_body = NewLimit,
    params(("tool" = String, Path, description = "The tool.")),
    responses(
        (status = 200, body = LimitDocument),
        (status = 403, description = "An operator set it.", body = ProblemDocument),
        (status = 422, body = ProblemDocument),
    )
)]
pub(super) async fn set(
    State(app): State<App>,
    caller: Caller,
    Named(Name(tool)): Named<Name>,
    Json(new): Json<NewLimit>,
) -> Result<axum::Json<LimitView>, Problem> {
    caller.need(Scope::Write)?;
    let tenant = whose_new(&caller, new.tenant)?;
    let (count, per_ms) = rate(&required("rate", new.rate)?)?;
    let spec = Spec {
        tool: tool.clone(),
        tenant: tenant.clone(),
        count,
        per_ms,
        burst: new.burst.unwrap_or(1),
        block: new.block.unwrap_or_else(|| Spec::block_for(count, per_ms)),
        by_operator: caller.tenant.is_none(),
        from_each: None,
    };
    limits(&app).set(spec, Some(who(&caller, new.by))).await?;
    Ok(axum::Json(limits(&app).show(&tenant, &tool).await?))
}

/// One limit, and how long a call would wait.
#[utoipa::path(
    get, path = "/v1/limits/{tool}", tag = "limits",
    params(("tool" = String, Path, description = "The tool."), Whose),
    responses((status = 200, body = LimitDocument), (status = 404, body = ProblemDocument))
)]
pub(super) async fn show(
    State(app): State<App>,
    caller: Caller,
    Named(Name(tool)): Named<Name>,
    Params(query): Params<Whose>,
) -> Result<axum::Json<LimitView>, Problem> {
    caller.need(Scope::Read)?;
    let tenant = match query.tenant.as_deref() {
        // What holds everybody back is everybody's to see.
        Some(all @ (EVERYBODY | EACH)) => all.to_owned(),
        _ => tenant(&caller, query.tenant)?,
    };
    Ok(axum::Json(limits(&app).show(&tenant, &tool).await?))
}

/// All limits that hold the caller's calls back.
#[utoipa::path(
    get, path = "/v1/limits", tag = "limits", params(Whose), responses((status = 200, body = LimitsDocument))
)]
pub(super) async fn list(
    State(app): State<App>,
    caller: Caller,
    Params(query): Params<Whose>,
) -> Result<axum::Json<Value>, Problem> {
    caller.need(Scope::Read)?;
    let mine = listed(&caller, query.tenant)?;
    Ok(axum::Json(json!({ "limits": limits(&app).list(mine.as_deref()).await? })))
}

/// Who waits for the limits of a tool: of the caller's tenant, or of all.
#[utoipa::path(
    get, path = "/v1/limits/{tool}/waiting", tag = "limits",
    params(("tool" = String, Path, description = "The tool."), Whose),
    responses((status = 200, body = LimitWaitingDocument))
)]
pub(super) async fn waiting(
    State(app): State<App>,
    caller: Caller,
    Named(Name(tool)): Named<Name>,
    Params(query): Params<Whose>,
) -> Result<axum::Json<Waiting>, Problem> {
    caller.need(Scope::Read)?;
    // Whoever may see the limits for all of them sees who waits at these, as far as it sees jobs.
    let asked = query.tenant.filter(|t| t != EVERYBODY && t != EACH);
    let mine = listed(&caller, asked)?;
    Ok(axum::Json(limits(&app).waiting(mine.as_deref(), &tool).await?))
}

/// Removes a limit.
#[utoipa::path(
    delete, path = "/v1/limits/{tool}", tag = "limits",
    params(("tool" = String, Path, description = "The tool."), Whose),
    responses((status = 204, description = "It is gone."), (status = 404, body = ProblemDocument))
)]
pub(super) async fn remove(
    State(app): State<App>,
    caller: Caller,
    Named(Name(tool)): Named<Name>,
    Params(query): Params<Whose>,
) -> Result<StatusCode, Problem> {
    caller.need(Scope::Write)?;
    let tenant = whose(&caller, query.tenant)?;
    let by = Some(who(&caller, None));
    limits(&app).remove(&tenant, &tool, by, caller.tenant.is_none()).await?;
    Ok(StatusCode::NO_CONTENT)
}
