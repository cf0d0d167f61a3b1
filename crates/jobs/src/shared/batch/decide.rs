//! When what is collected becomes a job.

use super::model::{Batch, Event, Item, Made, Mode, Overtaken, State, bytes, limits};
use crate::model::{Job, NewJob};
use serde_json::{Value, json};
use std::time::Duration;
use tenure_kernel::{
    ids::EntityId,
    limits::{KEY_BYTES_MAX, clip},
    machine::{Cx, Decision, Input, Machine as _, Undecided},
    mail::{Mail, kinds},
    outbox::{Message, Target},
    stream::Body,
    table::VACANT,
    time::Timestamp,
    timers::TimerChange,
};

/// The timer that closes what is open.
pub const CLOSE: &str = "close";
/// The timer after which a batch in which nothing is collected is vacant.
pub const IDLE: &str = "idle";
/// The kind of mail that a submission is; body [`Item`].
pub const ITEM: &str = "item";
/// The kind of mail that says what has become a job already; body [`Overtaken`].
pub const OVERTAKEN: &str = "overtaken";

/// See [`tenure_kernel::machine::Machine::decide`].
pub fn decide(
    state: Option<&State>,
    input: &Input<'_>,
    cx: &Cx,
) -> Result<Decision<Event>, Undecided> {
    let state = state.ok_or_else(|| Undecided("a batch is not made by a message".into()))?;
    let vacant = cx.status.is_some_and(|s| s.name() == VACANT);
    let mut work = Work { state: state.clone(), decision: Decision::default(), cx: *cx, vacant };
    match input {
        Input::Mail(mail) => {
            work.wake();
            for mail in *mail {
                work.read(mail);
            }
        }
        // It may be due no more: what came meanwhile has moved it.
        Input::Timer(CLOSE) if state.closes_at.is_some_and(|at| at > cx.now) => {
            work.note("the timer was early".into());
        }
        Input::Timer(CLOSE) if state.items > 0 => work.close("time"),
        Input::Timer(CLOSE) => work.note("nothing is collected".into()),
        Input::Timer(IDLE) if state.items == 0 && !vacant => work.vacate(),
        Input::Timer(IDLE) => work.note("idle: something came".into()),
        other => return Err(Undecided(format!("a batch does not know {}", other.rule()))),
    }
    let timer = match work.state.closes_at {
        Some(at) => TimerChange::set(CLOSE, at.since(cx.now)),
        None => TimerChange::clear(CLOSE),
    };
    let mut decision = work.decision.timer(timer);
    match work.state.items == 0 && !work.vacant {
        true => decision.timers.push(idle()),
        false if state.items == 0 => decision.timers.push(TimerChange::clear(IDLE)),
        false => {}
    }
    Ok(decision)
}

/// The clock of a batch in which nothing is collected. Set at birth too: nothing may ever come.
pub(super) fn idle() -> TimerChange {
    TimerChange::set(IDLE, limits::IDLE)
}

/// The job of a generation: decided twice, it is the same.
pub fn job_of(batch: EntityId, generation: u64, opened_at: Timestamp) -> EntityId {
    EntityId::derived(batch, &format!("generation/{generation}"), opened_at)
}

struct Work {
    state: State,
    decision: Decision<Event>,
    cx: Cx,
    vacant: bool,
}

impl Work {
    fn push(&mut self, event: Event) {
        Batch::apply(&mut self.state, &event);
        self.decision.events.push(event);
    }

    /// Whatever comes to a vacant batch finds it collecting: retention leaves it alone for another while.
    fn wake(&mut self) {
        if std::mem::take(&mut self.vacant) {
            self.push(Event::BatchWoken);
        }
    }

    fn vacate(&mut self) {
        self.push(Event::BatchVacated);
        self.vacant = true;
    }

    fn note(&mut self, what: String) {
        self.push(Event::BatchMailNoted { what });
    }

