//! One turn: why it is where it is, what it waits for, what the model said, which tools it called, which rules fired.

use super::{
    agents::{agent_path, item_row},
    api::Fields,
    cache::Console,
    guard::{Presser, Viewer, said},
    layout::Place,
    one::{
        Entity, Frame, Line, Look, One, Parts, Rule, WHY_CHARS_MAX, bad, did, fact, history,
        may_only_look, pressed, respond, rules, until,
    },
    text::{age, excerpt, fold, for_a_page, job_link, moment, pill, short, span, value},
};
use crate::{
    App, Caller, Problem,
    agents::{asks, inbox},
    extract::{Named, Params},
    jobs::body::{JobAnd, Json, Maybe},
};
use axum::{
    Extension,
    body::Bytes,
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
    response::Response,
};
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;
use tenure_agents::{
    desk::Desk,
    turn::model::TurnEnd,
    view::{
        self, CallView, Item, ItemStatus, StepView, TimelineEntry, TurnDetail, TurnView,
        inbox::items,
    },
};
use tenure_kernel::{ids::EntityId, time::Timestamp};

/// Steps that a page shows, the newest.
const STEPS_MAX: usize = 60;

/// A link to a turn.
pub(super) fn turn_link(id: EntityId) -> Markup {
    html! { a href={ "/turns/" (id) } title=(id) { code { (short(id)) } } }
}

fn desk(app: &App) -> Result<&Desk, Problem> {
    app.agents().ok_or_else(|| Problem::not_found("page of turns on this server"))
}

/// Everything a page about a turn shows.
pub(super) struct Shown {
    detail: TurnDetail,
    items: Vec<Item>,
    look: Look,
}

/// What came of the last press.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Asked {
    did: Option<String>,
}

impl One for Shown {
    fn look(&self) -> &Look {
        &self.look
    }

    fn frame(&self) -> Frame {
        let TurnView { id, agent, tenant, is_final, .. } = &self.detail.turn;
        Frame {
            title: format!("Turn of {agent} {}", short(*id)),
            place: Place::Agents,
            crumbs: html! {
                a href="/agents" { "Agents" } " / " a href=(agent_path(tenant, agent)) { (agent) }
                " / " span.mono { (id) }
            },
            live: (!is_final).then(|| format!("/console/live/turns/{id}")),
        }
    }

    fn parts(&self) -> Parts {
        let (detail, now) = (&self.detail, self.look.now);
        vec![
            ("top", top(&detail.turn, now).into_string()),
            ("moves", moves(self).into_string()),
            ("talk", talk(detail, now).into_string()),
            ("deliverable", deliverable(detail).into_string()),
            ("inbox", letters(self).into_string()),
            ("timeline", timeline(detail).into_string()),
        ]
    }
}

impl Entity for Shown {
    async fn read(
        app: &App,
        console: &Console,
        caller: &Caller,
        id: EntityId,
    ) -> Result<Self, Problem> {
        let store = app.pipeline().store();
        let (head, _) = desk(app)?.turn(caller.tenant.as_deref(), id).await?;
        let detail = view::detail(store, &head).await?;
        let items = items(store, &head).await?;
        Ok(Shown { detail, items, look: Look::at(app, console, caller).await? })
    }

    fn look_again(&mut self, look: Look) {
        self.look = look;
    }

    fn moving(&self) -> Parts {
        let turn = &self.detail.turn;
        if turn.is_final {
            return Vec::new();
        }
        vec![("top", top(turn, self.look.now).into_string())]
    }
}

/// `GET /turns/{id}`.
pub(super) async fn page(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Extension(console): Extension<Arc<Console>>,
    id: Result<Named<EntityId>, Problem>,
    asked: Result<Params<Asked>, Problem>,
) -> Response {
    let id = match id {
        Ok(Named(id)) => id,
        Err(problem) => return said(&problem),
    };
    let shown = match Shown::read(&app, &console, &caller, id).await {
        Ok(shown) => shown,
        Err(problem) => return said(&problem),
    };
    let asked = asked.ok().and_then(|Params(asked)| asked.did);
    let words = match asked.as_deref() {
        Some("stop") => Some("The turn was asked to end."),
        Some("resume") => Some("Nobody waits any longer; the turn goes on."),
        Some("finish") => Some("The turn was ended with what you gave."),
        Some("result") => Some("The result is on record."),
        Some("requeue") => Some("The letter was sent again."),
        Some("skip") => Some("The letter was put aside."),
        _ => None,
    };
    respond(&shown, &caller, did(words), StatusCode::OK)
}

