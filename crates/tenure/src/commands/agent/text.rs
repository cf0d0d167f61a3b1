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
use tenure_agents::view::{AgentView, Forecast, Item, TurnDetail, TurnView};
use tenure_kernel::{limits::clip, time::Timestamp};

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

/// A value with its lines.
pub fn pretty(value: &Value) -> String {
    format!("{}\n", serde_json::to_string_pretty(value).unwrap_or_default())
}

/// What became of an ask.
pub fn outcome(answer: &Value) -> String {
    match answer["outcome"].as_str() {
        Some("kept") => "kept for a suspend that has not come yet\n",
        Some("too_late") => "too late: it is noted, and changes nothing\n",
        Some("already") => "it was said before; nothing changed\n",
        _ => "accepted; the turn follows\n",
    }
    .to_owned()
}

/// A table of agents.
pub fn agents(all: &[AgentView]) -> String {
    if all.is_empty() {
        return "There are no agents. `tenure agent set --help` says how to make one.\n".to_owned();
    }
    let wide = all.iter().map(|a| a.name.len()).max().unwrap_or(4).clamp(4, 32);
    let mut out = String::new();
    let head = ("AGENT", "STATUS", "LINE", "ENDED");
    line(
        &mut out,
        &format!("{:<wide$}  {:<10}  {:>4}  {:>6}  TURN", head.0, head.1, head.2, head.3),
    );
    for agent in all {
        let paused = if agent.paused { " (paused)" } else { "" };
        let turn = match (&agent.active, agent.recent.first()) {
            (Some(turn), _) => format!("{} step {}", turn.id, turn.step),
            (None, Some(last)) => format!("last: {} {}", last.turn, last.status),
            (None, None) => "none so far".to_owned(),
        };
        let row = format!(
            "{:<wide$}  {:<10}  {:>4}  {:>6}  {turn}{paused}",
            agent.name,
            agent.status,
            agent.queue.len(),
            agent.turns
        );
        line(&mut out, &row);
    }
    out
}

/// One agent.
pub fn agent(agent: &AgentView, now: Timestamp) -> String {
    let mut out = String::new();
    let paused = if agent.paused { ", paused" } else { "" };
    let _ = writeln!(out, "{} is {}{paused}", agent.name, agent.status);
    let mut fact = |label: &str, text: &str| line(&mut out, &format!("  {label:<11} {text}"));
    fact("target", &agent.target);
    fact("tenant", &agent.tenant);
    if let Some(channel) = &agent.channel {
        fact("channel", channel);
    }
    if let Some(output_box) = &agent.output_box {
        fact("output box", output_box);
    }
    fact("turn epoch", &agent.turn_epoch.to_string());
    if let Some(turn) = &agent.active {
        let since = span(now.since(turn.changed_at));
        fact("active", &format!("{} {}, step {}, for {since}", turn.id, turn.status, turn.step));
    }
    for waiting in &agent.queue {
        fact(&format!("line {}", waiting.position), &waiting.turn.to_string());
    }
    for past in &agent.recent {
        fact(&past.status, &past.turn.to_string());
    }
    if let Some(profile) = agent.profile.as_ref().filter(|p| !p.is_null()) {
        fact("profile", &profile.to_string());
    }
    out
}

/// A table of turns.
pub fn turns(page: &Value, now: Timestamp) -> Result<String, Failure> {
    let all = page["turns"].as_array().cloned().unwrap_or_default();
    let next = page["next"].as_str();
    if all.is_empty() && next.is_none() {
        return Ok("no such turns\n".to_owned());
    }
    let mut out = String::new();
    line(
        &mut out,
        &format!("{:<36}  {:<16}  {:<10}  {:>6}  WHY", "TURN", "AGENT", "STATUS", "AGE"),
    );
    for value in all {
        let why = times::local(value["why"].as_str().unwrap_or(""));
        let turn: TurnView = read(value)?;
        let age = span(now.since(turn.created_at));
        let (id, agent, status) = (turn.id, turn.agent, turn.status);
        line(&mut out, &format!("{id}  {agent:<16}  {status:<10}  {age:>6}  {why}"));
    }
    if let Some(next) = next {
        let _ = writeln!(out, "more: --before {next}");
    }
    Ok(out)
}

