//! The failure matrix of agents: what may go wrong around a turn, and what is promised of it all the same.
//!
//! | room | faults |
//! |---|---|
//! | `crashes` | the worker dies in each phase of a turn; the server goes away |
//! | `results` | results come twice, in another order, early, late, for nobody, forged |
//! | `rivals` | two workers at one inbox |
//! | `clocks` | clocks that are wrong |
//! | `stops` | a turn is stopped in the middle of something |
//! | `silence` | nobody answers: the rules of the watchdog, seen acting |
//! | `buses` | the bus is away, silent, or rings for nothing |
//!
//! `arena` is the world of a case, `witness` judges it.

mod arena;
mod buses;
mod clocks;
mod crashes;
mod results;
mod rivals;
mod silence;
mod stops;
pub mod witness;

pub use arena::leave;

use super::{
    case::Case,
    matrix::{
        Board, Column,
        Promise::{Holds, NotApplicable, NotMeanwhile},
        Row,
    },
};

/// The guarantees.
pub mod column {
    /// One final event, announced once.
    pub const ONE_END: &str = "one_end";
    /// One deliverable.
    pub const DELIVERED: &str = "delivered";
    /// Effects of tools happen at most once.
    pub const EFFECT_ONCE: &str = "effect_once";
    /// A finished step is not asked again.
    pub const NOT_ASKED_AGAIN: &str = "not_asked_again";
    /// A call has one result.
    pub const RESULT_ONCE: &str = "result_once";
    /// The agent's line moves.
    pub const LINE_MOVES: &str = "line_moves";
    /// The stream is not polluted.
    pub const STREAM_CLEAN: &str = "stream_clean";
    /// Rules act, and only they.
    pub const RULES: &str = "rules";
}

/// The faults.
pub mod row {
    /// Its worker dies before it has begun.
    pub const DISPATCHED: &str = "killed-dispatched";
    /// Its worker dies while the model is asked.
    pub const ASKING: &str = "killed-asking";
    /// Its worker dies while a tool works.
    pub const TOOL_OUT: &str = "killed-tool-out";
    /// Its worker dies when it goes on.
    pub const RESUMING: &str = "killed-resuming";
    /// Its worker dies at the end.
    pub const ENDING: &str = "killed-ending";
    /// The bus is away.
    pub const BUS: &str = "bus-down";
    /// Results that are not what they should be.
    pub const RESULTS: &str = "bad-results";
    /// Wrong clocks.
    pub const CLOCKS: &str = "clocks";
    /// Two workers.
    pub const RIVALS: &str = "rivals";
    /// Somebody stops it.
    pub const STOPPED: &str = "stopped";
    /// Nobody answers.
    pub const SILENCE: &str = "silence";
    /// The server goes away.
    pub const SERVER: &str = "server-down";
}

const LEASE: &[&str] = &[
    "store.url",
    "worker.lease_seconds",
    "worker.renewal_seconds",
    "agents.takeovers_max",
    "worker.resume_attempts_max",
];

/// All hold; no rule of silence has to act.
const UNTOUCHED: &[super::matrix::Promise] =
    &[Holds, Holds, Holds, Holds, Holds, Holds, Holds, NotApplicable];

