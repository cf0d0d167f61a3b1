//! What a collector says about a pod, and how labels name a task.
//!
//! A report is mail to the task, so it is durable once it is accepted, and idempotent by its key: pod, attempt, state
//! and the moment of the transition. Whoever sees the same thing (a second collector, the executor, a restart, a list
//! after a watch) says it under the same key, and it is told once.

use crate::verdict::{Cause, Verdict};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tenure_kernel::{
    ids::{EntityId, MailId},
    time::Timestamp,
};

/// The kind of the mail that carries a [`Report`].
pub const POD_REPORT: &str = "pod_report";

/// Names of labels and annotations, as FlowForge has them; the last three are ours.
pub mod labels {
    /// `true` on every pod of a task: the selector of the collector.
    pub const WORKLOAD: &str = "flowforge.io/workload";
    /// The task.
    pub const TASK_ID: &str = "flowforge.io/task-id";
    /// Its workflow.
    pub const WORKFLOW_ID: &str = "flowforge.io/workflow-id";
    /// Whose.
    pub const TENANT_ID: &str = "flowforge.io/tenant-id";
    /// Its name, for people.
    pub const TASK_NAME: &str = "flowforge.io/task-name";
    /// Which attempt the pod is, from 1.
    pub const ATTEMPT: &str = "flowforge.io/attempt";
    /// Who made the pod.
    pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
    /// Annotation, written before the pod is deleted: somebody asked for that. The value is the reason.
    pub const CANCEL: &str = "flowforge.io/cancel";
    /// Annotation, written before the pod is deleted for another reason of ours (it is replaced, or cleaned up).
    pub const STOPPED: &str = "flowforge.io/stopped";
    /// Annotation: the container whose end is the task's end, where whoever made the pod said so.
    pub const CONTAINER: &str = "flowforge.io/container";
}

/// Why a pod did not end by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TerminatedReason {
    /// Our own marker, or a queueing system's.
    UserCancel,
    /// The cluster did it: eviction, preemption, taints, shutdown.
    SystemEviction,
    /// Somebody deleted it.
    ExternalDelete,
    /// Its node is gone or silent.
    NodeLost,
}

/// Which pod.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PodName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid: what tells two pods of one name apart.
    pub uid: String,
    /// Its node, once it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// What was seen of a pod. The body of the mail, and an item of `POST /v1/tasks/reports`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The label `flowforge.io/task-id`.
    pub task_id: String,
    /// The label `flowforge.io/workflow-id`.
    #[serde(default)]
    pub workflow_id: String,
    /// The label `flowforge.io/tenant-id`; empty: the tenant of whoever reports.
    #[serde(default)]
    pub tenant_id: String,
    /// Which pod.
    pub pod: PodName,
    /// The label `flowforge.io/attempt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// What it says. Never one without a status.
    pub verdict: Verdict,
    /// No container of the task runs in this pod any more, and none will: it is terminal or gone.
    #[serde(default)]
    pub over: bool,
    /// The pod object is gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gone: bool,
    /// The end is inferred: the object is missing, and the last state of it that the reporter saw may be older than its end.
    /// An observer that saw the object until its end knows better.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub inferred: bool,
    /// Why it did not end by itself, if it did not. It says nothing about whether it is gone: an evicted pod stays to be seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminated_reason: Option<TerminatedReason>,
    /// What the main container wrote as its termination message, if it ended well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// When it was seen, by the collector's clock.
    pub seen_at: Timestamp,
    /// Who saw it.
    #[serde(default)]
    pub collector: String,
}

impl Report {
    /// Reads one that may come from a collector that is not ours: whether another attempt could help follows from the cause
    /// where nobody says.
    pub fn read(mut value: Value) -> Result<Self, serde_json::Error> {
        if let Some(verdict) = value.get_mut("verdict").and_then(Value::as_object_mut)
            && !verdict.contains_key("retryable")
            && let Some(Ok(cause)) = verdict.get("cause").map(Cause::deserialize)
        {
            verdict.insert("retryable".into(), cause.retryable().into());
        }
        serde_json::from_value(value)
    }

