//! What may be said to an open task by people: end, or do not wait any longer before the next attempt. And about a pod of any task: that
//! its object may be taken away by force.

use super::{Desk, DeskError, state_of, words};
use crate::{
    pod::{ForceAsk, POD_FORCE, Pod},
    task::{
        TaskState,
        decide::{RETRY_NOW, RetryNow},
        model::{CancelAsk, tended_id},
        table::RETRYING,
    },
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tenure_kernel::{
    error::StoreError,
    head::Head,
    ids::{EntityId, MailId},
    machine::Machine as _,
    mail::{MailAnswer, NewMail, kinds},
    stream::Body,
    table::Class,
};

/// The key of the evidence that somebody had the pod of a task that was over taken away by force; the attempt follows.
pub const FORCE: &str = "force/";

/// What became of an ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Durable; the task follows it.
    Accepted,
    /// It was asked before; nothing changed.
    Already,
}

/// The answer to an ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Which task.
    pub task: EntityId,
    /// What became of it.
    pub outcome: Outcome,
}

impl Desk {
    /// Ends a task. Its pod is marked, then stopped; the task is CANCELED when the pod is over, or when the time for
    /// that is up.
    pub async fn cancel(
        &self,
        tenant: Option<&str>,
        task: EntityId,
        ask: CancelAsk,
    ) -> Result<Answer, DeskError> {
        words(ask.by.as_deref(), ask.why.as_deref())?;
        let (head, state) = self.open(tenant, task).await?;
        if state.cancel.is_some() {
            return Ok(Answer { task: head.id, outcome: Outcome::Already });
        }
        self.say(task, kinds::CANCEL, "cancel".to_owned(), Body::json(&ask)).await
    }

    /// The next attempt begins without the rest of its pause, if the tenant's budget has room. With `fenced` a person
    /// vouches for it that the lost pod does not run any more.
    pub async fn retry_now(
        &self,
        tenant: Option<&str>,
        task: EntityId,
        now: RetryNow,
    ) -> Result<Answer, DeskError> {
        words(now.by.as_deref(), None)?;
        let (head, state) = self.open(tenant, task).await?;
        if let Some((why, fix)) = waits_for_no_person(&head, &state, &now) {
            let status = head.status.name().to_owned();
            return Err(DeskError::NotNow { task, status, why: why.to_owned(), fix });
        }
        // Asked again where nothing has moved since it is the same ask.
        let TaskState { attempt, asked, deferred, .. } = state;
        let id = format!("retry_now/{attempt}/{asked}/{deferred}/{}", u8::from(now.fenced));
        self.say(task, RETRY_NOW, id, Body::json(&now)).await
    }

    /// Lets the executor take away the object of a pod that was told to go and does not, because its node does not answer. It
    /// proves nothing about the containers, so nothing follows for the task but that nobody will hear of this pod again: whether
    /// they have ended a person has to see (`retry` with `fenced`).
    pub async fn force_delete(
        &self,
        tenant: Option<&str>,
        task: EntityId,
        attempt: Option<u32>,
        ask: ForceAsk,
    ) -> Result<Answer, DeskError> {
        words(ask.by.as_deref(), Some(&ask.why))?;
        if ask.why.trim().is_empty() {
            let fix = "say in `why` how you know that it may go, for whoever reads the history";
            return Err(DeskError::bad("why", "a reason is needed", fix));
        }
        let (head, state) = self.task(tenant, task).await?;
        let attempt = attempt.unwrap_or(state.attempt);
        let pod = tended_id(task, attempt);
        let tended = self.pipeline.store().head(pod).await?.filter(|h| h.kind() == Pod::TABLE.kind);
        if let Some((why, fix)) = can_not_be_forced(&state, attempt, tended.as_ref())? {
            let status = head.status.name().to_owned();
            return Err(DeskError::NotNow { task, status, why, fix });
        }
        let mail = NewMail {
            to: pod,
            id: MailId("force".to_owned()),
            kind: POD_FORCE.into(),
            body: Body::json(&ask),
        };
        let outcome = match self.pipeline.mail(mail).await? {
            MailAnswer::Accepted { .. } => Outcome::Accepted,
            MailAnswer::Duplicate => Outcome::Already,
            MailAnswer::Final { status } => {
                let (why, fix) = no_pod_any_more(attempt, status);
                let status = head.status.name().to_owned();
                return Err(DeskError::NotNow { task, status, why, fix });
            }
            MailAnswer::Unknown => return Err(DeskError::NoTask(task.to_string())),
            MailAnswer::Refused(why) => return Err(StoreError::Refused(why.to_string()).into()),
        };
        // What an open task hears from the executor, one that is over has beside its history.
        if head.class() == Class::Final && outcome == Outcome::Accepted {
            let said = json!({ "by": ask.by, "why": ask.why, "attempt": attempt });
            self.testify(&head, &format!("{FORCE}{attempt}"), ask.by.as_deref(), &said).await?;
        }
        Ok(Answer { task, outcome })
    }

