//! How an ask reaches a job: the head is read, then mail or evidence is written.

use super::{AskAnswer, AskError, WORDS_BYTES_MAX};
use crate::{
    drive::LoadError,
    model::{Job, JobState, limits},
};
use serde_json::Value;
use tenure_engine::pipeline::Pipeline;
use tenure_kernel::{
    error::StoreError,
    evidence::{EvidenceAnswer, NewEvidence},
    head::Head,
    ids::{EntityId, MailId},
    limits as kernel_limits,
    machine::{Machine as _, decode_state},
    mail::{MailAnswer, NewMail},
    stream::Body,
};

pub(super) async fn look(
    pipeline: &Pipeline,
    job: EntityId,
    tenant: Option<&str>,
) -> Result<(Head, JobState), AskError> {
    let head = pipeline.store().head(job).await?;
    // Somebody else's job is no job: its existence is theirs to tell.
    let mine = |h: &Head| h.kind() == Job::TABLE.kind && tenant.is_none_or(|t| t == h.tenant);
    let head = head.filter(mine).ok_or(AskError::NotFound(job))?;
    let state = decode_state::<Job>(&head.state).map_err(|e| StoreError::Corrupt(e.to_string()))?;
    Ok((head, state))
}

pub(super) fn finished(head: &Head) -> AskError {
    AskError::Finished { job: head.id, status: head.status.name().to_owned() }
}

pub(super) fn unreadable(e: LoadError) -> AskError {
    match e {
        LoadError::Store(e) => AskError::Store(e),
        LoadError::Unreadable(why) => AskError::Store(StoreError::Corrupt(why)),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// With its place in the mailbox: the mail is read once `mail_read` of the head has reached it.
    Accepted(u64),
    Duplicate,
}

impl From<Sent> for AskAnswer {
    fn from(sent: Sent) -> Self {
        match sent {
            Sent::Accepted(_) => AskAnswer::Accepted,
            Sent::Duplicate => AskAnswer::Already,
        }
    }
}

pub(super) async fn send(
    pipeline: &Pipeline,
    job: EntityId,
    kind: &'static str,
    id: String,
    body: Body,
) -> Result<Sent, AskError> {
    let mail = NewMail { to: job, id: MailId(id), kind: kind.into(), body };
    match pipeline.mail(mail).await? {
        MailAnswer::Accepted { seq, .. } => Ok(Sent::Accepted(seq)),
        MailAnswer::Duplicate => Ok(Sent::Duplicate),
        MailAnswer::Final { status } => Err(AskError::Finished { job, status: status.to_owned() }),
        MailAnswer::Unknown => Err(AskError::NotFound(job)),
        MailAnswer::Refused(why) => Err(AskError::Refused(why.to_string())),
    }
}

/// Records evidence; says whether it is new.
pub(super) async fn record(
    pipeline: &Pipeline,
    head: &Head,
    key: &str,
    call: u32,
    who: String,
    said: Value,
) -> Result<bool, AskError> {
    let (entity, key, epoch) = (head.id, key.to_owned(), head.epoch);
    let evidence = NewEvidence { entity, key, epoch, call, who, body: Body::json(&said) };
    match pipeline.evidence(evidence).await? {
        EvidenceAnswer::Recorded { .. } => Ok(true),
        EvidenceAnswer::Duplicate => Ok(false),
        EvidenceAnswer::Unknown => Err(AskError::NotFound(entity)),
        EvidenceAnswer::Refused(why) => Err(AskError::Refused(why.to_string())),
    }
}

pub(super) fn within(
    what: &'static str,
    name: &'static str,
    found: usize,
    max: usize,
) -> Result<(), AskError> {
    if found <= max { Ok(()) } else { Err(AskError::TooLarge { what, name, found, max }) }
}

/// Mail that carries more than this is not read in place, and a job reads nothing else.
pub(super) fn json_within(what: &'static str, value: &Value) -> Result<(), AskError> {
    let bytes = serde_json::to_vec(value).map_or(usize::MAX, |b| b.len());
    within(what, "SIGNAL_BYTES_MAX", bytes, limits::SIGNAL_BYTES_MAX)
}

/// Who, and in which words.
pub(super) fn words(by: Option<&str>, why: Option<&str>) -> Result<(), AskError> {
    let by = by.unwrap_or_default();
    if by.chars().any(char::is_control) {
        return Err(AskError::Invalid(format!("{by:?} is no name: it has control characters")));
    }
    within("the name in bytes", "NAME_BYTES_MAX", by.len(), kernel_limits::NAME_BYTES_MAX)?;
    let why = why.map_or(0, str::len);
    within("the words in bytes", "WORDS_BYTES_MAX", why, WORDS_BYTES_MAX)
}
