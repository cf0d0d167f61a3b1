//! What time alone leads to.

use super::{Desk, timers};
use crate::{
    task::{
        model::{Ended, OnLost, TaskEvent},
        policy::NoRetry,
        table::{PENDING, QUEUED, RETRYING, RUNNING},
    },
    verdict::{Cause, CauseClass, TaskStatus},
};
use tenure_kernel::timers::TimerChange;

impl Desk<'_> {
    pub(super) fn timer(&mut self, name: &str) {
        let synthetic = |cause, class, rule: &str, message: String| Ended {
            status: Some(TaskStatus::Failed),
            cause: Some(cause),
            class: Some(class),
            rule: rule.to_owned(),
            message,
            ..Ended::default()
        };
        // Once somebody wants it to end only the end of that matters, and it is never called a failure.
        let goes_on = self.state.cancel.is_none();
        match name {
            // Its pod is missing: that it did not start, or runs for long, is not what ended it.
            timers::WITNESS | timers::QUEUED | timers::RUN
                if goes_on && self.state.inferred.is_some() =>
            {
                self.take_inferred();
            }
            timers::QUEUED if goes_on && self.status == QUEUED => {
                let ms = self.state.times.queued_ms;
                let said = format!("no container of it ran within {} s", ms / 1_000);
                let (cause, class) = (Cause::StartTimeout, CauseClass::Infra);
                self.fail(synthetic(cause, class, "task:queued", said), true, false);
            }
            timers::RUN if goes_on && self.status == RUNNING => {
                let ms = self.state.timeout_ms.unwrap_or_default();
                let said = format!("it ran for more than {} s", ms / 1_000);
                let mut ended = synthetic(Cause::Timeout, CauseClass::Timeout, "task:run", said);
                ended.started = true;
                self.fail(ended, true, false);
            }
            timers::RETRY if goes_on && self.status == RETRYING && self.state.in_budget => {
                self.want(self.state.attempt + 1);
            }
            timers::RETRY if goes_on && self.status == RETRYING => {
                if !self.state.pause_over {
                    self.say(TaskEvent::PauseOver {});
                }
                self.clear(&[timers::RETRY]);
                if !self.state.unfenced {
                    self.ask();
                }
                if self.out.events.is_empty() {
                    self.note("its pod may still run");
                }
            }
            timers::FENCE if goes_on && self.status == RETRYING && self.state.unfenced => {
                match (self.state.on_lost, self.state.ended.clone()) {
                    (OnLost::Replace, _) | (_, None) => {
                        self.give_up_pod(false);
                        self.fenced("it is not known, and the task may run twice");
                    }
                    (OnLost::Wait, Some(ended)) => self.failed(ended, NoRetry::NotFenced, false),
                }
            }
            timers::STOP if self.state.cancel.is_some() => {
                let (ask, ended) = (self.state.cancel.clone(), self.state.ended.clone());
                self.canceled(ask.unwrap_or_default(), ended, false);
            }
            timers::NEXT_POD if goes_on && self.status == RETRYING => {
                let ended = self.state.ended.clone().unwrap_or_default();
                let fenced = !self.state.unfenced;
                self.failed(ended, NoRetry::NoPodCame, fenced);
            }
            other => {
                self.out.timers.push(TimerChange::clear(other.to_owned()));
                self.note(&format!("timer {other}: nobody waits for it"));
            }
        }
    }

    pub(super) fn must_end(&mut self) {
        let inferred = self.state.inferred.clone();
        let gone = inferred.as_ref().is_some_and(|i| i.fenced);
        let known = self.state.ended.clone();
        let known = known.or(inferred.map(|i| Ended { inferred: true, ..i.ended }));
        let ended = known.unwrap_or_else(|| Ended {
            status: Some(TaskStatus::Failed),
            cause: Some(Cause::Timeout),
            class: Some(CauseClass::Timeout),
            started: self.status == RUNNING,
            rule: "task:must_end_by".into(),
            message: format!("it was {} when its time was up", self.status),
            ..Ended::default()
        });
        let fenced = match self.status {
            PENDING => true,
            RETRYING => !self.state.unfenced,
            _ => gone,
        };
        match self.state.cancel.clone() {
            Some(ask) => self.canceled(ask, Some(ended), fenced),
            None => self.failed(ended, NoRetry::Deadline, fenced),
        }
    }
}
