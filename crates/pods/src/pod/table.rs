//! The transition table of a pod.

use tenure_kernel::table::{
    BIRTH, Claimable, Class, Move, SAME, StatusRow, Table, kernel_events as ke,
};

/// Waits for an executor.
pub const WANTED: &str = "wanted";
/// An executor has it.
pub const TENDED: &str = "tended";
/// It is over, and left for a while.
pub const KEPT: &str = "kept";

const fn row(
    name: &'static str,
    class: Class,
    claimable: Claimable,
    doc: &'static str,
) -> StatusRow {
    StatusRow { name, class, claimable, doc }
}

const fn at(from: &'static [&'static str], event: &'static str, to: &'static str) -> Move {
    Move { from, event, to }
}

const ANY: &[&str] = &[WANTED, TENDED, KEPT];
const WORK: &[&str] = &[WANTED, TENDED];

/// The table.
pub static TABLE: Table = Table {
    kind: "pod",
    doc: "One pod of one attempt of a task, as an executor's work.",
    statuses: &[
        row(WANTED, Class::Open, Claimable::Queued, "Waits for an executor of its cluster."),
        row(TENDED, Class::Open, Claimable::No, "An executor makes it, follows it, or stops it."),
        row(KEPT, Class::Open, Claimable::No, "Over, and left for a while before it is deleted."),
        row("cleared", Class::Final, Claimable::No, "There is no such pod any more."),
        row("left", Class::Final, Claimable::No, "Over, and left where it is."),
        row("not_made", Class::Final, Claimable::No, "Never made."),
        row(
            "abandoned",
            Class::Final,
            Claimable::No,
            "Nobody could say what became of it. It may still be there.",
        ),
    ],
    moves: &[
        at(BIRTH, "pod_ordered", WANTED),
        at(&[WANTED], ke::CLAIMED, TENDED),
        at(&[TENDED], ke::TENURE_ENDED, WANTED),
        at(&[TENDED], "pod_begun", SAME),
        at(&[TENDED], "pod_made", SAME),
        at(&[TENDED], "pod_waits", SAME),
        at(&[TENDED], "pod_warned", SAME),
        at(&[TENDED], "log_unread", SAME),
        at(&[TENDED], "log_appended", SAME),
        at(&[TENDED], "pod_over", SAME),
        at(&[TENDED], "pod_marked", SAME),
        at(WORK, "stop_asked", SAME),
        at(WORK, "force_asked", SAME),
        at(&[TENDED], "pod_forced", SAME),
        at(&[KEPT], "stop_asked", WANTED),
        at(&[WANTED], "pod_kept", KEPT),
        at(&[KEPT], "clean_due", WANTED),
        at(ANY, "pod_noted", SAME),
        at(WORK, "pod_cleared", "cleared"),
        at(ANY, "pod_left", "left"),
        at(WORK, "pod_not_made", "not_made"),
        at(ANY, "pod_abandoned", "abandoned"),
    ],
    forced: "abandoned",
};
