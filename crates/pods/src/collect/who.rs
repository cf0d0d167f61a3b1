//! Whose pod it is, by its labels.

use crate::report::{PodName, labels};
use k8s_openapi::api::core::v1::Pod;

/// Which task a pod belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Who {
    pub task: Box<str>,
    pub workflow: Box<str>,
    pub tenant: Box<str>,
    pub attempt: Option<u32>,
}

/// A label that its pod should have and does not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Unlabelled(pub &'static str);

impl Who {
    pub fn of(pod: &Pod) -> Result<Who, Unlabelled> {
        let label = |key: &'static str| {
            let value = pod.metadata.labels.as_ref().and_then(|l| l.get(key));
            value.map(|v| v.trim())
        };
        let task = label(labels::TASK_ID).filter(|t| !t.is_empty());
        // An empty one is no missing one: a task of ours need not belong to anything.
        let workflow = label(labels::WORKFLOW_ID);
        Ok(Who {
            task: task.ok_or(Unlabelled(labels::TASK_ID))?.into(),
            workflow: workflow.ok_or(Unlabelled(labels::WORKFLOW_ID))?.into(),
            tenant: label(labels::TENANT_ID).unwrap_or("").into(),
            attempt: label(labels::ATTEMPT).and_then(|a| a.parse().ok()),
        })
    }
}

pub(super) fn uid(pod: &Pod) -> Option<&str> {
    pod.metadata.uid.as_deref().filter(|u| !u.is_empty())
}

pub(super) fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|n| !n.is_empty())
}

/// Whether nothing runs in it any more.
pub(super) fn is_terminal(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("");
    ["Succeeded", "Failed"].contains(&phase)
}

pub(super) fn name_of(pod: &Pod) -> PodName {
    PodName {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        node: node(pod).map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn of(labels: Value) -> Result<Who, Unlabelled> {
        let pod = json!({ "metadata": { "name": "p", "labels": labels } });
        Who::of(&serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn a_task_need_not_belong_to_a_workflow_but_its_pod_says_so() {
        let alone = json!({ labels::TASK_ID: "t", labels::WORKFLOW_ID: "", labels::ATTEMPT: "2" });
        let who = of(alone).unwrap();
        assert_eq!((&*who.task, &*who.workflow, &*who.tenant), ("t", "", ""));
        assert_eq!(who.attempt, Some(2));
        let unsaid = json!({ labels::TASK_ID: "t" });
        assert_eq!(of(unsaid), Err(Unlabelled(labels::WORKFLOW_ID)));
    }

    #[test]
    fn a_pod_that_names_no_task_is_nobodys() {
        for task in [json!({ labels::TASK_ID: " " }), json!({})] {
            let mut said = task;
            said[labels::WORKFLOW_ID] = "w".into();
            assert_eq!(of(said), Err(Unlabelled(labels::TASK_ID)));
        }
        assert_eq!(of(Value::Null), Err(Unlabelled(labels::TASK_ID)));
    }
}
