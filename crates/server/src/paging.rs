//! Listings by pages, as all of them are: a limit, a cursor, statuses by name, and a bound on what one request looks at,
//! because a filter that the store has no index for leaves some out. So a page may be short and not be the last.

use crate::{ApiCode, App, Problem};
use axum::http::StatusCode;
use std::future::Future;
use tenure_kernel::{
    error::StoreError,
    head::Head,
    ids::EntityId,
    machine::{Machine, decode_state},
    store::{HeadFilter, KeyRange},
    table::Table,
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

/// Where the page before ended.
pub(crate) fn cursor(before: Option<&str>) -> Result<Option<EntityId>, Problem> {
    id("before", before, "use next of the page before, exactly as it was given")
}

/// What a listing lies between: ids that begin so, and behind the page before.
pub(crate) fn between(
    prefix: Option<&str>,
    page_before: Option<&str>,
) -> Result<(Option<EntityId>, Option<EntityId>), Problem> {
    let (after, before) = prefix.map(around).transpose()?.unzip();
    let cursor = cursor(page_before)?;
    Ok((after, [before, cursor].into_iter().flatten().min()))
}

/// The ids right before and right after all that begin with these digits.
fn around(prefix: &str) -> Result<(EntityId, EntityId), Problem> {
    let digits: String = prefix.chars().filter(|c| *c != '-').collect();
    let fine = (1..=32).contains(&digits.len()) && digits.chars().all(|c| c.is_ascii_hexdigit());
    let end = |fill: char| {
        let mut text = digits.clone();
        text.extend(std::iter::repeat_n(fill, 32_usize.saturating_sub(digits.len())));
        u128::from_str_radix(&text, 16).ok()
    };
    match (fine, end('0'), end('f')) {
        (true, Some(low), Some(high)) => {
            let id = |n: u128| EntityId::from_bytes(n.to_be_bytes());
            Ok((id(low.saturating_sub(1)), id(high.saturating_add(1))))
        }
        _ => {
            let detail = format!("id = {prefix:?} is not the beginning of an id");
            Err(bad("id", detail, "give hexadecimal digits, as ids begin with them"))
        }
    }
}

/// How an id ends: its last digits.
pub(crate) struct End(String);

/// Reads how ids have to end; none where it is not asked for. The store has no index of ends, so a page looks at a bounded number of
/// entities, as it does for every such filter.
pub(crate) fn end(text: Option<&str>) -> Result<Option<End>, Problem> {
    let Some(text) = text else { return Ok(None) };
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let fine = (1..=32).contains(&digits.len()) && digits.chars().all(|c| c.is_ascii_hexdigit());
    match fine {
        true => Ok(Some(End(digits.to_ascii_lowercase()))),
        false => {
            let detail = format!("id_end = {text:?} is not the end of an id");
            Err(bad("id_end", detail, "give hexadecimal digits, as ids end with them"))
        }
    }
}

/// Whether an id ends so.
pub(crate) fn ends(id: EntityId, end: Option<&End>) -> bool {
    let digits = || id.to_string().replace('-', "");
    end.is_none_or(|end| digits().ends_with(&end.0))
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

/// One page of the entities of these keys, those of the highest keys first, that `wanted` keeps. `rows` is the range of keys before an
/// entity.
pub(crate) async fn by_keys(
    app: &App,
    limit: usize,
    mut before: Option<EntityId>,
    rows: impl Fn(Option<EntityId>) -> KeyRange,
    wanted: impl Fn(&Head) -> bool,
) -> Result<(Vec<Head>, Option<EntityId>), StoreError> {
    let store = app.pipeline().store();
    let (mut found, mut looked) = (Vec::new(), 0);
    loop {
        let keys = store.keys(rows(before), LIMIT_MAX).await?;
        let (count, last_page) = (keys.len(), keys.len() < LIMIT_MAX);
        for (i, (_, id)) in keys.into_iter().enumerate() {
            before = Some(id);
            looked += 1;
            found.extend(store.head(id).await?.filter(&wanted));
            if found.len() == limit || looked == LOOKED_AT_MAX {
                let more = !last_page || i + 1 < count;
                return Ok((found, before.filter(|_| more)));
            }
        }
        if last_page {
            return Ok((found, None));
        }
    }
}

/// One page of a machine's entities, the newest first, that a look at their state admits.
pub(crate) async fn newest<M: Machine>(
    app: &App,
    filter: HeadFilter,
    limit: usize,
    admits: impl Fn(&M::State) -> bool,
) -> Result<(Vec<(Head, M::State)>, Option<EntityId>), Problem> {
    newest_where::<M>(app, filter, limit, |_, state| admits(state)).await
}

/// The same with a look at their row, too.
pub(crate) async fn newest_where<M: Machine>(
    app: &App,
    mut filter: HeadFilter,
    limit: usize,
    admits: impl Fn(&Head, &M::State) -> bool,
) -> Result<(Vec<(Head, M::State)>, Option<EntityId>), Problem> {
    filter.kind = Some(M::TABLE.kind.into());
    filter.newest_first = true;
    let store = app.pipeline().store();
    let fetch = |filter| store.heads(filter, LIMIT_MAX);
    let wanted = |head: Head| {
        // One entity that cannot be read must not hide the others: it is listed with what its row says.
        let state = decode_state::<M>(&head.state).unwrap_or_else(|e| {
            tracing::warn!(entity = %head.id, why = %e, "an entity cannot be read");
            M::State::default()
        });
        Ok(admits(&head, &state).then_some((head, state)))
    };
    Ok(page(filter, limit, fetch, wanted).await?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_jobs::Job;

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

    #[test]
    fn an_end_is_compared_digit_by_digit() {
        let id: EntityId = "0190b5e0-1234-7abc-8def-001122334455".parse().unwrap();
        for fits in ["5", "4455", "8DEF-001122334455", "8def001122334455", &id.to_string()] {
            assert!(ends(id, end(Some(fits)).unwrap().as_ref()), "{fits}");
        }
        assert!(!ends(id, end(Some("0190b5e0")).unwrap().as_ref()));
        assert!(ends(id, None));
        for nonsense in ["", "-", "xyz", "0190b5e0-1234-7abc-8def-0011223344556"] {
            assert!(end(Some(nonsense)).is_err(), "{nonsense}");
        }
    }

    #[test]
    fn a_prefix_is_everything_between_two_ids() {
        let id: EntityId = "0190b5e0-1234-7abc-8def-001122334455".parse().unwrap();
        for prefix in ["0", "0190b5e0", "0190b5e0-12", "0190B5E01234", &id.to_string()] {
            let (low, high) = around(prefix).unwrap();
            assert!(low < id && id < high, "{prefix}");
        }
        let (low, high) = around("0190b5e1").unwrap();
        assert!(!(low < id && id < high));
        for nonsense in ["", "-", "xyz", "0190b5e0-1234-7abc-8def-0011223344556"] {
            assert!(around(nonsense).is_err(), "{nonsense}");
        }
    }
}
