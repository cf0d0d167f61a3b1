//! The reason table: every word by which Kubernetes says why a pod is where it is, and what we make of it.
//!
//! A row says where the word stands, what it is, and sometimes what its text has to have in it, because some words are used for
//! several things: `Evicted` is a full node, a full disk quota of the pod's own, and a node that never took the pod. The first
//! row that fits counts, so the narrow ones stand before the wide ones. Rows of an operator (`pods.reasons`) stand before all.
//!
//! Rows at [`Place::Rule`] are not looked up by a word: code in `judge` finds them. They are here so that every verdict names
//! a row, the page `docs/pods/reasons.md` is complete, and the tests can ask for a fixture of each.

use super::{
    policy::Said,
    words::{Cause, CauseClass, Clock},
};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, sync::LazyLock};

/// Where a word stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// `state.waiting.reason` of a container.
    Waiting,
    /// `state.terminated.reason` of a container.
    Terminated,
    /// `status.reason` of the pod.
    Status,
    /// The reason of the condition `DisruptionTarget`, while its status is `True`.
    Condition,
    /// Nowhere: a rule in code.
    #[serde(skip_deserializing)]
    Rule,
}

/// How long a row is waited for before it counts; the values are in the policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Grace {
    /// It counts at once.
    #[default]
    None,
    /// `schedule_timeout_seconds`
    Schedule,
    /// `start_timeout_seconds`
    Start,
    /// `image_pull_grace_seconds`
    Image,
    /// `image_pull_long_grace_seconds`
    ImageLong,
    /// `config_grace_seconds`
    Config,
    /// `create_grace_seconds`
    Create,
    /// `restart_timeout_seconds`
    Restart,
    /// `terminating_grace_seconds`
    Terminating,
    /// `node_lost_grace_seconds`
    Node,
}

impl Grace {
    /// The setting that has its length.
    pub fn key(self) -> Option<&'static str> {
        match self {
            Grace::None => None,
            Grace::Schedule => Some("schedule_timeout_seconds"),
            Grace::Start => Some("start_timeout_seconds"),
            Grace::Image => Some("image_pull_grace_seconds"),
            Grace::ImageLong => Some("image_pull_long_grace_seconds"),
            Grace::Config => Some("config_grace_seconds"),
            Grace::Create => Some("create_grace_seconds"),
            Grace::Restart => Some("restart_timeout_seconds"),
            Grace::Terminating => Some("terminating_grace_seconds"),
            Grace::Node => Some("node_lost_grace_seconds"),
        }
    }
}

/// One row.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Its name, which a verdict carries as `rule`.
    #[serde(default)]
    pub id: String,
    /// Where the word stands.
    #[serde(rename = "where")]
    pub place: Place,
    /// The word; with `*` at its end, everything that begins with it.
    pub reason: String,
    /// One of these has to be in the text, if there are any: in any case of letters; `*` between parts that follow each
    /// other; `=` before a word that has to stand alone.
    #[serde(default)]
    pub message: Vec<String>,
    /// One of these has to be the exit code, if there are any.
    #[serde(default)]
    pub exit_codes: Vec<i32>,
    /// What it means; none: it is no failure.
    pub cause: Option<Cause>,
    /// Who answers for it; what the cause says, if not given.
    #[serde(default)]
    pub class: Option<CauseClass>,
    /// Whether another attempt could end differently; what the cause says, if not given.
    #[serde(default)]
    pub retryable: Option<bool>,
    /// How long it is waited for, in an operator's row.
    #[serde(default)]
    pub grace_seconds: Option<u64>,
    /// How long it is waited for, in the table.
    #[serde(skip)]
    pub grace: Grace,
    /// Whether names in the text are passed over: an image called `timeout-proxy` says nothing about its registry.
    #[serde(skip)]
    pub past_names: bool,
    /// More about the cause.
    #[serde(default)]
    pub detail: Option<String>,
    /// What one should know about it.
    #[serde(skip)]
    pub note: &'static str,
}

