//! The events of turns.

use crate::turn::{Turn, TurnEvent};
use std::sync::Arc;
use tenure_engine::events;
pub use tenure_engine::events::EventView;
use tenure_kernel::{error::StoreError, ids::EntityId, store::Store};

/// Events of a turn from a version on, at most so many.
pub async fn events(
    store: &Arc<dyn Store>,
    id: EntityId,
    from: u64,
    limit: usize,
) -> Result<Vec<EventView>, StoreError> {
    events::page::<Turn>(store, id, from, limit).await
}

/// All events of a turn with what they mean; `None` for the kernel's own.
pub(crate) async fn lines(
    store: &Arc<dyn Store>,
    id: EntityId,
) -> Result<Vec<(EventView, Option<TurnEvent>)>, StoreError> {
    events::lines::<Turn>(store, id).await
}
