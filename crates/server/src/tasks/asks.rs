//! What may be asked of a task. 202: durable, the task follows it; 200: it was asked before. What makes no sense where
//! the task stands is refused with its reason, and nothing is written.

use super::{
    TaskName, desk,
    documents::{TaskAskDocument, TaskOrderedDocument},
    order,
};
use crate::{
    App, Caller, Problem,
    extract::{Named, Params},
    jobs::{
        body::Maybe,
        find::who,
        submit::{Waiting, idempotency_key},
    },
    keys::Scope,
    problem::ProblemDocument,
};
use axum::{
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use tenure_pods::{
    desk::{Answer, Outcome},
    pod::ForceAsk,
    task::{decide::RetryNow, model::CancelAsk},
};
use utoipa::ToSchema;

fn answered(answer: Answer) -> Response {
    let status = match answer.outcome {
        Outcome::Already => StatusCode::OK,
        Outcome::Accepted => StatusCode::ACCEPTED,
    };
    (status, axum::Json(answer)).into_response()
}

/// Who asks, and why.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TaskAsk {
    /// Why, for people.
    why: Option<String>,
    /// Who asks, for people.
    by: Option<String>,
}

/// Ends a task. Its pod gets the reason as an annotation and is then stopped; the task is CANCELED when the pod is over.
#[utoipa::path(
    post, path = "/v1/tasks/{id}/cancel", tag = "tasks", request_body = TaskAsk,
    params(("id" = String, Path, description = "The task.")),
    responses(
        (status = 202, body = TaskAskDocument), (status = 200, description = "It was asked before.", body = TaskAskDocument),
        (status = 404, body = ProblemDocument), (status = 409, body = ProblemDocument),
    )
)]
pub(crate) async fn cancel(
    State(app): State<App>,
    caller: Caller,
    Named(name): Named<TaskName>,
    Maybe(ask): Maybe<TaskAsk>,
) -> Result<Response, Problem> {
    caller.need(Scope::Write)?;
    let id = name.of(&app, &caller).await?;
    let ask = CancelAsk { by: Some(who(&caller, ask.by)), why: ask.why };
    Ok(answered(desk(&app)?.cancel(caller.tenant.as_deref(), id, ask).await?))
}

/// How to retry.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TaskRetry {
    /// You vouch for it that the lost pod does not run any more.
    fenced: bool,
    /// Who asks, for people.
    by: Option<String>,
}

/// The next attempt does not wait for the rest of its pause; it still waits for the tenant's budget. Only of a task that
/// is RETRYING; one that is over is replayed.
#[utoipa::path(
    post, path = "/v1/tasks/{id}/retry", tag = "tasks", request_body = TaskRetry,
    params(("id" = String, Path, description = "The task.")),
    responses(
        (status = 202, body = TaskAskDocument), (status = 200, description = "It was asked before.", body = TaskAskDocument),
        (status = 404, body = ProblemDocument),
        (status = 409, description = "It does not wait for a retry; or its pod may still run.", body = ProblemDocument),
    )
)]
pub(crate) async fn retry(
    State(app): State<App>,
    caller: Caller,
    Named(name): Named<TaskName>,
    Maybe(retry): Maybe<TaskRetry>,
) -> Result<Response, Problem> {
    caller.need(Scope::Write)?;
    let id = name.of(&app, &caller).await?;
    let now = RetryNow { by: Some(who(&caller, retry.by)), fenced: retry.fenced };
    Ok(answered(desk(&app)?.retry_now(caller.tenant.as_deref(), id, now).await?))
}

/// Who takes a pod away by force, and why.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TaskForceDelete {
    /// How you know that it may go. It is needed, and stays in the history.
    why: Option<String>,
    /// Of which attempt; without it, of the last.
    attempt: Option<u32>,
    /// Who asks, for people.
    by: Option<String>,
}

