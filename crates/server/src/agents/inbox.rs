//! Inboxes: what came for whom, where it stands, and what to do about dead letters.

use super::{
    asks::answered,
    desk,
    documents::{AgentInboxDocument, InboxPageDocument, TurnAskDocument, TurnInboxDocument},
    roster::shown,
    turns::readable,
};
use crate::{
    App, Caller, Problem,
    extract::{Named, Params},
    jobs::{
        body::{JobAnd, Maybe},
        catalogue::Name,
        find::who,
        owned::listed,
        submit::tenant,
    },
    keys::Scope,
    paging::{LIMIT_MAX, bad, cursor, limit, newest},
    problem::ProblemDocument,
};
use axum::{Json, extract::State, response::Response};
use serde::Deserialize;
use serde_json::{Value, json};
use tenure_agents::{
    desk::letters::Requeue,
    turn::{Turn, TurnState},
    view::{
        Item, ItemStatus,
        inbox::{items, whole},
    },
};
use tenure_kernel::{head::Head, ids::EntityId, store::HeadFilter};
use utoipa::{IntoParams, ToSchema};

/// Which items.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(super) struct Which {
    /// Only in these statuses, with commas between them: queued, pending, processing, consumed, error, requeued, skipped.
    status: Option<String>,
    /// Where the page before ended: its `next`.
    before: Option<String>,
    /// Of how many turns, 1 to 200; 50 without it.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
    /// The tenant, for callers whose key has none.
    tenant: Option<String>,
}

fn wanted(text: Option<&str>) -> Result<Vec<ItemStatus>, Problem> {
    let words = text.unwrap_or("").split(',').map(str::trim).filter(|w| !w.is_empty());
    let find = |word: &str| {
        ItemStatus::ALL.into_iter().find(|s| s.name() == word).ok_or_else(|| {
            let known = ItemStatus::ALL.map(ItemStatus::name);
            let detail = format!("status = {word:?}: there are {}", known.join(", "));
            bad("status", detail, "use one of these, or several with commas")
        })
    };
    words.map(find).collect()
}

/// The items of a turn, itself among them.
async fn gather(app: &App, head: &Head, wanted: &[ItemStatus]) -> Result<Vec<Item>, Problem> {
    let store = app.pipeline().store();
    let mut found = whole(store, head).await?;
    found.retain(|i| wanted.is_empty() || wanted.contains(&i.status));
    Ok(found)
}

/// The inbox of an agent: its active turn, those in line, and the last that ended, with everything that came for them.
#[utoipa::path(
    get, path = "/v1/agents/{name}/inbox", tag = "agents",
    params(("name" = String, Path, description = "The agent."), Which),
    responses((status = 200, body = AgentInboxDocument), (status = 404, body = ProblemDocument))
)]
pub(super) async fn of_agent(
    State(app): State<App>,
    caller: Caller,
    Named(Name(name)): Named<Name>,
    Params(which): Params<Which>,
) -> Result<Json<Value>, Problem> {
    caller.need(Scope::Read)?;
    let wanted = wanted(which.status.as_deref())?;
    let tenant = tenant(&caller, which.tenant)?;
    let agent = shown(&app, &tenant, &name).await?;
    let turns = agent.active.iter().map(|t| t.id);
    let turns = turns.chain(agent.queue.iter().map(|q| q.turn));
    let turns = turns.chain(agent.recent.iter().map(|p| p.turn)).take(limit(which.limit)?);
    let mut found = Vec::new();
    for turn in turns {
        if let Some(head) = app.pipeline().store().head(turn).await? {
            found.extend(gather(&app, &head, &wanted).await?);
        }
    }
    Ok(Json(json!({ "agent": name, "items": found })))
}

/// The items of all turns, the newest turn first. `status=error` are the dead letters that wait for a person.
#[utoipa::path(
    get, path = "/v1/inbox", tag = "agents", params(Which),
    responses((status = 200, body = InboxPageDocument), (status = 400, body = ProblemDocument))
)]
pub(super) async fn all(
    State(app): State<App>,
    caller: Caller,
    Params(which): Params<Which>,
) -> Result<Json<Value>, Problem> {
    caller.need(Scope::Read)?;
    let wanted = wanted(which.status.as_deref())?;
    let mine = listed(&caller, which.tenant)?;
    let only_open = !wanted.is_empty()
        && wanted.iter().all(|s| {
            matches!(s, ItemStatus::Queued | ItemStatus::Pending | ItemStatus::Processing)
        });
    let filter = HeadFilter {
        tenant: mine,
        statuses: match only_open {
            true => super::turns::statuses(Some("open"))?,
            false => Vec::new(),
        },
        before: cursor(which.before.as_deref())?,
        ..HeadFilter::default()
    };
    let limit = limit(which.limit)?;
    let (found, next) = match wanted == [ItemStatus::Error] {
        true => dead_letters(&app, filter, limit).await?,
        false => {
            let (turns, next) = newest::<Turn>(&app, filter, limit, |_| true).await?;
            let mut found = Vec::new();
            for (head, _) in turns {
                found.extend(gather(&app, &head, &wanted).await?);
            }
            (found, next)
        }
    };
    Ok(Json(json!({ "items": found, "next": next })))
}

