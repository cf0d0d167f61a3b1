//! How answers look, for the OpenAPI document. They are made by `tenure-pods`, which knows nothing of HTTP, so their form
//! is said here once more; a test compares the names of the fields with what is really sent. Moments are microseconds
//! since 1970 of the store's clock.

use super::read::TaskAnswer;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

/// A task that was ordered.
#[derive(Serialize)]
pub(super) struct AnsweredTask {
    #[serde(flatten)]
    pub(super) answer: TaskAnswer,
    /// It was there already.
    pub(super) existed: bool,
}

/// Which pod.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct TaskPodDocument {
    /// Its namespace.
    namespace: String,
    /// Its name.
    name: String,
    /// Its uid.
    uid: String,
    /// Its node.
    node: Option<String>,
}

/// How an attempt ended.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct TaskEndedDocument {
    /// SUCCEEDED, FAILED or CANCELED.
    status: Option<String>,
    /// Why, by the reason table: oom, image_pull, evicted_node_pressure, …
    cause: Option<String>,
    /// Who answers for it: app, oom, infra, config, image, timeout, cancelled, lost, deleted.
    class: Option<String>,
    /// Whose end it is.
    container: Option<String>,
    /// Its exit code.
    exit_code: Option<i32>,
    /// The signal behind it.
    signal: Option<i32>,
    /// Whether the main container ever ran.
    started: Option<bool>,
    /// Whether somebody was ending the pod while it ended.
    disrupted: Option<bool>,
    /// Kubernetes' own word.
    reason: Option<String>,
    /// Kubernetes' or the container's own words.
    message: Option<String>,
    /// Which row of the reason table, or rule of the task, gave it.
    rule: Option<String>,
    /// When, by the pod.
    at: Option<i64>,
    /// Nobody saw this end: the pod was missing, and no witness spoke in time.
    inferred: Option<bool>,
}

/// What was proven about an end after it was on record.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct TaskProofDocument {
    /// How the pod ended.
    ended: TaskEndedDocument,
    /// Who saw it.
    by: String,
    /// When it was said.
    at: i64,
}

/// Where a task stands.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct TaskDocument {
    /// Which task.
    id: String,
    /// The text by which its pods name it.
    task_id: String,
    /// For people.
    name: String,
    /// What it belongs to.
    workflow_id: String,
    /// Whose it is.
    tenant: String,
    /// PENDING, QUEUED, RUNNING, RETRYING, SUCCEEDED, FAILED or CANCELED.
    status: String,
    /// It has ended.
    is_final: bool,
    /// Its pods are made elsewhere, and only watched.
    external: bool,
    /// Which executors take it; empty for the default ones.
    cluster: String,
    /// Where its pods are made, where it says so.
    namespace: Option<String>,
    /// Which attempt it is at; 0 before the first.
    attempt: u32,
    /// Attempts in all that it may have.
    attempts_max: u32,
    /// The pod of the attempt.
    pod: Option<TaskPodDocument>,
    /// Since when its main container runs.
    running_since: Option<i64>,
    /// How the last attempt that is over ended.
    ended: Option<TaskEndedDocument>,
    /// What somebody who saw its pod said about its end when another end was on record already. The status stays.
    proof: Option<TaskProofDocument>,
    /// How the attempt seems to have ended, while somebody who saw its pod is waited for (rule task_witness).
    inferred: Option<TaskEndedDocument>,
    /// The pod of the ended attempt may still run.
    pod_may_run: bool,
    /// What the next attempt waits for: pause, old_pod, budget, start or other_pod.
    waits_for: Option<String>,
    /// How often the tenant's budget put the next attempt off.
    deferred: u32,
    /// Failed attempts: `classes`, `rejected_capacity`.
    failed: Value,
    /// Why there was no further attempt: not_retryable, class_spent, capacity_threshold, attempts_spent, not_fenced,
    /// deadline, no_pod_came.
    no_retry: Option<String>,
    /// Who wants it to end: `by`, `why`.
    cancel: Option<Value>,
    /// What its container wrote, if it ended well.
    result: Option<String>,
    /// Which task it repeats.
    retry_of: Option<String>,
    /// When it was ordered.
    created_at: i64,
    /// When it changed last.
    changed_at: i64,
    /// When it ends, whatever happens.
    must_end_by: Option<i64>,
    /// Rules whose clocks run, the next first: `rule`, `at`.
    next_rules: Vec<Value>,
    /// Mail that nobody has read yet.
    mail_unread: u64,
    /// The executor's part: `id`, `status`, `executor`, `name`, `made`, `over`, `told_to_go`, `force_asked`, `waits_for` and
    /// `waits_why` (what the cluster does not do yet, in one word and in its own), `warnings` (of the API server), `log_bytes`, `queue`.
    tended: Option<Value>,
    /// Why nobody can decide about it.
    fault: Option<String>,
    /// Why it is where it is, and what moves it.
    why: String,
}

/// A task that was ordered. Has the fields of a task, and one more.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct TaskOrderedDocument {
    #[schema(inline)]
    #[serde(flatten)]
    task: TaskDocument,
    /// It was there already, under the same key and with the same content.
    existed: bool,
}

