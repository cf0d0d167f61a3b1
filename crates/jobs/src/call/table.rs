//! The one transition table of a call. The final states say what is known: `completed` and `failed` by the word of its
//! worker, `cancelled` and `expired` that nobody ever began it, `lost` that nobody knows.

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

/// The state in which a call waits and nobody has it.
pub const QUEUED: &str = "queued";
/// The state of a call of which nobody knows whether it happened.
pub const LOST: &str = "lost";

/// The transition table. The end of a tenure does not lead back to the queue: only the word of the worker that it was
/// not begun does.
pub static TABLE: Table = Table {
    kind: "call",
    doc: "One invocation of a tool, handed to a worker that does not run the flow.",
    statuses: &[
        open(QUEUED, Claimable::Queued, "Waits for a worker that has the tool."),
        open("running", Claimable::No, "A worker has it."),
        open(
            "unheld",
            Claimable::No,
            "Its worker is gone and nobody has said that it was not begun.",
        ),
        end("completed", "Its worker brought a result."),
        end("failed", "Its worker said how it failed."),
        end(
            LOST,
            "A worker had it and was not heard of in time, or gave it up while it may still run: nobody knows whether it happened.",
        ),
        end("cancelled", "Its job did not want it any more, and nobody had begun it."),
        end("expired", "No worker took it in time: it was not called."),
    ],
    moves: &[
        at(BIRTH, "call_created", "queued"),
        at(&["queued"], ke::CLAIMED, "running"),
        at(&["running"], ke::TENURE_ENDED, "unheld"),
        at(&["unheld"], "call_released", "queued"),
        at(&["running", "unheld"], "call_lost", "lost"),
        at(&["running"], "call_completed", "completed"),
        at(&["running"], "call_failed", "failed"),
        at(&["queued"], "call_cancelled", "cancelled"),
        at(&["queued"], "call_expired", "expired"),
        at(&["running"], "clock_started", SAME),
        at(&["running"], "handed_again", SAME),
        at(&["queued"], "clock_stopped", SAME),
        at(&["queued", "unheld"], "mail_noted", SAME),
    ],
    forced: "lost",
};
