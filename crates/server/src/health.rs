//! Whether the process lives, and whether it can work. Neither needs a key.

use crate::{App, Problem};
use axum::extract::State;
use utoipa_axum::{router::OpenApiRouter, routes};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(healthz)).routes(routes!(readyz))
}

/// The process lives.
#[utoipa::path(get, path = "/healthz", responses((status = 200, description = "It does.")))]
async fn healthz() -> &'static str {
    "alive\n"
}

/// The store answers.
#[utoipa::path(
    get,
    path = "/readyz",
    responses(
        (status = 200, description = "It does."),
        (status = 503, description = "It does not.", body = crate::problem::ProblemDocument)
    )
)]
async fn readyz(State(app): State<App>) -> Result<&'static str, Problem> {
    app.pipeline().store().now().await?;
    Ok("ready\n")
}
