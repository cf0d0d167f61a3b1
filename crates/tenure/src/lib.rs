//! The façade: what a program that embeds Tenure depends on, and the parts of the `tenure` binary.
//!
//! Start at [`config::Settings`] (what is in force and who said so) and [`open::open`] (a store and its
//! bell from a URL). `main.rs` only parses and dispatches to [`commands`].

pub mod cli;
pub mod commands;
pub mod config;
pub mod drill;
mod executor;
pub mod flows;
pub mod intake;
mod listen;
pub mod logs;
pub mod open;
mod probes;
pub mod service;
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
