//! Agents and turns over HTTP. `tenure-agents` says what may be asked and what is read; this says it in HTTP.
//!
//! | room | paths |
//! |---|---|
//! | `roster` | `/v1/agents`, `/v1/agents/{name}`, `…/pause`, `…/resume` |
//! | `send` | `POST /v1/agents/{name}/turns` |
//! | `turns` | `GET /v1/turns`, one turn: itself, `…/events`, `…/watch`, `…/timeline`, `…/why`, `…/deliverable` |
//! | `asks` | `…/results`, `…/progress`, `…/stop`, `…/force-finish`, `…/resume` |
//! | `inbox` | `/v1/inbox`, `/v1/agents/{name}/inbox`, `/v1/turns/{id}/inbox`, `…/{item}/requeue`, `…/{item}/skip` |
//! | `watchdog` | `GET /v1/watchdog`: what the rules would do |
//!
//! The two rules of jobs hold here too: 2xx means durable, and what belongs to another tenant is not there.

pub(crate) mod asks;
mod documents;
pub(crate) mod inbox;
mod refused;
pub(crate) mod roster;
pub(crate) mod send;
mod turns;
mod watchdog;

pub(crate) use roster::some;

use crate::{ApiCode, App, Problem};
use axum::{extract::DefaultBodyLimit, http::StatusCode};
use tenure_agents::{
    desk::Desk,
    limits::{MESSAGE_BYTES_MAX, PROFILE_BYTES_MAX},
};
use utoipa_axum::{router::OpenApiRouter, routes};

/// The routes of agents; none on a server without them.
pub(crate) fn routes(app: &App) -> OpenApiRouter<App> {
    if app.agents().is_none() {
        return OpenApiRouter::new();
    }
    OpenApiRouter::new()
        .routes(routes!(roster::list))
        .routes(routes!(roster::pause))
        .routes(routes!(roster::resume))
        .merge(
            OpenApiRouter::new()
                .routes(routes!(roster::show, roster::set, roster::remove))
                // A profile, and what may be said to an agent, have limits of their own, whatever that of other requests is.
                .layer(DefaultBodyLimit::max(2 * PROFILE_BYTES_MAX)),
        )
        .merge(
            OpenApiRouter::new()
                .routes(routes!(send::send))
                .layer(DefaultBodyLimit::max(2 * MESSAGE_BYTES_MAX)),
        )
        .routes(routes!(inbox::of_agent))
        .routes(routes!(inbox::all))
        .routes(routes!(inbox::of_turn))
        .routes(routes!(inbox::requeue))
        .routes(routes!(inbox::skip))
        .routes(routes!(turns::list))
        .routes(routes!(turns::show))
        .routes(routes!(turns::events))
        .routes(routes!(turns::watch))
        .routes(routes!(turns::timeline))
        .routes(routes!(turns::why))
        .routes(routes!(turns::deliverable))
        .routes(routes!(asks::result))
        .routes(routes!(asks::progress))
        .routes(routes!(asks::stop))
        .routes(routes!(asks::force_finish))
        .routes(routes!(asks::resume))
        .routes(routes!(watchdog::dry_run))
}

/// The routes are there only where the desk is; this says so without a panic.
fn desk(app: &App) -> Result<&Desk, Problem> {
    app.agents().ok_or_else(|| {
        let detail = "this server has no agents";
        Problem::new(StatusCode::NOT_FOUND, ApiCode::NoRoute, detail)
            .field("path")
            .fix("start it with `tenure server` or `tenure up`")
    })
}
