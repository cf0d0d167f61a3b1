//! What a turn is asked to be, what its head keeps, and what can happen to it.

use super::table::TABLE;
use crate::{
    is_default, limits,
    rules::Rules,
    words::{After, EndStatus, Fault, ToolResult, ToolStatus},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_kernel::{
    ids::EntityId,
    machine::{Cx, Decision, Input, Machine, Undecided},
    table::Table,
    time::Timestamp,
};

/// Which message a turn was made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sort {
    /// Work for the agent.
    #[default]
    Turn,
    /// An action of a person: now or never.
    UiAction,
}

/// Who waits for a turn: another turn, or a join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asker {
    /// Who.
    pub id: EntityId,
    /// The number under which it was asked for.
    pub ordinal: u32,
}

/// What a new turn is asked to be. The body of the wish, and the first event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NewTurn {
    /// The agent's id.
    pub agent: EntityId,
    /// Its name.
    pub agent_name: String,
    /// Which workers run it.
    pub target: String,
    /// See [`Sort`].
    #[serde(default, skip_serializing_if = "is_default")]
    pub sort: Sort,
    /// Its channel; without one no bell is rung for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// Where its deliverable goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_box: Option<String>,
    /// What is said to the agent: messages as a model reads them (`role`, `content`), the last one being the task.
    pub messages: Vec<Value>,
    /// The sender's own name for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// Who waits for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asker: Option<Asker>,
    /// How many turns lie above it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub depth: u32,
    /// The agents of these turns: asking one of them again would be waiting for oneself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub above: Vec<String>,
    /// W3C trace context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// It ends by then, whatever happens.
    pub must_end_in_ms: u64,
    /// The times of its rules.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rules: Rules,
    /// Higher is sooner, among those that wait for the same workers.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: i16,
    /// Who sent it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// Who answers a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitFor {
    /// A job.
    Job(EntityId),
    /// Another agent's turn.
    Turn(EntityId),
    /// Several turns.
    Join(EntityId),
    /// Whoever is outside, with a `tool_result`.
    Message,
}

/// A tool that has been called and has not answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wait {
    /// Its name within the turn: step and place, `3.1`. Ids of models repeat.
    pub id: String,
    /// Its number within the turn, under which jobs and turns were asked for.
    pub ordinal: u32,
    /// The id that the model gave the call.
    pub call: String,
    /// The tool.
    pub tool: String,
    /// Who answers.
    #[serde(rename = "for")]
    pub waits_for: WaitFor,
    /// How long it is waited for, from the suspend and from every progress of the tool; `0` as long as the turn lasts.
    pub timeout_ms: u64,
    /// When that is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// What happens after it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub after: After,
}

/// A result as it is applied: once per wait.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Applied {
    /// The wait.
    pub wait: String,
    /// The id that the model gave the call.
    pub call: String,
    /// The tool.
    pub tool: String,
    /// How it ended.
    pub status: ToolStatus,
    /// What it returned, or what is known of it.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub result: Value,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Fault>,
    /// Too large for mail: it is read from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_from: Option<EntityId>,
    /// What happens after it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub after: After,
}

/// What is delivered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Deliverable {
    /// Its name: one per turn.
    pub card_id: String,
    /// Where it lies.
    pub output_box: String,
    /// Made up by a rule, of what there was.
    #[serde(default, skip_serializing_if = "is_default")]
    pub fallback: bool,
    /// What it says.
    pub content: Value,
}

/// That somebody but its worker ended a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForcedEnd {
    /// `dispatch_timeout`, `timeout_reaped_by_watchdog`, `stopped`, …
    pub reason: String,
    /// Where it stood.
    pub status: String,
    /// Who, where it was a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// The end of a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnEnd {
    /// How.
    pub status: EndStatus,
    /// The counter after it.
    pub turn_epoch: u64,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Fault>,
    /// What is delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deliverable: Option<Deliverable>,
    /// Why nothing is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_deliverable: Option<String>,
    /// Where a rule or a person ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forced: Option<ForcedEnd>,
    /// The item was set aside, by this rule, and when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watchdog_error: Option<String>,
    /// See `watchdog_error`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watchdog_at: Option<Timestamp>,
}

