//! What outsiders ask of agents and turns. The shell over the pipeline; the machines decide.
//!
//! | room | what is asked |
//! |---|---|
//! | [`agents`] | set, pause, resume, remove an agent |
//! | [`send`] | send it work: a turn is born |
//! | [`asks`] | say something to a turn: a result, progress, stop, force-finish, resume |
//! | [`letters`] | dead letters: send again, or put aside |
//!
//! An agent rests and nobody holds it, so a change of it is a commit on what was read, and the answer says what became
//! of it. A turn may be held; whatever is said to it is mail. The head is read first, so that what could only become a
//! dead letter is refused with its reason and nothing is written. It may change before the mail arrives; then the
//! machine decides and keeps what it can not use.

pub mod agents;
pub mod asks;
pub mod letters;
pub mod send;

pub use asks::{Answer, Outcome};
pub use send::{Sending, Sent};

use crate::{
    agent::{Agent, AgentState, agent_id},
    rules::{MUST_END_IN, Rules},
    turn::{Turn, TurnState},
};
use serde_json::Value;
use std::time::Duration;
use tenure_engine::pipeline::Pipeline;
use tenure_kernel::{
    error::StoreError,
    head::Head,
    ids::EntityId,
    limits as kernel_limits,
    machine::{Machine, decode_state},
};

