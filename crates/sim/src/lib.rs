//! The deterministic world: whole clusters, shells included, under a seeded scheduler that crashes,
//! pauses, delays, loses, repeats and reorders. A run is a function of its seed; a failing seed
//! replays exactly and becomes a line of `regressions.txt` for ever.
//!
//! Read first: [`executor`] (time and tasks), [`faults::Fault`] (what goes wrong), [`oracle`] and
//! [`check`] (what must hold all the same), [`scenario`] (what is played).
//!
//! **Invariant:** nothing here reads a clock, a random number, or anything else from outside its seed.

pub mod bell;
pub mod check;
pub mod executor;
pub mod faults;
pub mod oracle;
pub mod outside;
pub mod protections;
pub mod rng;
mod run;
pub mod scenario;
pub mod storm;
pub mod weather;
pub mod world;

pub use faults::{Fault, Faults};
pub use run::{Failure, Options, Report, run};
pub use scenario::{Off, Scenario, Strike};
