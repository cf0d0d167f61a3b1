//! What people read of a call.

use super::{
    desk::state_of,
    model::{Call, CallEvent},
};
use crate::drive::{LoadError, read_events_of};
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;
use tenure_kernel::{
    error::StoreError,
    head::Head,
    ids::{EntityId, SessionId},
    machine::{Machine as _, decode_event},
    store::Store,
    table::Class,
    time::Timestamp,
};
use tenure_steps::{
    events::{StepId, What},
    tool::Class as ToolClass,
};

/// A call as it stands.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CallView {
    /// The call.
    pub id: EntityId,
    /// Where it stands.
    pub status: String,
    /// The tool.
    pub tool: String,
    /// What is asked of it.
    pub what: What,
    /// Whose call it is.
    pub job: EntityId,
    /// The step.
    pub step: StepId,
    /// The idempotency key.
    pub key: String,
    /// Which call under the key.
    pub call_number: u32,
    /// What settles it.
    pub class: ToolClass,
    /// Whose job it is.
    pub tenant: String,
    /// How often it was claimed or let go: the fencing token.
    pub epoch: u64,
    /// Who has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_by: Option<SessionId>,
    /// How long the tool may take.
    pub timeout_ms: u64,
    /// When it was handed over.
    pub created_at: Timestamp,
    /// When something happened to it last.
    pub changed_at: Timestamp,
    /// It ends by then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub must_end_by: Option<Timestamp>,
    /// Whether it is over.
    pub over: bool,
    /// Why it failed, or ended without an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A call as its head says.
pub fn of_head(head: &Head) -> Result<CallView, StoreError> {
    let state = state_of(head)?;
    Ok(CallView {
        id: head.id,
        status: head.status.name().to_owned(),
        tool: state.tool,
        what: state.what,
        job: state.job,
        step: state.step,
        key: state.key,
        call_number: state.call,
        class: state.class,
        tenant: head.tenant.clone(),
        epoch: head.epoch,
        held_by: head.holder,
        timeout_ms: state.timeout_ms,
        created_at: head.created_at,
        changed_at: head.changed_at,
        must_end_by: head.must_end_by,
        over: head.class() == Class::Final,
        error: state.error,
    })
}

/// What a call was given and what it returned, from its history.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Content {
    /// What the tool got.
    pub input: Value,
    /// What it returned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// Who had it last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub had_by: Option<SessionId>,
}

/// Reads it. `None`: there is no such call, or what stands for it is of another kind ([`crate::drive::hands`]), which tells
/// its result whole and says nothing about who had it.
pub async fn content(store: &Arc<dyn Store>, call: EntityId) -> Result<Option<Content>, LoadError> {
    if store.head(call).await?.is_some_and(|head| head.kind() != Call::TABLE.kind) {
        return Ok(None);
    }
    let mut content = Content::default();
    let mut from = 1;
    loop {
        let page = store.stream(call, from, 256).await?;
        let Some(last) = page.last() else { break };
        from = last.last() + 1;
        for record in &page {
            let (meta, events) = read_events_of::<Call>(store, record).await?;
            content.had_by = meta.take.or(content.had_by);
            for event in &events {
                match decode_event::<Call>(&event.name, &event.body) {
                    Ok(Some(CallEvent::CallCreated(new))) => content.input = new.input,
                    Ok(Some(CallEvent::CallCompleted { result, .. })) => {
                        content.result = Some(result);
                    }
                    Ok(_) => {}
                    Err(e) => return Err(LoadError::Unreadable(e.to_string())),
                }
            }
        }
    }
    Ok((from > 1).then_some(content))
}
