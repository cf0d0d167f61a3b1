//! What a limit is asked to be, what its head keeps, and what can happen to it.

use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, time::Duration};
use tenure_kernel::{
    ids::EntityId,
    machine::{Cx, Decision, Input, Machine, Undecided},
    table::{BIRTH, Claimable, Class, Move, SAME, StatusRow, Table},
};

pub use tenure_steps::events::Token;

/// The tenant of a limit for all of them together.
pub const EVERYBODY: &str = "*";
/// The tenant of a limit that holds for each of them by itself. No name of a tenant has a slash in it.
pub const EACH: &str = "*/each";

/// Limits of limits, by name.
pub mod limits {
    use std::time::Duration;

    /// The most calls of one limit in its time.
    pub const COUNT_MAX: u32 = 1_000_000;
    /// The largest burst and the largest block.
    pub const BURST_MAX: u32 = 1_000_000;
    /// A block lasts at least so long: each costs a commit on one row.
    pub const BLOCK_LASTS_MIN: Duration = Duration::from_millis(250);
    /// Without a word a block lasts so long, or is one token.
    pub const BLOCK_LASTS: Duration = Duration::from_secs(1);
    /// Of one block a worker takes no token ahead that is good later than this.
    pub const AHEAD_MAX: Duration = Duration::from_secs(1);
    /// Nobody takes a token that is good later than this: what is lost with a cancel, and what one tenant can put before
    /// another, is never more.
    pub const HORIZON: Duration = Duration::from_secs(4);
    /// So much may be promised to a tenant that takes one more token out of turn.
    pub const OWN_AHEAD_MAX: Duration = Duration::from_millis(500);
    /// So much before its place whoever stands in the line is in turn. More than [`OWN_AHEAD_MAX`]: a line that comes in
    /// time leaves nothing to those who come later.
    pub const LEAD: Duration = Duration::from_secs(1);
    /// Tenants of which a limit for all together remembers what is promised to them, those with the most, and whose lines
    /// it keeps apart.
    pub const TENANTS_MAX: usize = 16;
}

/// What a limit is asked to be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The tool.
    pub tool: String,
    /// Whose calls; [`EVERYBODY`] for all together, [`EACH`] for each tenant by itself.
    pub tenant: String,
    /// So many calls …
    pub count: u32,
    /// … in this time.
    pub per_ms: u64,
    /// So many at once, after a silence.
    pub burst: u32,
    /// The most tokens that a worker takes at once.
    pub block: u32,
    /// Somebody who is of no tenant set it: then only such a one changes or removes it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_operator: bool,
    /// It follows from the limit for each tenant, as that was set for the so-manieth time. See [`mod@super::each`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_each: Option<u64>,
}

impl Spec {
    /// The entity of the limit.
    pub fn id(&self) -> EntityId {
        match self.from_each {
            None => super::desk::id_of(&self.tenant, &self.tool),
            Some(_) => super::each::id_of(&self.tenant, &self.tool),
        }
    }

    /// Between two tokens. Rounded up: a limit is rather a little slower.
    pub fn interval(&self) -> Duration {
        let nanos = u128::from(self.per_ms) * 1_000_000;
        let each = nanos.div_ceil(u128::from(self.count.max(1)));
        Duration::from_nanos(u64::try_from(each).unwrap_or(u64::MAX))
    }

    /// How long a token is good.
    pub fn good_for(&self) -> Duration {
        self.interval().saturating_mul(self.block.max(1))
    }

    /// The block without a word: what a second allows.
    pub fn block_for(count: u32, per_ms: u64) -> u32 {
        let spec = Spec { count, per_ms, ..Spec::default() };
        let interval = spec.interval().as_nanos().max(1);
        u32::try_from(limits::BLOCK_LASTS.as_nanos().div_ceil(interval)).unwrap_or(u32::MAX).max(1)
    }
}

/// What the head keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// What it is; `None` once it was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec: Option<Spec>,
    /// When the next token would be due if all came evenly, in nanoseconds since 1970.
    pub next_ns: i64,
    /// Tokens given out.
    pub taken: u64,
    /// By tenant, when the place behind the last one in its line would be due, in nanoseconds since 1970: an estimate, see
    /// [`mod@super::decide`].
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub lines: BTreeMap<String, i64>,
    /// Of a limit for all together: how much of what is promised ahead is promised to whom, in nanoseconds.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub held: BTreeMap<String, i64>,
}

