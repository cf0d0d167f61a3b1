//! What outsiders may ask of a job. Everything here is mail or evidence: nobody but the holder writes to a
//! job's stream, so an answer says what was accepted, and the job's history what came of it.
//!
//! The head is read first, so that an ask that can only be noted and forgotten is refused instead. It may
//! change before the mail arrives; then the machine decides, and notes what it did.

use crate::{
    decide::{AskMail, ResolveMail, SignalMail, mail},
    drive::LoadError,
    model::{Job, JobState, OpenCall, OpenWait, limits},
    view::{self, JobView},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::sync::Arc;
use tenure_engine::pipeline::Pipeline;
use tenure_kernel::{
    error::StoreError,
    evidence::{EvidenceAnswer, NewEvidence},
    head::Head,
    ids::{EntityId, MailId},
    limits as kernel_limits,
    machine::{Machine as _, decode_state},
    mail::{MailAnswer, NewMail, kinds},
    store::{HeadFilter, Store},
    stream::{Body, Hash},
    table::Class,
};
use tenure_steps::events::{StepId, Verdict, WaitKind, WaitOutcome};

/// A signal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SignalAsk {
    /// The correlation key.
    pub key: String,
    /// Signalled, approved or rejected.
    pub outcome: WaitOutcome,
    /// What comes with it.
    pub payload: Value,
    /// From whom.
    pub by: Option<String>,
    /// Keep it even if a blocked job knows nothing of the key.
    pub early: bool,
}

/// What became of a signal. All of them are a success for whoever sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignalAnswer {
    /// A wait for the key is open: this completes it.
    Completed,
    /// Durable, for a wait that is not open yet.
    Kept,
    /// It was there before: heard, kept, or on its way.
    Duplicate,
}

/// What became of a cancel, a pause or a resume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AskAnswer {
    /// Durable; the job follows it.
    Accepted,
    /// It is so already, or is on its way.
    Already,
}

/// Says what became of an unknown effect.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResolveAsk {
    /// Which step.
    pub step: StepId,
    /// Happened, did not happen, or abandoned.
    pub verdict: Verdict,
    /// The result, where it happened.
    pub result: Value,
    /// From whom.
    pub by: Option<String>,
    /// In words.
    pub note: Option<String>,
}

/// What became of a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResolveAnswer {
    /// Durable; the job goes on from it.
    Accepted,
    /// The same was said before.
    Duplicate,
    /// The job is over: it is kept beside its history, and changes nothing.
    RecordedAfterTheEnd,
}

/// Failed jobs that nobody has put aside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeadLetters {
    /// The newest first.
    pub jobs: Vec<JobView>,
    /// Where the next page begins; `None` on the last.
    pub next: Option<EntityId>,
}

/// Why nothing was done.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No such job, or another tenant's.
    #[error("there is no job {0}")]
    NotFound(EntityId),
    /// The job is over.
    #[error("job {job} is {status}: it takes nothing in any more")]
    Finished {
        /// Which.
        job: EntityId,
        /// Its final status.
        status: String,
    },
    /// A blocked job that knows nothing of this key.
    #[error("nobody waits for {key:?}; {}", open_keys(.open))]
    NobodyWaits {
        /// The key that was sent.
        key: String,
        /// The keys that are open.
        open: Vec<String>,
    },
    /// A limit was passed.
    #[error("{what} is {found}; the limit {name} is {max}")]
    TooLarge {
        /// What.
        what: &'static str,
        /// The limit's name.
        name: &'static str,
        /// How much it is.
        found: usize,
        /// How much it may be.
        max: usize,
    },
    /// The ask makes no sense as it is.
    #[error("{0}")]
    Invalid(String),
    /// A yes or no for something that is not a person's decision.
    #[error("{outcome} does not fit: {key:?} waits for {}, not for a person's decision", kind_text(.kind))]
    WrongKind {
        /// The key.
        key: String,
        /// What it waits for.
        kind: WaitKind,
        /// What was sent.
        outcome: &'static str,
    },
    /// A pause where there is nothing to pause.
    #[error("job {job} is {status}: there is nothing to pause")]
    NothingToPause {
        /// Which.
        job: EntityId,
        /// Its status.
        status: String,
    },
    /// A resume of a job that is neither paused nor in attention.
    #[error(
        "job {job} is {status}, and neither paused nor in attention: there is nothing to resume"
    )]
    NothingToResume {
        /// Which.
        job: EntityId,
        /// Its status.
        status: String,
    },
    /// A settlement of a step whose effect is known.
    #[error("step {step} has no unknown effect: {why}")]
    NotUnknown {
        /// Which step.
        step: StepId,
        /// What is known about it.
        why: String,
    },
    /// Only failed jobs are dead letters.
    #[error("job {job} is {status}: only a failed job can be put aside")]
    NotFailed {
        /// Which.
        job: EntityId,
        /// Its status.
        status: String,
    },
    /// The store said no.
    #[error("{0}")]
    Refused(String),
    /// The store is away.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn open_keys(open: &[String]) -> String {
    match open {
        [] => "no wait is open".to_owned(),
        keys => format!("it waits for {}", keys.join(", ")),
    }
}