impl Row {
    /// Whether it speaks of this.
    pub fn fits(&self, said: &Said<'_>) -> bool {
        let reason = match self.reason.strip_suffix('*') {
            Some(start) => said.reason.starts_with(start),
            None => self.reason == said.reason,
        };
        self.place == said.place
            && reason
            && (self.exit_codes.is_empty()
                || said.exit_code.is_some_and(|code| self.exit_codes.contains(&code)))
            && (self.message.is_empty() || self.speaks_of(said.message))
    }

    fn speaks_of(&self, text: &str) -> bool {
        let text = if self.past_names { without_names(text) } else { Cow::Borrowed(text) };
        self.message.iter().any(|p| is_in(p, &text))
    }

    /// Its name.
    pub fn rule(&self) -> Cow<'_, str> {
        match self.id.is_empty() {
            true => Cow::Owned(format!("pods.reasons:{}", self.reason)),
            false => Cow::Borrowed(&self.id),
        }
    }

    /// Who answers for it.
    pub fn class(&self) -> Option<CauseClass> {
        self.class.or(self.cause.map(Cause::class))
    }

    /// Whether another attempt could end differently.
    pub fn retryable(&self) -> bool {
        self.retryable.unwrap_or(self.cause.is_some_and(Cause::retryable))
    }

    /// The clock of a row that is waited for: what is alike shares one, and changing words does not start it over.
    pub fn clock(&self) -> Clock {
        match (self.grace, self.cause) {
            (Grace::Schedule, _) => Clock::Schedule,
            (Grace::Start, _) => Clock::Start,
            (Grace::Restart, _) => Clock::Restart,
            (Grace::Terminating, _) => Clock::Leaving,
            (Grace::Node, _) => Clock::Node,
            (_, Some(Cause::ImagePull | Cause::ImageInvalid)) => Clock::Image,
            (_, Some(Cause::Config)) => Clock::Config,
            _ => Clock::Create,
        }
    }

    /// What is wrong with an operator's row.
    pub fn problem(&self) -> Option<String> {
        let at = format!("the row for {:?}", self.reason);
        if self.reason.is_empty() {
            return Some("a row has an empty `reason`: give Kubernetes' word, or *".to_owned());
        }
        if self.reason.trim_end_matches('*').contains('*') || self.reason.ends_with("**") {
            return Some(format!("{at} has a * that is not at its end"));
        }
        if self.message.iter().any(|m| m.trim_matches(['*', '=']).is_empty()) {
            return Some(format!("{at} has an empty `message`: leave it away to take every text"));
        }
        if !self.exit_codes.is_empty() && self.place != Place::Terminated {
            return Some(format!("{at} has `exit_codes`, which only fit where = \"terminated\""));
        }
        if self.grace_seconds.is_some() && self.place != Place::Waiting {
            return Some(format!("{at} has `grace_seconds`, which only fit where = \"waiting\""));
        }
        let cancels = matches!(self.cause, Some(Cause::UserCancel | Cause::QueueCancel));
        if cancels || self.cause.is_none() {
            return Some(format!(
                "{at} needs a `cause` of a failure: a cancellation or a success is never read from a reason"
            ));
        }
        None
    }
}

/// Whether a pattern is in a text, whatever the case of letters.
fn is_in(pattern: &str, text: &str) -> bool {
    if let Some(word) = pattern.strip_prefix('=') {
        return word_is_in(word, text);
    }
    let mut rest = text;
    pattern.split('*').all(|part| match find(part, rest) {
        // `find` gives a place in ASCII that was compared byte by byte, so the end of the part is a boundary.
        Some(at) => {
            rest = rest.get(at + part.len()..).unwrap_or("");
            true
        }
        None => false,
    })
}

