//! What collectors saw, many reports at once: one batch of the store for all of them. A report is mail, so an answer other
//! than an error means that it is durable, or never will be accepted. Reports about one task stay in order.
//!
//! A pod of a task that nobody ordered here is no error: others run tasks too, and want to know how they end. The task
//! is taken in: nothing is made for it and it is never retried, its end is only told.

use super::{Desk, DeskError, label_beside, order::Birthed, state_of};
use crate::{
    namespaces::NOBODYS,
    report::{POD_REPORT, Report, spelled},
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
    error::StoreError,
    head::Head,
    ids::{EntityId, MailId},
    limits as kernel_limits,
    machine::Machine as _,
    mail::{MailAnswer, NewMail},
    stream::Body,
};

/// The beginning of the keys of evidence that fills in details after the end of a task.
pub const LATE: &str = "late/";

/// How the key of such evidence ends that proves another end than the one on record.
pub const PROOF: &str = "/proof";

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

/// The task behind a tenant and a label. That never changes while the task exists, so it needs to be read once.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<HashMap<Name, Whose>>);

/// The tenant that a pod is said to belong to, and its label. The tenant is empty where nobody says it.
type Name = (String, String);

/// Which task is meant, and whose it is.
#[derive(Clone, Debug)]
struct Whose {
    id: EntityId,
    tenant: String,
    /// An executor of ours makes its pods, and writes on them whose they are.
    tended: bool,
}

/// Tasks that are remembered.
const KNOWN_MAX: usize = 65_536;

