//! Fan-out: a parent creates many parts by messages and ends when all have. Parts report in any order
//! and some reports come twice or before the parent knows that the part exists; signals rain on all of
//! them meanwhile. A thousand open children fit the head because the parent keeps a bitmap, not a list.

use super::{
    ChildEnded, Returned,
    part::{PART, Seed},
    read,
};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tenure_kernel::{
    ids::EntityId,
    machine::{Cx, Decision, Input, Machine, Undecided},
    mail::{Mail, kinds},
    outbox::{Message, Target},
    stream::Body,
    table::{BIRTH, Claimable, Class, Move, SAME, StatusRow, Table},
    time::Timestamp,
};

/// More parts than this do not fit the messages of one commit twice (create now, cancel later).
pub const PARTS_MAX: u32 = 1_024;
const DEADLINE: Duration = Duration::from_secs(24 * 3_600);

/// Asks for a fan-out; the body of its creation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// How many parts.
    pub parts: u32,
    /// How much mail each part has to see before it ends.
    pub need: u32,
}

/// A set of small numbers, as hexadecimal text: 1,024 of them in 256 bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bitmap(String);

impl Bitmap {
    /// Whether it has a number.
    pub fn has(&self, n: u32) -> bool {
        let digit = self.0.as_bytes().get(n as usize / 4).copied().unwrap_or(b'0');
        (digit as char).to_digit(16).is_some_and(|d| d >> (n % 4) & 1 == 1)
    }

    /// Adds a number.
    pub fn add(&mut self, n: u32) {
        let at = n as usize / 4;
        let mut digits: Vec<u32> = self.0.chars().filter_map(|c| c.to_digit(16)).collect();
        digits.resize(digits.len().max(at + 1), 0);
        digits[at] |= 1 << (n % 4);
        self.0 = digits.iter().filter_map(|d| char::from_digit(*d, 16)).collect();
    }
}

/// What the parent keeps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// How many parts there are.
    pub parts: u32,
    /// How much mail each needs.
    pub need: u32,
    /// The moment the parts' ids are derived from; fixed, or a second look would name other parts.
    pub born: Timestamp,
    /// Which have said that they exist.
    pub started: Bitmap,
    /// Which have ended.
    pub ended: Bitmap,
    /// How many have ended.
    pub ended_count: u32,
    /// Mail that was neither.
    pub signals: u64,
    /// Reports that came again.
    pub repeats: u64,
    /// A cancel came.
    pub cancelled: bool,
}

/// What happens to the parent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// It began and asked for its parts.
    FanoutStarted {
        /// How many.
        parts: u32,
        /// See [`Order::need`].
        need: u32,
        /// See [`State::born`].
        born: Timestamp,
    },
    /// Mail was seen.
    FanoutHeard {
        /// Parts that exist, newly.
        started: Vec<u32>,
        /// Parts that ended, newly.
        ended: Vec<u32>,
        /// Reports that were known.
        repeats: u64,
        /// Other mail.
        signals: u64,
    },
    /// It was cancelled and told its open parts.
    FanoutCancelling,
    /// All parts have ended.
    FanoutDone,
    /// All parts have ended after a cancel.
    FanoutCancelled,
    /// Time was up; how many parts were abandoned.
    FanoutFailed {
        /// Parts that had not ended; the state says which.
        abandoned: u32,
    },
}

/// The id of a part.
pub fn part_id(parent: EntityId, number: u32, born: Timestamp) -> EntityId {
    EntityId::derived(parent, &format!("part/{number}"), born)
}

/// The parent's machine.
pub struct Fanout;

impl Machine for Fanout {
    type State = State;
    type Event = Event;
    const TABLE: &'static Table = &TABLE;

    fn name(event: &Event) -> &'static str {
        match event {
            Event::FanoutStarted { .. } => "fanout_started",
            Event::FanoutHeard { .. } => "fanout_heard",
            Event::FanoutCancelling => "fanout_cancelling",
            Event::FanoutDone => "fanout_done",
            Event::FanoutCancelled => "fanout_cancelled",
            Event::FanoutFailed { .. } => "fanout_failed",
        }
    }

    fn apply(state: &mut State, event: &Event) {
        match event {
            Event::FanoutStarted { parts, need, born } => {
                (state.parts, state.need, state.born) = (*parts, *need, *born);
            }
            Event::FanoutHeard { started, ended, repeats, signals } => {
                started.iter().for_each(|n| state.started.add(*n));
                ended.iter().for_each(|n| state.ended.add(*n));
                state.ended_count += ended.len() as u32;
                state.repeats += repeats;
                state.signals += signals;
            }
            Event::FanoutCancelling => state.cancelled = true,
            Event::FanoutDone | Event::FanoutCancelled | Event::FanoutFailed { .. } => {}
        }
    }

    fn decide(
        state: Option<&State>,
        input: &Input<'_>,
        cx: &Cx,
    ) -> Result<Decision<Event>, Undecided> {
        let fresh = State::default();
        let state = state.unwrap_or(&fresh);
        match input {
            Input::Create(body) => start(body, cx),
            Input::CancelUnborn => Ok(Decision::event(Event::FanoutCancelled)),
            Input::Mail(mail) => Ok(hear(state, mail, cx)),
            Input::MustEnd => {
                let abandoned = state.parts - state.ended_count;
                let mut decision = Decision::event(Event::FanoutFailed { abandoned });
                decision.messages = cancels(state, cx);
                Ok(decision)
            }
            Input::Timer(name) => Err(Undecided(format!("a fan-out sets no timer {name}"))),
            Input::TenureEnded(_) => Ok(Decision::default()),
        }
    }
}

