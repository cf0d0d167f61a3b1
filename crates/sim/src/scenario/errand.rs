//! An errand: two steps, each with an effect outside the store, and a wait for a signal between them.
//! The thin slice of everything: claim, started before the effect, finished after it, park, wake, end.
//!
//! The table lets a claim lead out of `waiting`. The machine never asks for it: only the rule that
//! blocked entities are not claimed stands in the way, so that switching the rule off shows.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use tenure_kernel::{
    machine::{Cx, Decision, Input, Machine, Placement, Undecided},
    mail::kinds,
    table::{
        BIRTH, Claimable, Class, Move, SAME, StatusRow, Table,
        kernel_events::{CLAIMED, TENURE_ENDED},
    },
    timers::TimerChange,
};

/// The queue that workers claim errands from.
pub const QUEUE: &str = "errands";
/// Steps with an effect.
pub const STEPS: u8 = 2;
/// An errand ends within this time, whatever happens.
pub const MUST_END: Duration = Duration::from_secs(1_800);
/// The wait gives up on the signal after this time.
pub const NUDGE: Duration = Duration::from_secs(120);
/// The signal that the wait is for.
pub const GO: &str = "go";

/// What the head keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Steps that have an outcome.
    pub settled: u8,
    /// A step that was started and has none.
    pub started: Option<u8>,
    /// Steps of which nobody knows whether they happened.
    pub unknown: Vec<u8>,
    /// Signals that were covered.
    pub signals: u64,
    /// Waits for a signal.
    pub parked: bool,
    /// The wait is over.
    pub woken: bool,
}

/// What can happen.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// It exists.
    Submitted,
    /// The effect may happen from now on.
    StepStarted {
        /// Which.
        step: u8,
    },
    /// The effect has happened.
    StepFinished {
        /// Which.
        step: u8,
    },
    /// Nobody knows whether it has.
    StepUnknown {
        /// Which.
        step: u8,
    },
    /// Signals were read.
    Signalled {
        /// How many.
        count: u64,
    },
    /// Waits for the signal.
    Parked,
    /// Goes on.
    Woken,
    /// All steps have an outcome.
    Finished,
    /// Somebody asked for it.
    Cancelled,
    /// Its time was over.
    Expired,
}

/// The machine.
pub struct Errand;

static TABLE: Table = Table {
    kind: "errand",
    doc: "Two effects with a wait between them.",
    statuses: &[
        StatusRow {
            name: "queued",
            class: Class::Open,
            claimable: Claimable::Queued,
            doc: "Waits for a worker.",
        },
        StatusRow { name: "running", class: Class::Open, claimable: Claimable::No, doc: "Held." },
        StatusRow {
            name: "waiting",
            class: Class::Open,
            claimable: Claimable::No,
            doc: "Waits for the signal.",
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
        Move { from: BIRTH, event: "submitted", to: "queued" },
        Move { from: &["queued", "waiting"], event: CLAIMED, to: "running" },
        Move { from: &["running"], event: TENURE_ENDED, to: "queued" },
        Move { from: &["waiting"], event: TENURE_ENDED, to: SAME },
        Move { from: &["running"], event: "step_started", to: SAME },
        Move { from: &["running"], event: "step_finished", to: SAME },
        Move { from: &["running"], event: "step_unknown", to: SAME },
        Move { from: &["queued", "running", "waiting"], event: "signalled", to: SAME },
        Move { from: &["running"], event: "parked", to: "waiting" },
        Move { from: &["waiting"], event: "woken", to: "queued" },
        Move { from: &["running"], event: "finished", to: "done" },
        Move { from: &["queued", "running", "waiting"], event: "cancelled", to: "cancelled" },
        Move { from: &["queued", "running", "waiting"], event: "expired", to: "failed" },
    ],
    forced: "failed",
};

impl Machine for Errand {
    type State = State;
    type Event = Event;

    const TABLE: &'static Table = &TABLE;

    fn name(event: &Event) -> &'static str {
        match event {
            Event::Submitted => "submitted",
            Event::StepStarted { .. } => "step_started",
            Event::StepFinished { .. } => "step_finished",
            Event::StepUnknown { .. } => "step_unknown",
            Event::Signalled { .. } => "signalled",
            Event::Parked => "parked",
            Event::Woken => "woken",
            Event::Finished => "finished",
            Event::Cancelled => "cancelled",
            Event::Expired => "expired",
        }
    }

    fn apply(state: &mut State, event: &Event) {
        match event {
            Event::StepStarted { step } => state.started = Some(*step),
            Event::StepFinished { .. } => {
                state.settled += 1;
                state.started = None;
            }
            Event::StepUnknown { step } => {
                state.settled += 1;
                state.started = None;
                state.unknown.push(*step);
            }
            Event::Signalled { count } => state.signals += count,
            Event::Parked => state.parked = true,
            Event::Woken => (state.parked, state.woken) = (false, true),
            Event::Cancelled | Event::Expired => state.unknown.extend(state.started.take()),
            Event::Submitted | Event::Finished => {}
        }
    }

    fn decide(
        state: Option<&State>,
        input: &Input<'_>,
        _cx: &Cx,
    ) -> Result<Decision<Event>, Undecided> {
        let Some(state) = state else {
            let created = Decision::event(Event::Submitted).must_end_in(MUST_END);
            let placement = Placement { queue: QUEUE.into(), priority: 0 };
            return Ok(Decision { placement: Some(placement), ..created });
        };
        Ok(match input {
            Input::Mail(mail) if mail.iter().any(|m| m.kind == kinds::CANCEL) => {
                Decision::event(Event::Cancelled).regardless()
            }
            Input::Mail(mail) => {
                let count = mail.iter().filter(|m| m.kind == GO).count() as u64;
                let read = Decision::event(Event::Signalled { count });
                if state.parked && count > 0 {
                    read.and(Event::Woken).timer(TimerChange::clear("nudge"))
                } else {
                    read
                }
            }
            Input::Timer(_) => Decision::event(Event::Woken).timer(TimerChange::clear("nudge")),
            Input::MustEnd => Decision::event(Event::Expired),
            Input::TenureEnded(_) | Input::Create(_) | Input::CancelUnborn => Decision::default(),
        })
    }
}
