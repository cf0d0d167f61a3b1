//! A page of the line: it is filled, it gives everything up once, and is over.
//!
//! It never decides who passes. All that is put comes from its gate, before the one `take?`; the lane keeps that order.

use super::{mail, model::Waiter};
use serde::{Deserialize, Serialize};
use tenure_kernel::{
    ids::EntityId,
    limits as kernel_limits,
    machine::{Cx, Decision, Input, Machine, Undecided},
    outbox::Message,
    stream::Body,
    table::Table,
    time::Timestamp,
};

/// The page of a gate with this number.
pub fn page_id(gate: EntityId, page: u64) -> EntityId {
    EntityId::derived(gate, &format!("page/{page}"), Timestamp::ZERO)
}

/// The number of a gate's first page, from who made the gate. A gate comes again under the same id, and pages of its former
/// life may still be there: theirs are other numbers. A job asks once, so no two lives begin with the same; and a gate that a
/// person makes stays. 48 bits: with the pages of two lives side by side in them, that they meet is as likely as that two
/// random ids do.
pub fn first_page(maker: EntityId) -> u64 {
    let derived = EntityId::derived(maker, "first page", Timestamp::ZERO);
    derived.as_bytes()[10..].iter().fold(0, |n, byte| n << 8 | u64::from(*byte))
}

/// What a gate says to a page, and a page to its gate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Piece {
    /// The gate.
    pub gate: EntityId,
    /// The page.
    pub page: u64,
    /// A piece of the line.
    #[serde(default)]
    pub waiters: Vec<Waiter>,
}

/// What the head keeps.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PageState {
    /// The gate.
    pub gate: Option<EntityId>,
    /// The page's number.
    pub page: u64,
    /// Who stands in it, in the order of asking.
    pub waiters: Vec<Waiter>,
}

/// What can happen to a page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum PageEvent {
    /// Its first piece came.
    PageOpened(Piece),
    /// More came.
    PagePut {
        /// Who.
        waiters: Vec<Waiter>,
    },
    /// It gave back everything.
    PageTaken {
        /// How many.
        count: u64,
    },
    /// Mail came that changes nothing.
    PageNoted {
        /// What.
        what: String,
    },
}

/// The page machine.
#[derive(Debug)]
pub struct GatePage;

impl Machine for GatePage {
    type State = PageState;
    type Event = PageEvent;
    const TABLE: &'static Table = &super::table::PAGE;
    const CREATED_BY: &'static [&'static str] = &["gate"];

    fn name(event: &PageEvent) -> &'static str {
        match event {
            PageEvent::PageOpened(_) => "page_opened",
            PageEvent::PagePut { .. } => "page_put",
            PageEvent::PageTaken { .. } => "page_taken",
            PageEvent::PageNoted { .. } => "page_noted",
        }
    }

    fn apply(state: &mut PageState, event: &PageEvent) {
        match event {
            PageEvent::PageOpened(Piece { gate, page, waiters }) => {
                (state.gate, state.page) = (Some(*gate), *page);
                state.waiters.clone_from(waiters);
            }
            PageEvent::PagePut { waiters } => state.waiters.extend(waiters.iter().copied()),
            PageEvent::PageTaken { .. } => state.waiters.clear(),
            PageEvent::PageNoted { .. } => {}
        }
    }

    fn decide(
        state: Option<&PageState>,
        input: &Input<'_>,
        _cx: &Cx,
    ) -> Result<Decision<PageEvent>, Undecided> {
        let parse = |body: &Body| -> Option<Piece> {
            body.inline().and_then(|b| tenure_kernel::stored::from_slice(b).ok())
        };
        match (state, input) {
            (None, Input::Create(body)) => {
                let unreadable = || Undecided("a page can not be made from this".into());
                let piece = parse(body).ok_or_else(unreadable)?;
                Ok(Decision::event(PageEvent::PageOpened(piece)))
            }
            (Some(state), Input::Mail(mail)) => {
                let mut waiters = state.waiters.clone();
                let mut decision = Decision::default();
                for m in *mail {
                    match (m.kind.as_str(), parse(&m.body), state.gate) {
                        (mail::PUT, Some(piece), _) => {
                            waiters.extend(piece.waiters.iter().copied());
                            decision.events.push(PageEvent::PagePut { waiters: piece.waiters });
                        }
                        (mail::TAKE, _, Some(gate)) => {
                            let count = waiters.len() as u64;
                            let body = Body::json(&Piece { gate, page: state.page, waiters });
                            decision.messages.push(Message::mail(gate, mail::PAGE, body));
                            decision.events.push(PageEvent::PageTaken { count });
                            // Whatever comes behind is not the gate's.
                            return Ok(decision.regardless());
                        }
                        (kind, ..) => {
                            let what = kernel_limits::clip(kind, 100).to_owned();
                            decision.events.push(PageEvent::PageNoted { what });
                        }
                    }
                }
                Ok(decision)
            }
            (None, _) => Err(Undecided("there is no such page".into())),
            (Some(_), _) => Err(Undecided("a page answers nothing but its gate's mail".into())),
        }
    }
}
