//! The words of a verdict.

use crate::report::TerminatedReason;
use serde::{Deserialize, Serialize};
use tenure_kernel::time::Timestamp;

/// What a collector says of a task. It never says PENDING or QUEUED: those are the controller's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum TaskStatus {
    /// The main container runs, or ran and will be started again.
    Running,
    /// The main container ended well.
    Succeeded,
    /// It ended badly, or never began and will not.
    Failed,
    /// Our own cancel marker, or a queueing system's, is on the pod.
    Canceled,
}

impl TaskStatus {
    /// As it is written.
    pub const fn name(self) -> &'static str {
        match self {
            TaskStatus::Running => "RUNNING",
            TaskStatus::Succeeded => "SUCCEEDED",
            TaskStatus::Failed => "FAILED",
            TaskStatus::Canceled => "CANCELED",
        }
    }

    /// Nothing follows it, for this pod.
    pub fn is_final(self) -> bool {
        self != TaskStatus::Running
    }
}

/// Who has to answer for a failure. Each class has its own counter and limit of retries.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CauseClass {
    /// The task's own program.
    App,
    /// The task's own memory limit.
    Oom,
    /// The cluster: evictions, rejections, preemption, shutdowns, starts that took too long.
    Infra,
    /// What the task asked for does not exist or is not allowed.
    Config,
    /// Its image.
    Image,
    /// Its own deadline.
    Timeout,
    /// Somebody asked for it.
    Cancelled,
    /// Nobody knows how it ended: its node or its container is gone.
    Lost,
    /// Its pod was deleted from outside.
    Deleted,
}

/// Why. The identifiers are those of the reason table ([`Cause::class`] and the table's rows say the rest).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// No node was found for it in time.
    ScheduleTimeout,
    /// It had a node, and its containers were not created in time.
    StartTimeout,
    /// Its image can not be pulled.
    ImagePull,
    /// Its image has no valid name, or may never be pulled.
    ImageInvalid,
    /// A Secret, ConfigMap or key that it needs is missing.
    Config,
    /// Its container can not be created.
    CreateContainer,
    /// Its container can not be started.
    StartError,
    /// It was restarted too often.
    CrashLoop,
    /// A process of it was killed for want of memory.
    Oom,
    /// It ended with an exit code of its own.
    AppError,
    /// The kubelet lost its container.
    Lost,
    /// The node ran short of memory, disk, or process ids.
    EvictedNodePressure,
    /// It used more storage than it may.
    EvictedOwnLimit,
    /// Drained, through the API.
    EvictedApi,
    /// A taint of the node drove it out.
    EvictedTaint,
    /// The node took no new pods, for pressure.
    RejectedPressure,
    /// Something more important needed its place.
    Preempted,
    /// The node had no room when it came.
    RejectedCapacity,
    /// The node had no device for it.
    RejectedDevice,
    /// The node did not fit any more, or was shutting down.
    RejectedNode,
    /// The node could not align its resources.
    RejectedTopology,
    /// The node refuses what it asks for.
    RejectedSpec,
    /// The node was shut down.
    NodeShutdown,
    /// The node is gone or silent; the pod may still run.
    NodeLost,
    /// Pod garbage collection: its node is no longer known.
    NodeGone,
    /// `activeDeadlineSeconds` passed.
    Timeout,
    /// A virtual kubelet's provider failed.
    Provider,
    /// Deleted before its end, by nobody we know.
    DeletedExternally,
    /// Told to stop, it ended well; the policy counts that as a failure.
    Interrupted,
    /// An init container failed.
    InitFailed,
    /// A cancel marker of ours.
    UserCancel,
    /// A queueing system's `TerminationTarget`.
    QueueCancel,
}

