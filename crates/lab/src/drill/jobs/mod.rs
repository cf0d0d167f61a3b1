//! The failure matrix of jobs: eleven faults, seven guarantees, and the cases that show them.
//!
//! | room | faults |
//! |---|---|
//! | `crashes` | a worker dies before the tool, after it, after the commit; again and again |
//! | `timeouts` | a step takes too long |
//! | `signals` | a signal is lost, repeated, early; a job that waits is left alone |
//! | `rivals` | two workers at one step, two results for one key |
//! | `partitions` | a worker can not be heard, or is stopped, and comes back |
//! | `outages` | the store, or the server on it, goes away and comes back |

mod crashes;
mod outages;
mod partitions;
mod rivals;
mod signals;
mod thief;
mod timeouts;

use super::{
    case::{Case, Where},
    matrix::{
        Board, Column,
        Promise::{AfterRetry, Holds, NotApplicable, NotMeanwhile},
        Row,
    },
};
use serde_json::{Value, json};

/// The guarantees.
pub mod column {
    /// Step at least once.
    pub const STEP_RUNS: &str = "step_runs";
    /// Step at most once.
    pub const EFFECT_ONCE: &str = "effect_once";
    /// Replay does not execute.
    pub const NOT_REPLAYED: &str = "not_replayed";
    /// Signals are not lost.
    pub const SIGNAL_KEPT: &str = "signal_kept";
    /// Jobs are not lost.
    pub const JOB_KEPT: &str = "job_kept";
    /// The stream is not polluted.
    pub const STREAM_CLEAN: &str = "stream_clean";
    /// A tool is committed once per key.
    pub const TOOL_ONCE: &str = "tool_once";
}

/// The faults.
pub mod row {
    /// Worker crash before the tool.
    pub const BEFORE_TOOL: &str = "crash-before-tool";
    /// Worker crash after the tool, before the commit.
    pub const AFTER_TOOL: &str = "crash-after-tool";
    /// Worker crash after the commit.
    pub const AFTER_COMMIT: &str = "crash-after-commit";
    /// Step timeout.
    pub const TIMEOUT: &str = "step-timeout";
    /// Signal lost.
    pub const SIGNAL: &str = "signal-lost";
    /// Two workers at one step.
    pub const RIVALS: &str = "two-workers";
    /// Network partition.
    pub const PARTITION: &str = "partition";
    /// Ledger conflict.
    pub const LEDGER: &str = "ledger-conflict";
    /// Store down.
    pub const STORE: &str = "store-down";
    /// Reclaim.
    pub const RECLAIM: &str = "reclaim";
    /// Blocked job.
    pub const BLOCKED: &str = "blocked";
}

/// Settings that every takeover depends on.
const LEASE: &[&str] = &[
    "store.url",
    "worker.lease_seconds",
    "worker.renewal_seconds",
    "effects.directory",
    "job.takeovers_max",
];