    fn read(&mut self, mail: &Mail) {
        let body = mail.body.inline().unwrap_or_default();
        match mail.kind.as_str() {
            ITEM => match tenure_kernel::stored::from_slice::<Item>(body) {
                Ok(item) => self.collect(mail.id.0.clone(), item),
                Err(e) => self.lost(mail, &e.to_string()),
            },
            OVERTAKEN => match tenure_kernel::stored::from_slice::<Overtaken>(body) {
                Ok(Overtaken { job }) => self.overtaken(job),
                Err(e) => self.note(format!("overtaken: {e}")),
            },
            kinds::RETURNED => {
                let body: Value = tenure_kernel::stored::from_slice(body).unwrap_or_default();
                let why = body["why"].as_str().unwrap_or("it could not be delivered").to_owned();
                match body["to"].as_str().and_then(|t| t.parse().ok()) {
                    Some(job) => {
                        // Submissions without a job: a person has to know.
                        self.decision.attention = Some(Some(format!("job {job}: {why}")));
                        self.push(Event::BatchJobRefused { job, why });
                    }
                    None => self.note(format!("returned: {why}")),
                }
            }
            other => self.note(format!("no batch understands mail of kind {other:?}")),
        }
    }

    /// A submission that was taken in and can not be read. Somebody waits for it: a person has to know.
    fn lost(&mut self, mail: &Mail, why: &str) {
        let why = match &mail.body {
            Body::Inline(_) => why.to_owned(),
            _ => "its body is too large to be collected".to_owned(),
        };
        let what = format!("submission {}: {why}", mail.id.0);
        self.decision.attention = Some(Some(clip(&what, KEY_BYTES_MAX).to_owned()));
        self.note(what);
    }

    /// A later submission, too large to be collected, is this job: what was collected does not run after it.
    fn overtaken(&mut self, job: EntityId) {
        let (generation, items) = (self.state.generation + 1, self.state.items + 1);
        let (at, why) = (self.cx.now, "overtaken".to_owned());
        self.push(Event::BatchClosed(Made { job, generation, items, at, why }));
    }

    fn collect(&mut self, id: String, item: Item) {
        let now = self.cx.now;
        // Mail is served before timers: what came after the time was up does not hold the others back.
        if self.state.items > 0 && self.state.closes_at.is_some_and(|at| at <= now) {
            self.close("time");
        }
        if let Mode::Batch { .. } = item.mode
            && self.state.items > 0
            && self.state.bytes() + bytes(&item.input) > limits::OPEN_BYTES_MAX
        {
            self.close("bytes");
        }
        let latest = self.state.opened_at.unwrap_or(now) + item.mode.within();
        let closes_at = match item.mode {
            Mode::Batch { .. } => latest,
            Mode::Debounce { quiet_ms, .. } => latest.min(now + Duration::from_millis(quiet_ms)),
        };
        let mode = item.mode;
        self.push(Event::ItemCollected { id, item: Box::new(item), at: now, closes_at });
        if let Mode::Batch { max, .. } = mode
            && self.state.items >= max
        {
            self.close("full");
        }
    }

    fn close(&mut self, why: &str) {
        let (state, at) = (&self.state, self.cx.now);
        // What is open has all three.
        let (Some(job), Some(mode), Some(opened_at)) = (&state.job, state.mode, state.opened_at)
        else {
            return self.note("nothing is collected".into());
        };
        let generation = state.generation + 1;
        let id = job_of(self.cx.id, generation, opened_at);
        let input = match mode {
            Mode::Batch { .. } => json!({ "items": state.inputs }),
            Mode::Debounce { .. } => state.inputs.last().cloned().unwrap_or_default(),
        };
        let new = NewJob {
            flow: state.flow.clone(),
            version: job.version,
            input,
            priority: job.priority,
            must_end_in_ms: job.must_end_in_ms,
            takeovers_max: job.takeovers_max,
            terms: job.terms.clone(),
            by: job.by.clone(),
            ..NewJob::default()
        };
        let to = Target::Create { id, kind: Job::TABLE.kind.into() };
        let message = Message { to, kind: "create".into(), body: Body::json(&new) };
        let (items, why) = (state.items, why.to_owned());
        self.push(Event::BatchClosed(Made { job: id, generation, items, at, why }));
        self.decision.messages.push(message);
    }
}
