//! What a flow asks for, and what finished calls lead to.

use super::{
    calls::{Finished, How, Start},
    hand::Handing,
    load::output_of,
    run::{Run, hold_error},
    settling::Learnt,
};
use crate::{
    catalogue,
    decide::timers,
    model::{Job, JobState, NewJob, Parent, Terms, limits},
};
use serde_json::Value;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};
use tenure_engine::worker::HoldError;
use tenure_kernel::{
    limits as kernel_limits,
    machine::Machine as _,
    outbox::{Message, Target},
    stream::Body,
    timers::TimerChange,
};
use tenure_steps::{
    desk::{Ask, Asked},
    driver::{End, Turn},
    events::{
        CallOutcome, EarlyFailure, ResultType, StepEvent, StepId, TimerWhy, Verdict, What,
        idempotency_key,
    },
    history::{Call, CallState, Kept, Outcome},
    ledger::{self, Permit},
    tool::{CallOptions, Class, ToolError, ToolSpec},
};

type Go = Result<(), HoldError>;

impl Run {
    /// Gives the flow what has become known, one thing at a time in the order of the stream, and takes in
    /// what it asks for, until it has nothing more to say.
    pub(crate) async fn advance(&mut self) -> Go {
        loop {
            if self.core.end.is_none()
                && let Some(step) = self.core.loaded.history.order.get(self.core.delivered).cloned()
            {
                self.core.delivered += 1;
                let outcome = self.outcome_of(&step).await?;
                self.core.asks.remove(&step);
                self.core.driver.set_now(self.now());
                let turn = self.core.driver.deliver(&step, outcome);
                self.absorb(turn).await?;
                continue;
            }
            if self.pause.is_some() || self.draining {
                return Ok(());
            }
            let Some(step) = self.next_in_queue() else { return Ok(()) };
            self.consider(step).await?;
        }
    }

    /// The first step in the queue for which there is room.
    fn next_in_queue(&mut self) -> Option<StepId> {
        // Calls that nobody knows about count as well: each stands in the head. To settle one takes no more room.
        let open = self.core.loaded.state.calls.len();
        let full = open.max(self.running.len() + self.starts.len()) >= limits::CALLS_MAX;
        let at = self.core.queue.iter().position(|s| !full || self.open_call(s).is_some())?;
        self.core.queue.remove(at)
    }

    async fn outcome_of(&mut self, step: &StepId) -> Result<Outcome, HoldError> {
        let record = self.core.loaded.history.steps.get_mut(step);
        let outcome = record.and_then(|r| r.outcome.clone());
        match outcome {
            Some(Outcome::InChild(ordinal)) => {
                let child = JobState::child_id(self.id, ordinal);
                let output =
                    output_of(self.reach.pipeline.store(), child).await.map_err(hold_error)?;
                self.record(StepEvent::ChildOutputTaken {
                    step: step.clone(),
                    output: output.clone(),
                });
                Ok(Outcome::Ok(output))
            }
            Some(outcome) => Ok(outcome),
            // What stands in the order has an outcome.
            None => Ok(Outcome::Ok(Value::Null)),
        }
    }

    /// Takes in what came out of polling the flow.
    pub(crate) async fn absorb(&mut self, turn: Turn) -> Go {
        if let Some(end @ (End::Diverged(_) | End::Broken(_))) = turn.end {
            // What a broken flow asked for is not asked for.
            self.core.end = Some(end);
            return Ok(());
        }
        turn.records.into_iter().for_each(|r| self.record(r));
        if self.only_stops() {
            // What has happened while the job was stopped is told to the flow all the same, because the flow says what
            // undoes it; what it asks for then is not asked for. Of what was asked for before, it is good to know what it was.
            for asked in turn.asks {
                if self.open_call(&asked.step).is_some() {
                    self.core.asks.insert(asked.step.clone(), Arc::new(asked));
                }
            }
            self.core.end = turn.end.or(self.core.end.take());
            return Ok(());
        }
        for asked in turn.asks {
            self.ask(asked).await?;
        }
        for step in turn.dropped {
            self.drop_step(&step);
        }
        if turn.end.is_some() {
            self.core.end = turn.end;
        }
        Ok(())
    }

