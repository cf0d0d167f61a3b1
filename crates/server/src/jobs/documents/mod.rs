//! How answers look, for the OpenAPI document. They are made by `tenure-jobs`, which knows nothing of HTTP, so
//! their form is said here once more; a test compares the names of the fields with what is really sent.
//! Moments are microseconds since 1970 of the store's clock.

mod shared;
mod told;

pub(in crate::jobs) use shared::*;
pub(in crate::jobs) use told::*;

use serde_json::Value;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Where a job stands.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct JobDocument {
    /// Which job.
    id: String,
    /// Its flow.
    flow: String,
    /// The flow's version.
    version: u32,
    /// The key under which it was submitted.
    key: Option<String>,
    /// Names with values, by which people find it.
    labels: BTreeMap<String, String>,
    /// queued, running, waiting, parked, retrying, attention, cancelling, undoing, completed, failed or cancelled.
    status: String,
    /// It has ended.
    is_final: bool,
    /// Whose it is.
    tenant: String,
    /// Higher is sooner.
    #[schema(minimum = -32768, maximum = 32767)]
    priority: i16,
    /// When it was created.
    created_at: i64,
    /// When it changed last.
    changed_at: i64,
    /// When it ends, whatever happens.
    must_end_by: Option<i64>,
    /// When somebody looks at it next, at the latest.
    due: Option<i64>,
    /// Its input; `null` in listings where it is large.
    input: Option<Value>,
    /// What it returned; `null` in listings where it is large.
    output: Option<Value>,
    /// Why it failed: `reason`, `error`, `step`, `unknown`.
    failure: Option<Value>,
    /// It failed, and what it had done was undone before, as far as possible.
    undid: bool,
    /// Why a person has to look: `reason`, `step`, `why`.
    attention: Option<Value>,
    /// Why the engine can not decide about it.
    fault: Option<String>,
    /// Who wanted it to end, and why.
    cancel: Option<Value>,
    /// Who holds it: `session`, `name`, `expires_at`.
    holder: Option<Value>,
    /// Live workers that may claim it, where somebody looked.
    workers: Option<u32>,
    /// What an operator has blocked of what it needs; where somebody looked.
    blocked: Option<String>,
    /// Its epoch.
    attempt: u64,
    /// Workers that were lost while they held it, since the last step that ended.
    takeovers: u32,
    /// How many may be lost.
    takeovers_max: u32,
    /// When it starts, where its time has not come.
    starts_at: Option<i64>,
    /// The gate it waits for: `name`, `before`, `held_by`, `limit`.
    gate: Option<Value>,
    /// Its ready queue, where that is not the flow's own.
    queue: Option<String>,
    /// Somebody paused it.
    paused: bool,
    /// Who paused it.
    paused_by: Option<String>,
    /// Calls that run: `step`, `tool`, `class`, `call`, `key`, `unknown`.
    running: Vec<Value>,
    /// What it waits for: `step`, `kind`, `key`, `deadline`, `note`.
    waits: Vec<Value>,
    /// Sleeps, retries and waits for limits: `step`, `why`, `at`, `attempts`, `error`; of limits `tool`, `limit_of`, `about`.
    timers: Vec<Value>,
    /// Children that have not ended: `ordinal`, `job`, `step`.
    children: Vec<Value>,
    /// Mail that nobody has read yet.
    mail_unread: u64,
    /// The finished job that this one tries again.
    retry_of: Option<String>,
    /// The job whose history it goes on from: `job`, `step`.
    forked_from: Option<Value>,
    /// Who waits for it: `job`, `ordinal`.
    parent: Option<Value>,
    /// How often its flow was started afresh, from 1.
    run: u32,
    /// Steps that are over.
    steps_done: u32,
    /// Events of this run.
    events: u32,
    /// Version of its last event.
    head_version: u64,
    /// Why it is where it is, and what moves it.
    why: Option<String>,
}

