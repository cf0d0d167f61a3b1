//! Where a call stands that another worker has, or will have: bounded, whatever the history.

use super::HandedView;
use crate::{
    call::{
        Call,
        desk::{state_of, tools_in},
    },
    shared::limit::waiting::holding_back,
};
use std::sync::Arc;
use tenure_kernel::{
    error::StoreError,
    machine::Machine as _,
    store::{HeadFilter, Store},
};

/// Live sessions, and queued calls, that are looked at; what is more is not counted.
const LOOKED_AT_MAX: usize = 200;

pub(super) async fn look(
    store: &Arc<dyn Store>,
    tool: &str,
    handed: &mut HandedView,
) -> Result<(), StoreError> {
    // The message that creates it may still be on its way.
    let Some(head) = store.head(handed.call).await? else { return Ok(()) };
    handed.status = Some(head.status.name().to_owned());
    handed.since = Some(head.changed_at);
    if let Some(holder) = head.holder {
        let session = store.session(holder).await?;
        handed.held_by = Some(session.map_or_else(|| holder.to_string(), |s| s.name));
    }
    if head.kind() != Call::TABLE.kind {
        handed.kind = Some(head.kind().to_owned());
        return Ok(());
    }
    if head.status.name() != "queued" {
        return Ok(());
    }
    let mut workers = 0;
    for session in store.live_sessions().await?.into_iter().take(LOOKED_AT_MAX) {
        if session.role == "worker" {
            let tools = tools_in(store, session.id).await?.unwrap_or_default();
            workers += usize::from(tools.iter().any(|t| t == tool));
        }
    }
    handed.workers = Some(workers);
    let queued = HeadFilter {
        kind: Some(Call::TABLE.kind.into()),
        status: Some("queued".into()),
        tenant: Some(head.tenant.clone()),
        ..HeadFilter::default()
    };
    let mut ahead = 0;
    for other in store.heads(queued, LOOKED_AT_MAX).await? {
        ahead += usize::from(other.ready_at < head.ready_at && state_of(&other)?.tool == tool);
    }
    handed.ahead = Some(ahead);
    if let Some((whose, until)) = holding_back(store, &head.tenant, tool).await? {
        (handed.limit_of, handed.limited_until) = (Some(whose), Some(until));
    }
    Ok(())
}
