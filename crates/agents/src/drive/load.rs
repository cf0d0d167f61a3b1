//! Reading what a worker needs: a turn's history, agents, and results that were too large for mail.

use super::{calls::Jobs, conversation::Conversation, profile};
use crate::{
    agent::{Agent, AgentEvent, AgentState, agent_id},
    turn::model::{Turn, TurnState},
};
use serde_json::Value;
use std::sync::Arc;
use tenure_engine::{events, worker::HoldError};
use tenure_kernel::{
    error::StoreError,
    head::Head,
    ids::EntityId,
    machine::{decode_event, decode_state},
    store::Store,
    time::Timestamp,
};

/// Records read at once.
const PAGE: usize = 512;

fn corrupt(why: impl ToString) -> StoreError {
    StoreError::Corrupt(why.to_string())
}

/// What was said in a turn, or its beginning where that is [too large](Conversation::is_too_large). A fresh one has said nothing
/// after its first record.
pub async fn conversation(
    store: &Arc<dyn Store>,
    id: EntityId,
    state: &TurnState,
) -> Result<Conversation, StoreError> {
    let mut talk = Conversation::default();
    let fresh = state.step == 0 && state.early.is_empty();
    let mut from = 1;
    loop {
        let limit = if fresh { 1 } else { PAGE };
        let page = store.stream(id, from, limit).await?;
        for record in &page {
            for event in events::of_record(store, record).await? {
                let read = decode_event::<Turn>(&event.name, &event.body).map_err(corrupt)?;
                if let Some(read) = read {
                    talk.take(&read);
                }
            }
            if talk.is_too_large() {
                return Ok(talk);
            }
        }
        match page.last() {
            Some(last) if !fresh && page.len() == limit => from = last.last() + 1,
            _ => return Ok(talk),
        }
    }
}

/// An agent, if it is there.
pub async fn agent(
    store: &Arc<dyn Store>,
    tenant: &str,
    name: &str,
) -> Result<Option<AgentState>, StoreError> {
    agent_at(store, agent_id(tenant, name)).await
}

/// The profile of an agent as a turn takes it: tools that name only their flow or tool get what the catalogue knows about them.
pub async fn described(
    store: &Arc<dyn Store>,
    tenant: &str,
    jobs: &dyn Jobs,
    mut profile: Value,
) -> Value {
    let mut known = Vec::new();
    for (n, run) in profile::undescribed(&profile) {
        known.extend(jobs.described(store, tenant, &run).await.map(|d| (n, d)));
    }
    profile::describe(&mut profile, known);
    profile
}

/// An agent by id.
pub async fn agent_at(
    store: &Arc<dyn Store>,
    id: EntityId,
) -> Result<Option<AgentState>, StoreError> {
    let Some(head) = store.head(id).await? else { return Ok(None) };
    if head.status.name() == "removed" || head.kind() != "agent" {
        return Ok(None);
    }
    let mut state = decode_state::<Agent>(&head.state).map_err(corrupt)?;
    state.spec.profile = profile_of(store, id, &mut state).await?;
    Ok(Some(state))
}

/// The profile of an agent: from its head, or from the event that set it.
pub async fn profile_of(
    store: &Arc<dyn Store>,
    id: EntityId,
    state: &mut AgentState,
) -> Result<Value, StoreError> {
    let Some(at) = &state.profile_at else { return Ok(state.spec.profile.take()) };
    for record in store.stream(id, at.version, 1).await? {
        for event in events::of_record(store, &record).await? {
            let read = decode_event::<Agent>(&event.name, &event.body).map_err(corrupt)?;
            if let Some(AgentEvent::AgentSet { spec, version, .. }) = read
                && version == Some(at.version)
            {
                return Ok(spec.profile);
            }
        }
    }
    Err(corrupt(format!("agent {id}: no profile in version {}", at.version)))
}

/// Pages of an agent's history that are read in search of what it was.
const PAGES_BACK: usize = 16;

