//! Tables: every kind of defect is found, and the status is what the table derives.

use super::subject::SUBJECT;
use proptest::prelude::*;
use tenure_kernel::{
    machine::Machines,
    table::{BIRTH, Claimable, Class, Move, SAME, StatusRow, Table, kernel_events as ke},
};

const fn row(name: &'static str, class: Class, claimable: Claimable) -> StatusRow {
    StatusRow { name, class, claimable, doc: "d" }
}

const fn step(from: &'static [&'static str], event: &'static str, to: &'static str) -> Move {
    Move { from, event, to }
}

const OPEN: StatusRow = row("open", Class::Open, Claimable::No);
const OVER: StatusRow = row("over", Class::Final, Claimable::No);
const MADE: Move = step(BIRTH, "made", "open");
const ENDS: Move = step(&["open"], "ends", "over");

fn finds(table: Table, words: &str) {
    let table: &'static Table = Box::leak(Box::new(table));
    let problems = table.problems();
    assert!(problems.iter().any(|p| p.contains(words)), "{words:?} is not among {problems:?}");
}

fn table(statuses: &'static [StatusRow], moves: &'static [Move], forced: &'static str) -> Table {
    Table { kind: "k", doc: "d", statuses, moves, forced }
}

#[test]
fn every_kind_of_defect_is_found() {
    finds(table(&[OPEN, OVER], &[MADE, ENDS], "open"), "is not final");
    finds(table(&[OPEN, OVER], &[MADE, ENDS], "nowhere"), "forced status \"nowhere\" is unknown");
    finds(
        table(&[OPEN, OVER], const { &[MADE, ENDS, step(&["open"], "x", "gone")] }, "over"),
        "leads to the unknown status",
    );
    finds(
        table(&[OPEN, OVER], const { &[MADE, ENDS, step(&["gone"], "x", "over")] }, "over"),
        "starts at the unknown status",
    );
    finds(
        table(&[OPEN, OVER], const { &[MADE, ENDS, step(&["over"], "x", "open")] }, "over"),
        "leaves the final status",
    );
    finds(table(&[OPEN, OVER], &[MADE, MADE, ENDS], "over"), "two birth rows");
    finds(table(&[OPEN, OVER], &[MADE, ENDS, ENDS], "over"), "two rows for ends");
    const LONELY: StatusRow = row("lonely", Class::Open, Claimable::No);
    finds(table(&[OPEN, OVER, LONELY], &[MADE, ENDS], "over"), "nothing leads to the status");
    const QUEUED: StatusRow = row("queued", Class::Open, Claimable::Queued);
    const QUEUES: Move = step(BIRTH, "queues", "queued");
    finds(
        table(&[QUEUED, OVER], &[QUEUES], "over"),
        "claimable status \"queued\" must lead to one that is not",
    );
    finds(
        table(&[QUEUED, OVER], const { &[QUEUES, step(&["queued"], ke::CLAIMED, SAME)] }, "over"),
        "must lead to one that is not",
    );
    finds(
        table(
            &[QUEUED, OPEN, OVER],
            const { &[QUEUES, ENDS, step(&["queued"], ke::CLAIMED, "open")] },
            "over",
        ),
        "no row for the end of tenure",
    );
    const RESTS: StatusRow = row("rests", Class::Resting, Claimable::Queued);
    finds(
        table(&[RESTS, OPEN, OVER], const { &[step(BIRTH, "made", "rests"), ENDS] }, "over"),
        "can not stand in a queue",
    );
    finds(
        table(&[OPEN, OVER], const { &[step(&["open"], "again", "open"), ENDS] }, "over"),
        "nothing is ever born",
    );
}

#[test]
fn the_kernels_own_tables_are_sound_and_their_pages_stable() {
    for table in Machines::kernel().tables().iter().chain([&SUBJECT]) {
        assert_eq!(table.problems(), Vec::<String>::new(), "{}", table.kind);
        assert_eq!(table.to_markdown(), table.to_markdown());
    }
    // The page is part of the documentation: a change of form is a change of the docs.
    let lane = tenure_kernel::sessions::LANE.to_markdown();
    assert_eq!(
        lane,
        "## lane\n\nA fixed share of sources, whose messages one server delivers in order.\n\n\
         | status | class | claimed | meaning |\n|---|---|---|---|\n\
         | `free` | resting | by name | No server delivers it. |\n\
         | `served` | resting | never | One server delivers it. |\n\n\
         | from | event | to |\n|---|---|---|\n\
         | (not created) | `lane_created` | `free` |\n\
         | `free` | `tenure_claimed` | `served` |\n\
         | `served` | `tenure_ended` | `free` |\n"
    );
}

proptest! {
    /// A walk along any events ends where the rows say, and nothing leaves a final status.
    #[test]
    fn a_status_is_what_the_table_derives(picks in prop::collection::vec(0usize..40, 0..30)) {
        let births: Vec<_> = SUBJECT.moves.iter().filter(|m| m.from.is_empty()).collect();
        let mut status = None;
        let mut name = "not created";
        for pick in picks {
            let events: Vec<&str> = SUBJECT.moves.iter().map(|m| m.event)
                .chain(ke::UNIVERSAL).chain([ke::FORCE_ENDED, "unheard_of"]).collect();
            let event = events[pick % events.len()];
            // The table again, read by hand.
            let class = SUBJECT.statuses.iter().find(|s| s.name == name).map(|s| s.class);
            let expected = match class {
                None => births.iter().find(|m| m.event == event).map(|m| m.to),
                Some(Class::Final) => None,
                Some(_) if event == ke::FORCE_ENDED => Some(SUBJECT.forced),
                Some(_) => SUBJECT.moves.iter()
                    .find(|m| m.event == event && m.from.contains(&name))
                    .map(|m| if m.to == SAME { name } else { m.to })
                    .or(ke::UNIVERSAL.contains(&event).then_some(name)),
            };
            let got = SUBJECT.step(status, event);
            prop_assert_eq!(got.as_ref().ok().map(|s| s.name()), expected);
            if let (Ok(next), Some(to)) = (got, expected) {
                status = Some(next);
                name = to;
            }
        }
    }
}
