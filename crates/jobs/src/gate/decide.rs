//! What follows from an ask, a release, a page, a returned grant and the check.
//!
//! Every decision ends with `settle`: as long as a permit is free and somebody is in the window, it is granted; and
//! when the window runs low, the next page is asked for. So there is never a free permit while somebody waits and
//! nothing is on its way.
//!
//! Whoever leaves it with nobody at it sets the clock [`IDLE`]; the next one stops it.

use super::{
    limits, mail,
    model::{Gate, GateEvent, GateState, Waiter},
    page::{GatePage, Piece, first_page, page_id},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::time::Duration;
use tenure_kernel::{
    ids::EntityId,
    limits as kernel_limits,
    machine::{Cx, Decision, Input, Machine, Undecided},
    mail::{Mail, kinds},
    outbox::{Message, Target},
    stream::Body,
    table::VACANT,
    timers::TimerChange,
};

/// The timer after which holders are asked whether they are still there.
pub const CHECK: &str = "check";
/// The timer after which a gate at which nobody stands is vacant.
pub const IDLE: &str = "idle";

/// What is said to a gate. It says itself what it is: a creation is decided from the body alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "says", rename_all = "snake_case")]
pub enum Said {
    /// A job wants to pass.
    Ask {
        /// The gate's name.
        name: String,
        /// The job.
        job: EntityId,
        /// Its priority.
        priority: i16,
        /// Jobs at once, if nobody has said so before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<u32>,
    },
    /// A person says how many may pass.
    Set {
        /// The gate's name.
        name: String,
        /// Jobs at once.
        limit: u32,
        /// Who.
        by: String,
        /// They are of no tenant.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        by_operator: bool,
    },
    /// A job is over, or does not want its permit now.
    Release {
        /// Which.
        job: EntityId,
        /// It is not over: it was paused when its turn came, and asks again when it goes on.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        paused: bool,
    },
}

/// See [`tenure_kernel::machine::Machine::decide`].
pub fn decide(
    state: Option<&GateState>,
    input: &Input<'_>,
    cx: &Cx,
) -> Result<Decision<GateEvent>, Undecided> {
    match (state, input) {
        (None, Input::Create(body)) => born(body, cx),
        (None, _) => Err(Undecided("there is no such gate".into())),
        (Some(state), Input::Mail(mail)) => {
            let mut desk = Desk::new(state, cx);
            desk.wake();
            mail.iter().for_each(|m| desk.read(m));
            Ok(desk.done())
        }
        (Some(state), Input::Timer(name)) => {
            let mut desk = Desk::new(state, cx);
            match *name {
                CHECK => desk.check(),
                IDLE if state.is_idle() && !desk.vacant => desk.vacate(),
                IDLE => desk.note("idle: somebody came"),
                other => desk.note(&format!("timer {other}: nobody waits for it")),
            }
            Ok(desk.done())
        }
        (Some(_), _) => {
            Err(Undecided("a gate rests: nobody holds it and it ends by no time".into()))
        }
    }
}

fn born(body: &Body, cx: &Cx) -> Result<Decision<GateEvent>, Undecided> {
    let said = body.inline().and_then(|b| tenure_kernel::stored::from_slice::<Said>(b).ok());
    let (name, limit, maker) = match &said {
        Some(Said::Ask { name, limit, job, .. }) => (name.clone(), limit.unwrap_or(1), *job),
        Some(Said::Set { name, limit, .. }) => (name.clone(), *limit, cx.id),
        _ => return Err(Undecided("a gate is made by an ask or by a limit that is set".into())),
    };
    let empty = GateState::default();
    let mut desk = Desk::new(&empty, cx);
    let (limit, page) = (limit.clamp(1, limits::LIMIT_MAX), first_page(maker));
    desk.push(GateEvent::GateCreated { name, limit, page });
    if let Some(said) = said {
        desk.said(said);
    }
    Ok(desk.done())
}

/// A decision in the making: the state as it is after the events so far.
struct Desk<'a> {
    state: GateState,
    decision: Decision<GateEvent>,
    cx: &'a Cx,
    /// What goes to the last page in this decision: one message, however many ask.
    to_page: Vec<Waiter>,
    /// Holders came or went, or were asked: the check is set anew.
    moved: bool,
    /// Nobody stood here before this decision.
    was_idle: bool,
    vacant: bool,
}

