//! What one mail leads to, from the head alone. The due loop and a holder ask the same functions.

use super::bodies::{AskMail, ChildMail, ResolveMail, SignalMail, mail};
use super::note_of;
use crate::{
    call::decide::{CALL_ENDED, CallMail},
    gate,
    model::{HeldBack, JobEvent, JobState, OpenCall, OwnEvent, limits},
};
use serde_json::Value;
use tenure_kernel::{
    ids::EntityId,
    mail::{Mail, kinds},
};
use tenure_steps::{
    events::{
        CallAnswer, CallEnd, CallOutcome, ResultType, SettledBy, StepEvent, StepId, Verdict,
        WaitKind, WaitOutcome, What,
    },
    saga::Undo,
};

/// The gate has let it through. Mail comes at least once, and a job may be over its gate already: then it is nothing.
fn granted(state: &JobState) -> MailSays {
    match state.held_back {
        // It would keep the permit, and everybody behind it, for as long as the pause takes.
        HeldBack::Gate if state.paused => MailSays::GateNotNow,
        HeldBack::Gate => MailSays::Events(vec![OwnEvent::JobReady { why: "gate".into() }.into()]),
        _ => MailSays::Nothing("gate_granted: it does not wait for a gate".into()),
    }
}

/// What a mail leads to.
#[derive(Debug, PartialEq)]
pub enum MailSays {
    /// These events.
    Events(Vec<JobEvent>),
    /// Somebody wants it to end.
    Cancel(AskMail),
    /// Somebody wants it to pause.
    Pause(AskMail),
    /// Evidence came for this key: whoever settles should look.
    Evidence(String),
    /// A call that was handed over came back.
    CallEnded(Box<CallMail>),
    /// A timer of this name fired while the job was held.
    Timer(String),
    /// Its gate lets it through, and it can not go: it is paused.
    GateNotNow,
    /// Its gate will never let it through, for this reason.
    GateClosed(String),
    /// Nothing, for this reason.
    Nothing(String),
}

/// Reads one mail.
pub fn read_mail(state: &JobState, mail: &Mail, id: EntityId) -> MailSays {
    fn parse<T: serde::de::DeserializeOwned>(mail: &Mail) -> Result<T, String> {
        let bytes = mail.body.inline().ok_or("its body is too large")?;
        tenure_kernel::stored::from_slice(bytes).map_err(|e| e.to_string())
    }
    let read = match mail.kind.as_str() {
        kinds::CANCEL => Ok(MailSays::Cancel(parse(mail).unwrap_or_default())),
        mail::PAUSE => Ok(MailSays::Pause(parse(mail).unwrap_or_default())),
        mail::RESUME => Ok(resume(state, parse(mail).unwrap_or_default())),
        mail::SIGNAL => parse(mail).map(|s| signal(state, s)),
        mail::RESOLVE => parse(mail).map(|r| resolve(state, r)),
        kinds::CHILD_ENDED => parse(mail).map(|c| child_ended(state, c)),
        kinds::EVIDENCE => parse::<Value>(mail)
            .map(|v| MailSays::Evidence(v["key"].as_str().unwrap_or_default().to_owned())),
        kinds::TIMER_DUE => parse::<Value>(mail)
            .map(|v| MailSays::Timer(v["timer"].as_str().unwrap_or_default().to_owned())),
        CALL_ENDED => parse(mail).map(|c| call_ended(state, c)),
        kinds::RETURNED => Ok(returned(state, mail, id)),
        gate::mail::GRANTED => Ok(granted(state)),
        // Mail that finds it over comes back; that it did not is what the gate wants to know.
        gate::mail::HOLDS => Ok(MailSays::Nothing("gate_holds: it is still there".into())),
        other => Err(format!("no job understands mail of kind {other:?}")),
    };
    read.unwrap_or_else(|why| MailSays::Nothing(format!("{}: {why}", mail.kind)))
}

fn resume(state: &JobState, ask: AskMail) -> MailSays {
    if !state.paused && !state.pausing && state.attention.is_none() {
        return MailSays::Nothing("resume: it is neither paused nor in attention".into());
    }
    let by = ask.by.unwrap_or_else(|| "somebody".into());
    MailSays::Events(vec![OwnEvent::JobResumed { by }.into()])
}