/// Takes away the object of a pod that was told to go and does not, because its node does not answer (deletion with a grace of
/// 0). Its containers may run on: this proves nothing about them, and the task is not fenced by it.
#[utoipa::path(
    post, path = "/v1/tasks/{id}/force-delete", tag = "tasks", request_body = TaskForceDelete,
    params(("id" = String, Path, description = "The task; it may be over.")),
    responses(
        (status = 202, body = TaskAskDocument), (status = 200, description = "It was asked before.", body = TaskAskDocument),
        (status = 422, description = "Without a reason.", body = ProblemDocument), (status = 404, body = ProblemDocument),
        (status = 409, description = "Its pod was not told to go; or there is none any more.", body = ProblemDocument),
    )
)]
pub(crate) async fn force_delete(
    State(app): State<App>,
    caller: Caller,
    Named(name): Named<TaskName>,
    Maybe(ask): Maybe<TaskForceDelete>,
) -> Result<Response, Problem> {
    caller.need(Scope::Write)?;
    let id = name.of(&app, &caller).await?;
    let (by, why) = (Some(who(&caller, ask.by)), ask.why.unwrap_or_default());
    let mine = caller.tenant.as_deref();
    let force = ForceAsk { by, why };
    Ok(answered(desk(&app)?.force_delete(mine, id, ask.attempt, force).await?))
}

/// How to replay.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TaskReplay {
    /// The idempotency key, instead of the header `Idempotency-Key`.
    key: Option<String>,
    /// Who asks, for people.
    by: Option<String>,
}

/// Orders a failed or cancelled task once more: a new task with `retry_of`. Asked again, it answers the same new task.
#[utoipa::path(
    post, path = "/v1/tasks/{id}/replay", tag = "tasks", request_body = TaskReplay,
    params(
        ("id" = String, Path, description = "The task."), Waiting,
        ("Idempotency-Key" = Option<String>, Header, description = "Without one, a task is replayed once.")
    ),
    responses(
        (status = 202, description = "A new task; `Location` names it.", body = TaskOrderedDocument),
        (status = 200, description = "It was replayed before; or the new task is final (`wait`).", body = TaskOrderedDocument),
        (status = 404, body = ProblemDocument), (status = 409, body = ProblemDocument),
    )
)]
pub(crate) async fn replay(
    State(app): State<App>,
    caller: Caller,
    Named(name): Named<TaskName>,
    Params(waiting): Params<Waiting>,
    headers: HeaderMap,
    Maybe(replay): Maybe<TaskReplay>,
) -> Result<Response, Problem> {
    caller.need(Scope::Write)?;
    let id = name.of(&app, &caller).await?;
    let wait = waiting.duration()?;
    let key = idempotency_key(&headers, replay.key)?;
    let by = who(&caller, replay.by);
    let (desk, mine) = (desk(&app)?, caller.tenant.as_deref());
    let ordered = desk.replay(mine, id, key.as_deref(), Some(&by)).await?;
    let (head, _) = desk.task(mine, ordered.task).await?;
    order::answered(&app, &head.tenant, ordered, wait).await
}

/// Puts a failed task aside: it is no dead letter any more. Its history stays.
#[utoipa::path(
    post, path = "/v1/tasks/{id}/discard", tag = "tasks", request_body = TaskAsk,
    params(("id" = String, Path, description = "The task.")),
    responses(
        (status = 202, body = TaskAskDocument), (status = 200, description = "It was put aside before.", body = TaskAskDocument),
        (status = 404, body = ProblemDocument), (status = 409, body = ProblemDocument),
    )
)]
pub(crate) async fn discard(
    State(app): State<App>,
    caller: Caller,
    Named(name): Named<TaskName>,
    Maybe(ask): Maybe<TaskAsk>,
) -> Result<Response, Problem> {
    caller.need(Scope::Write)?;
    let id = name.of(&app, &caller).await?;
    let by = who(&caller, ask.by);
    let mine = caller.tenant.as_deref();
    Ok(answered(desk(&app)?.discard(mine, id, ask.why.as_deref(), Some(&by)).await?))
}
