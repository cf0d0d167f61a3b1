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
    /// Among what is due by a moment: what somebody holds.
    Held,
}

/// The parts of a listing. Together they are all of it; a head is in one of them only.
pub(crate) fn parts(filter: &HeadFilter, tables: &Tables) -> Vec<Part> {
    let statuses: Vec<String> = filter.wanted_statuses().into_iter().map(str::to_owned).collect();
    let all_of = |kind, place| Part { kind, statuses: statuses.clone(), place };
    if filter.held.is_some() {
        return vec![all_of(filter.kind.clone(), Place::Held)];
    }
    if filter.attention {
        return vec![all_of(filter.kind.clone(), Place::Attention)];
    }
    if statuses.is_empty() && filter.kind.is_none() && filter.tenant.is_some() {
        // The index over the tenant goes on with the kind.
        let kinds = tables.iter().map(|t| Some(t.kind.to_owned()));
        return kinds.map(|kind| all_of(kind, Place::Births)).collect();
    }
    if statuses.is_empty() {
        return vec![all_of(filter.kind.clone(), Place::Births)];
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

/// The part that is looked through first, if the listing is worth it: of one kind, because the indexes written at
/// birth are by kind.
pub(crate) fn near(filter: &HeadFilter, parts: &[Part]) -> Option<Part> {
    let by_status = parts.iter().any(|p| matches!(p.place, Place::Open | Place::Ended));
    (by_status && filter.kind.is_some()).then(|| Part {
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

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_kernel::{
        ids::EntityId,
        sessions::{LANE, WORKER},
        store::HeldBy,
        time::Timestamp,
    };

    fn tables() -> Tables {
        let mut tables = Tables::default();
        tables.insert(&WORKER);
        tables.insert(&LANE);
        tables
    }

    fn places(filter: &HeadFilter) -> Vec<(Option<String>, Place)> {
        parts(filter, &tables()).into_iter().map(|p| (p.kind, p.place)).collect()
    }

    #[test]
    fn each_status_is_looked_up_where_its_class_is_kept() {
        let worker = || Some("worker".to_owned());
        let any = HeadFilter::default();
        assert_eq!(places(&any), [(None, Place::Births)]);
        let of_tenant = HeadFilter { tenant: Some("t".into()), ..any.clone() };
        let each = [(Some("lane".to_owned()), Place::Births), (worker(), Place::Births)];
        assert_eq!(places(&of_tenant), each);
        let statuses = vec!["alive".to_owned(), "ended".to_owned(), "unheard-of".to_owned()];
        let several = HeadFilter { statuses, ..any.clone() };
        assert_eq!(places(&several), [(worker(), Place::Births), (worker(), Place::Ended)]);
        let by = HeldBy { session: EntityId::fixed(1, 1), due_by: Timestamp::ZERO };
        let held = HeadFilter { held: Some(by), kind: worker(), ..several.clone() };
        assert_eq!(places(&held), [(worker(), Place::Held)]);
        assert_eq!(near(&held, &parts(&held, &tables())), None, "nothing else is looked through");
        let marked = HeadFilter { attention: true, ..several };
        assert_eq!(places(&marked), [(None, Place::Attention)]);
        let nowhere = HeadFilter { status: Some("unheard-of".into()), ..any };
        assert_eq!(places(&nowhere), []);
    }
}