fn signal(state: &JobState, signal: SignalMail) -> MailSays {
    let SignalMail { key, outcome, payload, by } = signal;
    if let Some(wait) = state.waits_for(&key) {
        let (step, key) = (wait.step.clone(), wait.key.clone());
        // A plain signal to a person's wait is a yes; a yes or no to a plain wait is its payload.
        let outcome = match (wait.kind, outcome) {
            (WaitKind::Human, WaitOutcome::Signalled) => WaitOutcome::Approved,
            (WaitKind::Human, other) => other,
            (_, _) => WaitOutcome::Signalled,
        };
        let done = StepEvent::WaitCompleted { step, key, outcome, payload, by };
        return MailSays::Events(vec![done.into()]);
    }
    if state.heard.contains(&key) || state.kept.contains(&key) {
        return MailSays::Nothing(format!("signal: {key:?} was heard before"));
    }
    let bytes = state.kept.iter().map(String::len).sum::<usize>() + key.len();
    if state.kept.len() >= limits::KEPT_MAX || bytes > limits::KEYS_BYTES_MAX {
        return MailSays::Nothing(format!("signal: {key:?} is one too many to keep"));
    }
    MailSays::Events(vec![StepEvent::SignalKept { key, outcome, payload, by }.into()])
}

fn resolve(state: &JobState, resolve: ResolveMail) -> MailSays {
    let ResolveMail { step, of, verdict, result, by, note } = resolve;
    let meant = |c: &&OpenCall| {
        c.step == step
            && c.unknown.is_some()
            && of.as_ref().is_none_or(|(k, n)| *k == c.key && *n == c.call)
    };
    let Some(call) = state.calls.iter().find(meant) else {
        return MailSays::Nothing(format!("resolve: step {step} has no such unknown effect"));
    };
    // While it is being undone, what a person saw is no longer what is true.
    if call.undoing && state.attention.is_none() {
        return MailSays::Nothing(format!("resolve: step {step} is being undone"));
    }
    let note = note_of(by, note);
    let happened = verdict == Verdict::Happened;
    let (key, call) = (call.key.clone(), call.call);
    let mut events = vec![
        StepEvent::EffectSettled {
            step: step.clone(),
            key: key.clone(),
            call,
            verdict,
            by: SettledBy::Person,
            note,
            result: happened.then_some(result),
        }
        .into(),
    ];
    match verdict {
        Verdict::Happened => {
            events.push(StepEvent::CommandCommitted { step: step.clone(), key, call }.into());
            events.push(finished(step, ResultType::SideEffectCommitted, None, None));
        }
        Verdict::Abandoned => {
            events.push(given_up(step));
        }
        Verdict::DidNotHappen | Verdict::Compensated | Verdict::CalledAgain => {}
    }
    MailSays::Events(events)
}

/// The end of a step that a person gave up.
pub(crate) fn given_up(step: StepId) -> JobEvent {
    let error = Some("a person gave this step up".to_owned());
    finished(step, ResultType::PermanentFailure, Some("abandoned"), error)
}

/// A `node_finished`.
pub fn finished(
    step: StepId,
    result_type: ResultType,
    reason: Option<&str>,
    error: Option<String>,
) -> JobEvent {
    let reason = reason.map(str::to_owned);
    StepEvent::NodeFinished { step, result_type, reason, attempt: 0, error, failed_early: None }
        .into()
}

fn child_ended(state: &JobState, child: ChildMail) -> MailSays {
    let ChildMail { ordinal, status, output, error } = child;
    match state.children.iter().find(|c| c.0 == ordinal) {
        Some(open) => {
            let step = open.1.clone();
            let ended = StepEvent::ChildEnded { step, ordinal, status, output, error };
            MailSays::Events(vec![ended.into()])
        }
        None => MailSays::Nothing(format!("child_ended: child {ordinal} is not waited for")),
    }
}

