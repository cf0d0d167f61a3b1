//! `tenure rules`: the store is opened read-only, beside whoever serves it. Counters are stored with
//! the pulse, so they are at most one tick old. What the rules mean for each kind of work stands below them: a rule
//! is counted once, where it fires.

use super::{Failure, judge};
use crate::{config::Settings, open::open_read_only};
use tenure_agents::rules::TABLE as AGENTS;
use tenure_jobs::rules::JOBS;
use tenure_kernel::rules::{KERNEL, KindRule, Rule, Tally};
use tenure_pods::rules::TABLE as PODS;

/// Every rule with its state, setting, value in force, how often it fired, and its lag.
pub async fn run(settings: &Settings, json: bool) -> Result<String, Failure> {
    let store = open_read_only(settings, judge()).await?;
    let tallies = store.tallies().await?;
    let rows = KERNEL.iter().map(|rule| {
        let tally = tallies.get(rule.name).copied().unwrap_or_default();
        let value = rule.key.map(|k| settings.text(k).to_owned());
        (rule, value, tally)
    });
    if json {
        let mut rows: Vec<_> = rows.map(|(rule, value, t)| as_json(rule, value, t)).collect();
        rows.extend(JOBS.iter().map(|row| of_kind_as_json(settings, row)));
        rows.extend(AGENTS.iter().chain(PODS).map(|rule| {
            let tally = tallies.get(rule.name).copied().unwrap_or_default();
            let value = rule.key.map(|k| settings.text(k).to_owned());
            let mut row = as_json(rule, value, tally);
            row["kind"] = kind_of(rule).into();
            row
        }));
        return Ok(format!("{}\n", serde_json::Value::Array(rows)));
    }
    let mut out = format!(
        "{:<14} {:<28} {:<36} {:>8} {:>7} {:>10}  {}\n",
        "rule", "looks at", "setting", "fired", "failed", "worst lag", "then"
    );
    for (rule, value, t) in rows {
        let setting = match (rule.key, value) {
            (Some(key), Some(value)) => format!("{key} = {value}"),
            _ => "-".to_owned(),
        };
        let lag = format!("{:.3} s", t.lag_max.as_secs_f64());
        out.push_str(&format!(
            "{:<14} {:<28} {:<36} {:>8} {:>7} {:>10}  {}\n",
            rule.name, rule.state, setting, t.fired, t.failed, lag, rule.action
        ));
    }
    out.push_str(&format!(
        "\n{:<9} {:<12} {:<13} {:<30} {}\n",
        "kind", "rule", "fired by", "setting", "looks at → then"
    ));
    for KindRule { kind, by, rule } in JOBS {
        let setting =
            rule.key.map_or("-".to_owned(), |key| format!("{key} = {}", settings.text(key)));
        let (name, state, action) = (rule.name, rule.state, rule.action);
        out.push_str(&format!("{kind:<9} {name:<12} {by:<13} {setting:<30} {state} → {action}\n"));
    }
    out.push_str(&format!(
        "\n{:<6} {:<19} {:<46} {:>8} {:>10}  {}\n",
        "kind", "rule", "setting", "fired", "worst lag", "looks at: then"
    ));
    for rule in AGENTS.iter().chain(PODS) {
        let tally = tallies.get(rule.name).copied().unwrap_or_default();
        let setting =
            rule.key.map_or("-".to_owned(), |key| format!("{key} = {}", settings.text(key)));
        let lag = format!("{:.3} s", tally.lag_max.as_secs_f64());
        let (kind, name, fired) = (kind_of(rule), rule.name, tally.fired);
        let (state, action) = (rule.state, rule.action);
        out.push_str(&format!(
            "{kind:<6} {name:<19} {setting:<46} {fired:>8} {lag:>10}  {state}: {action}\n"
        ));
    }
    Ok(out)
}

/// Whose rule it is: a task's, pod's or budget's; else a turn's, but for the one with which an agent looks after its turn.
fn kind_of(rule: &Rule) -> &'static str {
    match rule.name {
        tenure_agents::rules::timer::STILL_THERE => "agent",
        name if PODS.iter().any(|r| r.name == name) => tenure_pods::rules::kind_of(name),
        _ => "turn",
    }
}

fn of_kind_as_json(settings: &Settings, row: &KindRule) -> serde_json::Value {
    serde_json::json!({
        "kind": row.kind,
        "rule": row.rule.name,
        "by": row.by,
        "state": row.rule.state,
        "key": row.rule.key,
        "value": row.rule.key.map(|k| settings.text(k)),
        "default_ms": row.rule.default_ms,
        "action": row.rule.action,
    })
}

fn as_json(rule: &Rule, value: Option<String>, t: Tally) -> serde_json::Value {
    serde_json::json!({
        "rule": rule.name,
        "state": rule.state,
        "key": rule.key,
        "value": value,
        "default_ms": rule.default_ms,
        "action": rule.action,
        "fired": t.fired,
        "failed": t.failed,
        "lag_max_ms": t.lag_max.as_secs_f64() * 1000.0,
        "last_at": t.last_at.map(|at| at.to_string()),
    })
}
