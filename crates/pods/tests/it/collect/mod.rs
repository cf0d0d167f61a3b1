//! The collector, through the real client, against an API server of the tests' own.

mod faults;
mod kills;
mod lean;
mod lives;
mod many;
pub mod rig;
