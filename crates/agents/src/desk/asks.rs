//! What is said to a turn that is there: results, progress, stop, force-finish, resume.

use super::{Desk, DeskError, within, words};
use crate::{
    limits,
    turn::{
        TurnState,
        table::{QUEUED, SUSPENDED},
        waits::{Match, find},
    },
    words::{EndStatus, ForceFinish, Progress, ResumeNow, Stop, ToolResult, kinds},
};
use serde::Serialize;
use serde_json::{Value, json};
use tenure_kernel::{
    error::StoreError,
    evidence::{EvidenceAnswer, NewEvidence},
    head::Head,
    ids::{EntityId, MailId},
    limits as kernel_limits,
    mail::{MailAnswer, NewMail},
    stream::Body,
    table::Class,
};
use tenure_steps::canonical;

/// What became of something that was said. All of them are a success for whoever says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Durable; the turn follows it.
    Accepted,
    /// Durable, for a suspend that has not come yet.
    Kept,
    /// What it answers is over: on record, and changes nothing.
    TooLate,
    /// The same was said before.
    Already,
}

/// The answer to whoever says something to a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Answer {
    /// The turn.
    pub turn: EntityId,
    /// What became of it.
    pub outcome: Outcome,
    /// The id under which it lies in the inbox.
    pub item: String,
}

/// The longest idempotency key.
pub const KEY_BYTES_MAX: usize = 200;

impl Desk {
    /// The result of a tool. Without a key, the same result twice is one.
    pub async fn result(
        &self,
        tenant: Option<&str>,
        turn: EntityId,
        said: ToolResult,
        key: Option<&str>,
    ) -> Result<Answer, DeskError> {
        words(said.by.as_deref(), None)?;
        let body = json!(said);
        fits("the result", "result", &body)?;
        let (head, state) = self.turn(tenant, turn).await?;
        // The same words about another call are another result: ids of models repeat. Under the same key they are not,
        // whatever has happened since they were said first.
        let (wait, call) = (said.wait.as_deref(), said.tool_call_id.as_deref());
        let suspended = head.status.name() == SUSPENDED;
        let found = find(&state, suspended, wait, call, said.turn_epoch);
        let kind = match (wait, &found) {
            _ if key.is_some() => "result".to_owned(),
            (Some(named), _) => format!("result/{named}"),
            (None, Match::Open(wait)) => format!("result/{}", wait.id),
            (None, _) => format!("result/{}", state.turn_epoch),
        };
        let is_used = |c: &str| state.done_calls.iter().any(|done| done == c);
        let says_too_little = wait.is_none() && said.turn_epoch.is_none() && key.is_none();
        if says_too_little && matches!(found, Match::Open(_)) && call.is_some_and(is_used) {
            let why = "an earlier call of this turn had the same id, and this may be its result, sent again; name the wait or the turn_epoch, or send an Idempotency-Key";
            return Err(useless(&state, "ambiguous_call", why));
        }
        let id = mail_id(&kind, key, &body)?;
        if head.class() == Class::Final {
            return Err(self.too_late(&head, &id, said.by.clone(), &body).await?);
        }
        let outcome = self.foresee(&head, &state, &said)?;
        match self.say(turn, kinds::TOOL_RESULT, id.clone(), &body, outcome).await {
            // It ended between the look and the word.
            Err(DeskError::TurnOver { .. }) => {
                Err(self.too_late(&head, &id, said.by.clone(), &body).await?)
            }
            answered => answered,
        }
    }

    /// What will become of a result, as the head says; a refusal where it could only be buried.
    fn foresee(
        &self,
        head: &Head,
        state: &TurnState,
        said: &ToolResult,
    ) -> Result<Outcome, DeskError> {
        let status = head.status.name();
        let (wait, call) = (said.wait.as_deref(), said.tool_call_id.as_deref());
        match find(state, status == SUSPENDED, wait, call, said.turn_epoch) {
            Match::Open(_) => Ok(Outcome::Accepted),
            Match::Over(_) => Ok(Outcome::TooLate),
            Match::Early if status == QUEUED => {
                Err(useless(state, "unknown_call", "the turn has not begun"))
            }
            Match::Early if state.early.len() >= limits::EARLY_MAX => {
                let why = "too many results came before their calls";
                Err(useless(state, "too_many_early", why))
            }
            // The same again is known by its id; anything else is a dead letter, which a person can still use.
            Match::Early if call.is_some_and(|c| state.early.iter().any(|e| e == c)) => {
                Ok(Outcome::TooLate)
            }
            Match::Early => Ok(Outcome::Kept),
            Match::Dead(code, why) => Err(useless(state, code, &why)),
        }
    }