/// A text without the names in it: of images, repositories and addresses. A name is a word with a `/`, one in quotes, one with a `:`
/// inside it, or one that is joined with `-` or `_`.
fn without_names(text: &str) -> Cow<'_, str> {
    let is_name = |word: &str| {
        let bare = word.trim_end_matches([',', '.', ';', ':', ')']);
        bare != "i/o"
            && (bare.contains(['/', '_', '@'])
                || bare.contains('-') && !bare.starts_with('-')
                || bare.contains(':')
                || bare.len() > 1 && bare.starts_with(['"', '\'']) && bare.ends_with(['"', '\'']))
    };
    let words: Vec<&str> = text.split(' ').filter(|w| !is_name(w)).collect();
    Cow::Owned(words.join(" "))
}

/// Status codes stand in texts beside tags, ports and digests, which are full of digits.
fn word_is_in(word: &str, text: &str) -> bool {
    let bytes = text.as_bytes();
    let mut from = 0;
    while let Some(at) = text.get(from..).and_then(|rest| find(word, rest)) {
        let (start, end) = (from + at, from + at + word.len());
        let before = start.checked_sub(1).and_then(|i| bytes.get(i));
        let after = bytes.get(end);
        let opens = before.is_none_or(|b| matches!(b, b' ' | b'(' | b'[' | b'"' | b'\'' | b'='));
        if opens && after.is_none_or(|b| !b.is_ascii_alphanumeric() && *b != b'-') {
            return true;
        }
        from = end;
    }
    false
}

fn find(part: &str, text: &str) -> Option<usize> {
    if part.is_empty() {
        return Some(0);
    }
    let (part, text) = (part.as_bytes(), text.as_bytes());
    text.windows(part.len()).position(|window| window.eq_ignore_ascii_case(part))
}

/// Names of the rows that code finds.
pub mod id {
    macro_rules! ids {
        ($($name:ident = $text:literal),* $(,)?) => {
            $(#[doc = concat!("`", $text, "`")] pub const $name: &str = $text;)*
            /// All of them.
            #[cfg(test)]
            pub const ALL: &[&str] = &[$($name),*];
        };
    }
    ids! {
        CANCEL = "cancel/annotation",
        QUEUE_CANCEL = "cancel/TerminationTarget",
        RUNNING = "main/running",
        PHASE_RUNNING = "phase/Running",
        UNSCHEDULABLE = "scheduling/Unschedulable",
        SCHEDULER_ERROR = "scheduling/SchedulerError",
        NOT_SCHEDULED = "scheduling/none",
        GATED = "scheduling/SchedulingGated",
        INIT_FAILED = "init/failed",
        OWN_INIT_FAILED = "init/own-failed",
        INTERRUPTED = "success/interrupted",
        UNPROVEN = "success/unproven",
        TRUSTED = "success/phase",
        UNEXPLAINED = "phase/Failed",
        RESTARTING = "restart/pending",
        TERMINATING = "silence/terminating",
        NODE_SILENT = "silence/node",
        NODE_MISSING = "silence/node-missing",
        OUT_OF_SERVICE = "silence/out-of-service",
        PHASE_UNKNOWN = "phase/Unknown",
        REGRESSION = "hold/regression",
        DELETED = "deleted/external",
        DELETED_UNSCHEDULED = "deleted/unscheduled",
        STOPPED = "deleted/stopped",
        STOPPED_TIMEOUT = "deleted/stopped-timeout",
    }
}

/// A row that code finds. A test sees to it that each name has one.
pub(super) fn rule(name: &str) -> &'static Row {
    TABLE.iter().find(|row| row.id == name).unwrap_or(&TABLE[0])
}

/// What registries and kubelets say when trying again will probably help.
pub const TRANSIENT: &[&str] = &[
    "=429",
    "toomanyrequests",
    "too many requests",
    "rate limit",
    "QPS",
    "=500",
    "=502",
    "=503",
    "=504",
    "=520",
    "=522",
    "=524",
    "internal server error",
    "bad gateway",
    "service unavailable",
    "server misbehaving",
    "timeout",
    "timed out",
    "deadline exceeded",
    "connection refused",
    "connection reset",
    "network is unreachable",
    "no route to host",
    "temporary failure",
    "unexpected EOF",
    "code = Unavailable",
];

/// The whole table, in the order in which it is looked through.
pub static TABLE: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let mut rows = waiting();
    rows.extend(terminated());
    rows.extend(status());
    rows.extend(condition());
    rows.extend(rules());
    rows
});

