//! Sending: a turn is born in line, and its first commit tells its agent. Sent again under the same correlation id it is
//! the same turn.

use super::{Desk, DeskError, label, within, words};
use crate::{
    agent::AgentState,
    limits,
    turn::{NewTurn, Turn, TurnState, decide::create, model::Sort},
};
use serde_json::{Value, json};
use std::time::Duration;
use tenure_engine::birth::random;
use tenure_kernel::{
    commit::{Birth, CommitAnswer, Expect, UniqueKey},
    error::StoreError,
    ids::EntityId,
    machine::{Input, Machine as _, draft},
    stream::{Body, Hash},
};
use tenure_steps::canonical;

/// Length of a correlation id: the unique key holds it.
pub const CORRELATION_BYTES_MAX: usize = 200;

/// Work for an agent.
#[derive(Clone, Debug, Default)]
pub struct Sending {
    /// Whose.
    pub tenant: String,
    /// To which agent.
    pub agent: String,
    /// What is said to it: messages as a model reads them, the last one being the task.
    pub messages: Vec<Value>,
    /// Work that may wait in line, or an action that is wanted now or never.
    pub sort: Sort,
    /// Its channel; the agent's without one, else the default.
    pub channel: Option<String>,
    /// Where its deliverable goes; the agent's without one.
    pub output_box: Option<String>,
    /// The sender's own name for it. The same twice is the same turn.
    pub correlation_id: Option<String>,
    /// It ends by then.
    pub must_end_in: Option<Duration>,
    /// Higher is sooner, among those that wait for the same workers.
    pub priority: i16,
    /// W3C trace context.
    pub trace: Option<String>,
    /// Who sends it.
    pub by: Option<String>,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The turn.
    pub turn: EntityId,
    /// It was sent before, under the same correlation id.
    pub existed: bool,
}

impl Desk {
    /// Sends work to an agent.
    pub async fn send(&self, sending: Sending) -> Result<Sent, DeskError> {
        check(&sending)?;
        let Sending { tenant, agent, .. } = &sending;
        let (head, state) = self.agent(tenant, agent).await?;
        let key = sending.correlation_id.as_deref().map(|id| unique(&sending, id));
        if let Some(refused) = refusal(&sending, head.status.name(), &state)
            && !self.was_sent(&sending, &state).await?
        {
            return Err(refused);
        }
        let at = self.pipeline.store().now().await?;
        let id = EntityId::new(at, random(&self.pipeline));
        let tenant = sending.tenant.clone();
        let new = self.wish(head.id, &state, sending);
        let (queue, priority) = (crate::queue_of(&new.target), new.priority);
        let mut decision = create(new, id, true);
        decision.keys.extend(key);
        let nothing = Body::Inline(Vec::new());
        let drafted = draft::<Turn>(None, TurnState::default(), decision, &Input::Create(&nothing));
        let drafted = drafted.map_err(|e| StoreError::Refused(e.to_string()))?;
        let drafted = drafted.ok_or_else(|| StoreError::Refused("a turn without events".into()))?;
        let birth = Birth { kind: Turn::TABLE.kind, tenant, queue, priority };
        let commit = drafted.into_commit(self.pipeline.commit_id(), id, Expect::Absent(birth));
        match self.pipeline.commit(commit).await? {
            CommitAnswer::Committed(_) => Ok(Sent { turn: id, existed: false }),
            CommitAnswer::Exists { entity, same: true } => Ok(Sent { turn: entity, existed: true }),
            CommitAnswer::Exists { entity, same: false } => Err(DeskError::OtherInput(entity)),
            CommitAnswer::Refused(why) => Err(StoreError::Refused(why.to_string()).into()),
            other => Err(StoreError::Refused(format!("the store answered {other:?}")).into()),
        }
    }

