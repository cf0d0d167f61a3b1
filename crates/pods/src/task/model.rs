//! The task machine: what is kept, and what can happen. Where it leads is in [`super::table`].

use super::policy::{NoRetry, RetryPolicy, Tally};
use crate::{
    budget::BudgetTerms,
    is_default,
    pod::ForceAsk,
    report::PodName,
    verdict::{Cause, CauseClass, TaskStatus, Verdict},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tenure_kernel::{
    ids::EntityId,
    limits as kernel_limits,
    machine::{Cx, Decision, Input, Machine, Undecided},
    table::Table,
    time::Timestamp,
};

/// Limits of a task, by name.
pub mod limits {
    /// The template of its pod, as JSON.
    pub const TEMPLATE_BYTES_MAX: usize = 24 * 1024;
    /// What a container wrote as its result.
    pub const RESULT_BYTES_MAX: usize = 4 * 1024;
    /// Words of a verdict that are kept.
    pub const MESSAGE_BYTES_MAX: usize = 1024;
    /// Length of names and labels.
    pub const NAME_BYTES_MAX: usize = 253;
    /// Pods of earlier attempts that are remembered, where pods come from elsewhere.
    pub const PAST_PODS_MAX: usize = 8;
    /// Length of reasons that people and systems give.
    pub const WHY_BYTES_MAX: usize = 512;
}

/// Who is told how a task ended: by mail of this kind, whose body is `call` with `end`, `result` and `error` added.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Asker {
    /// To whom.
    pub to: EntityId,
    /// The kind of the mail.
    pub kind: String,
    /// What that entity needs to know the answer by.
    pub call: Map<String, Value>,
}

/// What becomes of pods that are over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CleanupWhen {
    /// Deleted when the attempt ended well; a failed one is left to be looked at.
    #[default]
    OnSuccess,
    /// Deleted in any case.
    Always,
    /// Left.
    Never,
}

/// When pods that are over are deleted. A pod that is *not* over when its attempt ends is stopped whatever this says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cleanup {
    /// Which.
    pub when: CleanupWhen,
    /// How long after the end.
    pub delay_ms: u64,
}

impl Cleanup {
    /// How long after the end of an attempt its pod is deleted; `None`: not at all.
    pub fn after(&self, ended_well: bool) -> Option<u64> {
        let cleans = match self.when {
            CleanupWhen::OnSuccess => ended_well,
            CleanupWhen::Always => true,
            CleanupWhen::Never => false,
        };
        cleans.then_some(self.delay_ms)
    }
}

/// What to do when nobody can know whether a pod still runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnLost {
    /// Wait until it is known to be over; if that does not become known in time, fail and say so.
    #[default]
    Wait,
    /// Replace it when the time to wait is up: running twice does no harm.
    Replace,
}

/// How long a task waits for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Times {
    /// A pod was asked for and did not run: the attempt fails. Longer than what the verdict waits for by itself.
    pub queued_ms: u64,
    /// A pod that may still run, before the next attempt: see [`OnLost`].
    pub fence_ms: u64,
    /// A cancelled task whose pod is not known to be over ends all the same.
    pub stop_ms: u64,
    /// Where pods come from elsewhere: how long after a failure the next one is waited for.
    pub next_pod_ms: u64,
    /// A pod is missing, and nobody has said how it ended: how long somebody who saw it is waited for before the end is taken from
    /// its absence.
    #[serde(skip_serializing_if = "is_usual_witness")]
    pub witness_ms: u64,
}

/// Longer than it takes until another sweeper speaks.
const WITNESS_MS: u64 = 30_000;

/// Left out of what is stored: servers of an earlier version read the same tasks.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "for serde")]
fn is_usual_witness(ms: &u64) -> bool {
    *ms == WITNESS_MS
}

impl Default for Times {
    fn default() -> Self {
        Times {
            queued_ms: 2 * 3_600_000,
            fence_ms: 30 * 60_000,
            stop_ms: 5 * 60_000,
            next_pod_ms: 3_600_000,
            witness_ms: WITNESS_MS,
        }
    }
}

