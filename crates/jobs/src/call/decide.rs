//! What follows from a cancel, a lost worker and the end of its time, from the head alone. What its worker says is
//! committed by [`super::desk`], under the worker's epoch.

use super::{
    model::{CallEvent, CallState, NewCall, limits},
    queue_of,
    table::QUEUED,
};
use crate::{decide::AskMail, model::small};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tenure_kernel::{
    ids::SessionId,
    limits as kernel_limits,
    machine::{Cx, Decision, Input, Placement, Undecided},
    mail::{Mail, kinds},
    outbox::Message,
    stream::Body,
    timers::TimerChange,
};
use tenure_steps::events::{CallAnswer, CallEnd, StepId, What};

/// The kind of the mail with which a call tells its job how it ended.
pub const CALL_ENDED: &str = "call_ended";

/// The timer that ends a call whose worker does not finish.
pub(super) const CLOCK: &str = "clock";

/// The body of that mail.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallMail {
    /// The step.
    pub step: StepId,
    /// The call's key.
    pub key: String,
    /// The call.
    pub call: u32,
    /// What was asked.
    pub what: What,
    /// See [`NewCall::nth`].
    pub nth: u32,
    /// How it ended.
    #[serde(flatten)]
    pub answer: CallAnswer,
}

/// See [`tenure_kernel::machine::Machine::decide`].
pub fn decide(
    state: Option<&CallState>,
    input: &Input<'_>,
    cx: &Cx,
) -> Result<Decision<CallEvent>, Undecided> {
    let Some(state) = state else { return born(input) };
    // Not by what this machine has applied: a claim is an event of the kernel, and so is a mark for a person.
    let free = cx.status.is_some_and(|s| s.name() == QUEUED);
    match input {
        Input::Create(_) | Input::CancelUnborn => Err(Undecided("the call exists".into())),
        Input::Mail(mail) => Ok(on_mail(state, mail, free)),
        Input::MustEnd if free => Ok(finish(state, CallEvent::CallExpired {}, None)),
        Input::MustEnd => Ok(lost(state, "its time was up and its worker had not answered")),
        Input::TenureEnded(why) => Ok(lost(state, why)),
        Input::Timer(CLOCK) if free => {
            Ok(Decision::event(CallEvent::ClockStopped {}).timer(TimerChange::clear(CLOCK)))
        }
        Input::Timer(CLOCK) => Ok(lost(state, "its time was up and its worker had not answered")),
        Input::Timer(name) => Err(Undecided(format!("a call has no timer {name}"))),
    }
}

fn born(input: &Input<'_>) -> Result<Decision<CallEvent>, Undecided> {
    match input {
        Input::Create(body) => {
            let bytes = body
                .inline()
                .ok_or_else(|| Undecided("load the body of the new call first".into()))?;
            let new: NewCall = tenure_kernel::stored::from_slice(bytes)
                .map_err(|e| Undecided(format!("a call can not be made from this: {e}")))?;
            let must_end_in = Duration::from_millis(new.must_end_in_ms);
            let placement = Placement { queue: queue_of(&new.tool), priority: new.priority };
            // Taken within the grace, which is how it mostly is, it needs no clock of its own.
            let clock = clock(new.timeout_ms, new.grace_ms.saturating_mul(2));
            let mut decision = Decision::event(CallEvent::CallCreated(Box::new(new)))
                .must_end_in(must_end_in)
                .timer(clock);
            decision.placement = Some(placement);
            Ok(decision)
        }
        // Its job tells it after it has created it, over the same lane: there is nothing to be early for.
        Input::CancelUnborn => Ok(Decision::default()),
        _ => Err(Undecided("there is no such call".into())),
    }
}

/// The guard over a worker that renews and never finishes.
pub fn clock(timeout_ms: u64, grace_ms: u64) -> TimerChange {
    TimerChange::guard(CLOCK, Duration::from_millis(timeout_ms.saturating_add(grace_ms)))
}

fn on_mail(state: &CallState, mail: &[Mail], free: bool) -> Decision<CallEvent> {
    let asked = mail.iter().find(|m| m.kind == kinds::CANCEL);
    if let (Some(asked), true) = (asked, free) {
        let ask: AskMail = asked
            .body
            .inline()
            .and_then(|b| tenure_kernel::stored::from_slice(b).ok())
            .unwrap_or_default();
        return finish(state, CallEvent::CallCancelled { why: ask.why }, None).regardless();
    }
    let kinds: Vec<&str> = mail.iter().map(|m| m.kind.as_str()).collect();
    let what = format!("{}: it changes nothing", kinds.join(", "));
    Decision::event(CallEvent::MailNoted { what: kernel_limits::clip(&what, 256).to_owned() })
}

fn lost(state: &CallState, why: &str) -> Decision<CallEvent> {
    let why = match why {
        "holder_check" => "its worker was not heard of for a lease",
        other => other,
    };
    finish(state, CallEvent::CallLost { why: why.to_owned(), answered: None }, None).regardless()
}

/// The final event, and what is said with it to the job.
pub fn finish(
    state: &CallState,
    end: CallEvent,
    session: Option<SessionId>,
) -> Decision<CallEvent> {
    let answer = |end, result, error: Option<String>| CallAnswer { end, result, error, session };
    let answer = match &end {
        CallEvent::CallCompleted { result, .. } => {
            let result = small(result, limits::RESULT_IN_MAIL_BYTES_MAX);
            answer(CallEnd::Completed, result, None)
        }
        CallEvent::CallFailed { kind, error, .. } => {
            answer((*kind).into(), None, Some(error.clone()))
        }
        CallEvent::CallCancelled { .. } => {
            let why = "it was cancelled before any worker took it";
            answer(CallEnd::NotCalled, None, Some(why.into()))
        }
        CallEvent::CallExpired {} => {
            let why = format!("no worker with the tool {:?} took it in time", state.tool);
            answer(CallEnd::Expired, None, Some(why))
        }
        CallEvent::CallLost { why, .. } => answer(CallEnd::Lost, None, Some(why.clone())),
        // Not ends; nobody calls this with them.
        CallEvent::CallCreated(_)
        | CallEvent::CallReleased { .. }
        | CallEvent::ClockStarted {}
        | CallEvent::HandedAgain {}
        | CallEvent::ClockStopped {}
        | CallEvent::MailNoted { .. } => return Decision::event(end),
    };
    let told = CallMail {
        step: state.step.clone(),
        key: state.key.clone(),
        call: state.call,
        what: state.what,
        nth: state.nth,
        answer,
    };
    Decision::event(end).send(Message::mail(state.job, CALL_ENDED, Body::json(&told)))
}
