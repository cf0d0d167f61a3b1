//! The pod machine: what is kept, and what can happen.

use crate::{is_default, report::PodName, task::model::Ended};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tenure_kernel::{
    ids::EntityId,
    machine::{Cx, Decision, Input, Machine, Undecided},
    table::Table,
    time::Timestamp,
};

/// The kind of the mail with which a task says what becomes of a pod: [`PodStop`].
pub const POD_STOP: &str = "pod_stop";
/// The kind of the mail that lets a pod that does not go be taken away by force: [`ForceAsk`].
pub const POD_FORCE: &str = "pod_force";
/// The kind of the mail with which an executor speaks to a task: [`PodWord`].
pub const POD_WORD: &str = "pod_word";

/// Limits of a pod, by name.
pub mod limits {
    /// What one event of a log may carry.
    pub const LOG_CHUNK_BYTES_MAX: usize = 16 * 1024;
    /// What is kept of a pod's log from its beginning; then only the last lines are, with its end.
    pub const LOG_BYTES_MAX: u64 = 512 * 1024;
    /// The last lines that are kept with the end.
    pub const LOG_TAIL_BYTES: usize = 8 * 1024;
    /// Warnings of the API server about one pod that are kept.
    pub const WARNINGS_MAX: usize = 8;
    /// Length of such a warning, and of what a pod waits for.
    pub const WORDS_BYTES_MAX: usize = 512;
}

/// What an executor is asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NewPod {
    /// Whose pod it is. Its template is in the task's history.
    pub task: EntityId,
    /// Which attempt.
    pub attempt: u32,
    /// The task's name.
    pub name: String,
    /// Label.
    pub workflow_id: String,
    /// Label.
    pub tenant_id: String,
    /// The label of the task, where it is not its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Where; the executor's own default otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Which cluster.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cluster: String,
    /// Higher is sooner.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: i16,
    /// It is given up by then.
    pub must_end_in_ms: u64,
}

/// Why a pod is let go of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopWhy {
    /// It is over and recorded.
    Over,
    /// Somebody cancelled the task.
    Cancel,
    /// It ran too long.
    Timeout,
    /// The attempt has failed while the pod may still run: there will be another, or none.
    Replaced,
}

impl StopWhy {
    /// As it is written on the pod.
    pub const fn name(self) -> &'static str {
        match self {
            StopWhy::Over => "over",
            StopWhy::Cancel => "cancel",
            StopWhy::Timeout => "timeout",
            StopWhy::Replaced => "replaced",
        }
    }
}

/// What becomes of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodStop {
    /// Why.
    pub why: StopWhy,
    /// When it is deleted; `None`: it is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_after_ms: Option<u64>,
}

/// Who bears it that the object of a pod is taken away while its containers may run on, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ForceAsk {
    /// The person; nobody where the task itself said so (`on_lost: replace`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Why.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// What an executor says to a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PodWord {
    /// About which attempt.
    pub attempt: u32,
    /// What.
    #[serde(flatten)]
    pub says: Says,
}

/// What an executor says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "says", rename_all = "snake_case")]
pub enum Says {
    /// The pod exists.
    Created {
        /// Which.
        pod: PodName,
    },
    /// A queueing system holds it back: that is not a start that takes too long. Said again as long as it is so.
    Gated {},
    /// The API server will not have it.
    Refused {
        /// Why.
        ended: Ended,
        /// Whether another attempt could be taken.
        retryable: bool,
    },
    /// Its object is about to be taken away by force: that it is gone proves nothing from now on.
    Forced(ForceAsk),
    /// There is no such pod, or not any more.
    Gone {
        /// How that is known.
        how: String,
        /// It was taken away by force, and nobody has seen its containers end: they may run on.
        #[serde(default, skip_serializing_if = "is_default")]
        unproven: bool,
    },
}

