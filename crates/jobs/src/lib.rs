//! Durable jobs. A job is one run of a flow: its steps are recorded in its stream, and whoever holds it
//! drives the flow from there.
//!
//! | room | what it holds |
//! |---|---|
//! | [`model`] | state and events |
//! | [`table`] | the transition table |
//! | [`decide`] | what follows from mail, timers and lost holders, without history |
//! | [`call`] | calls of tools that are handed to workers in other languages |
//! | [`drive`] | the worker that holds a job and drives its flow |
//! | [`terms`], [`gate`] | when and where a job may run; the gate that several jobs share |
//! | [`serving`] | which live worker serves which ready queue |
//! | [`submit`] | how a job comes into being |
//! | [`found`] | how it is found by its key and its labels |
//! | [`admission`] | which jobs, calls and gates may be created |
//! | [`intake`] | jobs that were promised in somebody else's transaction |
//! | [`ask`] | what outsiders may ask of it |
//! | [`shared`] | what several jobs share: schedules |
//! | [`bulk`] | the same ask for many jobs |
//! | [`plan`] | work as data: what agents propose |
//! | [`rules`] | what silence leads to, for `tenure rules` |
//! | [`view`] | what people read of it |
//! | [`export`] | a job as one file that can be checked without us |

pub mod admission;
pub mod ask;
pub mod bulk;
pub mod call;
pub mod catalogue;
pub mod crew;
pub mod decide;
pub mod drive;
pub mod export;
pub mod found;
pub mod gate;
pub mod intake;
pub mod model;
pub mod nearest;
pub mod plan;
pub mod rules;
pub mod serving;
pub mod shared;
pub mod submit;
pub mod table;
pub mod terms;
pub mod view;

pub use model::{Job, JobEvent, JobState};
