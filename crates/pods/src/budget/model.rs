//! The budget machine: what is kept, and what can happen.

use crate::is_default;
use serde::{Deserialize, Serialize};
use tenure_kernel::{
    ids::EntityId,
    machine::{Cx, Decision, Input, Machine, Undecided},
    table::Table,
    time::Timestamp,
};

/// A task wants to retry: [`BudgetAsk`].
pub const ASK: &str = "budget_ask";
/// A person says what the tenant may: [`BudgetSet`].
pub const SET: &str = "budget_set";
/// A place is given back: [`BudgetRelease`].
pub const RELEASE: &str = "budget_release";
/// There is a place: [`Answer`]. It comes back from a task that is over.
pub const GRANTED: &str = "budget_granted?";
/// There is none now: [`Answer`].
pub const DEFERRED: &str = "budget_deferred";
/// Is the place still used? It comes back from a task that is over.
pub const STILL: &str = "budget_still?";

/// Limits, by name.
pub mod limits {
    /// Retries under way at once, at most.
    pub const IN_FLIGHT_MAX: u32 = 200;
    /// Retries in a minute, and at once, at most.
    pub const PER_MINUTE_MAX: u32 = 600_000;
}

/// What a tenant's retries may cost together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BudgetTerms {
    /// Retries that may start in a minute.
    pub per_minute: u32,
    /// How many of them at once, after a quiet time.
    pub burst: u32,
    /// Retried attempts under way at once.
    pub in_flight: u32,
}

impl Default for BudgetTerms {
    fn default() -> Self {
        BudgetTerms { per_minute: 120, burst: 20, in_flight: 50 }
    }
}

impl BudgetTerms {
    /// What is wrong with them, in words.
    pub fn problem(&self) -> Option<String> {
        if !(1..=limits::PER_MINUTE_MAX).contains(&self.per_minute) {
            let max = limits::PER_MINUTE_MAX;
            return Some(format!("per_minute is {}: it must be 1 to {max}", self.per_minute));
        }
        if !(1..=limits::PER_MINUTE_MAX).contains(&self.burst) {
            let max = limits::PER_MINUTE_MAX;
            return Some(format!("burst is {}: it must be 1 to {max}", self.burst));
        }
        (!(1..=limits::IN_FLIGHT_MAX).contains(&self.in_flight)).then(|| {
            let max = limits::IN_FLIGHT_MAX;
            format!("in_flight is {}: it must be 1 to {max}", self.in_flight)
        })
    }

    /// The same within what can be.
    pub fn clamped(self) -> Self {
        BudgetTerms {
            per_minute: self.per_minute.clamp(1, limits::PER_MINUTE_MAX),
            burst: self.burst.clamp(1, limits::PER_MINUTE_MAX),
            in_flight: self.in_flight.clamp(1, limits::IN_FLIGHT_MAX),
        }
    }

    /// Time from one retry to the next, in microseconds.
    pub fn interval(&self) -> i64 {
        60_000_000 / i64::from(self.per_minute.max(1))
    }
}

/// A task asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetAsk {
    /// Which.
    pub task: EntityId,
    /// Whose budget it is.
    pub tenant: String,
    /// What the server's settings say; a person's word counts before it.
    pub terms: BudgetTerms,
}

/// A person says what a tenant may.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetSet {
    /// Whose.
    pub tenant: String,
    /// What.
    pub terms: BudgetTerms,
    /// Who says so.
    pub by: String,
}

/// A place is given back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetRelease {
    /// By whom.
    pub task: EntityId,
}

/// What a budget answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// A place from then on; or: ask again then.
    pub after_ms: u64,
}

/// A task that has a place, and when it is asked whether it still uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place(pub EntityId, pub Timestamp);

/// What can happen to a budget.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum BudgetEvent {
    /// The tenant's first retry, or the first word about it.
    BudgetCreated {
        /// Whose.
        tenant: String,
    },
    /// What the tenant may.
    BudgetTermsSet {
        /// What.
        terms: BudgetTerms,
        /// A person, or nobody: then it is what the server's settings say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    /// A task has a place.
    PlaceGranted {
        /// Which.
        task: EntityId,
        /// Since.
        at: Timestamp,
        /// Its moment: what the bucket counts.
        starts: Timestamp,
    },
    /// A task has to ask again.
    PlaceDeferred {
        /// Which.
        task: EntityId,
    },
    /// A place is free again.
    PlaceReleased {
        /// Whose.
        task: EntityId,
        /// Why.
        why: String,
    },
    /// Holders were asked whether they still use their places.
    HoldersAsked {
        /// When.
        at: Timestamp,
    },
    /// Mail that changes nothing.
    BudgetNoted {
        /// What.
        what: String,
    },
}

