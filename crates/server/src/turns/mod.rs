//! Turns over HTTP: the protocol of workers that run agents in any language. A worker opens a session for its targets,
//! asks for turns (a long poll), says the next message of each, and renews its session meanwhile.
//! `docs/agents-in-any-language.md` is for those who write one.
//!
//! The handlers decide nothing: [`tenure_agents::drive::far`] does, and this says it in HTTP. What it has in common with
//! the protocol of tools is in `far.rs`.
//!
//! | room | paths |
//! |---|---|
//! | `sessions` | `POST /v1/turns/sessions`, `…/{session}/renew`, `DELETE …/{session}` |
//! | `poll` | `…/{session}/poll` |
//! | `answers` | `POST /v1/turns/{id}/step`, `…/finish`, `…/fail`, `…/release` |
//! | [`tools`] | tool calls as jobs |

mod answers;
mod poll;
mod sessions;
pub mod tools;

use crate::{ApiCode, App, Problem};
use axum::{extract::DefaultBodyLimit, http::StatusCode};
use tenure_agents::{drive::far::Far, limits::MESSAGE_BYTES_MAX};
use utoipa_axum::{router::OpenApiRouter, routes};

/// The routes; none on a server that does not know turns, or has no jobs to make of tool calls.
pub(crate) fn routes(app: &App) -> OpenApiRouter<App> {
    if app.turns().is_none() {
        return OpenApiRouter::new();
    }
    let messages = OpenApiRouter::new()
        .routes(routes!(answers::step))
        .routes(routes!(answers::finish))
        .layer(DefaultBodyLimit::max(2 * MESSAGE_BYTES_MAX));
    OpenApiRouter::new()
        .routes(routes!(sessions::open))
        .routes(routes!(sessions::renew))
        .routes(routes!(sessions::end))
        .routes(routes!(poll::poll))
        .routes(routes!(answers::fail))
        .routes(routes!(answers::release))
        .merge(messages)
}

/// The routes are there only where turns are handed out; this says so without a panic.
fn desk(app: &App) -> Result<&Far, Problem> {
    app.turns().ok_or_else(|| {
        Problem::new(StatusCode::NOT_FOUND, ApiCode::NoRoute, "this server hands out no turns")
            .field("path")
            .fix("start it with `tenure server` or `tenure up`")
    })
}