/// Who took tokens, and when that was on its clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taker {
    /// For whose call.
    pub tenant: String,
    /// In nanoseconds since 1970.
    pub at_ns: i64,
    /// Its place in the line had come.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_turn: bool,
}

/// What can happen to a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// Somebody set it, for the first time or anew. What was given out stays so.
    LimitSet {
        /// What it is from now on.
        spec: Spec,
        /// Who.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        /// What was promised under another rate does not hold back calls under this one; see [`State::next_ns`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next_ns: Option<i64>,
    },
    /// A worker took tokens.
    TokensTaken {
        /// How many.
        count: u32,
        /// See [`State::next_ns`].
        next_ns: i64,
        /// For whom. Older programs did not say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        taker: Option<Taker>,
    },
    /// Somebody who can not have a token yet stands at the end of the line.
    PlaceTaken {
        /// For whose call.
        tenant: String,
        /// When that was on its clock, in nanoseconds since 1970.
        at_ns: i64,
    },
    /// It holds nobody back any more, unless somebody sets it again.
    LimitRemoved {
        /// Who.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    /// Mail came that changes nothing.
    LimitMailNoted {
        /// How much.
        count: u64,
    },
}

/// The machine.
#[derive(Debug)]
pub struct Limit;

const fn rests(name: &'static str, doc: &'static str) -> StatusRow {
    StatusRow { name, class: Class::Resting, claimable: Claimable::No, doc }
}

/// The transition table. `removed` rests, for the reason that a schedule's does.
pub static TABLE: Table = Table {
    kind: "limit",
    doc: "How often a tool may be called, by one tenant or by all together.",
    statuses: &[
        rests("active", "Calls take a token first."),
        rests("removed", "Somebody deleted it; it can be set again."),
    ],
    moves: &[
        Move { from: BIRTH, event: "limit_set", to: "active" },
        Move { from: &["active"], event: "limit_set", to: SAME },
        Move { from: &["removed"], event: "limit_set", to: "active" },
        Move { from: &["active"], event: "tokens_taken", to: SAME },
        Move { from: &["active"], event: "place_taken", to: SAME },
        Move { from: &["active"], event: "limit_removed", to: "removed" },
        Move { from: &["active", "removed"], event: "limit_mail_noted", to: SAME },
    ],
    forced: "",
};

impl Machine for Limit {
    type State = State;
    type Event = Event;
    const TABLE: &'static Table = &TABLE;
    const CREATED_BY: &'static [&'static str] = &["worker"];

    fn name(event: &Event) -> &'static str {
        match event {
            Event::LimitSet { .. } => "limit_set",
            Event::TokensTaken { .. } => "tokens_taken",
            Event::PlaceTaken { .. } => "place_taken",
            Event::LimitRemoved { .. } => "limit_removed",
            Event::LimitMailNoted { .. } => "limit_mail_noted",
        }
    }

    fn apply(state: &mut State, event: &Event) {
        match event {
            Event::LimitSet { spec, next_ns, .. } => {
                state.spec = Some(spec.clone());
                state.next_ns = next_ns.unwrap_or(state.next_ns);
                // Who waits asks again, and nobody waits for a place of another rate.
                state.lines.clear();
                state.held.clear();
            }
            Event::TokensTaken { count, next_ns, taker } => {
                state.taken += u64::from(*count);
                super::decide::promise(state, *next_ns, taker.as_ref());
            }
            Event::PlaceTaken { tenant, at_ns } => super::decide::lengthen(state, tenant, *at_ns),
            Event::LimitRemoved { .. } => state.spec = None,
            Event::LimitMailNoted { .. } => {}
        }
    }

    fn decide(
        _state: Option<&State>,
        input: &Input<'_>,
        _cx: &Cx,
    ) -> Result<Decision<Event>, Undecided> {
        match input {
            Input::Mail(mail) => {
                Ok(Decision::event(Event::LimitMailNoted { count: mail.len() as u64 }))
            }
            other => Err(Undecided(format!("a limit does not know {}", other.rule()))),
        }
    }
}