/// What the model said in a step, and what it wants called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepDone {
    /// Its number.
    pub step: u32,
    /// The message as the model gave it (`role`, `content`, `tool_calls`).
    pub message: Value,
    /// Tokens and the like.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub usage: Value,
}

/// Mail that could not be used: a dead letter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dead {
    /// The mail's id.
    pub item: String,
    /// Its kind.
    pub kind: String,
    /// A word for programs: `unknown_call`, `stale_epoch`, `epoch_from_the_future`, `not_by_message`, `unreadable`, …
    pub code: String,
    /// A sentence for people.
    pub why: String,
    /// What it said, so that it can be sent again.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub body: Value,
}

/// What can happen to a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum TurnEvent {
    /// Sent.
    TurnCreated(Box<NewTurn>),
    /// It is its turn.
    TurnDispatched {
        /// The counter.
        turn_epoch: u64,
    },
    /// Its worker asks the model.
    StepStarted {
        /// From 1.
        step: u32,
        /// How often this step was begun.
        attempt: u32,
        /// How long the model may take.
        timeout_ms: u64,
        /// The agent's profile, with the first step.
        #[serde(default, skip_serializing_if = "Value::is_null")]
        profile: Value,
    },
    /// The model has answered.
    StepFinished(StepDone),
    /// The model is at it; said now and then, so that nobody takes it for hung.
    ProgressMade {
        /// How far, for people.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        note: String,
    },
    /// Tools have been called; nobody holds the turn until they have answered.
    TurnSuspended {
        /// The step that called them.
        step: u32,
        /// All that are waited for.
        waits: Vec<Wait>,
    },
    /// A tool has answered.
    ResultApplied(Applied),
    /// A tool has not answered in time: the timeout report, written into the inbox and read in one.
    WaitTimedOut(Applied),
    /// A tool is still at it: its time counts from here.
    WaitProgress {
        /// The wait.
        wait: String,
        /// When it is over now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Timestamp>,
        /// How far, for people.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        note: String,
    },
    /// A result came before the turn was suspended; kept for that.
    ResultKept {
        /// The mail's id.
        item: String,
        /// What it said.
        result: Box<ToolResult>,
    },
    /// Everything has answered.
    TurnResumed {
        /// The counter from here on.
        turn_epoch: u64,
    },
    /// Its worker was lost, or gave it back.
    TurnLeftByWorker {
        /// Why.
        why: String,
        /// Given back, not lost: not counted.
        #[serde(default, skip_serializing_if = "is_default")]
        released: bool,
    },
    /// Rule 2.1: its worker had it and did nothing.
    ItemsRequeued {},
    /// Rule 2.3: its worker took it up again and did nothing.
    ResumeRequeued {
        /// How often.
        attempts: u32,
    },
    /// Rule 2.4.
    DispatchRetried {
        /// How often.
        times: u32,
    },
    /// Rule 2.7.
    BellRung {
        /// How often.
        times: u32,
        /// No channel is known: nobody was rung.
        #[serde(default, skip_serializing_if = "is_default")]
        silent: bool,
    },
    /// A dead letter.
    ItemDead(Dead),
    /// A person dealt with a dead letter.
    ItemSettled {
        /// The mail's id.
        item: String,
        /// `requeued` or `skipped`.
        how: String,
        /// Who.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    /// Mail that changes nothing: a repetition, an answer to something that is over.
    ItemNoted {
        /// The mail's id.
        item: String,
        /// Its kind.
        kind: String,
        /// Why it changes nothing.
        why: String,
    },
    /// It delivered.
    TurnSucceeded(Box<TurnEnd>),
    /// It delivered a part.
    TurnPartlySucceeded(Box<TurnEnd>),
    /// It failed.
    TurnFailed(Box<TurnEnd>),
    /// Its time was up.
    TurnTimedOut(Box<TurnEnd>),
    /// It was taken back before it began.
    TurnCanceled(Box<TurnEnd>),
}

