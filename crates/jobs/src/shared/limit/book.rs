//! Limit books: which limits there are. One row each, so that a worker, also one in another process, learns of all of
//! them with one read. They say nothing about rates: those stand in the limits.
//!
//! There is a common book, of the limits for all together, and one for each tenant that has limits. Were it one book,
//! some tenants could fill it, and nobody else, not even the operator, could limit anything any more. That any tenant has
//! a book stands in the common one: a store without such limits is read as rarely as before. (Older programs listed the
//! limits of tenants in the common book; there they stay until they are removed.)
//!
//! Limits for each tenant stand in the common book itself, with their rates: a worker has to know them before any entity
//! of theirs is there, and learns of a change with the look that it takes anyway.

use super::model::Spec;
use crate::shared::named;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use tenure_kernel::{
    ids::EntityId,
    machine::{Cx, Decision, Input, Machine, Undecided},
    table::{BIRTH, Claimable, Class, Move, SAME, StatusRow, Table},
};

/// Limits of one book. It lies in one head.
pub const LIMITS_MAX: usize = 200;
/// Of these, limits that a tenant can set for itself: the rest is the operator's.
pub const LIMITS_PER_TENANT_MAX: usize = 25;
/// Limits for each tenant.
pub const EACH_MAX: usize = 40;
/// Bytes of these together: the rest of the book is for the others.
pub const EACH_BYTES_MAX: usize = 8 * 1024;
/// Bytes of all that together.
pub const NAMES_BYTES_MAX: usize = 12 * 1024;

/// A limit by what it is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Entry {
    /// The tool.
    #[serde(rename = "t")]
    pub tool: String,
    /// Whose calls.
    #[serde(rename = "w")]
    pub tenant: String,
}

/// All of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Book {
    /// In order.
    pub limits: BTreeSet<Entry>,
    /// Of the common book: tenants have books of their own.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub tenants: bool,
    /// Of these limits that an operator has set: each holds instead of the one for each tenant.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub instead: BTreeSet<Entry>,
    /// Of the common book: the limits for each tenant, by tool.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub each: BTreeMap<String, Spec>,
    /// How often those were set or removed.
    #[serde(skip_serializing_if = "is_zero")]
    pub changes: u64,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl Book {
    /// About how many bytes it has.
    pub(super) fn bytes(&self) -> usize {
        let name = |e: &Entry| e.tool.len() + e.tenant.len() + 16;
        let names: usize = self.limits.iter().chain(&self.instead).map(name).sum();
        names + self.each_bytes()
    }

    /// The same of the limits for each tenant, which are here as a whole.
    pub(super) fn each_bytes(&self) -> usize {
        self.each.keys().map(|tool| 2 * tool.len() + 160).sum()
    }
}

/// What can happen to the book.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A limit was set.
    LimitListed {
        /// Which.
        limit: Entry,
        /// See [`Book::instead`].
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        instead: bool,
    },
    /// A limit was removed.
    LimitStruck {
        /// Which.
        limit: Entry,
    },
    /// A tenant got a book of its own.
    TenantsListed {},
    /// A limit for each tenant was set, for the first time or anew.
    EachSet {
        /// What it is from now on.
        spec: Spec,
        /// Who.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    /// A limit for each tenant was removed.
    EachRemoved {
        /// The tool.
        tool: String,
        /// Who.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    /// Mail came that changes nothing.
    BookMailNoted {
        /// How much.
        count: u64,
    },
}

/// The machine.
#[derive(Debug)]
pub struct LimitBook;

/// Its table.
pub static TABLE: Table = Table {
    kind: "limit_book",
    doc: "Which limits there are.",
    statuses: &[StatusRow {
        name: "kept",
        class: Class::Resting,
        claimable: Claimable::No,
        doc: "Lists limits.",
    }],
    moves: &[
        Move { from: BIRTH, event: "limit_listed", to: "kept" },
        Move { from: BIRTH, event: "tenants_listed", to: "kept" },
        Move { from: &["kept"], event: "tenants_listed", to: SAME },
        Move { from: &["kept"], event: "limit_listed", to: SAME },
        Move { from: &["kept"], event: "limit_struck", to: SAME },
        Move { from: BIRTH, event: "each_set", to: "kept" },
        Move { from: &["kept"], event: "each_set", to: SAME },
        Move { from: &["kept"], event: "each_removed", to: SAME },
        Move { from: &["kept"], event: "book_mail_noted", to: SAME },
    ],
    forced: "",
};

impl Machine for LimitBook {
    type State = Book;
    type Event = Event;
    const TABLE: &'static Table = &TABLE;

    fn name(event: &Event) -> &'static str {
        match event {
            Event::LimitListed { .. } => "limit_listed",
            Event::LimitStruck { .. } => "limit_struck",
            Event::TenantsListed {} => "tenants_listed",
            Event::EachSet { .. } => "each_set",
            Event::EachRemoved { .. } => "each_removed",
            Event::BookMailNoted { .. } => "book_mail_noted",
        }
    }

    fn apply(state: &mut Book, event: &Event) {
        match event {
            Event::LimitListed { limit, instead } => {
                state.limits.insert(limit.clone());
                if *instead {
                    state.instead.insert(limit.clone());
                }
            }
            Event::LimitStruck { limit } => {
                state.limits.remove(limit);
                state.instead.remove(limit);
            }
            Event::TenantsListed {} => state.tenants = true,
            Event::EachSet { spec, .. } => {
                state.changes += 1;
                state.each.insert(spec.tool.clone(), spec.clone());
            }
            Event::EachRemoved { tool, .. } => {
                state.changes += 1;
                state.each.remove(tool);
            }
            Event::BookMailNoted { .. } => {}
        }
    }

    fn decide(
        _state: Option<&Book>,
        input: &Input<'_>,
        _cx: &Cx,
    ) -> Result<Decision<Event>, Undecided> {
        match input {
            Input::Mail(mail) => {
                Ok(Decision::event(Event::BookMailNoted { count: mail.len() as u64 }))
            }
            other => Err(Undecided(format!("the limit book does not know {}", other.rule()))),
        }
    }
}

/// The entity of a tenant's book; of [`super::model::EVERYBODY`], of the common one.
pub fn id_of(tenant: &str) -> EntityId {
    named("limit_book", tenant, "all")
}