fn top(turn: &TurnView, now: Timestamp) -> Markup {
    html! {
        div.head {
            (pill(&turn.status, true))
            @if turn.forced { span.pill.retrying { "forced" } }
            h1 { "Turn of " a href=(agent_path(&turn.tenant, &turn.agent)) { (turn.agent) } }
            @if !turn.tenant.is_empty() { span.tag { (turn.tenant) } }
        }
        p.why { (for_a_page(&view::why(turn, now), WHY_CHARS_MAX)) }
        @if let Some(fault) = &turn.fault { (bad("A rule fails on this turn:", fault)) }
        dl.facts.small {
            (fact("sent", html! { (age(turn.created_at, now)) " ago" }))
            @if turn.is_final { (fact("took", html! { (span(turn.changed_at.since(turn.created_at))) })) }
            @if let Some(holder) = &turn.holder { (fact("worker", html! { (holder.name) })) }
            (fact("turn epoch", html! { (turn.turn_epoch) }))
            (fact("step", html! { (turn.step) @if turn.attempt > 1 { ", begun " (turn.attempt) " times" } }))
            @if turn.takeovers > 0 { (fact("workers lost", html! { (turn.takeovers) " of " (turn.takeovers_max) })) }
            @if let Some(id) = &turn.correlation_id { (fact("correlation", html! { code { (excerpt(id, 60).0) } })) }
            @if let Some(channel) = &turn.channel { (fact("channel", html! { (channel) })) }
            @if let Some(parent) = turn.parent { (fact("asked for by", html! { (turn_link(parent)) })) }
            @if let Some(by) = turn.must_end_by { @if !turn.is_final { (fact("ends by", html! { (moment(by)) })) } }
        }
        @if !turn.waits.is_empty() || !turn.next_rules.is_empty() {
            div.two {
                @if !turn.waits.is_empty() {
                    div.card { div.cap { h2 { "Waits for" } } table {
                        thead { tr { th { "Wait" } th { "Tool" } th { "Answered by" } th.right { "Time left" } } }
                        tbody { @for wait in &turn.waits { tr {
                            td { code { (wait.wait) } }
                            td { (excerpt(&wait.tool, 60).0) div.small.dim { (excerpt(&wait.tool_call_id, 60).0) } }
                            td {
                                (wait.by) @if let Some(of) = wait.of { " " (answered_by(&wait.by, of)) }
                                @for one in &wait.turns { div.small { (turn_link(one.turn)) " " (excerpt(&one.agent, 40).0) " " (one.status) } }
                            }
                            td.right.nowrap { @match wait.deadline { Some(at) => (until(at, now)), None => span.dim { "as long as the turn" } } }
                        } } }
                    } }
                }
                (rules(turn.next_rules.iter().map(|r| Rule { name: &r.rule, wait: r.wait.as_deref(), at: r.at }), now))
            }
        }
    }
}

fn answered_by(by: &str, of: EntityId) -> Markup {
    match by {
        "job" => job_link(of),
        "turn" => turn_link(of),
        _ => html! { code title=(of) { (short(of)) } },
    }
}

fn moves(shown: &Shown) -> Markup {
    let turn = &shown.detail.turn;
    if turn.is_final {
        return html! {};
    }
    if !shown.look.may_press {
        return may_only_look();
    }
    let to = |action: &str| format!("/turns/{}/{action}", turn.id);
    html! {
        div.card {
            div.moves {
                @for wait in turn.waits.iter().filter(|w| w.by == "message").take(6) {
                    section.move {
                        h3 { "Answer " code { (wait.wait) } " for " (excerpt(&wait.tool, 60).0) }
                        form method="post" action=(to("result")) {
                            input type="hidden" name="wait" value=(wait.wait);
                            textarea id={ "result-" (wait.wait) } name="result" rows="2" placeholder="The result, as JSON" {}
                            button.go { "Hand in" }
                        }
                    }
                }
            }
            div.quiet {
                @if turn.status == "suspended" {
                    form method="post" action=(to("resume")) { button { "Wait no longer" } }
                }
                form method="post" action=(to("stop")) { button.no { "Stop" } }
                @if turn.status != "queued" {
                    details id="finish" {
                        summary { "Finish it by hand" }
                        form method="post" action=(to("finish")) {
                            label for="status" { "as " }
                            select id="status" name="status" {
                                option value="partial" { "partial" } option value="success" { "success" } option value="failed" { "failed" }
                            }
                            textarea id="content" name="deliverable" rows="2" placeholder="What is delivered, as JSON; a fallback without it" {}
                            button { "Finish" }
                        }
                    }
                }
            }
        }
    }
}

