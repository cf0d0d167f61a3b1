//! A limit for each tenant by itself: what each of them has, without anybody naming them.
//!
//! It stands in the common book. The limit of a tenant is an entity like any other, made by the first worker that calls the
//! tool for that tenant, and from then on only worth the look that every limit is. When the book says something newer than
//! the entity does, whoever takes tokens next has it follow; a worker that has not yet read the newer book leaves it alone,
//! or two of them would change it to and fro.
//!
//! An operator's own limit of a tenant holds instead of it ([`Book::instead`]). A limit that a tenant has set for itself
//! holds beside it: else a tenant could lift it.

use super::{
    book::{self, Book, EACH_BYTES_MAX, EACH_MAX, Entry, LimitBook, NAMES_BYTES_MAX},
    decide,
    desk::{LimitError, LimitView, Limits, check},
    model::{EACH, EVERYBODY, Event, Spec, State},
};
use crate::shared::{amend, named};
use tenure_kernel::{error::StoreError, ids::EntityId, machine::Decision, time::Timestamp};

/// The entity of a tenant's limit that follows from the one for each.
pub fn id_of(tenant: &str, tool: &str) -> EntityId {
    named("limit_of_each", tenant, tool)
}

/// The limit of a tenant, by the one for each.
pub fn for_tenant(each: &Spec, tenant: &str) -> Spec {
    Spec { tenant: tenant.to_owned(), ..each.clone() }
}

/// Whether a tenant's limit is as the one for each says, or newer.
pub fn is_followed(state: &State, each: &Spec) -> bool {
    state.spec.as_ref().and_then(|s| s.from_each) >= each.from_each
}

/// What makes a tenant's limit as the one for each says; nothing where it is so already, or newer.
pub fn follow(state: Option<&State>, each: &Spec, now: Timestamp) -> Option<Event> {
    match state.is_some_and(|state| is_followed(state, each)) {
        true => None,
        false => Some(decide::set(state, each.clone(), None, now)),
    }
}

/// Whether this is what [`follow`] says, for some moment up to now.
pub fn is_a_follow(state: Option<&State>, event: &Event, each: &Spec, now: Timestamp) -> bool {
    let Event::LimitSet { spec, by: None, next_ns } = event else { return false };
    let forgets = |next| decide::forgets_as_set(state, each, next, now);
    spec == each && !state.is_some_and(|s| is_followed(s, each)) && next_ns.is_none_or(forgets)
}

/// The limit that a tenant has by the one for each, unless an operator has set another one instead.
pub fn of<'a>(common: &'a Book, own: &Book, tenant: &str, tool: &str) -> Option<&'a Spec> {
    let entry = Entry { tool: tool.to_owned(), tenant: tenant.to_owned() };
    let replaced = common.instead.contains(&entry) || own.instead.contains(&entry);
    common.each.get(tool).filter(|_| !replaced)
}

impl Limits {
    /// Sets a limit for each tenant, for the first time or anew. Workers know of it within a few seconds.
    pub async fn set_each(&self, spec: Spec, by: Option<String>) -> Result<bool, LimitError> {
        check(&spec)?;
        let book = book::id_of(EVERYBODY);
        let set = amend::<LimitBook, LimitError>(&self.0, book, EVERYBODY, |state, _| {
            let none = Book::default();
            let book = state.unwrap_or(&none);
            let before = book.each.get(&spec.tool);
            let (tenant, from_each) = (EACH.to_owned(), before.and_then(|s| s.from_each));
            let same = Spec { tenant, from_each, by_operator: true, ..spec.clone() };
            if before == Some(&same) {
                return Ok(Decision::default());
            }
            if before.is_none() {
                room_for(book)?;
            }
            let spec = Spec { from_each: Some(book.changes + 1), ..same };
            Ok(Decision::event(book::Event::EachSet { spec, by: by.clone() }))
        });
        Ok(set.await?.changed)
    }

    /// Removes it: what was made from it holds nobody back any more.
    pub async fn remove_each(&self, tool: &str, by: Option<String>) -> Result<(), LimitError> {
        let book = book::id_of(EVERYBODY);
        amend::<LimitBook, LimitError>(&self.0, book, EVERYBODY, |state, _| {
            match state.is_some_and(|book| book.each.contains_key(tool)) {
                true => {
                    let (tool, by) = (tool.to_owned(), by.clone());
                    Ok(Decision::event(book::Event::EachRemoved { tool, by }))
                }
                false => {
                    let (tool, tenant) = (tool.to_owned(), EACH.to_owned());
                    Err(LimitError::Absent { tool, tenant })
                }
            }
        })
        .await?;
        Ok(())
    }

    /// What a tenant has of it, also where nobody has called the tool yet.
    pub(super) async fn read_each(
        &self,
        each: &Spec,
        tenant: &str,
        now: Timestamp,
    ) -> Result<LimitView, StoreError> {
        let spec = for_tenant(each, tenant);
        let made = self.read(spec.id(), now).await?;
        // One that has not followed yet will with the next call.
        let made = made.filter(|view| view.spec.from_each >= spec.from_each);
        Ok(made.unwrap_or_else(|| unused(spec)))
    }
}

/// Nothing was taken of it.
pub(super) fn unused(spec: Spec) -> LimitView {
    LimitView { id: spec.id(), spec, taken: 0, free_at: None, wait_ms: 0, waiting: 0 }
}

fn room_for(book: &Book) -> Result<(), LimitError> {
    let count = book.each.len();
    let fits = book.each_bytes() <= EACH_BYTES_MAX && book.bytes() <= NAMES_BYTES_MAX;
    if count < EACH_MAX && fits {
        return Ok(());
    }
    let why =
        format!("there are {count} limits for each tenant already, which is all there can be");
    Err(LimitError::Bad { field: "tool", why, fix: "remove one first" })
}
