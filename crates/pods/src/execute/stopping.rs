//! What becomes of a pod: stopped, cleaned up, kept for a while, or left.
//!
//! A pod that is not over is marked before it is deleted, so that whoever sees it go knows that we did it and why. Every request
//! names the uid: another pod that took the name is never touched.
//!
//! A pod on a node that does not answer stays, deleted on paper, until the node is back, is removed, or is marked out of
//! service; we wait. By force it is taken away only where somebody bears it: that takes the *object* away, the containers may run
//! on, and the one trace of them is gone. The task bears it where it says that a second pod beside the first does no harm
//! (`on_lost: replace`), once it has waited in vain; else a person, with a reason. And only a pod that was told to go
//! and has had all the time that it asked for.
//!
//! **What is taken away by force is not fenced.** The intent is on record, and lies in the task's mail, before the API server is
//! asked: whoever sees the object gone after that, the next executor or a collector, can not be taken for a witness of its end.

use super::{
    cluster::{Delete, Trouble},
    run::{Go, Halt, Run},
    shop::points,
    tending::Watched,
};
use crate::{
    pod::{
        NewPod, Pod as PodMachine, PodEvent, PodState, PodStop, Says, StopWhy,
        decide::{CLEAN, gone},
    },
    report::labels,
    verdict::deletion_due,
};
use serde_json::json;
use std::time::Duration;
use tenure_engine::worker::HoldError;
use tenure_kernel::{
    commit::{MailStance, TenureChange},
    machine::{Decision, Machine as _, encode_state},
    stream::{Body, NewEvent},
    table::kernel_events as ke,
    time::Timestamp,
    timers::TimerChange,
};

/// A deletion that has not shown is asked for again after so long.
pub(super) const ASK_AGAIN: Duration = Duration::from_secs(30);

/// How often the mark on a pod may be refused before the pod is deleted without it.
const MARK_TRIES: u32 = 5;

/// How long an object that is over may be held by a finalizer of others before we are done with it.
pub(super) const HELD_BY_OTHERS: Duration = Duration::from_secs(300);

impl Run {
    /// Does what was asked, as far as it can be done now.
    pub(super) async fn carry_out_stop(&mut self, new: &NewPod, w: &mut Watched) -> Go {
        let state = self.state()?;
        let Some(stop) = state.stop else { return Ok(()) };
        if w.pod.is_none() {
            // Nobody is stopped unseen: it may have ended long ago.
            self.confirm(new, w).await?;
            self.judge(new, w).await?;
        }
        if !state.over && w.over_since.is_some() {
            // The rest of its log first; that is bounded.
            return Ok(());
        }
        let now = stop.delete_after_ms == Some(0);
        // Once begun it is carried through: what it leaves behind was stopped by us.
        if state.marked || w.deleted_at.is_some() || now && !state.over {
            return self.delete(new, w, stop).await;
        }
        if !state.over {
            // Its task knows more than we: what it knows will show here, too.
            return Ok(());
        }
        if !now && !w.is_terminal() {
            let since = *w.over_since.get_or_insert(self.mono());
            // Something beside the main container still runs; and would for ever.
            if self.mono() < since + self.shop.patience.linger {
                return Ok(());
            }
            return self.delete(new, w, stop).await;
        }
        match stop.delete_after_ms {
            None => self.finish(vec![PodEvent::PodLeft {}], None).await,
            Some(0) => self.delete(new, w, stop).await,
            Some(ms) => self.keep_for(ms).await,
        }
    }

    async fn delete(&mut self, new: &NewPod, w: &mut Watched, stop: PodStop) -> Go {
        let state = self.state()?;
        let leaves = w.pod.as_ref().is_some_and(|p| p.metadata.deletion_timestamp.is_some());
        if let Some(since) = w.deleted_at {
            let waited = self.mono().saturating_sub(since);
            if leaves && w.is_terminal() && state.over && waited >= HELD_BY_OTHERS {
                let how = "it is over; somebody's finalizer still holds the object".to_owned();
                let says = gone(&how);
                return self.finish(vec![PodEvent::PodCleared { how }], Some(says)).await;
            }
            if leaves && self.may_force(&state, w) {
                return self.force(new, w, &state).await;
            }
            if leaves || waited < ASK_AGAIN {
                return Ok(());
            }
        }
        if !w.is_terminal() && !state.marked && !w.unmarkable {
            self.mark(new, w, stop).await?;
        }
        if !self.held.may_act() {
            return Err(HoldError::Lost.into());
        }
        let cluster = self.shop.cluster.clone();
        match self.ask(cluster.delete(&w.at, &w.uid, Delete::Gently)).await {
            Ok(()) => {
                self.shop.at(points::DELETED).await;
                self.shop.counts.deleted.add(1);
                w.tries = 0;
                w.deleted_at = Some(self.mono());
                Ok(())
            }
            Err(Trouble::Missing | Trouble::Conflict(_)) => self.confirm(new, w).await,
            Err(trouble) => {
                let mut tries = w.tries;
                self.put_off(&trouble, &mut tries).await?;
                (w.tries, w.again) = (tries, true);
                Ok(())
            }
        }
    }

