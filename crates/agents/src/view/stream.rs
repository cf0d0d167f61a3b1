//! The events of a stream, bodies in place and decoded.

use crate::turn::{Turn, TurnEvent};
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

/// Events of a machine's entity from a version on, at most so many. A record holds those of one commit, so the first
/// may begin earlier.
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

/// Events of a turn.
pub async fn events(
    store: &Arc<dyn Store>,
    id: EntityId,
    from: u64,
    limit: usize,
) -> Result<Vec<EventView>, StoreError> {
    events_of::<Turn>(store, id, from, limit).await
}

/// All events of a turn with what they mean; `None` for the kernel's own.
pub(crate) async fn lines(
    store: &Arc<dyn Store>,
    id: EntityId,
) -> Result<Vec<(EventView, Option<TurnEvent>)>, StoreError> {
    let (mut all, mut from) = (Vec::new(), 1);
    loop {
        let page = events(store, id, from, PAGE).await?;
        let Some(last) = page.last() else { return Ok(all) };
        from = last.version + 1;
        for event in page {
            let body = Body::json(&event.body);
            let read = decode_event::<Turn>(&event.name, &body)
                .map_err(|e| StoreError::Corrupt(e.to_string()))?;
            all.push((event, read));
        }
    }
}