impl<'a> Desk<'a> {
    fn new(state: &GateState, cx: &'a Cx) -> Self {
        let was_idle = cx.status.is_some() && state.is_idle();
        let vacant = cx.status.is_some_and(|s| s.name() == VACANT);
        let (state, decision) = (state.clone(), Decision::default());
        Desk { state, decision, cx, to_page: Vec::new(), moved: false, was_idle, vacant }
    }

    /// Whatever comes to a vacant gate finds it standing: retention leaves it alone for another while.
    fn wake(&mut self) {
        if std::mem::take(&mut self.vacant) {
            self.push(GateEvent::GateWoken);
        }
    }

    fn vacate(&mut self) {
        self.push(GateEvent::GateVacated);
        self.vacant = true;
    }

    fn push(&mut self, event: GateEvent) {
        Gate::apply(&mut self.state, &event);
        self.decision.events.push(event);
    }

    fn note(&mut self, what: &str) {
        let what = kernel_limits::clip(what, 256).to_owned();
        self.push(GateEvent::GateNoted { what });
    }

    fn send(&mut self, to: EntityId, kind: &'static str, body: &impl Serialize) {
        self.decision.messages.push(Message::mail(to, kind, Body::json(body)));
    }

    fn read(&mut self, m: &Mail) {
        fn parse<T: serde::de::DeserializeOwned>(m: &Mail) -> Option<T> {
            m.body.inline().and_then(|b| tenure_kernel::stored::from_slice(b).ok())
        }
        match m.kind.as_str() {
            mail::ASK | mail::SET | mail::RELEASE => match parse(m) {
                Some(said) => self.said(said),
                None => self.note(&format!("{}: it can not be read", m.kind)),
            },
            mail::PAGE => match parse(m) {
                Some(piece) => self.page_came(piece),
                None => self.note("gate_page: it can not be read"),
            },
            kinds::RETURNED => self.came_back(&parse(m).unwrap_or_default()),
            other => self.note(&format!("no gate understands mail of kind {other:?}")),
        }
    }

    fn said(&mut self, said: Said) {
        match said {
            Said::Ask { job, priority, .. } => self.ask(Waiter(job, priority, self.cx.now)),
            Said::Set { limit, .. } if !(1..=limits::LIMIT_MAX).contains(&limit) => {
                self.note(&format!("gate_set: {limit} is not between 1 and {}", limits::LIMIT_MAX));
            }
            // Here, and not only where it is asked for: the operator's word may lie unread before this one.
            Said::Set { by, by_operator: false, .. } if self.state.by_operator => {
                self.note(&format!("gate_set: an operator set the limit; {by} is none"));
            }
            // Less takes nothing away: grants wait until enough have come back.
            Said::Set { limit, by, by_operator, .. } => {
                self.push(GateEvent::GateLimitSet { limit, by, by_operator });
            }
            Said::Release { job, paused: false } => self.release(job, "it ended"),
            Said::Release { job, paused: true } => self.release(job, "it is paused"),
        }
        self.settle();
    }

    fn ask(&mut self, waiter: Waiter) {
        let job = waiter.0;
        if self.state.holds(job) || self.state.window.iter().any(|w| w.0 == job) {
            return self.note(&format!("gate_ask: {job} stands here already"));
        }
        let in_line = self.state.paged > 0 || !self.to_page.is_empty();
        if in_line || self.state.window.len() >= limits::WINDOW_MAX {
            // Behind those who came before, also where there is room in the window by now.
            self.to_page.push(waiter);
            let full = self.state.in_last as usize + self.to_page.len() >= limits::PAGE_MAX;
            if full {
                self.put();
            }
            return;
        }
        self.push(GateEvent::GateAsked { waiter });
    }

    /// Puts what has gathered into the last page, and begins the next one when that is full.
    fn put(&mut self) {
        if self.to_page.is_empty() {
            return;
        }
        let waiters = std::mem::take(&mut self.to_page);
        let full = self.state.in_last as usize >= limits::PAGE_MAX;
        let page = self.state.last_page + u64::from(full);
        let piece = Piece { gate: self.cx.id, page, waiters: waiters.clone() };
        let id = page_id(self.cx.id, page);
        let to = Target::Create { id, kind: GatePage::TABLE.kind.into() };
        let message = Message { to, kind: mail::PUT.into(), body: Body::json(&piece) };
        self.decision.messages.push(message);
        self.push(GateEvent::GatePaged { page, waiters });
    }

