//! How a run comes to rest: its flow ends, it is cancelled, or nothing is left to do but to wait.

use super::{
    begin::commit_park,
    load::Loaded,
    run::{Core, Go, Next, Pending, Run, Still},
};
use crate::{
    decide::{self, timers},
    model::{Attention, Failure, Job, JobEvent, OpenTimer, OwnEvent, limits},
};
use std::{collections::BTreeSet, time::Duration};
use tenure_engine::worker::{Held, HoldError};
use tenure_kernel::{limits as kernel_limits, machine::Decision, timers::TimerChange};
use tenure_steps::{
    driver::{Driver, End, Turn},
    events::{StepId, TimerWhy},
    flow::FlowError,
    settle::LOOK_AGAIN,
};

impl Run {
    pub(super) fn too_long(&self) -> Option<Failure> {
        let (events, bytes) = (self.state().events, self.core.loaded.bytes);
        if events <= limits::EVENTS_MAX && bytes <= limits::HISTORY_BYTES_MAX {
            if events == limits::EVENTS_MAX / 2 {
                tracing::warn!(job = %self.id, events, bytes, "half of what one run may record; see ctx.continue_with");
            }
            return None;
        }
        Some(Failure {
            reason: "history_too_long".into(),
            error: format!(
                "{events} events with {bytes} bytes in one run; the limits are {} and {}: a long loop starts                  afresh with ctx.continue_with",
                limits::EVENTS_MAX,
                limits::HISTORY_BYTES_MAX
            ),
            step: None,
            unknown: self.state().open_steps(),
            abandoned: u32::try_from(self.state().children.len()).unwrap_or(u32::MAX),
        })
    }

    pub(super) fn ending(&self) -> OwnEvent {
        let abandoned = u32::try_from(self.state().children.len()).unwrap_or(u32::MAX);
        let clip = |text: &str| kernel_limits::clip(text, 4_096).to_owned();
        let failed = |reason: &str, error: String, step: Option<StepId>| {
            let (reason, unknown) = (reason.to_owned(), Vec::new());
            OwnEvent::JobFailed(Failure { reason, error, step, unknown, abandoned })
        };
        match &self.core.end {
            Some(End::Returned(Ok(output))) => {
                OwnEvent::JobCompleted { output: output.clone(), abandoned }
            }
            Some(End::Returned(Err(FlowError::Step(e)))) => {
                failed("step_failed", clip(&e.why), Some(e.step.clone()))
            }
            Some(End::Returned(Err(e))) => failed("flow_failed", clip(&e.to_string()), None),
            Some(End::Diverged(_) | End::Broken(_)) | None => {
                failed("flow_failed", "the flow did not end".into(), None)
            }
        }
    }

    /// The final commit. It covers all mail; if more comes meanwhile, that is read first.
    pub(super) async fn end_with(
        &mut self,
        held: &mut Held,
        end: OwnEvent,
    ) -> Result<Next, HoldError> {
        let mut decision = Decision::default();
        decision.events.clone_from(&self.pending.events);
        decision.messages.clone_from(&self.pending.messages);
        let decision = decide::finish(self.state(), decision, end, self.id);
        match held.record::<Job>(decision, &self.pending.mail).await {
            Ok(_) => {
                // All of it is recorded: nothing of it came late.
                self.pending = Pending::default();
                Ok(Next::Over)
            }
            Err(HoldError::MoreMail) => {
                self.look_for_mail = true;
                Ok(Next::Again)
            }
            Err(HoldError::Refused(why)) => {
                self.refused(held, why).await?;
                Ok(Next::Over)
            }
            Err(e) => Err(e),
        }
    }

    /// The store will never take this commit: the job says so instead of trying for ever.
    pub(super) async fn refused(&mut self, held: &mut Held, why: String) -> Go {
        tracing::warn!(job = %self.id, %why, "a commit was refused");
        let failure = Failure {
            reason: "refused".into(),
            error: kernel_limits::clip(&why, 2_048).to_owned(),
            step: None,
            unknown: held.state::<Job>()?.open_steps(),
            abandoned: u32::try_from(self.state().children.len()).unwrap_or(u32::MAX),
        };
        let end = OwnEvent::JobFailed(failure);
        let state = held.state::<Job>()?;
        let decision = decide::finish(&state, Decision::default(), end, self.id).regardless();
        held.record::<Job>(decision, &[]).await.map(|_| ())
    }