fn row(place: Place, reason: &str, cause: Cause) -> Row {
    let prefix = match place {
        Place::Waiting => "waiting",
        Place::Terminated => "terminated",
        Place::Status => "status",
        Place::Condition => "condition",
        Place::Rule => "",
    };
    let id = match (place, reason) {
        (Place::Rule, _) => reason.to_owned(),
        (_, "") => format!("{prefix}/none"),
        (_, "*") => format!("{prefix}/other"),
        _ => format!("{prefix}/{reason}"),
    };
    Row {
        id,
        place,
        reason: reason.to_owned(),
        message: Vec::new(),
        exit_codes: Vec::new(),
        cause: Some(cause),
        class: None,
        retryable: None,
        grace_seconds: None,
        grace: Grace::None,
        past_names: false,
        detail: None,
        note: "",
    }
}

impl Row {
    fn grace(self, grace: Grace) -> Row {
        Row { grace, ..self }
    }
    fn note(self, note: &'static str) -> Row {
        Row { note, ..self }
    }
    /// Narrowed to texts with one of these in them; the name gets a second half.
    fn saying(self, what: &str, texts: &[&str]) -> Row {
        let message = texts.iter().map(|t| (*t).to_owned()).collect();
        Row { id: format!("{}:{what}", self.id), message, ..self }
    }
    fn past_names(self) -> Row {
        Row { past_names: true, ..self }
    }
    fn class_of(self, class: CauseClass) -> Row {
        Row { class: Some(class), ..self }
    }
    fn detail(self, detail: &str) -> Row {
        Row { detail: Some(detail.to_owned()), ..self }
    }
    fn well(self, exit_codes: &[i32]) -> Row {
        Row { cause: None, exit_codes: exit_codes.to_vec(), ..self }
    }
}

fn waiting() -> Vec<Row> {
    use Cause::*;
    let w = |reason: &str, cause| row(Place::Waiting, reason, cause);
    let mut rows = vec![
        w("", StartTimeout)
            .grace(Grace::Start)
            .note("no container status yet: the kubelet has not spoken"),
        w("ContainerCreating", StartTimeout).grace(Grace::Start).note(
            "sandbox, network, volumes and the first pull happen here; their troubles are events only",
        ),
        w("PodInitializing", StartTimeout).grace(Grace::Start).note("init containers run"),
    ];
    for word in ["ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError"] {
        rows.push(
            w(word, ImagePull)
                .grace(Grace::ImageLong)
                .saying("transient", TRANSIENT)
                .past_names()
                .detail("transient")
                .note("the registry is overloaded or away, or the kubelet holds itself back"),
        );
        rows.push(w(word, ImagePull).grace(Grace::Image).note(match word {
            "ErrImagePull" => "the first failure; alternates with ImagePullBackOff on one clock",
            "ImagePullBackOff" => "a kubelet before 1.32 says no more than that it waits; then the text before it counts",
            "RegistryUnavailable" => "older kubelets",
            _ => "the runtime can not look at what it pulled",
        }));
    }
    rows.extend([
        w("SignatureValidationFailed", ImagePull)
            .grace(Grace::Image)
            .note("the runtime's policy refuses the image's signature"),
        w("InvalidImageName", ImageInvalid).note("nothing will make this name valid"),
        w("ErrImageNeverPull", ImageInvalid)
            .note("not on the node, and the pull policy is Never"),
        w("CreateContainerConfigError", Config)
            .grace(Grace::Create)
            .saying("subPath", &["subPath"])
            .note("a subPath on a volume that is not ready yet heals by itself"),
        w("CreateContainerConfigError", Config)
            .grace(Grace::Config)
            .note("a Secret, ConfigMap or key is missing"),
        w("CreateContainerError", CreateContainer)
            .grace(Grace::ImageLong)
            .saying("deadline", &["deadline exceeded", "timeout", "is reserved for"])
            .past_names()
            .note("a slow runtime; it goes on with the same container"),
        w("CreateContainerError", CreateContainer).grace(Grace::Create),
        w("PreCreateHookError", CreateContainer).grace(Grace::Create),
        w("RunContainerError", StartError)
            .note("ends as terminated StartError or ContainerCannotRun"),
        w("PreStartHookError", StartError),
        w("PostStartHookError", StartError).note("the kubelet kills the container for it"),
        w("CrashLoopBackOff", CrashLoop).grace(Grace::Restart).note(
            "counts when restarts reach crash_loop_restarts; before that the task runs. Class oom where the last end was OOMKilled",
        ),
        w("*", StartTimeout).grace(Grace::Start).note("words that this table does not know"),
    ]);
    rows
}

