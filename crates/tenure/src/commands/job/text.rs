//! What people read: sentences and tables.

use crate::{
    commands::{Failure, table::plural},
    times,
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::{fmt::Write as _, time::Duration};
use tenure_jobs::view::{EventView, JobView, Replayed, StepView, Verification};
use tenure_kernel::time::Timestamp;

/// Columns of a terminal that does not say how many it has.
const WIDTH: usize = 110;
/// The widest column of flows and plans.
const NAME_WIDTH: usize = 24;
/// The widest terminal that is believed.
const WIDTH_MAX: usize = 1_000;

/// How wide a line may be.
pub fn width() -> usize {
    let said = std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok());
    columns(said)
}

fn columns(said: Option<usize>) -> usize {
    said.filter(|w| *w >= 40).unwrap_or(WIDTH).min(WIDTH_MAX)
}

/// Reads an answer as what it is.
pub fn read<T: DeserializeOwned>(value: Value) -> Result<T, Failure> {
    serde_json::from_value(value).map_err(|e| {
        Failure::System(format!(
            "the server's answer can not be read ({e}); is it of another version? --json shows it as it is"
        ))
    })
}

/// One line, cut where the terminal ends.
fn line(out: &mut String, text: &str) {
    let flat = text.replace(['\n', '\r', '\t'], " ");
    let width = width();
    match flat.chars().count() > width {
        true => {
            let cut: String = flat.chars().take(width.saturating_sub(1)).collect();
            let _ = writeln!(out, "{cut}…");
        }
        false => {
            let _ = writeln!(out, "{}", flat.trim_end());
        }
    }
}

/// How long, in two figures that matter.
pub fn span(d: Duration) -> String {
    match d.as_secs() {
        0 => format!("{}ms", d.as_millis()),
        s @ 1..60 => format!("{s}s"),
        s @ 60..3_600 => format!("{}m{:02}s", s / 60, s % 60),
        s @ 3_600..86_400 => format!("{}h{:02}m", s / 3_600, s / 60 % 60),
        s => format!("{}d{:02}h", s / 86_400, s / 3_600 % 24),
    }
}

/// See [`times::moment`].
pub fn moment(at: Timestamp) -> String {
    times::moment(at)
}

/// A table of jobs.
pub fn jobs(page: Value, now: Timestamp) -> Result<String, Failure> {
    let next = page["next"].as_str().map(str::to_owned);
    let whys: Vec<String> = page["jobs"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|j| times::local(j["why"].as_str().unwrap_or("")))
        .collect();
    let jobs: Vec<JobView> = read(page["jobs"].clone())?;
    if jobs.is_empty() && next.is_none() {
        return Ok("no such jobs\n".to_owned());
    }
    // A plan is known by its name: the flow of all of them is `plan`.
    let names: Vec<String> =
        jobs.iter().map(|j| short(j.plan_name().unwrap_or(&j.flow), NAME_WIDTH)).collect();
    let flow_width = names.iter().map(|n| n.chars().count()).max().unwrap_or(4).max(4);
    let mut out = String::new();
    line(
        &mut out,
        &format!("{:<36}  {:<flow_width$}  {:<10}  {:>6}  WHY", "ID", "FLOW", "STATUS", "AGE"),
    );
    for ((job, why), name) in jobs.iter().zip(&whys).zip(&names) {
        let age = span(now.since(job.created_at));
        let row = format!("{}  {name:<flow_width$}  {:<10}  {age:>6}  {why}", job.id, job.status);
        line(&mut out, &row);
    }
    if let Some(next) = next {
        let _ = writeln!(out, "more: --before {next}");
    }
    Ok(out)
}

/// A job with its steps.
pub fn job(answer: Value, steps: Vec<StepView>) -> Result<String, Failure> {
    let why = times::local(answer["why"].as_str().unwrap_or(""));
    let job: JobView = read(answer)?;
    let mut out = String::new();
    let _ = writeln!(out, "{}  {}@{}  {}", job.id, job.flow, job.version, job.status);
    let _ = writeln!(out, "{why}");
    let mut fact = |label: &str, text: String| {
        let _ = writeln!(out, "  {label:<11} {text}");
    };
    fact("created", format!("{} (tenant {})", moment(job.created_at), job.tenant));
    if let Some(key) = &job.key {
        fact("key", key.clone());
    }
    for (name, value) in &job.labels {
        fact("label", format!("{name}={value}"));
    }
    if let Some(by) = job.must_end_by.filter(|_| !job.is_final) {
        fact("must end by", moment(by));
    }
    if let Some(input) = &job.input {
        fact("input", short(&input.to_string(), width().saturating_sub(16)));
    }
    if let Some(output) = &job.output {
        fact("output", short(&output.to_string(), width().saturating_sub(16)));
    }
    if let Some(failure) = &job.failure {
        fact("failed", format!("{}: {}", failure.reason, failure.error));
    }
    if let Some(holder) = &job.holder {
        fact("held by", format!("{} (attempt {})", holder.name, job.attempt));
    }
    if job.takeovers > 0 {
        fact("takeovers", format!("{} of at most {}", job.takeovers, job.takeovers_max));
    }
    if let Some(of) = job.retry_of {
        fact("retry of", of.to_string());
    }
    for wait in &job.waits {
        let until = wait.deadline.map_or(String::new(), |d| format!(", until {}", moment(d)));
        let note = wait.note.as_deref().map_or(String::new(), |n| format!(": {n}"));
        fact("waits for", format!("{:?}{until}{note}", wait.key));
    }
    out.push_str(&table(&steps));
    Ok(out)
}

