//! Tasks, as people read them. Nothing here writes.

use super::{
    TaskName, desk,
    documents::{
        TaskDetailDocument, TaskLogDocument, TaskPageDocument, TaskTimelineDocument,
        TaskWhyDocument,
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
    paging::{bad, between, cursor, end, ends, limit, newest_where},
    problem::ProblemDocument,
};
use axum::{Json, extract::State, http::HeaderMap, response::Response};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tenure_kernel::{
    head::Head, ids::EntityId, machine::Machine as _, store::HeadFilter, table::Class,
};
use tenure_pods::{
    desk::letters,
    task::{Task, TaskState, table},
    view::{self, LogPage, TaskDetail, TaskView, TimelineEntry, task_view},
};
use utoipa::IntoParams;

/// A task with the sentence about it.
#[derive(Serialize)]
pub(crate) struct TaskAnswer {
    #[serde(flatten)]
    pub(crate) task: TaskView,
    pub(crate) why: String,
}

impl TaskAnswer {
    pub(crate) async fn of(app: &App, head: &Head) -> Result<Self, Problem> {
        let store = app.pipeline().store();
        let task = task_view(store, head).await?;
        let why = view::why(&task, store.now().await?);
        Ok(TaskAnswer { task, why })
    }

    /// As it is now.
    pub(super) async fn now(
        app: &App,
        tenant: Option<&str>,
        id: EntityId,
    ) -> Result<Self, Problem> {
        let (head, _) = desk(app)?.task(tenant, id).await?;
        Self::of(app, &head).await
    }

    /// When it is over, or when the time is up or the server stops.
    pub(super) async fn at_its_end(
        app: &App,
        tenant: Option<&str>,
        id: EntityId,
        wait: Duration,
    ) -> Result<Self, Problem> {
        Self::of(app, &at_its_end(app, tenant, id, wait).await?).await
    }

    pub(super) fn is_final(&self) -> bool {
        self.task.is_final
    }
}

async fn at_its_end(
    app: &App,
    tenant: Option<&str>,
    id: EntityId,
    wait: Duration,
) -> Result<Head, Problem> {
    until_over(app, wait, || async { Ok(desk(app)?.task(tenant, id).await?.0) }).await
}

/// The head of a task that the caller may look at.
async fn readable(app: &App, caller: &Caller, name: &TaskName) -> Result<Head, Problem> {
    caller.need(Scope::Read)?;
    let id = name.of(app, caller).await?;
    Ok(desk(app)?.task(caller.tenant.as_deref(), id).await?.0)
}

/// Which tasks.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(super) struct Which {
    /// Only in these statuses, with commas between them: PENDING, QUEUED, RUNNING, RETRYING, SUCCEEDED, FAILED,
    /// CANCELED; `open` for those that are not over.
    status: Option<String>,
    /// Only of this workflow.
    workflow: Option<String>,
    /// Only of this tenant, for callers whose key has none.
    tenant: Option<String>,
    /// Only those whose last ended attempt has this cause: oom, image_pull, …
    cause: Option<String>,
    /// `true`: only those about which nobody can decide.
    attention: Option<bool>,
    /// Only those whose id begins so.
    id: Option<String>,
    /// Only those whose id ends so.
    id_end: Option<String>,
    /// Where the page before ended: its `next`.
    before: Option<String>,
    /// How many, 1 to 200; 50 without it.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
}

/// A page.
#[derive(Serialize)]
pub(super) struct Page {
    tasks: Vec<TaskAnswer>,
    next: Option<EntityId>,
}

pub(super) fn statuses(text: Option<&str>) -> Result<Vec<String>, Problem> {
    let known: Vec<&str> = Task::TABLE.statuses.iter().map(|s| s.name).collect();
    let open = Task::TABLE.statuses.iter().filter(|s| s.class == Class::Open).map(|s| s.name);
    let words = text.unwrap_or("").split(',').map(str::trim).filter(|w| !w.is_empty());
    let mut found = Vec::new();
    for word in words {
        let upper = word.to_uppercase();
        match upper.as_str() {
            "OPEN" => found.extend(open.clone().map(str::to_owned)),
            "CANCELLED" => found.push(table::CANCELED.to_owned()),
            _ if known.contains(&upper.as_str()) => found.push(upper),
            _ => {
                let detail = format!("status = {word:?}: there are open, {}", known.join(", "));
                return Err(bad("status", detail, "use one of these, or several with commas")
                    .with("known", known));
            }
        }
    }
    Ok(found)
}

/// Whether the last end of a task has this cause.
fn has_cause(state: &TaskState, cause: Option<&str>) -> bool {
    let has = state.ended.as_ref().and_then(|e| e.cause).map(tenure_pods::verdict::Cause::name);
    cause.is_none_or(|c| has == Some(c))
}

