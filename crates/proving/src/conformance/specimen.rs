//! The specimen: a kind of entity with one status of every sort, for cases that are about the kernel
//! and not about any machine. The cases write its events by hand.

use tenure_kernel::table::{
    BIRTH, Claimable, Class, Move, SAME, StatusRow, Table, VACANT, kernel_events as ke,
};

const fn status(
    name: &'static str,
    class: Class,
    claimable: Claimable,
    doc: &'static str,
) -> StatusRow {
    StatusRow { name, class, claimable, doc }
}

const fn step(from: &'static [&'static str], event: &'static str, to: &'static str) -> Move {
    Move { from, event, to }
}

/// One status of every sort.
pub static SPECIMEN: Table = Table {
    kind: "specimen",
    doc: "An entity with one status of every sort; the conformance suite writes its events by hand.",
    statuses: &[
        status("queued", Class::Open, Claimable::Queued, "Waits in its queue."),
        status("named", Class::Open, Claimable::ByName, "Waits for a claim by name."),
        status("running", Class::Open, Claimable::No, "Held."),
        status("blocked", Class::Open, Claimable::No, "Waits for mail or a timer."),
        status("idle", Class::Resting, Claimable::No, "Owes nothing."),
        status("done", Class::Final, Claimable::No, "Over."),
        status("failed", Class::Final, Claimable::No, "Over, by force."),
    ],
    moves: &[
        step(BIRTH, "made_queued", "queued"),
        step(BIRTH, "made_named", "named"),
        step(BIRTH, "made_running", "running"),
        step(BIRTH, "made_blocked", "blocked"),
        step(BIRTH, "made_idle", "idle"),
        step(BIRTH, "made_done", "done"),
        step(&["queued", "named"], ke::CLAIMED, "running"),
        step(&["running"], ke::TENURE_ENDED, "queued"),
        step(&["blocked", "idle"], ke::TENURE_ENDED, SAME),
        step(&["running"], "parked", "blocked"),
        step(&["running", "blocked"], "rested", "idle"),
        step(&["blocked", "idle"], "woke", "queued"),
        step(&["queued", "named", "running", "blocked", "idle"], "noted", SAME),
        step(&["queued", "named", "running", "blocked", "idle"], "ended", "done"),
    ],
    forced: "failed",
};

/// One that leaves while it rests, and comes again.
pub static GUEST: Table = Table {
    kind: "guest",
    doc: "An entity that leaves while it rests and comes again under its id; its events are written by hand.",
    statuses: &[
        status("here", Class::Resting, Claimable::No, "Owes nothing."),
        status(VACANT, Class::Resting, Claimable::No, "Nobody needs it."),
    ],
    moves: &[
        step(BIRTH, "came", "here"),
        step(&["here", VACANT], "noted", SAME),
        step(&["here"], "vacated", VACANT),
        step(&[VACANT], "woken", "here"),
    ],
    forced: "",
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_sound() {
        assert_eq!(SPECIMEN.problems(), Vec::<String>::new());
        assert_eq!(GUEST.problems(), Vec::<String>::new());
        assert!(GUEST.comes_again() && !SPECIMEN.comes_again());
    }
}