    fn drop_step(&mut self, step: &StepId) {
        self.dropped.insert(step.clone());
        if self.is_in_doubt(step) {
            return;
        }
        // A call that somebody has started is settled all the same: no flow ends over it.
        if self.open_call(step).is_none() {
            self.tell_dropped(step);
        }
        for running in self.running.values().filter(|r| r.step == *step) {
            running.stop.send_replace(true);
        }
        self.recall(step);
        let child = self.core.loaded.state.children.iter().find(|c| c.1 == *step).map(|c| c.0);
        if let Some(ordinal) = child {
            let ask = crate::decide::AskMail {
                by: Some("parent".into()),
                why: Some("its parent no longer waits for it".into()),
            };
            let to = JobState::child_id(self.id, ordinal);
            let kind = tenure_kernel::mail::kinds::CANCEL;
            self.pending.messages.push(Message::mail(to, kind, Body::json(&ask)));
        }
    }

    /// Whether a step that is to stop is called again all the same: nobody knows whether an earlier call of it happened,
    /// and if it did it has to be undone.
    pub(crate) fn is_in_doubt(&self, step: &StepId) -> bool {
        let again = |c: &Call| c.state == CallState::Settled(Verdict::CalledAgain);
        let record = self.core.loaded.history.steps.get(step);
        self.core.driver.awaits(step) && record.is_some_and(|r| r.calls.iter().any(again))
    }

    /// Whether a step that fails now is not tried again.
    pub(crate) fn is_given_up(&self, step: &StepId) -> bool {
        self.dropped.contains(step) && !self.is_in_doubt(step)
    }

    /// A step that is to stop, and of which nothing runs: it is closed. Where the flow waits for its end all the same, to
    /// undo what it did, it is told that it did nothing.
    fn tell_dropped(&mut self, step: &StepId) {
        let asked = self.core.asks.get(step).cloned();
        self.close_dropped(step);
        let record = self.core.loaded.history.steps.get(step);
        if !self.core.driver.awaits(step) || record.is_some_and(|r| r.outcome.is_some()) {
            return;
        }
        let why = "the flow no longer wants it".to_owned();
        match (record.is_some(), asked.as_ref().map(|a| (&a.ask, &a.place))) {
            (false, Some((Ask::Tool { tool, arguments_hash, .. }, place))) => {
                let (of, arguments_hash) = (tool.clone(), arguments_hash.clone());
                let early = EarlyFailure { of, arguments_hash, child: false, place: place.clone() };
                self.fail_early(step.clone(), "dropped", why, early);
            }
            _ => self.fail(step, "dropped", why),
        }
    }

    /// A step that the flow no longer waits for, and of which nothing runs: it never begins again.
    fn close_dropped(&mut self, step: &StepId) {
        self.core.queue.retain(|s| s != step);
        self.core.asks.remove(step);
        self.limited.remove(step);
        self.aside.remove(step);
        self.lines.remove(step);
        let record = self.core.loaded.history.steps.get(step);
        let open = record.filter(|r| r.outcome.is_none() && !r.dropped && r.child.is_none());
        if open.is_some() {
            self.pending.timers.push(TimerChange::clear(timers::wait(step)));
            self.pending.timers.push(TimerChange::clear(timers::step(step)));
            self.record(StepEvent::StepDropped { step: step.clone() });
        }
    }

    async fn ask(&mut self, asked: Asked) -> Go {
        let record = self.core.loaded.history.steps.get(&asked.step);
        let (step, known) = (asked.step.clone(), asked.known || record.is_some());
        if record.is_some_and(|r| r.outcome.is_some() || r.dropped) {
            return Ok(());
        }
        let asked = Arc::new(asked);
        self.core.asks.insert(step.clone(), asked.clone());
        let place = || asked.place.clone();
        match &asked.ask {
            Ask::Tool { .. } => self.core.queue.push_back(step),
            Ask::Wait { kind, key, within, note } => {
                if !known {
                    if !self.room_to_wait(&step) {
                        return Ok(());
                    }
                    if let Some(within) = within {
                        self.pending.timers.push(TimerChange::set(timers::wait(&step), *within));
                    }
                    let within_ms = within.map(millis);
                    let step = step.clone();
                    self.record(StepEvent::WaitOpened {
                        step,
                        kind: *kind,
                        key: key.clone(),
                        within_ms,
                        note: note.clone(),
                        place: place(),
                    });
                }
                if let Some(kept) = self.core.loaded.history.kept.get(key).cloned() {
                    self.complete_from(step, key.clone(), kept);
                }
            }
            Ask::Sleep(time) if !known => {
                if !self.room_to_wait(&step) {
                    return Ok(());
                }
                self.pending.timers.push(TimerChange::set(timers::step(&step), *time));
                let (after_ms, place) = (millis(*time), place());
                let (why, limit) = (TimerWhy::Sleep, None);
                self.record(StepEvent::TimerSet { step, why, after_ms, place, limit });
            }
            Ask::Child { .. } if !known => self.child(&asked).await?,
            Ask::Sleep(_) | Ask::Child { .. } => {}
        }
        Ok(())
    }