/// Why nothing was done.
#[derive(Debug, thiserror::Error)]
pub enum DeskError {
    /// No such agent, or another tenant's.
    #[error("there is no agent {0:?}")]
    NoAgent(String),
    /// It takes no turns any more.
    #[error("agent {0:?} was removed")]
    AgentRemoved(String),
    /// It is asked for now or never, and has something to do.
    #[error("agent {agent:?} {why}")]
    AgentBusy {
        /// Which.
        agent: String,
        /// What it does.
        why: String,
    },
    /// Its line is full.
    #[error("{max} turns wait for agent {agent:?} already")]
    QueueFull {
        /// Which.
        agent: String,
        /// How many may.
        max: usize,
    },
    /// No such turn, or another tenant's.
    #[error("there is no turn {0}")]
    NoTurn(EntityId),
    /// The turn is over.
    #[error("turn {turn} is over ({status}){}", if *.kept { ": this is kept beside its history, and changes nothing" } else { "" })]
    TurnOver {
        /// Which.
        turn: EntityId,
        /// Its final status.
        status: String,
        /// What was said is kept as evidence.
        kept: bool,
    },
    /// It is about nothing that the turn could use: nothing was written.
    #[error("{why}")]
    Useless {
        /// A word for programs: `unknown_call`, `stale_epoch`, …
        code: String,
        /// A sentence for people.
        why: String,
        /// The waits that are open.
        open: Vec<String>,
    },
    /// The turn does not stand where this could be done.
    #[error("turn {turn} is {status}: {why}")]
    NotNow {
        /// Which.
        turn: EntityId,
        /// Where it stands.
        status: String,
        /// Why not.
        why: &'static str,
    },
    /// No such dead letter.
    #[error("turn {turn} has no dead letter {item:?} that is not dealt with")]
    NoItem {
        /// Which turn.
        turn: EntityId,
        /// What was asked for.
        item: String,
    },
    /// The correlation id belongs to a turn with other content.
    #[error("the correlation id belongs to turn {0}, which was sent with something else")]
    OtherInput(EntityId),
    /// It can not be used as it is.
    #[error("{why}")]
    Bad {
        /// Which field.
        field: &'static str,
        /// What is wrong.
        why: String,
        /// What to do.
        fix: &'static str,
    },
    /// A limit was passed.
    #[error("{what} has {found} bytes; the limit {name} is {max}")]
    TooLarge {
        /// What.
        what: &'static str,
        /// Which field.
        field: &'static str,
        /// The limit's name.
        name: &'static str,
        /// How much it is.
        found: usize,
        /// How much it may be.
        max: usize,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What a turn has where its sender says nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Defaults {
    /// The times of its rules.
    pub rules: Rules,
    /// It ends by then.
    pub must_end_in: Duration,
    /// Its channel, where its agent has none either. Without one no bell is rung for it.
    pub channel: Option<String>,
    /// How the subjects begin on which tools outside are told. What a server publishes there, it publishes under its own
    /// credentials, with arguments that a model of a tenant chose.
    pub tool_subjects: Vec<String>,
}

impl Default for Defaults {
    fn default() -> Self {
        Defaults {
            rules: Rules::default(),
            must_end_in: MUST_END_IN,
            channel: Some("public".to_owned()),
            tool_subjects: vec!["tools.".to_owned()],
        }
    }
}

/// Everything that outsiders may ask. Cheap to clone.
#[derive(Clone)]
pub struct Desk {
    pipeline: Pipeline,
    defaults: Defaults,
}

impl Desk {
    /// A desk over this pipeline.
    pub fn new(pipeline: Pipeline, defaults: Defaults) -> Self {
        Desk { pipeline, defaults }
    }

    /// Its way to the store.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// What turns get that say nothing.
    pub fn defaults(&self) -> &Defaults {
        &self.defaults
    }

    /// An agent as it is stored.
    pub async fn agent(&self, tenant: &str, name: &str) -> Result<(Head, AgentState), DeskError> {
        let head = self.pipeline.store().head(agent_id(tenant, name)).await?;
        let head = head.filter(|h| h.kind() == Agent::TABLE.kind && h.tenant == tenant);
        let head = head.ok_or_else(|| DeskError::NoAgent(name.to_owned()))?;
        let state = state_of::<Agent>(&head)?;
        Ok((head, state))
    }

    /// A turn as it is stored. Somebody else's is none: its existence is theirs to tell.
    pub async fn turn(
        &self,
        tenant: Option<&str>,
        id: EntityId,
    ) -> Result<(Head, TurnState), DeskError> {
        let head = self.pipeline.store().head(id).await?;
        let mine = |h: &Head| h.kind() == Turn::TABLE.kind && tenant.is_none_or(|t| t == h.tenant);
        let head = head.filter(mine).ok_or(DeskError::NoTurn(id))?;
        let state = state_of::<Turn>(&head)?;
        Ok((head, state))
    }
}

/// The state in a head.
pub(crate) fn state_of<M: Machine>(head: &Head) -> Result<M::State, StoreError> {
    decode_state::<M>(&head.state).map_err(|e| StoreError::Corrupt(e.to_string()))
}

fn within(
    what: &'static str,
    field: &'static str,
    name: &'static str,
    value: &Value,
    max: usize,
) -> Result<(), DeskError> {
    let found = serde_json::to_vec(value).map_or(usize::MAX, |b| b.len());
    match found <= max {
        true => Ok(()),
        false => Err(DeskError::TooLarge { what, field, name, found, max }),
    }
}

/// A word that people choose: a channel, an output box, a correlation id.
fn label(field: &'static str, text: Option<&str>, max: usize) -> Result<(), DeskError> {
    let Some(text) = text else { return Ok(()) };
    let fits = (1..=max).contains(&text.len()) && !text.chars().any(char::is_control);
    match fits {
        true => Ok(()),
        false => Err(DeskError::Bad {
            field,
            why: format!("{field} = {:?} can not be used", kernel_limits::clip(text, 80)),
            fix: "give a short text without control characters, or leave the field out",
        }),
    }
}

/// Who asks, and in which words.
fn words(by: Option<&str>, why: Option<&str>) -> Result<(), DeskError> {
    label("by", by, kernel_limits::NAME_BYTES_MAX)?;
    let why = why.map_or(0, str::len);
    match why <= crate::limits::ERROR_BYTES_MAX {
        true => Ok(()),
        false => Err(DeskError::TooLarge {
            what: "the reason",
            field: "why",
            name: "ERROR_BYTES_MAX",
            found: why,
            max: crate::limits::ERROR_BYTES_MAX,
        }),
    }
}
