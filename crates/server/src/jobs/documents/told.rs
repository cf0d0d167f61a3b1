//! What is told of one job or of many, beside where they stand: its trace, whether it verifies, a replay, a preview.

use super::{JobDocument, SubmittedDocument};
use serde_json::Value;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A job over time.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(in crate::jobs) struct TraceDocument {
    /// Which job.
    id: String,
    /// Its flow and version.
    flow: String,
    /// Its status.
    status: String,
    /// When it was created.
    from: i64,
    /// Its last event, or now while it is open.
    to: i64,
    /// It has not ended.
    open: bool,
    /// Who held it.
    leases: Vec<TraceLeaseDocument>,
    /// Its steps, in the order in which they began.
    lanes: Vec<TraceLaneDocument>,
    /// What happened at a moment.
    marks: Vec<TraceMarkDocument>,
}

/// A tenure.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(in crate::jobs) struct TraceLeaseDocument {
    /// Its epoch.
    epoch: u64,
    /// Whose.
    session: Option<String>,
    /// Their name.
    name: String,
    /// From when.
    from: i64,
    /// Until when; `null` while it lasts.
    to: Option<i64>,
    /// open, released, lost, parked or final.
    end: String,
    /// Why it ended, in words.
    why: String,
}

/// One step over time.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(in crate::jobs) struct TraceLaneDocument {
    /// The step.
    step: String,
    /// What it is.
    label: String,
    /// Taken over from another job.
    copied: bool,
    /// In order.
    bars: Vec<TraceBarDocument>,
}

/// A stretch of time.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(in crate::jobs) struct TraceBarDocument {
    /// call, backoff, wait, sleep, child or value.
    kind: String,
    /// From when.
    from: i64,
    /// Until when; `null` while it lasts.
    to: Option<i64>,
    /// open, ok, failed or unknown.
    state: String,
    /// In words.
    label: String,
    /// Under which epoch a call was made.
    epoch: Option<u64>,
}

/// Something that happened at a moment.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(in crate::jobs) struct TraceMarkDocument {
    /// When.
    at: i64,
    /// kill, signal, unknown, settled, divergence, attention, pause, cancel, continued, copied or end.
    kind: String,
    /// In words.
    label: String,
    /// To which step.
    step: Option<String>,
}

/// Whether the history of a job is untouched and keeps the rules.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(in crate::jobs) struct VerificationDocument {
    /// Which job.
    id: String,
    /// Nothing is wrong.
    ok: bool,
    /// Everything that is wrong, in words.
    problems: Vec<String>,
    /// What was looked at.
    checks: Vec<VerificationCheckDocument>,
    /// Events in the stream.
    events: u64,
    /// The chain value after the last event.
    chain_root: String,
    /// Digest of what the run did, the same for two jobs that did the same.
    execution_hash: String,
    /// What came to be known outside the stream.
    evidence: Vec<EvidenceDocument>,
}

/// One rule and whether it is kept.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(in crate::jobs) struct VerificationCheckDocument {
    /// Its name.
    rule: String,
    /// Kept.
    ok: bool,
    /// What it says, in words.
    says: String,
}

/// Evidence about a job.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(in crate::jobs) struct EvidenceDocument {
    /// The call's key, or a word.
    key: String,
    /// Under which epoch it was gathered.
    epoch: u64,
    /// The call.
    call: u32,
    /// Who says so.
    who: String,
    /// When it was recorded.
    at: i64,
    /// What they say.
    body: Value,
}

/// What a replay showed.
#[derive(ToSchema)]
#[serde(tag = "outcome", rename_all = "snake_case")]
#[allow(dead_code, reason = "only its schema is used")]
pub(in crate::jobs) enum ReplayedDocument {
    /// The code leads through the history.
    Consistent {
        /// Steps with an outcome.
        steps: usize,
        /// What it would go on with.
        open: Vec<String>,
        /// What the flow returned, if it did.
        output: Option<Value>,
    },
    /// The code asks for something else than the history has.
    Diverged {
        /// Where it shows.
        step: String,
        /// What stands in the history, and where it was asked for.
        recorded: String,
        /// What the code asks for now, and where.
        expected: String,
    },
    /// The flow panics, or waits for something that the engine does not know.
    Broken {
        /// In words, with the place.
        why: String,
    },
    /// The code ends otherwise than the job did.
    EndsOtherwise {
        /// How the job ended.
        recorded: Value,
        /// How the code ends.
        replayed: Value,
    },
    /// Nobody here has this flow.
    UnknownFlow {
        /// Its name and version.
        flow: String,
    },
}

/// What was asked for many jobs: a preview; or, with its token, the job that does it.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, clippy::large_enum_variant, reason = "only its schema is used")]
pub(in crate::jobs) enum BulkDocument {
    Preview(BulkPreviewDocument),
    Job(SubmittedDocument),
}

/// What an action on many jobs would do.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(in crate::jobs) struct BulkPreviewDocument {
    /// The action.
    action: String,
    /// Whose jobs.
    tenant: String,
    /// Nothing that is newer is touched.
    horizon: i64,
    /// Jobs that would be asked.
    count: u64,
    /// There are no more than these.
    exact: bool,
    /// So many are looked at before the counting stops.
    counted_up_to: usize,
    /// The first of them.
    first: Vec<JobDocument>,
    /// Jobs that the filter names and the action does not fit: how many, by reason.
    skipped: BTreeMap<String, u64>,
    /// Sent alone, it does exactly this.
    token: String,
}
