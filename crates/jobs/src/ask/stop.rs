//! Cancel, pause and resume.

use super::{
    AskAnswer, AskError,
    send::{finished, look, send, words},
};
use crate::decide::{AskMail, mail};
use serde_json::Value;
use std::sync::Arc;
use tenure_engine::pipeline::Pipeline;
use tenure_kernel::{
    error::StoreError,
    head::Head,
    ids::EntityId,
    limits as kernel_limits,
    mail::{Mail, kinds},
    store::Store,
    stream::Body,
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
    pausing(pipeline, job, tenant, ask, None).await
}

/// The same, once for ever: whoever asks again under this id has asked, also if the job was resumed meanwhile.
pub async fn pause_once(
    pipeline: &Pipeline,
    job: EntityId,
    tenant: Option<&str>,
    ask: AskMail,
    id: String,
) -> Result<AskAnswer, AskError> {
    pausing(pipeline, job, tenant, ask, Some(id)).await
}

async fn pausing(
    pipeline: &Pipeline,
    job: EntityId,
    tenant: Option<&str>,
    ask: AskMail,
    id: Option<String>,
) -> Result<AskAnswer, AskError> {
    words(ask.by.as_deref(), ask.why.as_deref())?;
    let (head, state) = look(pipeline, job, tenant).await?;
    if was_asked(pipeline.store(), &head, id.as_deref()).await? {
        return Ok(AskAnswer::Already);
    }
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
    let id = id.unwrap_or_else(|| format!("pause/{}", head.version));
    Ok(send(pipeline, job, mail::PAUSE, id, Body::json(&ask)).await?.into())
}

/// Lets a paused job go on, or one in attention look again.
pub async fn resume(
    pipeline: &Pipeline,
    job: EntityId,
    tenant: Option<&str>,
    ask: AskMail,
) -> Result<AskAnswer, AskError> {
    resuming(pipeline, job, tenant, ask, None).await
}

/// The same, once for ever: see [`pause_once`].
pub async fn resume_once(
    pipeline: &Pipeline,
    job: EntityId,
    tenant: Option<&str>,
    ask: AskMail,
    id: String,
) -> Result<AskAnswer, AskError> {
    resuming(pipeline, job, tenant, ask, Some(id)).await
}

async fn resuming(
    pipeline: &Pipeline,
    job: EntityId,
    tenant: Option<&str>,
    ask: AskMail,
    id: Option<String>,
) -> Result<AskAnswer, AskError> {
    words(ask.by.as_deref(), ask.why.as_deref())?;
    let (head, state) = look(pipeline, job, tenant).await?;
    if was_asked(pipeline.store(), &head, id.as_deref()).await? {
        return Ok(AskAnswer::Already);
    }
    if head.class() == Class::Final {
        return Err(finished(&head));
    }
    let stands = state.paused || state.pausing || state.attention.is_some();
    if !stands && !pause_is_coming(pipeline.store(), &head).await? {
        let status = head.status.name().to_owned();
        return Err(AskError::NothingToResume { job, status });
    }
    let id = id.unwrap_or_else(|| format!("resume/{}", head.version));
    Ok(send(pipeline, job, mail::RESUME, id, Body::json(&ask)).await?.into())
}

/// Whether mail under this id has come before, read or not.
async fn was_asked(
    store: &Arc<dyn Store>,
    head: &Head,
    id: Option<&str>,
) -> Result<bool, StoreError> {
    let Some(id) = id else { return Ok(false) };
    has_mail(store, head, |m| m.id.0 == id).await
}

/// Whether mail in this name has come before, whatever it asks for.
pub(crate) async fn was_asked_by(
    store: &Arc<dyn Store>,
    head: &Head,
    by: &str,
) -> Result<bool, StoreError> {
    let says =
        |m: &Mail| tenure_kernel::stored::from_slice::<Value>(m.body.inline().unwrap_or_default());
    has_mail(store, head, |m| says(m).is_ok_and(|body| body["by"] == by)).await
}

async fn has_mail(
    store: &Arc<dyn Store>,
    head: &Head,
    is_it: impl Fn(&Mail) -> bool,
) -> Result<bool, StoreError> {
    const PAGE: usize = 200;
    let mut after = 0;
    loop {
        let mail = store.mail(head.id, after, PAGE).await?;
        if mail.iter().any(&is_it) {
            return Ok(true);
        }
        match mail.last() {
            Some(last) if mail.len() == PAGE => after = last.seq,
            _ => return Ok(false),
        }
    }
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
