//! Cancel, pause and resume.

use super::{
    AskAnswer, AskError,
    send::{finished, look, send, words},
};
use crate::decide::{AskMail, mail};
use std::sync::Arc;
use tenure_engine::pipeline::Pipeline;
use tenure_kernel::{
    head::Head, ids::EntityId, limits as kernel_limits, mail::kinds, store::Store, stream::Body,
    table::Class,
};

/// Asks a job to end.
pub async fn cancel(
    pipeline: &Pipeline,
    job: EntityId,
    tenant: Option<&str>,
    ask: AskMail,
) -> Result<AskAnswer, AskError> {
    words(ask.by.as_deref(), ask.why.as_deref())?;
    let (head, state) = look(pipeline, job, tenant).await?;
    match head.status.name() {
        "cancelled" => return Ok(AskAnswer::Already),
        _ if head.class() == Class::Final => return Err(finished(&head)),
        _ if state.cancel.is_some() => return Ok(AskAnswer::Already),
        _ => {}
    }
    let sent = send(pipeline, job, kinds::CANCEL, "cancel".into(), Body::json(&ask)).await?;
    Ok(sent.into())
}

/// Asks a job to stop until it is resumed. What runs is let finish.
pub async fn pause(
    pipeline: &Pipeline,
    job: EntityId,
    tenant: Option<&str>,
    ask: AskMail,
) -> Result<AskAnswer, AskError> {
    words(ask.by.as_deref(), ask.why.as_deref())?;
    let (head, state) = look(pipeline, job, tenant).await?;
    let status = head.status.name();
    if head.class() == Class::Final {
        return Err(finished(&head));
    }
    if state.paused {
        return Ok(AskAnswer::Already);
    }
    if state.attention.is_some() || state.cancel.is_some() {
        return Err(AskError::NothingToPause { job, status: status.to_owned() });
    }
    // A job can be paused again after it was resumed, so the id names where it stood.
    let id = format!("pause/{}", head.version);
    Ok(send(pipeline, job, mail::PAUSE, id, Body::json(&ask)).await?.into())
}

/// Lets a paused job go on, or one in attention look again.
pub async fn resume(
    pipeline: &Pipeline,
    job: EntityId,
    tenant: Option<&str>,
    ask: AskMail,
) -> Result<AskAnswer, AskError> {
    words(ask.by.as_deref(), ask.why.as_deref())?;
    let (head, state) = look(pipeline, job, tenant).await?;
    if head.class() == Class::Final {
        return Err(finished(&head));
    }
    let stands = state.paused || state.pausing || state.attention.is_some();
    if !stands && !pause_is_coming(pipeline.store(), &head).await? {
        let status = head.status.name().to_owned();
        return Err(AskError::NothingToResume { job, status });
    }
    let id = format!("resume/{}", head.version);
    Ok(send(pipeline, job, mail::RESUME, id, Body::json(&ask)).await?.into())
}

/// Whether somebody has asked for a pause that nobody has read yet.
async fn pause_is_coming(store: &Arc<dyn Store>, head: &Head) -> Result<bool, AskError> {
    if head.has_mail() {
        let unread = store.mail(head.id, head.mail_read, kernel_limits::MAIL_PER_DECISION_MAX);
        if unread.await?.iter().any(|m| m.kind == mail::PAUSE) {
            return Ok(true);
        }
    }
    Ok(false)
}
