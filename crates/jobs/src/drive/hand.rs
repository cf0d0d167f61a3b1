//! Calls that are handed to workers that do not run the flow. What local tools do in a task of this process
//! ([`super::calls`]) is here an entity of its own (`crate::call`), and what the task would say comes as mail.
//!
//! The order of writes is the same: `tool_invocation_started`, `call_handed` and the message that creates the call are
//! one commit, so nobody can take a call that is not on record. From then on the call has a life of its own. It outlives
//! the worker that drives the flow, and a takeover changes nothing about it: whoever holds the job next finds it out, or
//! finds its answer.
//!
//! While nothing is left but calls that are out, the job is kept for a short patience, because most calls are short, and
//! then parked.

use super::{
    hands::{Hands, Order},
    run::{Go, Run},
    settling::Learnt,
};
use crate::{
    call::{NewCall, decide::CallMail, model::Call as CallMachine, view},
    catalogue::{self, Sort},
    decide::{cancel_call, takes_back},
    model::JobState,
};
use serde_json::Value;
use std::{sync::Arc, time::Duration};
use tenure_engine::worker::HoldError;
use tenure_kernel::{
    ids::SessionId,
    machine::Machine as _,
    outbox::{Message, Target},
    runtime::BoxFuture,
    stream::Body,
};
use tenure_steps::{
    events::{CallAnswer, CallEnd, StepEvent, StepId, What},
    history::Call,
    tool::{CallOptions, Class, Probe, Tool, ToolCtx, ToolError, ToolSpec},
};

/// A tool that other workers have. It is never called here; what is known of it is what they registered.
pub(super) struct Elsewhere;

impl Tool for Elsewhere {
    fn call(&self, _ctx: ToolCtx, _input: Value) -> BoxFuture<'static, Result<Value, ToolError>> {
        Box::pin(async { Err(ToolError::permanent("this tool is not in this process")) })
    }
}

/// A tool that other workers take calls of.
pub(crate) struct Foreign {
    pub spec: Arc<ToolSpec>,
    probe: bool,
    compensate: bool,
}

/// What is given to another worker.
pub(crate) struct Handing<'a> {
    pub step: &'a StepId,
    pub tool: &'a str,
    pub key: &'a str,
    pub call: u32,
    pub class: Class,
    pub timeout: Duration,
    pub what: What,
    pub input: Value,
    /// See [`NewCall::place`].
    pub place: &'a str,
    /// How often something was handed over for this call before.
    pub nth: u32,
    /// Nobody can act under the call any more.
    pub over: bool,
}

impl Run {
    /// Looks a tool up that this worker has not. Whether other workers have ever said that they take calls of it.
    pub(crate) async fn know(&mut self, tool: &str) -> Result<bool, HoldError> {
        if self.foreign.contains_key(tool) {
            return Ok(true);
        }
        let hands = self.hands_of(tool);
        if let Some(spec) = hands.iter().flat_map(|h| h.tools()).find(|t| t.name == tool) {
            let foreign = Foreign { spec: Arc::new(spec.clone()), probe: false, compensate: false };
            self.foreign.insert(tool.to_owned(), foreign);
            return Ok(true);
        }
        let entry =
            catalogue::entry(self.reach.pipeline.store(), Sort::Tool, &self.tenant, tool).await?;
        let Some((version, terms)) = entry.as_ref().and_then(catalogue::Entry::for_calls) else {
            return Ok(false);
        };
        let mut spec = ToolSpec::of(tool, Arc::new(Elsewhere));
        spec.doc.clone_from(&version.doc);
        spec.options = CallOptions {
            timeout: terms.timeout_ms.map(Duration::from_millis),
            retry_max: terms.retry_max,
            backoff: terms.backoff_ms.map(Duration::from_millis),
            class: version.class,
            timeout_is_permanent: None,
        };
        let spec = Arc::new(spec);
        let foreign = Foreign { spec, probe: terms.probe, compensate: terms.compensate };
        self.foreign.insert(tool.to_owned(), foreign);
        Ok(true)
    }

    /// Who takes calls of a tool that are no `call`s.
    pub(crate) fn hands_of(&self, tool: &str) -> Option<Arc<dyn Hands>> {
        let hands = self.reach.shop.hands.as_ref()?;
        let here = self.reach.shop.tools.get(tool).is_some();
        (!here && hands.tools().iter().any(|t| t.name == tool)).then(|| hands.clone())
    }

    /// Whether another worker could be asked this about a tool.
    pub(crate) fn others_can(&self, tool: &str, what: What) -> bool {
        self.foreign.get(tool).is_some_and(|f| match what {
            What::Call => true,
            What::Probe => f.probe,
            What::Compensate => f.compensate,
        })
    }

