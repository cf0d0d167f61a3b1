//! A family: parent, children, grandchildren. A cancel may come to any of them at any point, also
//! for one that is not born yet. Whatever happens, a parent is final only after its children are, or
//! after it has listed them as abandoned.

use super::{ChildEnded, Returned, read};
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
    timers::TimerChange,
};

/// Children of one parent: their ids fit the head.
pub const CHILDREN_MAX: u32 = 64;
const RIPEN: &str = "ripen";
const DEADLINE: Duration = Duration::from_secs(3_600);

/// What a member is born from.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Seed {
    /// Whom to report to.
    pub parent: Option<EntityId>,
    /// Its number among its siblings.
    pub number: u32,
    /// How many generations come after it.
    pub depth: u32,
    /// How many children each of them has.
    pub children: u32,
    /// How long a childless one takes.
    pub ripens_ms: u64,
}

/// What a member keeps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Whom to report to.
    pub parent: Option<EntityId>,
    /// Its number among its siblings.
    pub number: u32,
    /// Children that have not ended, with their numbers.
    pub open: Vec<(u32, EntityId)>,
    /// It was cancelled.
    pub cancelled: bool,
    /// Children it gave up on.
    pub abandoned: Vec<EntityId>,
    /// Mail that meant nothing to it.
    pub noise: u64,
}

/// What happens to a member.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// It was born, with children to come.
    MemberBorn {
        /// See [`State::parent`].
        parent: Option<EntityId>,
        /// See [`State::number`].
        number: u32,
        /// Its children.
        children: Vec<(u32, EntityId)>,
    },
    /// A cancel came before its birth.
    MemberUnborn,
    /// Mail was read.
    MemberHeard {
        /// Children that ended.
        ended: Vec<EntityId>,
        /// Other mail.
        noise: u64,
    },
    /// A cancel came; its open children were told.
    MemberCancelling,
    /// It did its work, and so did its children.
    MemberDone,
    /// It was cancelled, and its children have ended.
    MemberCancelled,
    /// Time was up.
    MemberFailed {
        /// Children it gave up on.
        abandoned: Vec<EntityId>,
    },
}

/// The id of a child.
pub fn child_id(parent: EntityId, number: u32, born: Timestamp) -> EntityId {
    EntityId::derived(parent, &format!("child/{number}"), born)
}

/// The machine.
pub struct Family;

impl Machine for Family {
    type State = State;
    type Event = Event;
    const TABLE: &'static Table = &TABLE;

    fn name(event: &Event) -> &'static str {
        match event {
            Event::MemberBorn { .. } => "member_born",
            Event::MemberUnborn => "member_unborn",
            Event::MemberHeard { .. } => "member_heard",
            Event::MemberCancelling => "member_cancelling",
            Event::MemberDone => "member_done",
            Event::MemberCancelled => "member_cancelled",
            Event::MemberFailed { .. } => "member_failed",
        }
    }

    fn apply(state: &mut State, event: &Event) {
        match event {
            Event::MemberBorn { parent, number, children } => {
                (state.parent, state.number) = (*parent, *number);
                state.open.clone_from(children);
            }
            Event::MemberHeard { ended, noise } => {
                state.open.retain(|(_, id)| !ended.contains(id));
                state.noise += noise;
            }
            Event::MemberUnborn | Event::MemberCancelling => state.cancelled = true,
            Event::MemberFailed { abandoned } => state.abandoned.clone_from(abandoned),
            Event::MemberDone | Event::MemberCancelled => {}
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
            Input::Create(body) => birth(body, cx),
            Input::CancelUnborn => Ok(Decision::event(Event::MemberUnborn)),
            Input::Mail(mail) => Ok(hear(state, mail, cx)),
            Input::Timer(RIPEN) => Ok(report(Decision::event(Event::MemberDone), state, cx)),
            Input::Timer(name) => Err(Undecided(format!("a member sets no timer {name}"))),
            Input::MustEnd => {
                let abandoned: Vec<_> = state.open.iter().map(|(_, id)| *id).collect();
                let mut decision = Decision::event(Event::MemberFailed { abandoned });
                decision.messages = cancels(&state.open);
                Ok(report(decision, state, cx))
            }
            Input::TenureEnded(_) => Ok(Decision::default()),
        }
    }
}

