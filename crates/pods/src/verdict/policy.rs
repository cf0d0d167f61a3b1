//! What an operator may decide about verdicts: whose end counts, how long silence is borne, and rows that go before the table.

use super::table::{Grace, Place, Row, TABLE};
use serde::{Deserialize, Deserializer, Serialize};
use std::time::Duration;

/// The settings under `pods`. Each has a default, and an unknown key is refused.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// The container whose end is the task's end. Where no container has this name: the only one that is no sidecar,
    /// else the one that `kubectl.kubernetes.io/default-container` names. Else it is a guess: one that still works, or, once the pod
    /// is over, one that failed, else the first.
    pub main: String,
    /// Containers that meshes and agents inject beside the main one. Native sidecars (init containers that are always
    /// restarted) need no name here.
    pub sidecars: Vec<String>,
    /// Init containers that are ours, not the task's: when they fail, the class is `infra`.
    pub own_init: Vec<String>,
    /// The annotation by which we say that we are about to delete a pod because its task was cancelled.
    pub cancel_annotation: String,
    /// What an end with exit code 0 counts as, while somebody was ending the pod.
    pub success_under_disruption: UnderDisruption,
    /// What phase `Succeeded` counts as where no container status proves it.
    pub success_without_proof: WithoutProof,
    /// How long a pod may be without a node. Autoscalers need minutes for a node, those with GPUs a quarter of an hour, and a
    /// full cluster is no reason to fail: half an hour. Pods that a scheduling gate holds are exempt.
    pub schedule_timeout_seconds: u64,
    /// How long a pod with a node may take until its main container runs. A first pull of a large image and the move of a volume
    /// both happen within it and take minutes when all is well: a quarter of an hour.
    pub start_timeout_seconds: u64,
    /// How long an image that does not come is waited for. 0 fails at the first error, as FlowForge's table reads.
    pub image_pull_grace_seconds: u64,
    /// The same, where the registry said that it is overloaded or away (429, 5xx, timeouts, the kubelet's own rate limit).
    pub image_pull_long_grace_seconds: u64,
    /// How long a missing Secret, ConfigMap or key is waited for: long enough for one that is created together with the pod.
    pub config_grace_seconds: u64,
    /// How long a container that can not be created is waited for.
    pub create_grace_seconds: u64,
    /// After so many restarts within one pod its next end is final.
    pub crash_loop_restarts: u32,
    /// How long a container that is to be started again may wait for it. The kubelet waits five minutes at most.
    pub restart_timeout_seconds: u64,
    /// How long after its time to end (`deletionTimestamp`) a pod may still be there before its node counts as lost.
    pub terminating_grace_seconds: u64,
    /// How long a node may be silent while nobody deletes its pods. Kubernetes itself starts to delete them after five minutes or so.
    pub node_lost_grace_seconds: u64,
    /// Rows that are looked at before the table, first match first.
    pub reasons: Vec<Override>,
}

impl Default for Policy {
    fn default() -> Self {
        let names = |list: &[&str]| list.iter().map(|n| (*n).to_owned()).collect();
        Policy {
            main: "main".to_owned(),
            sidecars: names(SIDECARS),
            own_init: names(&["flowforge-sdk-init"]),
            cancel_annotation: "flowforge.io/cancel".to_owned(),
            success_under_disruption: UnderDisruption::Succeeded,
            success_without_proof: WithoutProof::Succeeded,
            schedule_timeout_seconds: 1_800,
            start_timeout_seconds: 900,
            image_pull_grace_seconds: 300,
            image_pull_long_grace_seconds: 900,
            config_grace_seconds: 60,
            create_grace_seconds: 300,
            crash_loop_restarts: 3,
            restart_timeout_seconds: 900,
            terminating_grace_seconds: 300,
            node_lost_grace_seconds: 600,
            reasons: Vec::new(),
        }
    }
}

/// Names under which meshes and agents inject containers.
pub const SIDECARS: &[&str] = &[
    "istio-proxy",
    "linkerd-proxy",
    "linkerd-network-validator",
    "envoy",
    "envoy-sidecar",
    "consul-dataplane",
    "consul-connect-envoy-sidecar",
    "kuma-sidecar",
    "vault-agent",
    "daprd",
    "cloud-sql-proxy",
    "cloudsql-proxy",
    "gke-gcsfuse-sidecar",
    "aws-sigv4-proxy",
    "xray-daemon",
    "datadog-agent",
    "datadog-agent-injected",
    "otc-container",
    "fluent-bit",
    "filebeat",
    "jaeger-agent",
    "wait",
];

/// What an end with exit code 0 counts as, while somebody was ending the pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnderDisruption {
    /// `SUCCEEDED`, with `disrupted`. Most programs that end with 0 when asked to stop had finished.
    Succeeded,
    /// `FAILED`, `interrupted`: for programs that save their place and end with 0 wherever they are.
    Failed,
}

/// What phase `Succeeded` counts as where no container status proves it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WithoutProof {
    /// `FAILED`, `lost`: for tasks where a result that is not there is worse than work done again.
    Lost,
    /// `SUCCEEDED`, as FlowForge's table has it: there are providers that write phases and no container statuses. A status that
    /// contradicts the phase is never passed over.
    Succeeded,
}

/// A row of the operator's own.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(transparent)]
pub struct Override(pub Row);

impl<'de> Deserialize<'de> for Override {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error as _;
        let row = Row::deserialize(deserializer)?;
        match row.problem() {
            None => Ok(Override(row)),
            Some(what) => Err(D::Error::custom(what)),
        }
    }
}

/// What a row is compared with.
#[derive(Clone, Copy, Debug)]
pub struct Said<'a> {
    /// Where.
    pub place: Place,
    /// Kubernetes' word.
    pub reason: &'a str,
    /// Its text.
    pub message: &'a str,
    /// With which code the container ended, if it did.
    pub exit_code: Option<i32>,
}

impl Policy {
    /// The first row that fits: the operator's own, then the table's.
    pub fn row(&self, said: &Said<'_>) -> Option<&Row> {
        let own = self.reasons.iter().map(|o| &o.0);
        own.chain(TABLE.iter()).find(|row| row.fits(said))
    }

    /// How long a row is waited for.
    pub fn grace(&self, row: &Row) -> Duration {
        if let Some(seconds) = row.grace_seconds {
            return Duration::from_secs(seconds);
        }
        Duration::from_secs(match row.grace {
            Grace::None => 0,
            Grace::Schedule => self.schedule_timeout_seconds,
            Grace::Start => self.start_timeout_seconds,
            Grace::Image => self.image_pull_grace_seconds,
            Grace::ImageLong => self.image_pull_long_grace_seconds,
            Grace::Config => self.config_grace_seconds,
            Grace::Create => self.create_grace_seconds,
            Grace::Restart => self.restart_timeout_seconds,
            Grace::Terminating => self.terminating_grace_seconds,
            Grace::Node => self.node_lost_grace_seconds,
        })
    }
}
