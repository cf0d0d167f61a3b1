//! What moves a job: the buttons that make sense where it stands, and no others. What it waits for from a person
//! comes first and large; what a person may do at any time stays small.

use super::{one::may_only_look, text::excerpt};
use maud::{Markup, html};
use serde_json::Value;
use std::collections::HashMap;
use tenure_jobs::view::{JobDetail, JobView, StepView, WaitView};
use tenure_kernel::ids::EntityId;
use tenure_schema::outline;
use tenure_steps::events::{StepId, WaitKind};

/// Waits and unknown effects that get a form each.
const FORMS_MAX: usize = 12;
/// Steps that a retry can be told to begin with, the newest.
const STEPS_MAX: usize = 200;

/// Output schemas of the tools whose calls are unknown, by tool.
pub(super) type Outputs = HashMap<String, Value>;

/// Tools of which a person may be asked for a result.
pub(super) fn doubtful(detail: &JobDetail) -> Vec<String> {
    let all = unknown_steps(&detail.job).into_iter().chain(said_by_people(detail));
    let mut tools: Vec<String> = all.map(|doubt| doubt.tool).take(2 * FORMS_MAX).collect();
    tools.sort();
    tools.dedup();
    tools
}

pub(super) fn all(detail: &JobDetail, outputs: &Outputs, may_press: bool) -> Markup {
    let job = &detail.job;
    if !may_press {
        return may_only_look();
    }
    let unknown = unknown_steps(job);
    let said = said_by_people(detail);
    let asked = job.waits.iter().filter(|w| w.kind != WaitKind::Timer);
    let asks: Vec<_> = asked.take(FORMS_MAX).collect();
    // Where a person has to say what is true, looking again is only the smaller way out.
    let look_again = can_resume(job) && !unknown.is_empty();
    let large = !asks.is_empty()
        || !unknown.is_empty()
        || !said.is_empty()
        || can_resume(job)
        || can_retry(detail);
    let quiet = !job.is_final && !["cancelling", "undoing"].contains(&job.status.as_str());
    html! {
        @if large || quiet {
            div.card {
                @if large {
                    div.cap { h2 { "What moves it" } }
                    div.moves {
                        @for doubt in unknown.iter().take(FORMS_MAX) { (resolve(job, doubt, outputs)) }
                        @for wait in &asks { (answer(job.id, wait)) }
                        @if can_resume(job) && !look_again { (resume(job)) }
                        @if can_retry(detail) { (retry(detail)) }
                        @for doubt in said.iter().take(FORMS_MAX) { (resolve(job, doubt, outputs)) }
                    }
                }
                @if quiet { (quietly(job, look_again)) }
            }
        }
    }
}

/// Steps of which nobody knows whether they happened: of an open job those that are marked so, of a failed or
/// cancelled one those that its end listed.
fn unknown_steps(job: &JobView) -> Vec<Doubt> {
    let listed = job.failure.iter().flat_map(|f| &f.unknown);
    let mut steps: Vec<Doubt> = Vec::new();
    for call in job.running.iter().filter(|c| c.unknown.is_some() || job.is_final) {
        let why = call.unknown.as_deref().unwrap_or("the job ended while it ran");
        let what = format!("{}: {why}", call.tool);
        steps.push(Doubt { step: call.step.clone(), tool: call.tool.clone(), what, said: None });
    }
    for step in listed {
        if !steps.iter().any(|doubt| doubt.step == *step) {
            let what = "the job ended while it ran".to_owned();
            steps.push(Doubt { step: step.clone(), tool: String::new(), what, said: None });
        }
    }
    steps
}

/// A step about which a person may say something.
struct Doubt {
    step: StepId,
    tool: String,
    what: String,
    /// What a person has said, and may correct.
    said: Option<String>,
}

/// Steps about which a person has said something that can be corrected: see `tenure_jobs::ask::resolve`. What the flow has
/// used is refused with the reason.
fn said_by_people(detail: &JobDetail) -> Vec<Doubt> {
    let job = &detail.job;
    if job.status != "attention" && job.status != "failed" {
        return Vec::new();
    }
    let said = |step: &StepView| {
        let last = step.calls.last()?;
        let note = last.note.as_deref().filter(|note| note.contains("by a person"))?;
        let said = format!("{} ({note})", last.state);
        let what = format!("{}: {said}", step.of);
        Some(Doubt { step: step.step.clone(), tool: step.of.clone(), what, said: Some(said) })
    };
    detail.steps.iter().filter_map(said).collect()
}

fn can_resume(job: &JobView) -> bool {
    !job.is_final && (job.paused || job.status == "attention")
}

/// A job that had no step yet is submitted again, not retried.
fn can_retry(detail: &JobDetail) -> bool {
    let job = &detail.job;
    job.is_final && job.status != "completed" && !detail.steps.is_empty()
}

fn to(job: EntityId, action: &str) -> String {
    format!("/jobs/{job}/{action}")
}

