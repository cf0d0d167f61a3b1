//! What proves the kernel, its stores and its shells. Called by tests, simulations and the drill, never by a server or a
//! worker: so an `expect` in here is a check that failed, and says of what.
//!
//! - [`machines`]: small hostile machines. Each takes one promise of the kernel to its edge.
//! - [`mod@conformance`]: one suite, run by every store's tests. Cases are named after rules.
//! - [`nats`], [`redis`]: servers of a test's own, to be killed.
//! - [`dice`]: what is drawn from a seed.
//! - [`layer`]: a store with something laid over it.
//! - `stores` (a feature): one test on every store, and waiting for what it is about.
//! - [`patience`]: waiting for what nobody tells of.
//! - [`small`]: the smallest world in which the machines of a product can be tested.

pub mod conformance;
pub mod dice;
pub mod layer;
pub mod machines;
// The kernel's own tests use the same model; a second copy would drift.
#[path = "../../kernel/tests/it/model.rs"]
pub mod model;
pub mod nats;
pub mod patience;
pub mod redis;
pub mod small;
#[cfg(feature = "stores")]
pub mod stores;
