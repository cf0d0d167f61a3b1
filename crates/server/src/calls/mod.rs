//! Calls over HTTP: the protocol of workers that run tools and no flows, in any language. A worker opens a session with
//! its tools, asks for calls (a long poll), says how each ended, and renews its session meanwhile.
//! `docs/workers-in-any-language.md` is for those who write one.
//!
//! The handlers decide nothing: `tenure_jobs::call` does, and this says it in HTTP.
//!
//! | room | paths |
//! |---|---|
//! | `sessions` | `POST /v1/calls/sessions`, `…/{session}/renew`, `DELETE …/{session}` |
//! | `poll` | `…/{session}/poll` |
//! | `answers` | `POST /v1/calls/{id}/complete`, `…/fail`, `…/release` |
//! | `read` | `GET /v1/calls`, `/v1/calls/{id}` |

mod answers;
mod poll;
mod read;
mod sessions;

pub(crate) use sessions::{LEASE_MIN, ProcessName};

use crate::{ApiCode, App, Caller, Problem, keys::Scope};
use axum::{extract::DefaultBodyLimit, http::StatusCode};
use tenure_kernel::{ids::SessionId, limits, sessions::Session};
use utoipa_axum::{router::OpenApiRouter, routes};

/// The routes of calls; none on a server without jobs.
pub(crate) fn routes(app: &App) -> OpenApiRouter<App> {
    if app.jobs().is_none() {
        return OpenApiRouter::new();
    }
    // A result may be as large as that of a tool in the flow's own worker.
    let results = OpenApiRouter::new()
        .routes(routes!(answers::complete))
        .layer(DefaultBodyLimit::max(limits::BLOB_BYTES_MAX));
    OpenApiRouter::new()
        .routes(routes!(sessions::open))
        .routes(routes!(sessions::renew))
        .routes(routes!(sessions::end))
        .routes(routes!(poll::poll))
        .routes(routes!(answers::fail))
        .routes(routes!(answers::release))
        .routes(routes!(read::calls))
        .routes(routes!(read::call))
        .merge(results)
}

pub(crate) fn ended(session: SessionId) -> Problem {
    let detail =
        format!("session {session} is over: it was ended, or not renewed within its lease");
    Problem::new(StatusCode::GONE, ApiCode::SessionEnded, detail)
        .field("session")
        .fix("stop what was running for it, and open a new session")
}

/// A session of the caller that is not over.
pub(crate) async fn session_of(
    app: &App,
    caller: &Caller,
    id: SessionId,
) -> Result<Session, Problem> {
    caller.need(Scope::Worker)?;
    let absent = || Problem::not_found(format!("session {id}")).field("session");
    if !app.identities().is_session_of(app, caller, id).await? {
        return Err(absent());
    }
    let session = app.pipeline().store().session(id).await?.ok_or_else(absent)?;
    if session.ended { Err(ended(id)) } else { Ok(session) }
}
