//! Drives flows. A worker that holds a job replays its flow from history, and from then on goes round:
//! take what has finished or come by mail, let the flow say what is next, commit both together, start
//! what was committed.
//!
//! The order that everything rests on: a call is committed as started before the tool runs, and its end
//! is committed before anything that depends on it leaves the process. The end of step N and the start of
//! N + 1 share a commit, because the flow is polled between the two.
//!
//! A commit that is refused means that somebody else holds the job. The flow is then dropped, running
//! tools are told to stop, and nothing more is written but evidence of what they had done.

mod admission;
mod asks;
mod begin;
mod calls;
mod ends;
mod finding_out;
mod hand;
pub mod hands;
pub(crate) mod lend;
mod limits;
mod listen;
mod load;
mod memory;
mod rest;
mod run;
mod settling;
mod undoing;
mod write;

pub use admission::{HELD_MAX, LOOK_AGAIN};
pub use calls::Calls;
pub(crate) use calls::Testimony;
pub use ends::{Ending, Ends};
pub(crate) use limits::Leave;
pub use limits::{BOOK_GOOD_FOR, Limits};
pub use load::{LoadError, Loaded, load, meta_of, read_events, read_events_of};
pub use memory::Memory;
pub(crate) use run::{Run, Still};
pub(crate) use write::creations_first;

use crate::terms::Serves;
use std::{sync::Arc, time::Duration};
use tenure_engine::{
    pipeline::Pipeline,
    worker::{Handler, Held},
};
use tenure_kernel::{runtime::BoxFuture, sessions::Executor};
use tenure_steps::{
    effects::Effects,
    flow::Flows,
    history::Forget,
    tool::{CallOptions, Tools},
};

/// Settings of jobs.
#[derive(Clone, Debug)]
pub struct JobOptions {
    /// `executor.step_timeout`.
    pub step_timeout: Duration,
    /// `executor.retry_max`.
    pub retry_max: u32,
    /// `executor.backoff`.
    pub backoff: Duration,
    /// The longest pause between two tries.
    pub backoff_max: Duration,
    /// How long a tool may take to stop once it was asked to.
    pub stop_grace: Duration,
    /// Waits longer than this park a job instead of letting it wait.
    pub park_after: Duration,
    /// How long a worker keeps a job of which nothing is left but calls that other workers have. Then it is parked, and
    /// a call that takes an hour costs rows, not a slot.
    pub call_patience: Duration,
    /// `job.must_end_by`, unless the submission says otherwise.
    pub must_end_in: Duration,
    /// Lost workers after which a job is given up.
    pub takeovers_max: u32,
    /// Bytes of history that parked flows may keep in memory.
    pub memory_bytes_max: usize,
    /// Test mode: replay after every commit, as if the worker were lost each time.
    pub replay_always: bool,
    /// A drill shows what happens without the history of calls.
    pub forget: Forget,
}

impl Default for JobOptions {
    fn default() -> Self {
        JobOptions {
            step_timeout: Duration::from_secs(300),
            retry_max: 3,
            backoff: Duration::from_secs(1),
            backoff_max: Duration::from_secs(300),
            stop_grace: Duration::from_secs(2),
            park_after: Duration::from_secs(60),
            call_patience: Duration::from_secs(2),
            must_end_in: Duration::from_secs(7 * 24 * 3600),
            takeovers_max: 5,
            memory_bytes_max: 64 * 1024 * 1024,
            replay_always: false,
            forget: Forget::Nothing,
        }
    }
}

impl JobOptions {
    /// What a call is made with where neither step nor tool say otherwise.
    pub fn call_defaults(&self) -> CallOptions {
        CallOptions {
            timeout: Some(self.step_timeout),
            retry_max: Some(self.retry_max),
            backoff: Some(self.backoff),
            class: None,
            timeout_is_permanent: Some(false),
        }
    }
}

/// Says whether the process behind a session is certainly gone. A lapsed lease does not say that.
pub trait Liveness: Send + Sync {
    /// Only `true` where nobody could disagree.
    fn known_dead(&self, executor: &Executor) -> bool;
}

/// Knows nothing about other processes.
#[derive(Clone, Copy, Debug, Default)]
pub struct NothingKnown;

impl Liveness for NothingKnown {
    fn known_dead(&self, _executor: &Executor) -> bool {
        false
    }
}

