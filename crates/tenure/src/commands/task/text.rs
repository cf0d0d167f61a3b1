//! What people read: sentences and tables.

use crate::{
    commands::{
        Failure,
        job::text::{moment, read, span, width},
    },
    times,
};
use serde_json::Value;
use std::fmt::Write as _;
use tenure_kernel::time::Timestamp;
use tenure_pods::{
    desk::BudgetView,
    task::{decide::in_words, model::Ended},
    view::{AttemptView, TaskDetail, TaskView, TimelineEntry},
};

/// One line, cut where the terminal ends.
fn line(out: &mut String, text: &str) {
    let flat = text.replace(['\n', '\r', '\t'], " ");
    let most = width();
    let cut: String = flat.chars().take(most.saturating_sub(1)).collect();
    // Writing to a String can not fail.
    let _ = match flat.chars().count() > most {
        true => writeln!(out, "{cut}…"),
        false => writeln!(out, "{}", flat.trim_end()),
    };
}

/// What became of an ask.
pub fn outcome(answer: &Value) -> String {
    match answer["outcome"].as_str() {
        Some("already") => "it was asked before; nothing changed\n",
        _ => "accepted; the task follows\n",
    }
    .to_owned()
}

/// A table of tasks.
pub fn tasks(page: &Value, now: Timestamp, none: &str) -> Result<String, Failure> {
    let all = page["tasks"].as_array().cloned().unwrap_or_default();
    let next = page["next"].as_str();
    if all.is_empty() && next.is_none() {
        return Ok(none.to_owned());
    }
    let mut out = String::new();
    let head = ("TASK", "NAME", "STATUS", "TRY", "AGE", "CAUSE");
    line(
        &mut out,
        &format!(
            "{:<36}  {:<16}  {:<9}  {:>3}  {:>6}  {:<20}  WHY",
            head.0, head.1, head.2, head.3, head.4, head.5
        ),
    );
    for value in all {
        let why = times::local(value["why"].as_str().unwrap_or(""));
        let task: TaskView = read(value)?;
        let age = span(now.since(task.created_at));
        let cause = task.ended.as_ref().and_then(|e| e.cause).map_or("-", |c| c.name());
        let name = match (task.name.as_str(), task.task_id == task.id.to_string()) {
            ("", false) => task.task_id.clone(),
            ("", true) => "-".to_owned(),
            (name, _) => name.to_owned(),
        };
        let (id, status, attempt) = (task.id, task.status, task.attempt);
        line(
            &mut out,
            &format!("{id}  {name:<16}  {status:<9}  {attempt:>3}  {age:>6}  {cause:<20}  {why}"),
        );
    }
    if let Some(next) = next {
        let _ = writeln!(out, "more: --before {next}");
    }
    Ok(out)
}

/// One task.
pub fn task(whole: &TaskDetail, why: &str, now: Timestamp) -> String {
    let task = &whole.task;
    let mut out = String::new();
    let _ = writeln!(out, "{}  {}  {}", task.id, task.name, task.status);
    let _ = writeln!(out, "{why}");
    let mut fact = |label: &str, text: &str| line(&mut out, &format!("  {label:<12} {text}"));
    fact("ordered", &format!("{} (tenant {})", moment(task.created_at), task.tenant));
    if task.task_id != task.id.to_string() {
        fact("task id", &task.task_id);
    }
    if !task.workflow_id.is_empty() {
        fact("workflow", &task.workflow_id);
    }
    match (task.external, task.cluster.as_str()) {
        (true, _) => fact("pods", "made elsewhere, and watched"),
        (false, "") => {}
        (false, cluster) => fact("cluster", cluster),
    }
    if let Some(of) = task.retry_of {
        fact("replays", &of.to_string());
    }
    if let Some(result) = &task.result {
        fact("result", result);
    }
    for rule in &task.next_rules {
        let when = match rule.at > now {
            true => format!("in {}", span(rule.at.since(now))),
            false => "now".to_owned(),
        };
        fact("rule", &format!("{} {when}", rule.rule));
    }
    match (&whole.discarded_by, whole.replayed_as, whole.dead_letter) {
        (Some(by), _, _) => fact("put aside", &format!("by {by}")),
        (None, Some(new), _) => fact("replayed as", &new.to_string()),
        (None, None, true) => fact("dead letter", "nobody has replayed or discarded it"),
        (None, None, false) => {}
    }
    for attempt in &whole.attempts {
        attempt_of(&mut out, attempt);
    }
    out
}

