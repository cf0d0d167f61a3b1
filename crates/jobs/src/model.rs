//! The job machine: what is kept, and what can happen. Where it leads is in [`crate::table`].

pub use crate::{table::TABLE, terms::Terms};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_kernel::{
    ids::EntityId,
    machine::{Cx, Decision, Input, Machine, Undecided},
    table::Table,
    time::Timestamp,
};
use tenure_steps::{
    events::{
        ResultType, StepEvent, StepId, TimerWhy, ValueKind, Verdict, WaitKind, WaitOutcome, What,
    },
    saga::Undo,
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
}

/// Where a fork left its origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fork {
    /// The origin.
    pub job: EntityId,
    /// The first step that is not taken over.
    pub step: StepId,
}

/// What a job records beside its steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum OwnEvent {
    /// Born.
    JobCreated(Box<NewJob>),
    /// Taken in the commit that created it.
    JobStarted {},
    /// Steps of another job, taken over as if they were its own.
    HistoryCopied {
        /// From whom.
        from: EntityId,
        /// In order.
        events: Vec<Value>,
    },
    /// Nothing but waits is left.
    JobWaiting {
        /// Their correlation keys; `timer` and `child` for those without; `start` or `gate:…` before the first step.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        keys: Vec<String>,
    },
    /// Its time has come, or its gate has let it through: what held it back before its first step is over.
    JobReady {
        /// `start` or `gate`.
        why: String,
    },
    /// Nothing but long waits is left, somebody paused it, or it starts much later.
    JobParked {
        /// `pause`, `wait` or `start`.
        why: String,
        /// Who paused it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    /// A failed call is tried again later.
    JobRetrying {
        /// Which step.
        step: StepId,
    },
    /// A person has to look.
    JobAttention(Attention),
    /// Somebody wants it to pause: it does when what runs has finished.
    PauseAsked {
        /// Who.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    /// Somebody let it go on, or it looks again by itself.
    JobResumed {
        /// Who or what.
        by: String,
    },
    /// Its worker was lost; another one goes on.
    JobRequeued {
        /// Which rule.
        why: String,
    },
    /// It is being cancelled: running tools and children are told.
    JobCancelling {
        /// Who asked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        /// Why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    /// It is cancelled, and waits for a worker that undoes what it had done.
    JobUndoing {
        /// A worker was lost over it.
        #[serde(default, skip_serializing_if = "is_default")]
        lost: bool,
    },
    /// The flow starts afresh with this input.
    JobContinued {
        /// The new input.
        input: Value,
    },
    /// Mail came that changes nothing.
    MailNoted {
        /// What kind, and why it changes nothing.
        what: String,
    },
    /// The flow returned.
    JobCompleted {
        /// What it returned.
        output: Value,
        /// Children that it did not wait for.
        #[serde(default, skip_serializing_if = "is_default")]
        abandoned: u32,
    },
    /// It ended without a result.
    JobFailed(Failure),
    /// It was cancelled.
    JobCancelled {
        /// Who asked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        /// Why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
        /// Effects that nobody knows about.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        unknown: Vec<StepId>,
        /// Children that were still open.
        #[serde(default, skip_serializing_if = "is_default")]
        abandoned: u32,
        /// What became of what was to be undone.
        #[serde(default, skip_serializing_if = "is_default")]
        undone: UndoReport,
    },
}

/// What became of what was to be undone.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct UndoReport {
    /// Steps that were undone, in the order in which that happened.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undone: Vec<StepId>,
    /// Steps that were not, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<(StepId, String)>,
    /// How many were not even tried, where nobody was there who could say which.
    #[serde(default, skip_serializing_if = "is_default")]
    pub untried: u32,
}

/// Why a person has to look.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attention {
    /// `unknown_outcome`, `diverged` or `broken`.
    pub reason: String,
    /// The step, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepId>,
    /// In words.
    pub why: String,
    /// It looks again by itself after this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again_in_ms: Option<u64>,
}

