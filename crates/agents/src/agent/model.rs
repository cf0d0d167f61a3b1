//! What an agent is asked to be, what its head keeps, and what can happen to it.

use super::table::TABLE;
use crate::{is_default, limits};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tenure_kernel::{
    ids::EntityId,
    machine::{Cx, Decision, Input, Machine, Undecided},
    table::Table,
    time::Timestamp,
};

/// The id of an agent follows from tenant and name.
pub fn agent_id(tenant: &str, name: &str) -> EntityId {
    let hash = Sha256::new()
        .chain_update(b"agent\0")
        .chain_update(tenant)
        .chain_update(b"\0")
        .chain_update(name)
        .finalize();
    let mut random = [0u8; 10];
    random.copy_from_slice(&hash[..10]);
    EntityId::new(Timestamp::ZERO, random)
}

/// What an agent is asked to be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Its name: one token of a subject.
    pub name: String,
    /// Which workers run its turns.
    pub target: String,
    /// The channel of turns that bring none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// Where its deliverables go; without one there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_box: Option<String>,
    /// What its worker needs to know: model, instructions, tools. See `drive::profile`.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub profile: Value,
}

impl Spec {
    /// Whether a head has room for all of it.
    pub fn fits_a_head(&self) -> bool {
        serde_json::to_vec(self).is_ok_and(|b| b.len() <= limits::SPEC_BYTES_MAX)
    }
}

fn digest(spec: &Spec) -> String {
    let bytes = serde_json::to_vec(spec).unwrap_or_default();
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// The turn whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Active {
    /// Which.
    pub turn: EntityId,
    /// Since when.
    pub since: Timestamp,
}

/// A turn that is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    /// Which.
    #[serde(rename = "t")]
    pub turn: EntityId,
    /// How it ended.
    #[serde(rename = "s")]
    pub status: String,
}

/// Where a large profile is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileAt {
    /// The version of the event that set it.
    pub version: u64,
    /// Of the whole [`Spec`], to tell whether another one is the same.
    pub digest: String,
}

/// What the head keeps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentState {
    /// What it is. Without its profile, where [`AgentState::profile_at`] says where that is.
    pub spec: Spec,
    /// Where a profile is that has no room here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile_at: Option<ProfileAt>,
    /// Nothing is dispatched.
    #[serde(skip_serializing_if = "is_default")]
    pub paused: bool,
    /// Rises with every dispatch, resume and forced end of its turns.
    pub turn_epoch: u64,
    /// Whose turn it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active: Option<Active>,
    /// Who is next, in order.
    #[serde(skip_serializing_if = "Vec::is_empty", with = "short_ids")]
    pub queue: Vec<EntityId>,
    /// The last that ended, the newest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recent: Vec<Past>,
    /// Turns that ended so far.
    pub turns: u64,
    /// The active turn is over, and has not said so.
    #[serde(skip_serializing_if = "is_default")]
    pub missed: bool,
}

impl AgentState {
    /// Whether it is this already.
    pub fn is(&self, spec: &Spec) -> bool {
        match &self.profile_at {
            None => self.spec == *spec,
            Some(at) => at.digest == digest(spec),
        }
    }

    /// Whether this turn is known here: in line, active or just over.
    pub fn knows(&self, turn: EntityId) -> bool {
        self.active.is_some_and(|a| a.turn == turn)
            || self.queue.contains(&turn)
            || self.recent.iter().any(|p| p.turn == turn)
    }

    fn remember(&mut self, turn: EntityId, status: &str) {
        self.turns += 1;
        self.recent.push(Past { turn, status: status.to_owned() });
        if self.recent.len() > limits::RECENT_MAX {
            self.recent.remove(0);
        }
    }
}

/// Ids in a head: sixteen bytes are 22 characters, not 36.
mod short_ids {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as B64};
    use serde::{Deserialize, Deserializer, Serialize as _, Serializer, de::Error as _};
    use tenure_kernel::ids::EntityId;

    pub(super) fn serialize<S: Serializer>(ids: &[EntityId], s: S) -> Result<S::Ok, S::Error> {
        let all: Vec<String> = ids.iter().map(|id| B64.encode(id.as_bytes())).collect();
        all.serialize(s)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<EntityId>, D::Error> {
        let read = |text: String| {
            let bytes = B64.decode(&text).ok().and_then(|b| <[u8; 16]>::try_from(b).ok());
            bytes.map(EntityId::from_bytes).ok_or_else(|| D::Error::custom("not an id"))
        };
        Vec::<String>::deserialize(d)?.into_iter().map(read).collect()
    }
}