/// Names points of the drive where a test may stop the world. Called with the point's name; returns when
/// the worker may go on. The names are those of [`points`].
pub type Probe = Arc<dyn Fn(&'static str) -> BoxFuture<'static, ()> + Send + Sync>;

/// The points at which a drill or a test can interfere.
pub mod points {
    /// Claimed, nothing loaded yet.
    pub const CLAIMED: &str = "claimed";
    /// The flow was replayed; nothing committed yet.
    pub const REPLAYED: &str = "replayed";
    /// A call is committed as started and not made yet.
    pub const BEFORE_CALL: &str = "before_call";
    /// The tool has returned and nothing is recorded yet.
    pub const AFTER_CALL: &str = "after_call";
    /// The effect lies in a separate store, and no event names it yet.
    pub const AFTER_EFFECT: &str = "after_effect";
    /// A commit was answered.
    pub const AFTER_COMMIT: &str = "after_commit";
    /// All of them.
    pub const ALL: [&str; 6] =
        [CLAIMED, REPLAYED, BEFORE_CALL, AFTER_CALL, AFTER_EFFECT, AFTER_COMMIT];
}

/// What all jobs of a worker share.
pub struct Shop {
    /// The flows it knows.
    pub flows: Flows,
    /// The tools it has.
    pub tools: Tools,
    /// The numbers.
    pub options: JobOptions,
    /// Where effects lie, if not in the same store.
    pub effects: Option<Arc<dyn Effects>>,
    /// Who is certainly dead.
    pub liveness: Arc<dyn Liveness>,
    /// Flows that are parked, or were started with their job.
    pub memory: Memory,
    /// Who in this process waits for the end of a job.
    pub ends: Ends,
    /// Calls that run in this process.
    pub calls: Calls,
    /// Limits that it knows of, and tokens that it has.
    pub limits: Limits,
    /// See [`points`].
    pub probe: Option<Probe>,
    /// Which queues it looks into.
    pub serves: Serves,
    /// Tools whose calls are entities of another kind.
    pub hands: Option<Arc<dyn hands::Hands>>,
    /// Tools whose calls it also takes for jobs that other workers hold.
    pub lends: Vec<String>,
}

impl Shop {
    /// A shop with these flows and tools, effects in the same store.
    pub fn new(flows: Flows, tools: Tools, options: JobOptions) -> Self {
        let memory = Memory::new(options.memory_bytes_max);
        let liveness = Arc::new(NothingKnown);
        let ends = Ends::default();
        let (effects, calls, limits, probe) = (None, Calls::default(), Limits::default(), None);
        let serves = Serves::default();
        Shop {
            flows,
            tools,
            options,
            effects,
            liveness,
            memory,
            ends,
            calls,
            limits,
            probe,
            serves,
            hands: None,
            lends: Vec::new(),
        }
    }

    /// See [`hands::Hands`]. A tool of the same name in the shop goes before.
    pub fn with_hands(mut self, hands: Arc<dyn hands::Hands>) -> Self {
        self.hands = Some(hands);
        self
    }

    /// Takes calls of these tools also for jobs that workers without them hold.
    pub fn lending(mut self, tools: impl IntoIterator<Item = String>) -> Self {
        self.lends = tools.into_iter().collect();
        self
    }

    /// Named queues and capabilities, beside the unnamed queue and nothing special.
    pub fn serving(mut self, serves: Serves) -> Self {
        self.serves = serves;
        self
    }

    /// Effects in a store of their own.
    pub fn with_effects(mut self, effects: Arc<dyn Effects>) -> Self {
        self.effects = Some(effects);
        self
    }

    /// See [`Liveness`].
    pub fn with_liveness(mut self, liveness: Arc<dyn Liveness>) -> Self {
        self.liveness = liveness;
        self
    }

    /// Calls that all shops of this process share: whether a call of this process still runs is asked of one list.
    pub fn with_calls(mut self, calls: Calls) -> Self {
        self.calls = calls;
        self
    }

    /// See [`points`].
    pub fn with_probe(mut self, probe: Probe) -> Self {
        self.probe = Some(probe);
        self
    }

    /// The queues in which its jobs wait.
    pub fn queues(&self) -> Vec<String> {
        self.flows.iter().flat_map(|f| self.serves.of_flow(&f.name, f.version)).collect()
    }

    async fn at(&self, point: &'static str) {
        if let Some(probe) = &self.probe {
            probe(point).await;
        }
    }
}

/// The handler of a worker that runs jobs.
pub struct JobWorker(pub Arc<Shop>);

impl Handler for JobWorker {
    fn run(&self, held: Held) -> BoxFuture<'static, Held> {
        let shop = self.0.clone();
        Box::pin(begin::drive(shop, held))
    }
}

/// Everything a run needs to reach.
#[derive(Clone)]
pub(crate) struct Reach {
    pub shop: Arc<Shop>,
    pub pipeline: Pipeline,
}
