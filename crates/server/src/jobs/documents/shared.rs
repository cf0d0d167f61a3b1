//! What jobs share: queues, gates, batches, limits and schedules.

use serde_json::Value;
use utoipa::ToSchema;

/// A ready queue.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(in crate::jobs) struct QueueDocument {
    /// Its whole name: `flow@version`, then `/queue` and `+label`.
    queue: String,
    /// The flow with its version.
    flow: String,
    /// The name that jobs give.
    named: Option<String>,
    /// What its jobs need.
    needs: Vec<String>,
    /// Jobs that wait here; at least so many unless `counted_all`.
    depth: u64,
    /// Nothing was left out of the count.
    counted_all: bool,
    /// Since when the one waits that waits for longest.
    oldest: Option<i64>,
    /// The same by tenant and priority.
    groups: Vec<QueueGroupDocument>,
    /// Live workers that serve it; null where that is not known.
    workers: Option<u64>,
    /// Those of them that may be named.
    served_by: Vec<QueueServerDocument>,
}

/// What one tenant has in a queue under one priority.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(in crate::jobs) struct QueueGroupDocument {
    /// Whose.
    tenant: String,
    /// How urgent.
    #[schema(minimum = -32768, maximum = 32767)]
    priority: i16,
    /// How many.
    depth: u64,
    /// Since when the oldest waits.
    oldest: Option<i64>,
}

/// A worker that serves a queue.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(in crate::jobs) struct QueueServerDocument {
    /// Its session.
    session: String,
    /// Its name.
    name: String,
}

/// Queues.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(in crate::jobs) struct QueuesDocument {
    /// With jobs that wait, or with a worker that serves them.
    queues: Vec<QueueDocument>,
    /// No other queue has jobs that wait.
    complete: bool,
}

/// What was said about a gate.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(in crate::jobs) struct GateSetDocument {
    /// Its name.
    name: String,
    /// Whose.
    tenant: String,
    /// Jobs at once.
    limit: u32,
}

/// A gate.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(in crate::jobs) struct GateDocument {
    /// Its name, within the tenant.
    name: String,
    /// Whose.
    tenant: String,
    /// Jobs at once.
    limit: u32,
    /// The person who said so; without one it is what the first job asked for.
    set_by: Option<String>,
    /// That person is of no tenant, and only such a one changes it; false without it.
    by_operator: Option<bool>,
    /// Jobs that have a permit.
    holders: Vec<GateStandingDocument>,
    /// Everybody in the line.
    waiting: u64,
    /// The first of them, in the order in which they pass.
    next: Vec<GateStandingDocument>,
    /// Permits given so far.
    granted: u64,
}

/// A job at a gate.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(in crate::jobs) struct GateStandingDocument {
    /// The job.
    job: String,
    /// Since when it stands there.
    since: i64,
    /// Its priority; none once it has a permit.
    priority: Option<i16>,
}

/// Gates.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(in crate::jobs) struct GatesDocument {
    /// All that the caller may see.
    gates: Vec<GateDocument>,
    /// Where the next page begins.
    next: Option<String>,
}

/// A submission that is collected.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(in crate::jobs) struct CollectedDocument {
    /// The batch.
    batch: String,
    /// The submission in it.
    item: String,
    /// It was there already, under the same key.
    existed: bool,
}

/// Submissions that are collected.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(in crate::jobs) struct BatchDocument {
    /// Which batch.
    id: String,
    /// Whose it is.
    tenant: String,
    /// The flow of its jobs.
    flow: String,
    /// The key.
    key: String,
    /// Submissions that are collected and no job yet.
    open: u32,
    /// Submissions that are not taken in yet.
    unread: u64,
    /// By when they become one, if nothing more comes.
    closes_at: Option<i64>,
    /// Jobs made so far.
    generation: u64,
    /// The last jobs, the newest first.
    made: Vec<BatchMadeDocument>,
    /// Why a person should look.
    attention: Option<String>,
}

/// A page of batches.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(in crate::jobs) struct BatchPageDocument {
    /// The newest first.
    batches: Vec<BatchDocument>,
    /// `before` of the next page; `null` on the last.
    next: Option<String>,
}

/// A job of a batch.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(in crate::jobs) struct BatchMadeDocument {
    /// The job.
    job: String,
    /// Its number, from 1.
    generation: u64,
    /// Submissions that it stands for.
    items: u32,
    /// When it was closed.
    at: i64,
    /// full, bytes, time or overtaken.
    why: String,
}

