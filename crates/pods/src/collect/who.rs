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
            value.map(|v| v.trim()).filter(|v| !v.is_empty())
        };
        let needed = |key: &'static str| label(key).map(Box::from).ok_or(Unlabelled(key));
        Ok(Who {
            task: needed(labels::TASK_ID)?,
            workflow: needed(labels::WORKFLOW_ID)?,
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
