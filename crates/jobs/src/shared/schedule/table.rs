//! The transition table of a schedule.
//!
//! `removed` rests and is not final: the id follows from tenant and name, and who sets a schedule of the same name
//! again means this one. Were it final, the name would be used up for ever, and an id with a generation in it
//! could not be found any more once retention had dropped an earlier one.

use tenure_kernel::table::{BIRTH, Claimable, Class, Move, SAME, StatusRow, Table};

const fn rests(name: &'static str, doc: &'static str) -> StatusRow {
    StatusRow { name, class: Class::Resting, claimable: Claimable::No, doc }
}

const fn at(from: &'static [&'static str], event: &'static str, to: &'static str) -> Move {
    Move { from, event, to }
}

const SET: &[&str] = &["active", "paused"];
const ALL: &[&str] = &["active", "paused", "removed"];

/// The table.
pub static TABLE: Table = Table {
    kind: "schedule",
    doc: "Creates jobs at the times of a calendar.",
    statuses: &[
        rests("active", "Its next time is set as a timer, if there is one."),
        rests("paused", "Creates nothing by itself until it is resumed."),
        rests("removed", "Somebody deleted it; it can be set again."),
    ],
    moves: &[
        at(BIRTH, "schedule_set", "active"),
        at(SET, "schedule_set", SAME),
        at(&["removed"], "schedule_set", "active"),
        at(&["active"], "schedule_fired", SAME),
        at(SET, "schedule_fired_by_hand", SAME),
        at(&["active"], "schedule_paused", "paused"),
        at(&["paused"], "schedule_resumed", "active"),
        at(SET, "schedule_removed", "removed"),
        at(ALL, "scheduled_job_ended", SAME),
        at(ALL, "schedule_mail_noted", SAME),
    ],
    forced: "",
};