fn terminated() -> Vec<Row> {
    use Cause::*;
    let t = |reason: &str, cause| row(Place::Terminated, reason, cause);
    vec![
        t("OOMKilled", Oom).note(
            "with any exit code, also 0: a child was killed and the main process ended well, and phase may be Succeeded",
        ),
        t("ContainerStatusUnknown", Lost)
            .note("137 is the kubelet's invention here, and says nothing about memory"),
        t("StartError", StartError).note("exit code 127 or 128; it never ran"),
        t("ContainerCannotRun", StartError).note("the same, from Docker"),
        t("RunContainerError", StartError),
        t("PreStartHookError", StartError),
        t("PostStartHookError", StartError),
        t("Error", AppError).note(
            "unless the pod was being ended: then status.reason, DisruptionTarget or the deletion says why",
        ),
        t("Completed", AppError).well(&[0]).note("the proof of success"),
        t("*", AppError).well(&[0]).saying_nothing("exit-0"),
        t("*", AppError).note("any other code: the runtime gave no reason, or one of its own"),
    ]
}

impl Row {
    fn saying_nothing(self, what: &str) -> Row {
        Row { id: format!("terminated/{what}"), ..self }
    }
}

fn status() -> Vec<Row> {
    use Cause::*;
    let s = |reason: &str, cause| row(Place::Status, reason, cause);
    let mut rows = vec![
        s("Evicted", EvictedNodePressure)
            .saying("low-on-resource", &["low on resource"])
            .note("detail: memory, disk or pid"),
        s("Evicted", RejectedPressure)
            .saying("node-condition", &["had condition"])
            .note("admission: it never started"),
        s("Evicted", EvictedOwnLimit)
            .saying("own-limit", &["exceed*limit"])
            .note("an emptyDir or ephemeral storage above its own limit; no DisruptionTarget"),
        s("Evicted", EvictedNodePressure).note("a text that we do not know"),
        s("Preempting", Preempted).note("the kubelet made room for a critical pod"),
        s("OutOf*", RejectedCapacity)
            .note("OutOfcpu, OutOfmemory, OutOfpods, …: admission after a race; it never started"),
        s("UnexpectedAdmissionError", RejectedDevice)
            .note("a device plugin, often after a reboot; it never started"),
    ];
    for word in ["NodeAffinity", "NodeName", "NodePorts", "TaintToleration"] {
        rows.push(s(word, RejectedNode).note("the node does not fit any more; it never started"));
    }
    rows.push(s("NodeShutdown", RejectedNode).note("it came while the node was shutting down"));
    for word in ["TopologyAffinityError", "SMTAlignmentError"] {
        rows.push(s(word, RejectedTopology).note("the node could not align its resources"));
    }
    for word in [
        "AppArmor",
        "SysctlForbidden",
        "PodOSNotSupported",
        "PodFeatureUnsupported",
        "PodLevelResourcesNotSupported",
    ] {
        rows.push(s(word, RejectedSpec).note("no node of this kind will take it"));
    }
    rows.push(Row {
        retryable: Some(true),
        ..s("VolumeAttachmentLimitExceeded", RejectedSpec)
            .class_of(CauseClass::Infra)
            .note("another node, or a later moment, has room")
    });
    rows.extend([
        s("Terminated", NodeShutdown).note("\"imminent node shutdown\", since 1.22"),
        s("Shutdown", NodeShutdown).note("the same, in 1.20 and 1.21"),
        s("NodeLost", NodeLost)
            .grace(Grace::Node)
            .note("legacy; counts at once where the pod has no time to count from"),
        s("DeadlineExceeded", Timeout).note("activeDeadlineSeconds of the pod"),
        s("ProviderFailed", Provider).note("a virtual kubelet"),
        s("*", RejectedNode)
            .saying("rejected", &["Pod was rejected"])
            .note("admission by a kubelet newer than this table; it never started"),
    ]);
    rows
}

