//! Settles calls of unknown outcome: gathers what is known, asks [`tenure_steps::settle`], and does what it
//! says.

use super::{
    calls::{Start, Testimony},
    run::{Run, Stuck},
};
use crate::model::limits;
use serde_json::Value;
use tenure_engine::worker::HoldError;
use tenure_kernel::{ids::SessionId, sessions::Opening, stream::Body};
use tenure_steps::{
    effects::EffectName,
    events::{CallOutcome, ResultType, SettledBy, StepEvent, StepId, Verdict, What},
    history::{Call, CallState},
    settle::{Action, Known, LOOK_AGAIN, Probed},
    tool::{Class, Probe, ToolError},
};

/// What was just learnt about a call, beside what is recorded.
#[derive(Default)]
pub(crate) struct Learnt {
    /// Its task is over, in this process.
    pub gone: bool,
    /// The probe's answer.
    pub probed: Option<Result<Probe, ToolError>>,
    /// The compensation's.
    pub compensated: Option<Result<(), ToolError>>,
    /// A probe that was handed over: whether nobody could act under the call any more when it was asked. Hours may lie
    /// between, and who has died since may have acted since.
    pub when_over: Option<bool>,
}

impl Run {
    /// Deals with the last call of a step, which was started and has no known outcome.
    pub(crate) async fn settle(&mut self, step: &StepId, learnt: Learnt) -> Result<(), HoldError> {
        let Some(call) = self.open_call(step) else { return Ok(()) };
        if matches!(call.state, CallState::Started) {
            let why = format!("the worker of attempt {} was lost", call.epoch);
            self.record(StepEvent::EffectUnknown {
                step: step.clone(),
                key: call.key.clone(),
                call: call.call,
                why,
            });
        }
        let known = self.gather(step, call.clone(), &learnt).await?;
        let dropped = !self.core.driver.awaits(step);
        let action = match learnt.compensated {
            Some(Err(e)) => Action::Attention {
                why: format!("its compensation failed: {e}"),
                again_in: Some(tenure_steps::settle::LOOK_AGAIN),
            },
            _ => known.action(),
        };
        let (mine, over) = (learnt.gone, known.over());
        self.carry_out(step, &call, action, dropped, mine, over).await
    }

    /// The last call of a step, if its outcome is open.
    pub(crate) fn open_call(&self, step: &StepId) -> Option<Call> {
        let record = self.core.loaded.history.steps.get(step)?;
        record.calls.last().filter(|c| c.is_open()).cloned()
    }

    async fn gather(&self, step: &StepId, call: Call, learnt: &Learnt) -> Result<Known, HoldError> {
        let store = self.reach.pipeline.store().clone();
        let (mut evidence, mut over, mut never_called) = (None, false, false);
        for said in store.evidence(self.id).await? {
            if said.said.key == call.key {
                let body = match &said.said.body {
                    Body::Inline(bytes) => Some(bytes.clone()),
                    Body::Blob { digest, .. } => store.blob(*digest).await?,
                };
                let value: Value = body
                    .and_then(|b| tenure_kernel::stored::from_slice(&b).ok())
                    .unwrap_or_default();
                let of_this_call = (said.said.epoch, said.said.call) == (call.epoch, call.call);
                match Testimony::from_json(&value) {
                    Some(Testimony::Result(result)) => evidence = Some(result),
                    Some(Testimony::Over) => over |= of_this_call,
                    Some(Testimony::NeverCalled) => never_called |= of_this_call,
                    None => {}
                }
            }
        }
        let effect = match &self.reach.shop.effects {
            Some(effects) => {
                let name = EffectName { key: &call.key, epoch: call.epoch, call: call.call };
                effects.get(name).unwrap_or_else(|e| {
                    tracing::warn!(job = %self.id, %step, error = %e, "the effect store can not be read");
                    None
                })
            }
            None => None,
        };
        let spec = self.core.asks.get(step).and_then(|a| self.spec_of(a)).cloned();
        let over = over || never_called || learnt.gone || call.hand.over;
        let executor_dead = match learnt.when_over {
            Some(when_asked) => when_asked,
            None => over || self.executor_dead(&call).await?,
        };
        let probed = learnt.probed.as_ref().map(|p| match p {
            Ok(Probe::Happened(result)) => Probed::Happened(result.clone()),
            Ok(Probe::NotHappened) => Probed::NotHappened,
            Ok(Probe::Unclear(why)) => Probed::Unclear(why.clone()),
            Err(e) => Probed::Unclear(e.to_string()),
        });
        Ok(Known {
            call,
            effect,
            evidence,
            executor_dead,
            never_called,
            honours_not_after: spec.as_ref().is_some_and(|s| s.honours_not_after),
            fenced: spec.as_ref().is_some_and(|s| s.fenced) && probed.is_some(),
            now: self.now(),
            probed,
            compensating: self.core.loaded.history.steps.get(step).is_some_and(|r| r.compensating),
            compensated: matches!(learnt.compensated, Some(Ok(()))),
        })
    }

