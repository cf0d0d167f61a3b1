//! The worker protocol.
pub mod wire;