fn answer(job: EntityId, wait: &WaitView) -> Markup {
    let id = &wait.step.0;
    html! {
        section.move {
            h3 { @if wait.kind == WaitKind::Human { "Waits for a decision" } @else { "Waits for a " (wait.kind.as_str()) } ": " code { (wait.key) } }
            @if let Some(note) = &wait.note { p { (note) } }
            @if wait.kind == WaitKind::Human {
                form method="post" action=(to(job, "answer")) {
                    input type="hidden" name="key" value=(wait.key);
                    label for={ "comment-" (id) } { "Comment" }
                    input id={ "comment-" (id) } name="comment" autocomplete="off";
                    div.row { button.yes name="outcome" value="approved" { "Approve" } button.no name="outcome" value="rejected" { "Reject" } }
                }
            } @else {
                form method="post" action=(to(job, "signal")) {
                    input type="hidden" name="key" value=(wait.key);
                    label for={ "payload-" (id) } { "Payload, JSON" }
                    textarea id={ "payload-" (id) } name="payload" spellcheck="false" { "{}" }
                    div.row { button.go { "Send signal" } }
                }
            }
        }
    }
}

/// Nothing is filled in that could be sent as it is: a result is what somebody has found out.
fn resolve(job: &JobView, doubt: &Doubt, outputs: &Outputs) -> Markup {
    let Doubt { step, tool, what, said } = doubt;
    let schema = outputs.get(tool).cloned().unwrap_or_default();
    let outline = outline::outline(&schema);
    let outline = match outline.is_null() {
        true => String::new(),
        false => serde_json::to_string_pretty(&outline).unwrap_or_default(),
    };
    let members = outline::members(&schema);
    let rows = outline.lines().count().clamp(1, 16);
    html! {
        section.move.wide {
            @if said.is_some() { h3 { "Was that wrong about step " code { (step) } "?" } }
            @else { h3 { "Did step " code { (step) } " happen? " span.pill.unknown { "? unknown" } } }
            p { (excerpt(what, 400).0) }
            form method="post" action=(to(job.id, "resolve")) {
                input type="hidden" name="step" value=(step);
                @if said.is_some() { input type="hidden" name="correct" value="true"; }
                div.two {
                    div {
                        label for={ "result-" (step) } { "Result, if it happened (JSON)" }
                        textarea id={ "result-" (step) } name="result" rows=(rows) spellcheck="false" placeholder="what the tool returned" { (outline) }
                        @if !members.is_empty() { p.small.dim { (excerpt(&members.join(" · "), 600).0) } }
                    }
                    div {
                        label for={ "note-" (step) } { "How do you know?" }
                        textarea id={ "note-" (step) } name="note" rows="1" {}
                    }
                }
                div.row {
                    button name="verdict" value="happened" { "It happened" }
                    button name="verdict" value="did_not_happen" { "It did not" }
                    button.no name="verdict" value="abandoned" { "Give it up" }
                }
            }
        }
    }
}

fn resume(job: &JobView) -> Markup {
    html! {
        section.move {
            h3 { @if job.paused { "Paused" } @else { "Waits for a person" } }
            p {
                @if job.paused { "It goes on from where it stopped." }
                @else { "Once the cause is gone, let it look again." }
            }
            form method="post" action=(to(job.id, "resume")) { div.row { button.go { @if job.paused { "Resume" } @else { "Look again" } } } }
        }
    }
}

/// What failed; or from any step: a flow may have failed by itself, with every step well.
fn retry(detail: &JobDetail) -> Markup {
    let job = &detail.job;
    let shown = detail.steps.len().saturating_sub(STEPS_MAX);
    html! {
        section.move {
            h3 { "Try again" }
            p { "A new job takes over what is done, and goes on from there. This one stays as it is." }
            form method="post" action=(to(job.id, "retry")) {
                div.row {
                    label for="retry-step" { "from" }
                    select id="retry-step" name="step" {
                        option value="" selected { "what failed" }
                        @for step in &detail.steps[shown..] {
                            option value=(step.step) { "before step " (step.step) " " (excerpt(&step.of, 40).0) }
                        }
                    }
                    label.field { input type="checkbox" name="repeat" value="true"; " do again what cannot be undone" }
                    button.go { "Retry" }
                }
            }
        }
    }
}

fn quietly(job: &JobView, look_again: bool) -> Markup {
    let may_pause = !job.paused && job.status != "attention";
    html! {
        div.quiet {
            @if look_again { form method="post" action=(to(job.id, "resume")) { button { "Look again" } } }
            @if may_pause { form method="post" action=(to(job.id, "pause")) { button { "Pause" } } }
            details id="cancel" {
                summary { "Cancel…" }
                form method="post" action=(to(job.id, "cancel")) {
                    label for="cancel-why" { "Why? It is kept in the history." }
                    input id="cancel-why" name="why" autocomplete="off";
                    div { button.no { "Cancel this job" } }
                }
            }
            details id="signal" {
                summary { "Signal…" }
                form method="post" action=(to(job.id, "signal")) {
                    label for="signal-key" { "Key" } input id="signal-key" name="key" required autocomplete="off";
                    label for="signal-payload" { "Payload, JSON" } textarea id="signal-payload" name="payload" spellcheck="false" { "{}" }
                    div { button.go { "Send signal" } }
                }
            }
        }
    }
}
