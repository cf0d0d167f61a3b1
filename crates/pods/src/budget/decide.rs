//! What follows from an ask, a release, a returned grant and the check.

use super::model::{
    ASK, Answer, Budget, BudgetAsk, BudgetEvent, BudgetRelease, BudgetSet, BudgetState, DEFERRED,
    GRANTED, RELEASE, SET, STILL,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::time::Duration;
use tenure_kernel::{
    ids::EntityId,
    limits as kernel_limits,
    machine::{Cx, Decision, Input, Machine as _, Undecided},
    mail::{Mail, kinds},
    outbox::Message,
    stream::Body,
    time::Timestamp,
    timers::TimerChange,
};

/// The timer after which holders are asked whether they are still there.
pub const CHECK: &str = "check";

/// The shortest and the longest time after which a task that was put off asks again.
const AGAIN_MS: (u64, u64) = (2_000, 60_000);

/// See [`tenure_kernel::machine::Machine::decide`].
pub fn decide(
    state: Option<&BudgetState>,
    input: &Input<'_>,
    cx: &Cx,
) -> Result<Decision<BudgetEvent>, Undecided> {
    match (state, input) {
        (None, Input::Create(body)) => born(body, cx),
        (None, _) => Err(Undecided("there is no such budget".into())),
        (Some(state), Input::Mail(mail)) => {
            let mut desk = Desk::new(state.clone(), cx);
            mail.iter().for_each(|m| desk.read(m));
            Ok(desk.done())
        }
        (Some(state), Input::Timer(name)) => {
            let mut desk = Desk::new(state.clone(), cx);
            match *name {
                CHECK => desk.check(),
                other => desk.note(&format!("timer {other}: nobody waits for it")),
            }
            Ok(desk.done())
        }
        (Some(_), _) => {
            Err(Undecided("a budget rests: nobody holds it, and it does not end".into()))
        }
    }
}

fn born(body: &Body, cx: &Cx) -> Result<Decision<BudgetEvent>, Undecided> {
    let bytes = body.inline().unwrap_or_default();
    let mut desk = Desk::new(BudgetState::default(), cx);
    if let Ok(ask) = tenure_kernel::stored::from_slice::<BudgetAsk>(bytes) {
        desk.say(BudgetEvent::BudgetCreated { tenant: ask.tenant.clone() });
        desk.ask(&ask);
    } else if let Ok(set) = tenure_kernel::stored::from_slice::<BudgetSet>(bytes) {
        desk.say(BudgetEvent::BudgetCreated { tenant: set.tenant.clone() });
        desk.set(set);
    } else {
        return Err(Undecided("a budget is made by an ask, or by what is said about it".into()));
    }
    Ok(desk.done())
}

struct Desk<'a> {
    state: BudgetState,
    out: Decision<BudgetEvent>,
    cx: &'a Cx,
}

impl<'a> Desk<'a> {
    fn new(state: BudgetState, cx: &'a Cx) -> Self {
        Desk { state, out: Decision::default(), cx }
    }

    fn say(&mut self, event: BudgetEvent) {
        Budget::apply(&mut self.state, &event);
        self.out.events.push(event);
    }

    fn note(&mut self, what: &str) {
        let what = kernel_limits::clip(what, 256).to_owned();
        self.say(BudgetEvent::BudgetNoted { what });
    }

    fn send(&mut self, to: EntityId, kind: &'static str, body: &impl Serialize) {
        self.out.messages.push(Message::mail(to, kind, Body::json(body)));
    }

    fn read(&mut self, m: &Mail) {
        fn parse<T: DeserializeOwned>(m: &Mail) -> Option<T> {
            tenure_kernel::stored::from_slice(m.body.inline().unwrap_or_default()).ok()
        }
        let known = match m.kind.as_str() {
            ASK => parse(m).map(|ask: BudgetAsk| self.ask(&ask)),
            SET => parse(m).map(|set: BudgetSet| self.set(set)),
            RELEASE => parse(m).map(|r: BudgetRelease| self.release(r.task, "the attempt ended")),
            kinds::RETURNED => parse(m).map(|body: Value| self.came_back(&body)),
            _ => None,
        };
        if known.is_none() {
            self.note(&format!("{}: it can not be read", m.kind));
        }
    }

