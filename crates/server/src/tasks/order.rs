//! How tasks are ordered over HTTP.

use super::{
    desk,
    documents::{AnsweredTask, TaskOrderedDocument},
    read::TaskAnswer,
};
use crate::{
    App, Caller, Problem,
    extract::Params,
    jobs::{
        blocks::refuse_blocked,
        body::Json,
        submit::{Waiting, idempotency_key, must_end_in, new_tenant},
    },
    keys::Scope,
    problem::ProblemDocument,
};
use axum::{
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::Value;
use std::time::Duration;
use tenure_kernel::blocks::BlockKind;
use tenure_pods::{
    desk::{Order, Ordered},
    task::model::{Cleanup, OnLost},
};
use utoipa::ToSchema;

/// What to run.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct NewTask {
    /// For people, and a part of the pod's name; `metadata.name` of the template without one.
    name: Option<String>,
    /// What the task belongs to: the label `flowforge.io/workflow-id`.
    workflow_id: Option<String>,
    /// The text by which others know the task: the label `flowforge.io/task-id`. Its id without one.
    task_id: Option<String>,
    /// The pod, as Kubernetes takes it (`metadata` and `spec`). Without one pods are made elsewhere and only watched.
    #[schema(value_type = Option<Object>)]
    template: Value,
    /// Where its pods are made.
    namespace: Option<String>,
    /// Which executors take it: the name of their cluster.
    cluster: Option<String>,
    /// Which container is the task's; `main`, or the only one that is no sidecar, without it.
    container: Option<String>,
    /// What differs from the server's retry policy: app, oom, infra, lost, image, config, timeout, deleted,
    /// rejected_capacity, attempts, backoff_ms, factor_percent, backoff_cap_ms.
    #[schema(value_type = Option<Object>)]
    retry: Value,
    /// What differs from the server's times: queued_ms, fence_ms, stop_ms, next_pod_ms, witness_ms.
    #[schema(value_type = Option<Object>)]
    times: Value,
    /// What becomes of pods that are over: `{"when": "on_success" | "always" | "never", "delay_ms": 0}`.
    #[schema(value_type = Option<Object>)]
    cleanup: Option<Cleanup>,
    /// What to do when nobody can know whether a pod still runs: `wait` (without a word), or `replace`, where running twice
    /// does no harm.
    #[schema(value_type = Option<String>)]
    on_lost: OnLost,
    /// How long an attempt may run.
    timeout_seconds: Option<f64>,
    /// The task ends within so many seconds, with all its attempts; `pods.must_end_by_seconds` without one.
    must_end_in_seconds: Option<u64>,
    /// Higher is sooner; 0 without one.
    #[schema(minimum = -32768, maximum = 32767)]
    priority: i16,
    /// The idempotency key, instead of the header `Idempotency-Key`.
    key: Option<String>,
    /// Whose task it is; only for callers whose key has no tenant.
    tenant: Option<String>,
}

/// Orders a task. The same idempotency key, or the same `task_id`, with the same content is the same task.
#[utoipa::path(
    post, path = "/v1/tasks", tag = "tasks", request_body = NewTask,
    params(
        Waiting,
        ("Idempotency-Key" = Option<String>, Header, description = "Makes it safe to ask again.")
    ),
    responses(
        (status = 202, description = "Ordered; `Location` names it.", body = TaskOrderedDocument),
        (status = 200, description = "It was there under the same key; or it is final (`wait`).", body = TaskOrderedDocument),
        (status = 403, description = "A namespace or a template that the tenant may not use.", body = ProblemDocument),
        (status = 409, description = "The key belongs to a task with other content.", body = ProblemDocument),
        (status = 413, description = "The template is too large.", body = ProblemDocument),
        (status = 422, description = "A template that no cluster would take; names the field.", body = ProblemDocument),
        (status = 423, description = "An operator has blocked it.", body = ProblemDocument),
    )
)]
pub(super) async fn order(
    State(app): State<App>,
    caller: Caller,
    Params(waiting): Params<Waiting>,
    headers: HeaderMap,
    Json(new): Json<NewTask>,
) -> Result<Response, Problem> {
    caller.need(Scope::Write)?;
    let wait = waiting.duration()?;
    let tenant = new_tenant(&caller, new.tenant)?;
    refuse_blocked(&app, |blocks| blocks.get(BlockKind::Tenant, &tenant)).await?;
    let timeout = new.timeout_seconds.map(|s| {
        Duration::try_from_secs_f64(s).map_err(|e| {
            Problem::bad_field("timeout_seconds", format!("timeout_seconds = {s}: {e}"))
                .fix("give seconds, such as 3600 or 0.5")
        })
    });
    let order = Order {
        tenant: tenant.clone(),
        name: new.name.unwrap_or_default(),
        workflow_id: new.workflow_id.unwrap_or_default(),
        task_id: new.task_id,
        template: new.template,
        namespace: new.namespace,
        cluster: new.cluster.unwrap_or_default(),
        container: new.container,
        retry: new.retry,
        times: new.times,
        cleanup: new.cleanup,
        on_lost: new.on_lost,
        timeout: timeout.transpose()?,
        must_end_in: must_end_in(new.must_end_in_seconds)?,
        priority: new.priority,
        key: idempotency_key(&headers, new.key)?,
    };
    let ordered = desk(&app)?.order(order).await?;
    answered(&app, &tenant, ordered, wait).await
}

/// The answer to everything that made a task.
pub(super) async fn answered(
    app: &App,
    tenant: &str,
    ordered: Ordered,
    wait: Option<Duration>,
) -> Result<Response, Problem> {
    let Ordered { task, existed } = ordered;
    let answer = match wait {
        Some(wait) => TaskAnswer::at_its_end(app, Some(tenant), task, wait).await?,
        None => TaskAnswer::now(app, Some(tenant), task).await?,
    };
    let done = existed || (wait.is_some() && answer.is_final());
    let status = if done { StatusCode::OK } else { StatusCode::ACCEPTED };
    let location = [(header::LOCATION, format!("/v1/tasks/{task}"))];
    Ok((status, location, axum::Json(AnsweredTask { answer, existed })).into_response())
}
