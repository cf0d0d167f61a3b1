//! What follows from a report, a cancel, a timer and the word of an executor or of the budget, from the head alone.
//!
//! | room | what follows from what |
//! |---|---|
//! | `reports` | from what somebody saw of a pod |
//! | `words` | from what its executor says |
//! | `attempts` | from a failed attempt, the budget, and a person who does not want to wait |
//! | `clocks` | from time alone |
//! | `ends` | from an end, for the pod and the budget |
//! | `telling` | from an end, for whoever asked |

mod attempts;
mod clocks;
mod ends;
mod reports;
mod telling;
mod words;

pub use telling::{in_words, label_of};

use super::{
    model::{CancelAsk, NewTask, Task, TaskEvent, TaskState, limits},
    table::{PENDING, QUEUED, RETRYING, RUNNING},
};
use crate::{
    budget,
    pod::{POD_WORD, PodWord},
    report::{POD_REPORT, PodName, Report},
};
use serde::de::DeserializeOwned;
use std::time::Duration;
use tenure_kernel::{
    ids::EntityId,
    limits as kernel_limits,
    machine::{Cx, Decision, Input, Machine as _, Undecided},
    mail::{Mail, kinds},
    outbox::Message,
    stream::Body,
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
    /// A pod is missing, and nobody has said how it ended.
    pub const WITNESS: &str = "witness";
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
            let new: NewTask = tenure_kernel::stored::from_slice(bytes)
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
            tenure_kernel::stored::from_slice(mail.body.inline().unwrap_or_default())
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