fn table(steps: &[StepView]) -> String {
    let mut out = String::new();
    if steps.is_empty() {
        return out;
    }
    line(
        &mut out,
        &format!(
            "  {:<6} {:<7} {:<24} {:<8} {:>8}  RESULT",
            "STEP", "KIND", "OF", "OUTCOME", "TOOK"
        ),
    );
    for step in steps {
        let took = step.finished.map_or("–".to_owned(), |f| span(f.since(step.started)));
        let said = step.error.as_deref().or(step.result.as_deref()).unwrap_or("");
        let of = short(&step.of, 24);
        let (id, kind, outcome) = (&step.step.0, &step.kind, &step.outcome);
        line(&mut out, &format!("  {id:<6} {kind:<7} {of:<24} {outcome:<8} {took:>8}  {said}"));
    }
    out
}

fn short(text: &str, max: usize) -> String {
    match text.chars().count() > max {
        true => format!("{}…", text.chars().take(max.saturating_sub(1)).collect::<String>()),
        false => text.to_owned(),
    }
}

/// One event.
pub fn event(event: &EventView) -> String {
    let mut out = String::new();
    let mut body = event.body.clone();
    // The name says it already.
    if let Some(body) = body.as_object_mut() {
        body.remove("event");
    }
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let row = format!("{:>5}  {}  {:<24} {body}", event.version, moment(event.at), event.name);
    line(&mut out, &row);
    out
}

/// What a check found.
pub fn verification(found: &Verification) -> String {
    let mut out = String::new();
    for check in &found.checks {
        let mark = if check.ok { "ok " } else { "BAD" };
        let _ = writeln!(out, "  {mark} {}: {}", check.rule, check.says);
    }
    for problem in &found.problems {
        let _ = writeln!(out, "  ✗ {problem}");
    }
    let verdict = if found.ok { "nothing is wrong" } else { "something is wrong" };
    let events = plural(found.events, "event");
    let _ = writeln!(out, "{verdict} with job {}: {events}", found.id);
    let _ = writeln!(out, "  chain root      {}", found.chain_root);
    let _ = writeln!(out, "  execution hash  {}", found.execution_hash);
    out
}

/// What a replay showed, and whether it is well.
pub fn replayed(shown: &Replayed) -> (bool, String) {
    match shown {
        Replayed::Consistent { steps, open, output } => {
            let end = match (output, open.is_empty()) {
                (Some(output), _) => format!("it returns {output}"),
                (None, true) => "it goes on from there".to_owned(),
                (None, false) => format!(
                    "it goes on with {}",
                    open.iter().map(|s| s.0.as_str()).collect::<Vec<_>>().join(", ")
                ),
            };
            let steps = plural(*steps, "step");
            (true, format!("the code leads through the history: {steps}, and {end}\n"))
        }
        Replayed::Diverged { step, recorded, expected } => (
            false,
            format!(
                "at step {step} the history has {recorded}, and the code asks for {expected}\n"
            ),
        ),
        Replayed::Broken { why } => (false, format!("the flow is broken: {why}\n")),
        Replayed::EndsOtherwise { recorded, replayed } => {
            (false, format!("the job ended with {recorded}, the code ends with {replayed}\n"))
        }
        Replayed::UnknownFlow { flow } => {
            (false, format!("this server has no {flow}: ask one that runs its worker\n"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_has_a_width_that_can_be() {
        let said =
            [None, Some(39), Some(40), Some(WIDTH_MAX), Some(WIDTH_MAX + 1), Some(usize::MAX)];
        assert_eq!(said.map(columns), [WIDTH, WIDTH, 40, WIDTH_MAX, WIDTH_MAX, WIDTH_MAX]);
    }

    #[test]
    fn spans_say_two_figures() {
        let cases = [(0, "0ms"), (5, "5s"), (65, "1m05s"), (3_700, "1h01m"), (90_000, "1d01h")];
        for (seconds, text) in cases {
            assert_eq!(span(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn a_line_ends_where_the_terminal_does_and_breaks_nowhere_else() {
        let mut out = String::new();
        line(&mut out, &format!("a\nb{}", "é".repeat(500)));
        assert_eq!(out.lines().count(), 1);
        assert!(out.starts_with("a bé") && out.trim_end().ends_with('…'));
        assert_eq!(out.trim_end().chars().count(), width());
    }
}
