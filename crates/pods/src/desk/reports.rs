//! What collectors saw, many reports at once: one batch of the store for all of them. A report is mail, so an answer other
//! than an error means that it is durable, or never will be accepted. Reports about one task stay in order.
//!
//! A pod of a task that nobody ordered here is no error: others run tasks too, and want to know how they end. The task
//! is taken in: nothing is made for it and it is never retried, its end is only told.

use super::{Desk, DeskError, order::Birthed, state_of};
use crate::{
    namespaces::NOBODYS,
    report::{POD_REPORT, Report},
    task::{NewTask, RetryPolicy, Task, model::Ended},
};
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Mutex, PoisonError},
};
use tenure_kernel::{
    ids::EntityId,
    limits as kernel_limits,
    machine::Machine as _,
    mail::{MailAnswer, NewMail},
    stream::Body,
};

/// The beginning of the keys of evidence that fills in details after the end of a task.
pub const LATE: &str = "late/";

/// Length of a pod's uid. Kubernetes' own have 36 characters.
const UID_BYTES_MAX: usize = 128;

/// Who reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reporter {
    /// Only about tasks of this tenant; `None`: about anybody's.
    pub tenant: Option<String>,
}

/// What became of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportOutcome {
    /// Durable; the task follows it.
    Accepted,
    /// It was told before.
    Duplicate,
    /// The task is over; details that it lacked are kept beside its history.
    Final,
    /// Durable; the task was not known and is now.
    Adopted,
    /// It will never be accepted like this.
    Refused,
}

/// What became of a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportAnswer {
    /// See [`Report::key`]; empty for what could not be read.
    pub key: String,
    /// What became of it.
    pub outcome: ReportOutcome,
    /// Why it was not accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl ReportAnswer {
    /// An answer with its reason.
    pub fn refused(key: String, why: impl Into<String>) -> Self {
        ReportAnswer { key, outcome: ReportOutcome::Refused, why: Some(why.into()) }
    }
}

/// Whose tasks are known to be theirs. That never changes while a task exists, so it needs to be read once.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<HashMap<EntityId, Whose>>);

/// Whose a task is.
#[derive(Clone, Debug)]
struct Whose {
    tenant: String,
    /// An executor of ours makes its pods, and writes on them whose they are.
    tended: bool,
}

/// Tasks that are remembered.
const KNOWN_MAX: usize = 65_536;

impl Known {
    fn get(&self, id: EntityId) -> Option<Whose> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    fn learn(&self, id: EntityId, whose: &Whose) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(id, whose.clone());
    }

    fn forget(&self, id: EntityId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }
}

/// What a batch knows about a task before it mails.
#[derive(Clone)]
enum Footing {
    /// It exists, and is this tenant's.
    Of(Whose),
    /// It was taken in just now.
    Adopted(Whose),
    /// Nothing can be said to it.
    Not(String),
}

impl Desk {
    /// Takes reports, and answers each, in order.
    pub async fn report(
        &self,
        reports: &[Report],
        from: &Reporter,
    ) -> Result<Vec<ReportAnswer>, DeskError> {
        let checked: Vec<Option<String>> = reports.iter().map(problem).collect();
        let good = || reports.iter().zip(&checked).filter(|(_, p)| p.is_none()).map(|(r, _)| r);
        let firsts = good().fold(BTreeMap::new(), |mut firsts: BTreeMap<_, &Report>, r| {
            firsts.entry(r.task()).or_insert(r);
            firsts
        });
        let footings = firsts.iter().map(|(id, first)| self.footing(*id, first, from));
        let footings = join_all(footings).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        let footings: BTreeMap<EntityId, Footing> = firsts.into_keys().zip(footings).collect();
        let mut told = BTreeSet::new();
        let mut sending = Vec::with_capacity(reports.len());
        for (report, bad) in reports.iter().zip(checked) {
            let footing = match bad {
                Some(why) => Footing::Not(why),
                None => match footings.get(&report.task()) {
                    Some(Footing::Adopted(t)) if !told.insert(report.task()) => {
                        Footing::Of(t.clone())
                    }
                    Some(footing) => footing.clone(),
                    None => Footing::Not("nothing is known about its task".to_owned()),
                },
            };
            sending.push(self.tell(report, footing, from, true));
        }
        // Polled in their order, so reports about one task are mailed in theirs.
        join_all(sending).await.into_iter().collect()
    }

