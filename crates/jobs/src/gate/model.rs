//! What a gate keeps, and what can happen to it.

use super::limits;
use serde::{Deserialize, Serialize};
use tenure_kernel::{
    ids::EntityId,
    machine::{Cx, Decision, Input, Machine, Undecided},
    table::Table,
    time::Timestamp,
};

/// The gate of a tenant under a name. It follows from the two alone, so that whoever names it first creates it.
pub fn gate_id(tenant: &str, name: &str) -> EntityId {
    let key = format!("gate/{}/{tenant}/{name}", tenant.len());
    EntityId::derived(EntityId::fixed(5, 0), &key, Timestamp::ZERO)
}

/// Somebody in the line. Written short: a hundred stand in a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiter(
    /// The job.
    pub EntityId,
    /// Its priority: higher is sooner.
    pub i16,
    /// When its ask was read.
    pub Timestamp,
);

/// A job that has a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder(
    /// The job.
    pub EntityId,
    /// Since when.
    pub Timestamp,
    /// How often it was asked whether it is still there.
    pub u16,
);

impl Holder {
    /// When it is asked next.
    pub fn check_at(&self) -> Timestamp {
        let first = limits::CHECK_FIRST_MS;
        let asks = u32::from(self.2);
        let doubled = asks.min(limits::CHECK_DOUBLINGS);
        // 1, 2, 4 … minutes after the grant, then once per longest step.
        let steps = u64::from(asks - doubled);
        let after = (first << doubled) + steps * (first << limits::CHECK_DOUBLINGS);
        self.1 + std::time::Duration::from_millis(after)
    }
}

/// What the head keeps.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GateState {
    /// Its name, within the tenant.
    pub name: String,
    /// Jobs at once.
    pub limit: u32,
    /// The person who said so; without one it is what the first job asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set_by: Option<String>,
    /// That person is of no tenant.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub by_operator: bool,
    /// Who has a permit, in the order of their grants.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<Holder>,
    /// The first of the line, in the order of asking.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub window: Vec<Waiter>,
    /// The page with those who come after the window.
    pub first_page: u64,
    /// The page to which new ones go.
    pub last_page: u64,
    /// How many were put into it.
    pub in_last: u32,
    /// Waiters in pages.
    pub paged: u64,
    /// A page that was asked for, and how many it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fetching: Option<(u64, u32)>,
    /// Permits given so far.
    pub granted: u64,
}

impl GateState {
    /// Whether nobody would miss it: nobody has a permit, waits, or is on the way, and no person set its limit.
    pub fn is_idle(&self) -> bool {
        let nobody = self.holders.is_empty() && self.waiting() == 0 && self.fetching.is_none();
        nobody && self.set_by.is_none()
    }

    /// Everybody in the line.
    pub fn waiting(&self) -> u64 {
        self.window.len() as u64 + self.paged
    }

    /// Whether a job has a permit.
    pub fn holds(&self, job: EntityId) -> bool {
        self.holders.iter().any(|h| h.0 == job)
    }

    /// Who is next: the highest priority in the window, and of those the first that asked.
    pub fn next(&self) -> Option<Waiter> {
        let best = self.window.iter().map(|w| w.1).max()?;
        self.window.iter().find(|w| w.1 == best).copied()
    }

    /// How many of the window go before this job; `None` if it is not in the window.
    pub fn before(&self, job: EntityId) -> Option<usize> {
        let at = self.window.iter().position(|w| w.0 == job)?;
        let mine = self.window[at].1;
        let sooner = |(i, w): (usize, &Waiter)| w.1 > mine || (w.1 == mine && i < at);
        Some(self.window.iter().enumerate().filter(|w| sooner((w.0, w.1))).count())
    }
}

/// What can happen to a gate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum GateEvent {
    /// Somebody named it for the first time.
    GateCreated {
        /// Its name.
        name: String,
        /// Jobs at once.
        limit: u32,
        /// The number of its first page.
        #[serde(default)]
        page: u64,
    },
    /// A person said how many may pass.
    GateLimitSet {
        /// Jobs at once.
        limit: u32,
        /// Who.
        by: String,
        /// They are of no tenant.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        by_operator: bool,
    },
    /// A job stands in the window.
    GateAsked {
        /// Who.
        waiter: Waiter,
    },
    /// Jobs stand in a page.
    GatePaged {
        /// Which.
        page: u64,
        /// Who.
        waiters: Vec<Waiter>,
    },
    /// The next page is asked for.
    GateFetching {
        /// Which.
        page: u64,
        /// How many it has.
        count: u32,
    },
    /// A page gave up what it had.
    GateFetched {
        /// Which.
        page: u64,
        /// Who stood in it.
        waiters: Vec<Waiter>,
    },
    /// A page is not there. Whoever stood in it ends by its own time.
    GatePageLost {
        /// Which.
        page: u64,
        /// In words.
        why: String,
    },
    /// A job has a permit.
    GateGranted {
        /// Which.
        job: EntityId,
        /// When.
        at: Timestamp,
    },
    /// A permit is free, or a place in the window.
    GateReleased {
        /// Whose.
        job: EntityId,
        /// Why: it ended, or a message to it came back.
        why: String,
    },
    /// Holders are asked whether they are still there.
    GateHoldersAsked {
        /// Which.
        jobs: Vec<EntityId>,
    },
    /// Nobody has stood here for a while.
    GateVacated,
    /// Somebody came to a vacant gate.
    GateWoken,
    /// Mail or a timer came that changes nothing.
    GateNoted {
        /// What, and why it changes nothing.
        what: String,
    },
}

