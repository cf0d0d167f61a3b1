//! Turns, as people read them. Nothing here writes.

use super::{
    desk,
    documents::{
        DeliverableDocument, TurnAnswerDocument, TurnPageDocument, TurnTimelineDocument,
        TurnWhyDocument,
    },
};
use crate::{
    App, Caller, Problem,
    extract::{Named, Params},
    jobs::{
        events::{Stretch, answer},
        owned::listed,
        submit::Waiting,
        wait::until_over,
    },
    keys::Scope,
    paging::{bad, between, end, ends, limit, newest_where},
    problem::ProblemDocument,
};
use axum::{Json, extract::State, http::HeaderMap, response::Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::Duration;
use tenure_agents::{
    turn::{Turn, model::TurnEnd},
    view::{self, TurnDetail, TurnView, detail::end_of, turn_view},
};
use tenure_kernel::{
    head::Head, ids::EntityId, machine::Machine as _, store::HeadFilter, table::Class,
};
use utoipa::IntoParams;

/// A turn with the sentence about it, and its end.
#[derive(Serialize)]
pub(super) struct TurnAnswer {
    #[serde(flatten)]
    turn: TurnView,
    why: String,
    /// Deliverable, error and the record of a forced end; only of a turn that is over.
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<TurnEnd>,
    #[serde(skip_serializing_if = "Option::is_none")]
    existed: Option<bool>,
}

impl TurnAnswer {
    async fn of(app: &App, head: &Head) -> Result<Self, Problem> {
        let store = app.pipeline().store();
        let turn = turn_view(store, head).await?;
        let why = view::why(&turn, store.now().await?);
        let end = match turn.is_final {
            true => end_of(store, head.id).await?,
            false => None,
        };
        Ok(TurnAnswer { turn, why, end, existed: None })
    }

    /// As it is now.
    pub(super) async fn now(
        app: &App,
        tenant: Option<&str>,
        id: EntityId,
    ) -> Result<Self, Problem> {
        let (head, _) = desk(app)?.turn(tenant, id).await?;
        Self::of(app, &head).await
    }

    /// When it is over, or when the time is up or the server stops.
    pub(super) async fn at_its_end(
        app: &App,
        tenant: Option<&str>,
        id: EntityId,
        wait: Duration,
    ) -> Result<Self, Problem> {
        let look = || async { Ok(desk(app)?.turn(tenant, id).await?.0) };
        Self::of(app, &until_over(app, wait, look).await?).await
    }

    pub(super) fn is_final(&self) -> bool {
        self.turn.is_final
    }

    pub(super) fn existed(mut self, existed: bool) -> Self {
        self.existed = Some(existed);
        self
    }
}

/// The head of a turn that the caller may look at.
pub(super) async fn readable(app: &App, caller: &Caller, id: EntityId) -> Result<Head, Problem> {
    caller.need(Scope::Read)?;
    Ok(desk(app)?.turn(caller.tenant.as_deref(), id).await?.0)
}

async fn whole(app: &App, caller: &Caller, id: EntityId) -> Result<TurnDetail, Problem> {
    let head = readable(app, caller, id).await?;
    Ok(view::detail(app.pipeline().store(), &head).await?)
}

/// Which turns.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(super) struct Which {
    /// Only of this agent.
    agent: Option<String>,
    /// Only in these statuses, with commas between them: queued, dispatched, running, suspended, success, partial,
    /// failed, timeout, canceled; `open` for those that are not over.
    status: Option<String>,
    /// Only those with dead letters that nobody has dealt with.
    dead: Option<bool>,
    /// Only those whose id begins so.
    id: Option<String>,
    /// Only those whose id ends so.
    id_end: Option<String>,
    /// Where the page before ended: its `next`.
    before: Option<String>,
    /// How many, 1 to 200; 50 without it.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
    /// The tenant, for callers whose key has none.
    tenant: Option<String>,
}