/// Tasks, the newest first. A page may be short and not be the last: go on while there is `next`.
#[utoipa::path(
    get, path = "/v1/tasks", tag = "tasks", params(Which),
    responses((status = 200, body = TaskPageDocument), (status = 400, body = ProblemDocument))
)]
pub(super) async fn list(
    State(app): State<App>,
    caller: Caller,
    Params(which): Params<Which>,
) -> Result<Json<Page>, Problem> {
    caller.need(Scope::Read)?;
    let limit = limit(which.limit)?;
    let (after, before) = between(which.id.as_deref(), which.before.as_deref())?;
    let end = end(which.id_end.as_deref())?;
    let filter = HeadFilter {
        statuses: statuses(which.status.as_deref())?,
        tenant: listed(&caller, which.tenant)?,
        attention: which.attention == Some(true),
        after,
        before,
        ..HeadFilter::default()
    };
    let (heads, next) = newest_where::<Task>(&app, filter, limit, |head, state| {
        which.workflow.as_ref().is_none_or(|w| state.workflow_id == *w)
            && has_cause(state, which.cause.as_deref())
            && ends(head.id, end.as_ref())
    })
    .await?;
    shown(&app, heads, next).await
}

async fn shown(
    app: &App,
    heads: Vec<(Head, TaskState)>,
    next: Option<EntityId>,
) -> Result<Json<Page>, Problem> {
    let store = app.pipeline().store();
    let (mut tasks, now) = (Vec::with_capacity(heads.len()), store.now().await?);
    for (head, _) in &heads {
        let task = task_view(store, head).await?;
        let why = view::why(&task, now);
        tasks.push(TaskAnswer { task, why });
    }
    Ok(Json(Page { tasks, next }))
}

/// Which dead letters.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(super) struct WhichDead {
    /// Only of this workflow.
    workflow: Option<String>,
    /// Only of this tenant, for callers whose key has none.
    tenant: Option<String>,
    /// Only with this cause: oom, rejected_capacity, …
    cause: Option<String>,
    /// Where the page before ended: its `next`.
    before: Option<String>,
    /// How many, 1 to 200; 50 without it.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
}

/// Failed tasks that nobody has replayed or put aside, the newest first.
#[utoipa::path(
    get, path = "/v1/tasks/dead-letters", tag = "tasks", params(WhichDead),
    responses((status = 200, body = TaskPageDocument), (status = 400, body = ProblemDocument))
)]
pub(super) async fn dead_letters(
    State(app): State<App>,
    caller: Caller,
    Params(which): Params<WhichDead>,
) -> Result<Json<Page>, Problem> {
    caller.need(Scope::Read)?;
    let (before, limit) = (cursor(which.before.as_deref())?, limit(which.limit)?);
    let tenant = listed(&caller, which.tenant)?;
    let store = app.pipeline().store();
    let found = letters::dead_letters(store, tenant.as_deref(), before, limit, |state| {
        which.workflow.as_ref().is_none_or(|w| state.workflow_id == *w)
            && has_cause(state, which.cause.as_deref())
    });
    let found = found.await?;
    shown(&app, found.tasks, found.next).await
}

/// A task with its attempts, and the sentence about it.
#[derive(Serialize)]
pub(super) struct Told {
    #[serde(flatten)]
    whole: TaskDetail,
    why: String,
}

async fn whole(app: &App, head: &Head) -> Result<Told, Problem> {
    let store = app.pipeline().store();
    let whole = view::detail(store, head).await?;
    let why = view::why(&whole.task, store.now().await?);
    Ok(Told { whole, why })
}

/// Where a task stands, with every attempt: its pod, node, verdict, exit code, the rule that gave it.
#[utoipa::path(
    get, path = "/v1/tasks/{id}", tag = "tasks",
    params(("id" = String, Path, description = "The task: its id, or its task_id."), Waiting),
    responses((status = 200, body = TaskDetailDocument), (status = 404, body = ProblemDocument))
)]
pub(super) async fn show(
    State(app): State<App>,
    caller: Caller,
    Named(name): Named<TaskName>,
    Params(waiting): Params<Waiting>,
) -> Result<Json<Told>, Problem> {
    let head = match waiting.duration()? {
        None => readable(&app, &caller, &name).await?,
        Some(wait) => {
            caller.need(Scope::Read)?;
            let id = name.of(&app, &caller).await?;
            at_its_end(&app, caller.tenant.as_deref(), id, wait).await?
        }
    };
    Ok(Json(whole(&app, &head).await?))
}

/// The sentence about a task.
#[derive(Serialize)]
pub(super) struct Why {
    id: EntityId,
    task_id: String,
    status: String,
    why: String,
}