/// What a new task is asked to be. The body of the wish, and the first event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NewTask {
    /// For people; a part of the pod's name.
    pub name: String,
    /// The label of the workflow: whatever the task belongs to.
    pub workflow_id: String,
    /// The label of the tenant.
    pub tenant_id: String,
    /// The label of the task, where it is not its id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// A pod (`metadata` and `spec`) as Kubernetes takes it. Without one, pods are made elsewhere and only watched.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub template: Value,
    /// Where its pods are made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Which executor takes it: the name of its cluster.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cluster: String,
    /// Which container is the task's; `main`, or the only one that is no sidecar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// How often and when it is tried again.
    pub retry: RetryPolicy,
    /// What the tenant's retries may cost together.
    pub budget: BudgetTerms,
    /// What becomes of its pods.
    pub cleanup: Cleanup,
    /// What to do about a pod that may still run.
    #[serde(skip_serializing_if = "is_default")]
    pub on_lost: OnLost,
    /// See [`Times`].
    pub times: Times,
    /// How long an attempt may run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// It ends by then, with all its attempts.
    pub must_end_in_ms: u64,
    /// Higher is sooner.
    #[serde(skip_serializing_if = "is_default")]
    pub priority: i16,
    /// Who is told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asker: Option<Asker>,
    /// Which task it repeats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<EntityId>,
}

/// How an attempt ended, as it is kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ended {
    /// See [`Verdict::status`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<TaskStatus>,
    /// See [`Verdict::cause`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// See [`Verdict::class`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<CauseClass>,
    /// See [`Verdict::container`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// See [`Verdict::exit_code`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// See [`Verdict::signal`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// See [`Verdict::started`].
    #[serde(skip_serializing_if = "is_default")]
    pub started: bool,
    /// See [`Verdict::disrupted`].
    #[serde(skip_serializing_if = "is_default")]
    pub disrupted: bool,
    /// See [`Verdict::reason`].
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// See [`Verdict::message`].
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// See [`Verdict::rule`].
    #[serde(skip_serializing_if = "String::is_empty")]
    pub rule: String,
    /// See [`Verdict::since`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// Nobody saw this end: the pod was missing, and no witness spoke in time.
    #[serde(skip_serializing_if = "is_default")]
    pub inferred: bool,
}

impl From<&Verdict> for Ended {
    fn from(v: &Verdict) -> Self {
        let clip = |s: &str| kernel_limits::clip(s, limits::MESSAGE_BYTES_MAX).to_owned();
        Ended {
            status: v.status,
            cause: v.cause,
            class: v.class,
            container: v.container.as_deref().map(clip),
            exit_code: v.exit_code,
            signal: v.signal,
            started: v.started,
            disrupted: v.disrupted,
            reason: clip(&v.reason),
            message: clip(&v.message),
            rule: clip(&v.rule),
            at: v.since,
            inferred: false,
        }
    }
}

impl Ended {
    /// Whether `late` is another end than this one, and not this one with more details.
    pub fn differs(&self, late: &Ended) -> bool {
        (self.status, self.cause) != (late.status, late.cause)
            || self.exit_code.is_some()
                && late.exit_code.is_some()
                && self.exit_code != late.exit_code
    }

    /// What is new in `late`, where nothing was known before.
    pub fn missing(&self, late: &Ended) -> bool {
        (self.inferred && !late.inferred)
            || (self.exit_code.is_none() && late.exit_code.is_some())
            || (self.message.is_empty() && !late.message.is_empty())
            || (self.reason.is_empty() && !late.reason.is_empty())
    }

    /// Takes details over where nothing was known; what was known stays. What was only inferred was not known.
    pub fn fill(&mut self, late: &Ended) {
        if self.inferred && !late.inferred {
            self.clone_from(late);
            return;
        }
        if self.exit_code.is_none() {
            (self.exit_code, self.signal) = (late.exit_code, late.signal);
            self.started |= late.started;
        }
        if self.message.is_empty() {
            self.message.clone_from(&late.message);
        }
        if self.reason.is_empty() {
            self.reason.clone_from(&late.reason);
        }
    }
}

