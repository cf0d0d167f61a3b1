//! A job as it was at a moment, from its history.

use super::stream;
use crate::{
    drive::LoadError,
    model::{Job, JobState},
};
use std::sync::Arc;
use tenure_kernel::{
    head::Head, ids::EntityId, machine::Machine, store::Store, table::Tables, time::Timestamp,
    verify::fold_stream,
};

/// Where it stood at this moment; `None` if it was not there, or what it was is not kept any more.
pub async fn as_of(
    store: &Arc<dyn Store>,
    job: EntityId,
    at: Timestamp,
) -> Result<Option<(Head, JobState)>, LoadError> {
    let mut records = stream::records(store, job).await?;
    records.retain(|record| record.at <= at);
    let mut tables = Tables::default();
    tables.insert(Job::TABLE);
    let head = fold_stream(&records, &tables);
    let head = head.map_err(|e| LoadError::Unreadable(e.to_string()))?;
    let mut state = JobState::default();
    for line in stream::lines(store, &records).await? {
        line.read.iter().for_each(|event| Job::apply(&mut state, event));
    }
    Ok(head.map(|head| (head, state)))
}
