//! Makes the pod of an attempt, once.
//!
//! The name is on record before the API server is asked, and it follows from the attempt, so whoever asks again asks for the
//! same pod: it is made, or it is there. One that is there and does not carry our mark is somebody else's, and never taken
//! for ours.
//!
//! Kubernetes can not refuse a request for being stale. One whose answer was lost, or whose executor died, may still be on its way,
//! and would make a second pod after the first was deleted, beside the pod of the next attempt. So **at most one request to make a
//! pod is under way**: after one of which nobody knows what became of it, the API server is only asked whether the pod is
//! there, until it is (then that request is used up) or until it can not come any more ([`Patience::late`](super::shop::Patience)).
//! Asking again at once, as one would, was found to run a task twice by the simulation (tasks 45).
//!
//! For the same reason a refusal is not believed before that. An API server asks quotas, policies and webhooks before it looks whether the name is taken: a pod that is
//! there may fill the very quota for which its second creation is refused.

use super::{
    cluster::{Created, Trouble},
    make::{self, Order, is_ours, namespace_of},
    run::{Go, Run},
    shop::points,
    told::name_of,
};
use crate::{
    pod::{Begun, NewPod, PodEvent, PodState, Says, decide::tell, pod_name},
    task::model::{Ended, limits},
    verdict::{Cause, CauseClass, TaskStatus},
};
use k8s_openapi::api::core::v1::Pod;
use tenure_engine::worker::HoldError;
use tenure_kernel::{limits::clip, machine::Decision};

impl Run {
    /// Returns when the pod exists and that is on record.
    pub(super) async fn make(&mut self, new: &NewPod) -> Go {
        let state = self.state()?;
        if state.begun.is_some() && state.uid.is_none() {
            self.may_come_late();
        }
        let mut tries = 0;
        loop {
            self.read_mail().await?;
            let state = self.state()?;
            if state.uid.is_some() {
                return Ok(());
            }
            if self.held.stopping() {
                return self.give_back().await;
            }
            let Some(at) = state.begun.clone() else {
                if state.stop.is_some() {
                    return self.not_made("nobody wanted it any more").await;
                }
                self.begin(new).await?;
                continue;
            };
            if state.stop.is_some() {
                self.find_or_forget(&at, &mut tries).await?;
                continue;
            }
            if self.late_until.is_some() {
                if self.is_there(&at).await? {
                    continue;
                }
                // Looking may take long, and mail is read meanwhile.
                if self.state()?.stop.is_some() {
                    continue;
                }
                if let Some(until) = self.late_until.filter(|until| self.mono() < *until) {
                    let why = "a request for it may still be on its way";
                    self.note_wait(&Trouble::again("late", why)).await?;
                    let left = until.saturating_sub(self.mono());
                    self.nap(left.min(self.shop.patience.poll)).await?;
                    continue;
                }
            }
            // Where a pod may run was judged with its task. A record that says otherwise was not written by an executor of today.
            if at != self.place_of(new) {
                return self.refuse("its record names another place than its task").await;
            }
            let pod = match self.build(new, &at) {
                Ok(pod) => pod,
                Err(why) => return self.refuse(&why).await,
            };
            if !self.held.may_act() {
                return Err(HoldError::Lost.into());
            }
            let cluster = self.shop.cluster.clone();
            match self.ask(cluster.create(pod)).await {
                Ok(Created { pod, warnings }) => {
                    self.shop.at(points::CREATED).await;
                    self.shop.counts.created.add(1);
                    self.made(&pod, false, warnings).await?;
                }
                Err(Trouble::Exists) => self.adopt(&at, &mut tries).await?,
                Err(Trouble::Refused(why)) => self.refused(&at, &why, &mut tries).await?,
                Err(Trouble::Missing) => {
                    let why = "the API server knows no pods there";
                    self.refused(&at, why, &mut tries).await?;
                }
                Err(trouble) => {
                    // It may have been done all the same, or may be yet.
                    if matches!(&trouble, Trouble::Again { what, .. } if is_open(what)) {
                        self.may_come_late();
                    }
                    self.put_off(&trouble, &mut tries).await?;
                }
            }
        }
    }

    fn may_come_late(&mut self) {
        self.late_until = Some(self.mono() + self.shop.patience.late);
    }

