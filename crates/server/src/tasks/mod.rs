//! Tasks over HTTP. `tenure-pods` says what may be asked and what is read; this says it in HTTP.
//!
//! | room | paths |
//! |---|---|
//! | `order` | `POST /v1/tasks` |
//! | `reports` | `POST /v1/tasks/reports`: what collectors saw |
//! | `read` | `GET /v1/tasks`, one task: itself, `…/why`, `…/timeline`, `…/events`, `…/watch`, `…/logs`; `/v1/tasks/dead-letters` |
//! | `asks` | `…/cancel`, `…/retry`, `…/force-delete`, `…/replay`, `…/discard` |
//! | `budgets` | `/v1/tasks/budgets`, `/v1/tasks/budgets/{tenant}` |
//!
//! The two rules of jobs hold here too: 2xx means durable, and what belongs to another tenant is not there. A task
//! is named by its id, or by the text that its pods carry as `flowforge.io/task-id`.

pub(crate) mod asks;
pub(crate) mod budgets;
mod documents;
mod order;
pub(crate) mod read;
mod refused;
mod reports;

use crate::{ApiCode, App, Caller, Problem};
use axum::http::StatusCode;
use tenure_kernel::ids::EntityId;
use tenure_pods::desk::Desk;
use utoipa_axum::{router::OpenApiRouter, routes};

/// The routes of tasks; none on a server without them.
pub(crate) fn routes(app: &App) -> OpenApiRouter<App> {
    if app.tasks().is_none() {
        return OpenApiRouter::new();
    }
    OpenApiRouter::new()
        .routes(routes!(read::list, order::order))
        .routes(routes!(reports::reports))
        .routes(routes!(read::dead_letters))
        .routes(routes!(budgets::list))
        .routes(routes!(budgets::show, budgets::set, budgets::clear))
        .routes(routes!(read::show))
        .routes(routes!(read::why))
        .routes(routes!(read::timeline))
        .routes(routes!(read::events))
        .routes(routes!(read::watch))
        .routes(routes!(read::logs))
        .routes(routes!(asks::cancel))
        .routes(routes!(asks::retry))
        .routes(routes!(asks::force_delete))
        .routes(routes!(asks::replay))
        .routes(routes!(asks::discard))
}

/// The routes are there only where the desk is; this says so without a panic.
pub(crate) fn desk(app: &App) -> Result<&Desk, Problem> {
    app.tasks().ok_or_else(|| {
        let detail = "this server has no tasks";
        Problem::new(StatusCode::NOT_FOUND, ApiCode::NoRoute, detail)
            .field("path")
            .fix("start it with `tenure server` or `tenure up`")
    })
}

/// A task by its id, or by the text that its pods carry. Which task that is depends on whose key asks.
#[derive(Clone, Debug)]
pub(crate) struct TaskName(String);

impl TaskName {
    /// The name that every task has.
    pub(crate) fn of_id(id: EntityId) -> Self {
        TaskName(id.to_string())
    }

    /// The task that this caller means.
    pub(crate) async fn of(&self, app: &App, caller: &Caller) -> Result<EntityId, Problem> {
        Ok(desk(app)?.named(caller.tenant.as_deref(), &self.0).await?)
    }
}

impl std::str::FromStr for TaskName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.is_empty() || text.len() > 253 {
            true => Err("a task is named by 1 to 253 bytes".to_owned()),
            false => Ok(TaskName(text.to_owned())),
        }
    }
}
