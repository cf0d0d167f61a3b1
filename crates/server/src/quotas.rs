//! What tenants use of their quotas.

use crate::{App, Caller, Problem, keys::Scope, problem::ProblemDocument};
use axum::{Json, extract::State};
use serde::Serialize;
use tenure_engine::quota::Usage;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list))
}

/// What tenants use.
#[derive(Serialize, ToSchema)]
struct QuotasDocument {
    /// One for each part of a quota; none where nothing is limited.
    quotas: Vec<QuotaDocument>,
}

/// What a tenant uses of one part of its quota.
#[derive(Serialize, ToSchema)]
struct QuotaDocument {
    /// Whose.
    tenant: String,
    /// `open` entities, `bytes` stored, or submissions `per_second`.
    quota: &'static str,
    /// How much; null for a speed, and before the first count.
    used: Option<u64>,
    /// How much it may be.
    limit: u64,
    /// What this server refused since it started.
    refused: u64,
}

impl From<Usage> for QuotaDocument {
    fn from(usage: Usage) -> Self {
        let Usage { tenant, part, used, limit, refused } = usage;
        QuotaDocument { tenant, quota: part.as_str(), used, limit, refused }
    }
}

/// What the caller's tenant uses of its quota; for a key without a tenant, what all tenants use.
#[utoipa::path(get, path = "/v1/quotas", tag = "keys", responses(
    (status = 200, body = QuotasDocument), (status = 403, body = ProblemDocument)
))]
async fn list(State(app): State<App>, caller: Caller) -> Result<Json<QuotasDocument>, Problem> {
    caller.need(Scope::Read)?;
    let used = match app.pipeline().quotas() {
        Some(quotas) => quotas.usage(caller.tenant.as_deref()).await?,
        None => Vec::new(),
    };
    Ok(Json(QuotasDocument { quotas: used.into_iter().map(QuotaDocument::from).collect() }))
}
