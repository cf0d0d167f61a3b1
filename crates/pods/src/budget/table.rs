//! The transition table of a budget.

use tenure_kernel::table::{BIRTH, Claimable, Class, Move, SAME, StatusRow, Table};

const ON: &[&str] = &["resting"];

const fn at(from: &'static [&'static str], event: &'static str, to: &'static str) -> Move {
    Move { from, event, to }
}

/// The table.
pub static TABLE: Table = Table {
    kind: "budget",
    doc: "What the retries of a tenant's tasks may cost together.",
    statuses: &[
        StatusRow {
            name: "resting",
            class: Class::Resting,
            claimable: Claimable::No,
            doc: "Owes nobody anything: what waits for a place is a task.",
        },
        StatusRow {
            name: "retired",
            class: Class::Final,
            claimable: Claimable::No,
            doc: "Not used any more.",
        },
    ],
    moves: &[
        at(BIRTH, "budget_created", "resting"),
        at(ON, "budget_terms_set", SAME),
        at(ON, "place_granted", SAME),
        at(ON, "place_deferred", SAME),
        at(ON, "place_released", SAME),
        at(ON, "holders_asked", SAME),
        at(ON, "budget_noted", SAME),
    ],
    forced: "retired",
};
