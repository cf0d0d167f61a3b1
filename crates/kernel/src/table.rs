//! The transition table: one per machine, plain data. It validates every commit, derives the status
//! from a stream, is printed as documentation, and feeds the property tests.

use std::{collections::BTreeMap, fmt, fmt::Write as _};

/// What is owed to somebody while an entity has a status.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Somebody is owed an outcome: `due` and `must_end_by` are set, the database insists.
    Open,
    /// Nothing is owed. May have timers, never a `must_end_by`.
    Resting,
    /// Over. The row never changes again.
    Final,
}

impl Class {
    /// The name used in tables and output.
    pub const fn name(self) -> &'static str {
        match self {
            Class::Open => "open",
            Class::Resting => "resting",
            Class::Final => "final",
        }
    }
}

/// How an entity with a status can be claimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claimable {
    /// Not at all: it is blocked, resting, or over.
    No,
    /// By name only; it stands in no queue.
    ByName,
    /// From its queue, or by name.
    Queued,
}

/// One status of a machine.
#[derive(Debug)]
pub struct StatusRow {
    /// Its name, as users see it.
    pub name: &'static str,
    /// What is owed.
    pub class: Class,
    /// How it can be claimed.
    pub claimable: Claimable,
    /// One line for the documentation.
    pub doc: &'static str,
}

/// One allowed transition. An event moves an entity only along a row.
#[derive(Debug)]
pub struct Move {
    /// Statuses it applies to; [`BIRTH`] for the first event of a stream.
    pub from: &'static [&'static str],
    /// The event's name.
    pub event: &'static str,
    /// The status after it; [`SAME`] for events that say something and move nothing.
    pub to: &'static str,
}

/// The name of a resting status in which an entity is not needed any more. Mail wakes it like everything that rests; left
/// alone, retention removes it like what is over ([`crate::housekeeping::may_leave`]), and whoever needs it then makes it
/// anew under the same id. A name and not a class: to everybody but retention it is an entity that rests.
pub const VACANT: &str = "vacant";

/// `from` of a first event.
pub const BIRTH: &[&str] = &[];
/// `to` of an event that leaves the status as it is.
pub const SAME: &str = "=";

/// The names of the events the kernel itself writes.
pub mod kernel_events {
    /// Somebody took tenure. A claimable machine says in its table where it leads.
    pub const CLAIMED: &str = "tenure_claimed";
    /// A tenure ended by release, park, or reclaim. Same.
    pub const TENURE_ENDED: &str = "tenure_ended";
    /// `must_end_by` passed and the machine could not end itself. Leads to [`super::Table::forced`].
    pub const FORCE_ENDED: &str = "force_ended";
    /// A decision kept failing. Moves nothing.
    pub const ATTENTION_RAISED: &str = "attention_raised";
    /// A person looked. Moves nothing.
    pub const ATTENTION_CLEARED: &str = "attention_cleared";
    /// A person moved `must_end_by`. Moves nothing.
    pub const DEADLINE_MOVED: &str = "deadline_moved";
    /// A segment was sealed: the body holds state and previous root. Moves nothing.
    pub const SEALED: &str = "sealed";

    /// Allowed from every status that is not final, without a row.
    pub const UNIVERSAL: [&str; 4] = [ATTENTION_RAISED, ATTENTION_CLEARED, DEADLINE_MOVED, SEALED];
}

/// A machine's statuses and transitions.
#[derive(Debug)]
pub struct Table {
    /// The kind of entity, as stored and shown.
    pub kind: &'static str,
    /// One line for the documentation.
    pub doc: &'static str,
    /// Every status.
    pub statuses: &'static [StatusRow],
    /// Every transition.
    pub moves: &'static [Move],
    /// The final status a forced end leads to.
    pub forced: &'static str,
}

/// A status of a known table. Cheap to copy and compare.
#[derive(Clone, Copy)]
pub struct Status {
    /// The table it belongs to.
    pub table: &'static Table,
    index: u8,
}

impl Status {
    /// The row behind it.
    pub fn row(self) -> &'static StatusRow {
        &self.table.statuses[usize::from(self.index)]
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Its class.
    pub fn class(self) -> Class {
        self.row().class
    }
}

impl PartialEq for Status {
    fn eq(&self, other: &Self) -> bool {
        self.table.kind == other.table.kind && self.index == other.index
    }
}

impl Eq for Status {}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.table.kind, self.name())
    }
}

/// An event that the table does not allow where the entity stands.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a {kind} that is {from} has no transition for the event {event:?}")]
pub struct Illegal {
    /// The machine.
    pub kind: &'static str,
    /// Where it stands ("not created" before the first event).
    pub from: &'static str,
    /// What was tried.
    pub event: String,
}

impl Table {
    /// Finds a status by name.
    pub fn status(&'static self, name: &str) -> Option<Status> {
        let index = self.statuses.iter().position(|s| s.name == name)?;
        Some(Status { table: self, index: u8::try_from(index).ok()? })
    }

    /// Where an event leads.
    pub fn step(&'static self, from: Option<Status>, event: &str) -> Result<Status, Illegal> {
        let here = from.map_or("not created", Status::name);
        let illegal = || Illegal { kind: self.kind, from: here, event: event.to_owned() };
        let Some(from) = from else {
            let row = self.moves.iter().find(|m| m.from.is_empty() && m.event == event);
            return row.and_then(|m| self.status(m.to)).ok_or_else(illegal);
        };
        if from.class() == Class::Final {
            return Err(illegal());
        }
        if event == kernel_events::FORCE_ENDED {
            return self.status(self.forced).ok_or_else(illegal);
        }
        match self.moves.iter().find(|m| m.event == event && m.from.contains(&from.name())) {
            Some(m) if m.to == SAME => Ok(from),
            Some(m) => self.status(m.to).ok_or_else(illegal),
            None if kernel_events::UNIVERSAL.contains(&event) => Ok(from),
            None => Err(illegal()),
        }
    }

