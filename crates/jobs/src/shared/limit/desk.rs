//! How outsiders change a limit.

use super::{
    book::{self, Book, Entry, LIMITS_MAX, LIMITS_PER_TENANT_MAX, LimitBook, NAMES_BYTES_MAX},
    decide,
    model::{EVERYBODY, Event, Limit, Spec, State, limits},
};
use crate::shared::{amend, named};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tenure_engine::pipeline::Pipeline;
use tenure_kernel::{
    error::StoreError,
    ids::EntityId,
    machine::{Decision, decode_state},
    time::Timestamp,
};

/// Why a limit was not changed.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    /// It can not be used.
    #[error("{field}: {why}")]
    Bad {
        /// The field.
        field: &'static str,
        /// In words.
        why: String,
        /// What to do.
        fix: &'static str,
    },
    /// There is none.
    #[error("there is no limit for {tool} of {tenant}")]
    Absent {
        /// The tool.
        tool: String,
        /// Whose.
        tenant: String,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The entity of a limit.
pub fn id_of(tenant: &str, tool: &str) -> EntityId {
    named("limit", tenant, tool)
}

/// What people read of a limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitView {
    /// Its entity.
    pub id: EntityId,
    /// What it is.
    #[serde(flatten)]
    pub spec: Spec,
    /// Tokens given out so far.
    pub taken: u64,
    /// When a token that is asked for now would be good. Later than now: calls wait.
    pub free_at: Option<Timestamp>,
    /// For how long a call that comes now would wait.
    pub wait_ms: u64,
}

/// The limits of a store.
#[derive(Clone)]
pub struct Limits(pub Pipeline);

impl Limits {
    /// Sets a limit, for the first time or anew. Workers know of it within a few seconds.
    pub async fn set(&self, spec: Spec, by: Option<String>) -> Result<bool, LimitError> {
        check(&spec)?;
        let id = id_of(&spec.tenant, &spec.tool);
        let entry = Entry { tool: spec.tool.clone(), tenant: spec.tenant.clone() };
        // The limit first: what stands in the book is there.
        if let Some(head) = self.0.store().head(book::id()).await? {
            let book = decode_state::<LimitBook>(&head.state)
                .map_err(|e| StoreError::Corrupt(e.to_string()))?;
            room_for(&book, &entry)?;
        }
        let changed = amend::<Limit, LimitError>(&self.0, id, &spec.tenant, |state, cx| {
            if state.is_some_and(|s| s.spec.as_ref() == Some(&spec)) {
                return Ok(Decision::default());
            }
            Ok(Decision::event(decide::set(state, spec.clone(), by.clone(), cx.now)))
        });
        let changed = changed.await?.changed;
        amend::<LimitBook, LimitError>(&self.0, book::id(), EVERYBODY, |state, _| {
            let none = Book::default();
            let book = state.unwrap_or(&none);
            if book.limits.contains(&entry) {
                return Ok(Decision::default());
            }
            room_for(book, &entry)?;
            Ok(Decision::event(book::Event::LimitListed { limit: entry.clone() }))
        })
        .await?;
        Ok(changed)
    }

    /// Removes a limit.
    pub async fn remove(
        &self,
        tenant: &str,
        tool: &str,
        by: Option<String>,
    ) -> Result<(), LimitError> {
        let absent = || LimitError::Absent { tool: tool.to_owned(), tenant: tenant.to_owned() };
        let id = id_of(tenant, tool);
        let removed = amend::<Limit, LimitError>(&self.0, id, tenant, |state, _| match state {
            Some(State { spec: Some(_), .. }) => {
                Ok(Decision::event(Event::LimitRemoved { by: by.clone() }))
            }
            _ => Err(absent()),
        });
        // Also where there is none: a removal may have been cut in half, and nothing else would free its place.
        let removed = match removed.await {
            Ok(_) => Ok(()),
            Err(absent @ LimitError::Absent { .. }) => Err(absent),
            Err(e) => return Err(e),
        };
        let limit = Entry { tool: tool.to_owned(), tenant: tenant.to_owned() };
        let listed = self.0.store().head(book::id()).await?.is_some();
        let struck = listed
            && amend::<LimitBook, LimitError>(&self.0, book::id(), EVERYBODY, |state, _| {
                Ok(match state.is_some_and(|b| b.limits.contains(&limit)) {
                    true => Decision::event(book::Event::LimitStruck { limit: limit.clone() }),
                    false => Decision::default(),
                })
            })
            .await?
            .changed;
        match struck {
            true => Ok(()),
            false => removed,
        }
    }

    /// One limit.
    pub async fn show(&self, tenant: &str, tool: &str) -> Result<LimitView, LimitError> {
        let now = self.0.store().now().await?;
        let shown = self.read(tenant, tool, now).await?;
        shown.ok_or_else(|| LimitError::Absent { tool: tool.to_owned(), tenant: tenant.to_owned() })
    }

