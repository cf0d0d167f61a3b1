//! A turn with everything that its stream says: messages, steps, tool calls, the rules that fired, the deliverable.

use super::{
    stream::{EventView, lines},
    turn::{TurnView, answers, turn_view},
};
use crate::turn::{
    TurnEvent, Wait,
    model::{Applied, TurnEnd},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::sync::Arc;
use tenure_kernel::{
    error::StoreError, head::Head, ids::EntityId, limits::clip, store::Store,
    table::kernel_events as ke, time::Timestamp,
};

/// Everything about a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnDetail {
    /// Where it stands.
    #[serde(flatten)]
    pub turn: TurnView,
    /// What was said to the agent.
    pub messages: Vec<Value>,
    /// What its worker was told about the agent.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub profile: Value,
    /// Its steps, in order.
    pub steps: Vec<StepView>,
    /// How it ended: deliverable, error, the record of a forced end.
    pub end: Option<TurnEnd>,
    /// What happened, in order.
    pub timeline: Vec<TimelineEntry>,
}

/// A step: the model was asked, and tools were called.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepView {
    /// From 1.
    pub step: u32,
    /// How often it was begun.
    pub attempts: u32,
    /// When it was first begun.
    pub started_at: Option<Timestamp>,
    /// When the model had answered.
    pub finished_at: Option<Timestamp>,
    /// What the model said.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub message: Value,
    /// Tokens and the like.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub usage: Value,
    /// Why the answer of the model ended, in its words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<String>,
    /// The tools that it called.
    pub calls: Vec<CallView>,
}

/// A tool call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallView {
    /// Its name within the turn.
    pub wait: String,
    /// The id that the model gave it.
    pub tool_call_id: String,
    /// The tool.
    pub tool: String,
    /// Who answers: `job`, `turn`, `join`, `message`; `worker` if it was answered at once.
    pub by: String,
    /// Its id.
    pub of: Option<EntityId>,
    /// When it was called.
    pub called_at: Timestamp,
    /// When it was answered.
    pub answered_at: Option<Timestamp>,
    /// How long it is waited for.
    pub deadline: Option<Timestamp>,
    /// How it ended.
    pub status: Option<String>,
    /// What it returned.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub result: Value,
    /// What went wrong.
    pub error: Option<String>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimelineEntry {
    /// Its place in the stream.
    pub version: u64,
    /// When.
    pub at: Timestamp,
    /// The event.
    pub event: String,
    /// Who brought it about: `sender`, `agent`, `worker`, `tool`, `rule`, `person` or `kernel`.
    pub by: String,
    /// The rule, where one fired.
    pub rule: Option<String>,
    /// In words.
    pub text: String,
}

/// Everything about a turn, from its head and stream.
pub async fn detail(store: &Arc<dyn Store>, head: &Head) -> Result<TurnDetail, StoreError> {
    let mut detail = TurnDetail {
        turn: turn_view(store, head).await?,
        messages: Vec::new(),
        profile: Value::Null,
        steps: Vec::new(),
        end: None,
        timeline: Vec::new(),
    };
    for (event, read) in lines(store, head.id).await? {
        detail.timeline.push(entry(&event, read.as_ref()));
        if let Some(read) = read {
            detail.take(event.at, read);
        }
    }
    Ok(detail)
}

/// The end of a turn with its deliverable; `None` while it is open.
pub async fn end_of(store: &Arc<dyn Store>, id: EntityId) -> Result<Option<TurnEnd>, StoreError> {
    Ok(lines(store, id).await?.into_iter().rev().find_map(|(_, read)| match read {
        Some(event) => event.as_end().cloned(),
        None => None,
    }))
}

impl TurnDetail {
    fn step(&mut self, step: u32) -> &mut StepView {
        let at = match self.steps.iter().position(|s| s.step == step) {
            Some(at) => at,
            None => {
                self.steps.push(StepView { step, ..StepView::default() });
                self.steps.len() - 1
            }
        };
        &mut self.steps[at]
    }

