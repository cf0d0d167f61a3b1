//! The retry budget of a tenant: how many retries may start in a time, and how many may be under way at once. It is what
//! keeps a bad hour of a cluster from becoming a storm of its own making.
//!
//! It is an entity, asked by mail, and rests. A task that wants to retry asks for a place; the answer is *from this moment
//! on* (the bucket may be empty for a while) or *not now, ask again* (too many are under way). A task that is put off stays
//! RETRYING with the reason on record: deferred, visible, never lost. The place is given back when the attempt ends. Only
//! an end by force of the kernel's gives nothing back; for that the budget asks its holders now and then.

pub mod decide;
pub mod model;
pub mod table;

pub use model::{
    ASK, Answer, Budget, BudgetAsk, BudgetEvent, BudgetRelease, BudgetSet, BudgetState,
    BudgetTerms, DEFERRED, GRANTED, RELEASE, SET, STILL, budget_id,
};
