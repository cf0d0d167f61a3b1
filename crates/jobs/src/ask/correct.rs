//! Corrections: a person was wrong about an unknown effect. What was said stays on record; the correction is one more event
//! of an open job, or one more piece of evidence beside the history of a job that is over.

use super::{
    AskError, ResolveAnswer, ResolveAsk,
    send::unreadable,
    settle::{after_the_end, fits},
};
use crate::{
    decide::{Correction, correct as decide},
    model::{Job, JobState},
    view,
};
use tenure_engine::{amend::amend, pipeline::Pipeline};
use tenure_kernel::{error::StoreError, head::Head, table::Class};
use tenure_steps::events::Verdict;

/// Corrects what a person has said about the last call of a step.
///
/// An open job takes the correction in `attention`, where nobody drives its flow, and only while no step was asked for by a flow
/// that knew the earlier word: what the flow has done since would no longer follow from its history. A job that is over keeps
/// the correction for its retry and its forks; these are refused where they would take over a step that used the earlier word.
pub(super) async fn correct(
    pipeline: &Pipeline,
    head: &Head,
    state: &JobState,
    ask: ResolveAsk,
) -> Result<ResolveAnswer, AskError> {
    let (job, step) = (head.id, ask.step.clone());
    let no = |why: String, fix: String| AskError::NotCorrectable { step: step.clone(), why, fix };
    let said = view::settlement(pipeline.store(), job, &step).await.map_err(unreadable)?;
    let Some(said) = said else {
        let why = "no person has said what became of its last call".to_owned();
        return Err(no(why, "`tenure job show` shows what is known of each step".to_owned()));
    };
    if said.verdict == ask.verdict && said.result == ask.result {
        return Ok(ResolveAnswer::Duplicate);
    }
    fits(pipeline, &head.tenant, &said.tool, said.handed, &ask).await?;
    if head.class() == Class::Final {
        return after_the_end(pipeline, head, (&said.key, said.call), &ask).await;
    }
    let user = said.used_by.as_ref();
    let fork = format!("fork the job before step {}", user.unwrap_or(&step));
    if state.attention.is_none() {
        let why = format!("job {job} is {}, and neither in attention nor over", head.status.name());
        return Err(no(why, format!("cancel the job and correct it then, or {fork}")));
    }
    if let Some(user) = user {
        let why = format!("the flow asked for step {user} when it knew what was said before");
        return Err(no(why, format!("cancel the job, correct it then, and {fork}")));
    }
    let result = (ask.verdict == Verdict::Happened).then_some(ask.result);
    let correction = Correction {
        step: ask.step,
        key: said.key,
        call: said.call,
        was: said.verdict,
        verdict: ask.verdict,
        result,
        by: ask.by,
        note: ask.note,
        undoable: said.undoable,
    };
    let seen = head.version;
    let amended = amend::<Job, NotNow>(pipeline, job, &head.tenant, |_, cx| match cx.version {
        version if version == seen => Ok(decide(correction.clone())),
        _ => Err(NotNow::Moved),
    });
    match amended.await {
        Ok(_) => Ok(ResolveAnswer::Corrected),
        Err(NotNow::Moved) => {
            let why = format!("job {job} changed at the same moment");
            Err(no(why, "look at the job, and ask again if that still makes sense".to_owned()))
        }
        Err(NotNow::Store(e)) => Err(e.into()),
    }
}

/// Why a correction was not committed.
enum NotNow {
    /// The job is not what was looked at any more.
    Moved,
    /// The store is away, or said no.
    Store(StoreError),
}

impl From<StoreError> for NotNow {
    fn from(e: StoreError) -> Self {
        NotNow::Store(e)
    }
}
