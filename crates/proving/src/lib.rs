//! What proves the kernel, its stores and its shells. Development only: nothing that ships depends on
//! this crate.
//!
//! - [`machines`]: small hostile machines. Each takes one promise of the kernel to its edge.
//! - [`mod@conformance`]: one suite, run by every store's tests. Cases are named after rules.
//! - [`nats`], [`redis`]: servers of a test's own, to be killed.
//! - [`checkers`]: reads a whole store and says everything that is wrong with it.

pub mod checkers;
pub mod conformance;
pub mod machines;
pub mod nats;
pub mod redis;
