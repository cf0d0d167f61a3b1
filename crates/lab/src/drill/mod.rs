//! What drills, benchmarks and tests run: an outside world that counts, tools of every class that act on it, a flow that does as its input says, and points at which a worker process ends
//! itself.
//!
//! And the drill itself: real processes, real faults, and a matrix of what was seen.
//!
//! | room | what it holds |
//! |---|---|
//! | [`matrix`], [`witness`] | what is promised, what was seen; pure |
//! | [`jobs`], [`agents`], [`pods`] | the matrix of a kind of work, and its cases |
//! | [`processes`], [`cluster`], [`bus`], [`redis`], [`proxy`] | workers, servers, stores, a bus, a Redis, and the lines between them |
//! | [`ground`], [`case`], [`run`] | the world of a case; a case; all of them |
//! | `outage` | the store, or the server on it, goes away |
//! | [`breaks`] | protections switched off, to show that the drill misses them |
//! | [`report`] | the matrix as text, as JSON, as a page |
//! | [`soak`] | load and kills for many minutes, and the accounting |

pub mod agents;
pub mod breaks;
pub mod bus;
pub mod case;
pub mod cluster;
pub mod flows;
pub mod ground;
mod hasty;
pub mod jobs;
pub mod matrix;
mod outage;
pub use tenure::commands::demo::outside;
pub mod pods;
pub mod points;
pub mod processes;
pub mod proxy;
pub mod redis;
pub mod report;
pub mod run;
pub mod soak;
mod volatile;
pub mod witness;
