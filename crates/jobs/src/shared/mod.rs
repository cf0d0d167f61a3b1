//! What several jobs share: entities of their own that rest, held by nobody. Each has the same rooms as a job:
//! `model` (state and events), `table`, `decide` (pure), and a desk through which outsiders change it.
//!
//! | entity | what it shares |
//! |---|---|
//! | [`batch`] | submissions that become one job |
//! | [`limit`] | how often a tool is called |
//! | [`schedule`] | times at which jobs begin |
//!
//! Nobody holds them, so whoever wants to change one commits on the version it has seen ([`amend`]). The road not
//! taken is mail for every change: the caller would then have to wait for the due loop to learn what became of it.

pub mod batch;
pub mod limit;
pub mod schedule;

pub use tenure_engine::amend::{Amended, amend};

use tenure_kernel::{ids::EntityId, time::Timestamp};

/// The id of something that has a name within a tenant.
pub(crate) fn named(kind: &str, tenant: &str, name: &str) -> EntityId {
    let path = format!("{kind}/{}/{tenant}/{name}", tenant.len());
    EntityId::derived(EntityId::fixed(5, 0), &path, Timestamp::ZERO)
}
