//! What a caller may do: the tenant and the scopes of the key that it presents.

use crate::{App, Caller};
use axum::Json;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(whoami))
}

/// What a caller may do.
#[derive(Serialize, ToSchema)]
struct WhoAmI {
    /// The tenant that the key is bound to; null for a key without a tenant. A local caller without a key has `default`.
    tenant: Option<String>,
    /// `admin`, `collector`, `read`, `worker`, `write`.
    scopes: Vec<&'static str>,
    /// The id of the key; null for a local caller without one.
    key: Option<String>,
}

/// The tenant and the scopes of the key that is presented. Needs no scope.
#[utoipa::path(get, path = "/v1/whoami", tag = "keys", responses(
    (status = 200, body = WhoAmI),
    (status = 401, description = "The key is not known.", body = crate::problem::ProblemDocument)
))]
async fn whoami(caller: Caller) -> Json<WhoAmI> {
    Json(WhoAmI {
        scopes: caller.scopes.iter().map(|scope| scope.as_str()).collect(),
        key: caller.key.map(|key| key.to_string()),
        tenant: caller.tenant,
    })
}