/// Why somebody wants a task to end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelAsk {
    /// Who.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// What can happen to a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum TaskEvent {
    /// Born.
    TaskCreated(Box<NewTask>),
    /// An executor is asked for a pod.
    PodWanted {
        /// Which attempt, from 1.
        attempt: u32,
        /// The entity that stands for the pod.
        pod: EntityId,
    },
    /// A pod for the next attempt was seen that others made.
    PodSeen {
        /// Which attempt.
        attempt: u32,
        /// Which pod.
        pod: PodName,
    },
    /// The pod of the attempt exists.
    PodCreated {
        /// Which pod.
        pod: PodName,
    },
    /// The pod is missing, or somebody without proof says that it ended: how, as far as that can be inferred. It counts when nobody
    /// who saw the pod speaks in time.
    EndInferred {
        /// How.
        ended: Ended,
        /// Whether another attempt could be taken.
        retryable: bool,
        /// Whether the pod is known to be over.
        fenced: bool,
    },
    /// Its main container runs.
    TaskRunning {
        /// Since when, by the pod.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        since: Option<Timestamp>,
        /// Where.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<String>,
    },
    /// An attempt failed, and there will be another one.
    AttemptFailed {
        /// How.
        ended: Ended,
        /// Whether the pod is known to be over.
        fenced: bool,
        /// The pause before the next.
        pause_ms: u64,
    },
    /// The pod of the failed attempt is over.
    AttemptFenced {
        /// How that is known.
        how: String,
    },
    /// The object of its pod is about to be taken away by force: that it is gone proves nothing from now on.
    PodForced(ForceAsk),
    /// Details of an attempt's end came late.
    DetailsFilled {
        /// Which.
        late: Ended,
    },
    /// The pause is over.
    PauseOver {},
    /// The tenant's budget was asked.
    RetryAsked {},
    /// The budget has no room now.
    RetryDeferred {
        /// It is asked again after.
        after_ms: u64,
    },
    /// The budget allows it, from then on.
    RetryGranted {
        /// After.
        after_ms: u64,
    },
    /// Somebody wants it to end; its pod is being stopped.
    CancelAsked(CancelAsk),
    /// Something came that changes nothing.
    TaskNoted {
        /// What.
        what: String,
    },
    /// It ended well.
    TaskSucceeded {
        /// How.
        ended: Ended,
        /// What its container wrote.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        result: Option<String>,
    },
    /// It failed, and there is no further attempt.
    TaskFailed {
        /// How the last attempt ended.
        ended: Ended,
        /// Why there is no other.
        why: NoRetry,
        /// Whether the pod is known to be over.
        fenced: bool,
    },
    /// It was cancelled.
    TaskCanceled {
        /// By whom and why.
        ask: CancelAsk,
        /// How its pod ended, where that is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ended: Option<Ended>,
        /// Whether the pod is known to be over.
        fenced: bool,
    },
}

/// An end that nobody proved: see [`TaskEvent::EndInferred`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Inferred {
    /// How.
    pub ended: Ended,
    /// Whether another attempt could be taken.
    #[serde(skip_serializing_if = "is_default")]
    pub retryable: bool,
    /// Whether the pod is known to be over.
    #[serde(skip_serializing_if = "is_default")]
    pub fenced: bool,
}