    /// It can not go on: it stops as if it were cancelled, and fails when what it had done is undone.
    pub(super) async fn fail_for_good(
        &mut self,
        held: &mut Held,
        failure: Failure,
    ) -> Result<Next, HoldError> {
        if self.state().undos == 0 {
            return self.end_with(held, OwnEvent::JobFailed(failure)).await;
        }
        self.stop(OwnEvent::JobFailing(failure));
        Ok(Next::Again)
    }

    /// Waits for running tools, finds out what is not known, undoes, then ends; open children are waited for without a
    /// holder.
    pub(super) async fn cancelling(&mut self, held: &mut Held) -> Result<Next, HoldError> {
        if !self.running.is_empty() || !self.starts.is_empty() {
            if !self.pending.events.is_empty() || !self.starts.is_empty() {
                self.commit(held).await?;
                return Ok(Next::Again);
            }
            self.wait(held).await?;
            return Ok(Next::Again);
        }
        if !self.state().children.is_empty() || self.state().is_out() {
            if !self.pending.events.is_empty() {
                self.commit(held).await?;
                return Ok(Next::Again);
            }
            return self.give_up(held, Decision::default(), "waiting for others").await;
        }
        if let Some(next) = self.find_out(held).await? {
            return Ok(next);
        }
        if let Some(next) = self.undo(held).await? {
            return Ok(next);
        }
        let words = self.core.loaded.history.undone().words();
        let end = decide::stopped(self.state(), self.undone(), &words);
        self.end_with(held, end).await
    }

    /// Gives up the job, with what is pending beside events. A commit that is refused because of mail has recorded
    /// nothing: timers and messages stay pending then, or a sleep that was asked for would never end.
    pub(super) async fn give_up(
        &mut self,
        held: &mut Held,
        mut decision: Decision<JobEvent>,
        why: &str,
    ) -> Result<Next, HoldError> {
        decision.timers.splice(0..0, self.pending.timers.iter().cloned());
        decision.messages.splice(0..0, self.pending.messages.iter().cloned());
        let decision = decision.timer(TimerChange::clear(timers::PROGRESS));
        match commit_park(held, decision, why, Some(self.seen)).await {
            Ok(version) => {
                self.pending.timers.clear();
                self.pending.messages.clear();
                self.core.loaded.version = version;
                Ok(Next::Over)
            }
            Err(HoldError::MoreMail) => {
                self.look_for_mail = true;
                Ok(Next::Again)
            }
            Err(e) => Err(e),
        }
    }

    /// Nothing is left to do but to wait: for a person, for time, for somebody.
    pub(super) async fn park(&mut self, held: &mut Held) -> Result<Next, HoldError> {
        let broken = matches!(self.core.end, Some(End::Diverged(_) | End::Broken(_)));
        if self.draining && self.stuck.is_empty() && !broken && !self.only_waits() {
            held.release("the worker stops").await?;
            return Ok(Next::Over);
        }
        let mut decision = Decision::default();
        // A flow that has ended and waits for calls to be settled is not there any more.
        let mut keep = self.core.end.is_none();
        let why;
        let event = if let Some(attention) = self.attention() {
            if let Some(ms) = attention.again_in_ms {
                decision.timers.push(TimerChange::set(timers::RECHECK, Duration::from_millis(ms)));
            }
            // Whoever looks next looks from the start: code or knowledge may be another by then.
            keep = false;
            why = "attention";
            OwnEvent::JobAttention(attention)
        } else if let Some(ask) = &self.pause {
            decision.timers.push(TimerChange::ClearAll);
            why = "pause";
            OwnEvent::JobParked { why: "pause".into(), by: ask.by.clone() }
        } else if let Some(retry) = self.state().timers.iter().find(|t| t.why == TimerWhy::Retry) {
            why = "retrying";
            OwnEvent::JobRetrying { step: retry.step.clone() }
        } else if self.is_long() {
            why = "parked";
            OwnEvent::JobParked { why: "wait".into(), by: None }
        } else {
            why = "waiting";
            OwnEvent::JobWaiting { keys: self.keys() }
        };
        decision.events.push(event.into());
        let next = self.give_up(held, decision, why).await?;
        if next == Next::Over && keep {
            self.remember();
        }
        Ok(next)
    }

