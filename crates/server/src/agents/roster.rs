//! Agents over HTTP. An agent is named by its owner, so setting it is a `PUT`: the same body twice changes nothing the
//! second time.

use super::{
    desk,
    documents::{AgentDocument, AgentsDocument, SetAgentDocument},
};
use crate::{
    App, Caller, Problem,
    extract::{Named, Params},
    jobs::{
        body::{Json, Maybe},
        catalogue::Name,
        find::who,
        owned::listed,
        submit::{new_tenant, tenant},
    },
    keys::Scope,
    paging::{LIMIT_MAX, id, limit, page},
    problem::ProblemDocument,
    turns::tools::missing,
};
use axum::{extract::State, http::StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tenure_agents::{
    agent::{Agent, Spec},
    desk::agents::listing,
    drive::{
        load::agent,
        profile::{self, Run},
    },
    view::{AgentView, agent_view},
};
use tenure_kernel::{
    error::StoreError, head::Head, ids::EntityId, machine::decode_state, store::HeadFilter,
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
    /// What is not named stays as it is, where the agent is there already. Without it this is all there is to say.
    keep: bool,
    /// Whose it is; only for callers whose key has no tenant.
    tenant: Option<String>,
    /// Who asks, for people.
    by: Option<String>,
}

/// Whose agents.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Whose {
    /// The tenant, for callers whose key has none.
    pub(crate) tenant: Option<String>,
}

/// Who asks, and whose it is.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = AgentAsk)]
pub(crate) struct Ask {
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
        (status = 200, description = "Set; or so already.", body = SetAgentDocument),
        (status = 413, body = ProblemDocument), (status = 422, body = ProblemDocument),
    )
)]
pub(super) async fn set(
    State(app): State<App>,
    caller: Caller,
    Named(Name(name)): Named<Name>,
    Json(new): Json<NewAgent>,
) -> Result<axum::Json<SetAnswer>, Problem> {
    caller.need(Scope::Write)?;
    let tenant = new_tenant(&caller, new.tenant)?;
    let was = match new.keep {
        true => agent(app.pipeline().store(), &tenant, &name).await?.map(|a| a.spec),
        false => None,
    };
    let was = was.unwrap_or_else(|| Spec {
        name: name.clone(),
        target: DEFAULT_TARGET.to_owned(),
        output_box: Some(name.clone()),
        ..Spec::default()
    });
    let spec = Spec {
        target: new.target.unwrap_or(was.target),
        channel: new.channel.or(was.channel),
        output_box: match new.output_box.as_deref() {
            None => was.output_box,
            Some("") => None,
            Some(named) => Some(named.to_owned()),
        },
        profile: if new.profile.is_null() { was.profile } else { new.profile },
        name: name.clone(),
    };
    let profile = spec.profile.clone();
    desk(&app)?.set_agent(&tenant, spec, Some(who(&caller, new.by))).await?;
    let warnings = warnings(&app, &tenant, &profile).await?;
    Ok(axum::Json(SetAnswer { agent: shown(&app, &tenant, &name).await?, warnings }))
}

/// An agent as it was set, and what will not work as things are.
#[derive(Debug, Serialize)]
pub(super) struct SetAnswer {
    #[serde(flatten)]
    agent: AgentView,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// What a profile names that is not there, each with its place. It may be set before the worker or the agent that it names, so
/// this refuses nothing; a model that calls such a tool is told the same at once.
async fn warnings(app: &App, tenant: &str, profile: &Value) -> Result<Vec<String>, Problem> {
    let store = app.pipeline().store();
    // It was judged when it was set.
    let Ok(profile) = profile::recorded(profile) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    let mut named = Vec::new();
    for (n, tool) in profile.tools.iter().enumerate() {
        match &tool.run {
            Run::Agent(other) => named.push((format!("tools[{n}].run"), other)),
            run => {
                let wrong = missing(store, tenant, run).await?;
                found.extend(wrong.map(|w| format!("tools[{n}].run: {}", w.message)));
            }
        }
    }
    let others = profile.delegates.iter().enumerate().filter(|(_, d)| *d != "*");
    named.extend(others.map(|(n, other)| (format!("delegates[{n}]"), other)));
    for (place, other) in named {
        if agent(store, tenant, other).await?.is_none() {
            found.push(format!("{place}: there is no agent {other:?}"));
        }
    }
    Ok(found)
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

/// Which agents.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(super) struct Which {
    /// Those that were removed, too.
    removed: Option<bool>,
    /// Where the page before ended: its `next`.
    after: Option<String>,
    /// How many, 1 to 200; 50 without it.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
    /// The tenant, for callers whose key has none.
    tenant: Option<String>,
}

/// Up to so many agents that somebody may see, by name within the page, and where the next page begins.
pub(crate) async fn some(
    app: &App,
    filter: HeadFilter,
    limit: usize,
) -> Result<(Vec<AgentView>, Option<EntityId>), Problem> {
    let store = app.pipeline().store();
    let fetch = |filter| store.heads(filter, LIMIT_MAX);
    let read = |head: Head| {
        let state = decode_state::<Agent>(&head.state);
        Ok(Some((head, state.map_err(|e| StoreError::Corrupt(e.to_string()))?)))
    };
    let (found, next) = page(filter, limit, fetch, read).await?;
    let mut agents = Vec::with_capacity(found.len());
    for (head, mut state) in found {
        // A list has no profiles: large ones are not read.
        state.profile_at = None;
        agents.push(AgentView { profile: None, ..agent_view(store, &head, state).await? });
    }
    agents.sort_by(|a, b| (&a.tenant, &a.name).cmp(&(&b.tenant, &b.name)));
    Ok((agents, next))
}

/// Agents that the caller may see, by pages, without their profiles. A page may be short and not be the last: go on while
/// there is `next`.
#[utoipa::path(
    get, path = "/v1/agents", tag = "agents", params(Which),
    responses((status = 200, body = AgentsDocument), (status = 400, body = ProblemDocument))
)]
pub(super) async fn list(
    State(app): State<App>,
    caller: Caller,
    Params(which): Params<Which>,
) -> Result<axum::Json<Value>, Problem> {
    caller.need(Scope::Read)?;
    let mine = listed(&caller, which.tenant)?;
    let after = id(
        "after",
        which.after.as_deref(),
        "use next of the page before, exactly as it was given",
    )?;
    let filter = listing(mine, which.removed == Some(true), after);
    let (agents, next) = some(&app, filter, limit(which.limit)?).await?;
    Ok(axum::Json(json!({ "agents": agents, "next": next })))
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
pub(crate) async fn remove(
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
pub(crate) async fn pause(
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
pub(crate) async fn resume(
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
