//! Whole ids from parts of them. Ids begin with their time, so those of one hour look alike at the beginning; their ends differ.

use super::{Failure, job::client::Api};
use serde_json::Value;

/// A listing in which ids are looked up.
#[derive(Clone, Copy)]
pub struct Kind {
    /// Its path under `/v1`, and the member of its answer.
    path: &'static str,
    /// One of them.
    word: &'static str,
}

/// Jobs.
pub const JOBS: Kind = Kind { path: "jobs", word: "job" };
/// Turns of agents.
pub const TURNS: Kind = Kind { path: "turns", word: "turn" };
/// Tasks.
pub const TASKS: Kind = Kind { path: "tasks", word: "task" };

/// Pages that are looked at for an end. The store has no index of ends: a page is what one request looks at, the newest first.
const PAGES_MAX: usize = 10;

/// The whole id; an error where none or several are meant.
pub async fn whole(api: &Api, kind: Kind, given: &str) -> Result<String, Failure> {
    let Kind { word, .. } = kind;
    found(api, kind, given).await?.ok_or_else(|| {
        Failure::System(format!(
            "no {word} has an id that begins with {given}, and none of the newest has one that ends with it\n        \
             `tenure {word} list` shows them"
        ))
    })
}

/// The whole id; none where no id begins or ends so.
pub async fn found(api: &Api, kind: Kind, given: &str) -> Result<Option<String>, Failure> {
    if given.len() == 36 {
        return Ok(Some(given.to_owned()));
    }
    let begin = api.get(&[kind.path], &[("id", given.to_owned()), two()]).await?;
    if let Some(one) = only(kind, given, "begin", &ids(kind, &begin))? {
        return Ok(Some(one));
    }
    let (mut found, mut before) = (Vec::new(), None);
    for _ in 0..PAGES_MAX {
        let cursor = before.take().map(|id| ("before", id));
        let query: Vec<_> =
            [("id_end", given.to_owned()), two()].into_iter().chain(cursor).collect();
        let page = api.get(&[kind.path], &query).await?;
        found.extend(ids(kind, &page));
        before = page["next"].as_str().map(str::to_owned);
        if found.len() > 1 || before.is_none() {
            break;
        }
    }
    only(kind, given, "end", &found)
}

/// As many as are needed to see that there are several.
fn two() -> (&'static str, String) {
    ("limit", "2".to_owned())
}

fn ids(kind: Kind, page: &Value) -> Vec<String> {
    let all = page[kind.path].as_array().into_iter().flatten();
    all.filter_map(|one| one["id"].as_str()).map(str::to_owned).collect()
}

fn only(kind: Kind, given: &str, how: &str, ids: &[String]) -> Result<Option<String>, Failure> {
    match ids {
        [] => Ok(None),
        [one] => Ok(Some(one.clone())),
        _ => Err(Failure::System(format!(
            "several {} have ids that {how} with {given}, such as {}\n        give more of it",
            kind.path,
            ids.join(" and ")
        ))),
    }
}
