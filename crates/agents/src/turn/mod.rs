//! The turn: one unit of delivery of an agent.
//!
//! | room | what it holds |
//! |---|---|
//! | [`model`] | what a turn is asked to be, and its events |
//! | [`state`] | what its head keeps |
//! | [`table`] | the transition table |
//! | [`decide`](mod@decide) | what follows from mail, timers and lost workers, from the head alone |
//! | [`waits`] | results, progress and timeouts of tools |
//! | [`act`] | what its worker does: steps, suspend, finish |
//! | [`end`] | the one commit that ends a turn |
//!
//! A turn stands in line (`queued`) until its agent gives it the turn (`dispatched`), then a worker takes it
//! (`running`). While tools work nobody holds it (`suspended`). `ready` is `running` without a worker: resumed, or left
//! by a worker that was lost; people read it as running.

pub mod act;
pub mod decide;
pub mod end;
pub mod model;
pub mod state;
pub mod table;
pub mod waits;

pub use model::{NewTurn, Turn, TurnEvent, TurnState, Wait, WaitFor};
