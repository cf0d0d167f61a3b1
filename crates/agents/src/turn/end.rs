//! The end of a turn: one commit, whoever brings it about.
//!
//! It carries the final event with the counter, the deliverable and, where a rule or a person ended the turn, the record
//! of that; and, in one lane and in this order: the state event `idle`, the task event, the mail to the agent, the
//! result for whoever waits, and a cancel for everything that the turn still waits for. So the announcement is neither
//! lost nor doubled, and the agent gives the next turn only after this one has said everything. Messages of two turns go
//! through two lanes, so on a bus that was down the next one may be heard first: `turn_epoch` says which is newer.

use super::{
    model::{Deliverable, ForcedEnd, TurnEnd, TurnEvent, TurnState, WaitFor},
    state::small,
};
use crate::{
    limits,
    words::{EndStatus, Ended, Fault, TurnResult, kinds},
};
use serde_json::{Value, json};
use tenure_kernel::{
    ids::EntityId,
    limits::clip,
    machine::{Cx, Decision},
    mail::kinds as kernel,
    outbox::{Message, Target},
    stream::Body,
    timers::TimerChange,
};

/// How and why a turn ends.
#[derive(Clone, Debug, Default)]
pub struct Ending {
    /// How.
    pub status: EndStatus,
    /// What went wrong.
    pub error: Option<Fault>,
    /// What is delivered; a fallback without it.
    pub content: Option<Value>,
    /// The reason on the record of a forced end, and who.
    pub forced: Option<(String, Option<String>)>,
    /// The counter rises, so that whatever was under way under the old one is stale.
    pub raises_epoch: bool,
    /// The item is set aside by this rule.
    pub skipped: Option<&'static str>,
}

impl Ending {
    /// By a rule: with its record and a raised counter.
    pub fn forced(status: EndStatus, code: &str, message: &str) -> Self {
        Ending {
            status,
            error: Some(Fault { code: code.to_owned(), message: message.to_owned() }),
            forced: Some((code.to_owned(), None)),
            raises_epoch: true,
            ..Ending::default()
        }
    }

    /// By the machine itself, without a record of force.
    pub fn failed(code: &str, message: &str) -> Self {
        Ending { forced: None, ..Self::forced(EndStatus::Failed, code, message) }
    }
}

/// The name of a turn's deliverable.
pub fn card_id(turn: EntityId) -> String {
    format!("{turn}.deliverable")
}

/// What stands in the place of a deliverable that a turn did not make.
fn fallback(state: &TurnState, ending: &Ending) -> Value {
    let reason = ending.error.as_ref().map_or("", |e| e.code.as_str());
    let message = ending.error.as_ref().map_or("", |e| e.message.as_str());
    json!({
        "schema": 1,
        "kind": "fallback",
        "partial": true,
        "message": message,
        "fields": { "summary": state.said, "output": null, "reason": reason },
        "diagnostics": {
            "source": ending.forced.as_ref().map_or("turn", |_| "watchdog"),
            "steps": state.step,
            "results": state.done.len(),
            "open_waits": state.waits.len(),
            "last_words": state.said,
        },
    })
}

/// The commit that ends a turn.
pub fn end(state: &TurnState, cx: &Cx, ending: Ending) -> Decision<TurnEvent> {
    let stood = cx.status.map_or("", |s| s.name());
    let began = state.turn_epoch > 0;
    let turn_epoch = state.turn_epoch + u64::from(ending.raises_epoch && began);
    let fell_back = ending.content.is_none();
    let content = ending.content.clone().unwrap_or_else(|| fallback(state, &ending));
    let deliverable = state.output_box.clone().map(|output_box| Deliverable {
        card_id: card_id(cx.id),
        output_box,
        fallback: fell_back,
        content,
    });
    let no_deliverable =
        deliverable.is_none().then(|| "the turn has no output box to put it into".to_owned());
    let error = ending.error.map(|e| Fault {
        code: e.code,
        message: clip(&e.message, limits::ERROR_BYTES_MAX).to_owned(),
    });
    let forced =
        ending.forced.map(|(reason, by)| ForcedEnd { reason, status: stood.to_owned(), by });
    let finish = TurnEnd {
        status: ending.status,
        turn_epoch,
        error,
        deliverable,
        no_deliverable,
        forced,
        abandoned: state.abandoned(),
        watchdog_error: ending.skipped.map(str::to_owned),
        watchdog_at: ending.skipped.map(|_| cx.now),
    };
    let mut decision = Decision::event(TurnEvent::end(finish.clone())).regardless();
    decision.timers.push(TimerChange::ClearAll);
    decision.messages = announcements(state, cx, &finish);
    decision
}