/// Why a job failed.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Failure {
    /// A word: `step_failed`, `flow_failed`, `deadline_passed`, `unknown_outcome`, `takeovers_spent`,
    /// `history_too_long`, `refused`.
    pub reason: String,
    /// In words.
    pub error: String,
    /// The step, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepId>,
    /// Effects that nobody knows about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<StepId>,
    /// Children that were still open.
    #[serde(default, skip_serializing_if = "is_default")]
    pub abandoned: u32,
}

/// What can happen to a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum JobEvent {
    /// To a step.
    Step(StepEvent),
    /// To the job.
    Own(OwnEvent),
}

impl From<StepEvent> for JobEvent {
    fn from(event: StepEvent) -> Self {
        JobEvent::Step(event)
    }
}

impl From<OwnEvent> for JobEvent {
    fn from(event: OwnEvent) -> Self {
        JobEvent::Own(event)
    }
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
}

/// A child that has not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenChild(pub u32, pub StepId);

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
    /// Lost workers.
    #[serde(skip_serializing_if = "is_default")]
    pub takeovers: u32,
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
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl JobState {
    /// The id of a child. It follows from the job and the number alone, so a creation that is decided
    /// twice names the same job twice, and a parent can reach its children without a list of ids.
    pub fn child_id(job: EntityId, ordinal: u32) -> EntityId {
        EntityId::derived(job, &format!("child/{ordinal}"), born_at(job))
    }

    /// The id of a call entity. It follows from what is on record, as a child's does.
    pub fn call_id(job: EntityId, key: &str, call: u32, (what, nth): (What, u32)) -> EntityId {
        let name = format!("call/{key}/{call}/{}/{nth}", what.as_str());
        EntityId::derived(job, &name, born_at(job))
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

    /// Whether a worker has to see to it before it may end as cancelled.
    pub fn has_to_undo(&self) -> bool {
        self.undos > 0 || self.has_to_find_out()
    }

    /// Steps whose effect nobody knows about, if the job ended now.
    pub fn open_steps(&self) -> Vec<StepId> {
        self.calls.iter().filter(|c| !c.known).map(|c| c.step.clone()).collect()
    }

    /// Whether it waits for this key.
    pub fn waits_for(&self, key: &str) -> Option<&OpenWait> {
        self.waits.iter().find(|w| w.key == key)
    }

    fn step(&mut self, event: &StepEvent) {
        match event {
            StepEvent::ToolInvocationStarted { step, tool, key, call, class, undoable, .. } => {
                self.timers.retain(|t| t.step != *step);
                self.calls.push(OpenCall {
                    step: step.clone(),
                    tool: tool.clone(),
                    key: key.clone(),
                    call: *call,
                    class: *class,
                    unknown: None,
                    undoing: false,
                    out: None,
                    known: false,
                    undoable: *undoable,
                });
            }
            StepEvent::ToolInvocationFinished { key, call, .. } => self.close(key, *call),
            StepEvent::EffectSettled { key, call, verdict, .. } => {
                self.close(key, *call);
                self.looks = 0;
                if *verdict != Verdict::CalledAgain
                    && self.attention.as_ref().is_some_and(|a| a.reason == "unknown_outcome")
                {
                    self.attention = None;
                }
            }
            StepEvent::EffectUnknown { key, call, why, .. } => {
                if let Some(c) = self.calls.iter_mut().find(|c| c.key == *key && c.call == *call) {
                    c.unknown = Some(why.clone());
                }
            }
            StepEvent::NodeFinished { step, result_type, .. } => {
                self.steps += u32::from(*result_type != ResultType::RetryableFailure);
                // Tried, with whatever outcome: the list of what is to be undone is one shorter.
                if result_type.settles() && Undo::is_undo(step) {
                    self.undos = self.undos.saturating_sub(1);
                }
            }
            StepEvent::CompensationStarted { key, call, .. } => {
                if let Some(c) = self.calls.iter_mut().find(|c| c.key == *key && c.call == *call) {
                    c.undoing = true;
                }
            }
            StepEvent::CommandCommitted { .. } => {}
            StepEvent::ValueRecorded { kind, value, .. } => {
                self.steps += 1;
                match kind {
                    ValueKind::Undo => self.undos += 1,
                    ValueKind::Kept => {
                        let kept = value.as_array().map_or(0, Vec::len);
                        self.undos =
                            self.undos.saturating_sub(u32::try_from(kept).unwrap_or(u32::MAX));
                    }
                    _ => {}
                }
            }
            StepEvent::WaitOpened { step, kind, key, .. } => {
                self.waits.push(OpenWait { step: step.clone(), kind: *kind, key: key.clone() });
            }
            StepEvent::WaitCompleted { step, key, outcome, .. } => {
                self.steps += 1;
                self.waits.retain(|w| w.step != *step);
                self.kept.retain(|k| k != key);
                // Nobody was heard where the time ran out: an answer that comes late is told so.
                if *outcome != WaitOutcome::Expired {
                    self.heard.push(key.clone());
                }
                let bytes = |keys: &[String]| keys.iter().map(String::len).sum::<usize>();
                while self.heard.len() > limits::HEARD_MAX
                    || bytes(&self.heard) > limits::KEYS_BYTES_MAX
                {
                    self.heard.remove(0);
                }
            }
            StepEvent::SignalKept { key, .. } => self.kept.push(key.clone()),
            StepEvent::TimerSet { step, why, limit, .. } => {
                let tool = limit.as_ref().map(|l| l.tool.clone());
                self.timers.push(OpenTimer { step: step.clone(), why: *why, tool });
            }
            StepEvent::TimerFired { step } => {
                let sleep = |t: &OpenTimer| t.step == *step && t.why == TimerWhy::Sleep;
                self.steps += u32::from(self.timers.iter().any(sleep));
                self.timers.retain(|t| t.step != *step);
            }
            StepEvent::ChildStarted { step, ordinal, .. } => {
                self.children.push(OpenChild(*ordinal, step.clone()));
            }
            StepEvent::ChildEnded { ordinal, .. } => {
                self.steps += 1;
                self.children.retain(|c| c.0 != *ordinal);
            }
            StepEvent::ChildOutputTaken { .. } => {}
            StepEvent::StepDropped { step } => {
                self.waits.retain(|w| w.step != *step);
                self.timers.retain(|t| t.step != *step);
            }
            StepEvent::CallHanded { key, call, what, nth, .. } => {
                if let Some(c) = self.calls.iter_mut().find(|c| c.key == *key && c.call == *call) {
                    (c.out, c.known) = (Some((*what, *nth)), false);
                }
            }
            StepEvent::CallAnswered { key, call, what, answer, .. } => {
                if let Some(c) = self.calls.iter_mut().find(|c| c.key == *key && c.call == *call) {
                    (c.out, c.known) = (None, *what == What::Call && answer.end.is_certain());
                }
            }
        }
    }

    fn close(&mut self, key: &str, call: u32) {
        self.calls.retain(|c| !(c.key == key && c.call == call));
    }

    fn own(&mut self, event: &OwnEvent) {
        match event {
            OwnEvent::JobCreated(new) => {
                self.flow.clone_from(&new.flow);
                self.version = new.version;
                self.input = small(&new.input, limits::INPUT_IN_HEAD_BYTES_MAX);
                self.run = 1;
                self.takeovers_max = new.takeovers_max;
                self.parent = new.parent;
                self.retry_of = new.retry_of;
                self.forked_from.clone_from(&new.forked_from);
                self.held_back = new.terms.hold_back();
                self.terms.clone_from(&new.terms);
                if new.terms.gate.is_some() {
                    self.priority = new.priority;
                }
            }
            OwnEvent::JobReady { .. } => {
                self.held_back = match self.held_back {
                    HeldBack::Start if self.terms.gate.is_some() => HeldBack::Gate,
                    _ => HeldBack::No,
                };
            }
            OwnEvent::HistoryCopied { events, .. } => {
                for event in events {
                    if let Ok(event) = serde_json::from_value::<StepEvent>(event.clone()) {
                        self.step(&event);
                    }
                }
            }
            OwnEvent::JobParked { why, .. } => {
                self.paused |= why == "pause";
                self.pausing &= !self.paused;
            }
            OwnEvent::PauseAsked { .. } => self.pausing = true,
            OwnEvent::JobAttention(attention) => self.attention = Some(attention.clone()),
            OwnEvent::JobResumed { by } => {
                self.looks += u32::from(by == RECHECK);
                // Only a person takes back what a person asked for.
                if by != RECHECK && by != EVIDENCE {
                    (self.paused, self.pausing) = (false, false);
                }
                self.attention = None;
            }
            OwnEvent::JobRequeued { .. } => self.takeovers += 1,
            OwnEvent::JobUndoing { lost } => {
                self.takeovers += u32::from(*lost);
                // Somebody looks again at what is to be undone.
                self.looks += u32::from(!*lost);
            }
            OwnEvent::JobCancelling { by, why } => {
                // There is nothing to resume any more.
                (self.paused, self.pausing, self.attention) = (false, false, None);
                self.cancel = Some((by.clone(), why.clone()));
            }
            OwnEvent::JobContinued { input } => {
                self.input = small(input, limits::INPUT_IN_HEAD_BYTES_MAX);
                self.run += 1;
                (self.events, self.takeovers) = (0, 0);
                // The flow asks for the same names again: what an earlier run heard is not what this one waits for.
                self.heard.clear();
                self.undos = 0;
                self.waits.clear();
                self.timers.clear();
                self.children.clear();
            }
            OwnEvent::JobCompleted { output, .. } => {
                self.output = small(output, limits::OUTPUT_IN_HEAD_BYTES_MAX);
                self.close_all();
            }
            OwnEvent::JobFailed(failure) => {
                self.failure = Some(failure.clone());
                self.close_all();
            }
            OwnEvent::JobCancelled { by, why, .. } => {
                self.cancel = Some((by.clone(), why.clone()));
                self.close_all();
            }
            OwnEvent::JobStarted {}
            | OwnEvent::JobWaiting { .. }
            | OwnEvent::JobRetrying { .. }
            | OwnEvent::MailNoted { .. } => {}
        }
    }

    /// Nothing is waited for any more. Calls stay: they say which effects are unknown.
    fn close_all(&mut self) {
        self.waits.clear();
        self.timers.clear();
        self.children.clear();
    }
}

/// When an entity was born, as its id says.
fn born_at(id: EntityId) -> tenure_kernel::time::Timestamp {
    let (secs, nanos) = id.uuid().get_timestamp().map_or((0, 0), |t| t.to_unix());
    let micros = i64::try_from(secs * 1_000_000 + u64::from(nanos / 1_000)).unwrap_or(0);
    tenure_kernel::time::Timestamp::from_micros(micros)
}

/// Who resumes a job that looks again by itself.
pub const RECHECK: &str = "recheck";
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

    fn name(event: &JobEvent) -> &'static str {
        match event {
            JobEvent::Step(event) => event.name(),
            JobEvent::Own(event) => event.name(),
        }
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

impl OwnEvent {
    /// Its name in the transition table.
    pub fn name(&self) -> &'static str {
        match self {
            OwnEvent::JobCreated(_) => "job_created",
            OwnEvent::JobStarted {} => "job_started",
            OwnEvent::HistoryCopied { .. } => "history_copied",
            OwnEvent::JobWaiting { .. } => "job_waiting",
            OwnEvent::JobReady { .. } => "job_ready",
            OwnEvent::JobParked { .. } => "job_parked",
            OwnEvent::JobRetrying { .. } => "job_retrying",
            OwnEvent::JobAttention(_) => "job_attention",
            OwnEvent::PauseAsked { .. } => "pause_asked",
            OwnEvent::JobResumed { .. } => "job_resumed",
            OwnEvent::JobRequeued { .. } => "job_requeued",
            OwnEvent::JobCancelling { .. } => "job_cancelling",
            OwnEvent::JobUndoing { .. } => "job_undoing",
            OwnEvent::JobContinued { .. } => "job_continued",
            OwnEvent::MailNoted { .. } => "mail_noted",
            OwnEvent::JobCompleted { .. } => "job_completed",
            OwnEvent::JobFailed(_) => "job_failed",
            OwnEvent::JobCancelled { .. } => "job_cancelled",
        }
    }
}
