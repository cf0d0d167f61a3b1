//! What a stream says about steps: for each step its shape, its calls and its outcome, and the order in
//! which outcomes came. A flow is replayed from this and nothing else.

use crate::{
    events::{
        CallAnswer, CallEnd, CallOutcome, InLine, ResultType, StepEvent, StepId, TimerWhy,
        ValueKind, Verdict, WaitKind, WaitOutcome, What,
    },
    flow::Failed,
    losses::Losses,
    saga::{Undo, Undone},
    tool::Class,
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, fmt, time::Duration};
use tenure_kernel::time::Timestamp;

/// What kind of step it is, and of what: compared on replay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Shape {
    /// A tool call.
    Tool {
        /// Which tool.
        tool: String,
        /// Digest of its arguments.
        arguments_hash: String,
    },
    /// A recorded value.
    Value {
        /// What kind, as text.
        kind: &'static str,
        /// The name of a pure step.
        name: String,
    },
    /// A wait.
    Wait {
        /// For what.
        kind: WaitKind,
        /// Under which key.
        key: String,
    },
    /// A sleep.
    Sleep,
    /// A child job.
    Child {
        /// Which flow.
        flow: String,
        /// Digest of its input.
        arguments_hash: String,
    },
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shape::Tool { tool, arguments_hash } => {
                write!(f, "tool {tool:?} with arguments {}", short(arguments_hash))
            }
            Shape::Value { kind, name } if name.is_empty() => write!(f, "{kind}"),
            Shape::Value { kind, name } => write!(f, "{kind} {name:?}"),
            Shape::Wait { kind, key } => write!(f, "wait for {} {key:?}", kind.as_str()),
            Shape::Sleep => f.write_str("sleep"),
            Shape::Child { flow, arguments_hash } => {
                write!(f, "child {flow:?} with input {}", short(arguments_hash))
            }
        }
    }
}

fn short(hash: &str) -> &str {
    hash.get(..8).unwrap_or(hash)
}

/// Where a call stands.
#[derive(Clone, PartialEq, Debug)]
pub enum CallState {
    /// Started, and nothing else is known.
    Started,
    /// Somebody has said that nobody knows.
    Unknown(String),
    /// Its worker said how it ended.
    Finished(CallOutcome),
    /// Settled later.
    Settled(Verdict),
}

/// One call of a tool.
#[derive(Clone, PartialEq, Debug)]
pub struct Call {
    /// Its key.
    pub key: String,
    /// The key's ordinal.
    pub ordinal: u32,
    /// Its number under the key.
    pub call: u32,
    /// Who made it.
    pub epoch: u64,
    /// What settles it.
    pub class: Class,
    /// When it was recorded.
    pub started_at: Timestamp,
    /// How long it may take.
    pub timeout: Duration,
    /// Where it stands.
    pub state: CallState,
    /// What of it is with a worker that does not run the flow.
    pub hand: Hand,
}

/// A call that was handed over, or questions about it.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Hand {
    /// How often something was handed over: the call, or a question about it.
    pub asked: u32,
    /// The call itself was: the flow's own worker never touched it.
    pub handed: bool,
    /// What is out now.
    pub out: Option<What>,
    /// What came back, and nobody has acted on yet.
    pub answer: Option<(What, CallAnswer)>,
    /// When the last question was asked, nobody could act under the call any more.
    pub over_when_asked: bool,
    /// Its worker has said that nothing of the call runs any more.
    pub over: bool,
}

impl Call {
    /// Whether its outcome is open.
    pub fn is_open(&self) -> bool {
        matches!(self.state, CallState::Started | CallState::Unknown(_))
    }
}

/// What a step gave the flow.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    /// A result.
    Ok(Value),
    /// A failure.
    Err(Failed, String),
    /// A child's result that is too large for an event: read it from the child.
    InChild(u32),
}

/// Everything recorded about a step.
#[derive(Clone, PartialEq, Debug)]
pub struct StepRecord {
    /// What it is.
    pub shape: Shape,
    /// Where the flow asked for it.
    pub place: String,
    /// When it began.
    pub opened_at: Timestamp,
    /// Calls of its tool, in order.
    pub calls: Vec<Call>,
    /// Attempts that are over.
    pub attempts: u32,
    /// A timer that has not fired: why, and when it will.
    pub timer: Option<(TimerWhy, Timestamp)>,
    /// Where it stands in the lines of limits, for its next call.
    pub line: Vec<InLine>,
    /// Until when it waits.
    pub deadline: Option<Timestamp>,
    /// Its number among the children.
    pub child: Option<u32>,
    /// A compensation was begun.
    pub compensating: bool,
    /// The flow no longer waits for it, and nothing of it runs.
    pub dropped: bool,
    /// What it gave.
    pub outcome: Option<Outcome>,
}