    /// Whether the process that made a call is certainly gone.
    async fn executor_dead(&self, call: &Call) -> Result<bool, HoldError> {
        if call.hand.handed {
            // The flow's worker never touched it: whoever took the call did.
            let Some(session) = self.had_by(call).await? else { return Ok(false) };
            let executor = self.opening(session).await?.and_then(|o| o.executor);
            return Ok(executor.is_some_and(|e| self.reach.shop.liveness.known_dead(&e)));
        }
        let Some(session) = self.core.loaded.holders.get(&call.epoch) else { return Ok(false) };
        // This very process: its task is gone when it is not among those that run.
        let here = || !self.reach.shop.calls.runs(self.id, &call.key, call.epoch, call.call);
        if *session == self.keeper.id() {
            return Ok(here());
        }
        let Some(opening) = self.opening(*session).await? else { return Ok(false) };
        match opening.executor {
            Some(executor) if self.keeper.executor() == Some(&executor) => Ok(here()),
            Some(executor) => Ok(self.reach.shop.liveness.known_dead(&executor)),
            None => Ok(false),
        }
    }

    async fn opening(&self, session: SessionId) -> Result<Option<Opening>, HoldError> {
        let records = self.reach.pipeline.store().stream(session, 1, 1).await?;
        let Some(record) = records.first() else { return Ok(None) };
        let events = record.events().unwrap_or_default();
        let body = events.first().and_then(|e| e.body.inline().map(<[u8]>::to_vec));
        Ok(body.and_then(|b| tenure_kernel::stored::from_slice(&b).ok()))
    }

    async fn carry_out(
        &mut self,
        step: &StepId,
        call: &Call,
        action: Action,
        dropped: bool,
        mine: bool,
        over: bool,
    ) -> Result<(), HoldError> {
        match action {
            Action::CatchUp(result) => {
                // The effect was durable and only the events were lost: they are written now, as they would
                // have been.
                self.succeed(step, call, result);
            }
            Action::FromEvidence(result) => self.happened(step, call, SettledBy::Evidence, result),
            Action::FromProbe(result) => self.happened(step, call, SettledBy::Probe, result),
            Action::CallAgain if self.was_stopped(step) => {
                self.call_to_find_out(step, call, mine).await?;
            }
            Action::CallAgain if dropped => {
                let note = "the flow no longer waits for it, and it may be repeated by its class";
                self.settled(step, call, Verdict::Abandoned, SettledBy::Class, Some(note), None);
            }
            Action::CallAgain => {
                let calls = self.core.loaded.history.steps.get(step).map_or(0, |r| r.calls.len());
                if calls > self.retry_max(step) as usize {
                    self.settled(step, call, Verdict::Abandoned, SettledBy::Class, None, None);
                    let error = format!("{calls} calls, and none with a known outcome");
                    self.fail(step, "unknown_outcome", error);
                    return Ok(());
                }
                self.settled(step, call, Verdict::CalledAgain, SettledBy::Class, None, None);
                if mine {
                    // It answered badly or not at all: not at once again.
                    self.try_again(step, "nobody knows whether it happened".into());
                } else {
                    Box::pin(self.consider(step.clone())).await?;
                }
            }
            Action::Probe => self.ask_tool(step, call, What::Probe, over).await?,
            Action::Compensate => {
                self.record(StepEvent::CompensationStarted {
                    step: step.clone(),
                    key: call.key.clone(),
                    call: call.call,
                });
                self.ask_tool(step, call, What::Compensate, over).await?;
            }
            Action::NeverCalled => {
                let note = Some("its worker had lost the job and did not make the call");
                self.settled(step, call, Verdict::DidNotHappen, SettledBy::Evidence, note, None);
                self.not_applied(step, "it was not called", dropped).await?;
            }
            Action::DidNotHappen => {
                self.settled(step, call, Verdict::DidNotHappen, SettledBy::Probe, None, None);
                self.not_applied(step, "it did not happen", dropped).await?;
            }
            Action::Compensated => {
                self.settled(step, call, Verdict::Compensated, SettledBy::Compensation, None, None);
                self.not_applied(step, "it was compensated", dropped).await?;
            }
            Action::Attention { why, again_in } => {
                self.stuck.retain(|s| s.step != *step);
                self.stuck.push(Stuck { step: step.clone(), why, again_in });
            }
        }
        Ok(())
    }

    /// A call that certainly was not applied: tried again at once, if it may be.
    async fn not_applied(
        &mut self,
        step: &StepId,
        why: &str,
        dropped: bool,
    ) -> Result<(), HoldError> {
        let dropped = dropped || self.is_given_up(step);
        if dropped || self.was_stopped(step) {
            let reason = if dropped { "dropped" } else { "cancelled" };
            self.fail(step, reason, why.to_owned());
            return Ok(());
        }
        let attempts = self.core.loaded.history.steps.get(step).map_or(0, |r| r.attempts);
        if self.timeout_is_permanent(step) || attempts >= self.retry_max(step) {
            self.fail(step, "attempts_spent", format!("{why}, and it may not be tried again"));
            return Ok(());
        }
        self.record(StepEvent::NodeFinished {
            step: step.clone(),
            result_type: ResultType::RetryableFailure,
            reason: Some(why.to_owned()),
            attempt: attempts + 1,
            error: None,
            failed_early: None,
        });
        Box::pin(self.consider(step.clone())).await
    }