fn condition() -> Vec<Row> {
    use Cause::*;
    let c = |reason: &str, cause| row(Place::Condition, reason, cause);
    let kubelet = "TerminationByKubelet";
    vec![
        c("PreemptionByScheduler", Preempted),
        c("EvictionByEvictionAPI", EvictedApi).note("a drain; status.reason stays empty"),
        c("DeletionByTaintManager", EvictedTaint)
            .note("where the pod ended; one that does not end is silence/terminating"),
        c("DeletionByDeviceTaintManager", EvictedTaint),
        c("DeletionByPodGC", NodeGone)
            .note("the node object is gone: the pod is marked Failed, then deleted"),
        c(kubelet, NodeShutdown).saying("shutdown", &["node shutdown", "shutting down"]),
        c(kubelet, Preempted).saying("critical", &["critical pod", "preempt"]),
        c(kubelet, EvictedNodePressure)
            .note("detail: memory, disk or pid; also where status.reason is missing"),
        c("*", EvictedApi).note("whoever disrupts pods with a word of its own"),
    ]
}

fn rules() -> Vec<Row> {
    use Cause::*;
    let r = |name: &str, cause| row(Place::Rule, name, cause);
    let fine = |name: &str| Row { cause: None, ..row(Place::Rule, name, AppError) };
    vec![
        r(id::CANCEL, UserCancel).note("CANCELED: our marker is on the pod, whatever else it says"),
        r(id::QUEUE_CANCEL, QueueCancel)
            .note("CANCELED: a queueing system's condition TerminationTarget is True"),
        fine(id::RUNNING).note("RUNNING: the main container runs"),
        fine(id::PHASE_RUNNING).note("RUNNING by phase, where there are no container statuses"),
        r(id::UNSCHEDULABLE, ScheduleTimeout)
            .grace(Grace::Schedule)
            .note("PodScheduled=False, Unschedulable"),
        r(id::SCHEDULER_ERROR, ScheduleTimeout)
            .grace(Grace::Schedule)
            .note("PodScheduled=False, SchedulerError"),
        r(id::NOT_SCHEDULED, ScheduleTimeout)
            .grace(Grace::Schedule)
            .note("no node, and the scheduler has said nothing we know"),
        fine(id::GATED).note("a queueing system holds it: no clock runs"),
        r(id::INIT_FAILED, InitFailed).note("an init container ended with another code than 0"),
        r(id::OWN_INIT_FAILED, InitFailed)
            .class_of(CauseClass::Infra)
            .note("one of `own_init`: it is ours, not the task's"),
        r(id::INTERRUPTED, Interrupted)
            .note("exit code 0 under disruption, with success_under_disruption = \"failed\""),
        r(id::UNPROVEN, Lost).note(
            "phase Succeeded, and a status of the main container that says otherwise; or none, with success_without_proof = \"lost\"",
        ),
        fine(id::TRUSTED)
            .note("SUCCEEDED by phase alone, where there are no container statuses"),
        r(id::UNEXPLAINED, Lost).note("phase Failed, and nothing that says why"),
        r(id::RESTARTING, CrashLoop)
            .grace(Grace::Restart)
            .note("the main container ended and its restart policy starts it again"),
        r(id::TERMINATING, NodeLost).grace(Grace::Terminating).note(
            "deletionTimestamp passed long ago, and the node is lost: unready and driven out by its taint, or silent. Without such a sign: what the pod says of itself, else `deleted/external`. It may still run either way, so it has to be fenced",
        ),
        r(id::NODE_SILENT, NodeLost).grace(Grace::Node).note(
            "the node is Unknown, or the pod's Ready became False without a reason, as only the node controller writes it",
        ),
        r(id::NODE_MISSING, NodeLost)
            .grace(Grace::Terminating)
            .note("there is no such node any more"),
        r(id::OUT_OF_SERVICE, NodeLost)
            .note("an administrator said so: node.kubernetes.io/out-of-service"),
        r(id::PHASE_UNKNOWN, NodeLost)
            .grace(Grace::Node)
            .note("phase Unknown, which no current Kubernetes writes: the last state is held"),
        r(id::REGRESSION, Lost)
            .grace(Grace::Node)
            .note("it ran, and now it reads as if it never had: the last state is held"),
        r(id::DELETED, DeletedExternally).note("deleted before its end, without a marker"),
        r(id::DELETED_UNSCHEDULED, DeletedExternally)
            .note("being deleted without a node: it can never run"),
        r(id::STOPPED, UserCancel).note(
            "CANCELED: deleted before its end, with our mark `flowforge.io/stopped`: it was replaced, or nobody waited for it any more",
        ),
        r(id::STOPPED_TIMEOUT, Timeout)
            .note("the same with the mark `timeout`: its task had given it no more time"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_row_has_a_name_of_its_own_and_every_rule_in_code_has_a_row() {
        let names: BTreeSet<&str> = TABLE.iter().map(|r| r.id.as_str()).collect();
        assert_eq!(names.len(), TABLE.len());
        let rules: BTreeSet<&str> =
            TABLE.iter().filter(|r| r.place == Place::Rule).map(|r| r.id.as_str()).collect();
        assert_eq!(rules, id::ALL.iter().copied().collect());
    }

    #[test]
    fn a_status_code_is_a_word_and_no_part_of_a_tag_a_port_or_a_digest() {
        for text in ["HTTP 503", "unexpected status: 503 Service Unavailable", "(503)", "code=503."]
        {
            assert!(is_in("=503", text), "{text}");
        }
        for text in ["registry:503/x", "sha256:a503b", "image:v1.503", "5030", "503-alpine"] {
            assert!(!is_in("=503", text), "{text}");
        }
    }

    #[test]
    fn names_in_a_text_say_nothing_about_a_registry() {
        let transient = |text: &str| {
            let row = TABLE.iter().find(|r| r.id == "waiting/ImagePullBackOff:transient").unwrap();
            row.speaks_of(text)
        };
        for text in [
            r#"Back-off pulling image "reg/timeout-svc:1": ErrImagePull: not found"#,
            r#"Back-off pulling image "timeout:1": ErrImagePull: timeout:1: not found"#,
            "pull access denied for timeout-svc, repository does not exist",
            "docker.io/library/qps-meter@sha256:503: not found",
        ] {
            assert!(!transient(text), "{text}");
        }
        for text in [
            r#"Back-off pulling image "reg/x:1": ErrImagePull: dial tcp 10.0.0.1:443: i/o timeout"#,
            r#"Get "https://reg/v2/": net/http: request canceled (Client.Timeout exceeded while awaiting headers)"#,
            "Get https://reg/v2/: net/http: TLS handshake timeout",
            "unexpected status from HEAD request to https://reg/v2/x: 503 Service Unavailable",
            "toomanyrequests: You have reached your pull rate limit",
            "pull QPS exceeded",
            "429 Too Many Requests - Server message: slow down",
            "rpc error: code = Unavailable desc = error reading from server: EOF",
            "context deadline exceeded",
        ] {
            assert!(transient(text), "{text}");
        }
    }

    #[test]
    fn a_pattern_with_a_star_takes_its_parts_in_order() {
        assert!(is_in("exceed*limit", "Usage of EmptyDir volume \"x\" EXCEEDS the limit \"1Gi\""));
        assert!(!is_in("exceed*limit", "the limit was not exceeded"));
        assert!(!is_in("limit", "lim\u{f6}it"));
    }
}
