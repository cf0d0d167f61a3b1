//! Gates over HTTP: who may pass, who waits for whom.

use super::{
    body::{Json, required},
    catalogue::Name,
    documents::{GateDocument, GateSetDocument, GatesDocument},
    find::who,
    owned::{Listing, Whose, listed, operators},
    submit::{new_tenant, tenant},
};
use crate::{
    App, Caller, Problem,
    extract::{Named, Params},
    keys::Scope,
    problem::ProblemDocument,
};
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};
use tenure_jobs::gate::desk::{GateError, GateView, Gates};
use utoipa::ToSchema;

/// How many jobs may pass.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct NewGate {
    /// Jobs at once, 1 to 150. A smaller limit takes nothing away; grants wait until enough have ended.
    #[schema(required, minimum = 1, maximum = 150)]
    limit: Option<u32>,
    /// Whose gate; only for callers whose key has no tenant.
    tenant: Option<String>,
    /// Who asks, for people.
    by: Option<String>,
}

impl From<GateError> for Problem {
    fn from(e: GateError) -> Self {
        match e {
            GateError::Bad(bad) => Problem::bad_field(bad.field, bad.why).fix(
                "give a name of up to 40 letters, digits, dots and dashes, and a limit of 1 to 150",
            ),
            GateError::Absent(name) => Problem::not_found(format!("gate {name}"))
                .field("name")
                .fix("GET /v1/gates lists them; the first job that names a gate creates it"),
            e @ GateError::Operators(_) => operators(e.to_string(), "name"),
            GateError::Store(e) => e.into(),
        }
    }
}

fn gates(app: &App) -> Gates {
    Gates(app.pipeline().clone())
}

/// Says how many jobs may be past a gate at once; creates it if nobody has named it yet.
#[utoipa::path(
    put, path = "/v1/gates/{name}", tag = "gates", request_body = NewGate,
    params(("name" = String, Path, description = "Its name, within the tenant.")),
    responses((status = 200, description = "It will be so; the gate reads it at once.", body = GateSetDocument), (status = 403, description = "An operator set it.", body = ProblemDocument), (status = 422, body = ProblemDocument))
)]
pub(super) async fn set(
    State(app): State<App>,
    caller: Caller,
    Named(Name(name)): Named<Name>,
    Json(new): Json<NewGate>,
) -> Result<axum::Json<Value>, Problem> {
    caller.need(Scope::Write)?;
    let tenant = new_tenant(&caller, new.tenant)?;
    let limit = required("limit", new.limit)?;
    let by_operator = caller.tenant.is_none();
    gates(&app).set(&tenant, &name, limit, &who(&caller, new.by), by_operator).await?;
    Ok(axum::Json(json!({ "name": name, "tenant": tenant, "limit": limit })))
}

/// One gate: its limit, who has a permit, who waits.
#[utoipa::path(
    get, path = "/v1/gates/{name}", tag = "gates",
    params(("name" = String, Path, description = "Its name."), Whose),
    responses((status = 200, body = GateDocument), (status = 404, body = ProblemDocument))
)]
pub(super) async fn show(
    State(app): State<App>,
    caller: Caller,
    Named(Name(name)): Named<Name>,
    Params(query): Params<Whose>,
) -> Result<axum::Json<GateView>, Problem> {
    caller.need(Scope::Read)?;
    let tenant = tenant(&caller, query.tenant)?;
    Ok(axum::Json(gates(&app).show(&tenant, &name).await?))
}

/// Gates that the caller may see, by pages: go on with `after` while there is `next`.
#[utoipa::path(
    get, path = "/v1/gates", tag = "gates", params(Listing), responses((status = 200, body = GatesDocument))
)]
pub(super) async fn list(
    State(app): State<App>,
    caller: Caller,
    Params(query): Params<Listing>,
) -> Result<axum::Json<Value>, Problem> {
    caller.need(Scope::Read)?;
    let (after, limit) = query.page()?;
    let mine = listed(&caller, query.tenant)?;
    let (found, next) = gates(&app).page(mine.as_deref(), after, limit).await?;
    Ok(axum::Json(json!({ "gates": found, "next": next })))
}
