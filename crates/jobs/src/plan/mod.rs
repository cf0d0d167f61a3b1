//! Plans: a job's work as data, so that a program (an agent, say) can propose it. A plan is a graph of steps in
//! JSON; the flow `plan@1` runs it with the same engine, ledger and history as a flow in Rust.
//!
//! | room | what it holds |
//! |---|---|
//! | [`problem`] | what can be wrong, with its place and what to do |
//! | [`template`], [`expr`] | templates and the expressions in them: `${{ steps.a.output }}` |
//! | `evaluate` | what an expression gives, in bounded time and room |
//! | [`model`] | a plan, read from JSON |
//! | [`mod@check`] | everything that can be known to be wrong before it runs |
//! | `types` | what schemas say about references |
//! | [`run`] | the flow |
//! | [`show`], [`draw`] | the graph, as text and as SVG |
//!
//! What a plan means in every case stands in `docs/plans.md`.

pub mod check;
pub mod draw;
mod evaluate;
pub mod expr;
pub mod model;
pub mod problem;
pub mod run;
pub mod show;
pub mod strict;
pub mod template;
mod types;

pub use check::{Library, check};
pub use model::Plan;
pub use problem::{Problem, Wrong};
pub use run::{FLOW, flow};
pub use strict::Strict;

/// Limits of a plan, by name.
pub mod limits {
    /// Steps of one plan.
    pub const STEPS_MAX: usize = 500;
    /// Bytes of a plan, written without spaces.
    pub const PLAN_BYTES_MAX: usize = 256 * 1024;
    /// Bytes of one expression.
    pub const EXPRESSION_BYTES_MAX: usize = 4 * 1024;
    /// How deep an expression may be nested: brackets, signs and `not` in front of a value, `if` one after the other.
    pub const NESTING_MAX: usize = 64;
    /// Operations of an expression within each other, when it is worked out.
    pub const OPERATIONS_DEEP_MAX: usize = 80;
    /// How deep a template may be nested.
    pub const DEPTH_MAX: usize = 32;
    /// Bytes that the operators and filters of one expression read and make, 32 for every value among them.
    pub const WORK_BYTES_MAX: usize = 8 * 1024 * 1024;
    /// The same of all expressions of a plan, and what its templates give. Jobs that run are replayed under it: it may
    /// grow, and not shrink.
    pub const PLAN_WORK_BYTES_MAX: usize = 1024 * 1024 * 1024;
    /// Bytes of what a template gives.
    pub const RESULT_BYTES_MAX: usize = 1024 * 1024;
    /// Bytes that a plan has recorded when no value is added any more: what a job may record, less what is needed to end in
    /// an orderly way. Replayed like [`PLAN_WORK_BYTES_MAX`].
    pub const RECORDED_BYTES_MAX: u64 = crate::model::limits::HISTORY_BYTES_MAX - 1024 * 1024;
    /// The same in values and outcomes.
    pub const RECORDED_MAX: u32 = crate::model::limits::EVENTS_MAX - 1_000;
    /// Items of one `for_each`.
    pub const ITEMS_MAX: usize = 1_000;
    /// Items of a `for_each` at once, without a word about it.
    pub const PARALLEL: usize = 8;
    /// Tool calls of a plan at once, those that pause before another try among them. With [`WAITS_AT_ONCE`] it
    /// fills what a job's head has room for; what is more waits its turn.
    pub const TOOLS_AT_ONCE: usize = 24;
    /// Open waits and sleeps of a plan.
    pub const WAITS_AT_ONCE: usize = 24;
    /// Open child jobs of a plan.
    pub const JOBS_AT_ONCE: usize = 500;
    /// Bytes that the inputs of open child jobs have before the next one waits its turn.
    pub const JOBS_BYTES_AT_ONCE: usize = 16 * 1024 * 1024;
    /// Bytes of the name of a step.
    pub const ID_BYTES_MAX: usize = 64;
    /// Bytes of the name of a wait.
    pub const WAIT_NAME_BYTES_MAX: usize = 120;
    /// The longest sleep, wait or timeout, in seconds: ten years.
    pub const SECONDS_MAX: f64 = 10.0 * 366.0 * 24.0 * 3_600.0;
    /// The most tries after the first.
    pub const RETRY_MAX: u64 = 1_000;
    /// Problems that are listed.
    pub const PROBLEMS_MAX: usize = 200;
    /// Bytes of the place of a problem, of what is wrong, and of what to do.
    pub const PROBLEM_BYTES_MAX: usize = 1_000;
    /// What a schema says against one value, at most.
    pub const VIOLATIONS_MAX: usize = 20;
    /// Parts of a schema that are looked at to find which kinds it allows.
    pub const SCHEMA_PARTS_MAX: usize = 64;
}
