//! Tasks, the newest first, and what the retries of their tenants may cost.

use super::{
    api::Fields,
    cache::{COUNTED_MAX, Console, Glance},
    guard::{Presser, Viewer, said, see_other},
    layout::{Page, Place, workers},
    task::{cause, task_link},
    text::{age, excerpt, for_a_page, pill},
};
use crate::{
    App, Caller, Problem,
    extract::{Named, Params},
    jobs::{body::Json, catalogue::Name},
    keys::Scope,
    paging::newest,
    tasks::{budgets, desk},
};
use axum::{
    Extension,
    body::Bytes,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use maud::{Markup, html};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tenure_kernel::{ids::EntityId, store::HeadFilter, time::Timestamp};
use tenure_pods::{
    desk::{BudgetView, letters},
    task::{Task, TaskState},
    verdict::Cause,
    view::{TaskView, task_view, why},
};

/// Rows of a page.
const ROWS: usize = 50;
/// How much of a sentence a row shows.
const WHY_CHARS_MAX: usize = 220;
/// Budgets that are shown.
const BUDGETS_MAX: usize = 50;

/// What is shown. Part of the address, so that a view can be sent to somebody.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Filters {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub status: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub workflow: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cause: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    /// Failed, and nobody has dealt with it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub dead: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
}

impl Filters {
    fn query(&self) -> String {
        let text = serde_urlencoded::to_string(self).unwrap_or_default();
        if text.is_empty() { text } else { format!("?{text}") }
    }

    fn with_status(&self, status: &str, dead: bool) -> Self {
        Filters {
            status: status.to_owned(),
            dead: if dead { "1".to_owned() } else { String::new() },
            before: None,
            ..self.clone()
        }
    }

    fn admits(&self, state: &TaskState) -> bool {
        let has = state.ended.as_ref().and_then(|e| e.cause).map(Cause::name);
        (self.workflow.is_empty() || state.workflow_id == self.workflow)
            && (self.cause.is_empty() || has == Some(self.cause.as_str()))
    }
}

/// A page of tasks.
pub(super) struct Listing {
    tasks: Vec<TaskView>,
    next: Option<EntityId>,
    budgets: Vec<BudgetView>,
    now: Timestamp,
    glance: Arc<Glance>,
    may_set: bool,
}

/// Reads one page.
pub(super) async fn read(
    app: &App,
    console: &Console,
    caller: &Caller,
    filters: &Filters,
) -> Result<Listing, Problem> {
    let store = app.pipeline().store();
    let glance = console.glance(app, caller).await?;
    let wanted = (!filters.tenant.is_empty()).then(|| filters.tenant.clone());
    // A caller of one tenant asks for another in vain.
    let tenant = caller.tenant.clone().or(wanted);
    let before = filters.before.as_deref().and_then(|b| b.parse().ok());
    let admits = |state: &TaskState| filters.admits(state);
    let known = |s: &str| {
        <Task as tenure_kernel::machine::Machine>::TABLE.statuses.iter().any(|row| row.name == s)
    };
    let (found, next) = match filters.dead.is_empty() {
        false => {
            let page = letters::dead_letters(store, tenant.as_deref(), before, ROWS, admits);
            let page = page.await?;
            (page.tasks, page.next)
        }
        true => {
            let status = Some(filters.status.clone()).filter(|s| known(s));
            let filter = HeadFilter { status, tenant, before, ..HeadFilter::default() };
            newest::<Task>(app, filter, ROWS, admits).await?
        }
    };
    let mut tasks = Vec::with_capacity(found.len());
    for (head, _) in &found {
        tasks.push(task_view(store, head).await?);
    }
    let mut budgets = desk(app)?.budgets(caller.tenant.as_deref()).await?;
    budgets.truncate(BUDGETS_MAX);
    let may_set = caller.may(Scope::Admin) && caller.tenant.is_none();
    Ok(Listing { tasks, next, budgets, now: store.now().await?, glance, may_set })
}

/// `GET /tasks`.
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
        Err(problem) => return said(&problem),
    };
    let body = html! {
        div.head { h1 { "Tasks" } }
        div.filters { div.chips id="chips" { (chips(&listing, &filters)) } (search(&caller, &filters)) }
        div.card id="rows" { (rows(&listing, &filters)) }
        div id="budgets" { (budgets(&listing)) }
    };
    // A page further back does not move.
    let live = filters.before.is_none().then(|| format!("/console/live/tasks{}", filters.query()));
    Page {
        title: "Tasks".into(),
        place: Place::Tasks,
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
        ("budgets", budgets(listing).into_string()),
    ]
}

