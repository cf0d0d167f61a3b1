//! What a stream says about each step, for people.

use super::{CallView, StepView, stream::Line};
use crate::model::{JobEvent, OwnEvent};
use serde_json::Value;
use std::{collections::HashMap, time::Duration};
use tenure_kernel::{limits, time::Timestamp};
use tenure_steps::{
    events::{
        CallOutcome, ResultType, SettledBy, StepEvent, StepId, ValueKind, Verdict, WaitOutcome,
    },
    history::Shape,
    saga::Undo,
};

/// Bytes of an argument, a result or an error that a step shows.
pub const EXCERPT_BYTES_MAX: usize = 400;

/// The steps of a stream, in the order in which they began.
pub(crate) fn steps(lines: &[Line]) -> Vec<StepView> {
    let mut steps = Steps::default();
    for line in lines {
        let (at, epoch) = (line.event.at, line.event.epoch);
        match &line.read {
            Some(JobEvent::Step(event)) => steps.take(event, at, epoch, false),
            Some(JobEvent::Own(OwnEvent::HistoryCopied { events, .. })) => {
                for event in events {
                    if let Ok(event) = serde_json::from_value(event.clone()) {
                        steps.take(&event, at, epoch, true);
                    }
                }
            }
            _ => {}
        }
    }
    steps.undone();
    steps.list
}

#[derive(Default)]
struct Steps {
    list: Vec<StepView>,
    at: HashMap<StepId, usize>,
    undos: Vec<Undo>,
}

impl Steps {
    fn begin(&mut self, step: &StepId, shape: &Shape, place: &str, at: Timestamp) -> &mut StepView {
        let i = *self.at.entry(step.clone()).or_insert_with(|| {
            self.list.push(fresh(step, shape, place, at));
            self.list.len() - 1
        });
        &mut self.list[i]
    }

    fn get(&mut self, step: &StepId) -> Option<&mut StepView> {
        self.at.get(step).map(|i| &mut self.list[*i])
    }

    fn call(&mut self, step: &StepId, key: &str, call: u32) -> Option<&mut CallView> {
        let calls = &mut self.get(step)?.calls;
        calls.iter_mut().rfind(|c| c.key == key && c.call == call)
    }

    fn take(&mut self, event: &StepEvent, at: Timestamp, epoch: u64, copied: bool) {
        self.open(event, at, epoch);
        self.close(event, at);
        if let Some(step) = event.step().and_then(|s| self.get(s)) {
            step.copied |= copied;
        }
    }

    /// A step that was undone says so.
    fn undone(&mut self) {
        let undone: Vec<StepId> = (self.undos.iter())
            .filter(|u| self.at.get(&u.step()).is_some_and(|i| self.list[*i].outcome == "ok"))
            .map(|u| u.of.clone())
            .collect();
        for of in undone {
            if let Some(view) = self.get(&of) {
                view.outcome = "undone".into();
            }
        }
    }

