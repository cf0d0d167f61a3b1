//! A fan: a parent that makes many parts, hears from each, and ends when all have. Under a storm of
//! signals, and cancelled at any point: it is final only after its parts are.

use super::{Clients, part};
use crate::world::World;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, time::Duration};
use tenure_kernel::{
    ids::EntityId,
    machine::{Cx, Decision, Input, Machine, Undecided, decode_state},
    mail::{Mail, kinds},
    outbox::{Message, Target},
    stream::Body,
    table::{BIRTH, Claimable, Class, Move, SAME, StatusRow, Table},
    time::Timestamp,
};
use tenure_store::memory::Contents;

/// A fan ends within this time.
pub const MUST_END: Duration = Duration::from_secs(2 * 3_600);
/// A part ends well before its parent.
pub const PART_MUST_END: Duration = Duration::from_secs(1_200);
const POKE: &str = "poke";

/// What a part says at its end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ended {
    /// Which part.
    pub index: u32,
    /// How.
    pub how: String,
}

/// What the head keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// How many parts.
    pub width: u32,
    /// Those that ended.
    pub ended: BTreeSet<u32>,
    /// Parts that said twice that they ended.
    pub twice: u32,
    /// Signals.
    pub pokes: u64,
    /// Somebody asked.
    pub cancelling: bool,
    /// Messages that came back.
    pub returned: u32,
}

/// What can happen.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// It exists.
    Opened {
        /// How many parts.
        width: u32,
    },
    /// Parts ended.
    PartsEnded {
        /// Which.
        indexes: Vec<u32>,
    },
    /// Signals came.
    Poked {
        /// How many.
        count: u64,
    },
    /// Somebody asked.
    CancelAsked,
    /// Messages came back.
    Returned {
        /// How many.
        count: u32,
    },
    /// All parts ended.
    Closed,
    /// All parts ended after a cancel.
    ClosedCancelled,
    /// Its time was over.
    FanExpired,
}

/// The machine.
pub struct Fan;

const OPEN: &[&str] = &["open", "cancelling"];
static TABLE: Table = Table {
    kind: "fan",
    doc: "A parent of many parts.",
    statuses: &[
        StatusRow { name: "open", class: Class::Open, claimable: Claimable::No, doc: "Parts run." },
        StatusRow {
            name: "cancelling",
            class: Class::Open,
            claimable: Claimable::No,
            doc: "Parts end.",
        },
        StatusRow { name: "done", class: Class::Final, claimable: Claimable::No, doc: "Over." },
        StatusRow {
            name: "cancelled",
            class: Class::Final,
            claimable: Claimable::No,
            doc: "Over.",
        },
        StatusRow { name: "failed", class: Class::Final, claimable: Claimable::No, doc: "Over." },
    ],
    moves: &[
        Move { from: BIRTH, event: "opened", to: "open" },
        Move { from: OPEN, event: "parts_ended", to: SAME },
        Move { from: OPEN, event: "poked", to: SAME },
        Move { from: OPEN, event: "returned", to: SAME },
        Move { from: &["open"], event: "cancel_asked", to: "cancelling" },
        Move { from: &["open"], event: "closed", to: "done" },
        Move { from: &["cancelling"], event: "closed_cancelled", to: "cancelled" },
        Move { from: OPEN, event: "fan_expired", to: "failed" },
    ],
    forced: "failed",
};

/// The id of a part: from its parent and its number only.
pub fn part_id(parent: EntityId, index: u32) -> EntityId {
    EntityId::derived(parent, &format!("part-{index}"), Timestamp::ZERO)
}

fn to_part(parent: EntityId, index: u32, kind: &'static str, body: Body) -> Message {
    let to = Target::Create { id: part_id(parent, index), kind: Part::KIND.into() };
    Message { to, kind: kind.into(), body }
}

struct Part;
impl Part {
    const KIND: &str = <part::Part as Machine>::TABLE.kind;
}

impl Machine for Fan {
    type State = State;
    type Event = Event;

    const TABLE: &'static Table = &TABLE;

    fn name(event: &Event) -> &'static str {
        match event {
            Event::Opened { .. } => "opened",
            Event::PartsEnded { .. } => "parts_ended",
            Event::Poked { .. } => "poked",
            Event::CancelAsked => "cancel_asked",
            Event::Returned { .. } => "returned",
            Event::Closed => "closed",
            Event::ClosedCancelled => "closed_cancelled",
            Event::FanExpired => "fan_expired",
        }
    }

    fn apply(state: &mut State, event: &Event) {
        match event {
            Event::Opened { width } => state.width = *width,
            Event::PartsEnded { indexes } => {
                let again = indexes.iter().filter(|i| !state.ended.insert(**i)).count();
                state.twice += again as u32;
            }
            Event::Poked { count } => state.pokes += count,
            Event::CancelAsked => state.cancelling = true,
            Event::Returned { count } => state.returned += count,
            Event::Closed | Event::ClosedCancelled | Event::FanExpired => {}
        }
    }

    fn decide(
        state: Option<&State>,
        input: &Input<'_>,
        cx: &Cx,
    ) -> Result<Decision<Event>, Undecided> {
        let Some(state) = state else { return open(input, cx) };
        Ok(match input {
            Input::Mail(mail) => read(state, mail, cx)?,
            Input::MustEnd => Decision::event(Event::FanExpired),
            _ => Decision::default(),
        })
    }
}

