//! How a listing of heads is looked up: which index answers which part of it.
//!
//! Nothing that changes with every step may stand in an index of heads, so there is none over the status.
//! What there is: kind and tenant, written at birth; the status of what is final, written at the end; and
//! `due`, which every open head has (law 4). A listing by status is therefore looked up in parts, one per
//! index, and put together here. History, however long, is never scanned for the few that are open or for
//! the few that failed.
//!
//! Before that, the [`NEAR`] heads that come first in the listing's order are looked through. Most listings
//! are full then, and so is every one of a tenant with little history.

use tenure_kernel::{head::Head, store::HeadFilter, table::Class, table::Tables};

/// How many heads are looked through before the parts are looked up.
pub(crate) const NEAR: usize = 2_000;

/// One part of a listing.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Part {
    /// Only this kind.
    pub kind: Option<String>,
    /// Only these statuses; empty for any.
    pub statuses: Vec<String>,
    /// Where to look.
    pub place: Place,
}

/// Which index to walk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Place {
    /// In the order of births.
    Births,
    /// Among what is due: every open head is.
    Open,
    /// Among the final ones of one kind and one status.
    Ended,
    /// Among those marked for a person.
    Attention,
}

/// The parts of a listing. Together they are all of it; a head is in one of them only.
pub(crate) fn parts(filter: &HeadFilter, tables: &Tables) -> Vec<Part> {
    let statuses: Vec<String> = filter.wanted_statuses().into_iter().map(str::to_owned).collect();
    if filter.attention || statuses.is_empty() {
        let place = if filter.attention { Place::Attention } else { Place::Births };
        return vec![Part { kind: filter.kind.clone(), statuses, place }];
    }
    let mut parts = Vec::new();
    for table in tables.iter().filter(|t| filter.kind.as_deref().is_none_or(|k| k == t.kind)) {
        let of = |class: Class| -> Vec<String> {
            let is = |s: &&String| table.status(s).is_some_and(|s| s.class() == class);
            statuses.iter().filter(is).cloned().collect()
        };
        let part = |statuses, place| Part { kind: Some(table.kind.to_owned()), statuses, place };
        parts.push(part(of(Class::Open), Place::Open));
        parts.push(part(of(Class::Resting), Place::Births));
        parts.extend(of(Class::Final).into_iter().map(|s| part(vec![s], Place::Ended)));
    }
    parts.retain(|p| !p.statuses.is_empty());
    parts
}

/// The part that is looked through first, if the listing is worth it.
pub(crate) fn near(filter: &HeadFilter, parts: &[Part]) -> Option<Part> {
    let by_status = parts.iter().any(|p| matches!(p.place, Place::Open | Place::Ended));
    by_status.then(|| Part {
        kind: filter.kind.clone(),
        statuses: parts.iter().flat_map(|p| p.statuses.clone()).collect(),
        place: Place::Births,
    })
}

/// The first heads of all parts, in the listing's order.
pub(crate) fn merge(mut heads: Vec<Head>, newest_first: bool, limit: usize) -> Vec<Head> {
    heads.sort_by_key(|h| h.id);
    if newest_first {
        heads.reverse();
    }
    heads.truncate(limit);
    heads
}
