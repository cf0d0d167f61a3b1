//! How a job ends without a holder, or is given to the next one: cancelled, its time is up, its worker lost. And what every
//! end says to others, whoever brings it about.

use super::{
    bodies::{AskMail, ChildMail, EndedMail, mail},
    finished, nothing_out, push, timers,
};
use crate::{
    gate,
    model::{
        Failure, HeldBack, JobEvent, JobState, OpenCall, OwnEvent, Parent, UndoReport, limits,
        small,
    },
};
use tenure_kernel::{
    ids::EntityId, limits as kernel_limits, machine::Decision, mail::kinds, outbox::Message,
    stream::Body, time::Timestamp, timers::TimerChange,
};
use tenure_steps::{
    events::{ResultType, What},
    losses::Losses,
    saga::Undo,
};

/// Somebody wants it to end, nobody holds it, and there is something to stop or to undo first.
pub(super) fn cancel(
    state: &mut JobState,
    decision: &mut Decision<JobEvent>,
    ask: AskMail,
    id: EntityId,
) {
    decision.messages.extend(cancel_others(state, id));
    push(state, decision, OwnEvent::JobCancelling { by: ask.by, why: ask.why }.into());
    decision.timers.push(TimerChange::ClearAll);
}

/// It is cancelled and waits for nobody: a worker undoes what is to be undone, which needs its tools, and finds out before
/// that what became of calls that would have to be undone as well; else it ends.
/// Workers that are lost over it are counted as always.
pub(super) fn undo_or_end(
    state: &mut JobState,
    mut decision: Decision<JobEvent>,
    lost: Option<Losses>,
    id: EntityId,
) -> Decision<JobEvent> {
    let too_many = lost.as_ref().is_some_and(|l| l.too_many(state.takeovers_max).is_some());
    if !state.has_to_undo() || too_many {
        return cancelled(state, decision, id);
    }
    let undoing = OwnEvent::JobUndoing { lost: lost.is_some(), losses: lost };
    push(state, &mut decision, undoing.into());
    decision.regardless()
}

pub(super) fn cancelled(
    state: &JobState,
    decision: Decision<JobEvent>,
    id: EntityId,
) -> Decision<JobEvent> {
    let undone = UndoReport { untried: state.not_undone(), ..UndoReport::default() };
    finish(state, decision, stopped(state, undone, ""), id).regardless()
}

/// The end of a job that was stopped and undone: cancelled, or failed for the reason that it was stopped for. The words say
/// what was undone.
pub fn stopped(state: &JobState, undone: UndoReport, words: &str) -> OwnEvent {
    let abandoned = u32::try_from(state.children.len()).unwrap_or(u32::MAX);
    let unknown = state.open_steps();
    if let Some(failure) = state.failing.clone() {
        let error = format!("{}{words}", failure.error);
        let error = kernel_limits::clip(&error, 4_096).to_owned();
        return OwnEvent::JobFailed(Failure { error, unknown, abandoned, ..failure });
    }
    let (by, why) = state.cancel.clone().unwrap_or_default();
    OwnEvent::JobCancelled { by, why, unknown, abandoned, undone }
}

/// It can not go on, and nobody holds it: what it had done is undone first, as far as the list says how.
fn fail(
    state: &mut JobState,
    mut decision: Decision<JobEvent>,
    failure: Failure,
    id: EntityId,
) -> Decision<JobEvent> {
    if state.undos == 0 {
        return finish(state, decision, OwnEvent::JobFailed(failure), id);
    }
    decision.messages.extend(cancel_others(state, id));
    push(state, &mut decision, OwnEvent::JobFailing(failure).into());
    decision.timers.push(TimerChange::ClearAll);
    match nothing_out(state) {
        true => undo_or_end(state, decision, None, id),
        false => decision,
    }
}

/// The final event, and what is said with it: to the parent how it ended, to open children and calls to stop. A failure
/// that leaves steps of a saga as they are says so: nobody undoes them after it.
pub fn finish(
    state: &JobState,
    mut decision: Decision<JobEvent>,
    mut end: OwnEvent,
    id: EntityId,
) -> Decision<JobEvent> {
    if let (OwnEvent::JobFailed(failure), left @ 1..) = (&mut end, state.not_undone()) {
        failure.error = format!("{}; steps that were not undone: {left}", failure.error);
    }
    decision.messages.extend(cancel_others(state, id));
    if let Some(parent) = state.parent {
        decision.messages.push(report(parent, &end));
    }
    // Whoever has asked a gate has a permit, or a place in its line, or one on the way; unless it gave that back.
    let asked = !matches!(state.held_back, HeldBack::Start | HeldBack::Resume);
    if let Some(gate) = state.terms.gate.as_ref().and_then(|g| g.id).filter(|_| asked) {
        let said = gate::decide::Said::Release { job: id, paused: false };
        decision.messages.push(Message::mail(gate, gate::mail::RELEASE, Body::json(&said)));
    }
    if let Some(to) = state.terms.tell {
        let status = match &end {
            OwnEvent::JobCompleted { .. } => "completed",
            OwnEvent::JobFailed(_) => "failed",
            _ => "cancelled",
        };
        let told = EndedMail { job: id, status: status.to_owned() };
        decision.messages.push(Message::mail(to, mail::ENDED, Body::json(&told)));
    }
    decision.events.push(end.into());
    decision
}