    /// Takes one report that may name no pod. What stands behind it is looked at by whoever calls.
    pub(super) async fn report_unnamed(
        &self,
        report: &Report,
        from: &Reporter,
    ) -> Result<ReportAnswer, DeskError> {
        if let Some(why) = texts(report) {
            return Ok(ReportAnswer::refused(report.key(), why));
        }
        let footing = self.footing(report.task(), report, from).await?;
        self.tell(report, footing, from, false).await
    }

    /// What can be said to a task.
    async fn footing(
        &self,
        id: EntityId,
        first: &Report,
        from: &Reporter,
    ) -> Result<Footing, DeskError> {
        if let Some(whose) = self.known.get(id) {
            return Ok(Footing::Of(whose));
        }
        match self.pipeline.store().head(id).await? {
            Some(head) if head.kind() == Task::TABLE.kind => {
                let tended = !state_of::<Task>(&head)?.external;
                let whose = Whose { tenant: head.tenant, tended };
                self.known.learn(id, &whose);
                Ok(Footing::Of(whose))
            }
            Some(_) => Ok(Footing::Not(format!("{id} is no task"))),
            None if !self.defaults.adopt_unknown => {
                Ok(Footing::Not(format!("there is no task {:?}", first.task_id)))
            }
            None => self.adopt(id, first, from).await,
        }
    }

    async fn adopt(
        &self,
        id: EntityId,
        first: &Report,
        from: &Reporter,
    ) -> Result<Footing, DeskError> {
        if let Err(e) = super::order::chosen(&first.task_id) {
            return Ok(Footing::Not(e.to_string()));
        }
        let tenant = match (&from.tenant, first.tenant_id.as_str()) {
            (Some(mine), "") => mine.clone(),
            (Some(mine), theirs) if mine != theirs => {
                return Ok(Footing::Not(not_yours(theirs)));
            }
            (_, "") => NOBODYS.to_owned(),
            (_, theirs) => theirs.to_owned(),
        };
        if tenant.len() > kernel_limits::NAME_BYTES_MAX {
            let max = kernel_limits::NAME_BYTES_MAX;
            return Ok(Footing::Not(format!("tenant_id is longer than {max} bytes")));
        }
        let parsed: Option<EntityId> = first.task_id.parse().ok();
        let must_end_in = self.defaults.must_end_in.as_millis();
        let new = NewTask {
            workflow_id: first.workflow_id.clone(),
            tenant_id: tenant.clone(),
            label: Some(first.task_id.clone()).filter(|_| parsed.is_none()),
            retry: RetryPolicy::never(),
            times: self.defaults.times,
            must_end_in_ms: u64::try_from(must_end_in).unwrap_or(u64::MAX),
            ..NewTask::default()
        };
        let at = self.pipeline.store().now().await?;
        // Its task may have been here, and retired. What ended so long ago is nobody's news.
        let old = self.defaults.kept_for.zip(first.verdict.since);
        if first.verdict.is_final() && old.is_some_and(|(kept, since)| at.since(since) > kept) {
            let why = "it ended longer ago than tasks are kept (server.retention_days)";
            return Ok(Footing::Not(why.to_owned()));
        }
        let whose = Whose { tenant: tenant.clone(), tended: false };
        match self.give_birth(id, &tenant, at, &new, None).await? {
            Birthed::Born => {
                self.known.learn(id, &whose);
                Ok(Footing::Adopted(whose))
            }
            // Another server was faster.
            Birthed::Same(_) | Birthed::Other(_) => match self.pipeline.store().head(id).await? {
                Some(head) if head.kind() == Task::TABLE.kind => {
                    let tended = !state_of::<Task>(&head)?.external;
                    Ok(Footing::Of(Whose { tenant: head.tenant, tended }))
                }
                _ => Ok(Footing::Not(format!("{id} is no task"))),
            },
        }
    }

