//! Where a task stands, from its head and that of its pod.

use crate::{
    desk::{
        HINT_RULE,
        reports::{LATE, PROOF},
        state_of,
    },
    pod::{Pod, PodState},
    report::PodName,
    task::{
        Task, TaskState,
        decide::{label_of, timers},
        model::{CancelAsk, Ended},
        policy::{NoRetry, Tally},
        table::{self, RETRYING},
    },
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tenure_kernel::{
    error::StoreError, evidence::Evidence, head::Head, ids::EntityId, machine::Machine as _,
    store::Store, table::Class, time::Timestamp,
};

/// Where a task stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskView {
    /// Which task.
    pub id: EntityId,
    /// The text by which pods name it: its id, unless it was ordered under another.
    pub task_id: String,
    /// For people.
    pub name: String,
    /// What it belongs to.
    pub workflow_id: String,
    /// Whose it is.
    pub tenant: String,
    /// `PENDING`, `QUEUED`, `RUNNING`, `RETRYING`, `SUCCEEDED`, `FAILED` or `CANCELED`.
    pub status: String,
    /// It has ended.
    pub is_final: bool,
    /// Its pods are made elsewhere, and only watched.
    pub external: bool,
    /// Which executors take it; empty for the default ones.
    pub cluster: String,
    /// Where its pods are made, where it says so.
    pub namespace: Option<String>,
    /// Which attempt it is at; 0 before the first.
    pub attempt: u32,
    /// Attempts in all that it may have.
    pub attempts_max: u32,
    /// The pod of the attempt, once it is known.
    pub pod: Option<PodName>,
    /// Since when its main container runs, by the pod.
    pub running_since: Option<Timestamp>,
    /// How the last attempt that is over ended: status, cause, class, exit code, message, the rule that said so.
    pub ended: Option<Ended>,
    /// What somebody who saw its pod said about its end when another end was on record already. The status stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<Proof>,
    /// How the attempt seems to have ended, while somebody who saw its pod is waited for (rule `task_witness`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inferred: Option<Ended>,
    /// The pod of the ended attempt may still run.
    pub pod_may_run: bool,
    /// What the next attempt waits for: `pause`, `old_pod`, `budget`, `start` (the budget has a place) or `other_pod` (made
    /// elsewhere).
    pub waits_for: Option<String>,
    /// How often the tenant's budget had no room for the next attempt.
    pub deferred: u32,
    /// Failed attempts by class.
    pub failed: Tally,
    /// Why there was no further attempt.
    pub no_retry: Option<NoRetry>,
    /// Who wants it to end.
    pub cancel: Option<CancelAsk>,
    /// What its container wrote, if it ended well.
    pub result: Option<String>,
    /// Which task it repeats.
    pub retry_of: Option<EntityId>,
    /// When it was ordered.
    pub created_at: Timestamp,
    /// When it changed last.
    pub changed_at: Timestamp,
    /// When it ends, whatever happens.
    pub must_end_by: Option<Timestamp>,
    /// Rules whose clocks run, the next first.
    pub next_rules: Vec<NextRule>,
    /// Mail that nobody has read yet.
    pub mail_unread: u64,
    /// How the executor's part stands; not of a task whose pods are made elsewhere.
    pub tended: Option<PodLook>,
    /// Why the kernel wants a person to look: decisions about it fail.
    pub fault: Option<String>,
}

/// What was proven about an end after it was on record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Proof {
    /// How the pod ended.
    pub ended: Ended,
    /// Who saw it.
    pub by: String,
    /// When it was said.
    pub at: Timestamp,
}

/// The attempt's pod as an executor's work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PodLook {
    /// The entity.
    pub id: EntityId,
    /// `wanted`, `tended`, `kept`, or how it ended.
    pub status: String,
    /// The executor that has it.
    pub executor: Option<String>,
    /// Namespace and name under which it is made, once that is on record.
    pub name: Option<String>,
    /// It exists, or did.
    pub made: bool,
    /// Nothing of it runs any more.
    pub over: bool,
    /// It was told to go, and is not gone.
    #[serde(default)]
    pub told_to_go: bool,
    /// Somebody wants it to be taken away by force.
    #[serde(default)]
    pub force_asked: bool,
    /// What it waits for, in one word: `quota`, `forbidden`, `service_account`, `webhook`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    /// The same in the cluster's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_why: Option<String>,
    /// What the API server warned of when it took the pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Bytes of its log that are kept.
    pub log_bytes: u64,
    /// The queue in which executors look for it.
    pub queue: String,
}

/// A rule whose clock runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NextRule {
    /// Its name.
    pub rule: String,
    /// When it is looked at.
    pub at: Timestamp,
}