    /// Events that begin something.
    fn open(&mut self, event: &StepEvent, at: Timestamp, epoch: u64) {
        match event {
            StepEvent::ToolInvocationStarted {
                step,
                tool,
                key,
                ordinal,
                call,
                class,
                arguments_hash,
                arguments,
                place,
                ..
            } => {
                let shape =
                    Shape::Tool { tool: tool.clone(), arguments_hash: arguments_hash.clone() };
                let view = self.begin(step, &shape, place, at);
                if let Some(arguments) = arguments {
                    view.arguments = Some(excerpt(arguments));
                }
                view.calls.push(CallView {
                    key: key.clone(),
                    ordinal: *ordinal,
                    call: *call,
                    epoch,
                    class: *class,
                    started: at,
                    ended: None,
                    state: "started".into(),
                    note: None,
                });
            }
            StepEvent::ValueRecorded { step, kind, name, value, place } => {
                let shape = Shape::Value { kind: kind.as_str(), name: name.clone() };
                let view = self.begin(step, &shape, place, at);
                view.result = Some(excerpt(value));
                view.done(at, true);
                if *kind == ValueKind::Undo {
                    self.undos.extend(Undo::read(step, value));
                }
            }
            StepEvent::WaitOpened { step, kind, key, within_ms, note, place } => {
                let view =
                    self.begin(step, &Shape::Wait { kind: *kind, key: key.clone() }, place, at);
                view.deadline = within_ms.map(|ms| at + Duration::from_millis(ms));
                view.note.clone_from(note);
            }
            StepEvent::TimerSet { step, after_ms, place, limit, .. } => {
                let shape = limit.as_deref().map_or(Shape::Sleep, |l| Shape::Tool {
                    tool: l.tool.clone(),
                    arguments_hash: l.arguments_hash.clone(),
                });
                let view = self.begin(step, &shape, place, at);
                view.pauses.push((at, at + Duration::from_millis(*after_ms), false));
            }
            StepEvent::ChildStarted { step, child, flow, arguments_hash, place, .. } => {
                let shape =
                    Shape::Child { flow: flow.clone(), arguments_hash: arguments_hash.clone() };
                self.begin(step, &shape, place, at).child = Some(*child);
            }
            StepEvent::NodeFinished { step, failed_early: Some(early), .. } => {
                let (of, arguments_hash) = (early.of.clone(), early.arguments_hash.clone());
                let shape = match early.child {
                    true => Shape::Child { flow: of, arguments_hash },
                    false => Shape::Tool { tool: of, arguments_hash },
                };
                self.begin(step, &shape, &early.place, at);
            }
            _ => {}
        }
    }

    /// Events that end something, or say more about it.
    fn close(&mut self, event: &StepEvent, at: Timestamp) {
        match event {
            StepEvent::ToolInvocationFinished { step, key, call, outcome, result, error } => {
                if let Some(call) = self.call(step, key, *call) {
                    call.over(at, call_outcome(*outcome), error.clone());
                }
                if let Some(view) = self.get(step) {
                    view.error = error.as_deref().map(clip);
                    if *outcome == CallOutcome::Success {
                        view.result = result.as_ref().map(excerpt);
                        view.done(at, true);
                    }
                }
            }
            StepEvent::EffectUnknown { step, key, call, why } => {
                if let Some(call) = self.call(step, key, *call) {
                    (call.state, call.note) = ("unknown".into(), Some(why.clone()));
                }
                if let Some(view) = self.get(step).filter(|v| v.outcome == "open") {
                    view.outcome = "unknown".into();
                }
            }
            StepEvent::CallHanded { step, key, call, what, .. } => {
                if let Some(call) = self.call(step, key, *call) {
                    let what = what.as_str();
                    call.note = Some(format!("{what}: handed to a worker that has the tool"));
                }
            }
            StepEvent::EffectSettled { step, key, call, verdict, by, note, result } => {
                if let Some(call) = self.call(step, key, *call) {
                    let who = settled_by(*by);
                    let said = note.as_ref().map_or(who.to_owned(), |n| format!("{who}: {n}"));
                    call.over(at, verdict_text(*verdict), Some(said));
                }
                let Some(view) = self.get(step) else { return };
                match verdict {
                    Verdict::Happened => {
                        view.result = result.as_ref().map(excerpt);
                        view.done(at, true);
                    }
                    _ if view.outcome == "unknown" => view.outcome = "open".into(),
                    _ => {}
                }
            }
            StepEvent::EffectCorrected { step, key, call, was, verdict, note, result, .. } => {
                if let Some(call) = self.call(step, key, *call) {
                    let said = format!("corrected by a person, {} before", verdict_text(*was));
                    let said = note.as_ref().map_or(said.clone(), |n| format!("{said}: {n}"));
                    call.over(at, verdict_text(*verdict), Some(said));
                }
                let Some(view) = self.get(step) else { return };
                (view.finished, view.result, view.error) = (None, None, None);
                match verdict {
                    Verdict::Happened => {
                        view.result = result.as_ref().map(excerpt);
                        view.done(at, true);
                    }
                    _ => view.outcome = "open".into(),
                }
            }
            StepEvent::NodeFinished { step, result_type, reason, error, .. } => {
                let Some(view) = self.get(step) else { return };
                view.attempts += 1;
                view.result_type = Some(*result_type);
                let why = error.as_deref().or(reason.as_deref()).map(clip);
                match result_type {
                    ResultType::RetryableFailure => view.error = why,
                    ResultType::PermanentFailure
                    | ResultType::CompensatableFailure
                    | ResultType::Compensated => {
                        view.error = why;
                        view.done(at, false);
                    }
                    ResultType::Pure | ResultType::Success | ResultType::SideEffectCommitted => {
                        view.done(at, true);
                    }
                }
            }
            StepEvent::WaitCompleted { step, outcome, payload, by, .. } => {
                let Some(view) = self.get(step) else { return };
                view.answered = Some(*outcome);
                view.result = Some(payload).filter(|p| !p.is_null()).map(excerpt);
                view.note = view.note.take().or_else(|| by.as_ref().map(|b| format!("by {b}")));
                view.done(at, *outcome != WaitOutcome::Expired);
            }
            StepEvent::TimerFired { step } => {
                let Some(view) = self.get(step) else { return };
                if let Some(pause) = view.pauses.last_mut() {
                    (pause.1, pause.2) = (at, true);
                }
                if view.kind == "sleep" {
                    view.done(at, true);
                }
            }
            StepEvent::ChildEnded { step, status, output, error, .. } => {
                let Some(view) = self.get(step) else { return };
                view.result = output.as_ref().map(excerpt);
                view.error = error.as_deref().map(clip);
                view.done(at, status == "completed");
            }
            _ => {}
        }
    }
}

