//! The job machine: what is asked for and what is kept. What can happen is in `events`, what that changes in `fold`,
//! where it leads in [`crate::table`].

mod events;
mod fold;

pub use crate::{table::TABLE, terms::Terms};
pub use events::{Attention, Failure, JobEvent, OwnEvent, UndoReport};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_kernel::{
    ids::EntityId,
    machine::{Cx, Decision, Input, Machine, Undecided},
    table::Table,
    time::Timestamp,
};
use tenure_steps::{
    events::{InLine, StepId, TimerWhy, WaitKind, What},
    losses::Losses,
    tool::Class as ToolClass,
};

/// Limits of a job, by name.
pub mod limits {
    /// An input up to this size is kept in the head, so that a fresh job starts without a look at its
    /// history.
    pub const INPUT_IN_HEAD_BYTES_MAX: usize = 4 * 1024;
    /// An output up to this size is kept in the head and told to the parent.
    pub const OUTPUT_IN_HEAD_BYTES_MAX: usize = 8 * 1024;
    /// Calls of one job at once; more wait their turn.
    pub const CALLS_MAX: usize = 32;
    /// Open waits and sleeps of one job.
    pub const WAITS_MAX: usize = 48;
    /// Open children of one job: their numbers stand in the head.
    pub const CHILDREN_MAX: usize = 600;
    /// How deep jobs may be children of each other. A flow that runs itself would otherwise go on for ever.
    pub const DEPTH_MAX: u32 = 16;
    /// Bytes of the keys of kept signals, and of those that were heard.
    pub const KEYS_BYTES_MAX: usize = 4 * 1024;
    /// What is kept of the reason for which an effect is unknown.
    pub const WHY_BYTES_MAX: usize = 512;
    /// Events that go into one commit; what is more goes into the next.
    pub const EVENTS_PER_COMMIT: usize = 1_000;
    /// Signals that are kept for later.
    pub const KEPT_MAX: usize = 64;
    /// Keys of completed waits that are remembered in the head, to tell a repeated signal from a wrong one.
    pub const HEARD_MAX: usize = 64;
    /// Events of one run of a flow.
    pub const EVENTS_MAX: u32 = 10_000;
    /// Bytes of events of one run of a flow.
    pub const HISTORY_BYTES_MAX: u64 = 16 * 1024 * 1024;
    /// What a signal may bring.
    pub const SIGNAL_BYTES_MAX: usize = 24 * 1024;
}

/// What a new job is asked to be. The body of the wish, and the first event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NewJob {
    /// The flow.
    pub flow: String,
    /// Its version.
    pub version: u32,
    /// Its input.
    #[serde(default)]
    pub input: Value,
    /// Higher is sooner.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: i16,
    /// It ends by then, whatever happens.
    pub must_end_in_ms: u64,
    /// Lost workers after which it is given up.
    pub takeovers_max: u32,
    /// When and where it may run.
    #[serde(default, skip_serializing_if = "is_default")]
    pub terms: Terms,
    /// Which schedule created it, and for when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled: Option<Scheduled>,
    /// Who waits for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// The finished job that this one tries again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<EntityId>,
    /// The job whose history it goes on from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<Fork>,
    /// Who asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// The time of a schedule for which a job was created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scheduled {
    /// The schedule's name.
    pub schedule: String,
    /// The nominal time, which may be earlier than the job.
    #[serde(rename = "scheduled_for")]
    pub nominal: Timestamp,
}

/// Where a child belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// The parent.
    pub job: EntityId,
    /// Its number among the parent's children.
    pub ordinal: u32,
    /// How many jobs are above it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub depth: u32,
}

/// Where a fork left its origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fork {
    /// The origin.
    pub job: EntityId,
    /// The first step that is not taken over.
    pub step: StepId,
}

/// A call that was started and is not over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenCall {
    /// The step.
    #[serde(rename = "s")]
    pub step: StepId,
    /// The tool.
    #[serde(rename = "t")]
    pub tool: String,
    /// The key.
    #[serde(rename = "k")]
    pub key: String,
    /// The call.
    #[serde(rename = "n")]
    pub call: u32,
    /// What settles it.
    #[serde(rename = "c")]
    pub class: ToolClass,
    /// Why nobody knows how it ended.
    #[serde(default, rename = "u", skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
    /// Its compensation was begun.
    #[serde(default, rename = "z", skip_serializing_if = "is_default")]
    pub undoing: bool,
    /// What of it is with a worker that does not run the flow, and its number: together they name the call entity.
    #[serde(default, rename = "o", skip_serializing_if = "Option::is_none")]
    pub out: Option<(What, u32)>,
    /// Its answer is on record and says for certain what became of it; nobody has acted on it yet.
    #[serde(default, rename = "a", skip_serializing_if = "is_default")]
    pub known: bool,
    /// If it happened, the flow says what undoes it.
    #[serde(default, rename = "r", skip_serializing_if = "is_default")]
    pub undoable: bool,
}

