//! What follows from a report, a cancel, a timer and the word of an executor or of the budget, from the head alone.
//!
//! A report is about one pod. It counts only if that is the pod of the attempt the task is at: the attempt's number is on
//! the pod and the uid in the head, so what a restarted collector says about an old pod is noted and moves nothing.
//! Once an attempt has ended nothing ends it again; only the news that its pod is over still matters, because before
//! that no other pod is made.

use super::{
    model::{
        Asker, CancelAsk, Ended, NewTask, OnLost, Task, TaskEvent, TaskState, limits, tended_id,
    },
    policy::NoRetry,
    table::{PENDING, QUEUED, RETRYING, RUNNING},
};
use crate::{
    budget::{self, BudgetAsk, BudgetRelease},
    pod::{
        ForceAsk, NewPod, POD_FORCE, POD_STOP, POD_WORD, Pod, PodStop, PodWord, Says, StopWhy,
        name_of_attempt,
    },
    report::{POD_REPORT, PodName, Report},
    verdict::{Cause, CauseClass, TaskStatus},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::time::Duration;
use tenure_kernel::{
    ids::EntityId,
    limits as kernel_limits,
    machine::{Cx, Decision, Input, Machine as _, Undecided},
    mail::{Mail, kinds},
    outbox::{Message, Target},
    stream::Body,
    time::Timestamp,
    timers::TimerChange,
};

/// Timers of a task.
pub mod timers {
    /// A pod was asked for and does not run.
    pub const QUEUED: &str = "queued";
    /// An attempt has run too long.
    pub const RUN: &str = "run";
    /// The pause before a retry, or before the budget is asked again.
    pub const RETRY: &str = "retry";
    /// A pod that may still run.
    pub const FENCE: &str = "fence";
    /// A cancelled task whose pod is not known to be over.
    pub const STOP: &str = "stop";
    /// No other pod was made elsewhere.
    pub const NEXT_POD: &str = "next_pod";
}

/// Mail with which a person moves a task that waits for its next attempt.
pub const RETRY_NOW: &str = "task_retry_now";

/// How long the budget's answer is waited for before it is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// The body of [`RETRY_NOW`].
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct RetryNow {
    /// Who.
    pub by: Option<String>,
    /// The person vouches for it that the lost pod does not run any more.
    pub fenced: bool,
}

/// See [`tenure_kernel::machine::Machine::decide`].
pub fn decide(
    state: Option<&TaskState>,
    input: &Input<'_>,
    cx: &Cx,
) -> Result<Decision<TaskEvent>, Undecided> {
    let Some(state) = state else { return born(input, cx) };
    let status = cx.status.map_or(PENDING, |s| s.name());
    let mut desk = Desk::new(state.clone(), status, cx);
    match input {
        Input::Mail(mail) => mail.iter().for_each(|m| desk.read(m)),
        Input::Timer(name) => desk.timer(name),
        Input::MustEnd => desk.must_end(),
        Input::Create(_) => desk.note("created again: it exists"),
        Input::CancelUnborn | Input::TenureEnded(_) => {
            return Err(Undecided("a task exists, and nobody holds it".into()));
        }
    }
    Ok(desk.out)
}

fn born(input: &Input<'_>, cx: &Cx) -> Result<Decision<TaskEvent>, Undecided> {
    match input {
        Input::Create(body) => {
            let bytes = body
                .inline()
                .ok_or_else(|| Undecided("load the body of the new task first".into()))?;
            let new: NewTask = serde_json::from_slice(bytes)
                .map_err(|e| Undecided(format!("a task can not be made from this: {e}")))?;
            if let Some(problem) = new.retry.problem() {
                return Err(Undecided(problem));
            }
            let must_end_in = Duration::from_millis(new.must_end_in_ms.max(1));
            let mut desk = Desk::new(TaskState::default(), PENDING, cx);
            desk.say(TaskEvent::TaskCreated(Box::new(new)));
            if !desk.state.external {
                desk.want(1);
            }
            desk.out.must_end_in = Some(must_end_in);
            Ok(desk.out)
        }
        // A creation that comes later finds it so.
        Input::CancelUnborn => {
            let why = Some("it was cancelled before it came".to_owned());
            let ask = CancelAsk { by: None, why };
            let event = TaskEvent::TaskCanceled { ask, ended: None, fenced: true };
            Ok(Decision::event(event).regardless())
        }
        _ => Err(Undecided("there is no such task".into())),
    }
}

/// Which attempt a report is about.
enum Place {
    Current,
    /// The next one, of a pod that others made.
    Next(u32),
    /// None that counts; why.
    Neither(String),
}

/// A decision in the making: the state as it is after the events so far.
struct Desk<'a> {
    state: TaskState,
    status: &'static str,
    out: Decision<TaskEvent>,
    cx: &'a Cx,
    over: bool,
}