    async fn tell(
        &self,
        report: &Report,
        footing: Footing,
        from: &Reporter,
        strict: bool,
    ) -> Result<ReportAnswer, DeskError> {
        let (key, id) = (report.key(), report.task());
        let (Whose { tenant, tended }, outcome) = match footing {
            Footing::Of(whose) => (whose, ReportOutcome::Accepted),
            Footing::Adopted(whose) => (whose, ReportOutcome::Adopted),
            Footing::Not(why) => return Ok(ReportAnswer::refused(key, why)),
        };
        let theirs = from.tenant.as_ref().is_some_and(|mine| *mine != tenant);
        // What stands on a pod is what its maker wrote there: a pod can not speak for another tenant's task. And one of ours says
        // whose it is, so one that does not is not ours.
        let unsaid = report.tenant_id.is_empty() && !(tended && strict);
        if theirs || !(unsaid || report.tenant_id == tenant) {
            let why = if theirs { not_yours(&report.tenant_id) } else { mislabelled(report) };
            return Ok(ReportAnswer::refused(key, why));
        }
        let mail = NewMail {
            to: id,
            id: report.mail_id(),
            kind: POD_REPORT.into(),
            body: Body::json(report),
        };
        let answer = self.pipeline.gathering().mail(mail).await?;
        let said = |outcome, why: Option<String>| ReportAnswer { key, outcome, why };
        Ok(match answer {
            MailAnswer::Accepted { .. } => said(outcome, None),
            MailAnswer::Duplicate => said(ReportOutcome::Duplicate, None),
            MailAnswer::Final { status } => {
                self.late(id, report).await?;
                said(ReportOutcome::Final, Some(format!("the task is {status}")))
            }
            MailAnswer::Unknown => {
                // It was here a moment ago: retention has taken it. Nothing is left to be told.
                self.known.forget(id);
                said(ReportOutcome::Refused, Some("the task is no longer kept".to_owned()))
            }
            MailAnswer::Refused(why) => said(ReportOutcome::Refused, Some(why.to_string())),
        })
    }

    /// Details about the end of a task that came after it. Each is kept once, beside the history.
    async fn late(&self, id: EntityId, report: &Report) -> Result<(), DeskError> {
        let Some(head) = self.pipeline.store().head(id).await? else { return Ok(()) };
        let state = state_of::<Task>(&head)?;
        let late = Ended::from(&report.verdict);
        let Some(ended) = &state.ended else { return Ok(()) };
        let same_pod = state.pod.as_ref().is_some_and(|p| p.uid == report.pod.uid);
        if !same_pod || late.status != ended.status {
            return Ok(());
        }
        let uid = &report.pod.uid;
        let mut details = Vec::new();
        if let (None, Some(code)) = (ended.exit_code, late.exit_code) {
            details.push(("exit_code", json!({ "exit_code": code, "signal": late.signal })));
        }
        if ended.message.is_empty() && !late.message.is_empty() {
            details.push(("message", json!({ "message": late.message })));
        }
        if ended.reason.is_empty() && !late.reason.is_empty() {
            details.push(("reason", json!({ "reason": late.reason })));
        }
        for (name, body) in details {
            let key = format!("{LATE}{uid}/{name}");
            self.testify(&head, &key, Some(&report.collector), &body).await?;
        }
        Ok(())
    }
}

fn not_yours(tenant: &str) -> String {
    match tenant {
        "" => "the task is not of your tenant".to_owned(),
        tenant => format!("the task is of tenant {tenant:?}, and your key is of another"),
    }
}

fn mislabelled(report: &Report) -> String {
    let (task, tenant) = (&report.task_id, &report.tenant_id);
    format!("the pod says that it is of tenant {tenant:?}, and task {task:?} is of another")
}

/// What is wrong with the texts of a report.
fn texts(report: &Report) -> Option<String> {
    let max = crate::task::model::limits::NAME_BYTES_MAX;
    let texts = [
        ("task_id", &report.task_id),
        ("workflow_id", &report.workflow_id),
        ("tenant_id", &report.tenant_id),
    ];
    for (field, text) in texts {
        if text.len() > max || text.chars().any(char::is_control) {
            return Some(format!("{field} is longer than {max} bytes, or no text"));
        }
    }
    if report.task_id.is_empty() {
        return Some("task_id is empty".to_owned());
    }
    if report.pod.uid.len() > UID_BYTES_MAX {
        return Some(format!("pod.uid is longer than {UID_BYTES_MAX} bytes"));
    }
    None
}

/// What is wrong with a report.
fn problem(report: &Report) -> Option<String> {
    if let Some(why) = texts(report) {
        return Some(why);
    }
    if report.pod.uid.is_empty() {
        return Some("pod.uid is empty: nobody could tell which pod it is about".to_owned());
    }
    if report.verdict.status.is_none() {
        return Some("verdict.status is null: there is nothing to report".to_owned());
    }
    // A number that nobody reaches by counting would leave no room for the next attempt.
    report.attempt.filter(|a| *a > 1_000_000).map(|a| format!("attempt = {a} can not be"))
}
