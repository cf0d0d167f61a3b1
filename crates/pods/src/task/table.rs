//! The transition table of a task. The statuses are those of FlowForge, as they are written there.

use tenure_kernel::table::{BIRTH, Claimable, Class, Move, SAME, StatusRow, Table};

/// Made, and no pod was asked for or seen yet.
pub const PENDING: &str = "PENDING";
/// A pod was asked for, or exists, and does not run yet.
pub const QUEUED: &str = "QUEUED";
/// Its main container runs.
pub const RUNNING: &str = "RUNNING";
/// An attempt failed; there will be another.
pub const RETRYING: &str = "RETRYING";
/// It ended well.
pub const SUCCEEDED: &str = "SUCCEEDED";
/// It failed.
pub const FAILED: &str = "FAILED";
/// It was cancelled.
pub const CANCELED: &str = "CANCELED";

const fn open(name: &'static str, doc: &'static str) -> StatusRow {
    StatusRow { name, class: Class::Open, claimable: Claimable::No, doc }
}

const fn end(name: &'static str, doc: &'static str) -> StatusRow {
    StatusRow { name, class: Class::Final, claimable: Claimable::No, doc }
}

const fn at(from: &'static [&'static str], event: &'static str, to: &'static str) -> Move {
    Move { from, event, to }
}

const ANY: &[&str] = &[PENDING, QUEUED, RUNNING, RETRYING];

/// The table.
pub static TABLE: Table = Table {
    kind: "task",
    doc: "One unit of work that runs as a pod, in one or more attempts.",
    statuses: &[
        open(PENDING, "No pod was asked for or seen yet."),
        open(QUEUED, "A pod was asked for, or exists, and does not run yet."),
        open(RUNNING, "Its main container runs."),
        open(
            RETRYING,
            "An attempt failed, and there will be another: after a pause, when the old pod is over, within the tenant's budget.",
        ),
        end(SUCCEEDED, "Its main container ended well."),
        end(
            FAILED,
            "Its last attempt failed. It is a dead letter until somebody replays or discards it.",
        ),
        end(CANCELED, "Somebody asked for its end."),
    ],
    moves: &[
        at(BIRTH, "task_created", PENDING),
        at(BIRTH, "task_canceled", CANCELED),
        at(&[PENDING, RETRYING], "pod_wanted", QUEUED),
        at(ANY, "pod_seen", QUEUED),
        at(ANY, "pod_created", SAME),
        at(&[QUEUED, RUNNING], "end_inferred", SAME),
        at(&[QUEUED], "task_running", RUNNING),
        at(&[QUEUED, RUNNING], "attempt_failed", RETRYING),
        at(&[RETRYING], "attempt_fenced", SAME),
        at(ANY, "pod_forced", SAME),
        at(&[RETRYING], "details_filled", SAME),
        at(&[RETRYING], "pause_over", SAME),
        at(&[RETRYING], "retry_asked", SAME),
        at(&[RETRYING], "retry_deferred", SAME),
        at(&[RETRYING], "retry_granted", SAME),
        at(ANY, "cancel_asked", SAME),
        at(ANY, "task_noted", SAME),
        at(&[QUEUED, RUNNING, RETRYING], "task_succeeded", SUCCEEDED),
        at(ANY, "task_failed", FAILED),
        at(ANY, "task_canceled", CANCELED),
    ],
    forced: FAILED,
};