/// The matrix.
pub static BOARD: Board = Board {
    kind: "jobs",
    columns: &[
        Column {
            key: column::STEP_RUNS,
            title: "Step ≥ 1",
            says: "a step that may be tried again is brought to its end by some worker",
        },
        Column {
            key: column::EFFECT_ONCE,
            title: "Step ≤ 1",
            says: "the effect of a step is there at most once, as the outside world counts it",
        },
        Column {
            key: column::NOT_REPLAYED,
            title: "No re-execution",
            says: "what is recorded is given to the flow again; no model and no tool is called for it",
        },
        Column {
            key: column::SIGNAL_KEPT,
            title: "Signal kept",
            says: "an accepted signal is applied, once, and the job goes on",
        },
        Column {
            key: column::JOB_KEPT,
            title: "Job kept",
            says: "a job that has not ended is never lost and never left hanging",
        },
        Column {
            key: column::STREAM_CLEAN,
            title: "Stream clean",
            says: "nothing is written under an old attempt, and the hash chain holds",
        },
        Column {
            key: column::TOOL_ONCE,
            title: "Tool once",
            says: "one commit per idempotency key",
        },
    ],
    rows: &[
        Row {
            key: row::BEFORE_TOOL,
            title: "Worker crash (before tool)",
            does: "the lease lapses, another worker replays and goes on; recorded steps are injected",
            promises: &[Holds, Holds, Holds, Holds, Holds, Holds, Holds],
            settings: LEASE,
        },
        Row {
            key: row::AFTER_TOOL,
            title: "Worker crash (after tool, before commit)",
            does: "a recorded effect is caught up; without one the class of the tool settles it, at last a person",
            promises: &[Holds, Holds, Holds, Holds, Holds, Holds, Holds],
            settings: LEASE,
        },
        Row {
            key: row::AFTER_COMMIT,
            title: "Worker crash (after commit)",
            does: "another worker replays to the end of the history and goes on",
            promises: &[Holds, Holds, Holds, Holds, Holds, Holds, Holds],
            settings: LEASE,
        },
        Row {
            key: row::TIMEOUT,
            title: "Step timeout",
            does: "the call is stopped and unknown; its class settles it; tries are bounded; late results are evidence",
            promises: &[Holds, Holds, Holds, Holds, Holds, Holds, Holds],
            settings: &[
                "executor.step_timeout",
                "executor.retry_max",
                "executor.backoff",
                "executor.stop_grace",
            ],
        },
        Row {
            key: row::SIGNAL,
            title: "Signal lost",
            does: "the job stays blocked; the caller asks again under the same key; one wait_completed",
            promises: &[
                NotApplicable,
                NotApplicable,
                NotApplicable,
                AfterRetry,
                Holds,
                Holds,
                NotApplicable,
            ],
            settings: &["store.url"],
        },
        Row {
            key: row::RIVALS,
            title: "Two workers, same step",
            does: "one claim wins; the other is stale, does nothing more and writes nothing",
            promises: &[Holds, Holds, Holds, Holds, Holds, Holds, Holds],
            settings: LEASE,
        },
        Row {
            key: row::PARTITION,
            title: "Network partition",
            does: "the lost worker stops itself, another takes over; what arrives late is refused, or kept as evidence",
            promises: &[Holds, Holds, Holds, Holds, Holds, Holds, Holds],
            settings: &[
                "store.url",
                "worker.lease_seconds",
                "worker.renewal_seconds",
                "server.patience_seconds",
                "effects.directory",
            ],
        },
        Row {
            key: row::LEDGER,
            title: "Ledger conflict",
            does: "one commit per key wins in the store; everybody else gets the recorded result",
            promises: &[Holds, Holds, Holds, Holds, Holds, Holds, Holds],
            settings: LEASE,
        },
        Row {
            key: row::STORE,
            title: "Store down",
            does: "nothing moves while it is away; everything goes on by itself when it is back; nothing acknowledged is lost",
            promises: &[NotMeanwhile; 7],
            settings: &["store.url", "server.patience_seconds", "server.pulse_gap_seconds"],
        },
        Row {
            key: row::RECLAIM,
            title: "Reclaim",
            does: "the lease lapses, the tenure is ended on record, another worker claims; blocked jobs are left alone",
            promises: &[Holds, Holds, Holds, Holds, Holds, Holds, Holds],
            settings: LEASE,
        },
        Row {
            key: row::BLOCKED,
            title: "Blocked job",
            does: "nobody claims, reclaims or runs it; only a signal, a cancel or a timer moves it",
            promises: &[
                NotApplicable,
                NotApplicable,
                NotApplicable,
                Holds,
                Holds,
                Holds,
                NotApplicable,
            ],
            settings: &["store.url", "worker.lease_seconds", "server.tick_seconds"],
        },
    ],
};

/// Every case, for a drill of this place.
pub fn cases(place: &Where) -> Vec<Case> {
    let mut cases = crashes::cases(place);
    cases.extend(timeouts::cases());
    cases.extend(signals::cases());
    cases.extend(rivals::cases());
    cases.extend(partitions::cases());
    cases.extend(outages::cases(place));
    cases
}

/// The classes of tools.
const CLASSES: [&str; 4] = ["idempotent", "verifiable", "compensatable", "irreversible"];

/// A line of a script.
fn act(class: &str, name: &str) -> Value {
    json!({ "act": { "class": class, "name": name } })
}

fn signal(key: &str) -> Value {
    json!({ "signal": key })
}

/// Names with the class of their tools.
fn acts(of: &[(&str, &str)]) -> Vec<(String, String)> {
    of.iter().map(|(name, class)| ((*name).to_owned(), (*class).to_owned())).collect()
}

/// The script of most cases: a step before, the one that is struck, one after it, a signal, and a last step.
fn five_lines(class: &str) -> Value {
    json!([
        act("idempotent", "first"),
        act(class, "it"),
        act("idempotent", "mid"),
        signal("go"),
        act("idempotent", "last")
    ])
}

/// What it does outside.
fn five_acts(class: &str) -> Vec<(String, String)> {
    acts(&[("first", "idempotent"), ("it", class), ("mid", "idempotent"), ("last", "idempotent")])
}