    /// A tool is still at it.
    pub async fn progress(
        &self,
        tenant: Option<&str>,
        turn: EntityId,
        said: Progress,
        key: Option<&str>,
    ) -> Result<Answer, DeskError> {
        let body = json!(said);
        fits("the progress", "note", &body)?;
        let (head, state) = self.turn(tenant, turn).await?;
        if head.class() == Class::Final {
            return Err(over(&head, false));
        }
        let status = head.status.name();
        let (wait, call) = (said.wait.as_deref(), said.tool_call_id.as_deref());
        let outcome = match find(&state, status == SUSPENDED, wait, call, said.turn_epoch) {
            Match::Open(_) => Outcome::Accepted,
            Match::Over(_) | Match::Early => Outcome::TooLate,
            Match::Dead(code, why) => return Err(useless(&state, code, &why)),
        };
        // Said twice it is two signs of life, unless the sender says otherwise.
        let id = match key {
            Some(_) => mail_id("progress", key, &body)?,
            None => format!("progress/{:016x}", self.pipeline.rt().random()),
        };
        self.say(turn, kinds::PROGRESS, id, &body, outcome).await
    }

    /// Ends a turn; one that waits in line is taken back.
    pub async fn stop(
        &self,
        tenant: Option<&str>,
        turn: EntityId,
        said: Stop,
    ) -> Result<Answer, DeskError> {
        words(said.by.as_deref(), said.why.as_deref())?;
        let (head, state) = self.turn(tenant, turn).await?;
        if head.class() == Class::Final {
            return Err(over(&head, false));
        }
        if let Some(told) = said.turn_epoch.filter(|told| *told > state.turn_epoch) {
            let why =
                format!("it names turn_epoch {told}, and the turn is at {}", state.turn_epoch);
            return Err(useless(&state, "epoch_from_the_future", &why));
        }
        self.say(turn, kinds::STOP, "stop".to_owned(), &json!(said), Outcome::Accepted).await
    }

    /// A person ends a turn, with a deliverable or without one.
    pub async fn force_finish(
        &self,
        tenant: Option<&str>,
        turn: EntityId,
        said: ForceFinish,
    ) -> Result<Answer, DeskError> {
        words(said.by.as_deref(), said.why.as_deref())?;
        if !matches!(said.status, EndStatus::Success | EndStatus::Partial | EndStatus::Failed) {
            return Err(DeskError::Bad {
                field: "status",
                why: format!("a person does not end a turn as {}", said.status.name()),
                fix: "use success, partial or failed",
            });
        }
        let body = json!(said);
        fits("the deliverable", "deliverable", &body)?;
        let (head, _) = self.turn(tenant, turn).await?;
        if head.class() == Class::Final {
            return Err(over(&head, false));
        }
        if head.status.name() == QUEUED && said.status != EndStatus::Failed {
            return Err(not_now(&head, "it has not begun, so it can not have delivered"));
        }
        let id = mail_id("force_finish", None, &body)?;
        self.say(turn, kinds::FORCE_FINISH, id, &body, Outcome::Accepted).await
    }