    /// An open step of a flow that stayed in memory.
    pub(crate) fn look_again(&mut self, asked: &Asked) {
        let record = self.core.loaded.history.steps.get(&asked.step);
        if record.is_some_and(|r| r.outcome.is_some()) {
            return;
        }
        match &asked.ask {
            Ask::Tool { .. } if !self.core.queue.contains(&asked.step) => {
                self.core.queue.push_back(asked.step.clone());
            }
            Ask::Wait { key, .. } => {
                if let Some(kept) = self.core.loaded.history.kept.get(key).cloned() {
                    self.complete_from(asked.step.clone(), key.clone(), kept);
                }
            }
            Ask::Tool { .. } | Ask::Sleep(_) | Ask::Child { .. } => {}
        }
    }

    fn complete_from(&mut self, step: StepId, key: String, kept: Kept) {
        use tenure_steps::events::{WaitKind, WaitOutcome};
        let human =
            self.core.loaded.state.waits_for(&key).is_some_and(|w| w.kind == WaitKind::Human);
        let outcome = match (human, kept.outcome) {
            (true, WaitOutcome::Signalled) => WaitOutcome::Approved,
            (true, other) => other,
            (false, _) => WaitOutcome::Signalled,
        };
        self.pending.timers.push(TimerChange::clear(timers::wait(&step)));
        self.record(StepEvent::WaitCompleted {
            step,
            key,
            outcome,
            payload: kept.payload,
            by: kept.by,
        });
    }

    fn room_to_wait(&mut self, step: &StepId) -> bool {
        let state = &self.core.loaded.state;
        if state.waits.len() + state.timers.len() < limits::WAITS_MAX {
            return true;
        }
        self.core.end = Some(End::Broken(format!(
            "step {step} is one wait too many: a job can have {} open waits and sleeps at once",
            limits::WAITS_MAX
        )));
        false
    }

    async fn child(&mut self, asked: &Asked) -> Go {
        let Ask::Child { flow, version, input, arguments_hash, undoable } = asked.ask.clone()
        else {
            return Ok(());
        };
        let (step, place) = (asked.step.clone(), asked.place.clone());
        if self.core.loaded.state.children.len() >= limits::CHILDREN_MAX {
            self.core.end = Some(End::Broken(format!(
                "step {step} is one child too many: a job can have {} open children at once",
                limits::CHILDREN_MAX
            )));
            return Ok(());
        }
        // Whoever may only submit would reach, by a plan with a child, every job of its tenant.
        if flow == crate::bulk::FLOW {
            let early = EarlyFailure { of: flow, arguments_hash, child: true, place };
            let error = "an action on many jobs is no child: it is asked for over HTTP".to_owned();
            self.fail_early(step, "forbidden", error, early);
            return Ok(());
        }
        let depth = self.core.loaded.state.parent.map_or(0, |p| p.depth) + 1;
        if depth > limits::DEPTH_MAX {
            let early = EarlyFailure { of: flow, arguments_hash, child: true, place };
            let error = format!(
                "{} jobs are above this one, each a child of the one before: {} are the most",
                depth - 1,
                limits::DEPTH_MAX
            );
            self.fail_early(step, "too_deep", error, early);
            return Ok(());
        }
        let known = self.reach.shop.flows.newest(&flow).map(|f| f.version);
        let version = match version.or(known) {
            Some(version) => Some(version),
            None => catalogue::newest(self.reach.pipeline.store(), &self.tenant, &flow)
                .await?
                .map(|f| f.version),
        };
        let Some(version) = version else {
            let early = EarlyFailure { of: flow.clone(), arguments_hash, child: true, place };
            let error = format!("no worker has ever registered a flow named {flow:?}");
            self.fail_early(step, "unknown_flow", error, early);
            return Ok(());
        };
        let ordinal = self.core.loaded.history.children;
        let child = JobState::child_id(self.id, ordinal);
        let left = self.must_end_by.map(|end| end.since(self.now()));
        let bound = left.map_or(self.reach.shop.options.must_end_in, |left| {
            left.saturating_sub(Duration::from_secs(1)).max(Duration::from_secs(1))
        });
        let new = NewJob {
            flow: flow.clone(),
            version,
            input,
            // Its parent waits for it: behind what is less urgent, so would the parent.
            priority: self.priority,
            must_end_in_ms: millis(bound.min(self.reach.shop.options.must_end_in)),
            takeovers_max: self.reach.shop.options.takeovers_max,
            terms: Terms::default(),
            scheduled: None,
            parent: Some(Parent { job: self.id, ordinal, depth }),
            retry_of: None,
            forked_from: None,
            by: None,
        };
        let to = Target::Create { id: child, kind: Job::TABLE.kind.into() };
        self.pending.messages.push(Message { to, kind: "create".into(), body: Body::json(&new) });
        self.record(StepEvent::ChildStarted {
            step,
            ordinal,
            child,
            flow,
            arguments_hash,
            place,
            undoable,
        });
        Ok(())
    }