    fn build(&self, new: &NewPod, at: &Begun) -> Result<Pod, String> {
        let (id, task, epoch) = (self.held.id(), &self.task, self.held.head.epoch);
        let bound = self.task_ends_by.or(self.held.head.must_end_by);
        let left = bound.map(|bound| bound.since(self.now()));
        let over_by = self.held.head.must_end_by;
        make::make(Order { id, new, task, at, epoch, left, over_by })
    }

    fn place_of(&self, new: &NewPod) -> Begun {
        let namespace = namespace_of(&self.task, self.shop.cluster.default_namespace());
        Begun { namespace, name: pod_name(new) }
    }

    async fn begin(&mut self, new: &NewPod) -> Go {
        let at = self.place_of(new);
        // What can not be made is not begun.
        if let Err(why) = self.build(new, &at) {
            return self.refuse(&why).await;
        }
        self.record(Decision::event(PodEvent::PodBegun(at))).await?;
        self.shop.at(points::BEGUN).await;
        Ok(())
    }

    async fn made(&mut self, pod: &Pod, adopted: bool, warnings: Vec<String>) -> Go {
        let name = name_of(pod);
        let mut decision = Decision::event(PodEvent::PodMade { uid: name.uid.clone(), adopted });
        if !warnings.is_empty() {
            tracing::warn!(pod = %name.name, ?warnings, "the API server warns");
            decision.events.push(PodEvent::PodWarned { warnings });
        }
        decision.messages.extend(tell(&self.state()?, Says::Created { pod: name }));
        self.record(decision).await?;
        self.shop.at(points::MADE).await;
        Ok(())
    }

    /// Whether it was made before, unheard; then that is on record now.
    async fn is_there(&mut self, at: &Begun) -> Go<bool> {
        match self.find(at).await? {
            Some(pod) if is_ours(&pod, self.held.id()) => {
                self.shop.counts.adopted.add(1);
                self.made(&pod, true, Vec::new()).await?;
                Ok(true)
            }
            Some(_) => {
                let why = format!("a pod named {} is there, and not ours", at.name);
                self.refuse(&why).await?;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// A pod of this name is there.
    async fn adopt(&mut self, at: &Begun, tries: &mut u32) -> Go {
        match self.is_there(at).await? {
            true => Ok(()),
            // It was there a moment ago.
            false => {
                self.put_off(&Trouble::again("conflict", "its name was just taken"), tries).await
            }
        }
    }

    /// The API server would not have it now. An earlier request may have come through, or still come.
    async fn refused(&mut self, at: &Begun, why: &str, tries: &mut u32) -> Go {
        if self.late_until.is_some() && self.is_there(at).await? {
            return Ok(());
        }
        match self.late_until.is_some_and(|until| self.mono() < until) {
            true => self.put_off(&Trouble::again("late", why), tries).await,
            false => self.refuse(why).await,
        }
    }

    /// It is not wanted any more. Was it made?
    async fn find_or_forget(&mut self, at: &Begun, tries: &mut u32) -> Go {
        match self.find(at).await? {
            Some(pod) if is_ours(&pod, self.held.id()) => {
                self.shop.counts.adopted.add(1);
                self.made(&pod, true, Vec::new()).await
            }
            _ if self.late_until.is_some_and(|until| self.mono() < until) => {
                let why = "a request for it may still be on its way";
                self.put_off(&Trouble::again("late", why), tries).await
            }
            _ => self.not_made("nobody wanted it any more").await,
        }
    }

    /// It will never be.
    pub(super) async fn refuse(&mut self, why: &str) -> Go {
        self.shop.counts.refused.add(1);
        let why = clip(why, limits::MESSAGE_BYTES_MAX).to_owned();
        let ended = Ended {
            status: Some(TaskStatus::Failed),
            cause: Some(Cause::Config),
            class: Some(CauseClass::Config),
            message: why.clone(),
            rule: "executor/refused".into(),
            ..Ended::default()
        };
        let says = Says::Refused { ended, retryable: false };
        self.finish(vec![PodEvent::PodNotMade { why }], Some(says)).await
    }
}

/// Whether a request that ended so may have been carried out.
fn is_open(what: &str) -> bool {
    ["unreachable", "timeout", "unavailable"].contains(&what)
}

/// Where a pod is, once that is on record.
pub(super) fn place_of(state: &PodState) -> Option<(Begun, String)> {
    state.begun.clone().zip(state.uid.clone())
}
