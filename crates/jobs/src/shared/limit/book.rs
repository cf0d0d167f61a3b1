//! Limit books: which limits there are. One row each, so that a worker, also one in another process, learns of all of
//! them with one read. They say nothing about rates: those stand in the limits.
//!
//! There is a common book, of the limits for all together, and one for each tenant that has limits. Were it one book,
//! some tenants could fill it, and nobody else, not even the operator, could limit anything any more. That any tenant has
//! a book stands in the common one: a store without such limits is read as rarely as before. (Older programs listed the
//! limits of tenants in the common book; there they stay until they are removed.)

use crate::shared::named;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use tenure_kernel::{
    ids::EntityId,
    machine::{Cx, Decision, Input, Machine, Undecided},
    table::{BIRTH, Claimable, Class, Move, SAME, StatusRow, Table},
};

/// Limits of one book. It lies in one head.
pub const LIMITS_MAX: usize = 200;
/// Of these, limits that a tenant can set for itself: the rest is the operator's.
pub const LIMITS_PER_TENANT_MAX: usize = 25;
/// Bytes of their names together.
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
}

/// What can happen to the book.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A limit was set.
    LimitListed {
        /// Which.
        limit: Entry,
    },
    /// A limit was removed.
    LimitStruck {
        /// Which.
        limit: Entry,
    },
    /// A tenant got a book of its own.
    TenantsListed {},
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
            Event::BookMailNoted { .. } => "book_mail_noted",
        }
    }

    fn apply(state: &mut Book, event: &Event) {
        match event {
            Event::LimitListed { limit } => {
                state.limits.insert(limit.clone());
            }
            Event::LimitStruck { limit } => {
                state.limits.remove(limit);
            }
            Event::TenantsListed {} => state.tenants = true,
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