    /// The spec of a tool step.
    pub(crate) fn spec_of(&self, asked: &Asked) -> Option<&Arc<ToolSpec>> {
        match &asked.ask {
            Ask::Tool { tool, .. } => {
                let here = self.reach.shop.tools.get(tool);
                here.or_else(|| self.foreign.get(tool).map(|f| &f.spec))
            }
            _ => None,
        }
    }

    fn options_of(&self, step: &StepId) -> CallOptions {
        let defaults = self.reach.shop.options.call_defaults();
        let Some(asked) = self.core.asks.get(step) else { return defaults };
        let of_tool = self.spec_of(asked).map(|s| s.options.clone()).unwrap_or_default();
        match &asked.ask {
            Ask::Tool { options, .. } => options.or(&of_tool).or(&defaults),
            _ => defaults,
        }
    }

    pub(crate) fn retry_max(&self, step: &StepId) -> u32 {
        self.options_of(step).retry_max.unwrap_or(0)
    }

    pub(crate) fn timeout_is_permanent(&self, step: &StepId) -> bool {
        self.options_of(step).timeout_is_permanent.unwrap_or(false)
    }

    /// A tool step that is to be called, if the ledger says so.
    pub(crate) async fn consider(&mut self, step: StepId) -> Go {
        let Some(asked) = self.core.asks.get(&step).cloned() else { return Ok(()) };
        let record = self.core.loaded.history.steps.get(&step);
        if record.is_some_and(|r| r.timer.is_some() || r.outcome.is_some() || r.dropped)
            || self.limited.contains_key(&step)
        {
            return Ok(());
        }
        if !self.core.driver.awaits(&step) && self.open_call(&step).is_none() {
            self.close_dropped(&step);
            return Ok(());
        }
        if self.stops(&step) {
            return Ok(());
        }
        if self.pause.is_some() || self.draining {
            self.core.queue.push_back(step);
            return Ok(());
        }
        let shape = asked.ask.shape();
        match ledger::acquire(&self.core.loaded.history, &step, &shape, self.epoch) {
            // Somebody has just said that it did not happen. It is not begun anew.
            Permit::AllowExecute { .. } if self.was_stopped(&step) => {
                self.fail(&step, "cancelled", "the job was cancelled".into());
            }
            Permit::AllowExecute { ordinal, call } => {
                if self.admitted(&asked).await? {
                    self.start_call(&asked, ordinal, call).await?;
                }
            }
            // With another worker, or on its way back.
            Permit::WaitOtherWorker { call, .. } if call.hand.out.is_some() => {}
            Permit::WaitOtherWorker { call, .. } if call.hand.answer.is_some() => {
                if let Some((what, answer)) = call.hand.answer {
                    Box::pin(self.act_on(&step, &call.key, call.call, what, answer)).await?;
                }
            }
            Permit::WaitOtherWorker { call, .. } if self.running.contains_key(&call.key) => {}
            Permit::WaitOtherWorker { call, .. }
                if self.starts.iter().any(|s| s.key == call.key) => {}
            Permit::WaitOtherWorker { .. } => self.settle(&step, Learnt::default()).await?,
            Permit::ReturnRecordedResult => {}
            Permit::Reject(why) => self.core.end = Some(End::Broken(why)),
        }
        Ok(())
    }