fn birth(body: &Body, cx: &Cx) -> Result<Decision<Event>, Undecided> {
    let seed: Seed = read(body).ok_or_else(|| Undecided("a seed can not be read".into()))?;
    if seed.children > CHILDREN_MAX {
        let Seed { children, .. } = seed;
        return Err(Undecided(format!("{children} children, the limit is {CHILDREN_MAX}")));
    }
    let count = if seed.depth == 0 { 0 } else { seed.children };
    let children: Vec<_> = (0..count).map(|n| (n, child_id(cx.id, n, cx.now))).collect();
    let born =
        Event::MemberBorn { parent: seed.parent, number: seed.number, children: children.clone() };
    let mut decision = Decision::event(born).must_end_in(DEADLINE * (seed.depth + 1));
    for (number, id) in &children {
        let seed =
            Seed { parent: Some(cx.id), number: *number, depth: seed.depth - 1, ..seed.clone() };
        decision.messages.push(Message {
            to: Target::Create { id: *id, kind: TABLE.kind.into() },
            kind: "create".into(),
            body: Body::json(&seed),
        });
    }
    if children.is_empty() {
        let ripe = Duration::from_millis(seed.ripens_ms);
        decision = decision.timer(TimerChange::set(RIPEN, ripe));
    }
    Ok(decision)
}

fn hear(state: &State, mail: &[Mail], cx: &Cx) -> Decision<Event> {
    let childless = state.open.is_empty();
    let mut open = state.open.clone();
    let (mut ended, mut noise, mut cancel) = (Vec::new(), 0, false);
    for m in mail {
        let who = match m.kind.as_str() {
            kinds::CHILD_ENDED => read(&m.body).map(|r: ChildEnded| r.child),
            // A child that was cancelled before its birth is never created: its creation comes back.
            kinds::RETURNED => read(&m.body).map(|r: Returned| r.to),
            _ => None,
        };
        match who.and_then(|w| open.iter().position(|(_, id)| *id == w)) {
            Some(at) => ended.push(open.remove(at).1),
            None if m.kind == kinds::CANCEL => cancel = true,
            None => noise += 1,
        }
    }
    let mut decision = Decision::event(Event::MemberHeard { ended, noise });
    if cancel && !state.cancelled {
        decision = decision.and(Event::MemberCancelling);
        decision.messages = cancels(&open);
    }
    let over = open.is_empty() && (!childless || cancel || state.cancelled);
    match (over, cancel || state.cancelled) {
        (true, true) => report(decision.and(Event::MemberCancelled), state, cx),
        (true, false) => report(decision.and(Event::MemberDone), state, cx),
        (false, _) => decision,
    }
}

fn report(decision: Decision<Event>, state: &State, cx: &Cx) -> Decision<Event> {
    match state.parent {
        Some(parent) => {
            let body = Body::json(&ChildEnded { child: cx.id, number: state.number });
            decision.send(Message::mail(parent, kinds::CHILD_ENDED, body))
        }
        None => decision,
    }
}

fn cancels(open: &[(u32, EntityId)]) -> Vec<Message> {
    let cancel = |id: &EntityId| Message::mail(*id, kinds::CANCEL, Body::Inline(b"{}".to_vec()));
    open.iter().map(|(_, id)| cancel(id)).collect()
}

const fn row(name: &'static str, class: Class, doc: &'static str) -> StatusRow {
    StatusRow { name, class, claimable: Claimable::No, doc }
}

/// Its table.
pub static TABLE: Table = Table {
    kind: "family",
    doc: "A member of a family; final only after its children are, or are listed as abandoned.",
    statuses: &[
        row("growing", Class::Open, "Works, or waits for its children."),
        row("cancelling", Class::Open, "Was cancelled and waits for its children to end."),
        row("done", Class::Final, "Its work is done, and its children's."),
        row("cancelled", Class::Final, "Was cancelled, perhaps before its birth."),
        row("failed", Class::Final, "Time was up; open children are listed as abandoned."),
    ],
    moves: &[
        Move { from: BIRTH, event: "member_born", to: "growing" },
        Move { from: BIRTH, event: "member_unborn", to: "cancelled" },
        Move { from: &["growing", "cancelling"], event: "member_heard", to: SAME },
        Move { from: &["growing"], event: "member_cancelling", to: "cancelling" },
        Move { from: &["growing"], event: "member_done", to: "done" },
        Move { from: &["cancelling"], event: "member_cancelled", to: "cancelled" },
        Move { from: &["growing", "cancelling"], event: "member_failed", to: "failed" },
    ],
    forced: "failed",
};