/// A wait that is open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenWait {
    /// The step.
    #[serde(rename = "s")]
    pub step: StepId,
    /// What for.
    #[serde(rename = "w")]
    pub kind: WaitKind,
    /// The correlation key.
    #[serde(rename = "k")]
    pub key: String,
}

/// A step that goes on at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenTimer {
    /// The step.
    #[serde(rename = "s")]
    pub step: StepId,
    /// Sleep, retry or limit.
    #[serde(rename = "w")]
    pub why: TimerWhy,
    /// The tool whose limit it waits for.
    #[serde(default, rename = "l", skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Its place in the line of that limit.
    #[serde(default, rename = "p", skip_serializing_if = "Option::is_none")]
    pub place: Option<InLine>,
}

/// A child that has not ended: its number and its step, and whether the flow says what undoes it if it completes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenChild(
    pub u32,
    pub StepId,
    #[serde(default, skip_serializing_if = "is_default", with = "digit")] pub bool,
);

/// A yes as one character: there may be hundreds in a head.
mod digit {
    use serde::{Deserialize as _, Deserializer, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
    pub(super) fn serialize<S: Serializer>(yes: &bool, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u8(u8::from(*yes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
        Ok(u8::deserialize(from)? != 0)
    }
}

/// What the head keeps: enough to decide without history.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct JobState {
    /// The flow.
    pub flow: String,
    /// Its version.
    pub version: u32,
    /// Its input, where it is small.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "tenure_steps::canonical::present"
    )]
    pub input: Option<Value>,
    /// How often the flow was started afresh, from 1.
    pub run: u32,
    /// Events of this run.
    pub events: u32,
    /// Steps that are over.
    #[serde(skip_serializing_if = "is_default")]
    pub steps: u32,
    /// Calls that are not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<OpenCall>,
    /// Open waits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<OpenWait>,
    /// Sleeps and retries.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub timers: Vec<OpenTimer>,
    /// Open children.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<OpenChild>,
    /// Keys of completed waits, the newest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub heard: Vec<String>,
    /// Keys of kept signals.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<String>,
    /// Steps that are to be undone if it is cancelled.
    #[serde(skip_serializing_if = "is_default")]
    pub undos: u32,
    /// Steps that happened and would have to be undone, and the flow has not said yet what undoes them: it says so when
    /// it hears of them. A person's word can come while nobody is there to tell the flow.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unheard: Vec<StepId>,
    /// Lost workers.
    #[serde(skip_serializing_if = "is_default")]
    pub takeovers: u32,
    /// The same, as it decides whether another one gets the job.
    #[serde(skip_serializing_if = "is_default")]
    pub losses: Losses,
    /// How many may be lost.
    pub takeovers_max: u32,
    /// Somebody paused it.
    #[serde(skip_serializing_if = "is_default")]
    pub paused: bool,
    /// Somebody wants it to pause, and it still runs.
    #[serde(skip_serializing_if = "is_default")]
    pub pausing: bool,
    /// How often it has looked again by itself at something only time or a person can clear up.
    #[serde(skip_serializing_if = "is_default")]
    pub looks: u32,
    /// A person has to look.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention: Option<Attention>,
    /// See [`NewJob::terms`].
    #[serde(skip_serializing_if = "is_default")]
    pub terms: Terms,
    /// What holds it back before its first step.
    #[serde(skip_serializing_if = "is_default")]
    pub held_back: HeldBack,
    /// Its priority before its gate: kept only where it has one.
    #[serde(skip_serializing_if = "is_default")]
    pub priority: i16,
    /// Who waits for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// See [`NewJob::retry_of`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<EntityId>,
    /// See [`NewJob::forked_from`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<Fork>,
    /// Who asked for it to be cancelled, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel: Option<(Option<String>, Option<String>)>,
    /// How it ends when it is undone, where nobody asked for it: see [`OwnEvent::JobFailing`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failing: Option<Failure>,
    /// What it returned, where it is small.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "tenure_steps::canonical::present"
    )]
    pub output: Option<Value>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}