    /// A person does not want to wait any longer, for one wait or for all.
    pub async fn resume_now(
        &self,
        tenant: Option<&str>,
        turn: EntityId,
        said: ResumeNow,
    ) -> Result<Answer, DeskError> {
        words(said.by.as_deref(), said.why.as_deref())?;
        let (head, state) = self.turn(tenant, turn).await?;
        if head.class() == Class::Final {
            return Err(over(&head, false));
        }
        if head.status.name() != SUSPENDED {
            return Err(not_now(&head, "only a suspended turn waits for something"));
        }
        if let Some(wait) = said.wait.as_ref().filter(|w| state.waits.iter().all(|x| x.id != **w)) {
            let why = format!("no wait {wait:?} is open");
            return Err(useless(&state, "unknown_call", &why));
        }
        // Asked again after the turn was suspended anew it is another ask.
        let wait = said.wait.as_deref().unwrap_or("all");
        let id = format!("resume_now/{wait}/{}", state.turn_epoch);
        self.say(turn, kinds::RESUME_NOW, id, &json!(said), Outcome::Accepted).await
    }

    /// Mail to a turn.
    pub(super) async fn say(
        &self,
        turn: EntityId,
        kind: &'static str,
        id: String,
        body: &Value,
        outcome: Outcome,
    ) -> Result<Answer, DeskError> {
        let item = id.clone();
        let body = Body::json(body);
        let mail = NewMail { to: turn, id: MailId(id), kind: kind.into(), body };
        let outcome = match self.pipeline.mail(mail).await? {
            MailAnswer::Accepted { .. } => outcome,
            MailAnswer::Duplicate => Outcome::Already,
            MailAnswer::Final { status } => {
                return Err(DeskError::TurnOver { turn, status: status.to_owned(), kept: false });
            }
            MailAnswer::Unknown => return Err(DeskError::NoTurn(turn)),
            MailAnswer::Refused(why) => return Err(StoreError::Refused(why.to_string()).into()),
        };
        Ok(Answer { turn, outcome, item })
    }

    /// A result for a turn that is over is kept beside its history.
    async fn too_late(
        &self,
        head: &Head,
        item: &str,
        by: Option<String>,
        body: &Value,
    ) -> Result<DeskError, DeskError> {
        self.testify(head, item, by, body).await?;
        Ok(over(head, true))
    }

    /// Evidence beside the history of a turn. Whether it is new.
    pub(super) async fn testify(
        &self,
        head: &Head,
        key: &str,
        by: Option<String>,
        body: &Value,
    ) -> Result<bool, DeskError> {
        let evidence = NewEvidence {
            entity: head.id,
            key: kernel_limits::clip(key, kernel_limits::EVIDENCE_KEY_BYTES_MAX).to_owned(),
            epoch: head.epoch,
            call: 0,
            who: by.unwrap_or_default(),
            body: Body::json(body),
        };
        match self.pipeline.evidence(evidence).await? {
            EvidenceAnswer::Recorded { .. } => Ok(true),
            EvidenceAnswer::Duplicate => Ok(false),
            EvidenceAnswer::Unknown => Err(DeskError::NoTurn(head.id)),
            EvidenceAnswer::Refused(why) => Err(StoreError::Refused(why.to_string()).into()),
        }
    }
}

pub(super) fn fits(what: &'static str, field: &'static str, body: &Value) -> Result<(), DeskError> {
    within(what, field, "RESULT_BYTES_MAX", body, limits::RESULT_BYTES_MAX)
}

pub(super) fn over(head: &Head, kept: bool) -> DeskError {
    DeskError::TurnOver { turn: head.id, status: head.status.name().to_owned(), kept }
}

pub(super) fn not_now(head: &Head, why: &'static str) -> DeskError {
    DeskError::NotNow { turn: head.id, status: shown(head.status.name()).to_owned(), why }
}

/// `ready` is `running` without a worker; people read it so.
fn shown(status: &str) -> &str {
    if status == crate::turn::table::READY { "running" } else { status }
}

pub(super) fn useless(state: &TurnState, code: &str, why: &str) -> DeskError {
    let open = state.waits.iter().map(|w| w.id.clone()).collect();
    DeskError::Useless { code: code.to_owned(), why: why.to_owned(), open }
}

/// The caller's key, or what is said itself.
fn mail_id(kind: &str, key: Option<&str>, body: &Value) -> Result<String, DeskError> {
    super::label("Idempotency-Key", key, KEY_BYTES_MAX)?;
    Ok(match key {
        Some(key) => format!("{kind}/key/{key}"),
        None => format!("{kind}/{}", canonical::short_digest(body)),
    })
}