/// `ready` is `running` without a worker.
pub(super) fn statuses(text: Option<&str>) -> Result<Vec<String>, Problem> {
    const OPEN: [&str; 5] = ["queued", "dispatched", "running", "ready", "suspended"];
    let known: Vec<&str> =
        Turn::TABLE.statuses.iter().map(|s| s.name).filter(|s| *s != "ready").collect();
    let words = text.unwrap_or("").split(',').map(str::trim).filter(|w| !w.is_empty());
    let mut found = Vec::new();
    for word in words {
        match word {
            "open" => found.extend(OPEN.map(str::to_owned)),
            "running" => found.extend(["running", "ready"].map(str::to_owned)),
            word if known.contains(&word) => found.push(word.to_owned()),
            word => {
                let detail = format!("status = {word:?}: there are open, {}", known.join(", "));
                return Err(bad("status", detail, "use one of these, or several with commas")
                    .with("known", known));
            }
        }
    }
    Ok(found)
}

/// Turns, the newest first. A page may be short and not be the last: go on while there is `next`.
#[utoipa::path(
    get, path = "/v1/turns", tag = "agents", params(Which),
    responses((status = 200, body = TurnPageDocument), (status = 400, body = ProblemDocument))
)]
pub(super) async fn list(
    State(app): State<App>,
    caller: Caller,
    Params(which): Params<Which>,
) -> Result<Json<Value>, Problem> {
    caller.need(Scope::Read)?;
    let limit = limit(which.limit)?;
    let (after, before) = between(which.id.as_deref(), which.before.as_deref())?;
    let end = end(which.id_end.as_deref())?;
    let filter = HeadFilter {
        statuses: statuses(which.status.as_deref())?,
        tenant: listed(&caller, which.tenant)?,
        after,
        before,
        ..HeadFilter::default()
    };
    let (agent, dead) = (which.agent, which.dead == Some(true));
    let (heads, next) = newest_where::<Turn>(&app, filter, limit, |head, state| {
        agent.as_ref().is_none_or(|a| state.agent_name == *a)
            && (!dead || state.dead > 0)
            && ends(head.id, end.as_ref())
    })
    .await?;
    let store = app.pipeline().store();
    let (mut turns, now) = (Vec::with_capacity(heads.len()), store.now().await?);
    for (head, _) in &heads {
        let turn = turn_view(store, head).await?;
        if dead && turn.dead_letters == 0 {
            continue;
        }
        let why = view::why(&turn, now);
        turns.push(TurnAnswer { turn, why, end: None, existed: None });
    }
    Ok(Json(json!({ "turns": turns, "next": next })))
}

/// Where a turn stands.
#[utoipa::path(
    get, path = "/v1/turns/{id}", tag = "agents",
    params(("id" = String, Path, description = "The turn."), Waiting),
    responses((status = 200, body = TurnAnswerDocument), (status = 404, body = ProblemDocument))
)]
pub(super) async fn show(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
    Params(waiting): Params<Waiting>,
) -> Result<Json<TurnAnswer>, Problem> {
    caller.need(Scope::Read)?;
    let tenant = caller.tenant.as_deref();
    let answer = match waiting.duration()? {
        Some(wait) => TurnAnswer::at_its_end(&app, tenant, id, wait).await?,
        None => TurnAnswer::now(&app, tenant, id).await?,
    };
    Ok(Json(answer))
}

/// Why it is where it is, and what moves it, in one sentence.
#[utoipa::path(
    get, path = "/v1/turns/{id}/why", tag = "agents",
    params(("id" = String, Path, description = "The turn.")),
    responses((status = 200, body = TurnWhyDocument), (status = 404, body = ProblemDocument))
)]
pub(super) async fn why(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
) -> Result<Json<Value>, Problem> {
    readable(&app, &caller, id).await?;
    let answer = TurnAnswer::now(&app, caller.tenant.as_deref(), id).await?;
    Ok(Json(json!({ "id": id, "status": answer.turn.status, "why": answer.why })))
}