    fn set(&mut self, set: BudgetSet) {
        if let Some(problem) = set.terms.problem() {
            return self.note(&problem);
        }
        self.say(BudgetEvent::BudgetTermsSet { terms: set.terms, by: Some(set.by) });
    }

    fn ask(&mut self, ask: &BudgetAsk) {
        let terms = ask.terms.clamped();
        if self.state.set_by.is_none() && self.state.terms != terms {
            self.say(BudgetEvent::BudgetTermsSet { terms, by: None });
        }
        let now = self.cx.now;
        if self.state.holds(ask.task) {
            // Its first answer may be late or lost to a newer ask: it is the same place, at the same moment.
            let moment = self.state.moments.iter().find(|p| p.0 == ask.task).map(|p| p.1);
            let after_ms = moment.map_or(0, |at| millis(at.since(now)));
            self.send(ask.task, GRANTED, &Answer { after_ms });
            return self.note(&format!("{} has a place", ask.task));
        }
        if self.state.places.len() >= self.state.terms.in_flight as usize {
            self.say(BudgetEvent::PlaceDeferred { task: ask.task });
            let after_ms = self.again_after(ask.task);
            return self.send(ask.task, DEFERRED, &Answer { after_ms });
        }
        let starts = self.starts(now);
        let after_ms = millis(starts.since(now));
        self.say(BudgetEvent::PlaceGranted { task: ask.task, at: now, starts });
        self.send(ask.task, GRANTED, &Answer { after_ms });
    }

    /// When the bucket has a token for the next one.
    fn starts(&self, now: Timestamp) -> Timestamp {
        let BudgetState { full_at, terms, .. } = &self.state;
        let ahead = terms.interval().saturating_mul(i64::from(terms.burst.saturating_sub(1)));
        let ahead = Duration::from_micros(u64::try_from(ahead).unwrap_or(0));
        (*full_at - ahead).max(now)
    }

    /// Those who were put off come back one after another: the more there are, the later, and not at the same moment.
    fn again_after(&self, task: EntityId) -> u64 {
        let hash = Sha256::new()
            .chain_update(task.as_bytes())
            .chain_update(self.state.deferred.to_be_bytes())
            .finalize();
        let (least, most) = AGAIN_MS;
        let crowd = (self.state.deferred % 512) * 100;
        let span = (least + crowd).min(most - least);
        let part = u64::from(u16::from_be_bytes([hash[0], hash[1]])) * span / u64::from(u16::MAX);
        least + part
    }

    fn release(&mut self, task: EntityId, why: &str) {
        match self.state.holds(task) {
            true => self.say(BudgetEvent::PlaceReleased { task, why: why.to_owned() }),
            false => self.note(&format!("{task} has no place")),
        }
    }

    fn came_back(&mut self, body: &Value) {
        let to: Option<EntityId> = body["to"].as_str().and_then(|t| t.parse().ok());
        match (body["kind"].as_str(), to) {
            (Some(GRANTED | STILL), Some(task)) => self.release(task, "the task is over"),
            _ => self.note("a message of it came back"),
        }
    }

    fn check(&mut self) {
        let now = self.cx.now;
        let due: Vec<EntityId> =
            self.state.places.iter().filter(|p| p.1 <= now).map(|p| p.0).collect();
        for task in due {
            self.send(task, STILL, &serde_json::json!({ "tenant": self.state.tenant }));
        }
        self.say(BudgetEvent::HoldersAsked { at: now });
    }

    fn done(mut self) -> Decision<BudgetEvent> {
        let now = self.cx.now;
        self.out.timers.push(match self.state.places.iter().map(|p| p.1).min() {
            Some(at) => TimerChange::set(CHECK, at.since(now).max(Duration::from_secs(1))),
            None => TimerChange::clear(CHECK),
        });
        self.out
    }
}

/// Rounded up: not before.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}
