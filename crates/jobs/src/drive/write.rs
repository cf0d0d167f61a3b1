//! What a run writes: what is pending becomes one commit, and what was committed as started is started. A commit that is
//! refused leaves nothing behind but what tools had returned, which is kept as evidence.

use super::{
    calls::{self, Finished, How, Start, Testimony},
    points,
    run::{Go, Run, Running},
};
use crate::{
    decide::timers,
    model::{Job, JobEvent, limits},
};
use tenure_engine::worker::{Held, HoldError};
use tenure_kernel::{
    machine::Decision,
    outbox::{Message, Target},
    time::Timestamp,
    timers::TimerChange,
};
use tenure_steps::events::{CallOutcome, StepEvent, StepId, What};
use tokio::sync::watch;

impl Run {
    pub async fn commit(&mut self, held: &mut Held) -> Go {
        let pending = std::mem::take(&mut self.pending);
        if pending.events.is_empty() {
            // A question to a tool changes nothing, so there is nothing to write first.
            self.pending = pending;
            let starts = std::mem::take(&mut self.starts);
            self.launch(starts, self.now());
            return Ok(());
        }
        let results = uncommitted(&pending.events);
        let (mut events, mut messages, mut timers) =
            (pending.events, pending.messages, pending.timers);
        let (mut handed, mut before) = (pending.handed, 0);
        while events.len() > limits::EVENTS_PER_COMMIT {
            // Messages and timers go first: a child that was created and is not on record yet is asked for again
            // under the same id; one that is on record and was never created would be waited for in vain.
            let rest = events.split_off(limits::EVENTS_PER_COMMIT);
            before += events.len();
            // But nobody may take a call before it is on record as started: it goes with its event.
            let (now, later) = handed.into_iter().partition(|(at, _)| *at < before);
            handed = later;
            let (sent, kept) = creations_first(now, messages, &handed);
            messages = kept;
            let decision = Decision {
                events: std::mem::replace(&mut events, rest),
                timers: std::mem::take(&mut timers),
                messages: sent,
                ..Decision::default()
            };
            held.record::<Job>(decision, &[]).await?;
        }
        let (messages, _) = creations_first(handed, messages, &[]);
        let mut decision = Decision { events, timers, messages, ..Decision::default() };
        decision.timers.extend(self.guard());
        match held.record::<Job>(decision, &pending.mail).await {
            Ok(Some(committed)) => {
                self.time = (committed.at, self.reach.pipeline.rt().mono());
                self.moved_at = self.time.1;
                self.core.loaded.version = committed.version;
                self.core.driver.set_now(committed.at);
                self.look_for_mail |= committed.mail_waiting > 0;
            }
            Ok(None) => {}
            Err(HoldError::Refused(why)) => {
                self.pending.events = results;
                self.refused(held, why).await?;
                return Err(HoldError::Lost);
            }
            Err(e) => {
                self.pending.events = results;
                return Err(e);
            }
        }
        self.reach.shop.at(points::AFTER_COMMIT).await;
        let starts = std::mem::take(&mut self.starts);
        self.launch(starts, self.time.0);
        if self.reach.shop.options.replay_always && self.core.end.is_none() && !self.is_stopping() {
            self.replay(held).await?;
        }
        Ok(())
    }

    /// The guard over this worker: if nothing is committed for longer than everything that runs may take,
    /// the loop takes the job away, however punctually the session is renewed.
    pub fn guard(&self) -> Option<TimerChange> {
        let running = self.running.values().map(|r| r.timeout);
        let longest = running.chain(self.starts.iter().map(|s| s.timeout)).max()?;
        let slack = self.keeper.config().lease * 2 + self.reach.shop.options.stop_grace;
        Some(TimerChange::guard(timers::PROGRESS, longest + slack))
    }