/// What was said and done: messages, steps, tool calls.
fn talk(detail: &TurnDetail, now: Timestamp) -> Markup {
    let hidden = detail.steps.len().saturating_sub(STEPS_MAX);
    html! {
        div.card {
            div.cap { h2 { "What was said" } span.small.dim { (detail.steps.len()) " steps" } }
            div.in {
                @for message in detail.messages.iter().rev().take(6).rev() { (said_by(message)) }
                @if detail.messages.len() > 6 { p.small.dim { (detail.messages.len() - 6) " earlier messages are not shown." } }
                @if hidden > 0 { p.small.dim { (hidden) " older steps are not shown." } }
                @for step in detail.steps.iter().skip(hidden) { (self::step(step, now)) }
                @if detail.steps.is_empty() { p.dim { "No step has begun." } }
            }
        }
    }
}

fn said_by(message: &Value) -> Markup {
    let role = message.get("role").and_then(Value::as_str).unwrap_or("?");
    let content = match message.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(other) if !other.is_null() => other.to_string(),
        _ => String::new(),
    };
    html! {
        div.said {
            span.tag { (excerpt(role, 20).0) } " "
            span { (excerpt(&content, 1_200).0) }
        }
    }
}

fn step(step: &StepView, now: Timestamp) -> Markup {
    let took = step.started_at.map(|at| span(step.finished_at.unwrap_or(now).since(at)));
    html! {
        div.said {
            span.tag { "step " (step.step) } " "
            @if let Some(took) = took { span.small.dim { (took) @if step.finished_at.is_none() { " so far" } } }
            @if step.attempts > 1 { " " span.pill.retrying { "begun " (step.attempts) " times" } }
            @if step.finished_at.is_none() { " " span.pill.running { "▶ the model is asked" } }
            @if !step.message.is_null() { (said_by(&step.message)) }
            @for call in &step.calls { (self::call(call)) }
            @if !step.usage.is_null() { div.small.dim { (excerpt(&step.usage.to_string(), 120).0) } }
        }
    }
}

fn call(call: &CallView) -> Markup {
    let pill = match call.status.as_deref() {
        None => html! { span.pill.waiting { "◷ waits" } },
        Some("success") => html! { span.pill.good { "✓ success" } },
        Some("partial") => html! { span.pill.retrying { "partial" } },
        Some(other) => html! { span.pill.bad { "✕ " (other) } },
    };
    html! {
        div.call {
            code { (call.wait) } " " strong { (excerpt(&call.tool, 60).0) } " " (pill) " "
            @if let Some(of) = call.of { span.dim { (call.by) " " } (answered_by(&call.by, of)) " " }
            @if let Some(at) = call.answered_at { span.small.dim { "after " (span(at.since(call.called_at))) } }
            @if let Some(error) = &call.error { div { (fold(&format!("e{}", call.wait), error)) } }
            @if !call.result.is_null() { div { (fold(&format!("r{}", call.wait), &call.result.to_string())) } }
        }
    }
}

fn deliverable(detail: &TurnDetail) -> Markup {
    let api = format!("/v1/turns/{}/deliverable", detail.turn.id);
    html! {
        @if let Some(TurnEnd { deliverable, no_deliverable, error, forced, .. }) = &detail.end {
            div.card {
                div.cap {
                    h2 { "Deliverable" }
                    @if let Some(d) = deliverable {
                        span.small { "in " code { (d.output_box) } " as " code { (d.card_id) } }
                        @if d.fallback { span.pill.retrying { "fallback" } }
                    }
                }
                div.in {
                    @match deliverable { Some(d) => (value(&d.content, &api)), None => p.dim { (no_deliverable.as_deref().unwrap_or("none")) } }
                    @if let Some(e) = error { p { strong { (e.code) } " " (excerpt(&e.message, 400).0) } }
                    @if let Some(f) = forced { p.small { "Forced: " code { (f.reason) } " while it was " (f.status) @if let Some(by) = &f.by { ", by " (excerpt(by, 100).0) } } }
                }
            }
        }
    }
}