    /// Puts a call into the next commit: the event, and the message that creates it.
    pub(crate) fn hand_over(&mut self, handing: Handing<'_>) {
        let Handing { step, tool, key, call, class, timeout, what, input, place, nth, over } =
            handing;
        let id = JobState::call_id(self.id, key, call, (what, nth));
        let timeout_ms = super::asks::millis(timeout);
        let hands = self.hands_of(tool);
        let new = NewCall {
            job: self.id,
            job_epoch: self.epoch,
            step: step.clone(),
            key: key.to_owned(),
            call,
            what,
            nth,
            tool: tool.to_owned(),
            class,
            timeout_ms,
            grace_ms: super::asks::millis(self.keeper.config().lease),
            must_end_in_ms: super::asks::millis(self.can_wait()),
            priority: self.priority,
            place: if hands.is_some() { place.to_owned() } else { String::new() },
            input,
        };
        let Order { kind, body } = match hands {
            Some(hands) => hands.order(&new, &self.tenant),
            None => Order { kind: CallMachine::TABLE.kind.into(), body: Body::json(&new) },
        };
        let message = Message { to: Target::Create { id, kind }, kind: "create".into(), body };
        let (step, key) = (step.clone(), key.to_owned());
        self.record(StepEvent::CallHanded { step, key, call, what, nth, over });
        self.pending.handed.push((self.pending.events.len() - 1, message));
    }

    /// How long a call may wait for a worker: a little less than this job can, so that it still hears of it.
    fn can_wait(&self) -> Duration {
        let left = self.must_end_by.map(|end| end.since(self.now()));
        let left = left.unwrap_or(self.reach.shop.options.must_end_in);
        left.saturating_sub(Duration::from_secs(1)).max(left / 2).max(Duration::from_millis(1))
    }

    /// Asks another worker about a call, or to undo it.
    pub(crate) fn ask_others(
        &mut self,
        step: &StepId,
        tool: &str,
        call: &Call,
        what: What,
        input: Value,
        over: bool,
    ) {
        let timeout = call.timeout.min(self.reach.shop.options.step_timeout);
        let (key, number, class, nth) = (&call.key, call.call, call.class, call.hand.asked);
        self.hand_over(Handing {
            step,
            tool,
            key,
            call: number,
            class,
            timeout,
            what,
            input,
            place: "",
            nth,
            over,
        });
    }

    /// The flow does not wait for this step any more: whoever has its call is told.
    pub(crate) fn recall(&mut self, step: &StepId) {
        let out = self.state().calls_out(self.id);
        let out = out.filter(|(_, c)| c.step == *step && !takes_back(c));
        let calls: Vec<_> = out.map(|(id, _)| id).collect();
        let tell = calls.into_iter().map(|id| cancel_call(id, "the flow no longer waits for it"));
        self.pending.messages.extend(tell);
    }

    /// A call came back by mail.
    pub(crate) async fn came_back(&mut self, mail: CallMail) -> Go {
        let CallMail { step, key, call, what, answer, .. } = mail;
        // A result stands in `tool_invocation_finished`, in the same commit; all else may have to be known later.
        if what != What::Call || answer.end != CallEnd::Completed {
            let (step, key, answer) = (step.clone(), key.clone(), answer.clone());
            self.record(StepEvent::CallAnswered { step, key, call, what, answer });
        }
        self.act_on(&step, &key, call, what, answer).await
    }

    /// What a call that came back leads to: the same as if a task here had said it.
    pub(crate) async fn act_on(
        &mut self,
        step: &StepId,
        key: &str,
        number: u32,
        what: What,
        answer: CallAnswer,
    ) -> Go {
        self.keeper.progress(self.id);
        let Some(call) = self.open_call(step).filter(|c| c.key == key && c.call == number) else {
            return Ok(());
        };
        if let Some(tool) = self.tool_of(key, number)
            && self.reach.shop.tools.get(&tool).is_none()
        {
            self.know(&tool).await?;
        }
        let why = answer.error.clone().unwrap_or_default();
        let result = match (answer.end, answer.result) {
            (CallEnd::Completed, None) => Some(self.result_of(&call, what).await?),
            (_, result) => result,
        };
        let over = !self.is_stopping() && self.lost_too_many().is_some();
        if answer.end == CallEnd::Lost && over {
            // Nothing is tried again: the job ends, and says that nobody knows what became of this.
            self.unknown(step, why);
            return Ok(());
        }
        match what {
            What::Call if answer.end == CallEnd::Lost => {
                self.unknown(step, why);
                if !self.stops(step) {
                    self.settle(step, Learnt::default()).await?;
                }
            }
            What::Call => {
                let returned = match answer.end {
                    CallEnd::Completed => Ok(result.unwrap_or(Value::Null)),
                    // Nobody took it as long as the job could wait: there is no time for another try.
                    CallEnd::Permanent | CallEnd::Expired => Err(ToolError::Permanent(why)),
                    CallEnd::Unknown | CallEnd::Lost => Err(ToolError::Unknown(why)),
                    CallEnd::Compensatable => Err(ToolError::Compensatable(why)),
                    CallEnd::Cancelled => Err(ToolError::Cancelled),
                    // By the word of the store: it was never in anybody's hands, or was given back unbegun.
                    CallEnd::Retryable | CallEnd::NotCalled => Err(ToolError::Retryable(why)),
                };
                self.returned(step, key, number, returned).await?;
            }
            What::Probe => {
                let probed = Some(probe_said(answer.end, result, why));
                let when_over = Some(call.hand.over_when_asked);
                self.settle(step, Learnt { probed, when_over, ..Learnt::default() }).await?;
                self.looked_at(step, key, number);
            }
            What::Compensate => {
                let said = match answer.end {
                    CallEnd::Completed => Ok(()),
                    _ => Err(ToolError::Unknown(why)),
                };
                self.settle(step, Learnt { compensated: Some(said), ..Learnt::default() }).await?;
                self.looked_at(step, key, number);
            }
        }
        Ok(())
    }