/// A message for those outside.
fn wire(subject: String, kind: &'static str, body: &Value) -> Message {
    Message { to: Target::Wire(subject), kind: kind.into(), body: Body::json(body) }
}

/// The state event of an agent.
pub fn state_event(
    state: &TurnState,
    cx: &Cx,
    status: &str,
    turn_epoch: u64,
    metadata: &Value,
) -> Message {
    let body = json!({
        "agent_id": state.agent_name,
        "agent_turn_id": cx.id,
        "status": status,
        "turn_epoch": turn_epoch,
        "channel_id": state.channel,
        "output_box_id": state.output_box,
        "trace": state.trace,
        "metadata": metadata,
    });
    wire(format!("evt.agent.{}.state", state.agent_name), "agent_state", &body)
}

fn announcements(state: &TurnState, cx: &Cx, end: &TurnEnd) -> Vec<Message> {
    let error = end.error.as_ref();
    let card = end.deliverable.as_ref().map(|d| d.card_id.clone());
    let mut all = Vec::new();
    let metadata = json!({ "error": error.map(|e| &e.code) });
    // One that never had the turn says nothing about its agent, who may have another.
    if state.turn_epoch > 0 {
        all.push(state_event(state, cx, "idle", end.turn_epoch, &metadata));
    }
    let task = json!({
        "agent_id": state.agent_name,
        "agent_turn_id": cx.id,
        "status": end.status,
        "turn_epoch": end.turn_epoch,
        "channel_id": state.channel,
        "output_box_id": state.output_box,
        "deliverable_card_id": card,
        "no_deliverable": end.no_deliverable,
        "error": error.map(|e| &e.code),
        "error_code": error.map(|e| &e.code),
        "error_message": error.map(|e| &e.message),
        "correlation_id": state.correlation_id,
        "trace": state.trace,
        "stats": { "steps": state.step, "tool_calls": state.waited, "takeovers": state.takeovers },
    });
    all.push(wire(format!("evt.agent.{}.task", state.agent_name), "agent_task", &task));
    let ended =
        Ended { turn: cx.id, turn_epoch: end.turn_epoch, status: end.status.name().to_owned() };
    all.push(Message::mail(state.agent, kinds::ENDED, Body::json(&ended)));
    if let Some(asker) = state.asker {
        let content = end.deliverable.as_ref().map(|d| &d.content);
        let told = TurnResult {
            ordinal: asker.ordinal,
            status: end.status,
            deliverable: content.and_then(small).unwrap_or(Value::Null),
            deliverable_card_id: card,
            error: end.error.clone(),
        };
        all.push(Message::mail(asker.id, kinds::TURN_RESULT, Body::json(&told)));
    }
    let why = json!({ "by": "turn", "why": "the turn that waits for it is over" });
    for wait in &state.waits {
        if let Some(message) = take_back(wait.waits_for, &why) {
            all.push(message);
        }
    }
    all
}

/// Tells whoever was to answer a wait that nobody waits any more.
pub fn take_back(waits_for: WaitFor, why: &Value) -> Option<Message> {
    match waits_for {
        WaitFor::Job(id) | WaitFor::Join(id) => {
            Some(Message::mail(id, kernel::CANCEL, Body::json(why)))
        }
        WaitFor::Turn(id) => Some(Message::mail(id, kinds::STOP, Body::json(why))),
        WaitFor::Message => None,
    }
}
