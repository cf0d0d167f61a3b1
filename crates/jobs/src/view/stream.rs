//! A whole stream, read and decoded.

use crate::{
    drive::{LoadError, meta_of, read_events},
    model::{Job, JobEvent, OwnEvent},
};
use serde_json::Value;
use std::{collections::BTreeMap, sync::Arc};
use tenure_kernel::{
    ids::{EntityId, SessionId},
    machine::decode_event,
    store::Store,
    stream::{Body, Event, Hash, Record},
};

const PAGE: usize = 512;

/// One event with what its record says about tenure.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub event: Event,
    /// What it says; `None` for the kernel's own.
    pub read: Option<JobEvent>,
    /// Who took the job with its record.
    pub took: Option<SessionId>,
    /// The first version of its record: lines with the same one were committed together.
    pub record: u64,
}

/// All records of a stream.
pub(crate) async fn records(
    store: &Arc<dyn Store>,
    id: EntityId,
) -> Result<Vec<Record>, LoadError> {
    records_from(store, id, 1).await
}

async fn records_from(
    store: &Arc<dyn Store>,
    id: EntityId,
    mut from: u64,
) -> Result<Vec<Record>, LoadError> {
    let mut all = Vec::new();
    loop {
        let page = store.stream(id, from, PAGE).await?;
        let Some(last) = page.last() else { return Ok(all) };
        from = last.last() + 1;
        let full = page.len() == PAGE;
        all.extend(page);
        if !full {
            return Ok(all);
        }
    }
}

/// The events of records, bodies in place.
pub(super) async fn lines(
    store: &Arc<dyn Store>,
    records: &[Record],
) -> Result<Vec<Line>, LoadError> {
    let mut lines = Vec::new();
    for record in records {
        let (meta, events) = read_events(store, record).await?;
        for event in events {
            let read = decode_event::<Job>(&event.name, &event.body)
                .map_err(|e| LoadError::Unreadable(e.to_string()))?;
            lines.push(Line { event, read, took: meta.take, record: record.first });
        }
    }
    Ok(lines)
}

/// The same from memory: bodies that lie beside the stream are looked up by their digests.
pub(crate) fn lines_in(
    records: &[Record],
    blobs: &BTreeMap<Hash, Vec<u8>>,
) -> Result<Vec<Line>, LoadError> {
    let unreadable = |e: &dyn std::fmt::Display| LoadError::Unreadable(e.to_string());
    let mut lines = Vec::new();
    for record in records {
        let meta = meta_of(record)?;
        for mut event in record.events().map_err(|e| unreadable(&e))? {
            if let Body::Blob { digest, .. } = event.body {
                let bytes = blobs.get(&digest).cloned().ok_or_else(|| {
                    unreadable(&format!("the body of event {} is gone", event.version))
                })?;
                event.body = Body::Inline(bytes);
            }
            let read = decode_event::<Job>(&event.name, &event.body).map_err(|e| unreadable(&e))?;
            lines.push(Line { event, read, took: meta.take, record: record.first });
        }
    }
    Ok(lines)
}

/// All events of a stream.
pub(super) async fn read(store: &Arc<dyn Store>, id: EntityId) -> Result<Vec<Line>, LoadError> {
    lines(store, &records(store, id).await?).await
}

/// The events after a version.
pub(crate) async fn since(
    store: &Arc<dyn Store>,
    id: EntityId,
    version: u64,
) -> Result<Vec<Line>, LoadError> {
    lines(store, &records_from(store, id, version + 1).await?).await
}

/// What a completed job returned, from its stream.
pub(super) fn output(lines: &[Line]) -> Option<&Value> {
    lines.iter().rev().find_map(|l| match &l.read {
        Some(JobEvent::Own(OwnEvent::JobCompleted { output, .. })) => Some(output),
        _ => None,
    })
}
