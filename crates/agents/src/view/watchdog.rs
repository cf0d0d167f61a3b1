//! The dry run: what the rules would do to a turn or an agent, now and next. The machine itself is asked, on a copy, at
//! the moment at which each rule would be looked at; nothing is committed.
//!
//! It says what follows if nobody acts in between. A clock that counts from a claim is followed to where it would fire.

use super::{
    turn::{rule_of, shown},
    why::consequence,
};
use crate::{agent::Agent, turn::Turn, view::turn::NextRule};
use serde::{Deserialize, Serialize};
use tenure_kernel::{
    head::Head,
    ids::EntityId,
    machine::{Cx, Decision, Input, Machine, decode_state},
    table::Class,
    time::Timestamp,
};

/// How often a clock is followed to where it fires.
const FOLLOWED_MAX: usize = 4;

/// What one rule would do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    /// Which turn or agent.
    pub id: EntityId,
    /// `turn` or `agent`.
    pub kind: String,
    /// Where it stands, as people read it.
    pub status: String,
    /// The rule.
    pub rule: String,
    /// Of a wait: which.
    pub wait: Option<String>,
    /// When it fires; `None` while it can not (its clock has not begun).
    pub at: Option<Timestamp>,
    /// It would fire now.
    pub now: bool,
    /// The events that it would write.
    pub events: Vec<String>,
    /// How the turn would end by it.
    pub ends: Option<String>,
    /// In words.
    pub does: String,
}

/// What the rules would do to this head if nobody acts, the next first.
pub fn forecast(head: &Head, now: Timestamp) -> Vec<Forecast> {
    match head.kind() {
        kind if kind == Turn::TABLE.kind => of::<Turn>(head, now),
        kind if kind == Agent::TABLE.kind => of::<Agent>(head, now),
        _ => Vec::new(),
    }
}

fn of<M: Machine>(head: &Head, now: Timestamp) -> Vec<Forecast> {
    if head.class() == Class::Final {
        return Vec::new();
    }
    let Ok(state) = decode_state::<M>(&head.state) else { return Vec::new() };
    let mut all: Vec<Forecast> = head
        .timers
        .iter()
        .map(|t| follow::<M>(head, &state, &t.name, &Input::Timer(&t.name), t.at, now))
        .collect();
    if let Some(at) = head.check_at.filter(|_| head.holder.is_some()) {
        let input = Input::TenureEnded("its worker is gone");
        let mut look = follow::<M>(head, &state, "holder_check", &input, at, now);
        look.does = format!("if its worker is gone by then: {}", look.does);
        all.push(look);
    }
    if let Some(at) = head.must_end_by {
        all.push(follow::<M>(head, &state, "must_end_by", &Input::MustEnd, at, now));
    }
    // A clock that has not begun comes last.
    all.sort_by_key(|f| f.at.unwrap_or(Timestamp::MAX));
    all
}

fn follow<M: Machine>(
    head: &Head,
    state: &M::State,
    name: &str,
    input: &Input<'_>,
    at: Timestamp,
    now: Timestamp,
) -> Forecast {
    let mut moment = at.max(now);
    let mut decided = Ok(Decision::default());
    let mut fires = false;
    for _ in 0..FOLLOWED_MAX {
        let cx = Cx {
            id: head.id,
            now: moment,
            version: head.version,
            status: Some(head.status),
            changed_at: Some(head.changed_at),
        };
        decided = M::decide(Some(state), input, &cx);
        match &decided {
            Ok(Decision { events, not_before: Some(later), .. }) if events.is_empty() => {
                moment = (*later).max(moment);
            }
            _ => {
                fires = true;
                break;
            }
        }
    }
    let (rule, wait) = rule_of(name);
    let shown_rule = NextRule { rule: rule.clone(), wait: wait.clone(), at: moment };
    let (events, ends, does) = match decided {
        Err(e) => (Vec::new(), None, format!("nothing: {e}")),
        Ok(_) if !fires => {
            let does = "nothing while no worker has it: its clock begins with a claim".to_owned();
            (Vec::new(), None, does)
        }
        Ok(decision) => {
            let mut status = Some(head.status);
            for event in &decision.events {
                status = M::TABLE.step(status, M::name(event)).ok().or(status);
            }
            let ends = status.filter(|s| s.class() == Class::Final).map(|s| s.name().to_owned());
            let events = decision.events.iter().map(|e| M::name(e).to_owned()).collect();
            (events, ends, consequence(&shown_rule))
        }
    };
    Forecast {
        id: head.id,
        kind: head.kind().to_owned(),
        status: shown(head.status.name()).to_owned(),
        rule,
        wait,
        at: fires.then_some(moment),
        now: fires && moment <= now,
        events,
        ends,
        does,
    }
}
