//! The events of tasks and pods.

use crate::task::{NewTask, Task, TaskEvent};
use std::sync::Arc;
pub use tenure_engine::events::EventView;
pub(crate) use tenure_engine::events::{lines, lines_from};
use tenure_kernel::{error::StoreError, ids::EntityId, store::Store};

/// Events of a task from a version on, at most so many.
pub async fn events(
    store: &Arc<dyn Store>,
    id: EntityId,
    from: u64,
    limit: usize,
) -> Result<Vec<EventView>, StoreError> {
    tenure_engine::events::page::<Task>(store, id, from, limit).await
}

/// What a task was ordered as; `None` of one that was cancelled before it came.
pub async fn first_event(
    store: &Arc<dyn Store>,
    task: EntityId,
) -> Result<Option<NewTask>, StoreError> {
    Ok(match lines_from::<Task>(store, task, 1, 1).await?.pop() {
        Some((_, Some(TaskEvent::TaskCreated(new)))) => Some(*new),
        _ => None,
    })
}