impl TurnEvent {
    /// The event of an end.
    pub fn end(end: TurnEnd) -> Self {
        let end = Box::new(end);
        match end.status {
            EndStatus::Success => TurnEvent::TurnSucceeded(end),
            EndStatus::Partial => TurnEvent::TurnPartlySucceeded(end),
            EndStatus::Failed => TurnEvent::TurnFailed(end),
            EndStatus::Timeout => TurnEvent::TurnTimedOut(end),
            EndStatus::Canceled => TurnEvent::TurnCanceled(end),
        }
    }

    /// The end that an event is, if it is one.
    pub fn as_end(&self) -> Option<&TurnEnd> {
        match self {
            TurnEvent::TurnSucceeded(end)
            | TurnEvent::TurnPartlySucceeded(end)
            | TurnEvent::TurnFailed(end)
            | TurnEvent::TurnTimedOut(end)
            | TurnEvent::TurnCanceled(end) => Some(end),
            _ => None,
        }
    }
}

/// How the turn ended, as the head keeps it: without what is delivered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Fault>,
    /// The deliverable's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deliverable_card_id: Option<String>,
    /// A rule or a person ended it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub forced: bool,
    /// The item was set aside.
    #[serde(default, skip_serializing_if = "is_default")]
    pub skipped: bool,
}

/// What the head keeps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TurnState {
    /// See [`NewTurn::agent`].
    pub agent: EntityId,
    /// See [`NewTurn::agent_name`].
    pub agent_name: String,
    /// See [`NewTurn::target`].
    pub target: String,
    /// See [`NewTurn::sort`].
    #[serde(skip_serializing_if = "is_default")]
    pub sort: Sort,
    /// See [`NewTurn::channel`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// See [`NewTurn::output_box`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_box: Option<String>,
    /// See [`NewTurn::correlation_id`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// See [`NewTurn::asker`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asker: Option<Asker>,
    /// See [`NewTurn::depth`].
    #[serde(skip_serializing_if = "is_default")]
    pub depth: u32,
    /// See [`NewTurn::above`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub above: Vec<String>,
    /// See [`NewTurn::trace`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// See [`NewTurn::rules`].
    #[serde(skip_serializing_if = "is_default")]
    pub rules: Rules,
    /// Given at dispatch, raised on resume and by a forced end; `0` before.
    pub turn_epoch: u64,
    /// The step that runs or ran last; `0` before the first.
    pub step: u32,
    /// How often that step was begun; `0` once it is finished.
    #[serde(skip_serializing_if = "is_default")]
    pub attempt: u32,
    /// The model is being asked, and may take so long.
    #[serde(skip_serializing_if = "is_default")]
    pub asking_ms: u64,
    /// What is waited for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<Wait>,
    /// Waits that are over, the newest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub done: Vec<String>,
    /// The ids that the model had given their calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub done_calls: Vec<String>,
    /// Waits so far: the next one's number.
    #[serde(skip_serializing_if = "is_default")]
    pub waited: u32,
    /// Tool call ids of results that are kept for the next suspend.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub early: Vec<String>,
    /// A result of this suspend ends the turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminates: Option<Ending>,
    /// It was resumed, and no worker has gone on with it yet.
    #[serde(skip_serializing_if = "is_default")]
    pub resumed: bool,
    /// Rule 2.3: workers that did not.
    #[serde(skip_serializing_if = "is_default")]
    pub resume_attempts: u32,
    /// Lost workers.
    #[serde(skip_serializing_if = "is_default")]
    pub takeovers: u32,
    /// Rule 2.4: how often.
    #[serde(skip_serializing_if = "is_default")]
    pub retried: u32,
    /// Rule 2.7: how often, since a worker was last wanted.
    #[serde(skip_serializing_if = "is_default")]
    pub rung: u32,
    /// Dead letters that nobody has dealt with.
    #[serde(skip_serializing_if = "is_default")]
    pub dead: u32,
    /// The last words of the model, for a fallback deliverable.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub said: String,
    /// How it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
}

/// How a result ends the turn, once all are there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ending {
    /// How.
    pub status: EndStatus,
    /// What is delivered; none where it is too large for a head, and a worker has to read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Value>,
}