fn chips(listing: &Listing, filters: &Filters) -> Markup {
    let chip = |status: &str, label: &str, count: Option<usize>, dead: bool| {
        let here = filters.status == status && filters.dead.is_empty() != dead;
        let class = if count == Some(0) { "chip zero" } else { "chip" };
        html! {
            a class=(class) href={ "/tasks" (filters.with_status(status, dead).query()) } aria-current=[here.then_some("true")] {
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
        (chip("", "all", None, false))
        @for (status, count) in &listing.glance.tasks { (chip(status, &status.to_lowercase(), Some(*count), false)) }
        (chip("", "dead letters", None, true))
    }
}

fn search(caller: &Caller, filters: &Filters) -> Markup {
    html! {
        form method="get" action="/tasks" {
            @if !filters.status.is_empty() { input type="hidden" name="status" value=(filters.status); }
            @if !filters.dead.is_empty() { input type="hidden" name="dead" value="1"; }
            label.field for="workflow" { "workflow " input id="workflow" name="workflow" value=(filters.workflow) size="14"; }
            label.field for="cause" { "cause " input id="cause" name="cause" value=(filters.cause) size="14"; }
            @if caller.tenant.is_none() {
                label.field for="tenant" { "tenant " input id="tenant" name="tenant" value=(filters.tenant) size="10"; }
            }
            button { "Show" }
            @if !filters.query().is_empty() { a.button href="/tasks" { "Clear" } }
        }
    }
}

fn rows(listing: &Listing, filters: &Filters) -> Markup {
    if listing.tasks.is_empty() && filters.query().is_empty() {
        return html! {
            div.empty {
                p { strong { "No task yet." } " Order one, or point a collector at your cluster:" }
                pre { "tenure task run '{\"spec\": {\"containers\": [{\"name\": \"main\", \"image\": \"busybox\", \"args\": [\"true\"]}]}}'\ntenure collector" }
            }
        };
    }
    html! {
        @if listing.tasks.is_empty() { div.empty { "No task is like that." } }
        @else {
            table.jobs {
                thead { tr { th { "Status" } th { "Task" } th { "Attempt" } th { "Cause" } th { "Why" } th.right { "Age" } } }
                tbody { @for task in &listing.tasks { (row(task, listing.now)) } }
            }
        }
        @if filters.before.is_some() || listing.next.is_some() {
            div.pages {
                @if filters.before.is_some() { a href={ "/tasks" (Filters { before: None, ..filters.clone() }.query()) } { "← Newest" } } @else { span {} }
                @if let Some(next) = listing.next {
                    a rel="next" href={ "/tasks" (Filters { before: Some(next.to_string()), ..filters.clone() }.query()) } { "Older →" }
                }
            }
        }
    }
}

fn row(task: &TaskView, now: Timestamp) -> Markup {
    let own = task.task_id != task.id.to_string();
    html! {
        tr {
            td { (pill(&task.status, false)) }
            td.job {
                @if !task.name.is_empty() { a href={ "/tasks/" (task.id) } { (excerpt(&task.name, 60).0) } br; }
                @else if own { a href={ "/tasks/" (task.id) } { (excerpt(&task.task_id, 60).0) } br; }
                (task_link(task.id))
                @if !task.tenant.is_empty() { " " span.tag { (excerpt(&task.tenant, 40).0) } }
                @if !task.workflow_id.is_empty() { " " span.small.dim { (excerpt(&task.workflow_id, 40).0) } }
            }
            td.nowrap { (task.attempt) @if !task.external { span.dim { " of " (task.attempts_max) } } }
            td { @if let Some(ended) = &task.ended { (cause(ended)) } @else { span.dim { "–" } } }
            td.why { (for_a_page(&why(task, now), WHY_CHARS_MAX)) }
            td.right.nowrap { (age(task.created_at, now)) }
        }
    }
}

fn budgets(listing: &Listing) -> Markup {
    html! {
        @if !listing.budgets.is_empty() {
            div.card {
                div.cap { h2 { "Retry budgets" } span.small.dim { "what the retries of a tenant may cost together; a retry without a place waits, and is not lost" } }
                div.scroll { table {
                    thead { tr { th { "Tenant" } th.right { "Per minute" } th.right { "Burst" } th.right { "Under way" } th.right { "Could start now" } th.right { "Given" } th.right { "Put off" } th { "Set by" } @if listing.may_set { th { "Change" } } } }
                    tbody { @for b in &listing.budgets { tr {
                        td.nowrap { span.tag { (excerpt(&b.tenant, 60).0) } }
                        td.right { (b.per_minute) } td.right { (b.burst) }
                        td.right { (b.in_flight) span.dim { " of " (b.in_flight_max) } }
                        td.right { (b.tokens) @if b.tokens == 0 { " " span.pill.retrying { "empty" } } }
                        td.right { (b.granted) } td.right { (b.deferred) }
                        td { @match &b.set_by { Some(by) => (excerpt(by, 60).0), None => span.dim { "settings" } } }
                        @if listing.may_set { td.nowrap {
                            form.inline method="post" action={ "/tasks/budgets/" (encoded(&b.tenant)) } {
                                label.field { "per minute " input name="per_minute" value=(b.per_minute) size="6"; }
                                label.field { "under way " input name="in_flight" value=(b.in_flight_max) size="4"; }
                                button { "Set" }
                            }
                        } }
                    } } }
                } }
            }
        }
    }
}

/// A part of a path.
fn encoded(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>().replace('+', "%20")
}

/// `POST /tasks/budgets/{tenant}`.
pub(super) async fn set_budget(
    State(app): State<App>,
    Presser(caller): Presser,
    Path(tenant): Path<String>,
    body: Bytes,
) -> Response {
    match budget(&app, caller, tenant, &Fields::read(&body)).await {
        Ok(()) => see_other("/tasks"),
        Err(problem) => said(&problem),
    }
}

async fn budget(app: &App, caller: Caller, tenant: String, fields: &Fields) -> Result<(), Problem> {
    let terms = fields
        .body(&[])
        .with_some("per_minute", fields.number("per_minute")?)
        .with_some("burst", fields.number("burst")?)
        .with_some("in_flight", fields.number("in_flight")?);
    let (state, named) = (State(app.clone()), Named(Name(tenant)));
    budgets::set(state, caller, named, Json(terms.read()?)).await.map(drop)
}
