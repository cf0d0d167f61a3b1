//! How events change what the head of a job keeps. What stands in a head is what its events give, whoever folds them and
//! when, so nothing here may look at anything else.

use super::{
    BY_ITSELF, EVIDENCE, GATE_GIVEN_BACK, HeldBack, JobState, OpenCall, OpenChild, OpenTimer,
    OpenWait, OwnEvent, RECHECK, limits, small,
};
use tenure_steps::{
    events::{
        CallEnd, CallOutcome, ResultType, StepEvent, StepId, TimerWhy, ValueKind, Verdict,
        WaitOutcome, What,
    },
    losses::Losses,
    saga::Undo,
};

impl JobState {
    pub(super) fn step(&mut self, event: &StepEvent) {
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
            StepEvent::ToolInvocationFinished { key, call, outcome, .. } => {
                self.close(key, *call, *outcome == CallOutcome::Success);
            }
            StepEvent::EffectSettled { key, call, verdict, .. } => {
                self.close(key, *call, *verdict == Verdict::Happened);
                self.looks = 0;
                if *verdict != Verdict::CalledAgain
                    && self.attention.as_ref().is_some_and(|a| a.reason == "unknown_outcome")
                {
                    self.attention = None;
                }
            }
            StepEvent::EffectCorrected { step, was, verdict, undoable, .. } => {
                let ends = |v: &Verdict| matches!(v, Verdict::Happened | Verdict::Abandoned);
                // Where it ends otherwise than before, a `node_finished` follows that counts it again.
                self.steps = self.steps.saturating_sub(u32::from(ends(was) && was != verdict));
                self.unheard.retain(|s| s != step);
                if *verdict == Verdict::Happened && *undoable {
                    self.not_heard_of(step);
                }
                (self.looks, self.attention) = (0, None);
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
                    ValueKind::Undo => {
                        self.undos += 1;
                        self.unheard.retain(|step| value["of"] != step.0.as_str());
                    }
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
                let place = limit.as_ref().and_then(|l| l.line.last().copied());
                self.timers.push(OpenTimer { step: step.clone(), why: *why, tool, place });
            }
            StepEvent::TimerFired { step } => {
                let sleep = |t: &OpenTimer| t.step == *step && t.why == TimerWhy::Sleep;
                self.steps += u32::from(self.timers.iter().any(sleep));
                self.timers.retain(|t| t.step != *step);
            }
            StepEvent::ChildStarted { step, ordinal, undoable, .. } => {
                self.children.push(OpenChild(*ordinal, step.clone(), *undoable));
            }
            StepEvent::ChildEnded { step, ordinal, status, .. } => {
                self.steps += 1;
                if status == "completed" && self.children.iter().any(|c| c.0 == *ordinal && c.2) {
                    self.not_heard_of(step);
                }
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
                let is_it = |c: &&mut OpenCall| c.key == *key && c.call == *call;
                if let Some(c) = self.calls.iter_mut().find(is_it) {
                    (c.out, c.known) = (None, *what == What::Call && answer.end.is_certain());
                    if c.known && c.undoable && answer.end == CallEnd::Completed {
                        let step = c.step.clone();
                        self.not_heard_of(&step);
                    }
                }
            }
        }
    }

    fn close(&mut self, key: &str, call: u32, happened: bool) {
        let is_it = |c: &OpenCall| c.key == key && c.call == call;
        let ended = self.calls.iter().find(|c| is_it(c));
        if let Some(step) = ended.filter(|c| happened && c.undoable).map(|c| c.step.clone()) {
            self.not_heard_of(&step);
        }
        self.calls.retain(|c| !is_it(c));
    }

    /// It happened and has to be undone, and the flow says how when it hears of it. With a holder it is struck out again by
    /// the same commit.
    fn not_heard_of(&mut self, step: &StepId) {
        if !self.unheard.contains(step) {
            self.unheard.push(step.clone());
        }
    }

    pub(super) fn own(&mut self, event: &OwnEvent) {
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
                if why == GATE_GIVEN_BACK {
                    self.held_back = HeldBack::Resume;
                }
                self.pausing &= !self.paused;
            }
            OwnEvent::PauseAsked { .. } => self.pausing = true,
            OwnEvent::JobAttention(attention) => self.attention = Some(attention.clone()),
            OwnEvent::JobResumed { by } => {
                self.looks += u32::from(by == RECHECK);
                // Only a person takes back what a person asked for.
                if by != RECHECK && by != EVIDENCE {
                    (self.paused, self.pausing) = (false, false);
                    if self.held_back == HeldBack::Resume {
                        self.held_back = HeldBack::Gate;
                    }
                }
                self.attention = None;
            }
            OwnEvent::JobRequeued { losses, .. } => {
                self.takeovers += 1;
                self.losses = losses.clone().unwrap_or_default();
            }
            OwnEvent::JobUndoing { lost, losses } => {
                if let Some(losses) = losses {
                    self.losses = losses.clone();
                }
                self.takeovers += u32::from(*lost);
                // Somebody looks again at what is to be undone.
                self.looks += u32::from(!*lost);
            }
            OwnEvent::JobCancelling { by, why } => {
                // There is nothing to resume any more.
                (self.paused, self.pausing, self.attention) = (false, false, None);
                self.cancel = Some((by.clone(), why.clone()));
            }
            OwnEvent::JobFailing(failure) => {
                (self.paused, self.pausing, self.attention) = (false, false, None);
                // From here on it is what a cancelled job is, but for its end. Who undoes is not who was lost before.
                self.cancel = Some((Some(BY_ITSELF.to_owned()), Some(failure.error.clone())));
                self.failing = Some(failure.clone());
                self.takeovers = 0;
                self.losses = Losses::default();
            }
            OwnEvent::JobContinued { input } => {
                self.input = small(input, limits::INPUT_IN_HEAD_BYTES_MAX);
                self.run += 1;
                (self.events, self.takeovers) = (0, 0);
                // The flow asks for the same names again: what an earlier run heard is not what this one waits for.
                self.heard.clear();
                self.undos = 0;
                self.unheard.clear();
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