fn kind_text(kind: &WaitKind) -> &'static str {
    match kind {
        WaitKind::Signal => "a signal",
        WaitKind::Human => "a person",
        WaitKind::Webhook => "a webhook",
        WaitKind::Timer => "a time",
    }
}

/// The longest correlation key: the id of the mail that carries the signal holds it.
pub const SIGNAL_KEY_BYTES_MAX: usize = kernel_limits::KEY_BYTES_MAX - "signal/".len();
/// All keys of kept signals together: they stand in the head, which has little room and belongs to the flow.
pub const KEPT_KEYS_BYTES_MAX: usize = 4 * 1024;
/// What somebody may say about an ask.
pub const WORDS_BYTES_MAX: usize = 2 * 1024;
/// The key of the evidence that puts a dead letter aside.
pub const DISCARDED: &str = "discarded";

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
    let first = format!("signal/{key}");
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
    let stands = state.paused || state.attention.is_some();
    if !stands && !pause_is_coming(pipeline.store(), &head).await? {
        let status = head.status.name().to_owned();
        return Err(AskError::NothingToResume { job, status });
    }
    let id = format!("resume/{}", head.version);
    Ok(send(pipeline, job, mail::RESUME, id, Body::json(&ask)).await?.into())
}

/// Whether somebody has asked for a pause that has not taken effect: unread mail, or a holder who lets what
/// runs finish first.
async fn pause_is_coming(store: &Arc<dyn Store>, head: &Head) -> Result<bool, AskError> {
    if head.has_mail() {
        let unread = store.mail(head.id, head.mail_read, kernel_limits::MAIL_PER_DECISION_MAX);
        if unread.await?.iter().any(|m| m.kind == mail::PAUSE) {
            return Ok(true);
        }
    }
    if head.holder.is_none() {
        return Ok(false);
    }
    let Some(detail) = view::detail(store, head.id).await.map_err(unreadable)? else {
        return Ok(false);
    };
    let noted = |e: &view::EventView| {
        let what = e.body["what"].as_str().filter(|_| e.name == "mail_noted");
        what.and_then(|w| w.split_once(':')).map(|(kind, _)| kind == mail::PAUSE)
    };
    let mine = detail.events.iter().rev().take_while(|e| e.epoch == head.epoch);
    Ok(mine.filter(|e| e.body["what"] != Value::Null).find_map(noted).unwrap_or(false))
}