/// What can happen to an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum AgentEvent {
    /// Somebody said what it is.
    AgentSet {
        /// What.
        spec: Box<Spec>,
        /// Who.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        /// The version of this event, where the profile is read from it because a head has no room for it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<u64>,
    },
    /// A turn is in line.
    TurnQueued {
        /// Which.
        turn: EntityId,
        /// Before so many that were sent later and came sooner.
        #[serde(default, skip_serializing_if = "is_default")]
        before: usize,
    },
    /// A turn will not be had.
    TurnRefused {
        /// Which.
        turn: EntityId,
        /// A word for programs.
        code: String,
    },
    /// It is this one's turn.
    TurnGiven {
        /// Which.
        turn: EntityId,
        /// The counter.
        turn_epoch: u64,
        /// When.
        at: Timestamp,
    },
    /// The active turn is over.
    TurnClosed {
        /// Which.
        turn: EntityId,
        /// The counter from now on.
        turn_epoch: u64,
        /// How it ended.
        status: String,
    },
    /// A turn was over before it was its turn.
    TurnLeft {
        /// Which.
        turn: EntityId,
        /// How it ended.
        status: String,
    },
    /// Nothing is dispatched until it is resumed.
    AgentPaused {
        /// Who.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    /// It goes on.
    AgentResumed {
        /// Who.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    /// It takes no more turns.
    AgentRemoved {
        /// Who.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    /// The active turn is asked whether it is there.
    TurnAsked {},
    /// The active turn is over, and has not said so yet.
    TurnMissed {
        /// Which.
        turn: EntityId,
    },
    /// Mail came that changes nothing.
    AgentMailNoted {
        /// What, and why it changes nothing.
        what: String,
    },
}

/// The agent machine.
#[derive(Debug)]
pub struct Agent;

impl Machine for Agent {
    type State = AgentState;
    type Event = AgentEvent;
    const TABLE: &'static Table = &TABLE;

    fn name(event: &AgentEvent) -> &'static str {
        match event {
            AgentEvent::AgentSet { .. } => "agent_set",
            AgentEvent::TurnQueued { .. } => "turn_queued",
            AgentEvent::TurnRefused { .. } => "turn_refused",
            AgentEvent::TurnGiven { .. } => "turn_given",
            AgentEvent::TurnClosed { .. } => "turn_closed",
            AgentEvent::TurnLeft { .. } => "turn_left",
            AgentEvent::AgentPaused { .. } => "agent_paused",
            AgentEvent::AgentResumed { .. } => "agent_resumed",
            AgentEvent::AgentRemoved { .. } => "agent_removed",
            AgentEvent::TurnAsked {} => "turn_asked",
            AgentEvent::TurnMissed { .. } => "turn_missed",
            AgentEvent::AgentMailNoted { .. } => "agent_mail_noted",
        }
    }

    fn apply(state: &mut AgentState, event: &AgentEvent) {
        match event {
            AgentEvent::AgentSet { spec, version: None, .. } => {
                (state.spec, state.profile_at) = ((**spec).clone(), None);
            }
            AgentEvent::AgentSet { spec, version: Some(version), .. } => {
                state.profile_at = Some(ProfileAt { version: *version, digest: digest(spec) });
                state.spec = Spec { profile: Value::Null, ..(**spec).clone() };
            }
            AgentEvent::TurnQueued { turn, before } => {
                state.queue.insert(state.queue.len().saturating_sub(*before), *turn);
            }
            AgentEvent::TurnGiven { turn, turn_epoch, at } => {
                state.queue.retain(|t| t != turn);
                state.turn_epoch = *turn_epoch;
                state.active = Some(Active { turn: *turn, since: *at });
            }
            AgentEvent::TurnClosed { turn, turn_epoch, status } => {
                state.active = None;
                state.missed = false;
                state.turn_epoch = *turn_epoch;
                state.remember(*turn, status);
            }
            AgentEvent::TurnLeft { turn, status } => {
                state.queue.retain(|t| t != turn);
                state.remember(*turn, status);
            }
            AgentEvent::TurnRefused { turn, .. } => state.queue.retain(|t| t != turn),
            AgentEvent::TurnMissed { .. } => state.missed = true,
            AgentEvent::AgentPaused { .. } => state.paused = true,
            AgentEvent::AgentResumed { .. } => state.paused = false,
            AgentEvent::AgentRemoved { .. }
            | AgentEvent::TurnAsked {}
            | AgentEvent::AgentMailNoted { .. } => {}
        }
    }

    fn decide(
        state: Option<&AgentState>,
        input: &Input<'_>,
        cx: &Cx,
    ) -> Result<Decision<AgentEvent>, Undecided> {
        super::decide::decide(state, input, cx)
    }
}