#[cfg(test)]
mod tests {
    use super::{super::pocket::Pocket, *};
    use proptest::prelude::*;
    use tenure_kernel::machine::decode_state;

    fn seed(depth: u32, children: u32) -> Body {
        Body::json(&Seed { parent: None, number: 0, depth, children, ripens_ms: 300 })
    }

    fn state(pocket: &Pocket, id: EntityId) -> State {
        decode_state::<Family>(&pocket.store.heads[&id].state).unwrap()
    }

    /// The rule itself, over everybody at this moment.
    fn no_parent_is_final_before_its_children(pocket: &Pocket) {
        for id in pocket.of_kind("family") {
            let state = state(pocket, id);
            if pocket.is_final(id) {
                let listed = |child: &EntityId| state.abandoned.contains(child);
                let open = state.open.iter().map(|(_, c)| c);
                assert!(open.into_iter().all(listed), "{id} is final before its children");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_cancel_at_any_point_ends_everybody_in_order(
            depth in 1u32..3, children in 1u32..5, random: u64, cancel_at in 0usize..300, who: usize,
        ) {
            let mut pocket = Pocket::seeded(random);
            let root = pocket.create("family", &seed(depth, children));
            let mut ids = vec![root];
            for round in 0..6_000 {
                if round == cancel_at {
                    ids = pocket.of_kind("family");
                    let one = ids[who % ids.len()];
                    // Sometimes one that nobody has created yet.
                    let planned = state(&pocket, one).open.iter().map(|(_, c)| *c)
                        .find(|c| !pocket.store.heads.contains_key(c));
                    match planned {
                        Some(unborn) => pocket.cancel_unborn(unborn, "family"),
                        None => { pocket.mail(one, "stop", kinds::CANCEL, Body::Inline(vec![])); }
                    }
                }
                pocket.random_step();
                if round % 16 == 0 {
                    no_parent_is_final_before_its_children(&pocket);
                }
                if pocket.is_final(root) && round > cancel_at {
                    break;
                }
            }
            pocket.check();
            no_parent_is_final_before_its_children(&pocket);
            prop_assert!(pocket.is_final(root), "everything ends: {:?}", state(&pocket, root));
            for id in pocket.of_kind("family") {
                prop_assert!(pocket.is_final(id), "nobody is left behind");
            }
        }
    }

    #[test]
    fn a_child_cancelled_before_its_birth_is_never_born_and_its_parent_hears_of_it() {
        let mut pocket = Pocket::seeded(5);
        let root = pocket.create("family", &seed(1, 1));
        let child = state(&pocket, root).open[0].1;
        pocket.cancel_unborn(child, "family");
        assert_eq!(pocket.store.heads[&child].status.name(), "cancelled");
        pocket.deliver_all();
        assert_eq!(pocket.store.heads[&child].version, 1, "its creation changes nothing");
        pocket.serve(root);
        assert_eq!(pocket.store.heads[&root].status.name(), "done");
        pocket.check();
    }

    #[test]
    fn a_parent_whose_time_is_up_lists_its_open_children_as_abandoned() {
        let mut pocket = Pocket::seeded(6);
        let root = pocket.create("family", &seed(1, 3));
        pocket.deliver_all();
        pocket.must_end(root);
        assert_eq!(pocket.store.heads[&root].status.name(), "failed");
        assert_eq!(state(&pocket, root).abandoned.len(), 3);
        no_parent_is_final_before_its_children(&pocket);
        pocket.deliver_all();
        for child in pocket.of_kind("family") {
            pocket.serve(child);
            assert!(pocket.is_final(child), "the abandoned are told");
        }
    }

    #[test]
    fn as_many_children_as_the_limit_fit_the_head() {
        let mut pocket = Pocket::seeded(8);
        let root = pocket.create("family", &seed(1, CHILDREN_MAX));
        assert_eq!(state(&pocket, root).open.len(), CHILDREN_MAX as usize);
        let cx = Cx { id: root, now: Timestamp::ZERO, version: 0, status: None, changed_at: None };
        let more = seed(1, CHILDREN_MAX + 1);
        assert!(Family::decide(None, &Input::Create(&more), &cx).is_err());
    }
}
