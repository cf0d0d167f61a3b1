//! Listings by pages, as all of them are: a limit, a cursor, statuses by name, and a bound on what one request looks at,
//! because a filter that the store has no index for leaves some out. So a page may be short and not be the last.

use crate::{ApiCode, Problem};
use axum::http::StatusCode;
use std::future::Future;
use tenure_kernel::{
    error::StoreError, head::Head, ids::EntityId, store::HeadFilter, table::Table,
};

/// The largest page, and what is read from the store at once.
pub(crate) const LIMIT_MAX: usize = 200;
const LIMIT: usize = 50;
/// Heads that one request looks at.
const LOOKED_AT_MAX: usize = 2_000;

/// A parameter that can not be used.
pub(crate) fn bad(field: &str, detail: String, fix: &str) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, ApiCode::BadField, detail).field(field).fix(fix)
}

/// An id, or the cursor that a page gave, which is one.
pub(crate) fn id(field: &str, text: Option<&str>, fix: &str) -> Result<Option<EntityId>, Problem> {
    let detail = |text: &str, e| format!("{field} = {text:?} can not be read: {e}");
    text.map(|text| text.parse().map_err(|e| bad(field, detail(text, e), fix))).transpose()
}

/// How many.
pub(crate) fn limit(limit: Option<usize>) -> Result<usize, Problem> {
    match limit.unwrap_or(LIMIT) {
        n @ 1..=LIMIT_MAX => Ok(n),
        n => Err(bad("limit", format!("limit = {n}: give 1 to {LIMIT_MAX}"), "read several pages")),
    }
}

/// Statuses of a machine, with commas between them.
pub(crate) fn statuses(table: &Table, text: Option<&str>) -> Result<Vec<String>, Problem> {
    let known: Vec<&str> = table.statuses.iter().map(|s| s.name).collect();
    let words = text.unwrap_or("").split(',').map(str::trim).filter(|w| !w.is_empty());
    words
        .map(|word| match known.contains(&word) {
            true => Ok(word.to_owned()),
            false => {
                let detail = format!("status = {word:?}: there are {}", known.join(", "));
                Err(bad("status", detail, "use one of these, or several with commas")
                    .with("known", known.clone()))
            }
        })
        .collect()
}

/// One page of what `wanted` keeps, and where the next begins; none after the last. `fetch` reads up to [`LIMIT_MAX`] heads.
pub(crate) async fn page<T, F, R>(
    mut filter: HeadFilter,
    limit: usize,
    fetch: F,
    wanted: impl Fn(Head) -> Result<Option<T>, StoreError>,
) -> Result<(Vec<T>, Option<EntityId>), StoreError>
where
    F: Fn(HeadFilter) -> R,
    R: Future<Output = Result<Vec<Head>, StoreError>>,
{
    let (mut found, mut looked) = (Vec::new(), 0);
    loop {
        let heads = fetch(filter.clone()).await?;
        let (count, last_page) = (heads.len(), heads.len() < LIMIT_MAX);
        for (i, head) in heads.into_iter().enumerate() {
            let here = Some(head.id);
            match filter.newest_first {
                true => filter.before = here,
                false => filter.after = here,
            }
            looked += 1;
            found.extend(wanted(head)?);
            if found.len() == limit || looked == LOOKED_AT_MAX {
                let more = !last_page || i + 1 < count;
                return Ok((found, here.filter(|_| more)));
            }
        }
        if last_page {
            return Ok((found, None));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_jobs::Job;
    use tenure_kernel::machine::Machine as _;

    #[test]
    fn statuses_are_checked_by_name() {
        let read = |text| statuses(Job::TABLE, text);
        assert_eq!(read(Some("queued, running")).unwrap(), ["queued", "running"]);
        assert!(read(None).unwrap().is_empty());
        assert!(read(Some("queued,banana")).unwrap_err().detail().contains("cancelled"));
    }

    #[test]
    fn a_page_has_a_size_that_makes_sense() {
        assert_eq!(limit(None).unwrap(), LIMIT);
        assert_eq!(limit(Some(LIMIT_MAX)).unwrap(), LIMIT_MAX);
        assert!(limit(Some(0)).is_err() && limit(Some(LIMIT_MAX + 1)).is_err());
    }
}
