//! Administrative acts: who did what, when, and whether it was carried out.

use super::{
    cache::Console,
    guard::{Viewer, said},
    layout::{Page, Place},
    text::{excerpt, moment},
};
use crate::{
    App,
    audit::{AuditEntry, Query, read},
    extract::Params,
};
use axum::{Extension, extract::State, http::StatusCode, response::Response};
use maud::{Markup, html};
use serde_json::Value;
use std::sync::Arc;

/// Characters of the details that a row shows.
const DETAILS_CHARS_MAX: usize = 300;

/// `GET /audit`.
pub(super) async fn page(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Extension(console): Extension<Arc<Console>>,
    Params(query): Params<Query>,
) -> Response {
    let (act, by) = (query.act.clone().unwrap_or_default(), query.by.clone().unwrap_or_default());
    let found = async {
        let found = read(&app, &caller, query).await?;
        let glance = console.glance(&app, &caller).await?;
        Ok((found, glance, app.pipeline().store().now().await?))
    };
    let (found, glance, now) = match found.await {
        Ok(found) => found,
        Err(problem) => return said(&problem),
    };
    let more = found.next.as_ref().map(|next| {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("act", &act).append_pair("by", &by).append_pair("before", next);
        format!("/audit?{}", query.finish())
    });
    let body = html! {
        h1 { "Administrative acts" }
        form method="get" action="/audit" {
            p {
                label for="act" { "Act" } " " input id="act" name="act" value=(act) placeholder="keys." size="16";
                " " label for="by" { "By" } " " input id="by" name="by" value=(by) size="24";
                " " button { "Filter" }
            }
        }
        div.card {
            @if found.acts.is_empty() { div.empty { "None." } }
            @else { div.scroll { table {
                thead { tr { th { "Time" } th { "Act" } th { "By" } th { "Tenant" } th { "On" } th { "Outcome" } th { "Details" } } }
                tbody { @for act in &found.acts { (row(act)) } }
            } } }
        }
        @if let Some(more) = more { p { a href=(more) { "Older" } } }
        p.small.dim { "An act is recorded before it begins. Records are chained and never removed; " code { "tenure verify" } " checks them." }
    };
    Page {
        title: "Audit".into(),
        place: Place::Audit,
        live: None,
        now,
        glance: Some(&glance),
        caller: Some(&caller),
        body,
    }
    .respond(StatusCode::OK)
}

fn row(act: &AuditEntry) -> Markup {
    let details = match &act.details {
        Value::Null => String::new(),
        details => excerpt(&details.to_string(), DETAILS_CHARS_MAX).0,
    };
    html! {
        tr {
            td.nowrap { (moment(act.at)) }
            td { code { (act.act) } }
            td { (act.by) @if let Some(from) = &act.from { div.small.dim { "from " (from) } } }
            td { (act.tenant.as_deref().unwrap_or("")) }
            td.mono { (act.target.as_deref().unwrap_or("")) }
            td {
                @match act.outcome.as_deref() {
                    Some("done") => span.pill.good { "done" },
                    Some("refused") => span.pill.bad { "refused" },
                    Some(_) => span.pill.unknown { "not recorded" },
                    None => "",
                }
                @if let Some(note) = &act.note { div.small { (note) } }
            }
            td.small { (details) }
        }
    }
}
