//! Ends of a task, and what becomes of its pod.

use super::{Desk, telling::in_words, timers};
use crate::{
    pod::{ForceAsk, POD_FORCE, POD_STOP, PodStop, StopWhy},
    task::{
        model::{CancelAsk, Ended, OnLost, TaskEvent, limits},
        policy::NoRetry,
        table::{PENDING, RETRYING, RUNNING},
    },
    verdict::CauseClass,
};
use tenure_kernel::{limits as kernel_limits, timers::TimerChange};

impl Desk<'_> {
    pub(super) fn cancel(&mut self, ask: CancelAsk) {
        let clip = |s: String| kernel_limits::clip(&s, limits::WHY_BYTES_MAX).to_owned();
        let ask = CancelAsk { by: ask.by.map(clip), why: ask.why.map(clip) };
        if self.state.cancel.is_some() {
            return self.note("cancel: it is being stopped");
        }
        let quiet = match self.status {
            PENDING => true,
            RETRYING => !self.state.unfenced,
            _ => self.state.inferred.as_ref().is_some_and(|i| i.fenced),
        };
        if quiet {
            let inferred = self.state.inferred.clone();
            let inferred = inferred.map(|i| Ended { inferred: true, ..i.ended });
            let ended = self.state.ended.clone().or(inferred);
            return self.canceled(ask, ended, true);
        }
        self.say(TaskEvent::CancelAsked(ask));
        self.clear(&[timers::RETRY, timers::NEXT_POD, timers::RUN, timers::QUEUED]);
        self.clear(&[timers::FENCE, timers::WITNESS]);
        self.leave_pod(false, false, StopWhy::Cancel);
        self.set(timers::STOP, self.state.times.stop_ms);
    }

    pub(super) fn succeed(&mut self, ended: Ended, result: Option<&str>) {
        let result = result.map(|r| kernel_limits::clip(r, limits::RESULT_BYTES_MAX).to_owned());
        self.leave_pod(true, true, StopWhy::Over);
        self.leave_budget();
        self.tell("completed", Some(&ended), result.as_deref(), None, true);
        self.say(TaskEvent::TaskSucceeded { ended, result });
        self.finish();
    }

    pub(super) fn failed(&mut self, ended: Ended, why: NoRetry, fenced: bool) {
        self.give_up_pod(fenced);
        let stop = match (fenced, ended.class) {
            (true, _) => StopWhy::Over,
            (false, Some(CauseClass::Timeout)) => StopWhy::Timeout,
            (false, _) => StopWhy::Replaced,
        };
        self.leave_pod(fenced, false, stop);
        self.leave_budget();
        // Nobody knows whether it still runs: that is not the same as failed.
        let lost = !fenced && ended.class == Some(CauseClass::Lost);
        let end = if lost { "unknown" } else { "permanent" };
        let error = format!("{}; {}{}", in_words(&ended), why.words(), self.in_doubt(fenced));
        self.tell(end, Some(&ended), None, Some(&error), fenced);
        self.say(TaskEvent::TaskFailed { ended, why, fenced });
        self.finish();
    }

    pub(super) fn canceled(&mut self, ask: CancelAsk, ended: Option<Ended>, fenced: bool) {
        self.leave_pod(fenced, false, StopWhy::Cancel);
        self.give_up_pod(fenced);
        self.leave_budget();
        let why = ask.why.clone().unwrap_or_else(|| "it was cancelled".into());
        let why = format!("{why}{}", self.in_doubt(fenced));
        // Whoever wanted it stopped hears that it was only if that is known, or it never ran.
        let ran = self.status == RUNNING || ended.as_ref().is_some_and(|e| e.started);
        let end = if !fenced && ran { "unknown" } else { "cancelled" };
        self.tell(end, ended.as_ref(), None, Some(&why), fenced);
        self.say(TaskEvent::TaskCanceled { ask, ended, fenced });
        self.finish();
    }

    fn finish(&mut self) {
        self.out.timers.push(TimerChange::ClearAll);
        self.out.regardless = true;
        self.over = true;
    }

    /// Says to the executor what becomes of the attempt's pod.
    pub(super) fn leave_pod(&mut self, over: bool, well: bool, why: StopWhy) {
        let Some(pod) = self.state.tended else { return };
        let delete_after_ms = match over {
            true => self.state.cleanup.after(well),
            false => Some(0),
        };
        self.send(pod, POD_STOP, &PodStop { why, delete_after_ms });
    }

    /// Nobody waits any longer for a pod that is not known to be over. Where running twice does no harm its object need not stay,
    /// either.
    pub(super) fn give_up_pod(&mut self, fenced: bool) {
        let bears = self.state.on_lost == OnLost::Replace && !fenced;
        if let Some(pod) = self.state.tended.filter(|_| bears) {
            let why = "on_lost: replace".to_owned();
            self.send(pod, POD_FORCE, &ForceAsk { by: None, why });
        }
    }
}