/// A signal that came early.
#[derive(Clone, PartialEq, Debug)]
pub struct Kept {
    /// What kind.
    pub outcome: WaitOutcome,
    /// What it brought.
    pub payload: Value,
    /// From whom.
    pub by: Option<String>,
}

/// What a drill makes a worker forget of a history before it goes on from it, to show that something then
/// breaks. Nothing, everywhere else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Forget {
    /// Nothing.
    #[default]
    Nothing,
    /// Calls that were started and have no end: as if nothing were written before a call.
    OpenCalls,
    /// All calls: as if nobody kept a ledger.
    Calls,
}

/// What a stream says about the steps of a run.
#[derive(Clone, Default, Debug, PartialEq)]
pub struct History {
    /// By id.
    pub steps: BTreeMap<StepId, StepRecord>,
    /// Those that gave an outcome to the flow, in the order of the stream. Values are not among them: the
    /// flow takes them when it asks.
    pub order: Vec<StepId>,
    /// Signals nobody has waited for yet.
    pub kept: BTreeMap<String, Kept>,
    /// Children asked for so far.
    pub children: u32,
    /// What is to be undone if the job is cancelled, in the order in which it happened. What was undone stays here.
    pub undos: Vec<Undo>,
    /// Workers that were lost while they had calls of it. Kept when the flow starts afresh.
    pub losses: Losses,
}