fn call_ended(state: &JobState, mail: CallMail) -> MailSays {
    let waited_for = state
        .calls
        .iter()
        .any(|c| c.key == mail.key && c.call == mail.call && c.out == Some((mail.what, mail.nth)));
    match waited_for {
        true => MailSays::CallEnded(Box::new(mail)),
        false => {
            let (what, key, call) = (mail.what.as_str(), &mail.key, mail.call);
            MailSays::Nothing(format!("call_ended: {what} {call} of {key} is not waited for"))
        }
    }
}

/// What a call that came back leads to while nobody holds the job. The next holder goes on from there; a job that is
/// being cancelled has none, so what is certain is written down here.
pub(super) fn came_back(state: &JobState, mail: CallMail) -> Vec<JobEvent> {
    let CallMail { step, key, call, what, answer, .. } = mail;
    // A result that is too large for mail is still in the call: it is read from there by whoever goes on from here, a
    // retry of the job say. A success without it would be one with another result.
    let in_call = answer.end == CallEnd::Completed && answer.result.is_none();
    let certain = answer.end.is_certain() && !in_call;
    // What undoes a step goes on: whether it is tried again is for the worker that undoes. And what undoes a call that
    // has just happened, only the flow can say: the worker that undoes tells it the result.
    let of_it = |c: &&OpenCall| c.key == key && c.call == call;
    let undoable = state.calls.iter().find(of_it).is_some_and(|c| c.undoable);
    let for_worker = Undo::is_undo(&step) || (undoable && answer.end == CallEnd::Completed);
    if state.cancel.is_none() || what != What::Call || !certain || for_worker {
        return vec![StepEvent::CallAnswered { step, key, call, what, answer }.into()];
    }
    if answer.end != CallEnd::Completed {
        let (outcome, result) = (CallOutcome::Cancelled, None);
        let over = StepEvent::ToolInvocationFinished {
            step: step.clone(),
            key,
            call,
            outcome,
            result,
            error: answer.error,
        };
        let error = Some("the job was cancelled".to_owned());
        let done = finished(step, ResultType::PermanentFailure, Some("cancelled"), error);
        return vec![over.into(), done];
    }
    let (outcome, result, error) = (CallOutcome::Success, answer.result, None);
    vec![
        StepEvent::ToolInvocationFinished {
            step: step.clone(),
            key: key.clone(),
            call,
            outcome,
            result,
            error,
        }
        .into(),
        StepEvent::CommandCommitted { step: step.clone(), key, call }.into(),
        finished(step, ResultType::SideEffectCommitted, None, None),
    ]
}

/// A message came back: a child or a call that could not be created. A cancel that found nobody is of no interest.
fn returned(state: &JobState, mail: &Mail, id: EntityId) -> MailSays {
    let body: Value = mail
        .body
        .inline()
        .and_then(|b| tenure_kernel::stored::from_slice(b).ok())
        .unwrap_or_default();
    let why = body["why"].as_str().unwrap_or("it could not be delivered").to_owned();
    let to: Option<EntityId> = body["to"].as_str().and_then(|t| t.parse().ok());
    if body["kind"] == gate::mail::ASK && state.held_back == HeldBack::Gate {
        return MailSays::GateClosed(why);
    }
    let child = state.children.iter().find(|c| to == Some(JobState::child_id(id, c.0)));
    if body["kind"] == kinds::CANCEL {
        return MailSays::Nothing(format!("returned: {why}"));
    }
    if let Some(child) = child {
        let error = Some(format!("the child could not be created: {why}"));
        let (ordinal, status) = (child.0, "failed".to_owned());
        return child_ended(state, ChildMail { ordinal, status, output: None, error });
    }
    match state.calls_out(id).find(|(call, _)| to == Some(*call)) {
        Some((_, open)) => {
            // It never was: nobody can have begun it.
            let (what, nth) = open.out.unwrap_or_default();
            let error = Some(format!("the call could not be created: {why}"));
            let end = CallEnd::NotCalled;
            let answer = CallAnswer { end, result: None, error, session: None };
            let (step, key, call) = (open.step.clone(), open.key.clone(), open.call);
            MailSays::CallEnded(Box::new(CallMail { step, key, call, what, nth, answer }))
        }
        None => MailSays::Nothing(format!("returned: {why}")),
    }
}
