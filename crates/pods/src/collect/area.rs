//! Which pods a collector answers for.
//!
//! A collector per node sees its own pods and dies with its node. It can not see what has no node yet, and nobody who runs on a node
//! can tell that the node is dead. That is what the sweeper is for: one per cluster, which sees everything and speaks at once only
//! where no node's collector can: about pods without a node, and pods of nodes that are silent, not ready, or gone. About all others it speaks
//! later, to the server only, and mostly says what is known already (the key is the same, the answer is `duplicate`). So a node on
//! which no collector runs (a taint, a virtual kubelet, a crash loop) costs a minute and not the task.
//!
//! The sweeper has one watch for all pods, and not one for `spec.nodeName=` and one for each bad node: such watches send
//! `DELETED` when a pod is bound, have to be opened when a node is already in trouble, and miss what ended before they were.

use crate::verdict::{NodeReady, NodeView};
use k8s_openapi::api::core::v1::Pod;
use std::time::Duration;

/// How a collector is deployed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// One on every node, each for the pods of its node.
    Node,
    /// One for everything.
    #[default]
    Cluster,
    /// One beside those on the nodes, for what they can not see.
    Sweeper,
}

impl Mode {
    /// As it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Node => "node",
            Mode::Cluster => "cluster",
            Mode::Sweeper => "sweeper",
        }
    }
}

/// Which pods are ours, and when we speak about them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Area {
    /// How it is deployed.
    pub mode: Mode,
    /// Its node, in [`Mode::Node`].
    pub node: String,
    /// How long a sweeper leaves a pod to its node's collector.
    pub later: Duration,
}

impl Area {
    /// Everything.
    pub fn cluster() -> Self {
        Area { mode: Mode::Cluster, node: String::new(), later: Duration::ZERO }
    }

    /// The pods of one node.
    pub fn node(name: &str) -> Self {
        Area { mode: Mode::Node, node: name.to_owned(), later: Duration::ZERO }
    }

    /// What nobody on a node can see, at once; everything else after a while.
    pub fn sweeper(later: Duration) -> Self {
        Area { mode: Mode::Sweeper, node: String::new(), later }
    }

    /// Whether it also follows nodes.
    pub fn sees_nodes(&self) -> bool {
        self.mode != Mode::Node
    }

    /// The field selector of its pods. Never by phase: a watcher that selects by it is told `DELETED`, with the object as it was before, at
    /// the very moment at which a pod ends.
    pub fn fields(&self) -> String {
        match self.mode {
            Mode::Node => format!("spec.nodeName={}", self.node),
            _ => String::new(),
        }
    }

    /// Whether a pod that was asked for by name is one of ours.
    pub(super) fn covers(&self, pod: &Pod) -> bool {
        let labels = pod.metadata.labels.as_ref();
        let workload = labels.and_then(|l| l.get(crate::report::labels::WORKLOAD));
        let here = self.mode != Mode::Node || super::who::node(pod) == Some(self.node.as_str());
        here && workload.is_some_and(|v| v == "true")
    }

    /// How long to leave a pod to somebody who is closer to it.
    pub(super) fn wait(&self, node: Option<&str>, view: Option<&NodeView>) -> Duration {
        match (self.mode, node, view) {
            (Mode::Sweeper, Some(_), Some(v))
                if v.exists && v.ready == NodeReady::Yes && !v.out_of_service =>
            {
                self.later
            }
            // Nodes are not known yet: somebody may be closer.
            (Mode::Sweeper, Some(_), None) => self.later,
            _ => Duration::ZERO,
        }
    }
}