    async fn read(
        &self,
        tenant: &str,
        tool: &str,
        now: Timestamp,
    ) -> Result<Option<LimitView>, StoreError> {
        let id = id_of(tenant, tool);
        let Some(head) = self.0.store().head(id).await? else { return Ok(None) };
        let state =
            decode_state::<Limit>(&head.state).map_err(|e| StoreError::Corrupt(e.to_string()))?;
        let free_at = state.free_at(now);
        let State { spec, taken, .. } = state;
        Ok(spec.map(|spec| {
            let wait = free_at.map_or(Duration::ZERO, |at| at.since(now));
            let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
            LimitView { id, spec, taken, free_at, wait_ms }
        }))
    }

    /// All limits of a tenant and those for everybody, or all of all.
    pub async fn list(&self, tenant: Option<&str>) -> Result<Vec<LimitView>, StoreError> {
        let store = self.0.store();
        let now = store.now().await?;
        let Some(head) = store.head(book::id()).await? else { return Ok(Vec::new()) };
        let book = decode_state::<LimitBook>(&head.state)
            .map_err(|e| StoreError::Corrupt(e.to_string()))?;
        let mut found = Vec::new();
        for Entry { tool, tenant: whose } in book.limits {
            if tenant.is_none_or(|t| t == whose || whose == EVERYBODY) {
                found.extend(self.read(&whose, &tool, now).await?);
            }
        }
        Ok(found)
    }
}

/// Whether one more can be listed. A tenant has its share, or one could leave no place for the others.
fn room_for(book: &Book, entry: &Entry) -> Result<(), LimitError> {
    let known = &book.limits;
    if known.contains(entry) {
        return Ok(());
    }
    let full = |why: String| LimitError::Bad { field: "tool", why, fix: "remove one first" };
    let bytes: usize = known.iter().map(|e| e.tool.len() + e.tenant.len() + 16).sum();
    if known.len() >= LIMITS_MAX || bytes > NAMES_BYTES_MAX {
        return Err(full(format!(
            "there are {} limits already, which is all there can be",
            known.len()
        )));
    }
    let (mine, most) = (&entry.tenant, LIMITS_PER_TENANT_MAX);
    if mine != EVERYBODY && known.iter().filter(|e| e.tenant == *mine).count() >= most {
        return Err(full(format!(
            "{mine} has {most} limits already, which is all a tenant can have"
        )));
    }
    Ok(())
}

/// Everything about a limit that can be known to be wrong before anything is written.
pub fn check(spec: &Spec) -> Result<(), LimitError> {
    let bad = |field, why: String, fix| Err(LimitError::Bad { field, why, fix });
    let named = |name: &str| (1..=128).contains(&name.len()) && !name.contains('/');
    // The name of a tool may have a slash: workers register `billing/charge`.
    let blank = |c: char| c.is_whitespace() || c.is_control();
    if !(1..=128).contains(&spec.tool.len()) || spec.tool.chars().any(blank) {
        return bad(
            "tool",
            format!("{:?} is no name of a tool", spec.tool),
            "GET /v1/tools lists them",
        );
    }
    if !named(&spec.tenant) {
        let why = format!("{:?} is no name of a tenant", spec.tenant);
        return bad("tenant", why, "give a tenant, or * for all together");
    }
    if !(1..=limits::COUNT_MAX).contains(&spec.count)
        || !(1_000..=86_400_000).contains(&spec.per_ms)
    {
        let why = format!("{} calls in {} ms is no rate", spec.count, spec.per_ms);
        return bad("rate", why, "write 10/s, 600/m or 1000/h");
    }
    for (field, value) in [("burst", spec.burst), ("block", spec.block)] {
        if !(1..=limits::BURST_MAX).contains(&value) {
            return bad(
                field,
                format!("{value} is not within 1 and {}", limits::BURST_MAX),
                "give 1 or more",
            );
        }
    }
    if spec.good_for() < limits::BLOCK_LASTS_MIN {
        let why = format!(
            "a block of {} lasts {:?} at this rate, and each block is a commit on one row",
            spec.block,
            spec.good_for()
        );
        return bad("block", why, "give a block that lasts a quarter of a second or more, or none");
    }
    Ok(())
}

/// A rate as people write it: `10/s`, `600/m`, `1000/h`.
pub fn rate(text: &str) -> Result<(u32, u64), LimitError> {
    let read = || {
        let (count, per) = text.split_once('/')?;
        let per_ms = match per.trim() {
            "s" | "sec" | "second" => 1_000,
            "m" | "min" | "minute" => 60_000,
            "h" | "hour" => 3_600_000,
            "d" | "day" => 86_400_000,
            _ => return None,
        };
        Some((count.trim().parse().ok()?, per_ms))
    };
    read().ok_or_else(|| LimitError::Bad {
        field: "rate",
        why: format!("{text:?} is no rate"),
        fix: "write 10/s, 600/m or 1000/h",
    })
}
