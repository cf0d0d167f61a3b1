//! What an agent does about its mail, from its head alone.

use super::{
    model::{Agent, AgentEvent, AgentState},
    table::{ACTIVE, IDLE},
};
use crate::{
    limits,
    rules::{MISSED_AGAIN, STILL_THERE_EVERY, timer},
    words::{Change, Dispatch, Ended, Enqueue, Refused, Returned, kinds},
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tenure_kernel::{
    ids::EntityId,
    machine::{Cx, Decision, Input, Machine, Undecided},
    mail::{Mail, kinds as kernel},
    outbox::Message,
    stream::Body,
    timers::TimerChange,
};

/// By how much the counter rises after a turn that was ended by force.
const FORCED_EPOCHS: u64 = 1_000_000;

/// What follows from an input.
pub fn decide(
    state: Option<&AgentState>,
    input: &Input<'_>,
    cx: &Cx,
) -> Result<Decision<AgentEvent>, Undecided> {
    let Some(state) = state else { return birth(input) };
    let mut desk = Desk {
        state: state.clone(),
        status: cx.status.map_or(IDLE, |s| s.name()),
        cx,
        out: Decision::default(),
    };
    match input {
        Input::Mail(mail) => mail.iter().for_each(|m| desk.read(m)),
        Input::Timer(timer::STILL_THERE) => desk.ask_active(),
        Input::Timer(other) => desk.note(format!("timer {other}: not one of an agent's")),
        Input::Create(body) => desk.change_from(body),
        Input::CancelUnborn | Input::MustEnd | Input::TenureEnded(_) => {
            return Err(Undecided("an agent rests: it is neither held nor owed".into()));
        }
    }
    desk.give_next();
    Ok(desk.out)
}

/// The body of a message that creates an agent, or of a first commit by a person: a [`Change::Set`].
fn birth(input: &Input<'_>) -> Result<Decision<AgentEvent>, Undecided> {
    match input {
        Input::Create(body) => match read::<Change>(body) {
            Some(Change::Set { spec, by }) => {
                let version = (!spec.fits_a_head()).then_some(1);
                Ok(Decision::event(AgentEvent::AgentSet { spec, by, version }))
            }
            _ => Err(Undecided("an agent is born by being set".into())),
        },
        _ => Ok(Decision::default()),
    }
}

fn read<T: DeserializeOwned>(body: &Body) -> Option<T> {
    tenure_kernel::stored::from_slice(body.inline()?).ok()
}

/// A decision in the making: what has happened so far is applied at once, so that the next mail finds it.
struct Desk<'a> {
    state: AgentState,
    status: &'static str,
    cx: &'a Cx,
    out: Decision<AgentEvent>,
}

