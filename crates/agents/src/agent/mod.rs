//! The agent: small, resting, moved by mail alone. It says whose turn it is, and nothing else.
//!
//! One turn is active; the others wait in its head, first come, first served. While a turn is active its counter
//! (`turn_epoch`) lives in the turn: given at dispatch, raised by every resume, and taken back with the mail that
//! says that the turn is over. Whatever ends or leaves in a commit, the next one is dispatched in the same commit, so an
//! idle agent with a queue does not exist.

pub mod decide;
pub mod model;
pub mod table;

pub use model::{Agent, AgentEvent, AgentState, Spec, agent_id};
