//! The durable step engine under jobs and agents. A *flow* is ordinary async Rust; every call on its
//! [`Ctx`] is a *step* whose outcome is recorded, so that another process can take the flow over from
//! its history without doing anything twice.
//!
//! | room | what it holds |
//! |---|---|
//! | [`events`] | what is recorded about steps |
//! | [`history`] | what a stream says about them |
//! | [`ledger`] | who may call a tool, from history alone |
//! | [`losses`] | when too many workers were lost over one piece of work |
//! | [`settle`] | what becomes of a call whose outcome nobody knows |
//! | [`ctx`], [`desk`] | what a flow sees |
//! | [`saga`] | steps that are undone together |
//! | [`driver`] | polls a flow and delivers one completion at a time |
//! | [`tool`], [`flow`] | what users register |
//! | [`effects`] | where results lie before they count, if not in the same store |
//!
//! Nothing here does I/O except a tool and a separate effect store; the shells (`jobs`, `agents`) do.

pub mod canonical;
pub mod ctx;
pub mod desk;
pub mod driver;
pub mod effects;
pub mod events;
pub mod flow;
pub mod history;
pub mod ledger;
pub mod losses;
pub mod saga;
pub mod settle;
pub mod tool;

pub use ctx::{Approval, Ctx, Either, Signal, Step};
pub use flow::{FlowError, StepError};
pub use saga::Saga;
pub use tool::{CallOptions, Class, Probe, Tool, ToolCtx, ToolError};