/// The gate machine.
#[derive(Debug)]
pub struct Gate;

impl Machine for Gate {
    type State = GateState;
    type Event = GateEvent;
    const TABLE: &'static Table = &super::table::GATE;
    const CREATED_BY: &'static [&'static str] = &["job"];

    fn name(event: &GateEvent) -> &'static str {
        match event {
            GateEvent::GateCreated { .. } => "gate_created",
            GateEvent::GateLimitSet { .. } => "gate_limit_set",
            GateEvent::GateAsked { .. } => "gate_asked",
            GateEvent::GatePaged { .. } => "gate_paged",
            GateEvent::GateFetching { .. } => "gate_fetching",
            GateEvent::GateFetched { .. } => "gate_fetched",
            GateEvent::GatePageLost { .. } => "gate_page_lost",
            GateEvent::GateGranted { .. } => "gate_granted",
            GateEvent::GateReleased { .. } => "gate_released",
            GateEvent::GateHoldersAsked { .. } => "gate_holders_asked",
            GateEvent::GateVacated => "gate_vacated",
            GateEvent::GateWoken => "gate_woken",
            GateEvent::GateNoted { .. } => "gate_noted",
        }
    }

    fn apply(state: &mut GateState, event: &GateEvent) {
        match event {
            GateEvent::GateCreated { name, limit, page } => {
                state.name.clone_from(name);
                state.limit = *limit;
                (state.first_page, state.last_page) = (*page, *page);
            }
            GateEvent::GateLimitSet { limit, by, by_operator } => {
                state.limit = *limit;
                state.set_by = Some(by.clone());
                state.by_operator = *by_operator;
            }
            GateEvent::GateAsked { waiter } => state.window.push(*waiter),
            GateEvent::GatePaged { page, waiters } => {
                if *page != state.last_page {
                    (state.last_page, state.in_last) = (*page, 0);
                }
                if state.paged == 0 {
                    state.first_page = *page;
                }
                state.in_last += u32::try_from(waiters.len()).unwrap_or(u32::MAX);
                state.paged += waiters.len() as u64;
            }
            GateEvent::GateFetching { page, count } => {
                state.fetching = Some((*page, *count));
                if *page == state.last_page {
                    // Closed: whoever comes now stands in the next one.
                    (state.last_page, state.in_last) = (page + 1, 0);
                }
            }
            GateEvent::GateFetched { page, waiters } => {
                state.after_page(*page);
                state.window.extend(waiters.iter().copied());
            }
            GateEvent::GatePageLost { page, .. } => state.after_page(*page),
            GateEvent::GateGranted { job, at } => {
                state.window.retain(|w| w.0 != *job);
                state.holders.push(Holder(*job, *at, 0));
                state.granted += 1;
            }
            GateEvent::GateReleased { job, .. } => {
                state.holders.retain(|h| h.0 != *job);
                state.window.retain(|w| w.0 != *job);
            }
            GateEvent::GateHoldersAsked { jobs } => {
                for holder in state.holders.iter_mut().filter(|h| jobs.contains(&h.0)) {
                    holder.2 = holder.2.saturating_add(1);
                }
            }
            GateEvent::GateVacated | GateEvent::GateWoken | GateEvent::GateNoted { .. } => {}
        }
    }

    fn decide(
        state: Option<&GateState>,
        input: &Input<'_>,
        cx: &Cx,
    ) -> Result<Decision<GateEvent>, Undecided> {
        super::decide::decide(state, input, cx)
    }
}

impl GateState {
    fn after_page(&mut self, page: u64) {
        let count = self.fetching.take().map_or(0, |(_, count)| u64::from(count));
        self.paged = self.paged.saturating_sub(count);
        self.first_page = page + 1;
    }
}