impl StepView {
    fn done(&mut self, at: Timestamp, well: bool) {
        if self.finished.is_none() {
            self.finished = Some(at);
            self.outcome = if well { "ok" } else { "failed" }.into();
        }
    }
}

impl CallView {
    fn over(&mut self, at: Timestamp, state: &str, note: Option<String>) {
        self.ended = Some(at);
        self.state = state.to_owned();
        self.note = note.or_else(|| self.note.take());
    }
}

fn fresh(step: &StepId, shape: &Shape, place: &str, at: Timestamp) -> StepView {
    let (kind, of) = match shape {
        Shape::Tool { tool, .. } => ("tool", tool.clone()),
        Shape::Value { kind, name } if name.is_empty() => ("value", (*kind).to_owned()),
        Shape::Value { name, .. } => ("value", name.clone()),
        Shape::Wait { key, .. } => ("wait", key.clone()),
        Shape::Sleep => ("sleep", String::new()),
        Shape::Child { flow, .. } => ("child", flow.clone()),
    };
    StepView {
        step: step.clone(),
        kind: kind.to_owned(),
        shape: shape.to_string(),
        of,
        place: place.to_owned(),
        started: at,
        finished: None,
        attempts: 0,
        calls: Vec::new(),
        outcome: "open".into(),
        result_type: None,
        answered: None,
        arguments: None,
        result: None,
        error: None,
        pauses: Vec::new(),
        deadline: None,
        note: None,
        child: None,
        copied: false,
    }
}

fn clip(text: &str) -> String {
    let short = limits::clip(text, EXCERPT_BYTES_MAX);
    if short.len() == text.len() { text.to_owned() } else { format!("{short}…") }
}

fn excerpt(value: &Value) -> String {
    clip(&value.to_string())
}

fn call_outcome(outcome: CallOutcome) -> &'static str {
    match outcome {
        CallOutcome::Success => "success",
        CallOutcome::Failure => "failure",
        CallOutcome::Cancelled => "cancelled",
    }
}

fn verdict_text(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Happened => "happened",
        Verdict::DidNotHappen => "did_not_happen",
        Verdict::Compensated => "compensated",
        Verdict::Abandoned => "abandoned",
        Verdict::CalledAgain => "called_again",
    }
}

fn settled_by(by: SettledBy) -> &'static str {
    match by {
        SettledBy::Class => "settled by its class",
        SettledBy::Probe => "settled by its probe",
        SettledBy::Evidence => "settled by late evidence",
        SettledBy::EffectStore => "settled from the effect store",
        SettledBy::Compensation => "settled by its compensation",
        SettledBy::Person => "settled by a person",
    }
}
