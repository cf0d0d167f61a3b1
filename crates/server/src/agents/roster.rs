//! Agents over HTTP. An agent is named by its owner, so setting it is a `PUT`: the same body twice changes nothing the
//! second time.

use super::{
    desk,
    documents::{AgentDocument, AgentsDocument},
};
use crate::{
    App, Caller, Problem,
    extract::{Named, Params},
    jobs::{
        body::{Json, Maybe},
        catalogue::Name,
        find::who,
        owned::listed,
        submit::tenant,
    },
    keys::Scope,
    problem::ProblemDocument,
};
use axum::{extract::State, http::StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tenure_agents::{
    agent::Spec,
    view::{AgentView, agent_view},
};
use utoipa::{IntoParams, ToSchema};

/// The target of agents that name none: what workers serve that are told nothing else.
const DEFAULT_TARGET: &str = "default";

/// What an agent is.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct NewAgent {
    /// Which workers run its turns; `default` without one, which `tenure up` and `tenure worker` serve.
    target: Option<String>,
    /// The channel of turns that bring none; `agents.default_channel` without one.
    channel: Option<String>,
    /// Where its deliverables go; a box of its own name without one. Empty: nowhere, and there are none.
    output_box: Option<String>,
    /// What its worker needs to know: model, instructions, tools; see docs/agents.md.
    #[schema(value_type = Object)]
    profile: Value,
    /// Whose it is; only for callers whose key has no tenant.
    tenant: Option<String>,
    /// Who asks, for people.
    by: Option<String>,
}

/// Whose agents.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Whose {
    /// The tenant, for callers whose key has none.
    pub(super) tenant: Option<String>,
}

/// Who asks, and whose it is.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = AgentAsk)]
pub(super) struct Ask {
    /// The tenant, for callers whose key has none.
    tenant: Option<String>,
    /// Who asks, for people.
    by: Option<String>,
}

pub(super) async fn shown(app: &App, tenant: &str, name: &str) -> Result<AgentView, Problem> {
    let (head, state) = desk(app)?.agent(tenant, name).await?;
    Ok(agent_view(app.pipeline().store(), &head, state).await?)
}

/// Sets an agent, for the first time or anew. Turns that are under way keep what they began with.
#[utoipa::path(
    put, path = "/v1/agents/{name}", tag = "agents", request_body = NewAgent,
    params(("name" = String, Path, description = "Its name: letters, digits, _ and -.")),
    responses(
        (status = 200, description = "Set; or so already.", body = AgentDocument),
        (status = 413, body = ProblemDocument), (status = 422, body = ProblemDocument),
    )
)]
pub(super) async fn set(
    State(app): State<App>,
    caller: Caller,
    Named(Name(name)): Named<Name>,
    Json(new): Json<NewAgent>,
) -> Result<axum::Json<AgentView>, Problem> {
    caller.need(Scope::Write)?;
    let tenant = tenant(&caller, new.tenant)?;
    let spec = Spec {
        target: new.target.unwrap_or_else(|| DEFAULT_TARGET.to_owned()),
        channel: new.channel,
        output_box: match new.output_box.as_deref() {
            None => Some(name.clone()),
            Some("") => None,
            Some(named) => Some(named.to_owned()),
        },
        profile: new.profile,
        name: name.clone(),
    };
    desk(&app)?.set_agent(&tenant, spec, Some(who(&caller, new.by))).await?;
    Ok(axum::Json(shown(&app, &tenant, &name).await?))
}

/// One agent: where it stands, its active turn, its line, its last turns.
#[utoipa::path(
    get, path = "/v1/agents/{name}", tag = "agents",
    params(("name" = String, Path, description = "Its name."), Whose),
    responses((status = 200, body = AgentDocument), (status = 404, body = ProblemDocument))
)]
pub(super) async fn show(
    State(app): State<App>,
    caller: Caller,
    Named(Name(name)): Named<Name>,
    Params(whose): Params<Whose>,
) -> Result<axum::Json<AgentView>, Problem> {
    caller.need(Scope::Read)?;
    let tenant = tenant(&caller, whose.tenant)?;
    Ok(axum::Json(shown(&app, &tenant, &name).await?))
}

/// All agents that the caller may see, by name.
#[utoipa::path(
    get, path = "/v1/agents", tag = "agents", params(Whose),
    responses((status = 200, body = AgentsDocument))
)]
pub(super) async fn list(
    State(app): State<App>,
    caller: Caller,
    Params(whose): Params<Whose>,
) -> Result<axum::Json<Value>, Problem> {
    caller.need(Scope::Read)?;
    let mine = listed(&caller, whose.tenant)?;
    let mut agents = Vec::new();
    for (head, state) in desk(&app)?.agents(mine.as_deref()).await? {
        agents.push(agent_view(app.pipeline().store(), &head, state).await?);
    }
    Ok(axum::Json(json!({ "agents": agents })))
}

/// Removes an agent. Turns that wait for it end as failed; its active one may end as it will.
#[utoipa::path(
    delete, path = "/v1/agents/{name}", tag = "agents",
    params(("name" = String, Path, description = "Its name."), Whose),
    responses(
        (status = 204, description = "It takes no turns any more."),
        (status = 404, body = ProblemDocument), (status = 409, body = ProblemDocument),
    )
)]
pub(super) async fn remove(
    State(app): State<App>,
    caller: Caller,
    Named(Name(name)): Named<Name>,
    Params(whose): Params<Whose>,
) -> Result<StatusCode, Problem> {
    caller.need(Scope::Write)?;
    let tenant = tenant(&caller, whose.tenant)?;
    desk(&app)?.remove_agent(&tenant, &name, Some(who(&caller, None))).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Nothing is dispatched until it is resumed; turns wait in line.
#[utoipa::path(
    post, path = "/v1/agents/{name}/pause", tag = "agents", request_body = Ask,
    params(("name" = String, Path, description = "Its name.")),
    responses((status = 200, body = AgentDocument), (status = 404, body = ProblemDocument))
)]
pub(super) async fn pause(
    State(app): State<App>,
    caller: Caller,
    Named(Name(name)): Named<Name>,
    Maybe(ask): Maybe<Ask>,
) -> Result<axum::Json<AgentView>, Problem> {
    caller.need(Scope::Write)?;
    let tenant = tenant(&caller, ask.tenant)?;
    desk(&app)?.pause_agent(&tenant, &name, Some(who(&caller, ask.by))).await?;
    Ok(axum::Json(shown(&app, &tenant, &name).await?))
}

/// It goes on with whoever is next.
#[utoipa::path(
    post, path = "/v1/agents/{name}/resume", tag = "agents", request_body = Ask,
    params(("name" = String, Path, description = "Its name.")),
    responses((status = 200, body = AgentDocument), (status = 404, body = ProblemDocument))
)]
pub(super) async fn resume(
    State(app): State<App>,
    caller: Caller,
    Named(Name(name)): Named<Name>,
    Maybe(ask): Maybe<Ask>,
) -> Result<axum::Json<AgentView>, Problem> {
    caller.need(Scope::Write)?;
    let tenant = tenant(&caller, ask.tenant)?;
    desk(&app)?.resume_agent(&tenant, &name, Some(who(&caller, ask.by))).await?;
    Ok(axum::Json(shown(&app, &tenant, &name).await?))
}