/// One attempt.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct TaskAttemptDocument {
    /// From 1.
    attempt: u32,
    /// The pod.
    pod: Option<TaskPodDocument>,
    /// The executor's part.
    tended: Option<String>,
    /// How that stands.
    executor: Option<Value>,
    /// When the pod was asked for, or first seen.
    begun_at: Option<i64>,
    /// When its main container was seen to run.
    running_at: Option<i64>,
    /// When its end was recorded.
    ended_at: Option<i64>,
    /// Its verdict.
    ended: Option<TaskEndedDocument>,
    /// Details of it came after the end.
    filled_in: bool,
    /// What somebody who saw the pod said about its end when another end was on record already.
    proof: Option<TaskProofDocument>,
    /// Whether the pod is known to be over.
    pod_over: bool,
    /// How that became known, where it was not with the end.
    fenced: Option<String>,
    /// The pause before the next attempt.
    pause_ms: Option<u64>,
    /// How often the tenant's budget put the next attempt off.
    deferred: u32,
    /// Why there was no next one.
    no_retry: Option<String>,
}

/// Something that happened.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct TaskEntryDocument {
    /// Its place in the history.
    version: Option<u64>,
    /// When.
    at: i64,
    /// The event.
    event: String,
    /// order, task, executor, collector, budget, rule, person or kernel.
    by: String,
    /// The rule, or the row of the reason table.
    rule: Option<String>,
    /// In words.
    text: String,
}

/// A task with its attempts. Has the fields of a task, and more.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct TaskDetailDocument {
    #[schema(inline)]
    #[serde(flatten)]
    task: TaskDocument,
    /// What was ordered: template, retry policy, budget, times.
    order: Option<Value>,
    /// Its attempts, in order.
    attempts: Vec<TaskAttemptDocument>,
    /// It failed, and nobody has dealt with it.
    dead_letter: bool,
    /// Who put it aside.
    discarded_by: Option<String>,
    /// The task that repeats it.
    replayed_as: Option<String>,
    /// What happened, in order.
    timeline: Vec<TaskEntryDocument>,
}

/// A page of tasks.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct TaskPageDocument {
    /// The newest first.
    tasks: Vec<TaskDocument>,
    /// `before` of the next page; `null` on the last.
    next: Option<String>,
}

/// The sentence about a task.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct TaskWhyDocument {
    /// Which task.
    id: String,
    /// The text by which its pods name it.
    task_id: String,
    /// Where it stands.
    status: String,
    /// The sentence.
    why: String,
}

/// What happened to a task.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct TaskTimelineDocument {
    /// Which task.
    id: String,
    /// Where it stands.
    status: String,
    /// The sentence about it.
    why: String,
    /// What happened, in order.
    timeline: Vec<TaskEntryDocument>,
}

/// A stretch of a log.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct TaskLogDocument {
    /// Of which attempt.
    attempt: u32,
    /// What was written.
    text: String,
    /// `from` of the next stretch.
    next: u64,
    /// There is more to be read at once.
    more: bool,
    /// Lines are missing after this: the log is longer than what is kept.
    cut: bool,
    /// The last lines of a log that is longer than what is kept.
    tail: Option<String>,
    /// Nothing more will come.
    over: bool,
    /// Why the log cannot be read, or could not to its end. An empty text is not an empty log then.
    trouble: Option<String>,
}

/// What became of an ask.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct TaskAskDocument {
    /// Which task.
    task: String,
    /// accepted or already.
    outcome: String,
}

/// What was seen of a pod.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct TaskReportDocument {
    /// The label `flowforge.io/task-id`.
    task_id: String,
    /// The label `flowforge.io/workflow-id`.
    workflow_id: Option<String>,
    /// The label `flowforge.io/tenant-id`; empty: the tenant of whoever reports.
    tenant_id: Option<String>,
    /// Which pod.
    pod: TaskPodDocument,
    /// The label `flowforge.io/attempt`.
    attempt: Option<u32>,
    /// status, cause, class, retryable, container, exit_code, signal, started, disrupted, reason, message, rule, since.
    verdict: Value,
    /// No container of the task runs in this pod any more, and none will.
    over: Option<bool>,
    /// The pod object is gone.
    gone: Option<bool>,
    /// The end is inferred: the object is missing, and the last state of it that the reporter saw may be older than its end. The task
    /// then waits for a report of somebody who saw it (rule task_witness).
    inferred: Option<bool>,
    /// Why the pod did not end by itself, if it did not: user_cancel, system_eviction, external_delete or node_lost.
    terminated_reason: Option<String>,
    /// What the main container wrote as its termination message, if it ended well.
    result: Option<String>,
    /// When it was seen, by the collector's clock: microseconds since 1970.
    seen_at: i64,
    /// Who saw it.
    collector: Option<String>,
}

/// What became of a report.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct TaskReportAnswerDocument {
    /// Two reports under one key say the same.
    key: String,
    /// accepted, duplicate, final, adopted or refused.
    outcome: String,
    /// Why it was not accepted.
    why: Option<String>,
}

/// What became of reports, in order.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct TaskReportsDocument {
    /// One for each.
    answers: Vec<TaskReportAnswerDocument>,
}

/// The budget of a tenant.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct TaskBudgetDocument {
    /// Whose.
    tenant: String,
    /// Retries that may start in a minute.
    per_minute: u32,
    /// How many of them at once, after a quiet time.
    burst: u32,
    /// Retried attempts under way at once, at most.
    in_flight_max: u32,
    /// Who said so; `null`: the server's settings.
    set_by: Option<String>,
    /// Retries that could start now.
    tokens: u32,
    /// Retried attempts under way.
    in_flight: u32,
    /// Places given so far.
    granted: u64,
    /// How often a task was told to ask again later.
    deferred: u64,
    /// The tasks that have a place.
    tasks: Vec<String>,
}

/// The budgets that tasks have asked so far.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct TaskBudgetsDocument {
    /// By tenant.
    budgets: Vec<TaskBudgetDocument>,
}
