//! The dry run of the watchdog: what the rules would do to open turns and their agents, now and next.

use super::{
    desk,
    documents::DryRunDocument,
    turns::{readable, statuses},
};
use crate::{
    App, Caller, Problem,
    extract::Params,
    jobs::{owned::listed, submit::tenant},
    keys::Scope,
    paging::{limit, newest},
    problem::ProblemDocument,
};
use axum::{Json, extract::State};
use serde::Deserialize;
use serde_json::{Value, json};
use tenure_agents::{turn::Turn, view::forecast};
use tenure_kernel::{head::Head, ids::EntityId, store::HeadFilter};
use utoipa::IntoParams;

/// Whom to look at.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(super) struct Which {
    /// Only this turn.
    turn: Option<String>,
    /// Only this agent and its active turn.
    agent: Option<String>,
    /// Only what would happen now.
    now: Option<bool>,
    /// How many turns, 1 to 200; 50 without it.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
    /// The tenant, for callers whose key has none.
    tenant: Option<String>,
}

/// What the rules would do if nobody acts: asked of the machines on a copy, nothing is written.
#[utoipa::path(
    get, path = "/v1/watchdog", tag = "agents", params(Which),
    responses((status = 200, body = DryRunDocument), (status = 404, body = ProblemDocument))
)]
pub(super) async fn dry_run(
    State(app): State<App>,
    caller: Caller,
    Params(which): Params<Which>,
) -> Result<Json<Value>, Problem> {
    caller.need(Scope::Read)?;
    let (heads, more) = heads(&app, &caller, &which).await?;
    let now = app.pipeline().store().now().await?;
    let mut found: Vec<_> = heads.iter().flat_map(|h| forecast(h, now)).collect();
    found.retain(|f| which.now != Some(true) || f.now);
    found.sort_by_key(|f| f.at.unwrap_or(tenure_kernel::time::Timestamp::MAX));
    Ok(Json(json!({ "now": now, "looked_at": heads.len(), "more": more, "would": found })))
}

async fn heads(app: &App, caller: &Caller, which: &Which) -> Result<(Vec<Head>, bool), Problem> {
    if let Some(text) = &which.turn {
        let id: EntityId = text.parse().map_err(|e| {
            Problem::bad_field("turn", format!("{text:?} is no id: {e}"))
                .fix("use the id exactly as this API gave it")
        })?;
        return Ok((vec![readable(app, caller, id).await?], false));
    }
    if let Some(name) = &which.agent {
        let tenant = tenant(caller, which.tenant.clone())?;
        let (head, state) = desk(app)?.agent(&tenant, name).await?;
        let mut heads = vec![head];
        if let Some(active) = state.active {
            heads.extend(app.pipeline().store().head(active.turn).await?);
        }
        return Ok((heads, false));
    }
    let mine = listed(caller, which.tenant.clone())?;
    let filter =
        HeadFilter { tenant: mine, statuses: statuses(Some("open"))?, ..HeadFilter::default() };
    let (turns, next) = newest::<Turn>(app, filter, limit(which.limit)?, |_| true).await?;
    Ok((turns.into_iter().map(|(head, _)| head).collect(), next.is_some()))
}
