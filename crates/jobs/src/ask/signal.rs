//! Signals.

use super::{
    AskError, KEPT_KEYS_BYTES_MAX, SIGNAL_KEY_BYTES_MAX, SignalAnswer, SignalAsk,
    send::{Sent, json_within, look, send, unreadable, within, words},
};
use crate::{
    decide::{SignalMail, mail},
    model::{JobEvent, JobState, OpenWait, limits},
    view::stream::since,
};
use std::time::Duration;
use tenure_engine::pipeline::Pipeline;
use tenure_kernel::{
    head::Head,
    ids::EntityId,
    stream::{Body, Hash},
    table::Class,
};
use tenure_steps::events::{StepEvent, StepId, WaitKind, WaitOutcome};

/// How long [`signal`] waits until the job has read a signal for an open wait. The due loop or the holder usually reads it within
/// milliseconds; a holder that was lost is found after its lease.
const DECISION_WAIT: Duration = Duration::from_secs(10);
/// The first and the longest pause between two looks at the job.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(250));

/// Completes a wait, or keeps the signal for one, and says which.
///
/// A signal is known by its key: the same key again is a repetition, also after the job has ended. Only where
/// a flow that was started afresh waits for a key that an earlier run has heard does it count anew, once per
/// run; a sender that repeats itself into the next run cannot be told from one that means it.
///
/// An open wait can expire, or the job can end, between the look at the head and the decision about the signal. So the
/// answer [`SignalAnswer::Completed`] is given only after the history says that this signal completed the wait.
pub async fn signal(
    pipeline: &Pipeline,
    job: EntityId,
    tenant: Option<&str>,
    ask: SignalAsk,
) -> Result<SignalAnswer, AskError> {
    answered(pipeline, deliver(pipeline, job, tenant, ask, None).await?).await
}

/// The same for a signal that arrives under an id of its own, such as a signed webhook: it counts once per job, also where the
/// flow waits for its key again. Another delivery of the same key may complete that wait.
pub async fn signal_once(
    pipeline: &Pipeline,
    job: EntityId,
    tenant: Option<&str>,
    ask: SignalAsk,
    delivery: Hash,
) -> Result<SignalAnswer, AskError> {
    answered(pipeline, deliver(pipeline, job, tenant, ask, Some(delivery)).await?).await
}

async fn answered(pipeline: &Pipeline, delivery: Delivery) -> Result<SignalAnswer, AskError> {
    match delivery {
        Delivery::Known(answer) => Ok(answer),
        Delivery::ToOpenWait(mail) => decided(pipeline, &mail).await,
    }
}

/// Sends a signal and does not wait until the job has read it: for senders of thousands, which have no use for single answers.
pub(crate) async fn send_only(
    pipeline: &Pipeline,
    job: EntityId,
    tenant: Option<&str>,
    ask: SignalAsk,
) -> Result<(), AskError> {
    deliver(pipeline, job, tenant, ask, None).await.map(|_| ())
}

enum Delivery {
    /// The answer does not depend on what the job decides.
    Known(SignalAnswer),
    /// A wait for the key was open. The job decides about the mail.
    ToOpenWait(SentSignal),
}

/// A signal in the mailbox of a job that had a wait open for it.
struct SentSignal {
    job: EntityId,
    key: String,
    /// The step of the wait.
    step: StepId,
    /// Its place in the mailbox.
    seq: u64,
    /// The version of the job before the signal was sent: the decision is in a later one.
    after: u64,
}

