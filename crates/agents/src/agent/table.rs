//! The transition table of an agent. What people read as `dispatched`, `running` and `suspended` is where its
//! active turn stands.

use tenure_kernel::table::{BIRTH, Claimable, Class, Move, SAME, StatusRow, Table};

const fn rests(name: &'static str, doc: &'static str) -> StatusRow {
    StatusRow { name, class: Class::Resting, claimable: Claimable::No, doc }
}

const fn at(from: &'static [&'static str], event: &'static str, to: &'static str) -> Move {
    Move { from, event, to }
}

/// No turn is active.
pub const IDLE: &str = "idle";
/// A turn is active.
pub const ACTIVE: &str = "active";
const HERE: &[&str] = &[IDLE, ACTIVE];
const ALL: &[&str] = &[IDLE, ACTIVE, "removed"];

/// The table. `removed` rests, because the id follows from the name and who sets the name again means this one.
pub static TABLE: Table = Table {
    kind: "agent",
    doc: "Who has turns, one after another.",
    statuses: &[
        rests(IDLE, "No turn is active."),
        rests(ACTIVE, "A turn is active; where it stands is where the agent is."),
        rests("removed", "Somebody removed it; it takes no turns until it is set again."),
    ],
    moves: &[
        at(BIRTH, "agent_set", IDLE),
        at(HERE, "agent_set", SAME),
        at(&["removed"], "agent_set", IDLE),
        at(HERE, "turn_queued", SAME),
        at(ALL, "turn_refused", SAME),
        at(&[IDLE], "turn_given", ACTIVE),
        at(&[ACTIVE], "turn_closed", IDLE),
        // It was removed while the turn was active, and perhaps set again since.
        at(&[IDLE, "removed"], "turn_closed", SAME),
        at(ALL, "turn_left", SAME),
        at(HERE, "agent_paused", SAME),
        at(HERE, "agent_resumed", SAME),
        at(HERE, "agent_removed", "removed"),
        at(ALL, "turn_asked", SAME),
        at(ALL, "turn_missed", SAME),
        at(ALL, "agent_mail_noted", SAME),
    ],
    forced: "",
};
