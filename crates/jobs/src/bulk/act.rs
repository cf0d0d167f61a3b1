//! Asks each of a list of jobs. Asked again by the same bulk job, each has been asked before, and counts as done.

use super::{
    Action, Order, Reasons,
    find::{stands, state_of},
};
use crate::{
    ask::{self, AskError, ResolveAsk, SignalAsk},
    decide::AskMail,
    submit::{SubmitError, Submitter},
};
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use tenure_engine::pipeline::Pipeline;
use tenure_kernel::{
    error::StoreError,
    ids::EntityId,
    limits::{NAME_BYTES_MAX, clip},
};

/// What became of a page.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Acted {
    /// Asked, and it is durable.
    pub done: u64,
    /// The action did not fit any more.
    #[serde(default, skip_serializing_if = "Reasons::is_empty")]
    pub skipped: Reasons,
    /// It could not be asked.
    #[serde(default, skip_serializing_if = "Reasons::is_empty")]
    pub failed: Reasons,
}

enum One {
    Done,
    Skipped(&'static str),
    Failed(&'static str),
}

/// Asks all of them, for the bulk job `bulk` of this tenant. An error is the store's: asking again is safe.
pub async fn act(
    pipeline: &Pipeline,
    jobs: &Submitter,
    order: &Order,
    (bulk, tenant): (EntityId, &str),
    ids: &[EntityId],
) -> Result<Acted, StoreError> {
    let mut acted = Acted::default();
    // All at once: they share batches.
    let asked = ids.iter().map(|id| one(pipeline, jobs, order, bulk, tenant, *id));
    for one in join_all(asked).await {
        match one? {
            One::Done => acted.done += 1,
            One::Skipped(why) => *acted.skipped.entry(why.to_owned()).or_default() += 1,
            One::Failed(why) => *acted.failed.entry(why.to_owned()).or_default() += 1,
        }
    }
    Ok(acted)
}

/// In whose name a bulk job asks. However long the name is, the job's id is whole: a repetition knows itself by it.
fn said_by(order: &Order, bulk: EntityId) -> String {
    let job = format!(" (bulk {bulk})");
    let who = order.by.as_deref().unwrap_or("somebody");
    format!("{}{job}", clip(who, NAME_BYTES_MAX - job.len()))
}

async fn one(
    pipeline: &Pipeline,
    jobs: &Submitter,
    order: &Order,
    bulk: EntityId,
    tenant: &str,
    id: EntityId,
) -> Result<One, StoreError> {
    // Between the page that named it and this there may have been a crash, and an hour. What does not stand any more as it
    // was shown is left alone, unless it was this very ask that changed it.
    let store = pipeline.store();
    let head = store.head(id).await?;
    let Some(head) = head.filter(|h| h.tenant == tenant) else {
        return Ok(One::Skipped("not_found"));
    };
    let (name, said) = (format!("bulk/{bulk}"), said_by(order, bulk));
    if let Err(why) = stands(store, order, &head, &state_of(&head)?).await? {
        return Ok(match ask::was_asked_by(store, &head, &said).await? {
            true => One::Done,
            false => One::Skipped(why),
        });
    }
    let by = Some(said.clone());
    let mine = Some(tenant);
    let why = |why: &Option<String>| AskMail { by: by.clone(), why: why.clone() };
    // A pause or resume may come again, so it is known by who asked: us, once.
    match &order.action {
        Action::Cancel { why: w } => {
            of_ask(ask::cancel(pipeline, id, mine, why(w)).await.map(|_| ()))
        }
        Action::Pause { why: w } => {
            of_ask(ask::pause_once(pipeline, id, mine, why(w), name).await.map(|_| ()))
        }
        Action::Resume { why: w } => {
            of_ask(ask::resume_once(pipeline, id, mine, why(w), name).await.map(|_| ()))
        }
        Action::Signal { key, outcome, payload, early } => {
            let (key, payload) = (key.clone(), payload.clone());
            let signal = SignalAsk { key, outcome: *outcome, payload, by, early: *early };
            of_ask(ask::send_signal(pipeline, id, mine, signal).await)
        }
        Action::Resolve { step, verdict, result, note } => {
            let (step, result, note) = (step.clone(), result.clone(), note.clone());
            let resolve = ResolveAsk { step, verdict: *verdict, result, by, note, correct: false };
            of_ask(ask::resolve(pipeline, id, mine, resolve).await.map(|_| ()))
        }
        Action::Discard {} => of_ask(ask::discard(pipeline, id, mine, &said).await.map(|_| ())),
        Action::Retry { version } => match jobs.fork(id, None, *version, by).await {
            Ok(_) => Ok(One::Done),
            Err(SubmitError::Store(e)) => Err(e),
            Err(SubmitError::TriedAgain { .. }) => Ok(One::Skipped("tried_again")),
            Err(SubmitError::BadOrigin(_)) => Ok(One::Skipped("nothing_to_retry")),
            Err(SubmitError::WouldRepeat(_)) => Ok(One::Failed("would_repeat")),
            Err(SubmitError::UnknownFlow { .. }) => Ok(One::Failed("unknown_flow")),
            Err(_) => Ok(One::Failed("refused")),
        },
    }
}

fn of_ask(asked: Result<(), AskError>) -> Result<One, StoreError> {
    Ok(match asked {
        Ok(()) => One::Done,
        Err(AskError::Store(e)) => return Err(e),
        Err(AskError::NotFound(_)) => One::Skipped("not_found"),
        Err(AskError::Finished { .. }) => One::Skipped("finished"),
        Err(AskError::NobodyWaits { .. }) => One::Skipped("nobody_waits"),
        Err(AskError::TooLate { .. }) => One::Skipped("too_late"),
        Err(AskError::WrongKind { .. }) => One::Skipped("wrong_kind"),
        Err(AskError::NotUnknown { .. }) => One::Skipped("effect_known"),
        Err(AskError::NotFailed { .. }) => One::Skipped("not_failed"),
        Err(AskError::NothingToPause { .. } | AskError::NothingToResume { .. }) => {
            One::Skipped("not_now")
        }
        Err(AskError::NotCorrectable { .. }) => One::Skipped("effect_known"),
        Err(AskError::BadResult { .. } | AskError::NotChecked { .. }) => {
            One::Failed("schema_violation")
        }
        Err(AskError::TooLarge { .. }) => One::Failed("too_large"),
        Err(AskError::Invalid(_)) => One::Failed("invalid"),
        Err(AskError::Refused(_)) => One::Failed("refused"),
    })
}