impl History {
    /// Whether nothing was recorded yet.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.kept.is_empty()
    }

    /// See [`Forget`].
    pub fn forget(&mut self, what: Forget) {
        let forgotten = |record: &StepRecord| match what {
            Forget::Nothing => false,
            Forget::OpenCalls => record.calls.last().is_some_and(Call::is_open),
            Forget::Calls => matches!(record.shape, Shape::Tool { .. }),
        };
        self.steps.retain(|_, record| !forgotten(record));
        self.order.retain(|step| self.steps.contains_key(step));
    }

    /// A flow that starts afresh: steps are forgotten, kept signals stay.
    pub fn restart(&mut self) {
        self.steps.clear();
        self.order.clear();
        self.undos.clear();
    }

    /// Without the steps that undo: what the flow has seen, of a job that is undone without its flow.
    pub fn without_undos(&self) -> History {
        let mut history = self.clone();
        for undo in &self.undos {
            history.steps.remove(&undo.step());
        }
        history.order.retain(|step| history.steps.contains_key(step));
        history
    }

    /// What became of everything that was registered to be undone.
    pub fn undone(&self) -> Undone {
        let mut became = Undone::default();
        for undo in self.undos.iter().rev() {
            match self.steps.get(&undo.step()).and_then(|r| r.outcome.as_ref()) {
                Some(Outcome::Ok(_) | Outcome::InChild(_)) => became.undone.push(undo.clone()),
                Some(Outcome::Err(_, why)) => became.left.push((undo.clone(), why.clone())),
                None => became.left.push((undo.clone(), "it was not tried".to_owned())),
            }
        }
        became
    }

    /// What is registered to be undone, and was not tried yet, the last first.
    pub fn open_undos(&self) -> impl Iterator<Item = &Undo> {
        let tried = |u: &&Undo| self.steps.get(&u.step()).is_some_and(|r| r.outcome.is_some());
        self.undos.iter().rev().filter(move |u| !tried(u))
    }

    fn begin(
        &mut self,
        step: &StepId,
        shape: Shape,
        place: &str,
        at: Timestamp,
    ) -> &mut StepRecord {
        self.steps.entry(step.clone()).or_insert_with(|| StepRecord {
            shape,
            place: place.to_owned(),
            opened_at: at,
            calls: Vec::new(),
            attempts: 0,
            timer: None,
            line: Vec::new(),
            deadline: None,
            child: None,
            compensating: false,
            dropped: false,
            outcome: None,
        })
    }

    fn done(&mut self, step: &StepId, outcome: Outcome) {
        if let Some(record) = self.steps.get_mut(step)
            && record.outcome.is_none()
        {
            record.outcome = Some(outcome);
            record.timer = None;
            self.order.push(step.clone());
        }
    }

    fn call(&mut self, step: &StepId, key: &str, call: u32) -> Option<&mut Call> {
        let calls = &mut self.steps.get_mut(step)?.calls;
        calls.iter_mut().rfind(|c| c.key == key && c.call == call)
    }

    /// Takes one event in, written at this time under this epoch.
    pub fn apply(&mut self, event: &StepEvent, at: Timestamp, epoch: u64) {
        match event {
            StepEvent::ToolInvocationStarted {
                step,
                tool,
                key,
                ordinal,
                call,
                class,
                arguments_hash,
                timeout_ms,
                place,
                ..
            } => {
                let shape =
                    Shape::Tool { tool: tool.clone(), arguments_hash: arguments_hash.clone() };
                let record = self.begin(step, shape, place, at);
                record.timer = None;
                record.line.clear();
                record.calls.push(Call {
                    key: key.clone(),
                    ordinal: *ordinal,
                    call: *call,
                    epoch,
                    class: *class,
                    started_at: at,
                    timeout: Duration::from_millis(*timeout_ms),
                    state: CallState::Started,
                    hand: Hand::default(),
                });
            }
            StepEvent::ToolInvocationFinished { step, key, call, outcome, .. } => {
                if let Some(c) = self.call(step, key, *call) {
                    c.state = CallState::Finished(*outcome);
                }
            }
            StepEvent::CommandCommitted { .. } => {}
            StepEvent::NodeFinished { step, result_type, reason, error, failed_early, .. } => {
                if let Some(early) = failed_early {
                    let (of, hash) = (early.of.clone(), early.arguments_hash.clone());
                    let shape = match early.child {
                        true => Shape::Child { flow: of, arguments_hash: hash },
                        false => Shape::Tool { tool: of, arguments_hash: hash },
                    };
                    self.begin(step, shape, &early.place, at);
                }
                if let Some(record) = self.steps.get_mut(step) {
                    record.attempts += 1;
                }
                let why = || error.clone().or_else(|| reason.clone()).unwrap_or_default();
                let failed = match result_type {
                    ResultType::PermanentFailure if reason.as_deref() == Some("abandoned") => {
                        Failed::Abandoned
                    }
                    ResultType::PermanentFailure | ResultType::CompensatableFailure => {
                        Failed::Permanent
                    }
                    ResultType::Compensated => Failed::Compensated,
                    ResultType::RetryableFailure
                    | ResultType::Pure
                    | ResultType::Success
                    | ResultType::SideEffectCommitted => return,
                };
                self.done(step, Outcome::Err(failed, why()));
            }
            StepEvent::EffectUnknown { step, key, call, why } => {
                if let Some(c) = self.call(step, key, *call) {
                    c.state = CallState::Unknown(why.clone());
                    // Whatever came back has been looked at, and this is what it led to.
                    c.hand.answer = None;
                }
            }
            StepEvent::EffectSettled { step, key, call, verdict, .. } => {
                if let Some(c) = self.call(step, key, *call) {
                    c.state = CallState::Settled(*verdict);
                }
                if let Some(record) = self.steps.get_mut(step) {
                    record.compensating = false;
                }
            }
            StepEvent::EffectCorrected { step, key, call, verdict, result, .. } => {
                if let Some(c) = self.call(step, key, *call) {
                    c.state = CallState::Settled(*verdict);
                }
                // As if it had come just now: nothing in the stream was asked for by a flow that knew the earlier one.
                if let Some(record) = self.steps.get_mut(step) {
                    record.outcome = None;
                }
                self.order.retain(|s| s != step);
                if *verdict == Verdict::Happened {
                    self.done(step, Outcome::Ok(result.clone().unwrap_or(Value::Null)));
                }
            }
            StepEvent::CompensationStarted { step, .. } => {
                if let Some(record) = self.steps.get_mut(step) {
                    record.compensating = true;
                }
            }
            StepEvent::ValueRecorded { step, kind, name, value, place } => {
                let shape = Shape::Value { kind: kind.as_str(), name: name.to_string() };
                let record = self.begin(step, shape, place, at);
                record.outcome = Some(Outcome::Ok(value.clone()));
                match kind {
                    ValueKind::Undo => self.undos.extend(Undo::read(step, value)),
                    ValueKind::Kept => {
                        let kept = |u: &Undo| {
                            value.as_array().is_some_and(|ids| ids.iter().any(|id| *id == u.at.0))
                        };
                        self.undos.retain(|u| !kept(u));
                    }
                    _ => {}
                }
            }
            StepEvent::WaitOpened { step, kind, key, within_ms, place, .. } => {
                let shape = Shape::Wait { kind: *kind, key: key.clone() };
                let record = self.begin(step, shape, place, at);
                record.deadline = within_ms.map(|ms| at + Duration::from_millis(ms));
            }
            StepEvent::WaitCompleted { step, key, outcome, payload, by } => {
                self.kept.remove(key);
                self.done(step, waited(*outcome, payload, by.as_deref()));
            }
            StepEvent::SignalKept { key, outcome, payload, by } => {
                let kept = Kept { outcome: *outcome, payload: payload.clone(), by: by.clone() };
                self.kept.insert(key.clone(), kept);
            }
            StepEvent::TimerSet { step, why, after_ms, place, limit } => {
                let shape = limit.as_deref().map_or(Shape::Sleep, |l| Shape::Tool {
                    tool: l.tool.clone(),
                    arguments_hash: l.arguments_hash.clone(),
                });
                let record = self.begin(step, shape, place, at);
                if let Some(limit) = limit {
                    record.line.clone_from(&limit.line);
                }
                record.timer = Some((*why, at + Duration::from_millis(*after_ms)));
            }
            StepEvent::TimerFired { step } => {
                let why = self.steps.get_mut(step).and_then(|r| r.timer.take());
                if let Some((TimerWhy::Sleep, _)) = why {
                    self.done(step, Outcome::Ok(Value::Null));
                }
            }
            StepEvent::ChildStarted { step, ordinal, flow, arguments_hash, place, .. } => {
                let shape =
                    Shape::Child { flow: flow.clone(), arguments_hash: arguments_hash.clone() };
                self.begin(step, shape, place, at).child = Some(*ordinal);
                self.children = self.children.max(ordinal.saturating_add(1));
            }
            StepEvent::ChildEnded { step, ordinal, status, output, error } => {
                self.done(step, child_outcome(*ordinal, status, output.as_ref(), error.as_deref()));
            }
            StepEvent::ChildOutputTaken { step, output } => {
                if let Some(record) = self.steps.get_mut(step) {
                    record.outcome = Some(Outcome::Ok(output.clone()));
                }
            }
            StepEvent::StepDropped { step } => {
                if let Some(record) = self.steps.get_mut(step) {
                    (record.dropped, record.timer, record.deadline) = (true, None, None);
                }
            }
            StepEvent::CallHanded { step, key, call, what, over, .. } => {
                if let Some(c) = self.call(step, key, *call) {
                    c.hand.asked += 1;
                    c.hand.handed |= *what == What::Call;
                    c.hand.over_when_asked = *over;
                    (c.hand.out, c.hand.answer) = (Some(*what), None);
                }
            }
            StepEvent::CallAnswered { step, key, call, what, answer } => {
                if answer.end == CallEnd::Lost {
                    let ended = u32::try_from(self.order.len()).unwrap_or(u32::MAX);
                    self.losses = self.losses.and_one(ended, at);
                }
                if let Some(c) = self.call(step, key, *call) {
                    (c.hand.out, c.hand.answer) = (None, Some((*what, answer.clone())));
                    let said_so = matches!(answer.end, CallEnd::Unknown | CallEnd::Compensatable);
                    c.hand.over |= *what == What::Call && said_so;
                }
            }
        }
        // The result of a success is delivered when it counts: with the event that carries it.
        if let StepEvent::ToolInvocationFinished {
            step,
            outcome: CallOutcome::Success,
            result,
            ..
        } = event
        {
            self.done(step, Outcome::Ok(result.clone().unwrap_or(Value::Null)));
        }
        if let StepEvent::EffectSettled { step, verdict: Verdict::Happened, result, .. } = event {
            self.done(step, Outcome::Ok(result.clone().unwrap_or(Value::Null)));
        }
    }
}

