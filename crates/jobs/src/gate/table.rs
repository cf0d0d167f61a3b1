//! The tables of a gate and of its pages.

use tenure_kernel::table::{BIRTH, Claimable, Class, Move, SAME, StatusRow, Table, VACANT};

const fn at(from: &'static [&'static str], event: &'static str, to: &'static str) -> Move {
    Move { from, event, to }
}

const STANDS: &[&str] = &["standing"];

pub(super) static GATE: Table = Table {
    kind: "gate",
    doc: "Of the jobs that name it only so many are open past it at once.",
    statuses: &[
        StatusRow {
            name: "standing",
            class: Class::Resting,
            claimable: Claimable::No,
            doc: "Gives out permits, and takes them back.",
        },
        StatusRow {
            name: VACANT,
            class: Class::Resting,
            claimable: Claimable::No,
            doc: "Nobody has stood here for a while: it wakes with the next job, or leaves with retention.",
        },
    ],
    moves: &[
        at(BIRTH, "gate_created", "standing"),
        at(STANDS, "gate_limit_set", SAME),
        at(STANDS, "gate_asked", SAME),
        at(STANDS, "gate_paged", SAME),
        at(STANDS, "gate_fetching", SAME),
        at(STANDS, "gate_fetched", SAME),
        at(STANDS, "gate_page_lost", SAME),
        at(STANDS, "gate_granted", SAME),
        at(STANDS, "gate_released", SAME),
        at(STANDS, "gate_holders_asked", SAME),
        at(&["standing", VACANT], "gate_noted", SAME),
        at(STANDS, "gate_vacated", VACANT),
        at(&[VACANT], "gate_woken", "standing"),
    ],
    forced: "",
};

pub(super) static PAGE: Table = Table {
    kind: "gate_page",
    doc: "A piece of the line before a gate, behind those in the gate's own head.",
    statuses: &[
        StatusRow {
            name: "keeping",
            class: Class::Resting,
            claimable: Claimable::No,
            doc: "Keeps its piece of the line.",
        },
        StatusRow {
            name: "taken",
            class: Class::Final,
            claimable: Claimable::No,
            doc: "Gave it back to the gate.",
        },
    ],
    moves: &[
        at(BIRTH, "page_opened", "keeping"),
        at(&["keeping"], "page_put", SAME),
        at(&["keeping"], "page_noted", SAME),
        at(&["keeping"], "page_taken", "taken"),
    ],
    forced: "taken",
};
