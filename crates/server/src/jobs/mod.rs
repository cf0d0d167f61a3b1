//! Jobs over HTTP. The handlers decide nothing: `tenure-jobs` says what may be asked and what is read, and this
//! says it in HTTP. Two rules hold for all of them.
//!
//! * **2xx means durable.** What was accepted is in the store; what could only be noted and forgotten is a
//!   problem, and nothing was written.
//! * **Another tenant's job is not there.** It is answered as an unknown id, also by listings.
//!
//! | room | paths |
//! |---|---|
//! | `submit` | `POST /v1/jobs`, `…/retry`, `…/fork` |
//! | `asks` | `…/signal`, `…/approve`, `…/reject`, `…/cancel`, `…/pause`, `…/resume`, `…/resolve`, `…/discard`, webhooks |
//! | `bulk` | `POST /v1/jobs/bulk`: one ask for many |
//! | `list` | `GET /v1/jobs`, `/v1/dead-letters` |
//! | `read` | one job: itself, `…/steps`, `…/why`, `…/trace`, `…/verify`, `…/replay` |
//! | `events` | its stream, by pages or live |
//! | `export` | everything of it in one signed file |
//! | `plans` | `POST /v1/plans/check` |
//! | `catalogue`, `sessions`, `queues` | `/v1/flows`, `/v1/tools`, `/v1/workers`, `/v1/queues` |
//! | `blocks` | `/v1/blocks`: what an operator keeps from running |
//! | `schedules`, `calendars`, `limits`, `gates` | `/v1/schedules`, `POST /v1/calendars/preview`, `/v1/limits`, `/v1/gates` |
//! | `intake` | no path: what applications ask for in the database itself |
//! | `aliases` | the paths of the systems that came before |

mod aliases;
pub(crate) mod asks;
mod batches;
pub(crate) mod blocks;
pub(crate) mod body;
mod bulk;
mod calendars;
pub(crate) mod catalogue;
mod desk;
pub(crate) mod documents;
pub(crate) mod events;
mod export;
pub(crate) mod find;
mod gates;
mod intake;
mod limits;
mod list;
pub(crate) mod owned;
mod plans;
mod queues;
mod read;
mod refused;
pub(crate) mod schedules;
mod schema;
pub(crate) mod sessions;
pub(crate) mod submit;
pub(crate) mod wait;

pub use desk::Desk;
pub use intake::{Wish, take_in};

use crate::{ApiCode, App, Problem};
use axum::http::StatusCode;
use utoipa_axum::{router::OpenApiRouter, routes};

/// The routes of jobs; none on a server without jobs.
pub(crate) fn routes(app: &App) -> OpenApiRouter<App> {
    if app.jobs().is_none() {
        return OpenApiRouter::new();
    }
    OpenApiRouter::new()
        .routes(routes!(list::jobs, submit::submit))
        .routes(routes!(list::dead_letters))
        .routes(routes!(bulk::bulk))
        .routes(routes!(read::job))
        .routes(routes!(read::why))
        .routes(routes!(read::steps))
        .routes(routes!(read::step))
        .routes(routes!(read::trace))
        .routes(routes!(read::verify))
        .routes(routes!(read::replay))
        .routes(routes!(events::events))
        .routes(routes!(export::export))
        .routes(routes!(plans::check_plan))
        .routes(routes!(submit::retry))
        .routes(routes!(submit::fork))
        .routes(routes!(asks::signal))
        .routes(routes!(asks::approve))
        .routes(routes!(asks::reject))
        .routes(routes!(asks::cancel))
        .routes(routes!(asks::pause))
        .routes(routes!(asks::resume))
        .routes(routes!(asks::resolve))
        .routes(routes!(asks::discard))
        .routes(routes!(asks::webhook))
        .routes(routes!(catalogue::flows))
        .routes(routes!(catalogue::flow))
        .routes(routes!(catalogue::tools))
        .routes(routes!(catalogue::tool))
        .routes(routes!(sessions::workers))
        .routes(routes!(batches::list))
        .routes(routes!(batches::batch))
        .routes(routes!(blocks::list))
        .routes(routes!(blocks::set, blocks::remove))
        .routes(routes!(limits::list))
        .routes(routes!(limits::show, limits::set, limits::remove))
        .routes(routes!(limits::waiting))
        .routes(routes!(gates::list))
        .routes(routes!(queues::list))
        .routes(routes!(gates::show, gates::set))
        .routes(routes!(schedules::list))
        .routes(routes!(schedules::show, schedules::set, schedules::remove))
        .routes(routes!(schedules::pause))
        .routes(routes!(schedules::resume))
        .routes(routes!(schedules::fire))
        .routes(routes!(calendars::preview))
        .merge(aliases::routes())
}

/// The routes are there only where the desk is; this says so without a panic.
fn desk(app: &App) -> Result<&Desk, Problem> {
    app.jobs().ok_or_else(|| {
        let detail = "this server has no jobs";
        Problem::new(StatusCode::NOT_FOUND, ApiCode::NoRoute, detail)
            .field("path")
            .fix("start it with `tenure server` or `tenure up`")
    })
}

/// A moment in RFC 3339.
pub(crate) fn moment(
    field: &'static str,
    text: String,
) -> Result<tenure_kernel::time::Timestamp, crate::Problem> {
    schedules::Moment::Text(text).read(field)
}