/// Says what became of an unknown effect. After the end it is kept beside the history.
pub async fn resolve(
    pipeline: &Pipeline,
    job: EntityId,
    tenant: Option<&str>,
    ask: ResolveAsk,
) -> Result<ResolveAnswer, AskError> {
    if !matches!(ask.verdict, Verdict::Happened | Verdict::DidNotHappen | Verdict::Abandoned) {
        let why = "a person can say: happened, did_not_happen or abandoned".to_owned();
        return Err(AskError::Invalid(why));
    }
    json_within("the result in bytes", &ask.result)?;
    words(ask.by.as_deref(), ask.note.as_deref())?;
    let (head, state) = look(pipeline, job, tenant).await?;
    let is_final = head.class() == Class::Final;
    let open = |c: &&OpenCall| c.step == ask.step && (is_final || c.unknown.is_some());
    let Some(call) = state.calls.iter().find(open) else {
        let why = known_about(pipeline.store(), job, &ask.step).await?;
        return Err(AskError::NotUnknown { step: ask.step, why });
    };
    let ResolveAsk { step, verdict, result, by, note } = ask;
    if is_final {
        let who = by.clone().unwrap_or_else(|| "somebody".into());
        let said = json!({ "verdict": verdict, "result": result, "by": by, "note": note });
        return match record(pipeline, &head, &call.key, call.call, who, said).await? {
            true => Ok(ResolveAnswer::RecordedAfterTheEnd),
            false => Ok(ResolveAnswer::Duplicate),
        };
    }
    // The same id whatever the verdict: the first to speak is heard, and the next one is told so.
    let id = format!("resolve/{}/{}", call.key, call.call);
    let body = Body::json(&ResolveMail { step: step.clone(), verdict, result, by, note });
    match send(pipeline, job, mail::RESOLVE, id.clone(), body.clone()).await? {
        Sent::Accepted => Ok(ResolveAnswer::Accepted),
        Sent::Duplicate => {
            let unread =
                pipeline.store().mail(job, head.mail_read, kernel_limits::MAIL_PER_DECISION_MAX);
            let same = unread.await?.iter().any(|m| m.id.0 == id && m.body == body);
            match same {
                true => Ok(ResolveAnswer::Duplicate),
                false => {
                    let why = "somebody has just said what became of it".to_owned();
                    Err(AskError::NotUnknown { step, why })
                }
            }
        }
    }
}

/// What is known about a step, for somebody who thinks that nothing is.
async fn known_about(
    store: &Arc<dyn Store>,
    job: EntityId,
    step: &StepId,
) -> Result<String, AskError> {
    let detail = view::detail(store, job).await.map_err(unreadable)?;
    let steps = detail.map(|d| d.steps).unwrap_or_default();
    let Some(found) = steps.iter().find(|s| s.step == *step) else {
        let known: Vec<&str> = steps.iter().map(|s| s.step.0.as_str()).collect();
        return Ok(match known.is_empty() {
            true => "the job has no steps yet".into(),
            false => format!("there is no such step; the job has {}", known.join(", ")),
        });
    };
    let last = found.calls.last().map(|c| c.state.as_str());
    Ok(match (found.outcome.as_str(), last) {
        ("ok", Some("happened")) => "it was settled as happened".into(),
        ("ok", _) => "it is done, and its result is recorded".into(),
        ("failed", Some("abandoned")) => "it was given up".into(),
        ("failed", _) => "it failed, and nothing of it is unknown".into(),
        (_, Some("started")) => "its call runs, or its worker has not been missed yet".into(),
        (_, Some("did_not_happen" | "failure" | "cancelled")) => {
            "its last call was not applied, and it is tried again".into()
        }
        _ => format!("it is a {}, and has no effect", found.kind),
    })
}

/// Puts a failed job aside: it is no dead letter any more.
pub async fn discard(
    pipeline: &Pipeline,
    job: EntityId,
    tenant: Option<&str>,
    by: &str,
) -> Result<AskAnswer, AskError> {
    words(Some(by), None)?;
    let (head, _) = look(pipeline, job, tenant).await?;
    if head.status.name() != "failed" {
        let status = head.status.name().to_owned();
        return Err(AskError::NotFailed { job, status });
    }
    if is_discarded(pipeline.store(), job).await? {
        return Ok(AskAnswer::Already);
    }
    match record(pipeline, &head, DISCARDED, 0, by.to_owned(), json!({ "by": by })).await? {
        true => Ok(AskAnswer::Accepted),
        false => Ok(AskAnswer::Already),
    }
}

