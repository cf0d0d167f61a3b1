//! Bells: hints that something is worth a look. They may be lost, repeated or late; everything is
//! correct, only slower, with every bell silent (law 5).
//!
//! **Invariant:** nothing waits for a bell to be rung. [`tenure_kernel::bell::Bell::ring`] leaves a note
//! in memory and returns; whatever goes over a wire goes later, coalesced, in a task of its own.
//!
//! A NATS connection carries events too: [`nats::Bus`] is also the wire of the outbox. Redis carries bells, and, in a
//! channel of their own, the hints of collectors ([`redis::EventChannel`]).

pub mod conformance;
mod event_subjects;
pub mod inproc;
pub mod nats;
pub mod notify;
pub mod redis;
mod rings;
pub mod standby;
mod state;
mod subjects;

pub use inproc::InProcess;
pub use nats::{Bus, BusOptions};
pub use notify::PgNotify;
pub use redis::RedisBell;
pub use standby::Standby;
pub use state::BusState;