    /// Whether the agent knows a turn under this correlation id: a repetition is answered as before, wherever the agent
    /// stands now.
    async fn was_sent(&self, sending: &Sending, state: &AgentState) -> Result<bool, StoreError> {
        let Some(wanted) = &sending.correlation_id else { return Ok(false) };
        let known = state.active.iter().map(|a| a.turn);
        let known = known.chain(state.queue.iter().copied());
        for turn in known.chain(state.recent.iter().map(|p| p.turn)) {
            let Some(head) = self.pipeline.store().head(turn).await? else { continue };
            if super::state_of::<Turn>(&head)?.correlation_id.as_ref() == Some(wanted) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn wish(&self, agent: EntityId, state: &AgentState, sending: Sending) -> NewTurn {
        let spec = &state.spec;
        let channel = sending.channel.or_else(|| spec.channel.clone());
        let must_end_in = sending.must_end_in.unwrap_or(self.defaults.must_end_in);
        NewTurn {
            agent,
            agent_name: spec.name.clone(),
            target: spec.target.clone(),
            sort: sending.sort,
            channel: channel.or_else(|| self.defaults.channel.clone()),
            output_box: sending.output_box.or_else(|| spec.output_box.clone()),
            messages: sending.messages,
            correlation_id: sending.correlation_id,
            asker: None,
            depth: 0,
            above: Vec::new(),
            trace: sending.trace,
            must_end_in_ms: u64::try_from(must_end_in.as_millis()).unwrap_or(u64::MAX),
            rules: self.defaults.rules,
            priority: sending.priority,
            by: sending.by,
        }
    }
}

fn check(sending: &Sending) -> Result<(), DeskError> {
    let bad = |why: &str| DeskError::Bad {
        field: "messages",
        why: why.to_owned(),
        fix: "give messages as a model reads them: [{\"role\": \"user\", \"content\": \"…\"}]",
    };
    if sending.messages.is_empty() {
        return Err(bad("there is nothing to say to the agent"));
    }
    if !sending.messages.iter().all(|m| m.get("role").is_some_and(Value::is_string)) {
        return Err(bad("a message is not an object with a role"));
    }
    let max = limits::MESSAGE_BYTES_MAX;
    let messages = json!(sending.messages);
    within("what is said", "messages", "MESSAGE_BYTES_MAX", &messages, max)?;
    label("channel", sending.channel.as_deref(), limits::LABEL_BYTES_MAX)?;
    label("output_box", sending.output_box.as_deref(), limits::LABEL_BYTES_MAX)?;
    label("correlation_id", sending.correlation_id.as_deref(), CORRELATION_BYTES_MAX)?;
    label("trace", sending.trace.as_deref(), tenure_kernel::limits::KEY_BYTES_MAX)?;
    words(sending.by.as_deref(), None)
}

/// Why the agent would refuse it, as far as its head says.
fn refusal(sending: &Sending, status: &str, state: &AgentState) -> Option<DeskError> {
    let agent = sending.agent.clone();
    if status == "removed" {
        return Some(DeskError::AgentRemoved(agent));
    }
    if sending.sort == Sort::UiAction {
        let why = match (&state.active, state.queue.len(), state.paused) {
            (_, _, true) => "is paused".to_owned(),
            (Some(active), _, _) => format!("is busy with turn {}", active.turn),
            (None, 0, _) => return None,
            (None, n, _) => format!("has {n} turns in line"),
        };
        return Some(DeskError::AgentBusy { agent, why });
    }
    let max = limits::QUEUED_MAX;
    (state.queue.len() >= max).then_some(DeskError::QueueFull { agent, max })
}

/// What is compared is what the sender said, not what the agent and the settings added to it.
fn unique(sending: &Sending, correlation: &str) -> UniqueKey {
    let Sending { tenant, agent, .. } = sending;
    let said = json!({
        "messages": sending.messages,
        "sort": sending.sort,
        "channel": sending.channel,
        "output_box": sending.output_box,
    });
    UniqueKey {
        key: format!("turn/{}/{tenant}/{agent}/{correlation}", tenant.len()),
        digest: Hash::of(&canonical::bytes(&said)),
    }
}