    fn release(&mut self, job: EntityId, why: &str) {
        let (held, waits) = (self.state.holds(job), self.state.window.iter().any(|w| w.0 == job));
        match held || waits {
            true => self.push(GateEvent::GateReleased { job, why: why.to_owned() }),
            // Its place is in a page, or it was freed before: a grant that finds it over comes back.
            false => self.note(&format!("gate_release: {job} has no permit")),
        }
        self.moved |= held;
    }

    fn came_back(&mut self, body: &Value) {
        let why = body["why"].as_str().unwrap_or("it could not be delivered").to_owned();
        let to: Option<EntityId> = body["to"].as_str().and_then(|t| t.parse().ok());
        match (body["kind"].as_str(), to) {
            (Some(mail::GRANTED | mail::HOLDS), Some(job)) => {
                self.release(job, &format!("a message to it came back: {why}"));
            }
            (Some(mail::TAKE | mail::PUT), Some(id)) => match self.state.fetching {
                Some((page, _)) if page_id(self.cx.id, page) == id => {
                    self.push(GateEvent::GatePageLost { page, why });
                }
                _ => self.note(&format!("returned: {why}")),
            },
            _ => self.note(&format!("returned: {why}")),
        }
        self.settle();
    }

    fn page_came(&mut self, piece: Piece) {
        match self.state.fetching {
            Some((page, _)) if page == piece.page => {
                // One that was asked for twice keeps its first place.
                let new = |w: &&Waiter| {
                    !self.state.holds(w.0) && !self.state.window.iter().any(|o| o.0 == w.0)
                };
                let waiters: Vec<Waiter> = piece.waiters.iter().filter(new).copied().collect();
                self.push(GateEvent::GateFetched { page, waiters });
            }
            _ => self.note(&format!("gate_page: nobody asked for page {}", piece.page)),
        }
        self.settle();
    }

    fn check(&mut self) {
        let now = self.cx.now;
        let due = self.state.holders.iter().filter(|h| h.check_at() <= now);
        let jobs: Vec<EntityId> = due.map(|h| h.0).collect();
        for job in &jobs {
            self.send(*job, mail::HOLDS, &serde_json::json!({ "gate": self.state.name }));
        }
        match jobs.is_empty() {
            true => self.note("check: everybody was asked lately"),
            false => self.push(GateEvent::GateHoldersAsked { jobs }),
        }
        self.moved = true;
    }

    /// See the module.
    fn settle(&mut self) {
        while self.state.holders.len() < self.state.limit as usize {
            let Some(Waiter(job, ..)) = self.state.next() else { break };
            let body = serde_json::json!({ "gate": self.state.name });
            self.send(job, mail::GRANTED, &body);
            self.push(GateEvent::GateGranted { job, at: self.cx.now });
            self.moved = true;
        }
        if self.state.window.len() > limits::WINDOW_LOW || self.state.fetching.is_some() {
            return;
        }
        // What gathers for the last page counts too: it is put first, so that the page has it when it is asked.
        self.put();
        if self.state.paged == 0 {
            return;
        }
        let page = self.state.first_page;
        let whole = u32::try_from(limits::PAGE_MAX).unwrap_or(u32::MAX);
        let count = if page == self.state.last_page { self.state.in_last } else { whole };
        self.send(page_id(self.cx.id, page), mail::TAKE, &serde_json::json!({ "page": page }));
        self.push(GateEvent::GateFetching { page, count });
    }

    fn done(mut self) -> Decision<GateEvent> {
        self.put();
        if self.moved {
            let now = self.cx.now;
            self.decision.timers.push(
                match self.state.holders.iter().map(|h| h.check_at()).min() {
                    Some(at) => TimerChange::set(CHECK, at.since(now).max(Duration::from_secs(1))),
                    None => TimerChange::clear(CHECK),
                },
            );
        }
        match self.state.is_idle() && !self.vacant {
            true => self.decision.timers.push(TimerChange::set(IDLE, limits::IDLE)),
            false if self.was_idle => self.decision.timers.push(TimerChange::clear(IDLE)),
            false => {}
        }
        self.decision
    }
}
