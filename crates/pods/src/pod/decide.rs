//! What follows from a stop, a lost executor and the end of its time, from the head alone. What an executor does is
//! committed by the executor, under its epoch.

use super::{
    model::{
        ForceAsk, NewPod, POD_FORCE, POD_STOP, POD_WORD, Pod, PodEvent, PodState, PodStop, PodWord,
        Says, queue_of,
    },
    table::{KEPT, WANTED},
};
use std::time::Duration;
use tenure_kernel::{
    limits as kernel_limits,
    machine::{Cx, Decision, Input, Machine as _, Placement, Undecided},
    mail::Mail,
    outbox::Message,
    stream::Body,
    timers::TimerChange,
};

/// The timer after which a pod that was kept is deleted.
pub const CLEAN: &str = "clean";

/// See [`tenure_kernel::machine::Machine::decide`].
pub fn decide(
    state: Option<&PodState>,
    input: &Input<'_>,
    cx: &Cx,
) -> Result<Decision<PodEvent>, Undecided> {
    let Some(state) = state else { return born(input) };
    match input {
        Input::Mail(mail) => Ok(on_mail(state, mail, cx)),
        Input::Timer(CLEAN) => {
            Ok(Decision::event(PodEvent::CleanDue {}).timer(TimerChange::clear(CLEAN)))
        }
        Input::Timer(name) => Err(Undecided(format!("a pod has no timer {name}"))),
        Input::MustEnd => Ok(Decision::event(PodEvent::PodAbandoned {})),
        // Back to the queue: the next executor finds the pod by its name.
        Input::TenureEnded(why) => {
            Ok(Decision::event(PodEvent::PodNoted { what: format!("its executor is gone: {why}") }))
        }
        Input::Create(_) => {
            Ok(Decision::event(PodEvent::PodNoted { what: "ordered again".into() }))
        }
        Input::CancelUnborn => Err(Undecided("the pod exists".into())),
    }
}

fn born(input: &Input<'_>) -> Result<Decision<PodEvent>, Undecided> {
    let Input::Create(body) = input else {
        return Ok(Decision::default());
    };
    let bytes =
        body.inline().ok_or_else(|| Undecided("load the body of the new pod first".into()))?;
    let new: NewPod = tenure_kernel::stored::from_slice(bytes)
        .map_err(|e| Undecided(format!("a pod can not be made from this: {e}")))?;
    let must_end_in = Duration::from_millis(new.must_end_in_ms.max(1));
    let placement = Placement { queue: queue_of(&new.cluster), priority: new.priority };
    let mut decision =
        Decision::event(PodEvent::PodOrdered(Box::new(new))).must_end_in(must_end_in);
    decision.placement = Some(placement);
    Ok(decision)
}

/// What mail leads to. Also used by the executor that holds the pod.
pub fn on_mail(state: &PodState, mail: &[Mail], cx: &Cx) -> Decision<PodEvent> {
    let mut state = state.clone();
    let mut out = Decision::default();
    let status = cx.status.map_or(WANTED, |s| s.name());
    for m in mail {
        let event = read(&state, status, m).unwrap_or_else(|what| PodEvent::PodNoted {
            what: kernel_limits::clip(&what, 256).to_owned(),
        });
        Pod::apply(&mut state, &event);
        out.events.push(event);
    }
    let stopped = out.events.iter().any(|e| matches!(e, PodEvent::StopAsked(_)));
    // Nobody ever asked the API server for it, and nobody will.
    if status == WANTED && state.stop.is_some() && state.begun.is_none() {
        let why = "nobody wanted it any more".to_owned();
        out.messages.extend(tell(&state, gone("it was never made")));
        out.events.push(PodEvent::PodNotMade { why });
        return out.regardless();
    }
    if status == KEPT && stopped {
        out.timers.push(TimerChange::clear(CLEAN));
    }
    out
}

/// What one mail leads to; or why it changes nothing.
fn read(state: &PodState, status: &str, mail: &Mail) -> Result<PodEvent, String> {
    let bytes = mail.body.inline().unwrap_or_default();
    let unread = |e: serde_json::Error| format!("{}: it can not be read: {e}", mail.kind);
    match mail.kind.as_str() {
        POD_STOP => match tenure_kernel::stored::from_slice::<PodStop>(bytes).map_err(unread)? {
            stop if sooner(state.stop, stop) => Ok(PodEvent::StopAsked(stop)),
            _ => Err("pod_stop: it is being stopped".into()),
        },
        POD_FORCE => {
            let ask: ForceAsk = tenure_kernel::stored::from_slice(bytes).map_err(unread)?;
            // A person's word is more than the task's: it does not wait.
            let known = state.force.as_ref().is_some_and(|f| f.by.is_some() || ask.by.is_none());
            match (status == KEPT, known) {
                (true, _) => Err("pod_force: it is over".into()),
                (_, true) => Err("pod_force: it may be taken away by force".into()),
                _ => Ok(PodEvent::ForceAsked(ask)),
            }
        }
        other => Err(format!("no pod understands mail of kind {other:?}")),
    }
}

/// A later word counts only if it makes the end sooner.
fn sooner(was: Option<PodStop>, now: PodStop) -> bool {
    let when = |s: PodStop| s.delete_after_ms.unwrap_or(u64::MAX);
    was.is_none_or(|was| when(now) < when(was))
}

/// There is no such pod, and that is proof that nothing of it runs.
pub fn gone(how: &str) -> Says {
    Says::Gone { how: how.to_owned(), unproven: false }
}

/// Mail to the task.
pub fn tell(state: &PodState, says: Says) -> Option<Message> {
    let new = state.new.as_ref()?;
    let word = PodWord { attempt: new.attempt, says };
    Some(Message::mail(new.task, POD_WORD, Body::json(&word)))
}
