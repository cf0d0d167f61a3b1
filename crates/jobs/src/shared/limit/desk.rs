//! How outsiders change a limit.

use super::{
    book::{self, Book, Entry, LIMITS_MAX, LIMITS_PER_TENANT_MAX, LimitBook, NAMES_BYTES_MAX},
    decide, each,
    model::{EACH, EVERYBODY, Event, Limit, Spec, State, limits},
};
use crate::shared::{amend, named};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, time::Duration};
use tenure_engine::pipeline::Pipeline;
use tenure_kernel::{
    error::StoreError,
    ids::EntityId,
    machine::{Decision, Machine as _, decode_state},
    store::HeadFilter,
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
    /// An operator set it, and a tenant wants to change it.
    #[error("the limit for {tool} of {tenant} was set by an operator")]
    Operators {
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
    /// About when a call that comes now would begin, at the latest: behind the longest line. Later than now: calls wait.
    pub free_at: Option<Timestamp>,
    /// For how long a call that comes now would wait.
    pub wait_ms: u64,
    /// Places in its lines to which nobody has come yet. Some of those who took them may be gone, and steps that wait behind
    /// another one of their job have none.
    #[serde(default)]
    pub waiting: u64,
}

/// The limits of a store.
#[derive(Clone)]
pub struct Limits(pub Pipeline);

impl Limits {
    /// Sets a limit, for the first time or anew. Workers know of it within a few seconds. One that an operator set is not
    /// changed by a tenant.
    pub async fn set(&self, spec: Spec, by: Option<String>) -> Result<bool, LimitError> {
        if spec.tenant == EACH {
            return self.set_each(spec, by).await;
        }
        check(&spec)?;
        let id = id_of(&spec.tenant, &spec.tool);
        let entry = Entry { tool: spec.tool.clone(), tenant: spec.tenant.clone() };
        let common = self.book(EVERYBODY).await?;
        // Where an older program listed it, it stays.
        let known = common.limits.contains(&entry);
        let book = if known { EVERYBODY } else { spec.tenant.as_str() };
        // The limit first: what stands in the book is there.
        if !known {
            room_for(&self.book(book).await?, &entry, spec.by_operator)?;
        }
        let changed = amend::<Limit, LimitError>(&self.0, id, &spec.tenant, |state, cx| {
            mine(state, &entry, spec.by_operator)?;
            if state.is_some_and(|s| {
                s.spec.as_ref() == Some(&spec) && !decide::is_beyond_all(s, &spec, cx.now)
            }) {
                return Ok(Decision::default());
            }
            Ok(Decision::event(decide::set(state, spec.clone(), by.clone(), cx.now)))
        });
        let changed = changed.await?.changed;
        self.list_one(&spec, &entry, book).await?;
        Ok(changed)
    }

    /// Makes sure that a limit that is there stands in its book.
    async fn list_one(&self, spec: &Spec, entry: &Entry, book: &str) -> Result<(), LimitError> {
        // Before the book: what is listed in one that nobody looks for would hold nobody back.
        if book != EVERYBODY && !self.book(EVERYBODY).await?.tenants {
            let common = book::id_of(EVERYBODY);
            amend::<LimitBook, LimitError>(&self.0, common, EVERYBODY, |state, _| {
                Ok(match state.is_some_and(|b| b.tenants) {
                    true => Decision::default(),
                    false => Decision::event(book::Event::TenantsListed {}),
                })
            })
            .await?;
        }
        let instead = spec.by_operator && spec.tenant != EVERYBODY;
        amend::<LimitBook, LimitError>(&self.0, book::id_of(book), book, |state, _| {
            let none = Book::default();
            let book = state.unwrap_or(&none);
            if book.limits.contains(entry) && (!instead || book.instead.contains(entry)) {
                return Ok(Decision::default());
            }
            room_for(book, entry, spec.by_operator)?;
            Ok(Decision::event(book::Event::LimitListed { limit: entry.clone(), instead }))
        })
        .await?;
        Ok(())
    }

    /// Removes a limit. `by_operator` as in [`Spec`].
    pub async fn remove(
        &self,
        tenant: &str,
        tool: &str,
        by: Option<String>,
        by_operator: bool,
    ) -> Result<(), LimitError> {
        if tenant == EACH {
            return self.remove_each(tool, by).await;
        }
        let limit = Entry { tool: tool.to_owned(), tenant: tenant.to_owned() };
        let absent = || LimitError::Absent { tool: tool.to_owned(), tenant: tenant.to_owned() };
        let id = id_of(tenant, tool);
        let removed = amend::<Limit, LimitError>(&self.0, id, tenant, |state, _| {
            mine(state, &limit, by_operator)?;
            match state {
                Some(State { spec: Some(_), .. }) => {
                    Ok(Decision::event(Event::LimitRemoved { by: by.clone() }))
                }
                _ => Err(absent()),
            }
        });
        // Also where there is none: a removal may have been cut in half, and nothing else would free its place.
        let removed = match removed.await {
            Ok(_) => Ok(()),
            Err(absent @ LimitError::Absent { .. }) => Err(absent),
            Err(e) => return Err(e),
        };
        let mut struck = false;
        for book in [EVERYBODY, tenant] {
            if !self.book(book).await?.limits.contains(&limit) {
                continue;
            }
            let amended =
                amend::<LimitBook, LimitError>(&self.0, book::id_of(book), book, |state, _| {
                    Ok(match state.is_some_and(|b| b.limits.contains(&limit)) {
                        true => Decision::event(book::Event::LimitStruck { limit: limit.clone() }),
                        false => Decision::default(),
                    })
                });
            struck |= amended.await?.changed;
        }
        // Somebody may have set it anew between the two, have found it still in the book, and left that alone. Whoever does so
        // after this look finds it struck, and lists it. So either sees what the other did.
        if let Some(view) = self.read(id, self.0.store().now().await?).await? {
            self.list_one(&view.spec, &limit, tenant).await?;
        }
        match struck {
            true => Ok(()),
            false => removed,
        }
    }

    async fn book(&self, tenant: &str) -> Result<Book, StoreError> {
        let head = self.0.store().head(book::id_of(tenant)).await?;
        let head = head.filter(|head| head.kind() == book::TABLE.kind);
        let book = head.map(|head| decode_state::<LimitBook>(&head.state)).transpose();
        Ok(book.map_err(|e| StoreError::Corrupt(e.to_string()))?.unwrap_or_default())
    }

    /// One limit: of a tenant its own, or what it has by the one for each.
    pub async fn show(&self, tenant: &str, tool: &str) -> Result<LimitView, LimitError> {
        let now = self.0.store().now().await?;
        if let Some(own) = self.read(id_of(tenant, tool), now).await? {
            return Ok(own);
        }
        let common = self.book(EVERYBODY).await?;
        match common.each.get(tool) {
            Some(each) if tenant == EACH => Ok(each::unused(each.clone())),
            Some(each) if tenant != EVERYBODY => Ok(self.read_each(each, tenant, now).await?),
            _ => Err(LimitError::Absent { tool: tool.to_owned(), tenant: tenant.to_owned() }),
        }
    }

    pub(super) async fn read(
        &self,
        id: EntityId,
        now: Timestamp,
    ) -> Result<Option<LimitView>, StoreError> {
        let Some(head) = self.0.store().head(id).await? else { return Ok(None) };
        let state =
            decode_state::<Limit>(&head.state).map_err(|e| StoreError::Corrupt(e.to_string()))?;
        let (free_at, waiting) = (decide::last_place(&state, now), decide::waiting(&state, now));
        let State { spec, taken, .. } = state;
        Ok(spec.map(|spec| {
            let wait = free_at.map_or(Duration::ZERO, |at| at.since(now));
            let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
            LimitView { id, spec, taken, free_at, wait_ms, waiting }
        }))
    }

    /// All limits of a tenant and those for everybody, or all of all.
    pub async fn list(&self, tenant: Option<&str>) -> Result<Vec<LimitView>, StoreError> {
        let now = self.0.store().now().await?;
        let common = self.book(EVERYBODY).await?;
        let mut entries = common.limits.clone();
        let mut found = Vec::new();
        match tenant {
            Some(tenant) => {
                let own = self.book(tenant).await?;
                for tool in common.each.keys() {
                    if let Some(each) = each::of(&common, &own, tenant, tool) {
                        found.push(self.read_each(each, tenant, now).await?);
                    }
                }
                entries.extend(own.limits);
            }
            None => {
                found.extend(common.each.into_values().map(each::unused));
                self.of_all_books(&mut entries).await?;
            }
        }
        for Entry { tool, tenant: whose } in entries {
            if tenant.is_none_or(|t| t == whose || whose == EVERYBODY) {
                found.extend(self.read(id_of(&whose, &tool), now).await?);
            }
        }
        Ok(found)
    }

    async fn of_all_books(&self, entries: &mut BTreeSet<Entry>) -> Result<(), StoreError> {
        let mut after = None;
        loop {
            let kind = Some(LimitBook::TABLE.kind.to_owned());
            let filter = HeadFilter { kind, after, ..HeadFilter::default() };
            let heads = self.0.store().heads(filter, PAGE).await?;
            let Some(last) = heads.last() else { return Ok(()) };
            after = Some(last.id);
            for head in &heads {
                let book = decode_state::<LimitBook>(&head.state)
                    .map_err(|e| StoreError::Corrupt(e.to_string()))?;
                entries.extend(book.limits);
            }
        }
    }
}

/// Books that are read at once.
const PAGE: usize = 200;

/// What an operator set, a tenant leaves alone.
fn mine(state: Option<&State>, limit: &Entry, by_operator: bool) -> Result<(), LimitError> {
    let theirs = state.and_then(|s| s.spec.as_ref()).is_some_and(|s| s.by_operator);
    match theirs && !by_operator {
        true => {
            Err(LimitError::Operators { tool: limit.tool.clone(), tenant: limit.tenant.clone() })
        }
        false => Ok(()),
    }
}

/// Whether one more can be listed. A tenant has its share of its own book: the rest is for those who limit it.
fn room_for(book: &Book, entry: &Entry, by_operator: bool) -> Result<(), LimitError> {
    let known = &book.limits;
    if known.contains(entry) {
        return Ok(());
    }
    let full = |why: String| LimitError::Bad { field: "tool", why, fix: "remove one first" };
    let whose = &entry.tenant;
    if known.len() >= LIMITS_MAX || book.bytes() > NAMES_BYTES_MAX {
        return Err(full(format!(
            "there are {} limits of {whose} already, which is all there can be",
            known.len()
        )));
    }
    if !by_operator && whose != EVERYBODY && known.len() >= LIMITS_PER_TENANT_MAX {
        return Err(full(format!(
            "{whose} has {} limits already, and a tenant can add to {LIMITS_PER_TENANT_MAX} at most",
            known.len()
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
    if !named(&spec.tenant) && spec.tenant != EACH {
        let why = format!("{:?} is no name of a tenant", spec.tenant);
        return bad(
            "tenant",
            why,
            "give a tenant, * for all together, or */each for each by itself",
        );
    }
    if !(1..=limits::COUNT_MAX).contains(&spec.count)
        || !(1_000..=86_400_000).contains(&spec.per_ms)
    {
        let why = format!("{} calls in {} ms is no rate", spec.count, spec.per_ms);
        return bad("rate", why, "write 10/s, 600/m, 1000/h or 5000/d");
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

/// A rate as people write it: the reverse of [`rate`].
pub fn rate_text(spec: &Spec) -> String {
    let per = match spec.per_ms {
        1_000 => "s".to_owned(),
        60_000 => "m".to_owned(),
        3_600_000 => "h".to_owned(),
        86_400_000 => "d".to_owned(),
        // Nobody can write it.
        ms => format!("{ms} ms"),
    };
    format!("{}/{per}", spec.count)
}

/// A rate as people write it: `10/s`, `600/m`, `1000/h`, `5000/d`.
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
        fix: "write 10/s, 600/m, 1000/h or 5000/d",
    })
}
