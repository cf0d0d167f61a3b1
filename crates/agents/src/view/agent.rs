//! Where an agent stands. What people read as `dispatched`, `running` and `suspended` is where its active turn stands.

use super::turn::{TurnView, from_head};
use crate::{agent::AgentState, desk::state_of, drive::load::profile_of, turn::Turn};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;
use tenure_kernel::{
    error::StoreError, head::Head, ids::EntityId, store::Store, table::Class, time::Timestamp,
};

/// Where an agent stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentView {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: EntityId,
    /// Whose it is.
    pub tenant: String,
    /// `idle`, `dispatched`, `running`, `suspended` or `removed`.
    pub status: String,
    /// Nothing is dispatched.
    pub paused: bool,
    /// Rises with every dispatch, resume and forced end of its turns.
    pub turn_epoch: u64,
    /// Which workers run its turns.
    pub target: String,
    /// The channel of turns that bring none.
    pub channel: Option<String>,
    /// Where its deliverables go.
    pub output_box: Option<String>,
    /// What its worker needs to know; not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Value>,
    /// The turn whose turn it is.
    pub active: Option<TurnView>,
    /// Turns in line: who is next, in order, from 1.
    pub queue: Vec<QueuedView>,
    /// The last that ended, the newest first.
    pub recent: Vec<PastView>,
    /// Turns that ended so far.
    pub turns: u64,
    /// When it was first set.
    pub created_at: Timestamp,
    /// When it changed last.
    pub changed_at: Timestamp,
    /// Why the kernel wants a person to look.
    pub fault: Option<String>,
}

/// A turn in line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueuedView {
    /// From 1.
    pub position: usize,
    /// Which.
    pub turn: EntityId,
}

/// A turn that ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PastView {
    /// Which.
    pub turn: EntityId,
    /// How.
    pub status: String,
}

/// An agent with its active turn.
pub async fn agent_view(
    store: &Arc<dyn Store>,
    head: &Head,
    mut state: AgentState,
) -> Result<AgentView, StoreError> {
    let active = match &state.active {
        Some(active) => store.head(active.turn).await?,
        None => None,
    };
    let active = active.map(|h| Ok::<_, StoreError>(from_head(&h, state_of::<Turn>(&h)?)));
    let active = active.transpose()?;
    let status = match (head.status.name(), &active) {
        ("removed", _) => "removed",
        // Between its dispatch and the mail that carries it, or between its end and the mail that says so.
        (_, Some(turn)) => match turn.status.as_str() {
            "queued" => "dispatched",
            _ if turn.is_final => "idle",
            other => other,
        },
        (_, None) if state.active.is_some() => "dispatched",
        (_, None) => "idle",
    }
    .to_owned();
    let profile = profile_of(store, head.id, &mut state).await?;
    let queue = state.queue.iter().enumerate();
    let recent = state.recent.iter().rev();
    Ok(AgentView {
        id: head.id,
        tenant: head.tenant.clone(),
        status,
        paused: state.paused,
        turn_epoch: active
            .as_ref()
            .map_or(state.turn_epoch, |t| t.turn_epoch.max(state.turn_epoch)),
        queue: queue.map(|(n, turn)| QueuedView { position: n + 1, turn: *turn }).collect(),
        recent: recent.map(|p| PastView { turn: p.turn, status: p.status.clone() }).collect(),
        turns: state.turns,
        created_at: head.created_at,
        changed_at: head.changed_at,
        fault: head.attention.clone().filter(|_| head.class() != Class::Final),
        active,
        name: state.spec.name,
        target: state.spec.target,
        channel: state.spec.channel,
        output_box: state.spec.output_box,
        profile: Some(profile),
    })
}