/// Whether tools of this agent are told on all of these subjects, by its profile as it is, or as it was at any time since
/// then: a turn that is under way keeps what it began with, and may end after its agent was changed or removed.
pub async fn tells(
    store: &Arc<dyn Store>,
    agent: EntityId,
    since: Timestamp,
    subjects: &[String],
) -> Result<bool, StoreError> {
    let Some(head) = store.head(agent).await?.filter(|h| h.kind() == "agent") else {
        return Ok(false);
    };
    let mut missing = subjects.to_vec();
    let strike = |missing: &mut Vec<String>, value: &Value| {
        if let Ok(profile) = profile::recorded(value) {
            missing.retain(|s| profile.subjects().all(|told| told != s));
        }
    };
    let mut now = decode_state::<Agent>(&head.state).map_err(corrupt)?;
    strike(&mut missing, &profile_of(store, agent, &mut now).await?);
    let mut before = head.version + 1;
    for _ in 0..PAGES_BACK {
        if missing.is_empty() || before <= 1 {
            break;
        }
        let from = before.saturating_sub(PAGE as u64).max(1);
        let page = store.stream(agent, from, PAGE).await?;
        let mut is_old = false;
        for record in page.iter().filter(|r| r.first < before).rev() {
            for event in events::of_record(store, record).await? {
                let read = decode_event::<Agent>(&event.name, &event.body).map_err(corrupt)?;
                if let Some(AgentEvent::AgentSet { spec, .. }) = read {
                    strike(&mut missing, &spec.profile);
                    // What it was when the turn was sent is the last that counts.
                    is_old |= record.at <= since;
                }
            }
            if is_old {
                break;
            }
        }
        if is_old {
            break;
        }
        before = from;
    }
    Ok(missing.is_empty())
}

/// What a job, a turn or a join has delivered. Of a join: one row per turn, each with what that turn delivered.
pub async fn delivered_by(store: &Arc<dyn Store>, id: EntityId) -> Result<Value, StoreError> {
    let mut said = last_word(store, id).await?;
    if store.head(id).await?.is_none_or(|h| h.kind() != "join") {
        return Ok(said);
    }
    for row in said.as_array_mut().into_iter().flatten() {
        let turn = row["turn"].as_str().and_then(|id| id.parse().ok());
        if let (Some(turn), "success" | "partial") = (turn, row["status"].as_str().unwrap_or("")) {
            row["result"] = last_word(store, turn).await?;
        }
    }
    Ok(said)
}

/// What lies in the last record of an entity.
async fn last_word(store: &Arc<dyn Store>, id: EntityId) -> Result<Value, StoreError> {
    let Some(head) = store.head(id).await? else { return Ok(Value::Null) };
    let records = store.stream(id, head.version, 1).await?;
    let Some(record) = records.last() else { return Ok(Value::Null) };
    for event in events::of_record(store, record).await?.iter().rev() {
        let Some(said) =
            event.body.inline().and_then(|b| tenure_kernel::stored::from_slice::<Value>(b).ok())
        else {
            continue;
        };
        let found = ["/output", "/results", "/deliverable/content"];
        if let Some(value) = found.iter().find_map(|place| said.pointer(place)) {
            return Ok(value.clone());
        }
    }
    Ok(Value::Null)
}

/// Results that lie elsewhere are put in place, until all of them are or it is [too large](Conversation::is_too_large).
pub async fn fetch(store: &Arc<dyn Store>, talk: &mut Conversation) -> Result<(), StoreError> {
    while let Some(from) = talk.unread().filter(|_| !talk.is_too_large()) {
        let content = delivered_by(store, from).await?;
        talk.put(from, content);
    }
    Ok(())
}

/// The state of a turn's head.
pub fn state_of(head: &Head) -> Result<TurnState, HoldError> {
    decode_state::<Turn>(&head.state).map_err(|e| HoldError::Refused(e.to_string()))
}
