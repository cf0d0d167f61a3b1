//! The events of a stream, bodies in place and decoded.

use crate::task::{NewTask, Task, TaskEvent};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;
use tenure_kernel::{
    error::StoreError,
    ids::{EntityId, SessionId},
    machine::{Machine, decode_event},
    store::Store,
    stream::Body,
    table::Tables,
    time::Timestamp,
    verify::Meta,
};

const PAGE: usize = 512;

/// One event of a stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventView {
    /// Its place, from 1.
    pub version: u64,
    /// When it was committed.
    pub at: Timestamp,
    /// Under which epoch.
    pub epoch: u64,
    /// Its name.
    pub name: String,
    /// What it says.
    pub body: Value,
    /// Who took the entity with it.
    pub took: Option<SessionId>,
}

/// Events of a machine's entity from a version on, at most so many.
pub async fn events_of<M: Machine>(
    store: &Arc<dyn Store>,
    id: EntityId,
    from: u64,
    limit: usize,
) -> Result<Vec<EventView>, StoreError> {
    let mut tables = Tables::default();
    tables.insert(M::TABLE);
    let corrupt = |e: &dyn std::fmt::Display| StoreError::Corrupt(e.to_string());
    let mut found = Vec::new();
    for record in store.stream(id, from, limit).await? {
        let meta = record.meta().map_err(|e| corrupt(&e))?;
        let meta = Meta::from_bytes(meta, &tables).map_err(|e| corrupt(&e))?;
        // A record holds the events of one commit, so the first may begin earlier.
        for event in record.events().map_err(|e| corrupt(&e))? {
            if event.version < from {
                continue;
            }
            if found.len() == limit {
                return Ok(found);
            }
            let bytes = match event.body {
                Body::Inline(bytes) => bytes,
                Body::Blob { digest, .. } => {
                    let gone = || corrupt(&format!("the body of event {} is gone", event.version));
                    store.blob(digest).await?.ok_or_else(gone)?
                }
            };
            found.push(EventView {
                version: event.version,
                at: event.at,
                epoch: event.epoch,
                name: event.name.to_string(),
                body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
                took: meta.take,
            });
        }
    }
    Ok(found)
}

/// Events of a task.
pub async fn events(
    store: &Arc<dyn Store>,
    id: EntityId,
    from: u64,
    limit: usize,
) -> Result<Vec<EventView>, StoreError> {
    events_of::<Task>(store, id, from, limit).await
}

/// All events of an entity with what they mean; `None` for the kernel's own.
pub(crate) async fn lines<M: Machine>(
    store: &Arc<dyn Store>,
    id: EntityId,
) -> Result<Vec<(EventView, Option<M::Event>)>, StoreError> {
    let (mut all, mut from) = (Vec::new(), 1);
    loop {
        let page = lines_from::<M>(store, id, from, PAGE).await?;
        let Some((last, _)) = page.last() else { return Ok(all) };
        from = last.version + 1;
        all.extend(page);
    }
}

/// The same from a version on, at most so many.
pub(crate) async fn lines_from<M: Machine>(
    store: &Arc<dyn Store>,
    id: EntityId,
    from: u64,
    limit: usize,
) -> Result<Vec<(EventView, Option<M::Event>)>, StoreError> {
    let page = events_of::<M>(store, id, from, limit).await?;
    let read = |event: EventView| {
        let body = Body::json(&event.body);
        let read = decode_event::<M>(&event.name, &body);
        read.map(|r| (event, r)).map_err(|e| StoreError::Corrupt(e.to_string()))
    };
    page.into_iter().map(read).collect()
}

/// What a task was ordered as; `None` of one that was cancelled before it came.
pub async fn first_event(
    store: &Arc<dyn Store>,
    task: EntityId,
) -> Result<Option<NewTask>, StoreError> {
    let first = events(store, task, 1, 1).await?;
    let Some(first) = first.first() else { return Ok(None) };
    let read = decode_event::<Task>(&first.name, &Body::json(&first.body))
        .map_err(|e| StoreError::Corrupt(e.to_string()))?;
    Ok(match read {
        Some(TaskEvent::TaskCreated(new)) => Some(*new),
        _ => None,
    })
}
