//! What a report about a pod leads to.
//!
//! A report is about one pod. It counts only if that is the pod of the attempt the task is at: the attempt's number is on
//! the pod and the uid in the head, so what a restarted collector says about an old pod is noted and moves nothing.
//! Once an attempt has ended nothing ends it again; only the news that its pod is over still matters, because before
//! that no other pod is made.
//!
//! An end that nobody saw (the pod is missing, or somebody on the channel says so) is not believed at once: whoever saw the pod to its end
//! may be about to say how. It is on record, and counts when nobody does in time (`Times::witness_ms`).

use super::{Desk, clipped, timers};
use crate::{
    desk::HINT_RULE,
    pod::name_of_attempt,
    report::{PodName, Report},
    task::{
        model::{CancelAsk, Ended, Inferred, TaskEvent, TaskState},
        table::QUEUED,
    },
    verdict::{CauseClass, TaskStatus},
};
use std::time::Duration;
use tenure_kernel::time::Timestamp;

/// Which attempt a report is about.
enum Place {
    Current,
    /// The next one, of a pod that others made.
    Next(u32),
    /// None that counts; why.
    Neither(String),
}

impl Desk<'_> {
    fn place(&self, report: &Report) -> Place {
        let (state, uid) = (&self.state, report.pod.uid.as_str());
        let cur = state.attempt;
        if state.pod.as_ref().is_some_and(|p| p.uid == uid) {
            return Place::Current;
        }
        // A hint that named no pod was the first to tell of this attempt: the pod that is named now is the one.
        if self.unnamed() && report.attempt.is_none_or(|a| a == cur) {
            return Place::Current;
        }
        let other = || Place::Neither(format!("pod {uid} is not the pod of attempt {cur}"));
        if state.external {
            if state.past.iter().any(|past| past == uid) {
                return Place::Neither(format!("pod {uid} is of an earlier attempt"));
            }
            let ended = state.ended.is_some() || cur == 0;
            return match report.attempt {
                Some(a) if a < cur || a == 0 && cur > 0 => {
                    Place::Neither(format!("attempt {a} is over"))
                }
                Some(a) if a > cur => Place::Next(a),
                // The number did not rise, and the pod is another one.
                _ if ended || report.attempt.is_none() => Place::Next(cur + 1),
                _ => other(),
            };
        }
        match report.attempt {
            Some(a) if a < cur => Place::Neither(format!("attempt {a} is over")),
            Some(a) if a > cur => Place::Neither(format!("attempt {a} was never asked for")),
            Some(_) if state.pod.is_none() && self.is_own(&report.pod) => Place::Current,
            _ => other(),
        }
    }

    /// Whether a pod that nobody has vouched for yet can be the one of this attempt. Labels are easily written; the name and the
    /// place are the executor's.
    fn is_own(&self, pod: &PodName) -> bool {
        let TaskState { attempt, workflow_id, name, namespace, .. } = &self.state;
        pod.name == name_of_attempt(self.cx.id, *attempt, workflow_id, name)
            && namespace.as_ref().is_none_or(|own| *own == pod.namespace)
    }

    /// The attempt's pod was told of, and nobody has said which it is.
    fn unnamed(&self) -> bool {
        self.state.ended.is_none() && self.state.pod.as_ref().is_some_and(|p| p.uid.is_empty())
    }

    pub(super) fn report(&mut self, report: &Report) {
        let Some(status) = report.verdict.status else {
            return self.note("a report without a status");
        };
        match self.place(report) {
            Place::Neither(why) => return self.note(&format!("report {}: {why}", status.name())),
            Place::Next(attempt) => {
                // An end of a pod that nobody saw before says that there was an attempt, and how it ended.
                self.say(TaskEvent::PodSeen { attempt, pod: clipped(&report.pod) });
                self.clear(&[
                    timers::NEXT_POD,
                    timers::RETRY,
                    timers::FENCE,
                    timers::RUN,
                    timers::WITNESS,
                ]);
                if self.state.cancel.is_none() {
                    self.set(timers::QUEUED, self.state.times.queued_ms);
                }
            }
            Place::Current => {}
        }
        // A report also says which pod it is where only a hint had told of it.
        let more = self.state.pod.as_ref().is_some_and(|p| {
            p.name.is_empty() && !report.pod.name.is_empty() && self.state.ended.is_none()
        });
        if self.state.pod.is_none() || more || (self.unnamed() && !report.pod.uid.is_empty()) {
            self.say(TaskEvent::PodCreated { pod: clipped(&report.pod) });
        }
        // Gone by force, without an end that anybody saw: no proof that it does not run.
        let taken = self.state.forced && report.gone && report.verdict.exit_code.is_none();
        let over = (report.over || report.gone) && !taken;
        let mut ended = Ended::from(&report.verdict);
        ended.inferred = report.inferred;
        if self.state.ended.is_some() {
            return self.late(status, ended, over, report.result.as_deref());
        }
        if status.is_final() && self.waits_for_witness(report) {
            return self.infer(ended, report.verdict.retryable, over);
        }
        match status {
            TaskStatus::Running if self.status == QUEUED => {
                let node = report.pod.node.clone();
                self.say(TaskEvent::TaskRunning { since: report.verdict.since, node });
                self.clear(&[timers::QUEUED]);
                // What is being stopped has the clock of that, and no other.
                if let Some(ms) = self.state.timeout_ms.filter(|_| self.state.cancel.is_none()) {
                    self.set(timers::RUN, ms.saturating_sub(self.ran_ms(report.verdict.since)));
                }
            }
            TaskStatus::Running => self.note("report RUNNING: it runs"),
            // Also one that was asked to stop: it had ended well before it could.
            TaskStatus::Succeeded => self.succeed(ended, report.result.as_deref()),
            TaskStatus::Canceled => {
                let by = ended.cause.map(|c| c.name().to_owned());
                let why = Some(ended.message.clone()).filter(|m| !m.is_empty());
                let ask = self.state.cancel.clone().unwrap_or(CancelAsk { by, why });
                match over {
                    true => self.canceled(ask, Some(ended), true),
                    // The marker stands on it, and it still runs.
                    false => self.cancel(ask),
                }
            }
            TaskStatus::Failed => match self.state.cancel.clone() {
                Some(ask) if over => self.canceled(ask, Some(ended), true),
                Some(_) => self.note("report FAILED: it is being stopped"),
                None => {
                    let gone = self.state.inferred.as_ref().is_some_and(|i| i.fenced);
                    self.fail(ended, report.verdict.retryable, over || gone);
                }
            },
        }
    }

    /// Whether an end is not proof, and somebody may come who has it. One that somebody wants to end is not kept waiting by that.
    fn waits_for_witness(&self, report: &Report) -> bool {
        let hinted = report.verdict.rule == HINT_RULE;
        // A pod whose name is known was reported, so it is reported again; of others there is nothing but hints.
        let reported = self.state.pod.as_ref().is_some_and(|p| !p.name.is_empty());
        self.state.cancel.is_none() && (report.inferred || hinted && reported)
    }

    /// An end without proof: it is on record, and counts when no witness speaks in time.
    pub(super) fn infer(&mut self, ended: Ended, retryable: bool, fenced: bool) {
        let known = self.state.inferred.as_ref();
        // The first counts; only that the pod is over is worth saying once more.
        if known.is_some_and(|known| known.fenced || !fenced) {
            return self.note("an end without proof: a witness is waited for");
        }
        let first = known.is_none();
        let ended = known.map_or(ended, |known| known.ended.clone());
        self.say(TaskEvent::EndInferred { ended, retryable, fenced });
        if first {
            self.set(timers::WITNESS, self.state.times.witness_ms);
        }
    }

    /// No witness spoke: what was inferred is the end.
    pub(super) fn take_inferred(&mut self) {
        let Some(Inferred { mut ended, retryable, fenced }) = self.state.inferred.clone() else {
            return self.note("no end was inferred");
        };
        ended.inferred = true;
        match ended.status {
            Some(TaskStatus::Succeeded) => self.succeed(ended, None),
            Some(TaskStatus::Canceled) => {
                let by = ended.cause.map(|c| c.name().to_owned());
                let why = Some(ended.message.clone()).filter(|m| !m.is_empty());
                self.canceled(CancelAsk { by, why }, Some(ended), fenced);
            }
            _ => self.fail(ended, retryable, fenced),
        }
    }

    /// How long it has run, by the pod's own times. Clocks of nodes may be wrong: never from before what was last known
    /// of the task, when it did not run yet.
    fn ran_ms(&self, since: Option<Timestamp>) -> u64 {
        let since = since.zip(self.cx.changed_at).map(|(since, known)| since.max(known));
        let ran = since.map_or(Duration::ZERO, |since| self.cx.now.since(since));
        u64::try_from(ran.as_millis()).unwrap_or(u64::MAX)
    }

    /// A report about the pod of an attempt that has ended.
    fn late(&mut self, status: TaskStatus, late: Ended, over: bool, result: Option<&str>) {
        let Some(ended) = self.state.ended.clone() else { return };
        let unknown = ended.class == Some(CauseClass::Lost) || ended.inferred;
        if status == TaskStatus::Succeeded && unknown && self.state.cancel.is_none() {
            // It was lost, not failed: it comes back and has done its work, and no other pod was made.
            return self.succeed(late, result);
        }
        let before = self.out.events.len();
        let same = late.status == ended.status && (ended.inferred || !late.inferred);
        if ended.missing(&late) && same {
            self.say(TaskEvent::DetailsFilled { late });
        }
        if over && self.state.unfenced {
            self.fenced("its pod is over");
        }
        if self.out.events.len() == before {
            self.note(&format!("report {}: the attempt is over", status.name()));
        }
    }

    pub(super) fn fenced(&mut self, how: &str) {
        if let Some(ask) = self.state.cancel.clone() {
            let ended = self.state.ended.clone();
            return self.canceled(ask, ended, true);
        }
        self.say(TaskEvent::AttemptFenced { how: how.to_owned() });
        self.clear(&[timers::FENCE]);
        if self.state.pause_over {
            self.ask();
        }
    }
}
