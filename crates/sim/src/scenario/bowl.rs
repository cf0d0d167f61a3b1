//! A bowl: rests for ever and gets very many messages. It owes nothing, so nothing ends it; it must
//! count every message once, seal its segments, and stay due when mail waits.

use super::Clients;
use crate::world::World;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tenure_kernel::{
    machine::{Cx, Decision, Input, Machine, Undecided, decode_state},
    stream::Body,
    table::{BIRTH, Claimable, Class, Move, SAME, StatusRow, Table},
    timers::TimerChange,
};
use tenure_store::memory::Contents;

const DROP: &str = "drop";

/// What the head keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Messages counted.
    pub drops: u64,
    /// Times the timer fired.
    pub ticks: u64,
}

/// What can happen.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// It exists.
    Made,
    /// Messages came.
    Dropped {
        /// How many.
        count: u64,
    },
    /// Its timer fired.
    Ticked,
}

/// The machine.
pub struct Bowl;

static TABLE: Table = Table {
    kind: "bowl",
    doc: "Rests and counts.",
    statuses: &[StatusRow {
        name: "resting",
        class: Class::Resting,
        claimable: Claimable::No,
        doc: "Owes nothing.",
    }],
    moves: &[
        Move { from: BIRTH, event: "made", to: "resting" },
        Move { from: &["resting"], event: "dropped", to: SAME },
        Move { from: &["resting"], event: "ticked", to: SAME },
    ],
    forced: "",
};

impl Machine for Bowl {
    type State = State;
    type Event = Event;

    const TABLE: &'static Table = &TABLE;

    fn name(event: &Event) -> &'static str {
        match event {
            Event::Made => "made",
            Event::Dropped { .. } => "dropped",
            Event::Ticked => "ticked",
        }
    }

    fn apply(state: &mut State, event: &Event) {
        match event {
            Event::Made => {}
            Event::Dropped { count } => state.drops += count,
            Event::Ticked => state.ticks += 1,
        }
    }

    fn decide(
        state: Option<&State>,
        input: &Input<'_>,
        _cx: &Cx,
    ) -> Result<Decision<Event>, Undecided> {
        let tick = || TimerChange::set("tick", Duration::from_secs(30));
        Ok(match (state, input) {
            (None, _) => Decision::event(Event::Made).timer(tick()),
            (_, Input::Mail(mail)) => Decision::event(Event::Dropped { count: mail.len() as u64 }),
            (_, Input::Timer(_)) => Decision::event(Event::Ticked).timer(tick()),
            _ => Decision::default(),
        })
    }
}

pub(super) fn play(clients: &Clients) {
    let c = clients.clone();
    clients.spawn(Box::pin(async move {
        let id = c.id();
        c.create("bowl", id, &Body::json(&())).await;
        let drops = 100 + c.below(300);
        for n in 0..drops {
            let each = c.clone();
            c.spawn(Box::pin(async move {
                each.wait(each.some(Duration::from_secs(90))).await;
                each.mail(id, format!("drop/{n}"), DROP, Body::json(&n)).await;
                // A client that is not sure asks again.
                if each.below(4) == 0 {
                    each.mail(id, format!("drop/{n}"), DROP, Body::json(&n)).await;
                }
            }));
        }
    }));
}

pub(super) fn check(_world: &World, contents: &Contents) -> Result<(), String> {
    for head in contents.rows.heads.values().filter(|h| h.kind() == "bowl") {
        let state = decode_state::<Bowl>(&head.state).map_err(|e| e.0)?;
        if state.drops != head.mail_count {
            let (id, drops, count) = (head.id, state.drops, head.mail_count);
            return Err(format!("{id}: counted {drops} of {count} messages"));
        }
    }
    Ok(())
}