impl Cause {
    /// Every cause there is.
    pub const ALL: [Cause; 32] = [
        Cause::ScheduleTimeout,
        Cause::StartTimeout,
        Cause::ImagePull,
        Cause::ImageInvalid,
        Cause::Config,
        Cause::CreateContainer,
        Cause::StartError,
        Cause::CrashLoop,
        Cause::Oom,
        Cause::AppError,
        Cause::Lost,
        Cause::EvictedNodePressure,
        Cause::EvictedOwnLimit,
        Cause::EvictedApi,
        Cause::EvictedTaint,
        Cause::RejectedPressure,
        Cause::Preempted,
        Cause::RejectedCapacity,
        Cause::RejectedDevice,
        Cause::RejectedNode,
        Cause::RejectedTopology,
        Cause::RejectedSpec,
        Cause::NodeShutdown,
        Cause::NodeLost,
        Cause::NodeGone,
        Cause::Timeout,
        Cause::Provider,
        Cause::DeletedExternally,
        Cause::Interrupted,
        Cause::InitFailed,
        Cause::UserCancel,
        Cause::QueueCancel,
    ];

    /// Who answers for it, where the row that gave it says nothing else.
    pub fn class(self) -> CauseClass {
        match self {
            Cause::AppError
            | Cause::CrashLoop
            | Cause::StartError
            | Cause::EvictedOwnLimit
            | Cause::InitFailed => CauseClass::App,
            Cause::Oom => CauseClass::Oom,
            Cause::Config | Cause::RejectedSpec => CauseClass::Config,
            Cause::ImagePull | Cause::ImageInvalid => CauseClass::Image,
            Cause::Timeout => CauseClass::Timeout,
            Cause::UserCancel | Cause::QueueCancel => CauseClass::Cancelled,
            Cause::Lost | Cause::NodeLost => CauseClass::Lost,
            Cause::DeletedExternally => CauseClass::Deleted,
            Cause::ScheduleTimeout
            | Cause::StartTimeout
            | Cause::CreateContainer
            | Cause::EvictedNodePressure
            | Cause::EvictedApi
            | Cause::EvictedTaint
            | Cause::RejectedPressure
            | Cause::Preempted
            | Cause::RejectedCapacity
            | Cause::RejectedDevice
            | Cause::RejectedNode
            | Cause::RejectedTopology
            | Cause::NodeShutdown
            | Cause::NodeGone
            | Cause::Provider
            | Cause::Interrupted => CauseClass::Infra,
        }
    }

    /// Whether another attempt could end differently, where the row that gave it says nothing else.
    pub fn retryable(self) -> bool {
        !matches!(
            self,
            Cause::ImageInvalid
                | Cause::Config
                | Cause::RejectedSpec
                | Cause::UserCancel
                | Cause::QueueCancel
        )
    }

    /// FlowForge's word for a pod that did not end by itself; `None` for one that did.
    pub fn terminated_reason(self) -> Option<TerminatedReason> {
        match self {
            Cause::UserCancel | Cause::QueueCancel => Some(TerminatedReason::UserCancel),
            Cause::EvictedNodePressure
            | Cause::EvictedOwnLimit
            | Cause::EvictedApi
            | Cause::EvictedTaint
            | Cause::RejectedPressure
            | Cause::Preempted
            | Cause::NodeShutdown
            | Cause::Interrupted => Some(TerminatedReason::SystemEviction),
            Cause::DeletedExternally => Some(TerminatedReason::ExternalDelete),
            Cause::NodeLost | Cause::NodeGone => Some(TerminatedReason::NodeLost),
            _ => None,
        }
    }

