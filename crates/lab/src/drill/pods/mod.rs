//! The failure matrix of pods: what may go wrong around a task that runs as a pod, and what is promised of it all the same.
//!
//! | room | faults |
//! |---|---|
//! | `executors` | an executor dies while it makes, follows or stops a pod |
//! | `collectors` | a collector dies between seeing and telling, or is away |
//! | `apis` | the API server is away, silent, forgetful, busy, or loses an answer |
//! | `nodes` | a pod's node goes, or throws it out |
//! | `lines` | Redis is away; the server, or the store under it, is away |
//! | `reports` | what is said of pods is old, repeated, or about nobody |
//!
//! `town` is the world of a case: a cluster that does as it is told (`crates/kubedouble`), a Redis, and executors and collectors as
//! processes. `witness` judges it by three witnesses: the cluster's own memory of pods, the history of the task, and whoever listens
//! to the channel.

mod apis;
mod collectors;
mod executors;
mod lines;
mod nodes;
mod reports;
mod town;
pub mod witness;

use super::{
    case::{Case, Where},
    matrix::{
        Board, Column,
        Promise::{self, Holds, NotApplicable, NotMeanwhile},
        Row,
    },
};

/// The guarantees.
pub mod column {
    /// It ends.
    pub const ENDS: &str = "ends";
    /// Once.
    pub const ONE_END: &str = "one_end";
    /// As its pod says.
    pub const VERDICT: &str = "verdict";
    /// Never two pods.
    pub const ONE_POD: &str = "one_pod";
    /// The history is whole.
    pub const HISTORY: &str = "history";
    /// The channel is whole.
    pub const CHANNEL: &str = "channel";
    /// A cancel reaches the pod.
    pub const CANCEL: &str = "cancel";
    /// Nothing runs on.
    pub const NOTHING_LEFT: &str = "nothing_left";
    /// Soon enough.
    pub const IN_TIME: &str = "in_time";
}

/// The faults.
pub mod row {
    /// An executor dies around the creation of a pod.
    pub const MAKING: &str = "executor-killed-making";
    /// An executor dies while a pod runs.
    pub const TENDING: &str = "executor-killed-tending";
    /// An executor dies while it stops a pod.
    pub const STOPPING: &str = "executor-killed-stopping";
    /// The answer to a creation does not come.
    pub const UNANSWERED: &str = "create-unanswered";
    /// A collector dies between seeing and telling.
    pub const COLLECTOR_KILLED: &str = "collector-killed";
    /// No collector for a while.
    pub const COLLECTOR_DOWN: &str = "collector-down";
    /// The API server is away.
    pub const API_DOWN: &str = "api-down";
    /// Watches stay open and say nothing.
    pub const SILENT: &str = "watch-silent";
    /// Every watch has expired.
    pub const EXPIRED: &str = "watch-expired";
    /// The API server has no time.
    pub const THROTTLED: &str = "throttled";
    /// Redis is away.
    pub const REDIS: &str = "redis-down";
    /// The server is away.
    pub const SERVER: &str = "tenure-down";
    /// The node goes.
    pub const NODE: &str = "node-gone";
    /// The cluster wants the room.
    pub const EVICTED: &str = "evicted";
    /// What is said is old.
    pub const STALE: &str = "stale-reports";
}

const LEASE: &[&str] =
    &["store.url", "worker.lease_seconds", "worker.renewal_seconds", "pods.request_late_seconds"];

/// All hold, and nobody cancels.
const HELD: &[Promise] = &[Holds, Holds, Holds, Holds, Holds, Holds, NotApplicable, Holds, Holds];

/// All hold; some are cancelled.
const WITH_CANCEL: &[Promise] = &[Holds; 9];

/// The channel waits.
const CHANNEL_LATER: &[Promise] =
    &[Holds, Holds, Holds, Holds, Holds, NotMeanwhile, NotApplicable, Holds, Holds];