/// A turn's steps, tool calls and what happened, in order.
#[derive(Serialize)]
pub(super) struct Told {
    #[serde(flatten)]
    whole: TurnDetail,
    why: String,
}

/// What was said, the steps with their tool calls, and everything that happened, in order.
#[utoipa::path(
    get, path = "/v1/turns/{id}/timeline", tag = "agents",
    params(("id" = String, Path, description = "The turn.")),
    responses((status = 200, body = TurnTimelineDocument), (status = 404, body = ProblemDocument))
)]
pub(super) async fn timeline(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
) -> Result<Json<Told>, Problem> {
    let whole = whole(&app, &caller, id).await?;
    let why = view::why(&whole.turn, app.pipeline().store().now().await?);
    Ok(Json(Told { whole, why }))
}

/// What the turn delivered.
#[utoipa::path(
    get, path = "/v1/turns/{id}/deliverable", tag = "agents",
    params(("id" = String, Path, description = "The turn.")),
    responses(
        (status = 200, description = "`card_id`, `output_box`, `fallback`, `content`.", body = DeliverableDocument),
        (status = 404, description = "No such turn; or it has no output box.", body = ProblemDocument),
        (status = 409, description = "It is not over.", body = ProblemDocument),
    )
)]
pub(super) async fn deliverable(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
) -> Result<Json<Value>, Problem> {
    let head = readable(&app, &caller, id).await?;
    let Some(end) = end_of(app.pipeline().store(), id).await? else {
        let status = head.status.name();
        if head.class() == Class::Final {
            // The engine ended it over its machine: nothing of its own was said.
            return Err(Problem::not_found(format!(
                "deliverable of turn {id}: it was ended by force ({status}) and delivered nothing"
            ))
            .field("id")
            .fix("GET /v1/turns/{id}/events shows the end and its reason"));
        }
        let detail = format!("turn {id} is {status}: it has delivered nothing yet");
        let code = crate::ApiCode::NotNow;
        return Err(Problem::new(axum::http::StatusCode::CONFLICT, code, detail)
            .field("id")
            .fix("GET /v1/turns/{id}?wait=60 answers when it is over"));
    };
    match end.deliverable {
        Some(deliverable) => Ok(Json(json!(deliverable))),
        None => {
            let why = end.no_deliverable.unwrap_or_else(|| "it has no output box".to_owned());
            Err(Problem::not_found(format!("deliverable of turn {id}: {why}"))
                .field("id")
                .fix("give the agent or the turn an output_box"))
        }
    }
}

fn absent(id: EntityId) -> Problem {
    Problem::not_found(format!("turn {id}")).field("id")
}

/// The events of a turn, by pages. With `Accept: text/event-stream` they come live.
#[utoipa::path(
    get, path = "/v1/turns/{id}/events", tag = "agents",
    params(
        ("id" = String, Path, description = "The turn."), Stretch,
        ("Last-Event-ID" = Option<u64>, Header, description = "Of a live stream: go on behind this version.")
    ),
    responses((status = 200, body = crate::jobs::documents::EventsDocument), (status = 404, body = ProblemDocument))
)]
pub(super) async fn events(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
    Params(stretch): Params<Stretch>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let head = readable(&app, &caller, id).await?;
    answer::<Turn>(app, absent, &head, &stretch, &headers, false).await
}

/// The events of a turn as they come (server-sent events); the stream ends with the turn.
#[utoipa::path(
    get, path = "/v1/turns/{id}/watch", tag = "agents",
    params(
        ("id" = String, Path, description = "The turn."), Stretch,
        ("Last-Event-ID" = Option<u64>, Header, description = "Go on behind this version.")
    ),
    responses((status = 200, description = "`text/event-stream`"), (status = 404, body = ProblemDocument))
)]
pub(super) async fn watch(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
    Params(stretch): Params<Stretch>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let head = readable(&app, &caller, id).await?;
    answer::<Turn>(app, absent, &head, &stretch, &headers, true).await
}