/// What the head keeps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskState {
    /// See [`NewTask::name`].
    pub name: String,
    /// See [`NewTask::workflow_id`].
    pub workflow_id: String,
    /// See [`NewTask::tenant_id`].
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tenant_id: String,
    /// See [`NewTask::label`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Pods come from elsewhere.
    #[serde(skip_serializing_if = "is_default")]
    pub external: bool,
    /// See [`NewTask::namespace`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// See [`NewTask::cluster`].
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cluster: String,
    /// See [`NewTask::retry`].
    #[serde(skip_serializing_if = "is_default")]
    pub retry: RetryPolicy,
    /// See [`NewTask::budget`].
    #[serde(skip_serializing_if = "is_default")]
    pub budget: BudgetTerms,
    /// See [`NewTask::cleanup`].
    #[serde(skip_serializing_if = "is_default")]
    pub cleanup: Cleanup,
    /// See [`NewTask::on_lost`].
    #[serde(skip_serializing_if = "is_default")]
    pub on_lost: OnLost,
    /// See [`NewTask::times`].
    #[serde(skip_serializing_if = "is_default")]
    pub times: Times,
    /// See [`NewTask::timeout_ms`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// See [`NewTask::must_end_in_ms`].
    pub must_end_in_ms: u64,
    /// See [`NewTask::priority`].
    #[serde(skip_serializing_if = "is_default")]
    pub priority: i16,
    /// See [`NewTask::asker`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asker: Option<Asker>,
    /// See [`NewTask::retry_of`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<EntityId>,
    /// Which attempt it is at; 0 before the first.
    pub attempt: u32,
    /// The entity that stands for the attempt's pod, where an executor of ours makes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tended: Option<EntityId>,
    /// The attempt's pod, once it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodName>,
    /// The last pods of earlier attempts, where pods come from elsewhere and need not say which attempt they are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub past: Vec<String>,
    /// Since when it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running_since: Option<Timestamp>,
    /// How the attempt ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<Ended>,
    /// How the attempt seems to have ended, while somebody who saw it is waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inferred: Option<Inferred>,
    /// The pod of the ended attempt may still run.
    #[serde(skip_serializing_if = "is_default")]
    pub unfenced: bool,
    /// Its pod is taken away by force: that it is gone does not mean that it has ended.
    #[serde(skip_serializing_if = "is_default")]
    pub forced: bool,
    /// The pause before the next attempt is over.
    #[serde(skip_serializing_if = "is_default")]
    pub pause_over: bool,
    /// How often the budget was asked for the next attempt.
    #[serde(skip_serializing_if = "is_default")]
    pub asked: u32,
    /// How often the budget had no room for it.
    #[serde(skip_serializing_if = "is_default")]
    pub deferred: u32,
    /// The budget has a place for the attempt.
    #[serde(skip_serializing_if = "is_default")]
    pub in_budget: bool,
    /// What failed so far.
    #[serde(skip_serializing_if = "is_default")]
    pub tally: Tally,
    /// Somebody wants it to end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel: Option<CancelAsk>,
    /// Why there was no further attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_retry: Option<NoRetry>,
    /// What its container wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
}

/// The task machine.
#[derive(Debug)]
pub struct Task;

impl Machine for Task {
    type State = TaskState;
    type Event = TaskEvent;
    const TABLE: &'static Table = &super::table::TABLE;
    const CREATED_BY: &'static [&'static str] = &["job"];
    const REPORTS_TO: Option<&'static str> = Some("/asker/to");

    fn name(event: &TaskEvent) -> &'static str {
        match event {
            TaskEvent::TaskCreated(_) => "task_created",
            TaskEvent::PodWanted { .. } => "pod_wanted",
            TaskEvent::PodSeen { .. } => "pod_seen",
            TaskEvent::PodCreated { .. } => "pod_created",
            TaskEvent::EndInferred { .. } => "end_inferred",
            TaskEvent::TaskRunning { .. } => "task_running",
            TaskEvent::AttemptFailed { .. } => "attempt_failed",
            TaskEvent::AttemptFenced { .. } => "attempt_fenced",
            TaskEvent::PodForced(_) => "pod_forced",
            TaskEvent::DetailsFilled { .. } => "details_filled",
            TaskEvent::PauseOver {} => "pause_over",
            TaskEvent::RetryAsked {} => "retry_asked",
            TaskEvent::RetryDeferred { .. } => "retry_deferred",
            TaskEvent::RetryGranted { .. } => "retry_granted",
            TaskEvent::CancelAsked(_) => "cancel_asked",
            TaskEvent::TaskNoted { .. } => "task_noted",
            TaskEvent::TaskSucceeded { .. } => "task_succeeded",
            TaskEvent::TaskFailed { .. } => "task_failed",
            TaskEvent::TaskCanceled { .. } => "task_canceled",
        }
    }

    /// What became of a pod was told to nobody while nobody heard it. The pause before a retry is a moment.
    fn judges(timer: &str) -> bool {
        use super::decide::timers;
        let all = [
            timers::QUEUED,
            timers::RUN,
            timers::FENCE,
            timers::STOP,
            timers::NEXT_POD,
            timers::WITNESS,
        ];
        all.contains(&timer)
    }

    fn apply(state: &mut TaskState, event: &TaskEvent) {
        match event {
            TaskEvent::TaskCreated(new) => *state = TaskState::born(new),
            TaskEvent::PodWanted { attempt, pod } => {
                state.begin(*attempt);
                state.tended = Some(*pod);
            }
            TaskEvent::PodSeen { attempt, pod } => {
                state.begin(*attempt);
                state.pod = Some(pod.clone());
            }
            TaskEvent::PodCreated { pod } => state.pod = Some(pod.clone()),
            TaskEvent::EndInferred { ended, retryable, fenced } => {
                let ended = ended.clone();
                state.inferred = Some(Inferred { ended, retryable: *retryable, fenced: *fenced });
            }
            TaskEvent::TaskRunning { since, node } => {
                state.running_since = *since;
                if let (Some(pod), Some(node)) = (&mut state.pod, node) {
                    pod.node = Some(node.clone());
                }
            }
            TaskEvent::AttemptFailed { ended, fenced, .. } => {
                let class = ended.class.unwrap_or(CauseClass::App);
                state.tally.count(class, ended.cause);
                state.ended = Some(ended.clone());
                state.inferred = None;
                state.unfenced = !fenced;
                state.in_budget = false;
            }
            TaskEvent::AttemptFenced { .. } => state.unfenced = false,
            TaskEvent::PodForced(_) => state.forced = true,
            TaskEvent::DetailsFilled { late } => {
                if let Some(ended) = &mut state.ended {
                    ended.fill(late);
                }
            }
            TaskEvent::PauseOver {} => state.pause_over = true,
            TaskEvent::RetryAsked {} => state.asked += 1,
            TaskEvent::RetryDeferred { .. } => state.deferred += 1,
            TaskEvent::RetryGranted { .. } => state.in_budget = true,
            TaskEvent::CancelAsked(ask) => state.cancel = Some(ask.clone()),
            TaskEvent::TaskNoted { .. } => {}
            TaskEvent::TaskSucceeded { ended, result } => {
                state.ended = Some(ended.clone());
                state.inferred = None;
                state.unfenced = false;
                state.result.clone_from(result);
            }
            TaskEvent::TaskFailed { ended, why, fenced } => {
                // The end of an attempt that was counted before is not counted again.
                if state.ended.is_none() {
                    state.tally.count(ended.class.unwrap_or(CauseClass::App), ended.cause);
                }
                state.ended = Some(ended.clone());
                state.inferred = None;
                state.no_retry = Some(*why);
                state.unfenced = !fenced;
            }
            TaskEvent::TaskCanceled { ask, ended, fenced } => {
                state.cancel = Some(ask.clone());
                if ended.is_some() {
                    state.ended.clone_from(ended);
                }
                state.inferred = None;
                state.unfenced = !fenced;
            }
        }
    }

    fn decide(
        state: Option<&TaskState>,
        input: &Input<'_>,
        cx: &Cx,
    ) -> Result<Decision<TaskEvent>, Undecided> {
        super::decide::decide(state, input, cx)
    }
}

