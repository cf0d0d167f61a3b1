//! The façade: what a program that embeds Tenure depends on, and the parts of the `tenure` binary.
//!
//! Start at [`config::Settings`] (what is in force and who said so) and [`open::open`] (a store and its
//! bell from a URL). `main.rs` only parses and dispatches to [`commands`].

pub mod cli;
pub mod commands;
pub mod config;
pub mod logs;
pub mod open;

pub use tenure_engine as engine;
pub use tenure_kernel as kernel;
