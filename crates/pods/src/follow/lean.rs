//! What is read of a pod and of a node.
//!
//! A pod has five to fifteen kilobytes of JSON. Most of it is who owns which field, how volumes are mounted, and what the main
//! container's environment is. None of that says how the task is. So it is not read at all: unknown fields are skipped by
//! the parser, and what remains is what the verdict looks at, in the cluster's own form. The same lean form, as JSON, is what is
//! remembered of a pod: about a kilobyte, where the object would be eight.
//!
//! A test holds this to the verdict: for every fixture the lean pod and the whole one must be judged the same.

use super::source::Object;
use k8s_openapi::{
    api::core::v1::{
        Container, ContainerRestartRule, ContainerState, ContainerStatus, Node, NodeCondition,
        NodeSpec, NodeStatus, Pod, PodCondition, PodSchedulingGate, PodSpec, PodStatus, Taint,
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A pod of which only that was read which the verdict looks at. Boxed: it is handed from hand to hand.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LeanPod(pub Box<Pod>);

/// A node of which only that was read which says whether it lives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LeanNode(pub Box<Node>);

impl Object for LeanPod {
    fn version(&self) -> Option<&str> {
        self.0.metadata.resource_version.as_deref()
    }
}

impl Object for LeanNode {
    fn version(&self) -> Option<&str> {
        self.0.metadata.resource_version.as_deref()
    }
}

/// Annotations that are remembered: ours, FlowForge's, and which container counts.
pub fn keeps_annotation(key: &str) -> bool {
    key.starts_with("flowforge.io/")
        || key.starts_with("tenure")
        || key == "kubectl.kubernetes.io/default-container"
}

impl LeanPod {
    /// What is remembered: JSON that [`LeanPod::recall`] reads. The uid and labels are left out (which pod it is, and whose, has to be known
    /// beside it), and so are annotations that nobody asks for; `also` is one that is kept whatever its name.
    pub fn remember(&self, also: &str) -> Vec<u8> {
        let mut wire = Wire::of(&self.0);
        wire.metadata.uid = None;
        wire.metadata.resource_version = None;
        wire.metadata.labels = None;
        if let Some(annotations) = &mut wire.metadata.annotations {
            annotations.retain(|key, _| keeps_annotation(key) || key == also);
        }
        // Texts, numbers and times under names: always JSON.
        serde_json::to_vec(&wire).unwrap_or_default()
    }

    /// The least that is remembered: its names and its node.
    pub fn identity(&self) -> Vec<u8> {
        let mut short = LeanPod::default();
        short.0.metadata.name.clone_from(&self.0.metadata.name);
        short.0.metadata.namespace.clone_from(&self.0.metadata.namespace);
        let node_name = self.0.spec.as_ref().and_then(|s| s.node_name.clone());
        short.0.spec = Some(PodSpec { node_name, ..PodSpec::default() });
        short.remember("")
    }

    /// The pod that was remembered; an empty one if these bytes are none.
    pub fn recall(bytes: &[u8]) -> LeanPod {
        serde_json::from_slice(bytes).unwrap_or_default()
    }
}

impl<'de> Deserialize<'de> for LeanPod {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Wire::deserialize(deserializer).map(|wire| LeanPod(Box::new(wire.into_pod())))
    }
}

impl<'de> Deserialize<'de> for LeanNode {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        WireNode::deserialize(deserializer).map(|wire| LeanNode(Box::new(wire.into_node())))
    }
}