    pub(super) async fn start_call(&mut self, asked: &Asked, ordinal: u32, call: u32) -> Go {
        let Ask::Tool { tool, input, arguments_hash, undoable, .. } = &asked.ask else {
            return Ok(());
        };
        let step = asked.step.clone();
        let here = self.reach.shop.tools.get(tool).is_some();
        if !here {
            self.know(tool).await?;
        }
        let Some(spec) = self.spec_of(asked).cloned() else {
            let place = asked.place.clone();
            let arguments_hash = arguments_hash.clone();
            let early = EarlyFailure { of: tool.clone(), arguments_hash, child: false, place };
            let known = self.reach.shop.tools.names();
            let error = format!(
                "this worker has no tool named {tool:?}, and no worker has ever offered to take calls of it; it has: {known}"
            );
            self.fail_early(step, "unknown_tool", error, early);
            return Ok(());
        };
        // A check that panics would take the job down with its worker, and then with the next one.
        if let Some(hands) = self.hands_of(tool)
            && let Err(error) = catch_unwind(AssertUnwindSafe(|| hands.check(tool, input)))
                .unwrap_or_else(|_| Err(format!("the check of what {tool:?} is given panicked")))
        {
            let (place, arguments_hash) = (asked.place.clone(), arguments_hash.clone());
            let early = EarlyFailure { of: tool.clone(), arguments_hash, child: false, place };
            self.fail_early(step, "bad_input", error, early);
            return Ok(());
        }
        let options = self.options_of(&step);
        // The step's own word, then what the arguments say, then the tool's.
        let own = match &asked.ask {
            Ask::Tool { options, .. } => options.class,
            _ => None,
        };
        let class = own.or_else(|| spec.tool.class_of(input)).or(spec.options.class);
        let class = class.unwrap_or(Class::Irreversible);
        let timeout = options.timeout.unwrap_or(self.reach.shop.options.step_timeout);
        let key = idempotency_key(self.id, &step, tool, ordinal);
        let first = (ordinal, call) == (0, 1);
        self.record(StepEvent::ToolInvocationStarted {
            step: step.clone(),
            tool: tool.clone(),
            key: key.clone(),
            ordinal,
            call,
            class,
            arguments_hash: arguments_hash.clone(),
            arguments: first.then(|| input.clone()),
            timeout_ms: millis(timeout),
            place: if first { asked.place.clone() } else { String::new() },
            undoable: *undoable,
        });
        let input = input.clone();
        if !here {
            let (step, key, what) = (&step, &key, What::Call);
            let (nth, over) = (0, false);
            self.hand_over(Handing {
                step,
                tool,
                key,
                call,
                class,
                timeout,
                what,
                input,
                place: &asked.place,
                nth,
                over,
            });
            return Ok(());
        }
        self.starts.push(Start { step, spec, input, key, call, timeout, what: What::Call });
        Ok(())
    }

    /// Something that a task has to say.
    pub(crate) async fn finished(&mut self, finished: Finished) -> Go {
        let Finished { step, key, call, how } = finished;
        if !matches!(how, How::TimedOut) {
            self.running.remove(&key);
        }
        self.keeper.progress(self.id);
        // A person may have settled that call meanwhile, and another be open: this says nothing about it.
        let current = self.open_call(&step).is_some_and(|c| c.key == key && c.call == call);
        match how {
            How::NotCalled => return Err(HoldError::Lost),
            _ if !current => {}
            How::Returned(result) => self.returned(&step, &key, call, result).await?,
            How::TimedOut => self.unknown(&step, "it took longer than its timeout".into()),
            How::Gone => {
                self.unknown(&step, "it was stopped while it ran".into());
                if !self.stops(&step) {
                    self.settle(&step, Learnt { gone: true, ..Learnt::default() }).await?;
                }
            }
            How::Probed(said) => {
                self.settle(&step, Learnt { probed: Some(said), ..self.gone_if_mine(&step) })
                    .await?;
            }
            How::Compensated(said) => {
                self.settle(&step, Learnt { compensated: Some(said), ..self.gone_if_mine(&step) })
                    .await?;
            }
        }
        Ok(())
    }

    fn gone_if_mine(&self, step: &StepId) -> Learnt {
        let mine = self.open_call(step).is_some_and(|c| c.epoch == self.epoch);
        Learnt { gone: mine, ..Learnt::default() }
    }