fn letters(shown: &Shown) -> Markup {
    let turn = &shown.detail.turn;
    let to = |item: &str, how: &str| {
        let item = serde_urlencoded::to_string([("item", item)]).unwrap_or_default();
        format!("/turns/{}/{how}?{item}", turn.id)
    };
    html! {
        @if !shown.items.is_empty() {
            div.card {
                div.cap { h2 { "Inbox of this turn" } }
                div.scroll { table {
                    thead { tr { th { "Status" } th { "Type" } th { "About" } th { "What" } th.right { "Age" } } }
                    tbody {
                        @for item in shown.items.iter().rev().take(100) {
                            (item_row(item, shown.look.now, false))
                            @if item.status == ItemStatus::Error && shown.look.may_press {
                                tr { td {} td colspan="4" {
                                    @if !turn.is_final {
                                        form method="post" action=(to(&item.id, "requeue")) {
                                            select name="wait" {
                                                option value="" { "as it was" }
                                                @for wait in &turn.waits { option value=(wait.wait) { "for " (wait.wait) " " (excerpt(&wait.tool, 30).0) } }
                                            }
                                            button { "Send again" }
                                        }
                                    }
                                    form method="post" action=(to(&item.id, "skip")) { button { "Put aside" } }
                                } }
                            }
                        }
                    }
                } }
            }
        }
    }
}

fn timeline(detail: &TurnDetail) -> Markup {
    history(&format!("/v1/turns/{}/events", detail.turn.id), detail.timeline.iter().map(line))
}

fn line(entry: &TimelineEntry) -> Line<'_> {
    Line {
        version: Some(entry.version),
        at: entry.at,
        by: &entry.by,
        text: &entry.text,
        event: &entry.event,
        rule: entry.rule.as_deref(),
    }
}

/// Which dead letter.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Which {
    item: String,
}

/// `POST /turns/{id}/{action}`.
pub(super) async fn act(
    State(app): State<App>,
    Presser(caller): Presser,
    Extension(console): Extension<Arc<Console>>,
    Path((id, action)): Path<(String, String)>,
    which: Result<Params<Which>, Problem>,
    body: Bytes,
) -> Response {
    let Ok(id) = id.parse::<EntityId>() else {
        return said(&Problem::not_found(format!("turn {id:?}")));
    };
    let item = which.map(|Params(w)| w.item).unwrap_or_default();
    let done = carry_out(&app, &caller, id, &action, item, &Fields::read(&body)).await;
    let to = done.map(|_| format!("/turns/{id}?did={action}"));
    pressed(&caller, to, Shown::read(&app, &console, &caller, id)).await
}

async fn carry_out(
    app: &App,
    caller: &Caller,
    id: EntityId,
    action: &str,
    item: String,
    fields: &Fields,
) -> Result<Response, Problem> {
    let (state, caller, named) = (State(app.clone()), caller.clone(), Named(id));
    match action {
        "stop" => asks::stop(state, caller, named, Maybe(fields.body(&["why"]).read()?)).await,
        "resume" => asks::resume(state, caller, named, Maybe(fields.body(&["why"]).read()?)).await,
        "finish" => {
            let deliverable = fields.json("deliverable")?;
            let finish = fields.body(&["status"]).with_some("deliverable", deliverable);
            asks::force_finish(state, caller, named, Json(finish.read()?)).await
        }
        "result" => {
            let result = fields.body(&["wait"]).with_some("result", fields.json("result")?);
            let headers = HeaderMap::new();
            asks::result(state, caller, named, headers, Json(result.read()?)).await
        }
        "requeue" => {
            let deal = Maybe(fields.body(&["wait"]).read()?);
            inbox::requeue(state, caller, JobAnd(id, item), deal).await
        }
        "skip" => {
            let deal = Maybe(fields.body(&[]).read()?);
            inbox::skip(state, caller, JobAnd(id, item), deal).await
        }
        other => Err(Problem::not_found(format!("action {other:?}"))),
    }
}
