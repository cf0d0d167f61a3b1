//! The one transition table of a job: it validates every commit, derives the status, is printed as
//! documentation, and feeds the walks.

use tenure_kernel::table::{
    BIRTH, Claimable, Class, Move, SAME, StatusRow, Table, kernel_events as ke,
};

const HELD: &[&str] = &["running", "cancelling"];
const BLOCKED: &[&str] = &["waiting", "parked", "retrying"];
const NOT_BLOCKED: &[&str] = &["queued", "running", "attention", "cancelling", "undoing"];
const UNHELD: &[&str] = &["queued", "waiting", "parked", "retrying", "attention"];
const OPEN: &[&str] =
    &["queued", "running", "waiting", "parked", "retrying", "attention", "cancelling", "undoing"];

const fn open(name: &'static str, claimable: Claimable, doc: &'static str) -> StatusRow {
    StatusRow { name, class: Class::Open, claimable, doc }
}

const fn end(name: &'static str, doc: &'static str) -> StatusRow {
    StatusRow { name, class: Class::Final, claimable: Claimable::No, doc }
}

const fn at(from: &'static [&'static str], event: &'static str, to: &'static str) -> Move {
    Move { from, event, to }
}

/// The transition table. The events of a park come after `tenure_ended` in the same commit, so that the
/// last event of a blocked job is the one that says what it waits for.
pub static TABLE: Table = Table {
    kind: "job",
    doc: "One durable run of a flow.",
    statuses: &[
        open("queued", Claimable::Queued, "Waits for a worker that knows its flow."),
        open("running", Claimable::No, "A worker drives its flow."),
        open(
            "waiting",
            Claimable::No,
            "Waits for a signal, a time, a child, a call or its gate; no worker holds it.",
        ),
        open("parked", Claimable::No, "The same for a long time, or somebody paused it."),
        open("retrying", Claimable::No, "A failed call is tried again after a pause."),
        open(
            "attention",
            Claimable::No,
            "A person has to say what is true, or to repair the flow.",
        ),
        open(
            "cancelling",
            Claimable::No,
            "It is cancelled, or can not go on: running tools and children are being stopped, and what it had done is undone.",
        ),
        open(
            "undoing",
            Claimable::Queued,
            "The same, and it waits for a worker that undoes what it had done.",
        ),
        end("completed", "The flow returned."),
        end("failed", "It ended without a result; listed among the dead letters."),
        end("cancelled", "Somebody stopped it."),
    ],
    moves: &[
        at(BIRTH, "job_created", "queued"),
        at(BIRTH, "job_cancelled", "cancelled"),
        at(&["queued"], "history_copied", SAME),
        at(&["queued"], "job_started", "running"),
        at(&["queued"], ke::CLAIMED, "running"),
        at(&["running"], ke::TENURE_ENDED, "queued"),
        at(&["cancelling"], ke::TENURE_ENDED, SAME),
        at(&["queued"], "job_requeued", SAME),
        at(&["cancelling", "undoing"], "job_undoing", "undoing"),
        at(&["undoing"], ke::CLAIMED, "cancelling"),
        at(&["queued", "waiting"], "job_waiting", "waiting"),
        at(&["queued", "waiting", "retrying", "parked"], "job_parked", "parked"),
        at(BLOCKED, "job_ready", "queued"),
        at(&["queued"], "job_retrying", "retrying"),
        at(&["queued"], "job_attention", "attention"),
        at(&["running"], "pause_asked", SAME),
        at(&["parked", "attention"], "job_resumed", "queued"),
        at(&["queued", "running", "waiting", "retrying"], "job_resumed", SAME),
        at(HELD, "tool_invocation_started", SAME),
        at(HELD, "tool_invocation_finished", SAME),
        at(OPEN, "command_committed", SAME),
        at(OPEN, "node_finished", SAME),
        at(HELD, "effect_unknown", SAME),
        at(&["attention", "waiting", "parked", "retrying"], "effect_settled", "queued"),
        at(&["attention"], "effect_corrected", "queued"),
        at(HELD, "step_dropped", SAME),
        at(HELD, "child_output_taken", SAME),
        at(&["queued", "running", "cancelling", "undoing"], "effect_settled", SAME),
        at(HELD, "compensation_started", SAME),
        at(HELD, "value_recorded", SAME),
        at(HELD, "wait_opened", SAME),
        at(BLOCKED, "wait_completed", "queued"),
        at(NOT_BLOCKED, "wait_completed", SAME),
        at(OPEN, "signal_kept", SAME),
        at(HELD, "timer_set", SAME),
        at(BLOCKED, "timer_fired", "queued"),
        at(NOT_BLOCKED, "timer_fired", SAME),
        at(HELD, "child_started", SAME),
        at(BLOCKED, "child_ended", "queued"),
        at(NOT_BLOCKED, "child_ended", SAME),
        at(HELD, "call_handed", SAME),
        at(BLOCKED, "call_answered", "queued"),
        at(NOT_BLOCKED, "call_answered", SAME),
        at(OPEN, "mail_noted", SAME),
        at(&["running"], "job_continued", SAME),
        at(&["running"], "job_cancelling", "cancelling"),
        at(UNHELD, "job_cancelling", "cancelling"),
        at(&["running", "queued"], "job_failing", "cancelling"),
        at(&["running"], "job_completed", "completed"),
        at(OPEN, "job_failed", "failed"),
        at(OPEN, "job_cancelled", "cancelled"),
    ],
    forced: "failed",
};
