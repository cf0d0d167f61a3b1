//! The short account of a file: who, what, when, which steps and effects, and how it ended.

use super::{Dossier, Export};
use crate::view::{self, StepView, detail::of_lines, stream};
use serde_json::Value;
use std::fmt::Write as _;
use tenure_kernel::stream::{Body, Hash};

/// Letters of an input or output that are shown.
const SHOWN: usize = 200;
/// Letters of a line.
pub(super) const LINE: usize = 1_000;

/// The account of all jobs in a file.
pub(super) fn account(export: &Export) -> String {
    let mut out = String::new();
    for dossier in &export.jobs {
        job(&mut out, export, dossier);
    }
    let o = &export.opening;
    fact(&mut out, "exported", &format!("by {} at {}", o.exported_by, o.exported_at));
    fact(&mut out, "from", &format!("store incarnation {}, {}", o.incarnation, o.program));
    out
}

/// Everything that is told goes through here or through [`line()`]: a file is from anybody, and what stands in it must not
/// look like a line of ours.
fn fact(out: &mut String, label: &str, text: &str) {
    line(out, &format!("  {label:<10} {}", text.trim_end()));
}

// Writing to a String can not fail.
fn line(out: &mut String, text: &str) {
    let _ = writeln!(out, "{}", cut(text, LINE));
}

fn job(out: &mut String, export: &Export, dossier: &Dossier) {
    let head = &dossier.head;
    let Ok(view) = view::of_head(head) else {
        line(out, &format!("job {}, whose state can not be read", head.id));
        return;
    };
    let (of, status) = (&head.tenant, head.status.name());
    line(
        out,
        &format!("job {} of tenant {of}: {}@{} is {status}", head.id, view.flow, view.version),
    );
    let lines = stream::lines_in(&dossier.records, &export.blobs);
    let detail = lines.map(|lines| of_lines(view.clone(), &lines, dossier.sessions.clone()));
    let (view, steps, by) = match detail {
        Ok(detail) => {
            let born = detail.events.first().map(|e| e.body.clone()).unwrap_or_default();
            (detail.job, detail.steps, born["by"].as_str().map(str::to_owned))
        }
        Err(_) => (view, Vec::new(), None),
    };
    let by = by.map_or(String::new(), |by| format!(" by {by}"));
    fact(out, "asked for", &format!("at {}{by}", head.created_at));
    if let Some(parent) = view.parent {
        fact(out, "child", &format!("number {} of job {}", parent.ordinal, parent.job));
    }
    if let Some(input) = &view.input {
        fact(out, "input", &short(input));
    }
    for (session, name) in &dossier.sessions {
        fact(out, "ran in", &format!("{name} (session {session})"));
    }
    steps.iter().for_each(|step| step_line(out, step));
    for evidence in &dossier.evidence {
        let said = &evidence.said;
        fact(
            out,
            "evidence",
            &format!(
                "{} at {}, about {}: {}",
                said.who,
                evidence.at,
                said.key,
                says(export, &said.body)
            ),
        );
    }
    for child in &dossier.children {
        let root = child
            .root
            .as_ref()
            .map_or(String::new(), |r| format!(", {}, chain {}", r.status, r.chain));
        fact(out, "child", &format!("{} (step {}){root}", child.id, child.step));
    }
    if let Some(failure) = &view.failure {
        fact(out, "failed", &format!("{}: {}", failure.reason, failure.error));
    }
    if let Some(cancel) = &view.cancel {
        fact(
            out,
            "cancelled",
            &format!(
                "by {}: {}",
                cancel.by.as_deref().unwrap_or("somebody"),
                cancel.why.as_deref().unwrap_or("no reason given")
            ),
        );
    }
    if let Some(output) = &view.output {
        fact(out, "output", &short(output));
    }
    if view.is_final {
        fact(out, "ended", &format!("{} at {}", view.status, head.changed_at));
    } else {
        fact(
            out,
            "so far",
            &format!("{} since {}; it had not ended", view.status, head.changed_at),
        );
    }
    fact(out, "chain", &format!("{} events, root {}", head.version, head.chain));
}

fn step_line(out: &mut String, step: &StepView) {
    let said = step.error.as_deref().or(step.result.as_deref()).unwrap_or("");
    let text = format!("{} {} {}: {} {}", step.step, step.kind, step.of, step.outcome, clip(said));
    fact(out, "step", text.trim_end());
    for call in &step.calls {
        let note = call.note.as_deref().map_or(String::new(), |n| format!(" ({n})"));
        let text =
            format!("{} call {} at {}: {}{note}", call.key, call.call, call.started, call.state);
        fact(out, "  effect", &text);
    }
}

fn says(export: &Export, body: &Body) -> String {
    let bytes = match body {
        Body::Inline(bytes) => Some(bytes),
        Body::Blob { digest, .. } => export.blobs.get::<Hash>(digest),
    };
    let value: Option<Value> = bytes.and_then(|b| tenure_kernel::stored::from_slice(b).ok());
    value.map_or_else(|| "not readable".to_owned(), |v| short(&v))
}

fn short(value: &Value) -> String {
    clip(&value.to_string())
}

fn clip(text: &str) -> String {
    cut(text, SHOWN)
}

/// One line of plain letters, at most so many: no line feeds, no codes of a terminal, nothing that turns the order of
/// letters around.
pub(super) fn cut(text: &str, letters: usize) -> String {
    let hidden = |c: char| {
        matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
    };
    let plain = |c: char| if c.is_control() || hidden(c) { ' ' } else { c };
    let mut cut: String = text.chars().map(plain).take(letters).collect();
    if text.chars().nth(letters).is_some() {
        cut.push('…');
    }
    cut
}
