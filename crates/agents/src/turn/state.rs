//! What the head of a turn keeps, and how events change it.

use super::{
    model::{Abandoned, Applied, Asker, Sort, TurnEvent, Wait},
    table::TABLE,
};
use crate::{
    is_default, limits,
    rules::{self, Rules},
    words::{After, EndStatus, Fault, ToolStatus},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_kernel::{
    ids::EntityId,
    machine::{Cx, Decision, Input, Machine, Undecided},
    table::Table,
    time::Timestamp,
};

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
    /// See [`super::model::NewTurn::agent`].
    pub agent: EntityId,
    /// See [`super::model::NewTurn::agent_name`].
    pub agent_name: String,
    /// See [`super::model::NewTurn::target`].
    pub target: String,
    /// See [`super::model::NewTurn::sort`].
    #[serde(skip_serializing_if = "is_default")]
    pub sort: Sort,
    /// See [`super::model::NewTurn::channel`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// See [`super::model::NewTurn::output_box`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_box: Option<String>,
    /// See [`super::model::NewTurn::correlation_id`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// See [`super::model::NewTurn::asker`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asker: Option<Asker>,
    /// See [`super::model::NewTurn::depth`].
    #[serde(skip_serializing_if = "is_default")]
    pub depth: u32,
    /// See [`super::model::NewTurn::above`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub above: Vec<String>,
    /// See [`super::model::NewTurn::trace`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// See [`super::model::NewTurn::rules`].
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
    /// Until when that is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asking_until: Option<Timestamp>,
    /// What is waited for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<Wait>,
    /// Waits that are over, the newest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub done: Vec<String>,
    /// The ids that the model had given their calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub done_calls: Vec<String>,
    /// Who was given up and has not said that it is over, the newest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub given_up: Vec<Abandoned>,
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
    /// Rule `resume_lease`: workers that did not.
    #[serde(skip_serializing_if = "is_default")]
    pub resume_attempts: u32,
    /// Lost workers.
    #[serde(skip_serializing_if = "is_default")]
    pub takeovers: u32,
    /// Workers that gave it back, since a step was last finished.
    #[serde(skip_serializing_if = "is_default")]
    pub given_back: u32,
    /// Rule `dispatched_retry`: how often.
    #[serde(skip_serializing_if = "is_default")]
    pub retried: u32,
    /// Rule `pending_wakeup`: how often, since a worker was last wanted.
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
            asking_until: None,
            waits: Vec::new(),
            done: Vec::new(),
            done_calls: Vec::new(),
            given_up: Vec::new(),
            waited: 0,
            early: Vec::new(),
            terminates: None,
            resumed: false,
            resume_attempts: 0,
            takeovers: 0,
            given_back: 0,
            retried: 0,
            rung: 0,
            dead: 0,
            said: String::new(),
            outcome: None,
        }
    }
}

impl TurnState {
    /// The earliest deadline of the open waits, as `tenure watchdog` shows it.
    pub fn resume_deadline(&self) -> Option<Timestamp> {
        self.waits.iter().filter_map(|w| w.deadline).min()
    }

    /// Whoever was asked and is not known to be over.
    pub fn abandoned(&self) -> Vec<Abandoned> {
        let open = self.waits.iter().filter_map(Abandoned::of);
        self.given_up.iter().cloned().chain(open).collect()
    }

    /// Nobody waits any longer for whoever was to answer.
    fn give_up(&mut self, wait: &str) {
        let wait = self.waits.iter().find(|w| w.id == wait);
        // Which tool that was is in the stream; a head has little room.
        let given_up = wait.and_then(Abandoned::of);
        self.given_up.extend(given_up.map(|g| Abandoned { tool: String::new(), ..g }));
        // Each was told to stop, and has a bound that is over: the oldest are over by far.
        if self.given_up.len() > limits::WAITS_MAX {
            self.given_up.remove(0);
        }
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
    const CREATED_BY: &'static [&'static str] = &["turn", "join"];
    const REPORTS_TO: Option<&'static str> = Some("/asker/id");

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

    fn judges(timer: &str) -> bool {
        rules::judges(timer)
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
            TurnEvent::StepStarted { step, attempt, timeout_ms, until, .. } => {
                state.step = *step;
                state.attempt = *attempt;
                (state.asking_ms, state.asking_until) = (*timeout_ms, *until);
                state.taken_up();
            }
            TurnEvent::StepFinished(done) => {
                state.step = done.step;
                state.attempt = 0;
                state.given_back = 0;
                state.asks_no_more();
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
                state.asks_no_more();
            }
            TurnEvent::ResultApplied(applied) => {
                if applied.status == ToolStatus::Skipped {
                    state.give_up(&applied.wait);
                }
                state.over(applied);
            }
            TurnEvent::WaitTimedOut(applied) => {
                state.give_up(&applied.wait);
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
                match released {
                    true => state.given_back += 1,
                    false => state.takeovers += 1,
                }
                state.rung = 0;
                state.asks_no_more();
            }
            TurnEvent::ItemsRequeued {} => {
                // A worker that does nothing is lost too, although it renews.
                state.takeovers += 1;
                state.rung = 0;
                state.asks_no_more();
            }
            TurnEvent::ResumeRequeued { attempts } => state.resume_attempts = *attempts,
            TurnEvent::DispatchRetried { times } => state.retried = *times,
            TurnEvent::BellRung { times, .. } => state.rung = *times,
            TurnEvent::ItemDead(dead) => {
                state.dead += 1;
                if let Some(call) = dead.body["tool_call_id"].as_str().filter(|_| dead.kept) {
                    state.early.retain(|kept| kept != call);
                }
            }
            TurnEvent::ItemSettled { .. } => state.dead = state.dead.saturating_sub(1),
            TurnEvent::ItemNoted { ordinal, .. } => {
                state.given_up.retain(|g| Some(g.ordinal) != *ordinal);
            }
            TurnEvent::TurnSucceeded(end)
            | TurnEvent::TurnPartlySucceeded(end)
            | TurnEvent::TurnFailed(end)
            | TurnEvent::TurnTimedOut(end)
            | TurnEvent::TurnCanceled(end) => {
                state.turn_epoch = end.turn_epoch;
                state.waits.clear();
                state.given_up.clear();
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
    fn asks_no_more(&mut self) {
        (self.asking_ms, self.asking_until) = (0, None);
    }

    /// A worker has done something with it.
    fn taken_up(&mut self) {
        self.resumed = false;
        self.rung = 0;
    }
}