    fn take(&mut self, at: Timestamp, event: TurnEvent) {
        match event {
            TurnEvent::TurnCreated(new) => self.messages = new.messages,
            TurnEvent::StepStarted { step, attempt, profile, .. } => {
                if !profile.is_null() {
                    self.profile = profile;
                }
                let view = self.step(step);
                view.attempts = attempt;
                view.started_at = view.started_at.or(Some(at));
            }
            TurnEvent::StepFinished(done) => {
                let view = self.step(done.step);
                (view.finished_at, view.message, view.usage) = (Some(at), done.message, done.usage);
                view.finish_reason = done.finish_reason;
            }
            TurnEvent::TurnSuspended { step, waits } => {
                let calls = waits.into_iter().map(|w| call(w, at));
                self.step(step).calls.extend(calls);
            }
            TurnEvent::ResultApplied(done) | TurnEvent::WaitTimedOut(done) => {
                self.answered(at, done);
            }
            TurnEvent::WaitProgress { wait, deadline, .. } => {
                let calls = self.steps.iter_mut().flat_map(|s| &mut s.calls);
                calls.filter(|c| c.wait == wait).for_each(|c| c.deadline = deadline);
            }
            other => {
                if let Some(end) = other.as_end() {
                    self.end = Some(end.clone());
                }
            }
        }
    }

    fn answered(&mut self, at: Timestamp, done: Applied) {
        let calls = self.steps.iter_mut().flat_map(|s| &mut s.calls);
        let mut open: Vec<&mut CallView> = calls.filter(|c| c.wait == done.wait).collect();
        let status = json!(done.status).as_str().map(str::to_owned);
        let error = done.error.as_ref().map(|e| match e.message.is_empty() {
            true => e.code.clone(),
            false => format!("{}: {}", e.code, e.message),
        });
        if let Some(call) = open.first_mut() {
            (call.answered_at, call.status) = (Some(at), status);
            (call.result, call.error) = (done.result, error);
            return;
        }
        // Answered by the worker itself: it was never waited for.
        let step = done.wait.split('.').next().and_then(|s| s.parse().ok()).unwrap_or(0);
        self.step(step).calls.push(CallView {
            wait: done.wait,
            tool_call_id: done.call,
            tool: done.tool,
            by: "worker".to_owned(),
            of: None,
            called_at: at,
            answered_at: Some(at),
            deadline: None,
            status,
            result: done.result,
            error,
        });
    }
}

fn call(wait: Wait, at: Timestamp) -> CallView {
    let (by, of) = answers(wait.waits_for);
    CallView {
        wait: wait.id,
        tool_call_id: wait.call,
        tool: wait.tool,
        by: by.to_owned(),
        of,
        called_at: at,
        answered_at: None,
        deadline: wait.deadline,
        status: None,
        result: Value::Null,
        error: None,
    }
}

fn entry(event: &EventView, read: Option<&TurnEvent>) -> TimelineEntry {
    let (by, rule, text) = match read {
        Some(read) => told(read),
        None => ("kernel", None, kernel_text(event)),
    };
    TimelineEntry {
        version: event.version,
        at: event.at,
        event: event.name.clone(),
        by: by.to_owned(),
        rule: rule.map(str::to_owned),
        text,
    }
}

fn kernel_text(event: &EventView) -> String {
    let why = event.body.get("why").and_then(Value::as_str).unwrap_or("");
    match event.name.as_str() {
        ke::CLAIMED => "a worker takes it".to_owned(),
        ke::TENURE_ENDED => format!("its worker lets go: {why}"),
        ke::FORCE_ENDED => format!("ended by force: {why}"),
        other => other.replace('_', " "),
    }
}