    async fn ask_tool(
        &mut self,
        step: &StepId,
        call: &Call,
        what: What,
        over: bool,
    ) -> Result<(), HoldError> {
        let asked = self.core.asks.get(step).cloned();
        let tool = asked.as_deref().and_then(tool_name).unwrap_or_default();
        if self.reach.shop.tools.get(&tool).is_none() && self.know(&tool).await? {
            let input = asked.as_deref().and_then(tool_input);
            if let Some(input) = input.filter(|_| self.others_can(&tool, what)) {
                self.ask_others(step, &tool, call, what, input, over);
                return Ok(());
            }
        }
        let here =
            |run: &Self, a| tool_name(a).is_some_and(|t| run.reach.shop.tools.get(&t).is_some());
        let found = asked
            .as_ref()
            .filter(|a| here(self, a))
            .and_then(|a| self.spec_of(a).cloned().zip(tool_input(a)));
        let Some((spec, input)) = found else {
            let why =
                "this worker does not have the tool that could say, or undo, what happened".into();
            self.stuck.push(Stuck { step: step.clone(), why, again_in: Some(LOOK_AGAIN) });
            return Ok(());
        };
        self.starts.push(Start {
            step: step.clone(),
            spec,
            input,
            key: call.key.clone(),
            call: call.call,
            timeout: call.timeout.min(self.reach.shop.options.step_timeout),
            what,
        });
        Ok(())
    }

    /// A call that its worker saw succeed.
    pub(crate) fn succeed(&mut self, step: &StepId, call: &Call, result: Value) {
        let (key, number) = (call.key.clone(), call.call);
        self.record(StepEvent::ToolInvocationFinished {
            step: step.clone(),
            key: key.clone(),
            call: number,
            outcome: CallOutcome::Success,
            result: Some(result),
            error: None,
        });
        self.record(StepEvent::CommandCommitted { step: step.clone(), key, call: number });
        self.done_well(step);
    }

    fn happened(&mut self, step: &StepId, call: &Call, by: SettledBy, result: Value) {
        self.settled(step, call, Verdict::Happened, by, None, Some(result));
        let (step_id, key) = (step.clone(), call.key.clone());
        self.record(StepEvent::CommandCommitted { step: step_id, key, call: call.call });
        self.done_well(step);
    }

    fn done_well(&mut self, step: &StepId) {
        let attempt = self.core.loaded.history.steps.get(step).map_or(0, |r| r.attempts) + 1;
        self.record(StepEvent::NodeFinished {
            step: step.clone(),
            result_type: ResultType::SideEffectCommitted,
            reason: None,
            attempt,
            error: None,
            failed_early: None,
        });
    }

    pub(super) fn settled(
        &mut self,
        step: &StepId,
        call: &Call,
        verdict: Verdict,
        by: SettledBy,
        note: Option<&str>,
        result: Option<Value>,
    ) {
        self.stuck.retain(|s| s.step != *step);
        self.record(StepEvent::EffectSettled {
            step: step.clone(),
            key: call.key.clone(),
            call: call.call,
            verdict,
            by,
            note: note.map(str::to_owned),
            result,
        });
    }

    /// A call that timed out or said itself that it does not know.
    pub(crate) fn unknown(&mut self, step: &StepId, why: String) {
        let Some(call) = self.open_call(step) else { return };
        if matches!(call.state, CallState::Started) {
            let (step, key) = (step.clone(), call.key);
            let why = tenure_kernel::limits::clip(&why, limits::WHY_BYTES_MAX).to_owned();
            self.record(StepEvent::EffectUnknown { step, key, call: call.call, why });
        }
    }

    /// Whether a class can be undone.
    pub(crate) fn is_compensatable(&self, step: &StepId) -> bool {
        self.open_call(step).is_some_and(|c| c.class == Class::Compensatable)
    }

    /// Undoes a call that says itself that half of it was applied.
    pub(crate) async fn compensate(&mut self, step: &StepId) -> Result<(), HoldError> {
        let Some(call) = self.open_call(step) else { return Ok(()) };
        self.record(StepEvent::CompensationStarted {
            step: step.clone(),
            key: call.key.clone(),
            call: call.call,
        });
        self.ask_tool(step, &call, What::Compensate, true).await
    }
}

/// The tool of a tool step.
pub(crate) fn tool_name(asked: &tenure_steps::desk::Asked) -> Option<String> {
    match &asked.ask {
        tenure_steps::desk::Ask::Tool { tool, .. } => Some(tool.clone()),
        _ => None,
    }
}

/// The input of a tool step.
pub(crate) fn tool_input(asked: &tenure_steps::desk::Asked) -> Option<Value> {
    match &asked.ask {
        tenure_steps::desk::Ask::Tool { input, .. } => Some(input.clone()),
        _ => None,
    }
}