    /// Starts what is committed.
    pub(super) fn launch(&mut self, starts: Vec<Start>, at: Timestamp) {
        for start in starts {
            if self.stops(&start.step) && start.what == What::Call {
                // Committed as started and never called: not applied, and nobody needs to wonder.
                self.call_over(&start.step, &start.key, start.call, CallOutcome::Cancelled, None);
                self.fail(&start.step, "cancelled", "the job was cancelled".into());
                continue;
            }
            let (stopper, stop) = watch::channel(false);
            let running =
                Running { step: start.step.clone(), stop: stopper.clone(), timeout: start.timeout };
            self.running.insert(start.key.clone(), running);
            let desk = calls::Desk {
                reach: self.reach.clone(),
                keeper: self.keeper.clone(),
                job: self.id,
                tenant: self.tenant.clone(),
                epoch: self.epoch,
                at,
                done: self.tell.clone(),
                stop,
                stopper,
                runs: Some(
                    self.reach.shop.calls.begin(self.id, &start.key, self.epoch, start.call),
                ),
            };
            self.reach.pipeline.rt().spawn(Box::pin(calls::run(desk, start)));
        }
    }

    /// Running tools are told to stop. What they return from here on is evidence, and so is what they have
    /// returned and no commit has taken.
    pub(super) async fn stop_everything(&mut self) {
        self.running.values().for_each(|r| {
            r.stop.send_replace(true);
        });
        self.done.close();
        let mut late: Vec<(String, u32, StepId, Testimony)> = Vec::new();
        // A commit that was to start them was refused, or nobody knows: whether it is there or not, they were not made.
        for start in std::mem::take(&mut self.starts).into_iter().filter(|s| s.what == What::Call) {
            late.push((start.key, start.call, start.step, Testimony::NeverCalled));
        }
        for event in std::mem::take(&mut self.pending.events) {
            if let JobEvent::Step(StepEvent::ToolInvocationFinished {
                step,
                key,
                call,
                result,
                ..
            }) = event
            {
                late.push((key, call, step, result.map_or(Testimony::Over, Testimony::Result)));
            }
        }
        while let Ok(Finished { step, key, call, how }) = self.done.try_recv() {
            match how {
                How::Returned(result) => late.push((key, call, step, Testimony::of(result))),
                How::Gone => late.push((key, call, step, Testimony::Over)),
                // The first is not the end of it; the others say it themselves, or nothing about the call.
                How::TimedOut | How::NotCalled | How::Probed(_) | How::Compensated(_) => {}
            }
        }
        for (key, call, step, says) in late {
            let said = calls::Late { job: self.id, epoch: self.epoch, key, call, step, says };
            calls::testify(&self.reach, &self.keeper, said).await;
        }
    }
}

/// Results in events that are about to be committed: if they are not, they are evidence.
fn uncommitted(events: &[JobEvent]) -> Vec<JobEvent> {
    let is_result = |e: &&JobEvent| {
        matches!(
            e,
            JobEvent::Step(StepEvent::ToolInvocationFinished { outcome: CallOutcome::Success, .. })
        )
    };
    events.iter().filter(is_result).cloned().collect()
}

/// What is sent: new calls first, then the rest, because a cancel that comes before what it is for is lost. What is for a
/// call that is created later is kept until then.
pub(crate) fn creations_first(
    created: Vec<(usize, Message)>,
    messages: Vec<Message>,
    later: &[(usize, Message)],
) -> (Vec<Message>, Vec<Message>) {
    let to = |m: &Message| match m.to {
        Target::Mail(id) | Target::Create { id, .. } => Some(id),
        Target::Wire(_) => None,
    };
    let waits = |m: &Message| to(m).is_some_and(|id| later.iter().any(|(_, c)| to(c) == Some(id)));
    let (kept, now): (Vec<_>, Vec<_>) = messages.into_iter().partition(waits);
    let first = created.into_iter().map(|(_, m)| m);
    (first.chain(now).collect(), kept)
}