/// What the head keeps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BudgetState {
    /// Whose.
    pub tenant: String,
    /// What it may.
    pub terms: BudgetTerms,
    /// The person who said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set_by: Option<String>,
    /// When the bucket would be full again.
    pub full_at: Timestamp,
    /// Who has a place.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<Place>,
    /// Of those, whose moment was not at once, and when it is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub moments: Vec<Place>,
    /// Places given so far.
    #[serde(skip_serializing_if = "is_default")]
    pub granted: u64,
    /// How often somebody had to ask again.
    #[serde(skip_serializing_if = "is_default")]
    pub deferred: u64,
}

impl BudgetState {
    /// Whether a task has a place.
    pub fn holds(&self, task: EntityId) -> bool {
        self.places.iter().any(|p| p.0 == task)
    }

    /// Retries that could start now.
    pub fn tokens(&self, now: Timestamp) -> u32 {
        let owed = i64::try_from(self.full_at.since(now).as_micros()).unwrap_or(i64::MAX);
        let interval = self.terms.interval().max(1);
        let used = u32::try_from((owed + interval - 1) / interval).unwrap_or(u32::MAX);
        self.terms.burst.saturating_sub(used)
    }
}

/// The budget machine.
#[derive(Debug)]
pub struct Budget;

/// How long a place is used before its task is asked.
pub const CHECK_EVERY: std::time::Duration = std::time::Duration::from_secs(300);

impl Machine for Budget {
    type State = BudgetState;
    type Event = BudgetEvent;
    const TABLE: &'static Table = &super::table::TABLE;
    const CREATED_BY: &'static [&'static str] = &["task"];

    fn name(event: &BudgetEvent) -> &'static str {
        match event {
            BudgetEvent::BudgetCreated { .. } => "budget_created",
            BudgetEvent::BudgetTermsSet { .. } => "budget_terms_set",
            BudgetEvent::PlaceGranted { .. } => "place_granted",
            BudgetEvent::PlaceDeferred { .. } => "place_deferred",
            BudgetEvent::PlaceReleased { .. } => "place_released",
            BudgetEvent::HoldersAsked { .. } => "holders_asked",
            BudgetEvent::BudgetNoted { .. } => "budget_noted",
        }
    }

    fn apply(state: &mut BudgetState, event: &BudgetEvent) {
        match event {
            BudgetEvent::BudgetCreated { tenant } => state.tenant.clone_from(tenant),
            BudgetEvent::BudgetTermsSet { terms, by } => {
                state.terms = *terms;
                state.set_by.clone_from(by);
            }
            BudgetEvent::PlaceGranted { task, at, starts } => {
                let interval = std::time::Duration::from_micros(
                    u64::try_from(state.terms.interval()).unwrap_or(0),
                );
                state.full_at = state.full_at.max(*starts) + interval;
                state.places.push(Place(*task, *at + CHECK_EVERY));
                state.moments.retain(|p| p.1 > *at);
                if starts > at {
                    state.moments.push(Place(*task, *starts));
                }
                state.granted += 1;
            }
            BudgetEvent::PlaceDeferred { .. } => state.deferred += 1,
            BudgetEvent::PlaceReleased { task, .. } => {
                state.places.retain(|p| p.0 != *task);
                state.moments.retain(|p| p.0 != *task);
            }
            BudgetEvent::HoldersAsked { at } => {
                for place in state.places.iter_mut().filter(|p| p.1 <= *at) {
                    place.1 = *at + CHECK_EVERY;
                }
            }
            BudgetEvent::BudgetNoted { .. } => {}
        }
    }

    fn decide(
        state: Option<&BudgetState>,
        input: &Input<'_>,
        cx: &Cx,
    ) -> Result<Decision<BudgetEvent>, Undecided> {
        super::decide::decide(state, input, cx)
    }
}

/// The budget of a tenant.
pub fn budget_id(tenant: &str) -> EntityId {
    EntityId::derived(EntityId::fixed(0x42, 0), &format!("budget/{tenant}"), Timestamp::ZERO)
}