/// Everything may be missing, and null is missing.
#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Wire {
    metadata: Meta,
    #[serde(skip_serializing_if = "Option::is_none")]
    spec: Option<Spec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Meta {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    creation_timestamp: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deletion_timestamp: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deletion_grace_period_seconds: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    #[serde(skip_serializing_if = "Option::is_none")]
    node_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    restart_policy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    active_deadline_seconds: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    termination_grace_period_seconds: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scheduling_gates: Option<Vec<PodSchedulingGate>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    containers: Option<Vec<Declared>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    init_containers: Option<Vec<Declared>>,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Declared {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    restart_policy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    restart_policy_rules: Option<Vec<ContainerRestartRule>>,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_time: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    conditions: Option<Vec<Condition>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    container_statuses: Option<Vec<Contained>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    init_container_statuses: Option<Vec<Contained>>,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Condition {
    r#type: String,
    status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_transition_time: Option<Time>,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Contained {
    name: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    ready: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    started: Option<bool>,
    #[serde(skip_serializing_if = "is_zero")]
    restart_count: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<ContainerState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_state: Option<ContainerState>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_zero(n: &i32) -> bool {
    *n == 0
}

impl Wire {
    fn into_pod(self) -> Pod {
        let declared = |d: Declared| Container {
            name: d.name,
            restart_policy: d.restart_policy,
            restart_policy_rules: d.restart_policy_rules,
            ..Container::default()
        };
        let contained = |c: Contained| ContainerStatus {
            name: c.name,
            ready: c.ready,
            started: c.started,
            restart_count: c.restart_count,
            state: c.state,
            last_state: c.last_state,
            ..ContainerStatus::default()
        };
        let condition = |c: Condition| PodCondition {
            type_: c.r#type,
            status: c.status,
            reason: c.reason,
            message: c.message,
            last_transition_time: c.last_transition_time,
            ..PodCondition::default()
        };
        Pod {
            metadata: self.metadata.into_meta(),
            spec: self.spec.map(|s| PodSpec {
                node_name: s.node_name,
                restart_policy: s.restart_policy,
                active_deadline_seconds: s.active_deadline_seconds,
                termination_grace_period_seconds: s.termination_grace_period_seconds,
                scheduling_gates: s.scheduling_gates,
                containers: all(s.containers, declared).unwrap_or_default(),
                init_containers: all(s.init_containers, declared),
                ..PodSpec::default()
            }),
            status: self.status.map(|s| PodStatus {
                phase: s.phase,
                reason: s.reason,
                message: s.message,
                start_time: s.start_time,
                conditions: all(s.conditions, condition),
                container_statuses: all(s.container_statuses, contained),
                init_container_statuses: all(s.init_container_statuses, contained),
                ..PodStatus::default()
            }),
        }
    }

    fn of(pod: &Pod) -> Wire {
        let declared = |d: &Container| Declared {
            name: d.name.clone(),
            restart_policy: d.restart_policy.clone(),
            restart_policy_rules: d.restart_policy_rules.clone(),
        };
        let contained = |c: &ContainerStatus| Contained {
            name: c.name.clone(),
            ready: c.ready,
            started: c.started,
            restart_count: c.restart_count,
            state: told(&c.state),
            last_state: told(&c.last_state),
        };
        let condition = |c: &PodCondition| Condition {
            r#type: c.type_.clone(),
            status: c.status.clone(),
            reason: c.reason.clone(),
            message: c.message.clone(),
            last_transition_time: c.last_transition_time.clone(),
        };
        Wire {
            metadata: Meta::of(&pod.metadata),
            spec: pod.spec.as_ref().map(|s| Spec {
                node_name: s.node_name.clone(),
                restart_policy: s.restart_policy.clone(),
                active_deadline_seconds: s.active_deadline_seconds,
                termination_grace_period_seconds: s.termination_grace_period_seconds,
                scheduling_gates: s.scheduling_gates.clone(),
                containers: Some(s.containers.iter().map(declared).collect()),
                init_containers: each(&s.init_containers, declared),
            }),
            status: pod.status.as_ref().map(|s| Status {
                phase: s.phase.clone(),
                reason: s.reason.clone(),
                message: s.message.clone(),
                start_time: s.start_time.clone(),
                conditions: each(&s.conditions, condition),
                container_statuses: each(&s.container_statuses, contained),
                init_container_statuses: each(&s.init_container_statuses, contained),
            }),
        }
    }
}

fn all<A, B>(list: Option<Vec<A>>, f: impl Fn(A) -> B) -> Option<Vec<B>> {
    list.map(|l| l.into_iter().map(f).collect())
}

fn each<A, B>(list: &Option<Vec<A>>, f: impl Fn(&A) -> B) -> Option<Vec<B>> {
    list.as_ref().map(|l| l.iter().map(f).collect())
}

/// A state without the id of the container, which is seventy letters of nothing.
fn told(state: &Option<ContainerState>) -> Option<ContainerState> {
    let mut state = state.clone();
    if let Some(end) = state.as_mut().and_then(|s| s.terminated.as_mut()) {
        end.container_id = None;
    }
    state
}

impl Meta {
    fn into_meta(self) -> ObjectMeta {
        ObjectMeta {
            name: self.name,
            namespace: self.namespace,
            uid: self.uid,
            resource_version: self.resource_version,
            creation_timestamp: self.creation_timestamp,
            deletion_timestamp: self.deletion_timestamp,
            deletion_grace_period_seconds: self.deletion_grace_period_seconds,
            labels: self.labels,
            annotations: self.annotations,
            ..ObjectMeta::default()
        }
    }

    fn of(meta: &ObjectMeta) -> Meta {
        Meta {
            name: meta.name.clone(),
            namespace: meta.namespace.clone(),
            uid: meta.uid.clone(),
            resource_version: meta.resource_version.clone(),
            creation_timestamp: meta.creation_timestamp.clone(),
            deletion_timestamp: meta.deletion_timestamp.clone(),
            deletion_grace_period_seconds: meta.deletion_grace_period_seconds,
            labels: meta.labels.clone(),
            annotations: meta.annotations.clone(),
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WireNode {
    metadata: Meta,
    spec: Option<WireNodeSpec>,
    status: Option<WireNodeStatus>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WireNodeSpec {
    taints: Option<Vec<Taint>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WireNodeStatus {
    conditions: Option<Vec<NodeCondition>>,
}

impl WireNode {
    fn into_node(self) -> Node {
        Node {
            metadata: self.metadata.into_meta(),
            spec: self.spec.map(|s| NodeSpec { taints: s.taints, ..NodeSpec::default() }),
            status: self
                .status
                .map(|s| NodeStatus { conditions: s.conditions, ..NodeStatus::default() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn whole() -> serde_json::Value {
        json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {
                "name": "p", "namespace": "n", "uid": "u", "resourceVersion": "9",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": { "flowforge.io/task-id": "t", "pod-template-hash": "x" },
                "annotations": { "flowforge.io/cancel": "why", "kubectl.kubernetes.io/last-applied-configuration": "{}" },
                "managedFields": [{ "manager": "kubelet", "fieldsV1": { "f:status": {} } }]
            },
            "spec": {
                "nodeName": "node-1", "restartPolicy": "Never", "volumes": [{ "name": "v" }],
                "containers": [{ "name": "main", "image": "i", "env": [{ "name": "A", "value": "b" }] }],
                "initContainers": [{ "name": "side", "restartPolicy": "Always", "image": "i" }]
            },
            "status": {
                "phase": "Running", "podIP": "10.0.0.1", "startTime": "2026-01-01T00:00:01Z",
                "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:02Z" }],
                "containerStatuses": [{
                    "name": "main", "ready": true, "restartCount": 1, "image": "i", "imageID": "sha",
                    "state": { "running": { "startedAt": "2026-01-01T00:00:02Z" } },
                    "lastState": { "terminated": { "exitCode": 1, "containerID": "containerd://1" } }
                }]
            }
        })
    }

    #[test]
    fn what_nobody_asks_for_is_not_read() {
        let lean: LeanPod = serde_json::from_value(whole()).unwrap();
        let pod = &lean.0;
        assert!(pod.metadata.managed_fields.is_none());
        assert_eq!(pod.metadata.resource_version.as_deref(), Some("9"));
        let spec = pod.spec.as_ref().unwrap();
        assert!(spec.volumes.is_none() && spec.containers[0].env.is_none());
        assert_eq!(
            spec.init_containers.as_ref().unwrap()[0].restart_policy.as_deref(),
            Some("Always")
        );
        let status = pod.status.as_ref().unwrap();
        assert!(status.pod_ip.is_none());
        assert_eq!(status.container_statuses.as_ref().unwrap()[0].restart_count, 1);
    }

    #[test]
    fn what_is_remembered_comes_back_without_what_nobody_asks_for() {
        let lean: LeanPod = serde_json::from_value(whole()).unwrap();
        let bytes = lean.remember("");
        assert!(bytes.len() < 800, "{} bytes: {}", bytes.len(), String::from_utf8_lossy(&bytes));
        let back = LeanPod::recall(&bytes).0;
        let annotations = back.metadata.annotations.unwrap();
        assert_eq!(back.metadata.labels, None);
        assert_eq!(annotations.keys().collect::<Vec<_>>(), ["flowforge.io/cancel"]);
        let mut status = lean.0.status.unwrap();
        for c in status.container_statuses.iter_mut().flatten() {
            c.last_state.as_mut().unwrap().terminated.as_mut().unwrap().container_id = None;
        }
        assert_eq!((back.spec, back.status), (lean.0.spec, Some(status)));
        let kept = LeanPod(Box::new(Pod {
            metadata: ObjectMeta {
                annotations: Some([("corp/stop".to_owned(), "x".to_owned())].into()),
                ..ObjectMeta::default()
            },
            ..Pod::default()
        }))
        .remember("corp/stop");
        assert!(String::from_utf8(kept).unwrap().contains("corp/stop"));
    }

    #[test]
    fn anything_may_be_missing() {
        for text in
            ["{}", r#"{"metadata":{}}"#, r#"{"metadata":{"labels":null},"spec":null,"status":{}}"#]
        {
            let lean: LeanPod = serde_json::from_str(text).unwrap();
            assert_eq!(LeanPod::recall(&lean.remember("")).0.metadata, ObjectMeta::default());
        }
        assert_eq!(LeanPod::recall(b"torn"), LeanPod::default());
    }
}
