//! The console: pages for people, rendered here, live without a build step and readable without JavaScript.
//!
//! A page is made of *parts*, elements with an id. The same function that renders a part into the page renders
//! it for [`live`], which sends the parts that have changed; thirty lines of script put them in place. So there
//! is one way in which a thing looks, and nothing that only a script can show.
//!
//! | room | what it holds |
//! |---|---|
//! | [`guard`] | who looks, who may press a button, signing in |
//! | [`layout`] | the frame around every page, and the headers that keep it harmless |
//! | [`one`] | what the pages about one thing have in common |
//! | [`list`], [`job`] | the two pages that matter; [`tables`], [`moves`], [`svg`] (on its [`axis`]) are parts of the second |
//! | [`actions`] | what the buttons do |
//! | [`live`] | changes, as server-sent events |
//! | [`agents`], [`turn`] | agents, one agent, one turn of it |
//! | [`tasks`], [`task`] | tasks with the budgets of their tenants, one task with its attempts |
//! | [`lines`] | schedules, gates, rate limits |
//! | [`places`] | workers, flows |
//! | [`audit`] | administrative acts |
//!
//! **Invariants.** Whatever a job says is hostile: it reaches a page only through the escaping of `maud`, and is
//! cut to a named length first. No page reads without a bound. A button is a form that works without a script,
//! and does what the API does, through the same functions.

mod actions;
mod agents;
mod api;
mod audit;
mod axis;
mod cache;
mod guard;
mod job;
mod layout;
mod lines;
mod list;
mod live;
mod moves;
mod one;
mod places;
mod svg;
mod tables;
mod task;
mod tasks;
mod text;
mod turn;

pub(crate) use guard::{caller, cookie};

use crate::App;
use axum::{
    Extension,
    extract::DefaultBodyLimit,
    middleware::map_response,
    routing::{get, post},
};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;

/// All pages, on a server that has jobs. They are not in the OpenAPI document: what programs need is under `/v1`.
pub(crate) fn routes(app: &App) -> OpenApiRouter<App> {
    if app.jobs().is_none() {
        return OpenApiRouter::new();
    }
    OpenApiRouter::new()
        .route("/", get(list::page))
        .route("/jobs", get(list::page))
        .route("/jobs/{id}", get(job::page))
        .route("/jobs/{id}/{action}", post(actions::act))
        .route("/agents", get(agents::list))
        .route("/agents/{name}", get(agents::page))
        .route("/agents/{name}/{action}", post(agents::act))
        .route("/turns/{id}", get(turn::page))
        .route("/turns/{id}/{action}", post(turn::act))
        .route("/console/live/agents", get(live::agents))
        .route("/console/live/agents/{name}", get(live::agent))
        .route("/console/live/turns/{id}", get(live::one::<turn::Shown>))
        .route("/tasks", get(tasks::page))
        .route("/tasks/budgets/{tenant}", post(tasks::set_budget))
        .route("/tasks/{id}", get(task::page))
        .route("/tasks/{id}/{action}", post(task::act))
        .route("/console/live/tasks", get(live::tasks))
        .route("/console/live/tasks/{id}", get(live::one::<task::Shown>))
        .route("/lines", get(lines::page))
        .route("/lines/schedules/{action}", post(lines::act))
        .route("/audit", get(audit::page))
        .route("/workers", get(places::workers))
        .route("/flows", get(places::flows))
        .route("/console/live/jobs", get(live::jobs))
        .route("/console/live/jobs/{id}", get(live::one::<job::Shown>))
        .route("/console/sign-in", {
            let small = DefaultBodyLimit::max(guard::SIGN_IN_BYTES_MAX);
            get(guard::sign_in_page).post(guard::sign_in).layer(small)
        })
        .route("/console/sign-out", post(guard::sign_out))
        .layer(Extension(Arc::new(cache::Console::default())))
        .layer(map_response(layout::harmless))
}
