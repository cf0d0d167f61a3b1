//! One sentence about a turn: what it waits for, who has to act, which rule is next, and what a person can do.

use super::turn::{NextRule, TurnView};
use crate::rules::timer;
use std::time::Duration;
use tenure_kernel::time::Timestamp;

/// Why a turn is where it is, and what moves it.
pub fn why(turn: &TurnView, now: Timestamp) -> String {
    if turn.is_final {
        return ended(turn);
    }
    let says = match &turn.fault {
        Some(fault) => format!("Nobody can decide about it: {}", fault.trim_end_matches('.')),
        None => open(turn, now),
    };
    let letters = match turn.dead_letters {
        0 => String::new(),
        1 => "; one dead letter waits for a person (`tenure inbox list`)".to_owned(),
        n => format!("; {n} dead letters wait for a person (`tenure inbox list`)"),
    };
    format!("{says}{}{letters}.", next(turn, now))
}

fn ended(turn: &TurnView) -> String {
    let error = turn.error.as_ref().map(|e| match e.message.is_empty() {
        true => format!(": {}", e.code),
        false => format!(": {} ({})", e.message, e.code),
    });
    let forced = if turn.forced { ", ended by a rule or a person" } else { "" };
    let took = span(turn.changed_at.since(turn.created_at));
    format!("Ended as {}{forced} after {took}{}.", turn.status, error.unwrap_or_default())
}

fn open(turn: &TurnView, now: Timestamp) -> String {
    let since = format!("for {}", span(now.since(turn.changed_at)));
    match turn.status.as_str() {
        "queued" => queued(turn, &since),
        "dispatched" => format!(
            "It is its turn, and no worker of target {} has taken it {since}: start one, or look why it does not claim",
            turn.target
        ),
        "suspended" => suspended(turn),
        _ => match &turn.holder {
            Some(holder) if holder.expires_at.is_some_and(|e| e <= now) => format!(
                "Worker {} has not been heard since its lease ended: its tenure ends with the next look, and another \
                 worker goes on",
                holder.name
            ),
            Some(holder) if turn.asking => {
                format!("Worker {} asks the model for step {} {since}", holder.name, turn.step)
            }
            Some(holder) => {
                format!("Worker {} has it {since}, after step {}", holder.name, turn.step)
            }
            None if turn.resumed => format!(
                "Everything has answered, and it waits {since} for a worker of target {} to go on",
                turn.target
            ),
            None if turn.takeovers == 0 => format!(
                "Its worker has given it back, and it waits {since} for another of target {}",
                turn.target
            ),
            None => format!(
                "It lost its worker ({} of {}), and waits {since} for another of target {}",
                turn.takeovers,
                turn.takeovers_max + 1,
                turn.target
            ),
        },
    }
}

fn queued(turn: &TurnView, since: &str) -> String {
    let agent = &turn.agent;
    match &turn.line {
        Some(line) if line.paused => format!(
            "In the line of agent {agent} {since}, with {} before it: the agent is paused, and gives nobody the turn until \
             `tenure agent resume {agent}`",
            line.before
        ),
        Some(line) => format!(
            "In the line of agent {agent} {since}: {} before it, and the agent gives it the turn when they are over \
             (`tenure agent get {agent}`)",
            match line.before {
                1 => "one turn is".to_owned(),
                n => format!("{n} turns are"),
            }
        ),
        None => format!(
            "Sent to agent {agent} {since}: the agent has not put it into its line yet (`tenure agent get {agent}`)"
        ),
    }
}

fn suspended(turn: &TurnView) -> String {
    let wait = |w: &super::turn::WaitView| match w.of {
        Some(id) => format!("{} ({}, {} {id})", w.tool, w.wait, w.by),
        None => format!("{} ({}, whoever answers {:?})", w.tool, w.wait, w.tool_call_id),
    };
    let waits: Vec<String> = turn.waits.iter().take(3).map(wait).collect();
    let more = match turn.waits.len().saturating_sub(3) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    format!(
        "Suspended after step {}: waits for {}{more}; `tenure turn resume {}` waits no longer",
        turn.step,
        waits.join(", "),
        turn.id
    )
}

/// The next rule that does something about it.
fn next(turn: &TurnView, now: Timestamp) -> String {
    let Some(rule) = turn.next_rules.iter().find(|r| r.rule != "holder_check") else {
        return String::new();
    };
    let when = match rule.at > now {
        true => format!("in {}", span(rule.at.since(now))),
        false => "now".to_owned(),
    };
    format!("; {when} {}", consequence(rule))
}

/// What a rule does, in half a sentence.
pub(crate) fn consequence(rule: &NextRule) -> String {
    match rule.rule.as_str() {
        timer::PROCESSING => "a worker that has done nothing loses it".to_owned(),
        "tool_timeout" => {
            format!("wait {} ends as timed out", rule.wait.as_deref().unwrap_or("?"))
        }
        timer::RESUME => "a worker that has not gone on with it loses it".to_owned(),
        timer::RETRY | timer::WAKEUP => "its workers are rung for again".to_owned(),
        timer::DISPATCHED => "it ends as timed out (dispatch_timeout)".to_owned(),
        timer::REAP => "it ends as failed (timeout_reaped_by_watchdog)".to_owned(),
        timer::SKIP => "it is set aside (missing_channel)".to_owned(),
        "must_end_by" => "it ends, whatever it waits for".to_owned(),
        "holder_check" => "somebody looks whether its worker lives".to_owned(),
        other => format!("rule {other} looks at it"),
    }
}

/// How long, in two figures that matter.
pub fn span(d: Duration) -> String {
    match d.as_secs() {
        0 => format!("{} ms", d.as_millis()),
        s @ 1..60 => format!("{s} s"),
        s @ 60..3_600 => format!("{} min {:02} s", s / 60, s % 60),
        s @ 3_600..86_400 => format!("{} h {:02} min", s / 3_600, s / 60 % 60),
        s => format!("{} d {:02} h", s / 86_400, s / 3_600 % 24),
    }
}