    /// When a pod that was told to go may be taken away by force, if it is asked for. A person does not wait any longer than the pod
    /// itself asked for; the task's own word counts when everybody else would call the pod stuck.
    pub(super) fn force_due(&self, state: &PodState, w: &Watched) -> Option<Timestamp> {
        let ask = state.force.as_ref()?;
        let due = deletion_due(w.pod.as_ref()?)?;
        let margin = match ask.by {
            Some(_) => 0,
            None => self.policy.terminating_grace_seconds,
        };
        Some(due + Duration::from_secs(margin))
    }

    fn may_force(&self, state: &PodState, w: &Watched) -> bool {
        let due = self.force_due(state, w).is_some_and(|due| self.now() >= due);
        let asked = w.forced_at.is_some_and(|at| self.mono() < at + HELD_BY_OTHERS);
        due && !asked && !w.is_terminal()
    }

    /// Takes the object away, whatever its node says.
    async fn force(&mut self, new: &NewPod, w: &mut Watched, state: &PodState) -> Go {
        if !state.forced {
            self.record(Decision::event(PodEvent::PodForced {})).await?;
        }
        if !w.force_told {
            self.say(Says::Forced(state.force.clone().unwrap_or_default())).await?;
            w.force_told = true;
        }
        self.shop.at(points::FORCING).await;
        if !self.held.may_act() {
            return Err(HoldError::Lost.into());
        }
        tracing::warn!(pod = %w.at.name, uid = %w.uid, "taken away by force; it may still run on its node");
        let cluster = self.shop.cluster.clone();
        match self.ask(cluster.delete(&w.at, &w.uid, Delete::ByForce)).await {
            Ok(()) => {
                self.shop.counts.forced.add(1);
                w.tries = 0;
                w.forced_at = Some(self.mono());
                Ok(())
            }
            Err(Trouble::Missing | Trouble::Conflict(_)) => self.confirm(new, w).await,
            Err(trouble) => {
                let mut tries = w.tries;
                self.put_off(&trouble, &mut tries).await?;
                (w.tries, w.again) = (tries, true);
                Ok(())
            }
        }
    }

    /// Writes on the pod that we delete it, and why. A cluster that refuses the mark (a webhook, a missing right) does not keep
    /// the pod alive by that: after a few tries it is deleted without.
    async fn mark(&mut self, new: &NewPod, w: &mut Watched, stop: PodStop) -> Go {
        let name = match stop.why {
            StopWhy::Cancel => self.policy.cancel_annotation.clone(),
            StopWhy::Over | StopWhy::Timeout | StopWhy::Replaced => labels::STOPPED.to_owned(),
        };
        let (mut tries, mut refusals) = (0, 0);
        loop {
            if !self.held.may_act() {
                return Err(HoldError::Lost.into());
            }
            let cluster = self.shop.cluster.clone();
            let answer = self.ask(cluster.annotate(&w.at, &w.uid, &name, stop.why.name())).await;
            let trouble = match answer {
                Ok(()) => break,
                // Gone, or another pod; or this one, and the API server will not have the mark.
                Err(Trouble::Missing) => {
                    self.confirm(new, w).await?;
                    Trouble::again("conflict", "it was not there a moment ago")
                }
                Err(Trouble::Conflict(why)) => {
                    self.confirm(new, w).await?;
                    refusals += 1;
                    Trouble::again("mark_refused", why)
                }
                Err(trouble @ Trouble::Again { what: "forbidden", .. }) => {
                    refusals += 1;
                    trouble
                }
                Err(trouble) => trouble,
            };
            if refusals >= MARK_TRIES {
                w.unmarkable = true;
                let what = format!("it is deleted without a mark: {trouble}");
                let what = tenure_kernel::limits::clip(&what, 512).to_owned();
                return self.record(Decision::event(PodEvent::PodNoted { what })).await;
            }
            self.put_off(&trouble, &mut tries).await?;
            if self.held.stopping() {
                return self.give_back().await;
            }
        }
        self.record(Decision::event(PodEvent::PodMarked {})).await?;
        self.shop.at(points::MARKED).await;
        Ok(())
    }

    /// Lets go of a pod that is over, until it is time to delete it: nobody has to hold it for that.
    async fn keep_for(&mut self, ms: u64) -> Go {
        let mut state = self.state()?;
        let event = PodEvent::PodKept { for_ms: ms };
        PodMachine::apply(&mut state, &event);
        let ended = Body::json(&json!({ "why": "kept" }));
        let events = vec![
            NewEvent::new(ke::TENURE_ENDED, ended),
            NewEvent::new(PodMachine::name(&event), Body::json(&event)),
        ];
        let mut commit = self.held.draft(events);
        commit.state = Some(encode_state::<PodMachine>(&state));
        commit.timers = vec![TimerChange::set(CLEAN, Duration::from_millis(ms))];
        commit.tenure = TenureChange::End;
        commit.mail = MailStance::ReadAll(self.held.head.mail_read);
        match self.held.commit(commit).await {
            Ok(_) => Err(Halt::Over),
            // What came may say something else: the loop looks again.
            Err(HoldError::MoreMail) => self.take_mail().await,
            Err(e) => Err(e.into()),
        }
    }
}