/// From the head alone.
pub fn from_head(head: &Head, state: TaskState) -> TaskView {
    let is_final = head.class() == Class::Final;
    let mut next_rules: Vec<NextRule> = head
        .timers
        .iter()
        .filter(|_| !is_final)
        .map(|t| NextRule { rule: crate::rules::rule_of(&t.name).to_owned(), at: t.at })
        .collect();
    let bound = head.must_end_by.filter(|_| !is_final);
    next_rules.extend(bound.map(|at| NextRule { rule: "must_end_by".to_owned(), at }));
    next_rules.sort_by_key(|r| r.at);
    TaskView {
        id: head.id,
        task_id: label_of(head.id, &state),
        tenant: head.tenant.clone(),
        status: head.status.name().to_owned(),
        is_final,
        attempts_max: state.retry.attempts,
        waits_for: waits_for(head.status.name(), &state, &next_rules).map(str::to_owned),
        pod_may_run: state.unfenced,
        proof: None,
        inferred: state.inferred.map(|i| i.ended),
        created_at: head.created_at,
        changed_at: head.changed_at,
        must_end_by: head.must_end_by,
        next_rules,
        mail_unread: head.mail_count.saturating_sub(head.mail_read),
        tended: None,
        fault: head.attention.clone(),
        name: state.name,
        workflow_id: state.workflow_id,
        external: state.external,
        cluster: state.cluster,
        namespace: state.namespace,
        attempt: state.attempt,
        pod: state.pod,
        running_since: state.running_since,
        ended: state.ended,
        deferred: state.deferred,
        failed: state.tally,
        no_retry: state.no_retry,
        cancel: state.cancel,
        result: state.result,
        retry_of: state.retry_of,
    }
}

fn waits_for(status: &str, state: &TaskState, rules: &[NextRule]) -> Option<&'static str> {
    if status != RETRYING || state.cancel.is_some() {
        return None;
    }
    let pausing = !state.pause_over && rules.iter().any(|r| r.rule == rule(timers::RETRY));
    Some(match () {
        () if state.in_budget => "start",
        // Neither a pause nor the end of the old pod holds back what is made elsewhere.
        () if state.external => "other_pod",
        () if pausing => "pause",
        () if state.unfenced => "old_pod",
        () => "budget",
    })
}

fn rule(timer: &str) -> &str {
    crate::rules::rule_of(timer)
}

/// Where a task stands, and how its executor's part does.
pub async fn task_view(store: &Arc<dyn Store>, head: &Head) -> Result<TaskView, StoreError> {
    let state = state_of::<Task>(head)?;
    let tended = state.tended;
    let mut view = from_head(head, state);
    let shown = !view.is_final || view.status == table::FAILED;
    if let Some(id) = tended.filter(|_| shown) {
        view.tended = pod_look(store, id).await?;
    }
    // An end that a container proved by its exit code is not disproved.
    let unproven = |e: &Ended| e.exit_code.is_none() || e.rule == HINT_RULE;
    if view.is_final && view.ended.as_ref().is_some_and(unproven) {
        view.proof = store.evidence(head.id).await?.iter().find_map(proof_in);
    }
    Ok(view)
}

/// The proof of another end, if this evidence is one.
pub(super) fn proof_in(evidence: &Evidence) -> Option<Proof> {
    let key = &evidence.said.key;
    if !(key.starts_with(LATE) && key.ends_with(PROOF)) {
        return None;
    }
    let ended = tenure_kernel::stored::from_slice(evidence.said.body.inline()?).ok()?;
    Some(Proof { ended, by: evidence.said.who.clone(), at: evidence.at })
}

/// An attempt's pod as an executor's work; `None` before its creation has been carried out.
pub async fn pod_look(store: &Arc<dyn Store>, id: EntityId) -> Result<Option<PodLook>, StoreError> {
    let Some(head) = store.head(id).await?.filter(|h| h.kind() == Pod::TABLE.kind) else {
        return Ok(None);
    };
    let state: PodState = state_of::<Pod>(&head)?;
    let executor = match head.holder {
        Some(session) => {
            let row = store.session(session).await?;
            Some(row.map_or_else(|| session.to_string(), |row| row.name))
        }
        None => None,
    };
    let (waits_for, waits_why) = state.waits.clone().filter(|_| !state.over).unzip();
    Ok(Some(PodLook {
        id,
        status: head.status.name().to_owned(),
        executor,
        name: state.begun.as_ref().map(|b| format!("{}/{}", b.namespace, b.name)),
        made: state.uid.is_some(),
        over: state.over,
        told_to_go: head.class() != Class::Final && state.is_told_to_go(),
        force_asked: state.force.is_some(),
        waits_for,
        waits_why,
        warnings: state.warnings.clone(),
        log_bytes: state.log_bytes,
        queue: head.queue.clone(),
    }))
}
