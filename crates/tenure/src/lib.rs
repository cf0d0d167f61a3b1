//! The façade: what a program that embeds Tenure depends on, and the parts of the `tenure` binary.
//!
//! Start at [`config::Settings`] (what is in force and who said so) and [`open::open`] (a store and its
//! bell from a URL). `main.rs` parses and calls [`entry::main`], which dispatches to [`commands`].
//!
//! **Invariant:** nothing of the laboratory (drills, kill points, simulations, benchmarks) is in this crate. The seams
//! at which `tenure-lab` alters a process are the trait [`alterations::Alterations`].

// Everything is printed through `terminal`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod alterations;
pub mod cli;
mod client_tls;
pub mod commands;
pub mod config;
pub mod entry;
mod executor;
pub mod flows;
pub mod intake;
mod listen;
mod listening;
mod local_key;
pub mod logs;
pub mod memory;
pub mod open;
mod probes;
pub mod service;
pub mod terminal;
pub mod times;
mod turns;

pub use service::Program;
pub use tenure_agents as agents;
pub use tenure_engine as engine;
pub use tenure_jobs as jobs;
pub use tenure_kernel as kernel;
pub use tenure_steps::{
    Approval, CallOptions, Class, Ctx, Either, FlowError, Probe, StepError, Tool, ToolCtx,
    ToolError, flow::FlowSpec, tool::ToolSpec,
};
