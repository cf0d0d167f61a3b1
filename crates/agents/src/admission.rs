//! Which agents, turns and joins may be created: the rules that the judge asks ([`tenure_kernel::admission`]).

use crate::{
    agent::{Agent, agent_id},
    join::Join,
    turn::model::Turn,
};
use std::sync::Arc;
use tenure_kernel::{
    admission::{Admission, Admissions, Newborn, UnnamedId},
    machine::{Machine as _, decode_state},
};

/// Adds the rules of this crate's kinds.
pub fn admissions(admissions: Admissions) -> Admissions {
    admissions
        .with(Agent::TABLE.kind, Arc::new(AgentRule))
        .with(Turn::TABLE.kind, Arc::new(TurnRule))
        .with(Join::TABLE.kind, Arc::new(UnnamedId))
}

/// An agent has the id of its tenant and its name: or one tenant could create another's.
struct AgentRule;

impl Admission for AgentRule {
    fn admit(&self, newborn: &Newborn<'_>) -> Result<(), String> {
        let agent = decode_state::<Agent>(newborn.state).map_err(|e| e.to_string())?;
        match newborn.id == agent_id(newborn.tenant, &agent.spec.name) {
            true => Ok(()),
            false => Err("an agent has the id of its tenant and its name".to_owned()),
        }
    }
}

/// A turn is its own tenant's agent's: or it would run by the profile of another tenant's, and stand in that one's line.
struct TurnRule;

impl Admission for TurnRule {
    fn admit(&self, newborn: &Newborn<'_>) -> Result<(), String> {
        UnnamedId.admit(newborn)?;
        let turn = decode_state::<Turn>(newborn.state).map_err(|e| e.to_string())?;
        // One that was cancelled before it was created names no agent, and never runs.
        let named = !turn.agent_name.is_empty();
        match named && turn.agent != agent_id(newborn.tenant, &turn.agent_name) {
            true => Err(format!("agent: tenant {:?} has no such agent", newborn.tenant)),
            false => Ok(()),
        }
    }
}