fn report(parent: Parent, end: &OwnEvent) -> Message {
    let ordinal = parent.ordinal;
    let told = match end {
        OwnEvent::JobCompleted { output, .. } => {
            let output = small(output, limits::OUTPUT_IN_HEAD_BYTES_MAX);
            ChildMail { ordinal, status: "completed".into(), output, error: None }
        }
        OwnEvent::JobFailed(f) => {
            let error = Some(kernel_limits::clip(&f.error, 2_048).to_owned());
            ChildMail { ordinal, status: "failed".into(), output: None, error }
        }
        _ => ChildMail { ordinal, status: "cancelled".into(), output: None, error: None },
    };
    Message::mail(parent.job, kinds::CHILD_ENDED, Body::json(&told))
}

/// Tells all open children to stop.
pub fn cancel_children(state: &JobState, id: EntityId) -> Vec<Message> {
    let ask = AskMail { by: Some("parent".into()), why: Some("its parent ends".into()) };
    let tell = |c: &crate::model::OpenChild| {
        Message::mail(JobState::child_id(id, c.0), kinds::CANCEL, Body::json(&ask))
    };
    state.children.iter().map(tell).collect()
}

/// Tells one call that its job does not want it any more.
pub fn cancel_call(call: EntityId, why: &str) -> Message {
    let ask = AskMail { by: Some("job".into()), why: Some(why.into()) };
    Message::mail(call, kinds::CANCEL, Body::json(&ask))
}

/// Whether a call that is out takes something back. Nobody stops that half way: an end of the job wants it too.
pub fn takes_back(call: &OpenCall) -> bool {
    Undo::is_undo(&call.step) || call.out.is_some_and(|(what, _)| what == What::Compensate)
}

/// Tells all open children to stop, and all calls that other workers have.
pub fn cancel_others(state: &JobState, id: EntityId) -> Vec<Message> {
    let out = state.calls_out(id).filter(|(_, call)| !takes_back(call));
    let calls = out.map(|(call, _)| cancel_call(call, "its job ends"));
    cancel_children(state, id).into_iter().chain(calls).collect()
}

pub(super) fn must_end(state: &JobState, id: EntityId) -> Decision<JobEvent> {
    let unknown = state.open_steps();
    let mut decision = Decision::default();
    for step in &unknown {
        let error =
            Some("the job's time was up before anybody knew what became of this call".into());
        let done =
            finished(step.clone(), ResultType::PermanentFailure, Some("unknown_outcome"), error);
        decision.events.push(done);
    }
    let attention = state.attention.as_ref();
    let (reason, error) = match (&state.failing, unknown.first(), attention) {
        (Some(failing), ..) => (
            failing.reason.as_str(),
            format!("{}; must_end_by passed before it was undone", failing.error),
        ),
        (None, Some(step), _) => (
            "unknown_outcome",
            format!("must_end_by passed, and nobody knows what became of step {step}"),
        ),
        (None, None, Some(a)) => {
            (a.reason.as_str(), format!("must_end_by passed in attention: {}", a.why))
        }
        (None, None, None) if state.cancel.is_some() => {
            ("deadline_passed", "must_end_by passed while it was cancelled".to_owned())
        }
        (None, None, None) => ("deadline_passed", "must_end_by passed".to_owned()),
    };
    let failure = Failure {
        reason: reason.to_owned(),
        error,
        step: unknown.first().cloned().or_else(|| attention.and_then(|a| a.step.clone())),
        unknown,
        abandoned: u32::try_from(state.children.len()).unwrap_or(u32::MAX),
    };
    finish(state, decision, OwnEvent::JobFailed(failure), id)
}

/// The end of a job over which too many workers were lost: those that held it, or those that had its calls. No retry
/// setting has a say in this.
pub fn lost_too_many(state: &JobState, losses: &Losses) -> Option<Failure> {
    let error = losses.too_many(state.takeovers_max)?;
    let (step, error) = match state.calls.first() {
        Some(call) => (
            Some(call.step.clone()),
            format!("{error}; the last one had step {} (tool {})", call.step, call.tool),
        ),
        None => (None, error),
    };
    Some(Failure {
        reason: TAKEOVERS_SPENT.into(),
        error,
        step,
        unknown: state.open_steps(),
        abandoned: u32::try_from(state.children.len()).unwrap_or(u32::MAX),
    })
}

/// The reason of a failure after too many lost workers.
pub const TAKEOVERS_SPENT: &str = "takeovers_spent";

/// The holder is gone, or was overruled; `tenure_ended` is written in front of this.
pub(super) fn lost_holder(
    state: &JobState,
    why: &str,
    id: EntityId,
    now: Timestamp,
) -> Decision<JobEvent> {
    let losses = state.and_lost(now);
    let decision = Decision::default().timer(TimerChange::clear(timers::PROGRESS));
    if state.cancel.is_some() {
        return match nothing_out(state) {
            true => undo_or_end(&mut state.clone(), decision, Some(losses), id),
            false => decision,
        };
    }
    if let Some(failure) = lost_too_many(state, &losses) {
        return fail(&mut state.clone(), decision, failure, id);
    }
    decision.and(OwnEvent::JobRequeued { why: why.to_owned(), losses: Some(losses) }.into())
}