fn attempt_of(out: &mut String, attempt: &AttemptView) {
    let pod = attempt.pod.as_ref().filter(|p| !p.name.is_empty());
    let pod = match (pod, attempt.executor.as_ref().and_then(|e| e.name.as_ref())) {
        (Some(pod), _) => {
            let on = pod.node.as_ref().map(|n| format!(" on {n}")).unwrap_or_default();
            format!("{}/{}{on}", pod.namespace, pod.name)
        }
        (None, Some(name)) => name.clone(),
        (None, None) => "no pod yet".to_owned(),
    };
    let stands = match (&attempt.ended, attempt.running_at) {
        (Some(ended), _) => verdict(ended),
        (None, Some(at)) => format!("runs since {}", moment(at)),
        (None, None) => "does not run yet".to_owned(),
    };
    line(out, &format!("  attempt {:<4} {pod}: {stands}", attempt.attempt));
    let mut more = |text: String| line(out, &format!("  {:<12} {text}", ""));
    if let Some(ended) = attempt.ended.as_ref().filter(|e| !e.rule.is_empty()) {
        let class = serde_json::to_value(ended.class).unwrap_or_default();
        let class = class.as_str().map(|c| format!("class {c}, ")).unwrap_or_default();
        let late = if attempt.filled_in { ", details came late" } else { "" };
        more(format!("{class}rule {}{late}", ended.rule));
    }
    if attempt.ended.as_ref().is_some_and(|e| e.inferred) {
        more("nobody saw its pod end: that was inferred from its absence".to_owned());
    }
    if let Some(proof) = &attempt.proof {
        let (how, by, at) = (verdict(&proof.ended), &proof.by, moment(proof.at));
        more(format!("proven later: {how}, seen by {by}, told {at}; the status stays"));
    }
    if attempt.ended.is_some() && !attempt.pod_over {
        more("its pod may still run".to_owned());
    }
    for warning in attempt.executor.iter().flat_map(|e| &e.warnings) {
        more(format!("the API server warned: {warning}"));
    }
    if attempt.deferred > 0 {
        more(format!("the budget put the next attempt off {} times", attempt.deferred));
    }
    if let Some(why) = attempt.no_retry {
        more(format!("no further attempt: {}", why.words()));
    }
}

fn verdict(ended: &Ended) -> String {
    let status = ended.status.map_or("over", |s| s.name());
    match ended.cause {
        Some(_) => format!("{status}, {}", in_words(ended)),
        None => match ended.exit_code {
            Some(code) => format!("{status} (exit code {code})"),
            None => status.to_owned(),
        },
    }
}

/// What happened to a task.
pub fn timeline(answer: &Value, entries: Vec<TimelineEntry>) -> String {
    let mut out = String::new();
    let said = |name: &str| answer[name].as_str().unwrap_or("");
    let _ = writeln!(out, "{}  {}", said("id"), said("status"));
    for entry in entries {
        let rule = entry.rule.as_ref().map(|r| format!(" [{r}]")).unwrap_or_default();
        let at = moment(entry.at);
        line(&mut out, &format!("{at}  {:<9} {}{rule}", entry.by, entry.text));
    }
    out
}

/// A table of budgets.
pub fn budgets(all: &[BudgetView]) -> String {
    if all.is_empty() {
        return "no task has asked for a retry yet; `tenure task budget TENANT` shows what one would get\n".to_owned();
    }
    let wide = all.iter().map(|b| b.tenant.len()).max().unwrap_or(6).clamp(6, 32);
    let mut out = String::new();
    line(
        &mut out,
        &format!(
            "{:<wide$}  {:>10}  {:>6}  {:>9}  {:>6}  {:>8}  {:>8}  SET BY",
            "TENANT", "PER MINUTE", "BURST", "IN FLIGHT", "TOKENS", "GRANTED", "DEFERRED"
        ),
    );
    for b in all {
        let in_flight = format!("{}/{}", b.in_flight, b.in_flight_max);
        let by = b.set_by.as_deref().unwrap_or("settings");
        let row = format!(
            "{:<wide$}  {:>10}  {:>6}  {:>9}  {:>6}  {:>8}  {:>8}  {by}",
            b.tenant, b.per_minute, b.burst, in_flight, b.tokens, b.granted, b.deferred
        );
        line(&mut out, &row);
    }
    out
}

/// One budget.
pub fn budget(b: &BudgetView) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{}: {} retries a minute, {} at once after a quiet time, {} under way at most ({})",
        b.tenant,
        b.per_minute,
        b.burst,
        b.in_flight_max,
        b.set_by.as_ref().map_or("settings".to_owned(), |by| format!("set by {by}"))
    );
    let _ = writeln!(
        out,
        "now: {} could start, {} under way; so far {} places given, {} times put off",
        b.tokens, b.in_flight, b.granted, b.deferred
    );
    for task in &b.tasks {
        let _ = writeln!(out, "  {task}");
    }
    out
}