    pub(crate) async fn returned(
        &mut self,
        step: &StepId,
        key: &str,
        call: u32,
        result: Result<Value, ToolError>,
    ) -> Go {
        let dropped = self.is_given_up(step) || self.was_stopped(step);
        if self.was_stopped(step) && call > 1 {
            self.found_out(step, result);
            return Ok(());
        }
        match result {
            Ok(value) => {
                if let Some(open) = self.open_call(step) {
                    self.succeed(step, &open, value);
                }
            }
            Err(ToolError::Retryable(why)) => {
                self.call_over(step, key, call, CallOutcome::Failure, Some(why.clone()));
                if dropped {
                    self.fail(step, "dropped", why);
                } else {
                    self.try_again(step, why);
                }
            }
            Err(ToolError::Permanent(why)) => {
                self.call_over(step, key, call, CallOutcome::Failure, Some(why.clone()));
                self.fail(step, "permanent", why);
            }
            Err(ToolError::Cancelled) => {
                self.call_over(step, key, call, CallOutcome::Cancelled, None);
                if dropped {
                    self.fail(step, "cancelled", "stopped on request".into());
                } else {
                    self.try_again(step, "it stopped without being asked to".into());
                }
            }
            Err(ToolError::Compensatable(why))
                if self.is_compensatable(step) && !self.stops(step) =>
            {
                self.unknown(step, why);
                self.compensate(step).await?;
            }
            Err(ToolError::Unknown(why) | ToolError::Compensatable(why)) => {
                self.unknown(step, why);
                if !self.stops(step) {
                    self.settle(step, Learnt { gone: true, ..Learnt::default() }).await?;
                }
            }
        }
        Ok(())
    }

    /// A call that is over without an effect.
    pub(crate) fn call_over(
        &mut self,
        step: &StepId,
        key: &str,
        call: u32,
        outcome: CallOutcome,
        error: Option<String>,
    ) {
        let (step, key) = (step.clone(), key.to_owned());
        let error = error.map(|e| kernel_limits::clip(&e, 4_096).to_owned());
        self.record(StepEvent::ToolInvocationFinished {
            step,
            key,
            call,
            outcome,
            result: None,
            error,
        });
    }

    /// A step that failed for good.
    pub(crate) fn fail(&mut self, step: &StepId, reason: &str, error: String) {
        let attempt = self.core.loaded.history.steps.get(step).map_or(0, |r| r.attempts) + 1;
        self.record(StepEvent::NodeFinished {
            step: step.clone(),
            result_type: ResultType::PermanentFailure,
            reason: Some(reason.to_owned()),
            attempt,
            error: Some(kernel_limits::clip(&error, 4_096).to_owned()),
            failed_early: None,
        });
    }

    fn fail_early(&mut self, step: StepId, reason: &str, error: String, early: EarlyFailure) {
        self.record(StepEvent::NodeFinished {
            step,
            result_type: ResultType::PermanentFailure,
            reason: Some(reason.to_owned()),
            attempt: 0,
            error: Some(error),
            failed_early: Some(early),
        });
    }

    /// A failed attempt: again after a pause, if attempts are left.
    pub(crate) fn try_again(&mut self, step: &StepId, why: String) {
        let attempt = self.core.loaded.history.steps.get(step).map_or(0, |r| r.attempts) + 1;
        let options = self.options_of(step);
        let retry_max = options.retry_max.unwrap_or(0);
        if attempt > retry_max {
            let error = match retry_max {
                0 => why,
                _ => format!("{why} (tried {attempt} times)"),
            };
            self.fail(step, "attempts_spent", error);
            return;
        }
        self.record(StepEvent::NodeFinished {
            step: step.clone(),
            result_type: ResultType::RetryableFailure,
            reason: Some("retryable".into()),
            attempt,
            error: Some(kernel_limits::clip(&why, 4_096).to_owned()),
            failed_early: None,
        });
        let base = options.backoff.unwrap_or_default();
        let doubled = base.saturating_mul(2u32.saturating_pow(attempt.saturating_sub(1).min(20)));
        let pause = jitter(
            doubled.min(self.reach.shop.options.backoff_max),
            self.reach.pipeline.rt().random(),
        );
        self.pending.timers.push(TimerChange::set(timers::step(step), pause));
        let (why, after_ms) = (TimerWhy::Retry, millis(pause));
        self.record(StepEvent::TimerSet {
            step: step.clone(),
            why,
            after_ms,
            place: String::new(),
            limit: None,
        });
    }
}

/// Between half of it and all of it, so that those who failed together do not come back together.
pub(super) fn jitter(pause: Duration, random: u64) -> Duration {
    let share = f64::from(u32::try_from(random >> 32).unwrap_or(0)) / f64::from(u32::MAX);
    pause.mul_f64(0.5 + share / 2.0)
}

pub(crate) fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}