/// The matrix.
pub static BOARD: Board = Board {
    kind: "pods",
    columns: &[
        Column { key: column::ENDS, title: "Ends", says: "the task ends, whoever is away" },
        Column {
            key: column::ONE_END,
            title: "Once",
            says: "there is one final event, and the channel tells one end of each attempt",
        },
        Column {
            key: column::VERDICT,
            title: "Verdict",
            says: "status, cause, exit code and number of attempts are what became of its pods",
        },
        Column {
            key: column::ONE_POD,
            title: "One pod",
            says: "no pod of a task is made while another one of it is alive, as the cluster itself remembers them",
        },
        Column {
            key: column::HISTORY,
            title: "History",
            says: "everything that its pods said is on record, in order, and nothing behind the end",
        },
        Column {
            key: column::CHANNEL,
            title: "Channel",
            says: "ff:events:task has everything that a collector could see of its pods, in order; repeated under the same ids only",
        },
        Column {
            key: column::CANCEL,
            title: "Cancel",
            says: "a cancel stands on the pod before it is deleted; on no other pod",
        },
        Column {
            key: column::NOTHING_LEFT,
            title: "None left",
            says: "after the end no pod of it is alive, and no executor has one to tend",
        },
        Column {
            key: column::IN_TIME,
            title: "In time",
            says: "it has ended within the bound of the case, counted from the fault or from its end",
        },
    ],
    rows: &[
        Row {
            key: row::MAKING,
            title: "Executor killed, making",
            does: "the name is on record before the API server is asked: the next executor finds the pod under it, or makes it",
            promises: HELD,
            settings: LEASE,
        },
        Row {
            key: row::TENDING,
            title: "Executor killed, pod runs",
            does: "the pod runs on; the next executor adopts it, and collectors tell of it meanwhile",
            promises: HELD,
            settings: LEASE,
        },
        Row {
            key: row::STOPPING,
            title: "Executor killed, stopping",
            does: "that it is to be stopped is on record; the next executor marks and deletes it again, by uid",
            promises: WITH_CANCEL,
            settings: LEASE,
        },
        Row {
            key: row::UNANSWERED,
            title: "Answer to create lost",
            does: "the API server is asked whether the pod is there; no second request while the first may be under way",
            promises: HELD,
            settings: LEASE,
        },
        Row {
            key: row::COLLECTOR_KILLED,
            title: "Collector killed",
            does: "what was seen lies in its spool until everybody was told; the next one goes on from there",
            promises: HELD,
            settings: &["collector.spool", "collector.spool_sync"],
        },
        Row {
            key: row::COLLECTOR_DOWN,
            title: "Collector away",
            does: "executors tell of their own pods; the next collector lists what is there, and misses what is not",
            promises: CHANNEL_LATER,
            settings: &["collector.spool", "collector.lease", "collector.lease_seconds"],
        },
        Row {
            key: row::API_DOWN,
            title: "API server down",
            does: "pods go on without it; everything is listed again when it is back",
            promises: &[NotMeanwhile; 9],
            settings: &["collector.silence_seconds", "collector.relist_seconds"],
        },
        Row {
            key: row::SILENT,
            title: "Watch silent",
            does: "a watch without even a bookmark is opened anew, and everything is listed",
            promises: HELD,
            settings: &["collector.silence_seconds"],
        },
        Row {
            key: row::EXPIRED,
            title: "410 storm",
            does: "lists instead of watches, with pauses between them",
            promises: HELD,
            settings: &["collector.relist_seconds"],
        },
        Row {
            key: row::THROTTLED,
            title: "429",
            does: "the API server is left alone for as long as it asks for, and asked again",
            promises: WITH_CANCEL,
            settings: &["pods.request_late_seconds"],
        },
        Row {
            key: row::REDIS,
            title: "Redis down",
            does: "the server is told all the same; the channel is told when it is back, in order",
            promises: CHANNEL_LATER,
            settings: &["redis.addresses", "collector.spool", "collector.spool_age_max_seconds"],
        },
        Row {
            key: row::SERVER,
            title: "Server down",
            does: "pods run on; what was answered is durable, and everything goes on when it is back",
            promises: &[NotMeanwhile; 9],
            settings: &["store.url", "server.patience_seconds", "collector.spool"],
        },
        Row {
            key: row::NODE,
            title: "Node gone",
            does: "a pod that may still run is not replaced; when it is known to be over there is another attempt",
            promises: HELD,
            settings: &["pods.fence_seconds", "pods.terminating_grace_seconds", "pods.retry_lost"],
        },
        Row {
            key: row::EVICTED,
            title: "Evicted",
            does: "no failure of the program: another attempt, once the old pod is over",
            promises: HELD,
            settings: &["pods.retry_infra", "pods.backoff_seconds", "pods.budget_per_minute"],
        },
        Row {
            key: row::STALE,
            title: "Stale reports",
            does: "a report counts for the pod of the attempt that the task is at, once; all others are noted",
            promises: HELD,
            settings: &["store.url"],
        },
    ],
};

/// Every case.
pub fn cases(place: &Where) -> Vec<Case> {
    let mut cases = executors::cases();
    cases.extend(collectors::cases());
    cases.extend(apis::cases());
    cases.extend(nodes::cases());
    cases.extend(lines::cases(place));
    cases.extend(reports::cases());
    cases
}
