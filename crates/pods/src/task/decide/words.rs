//! What the word of an executor leads to.

use super::{Desk, clipped, timers};
use crate::{
    pod::{ForceAsk, PodWord, Says},
    task::{
        model::{Ended, TaskEvent, limits},
        table::{QUEUED, RUNNING},
    },
    verdict::{Cause, CauseClass, TaskStatus},
};
use tenure_kernel::limits as kernel_limits;

impl Desk<'_> {
    /// What its executor says.
    pub(super) fn word(&mut self, word: PodWord) {
        if word.attempt != self.state.attempt {
            return self.note(&format!("executor: attempt {} is over", word.attempt));
        }
        match word.says {
            // It made the pod: whatever others took for it before was another one.
            Says::Created { pod }
                if self.state.ended.is_none()
                    && self.state.pod.as_ref().is_none_or(|p| p.uid != pod.uid) =>
            {
                self.say(TaskEvent::PodCreated { pod: clipped(&pod) });
            }
            Says::Created { .. } => self.note("executor: the pod is known"),
            Says::Gated {} if self.status == QUEUED && self.state.cancel.is_none() => {
                self.note("executor: a scheduling gate holds the pod");
                self.set(timers::QUEUED, self.state.times.queued_ms);
            }
            Says::Gated {} => self.note("executor: a gate that nobody waits for"),
            Says::Refused { ended, retryable } => match self.state.cancel.clone() {
                Some(ask) => self.canceled(ask, Some(ended), true),
                None if self.state.ended.is_some() => self.note("executor: the attempt is over"),
                None => self.fail(ended, retryable, true),
            },
            Says::Forced(_) if self.state.forced => self.note("executor: by force, once more"),
            Says::Forced(ask) => {
                let clip = |s: &str| kernel_limits::clip(s, limits::WHY_BYTES_MAX).to_owned();
                let (by, why) = (ask.by.as_deref().map(clip), clip(&ask.why));
                self.say(TaskEvent::PodForced(ForceAsk { by, why }));
            }
            Says::Gone { how, unproven: true } => self.taken_away(&how),
            Says::Gone { how, .. } => match (&self.state.ended, self.state.cancel.clone()) {
                (_, Some(ask)) => {
                    let ended = self.state.ended.clone();
                    self.canceled(ask, ended, true);
                }
                (Some(_), None) if self.state.unfenced => self.fenced(&how),
                (Some(_), None) => self.note("executor: the pod is gone"),
                (None, None) => {
                    let ended = Ended {
                        status: Some(TaskStatus::Failed),
                        cause: Some(Cause::DeletedExternally),
                        class: Some(CauseClass::Deleted),
                        message: kernel_limits::clip(&how, limits::MESSAGE_BYTES_MAX).to_owned(),
                        ..Ended::default()
                    };
                    self.infer(ended, true, true);
                }
            },
        }
    }

    /// Its pod was taken away by force. Nothing more will be heard of it, and nobody knows whether it has ended.
    fn taken_away(&mut self, how: &str) {
        match (self.state.ended.is_some(), self.state.cancel.clone()) {
            (_, Some(ask)) => {
                let ended = self.state.ended.clone();
                self.canceled(ask, ended, false);
            }
            // A person may still vouch for it, until the time for that is up.
            (true, None) => self.note(&format!("executor: {how}")),
            (false, None) => {
                let ended = Ended {
                    status: Some(TaskStatus::Failed),
                    cause: Some(Cause::NodeLost),
                    class: Some(CauseClass::Lost),
                    started: self.status == RUNNING,
                    message: kernel_limits::clip(how, limits::MESSAGE_BYTES_MAX).to_owned(),
                    ..Ended::default()
                };
                self.fail(ended, true, false);
            }
        }
    }
}