    async fn open(
        &self,
        tenant: Option<&str>,
        task: EntityId,
    ) -> Result<(Head, TaskState), DeskError> {
        let (head, state) = self.task(tenant, task).await?;
        match head.class() == Class::Final {
            true => {
                let status = head.status.name().to_owned();
                Err(DeskError::TaskOver { task, status })
            }
            false => Ok((head, state)),
        }
    }

    async fn say(
        &self,
        task: EntityId,
        kind: &'static str,
        id: String,
        body: Body,
    ) -> Result<Answer, DeskError> {
        let mail = NewMail { to: task, id: MailId(id), kind: kind.into(), body };
        let outcome = match self.pipeline.mail(mail).await? {
            MailAnswer::Accepted { .. } => Outcome::Accepted,
            MailAnswer::Duplicate => Outcome::Already,
            MailAnswer::Final { status } => {
                return Err(DeskError::TaskOver { task, status: status.to_owned() });
            }
            MailAnswer::Unknown => return Err(DeskError::NoTask(task.to_string())),
            MailAnswer::Refused(why) => return Err(StoreError::Refused(why.to_string()).into()),
        };
        Ok(Answer { task, outcome })
    }
}

/// Why there is nothing to take away by force, and what to do instead.
fn can_not_be_forced(
    state: &TaskState,
    attempt: u32,
    tended: Option<&Head>,
) -> Result<Option<(String, &'static str)>, StoreError> {
    if state.external {
        let fix = "take it away where it was made, with `kubectl delete pod --force`";
        return Ok(Some(("its pods are made elsewhere".to_owned(), fix)));
    }
    let Some(head) = tended else {
        let fix = "`show` of the task lists its attempts";
        return Ok(Some((format!("attempt {attempt} has no pod"), fix)));
    };
    if head.class() == Class::Final {
        return Ok(Some(no_pod_any_more(attempt, head.status.name())));
    }
    let goes = state_of::<Pod>(head)?.is_told_to_go();
    Ok((!goes).then(|| {
        let fix = "cancel the task first: its pod is told to end, and has its time for that";
        (format!("the pod of attempt {attempt} was not told to go"), fix)
    }))
}

fn no_pod_any_more(attempt: u32, status: &str) -> (String, &'static str) {
    let fix = "there is nothing to take away; `show` of the task says what became of it";
    (format!("the pod of attempt {attempt} is {status}"), fix)
}

/// Why a retry can not be hastened, and what to do instead.
fn waits_for_no_person(
    head: &Head,
    state: &TaskState,
    now: &RetryNow,
) -> Option<(&'static str, &'static str)> {
    if head.status.name() != RETRYING {
        let fix = "a failed task is replayed as a new one; a running one is cancelled first";
        return Some(("it does not wait for another attempt", fix));
    }
    if state.cancel.is_some() {
        return Some(("it is being cancelled", "wait for its end, then replay it"));
    }
    if state.external {
        let fix = "make its next pod, with the label flowforge.io/attempt one higher";
        return Some(("its pods are made elsewhere", fix));
    }
    if state.in_budget {
        let fix = "`why` of the task says when; raise the budget to make it sooner for others";
        return Some(("the budget has given it a place, and it starts by itself", fix));
    }
    if state.unfenced && !now.fenced {
        let fix = "see that the pod is gone, then ask again with fenced: you vouch for it";
        return Some(("its pod may still run, and it must not run twice", fix));
    }
    None
}
