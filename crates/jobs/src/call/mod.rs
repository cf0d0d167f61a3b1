//! Calls: one invocation of a tool each, handed to a worker that does not run the flow, in whatever language.
//!
//! | room | what it holds |
//! |---|---|
//! | [`model`] | state and events |
//! | [`table`] | the transition table |
//! | [`decide`] | what follows from a cancel, a lost worker and the end of its time |
//! | [`desk`] | what a worker may do: open a session, take calls, say how they ended |
//! | [`again`] | an answer with calls that got lost on its way to the worker |
//! | [`view`] | what people read |
//!
//! A call is claimed at most once, unless its worker gives it back and says that it was not begun. Whatever else
//! becomes of a claimed call ends it, because somebody may have acted: a second try is another call, and whether
//! there may be one is the job's decision, by the class of the tool (`drive/hand.rs`).

pub mod again;
pub mod decide;
pub mod desk;
pub mod model;
pub mod table;
pub mod view;

pub use model::{Call, CallEvent, CallState, FailKind, NewCall};

/// How the names of queues begin in which calls wait.
pub const QUEUE: &str = tenure_kernel::blocks::TOOL_QUEUE;

/// The queue in which calls of a tool wait.
pub fn queue_of(tool: &str) -> String {
    format!("{QUEUE}{tool}")
}