    pub(super) fn only_waits(&self) -> bool {
        self.core.queue.is_empty()
    }

    pub(super) fn keys(&self) -> Vec<String> {
        let state = self.state();
        let mut keys: Vec<String> = state.waits.iter().map(|w| w.key.clone()).collect();
        let limited = |t: &&OpenTimer| t.why == TimerWhy::Limit;
        let tools: BTreeSet<_> =
            state.timers.iter().filter(limited).filter_map(|t| t.tool.as_deref()).collect();
        keys.extend(tools.into_iter().map(|tool| format!("limit:{tool}")));
        let others = state.timers.iter().any(|t| !limited(&t));
        keys.extend(others.then(|| "timer".to_owned()));
        keys.extend((!state.children.is_empty()).then(|| "child".to_owned()));
        keys.extend(
            state.calls.iter().filter(|c| c.out.is_some()).map(|c| format!("call:{}", c.tool)),
        );
        keys.dedup();
        keys
    }

    /// Whether the nearest thing that can happen by itself is far away.
    pub(super) fn is_long(&self) -> bool {
        if !self.state().children.is_empty() || self.state().is_out() {
            return false;
        }
        let open =
            self.core.loaded.history.steps.values().filter(|r| r.outcome.is_none() && !r.dropped);
        let soonest = open.filter_map(|r| r.timer.map(|(_, at)| at).or(r.deadline)).min();
        let now = self.now();
        soonest.is_none_or(|at| at.since(now) > self.reach.shop.options.park_after)
    }

    pub(super) fn attention(&self) -> Option<Attention> {
        let broken = |reason: &str, step: Option<StepId>, why: String| {
            let why = kernel_limits::clip(&why, 2_048).to_owned();
            Attention { reason: reason.into(), step, why, again_in_ms: None }
        };
        match &self.core.end {
            Some(End::Diverged(d)) => {
                return Some(broken("diverged", Some(d.step.clone()), d.to_string()));
            }
            Some(End::Broken(why)) => return Some(broken("broken", None, why.clone())),
            Some(End::Returned(_)) | None => {}
        }
        let first = self.stuck.first()?;
        let again = self.stuck.iter().filter_map(|s| s.again_in).min();
        Some(Attention {
            reason: "unknown_outcome".into(),
            step: Some(first.step.clone()),
            why: first.why.clone(),
            again_in_ms: again.map(|d| {
                let wait = patience(d, self.state().looks);
                u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
            }),
        })
    }

    /// Keeps the flow in memory for whoever claims the job next in this process.
    pub(super) fn remember(&mut self) {
        if self.reach.shop.options.replay_always {
            return;
        }
        let empty = Loaded::default();
        let loaded = std::mem::replace(&mut self.core.loaded, empty);
        let version = loaded.version;
        let bytes = usize::try_from(loaded.bytes).unwrap_or(usize::MAX).saturating_add(4_096);
        let core = Core {
            loaded,
            driver: std::mem::replace(&mut self.core.driver, Driver::none()),
            asks: std::mem::take(&mut self.core.asks),
            delivered: self.core.delivered,
            end: None,
            queue: std::mem::take(&mut self.core.queue),
            first: None,
        };
        let (epoch, starts, turn) = (self.epoch, Vec::new(), Turn::default());
        let still = Still { core, version, epoch, bytes, starts, turn };
        self.reach.shop.memory.keep(self.id, still);
    }
}

/// When to look again, after so many looks. Less and less often: what has not cleared up in an hour will hardly do so in
/// seconds.
pub(super) fn patience(again_in: Duration, looks: u32) -> Duration {
    let patience = LOOK_AGAIN * 2u32.saturating_pow(looks.min(8));
    let wait = if looks == 0 { again_in } else { again_in.max(patience) };
    wait.max(Duration::from_millis(100))
}
