//! Lines: where jobs wait for their turn or their time. Schedules, gates and rate limits, and who waits at each.

use super::{
    cache::Console,
    guard::{Presser, Viewer, said, see_other},
    layout::{Page, Place},
    text::{age, job_link, moment, span},
};
use crate::{App, Caller, Problem};
use axum::{
    Extension,
    body::Bytes,
    extract::{Path, State},
    http::StatusCode,
    response::Response,
};
use maud::{Markup, html};
use std::{collections::HashMap, sync::Arc, time::Duration};
use tenure_jobs::{
    gate::{Gate, GateState},
    shared::{
        limit::{
            desk::{LimitView, Limits},
            model::{EACH, EVERYBODY},
        },
        schedule::{desk::Schedules, view::ScheduleView},
    },
};
use tenure_kernel::{
    error::StoreError,
    machine::{Machine as _, decode_state},
    store::HeadFilter,
    time::Timestamp,
};

/// Rows of each table; the API has the rest.
const ROWS_MAX: usize = 100;
/// Jobs of a row that are named.
const JOBS_MAX: usize = 8;

/// A gate of a tenant.
struct ShownGate {
    tenant: String,
    state: GateState,
}

/// `GET /lines`.
pub(super) async fn page(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Extension(console): Extension<Arc<Console>>,
) -> Response {
    let read = async {
        let glance = console.glance(&app, &caller).await?;
        let mine = caller.tenant.as_deref();
        let mut schedules = Schedules(app.pipeline().clone()).list(mine).await?;
        let mut limits = Limits(app.pipeline().clone()).list(mine).await?;
        let gates = gates(&app, &caller).await?;
        schedules.truncate(ROWS_MAX);
        limits.truncate(ROWS_MAX);
        let now = app.pipeline().store().now().await?;
        Ok::<_, StoreError>((glance, schedules, gates, limits, now))
    };
    let (glance, schedules, gates, limits, now) = match read.await {
        Ok(read) => read,
        Err(e) => return said(&e.into()),
    };
    let body = html! {
        h1 { "Lines" }
        p.small.dim { "Where jobs wait for their time or their turn. What a single job waits for is on its own page." }
        (self::schedules(&schedules, now))
        (self::gates_table(&gates, now))
        (self::limits(&limits))
    };
    Page {
        title: "Lines".into(),
        place: Place::Lines,
        live: None,
        now,
        glance: Some(&glance),
        caller: Some(&caller),
        body,
    }
    .respond(StatusCode::OK)
}

async fn gates(app: &App, caller: &Caller) -> Result<Vec<ShownGate>, StoreError> {
    let filter = HeadFilter {
        kind: Some(Gate::TABLE.kind.into()),
        tenant: caller.tenant.clone(),
        newest_first: true,
        ..HeadFilter::default()
    };
    let heads = app.pipeline().store().heads(filter, ROWS_MAX).await?;
    let shown = heads.into_iter().map(|head| {
        let state = decode_state::<Gate>(&head.state);
        let state = state.map_err(|e| StoreError::Corrupt(e.to_string()))?;
        Ok(ShownGate { tenant: head.tenant, state })
    });
    let mut gates = shown.collect::<Result<Vec<_>, StoreError>>()?;
    // Where somebody waits comes first.
    gates.sort_by_key(|g| std::cmp::Reverse(g.state.waiting()));
    Ok(gates)
}

fn schedules(schedules: &[ScheduleView], now: Timestamp) -> Markup {
    html! {
        div.card id="schedules" {
            div.cap { h2 { "Schedules" } }
            @if schedules.is_empty() { (empty("None yet.", "tenure schedule set nightly --cron '0 2 * * *' --zone Europe/Berlin --flow report")) }
            @else { div.scroll { table {
                thead { tr { th { "Name" } th { "When" } th { "Runs" } th { "Next" } th { "Last jobs" } th { "So far" } th {} } }
                tbody { @for schedule in schedules { (self::schedule(schedule, now)) } }
            } } }
        }
    }
}

fn schedule(schedule: &ScheduleView, now: Timestamp) -> Markup {
    let spec = &schedule.spec;
    let paused = schedule.status == "paused";
    html! {
        tr {
            td { strong { (schedule.name) } " " span.tag { (schedule.tenant) }
                @if let Some(why) = &schedule.attention { div.small { span.pill.attention { "!" } " " (why) } } }
            td.nowrap {
                @if let Some(cron) = &spec.cron { code { (cron) } div.small.dim { (spec.zone) } }
                @if let Some(ms) = spec.every_ms { "every " (span(Duration::from_millis(ms))) }
            }
            td { (spec.flow) span.dim { "@" (spec.version) } }
            td.nowrap {
                @if paused { span.pill { "paused" } }
                @else if let Some(next) = schedule.next_at { (moment(next)) div.small.dim { "in " (span(next.since(now))) } }
                @else { span.dim { "its calendar is over" } }
            }
            td { @for fire in schedule.fires.iter().take(JOBS_MAX / 2) { (job_link(fire.job)) " " } @if schedule.fires.is_empty() { span.dim { "–" } } }
            td.nowrap { (schedule.fired) " jobs" @if schedule.skipped > 0 { div.small.dim { (schedule.skipped) " times skipped" } } }
            td.nowrap {
                (button(schedule, if paused { "resume" } else { "pause" }))
                (button(schedule, "fire"))
            }
        }
    }
}

