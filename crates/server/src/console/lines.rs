//! Lines: where jobs wait for their turn or their time. Schedules, gates and rate limits, and who waits at each; and what tenants
//! use of their quotas.

use super::{
    api::Fields,
    cache::Console,
    guard::{Presser, Viewer, said, see_other},
    layout::{Page, Place},
    text::{age, job_link, moment, span},
};
use crate::{
    App, Caller, Problem,
    extract::Named,
    jobs::{body::Maybe, catalogue::Name, schedules},
};
use axum::{
    Extension,
    body::Bytes,
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
    response::Response,
};
use maud::{Markup, html};
use std::{sync::Arc, time::Duration};
use tenure_engine::quota::Usage;
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
    blocks::{Block, BlockKind, BlockList},
    error::StoreError,
    machine::{Machine as _, decode_state},
    quota::QuotaPart,
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
        let mut quotas = match app.pipeline().quotas() {
            Some(quotas) => quotas.usage(mine).await?,
            None => Vec::new(),
        };
        quotas.truncate(ROWS_MAX);
        let now = app.pipeline().store().now().await?;
        let blocks = app.pipeline().blocks().current(app.pipeline()).await?;
        Ok::<_, StoreError>((glance, schedules, gates, limits, quotas, blocks, now))
    };
    let (glance, schedules, gates, limits, quotas, blocks, now) = match read.await {
        Ok(read) => read,
        Err(e) => return said(&e.into()),
    };
    let body = html! {
        h1 { "Lines" }
        p.small.dim { "Where jobs wait for their time or their turn. What a single job waits for is on its own page." }
        (self::blocks(&blocks, &caller))
        (self::schedules(&schedules, now))
        (self::gates_table(&gates, now))
        (self::limits(&limits))
        (self::quotas(&quotas))
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

/// What an operator has blocked. A tenant sees the block of itself, and those of flows and tools.
fn blocks(blocks: &BlockList, caller: &Caller) -> Markup {
    let is_shown = |b: &&Block| match (&caller.tenant, b.kind) {
        (Some(mine), BlockKind::Tenant) => b.name == *mine,
        _ => true,
    };
    let shown: Vec<&Block> = blocks.all().iter().filter(is_shown).collect();
    html! {
        @if !shown.is_empty() { div.card id="blocks" {
            div.cap { h2 { "Blocked" } }
            div.scroll { table {
                thead { tr { th { "What" } th { "Name" } th { "Since" } th { "Why" } } }
                tbody { @for block in shown { tr {
                    td { (block.kind) }
                    td { strong { (block.name) } }
                    td.nowrap { (moment(block.since)) }
                    td { (block.why) }
                } } }
            } }
        } }
    }
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

/// Shown where there are any: a server without quotas has nothing to say about them.
fn quotas(quotas: &[Usage]) -> Markup {
    html! {
        @if !quotas.is_empty() { div.card id="quotas" {
            div.cap { h2 { "Quotas" } }
            div.scroll { table {
                thead { tr { th { "Tenant" } th { "Of what" } th { "Used" } th { "Quota" } th { "Refused here" } } }
                tbody { @for quota in quotas { (self::quota(quota)) } }
            } }
        } }
    }
}

fn quota(quota: &Usage) -> Markup {
    let what = match quota.part {
        QuotaPart::Open => "open jobs, turns and tasks",
        QuotaPart::Bytes => "bytes stored",
        QuotaPart::PerSecond => "submissions in a second",
    };
    html! {
        tr {
            td { span.tag { (quota.tenant) } }
            td { (what) }
            td { @match quota.used { Some(used) => { (used) } None => { span.dim { "–" } } } }
            td { (quota.limit) }
            td { (quota.refused) }
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
    match carry_out(&app, caller, &action, &Fields::read(&body)).await {
        Ok(()) => see_other("/lines"),
        Err(problem) => said(&problem),
    }
}

async fn carry_out(
    app: &App,
    caller: Caller,
    action: &str,
    fields: &Fields,
) -> Result<(), Problem> {
    let (name, tenant) = (fields.text("name").unwrap_or_default(), fields.text("tenant"));
    if !caller.sees(tenant.unwrap_or_default()) {
        return Err(Problem::not_found(format!("schedule {name:?}")));
    }
    let (state, named) = (State(app.clone()), Named(Name(name.to_owned())));
    // A caller of one tenant may not name any.
    let tenant = tenant.filter(|_| caller.tenant.is_none());
    let ask = Maybe(fields.body(&[]).with_some("tenant", tenant).read()?);
    match action {
        "pause" => drop(schedules::pause(state, caller, named, ask).await?),
        "resume" => drop(schedules::resume(state, caller, named, ask).await?),
        // The job is there with the next round of the outbox; its page says so until then.
        "fire" => drop(schedules::fire(state, caller, named, HeaderMap::new(), ask).await?),
        other => return Err(Problem::not_found(format!("action {other:?}"))),
    }
    Ok(())
}
