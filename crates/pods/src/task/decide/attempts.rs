//! Attempts: when there is another one, and what the budget has to say about it.

use super::{ASK_AGAIN, Desk, RetryNow, timers};
use crate::{
    budget::{self, BudgetAsk, BudgetRelease},
    pod::{NewPod, Pod, StopWhy},
    task::{
        model::{Ended, TaskEvent, tended_id},
        table::RETRYING,
    },
    verdict::{Cause, CauseClass},
};
use tenure_kernel::{
    machine::Machine as _,
    outbox::{Message, Target},
    stream::Body,
    timers::TimerChange,
};

impl Desk<'_> {
    pub(super) fn want(&mut self, attempt: u32) {
        let pod = tended_id(self.cx.id, attempt);
        let state = &self.state;
        // It may outlive the task: to be stopped, and to be cleaned up.
        let slack =
            state.times.stop_ms.saturating_add(state.cleanup.delay_ms).saturating_add(3_600_000);
        let new = NewPod {
            task: self.cx.id,
            attempt,
            name: state.name.clone(),
            workflow_id: state.workflow_id.clone(),
            tenant_id: state.tenant_id.clone(),
            label: state.label.clone(),
            namespace: state.namespace.clone(),
            cluster: state.cluster.clone(),
            priority: state.priority,
            must_end_in_ms: state.must_end_in_ms.saturating_add(slack),
        };
        let to = Target::Create { id: pod, kind: Pod::TABLE.kind.into() };
        self.out.messages.push(Message { to, kind: "create".into(), body: Body::json(&new) });
        self.say(TaskEvent::PodWanted { attempt, pod });
        self.clear(&[timers::RETRY]);
        self.set(timers::QUEUED, self.state.times.queued_ms);
    }

    /// The attempt failed: either there is another one, or the task has failed.
    pub(super) fn fail(&mut self, ended: Ended, retryable: bool, fenced: bool) {
        let state = &self.state;
        let class = ended.class.unwrap_or(CauseClass::App);
        let mut tally = state.tally.clone();
        tally.count(class, ended.cause);
        if let Err(why) = tally.judge(&state.retry, class, ended.cause, retryable, state.attempt) {
            return self.failed(ended, why, fenced);
        }
        let pause = state.retry.pause(self.cx.id, tally.all());
        let pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
        let why =
            if ended.cause == Some(Cause::Timeout) { StopWhy::Timeout } else { StopWhy::Replaced };
        self.leave_pod(fenced, false, why);
        self.leave_budget();
        self.say(TaskEvent::AttemptFailed { ended, fenced, pause_ms });
        self.clear(&[timers::QUEUED, timers::RUN, timers::WITNESS]);
        // Where pods are made elsewhere nothing is held back until the old one is over: only the next one is waited for.
        if !fenced && !self.state.external {
            self.set(timers::FENCE, self.state.times.fence_ms);
        }
        self.set(timers::RETRY, pause_ms);
        if self.state.external {
            self.set(timers::NEXT_POD, pause_ms.saturating_add(self.state.times.next_pod_ms));
        }
    }

    /// Asks the tenant's budget for a place.
    pub(super) fn ask(&mut self) {
        if self.state.external {
            return self.note("the next pod is made elsewhere");
        }
        self.say(TaskEvent::RetryAsked {});
        let tenant = self.state.tenant_id.clone();
        let ask = BudgetAsk { task: self.cx.id, tenant, terms: self.state.budget };
        let to = Target::Create {
            id: budget::budget_id(&ask.tenant),
            kind: budget::Budget::TABLE.kind.into(),
        };
        let message = Message { to, kind: budget::ASK.into(), body: Body::json(&ask) };
        self.out.messages.push(message);
        self.out.timers.push(TimerChange::set(timers::RETRY, ASK_AGAIN));
    }

    fn waits_for_budget(&self) -> bool {
        let state = &self.state;
        self.status == RETRYING && state.cancel.is_none() && !state.in_budget && state.asked > 0
    }

    pub(super) fn granted(&mut self, answer: &budget::Answer) {
        if !self.waits_for_budget() {
            // One place per task, however often it asked: what it has it keeps.
            if !self.state.in_budget {
                self.release();
            }
            return self.note("budget: a place that nobody waits for");
        }
        self.say(TaskEvent::RetryGranted { after_ms: answer.after_ms });
        match answer.after_ms {
            0 => self.want(self.state.attempt + 1),
            ms => self.set(timers::RETRY, ms),
        }
    }

    pub(super) fn put_off(&mut self, answer: &budget::Answer) {
        if !self.waits_for_budget() {
            return self.note("budget: an answer came too late");
        }
        self.say(TaskEvent::RetryDeferred { after_ms: answer.after_ms });
        self.set(timers::RETRY, answer.after_ms);
    }

    /// The budget wants to know whether the place is still used.
    pub(super) fn still(&mut self) {
        if !self.state.in_budget {
            self.release();
        }
        self.note("budget: asked whether its place is used");
    }

    fn release(&mut self) {
        let to = budget::budget_id(&self.state.tenant_id);
        self.send(to, budget::RELEASE, &BudgetRelease { task: self.cx.id });
    }

    pub(super) fn leave_budget(&mut self) {
        if self.state.in_budget {
            self.release();
        }
    }

    pub(super) fn retry_now(&mut self, now: &RetryNow) {
        if self.status != RETRYING || self.state.cancel.is_some() {
            return self.note("retry now: it does not wait for a retry");
        }
        if now.fenced && self.state.unfenced {
            let by = now.by.as_deref().unwrap_or("somebody");
            self.say(TaskEvent::AttemptFenced { how: format!("{by} vouches for it") });
            self.clear(&[timers::FENCE]);
        }
        if !self.state.pause_over {
            self.say(TaskEvent::PauseOver {});
            self.clear(&[timers::RETRY]);
        }
        if self.state.in_budget {
            return self.note("retry now: the budget has given it its moment");
        }
        match self.state.unfenced {
            true => self.note("retry now: its pod may still run"),
            false => self.ask(),
        }
    }
}