fn button(schedule: &ScheduleView, action: &str) -> Markup {
    let label = match action {
        "fire" => "Run now",
        "pause" => "Pause",
        _ => "Resume",
    };
    html! {
        form method="post" action={ "/lines/schedules/" (action) } {
            input type="hidden" name="name" value=(schedule.name);
            input type="hidden" name="tenant" value=(schedule.tenant);
            button { (label) }
        }
    }
}

fn gates_table(gates: &[ShownGate], now: Timestamp) -> Markup {
    html! {
        div.card id="gates" {
            div.cap { h2 { "Gates" } }
            @if gates.is_empty() { (empty("No job has named a gate.", "tenure job submit order @order.json --gate customer-42")) }
            @else { div.scroll { table {
                thead { tr { th { "Gate" } th { "At once" } th { "Through it now" } th { "Waiting" } th { "Let through" } } }
                tbody { @for gate in gates { (self::gate(gate, now)) } }
            } } }
        }
    }
}

fn gate(gate: &ShownGate, now: Timestamp) -> Markup {
    let ShownGate { tenant, state } = gate;
    let more = |all: usize| all.saturating_sub(JOBS_MAX);
    html! {
        tr {
            td { strong { (state.name) } " " span.tag { (tenant) } }
            td.nowrap { (state.limit) @if let Some(by) = &state.set_by { div.small.dim { "set by " (by) } } }
            td {
                @for holder in state.holders.iter().take(JOBS_MAX) { (job_link(holder.0)) " " span.small.dim { (age(holder.1, now)) } " " }
                @if more(state.holders.len()) > 0 { span.dim { "and " (more(state.holders.len())) " more" } }
                @if state.holders.is_empty() { span.dim { "nobody" } }
            }
            td {
                @if state.waiting() == 0 { span.dim { "nobody" } } @else { b { (state.waiting()) } ": " }
                @for waiter in state.window.iter().take(JOBS_MAX) { (job_link(waiter.0)) " " }
            }
            td { (state.granted) }
        }
    }
}

fn limits(limits: &[LimitView]) -> Markup {
    html! {
        div.card id="limits" {
            div.cap { h2 { "Rate limits" } }
            @if limits.is_empty() { (empty("No tool is limited.", "tenure limit set --tool http --rate 10/s --burst 20")) }
            @else { div.scroll { table {
                thead { tr { th { "Tool" } th { "Whose calls" } th { "Rate" } th { "A call now would wait" } th { "In line" } th { "Given out" } } }
                tbody { @for limit in limits { (self::limit(limit)) } }
            } } }
        }
    }
}

fn limit(limit: &LimitView) -> Markup {
    let spec = &limit.spec;
    let wait = Duration::from_millis(limit.wait_ms);
    html! {
        tr {
            td { strong { (spec.tool) } }
            td { @if spec.tenant == EVERYBODY { "everybody's together" } @else if spec.tenant == EACH { "each tenant's" } @else { span.tag { (spec.tenant) } } }
            td.nowrap { (spec.count) " in " (span(Duration::from_millis(spec.per_ms))) @if spec.burst > 1 { span.dim { ", " (spec.burst) " at once" } } }
            td.nowrap { @if wait.is_zero() { span.dim { "not at all" } } @else { (span(wait)) } }
            td.nowrap { @if limit.waiting == 0 { span.dim { "nobody" } } @else { "about " (limit.waiting) } }
            td { (limit.taken) }
        }
    }
}

fn empty(what: &str, command: &str) -> Markup {
    html! { div.empty { p { (what) } pre { (command) } } }
}

/// `POST /lines/schedules/{action}`.
pub(super) async fn act(
    State(app): State<App>,
    Presser(caller): Presser,
    Path(action): Path<String>,
    body: Bytes,
) -> Response {
    let fields: HashMap<String, String> = form_urlencoded::parse(&body).into_owned().collect();
    let field = |name: &str| fields.get(name).cloned().unwrap_or_default();
    let (name, tenant) = (field("name"), field("tenant"));
    if !caller.sees(&tenant) {
        return said(&Problem::not_found(format!("schedule {name:?}")));
    }
    let schedules = Schedules(app.pipeline().clone());
    let by = Some(match caller.key {
        Some(key) => format!("key {key}"),
        None => "console".to_owned(),
    });
    let done = match action.as_str() {
        "pause" => schedules.pause(&tenant, &name, by).await.map(|_| "/lines".to_owned()),
        "resume" => schedules.resume(&tenant, &name, by).await.map(|_| "/lines".to_owned()),
        // The job is there with the next round of the outbox; its page says so until then.
        "fire" => schedules.fire(&tenant, &name, None, by).await.map(|_| "/lines".to_owned()),
        other => return said(&Problem::not_found(format!("action {other:?}"))),
    };
    match done {
        Ok(page) => see_other(&page),
        Err(e) => said(&e.into()),
    }
}
