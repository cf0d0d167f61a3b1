//! The worker that runs turns.
//!
//! | room | what it holds |
//! |---|---|
//! | [`profile`] | what an agent's profile says |
//! | [`conversation`] | what the model reads, from the history of the turn (pure) |
//! | [`calls`] | what becomes of the tool calls of a step (pure) |
//! | [`answer`] | what follows from the answer of a model (pure) |
//! | [`model`] | who is asked |
//! | [`load`] | reading streams, agents, and results that lie elsewhere |
//! | [`worker`] | the loop over steps of one turn that is held |
//! | [`crew`] | a session, slots and a worker, together |
//! | [`far`] | the same for workers in any language: what they take and what they say |
//!
//! A step is two commits: *begun*, before the model is asked, and *finished*, with everything that follows from the
//! answer: the waits and the commands to those who answer them, or the end. A worker that dies between them loses
//! an answer of the model and nothing else; whoever takes the turn over asks for that step again, and never for one that
//! is finished.

pub mod answer;
pub mod calls;
pub mod conversation;
pub mod crew;
pub mod far;
pub mod load;
pub mod model;
pub mod profile;
pub mod worker;

pub use crew::{TurnCrew, TurnCrewOptions};
pub use worker::{TurnShop, TurnWorker};
