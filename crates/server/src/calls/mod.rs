//! Calls over HTTP: the protocol of workers that run tools and no flows, in any language. A worker opens a session with
//! its tools, asks for calls (a long poll), says how each ended, and renews its session meanwhile.
//! `docs/workers-in-any-language.md` is for those who write one.
//!
//! The handlers decide nothing: `tenure_jobs::call` does, and this says it in HTTP. What it has in common with the
//! protocol of agents is in [`crate::far`].
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

use crate::App;
use axum::extract::DefaultBodyLimit;
use tenure_kernel::limits;
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