    /// As it is written: `oom`, `evicted_own_limit`, …
    pub const fn name(self) -> &'static str {
        match self {
            Cause::ScheduleTimeout => "schedule_timeout",
            Cause::StartTimeout => "start_timeout",
            Cause::ImagePull => "image_pull",
            Cause::ImageInvalid => "image_invalid",
            Cause::Config => "config",
            Cause::CreateContainer => "create_container",
            Cause::StartError => "start_error",
            Cause::CrashLoop => "crash_loop",
            Cause::Oom => "oom",
            Cause::AppError => "app_error",
            Cause::Lost => "lost",
            Cause::EvictedNodePressure => "evicted_node_pressure",
            Cause::EvictedOwnLimit => "evicted_own_limit",
            Cause::EvictedApi => "evicted_api",
            Cause::EvictedTaint => "evicted_taint",
            Cause::RejectedPressure => "rejected_pressure",
            Cause::Preempted => "preempted",
            Cause::RejectedCapacity => "rejected_capacity",
            Cause::RejectedDevice => "rejected_device",
            Cause::RejectedNode => "rejected_node",
            Cause::RejectedTopology => "rejected_topology",
            Cause::RejectedSpec => "rejected_spec",
            Cause::NodeShutdown => "node_shutdown",
            Cause::NodeLost => "node_lost",
            Cause::NodeGone => "node_gone",
            Cause::Timeout => "timeout",
            Cause::Provider => "provider",
            Cause::DeletedExternally => "deleted_externally",
            Cause::Interrupted => "interrupted",
            Cause::InitFailed => "init_failed",
            Cause::UserCancel => "user_cancel",
            Cause::QueueCancel => "queue_cancel",
        }
    }
}

impl CauseClass {
    /// As it is written.
    pub const fn name(self) -> &'static str {
        match self {
            CauseClass::App => "app",
            CauseClass::Oom => "oom",
            CauseClass::Infra => "infra",
            CauseClass::Config => "config",
            CauseClass::Image => "image",
            CauseClass::Timeout => "timeout",
            CauseClass::Cancelled => "cancelled",
            CauseClass::Lost => "lost",
            CauseClass::Deleted => "deleted",
        }
    }
}

/// What a moment in `next_check_at` counts from. The clock of a verdict is read again by the next one for the same pod,
/// so that a change of words (`ErrImagePull`, `ImagePullBackOff`, and back) does not start it over.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Clock {
    /// Without a node.
    Schedule,
    /// With a node, and not started.
    Start,
    /// An image does not come.
    Image,
    /// A Secret, ConfigMap or key is missing.
    Config,
    /// A container can not be created.
    Create,
    /// A container ended and will be started again.
    Restart,
    /// Told to go, and still there.
    Leaving,
    /// Its node says nothing.
    Node,
    /// What is seen contradicts what was seen before.
    Hold,
}

/// What a pod says about its task.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Verdict {
    /// `None`: there is nothing to report yet.
    pub status: Option<TaskStatus>,
    /// Why, where it failed or was cancelled.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cause: Option<Cause>,
    /// Who answers for it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub class: Option<CauseClass>,
    /// Whether another attempt could end differently.
    #[serde(default)]
    pub retryable: bool,
    /// Whose end it is.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub container: Option<String>,
    /// Its exit code.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub exit_code: Option<i32>,
    /// The signal behind an exit code above 128.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub signal: Option<i32>,
    /// Whether the main container ever ran.
    #[serde(default)]
    pub started: bool,
    /// Whether somebody was ending the pod while it ended.
    #[serde(default)]
    pub disrupted: bool,
    /// Kubernetes' own word for it.
    #[serde(default)]
    pub reason: String,
    /// Kubernetes' or the container's own words, cut.
    #[serde(default)]
    pub message: String,
    /// More about the cause: `memory`, `disk` or `pid` of an eviction, `transient` of a pull.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub detail: Option<String>,
    /// Which row of the reason table gave it.
    pub rule: String,
    /// When it became so, by the pod's own times where it has them.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub since: Option<Timestamp>,
    /// What `next_check_at` counts from.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub clock: Option<Clock>,
    /// When that clock started.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub clock_since: Option<Timestamp>,
    /// What silence until `next_check_at` leads to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next_cause: Option<Cause>,
    /// When silence would change the answer.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next_check_at: Option<Timestamp>,
}

impl Verdict {
    /// Nothing follows it, for this pod.
    pub fn is_final(&self) -> bool {
        self.status.is_some_and(TaskStatus::is_final)
    }

    /// FlowForge's word for a pod that did not end by itself.
    pub fn terminated_reason(&self) -> Option<TerminatedReason> {
        self.cause.and_then(Cause::terminated_reason)
    }
}