/// Who brought it about, by which rule, and what it was.
fn told(event: &TurnEvent) -> (&'static str, Option<&'static str>, String) {
    use crate::rules::timer;
    let none = |by, text: String| (by, None, text);
    match event {
        TurnEvent::TurnCreated(new) => {
            let by = new.by.as_ref().map(|b| format!(" by {b}")).unwrap_or_default();
            none("sender", format!("sent to {}{by}", new.agent_name))
        }
        TurnEvent::TurnDispatched { turn_epoch } => {
            none("agent", format!("its turn has come, turn_epoch {turn_epoch}"))
        }
        TurnEvent::StepStarted { step, attempt: 1, .. } => {
            none("worker", format!("step {step}: the model is asked"))
        }
        TurnEvent::StepStarted { step, attempt, .. } => none(
            "worker",
            format!("step {step}: the model is asked again, for the {attempt}. time"),
        ),
        TurnEvent::StepFinished(done) => {
            let said = done.message.get("content").and_then(Value::as_str).unwrap_or("");
            let calls =
                done.message.get("tool_calls").and_then(Value::as_array).map_or(0, Vec::len);
            let said = match (said, calls) {
                ("", 0) => "nothing".to_owned(),
                ("", n) => format!("calls {n} tools"),
                (text, 0) => clip(text, 120).to_owned(),
                (text, n) => format!("{} (calls {n} tools)", clip(text, 120)),
            };
            none("worker", format!("step {}: the model says: {said}", done.step))
        }
        TurnEvent::ProgressMade { note } => none("worker", format!("progress {note}")),
        TurnEvent::TurnSuspended { waits, .. } => {
            let tools: Vec<&str> = waits.iter().map(|w| w.tool.as_str()).collect();
            none("worker", format!("suspended, waits for {}", tools.join(", ")))
        }
        TurnEvent::ResultApplied(done) => {
            let status = json!(done.status);
            let status = status.as_str().unwrap_or("");
            none("tool", format!("{} ({}): {status}", done.tool, done.wait))
        }
        TurnEvent::WaitTimedOut(done) => {
            let text = format!("{} ({}) did not answer in time", done.tool, done.wait);
            ("rule", Some("tool_timeout"), text)
        }
        TurnEvent::WaitProgress { wait, note, .. } => {
            none("tool", format!("{wait} is still at it: {note}"))
        }
        TurnEvent::ResultKept { result, .. } => {
            let call = result.tool_call_id.as_deref().unwrap_or("");
            none("tool", format!("a result for {call} came early and is kept"))
        }
        TurnEvent::TurnResumed { turn_epoch } => {
            none("tool", format!("everything has answered; it goes on, turn_epoch {turn_epoch}"))
        }
        TurnEvent::TurnLeftByWorker { why, released: true } => {
            none("worker", format!("given back: {why}"))
        }
        TurnEvent::TurnLeftByWorker { why, .. } => {
            ("rule", Some("holder_check"), format!("its worker was lost: {why}"))
        }
        TurnEvent::ItemsRequeued {} => {
            let text = "its worker had it and did nothing: it may be taken by another".to_owned();
            ("rule", Some(timer::PROCESSING), text)
        }
        TurnEvent::ResumeRequeued { attempts } => {
            let text = format!("taken up after its resume and not gone on with, {attempts} times");
            ("rule", Some(timer::RESUME), text)
        }
        TurnEvent::DispatchRetried { times } => {
            ("rule", Some(timer::RETRY), format!("nobody has taken it: rung for again ({times})"))
        }
        TurnEvent::BellRung { times, silent: false } => {
            ("rule", Some(timer::WAKEUP), format!("it waits for a worker: rung for ({times})"))
        }
        TurnEvent::BellRung { .. } => {
            let text = "it waits for a worker, and has no channel to ring on".to_owned();
            ("rule", Some(timer::WAKEUP), text)
        }
        TurnEvent::ItemDead(dead) => {
            none("tool", format!("dead letter {}: {} ({})", dead.item, dead.why, dead.code))
        }
        TurnEvent::ItemSettled { item, how, .. } => {
            none("person", format!("dead letter {item} was {how}"))
        }
        TurnEvent::ItemNoted { kind, why, .. } => none("tool", format!("{kind}: {why}")),
        TurnEvent::TurnSucceeded(end)
        | TurnEvent::TurnPartlySucceeded(end)
        | TurnEvent::TurnFailed(end)
        | TurnEvent::TurnTimedOut(end)
        | TurnEvent::TurnCanceled(end) => ended(end),
    }
}

fn ended(end: &TurnEnd) -> (&'static str, Option<&'static str>, String) {
    use crate::rules::timer;
    let why = end.error.as_ref().map(|e| format!(": {} ({})", e.message, e.code));
    let left = match end.abandoned.len() {
        0 => String::new(),
        n => format!("; {n} that it asked are told to stop and not waited for"),
    };
    let text = format!("ends: {}{}{left}", end.status.name(), why.unwrap_or_default());
    let rule = match end.forced.as_ref().map(|f| f.reason.as_str()) {
        Some("dispatch_timeout") => Some(timer::DISPATCHED),
        Some("timeout_reaped_by_watchdog") => Some(timer::REAP),
        Some("missing_channel") => Some(timer::SKIP),
        Some("must_end_by") => Some("must_end_by"),
        _ => None,
    };
    let by = match (&end.forced, rule) {
        (_, Some(_)) => "rule",
        (Some(_), None) => "person",
        (None, None) => "worker",
    };
    (by, rule, text)
}