/// The matrix.
pub static BOARD: Board = Board {
    kind: "agents",
    columns: &[
        Column {
            key: column::ONE_END,
            title: "One end",
            says: "the turn ends, once, as it should; on a bus its end is told under one id, after the agent's state",
        },
        Column {
            key: column::DELIVERED,
            title: "Delivered",
            says: "one deliverable: what the model delivered, or a fallback where the turn was ended",
        },
        Column {
            key: column::EFFECT_ONCE,
            title: "Tool ≤ 1",
            says: "what a tool does is there at most once, as the outside world counts it",
        },
        Column {
            key: column::NOT_ASKED_AGAIN,
            title: "No re-asking",
            says: "a step that is finished is not asked again, as the model counts it",
        },
        Column {
            key: column::RESULT_ONCE,
            title: "Result once",
            says: "a call has one result, and it is the one that was meant for it",
        },
        Column {
            key: column::LINE_MOVES,
            title: "Line moves",
            says: "the agent is free again, and its next turn comes to its end",
        },
        Column {
            key: column::STREAM_CLEAN,
            title: "Stream clean",
            says: "versions are dense, epochs and times never fall, nothing stands behind the end",
        },
        Column {
            key: column::RULES,
            title: "Rules",
            says: "where nobody answers the rule acts and is on record; elsewhere nothing is ended by force",
        },
    ],
    rows: &[
        Row {
            key: row::DISPATCHED,
            title: "Worker killed, dispatched",
            does: "the lease lapses, the turn stays running without a worker, another one begins it",
            promises: UNTOUCHED,
            settings: LEASE,
        },
        Row {
            key: row::ASKING,
            title: "Worker killed, model asked",
            does: "another worker asks the model again: an answer that was not recorded never was",
            promises: UNTOUCHED,
            settings: LEASE,
        },
        Row {
            key: row::TOOL_OUT,
            title: "Worker killed, tool out",
            does: "nobody holds a suspended turn; the job is taken over as jobs are, its result is mail and waits for a worker",
            promises: UNTOUCHED,
            settings: LEASE,
        },
        Row {
            key: row::RESUMING,
            title: "Worker killed, resuming",
            does: "the results are on record: another worker goes on from them, a bounded number of times",
            promises: UNTOUCHED,
            settings: LEASE,
        },
        Row {
            key: row::ENDING,
            title: "Worker killed, ending",
            does: "before the commit another worker asks the last step again; after it everything is said already",
            promises: UNTOUCHED,
            settings: LEASE,
        },
        Row {
            key: row::BUS,
            title: "Bus down",
            does: "turns go on without it; what is to be told waits in the outbox and is told when it is back",
            promises: UNTOUCHED,
            settings: &["bus.url", "server.tick_seconds"],
        },
        Row {
            key: row::RESULTS,
            title: "Bad results",
            does: "the first result that may answer a wait does; others are noted, refused with a reason, or kept as dead letters",
            promises: UNTOUCHED,
            settings: &["worker.suspend_timeout_seconds"],
        },
        Row {
            key: row::CLOCKS,
            title: "Clock skew",
            does: "deadlines are of the store's clock alone; the clocks of workers are not asked",
            promises: &[Holds, Holds, Holds, Holds, Holds, Holds, Holds, Holds],
            settings: &["store.url", "worker.suspend_timeout_seconds"],
        },
        Row {
            key: row::RIVALS,
            title: "Two workers, one inbox",
            does: "one claim wins; who has lost the turn writes nothing more",
            promises: UNTOUCHED,
            settings: LEASE,
        },
        Row {
            key: row::STOPPED,
            title: "Stopped",
            does: "the turn ends with a fallback, what it waits for is cancelled, late results change nothing",
            promises: &[Holds, Holds, Holds, Holds, Holds, Holds, Holds, Holds],
            settings: &["store.url"],
        },
        Row {
            key: row::SILENCE,
            title: "Nobody answers",
            does: "a timeout report, bells, an end with a fallback",
            promises: &[Holds, Holds, Holds, Holds, Holds, Holds, Holds, Holds],
            settings: &[
                "worker.suspend_timeout_seconds",
                "pmo.dispatched_retry_seconds",
                "pmo.dispatched_timeout_seconds",
                "pmo.active_reap_seconds",
                "pmo.pending_wakeup_seconds",
            ],
        },
        Row {
            key: row::SERVER,
            title: "Server down",
            does: "nothing moves while it is away; everything goes on by itself when it is back",
            promises: &[NotMeanwhile; 8],
            settings: &["store.url", "server.patience_seconds", "server.pulse_gap_seconds"],
        },
    ],
};

/// Every case.
pub fn cases() -> Vec<Case> {
    let mut cases = crashes::cases();
    cases.extend(results::cases());
    cases.extend(rivals::cases());
    cases.extend(clocks::cases());
    cases.extend(stops::cases());
    cases.extend(silence::cases());
    cases.extend(buses::cases());
    cases
}
