//! A cancelled job that does not know what became of one of its steps. Where nothing would undo the step, it is listed as
//! unknown and that is all: to call again what nobody wants any more helps nobody. A step of a saga is another matter. If it
//! happened it has to be undone, and what undoes it follows from its result, which is known to nobody but the tool. So
//! before anything is undone, each such call is settled as after any takeover: by what is on record or came late, then by
//! its class. What turns out to have happened is told to the flow, which says what undoes it.
//!
//! An idempotent tool is called again, although the job is cancelled: under the same key that gives the result of the
//! first call, or makes happen what is then undone. Only a result settles it. That the second call was not applied says
//! nothing about the first.
//!
//! A cancel waits for no person, and not for ever: after [`LOOKS_MAX`] looks, and at once where only a person could say,
//! the step stays listed as unknown and the others are undone. The same goes for a step that undoes.

use super::{
    rest::patience,
    run::{Go, Next, Run, Stuck},
    settling::tool_name,
};
use crate::{decide::timers, model::OwnEvent};
use serde_json::Value;
use std::time::Duration;
use tenure_engine::worker::{Held, HoldError};
use tenure_kernel::{machine::Decision, timers::TimerChange};
use tenure_steps::{
    events::{SettledBy, StepId, Verdict},
    history::Call,
    saga::Undo,
    settle::LOOK_AGAIN,
    tool::ToolError,
};

/// Looks at a call that only time can settle: with the growing pauses between them, some minutes.
pub const LOOKS_MAX: u32 = 4;

impl Run {
    /// Whether a cancel has stopped this step: it never begins again. One that undoes goes on in every case.
    pub(crate) fn was_stopped(&self, step: &StepId) -> bool {
        self.only_stops() && !Undo::is_undo(step)
    }

    /// Whether it is being found out what became of this step.
    pub(crate) fn finds_out(&self, step: &StepId) -> bool {
        self.finding.contains(step)
    }

    /// Whether nothing is done about this step.
    pub(crate) fn stops(&self, step: &StepId) -> bool {
        self.was_stopped(step) && !self.finds_out(step)
    }

    /// Steps that would have to be undone if they happened, and of which that is not known. Only a flow that still waits for
    /// one can say what undoes it.
    fn unsure(&self) -> Vec<StepId> {
        let undoable = |step: &StepId| {
            self.core.asks.get(step).is_some_and(|a| a.ask.is_undoable())
                && self.core.driver.awaits(step)
                && !self.unknowable.contains(step)
        };
        let open = self.state().calls.iter().map(|c| c.step.clone());
        open.filter(|step| self.core.end.is_none() && undoable(step)).collect()
    }

    /// What has to be found out of a cancelled job of which nothing runs; `None` when that is nothing.
    pub(super) async fn find_out(&mut self, held: &mut Held) -> Result<Option<Next>, HoldError> {
        let unsure = if self.undoing { Vec::new() } else { self.unsure() };
        if unsure.is_empty() {
            self.finding.clear();
            return Ok(None);
        }
        if !self.pending.events.is_empty() {
            self.commit(held).await?;
            return Ok(Some(Next::Again));
        }
        if self.draining {
            let later = Decision::event(OwnEvent::JobUndoing { lost: false, losses: None }.into());
            return self.give_up(held, later, "the worker stops").await.map(Some);
        }
        let fresh: Vec<_> = unsure.iter().filter(|s| !self.finding.contains(*s)).cloned().collect();
        if !fresh.is_empty() {
            for step in fresh {
                self.look_at(step).await?;
            }
            return Ok(Some(Next::Again));
        }
        if !self.limited.is_empty() {
            self.wait(held).await?;
            return Ok(Some(Next::Again));
        }
        let (hopeless, hopeful): (Vec<_>, Vec<_>) =
            unsure.into_iter().partition(|step| self.again_in(step).is_none());
        if !hopeless.is_empty() {
            self.unknowable.extend(hopeless);
            return Ok(Some(Next::Again));
        }
        let soonest = hopeful.iter().filter_map(|step| self.again_in(step)).min();
        let look = TimerChange::set(timers::RECHECK, soonest.unwrap_or(LOOK_AGAIN));
        self.give_up(held, Decision::default().timer(look), "finding out").await.map(Some)
    }

    async fn look_at(&mut self, step: StepId) -> Go {
        if let Some(tool) = self.core.asks.get(&step).and_then(|a| tool_name(a))
            && self.reach.shop.tools.get(&tool).is_none()
        {
            self.know(&tool).await?;
        }
        self.finding.insert(step.clone());
        self.core.queue.push_back(step);
        Ok(())
    }

    /// When the answer may be another; never, after enough looks at this very step.
    pub(super) fn again_in(&self, step: &StepId) -> Option<Duration> {
        let stuck = self.stuck.iter().find(|s| s.step == *step);
        let again = stuck.map_or(Some(LOOK_AGAIN), |s| s.again_in)?;
        let looks = self.core.loaded.looks.get(step).copied().unwrap_or(0);
        (looks < LOOKS_MAX).then(|| patience(again, looks))
    }

    fn stick(&mut self, step: &StepId, why: String, again_in: Option<Duration>) {
        self.stuck.retain(|s| s.step != *step);
        self.stuck.push(Stuck { step: step.clone(), why, again_in });
    }

    /// Calls an idempotent tool again, to know what it gave.
    pub(super) async fn call_to_find_out(&mut self, step: &StepId, call: &Call, mine: bool) -> Go {
        let Some(asked) = self.core.asks.get(step).cloned().filter(|_| self.finds_out(step)) else {
            return Ok(());
        };
        let calls = self.core.loaded.history.steps.get(step).map_or(0, |r| r.calls.len());
        if calls > self.retry_max(step) as usize {
            self.stick(step, format!("{calls} calls, and none with a known outcome"), None);
        } else if mine {
            self.stick(step, "nobody knows whether it happened".into(), Some(LOOK_AGAIN));
        } else if self.admitted(&asked).await? {
            self.settled(step, call, Verdict::CalledAgain, SettledBy::Class, None, None);
            self.start_call(&asked, call.ordinal, call.call + 1).await?;
        }
        Ok(())
    }

    /// What a call said that was not the first under its key, while the job is cancelled.
    pub(super) fn found_out(&mut self, step: &StepId, said: Result<Value, ToolError>) {
        let (why, again_in) = match said {
            Ok(value) => {
                if let Some(open) = self.open_call(step) {
                    self.succeed(step, &open, value);
                }
                return;
            }
            Err(ToolError::Permanent(why)) => (why, None),
            Err(e) => (e.to_string(), Some(LOOK_AGAIN)),
        };
        self.unknown(step, format!("called again, which says nothing about the first call: {why}"));
        self.stick(step, why, again_in);
    }
}