fn start(body: &Body, cx: &Cx) -> Result<Decision<Event>, Undecided> {
    let Order { parts, need } =
        read(body).ok_or_else(|| Undecided("the order of a fan-out can not be read".into()))?;
    if parts > PARTS_MAX {
        return Err(Undecided(format!("{parts} parts, the limit is {PARTS_MAX}")));
    }
    let born = cx.now;
    let mut decision = Decision::event(Event::FanoutStarted { parts, need, born });
    if parts == 0 {
        return Ok(decision.and(Event::FanoutDone));
    }
    for number in 0..parts {
        let id = part_id(cx.id, number, born);
        let seed = Seed { parent: cx.id, number, need };
        decision.messages.push(Message {
            to: Target::Create { id, kind: PART.kind.into() },
            kind: "create".into(),
            body: Body::json(&seed),
        });
    }
    Ok(decision.must_end_in(DEADLINE))
}

fn hear(state: &State, mail: &[Mail], cx: &Cx) -> Decision<Event> {
    let mut after = state.clone();
    let (mut started, mut ended, mut repeats, mut signals) = (vec![], vec![], 0, 0);
    let mut cancel = false;
    for m in mail {
        let report: Option<ChildEnded> = match m.kind.as_str() {
            // A part that was cancelled before its birth never reports: its creation comes back.
            kinds::RETURNED => read(&m.body).and_then(|Returned { to }| {
                let mine = |n: &u32| part_id(cx.id, *n, state.born) == to;
                (0..state.parts).find(mine).map(|number| ChildEnded { child: to, number })
            }),
            _ => read(&m.body),
        };
        match (m.kind.as_str(), report.filter(|r| r.number < state.parts)) {
            (kinds::CHILD_ENDED | kinds::RETURNED, Some(r)) if !after.ended.has(r.number) => {
                after.ended.add(r.number);
                ended.push(r.number);
            }
            ("part_started", Some(r)) if !after.started.has(r.number) => {
                after.started.add(r.number);
                started.push(r.number);
            }
            (kinds::CHILD_ENDED | kinds::RETURNED | "part_started", Some(_)) => repeats += 1,
            (kinds::CANCEL, _) => cancel = true,
            _ => signals += 1,
        }
    }
    let open = state.parts - state.ended_count - ended.len() as u32;
    let mut decision = Decision::event(Event::FanoutHeard { started, ended, repeats, signals });
    let cancels_now = cancel && !state.cancelled;
    match (open, state.cancelled || cancel) {
        (0, false) => decision.and(Event::FanoutDone),
        (0, true) if cancels_now => {
            decision.and(Event::FanoutCancelling).and(Event::FanoutCancelled)
        }
        (0, true) => decision.and(Event::FanoutCancelled),
        (_, true) if cancels_now => {
            decision.messages = cancels(&after, cx);
            decision.and(Event::FanoutCancelling)
        }
        _ => decision,
    }
}

fn cancels(state: &State, cx: &Cx) -> Vec<Message> {
    (0..state.parts)
        .filter(|n| !state.ended.has(*n))
        .map(|n| {
            let id = part_id(cx.id, n, state.born);
            Message::mail(id, kinds::CANCEL, Body::Inline(b"{}".to_vec()))
        })
        .collect()
}

const fn row(name: &'static str, class: Class, doc: &'static str) -> StatusRow {
    StatusRow { name, class, claimable: Claimable::No, doc }
}

/// The parent's table.
pub static TABLE: Table = Table {
    kind: "fanout",
    doc: "A parent that ends when all of its parts have.",
    statuses: &[
        row("waiting", Class::Open, "Parts are open."),
        row("cancelling", Class::Open, "Parts were told to end and have not all done so."),
        row("done", Class::Final, "All parts have ended."),
        row("cancelled", Class::Final, "Cancelled, and all parts have ended."),
        row("failed", Class::Final, "Time was up; parts were abandoned, on record."),
    ],
    moves: &[
        Move { from: BIRTH, event: "fanout_started", to: "waiting" },
        Move { from: BIRTH, event: "fanout_cancelled", to: "cancelled" },
        Move { from: &["waiting", "cancelling"], event: "fanout_heard", to: SAME },
        Move { from: &["waiting"], event: "fanout_cancelling", to: "cancelling" },
        Move { from: &["waiting"], event: "fanout_done", to: "done" },
        Move { from: &["cancelling"], event: "fanout_cancelled", to: "cancelled" },
        Move { from: &["waiting", "cancelling"], event: "fanout_failed", to: "failed" },
    ],
    forced: "failed",
};