impl<'a> Desk<'a> {
    fn new(state: TaskState, status: &'static str, cx: &'a Cx) -> Self {
        Desk { state, status, out: Decision::default(), cx, over: false }
    }

    fn say(&mut self, event: TaskEvent) {
        Task::apply(&mut self.state, &event);
        self.status = match &event {
            TaskEvent::PodWanted { .. } | TaskEvent::PodSeen { .. } => QUEUED,
            TaskEvent::TaskRunning { .. } => RUNNING,
            TaskEvent::AttemptFailed { .. } => RETRYING,
            _ => self.status,
        };
        self.out.events.push(event);
    }

    fn note(&mut self, what: &str) {
        if !self.over {
            let what = kernel_limits::clip(what, 256).to_owned();
            self.say(TaskEvent::TaskNoted { what });
        }
    }

    fn set(&mut self, timer: &'static str, ms: u64) {
        self.out.timers.push(TimerChange::set(timer, Duration::from_millis(ms.max(1))));
    }

    fn clear(&mut self, timers: &[&'static str]) {
        self.out.timers.extend(timers.iter().map(|t| TimerChange::clear(*t)));
    }

    fn send(&mut self, to: EntityId, kind: &'static str, body: &impl serde::Serialize) {
        self.out.messages.push(Message::mail(to, kind, Body::json(body)));
    }

    fn read(&mut self, mail: &Mail) {
        fn parse<T: DeserializeOwned>(mail: &Mail) -> Result<T, String> {
            serde_json::from_slice(mail.body.inline().unwrap_or_default())
                .map_err(|e| format!("{}: it can not be read: {e}", mail.kind))
        }
        if self.over {
            return;
        }
        let read = match mail.kind.as_str() {
            POD_REPORT => parse(mail).map(|r: Report| self.report(&r)),
            POD_WORD => parse(mail).map(|w: PodWord| self.word(w)),
            budget::GRANTED => parse(mail).map(|a: budget::Answer| self.granted(&a)),
            budget::DEFERRED => parse(mail).map(|a: budget::Answer| self.put_off(&a)),
            budget::STILL => {
                self.still();
                Ok(())
            }
            kinds::CANCEL => {
                let ask: CancelAsk = parse(mail).unwrap_or_default();
                self.cancel(ask);
                Ok(())
            }
            RETRY_NOW => {
                let now: RetryNow = parse(mail).unwrap_or_default();
                self.retry_now(&now);
                Ok(())
            }
            kinds::RETURNED => {
                self.note("a message of it came back");
                Ok(())
            }
            // It is kept beside the history, where whoever reads that finds it.
            kinds::EVIDENCE => {
                self.note("evidence came");
                Ok(())
            }
            other => Err(format!("no task understands mail of kind {other:?}")),
        };
        if let Err(why) = read {
            self.note(&why);
        }
    }

    // ---- reports ----

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

    fn report(&mut self, report: &Report) {
        let Some(status) = report.verdict.status else {
            return self.note("a report without a status");
        };
        match self.place(report) {
            Place::Neither(why) => return self.note(&format!("report {}: {why}", status.name())),
            Place::Next(attempt) => {
                // An end of a pod that nobody saw before says that there was an attempt, and how it ended.
                self.say(TaskEvent::PodSeen { attempt, pod: clipped(&report.pod) });
                self.clear(&[timers::NEXT_POD, timers::RETRY, timers::FENCE, timers::RUN]);
                if self.state.cancel.is_none() {
                    self.set(timers::QUEUED, self.state.times.queued_ms);
                }
            }
            Place::Current => {}
        }
        if self.state.pod.is_none() || (self.unnamed() && !report.pod.uid.is_empty()) {
            self.say(TaskEvent::PodCreated { pod: clipped(&report.pod) });
        }
        // Gone by force, without an end that anybody saw: no proof that it does not run.
        let taken = self.state.forced && report.gone && report.verdict.exit_code.is_none();
        let over = (report.over || report.gone) && !taken;
        let ended = Ended::from(&report.verdict);
        if self.state.ended.is_some() {
            return self.late(status, ended, over, report.result.as_deref());
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
                None => self.fail(ended, report.verdict.retryable, over),
            },
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
        let unknown = ended.class == Some(CauseClass::Lost);
        if status == TaskStatus::Succeeded && unknown && self.state.cancel.is_none() {
            // It was lost, not failed: it comes back and has done its work, and no other pod was made.
            return self.succeed(late, result);
        }
        let before = self.out.events.len();
        if ended.missing(&late) && late.status == ended.status {
            self.say(TaskEvent::DetailsFilled { late });
        }
        if over && self.state.unfenced {
            self.fenced("its pod is over");
        }
        if self.out.events.len() == before {
            self.note(&format!("report {}: the attempt is over", status.name()));
        }
    }

    fn fenced(&mut self, how: &str) {
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

    /// What its executor says.
    fn word(&mut self, word: PodWord) {
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
                    self.fail(ended, true, true);
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

    // ---- attempts ----

    fn want(&mut self, attempt: u32) {
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
    fn fail(&mut self, ended: Ended, retryable: bool, fenced: bool) {
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
        self.clear(&[timers::QUEUED, timers::RUN]);
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
    fn ask(&mut self) {
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

    fn granted(&mut self, answer: &budget::Answer) {
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

    fn put_off(&mut self, answer: &budget::Answer) {
        if !self.waits_for_budget() {
            return self.note("budget: an answer came too late");
        }
        self.say(TaskEvent::RetryDeferred { after_ms: answer.after_ms });
        self.set(timers::RETRY, answer.after_ms);
    }

    /// The budget wants to know whether the place is still used.
    fn still(&mut self) {
        if !self.state.in_budget {
            self.release();
        }
        self.note("budget: asked whether its place is used");
    }

    fn release(&mut self) {
        let to = budget::budget_id(&self.state.tenant_id);
        self.send(to, budget::RELEASE, &BudgetRelease { task: self.cx.id });
    }

    fn leave_budget(&mut self) {
        if self.state.in_budget {
            self.release();
        }
    }

    fn retry_now(&mut self, now: &RetryNow) {
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

    // ---- ends ----

    fn cancel(&mut self, ask: CancelAsk) {
        let clip = |s: String| kernel_limits::clip(&s, limits::WHY_BYTES_MAX).to_owned();
        let ask = CancelAsk { by: ask.by.map(clip), why: ask.why.map(clip) };
        if self.state.cancel.is_some() {
            return self.note("cancel: it is being stopped");
        }
        let quiet = match self.status {
            PENDING => true,
            RETRYING => !self.state.unfenced,
            _ => false,
        };
        if quiet {
            let ended = self.state.ended.clone();
            return self.canceled(ask, ended, true);
        }
        self.say(TaskEvent::CancelAsked(ask));
        self.clear(&[timers::RETRY, timers::NEXT_POD, timers::RUN, timers::QUEUED, timers::FENCE]);
        self.leave_pod(false, false, StopWhy::Cancel);
        self.set(timers::STOP, self.state.times.stop_ms);
    }

    fn timer(&mut self, name: &str) {
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

    fn must_end(&mut self) {
        let ended = self.state.ended.clone().unwrap_or_else(|| Ended {
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
            _ => false,
        };
        match self.state.cancel.clone() {
            Some(ask) => self.canceled(ask, Some(ended), fenced),
            None => self.failed(ended, NoRetry::Deadline, fenced),
        }
    }

    fn succeed(&mut self, ended: Ended, result: Option<&str>) {
        let result = result.map(|r| kernel_limits::clip(r, limits::RESULT_BYTES_MAX).to_owned());
        self.leave_pod(true, true, StopWhy::Over);
        self.leave_budget();
        self.tell("completed", Some(&ended), result.as_deref(), None, true);
        self.say(TaskEvent::TaskSucceeded { ended, result });
        self.finish();
    }

    fn failed(&mut self, ended: Ended, why: NoRetry, fenced: bool) {
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

    fn canceled(&mut self, ask: CancelAsk, ended: Option<Ended>, fenced: bool) {
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
    fn leave_pod(&mut self, over: bool, well: bool, why: StopWhy) {
        let Some(pod) = self.state.tended else { return };
        let delete_after_ms = match over {
            true => self.state.cleanup.after(well),
            false => Some(0),
        };
        self.send(pod, POD_STOP, &PodStop { why, delete_after_ms });
    }

    /// Nobody waits any longer for a pod that is not known to be over. Where running twice does no harm its object need not stay,
    /// either.
    fn give_up_pod(&mut self, fenced: bool) {
        let bears = self.state.on_lost == OnLost::Replace && !fenced;
        if let Some(pod) = self.state.tended.filter(|_| bears) {
            let why = "on_lost: replace".to_owned();
            self.send(pod, POD_FORCE, &ForceAsk { by: None, why });
        }
    }

    /// Which pod nobody has seen end, where that is so.
    fn unfenced(&self, fenced: bool) -> Option<Value> {
        let pod = self.state.pod.clone().unwrap_or_default();
        (!fenced).then(|| {
            json!({
                "namespace": pod.namespace, "pod": pod.name, "uid": pod.uid, "node": pod.node,
                "forced": self.state.forced,
            })
        })
    }

    /// The same in words, behind those of an end.
    fn in_doubt(&self, fenced: bool) -> String {
        let Some(PodName { namespace, name, uid, node }) = &self.state.pod else {
            let none = "; nobody has seen its pod, which may have been made, and may still run";
            return if fenced { String::new() } else { none.to_owned() };
        };
        if fenced {
            return String::new();
        }
        let on = node.as_ref().map(|n| format!(", on {n}")).unwrap_or_default();
        let taken = if self.state.forced { "; its object was taken away by force" } else { "" };
        format!(
            "; nobody has seen pod {namespace}/{name} (uid {uid}{on}) end: it may still run{taken}"
        )
    }

    /// Tells whoever asked for the task, and the outside.
    fn tell(
        &mut self,
        end: &str,
        ended: Option<&Ended>,
        result: Option<&str>,
        error: Option<&str>,
        fenced: bool,
    ) {
        let unfenced = self.unfenced(fenced);
        let state = &self.state;
        if let Some(Asker { to, kind, call }) = state.asker.clone() {
            let mut body = call;
            body.insert("end".into(), end.into());
            if end == "completed" {
                body.insert("result".into(), outcome(state, ended, result));
            }
            if let Some(error) = error {
                body.insert("error".into(), error.into());
            }
            if let Some(unfenced) = &unfenced {
                body.insert("unfenced".into(), unfenced.clone());
            }
            let message = Message::mail(to, kind, Body::json(&Value::Object(body)));
            self.out.messages.push(message);
        }
        let status = match end {
            "completed" => "SUCCEEDED",
            "cancelled" => "CANCELED",
            _ if state.cancel.is_some() => "CANCELED",
            _ => "FAILED",
        };
        let mut said = json!({
            "task_id": label_of(self.cx.id, state),
            "workflow_id": state.workflow_id,
            "status": status,
            "attempt": state.attempt,
            "cause": ended.and_then(|e| e.cause),
            "exit_code": ended.and_then(|e| e.exit_code),
            "message": error,
        });
        if let Some(unfenced) = unfenced {
            said["unfenced"] = unfenced;
        }
        let to = Target::Wire(format!("evt.task.{}.status", self.cx.id));
        self.out.messages.push(Message { to, kind: "task_status".into(), body: Body::json(&said) });
    }
}

/// The text by which others know a task.
pub fn label_of(id: EntityId, state: &TaskState) -> String {
    state.label.clone().unwrap_or_else(|| id.to_string())
}

/// What a step that was a pod returns.
fn outcome(state: &TaskState, ended: Option<&Ended>, result: Option<&str>) -> Value {
    // What looks like JSON is JSON; everything else is a text.
    let result = result.map_or(Value::Null, |text| {
        serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
    });
    json!({
        "exit_code": ended.and_then(|e| e.exit_code),
        "result": result,
        "attempt": state.attempt,
        "disrupted": ended.is_some_and(|e| e.disrupted),
        "pod": state.pod.as_ref().map(|p| format!("{}/{}", p.namespace, p.name)),
    })
}

/// How an attempt ended, as a sentence.
pub fn in_words(ended: &Ended) -> String {
    let cause = ended.cause.map_or("it failed", Cause::name);
    let exit = match (ended.exit_code, ended.signal) {
        (Some(code), Some(signal)) => format!(" (exit code {code}, signal {signal})"),
        (Some(code), None) => format!(" (exit code {code})"),
        _ => String::new(),
    };
    let said = match (ended.message.as_str(), ended.reason.as_str()) {
        ("", "") => String::new(),
        ("", reason) => format!(": {reason}"),
        (message, _) => format!(": {message}"),
    };
    format!("{cause}{exit}{said}")
}

fn clipped(pod: &PodName) -> PodName {
    let clip = |s: &str| kernel_limits::clip(s, limits::NAME_BYTES_MAX).to_owned();
    PodName {
        namespace: clip(&pod.namespace),
        name: clip(&pod.name),
        uid: clip(&pod.uid),
        node: pod.node.as_deref().map(clip),
    }
}
