//! The transition table of a join.

use tenure_kernel::table::{BIRTH, Claimable, Class, Move, SAME, StatusRow, Table};

const fn end(name: &'static str, doc: &'static str) -> StatusRow {
    StatusRow { name, class: Class::Final, claimable: Claimable::No, doc }
}

const fn at(from: &'static [&'static str], event: &'static str, to: &'static str) -> Move {
    Move { from, event, to }
}

/// The table.
pub static TABLE: Table = Table {
    kind: "join",
    doc: "Several turns of which one result is made.",
    statuses: &[
        StatusRow {
            name: "open",
            class: Class::Open,
            claimable: Claimable::No,
            doc: "Some of its turns are not over.",
        },
        end("joined", "Its result was told to the turn that asked."),
        end("failed", "It was ended by force; the turn that asked has its own deadline."),
    ],
    moves: &[
        at(BIRTH, "join_created", "open"),
        at(&["open"], "task_ended", SAME),
        at(&["open"], "join_mail_noted", SAME),
        at(&["open"], "join_ended", "joined"),
    ],
    forced: "failed",
};
