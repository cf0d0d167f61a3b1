//! A part of a fan-out: ends after some mail and reports to its parent. It may be cancelled before it
//! is born, and may end in the commit that creates it.

use super::{ChildEnded, read};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tenure_kernel::{
    ids::EntityId,
    machine::{Cx, Decision, Input, Machine, Undecided},
    mail::kinds,
    outbox::Message,
    stream::Body,
    table::{BIRTH, Claimable, Class, Move, SAME, StatusRow, Table},
};

const DEADLINE: Duration = Duration::from_secs(12 * 3_600);

const fn row(name: &'static str, class: Class, doc: &'static str) -> StatusRow {
    StatusRow { name, class, claimable: Claimable::No, doc }
}

/// What a part is born from.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Seed {
    /// Whom to report to.
    pub parent: EntityId,
    /// Which part it is.
    pub number: u32,
    /// How much mail it has to see.
    pub need: u32,
}

/// What a part keeps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PartState {
    /// Whom to report to; nobody if it was cancelled before it was born.
    pub parent: Option<EntityId>,
    /// Which part it is.
    pub number: u32,
    /// How much mail it has to see.
    pub need: u32,
    /// How much it has seen.
    pub seen: u64,
}

/// What happens to a part.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum PartEvent {
    /// It exists.
    PartBorn(Seed),
    /// It saw mail.
    PartHeard {
        /// How much.
        count: u64,
    },
    /// It saw enough.
    PartEnded,
    /// It was told to end, perhaps before it was born.
    PartCancelled,
    /// Time was up.
    PartFailed,
}

/// A part's machine.
pub struct Part;

impl Machine for Part {
    type State = PartState;
    type Event = PartEvent;
    const TABLE: &'static Table = &PART;

    fn name(event: &PartEvent) -> &'static str {
        match event {
            PartEvent::PartBorn(_) => "part_born",
            PartEvent::PartHeard { .. } => "part_heard",
            PartEvent::PartEnded => "part_ended",
            PartEvent::PartCancelled => "part_cancelled",
            PartEvent::PartFailed => "part_failed",
        }
    }

    fn apply(state: &mut PartState, event: &PartEvent) {
        match event {
            PartEvent::PartBorn(seed) => {
                state.parent = Some(seed.parent);
                (state.number, state.need) = (seed.number, seed.need);
            }
            PartEvent::PartHeard { count } => state.seen += count,
            PartEvent::PartEnded | PartEvent::PartCancelled | PartEvent::PartFailed => {}
        }
    }

    fn decide(
        state: Option<&PartState>,
        input: &Input<'_>,
        cx: &Cx,
    ) -> Result<Decision<PartEvent>, Undecided> {
        let fresh = PartState::default();
        let state = state.unwrap_or(&fresh);
        let report = |decision: Decision<PartEvent>, parent, number, kind: &'static str| {
            let body = Body::json(&ChildEnded { child: cx.id, number });
            decision.send(Message::mail(parent, kind, body))
        };
        let ends = |decision: Decision<PartEvent>| match state.parent {
            Some(parent) => report(decision, parent, state.number, kinds::CHILD_ENDED),
            None => decision,
        };
        Ok(match input {
            Input::Create(body) => {
                let seed: Seed =
                    read(body).ok_or_else(|| Undecided("a part's seed can not be read".into()))?;
                let (parent, number) = (seed.parent, seed.number);
                let ends_at_once = seed.need == 0;
                let born = Decision::event(PartEvent::PartBorn(seed));
                let born = report(born, parent, number, "part_started");
                if ends_at_once {
                    let born = born.and(PartEvent::PartEnded);
                    report(born, parent, number, kinds::CHILD_ENDED)
                } else {
                    born.must_end_in(DEADLINE)
                }
            }
            Input::CancelUnborn => Decision::event(PartEvent::PartCancelled),
            Input::Mail(mail) => {
                let count = mail.len() as u64;
                let heard = Decision::event(PartEvent::PartHeard { count });
                if mail.iter().any(|m| m.kind == kinds::CANCEL) {
                    ends(heard.and(PartEvent::PartCancelled)).regardless()
                } else if state.seen + count >= u64::from(state.need) {
                    ends(heard.and(PartEvent::PartEnded))
                } else {
                    heard
                }
            }
            Input::MustEnd => ends(Decision::event(PartEvent::PartFailed)),
            Input::Timer(name) => return Err(Undecided(format!("a part sets no timer {name}"))),
            Input::TenureEnded(_) => Decision::default(),
        })
    }
}

/// A part's table.
pub static PART: Table = Table {
    kind: "part",
    doc: "One of many; ends after some mail and reports to its parent.",
    statuses: &[
        row("counting", Class::Open, "Waits for mail."),
        row("ended", Class::Final, "Saw enough."),
        row("cancelled", Class::Final, "Was told to end."),
        row("failed", Class::Final, "Time was up."),
    ],
    moves: &[
        Move { from: BIRTH, event: "part_born", to: "counting" },
        Move { from: BIRTH, event: "part_cancelled", to: "cancelled" },
        Move { from: &["counting"], event: "part_heard", to: SAME },
        Move { from: &["counting"], event: "part_ended", to: "ended" },
        Move { from: &["counting"], event: "part_cancelled", to: "cancelled" },
        Move { from: &["counting"], event: "part_failed", to: "failed" },
    ],
    forced: "failed",
};
