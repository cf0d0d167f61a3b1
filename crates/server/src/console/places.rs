//! Workers and flows.

use super::{
    cache::Console,
    guard::{Viewer, said},
    layout::{Page, Place},
    text::{age, job_link, span},
};
use crate::App;
use axum::{Extension, extract::State, http::StatusCode, response::Response};
use maud::{Markup, html};
use std::sync::Arc;
use tenure_jobs::catalogue::{self, Entry, Sort};
use tenure_kernel::{error::StoreError, sessions::Session, time::Timestamp};

/// Holds of one session that are listed.
const HOLDS_MAX: usize = 12;

/// `GET /workers`.
pub(super) async fn workers(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Extension(console): Extension<Arc<Console>>,
) -> Response {
    let read = async {
        let glance = console.glance(&app, &caller).await?;
        Ok::<_, StoreError>((glance, app.pipeline().store().now().await?))
    };
    let (glance, now) = match read.await {
        Ok(read) => read,
        Err(e) => return said(&e.into()),
    };
    let body = html! {
        h1 { "Workers and servers" }
        div.card {
            @if glance.sessions.is_empty() { div.empty { "Nobody is alive. " code { "tenure worker" } " starts one." } }
            @else { div.scroll { table {
                thead { tr { th { "Name" } th { "Role" } th { "Heard" } th { "Lease" } th { "Holds" } } }
                tbody { @for session in &glance.sessions { (self::session(session, now)) } }
            } } }
        }
        p.small.dim { "A session that is not heard for its lease is over: what it held is taken over by others." }
    };
    Page {
        title: "Workers".into(),
        place: Place::Workers,
        live: None,
        now,
        glance: Some(&glance),
        caller: Some(&caller),
        body,
    }
    .respond(StatusCode::OK)
}

/// A session names only holds that the viewer may see: see [`crate::jobs::sessions::visible`].
fn session(session: &Session, now: Timestamp) -> Markup {
    html! {
        tr {
            td { strong { (session.name) } div.small.dim.mono { (session.id) } }
            td { span.tag { (session.role) } }
            td.nowrap { (age(session.renewed_at, now)) " ago" }
            td.nowrap { (span(session.lease)) span.dim { ", " (span(session.expires_at.since(now))) " left" } }
            td {
                (session.holds.len())
                @if session.role == "worker" {
                    @for hold in session.holds.iter().take(HOLDS_MAX) { " " (job_link(hold.entity)) }
                    @if session.holds.len() > HOLDS_MAX { span.dim { " and " (session.holds.len() - HOLDS_MAX) " more" } }
                }
            }
        }
    }
}

/// `GET /flows`.
pub(super) async fn flows(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Extension(console): Extension<Arc<Console>>,
) -> Response {
    let read = async {
        let glance = console.glance(&app, &caller).await?;
        let store = app.pipeline().store();
        Ok::<_, StoreError>((
            glance,
            catalogue::list(store, caller.tenant.as_deref()).await?,
            store.now().await?,
        ))
    };
    let (glance, entries, now) = match read.await {
        Ok(read) => read,
        Err(e) => return said(&e.into()),
    };
    let body = html! {
        h1 { "Flows and tools" }
        @for (sort, title) in [(Sort::Flow, "Flows"), (Sort::Tool, "Tools")] {
            div.card {
                div.cap { h2 { (title) } }
                div.scroll { table {
                    thead { tr { th { "Name" } th { "Versions" } th { "What it does" } } }
                    tbody { @for entry in entries.iter().filter(|e| e.sort == sort) { (self::entry(entry)) } }
                } }
            }
        }
        p.small.dim { "What workers have ever registered. A job of a flow that is not here is refused." }
    };
    Page {
        title: "Flows".into(),
        place: Place::Flows,
        live: None,
        now,
        glance: Some(&glance),
        caller: Some(&caller),
        body,
    }
    .respond(StatusCode::OK)
}

fn entry(entry: &Entry) -> Markup {
    let newest = entry.newest();
    let flow = entry.sort == Sort::Flow;
    let jobs = super::list::Filters { flow: entry.name.clone(), ..Default::default() }.query();
    html! {
        tr {
            td.nowrap { @if flow { a href={ "/jobs" (jobs) } { (entry.name) } } @else { (entry.name) } }
            td { @for v in &entry.versions { code { (v.version) } " " } }
            td {
                @if let Some(v) = newest {
                    (v.doc)
                    @if let Some(class) = v.class { " " span.tag { (class.as_str()) } }
                    @if !v.input_schema.is_null() { details.small { summary.dim { "input" } (super::text::value(&v.input_schema, "/v1/flows")) } }
                }
            }
        }
    }
}
