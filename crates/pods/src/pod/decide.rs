//! What follows from a stop, a lost executor and the end of its time, from the head alone. What an executor does is
//! committed by the executor, under its epoch.

use super::{
    model::{
        NewPod, POD_STOP, POD_WORD, Pod, PodEvent, PodState, PodStop, PodWord, Says, queue_of,
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
    let new: NewPod = serde_json::from_slice(bytes)
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
    for m in mail {
        let stop = match m.kind.as_str() {
            POD_STOP => serde_json::from_slice::<PodStop>(m.body.inline().unwrap_or_default()).ok(),
            _ => None,
        };
        let event = match stop {
            Some(stop) if sooner(state.stop, stop) => PodEvent::StopAsked(stop),
            Some(_) => PodEvent::PodNoted { what: "pod_stop: it is being stopped".into() },
            None => {
                let what = format!("no pod understands mail of kind {:?}", m.kind);
                PodEvent::PodNoted { what: kernel_limits::clip(&what, 256).to_owned() }
            }
        };
        Pod::apply(&mut state, &event);
        out.events.push(event);
    }
    let status = cx.status.map_or(WANTED, |s| s.name());
    let stopped = out.events.iter().any(|e| matches!(e, PodEvent::StopAsked(_)));
    // Nobody ever asked the API server for it, and nobody will.
    if status == WANTED && state.stop.is_some() && state.begun.is_none() {
        let why = "nobody wanted it any more".to_owned();
        out.messages.extend(tell(&state, Says::Gone { how: "it was never made".into() }));
        out.events.push(PodEvent::PodNotMade { why });
        return out.regardless();
    }
    if status == KEPT && stopped {
        out.timers.push(TimerChange::clear(CLEAN));
    }
    out
}

/// A later word counts only if it makes the end sooner.
fn sooner(was: Option<PodStop>, now: PodStop) -> bool {
    let when = |s: PodStop| s.delete_after_ms.unwrap_or(u64::MAX);
    was.is_none_or(|was| when(now) < when(was))
}

/// Mail to the task.
pub fn tell(state: &PodState, says: Says) -> Option<Message> {
    let new = state.new.as_ref()?;
    let word = PodWord { attempt: new.attempt, says };
    Some(Message::mail(new.task, POD_WORD, Body::json(&word)))
}
