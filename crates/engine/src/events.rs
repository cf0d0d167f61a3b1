//! The events of an entity, read for people: bodies in place, and what they mean. Nothing here writes.
//!
//! A store keeps one record per commit, with large bodies beside the stream. Whoever shows a stream, of whatever machine,
//! wants events, by pages, and their JSON; that is the same for jobs, turns, tasks and pods, so it is written here.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;
use tenure_kernel::{
    error::StoreError,
    ids::{EntityId, SessionId},
    machine::{Machine, decode_event},
    store::Store,
    stream::{Body, Event, Record},
    table::Tables,
    time::Timestamp,
    verify::Meta,
};

/// Events that [`lines`] reads at once.
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
    /// Who took the entity with its commit.
    pub took: Option<SessionId>,
}

fn corrupt(why: impl ToString) -> StoreError {
    StoreError::Corrupt(why.to_string())
}

/// The events of a record, with their bodies in place.
pub async fn of_record(store: &Arc<dyn Store>, record: &Record) -> Result<Vec<Event>, StoreError> {
    let mut events = record.events().map_err(corrupt)?;
    for event in &mut events {
        if let Body::Blob { digest, .. } = event.body {
            let gone = || corrupt(format!("the body of event {} is gone", event.version));
            event.body = Body::Inline(store.blob(digest).await?.ok_or_else(gone)?);
        }
    }
    Ok(events)
}

/// Events of a machine's entity from a version on, at most so many.
pub async fn page<M: Machine>(
    store: &Arc<dyn Store>,
    id: EntityId,
    from: u64,
    limit: usize,
) -> Result<Vec<EventView>, StoreError> {
    let mut tables = Tables::default();
    tables.insert(M::TABLE);
    let mut found = Vec::new();
    for record in store.stream(id, from, limit).await? {
        let meta = Meta::from_bytes(record.meta().map_err(corrupt)?, &tables).map_err(corrupt)?;
        // A record holds the events of one commit, so the first may begin earlier.
        for event in of_record(store, &record).await?.into_iter().filter(|e| e.version >= from) {
            if found.len() == limit {
                return Ok(found);
            }
            let body = event.body.inline().and_then(|b| tenure_kernel::stored::from_slice(b).ok());
            found.push(EventView {
                version: event.version,
                at: event.at,
                epoch: event.epoch,
                name: event.name.to_string(),
                body: body.unwrap_or(Value::Null),
                took: meta.take,
            });
        }
    }
    Ok(found)
}

/// The same with what they mean; `None` for the kernel's own.
pub async fn lines_from<M: Machine>(
    store: &Arc<dyn Store>,
    id: EntityId,
    from: u64,
    limit: usize,
) -> Result<Vec<(EventView, Option<M::Event>)>, StoreError> {
    let read = |event: EventView| {
        let read = decode_event::<M>(&event.name, &Body::json(&event.body)).map_err(corrupt)?;
        Ok((event, read))
    };
    page::<M>(store, id, from, limit).await?.into_iter().map(read).collect()
}

/// All of them.
pub async fn lines<M: Machine>(
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