/// What holds a job back before its first step. The delay comes first, then the gate: a job that waits for its time
/// has no place in the line yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldBack {
    /// Nothing: it may run.
    #[default]
    No,
    /// Its time has not come.
    Start,
    /// Its gate has not let it through.
    Gate,
    /// Its turn at the gate came while it was paused. It gave the permit back, and asks again when it is resumed.
    Resume,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl JobState {
    /// The losses, with a worker that is lost now. A head that an older version wrote has only their number.
    pub(crate) fn and_lost(&self, now: Timestamp) -> Losses {
        let known = match self.losses == Losses::default() {
            true => Losses::counted(self.takeovers, self.steps),
            false => self.losses.clone(),
        };
        known.and_one(self.steps, now)
    }

    /// Workers that were lost in a row, as people are told.
    pub fn lost_in_a_row(&self) -> u32 {
        match self.losses == Losses::default() {
            true => self.takeovers,
            false => self.losses.in_a_row,
        }
    }

    /// The id of a child. It follows from the job and the number alone, so a creation that is decided
    /// twice names the same job twice, and a parent can reach its children without a list of ids.
    pub fn child_id(job: EntityId, ordinal: u32) -> EntityId {
        EntityId::derived(job, &format!("child/{ordinal}"), job.moment())
    }

    /// The id of a call entity. It follows from what is on record, as a child's does.
    pub fn call_id(job: EntityId, key: &str, call: u32, (what, nth): (What, u32)) -> EntityId {
        let name = format!("call/{key}/{call}/{}/{nth}", what.as_str());
        EntityId::derived(job, &name, job.moment())
    }

    /// Call entities that are out, with the open call each belongs to.
    pub fn calls_out(&self, job: EntityId) -> impl Iterator<Item = (EntityId, &OpenCall)> {
        let id = move |c: &OpenCall| c.out.map(|out| Self::call_id(job, &c.key, c.call, out));
        self.calls.iter().filter_map(move |c| id(c).map(|id| (id, c)))
    }

    /// Whether anything is with a worker that does not run the flow.
    pub fn is_out(&self) -> bool {
        self.calls.iter().any(|c| c.out.is_some())
    }

    /// Whether a call may have happened that would have to be undone, and nobody has it any more.
    pub fn has_to_find_out(&self) -> bool {
        self.calls.iter().any(|c| c.undoable && c.out.is_none())
    }

    /// Whether a worker has to see to it before it may end as cancelled. One that fails is undone from the list alone.
    pub fn has_to_undo(&self) -> bool {
        match self.failing {
            Some(_) => self.undos > 0,
            None => self.not_undone() > 0 || self.has_to_find_out(),
        }
    }

    /// Steps that happened, belong to something that is not complete, and were not undone, if the job ended now.
    pub fn not_undone(&self) -> u32 {
        self.undos.saturating_add(u32::try_from(self.unheard.len()).unwrap_or(u32::MAX))
    }

    /// Steps whose effect nobody knows about, if the job ended now.
    pub fn open_steps(&self) -> Vec<StepId> {
        self.calls.iter().filter(|c| !c.known).map(|c| c.step.clone()).collect()
    }

    /// The wait that a signal completes: the one with this key, or the oldest open one for a signal of this name. The waits of a
    /// name have the keys `name`, `name#2` and so on; whoever signals the name need not count. A person's decision is about one
    /// question, and a webhook may be delivered twice: such waits are completed by their own keys alone.
    pub fn waits_for(&self, key: &str) -> Option<&OpenWait> {
        let in_line = |w: &&OpenWait| w.kind == WaitKind::Signal && name_of(&w.key) == key;
        let exact = self.waits.iter().find(|w| w.key == key);
        exact.or_else(|| self.waits.iter().find(in_line))
    }
}

/// The name of a wait with this key: without the number that its second and later uses have.
fn name_of(key: &str) -> &str {
    match key.rsplit_once('#') {
        Some((name, number)) if number.parse::<u64>().is_ok_and(|n| n > 1) => name,
        _ => key,
    }
}

/// Why a paused job is parked anew: see [`HeldBack::Resume`].
pub const GATE_GIVEN_BACK: &str = "gate_given_back";
/// Who resumes a job that looks again by itself.
pub const RECHECK: &str = "recheck";
/// Who stops a job that can not go on.
pub const BY_ITSELF: &str = "tenure";
/// Who resumes a job about which something came to be known.
pub const EVIDENCE: &str = "evidence";

/// A value that is small enough to keep, or nothing.
pub fn small(value: &Value, bytes_max: usize) -> Option<Value> {
    let fits = serde_json::to_vec(value).is_ok_and(|b| b.len() <= bytes_max);
    fits.then(|| value.clone())
}

/// The job machine.
#[derive(Debug)]
pub struct Job;

impl Machine for Job {
    type State = JobState;
    type Event = JobEvent;
    const TABLE: &'static Table = &TABLE;
    const CREATED_BY: &'static [&'static str] = &["worker", "job", "turn", "schedule", "batch"];
    const REPORTS_TO: Option<&'static str> = Some("/parent/job");

    fn name(event: &JobEvent) -> &'static str {
        match event {
            JobEvent::Step(event) => event.name(),
            JobEvent::Own(event) => event.name(),
        }
    }

    /// The clock of a worker that does nothing. Sleeps, pauses and the ends of waits are moments that the flow chose, and
    /// it is told of them at their time: a signal that comes later is kept, and the flow says what it means.
    fn judges(timer: &str) -> bool {
        timer == crate::decide::timers::PROGRESS
    }

    fn apply(state: &mut JobState, event: &JobEvent) {
        state.events += 1;
        match event {
            JobEvent::Step(event) => state.step(event),
            JobEvent::Own(event) => state.own(event),
        }
    }

    fn decide(
        state: Option<&JobState>,
        input: &Input<'_>,
        cx: &Cx,
    ) -> Result<Decision<JobEvent>, Undecided> {
        crate::decide::decide(state, input, cx)
    }
}
