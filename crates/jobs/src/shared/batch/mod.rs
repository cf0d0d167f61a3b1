//! Batches and debounce: submissions that are collected until they become one job.
//!
//! A batch is a resting entity, one per tenant, flow and key. Submissions are mail to it, durable before they are
//! answered and idempotent by their key; the due loop takes them in. When enough are there, or the time is up, one commit
//! says so and sends the message that creates the job, under an id that follows from batch and generation. So every
//! submission is in exactly one job, whoever decides and however often.
//!
//! What is open lies in the head, so it is small ([`limits`](model::limits)): a batch closes early by bytes, and an input that
//! is too large to be kept becomes a job of its own at once.

//!
//! A batch in which nothing is collected for a while ([`limits::IDLE`](model::limits::IDLE)) is *vacant*: retention removes it
//! as it removes what is over, and with it what it knows of keys that were used; the next submission opens it anew.

pub mod decide;
pub mod desk;
pub mod model;

pub use model::{Batch, Event, Mode, State};