/// The name under which a pod is made, on record before it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begun {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// What can happen to a pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum PodEvent {
    /// An executor is wanted.
    PodOrdered(Box<NewPod>),
    /// The API server is about to be asked.
    PodBegun(Begun),
    /// The pod exists: made, or found.
    PodMade {
        /// Its uid.
        uid: String,
        /// It had been made before, by an executor that did not come to say so.
        #[serde(default, skip_serializing_if = "is_default")]
        adopted: bool,
    },
    /// The cluster does not do what it is asked for, and is asked again.
    PodWaits {
        /// In one word: `quota`, `forbidden`, `webhook`, …
        what: String,
        /// In the cluster's words.
        why: String,
    },
    /// The API server took the pod, with warnings.
    PodWarned {
        /// Its words.
        warnings: Vec<String>,
    },
    /// Its log cannot be read.
    LogUnread {
        /// Why.
        why: String,
    },
    /// A piece of its log.
    LogAppended {
        /// As it was written; what is no UTF-8 is replaced.
        text: String,
        /// The time stamp of its last line, from which it is read on.
        until: Timestamp,
        /// Lines are missing after it: the log is longer than what is kept.
        #[serde(default, skip_serializing_if = "is_default")]
        cut: bool,
    },
    /// Nothing of it runs any more.
    PodOver {
        /// The last lines of its log, where the log was longer than what is kept.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        tail: String,
    },
    /// What becomes of it.
    StopAsked(PodStop),
    /// The reason stands on the pod, which is deleted now.
    PodMarked {},
    /// It may be taken away by force, if it does not go.
    ForceAsked(ForceAsk),
    /// Its object is about to be taken away, whatever its node says.
    PodForced {},
    /// It is left for a while, and then deleted.
    PodKept {
        /// For how long.
        for_ms: u64,
    },
    /// It is to be deleted now.
    CleanDue {},
    /// Mail that changes nothing.
    PodNoted {
        /// What.
        what: String,
    },
    /// There is no such pod any more.
    PodCleared {
        /// How that is known.
        how: String,
    },
    /// It is left where it is.
    PodLeft {},
    /// It was never made: the API server will not have it, or nobody wants it any more.
    PodNotMade {
        /// Why.
        why: String,
    },
    /// Nobody could say what became of it, in all that time.
    PodAbandoned {},
}

/// What the head keeps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodState {
    /// What was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<NewPod>,
    /// See [`Begun`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub begun: Option<Begun>,
    /// Its uid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// How much of its log was kept.
    #[serde(skip_serializing_if = "is_default")]
    pub log_bytes: u64,
    /// Up to when its log was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_until: Option<Timestamp>,
    /// Nothing more of its log is kept.
    #[serde(skip_serializing_if = "is_default")]
    pub log_cut: bool,
    /// What it waits for: in one word, and in the cluster's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<(String, String)>,
    /// What the API server warned of when it took the pod.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Why its log cannot be read, or could not to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_trouble: Option<String>,
    /// Nothing of it runs any more.
    #[serde(skip_serializing_if = "is_default")]
    pub over: bool,
    /// What becomes of it; the last word counts, and *now* before *later*.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<PodStop>,
    /// The reason stands on it.
    #[serde(skip_serializing_if = "is_default")]
    pub marked: bool,
    /// It may be taken away by force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub force: Option<ForceAsk>,
    /// It was, or is about to be: that it is gone proves nothing.
    #[serde(skip_serializing_if = "is_default")]
    pub forced: bool,
}

impl PodState {
    /// It is to go at once, whatever of it still runs.
    pub fn is_told_to_go(&self) -> bool {
        self.stop.is_some_and(|stop| stop.delete_after_ms == Some(0))
    }
}

/// The pod machine.
#[derive(Debug)]
pub struct Pod;

