//! What a worker does with a turn that it holds. Pure: the shells commit it under the worker's epoch.
//!
//! Every act is progress, and sets the clocks of rules `inbox_processing` and `active_reap` anew; a model that may take longer than they allow
//! has its own time, counted from when it was asked: signs of life do not make it longer.

use super::{
    end::{Ending, end, state_event},
    model::{Applied, StepDone, Turn, TurnEvent, TurnState, Wait, WaitFor},
    waits,
};
use crate::{
    limits,
    rules::{on, timer},
    words::{After, EndStatus, Fault, ToolResult, ToolStatus},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, time::Duration};
use tenure_kernel::{
    commit::{Commit, Expect, MailStance, TenureChange},
    head::Head,
    ids::CommitId,
    machine::{Cx, Decision, Machine, encode_state},
    outbox::{Message, Target},
    stream::{Body, NewEvent},
    table::kernel_events as ke,
    timers::TimerChange,
};

/// A tool that the model wants called, as its worker has made sense of it.
#[derive(Clone, Debug)]
pub struct NewWait {
    /// The id that the model gave the call.
    pub call: String,
    /// The tool.
    pub tool: String,
    /// How it is called.
    pub how: How,
    /// The tool's own time, if it has one.
    pub timeout_ms: Option<u64>,
    /// What happens after it.
    pub after: After,
}

/// How a tool is called.
#[derive(Clone, Debug)]
pub enum How {
    /// Somebody is asked by this message, and answers under the wait's number. The message is made once number and
    /// time are known.
    Ask(WaitFor, Message),
    /// Somebody outside is told, if there is a message, and answers with a `tool_result`.
    Outside(Option<Message>),
    /// It is answered already: an unknown tool, bad arguments, something that the worker did itself.
    Answered(ToolStatus, Value, Option<Fault>),
}

/// The number of the first wait of the next suspend. Whoever is asked answers under the number of its wait: its
/// place among the calls that are [`How::Ask`] or [`How::Outside`], counted from here.
pub fn next_ordinal(state: &TurnState) -> u32 {
    state.waited
}

/// How long a wait lasts, in milliseconds; `None` as long as the turn.
pub fn wait_ms(state: &TurnState, tool_ms: Option<u64>, left: Duration) -> Option<u64> {
    let own = tool_ms.unwrap_or(0);
    let ms = match (on(state.rules.suspend_ms), own) {
        (None, 0) => return None,
        (rule, own) => {
            rule.map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX)).max(own)
        }
    };
    Some(ms.min(u64::try_from(left.as_millis()).unwrap_or(u64::MAX)))
}

/// By when what is asked has to end, so that its end is told before the wait is over: a tick sooner, or half of the
/// time where that is all there is.
pub fn answer_ms(state: &TurnState, wait_ms: u64) -> u64 {
    wait_ms.saturating_sub(state.rules.tick_ms).max(wait_ms / 2).max(1)
}

/// The clocks that every progress sets anew; `asking` is what is left of a call that may take longer than they allow.
fn clocks(state: &TurnState, asking: Duration) -> Vec<TimerChange> {
    let millis = |rule: u64| Duration::from_millis(rule).max(asking);
    let mut timers = vec![TimerChange::guard(timer::REAP, millis(state.rules.active_reap_ms))];
    let processing = on(state.rules.inbox_processing_ms);
    timers.extend(
        processing.map(|_| {
            TimerChange::guard(timer::PROCESSING, millis(state.rules.inbox_processing_ms))
        }),
    );
    timers
}

/// Clocks of a turn that waits for a worker, which it does no longer.
fn taken(state: &TurnState) -> Vec<TimerChange> {
    let mut timers = vec![TimerChange::clear(timer::WAKEUP)];
    if state.channel.is_none() {
        timers.push(TimerChange::clear(timer::SKIP));
    }
    if state.step == 0 {
        timers.push(TimerChange::clear(timer::RETRY));
        timers.push(TimerChange::clear(timer::DISPATCHED));
    }
    if state.resumed {
        timers.push(TimerChange::clear(timer::RESUME));
    }
    timers
}

/// The event of a step, for those outside.
fn step_event(state: &TurnState, cx: &Cx, step: u32, phase: &str) -> Message {
    let body = json!({
        "agent_id": state.agent_name,
        "agent_turn_id": cx.id,
        "turn_epoch": state.turn_epoch,
        "channel_id": state.channel,
        "step_id": format!("{}.{step}", cx.id),
        "step": step,
        "phase": phase,
        "trace": state.trace,
    });
    let to = Target::Wire(format!("evt.agent.{}.step", state.agent_name));
    Message { to, kind: "agent_step".into(), body: Body::json(&body) }
}