/// What a wait gives the flow.
pub fn waited(outcome: WaitOutcome, payload: &Value, by: Option<&str>) -> Outcome {
    match outcome {
        WaitOutcome::Expired => Outcome::Err(Failed::Expired, "nothing came in time".into()),
        WaitOutcome::Signalled => Outcome::Ok(payload.clone()),
        WaitOutcome::Approved | WaitOutcome::Rejected => Outcome::Ok(json!({
            "approved": outcome == WaitOutcome::Approved, "by": by, "payload": payload,
        })),
    }
}

/// What a child gives the flow.
pub fn child_outcome(
    ordinal: u32,
    status: &str,
    output: Option<&Value>,
    error: Option<&str>,
) -> Outcome {
    match (status, output) {
        ("completed", Some(output)) => Outcome::Ok(output.clone()),
        ("completed", None) => Outcome::InChild(ordinal),
        (status, _) => Outcome::Err(
            Failed::Child,
            error.map_or_else(|| format!("the child is {status}"), str::to_owned),
        ),
    }
}

impl crate::events::ValueKind {
    /// As text.
    pub fn as_str(self) -> &'static str {
        match self {
            ValueKind::Pure => "pure",
            ValueKind::Now => "now",
            ValueKind::Random => "random",
            ValueKind::Uuid => "uuid",
            ValueKind::Race => "race",
            ValueKind::Undo => "undo",
            ValueKind::Kept => "kept",
        }
    }
}