/// A job that was submitted. Has the fields of a job, and one more.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct SubmittedDocument {
    #[schema(inline)]
    #[serde(flatten)]
    job: JobDocument,
    /// It was there already, under the same key and with the same input.
    existed: bool,
}

/// What became of a submission: a job, or one of those that are collected for one (`batch`, `debounce`).
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, clippy::large_enum_variant, reason = "only its schema is used")]
pub(super) enum SubmissionDocument {
    Job(SubmittedDocument),
    Collected(CollectedDocument),
}

/// A page of jobs.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct PageDocument {
    /// The newest first.
    jobs: Vec<JobDocument>,
    /// `before` of the next page; `null` on the last.
    next: Option<String>,
}

/// A step with its calls.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct StepDocument {
    /// Its id.
    step: String,
    /// tool, value, wait, sleep or child.
    kind: String,
    /// What it is, in words.
    shape: String,
    /// The tool, the flow of a child, the key of a wait, or the name of a value.
    of: String,
    /// open, ok, failed or unknown.
    outcome: String,
    /// When it began.
    started: i64,
    /// When its outcome was recorded.
    finished: Option<i64>,
    /// Attempts that are over.
    attempts: u32,
    /// `key`, `ordinal`, `call`, `epoch`, `class`, `started`, `ended`, `state`, `note`.
    calls: Vec<Value>,
    /// Where the flow asked for it.
    place: String,
    /// The result type of its last attempt, for tools.
    result_type: Option<Value>,
    /// How a wait ended.
    answered: Option<Value>,
    /// The beginning of a tool's arguments.
    arguments: Option<String>,
    /// Pauses of a sleep or between attempts: from, until when, and whether it fired.
    pauses: Vec<Value>,
    /// Until when a wait waits.
    deadline: Option<i64>,
    /// What a person should know about a wait.
    note: Option<String>,
    /// The child.
    child: Option<String>,
    /// Taken over from another job.
    copied: bool,
    /// The beginning of its result.
    result: Option<String>,
    /// Why it failed.
    error: Option<String>,
}

/// One sentence.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct WhyDocument {
    /// Which job.
    id: String,
    /// Its status.
    status: String,
    /// Why it is where it is, and what moves it.
    why: String,
}

/// A page of events.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(crate) struct EventsDocument {
    /// In order.
    events: Vec<EventDocument>,
    /// `from` of the next page; `null` on the last.
    next: Option<u64>,
}

/// An event.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct EventDocument {
    /// Its place in the stream, from 1.
    version: u64,
    /// When.
    at: i64,
    /// Under which epoch.
    epoch: u64,
    /// Its name.
    name: String,
    /// What it says.
    body: Value,
    /// The session that took the job with this commit.
    took: Option<String>,
}

/// What became of a signal.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct SignalledDocument {
    /// Which job.
    job: String,
    /// The key.
    key: String,
    /// completed, kept, duplicate or unread.
    outcome: String,
}

/// What became of an ask.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct AskedDocument {
    /// Which job.
    job: String,
    /// accepted or already; for a settlement also duplicate or recorded_after_the_end.
    outcome: String,
    /// Of a settlement: the step.
    step: Option<String>,
}

/// A flow or a tool.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct EntryDocument {
    /// flow or tool.
    sort: String,
    /// Its name.
    name: String,
    /// Whose tool it is, where only workers of one tenant take calls of it.
    tenant: Option<String>,
    /// Oldest first: `version`, `doc`, `class`, `input_schema`, `output_schema`.
    versions: Vec<Value>,
}

/// Somebody who is alive.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct SessionDocument {
    /// Which session.
    id: String,
    /// Who, for people.
    name: String,
    /// worker or server.
    role: String,
    /// How long a renewal lasts.
    lease_ms: u64,
    /// When it was heard last.
    renewed_at: i64,
    /// Until when it is believed alive.
    expires_at: i64,
    /// How many entities it holds.
    holds: usize,
    /// `id`, `flow`, `version`, `status`, `epoch`, `mark`, `running`.
    jobs: Vec<Value>,
}