/// Its worker asks the model. The profile comes with the first step.
pub fn start_step(
    state: &TurnState,
    cx: &Cx,
    timeout_ms: u64,
    profile: Value,
) -> Decision<TurnEvent> {
    // A step that was begun and not finished is begun again: asking a model has no effect but its answer.
    let again = state.attempt > 0;
    let (step, attempt) = match again {
        true => (state.step, state.attempt + 1),
        false => (state.step + 1, 1),
    };
    let asking = Duration::from_millis(timeout_ms);
    let until = Some(cx.now + asking);
    let mut decision =
        Decision::event(TurnEvent::StepStarted { step, attempt, timeout_ms, until, profile });
    decision.timers = taken(state);
    decision.timers.append(&mut clocks(state, asking));
    if state.step == 0 {
        decision.messages.push(state_event(state, cx, "running", state.turn_epoch, &json!({})));
    }
    decision.messages.push(step_event(state, cx, step, "started"));
    decision
}

/// The model is at it.
pub fn progress(state: &TurnState, cx: &Cx, note: &str) -> Decision<TurnEvent> {
    let note = tenure_kernel::limits::clip(note, limits::ERROR_BYTES_MAX).to_owned();
    let mut decision = Decision::event(TurnEvent::ProgressMade { note });
    decision.timers = taken(state);
    let left = state.asking_until.map_or(Duration::ZERO, |until| until.since(cx.now));
    decision.timers.append(&mut clocks(state, left));
    decision
}

/// What came of a step that calls tools, or of a worker that lets go.
pub struct Suspended {
    /// The events and messages.
    pub decision: Decision<TurnEvent>,
    /// The tenure ends with it; else every call is answered already, and the worker goes on.
    pub parks: bool,
}

/// The model has answered, and wants tools called. Waits and commands are one commit. `early` are results that came
/// before, by tool call id; `left` is what is left until the turn must end.
pub fn suspend(
    state: &TurnState,
    cx: &Cx,
    done: StepDone,
    calls: Vec<NewWait>,
    early: &BTreeMap<String, ToolResult>,
    left: Duration,
) -> Suspended {
    let step = done.step;
    let mut after = state.clone();
    let finished = TurnEvent::StepFinished(done);
    Turn::apply(&mut after, &finished);
    let mut decision = Decision::event(finished);
    let mut waits = Vec::new();
    let mut answered: Vec<Applied> = Vec::new();
    let mut messages = Vec::new();
    for (n, call) in calls.into_iter().enumerate() {
        let id = format!("{step}.{}", n + 1);
        let ordinal = next_ordinal(state) + u32::try_from(waits.len()).unwrap_or(u32::MAX);
        let timeout = wait_ms(state, call.timeout_ms, left);
        let mut wait = Wait {
            id,
            ordinal,
            call: call.call,
            tool: call.tool,
            waits_for: WaitFor::Message,
            timeout_ms: timeout.unwrap_or(0),
            deadline: timeout.map(|ms| cx.now + Duration::from_millis(ms)),
            after: call.after,
        };
        match call.how {
            How::Answered(status, result, error) => answered.push(Applied {
                wait: wait.id,
                call: wait.call,
                tool: wait.tool,
                status,
                result,
                error,
                read_from: None,
                after: wait.after,
            }),
            How::Ask(waits_for, message) => {
                wait.waits_for = waits_for;
                messages.push(message);
                waits.push(wait);
            }
            How::Outside(message) => {
                // One that was said under another counter was about another call of the same id.
                let counts = |r: &&ToolResult| r.turn_epoch.is_none_or(|e| e == state.turn_epoch);
                match early.get(&wait.call).filter(counts) {
                    // Nobody is told to do what is done.
                    Some(result) => answered.push(waits::by_message(&wait, result)),
                    None => messages.extend(message),
                }
                waits.push(wait);
            }
        }
    }
    decision.timers = taken(state);
    decision.messages.push(step_event(state, cx, step, "completed"));
    let open = waits.iter().any(|w| !answered.iter().any(|a| a.wait == w.id));
    if !open && waits.is_empty() {
        decision.timers.append(&mut clocks(state, Duration::ZERO));
        decision.events.extend(answered.into_iter().map(TurnEvent::ResultApplied));
        return Suspended { decision, parks: false };
    }
    for name in [timer::REAP, timer::PROCESSING] {
        decision.timers.push(TimerChange::clear(name));
    }
    for wait in waits.iter().filter(|w| w.timeout_ms > 0) {
        let name = format!("{}{}", timer::WAIT, wait.id);
        let after = Duration::from_millis(wait.timeout_ms);
        decision.timers.push(TimerChange::set(name, after));
    }
    let shown: Vec<Value> = waits
        .iter()
        .map(|w| json!({ "wait": w.id, "tool": w.tool, "deadline": w.deadline }))
        .collect();
    let suspended = TurnEvent::TurnSuspended { step, waits };
    Turn::apply(&mut after, &suspended);
    decision.events.push(suspended);
    let metadata = json!({
        "waiting_tools": shown,
        "waiting_tool_count": shown.len(),
        "resume_deadline": after.resume_deadline(),
    });
    decision.messages.push(state_event(state, cx, "suspended", state.turn_epoch, &metadata));
    // Commands leave with the waits, never before.
    decision.messages.append(&mut messages);
    for applied in answered {
        let name = format!("{}{}", timer::WAIT, applied.wait);
        decision.timers.push(TimerChange::clear(name));
        let event = TurnEvent::ResultApplied(applied);
        Turn::apply(&mut after, &event);
        decision.events.push(event);
    }
    Suspended { decision: super::decide::resume_if_answered(after, cx, decision), parks: true }
}

