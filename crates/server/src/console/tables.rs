//! Steps and events as tables. Bounded: a job may have ten thousand events, and a page is for reading.

use super::text::{clock, fold, job_link, span, value};
use maud::{Markup, html};
use serde_json::Value;
use tenure_jobs::view::{CallView, EventView, JobDetail, StepView};
use tenure_kernel::time::Timestamp;

/// Steps that a page shows, the newest.
const STEPS_SHOWN_MAX: usize = 200;
/// Events that a page shows, the newest.
const EVENTS_SHOWN_MAX: usize = 300;

pub(super) fn steps(detail: &JobDetail, now: Timestamp) -> Markup {
    let hidden = detail.steps.len().saturating_sub(STEPS_SHOWN_MAX);
    html! {
        div.card {
            div.cap { h2 { "Steps" } @if hidden > 0 { (cut(detail, hidden)) } }
            @if detail.steps.is_empty() { div.in.dim { "None has begun." } }
            @else {
                div.scroll { table {
                    thead { tr { th { "Step" } th { "What" } th { "Outcome" } th { "Calls" } th { "Took" } th { "Result" } } }
                    tbody { @for step in detail.steps.iter().skip(hidden) { (self::step(step, now)) } }
                } }
            }
        }
    }
}

fn cut(detail: &JobDetail, hidden: usize) -> Markup {
    html! { span.small.dim { (hidden) " older are not shown: " a href={ "/v1/jobs/" (detail.job.id) } { "all, from the API" } } }
}

fn step(step: &StepView, now: Timestamp) -> Markup {
    let end = step.finished.unwrap_or(now);
    let pill = match step.outcome.as_str() {
        "ok" => html! { span.pill.good { "✓ ok" } },
        "failed" => html! { span.pill.bad { "✕ failed" } },
        "unknown" => html! { span.pill.unknown { "? unknown" } },
        "open" => html! { span.pill.running { "▶ open" } },
        other => html! { span.pill { (other) } },
    };
    html! {
        tr {
            td.nowrap { code { (step.step) } }
            td {
                (step.of) " " span.tag { (step.kind) }
                @if step.copied { " " span.tag { "copied" } }
                @if let Some(call) = step.calls.last() { " " span.tag { (call.class.as_str()) } }
                @if let Some(child) = step.child { " " (job_link(child)) }
                @if let Some(note) = &step.note { div.small { (note) } }
                div.small.dim { (step.place) }
            }
            td { (pill) @if let Some(answered) = step.answered { div.small.dim { (format!("{answered:?}").to_lowercase()) } } }
            td { (calls(step)) }
            td.nowrap { (span(end.since(step.started))) @if step.finished.is_none() { span.dim { " so far" } } }
            td {
                @if let Some(error) = &step.error { (fold(&format!("e{}", step.step), error)) }
                @if let Some(result) = &step.result { (fold(&format!("r{}", step.step), result)) }
                @if let Some(arguments) = &step.arguments {
                    details.small id={ "a" (step.step) } { summary.dim { "arguments" } pre { (super::text::excerpt(arguments, super::text::VALUE_CHARS_MAX).0) } }
                }
            }
        }
    }
}

fn calls(step: &StepView) -> Markup {
    html! {
        @if step.calls.is_empty() { span.dim { "–" } }
        @else {
            details id={ "c" (step.step) } open[step.calls.iter().any(|c| c.state == "unknown")] {
                summary { (step.calls.len()) @if step.attempts > 1 { span.dim { " · attempt " (step.attempts) } } }
                @for call in &step.calls { (self::call(call)) }
            }
        }
    }
}

fn call(call: &CallView) -> Markup {
    html! {
        div.small {
            "call " (call.call) ", attempt " (call.epoch) ": " (call.state.replace('_', " "))
            @if let Some(ended) = call.ended { span.dim { " after " (span(ended.since(call.started))) } }
            @if let Some(note) = &call.note { div.dim { (super::text::excerpt(note, super::text::CELL_CHARS_MAX * 2).0) } }
            div.dim { "key " code { (call.key) } }
        }
    }
}

pub(super) fn events(detail: &JobDetail) -> Markup {
    let hidden = detail.events.len().saturating_sub(EVENTS_SHOWN_MAX);
    html! {
        div.card {
            div.cap {
                h2 { "Events" }
                span.small {
                    form method="get" action={ "/jobs/" (detail.job.id) } { button name="verify" value="1" { "Verify history" } }
                }
            }
            @if hidden > 0 { div.in { (cut(detail, hidden)) } }
            div.scroll { table {
                thead { tr { th { "#" } th { "Time" } th { "Attempt" } th { "Event" } th { "Body" } } }
                tbody { @for event in detail.events.iter().skip(hidden) { (self::event(detail, event)) } }
            } }
        }
    }
}

fn event(detail: &JobDetail, event: &EventView) -> Markup {
    let whose = event.took.and_then(|id| detail.sessions.iter().find(|(s, _)| *s == id));
    // Its name is a member of its body, and stands beside it already.
    let empty = match &event.body {
        Value::Null => true,
        Value::Object(members) => members.keys().all(|k| k == "event"),
        _ => false,
    };
    html! {
        tr {
            td.dim { (event.version) }
            td.nowrap.mono title=(event.at) { (clock(event.at)) }
            td { (event.epoch) }
            td { code { (event.name) } @if let Some((_, name)) = whose { div.small.dim { (name) } } }
            td {
                @if !empty {
                    details.small id={ "v" (event.version) } { summary.dim { "body" } (value(&event.body, &format!("/v1/jobs/{}", detail.job.id))) }
                }
            }
        }
    }
}