/// One turn.
pub fn turn(turn: &TurnView, why: &str, end: &Value, now: Timestamp) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{}  {}  {}", turn.id, turn.agent, turn.status);
    let _ = writeln!(out, "{why}");
    let mut fact = |label: &str, text: &str| line(&mut out, &format!("  {label:<12} {text}"));
    fact("sent", &format!("{} (tenant {})", moment(turn.created_at), turn.tenant));
    if let Some(id) = &turn.correlation_id {
        fact("correlation", id);
    }
    fact("turn epoch", &turn.turn_epoch.to_string());
    fact("step", &turn.step.to_string());
    if let Some(holder) = &turn.holder {
        fact("worker", &holder.name);
    }
    if turn.takeovers > 0 {
        fact("lost workers", &format!("{} of at most {}", turn.takeovers, turn.takeovers_max));
    }
    for wait in &turn.waits {
        let of = wait.of.map(|id| format!(" {id}")).unwrap_or_default();
        let left = wait.deadline.map(|d| format!(", {} left", span(d.since(now))));
        let by = format!("{} ({}{of}){}", wait.tool, wait.by, left.unwrap_or_default());
        fact(&format!("wait {}", wait.wait), &by);
    }
    for rule in &turn.next_rules {
        let wait = rule.wait.as_ref().map(|w| format!(" of {w}")).unwrap_or_default();
        fact("rule", &format!("{}{wait} in {}", rule.rule, span(rule.at.since(now))));
    }
    if let Some(error) = &turn.error {
        fact("error", &format!("{}: {}", error.code, error.message));
    }
    let deliverable = &end["deliverable"];
    if !deliverable.is_null() {
        let fallback = if deliverable["fallback"] == true { " (fallback)" } else { "" };
        fact("delivered", &format!("{}{fallback}", deliverable["content"]));
    }
    out
}

/// What happened to a turn.
pub fn timeline(whole: &TurnDetail) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{}  {}  {}", whole.turn.id, whole.turn.agent, whole.turn.status);
    for entry in &whole.timeline {
        let rule = entry.rule.as_ref().map(|r| format!(" [{r}]")).unwrap_or_default();
        let at = moment(entry.at);
        line(&mut out, &format!("{at}  {:<7} {}{rule}", entry.by, entry.text));
    }
    for step in &whole.steps {
        for call in &step.calls {
            let of = call.of.map(|id| format!(" {} {id}", call.by)).unwrap_or_default();
            let status = call.status.as_deref().unwrap_or("waits");
            let said = match &call.error {
                Some(error) => error.clone(),
                None => call.result.to_string(),
            };
            let said = clip(&said, 200);
            line(&mut out, &format!("  {} {}{of}: {status} {said}", call.wait, call.tool));
        }
    }
    out
}

/// A table of items.
pub fn items(all: &[Item]) -> String {
    if all.is_empty() {
        return "nothing of the kind\n".to_owned();
    }
    let mut out = String::new();
    line(
        &mut out,
        &format!("{:<36}  {:<12}  {:<11}  {:<10}  ITEM", "TURN", "AGENT", "TYPE", "STATUS"),
    );
    for item in all {
        let id = if item.id == item.turn.to_string() { "-" } else { &item.id };
        // Whole, however wide the terminal: it is what `requeue` and `discard` are given.
        out.push_str(&format!(
            "{}  {:<12}  {:<11}  {:<10}  {id}\n",
            item.turn,
            item.agent,
            item.kind,
            item.status.name()
        ));
        if let Some(code) = &item.code {
            let why = item.why.as_ref().map(|w| format!(": {w}")).unwrap_or_default();
            line(&mut out, &format!("    {code}{why}"));
        }
    }
    out
}

/// What the rules would do.
pub fn forecasts(all: &[Forecast], now: Timestamp) -> String {
    if all.is_empty() {
        return "nothing: no turn is open that a rule looks at\n".to_owned();
    }
    let mut out = String::new();
    line(&mut out, &format!("{:<9}  {:<36}  {:<10}  {:<20}  THEN", "IN", "ID", "STATUS", "RULE"));
    for f in all {
        let when = match f.at {
            Some(at) if at > now => span(at.since(now)),
            Some(_) => "now".to_owned(),
            None => "-".to_owned(),
        };
        let wait = f.wait.as_ref().map(|w| format!(" {w}")).unwrap_or_default();
        let rule = format!("{}{wait}", f.rule);
        let row = format!("{when:<9}  {}  {:<10}  {rule:<20}  {}", f.id, f.status, f.does);
        line(&mut out, &row);
    }
    out
}