/// Why it is where it is, and what moves it, in one sentence.
#[utoipa::path(
    get, path = "/v1/tasks/{id}/why", tag = "tasks",
    params(("id" = String, Path, description = "The task.")),
    responses((status = 200, body = TaskWhyDocument), (status = 404, body = ProblemDocument))
)]
pub(super) async fn why(
    State(app): State<App>,
    caller: Caller,
    Named(name): Named<TaskName>,
) -> Result<Json<Why>, Problem> {
    let head = readable(&app, &caller, &name).await?;
    let TaskAnswer { task, why } = TaskAnswer::of(&app, &head).await?;
    Ok(Json(Why { id: task.id, task_id: task.task_id, status: task.status, why }))
}

/// What happened to a task.
#[derive(Serialize)]
pub(super) struct Timeline {
    id: EntityId,
    status: String,
    why: String,
    timeline: Vec<TimelineEntry>,
}

/// Everything that happened to a task, in order, and who brought it about.
#[utoipa::path(
    get, path = "/v1/tasks/{id}/timeline", tag = "tasks",
    params(("id" = String, Path, description = "The task.")),
    responses((status = 200, body = TaskTimelineDocument), (status = 404, body = ProblemDocument))
)]
pub(super) async fn timeline(
    State(app): State<App>,
    caller: Caller,
    Named(name): Named<TaskName>,
) -> Result<Json<Timeline>, Problem> {
    let head = readable(&app, &caller, &name).await?;
    let Told { whole, why } = whole(&app, &head).await?;
    let (status, timeline) = (whole.task.status, whole.timeline);
    Ok(Json(Timeline { id: head.id, status, why, timeline }))
}

/// Which stretch of a log.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(super) struct WhichLog {
    /// Of which attempt; of the last one without it.
    attempt: Option<u32>,
    /// Where the stretch before ended: its `next`.
    from: Option<u64>,
}

/// What the container of an attempt wrote, as far as it is kept. Asked again with `from`, it goes on where it ended.
#[utoipa::path(
    get, path = "/v1/tasks/{id}/logs", tag = "tasks",
    params(("id" = String, Path, description = "The task."), WhichLog),
    responses((status = 200, body = TaskLogDocument), (status = 404, body = ProblemDocument))
)]
pub(super) async fn logs(
    State(app): State<App>,
    caller: Caller,
    Named(name): Named<TaskName>,
    Params(which): Params<WhichLog>,
) -> Result<Json<LogPage>, Problem> {
    caller.need(Scope::Read)?;
    let id = name.of(&app, &caller).await?;
    let (_, state) = desk(&app)?.task(caller.tenant.as_deref(), id).await?;
    let attempt = which.attempt.unwrap_or(state.attempt).max(1);
    let from = which.from.unwrap_or(1);
    let store = app.pipeline().store();
    let found = view::logs(store, id, attempt, from).await?;
    found.map(Json).ok_or_else(|| {
        let what = format!("log of attempt {attempt} of task {id}");
        let fix = match state.external {
            true => "its pods are made elsewhere, and only an executor reads logs; `kubectl logs` may have it",
            false => "no executor has had that attempt; GET /v1/tasks/{id} lists the attempts",
        };
        Problem::not_found(what).field("attempt").fix(fix)
    })
}

fn absent(id: EntityId) -> Problem {
    Problem::not_found(format!("task {id}")).field("id")
}

/// The events of a task, by pages. With `Accept: text/event-stream` they come live.
#[utoipa::path(
    get, path = "/v1/tasks/{id}/events", tag = "tasks",
    params(
        ("id" = String, Path, description = "The task."), Stretch,
        ("Last-Event-ID" = Option<u64>, Header, description = "Of a live stream: go on behind this version.")
    ),
    responses(
        (status = 200, body = crate::jobs::documents::EventsDocument),
        (status = 404, body = ProblemDocument)
    )
)]
pub(super) async fn events(
    State(app): State<App>,
    caller: Caller,
    Named(name): Named<TaskName>,
    Params(stretch): Params<Stretch>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let head = readable(&app, &caller, &name).await?;
    answer::<Task>(app, absent, &head, &stretch, &headers, false).await
}

/// The events of a task as they come (server-sent events); the stream ends with the task.
#[utoipa::path(
    get, path = "/v1/tasks/{id}/watch", tag = "tasks",
    params(
        ("id" = String, Path, description = "The task."), Stretch,
        ("Last-Event-ID" = Option<u64>, Header, description = "Go on behind this version.")
    ),
    responses((status = 200, description = "`text/event-stream`"), (status = 404, body = ProblemDocument))
)]
pub(super) async fn watch(
    State(app): State<App>,
    caller: Caller,
    Named(name): Named<TaskName>,
    Params(stretch): Params<Stretch>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let head = readable(&app, &caller, &name).await?;
    answer::<Task>(app, absent, &head, &stretch, &headers, true).await
}