    /// Two reports under one key say the same.
    pub fn key(&self) -> String {
        let v = &self.verdict;
        let status = v.status.map_or("none", crate::verdict::TaskStatus::name);
        let cause = v.cause.map_or("", crate::verdict::Cause::name);
        let since = v.since.map_or(0, Timestamp::as_micros);
        let exit = v.exit_code.map_or_else(String::new, |c| c.to_string());
        // The same end is worth saying once more when the pod is over or gone: only then may it be replaced.
        let how = match (self.gone, self.over) {
            // Never the key of somebody who saw it go.
            _ if self.inferred => "missing",
            (true, _) => "gone",
            (false, true) => "over",
            (false, false) => "",
        };
        let attempt = self.attempt.unwrap_or(0);
        format!("{}/{attempt}/{status}:{cause}/{since}/{exit}{how}", self.pod.uid)
    }

    /// The id under which it is told on the channel. A pod ends once, so the id of its end is the same whoever tells it, whatever it
    /// looked like to them, and whether or not the pod was over by then.
    pub fn event_id(&self) -> String {
        match self.verdict.is_final() {
            true => format!("{}/{}/end", self.pod.uid, self.attempt.unwrap_or(0)),
            false => self.key(),
        }
    }

    /// Somebody saw how the pod ended: its own word, or the cluster's. Not a clock that ran out, and not its absence.
    pub fn is_proof(&self) -> bool {
        self.over
            && !self.inferred
            && self.verdict.rule != crate::desk::HINT_RULE
            && self.verdict.is_final()
    }

    /// See [`Report::key`].
    pub fn mail_id(&self) -> MailId {
        MailId(format!("pod/{}", self.key()))
    }
}

/// The entity behind a label in the tenant `default`, and of every task that was stored before labels belonged to
/// tenants: the uuid that the label is, or one that follows from the text.
pub fn task_of_label(label: &str) -> EntityId {
    label.parse().unwrap_or_else(|_| {
        EntityId::derived(EntityId::fixed(0x54, 0), &format!("task/{label}"), Timestamp::ZERO)
    })
}

/// A label in one spelling: a uuid can be written in several ways.
pub fn spelled(label: &str) -> String {
    label.parse::<EntityId>().map_or_else(|_| label.to_owned(), |id| id.to_string())
}

/// The entity behind a label of this tenant. The ids of one label lie together, whatever the tenant
/// ([`ids_of_label`]), and those of labels that are time-ordered uuids lie in their order.
pub fn task_of(tenant: &str, label: &str) -> EntityId {
    let whose = Sha256::digest(format!("task/{}/{tenant}/{}", tenant.len(), spelled(label)));
    let mut tail = [0; 5];
    tail.copy_from_slice(&whose[..5]);
    labelled(label, tail)
}

/// The lowest and the highest id that [`task_of`] gives for this label.
pub fn ids_of_label(label: &str) -> (EntityId, EntityId) {
    (labelled(label, [0; 5]), labelled(label, [0xff; 5]))
}

fn labelled(label: &str, tail: [u8; 5]) -> EntityId {
    let label = spelled(label);
    let at = label.parse::<EntityId>().map_or(Timestamp::ZERO, EntityId::moment);
    let hash = Sha256::digest(format!("label/{label}"));
    let mut random = [0; 10];
    random[..5].copy_from_slice(&hash[..5]);
    random[5..].copy_from_slice(&tail);
    EntityId::new(at, random)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_another_task_in_every_tenant_and_all_of_them_lie_together() {
        let uuid = "0190b5e0-1234-7abc-8def-001122334455";
        for label in ["train", uuid] {
            let (acme, beta) = (task_of("acme", label), task_of("beta", label));
            assert!(acme != beta && acme != task_of_label(label));
            assert_eq!(acme, task_of("acme", label));
            let (low, high) = ids_of_label(label);
            assert!(low <= acme && acme <= high && low <= beta && beta <= high);
            assert!(!(low..=high).contains(&task_of("acme", "other")));
        }
        assert_eq!(task_of("acme", uuid), task_of("acme", &uuid.to_uppercase()));
        assert_eq!(task_of("acme", uuid).moment(), uuid.parse::<EntityId>().unwrap().moment());
        // No label of one tenant spells the label of another.
        assert_ne!(task_of("a", "1/b/x"), task_of("a/1/b", "x"));
    }
}