impl Default for TurnState {
    fn default() -> Self {
        TurnState {
            agent: EntityId::fixed(0, 0),
            agent_name: String::new(),
            target: String::new(),
            sort: Sort::Turn,
            channel: None,
            output_box: None,
            correlation_id: None,
            asker: None,
            depth: 0,
            above: Vec::new(),
            trace: None,
            rules: Rules::default(),
            turn_epoch: 0,
            step: 0,
            attempt: 0,
            asking_ms: 0,
            waits: Vec::new(),
            done: Vec::new(),
            done_calls: Vec::new(),
            waited: 0,
            early: Vec::new(),
            terminates: None,
            resumed: false,
            resume_attempts: 0,
            takeovers: 0,
            retried: 0,
            rung: 0,
            dead: 0,
            said: String::new(),
            outcome: None,
        }
    }
}

impl TurnState {
    /// The earliest deadline of the open waits, as the seed shows it.
    pub fn resume_deadline(&self) -> Option<Timestamp> {
        self.waits.iter().filter_map(|w| w.deadline).min()
    }

    fn over(&mut self, applied: &Applied) {
        self.waits.retain(|w| w.id != applied.wait);
        self.early.retain(|call| *call != applied.call);
        self.done.push(applied.wait.clone());
        self.done_calls.retain(|call| *call != applied.call);
        self.done_calls.push(applied.call.clone());
        for list in [&mut self.done, &mut self.done_calls] {
            if list.len() > limits::DONE_MAX {
                list.remove(0);
            }
        }
        if applied.after == After::Terminate {
            let status = match applied.status {
                ToolStatus::Success => EndStatus::Success,
                ToolStatus::Partial => EndStatus::Partial,
                ToolStatus::Timeout => EndStatus::Timeout,
                ToolStatus::Failed | ToolStatus::Canceled | ToolStatus::Skipped => {
                    EndStatus::Failed
                }
            };
            // The first that is no success says how the turn ends.
            let says = self.terminates.as_ref().is_none_or(|t| t.status == EndStatus::Success);
            if says {
                let read = applied.read_from.is_none();
                let content = fitting(&applied.result, limits::ENDING_BYTES_MAX).filter(|_| read);
                self.terminates = Some(Ending { status, content });
            }
        }
    }
}

/// A value, where it is small enough to be told.
pub(crate) fn small(value: &Value) -> Option<Value> {
    fitting(value, limits::TOLD_BYTES_MAX)
}

fn fitting(value: &Value, bytes_max: usize) -> Option<Value> {
    let bytes = serde_json::to_vec(value).ok()?;
    (bytes.len() <= bytes_max).then(|| value.clone())
}

/// The turn machine.
#[derive(Debug)]
pub struct Turn;

impl Machine for Turn {
    type State = TurnState;
    type Event = TurnEvent;
    const TABLE: &'static Table = &TABLE;

