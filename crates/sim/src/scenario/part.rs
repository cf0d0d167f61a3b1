//! A part: a child with one effect, that tells its parent how it ended, exactly once.

use super::{fan, patience};
use crate::world::Env;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tenure_engine::worker::{Handler, Held, HoldError};
use tenure_kernel::{
    commit::{MailStance, TenureChange},
    ids::EntityId,
    machine::{Cx, Decision, Input, Machine, Placement, Undecided, decode_state, encode_state},
    mail::kinds,
    outbox::Message,
    runtime::BoxFuture,
    stream::{Body, NewEvent},
    table::{
        BIRTH, Claimable, Class, Move, SAME, StatusRow, Table,
        kernel_events::{CLAIMED, TENURE_ENDED},
    },
};

/// The queue of parts.
pub const QUEUE: &str = "parts";

/// What creates a part, and what its head keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Who is told.
    pub parent: Option<EntityId>,
    /// Which part.
    pub index: u32,
    /// The effect may have happened.
    pub started: bool,
}

/// What can happen.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// It exists.
    PartCreated {
        /// Whose.
        parent: Option<EntityId>,
        /// Which.
        index: u32,
    },
    /// It was cancelled before it existed.
    CancelledUnborn,
    /// The effect may happen from now on.
    PartStarted,
    /// It has.
    PartDone,
    /// Somebody asked.
    PartCancelled,
    /// Its time was over.
    PartExpired,
}

/// The machine.
pub struct Part;

static TABLE: Table = Table {
    kind: "part",
    doc: "One part of a fan.",
    statuses: &[
        StatusRow {
            name: "queued",
            class: Class::Open,
            claimable: Claimable::Queued,
            doc: "Waits for a worker.",
        },
        StatusRow { name: "running", class: Class::Open, claimable: Claimable::No, doc: "Held." },
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
        Move { from: BIRTH, event: "part_created", to: "queued" },
        Move { from: BIRTH, event: "cancelled_unborn", to: "cancelled" },
        Move { from: &["queued"], event: CLAIMED, to: "running" },
        Move { from: &["running"], event: TENURE_ENDED, to: "queued" },
        Move { from: &["running"], event: "part_started", to: SAME },
        Move { from: &["running"], event: "part_done", to: "done" },
        Move { from: &["queued", "running"], event: "part_cancelled", to: "cancelled" },
        Move { from: &["queued", "running"], event: "part_expired", to: "failed" },
    ],
    forced: "failed",
};

/// Tells the parent.
fn tell(state: &State, how: &str) -> Option<Message> {
    let body = Body::json(&fan::Ended { index: state.index, how: how.to_owned() });
    state.parent.map(|parent| Message::mail(parent, kinds::CHILD_ENDED, body))
}

impl Machine for Part {
    type State = State;
    type Event = Event;

    const TABLE: &'static Table = &TABLE;

    fn name(event: &Event) -> &'static str {
        match event {
            Event::PartCreated { .. } => "part_created",
            Event::CancelledUnborn => "cancelled_unborn",
            Event::PartStarted => "part_started",
            Event::PartDone => "part_done",
            Event::PartCancelled => "part_cancelled",
            Event::PartExpired => "part_expired",
        }
    }

    fn apply(state: &mut State, event: &Event) {
        match event {
            Event::PartCreated { parent, index } => {
                (state.parent, state.index) = (*parent, *index);
            }
            Event::PartStarted => state.started = true,
            _ => {}
        }
    }

    fn decide(
        state: Option<&State>,
        input: &Input<'_>,
        _cx: &Cx,
    ) -> Result<Decision<Event>, Undecided> {
        let Some(state) = state else {
            let Input::Create(body) = input else {
                return Ok(Decision::event(Event::CancelledUnborn));
            };
            let made: State = serde_json::from_slice(body.inline().unwrap_or(b""))
                .map_err(|e| Undecided(e.to_string()))?;
            let created = Event::PartCreated { parent: made.parent, index: made.index };
            let placement = Some(Placement { queue: QUEUE.into(), priority: 0 });
            let created = Decision::event(created).must_end_in(fan::PART_MUST_END);
            return Ok(Decision { placement, ..created });
        };
        let end = |event: Event, how: &str| {
            let ended = Decision::event(event).regardless();
            Decision { messages: tell(state, how).into_iter().collect(), ..ended }
        };
        Ok(match input {
            Input::Mail(mail) if mail.iter().any(|m| m.kind == kinds::CANCEL) => {
                end(Event::PartCancelled, "cancelled")
            }
            Input::MustEnd => end(Event::PartExpired, "failed"),
            _ => Decision::default(),
        })
    }
}

/// Runs parts while it holds them.
pub(super) struct Runner(pub Env);

impl Handler for Runner {
    fn run(&self, mut held: Held) -> BoxFuture<'static, Held> {
        let env = self.0.clone();
        Box::pin(async move {
            if let Err(HoldError::Refused(why)) = work(&env, &mut held).await {
                env.world.fail(format!("{}: refused: {why}", held.id()));
            }
            held
        })
    }
}

async fn work(env: &Env, held: &mut Held) -> Result<(), HoldError> {
    let mut state = decode_state::<Part>(&held.head.state).map_err(|e| HoldError::Refused(e.0))?;
    // A part's effect is declared idempotent by not being repeated: once started it counts as done.
    if !state.started {
        state.started = true;
        let started = NewEvent::new("part_started", Body::json(&Event::PartStarted));
        let mut commit = held.draft(vec![started]);
        commit.state = Some(encode_state::<Part>(&state));
        patience::commit(env, held, commit).await?;
        let pause = env.world.sim.draw(|r| r.between(Duration::ZERO..Duration::from_secs(1)));
        env.rt.sleep(pause).await;
        patience::stand(env, held).await?;
        env.world.outside.act(&format!("{}/part", held.id()), &env.name, held.head.epoch);
    }
    loop {
        let mail = patience::unread(env, held).await?;
        let cancelled = mail.iter().any(|m| m.kind == kinds::CANCEL);
        let (event, how) =
            if cancelled { (Event::PartCancelled, "cancelled") } else { (Event::PartDone, "done") };
        let mut commit = held.draft(vec![NewEvent::new(Part::name(&event), Body::json(&event))]);
        commit.state = Some(encode_state::<Part>(&state));
        commit.messages = tell(&state, how).into_iter().collect();
        commit.tenure = TenureChange::End;
        commit.mail = MailStance::ReadAll(mail.last().map_or(held.head.mail_read, |m| m.seq));
        match patience::commit(env, held, commit).await {
            Err(HoldError::MoreMail) => {}
            other => return other,
        }
    }
}
