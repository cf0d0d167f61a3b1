//! Lists: consistent, in pages, at a version.

use crate::{
    http::Query,
    object::{Key, Object},
    resource::Place,
    select::Selector,
    status::Refusal,
    store::Store,
    watch::invalid_version,
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use std::sync::Arc;

/// Where a listing in pages goes on.
struct Continue {
    /// The version of the first page; nothing for one that goes on with what there is now.
    version: Option<u64>,
    after: Key,
}

impl Continue {
    fn token(&self) -> String {
        let version = self.version.map_or(-1, |v| i64::try_from(v).unwrap_or(-1));
        let text =
            json!({"v": "meta.k8s.io/v1", "rv": version, "start": [self.after.0, self.after.1]});
        URL_SAFE_NO_PAD.encode(text.to_string())
    }

    fn parse(token: &str) -> Result<Self, Refusal> {
        let bad = || Refusal::bad_request("continue key is not valid: illegal base64 data");
        let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| bad())?;
        let value: Value = serde_json::from_slice(&bytes).map_err(|_| bad())?;
        let text = |at: usize| value["start"][at].as_str().map(str::to_owned).ok_or_else(bad);
        let version = value["rv"].as_i64().ok_or_else(bad)?;
        Ok(Continue { version: u64::try_from(version).ok(), after: (text(0)?, text(1)?) })
    }
}

struct Page {
    version: u64,
    items: Vec<Arc<Object>>,
    next: Option<Continue>,
    remaining: usize,
}

/// The JSON of a list.
pub(crate) fn list(store: &Store, place: &Place, query: &Query) -> Result<Vec<u8>, Refusal> {
    let selector = selector(place, query)?;
    let page = page(store, place, query, &selector)?;
    let resource = place.resource;
    let mut metadata = json!({"resourceVersion": page.version.to_string()});
    if let Some(next) = &page.next {
        metadata["continue"] = json!(next.token());
        // With a selector the server does not know.
        if selector.is_everything() {
            metadata["remainingItemCount"] = json!(page.remaining);
        }
    }
    let mut bytes = format!(
        r#"{{"kind":"{}List","apiVersion":"{}","metadata":{metadata},"items":["#,
        resource.kind,
        resource.api_version()
    )
    .into_bytes();
    for (at, object) in page.items.iter().enumerate() {
        if at > 0 {
            bytes.push(b',');
        }
        object.write_item(&mut bytes);
    }
    bytes.extend_from_slice(b"]}");
    Ok(bytes)
}

/// What such a list would hold.
pub(crate) fn keys(store: &Store, place: &Place, query: &Query) -> Result<Vec<Key>, Refusal> {
    let selector = selector(place, query)?;
    let page = page(store, place, query, &selector)?;
    Ok(page.items.iter().map(|o| o.key()).collect())
}

fn selector(place: &Place, query: &Query) -> Result<Selector, Refusal> {
    let get = |name: &str| query.get(name).unwrap_or_default();
    Selector::parse(place.resource, get("labelSelector"), get("fieldSelector"))
}

fn page(store: &Store, place: &Place, query: &Query, selector: &Selector) -> Result<Page, Refusal> {
    let asked = query.get("resourceVersion").unwrap_or_default();
    let matching = query.get("resourceVersionMatch").unwrap_or_default();
    let token = query.get("continue").filter(|t| !t.is_empty());
    let mut limit: usize = match query.get("limit") {
        None | Some("") => 0,
        Some(text) => text.parse().map_err(|_| {
            Refusal::bad_request(format!("limit: Invalid value: {text:?}: not a number"))
        })?,
    };
    let forbidden = |why: &str| {
        let words = format!(
            "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: {why}"
        );
        Err(Refusal::new(422, "Invalid", words))
    };
    if !matching.is_empty() && asked.is_empty() {
        return forbidden("resourceVersionMatch is forbidden unless resourceVersion is provided");
    }
    if !matching.is_empty() && token.is_some() {
        return forbidden("resourceVersionMatch is forbidden when continue is provided");
    }
    if matching == "Exact" && asked == "0" {
        return forbidden("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"");
    }
    let asked: u64 =
        if asked.is_empty() { 0 } else { asked.parse().map_err(|_| invalid_version(asked))? };
    let (version, after) = match token {
        Some(token) => {
            if asked > 0 {
                let words = "specifying resource version is not allowed when using continue";
                return Err(Refusal::bad_request(words));
            }
            let from = Continue::parse(token)?;
            (from.version.unwrap_or(store.version()), Some(from.after))
        }
        None if asked > store.version() => return Err(too_large(asked, store.version())),
        None => {
            let exact = matching == "Exact" || (matching.is_empty() && limit > 0 && asked > 0);
            // Answers from the cache know no pages.
            if query.get("resourceVersion") == Some("0") {
                limit = 0;
            }
            (if exact { asked } else { store.version() }, None)
        }
    };
    let Some(objects) = store.as_of(place.resource, version) else {
        return Err(match after {
            Some(after) => continue_expired(&after),
            None => Refusal::expired(format!(
                "The resourceVersion for the provided list is too old: {version} ({})",
                store.expired
            )),
        });
    };
    let inside = |o: &&Arc<Object>| {
        place.namespace.as_deref().is_none_or(|n| o.text("/metadata/namespace") == n)
            && selector.matches(o)
    };
    let rest = objects
        .iter()
        .filter(|(key, _)| after.as_ref().is_none_or(|a| *key > a))
        .map(|(_, o)| o)
        .filter(inside);
    let mut items: Vec<Arc<Object>> = rest.cloned().collect();
    let mut next = None;
    let mut remaining = 0;
    if limit > 0 && items.len() > limit {
        remaining = items.len() - limit;
        items.truncate(limit);
        next = items.last().map(|o| Continue { version: Some(version), after: o.key() });
    }
    Ok(Page { version, items, next, remaining })
}

fn too_large(asked: u64, current: u64) -> Refusal {
    let words = format!("Timeout: Too large resource version: {asked}, current: {current}");
    let mut refusal = Refusal::new(504, "Timeout", words);
    refusal.details = Some(json!({
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
    }));
    refusal.retry_after = Some(1);
    refusal
}

/// The token in the answer goes on with what there is now: nothing is missed that was not deleted, but
/// the pages do not belong to one moment.
fn continue_expired(after: &Key) -> Refusal {
    let words = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";
    let mut refusal = Refusal::expired(words);
    refusal.continuation = Some(Continue { version: None, after: after.clone() }.token());
    refusal
}