    fn name(event: &TurnEvent) -> &'static str {
        match event {
            TurnEvent::TurnCreated(_) => "turn_created",
            TurnEvent::TurnDispatched { .. } => "turn_dispatched",
            TurnEvent::StepStarted { .. } => "step_started",
            TurnEvent::StepFinished(_) => "step_finished",
            TurnEvent::ProgressMade { .. } => "progress_made",
            TurnEvent::TurnSuspended { .. } => "turn_suspended",
            TurnEvent::ResultApplied(_) => "result_applied",
            TurnEvent::WaitTimedOut(_) => "wait_timed_out",
            TurnEvent::WaitProgress { .. } => "wait_progress",
            TurnEvent::ResultKept { .. } => "result_kept",
            TurnEvent::TurnResumed { .. } => "turn_resumed",
            TurnEvent::TurnLeftByWorker { .. } => "turn_left_by_worker",
            TurnEvent::ItemsRequeued {} => "items_requeued",
            TurnEvent::ResumeRequeued { .. } => "resume_requeued",
            TurnEvent::DispatchRetried { .. } => "dispatch_retried",
            TurnEvent::BellRung { .. } => "bell_rung",
            TurnEvent::ItemDead(_) => "item_dead",
            TurnEvent::ItemSettled { .. } => "item_settled",
            TurnEvent::ItemNoted { .. } => "item_noted",
            TurnEvent::TurnSucceeded(_) => "turn_succeeded",
            TurnEvent::TurnPartlySucceeded(_) => "turn_partly_succeeded",
            TurnEvent::TurnFailed(_) => "turn_failed",
            TurnEvent::TurnTimedOut(_) => "turn_timed_out",
            TurnEvent::TurnCanceled(_) => "turn_canceled",
        }
    }

    fn apply(state: &mut TurnState, event: &TurnEvent) {
        match event {
            TurnEvent::TurnCreated(new) => {
                let new = (**new).clone();
                *state = TurnState {
                    agent: new.agent,
                    agent_name: new.agent_name,
                    target: new.target,
                    sort: new.sort,
                    channel: new.channel,
                    output_box: new.output_box,
                    correlation_id: new.correlation_id,
                    asker: new.asker,
                    depth: new.depth,
                    above: new.above,
                    trace: new.trace,
                    rules: new.rules.sound(),
                    ..TurnState::default()
                };
            }
            TurnEvent::TurnDispatched { turn_epoch } => state.turn_epoch = *turn_epoch,
            TurnEvent::StepStarted { step, attempt, timeout_ms, .. } => {
                state.step = *step;
                state.attempt = *attempt;
                state.asking_ms = *timeout_ms;
                state.taken_up();
            }
            TurnEvent::StepFinished(done) => {
                state.step = done.step;
                state.attempt = 0;
                state.asking_ms = 0;
                state.taken_up();
                if let Some(text) = done.message.get("content").and_then(Value::as_str)
                    && !text.is_empty()
                {
                    state.said = crate::clip_encoded(text, limits::SAID_BYTES_MAX).to_owned();
                }
            }
            TurnEvent::ProgressMade { .. } => state.taken_up(),
            TurnEvent::TurnSuspended { waits, .. } => {
                state.waits.clone_from(waits);
                state.waited += u32::try_from(waits.len()).unwrap_or(u32::MAX);
                state.asking_ms = 0;
            }
            TurnEvent::ResultApplied(applied) | TurnEvent::WaitTimedOut(applied) => {
                state.over(applied);
            }
            TurnEvent::WaitProgress { wait, deadline, .. } => {
                if let Some(open) = state.waits.iter_mut().find(|w| w.id == *wait) {
                    open.deadline = *deadline;
                }
            }
            TurnEvent::ResultKept { result, .. } => {
                state.early.extend(result.tool_call_id.clone());
            }
            TurnEvent::TurnResumed { turn_epoch } => {
                state.turn_epoch = *turn_epoch;
                state.resumed = true;
                state.resume_attempts = 0;
                state.rung = 0;
                state.terminates = None;
            }
            TurnEvent::TurnLeftByWorker { released, .. } => {
                state.takeovers += u32::from(!released);
                state.rung = 0;
                state.asking_ms = 0;
            }
            TurnEvent::ItemsRequeued {} => {
                state.rung = 0;
                state.asking_ms = 0;
            }
            TurnEvent::ResumeRequeued { attempts } => state.resume_attempts = *attempts,
            TurnEvent::DispatchRetried { times } => state.retried = *times,
            TurnEvent::BellRung { times, .. } => state.rung = *times,
            TurnEvent::ItemDead(_) => state.dead += 1,
            TurnEvent::ItemSettled { .. } => state.dead = state.dead.saturating_sub(1),
            TurnEvent::ItemNoted { .. } => {}
            TurnEvent::TurnSucceeded(end)
            | TurnEvent::TurnPartlySucceeded(end)
            | TurnEvent::TurnFailed(end)
            | TurnEvent::TurnTimedOut(end)
            | TurnEvent::TurnCanceled(end) => {
                state.turn_epoch = end.turn_epoch;
                state.waits.clear();
                state.outcome = Some(Outcome {
                    error: end.error.clone(),
                    deliverable_card_id: end.deliverable.as_ref().map(|d| d.card_id.clone()),
                    forced: end.forced.is_some(),
                    skipped: end.watchdog_error.is_some(),
                });
            }
        }
    }

    fn decide(
        state: Option<&TurnState>,
        input: &Input<'_>,
        cx: &Cx,
    ) -> Result<Decision<TurnEvent>, Undecided> {
        super::decide::decide(state, input, cx)
    }
}

impl TurnState {
    /// A worker has done something with it.
    fn taken_up(&mut self) {
        self.resumed = false;
        self.rung = 0;
    }
}
