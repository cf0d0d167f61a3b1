//! The executor: makes the pods of tasks, follows them, keeps their logs, stops them and cleans up.
//!
//! It is a worker like any other. The entity `pod` (one pod of one attempt) is claimed from the queue of a cluster, under
//! lease and epoch; what is done outside is on record before or after, never only in memory, and every request is such that
//! the next executor may send it again:
//!
//! | on record | then outside | and after a crash between them |
//! |---|---|---|
//! | `pod_begun`: the name | create | the pod is there under its name, with our mark: adopted; or it is not: made |
//! | `pod_made`: the uid | follow, read the log | read on from the last time stamp |
//! | | mark | marked again, the same |
//! | `pod_marked` | delete, by uid | deleted again: there is no such uid any more |
//! | `pod_cleared` | nothing | |
//!
//! What it sees it reports as a collector would, under the same keys, so that both may run and either may be away.

pub mod cluster;
mod crew;
pub mod live;
pub mod logs;
pub mod make;
mod making;
mod run;
mod shop;
mod sight;
mod state;
mod stopping;
mod strays;
mod tending;
mod told;

pub use crew::{Executor, ExecutorOptions};
pub use live::LiveCluster;
pub use run::PodWorker;
pub use shop::{Count, Counts, Patience, PodShop, Probe, points};
pub use sight::{Seen, Sight};
pub use state::ExecutorState;
pub use strays::STRAY;