impl Desk<'_> {
    fn say(&mut self, event: AgentEvent) {
        Agent::apply(&mut self.state, &event);
        self.status = match &event {
            AgentEvent::TurnGiven { .. } => ACTIVE,
            AgentEvent::TurnClosed { .. } if self.status == ACTIVE => IDLE,
            AgentEvent::AgentRemoved { .. } => "removed",
            AgentEvent::AgentSet { .. } if self.status == "removed" => IDLE,
            _ => self.status,
        };
        self.out.events.push(event);
    }

    fn note(&mut self, what: String) {
        let what = tenure_kernel::limits::clip(&what, limits::ERROR_BYTES_MAX).to_owned();
        self.say(AgentEvent::AgentMailNoted { what });
    }

    fn tell(&mut self, turn: EntityId, kind: &'static str, body: &impl serde::Serialize) {
        self.out.messages.push(Message::mail(turn, kind, Body::json(body)));
    }

    fn read(&mut self, mail: &Mail) {
        match mail.kind.as_str() {
            kinds::ENQUEUE => match read::<Enqueue>(&mail.body) {
                Some(asked) => self.enqueue(&asked),
                None => self.note("enqueue: can not be read".into()),
            },
            kinds::ENDED => match read::<Ended>(&mail.body) {
                Some(ended) => self.ended(&ended),
                None => self.note("turn_ended: can not be read".into()),
            },
            kinds::CHANGE => self.change_from(&mail.body),
            kernel::RETURNED => match read::<Returned>(&mail.body) {
                Some(Returned { to: Some(turn), kind, .. }) => self.returned(turn, &kind),
                _ => self.note("returned: to nobody".into()),
            },
            other => self.note(format!("{other}: not for an agent")),
        }
    }

    fn enqueue(&mut self, asked: &Enqueue) {
        let turn = asked.turn;
        if self.state.knows(turn) {
            return self.note(format!("enqueue: turn {turn} is known"));
        }
        let idle = self.state.active.is_none() && self.state.queue.is_empty();
        let refusal = if self.status == "removed" {
            Some(("agent_removed", "the agent was removed".to_owned()))
        } else if asked.only_if_idle && (!idle || self.state.paused) {
            Some(("agent_busy", "the agent has another turn".to_owned()))
        } else if self.state.queue.len() >= limits::QUEUED_MAX {
            Some(("queue_full", format!("{} turns wait already", limits::QUEUED_MAX)))
        } else {
            None
        };
        match refusal {
            Some((code, why)) => self.refuse(turn, code, why),
            None => {
                let sent_later = |t: &&EntityId| asked.by_age && t.moment() > turn.moment();
                let before = self.state.queue.iter().rev().take_while(sent_later).count();
                self.say(AgentEvent::TurnQueued { turn, before });
            }
        }
    }

    fn refuse(&mut self, turn: EntityId, code: &str, why: String) {
        self.say(AgentEvent::TurnRefused { turn, code: code.to_owned() });
        self.tell(turn, kinds::REFUSED, &Refused { code: code.to_owned(), why });
    }

    fn ended(&mut self, ended: &Ended) {
        let Ended { turn, turn_epoch, status } = ended;
        if self.state.active.is_some_and(|a| a.turn == *turn) {
            let turn_epoch = self.state.turn_epoch.max(*turn_epoch);
            self.say(AgentEvent::TurnClosed { turn: *turn, turn_epoch, status: status.clone() });
            self.out.timers.push(TimerChange::clear(timer::STILL_THERE));
        } else if self.state.queue.contains(turn) {
            self.say(AgentEvent::TurnLeft { turn: *turn, status: status.clone() });
        } else {
            self.note(format!("turn {turn} is over, and was not waited for"));
        }
    }

    /// A turn that is over sends back what expects an answer. One that ended by itself says so too, with the counter that
    /// it left: that mail is on its way, and is waited for. Only one that was ended by force never does.
    fn returned(&mut self, turn: EntityId, kind: &str) {
        let mine = self.state.active.is_some_and(|a| a.turn == turn);
        let status = "over".to_owned();
        if !mine || kind == kinds::DISPATCH || self.state.missed {
            // How often it was resumed is not known: far beyond, the counter only rises.
            let more = if self.state.missed { FORCED_EPOCHS } else { 1 };
            let turn_epoch = self.state.turn_epoch + more;
            return self.ended(&Ended { turn, turn_epoch, status });
        }
        self.say(AgentEvent::TurnMissed { turn });
        self.out.timers.push(TimerChange::set(timer::STILL_THERE, MISSED_AGAIN));
    }

    fn ask_active(&mut self) {
        let Some(active) = self.state.active else {
            return self.note("still_there: no turn is active".into());
        };
        self.say(AgentEvent::TurnAsked {});
        self.tell(active.turn, kinds::STILL, &Value::Null);
        self.out.timers.push(TimerChange::set(timer::STILL_THERE, STILL_THERE_EVERY));
    }

    fn change_from(&mut self, body: &Body) {
        match read::<Change>(body) {
            Some(change) => self.change(change),
            None => self.note("agent_change: can not be read".into()),
        }
    }

    fn change(&mut self, change: Change) {
        let removed = self.status == "removed";
        match change {
            Change::Set { spec, by } => {
                let next = self.cx.version + 1 + self.out.events.len() as u64;
                let version = (!spec.fits_a_head()).then_some(next);
                self.say(AgentEvent::AgentSet { spec, by, version });
            }
            _ if removed => self.note("agent_change: it was removed".into()),
            Change::Pause { by } => self.say(AgentEvent::AgentPaused { by }),
            Change::Resume { by } => self.say(AgentEvent::AgentResumed { by }),
            Change::Remove { by } => {
                for turn in self.state.queue.clone() {
                    self.refuse(turn, "agent_removed", "the agent was removed".into());
                }
                self.say(AgentEvent::AgentRemoved { by });
            }
        }
    }

    /// Whoever is next, if nobody has the turn.
    fn give_next(&mut self) {
        if self.status != IDLE || self.state.active.is_some() || self.state.paused {
            return;
        }
        let Some(turn) = self.state.queue.first().copied() else { return };
        let turn_epoch = self.state.turn_epoch + 1;
        self.say(AgentEvent::TurnGiven { turn, turn_epoch, at: self.cx.now });
        self.tell(turn, kinds::DISPATCH, &Dispatch { turn_epoch });
        self.out.timers.push(TimerChange::set(timer::STILL_THERE, STILL_THERE_EVERY));
    }
}
