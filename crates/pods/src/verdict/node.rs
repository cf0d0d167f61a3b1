//! What is known about the node of a pod, for those who can see nodes.

use super::look::moment;
use k8s_openapi::api::core::v1::Node;
use tenure_kernel::time::Timestamp;

/// Whether a node answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeReady {
    /// It does, and is well.
    Yes,
    /// It does, and says that it is not well. Its word about pods counts.
    No,
    /// It has not been heard of since.
    Silent(Option<Timestamp>),
}

/// A node, as far as verdicts want to know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeView {
    /// Whether there is such a node.
    pub exists: bool,
    /// Whether it answers.
    pub ready: NodeReady,
    /// Whether an administrator said that it is switched off (`node.kubernetes.io/out-of-service`).
    pub out_of_service: bool,
}

impl NodeView {
    /// A node that is not there.
    pub const MISSING: NodeView =
        NodeView { exists: false, ready: NodeReady::Silent(None), out_of_service: false };

    /// From the object. A node that has never said how it is, counts as one that is not well.
    pub fn of(node: &Node) -> NodeView {
        let conditions = node.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or(&[]);
        let ready = conditions.iter().find(|c| c.type_ == "Ready");
        let taints = node.spec.as_ref().and_then(|s| s.taints.as_deref()).unwrap_or(&[]);
        NodeView {
            exists: true,
            ready: match ready.map(|c| (c.status.as_str(), c)) {
                Some(("True", _)) => NodeReady::Yes,
                Some(("Unknown", c)) => {
                    NodeReady::Silent(c.last_transition_time.as_ref().and_then(moment))
                }
                _ => NodeReady::No,
            },
            out_of_service: taints.iter().any(|t| t.key == "node.kubernetes.io/out-of-service"),
        }
    }
}
