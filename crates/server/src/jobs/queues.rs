//! The ready queues over HTTP: what waits where, and who serves it.

use super::{documents::QueuesDocument, owned::listed};
use crate::{App, Caller, Problem, extract::Params, keys::Scope};
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};
use tenure_jobs::view::queues;
use utoipa::IntoParams;

/// Which queues.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Which {
    /// Only the one of this whole name: `flow@version`, then `/queue` and `+label`.
    queue: Option<String>,
    /// Only jobs of this tenant; only for callers whose key has none.
    tenant: Option<String>,
}

/// Queues with jobs that wait for a worker, or with a worker that serves them. `workers` is 0 where nobody does, and not
/// there where there are too many to look at.
#[utoipa::path(
    get, path = "/v1/queues", tag = "jobs", params(Which), responses((status = 200, body = QueuesDocument))
)]
pub(super) async fn list(
    State(app): State<App>,
    caller: Caller,
    Params(which): Params<Which>,
) -> Result<axum::Json<Value>, Problem> {
    caller.need(Scope::Read)?;
    let mine = listed(&caller, which.tenant)?;
    let store = app.pipeline().store();
    let found = queues(store, mine.as_deref(), which.queue.as_deref()).await?;
    Ok(axum::Json(json!({ "queues": found.queues, "complete": found.complete })))
}
