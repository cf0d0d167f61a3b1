//! Signals.

use super::{
    AskError, KEPT_KEYS_BYTES_MAX, SIGNAL_KEY_BYTES_MAX, SignalAnswer, SignalAsk,
    send::{Sent, json_within, look, send, within, words},
};
use crate::{
    decide::{SignalMail, mail},
    model::{JobState, OpenWait, limits},
};
use tenure_engine::pipeline::Pipeline;
use tenure_kernel::{
    head::Head,
    ids::EntityId,
    stream::{Body, Hash},
    table::Class,
};
use tenure_steps::events::{WaitKind, WaitOutcome};

/// Completes a wait, or keeps the signal for one.
///
/// A signal is known by its key: the same key again is a repetition, also after the job has ended. Only where
/// a flow that was started afresh waits for a key that an earlier run has heard does it count anew, once per
/// run; a sender that repeats itself into the next run can not be told from one that means it.
pub async fn signal(
    pipeline: &Pipeline,
    job: EntityId,
    tenant: Option<&str>,
    ask: SignalAsk,
) -> Result<SignalAnswer, AskError> {
    check_signal(&ask)?;
    let (head, state) = look(pipeline, job, tenant).await?;
    let SignalAsk { key, outcome, payload, by, early } = ask;
    let open = state.waits_for(&key).cloned();
    let known = state.heard.contains(&key) || state.kept.contains(&key);
    match &open {
        Some(wait) => fits(wait, outcome)?,
        None if known => return Ok(SignalAnswer::Duplicate),
        None if head.class() == Class::Final => {}
        None if is_blocked(&head) && !early => {
            let open = state.waits.iter().map(|w| w.key.clone()).collect();
            return Err(AskError::NobodyWaits { key, open });
        }
        None => room_to_keep(&state, &key)?,
    }
    let body = Body::json(&SignalMail { key: key.clone(), outcome, payload, by });
    // A flow that starts afresh asks for the same names again: a signal belongs to one run.
    let first = match state.run {
        0 | 1 => format!("signal/{key}"),
        run => format!("signal/{run}/{key}"),
    };
    let again = open.as_ref().map(|w| format!("again/{}/{}", Hash::of(key.as_bytes()), w.step));
    let id = match &again {
        Some(again) if known => again.clone(),
        _ => first.clone(),
    };
    let mut answer = send(pipeline, job, mail::SIGNAL, id.clone(), body.clone()).await?;
    if answer == Sent::Duplicate && id == first {
        // Heard so long ago that the head has forgotten it, and waited for again: nothing is on its way.
        let (now, state) = look(pipeline, job, tenant).await?;
        let waits = state.waits_for(&key).is_some() && !now.has_mail();
        if let Some(again) = again.filter(|_| waits && now.version == head.version) {
            answer = send(pipeline, job, mail::SIGNAL, again, body).await?;
        }
    }
    Ok(match (answer, open) {
        (Sent::Duplicate, _) => SignalAnswer::Duplicate,
        (Sent::Accepted, Some(_)) => SignalAnswer::Completed,
        (Sent::Accepted, None) => SignalAnswer::Kept,
    })
}

fn check_signal(ask: &SignalAsk) -> Result<(), AskError> {
    if ask.key.is_empty() || ask.key.chars().any(char::is_control) {
        let key = &ask.key;
        return Err(AskError::Invalid(format!(
            "{key:?} is no key: it is empty or has control characters"
        )));
    }
    within("the key in bytes", "SIGNAL_KEY_BYTES_MAX", ask.key.len(), SIGNAL_KEY_BYTES_MAX)?;
    json_within("the payload in bytes", &ask.payload)?;
    words(ask.by.as_deref(), None)?;
    match ask.outcome {
        WaitOutcome::Expired => {
            Err(AskError::Invalid("a wait expires by itself; nobody can say that it has".into()))
        }
        WaitOutcome::Signalled | WaitOutcome::Approved | WaitOutcome::Rejected => Ok(()),
    }
}

fn fits(wait: &OpenWait, outcome: WaitOutcome) -> Result<(), AskError> {
    let outcome = match outcome {
        WaitOutcome::Approved => "approve",
        WaitOutcome::Rejected => "reject",
        WaitOutcome::Signalled | WaitOutcome::Expired => return Ok(()),
    };
    match wait.kind {
        WaitKind::Human => Ok(()),
        kind => Err(AskError::WrongKind { key: wait.key.clone(), kind, outcome }),
    }
}

/// Nobody holds it, and only something from outside moves it.
fn is_blocked(head: &Head) -> bool {
    head.holder.is_none() && matches!(head.status.name(), "waiting" | "parked" | "retrying")
}

fn room_to_keep(state: &JobState, key: &str) -> Result<(), AskError> {
    let (kept, max) = (state.kept.len() + 1, limits::KEPT_MAX);
    within("the number of kept signals", "KEPT_MAX", kept, max)?;
    let bytes = state.kept.iter().map(String::len).sum::<usize>() + key.len();
    within("the keys of kept signals in bytes", "KEPT_KEYS_BYTES_MAX", bytes, KEPT_KEYS_BYTES_MAX)
}