fn open(input: &Input<'_>, cx: &Cx) -> Result<Decision<Event>, Undecided> {
    let Input::Create(body) = input else { return Ok(Decision::default()) };
    let width: u32 = serde_json::from_slice(body.inline().unwrap_or(b""))
        .map_err(|e| Undecided(e.to_string()))?;
    let make = |index| {
        let state = part::State { parent: Some(cx.id), index, started: false };
        to_part(cx.id, index, "create", Body::json(&state))
    };
    let opened = Decision::event(Event::Opened { width }).must_end_in(MUST_END);
    Ok(Decision { messages: (0..width).map(make).collect(), ..opened })
}

fn read(state: &State, mail: &[Mail], cx: &Cx) -> Result<Decision<Event>, Undecided> {
    let mut next = state.clone();
    let mut decision = Decision::default();
    let mut indexes = Vec::new();
    for m in mail.iter().filter(|m| m.kind == kinds::CHILD_ENDED) {
        let ended: Ended = serde_json::from_slice(m.body.inline().unwrap_or(b""))
            .map_err(|e| Undecided(e.to_string()))?;
        indexes.push(ended.index);
    }
    let count = |kind: &str| mail.iter().filter(|m| m.kind == kind).count() as u64;
    let mut events = Vec::new();
    if !indexes.is_empty() {
        events.push(Event::PartsEnded { indexes });
    }
    if count(POKE) > 0 {
        events.push(Event::Poked { count: count(POKE) });
    }
    if count(kinds::RETURNED) > 0 {
        events.push(Event::Returned { count: count(kinds::RETURNED) as u32 });
    }
    if count(kinds::CANCEL) > 0 && !state.cancelling {
        events.push(Event::CancelAsked);
    }
    for event in &events {
        Fan::apply(&mut next, event);
    }
    if next.cancelling && !state.cancelling {
        let open = (0..next.width).filter(|i| !next.ended.contains(i));
        let cancel = |i| to_part(cx.id, i, kinds::CANCEL, Body::json(&()));
        decision.messages.extend(open.map(cancel));
    }
    if next.ended.len() == next.width as usize {
        events.push(if next.cancelling { Event::ClosedCancelled } else { Event::Closed });
    }
    decision.events = events;
    Ok(decision)
}

pub(super) fn play(clients: &Clients, cancel: bool, fixed: Option<u64>) {
    let c = clients.clone();
    clients.spawn(Box::pin(async move {
        let id = c.id();
        // Now and then so many that one decision can not read all mail.
        let (width, storm) = match c.below(12) {
            0 => (3, 700),
            _ => (10 + c.below(30), c.below(60)),
        };
        let width = fixed.unwrap_or(width);
        c.create("fan", id, &Body::json(&width)).await;
        let long = Duration::from_secs(90);
        for n in 0..storm {
            let each = c.clone();
            c.spawn(Box::pin(async move {
                each.wait(each.some(long)).await;
                each.mail(id, format!("poke/{n}"), POKE, Body::json(&n)).await;
            }));
        }
        if cancel {
            c.wait(c.some(Duration::from_secs(40))).await;
            c.mail(id, "cancel".into(), kinds::CANCEL, Body::json(&())).await;
        }
    }));
}

pub(super) fn check(_world: &World, contents: &Contents) -> Result<(), String> {
    for head in contents.rows.heads.values().filter(|h| h.kind() == "fan") {
        let id = head.id;
        let state = decode_state::<Fan>(&head.state).map_err(|e| e.0)?;
        let status = head.status.name();
        if state.twice > 0 || state.returned > 0 {
            return Err(format!(
                "{id}: {} parts ended twice, {} came back",
                state.twice, state.returned
            ));
        }
        if status != "failed" && state.ended.len() != state.width as usize {
            return Err(format!(
                "{id}: {status} with {} of {} parts",
                state.ended.len(),
                state.width
            ));
        }
        for index in 0..state.width {
            let part = contents.rows.heads.get(&part_id(id, index));
            if part.is_none_or(|p| p.class() != Class::Final) {
                return Err(format!("{id}: {status}, and part {index} is not final"));
            }
        }
        let mail = contents.mail.get(&id).map_or(&[][..], Vec::as_slice);
        let pokes = mail.iter().filter(|m| m.kind == POKE).count() as u64;
        if status != "failed" && pokes != state.pokes {
            return Err(format!("{id}: counted {} of {pokes} signals", state.pokes));
        }
    }
    Ok(())
}