async fn is_discarded(store: &Arc<dyn Store>, job: EntityId) -> Result<bool, StoreError> {
    Ok(store.evidence(job).await?.iter().any(|e| e.said.key == DISCARDED))
}

/// Failed jobs that nobody has put aside, the newest first. A page may be short, or empty, and not be the
/// last: one call looks at a bounded number of jobs.
pub async fn dead_letters(
    store: &Arc<dyn Store>,
    tenant: Option<&str>,
    before: Option<EntityId>,
    limit: usize,
) -> Result<DeadLetters, StoreError> {
    const LOOKED_AT_MAX: usize = 1_000;
    let mut page = DeadLetters { jobs: Vec::new(), next: before };
    let mut looked = 0;
    loop {
        let filter = HeadFilter {
            kind: Some(Job::TABLE.kind.into()),
            status: Some("failed".into()),
            tenant: tenant.map(str::to_owned),
            before: page.next,
            newest_first: true,
            ..HeadFilter::default()
        };
        let heads = store.heads(filter, limit.clamp(1, 200)).await?;
        if heads.is_empty() {
            page.next = None;
            return Ok(page);
        }
        for head in &heads {
            if page.jobs.len() >= limit || looked >= LOOKED_AT_MAX {
                return Ok(page);
            }
            looked += 1;
            page.next = Some(head.id);
            if !is_discarded(store, head.id).await? {
                page.jobs.push(view::view(store, head).await?);
            }
        }
    }
}

async fn look(
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

fn finished(head: &Head) -> AskError {
    AskError::Finished { job: head.id, status: head.status.name().to_owned() }
}

fn unreadable(e: LoadError) -> AskError {
    match e {
        LoadError::Store(e) => AskError::Store(e),
        LoadError::Unreadable(why) => AskError::Store(StoreError::Corrupt(why)),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sent {
    Accepted,
    Duplicate,
}

impl From<Sent> for AskAnswer {
    fn from(sent: Sent) -> Self {
        match sent {
            Sent::Accepted => AskAnswer::Accepted,
            Sent::Duplicate => AskAnswer::Already,
        }
    }
}

async fn send(
    pipeline: &Pipeline,
    job: EntityId,
    kind: &'static str,
    id: String,
    body: Body,
) -> Result<Sent, AskError> {
    let mail = NewMail { to: job, id: MailId(id), kind: kind.into(), body };
    match pipeline.mail(mail).await? {
        MailAnswer::Accepted { .. } => Ok(Sent::Accepted),
        MailAnswer::Duplicate => Ok(Sent::Duplicate),
        MailAnswer::Final { status } => Err(AskError::Finished { job, status: status.to_owned() }),
        MailAnswer::Unknown => Err(AskError::NotFound(job)),
        MailAnswer::Refused(why) => Err(AskError::Refused(why.to_string())),
    }
}

/// Records evidence; says whether it is new.
async fn record(
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

fn within(
    what: &'static str,
    name: &'static str,
    found: usize,
    max: usize,
) -> Result<(), AskError> {
    if found <= max { Ok(()) } else { Err(AskError::TooLarge { what, name, found, max }) }
}

/// Mail that carries more than this is not read in place, and a job reads nothing else.
fn json_within(what: &'static str, value: &Value) -> Result<(), AskError> {
    let bytes = serde_json::to_vec(value).map_or(usize::MAX, |b| b.len());
    within(what, "SIGNAL_BYTES_MAX", bytes, limits::SIGNAL_BYTES_MAX)
}

/// Who, and in which words.
fn words(by: Option<&str>, why: Option<&str>) -> Result<(), AskError> {
    let by = by.unwrap_or_default();
    if by.chars().any(char::is_control) {
        return Err(AskError::Invalid(format!("{by:?} is no name: it has control characters")));
    }
    within("the name in bytes", "NAME_BYTES_MAX", by.len(), kernel_limits::NAME_BYTES_MAX)?;
    let why = why.map_or(0, str::len);
    within("the words in bytes", "WORDS_BYTES_MAX", why, WORDS_BYTES_MAX)
}