impl TaskState {
    fn born(new: &NewTask) -> Self {
        TaskState {
            name: new.name.clone(),
            workflow_id: new.workflow_id.clone(),
            tenant_id: new.tenant_id.clone(),
            label: new.label.clone(),
            external: new.template.is_null(),
            namespace: new.namespace.clone(),
            cluster: new.cluster.clone(),
            retry: new.retry.clone(),
            budget: new.budget,
            cleanup: new.cleanup,
            on_lost: new.on_lost,
            times: new.times,
            timeout_ms: new.timeout_ms,
            must_end_in_ms: new.must_end_in_ms,
            priority: new.priority,
            asker: new.asker.clone(),
            retry_of: new.retry_of,
            ..TaskState::default()
        }
    }

    fn begin(&mut self, attempt: u32) {
        self.attempt = attempt;
        if let Some(pod) = self.pod.take().filter(|p| self.external && !p.uid.is_empty()) {
            self.past.push(pod.uid);
            let surplus = self.past.len().saturating_sub(limits::PAST_PODS_MAX);
            self.past.drain(..surplus);
        }
        (self.tended, self.running_since, self.ended) = (None, None, None);
        self.inferred = None;
        (self.unfenced, self.forced) = (false, false);
        (self.pause_over, self.asked, self.deferred) = (false, 0, 0);
    }
}

/// The entity that stands for the pod of an attempt. It follows from the task and the number, so that an attempt that
/// is decided twice is one pod.
pub fn tended_id(task: EntityId, attempt: u32) -> EntityId {
    EntityId::derived(task, &format!("pod/{attempt}"), Timestamp::from_micros(time_of(task)))
}

/// The moment in a time-ordered id; of an id that is none, some number.
fn time_of(id: EntityId) -> i64 {
    let bytes = id.as_bytes();
    let millis = bytes[..6].iter().fold(0i64, |n, b| (n << 8) | i64::from(*b));
    millis.saturating_mul(1_000)
}