impl Known {
    fn get(&self, name: &Name) -> Option<Whose> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// Of a label without a tenant nothing is learned: another tenant may use the same one later.
    fn learn(&self, name: &Name, whose: &Whose) {
        if name.0.is_empty() {
            return;
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(name.clone(), whose.clone());
    }

    fn forget(&self, name: &Name) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
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
            firsts.entry(name_of(r, from)).or_insert(r);
            firsts
        });
        let footings = firsts.iter().map(|(name, first)| self.footing(name, first, from));
        let footings = join_all(footings).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        let footings: BTreeMap<Name, Footing> = firsts.into_keys().zip(footings).collect();
        let mut told = BTreeSet::new();
        let mut sending = Vec::with_capacity(reports.len());
        for (report, bad) in reports.iter().zip(checked) {
            let footing = match bad {
                Some(why) => Footing::Not(why),
                None => match footings.get(&name_of(report, from)) {
                    Some(Footing::Adopted(t)) if !told.insert(t.id) => Footing::Of(t.clone()),
                    Some(footing) => footing.clone(),
                    None => Footing::Not("nothing is known about its task".to_owned()),
                },
            };
            sending.push(self.tell(report, footing, from, true));
        }
        // Polled in their order, so reports about one task are mailed in theirs.
        join_all(sending).await.into_iter().collect()
    }

    /// Takes one report that may name no pod, about this task or, without one, about the task that it names. What stands
    /// behind it is looked at by whoever calls.
    pub(super) async fn report_unnamed(
        &self,
        about: Option<&Head>,
        report: &Report,
        from: &Reporter,
    ) -> Result<ReportAnswer, DeskError> {
        if let Some(why) = texts(report) {
            return Ok(ReportAnswer::refused(report.key(), why));
        }
        let footing = match about {
            Some(head) => Footing::Of(whose(head)?),
            None => self.footing(&name_of(report, from), report, from).await?,
        };
        self.tell(report, footing, from, false).await
    }

    /// What can be said to a task.
    async fn footing(
        &self,
        name: &Name,
        first: &Report,
        from: &Reporter,
    ) -> Result<Footing, DeskError> {
        let (tenant, label) = name;
        if from.tenant.as_ref().is_some_and(|mine| mine != tenant) {
            return Ok(Footing::Not(not_yours(tenant)));
        }
        if let Some(whose) = self.known.get(name) {
            return Ok(Footing::Of(whose));
        }
        let found = match tenant.is_empty() {
            false => self.find(tenant, label).await?,
            true => match self.find(NOBODYS, label).await? {
                Some(head) => Some(head),
                None => {
                    let mut all = self.find_anywhere(label).await?;
                    if all.len() > 1 {
                        let why = format!(
                            "tasks of several tenants have the task_id {label:?}, and the pod does not say whose it is"
                        );
                        return Ok(Footing::Not(why));
                    }
                    all.pop()
                }
            },
        };
        match found {
            Some(head) => {
                let whose = whose(&head)?;
                self.known.learn(name, &whose);
                Ok(Footing::Of(whose))
            }
            None if !self.defaults.adopt_unknown => {
                Ok(Footing::Not(format!("there is no task {:?}", first.task_id)))
            }
            None => self.adopt(name, first, from).await,
        }
    }

    async fn adopt(
        &self,
        name: &Name,
        first: &Report,
        from: &Reporter,
    ) -> Result<Footing, DeskError> {
        let (tenant, label) = name;
        if let Err(e) = super::order::check_label(label) {
            return Ok(Footing::Not(e.to_string()));
        }
        let tenant = if tenant.is_empty() { NOBODYS } else { tenant.as_str() };
        if tenant.len() > kernel_limits::NAME_BYTES_MAX {
            let max = kernel_limits::NAME_BYTES_MAX;
            return Ok(Footing::Not(format!("tenant_id is longer than {max} bytes")));
        }
        let id = self.id_for(tenant, label).await?;
        // A pod that carries the id of something else is no task's, or claims to be another tenant's. Whether the id is
        // taken is nothing that a tenant is told.
        if let (Ok(raw), None) = (label.parse(), &from.tenant)
            && raw != id
            && let Some(head) = self.pipeline.store().head(raw).await?
        {
            let is_task = head.kind() == Task::TABLE.kind;
            let why = if is_task { mislabelled(first) } else { format!("{raw} is no task") };
            return Ok(Footing::Not(why));
        }
        let must_end_in = self.defaults.must_end_in.as_millis();
        let new = NewTask {
            workflow_id: first.workflow_id.clone(),
            tenant_id: tenant.to_owned(),
            label: label_beside(id, label),
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
        match self.give_birth(id, tenant, at, &new, None).await? {
            Birthed::Born => {
                let whose = Whose { id, tenant: tenant.to_owned(), tended: false };
                self.known.learn(name, &whose);
                Ok(Footing::Adopted(whose))
            }
            // Another server was faster.
            Birthed::Same(_) | Birthed::Other(_) => match self.find(tenant, label).await? {
                Some(head) => Ok(Footing::Of(whose(&head)?)),
                None => Ok(Footing::Not(format!("{id} is no task of tenant {tenant:?}"))),
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
        let key = report.key();
        let (Whose { id, tenant, tended }, outcome) = match footing {
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
        // What was only heard never takes the place of what is reported.
        let mail_id = match strict {
            true => report.mail_id(),
            false => MailId(format!("hint/{key}")),
        };
        let mail =
            NewMail { to: id, id: mail_id, kind: POD_REPORT.into(), body: Body::json(report) };
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
                self.known.forget(&name_of(report, from));
                said(ReportOutcome::Refused, Some("the task is no longer kept".to_owned()))
            }
            MailAnswer::Refused(why) => said(ReportOutcome::Refused, Some(why.to_string())),
        })
    }

    /// What was said about the end of a task after it: details that it lacked, and proof that it was another one. The status stays;
    /// each is kept once, beside the history, where `show` and `why` find it.
    async fn late(&self, id: EntityId, report: &Report) -> Result<(), DeskError> {
        let Some(head) = self.pipeline.store().head(id).await? else { return Ok(()) };
        let state = state_of::<Task>(&head)?;
        let late = Ended::from(&report.verdict);
        let Some(ended) = &state.ended else { return Ok(()) };
        let same_pod = state.pod.as_ref().is_some_and(|p| p.uid == report.pod.uid);
        if !same_pod || !report.verdict.is_final() {
            return Ok(());
        }
        let uid = &report.pod.uid;
        if report.is_proof() && ended.differs(&late) {
            let key = format!("{LATE}{uid}{PROOF}");
            let body = serde_json::to_value(&late).unwrap_or_default();
            self.testify(&head, &key, Some(&report.collector), &body).await?;
        }
        if late.status != ended.status {
            return Ok(());
        }
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

/// Which task a report names, as far as it and its reporter say.
fn name_of(report: &Report, from: &Reporter) -> Name {
    let said = Some(report.tenant_id.as_str()).filter(|t| !t.is_empty());
    let tenant = said.or(from.tenant.as_deref()).unwrap_or_default();
    (tenant.to_owned(), spelled(&report.task_id))
}

fn whose(head: &Head) -> Result<Whose, StoreError> {
    let tended = !state_of::<Task>(head)?.external;
    Ok(Whose { id: head.id, tenant: head.tenant.clone(), tended })
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
