//! The collector: sees pods, judges them, and tells what became of their tasks.
//!
//! ```text
//!   follow (list, watch) ─► core (pure: verdict, what is new, timers, absences) ─► spool (ordered, on disk, bounded)
//!                                                                                   ├─► channel: Redis `ff:events:task`, a hint
//!                                                                                   └─► server: POST /v1/tasks/reports, durable
//! ```
//!
//! **What is promised.** Everything that a pod says about its task, as far as somebody could see it, is told at least once, in the order in which it
//! was seen, to every sink that is configured, however often this process is killed; the same thing twice only under the same key. What nobody
//! can see (a pod that came and went while no collector ran) is not made up.
//!
//! **Seen is not told.** A report counts when it lies in the spool, and leaves the spool when every sink has taken it. FlowForge marked
//! first and told then, and a publish that failed was never repeated.
//!
//! **Gone is told to the server only**: FlowForge says nothing on the channel for a pod that was deleted.

mod area;
mod core;
mod later;
mod lease;
mod meter;
mod redis;
mod run;
mod saying;
mod send;
mod short;
mod sink;
mod spool;
mod who;

pub use self::{
    area::{Area, Mode},
    core::{Act, Core, PodRef, Tally},
    lease::{Election, KubeLease, LeaseOptions},
    meter::{Meter, TENANTS_MAX},
    redis::RedisSink,
    run::{
        Asker, CollectOptions, Collector, CollectorState, KubeAsker, Parts, Probe, SinkState,
        points,
    },
    saying::{Saying, SinkId},
    sink::{Sent, Sink},
    spool::{Full, Mark, Owed, SPOOL_BYTES_MIN, Spool, SpoolOptions, SpoolState, SyncWhen},
};