/// Turns that one answer looks at in search of dead letters.
const LOOKED_AT_MAX: usize = 5_000;

/// The dead letters of so many turns. They are counted in the head, so no stream is read in vain. What came after the end is
/// evidence, of which a final head does not know: that is a look for every turn that is over. A turn that failed before it
/// began is not among them: nobody can put it aside, and `GET /v1/turns?status=timeout,failed` lists those. A page may be
/// short and not be the last.
async fn dead_letters(
    app: &App,
    mut filter: HeadFilter,
    limit: usize,
) -> Result<(Vec<Item>, Option<EntityId>), Problem> {
    let store = app.pipeline().store();
    let (mut found, mut turns, mut looked) = (Vec::new(), 0, 0);
    loop {
        let may = |state: &TurnState| state.dead > 0 || state.outcome.is_some();
        let (heads, next) = newest::<Turn>(app, filter.clone(), LIMIT_MAX, may).await?;
        for (head, state) in heads {
            looked += 1;
            if state.dead == 0 && store.evidence(head.id).await?.is_empty() {
                continue;
            }
            let mut items = items(store, &head).await?;
            items.retain(|i| i.status == ItemStatus::Error);
            turns += usize::from(!items.is_empty());
            found.extend(items);
            if turns == limit {
                return Ok((found, Some(head.id)));
            }
        }
        match next {
            Some(next) if looked < LOOKED_AT_MAX => filter.before = Some(next),
            next => return Ok((found, next)),
        }
    }
}

/// Everything that came for a turn.
#[utoipa::path(
    get, path = "/v1/turns/{id}/inbox", tag = "agents",
    params(("id" = String, Path, description = "The turn."), Which),
    responses((status = 200, body = TurnInboxDocument), (status = 404, body = ProblemDocument))
)]
pub(super) async fn of_turn(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
    Params(which): Params<Which>,
) -> Result<Json<Value>, Problem> {
    let head = readable(&app, &caller, id).await?;
    let found = gather(&app, &head, &wanted(which.status.as_deref())?).await?;
    Ok(Json(json!({ "turn": id, "items": found })))
}

/// How a dead letter is dealt with.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Deal {
    /// Of `requeue`: the wait that it is to answer now.
    wait: Option<String>,
    /// Who asks, for people.
    by: Option<String>,
}

/// Sends a dead letter again, perhaps for another wait: what it said is read once more.
#[utoipa::path(
    post, path = "/v1/turns/{id}/inbox/{item}/requeue", tag = "agents", request_body = Deal,
    params(
        ("id" = String, Path, description = "The turn."),
        ("item" = String, Path, description = "The item, with its slashes escaped.")
    ),
    responses(
        (status = 202, body = TurnAskDocument), (status = 200, body = TurnAskDocument),
        (status = 404, body = ProblemDocument), (status = 409, body = ProblemDocument),
    )
)]
pub(crate) async fn requeue(
    State(app): State<App>,
    caller: Caller,
    JobAnd(id, item): JobAnd,
    Maybe(deal): Maybe<Deal>,
) -> Result<Response, Problem> {
    caller.need(Scope::Write)?;
    let how = Requeue { wait: deal.wait, by: Some(who(&caller, deal.by)) };
    Ok(answered(desk(&app)?.requeue(caller.tenant.as_deref(), id, &item, how).await?))
}

/// Puts a dead letter aside.
#[utoipa::path(
    post, path = "/v1/turns/{id}/inbox/{item}/skip", tag = "agents", request_body = Deal,
    params(
        ("id" = String, Path, description = "The turn."),
        ("item" = String, Path, description = "The item, with its slashes escaped.")
    ),
    responses(
        (status = 202, body = TurnAskDocument), (status = 200, body = TurnAskDocument),
        (status = 404, body = ProblemDocument),
    )
)]
pub(crate) async fn skip(
    State(app): State<App>,
    caller: Caller,
    JobAnd(id, item): JobAnd,
    Maybe(deal): Maybe<Deal>,
) -> Result<Response, Problem> {
    caller.need(Scope::Write)?;
    let by = Some(who(&caller, deal.by));
    Ok(answered(desk(&app)?.skip(caller.tenant.as_deref(), id, &item, by).await?))
}
