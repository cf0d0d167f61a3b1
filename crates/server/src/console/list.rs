//! Jobs, the newest first. What stands in a row is read from heads alone; a filter that the store has no index
//! for looks at a bounded number of heads and says how far it came.

use super::{
    cache::{COUNTED_MAX, Console, Glance},
    guard::{Viewer, said},
    layout::{Page, Place, workers},
    text::{age, job_link, pill, sentence},
};
use crate::{App, Caller, Problem, extract::Params};
use axum::{
    Extension,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use maud::{Markup, html};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tenure_jobs::{
    model::TABLE,
    view::{self, JobView},
};
use tenure_kernel::{error::StoreError, ids::EntityId, store::HeadFilter, time::Timestamp};
use tenure_steps::events::WaitKind;

/// Rows of a page.
const ROWS: usize = 50;
/// Heads that a filter by flow looks at before it gives back what it has.
const LOOKED_AT_MAX: usize = 2_000;
/// How much of a sentence a row shows.
const WHY_CHARS_MAX: usize = 220;

/// What is shown. Part of the address, so that a view can be sent to somebody.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Filters {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub status: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub flow: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    /// Marked for a person by the kernel: decisions about it fail.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fault: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
}

impl Filters {
    /// As the end of an address.
    pub(super) fn query(&self) -> String {
        let text = serde_urlencoded::to_string(self).unwrap_or_default();
        if text.is_empty() { text } else { format!("?{text}") }
    }

    fn with_status(&self, status: &str) -> Self {
        let (flow, tenant) = (self.flow.clone(), self.tenant.clone());
        Filters { status: status.to_owned(), flow, tenant, ..Filters::default() }
    }

    fn is_any(&self) -> bool {
        self.query().is_empty()
    }
}

/// A page of jobs.
pub(super) struct Listing {
    pub jobs: Vec<JobView>,
    /// Where the next page begins.
    pub next: Option<EntityId>,
    /// Heads that were looked at, where that is why there are few.
    pub gave_up: bool,
    pub now: Timestamp,
    pub glance: Arc<Glance>,
}

/// Reads one page.
pub(super) async fn read(
    app: &App,
    console: &Console,
    caller: &Caller,
    filters: &Filters,
) -> Result<Listing, StoreError> {
    let store = app.pipeline().store();
    let glance = console.glance(app, caller).await?;
    let wanted = (!filters.tenant.is_empty()).then(|| filters.tenant.clone());
    let mut filter = HeadFilter {
        kind: Some(TABLE.kind.into()),
        status: (!filters.status.is_empty()).then(|| filters.status.clone()),
        // A caller of one tenant asks for another in vain.
        tenant: caller.tenant.clone().or(wanted),
        attention: !filters.fault.is_empty(),
        newest_first: true,
        before: filters.before.as_deref().and_then(|b| b.parse().ok()),
        ..HeadFilter::default()
    };
    let (mut jobs, mut next, mut looked_at) = (Vec::new(), None, 0);
    'pages: loop {
        let heads = store.heads(filter.clone(), ROWS + 1).await?;
        for head in heads.iter().take(ROWS) {
            let job = view::listed(head);
            looked_at += 1;
            if filters.flow.is_empty() || job.flow == filters.flow {
                jobs.push(named(job, &glance));
            }
            if jobs.len() == ROWS {
                next = (heads.last().map(|h| h.id) != Some(head.id)).then_some(head.id);
                break 'pages;
            }
        }
        if heads.len() <= ROWS {
            break;
        }
        // Where the last one that was looked at stands; the one beyond is looked at again.
        filter.before = heads.get(ROWS - 1).map(|h| h.id);
        if looked_at >= LOOKED_AT_MAX {
            next = filter.before;
            break;
        }
    }
    let now = store.now().await?;
    let gave_up = next.is_some() && jobs.len() < ROWS;
    Ok(Listing { jobs, next, gave_up, now, glance })
}

/// Puts the name of a living holder in place of its id.
fn named(mut job: JobView, glance: &Glance) -> JobView {
    if let Some(holder) = &mut job.holder
        && let Some(session) = glance.name_of(holder.session)
    {
        holder.name.clone_from(&session.name);
        holder.expires_at = Some(session.expires_at);
    }
    job
}

/// `GET /` and `GET /jobs`.
pub(super) async fn page(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Extension(console): Extension<Arc<Console>>,
    filters: Result<Params<Filters>, Problem>,
) -> Response {
    let filters = match filters {
        Ok(Params(filters)) => filters,
        Err(problem) => return problem.into_response(),
    };
    let listing = match read(&app, &console, &caller, &filters).await {
        Ok(listing) => listing,
        Err(e) => return said(&e.into()),
    };
    let body = html! {
        div.head { h1 { "Jobs" } }
        div.filters { div.chips id="chips" { (chips(&listing, &filters)) } (search(&caller, &filters)) }
        div.card id="rows" { (rows(&listing, &filters)) }
    };
    // A page further back does not move.
    let live = filters.before.is_none().then(|| format!("/console/live/jobs{}", filters.query()));
    Page {
        title: "Jobs".into(),
        place: Place::Jobs,
        live,
        now: listing.now,
        glance: Some(&listing.glance),
        caller: Some(&caller),
        body,
    }
    .respond(StatusCode::OK)
}