    /// Whether its entities may leave while they rest, and come again under the same id: see [`VACANT`].
    pub fn comes_again(&self) -> bool {
        self.statuses.iter().any(|s| s.name == VACANT)
    }

    /// What a claim makes of something claimable.
    pub fn where_claims_lead(&'static self) -> Option<Status> {
        let claim = self.moves.iter().find(|m| m.event == kernel_events::CLAIMED)?;
        self.status(claim.to)
    }

    /// Everything wrong with the table, in words. Empty for a sound one.
    pub fn problems(&'static self) -> Vec<String> {
        let mut found = Vec::new();
        let known = |n: &str| self.statuses.iter().any(|s| s.name == n);
        match self.status(self.forced) {
            Some(s) if s.class() == Class::Final => {}
            Some(_) => found.push(format!("forced status {:?} is not final", self.forced)),
            None if self.statuses.iter().any(|s| s.class == Class::Open) => {
                found.push(format!("forced status {:?} is unknown", self.forced));
            }
            None => {}
        }
        if !self.moves.iter().any(|m| m.from.is_empty()) {
            found.push("nothing is ever born: there is no birth row".to_owned());
        }
        let mut seen = BTreeMap::new();
        for m in self.moves {
            if m.to != SAME && !known(m.to) {
                found.push(format!("{} leads to the unknown status {:?}", m.event, m.to));
            }
            if m.from.is_empty() && seen.insert(("", m.event), ()).is_some() {
                found.push(format!("two birth rows for {}", m.event));
            }
            for from in m.from {
                match self.status(from) {
                    None => {
                        found.push(format!("{} starts at the unknown status {from:?}", m.event))
                    }
                    Some(s) if s.class() == Class::Final => {
                        found.push(format!("{} leaves the final status {from:?}", m.event));
                    }
                    Some(_) => {}
                }
                if seen.insert((from, m.event), ()).is_some() {
                    found.push(format!("two rows for {} in {from:?}", m.event));
                }
            }
        }
        for s in self.statuses {
            let reached = m_reaches(self.moves, s.name) || s.name == self.forced;
            if !reached {
                found.push(format!("nothing leads to the status {:?}", s.name));
            }
            let rests = s.class == Class::Resting && s.claimable == Claimable::No;
            if s.name == VACANT && !rests {
                found.push(format!("{VACANT:?} has to rest: retention removes what has it"));
            }
            let leads =
                |e: &str| self.moves.iter().find(|m| m.event == e && m.from.contains(&s.name));
            if s.claimable != Claimable::No {
                match leads(kernel_events::CLAIMED).map(|m| m.to).and_then(|to| self.status(to)) {
                    Some(held) if held.row().claimable == Claimable::No => {
                        let ends = |m: &&Move| {
                            m.event == kernel_events::TENURE_ENDED && m.from.contains(&held.name())
                        };
                        if !self.moves.iter().any(|m| ends(&m)) {
                            found.push(format!(
                                "{:?} is held but has no row for the end of tenure",
                                held.name()
                            ));
                        }
                    }
                    _ => found.push(format!(
                        "claimable status {:?} must lead to one that is not",
                        s.name
                    )),
                }
            }
            if s.claimable == Claimable::Queued && s.class != Class::Open {
                found.push(format!(
                    "{:?} is {} and can not stand in a queue",
                    s.name,
                    s.class.name()
                ));
            }
        }
        found
    }

    /// The table as a page of documentation.
    pub fn to_markdown(&'static self) -> String {
        let mut out = format!(
            "## {}\n\n{}\n\n| status | class | claimed | meaning |\n|---|---|---|---|\n",
            self.kind, self.doc
        );
        for s in self.statuses {
            let claim = match s.claimable {
                Claimable::No => "never",
                Claimable::ByName => "by name",
                Claimable::Queued => "from its queue",
            };
            // Writing to a String cannot fail.
            let _ = writeln!(out, "| `{}` | {} | {claim} | {} |", s.name, s.class.name(), s.doc);
        }
        out.push_str("\n| from | event | to |\n|---|---|---|\n");
        for m in self.moves {
            let from = if m.from.is_empty() {
                "(not created)".to_owned()
            } else {
                format!("`{}`", m.from.join("`, `"))
            };
            let to = if m.to == SAME { "(unchanged)".to_owned() } else { format!("`{}`", m.to) };
            let _ = writeln!(out, "| {from} | `{}` | {to} |", m.event);
        }
        if !self.forced.is_empty() {
            let _ = writeln!(
                out,
                "| any that is not final | `{}` | `{}` |",
                kernel_events::FORCE_ENDED,
                self.forced
            );
        }
        out
    }
}

fn m_reaches(moves: &[Move], status: &str) -> bool {
    moves.iter().any(|m| m.to == status)
}

/// The tables of all machines that a process knows.
#[derive(Clone, Default, Debug)]
pub struct Tables(BTreeMap<&'static str, &'static Table>);

impl Tables {
    /// Adds a table; a second one of the same kind replaces the first.
    pub fn insert(&mut self, table: &'static Table) {
        self.0.insert(table.kind, table);
    }

    /// Finds a table by kind.
    pub fn get(&self, kind: &str) -> Option<&'static Table> {
        self.0.get(kind).copied()
    }

    /// All tables, by kind.
    pub fn iter(&self) -> impl Iterator<Item = &'static Table> + '_ {
        self.0.values().copied()
    }
}
