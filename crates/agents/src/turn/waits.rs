//! Results, progress and timeouts of tools: which of them answers which wait.
//!
//! A wait is answered once, by the first that may. Whatever else comes is on record: a repetition is noted, a result for
//! nobody is a dead letter with its reason, and neither keeps what lies behind it from being read.

use super::model::{Applied, TurnState, Wait, WaitFor};
use crate::{
    limits,
    words::{After, EndStatus, Fault, JobEnded, ToolResult, ToolStatus, TurnResult},
};
use serde_json::{Value, json};

/// What a message about a wait amounts to.
#[derive(Clone, Debug, PartialEq)]
pub enum Match<'a> {
    /// It is about this open wait.
    Open(&'a Wait),
    /// About one that is over: a repetition, or too late.
    Over(&'static str),
    /// It came before the turn was suspended.
    Early,
    /// About nothing that was ever waited for.
    Dead(&'static str, String),
}

/// Which wait a message from outside is about.
pub fn find<'a>(
    state: &'a TurnState,
    suspended: bool,
    wait: Option<&str>,
    call: Option<&str>,
    turn_epoch: Option<u64>,
) -> Match<'a> {
    if call.is_some_and(|c| crate::clip_encoded(c, limits::CALL_BYTES_MAX + 2) != c) {
        let why =
            format!("its tool_call_id is longer than {} bytes, as JSON", limits::CALL_BYTES_MAX);
        return Match::Dead("unknown_call", why);
    }
    match turn_epoch {
        Some(told) if told > state.turn_epoch => {
            let why =
                format!("it names turn_epoch {told}, and the turn is at {}", state.turn_epoch);
            return Match::Dead("epoch_from_the_future", why);
        }
        Some(told) if told < state.turn_epoch => {
            return match is_over(state, wait) {
                true => Match::Over("the wait is over"),
                false => {
                    let why = format!(
                        "it was called under turn_epoch {told}, and the turn is at {}",
                        state.turn_epoch
                    );
                    Match::Dead("stale_epoch", why)
                }
            };
        }
        _ => {}
    }
    let mut open = state
        .waits
        .iter()
        .filter(|w| wait.is_none_or(|id| w.id == id) && call.is_none_or(|c| w.call == c));
    match (wait, call) {
        (None, None) => {
            return Match::Dead(
                "unknown_call",
                "it names neither a wait nor a tool_call_id".into(),
            );
        }
        _ => match (open.next(), open.next()) {
            (Some(w), None) if w.waits_for == WaitFor::Message => return Match::Open(w),
            (Some(w), None) => {
                let why =
                    format!("wait {} is answered by {}, not by a message", w.id, who(w.waits_for));
                return Match::Dead("not_by_message", why);
            }
            (Some(_), Some(_)) => {
                let why = "several open calls have this tool_call_id; name the wait".to_owned();
                return Match::Dead("ambiguous_call", why);
            }
            (None, _) => {}
        },
    }
    if is_over(state, wait) {
        return Match::Over("the wait is over");
    }
    // Without a counter an id that was used before is taken for the earlier call: a result that is late would
    // answer the next one.
    if let (None, Some(call), None) = (wait, call, turn_epoch)
        && state.done_calls.iter().any(|d| d == call)
    {
        return Match::Over("the call of this id is over");
    }
    match (wait, call) {
        // A wait has its name from the suspend: one that is named and unknown never was.
        (None, Some(_)) if !suspended => Match::Early,
        _ => {
            let open: Vec<&str> = state.waits.iter().map(|w| w.id.as_str()).collect();
            Match::Dead("unknown_call", format!("no such call is waited for; open waits: {open:?}"))
        }
    }
}

fn is_over(state: &TurnState, wait: Option<&str>) -> bool {
    wait.is_some_and(|id| state.done.iter().any(|d| d == id))
}

fn who(waits_for: WaitFor) -> String {
    match waits_for {
        WaitFor::Job(id) => format!("job {id}"),
        WaitFor::Turn(id) => format!("turn {id}"),
        WaitFor::Join(id) => format!("join {id}"),
        WaitFor::Message => "a message".to_owned(),
    }
}

fn applied(wait: &Wait, status: ToolStatus, result: Value, error: Option<Fault>) -> Applied {
    Applied {
        wait: wait.id.clone(),
        call: wait.call.clone(),
        tool: wait.tool.clone(),
        status,
        result,
        error,
        read_from: None,
        after: wait.after,
    }
}

/// What a tool outside says.
pub fn by_message(wait: &Wait, said: &ToolResult) -> Applied {
    let mut answer = applied(wait, said.status, said.result.clone(), said.error.clone());
    answer.after = said.after_execution.unwrap_or(wait.after);
    answer
}

/// What a job says.
pub fn by_job(wait: &Wait, said: JobEnded) -> Applied {
    let fault = |code: &str| {
        let message = said.error.clone().unwrap_or_default();
        Some(Fault { code: code.to_owned(), message })
    };
    let (status, error) = match said.status.as_str() {
        "completed" => (ToolStatus::Success, None),
        "cancelled" => (ToolStatus::Canceled, fault("job_cancelled")),
        _ => (ToolStatus::Failed, fault("job_failed")),
    };
    let missing = status == ToolStatus::Success && said.output.is_none();
    let mut answer = applied(wait, status, said.output.unwrap_or(Value::Null), error);
    if let (true, WaitFor::Job(id)) = (missing, wait.waits_for) {
        answer.read_from = Some(id);
    }
    answer
}

/// What another turn, or a join, says.
pub fn by_turn(wait: &Wait, said: TurnResult) -> Applied {
    let status = match said.status {
        EndStatus::Success => ToolStatus::Success,
        EndStatus::Partial => ToolStatus::Partial,
        EndStatus::Failed => ToolStatus::Failed,
        EndStatus::Timeout => ToolStatus::Timeout,
        EndStatus::Canceled => ToolStatus::Canceled,
    };
    let missing = said.deliverable.is_null() && said.deliverable_card_id.is_some();
    let mut answer = applied(wait, status, said.deliverable, said.error);
    answer.read_from = match wait.waits_for {
        WaitFor::Turn(id) if missing => Some(id),
        // What it tells are summaries; the worker reads what its turns delivered.
        WaitFor::Join(id) => Some(id),
        _ => None,
    };
    answer
}

/// Nobody answered: whatever the tool would have done to the turn, the model hears of it.
fn unanswered(wait: &Wait, status: ToolStatus, result: Value, error: Fault) -> Applied {
    Applied { after: After::Suspend, ..applied(wait, status, result, Some(error)) }
}

/// The timeout report, built from the wait alone.
pub fn timeout_report(wait: &Wait) -> Applied {
    let message = format!("{} did not answer within {} ms", wait.tool, wait.timeout_ms);
    let error = Fault { code: "tool_timeout".into(), message };
    unanswered(wait, ToolStatus::Timeout, Value::Null, error)
}

/// The command came back: it never reached anybody.
pub fn undelivered(wait: &Wait, why: &str) -> Applied {
    let error = Fault { code: "upstream_unavailable".into(), message: why.to_owned() };
    unanswered(wait, ToolStatus::Failed, Value::Null, error)
}

/// A person does not want to wait.
pub fn skipped(wait: &Wait, why: Option<&str>, by: Option<&str>) -> Applied {
    let message = why.unwrap_or("a person decided not to wait for it").to_owned();
    let error = Fault { code: "skipped_by_person".into(), message };
    unanswered(wait, ToolStatus::Skipped, json!({ "by": by }), error)
}