#[cfg(test)]
mod tests {
    use super::{super::pocket::Pocket, *};
    use proptest::prelude::*;
    use tenure_kernel::{limits, machine::decode_state};

    proptest! {
        #[test]
        fn a_bitmap_is_a_set(numbers in prop::collection::vec(0..PARTS_MAX, 0..200)) {
            let mut map = Bitmap::default();
            numbers.iter().for_each(|n| map.add(*n));
            for n in 0..PARTS_MAX {
                prop_assert_eq!(map.has(n), numbers.contains(&n));
            }
            prop_assert!(map.0.len() <= PARTS_MAX as usize / 4);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn it_ends_when_all_parts_have_whatever_the_order(
            parts in 1u32..90, need in 0u32..4, cancel_at in prop::option::of(0usize..200), seed: u64,
        ) {
            let mut pocket = Pocket::seeded(seed);
            let id = pocket.create("fanout", &Body::json(&Order { parts, need }));
            for round in 0..4_000 {
                if cancel_at == Some(round) {
                    pocket.mail(id, "please", kinds::CANCEL, Body::Inline(vec![]));
                }
                if round % 3 == 0 {
                    let everybody: Vec<_> = pocket.of_kind("part");
                    if let Some(one) = pocket.pick(&everybody) {
                        pocket.mail(one, &format!("r{round}"), "rain", Body::Inline(vec![]));
                    }
                    pocket.mail(id, &format!("r{round}"), "rain", Body::Inline(vec![]));
                }
                pocket.random_step();
                if pocket.is_final(id) {
                    break;
                }
            }
            pocket.check();
            prop_assert!(pocket.is_final(id), "it ends");
            // A parent is final only after its children are.
            let children = pocket.of_kind("part");
            prop_assert_eq!(children.len(), parts as usize);
            prop_assert!(children.iter().all(|c| pocket.is_final(*c)));
            let state = decode_state::<Fanout>(&pocket.store.heads[&id].state).unwrap();
            prop_assert_eq!(state.ended_count, parts);
        }
    }

    #[test]
    fn a_thousand_open_parts_fit_the_head_and_one_more_is_undecided() {
        let mut pocket = Pocket::seeded(7);
        let id = pocket.create("fanout", &Body::json(&Order { parts: PARTS_MAX, need: 1 }));
        assert_eq!(pocket.store.outbox.len(), PARTS_MAX as usize);
        pocket.deliver_all();
        pocket.serve(id);
        let children = pocket.of_kind("part");
        assert_eq!(children.len(), PARTS_MAX as usize);
        for child in children {
            pocket.mail(child, "x", "signal", Body::Inline(vec![]));
            pocket.serve(child);
            assert!(pocket.store.heads[&id].state.len() < limits::HEAD_STATE_BYTES_MAX / 4);
        }
        pocket.deliver_all();
        while pocket.store.heads[&id].has_mail() {
            pocket.serve(id);
        }
        assert_eq!(pocket.store.heads[&id].status.name(), "done");
        let cx = Cx { id, now: Timestamp::ZERO, version: 0, status: None, changed_at: None };
        let order = Body::json(&Order { parts: PARTS_MAX + 1, need: 1 });
        assert!(Fanout::decide(None, &Input::Create(&order), &cx).is_err());
    }

    #[test]
    fn a_report_that_comes_twice_counts_once() {
        let mut pocket = Pocket::seeded(3);
        let id = pocket.create("fanout", &Body::json(&Order { parts: 2, need: 1 }));
        let body = Body::json(&ChildEnded { child: id, number: 1 });
        for n in 0..3 {
            pocket.mail(id, &format!("again{n}"), kinds::CHILD_ENDED, body.clone());
            pocket.serve(id);
        }
        let state = decode_state::<Fanout>(&pocket.store.heads[&id].state).unwrap();
        assert_eq!((state.ended_count, state.repeats), (1, 2), "before any part was created");
        assert!(!pocket.is_final(id));
    }

    #[test]
    fn a_part_cancelled_before_its_birth_counts_as_ended() {
        let mut pocket = Pocket::seeded(9);
        let id = pocket.create("fanout", &Body::json(&Order { parts: 2, need: 0 }));
        let born = decode_state::<Fanout>(&pocket.store.heads[&id].state).unwrap().born;
        pocket.cancel_unborn(part_id(id, 1, born), "part");
        pocket.deliver_all();
        pocket.serve(id);
        assert_eq!(pocket.store.heads[&id].status.name(), "done");
        pocket.check();
    }

    #[test]
    fn time_up_ends_it_with_the_abandoned_counted() {
        let mut pocket = Pocket::seeded(4);
        let id = pocket.create("fanout", &Body::json(&Order { parts: 3, need: 1 }));
        pocket.deliver_all();
        pocket.must_end(id);
        let head = &pocket.store.heads[&id];
        assert_eq!(head.status.name(), "failed");
        assert_eq!(
            pocket.store.outbox.values().filter(|p| p.message.kind == kinds::CANCEL).count(),
            3
        );
        pocket.check();
    }
}