/// Its worker gives it back, for anybody. One that is given back again and again, and never gone on with, ends: each claim
/// reads its whole history, and no rule would be about it before its last day.
pub fn give_back(state: &TurnState, cx: &Cx, why: &str) -> Suspended {
    if state.given_back >= limits::GIVEN_BACK_MAX {
        let message = format!("{} workers gave it back: {why}", state.given_back + 1);
        let decision = end(state, cx, Ending::failed("given_back_too_often", &message));
        return Suspended { decision, parks: false };
    }
    let event = TurnEvent::TurnLeftByWorker { why: why.to_owned(), released: true };
    let mut decision = Decision::event(event);
    decision.timers = super::decide::left_alone(state);
    Suspended { decision, parks: true }
}

/// The commit with which a worker lets go of a turn that is not over: a suspend, which must have read all mail up to
/// `read`, or (without it) a turn that is given back. `tenure_ended` stands after what the worker did.
pub fn parting(
    head: &Head,
    mut state: TurnState,
    decision: Decision<TurnEvent>,
    id: CommitId,
    read: Option<u64>,
) -> Commit {
    let leaves = |e: &TurnEvent| {
        matches!(e, TurnEvent::TurnSuspended { .. } | TurnEvent::TurnLeftByWorker { .. })
    };
    let place = decision.events.iter().position(leaves).unwrap_or(decision.events.len());
    let why = if read.is_some() { "suspended" } else { "given back" };
    let mut events = Vec::with_capacity(decision.events.len() + 1);
    for (n, event) in decision.events.iter().enumerate() {
        if n == place {
            events.push(NewEvent::new(ke::TENURE_ENDED, Body::json(&json!({ "why": why }))));
        }
        Turn::apply(&mut state, event);
        events.push(NewEvent::new(Turn::name(event), Body::json(event)));
    }
    let expect = Expect::Holder { epoch: head.epoch, version: head.version };
    let mut commit = Commit::new(id, head.id, expect, events);
    commit.state = Some(encode_state::<Turn>(&state));
    commit.timers = decision.timers;
    commit.messages = decision.messages;
    commit.tenure = TenureChange::End;
    commit.mail = read.map_or(MailStance::Regardless, MailStance::ReadAll);
    commit
}

/// The turn delivers.
pub fn finish(
    state: &TurnState,
    cx: &Cx,
    done: Option<StepDone>,
    status: EndStatus,
    content: Value,
) -> Decision<TurnEvent> {
    let ending = Ending { status, content: Some(content), ..Ending::default() };
    // A turn that delivers has read its mail, or is refused: a stop must not slip by.
    Decision { regardless: false, ..end_after(state, cx, done, ending) }
}

/// The turn fails, by the word of its worker. `done` is the step whose answer it fails for.
pub fn fail(
    state: &TurnState,
    cx: &Cx,
    done: Option<StepDone>,
    error: Fault,
) -> Decision<TurnEvent> {
    let ending = Ending { status: EndStatus::Failed, error: Some(error), ..Ending::default() };
    end_after(state, cx, done, ending)
}

fn end_after(
    state: &TurnState,
    cx: &Cx,
    done: Option<StepDone>,
    ending: Ending,
) -> Decision<TurnEvent> {
    let Some(done) = done else { return end(state, cx, ending) };
    let mut after = state.clone();
    let mut messages = vec![step_event(state, cx, done.step, "completed")];
    let event = TurnEvent::StepFinished(done);
    Turn::apply(&mut after, &event);
    let mut last = end(&after, cx, ending);
    let mut events = vec![event];
    events.append(&mut last.events);
    messages.append(&mut last.messages);
    Decision { events, messages, ..last }
}
