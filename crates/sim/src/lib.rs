//! The deterministic world.
pub mod bell;
pub mod executor;
pub mod faults;
pub mod rng;
pub mod weather;