/// A rate limit.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(in crate::jobs) struct LimitDocument {
    /// Which.
    id: String,
    /// The tool.
    tool: String,
    /// Whose calls; `*` for all together, `*/each` for each tenant by itself.
    tenant: String,
    /// So many calls …
    count: u32,
    /// … in this time.
    per_ms: u64,
    /// So many at once, after a silence.
    burst: u32,
    /// The most tokens that a worker takes at once.
    block: u32,
    /// Somebody of no tenant set it, and only such a one changes it; false without it.
    by_operator: Option<bool>,
    /// It is, or follows from, the limit for each tenant: as that was set for the so-manieth time.
    from_each: Option<u64>,
    /// Tokens given out so far.
    taken: u64,
    /// About when a call that comes now would begin, at the latest: behind the longest line. Later than now: calls wait.
    free_at: Option<i64>,
    /// For how long a call that comes now would wait.
    wait_ms: u64,
    /// Places in its lines to which nobody has come yet. Some of those who took them may be gone, and steps that wait behind
    /// another one of their job have none.
    waiting: u64,
}

/// Who waits for the limits of a tool. Jobs that wait in a worker, for a few seconds at most, are not among them.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(in crate::jobs) struct LimitWaitingDocument {
    /// Steps that stand in a line, those whose turn comes first before the others.
    steps: Vec<WaitingStepDocument>,
    /// Calls of the tool in the queue of the workers that take them: a limit may hold them back, or there may be nobody to
    /// take them.
    calls: u64,
    /// Everything was looked at. If not, there may be more.
    complete: bool,
}

/// A step that waits for a limit.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(in crate::jobs) struct WaitingStepDocument {
    /// Its job.
    job: String,
    /// Whose job it is.
    tenant: String,
    /// The step.
    step: String,
    /// Whose limit it waits for: a tenant, or `*` for the one for all together.
    limit_of: Option<String>,
    /// About when its turn comes.
    about: Option<i64>,
    /// When it asks next.
    asks_at: Option<i64>,
}

/// Rate limits.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(in crate::jobs) struct LimitsDocument {
    /// All that hold the caller's calls back.
    limits: Vec<LimitDocument>,
}

/// A schedule.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(in crate::jobs) struct ScheduleDocument {
    /// Which.
    id: String,
    /// Its name.
    name: String,
    /// Whose it is.
    tenant: String,
    /// active or paused.
    status: String,
    /// A cron expression; either this or `every_ms`.
    cron: Option<String>,
    /// An interval.
    every_ms: Option<u64>,
    /// The IANA time zone of the expression.
    zone: String,
    /// The flow.
    flow: String,
    /// Its version, as it was when the schedule was set.
    version: u32,
    /// The input of every job.
    input: Value,
    /// Higher is sooner; 0 without it.
    priority: Option<i16>,
    /// Every job ends so long after its creation.
    must_end_in_ms: u64,
    /// Lost workers after which a job is given up.
    takeovers_max: u32,
    /// When and where the jobs may run.
    terms: Option<Value>,
    /// skip, once (without it) or all.
    missed: Option<String>,
    /// allow (without it) or skip.
    overlap: Option<String>,
    /// Every job begins up to so much later.
    jitter_ms: Option<u64>,
    /// No time before it.
    start: Option<i64>,
    /// No time after it.
    end: Option<i64>,
    /// The next nominal time; none where the calendar is over, or it is paused.
    next_at: Option<i64>,
    /// The next times from now, as many as were asked for.
    next: Option<Vec<i64>>,
    /// Jobs created.
    fired: u64,
    /// Nominal times that became no job: missed, or overlapped.
    skipped: u64,
    /// The last jobs, the newest first.
    fires: Vec<ScheduleFireDocument>,
    /// Jobs whose end is awaited, where they may not overlap.
    open: Vec<String>,
    /// Why a person should look.
    attention: Option<String>,
}

/// One job of a schedule.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(in crate::jobs) struct ScheduleFireDocument {
    /// Its nominal time.
    nominal: i64,
    /// When it was served.
    at: i64,
    /// The job.
    job: String,
    /// Somebody asked for it.
    by_hand: bool,
}

/// Schedules.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(in crate::jobs) struct SchedulesDocument {
    /// By name.
    schedules: Vec<ScheduleDocument>,
    /// Where the next page begins.
    next: Option<String>,
}

/// The next times of a calendar.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(in crate::jobs) struct CalendarDocument {
    /// The time zone of the wall times.
    zone: String,
    /// The times, the next first; fewer than were asked for where the calendar ends.
    times: Vec<NominalDocument>,
}

/// A nominal time, and what the clock on the wall has to do with it.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(in crate::jobs) struct NominalDocument {
    /// The moment, in microseconds since 1970.
    at: i64,
    /// What the clock of the zone shows then, as RFC 3339.
    wall: String,
    /// The wall time that is meant and does not exist on that day: the clock jumps over it. Of several, the first.
    moved_from: Option<String>,
    /// The clock shows the same wall time again at this moment, and then no job is created.
    not_again_at: Option<i64>,
}

/// A job that a schedule was asked for.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(in crate::jobs) struct ScheduleFiredDocument {
    /// The schedule's name.
    schedule: String,
    /// The job; it is there shortly.
    job: String,
}