    /// An answer that settled nothing is on record as looked at, or the next holder would act on it again, when it may
    /// no longer be true.
    fn looked_at(&mut self, step: &StepId, key: &str, number: u32) {
        let open = self.open_call(step).filter(|c| c.key == key && c.call == number);
        if open.is_some_and(|c| c.hand.answer.is_some()) {
            let stuck = self.stuck.iter().find(|s| s.step == *step).map(|s| s.why.clone());
            let why = stuck.unwrap_or_else(|| "the answer did not settle it".into());
            let why =
                tenure_kernel::limits::clip(&why, crate::model::limits::WHY_BYTES_MAX).to_owned();
            let (step, key) = (step.clone(), key.to_owned());
            self.record(StepEvent::EffectUnknown { step, key, call: number, why });
        }
    }

    fn tool_of(&self, key: &str, call: u32) -> Option<String> {
        let open = self.state().calls.iter().find(|c| c.key == key && c.call == call);
        open.map(|c| c.tool.clone())
    }

    /// A result that was too large for mail.
    async fn result_of(&self, call: &Call, what: What) -> Result<Value, HoldError> {
        let nth = call.hand.asked.saturating_sub(1);
        let id = JobState::call_id(self.id, &call.key, call.call, (what, nth));
        let store = self.reach.pipeline.store();
        let content = view::content(store, id).await.map_err(super::run::hold_error)?;
        content
            .and_then(|c| c.result)
            .ok_or_else(|| HoldError::Refused(format!("the result of call {id} is gone")))
    }

    /// Which session had a call that was handed over, if it was ever taken.
    pub(crate) async fn had_by(&self, call: &Call) -> Result<Option<SessionId>, HoldError> {
        let id = JobState::call_id(self.id, &call.key, call.call, (What::Call, 0));
        let store = self.reach.pipeline.store();
        let content = view::content(store, id).await.map_err(super::run::hold_error)?;
        Ok(content.and_then(|c| c.had_by))
    }

    /// How long the job is still kept while nothing is left but calls that other workers have.
    pub(crate) fn patience_left(&self) -> Option<Duration> {
        let waits = self.state().is_out()
            && self.stuck.is_empty()
            && self.pause.is_none()
            && !self.draining;
        let spent = self.reach.pipeline.rt().mono().saturating_sub(self.moved_at);
        let left = self.reach.shop.options.call_patience.saturating_sub(spent);
        (waits && !left.is_zero()).then_some(left)
    }
}

/// What a probe elsewhere said: `{"happened": true, "result": …}`, `{"happened": false}`, or that it can not tell.
fn probe_said(end: CallEnd, result: Option<Value>, why: String) -> Result<Probe, ToolError> {
    if end != CallEnd::Completed {
        return Err(ToolError::Unknown(why));
    }
    let mut said = result.unwrap_or_default();
    Ok(match said["happened"].as_bool() {
        Some(true) => Probe::Happened(said["result"].take()),
        Some(false) => Probe::NotHappened,
        None => {
            let why = said["why"].as_str().unwrap_or("the probe did not say whether it happened");
            Probe::Unclear(why.to_owned())
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_probe_elsewhere_says_yes_no_or_that_it_can_not_tell() {
        let said = |v: Value| probe_said(CallEnd::Completed, Some(v), String::new());
        let yes = said(json!({ "happened": true, "result": 7 }));
        assert_eq!(yes, Ok(Probe::Happened(json!(7))));
        assert_eq!(said(json!({ "happened": false })), Ok(Probe::NotHappened));
        let unclear = said(json!({ "happened": null, "why": "down" }));
        assert_eq!(unclear, Ok(Probe::Unclear("down".into())));
        assert!(matches!(said(json!("yes")), Ok(Probe::Unclear(_))));
        assert!(probe_said(CallEnd::Lost, None, "gone".into()).is_err());
    }
}
