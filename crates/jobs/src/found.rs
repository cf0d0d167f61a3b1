//! How jobs are found by their key and by their labels: rows among the unique keys of the store, whose order is an index on every store.
//! A key is there to be unique; the row of a label ends with the id of its job, so that many jobs can have the same label, and rows of
//! one label are in the order of ids. They are written with the birth of a job and leave with it.

use std::collections::BTreeMap;
use tenure_kernel::{commit::UniqueKey, ids::EntityId, store::KeyRange, stream::Hash};

/// The row of a key. A tenant may have slashes in its name, so its length stands before it.
pub fn key_row(tenant: &str, key: &str) -> String {
    format!("job/{}/{tenant}/{key}", tenant.len())
}

/// Where the rows of a label begin; what follows is the id of a job. Neither a name nor an id has a slash; a value may have one, so
/// its length stands before it.
fn label_rows(tenant: &str, name: &str, value: &str) -> String {
    format!("label/{}/{tenant}/{name}/{}/{value}/", tenant.len(), value.len())
}

/// The rows of the labels of a job.
pub fn rows_of(tenant: &str, job: EntityId, labels: &BTreeMap<String, String>) -> Vec<UniqueKey> {
    let row = |(name, value): (&String, &String)| UniqueKey {
        key: format!("{}{job}", label_rows(tenant, name, value)),
        digest: Hash::of(b"label"),
    };
    labels.iter().map(row).collect()
}

/// The row of a key alone.
pub fn with_key(tenant: &str, key: &str) -> KeyRange {
    let from = key_row(tenant, key);
    // No key lies between one and the same with the lowest character behind it that a database takes.
    KeyRange { to: format!("{from}\u{1}"), from, highest_first: true }
}

/// The rows of a label, the newest job first; only jobs before this one.
pub fn with_label(tenant: &str, name: &str, value: &str, before: Option<EntityId>) -> KeyRange {
    let from = label_rows(tenant, name, value);
    // `g` is behind all digits of an id.
    let end = before.map_or_else(|| "g".to_owned(), |id| id.to_string());
    KeyRange { to: format!("{from}{end}"), from, highest_first: true }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_range(range: &KeyRange, row: &str) -> bool {
        range.from.as_str() <= row && row < range.to.as_str()
    }

    #[test]
    fn a_range_has_the_rows_of_its_label_and_no_others() {
        let ids = [1, 2].map(|n| EntityId::fixed(9, n));
        let row = |tenant: &str, id, name: &str, value: &str| {
            let labels = BTreeMap::from([(name.to_owned(), value.to_owned())]);
            rows_of(tenant, id, &labels).remove(0).key
        };
        let all = with_label("acme", "customer", "7", None);
        assert!(in_range(&all, &row("acme", ids[0], "customer", "7")));
        assert!(in_range(&all, &row("acme", ids[1], "customer", "7")));
        for other in [
            row("acme", ids[0], "customer", "77"),
            row("acme", ids[0], "customer", "7/x"),
            row("acme", ids[0], "custome", "r/7"),
            row("acme/customer", ids[0], "x", "7"),
            row("beta", ids[0], "customer", "7"),
        ] {
            assert!(!in_range(&all, &other), "{other}");
        }
        let before = with_label("acme", "customer", "7", Some(ids[1]));
        assert!(in_range(&before, &row("acme", ids[0], "customer", "7")));
        assert!(
            !in_range(&before, &row("acme", ids[1], "customer", "7")),
            "itself is not before it"
        );
    }

    #[test]
    fn a_key_is_found_alone() {
        let range = with_key("acme", "order-7");
        assert!(in_range(&range, &key_row("acme", "order-7")));
        for other in
            [key_row("acme", "order-71"), key_row("acme", "order-"), key_row("beta", "order-7")]
        {
            assert!(!in_range(&range, &other), "{other}");
        }
    }
}
