//! The one transition table of a turn.

use tenure_kernel::table::{
    BIRTH, Claimable, Class, Move, SAME, StatusRow, Table, kernel_events as ke,
};

const fn open(name: &'static str, claimable: Claimable, doc: &'static str) -> StatusRow {
    StatusRow { name, class: Class::Open, claimable, doc }
}

const fn end(name: &'static str, doc: &'static str) -> StatusRow {
    StatusRow { name, class: Class::Final, claimable: Claimable::No, doc }
}

const fn at(from: &'static [&'static str], event: &'static str, to: &'static str) -> Move {
    Move { from, event, to }
}

/// In its agent's line.
pub const QUEUED: &str = "queued";
/// It is its turn, and no worker has taken it yet.
pub const DISPATCHED: &str = "dispatched";
/// A worker has it.
pub const RUNNING: &str = "running";
/// Running, and no worker has it now.
pub const READY: &str = "ready";
/// Tools work, and nobody has it.
pub const SUSPENDED: &str = "suspended";

const OPEN: &[&str] = &[QUEUED, DISPATCHED, RUNNING, READY, SUSPENDED];
const BEGUN: &[&str] = &[DISPATCHED, RUNNING, READY, SUSPENDED];
const UNCLAIMED: &[&str] = &[DISPATCHED, READY];

/// The transition table. Nothing leads back to `dispatched`.
pub static TABLE: Table = Table {
    kind: "turn",
    doc: "One unit of delivery of an agent.",
    statuses: &[
        open(QUEUED, Claimable::No, "In its agent's line."),
        open(DISPATCHED, Claimable::Queued, "It is its turn, and no worker has taken it yet."),
        open(RUNNING, Claimable::No, "A worker has it."),
        open(READY, Claimable::Queued, "Running, and no worker has it now; read as running."),
        open(SUSPENDED, Claimable::No, "Tools work; nobody has it."),
        end("success", "It delivered."),
        end("partial", "It delivered a part."),
        end("failed", "It did not deliver; what there is stands in its place."),
        end("timeout", "Nobody took it in time, or its time was up."),
        end("canceled", "It was taken back before it began."),
    ],
    moves: &[
        at(BIRTH, "turn_created", QUEUED),
        at(&[QUEUED], "turn_dispatched", DISPATCHED),
        at(UNCLAIMED, ke::CLAIMED, RUNNING),
        at(&[RUNNING], ke::TENURE_ENDED, READY),
        at(&[RUNNING], "step_started", SAME),
        at(&[RUNNING], "step_finished", SAME),
        at(&[RUNNING], "progress_made", SAME),
        at(&[READY], "turn_suspended", SUSPENDED),
        at(&[RUNNING, SUSPENDED], "result_applied", SAME),
        at(&[SUSPENDED], "wait_timed_out", SAME),
        at(&[SUSPENDED], "wait_progress", SAME),
        at(&[DISPATCHED, RUNNING, READY], "result_kept", SAME),
        at(&[SUSPENDED], "turn_resumed", READY),
        at(&[READY], "turn_left_by_worker", SAME),
        at(&[READY], "items_requeued", SAME),
        at(&[READY], "resume_requeued", SAME),
        at(&[DISPATCHED], "dispatch_retried", SAME),
        at(UNCLAIMED, "bell_rung", SAME),
        at(OPEN, "item_dead", SAME),
        at(OPEN, "item_settled", SAME),
        at(OPEN, "item_noted", SAME),
        at(BEGUN, "turn_succeeded", "success"),
        at(BEGUN, "turn_partly_succeeded", "partial"),
        at(OPEN, "turn_failed", "failed"),
        at(OPEN, "turn_timed_out", "timeout"),
        at(&[QUEUED], "turn_canceled", "canceled"),
    ],
    forced: "failed",
};
