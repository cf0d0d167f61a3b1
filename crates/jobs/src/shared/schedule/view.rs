//! What people read of a schedule.

use super::{
    calendar::Calendar,
    model::{Fire, Overlap, Spec, State},
};
use serde::{Deserialize, Serialize};
use tenure_kernel::{head::Head, ids::EntityId, time::Timestamp};

/// One schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScheduleView {
    /// Its entity.
    pub id: EntityId,
    /// Its name.
    pub name: String,
    /// Whose it is.
    pub tenant: String,
    /// `active` or `paused`.
    pub status: String,
    /// What it is.
    #[serde(flatten)]
    pub spec: Spec,
    /// The next nominal time; none where the calendar is over, or it is paused.
    pub next_at: Option<Timestamp>,
    /// The next times from now, as many as were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub next: Vec<Timestamp>,
    /// Jobs created.
    pub fired: u64,
    /// Nominal times that became no job: missed, or overlapped.
    pub skipped: u64,
    /// The last jobs, the newest first.
    pub fires: Vec<ShownFire>,
    /// Jobs whose end is awaited, where they may not overlap.
    pub open: Vec<EntityId>,
    /// Why a person should look.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention: Option<String>,
}

/// One job of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownFire {
    /// Its nominal time.
    pub nominal: Timestamp,
    /// When it was served.
    pub at: Timestamp,
    /// The job.
    pub job: EntityId,
    /// Somebody asked for it.
    pub by_hand: bool,
}

pub(super) fn view(head: &Head, state: State, now: Timestamp, next: usize) -> Option<ScheduleView> {
    // While jobs may overlap nobody waits for their end, though it is still known whose was awaited before.
    let awaited = state.spec.as_ref().is_some_and(|s| s.overlap == Overlap::Skip);
    let open = state.open_at(now).filter(|_| awaited).collect();
    let State { name, spec, anchor, fires, fired, skipped, .. } = state;
    let spec = spec?;
    let next = match Calendar::of(&spec, anchor) {
        Ok(calendar) if next > 0 => calendar.preview(now, next),
        _ => Vec::new(),
    };
    let shown = |Fire { nominal, at, job, by_hand }| ShownFire { nominal, at, job, by_hand };
    Some(ScheduleView {
        id: head.id,
        name,
        tenant: head.tenant.clone(),
        status: head.status.name().to_owned(),
        spec,
        next_at: state.next,
        next,
        fired,
        skipped,
        fires: fires.into_iter().rev().map(shown).collect(),
        open,
        attention: head.attention.clone(),
    })
}
