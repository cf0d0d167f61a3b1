//! What comes to a run from outside: a tool that has finished, mail, the end of the worker, a moment. And what each mail
//! leads to while the job is held.

use super::{
    run::{Go, Run},
    settling::Learnt,
};
use crate::{
    decide::{self, AskMail, MailSays, timers},
    model::{JobEvent, OwnEvent},
};
use tenure_engine::{
    session::Hint,
    worker::{Held, HoldError},
};
use tenure_kernel::{
    limits as kernel_limits,
    mail::Mail,
    runtime::{First, first},
    timers::TimerChange,
};
use tenure_steps::{
    events::{StepEvent, StepId},
    saga::Undo,
};

impl Run {
    pub async fn wait(&mut self, held: &mut Held) -> Go {
        let rt = self.reach.pipeline.rt().clone();
        // Nobody tells a process that its lease has lapsed: it looks itself, well within the margin.
        let look = self.keeper.config().lease / 20;
        let next = [self.patience_left(), self.next_limited()].into_iter().flatten().min();
        let look = rt.sleep(next.map_or(look, |next| next.min(look)));
        let stopping = held.until_stopping();
        let draining = self.draining;
        let drain = async {
            if draining {
                std::future::pending::<()>().await;
            }
            stopping.await;
        };
        let came = first(self.done.recv(), first(held.wait_for_mail(), first(drain, look))).await;
        match came {
            First::Left(Some(finished)) => self.finished(finished).await,
            First::Left(None) => Err(HoldError::Lost),
            First::Right(First::Left(Hint::Lost)) => Err(HoldError::Lost),
            First::Right(First::Left(_)) => {
                self.look_for_mail = true;
                Ok(())
            }
            First::Right(First::Right(First::Left(()))) => {
                self.draining = true;
                Ok(())
            }
            First::Right(First::Right(First::Right(()))) => Ok(()),
        }
    }

    pub(super) async fn read_mail(&mut self, held: &mut Held) -> Go {
        if !self.look_for_mail {
            return Ok(());
        }
        self.look_for_mail = false;
        let unread = match held.unread().await {
            Err(HoldError::Store(e)) if e.is_transient() => {
                // Mail is durable: it is read when the store is back. Nothing that depends on having read it
                // all gets past the store meanwhile.
                tracing::debug!(job = %self.id, error = %e, "mail can not be read now");
                self.look_for_mail = true;
                return Ok(());
            }
            other => other?,
        };
        let fresh: Vec<Mail> = unread.into_iter().filter(|m| m.seq > self.seen).collect();
        for mail in fresh {
            self.seen = mail.seq;
            let says = decide::read_mail(self.state(), &mail, self.id);
            self.pending.mail.push(mail);
            self.mail_says(says).await?;
        }
        Ok(())
    }

    async fn mail_says(&mut self, says: MailSays) -> Go {
        match says {
            MailSays::Cancel(AskMail { by, why }) if !self.is_stopping() => {
                self.stop(OwnEvent::JobCancelling { by, why });
            }
            MailSays::Cancel(_) => self.note("cancel: it is being cancelled"),
            MailSays::Pause(_) if self.is_stopping() => {
                self.note("pause: it is being cancelled");
            }
            MailSays::Pause(ask) => {
                self.record(OwnEvent::PauseAsked { by: ask.by.clone() });
                self.pause = Some(ask);
            }
            // A job that runs is past its gate.
            MailSays::Nothing(why) | MailSays::GateClosed(why) => self.note(&why),
            MailSays::GateNotNow => self.note("gate_granted: it does not wait for a gate"),
            MailSays::Evidence(key) => {
                self.note(&format!("evidence: for {key}"));
                let stuck: Vec<StepId> = self.stuck.iter().map(|s| s.step.clone()).collect();
                for step in stuck {
                    // It says something about its own call, and nothing about who is dead.
                    self.settle(&step, Learnt::default()).await?;
                }
            }
            MailSays::CallEnded(mail) => self.came_back(*mail).await?,
            MailSays::Timer(name) => {
                self.pending.timers.push(TimerChange::clear(name.clone()));
                match decide::timer_events(self.state(), &name) {
                    Some(event) => self.take_in(event).await?,
                    None => self.note(&format!("timer_due: nobody waits for {name}")),
                }
            }
            MailSays::Events(events) => {
                for event in events {
                    self.take_in(event).await?;
                }
            }
        }
        Ok(())
    }

    /// An event from outside, and what it sets in motion.
    async fn take_in(&mut self, event: JobEvent) -> Go {
        let moved = match &event {
            JobEvent::Step(StepEvent::WaitCompleted { step, .. }) => {
                self.pending.timers.push(TimerChange::clear(timers::wait(step)));
                None
            }
            JobEvent::Step(
                StepEvent::TimerFired { step } | StepEvent::EffectSettled { step, .. },
            ) => {
                let step = step.clone();
                self.stuck.retain(|s| s.step != step);
                Some(step)
            }
            _ => None,
        };
        if matches!(event, JobEvent::Own(OwnEvent::JobResumed { .. })) {
            self.pause = None;
        }
        self.record(event);
        if let Some(step) = moved {
            self.core.queue.push_back(step);
        }
        Ok(())
    }

    fn note(&mut self, what: &str) {
        let what = kernel_limits::clip(what, 256).to_owned();
        self.record(OwnEvent::MailNoted { what });
    }

    /// With this event it begins to stop.
    pub(super) fn stop(&mut self, event: OwnEvent) {
        self.pending.messages.extend(decide::cancel_others(self.state(), self.id));
        self.record(event);
        self.pending.timers.push(TimerChange::ClearAll);
        // A pause that was asked for before does not hold it back.
        self.pause = None;
        self.core.queue.clear();
        // What undoes goes on: that is what a cancel wants as well.
        self.running.values().filter(|r| !Undo::is_undo(&r.step)).for_each(|r| {
            r.stop.send_replace(true);
        });
    }
}
