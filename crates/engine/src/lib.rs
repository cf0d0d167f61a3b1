//! The shells that run the kernel. They carry input to pure decisions and decisions to a store, and
//! know time, tasks and randomness only through [`tenure_kernel::runtime::Runtime`], so that whole
//! clusters of them run in the simulation.
//!
//! **Invariant:** no raw spawn, timer or select here; no rule about what is allowed either.
//!
//! Read first: [`pipeline::Pipeline`] (group commit), [`due::DueLoop`] (the watchdog),
//! [`node::Node`] (what a server runs), [`worker::Worker`] (what holds entities and works).

pub mod amend;
pub mod birth;
pub mod blocks;
mod carry;
pub mod checkers;
pub mod claimer;
pub mod config;
pub mod dead_sessions;
pub mod due;
pub mod events;
pub mod lanes;
pub mod meter;
pub mod node;
pub mod outside;
pub mod pipeline;
pub mod quota;
pub mod rota;
pub mod serve;
pub mod session;
pub mod slots;
pub mod stop;
pub mod worker;