async fn deliver(
    pipeline: &Pipeline,
    job: EntityId,
    tenant: Option<&str>,
    ask: SignalAsk,
    delivery: Option<Hash>,
) -> Result<Delivery, AskError> {
    check_signal(&ask)?;
    let (head, state) = look(pipeline, job, tenant).await?;
    let SignalAsk { key, outcome, payload, by, early } = ask;
    let open = state.waits_for(&key).cloned();
    let known = state.heard.contains(&key) || state.kept.contains(&key);
    // A later wait of a name that was heard before takes a signal that has an id of its own. Without one it cannot be told from the
    // repetition of the signal that completed the wait before.
    let is_of_name = open.as_ref().is_some_and(|wait| wait.key != key);
    match &open {
        Some(_) if is_of_name && known && delivery.is_none() => {
            return Ok(Delivery::Known(SignalAnswer::Duplicate));
        }
        Some(wait) => fits(wait, outcome)?,
        None if known && head.class() == Class::Final && !state.heard.contains(&key) => {
            return Err(AskError::TooLate { job, key });
        }
        None if known => return Ok(Delivery::Known(SignalAnswer::Duplicate)),
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
    let id = match (delivery, &again) {
        (Some(delivery), _) => format!("delivery/{delivery}"),
        (None, Some(again)) if known => again.clone(),
        (None, _) => first.clone(),
    };
    let mut answer = send(pipeline, job, mail::SIGNAL, id.clone(), body.clone()).await?;
    if answer == Sent::Duplicate && id == first {
        // Heard long ago, so that the head has forgotten it, and waited for again: nothing is on its way.
        let (now, state) = look(pipeline, job, tenant).await?;
        let waits = state.waits_for(&key).is_some() && !now.has_mail();
        if let Some(again) = again.filter(|_| waits && now.version == head.version) {
            answer = send(pipeline, job, mail::SIGNAL, again, body).await?;
        }
    }
    Ok(match (answer, open) {
        (Sent::Duplicate, _) => Delivery::Known(SignalAnswer::Duplicate),
        (Sent::Accepted(_), None) => Delivery::Known(SignalAnswer::Kept),
        (Sent::Accepted(seq), Some(wait)) => {
            Delivery::ToOpenWait(SentSignal { job, key, step: wait.step, seq, after: head.version })
        }
    })
}

/// Waits until the job has read the signal, and says what it decided.
async fn decided(pipeline: &Pipeline, sent: &SentSignal) -> Result<SignalAnswer, AskError> {
    let (store, rt) = (pipeline.store(), pipeline.rt());
    let until = rt.mono() + DECISION_WAIT;
    let (mut pause, longest) = PAUSES;
    loop {
        let head = store.head(sent.job).await?.ok_or(AskError::NotFound(sent.job))?;
        if head.mail_read >= sent.seq {
            return from_history(pipeline, sent).await;
        }
        if head.class() == Class::Final {
            // It was ended by force (cancelled, or past its deadline) and has read no more mail.
            return Err(AskError::TooLate { job: sent.job, key: sent.key.clone() });
        }
        if rt.mono() >= until {
            return Ok(SignalAnswer::Unread);
        }
        rt.sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
}

/// What the history since the signal says about it.
async fn from_history(pipeline: &Pipeline, sent: &SentSignal) -> Result<SignalAnswer, AskError> {
    let lines = since(pipeline.store(), sent.job, sent.after).await.map_err(unreadable)?;
    let events = || {
        lines.iter().filter_map(|line| match &line.read {
            Some(JobEvent::Step(event)) => Some(event),
            _ => None,
        })
    };
    let completed = events().find_map(|event| match event {
        StepEvent::WaitCompleted { step, outcome, .. } if *step == sent.step => Some(*outcome),
        _ => None,
    });
    let kept = || {
        events().any(|event| matches!(event, StepEvent::SignalKept { key, .. } if *key == sent.key))
    };
    match completed {
        Some(WaitOutcome::Signalled | WaitOutcome::Approved | WaitOutcome::Rejected) => {
            Ok(SignalAnswer::Completed)
        }
        // The flow let go of the wait (another branch won), and the signal lies there for a later one.
        None if kept() => Ok(SignalAnswer::Kept),
        Some(WaitOutcome::Expired) | None => {
            Err(AskError::TooLate { job: sent.job, key: sent.key.clone() })
        }
    }
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