impl Machine for Pod {
    type State = PodState;
    type Event = PodEvent;
    const TABLE: &'static Table = &super::table::TABLE;
    const CREATED_BY: &'static [&'static str] = &["task"];
    const REPORTS_TO: Option<&'static str> = Some("/task");
    const REPORTS_TO_IN_STATE: Option<&'static str> = Some("/new/task");

    fn name(event: &PodEvent) -> &'static str {
        match event {
            PodEvent::PodOrdered(_) => "pod_ordered",
            PodEvent::PodBegun(_) => "pod_begun",
            PodEvent::PodMade { .. } => "pod_made",
            PodEvent::PodWaits { .. } => "pod_waits",
            PodEvent::PodWarned { .. } => "pod_warned",
            PodEvent::LogUnread { .. } => "log_unread",
            PodEvent::LogAppended { .. } => "log_appended",
            PodEvent::PodOver { .. } => "pod_over",
            PodEvent::StopAsked(_) => "stop_asked",
            PodEvent::PodMarked {} => "pod_marked",
            PodEvent::ForceAsked(_) => "force_asked",
            PodEvent::PodForced {} => "pod_forced",
            PodEvent::PodKept { .. } => "pod_kept",
            PodEvent::CleanDue {} => "clean_due",
            PodEvent::PodNoted { .. } => "pod_noted",
            PodEvent::PodCleared { .. } => "pod_cleared",
            PodEvent::PodLeft {} => "pod_left",
            PodEvent::PodNotMade { .. } => "pod_not_made",
            PodEvent::PodAbandoned {} => "pod_abandoned",
        }
    }

    fn apply(state: &mut PodState, event: &PodEvent) {
        match event {
            PodEvent::PodOrdered(new) => {
                *state = PodState { new: Some((**new).clone()), ..PodState::default() };
            }
            PodEvent::PodBegun(begun) => state.begun = Some(begun.clone()),
            PodEvent::PodMade { uid, .. } => {
                state.uid = Some(uid.clone());
                state.waits = None;
            }
            PodEvent::PodWaits { what, why } => state.waits = Some((what.clone(), why.clone())),
            PodEvent::PodWarned { warnings } => state.warnings.clone_from(warnings),
            PodEvent::LogUnread { why } => state.log_trouble = Some(why.clone()),
            PodEvent::LogAppended { text, until, cut } => {
                state.log_trouble = None;
                state.log_bytes += text.len() as u64;
                state.log_until = Some(*until);
                state.log_cut |= cut;
            }
            PodEvent::PodOver { .. } => state.over = true,
            PodEvent::StopAsked(stop) => {
                state.stop = Some(*stop);
                state.waits = None;
            }
            PodEvent::PodMarked {} => {
                state.marked = true;
                state.waits = None;
            }
            PodEvent::ForceAsked(ask) => state.force = Some(ask.clone()),
            PodEvent::PodForced {} => state.forced = true,
            PodEvent::CleanDue {} => {
                if let Some(stop) = &mut state.stop {
                    stop.delete_after_ms = Some(0);
                }
            }
            PodEvent::PodKept { .. }
            | PodEvent::PodNoted { .. }
            | PodEvent::PodCleared { .. }
            | PodEvent::PodLeft {}
            | PodEvent::PodNotMade { .. }
            | PodEvent::PodAbandoned {} => {}
        }
    }

    fn decide(
        state: Option<&PodState>,
        input: &Input<'_>,
        cx: &Cx,
    ) -> Result<Decision<PodEvent>, Undecided> {
        super::decide::decide(state, input, cx)
    }
}

/// The queue from which executors of a cluster take pods.
pub fn queue_of(cluster: &str) -> String {
    match cluster {
        "" => "pods".to_owned(),
        cluster => format!("pods@{cluster}"),
    }
}

/// The name of an attempt's pod.
pub fn pod_name(new: &NewPod) -> String {
    name_of_attempt(new.task, new.attempt, &new.workflow_id, &new.name)
}

/// The name of an attempt's pod: readable, valid in Kubernetes, and never that of another attempt. It follows from the task,
/// so that the task, too, knows which pod may speak for it.
pub fn name_of_attempt(task: EntityId, attempt: u32, workflow_id: &str, name: &str) -> String {
    let plain = |text: &str, max: usize| {
        let lower = text.to_ascii_lowercase();
        let ok = lower.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' });
        let text: String = ok.take(max).collect();
        text.trim_matches('-').to_owned()
    };
    let hash =
        Sha256::new().chain_update(task.as_bytes()).chain_update(attempt.to_be_bytes()).finalize();
    let tag: String = hash[..4].iter().map(|b| format!("{b:02x}")).collect();
    let parts = [plain(workflow_id, 8), plain(name, 30)];
    let parts: Vec<&str> = parts.iter().map(String::as_str).filter(|p| !p.is_empty()).collect();
    let middle = if parts.is_empty() { "task".to_owned() } else { parts.join("-") };
    format!("ff-{middle}-{attempt}-{tag}")
}