/// What [`super::live`] watches.
pub(super) fn parts(listing: &Listing, filters: &Filters) -> Vec<(&'static str, String)> {
    vec![
        ("glance", workers(&listing.glance).into_string()),
        ("chips", chips(listing, filters).into_string()),
        ("rows", rows(listing, filters).into_string()),
    ]
}

fn chips(listing: &Listing, filters: &Filters) -> Markup {
    let chip = |status: &str, label: &str, count: Option<usize>| {
        let here = filters.status == status && filters.fault.is_empty();
        let class = format!(
            "chip {} {}",
            if count == Some(0) { "zero" } else { "" },
            if status == "attention" { "attention" } else { "" }
        );
        html! {
            a class=(class) href={ "/jobs" (filters.with_status(status).query()) } aria-current=[here.then_some("true")] {
                (label)
                @match count {
                    Some(n) if n > COUNTED_MAX => { b { (COUNTED_MAX) "+" } }
                    Some(n) => { b { (n) } }
                    None => {}
                }
            }
        }
    };
    html! {
        (chip("", "all", None))
        @for (status, count) in &listing.glance.counts { (chip(status, status, Some(*count))) }
    }
}

fn search(caller: &Caller, filters: &Filters) -> Markup {
    html! {
        form method="get" action="/jobs" {
            @if !filters.status.is_empty() { input type="hidden" name="status" value=(filters.status); }
            label.field for="flow" { "flow " input id="flow" name="flow" value=(filters.flow) size="18"; }
            @if caller.tenant.is_none() {
                label.field for="tenant" { "tenant " input id="tenant" name="tenant" value=(filters.tenant) size="12"; }
            }
            label for="fault" { input id="fault" type="checkbox" name="fault" value="1" checked[!filters.fault.is_empty()]; " rules that fail" }
            button { "Show" }
            @if !filters.is_any() { a.button href="/jobs" { "Clear" } }
        }
    }
}

fn rows(listing: &Listing, filters: &Filters) -> Markup {
    if listing.jobs.is_empty() && filters.is_any() {
        return first_job();
    }
    html! {
        @if listing.jobs.is_empty() {
            div.empty { "No job is like that" @if listing.gave_up { ", among the newest " (LOOKED_AT_MAX) } "." }
        } @else {
            table.jobs {
                thead { tr { th { "Status" } th { "Job" } th { "Now" } th { "Why" } th.right { "Age" } } }
                tbody { @for job in &listing.jobs { (row(job, listing.now)) } }
            }
        }
        @if filters.before.is_some() || listing.next.is_some() {
            div.pages {
                @if filters.before.is_some() { a href={ "/jobs" (Filters { before: None, ..filters.clone() }.query()) } { "← Newest" } } @else { span {} }
                @if let Some(next) = listing.next {
                    @if listing.gave_up { span.dim { "Looked at " (LOOKED_AT_MAX) " jobs." } }
                    a rel="next" href={ "/jobs" (Filters { before: Some(next.to_string()), ..filters.clone() }.query()) } { "Older →" }
                }
            }
        }
    }
}

fn row(job: &JobView, now: Timestamp) -> Markup {
    html! {
        tr {
            td { (pill(&job.status, false)) }
            td.job {
                a href={ "/jobs/" (job.id) } { (job.flow) } span.dim { "@" (job.version) } " "
                br; (job_link(job.id))
                @if !job.tenant.is_empty() { " " span.tag { (job.tenant) } }
            }
            td.now { (now_running(job)) }
            td.why { (sentence(job, now, WHY_CHARS_MAX)) }
            td.right.nowrap { (age(job.created_at, now)) }
        }
    }
}

fn waits_for(kind: WaitKind) -> &'static str {
    match kind {
        WaitKind::Human => "decision",
        other => other.as_str(),
    }
}

/// The step that runs, and by whom.
fn now_running(job: &JobView) -> Markup {
    html! {
        @if let Some(call) = job.running.first() {
            code { (call.step) } " " (call.tool)
            @if job.running.len() > 1 { span.dim { " +" (job.running.len() - 1) } }
            @if call.unknown.is_some() { " " span.pill.unknown { "unknown" } }
        } @else if let Some(wait) = job.waits.first() {
            code { (wait.step) } " " span.dim { (waits_for(wait.kind)) " " } (wait.key)
        } @else if let Some(timer) = job.timers.first() { code { (timer.step) } span.dim { " sleeps" } }
        @else if let Some(child) = job.children.first() { code { (child.step) } span.dim { " child " } (job_link(child.job)) }
        @else { span.dim { "–" } }
        @if let Some(holder) = &job.holder { br; span.dim.small { "by " (holder.name) } }
    }
}

fn first_job() -> Markup {
    html! {
        div.empty {
            p { strong { "No job yet." } " Submit the first one:" }
            pre { "tenure job submit ask '{\"question\": \"Shall we begin?\"}'\n\n"
                "curl -X POST localhost:7777/v1/jobs -H 'content-type: application/json' \\\n     -d '{\"flow\": \"ask\", \"input\": {\"question\": \"Shall we begin?\"}}'" }
            p.small { "It asks a person; the person is you, and the button will be here. " a href="/flows" { "All flows" } }
        }
    }
}
