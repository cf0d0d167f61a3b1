//! Where heads and streams live. Three stores with one behaviour: each loads the facts that a batch
//! needs, lets the kernel decide ([`tenure_kernel::batch::plan`]), and writes what it says.
//!
//! **Invariant:** no rule about what is allowed lives here. A store knows tables, locks, transactions
//! and errors, nothing else. The constraints in the schema are a second guard behind the judge.

mod health;
mod listing;
pub mod memory;
pub mod postgres;
pub mod sqlite;
