//! How outsiders change a schedule. Every change is one commit on what was read; nothing is half-written.

use super::{
    calendar::{BadCalendar, Calendar},
    decide::{self, NotFired},
    model::{Schedule, Spec, State, limits},
    view::{ScheduleView, view},
};
use crate::{
    shared::{amend, named},
    terms::BadTerm,
};
use tenure_engine::pipeline::Pipeline;
use tenure_kernel::{
    error::StoreError,
    head::Head,
    ids::EntityId,
    machine::{Cx, Decision, Machine as _, Undecided, decode_state},
    store::HeadFilter,
    time::Timestamp,
};

/// Why a schedule was not changed.
#[derive(Debug, thiserror::Error)]
pub enum ScheduleError {
    /// It can not be used.
    #[error(transparent)]
    Bad(#[from] BadCalendar),
    /// There is none of this name.
    #[error("there is no schedule {0:?}")]
    Absent(String),
    /// Its jobs may not overlap, and no more of them are remembered.
    #[error("{max} jobs of the schedule {0:?} are open, and it remembers no more", max = limits::OPEN_MAX)]
    TooManyOpen(String),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn undecided(e: Undecided) -> ScheduleError {
    ScheduleError::Store(StoreError::Refused(e.to_string()))
}

/// The entity of a name.
pub fn id_of(tenant: &str, name: &str) -> EntityId {
    named("schedule", tenant, name)
}

/// The schedules of a store.
#[derive(Clone)]
pub struct Schedules(pub Pipeline);

impl Schedules {
    /// Sets a schedule, for the first time or anew. Whether something changed.
    pub async fn set(
        &self,
        tenant: &str,
        name: &str,
        mut spec: Spec,
        by: Option<String>,
    ) -> Result<bool, ScheduleError> {
        // A job that a message creates knows its tenant from nowhere else.
        let bad = |e: BadTerm| BadCalendar {
            field: "terms",
            why: e.to_string(),
            fix: "see docs/api.md for the terms of a job",
        };
        spec.terms = spec.terms.of_tenant(tenant).map_err(bad)?;
        spec.terms.fits(&spec.flow, spec.version).map_err(bad)?;
        check(name, &spec)?;
        let change = |state: Option<&State>, cx: &Cx| {
            decide::set(state, name, spec.clone(), by.clone(), cx).map_err(undecided)
        };
        let id = id_of(tenant, name);
        let amended = amend::<Schedule, ScheduleError>(&self.0, id, tenant, change).await?;
        Ok(amended.changed)
    }

    /// See [`decide::pause`].
    pub async fn pause(
        &self,
        tenant: &str,
        name: &str,
        by: Option<String>,
    ) -> Result<bool, ScheduleError> {
        self.known(tenant, name, |state, cx| {
            decide::pause(state, by.clone(), cx).map_err(undecided)
        })
        .await
    }

    /// See [`decide::resume`].
    pub async fn resume(
        &self,
        tenant: &str,
        name: &str,
        by: Option<String>,
    ) -> Result<bool, ScheduleError> {
        self.known(tenant, name, |state, cx| {
            decide::resume(state, by.clone(), cx).map_err(undecided)
        })
        .await
    }

    /// Removes a schedule. Jobs that it has created go on.
    pub async fn remove(
        &self,
        tenant: &str,
        name: &str,
        by: Option<String>,
    ) -> Result<bool, ScheduleError> {
        self.known(tenant, name, |state, _| Ok(decide::remove(state, by.clone()))).await
    }

    /// A job now. Asked again with the same key it is the same job.
    pub async fn fire(
        &self,
        tenant: &str,
        name: &str,
        key: Option<&str>,
        by: Option<String>,
    ) -> Result<EntityId, ScheduleError> {
        // The decision is asked for until it is committed; what it said last is what was written.
        let job = std::sync::Mutex::new(None);
        self.known(tenant, name, |state, cx| {
            let (id, decision) =
                decide::fire_by_hand(state, key, by.clone(), cx).map_err(|e| match e {
                    NotFired::Removed => ScheduleError::Absent(name.to_owned()),
                    NotFired::TooManyOpen => ScheduleError::TooManyOpen(name.to_owned()),
                })?;
            *job.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(id);
            Ok(decision)
        })
        .await?;
        let job = job.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        job.ok_or_else(|| ScheduleError::Absent(name.to_owned()))
    }

    async fn known(
        &self,
        tenant: &str,
        name: &str,
        change: impl Fn(&State, &Cx) -> Result<Decision<super::Event>, ScheduleError>,
    ) -> Result<bool, ScheduleError> {
        let change = |state: Option<&State>, cx: &Cx| match state.filter(|s| s.spec.is_some()) {
            Some(state) => change(state, cx),
            None => Err(ScheduleError::Absent(name.to_owned())),
        };
        let id = id_of(tenant, name);
        Ok(amend::<Schedule, ScheduleError>(&self.0, id, tenant, change).await?.changed)
    }

    /// One schedule, with so many of its next times.
    pub async fn show(
        &self,
        tenant: &str,
        name: &str,
        next: usize,
    ) -> Result<ScheduleView, ScheduleError> {
        let store = self.0.store();
        let now = store.now().await?;
        let head = store.head(id_of(tenant, name)).await?;
        let shown = head.map(|h| read(&h, now, next)).transpose()?.flatten();
        shown.ok_or_else(|| ScheduleError::Absent(name.to_owned()))
    }

    /// A page of the schedules of a tenant, or of all of them, and where the next one begins. It may be short and not be
    /// the last: what was removed is passed over.
    pub async fn page(
        &self,
        tenant: Option<&str>,
        after: Option<EntityId>,
        limit: usize,
    ) -> Result<(Vec<ScheduleView>, Option<EntityId>), StoreError> {
        let store = self.0.store();
        let now = store.now().await?;
        let filter = HeadFilter {
            kind: Some(Schedule::TABLE.kind.into()),
            tenant: tenant.map(str::to_owned),
            after,
            ..HeadFilter::default()
        };
        let heads = store.heads(filter, limit).await?;
        let next = heads.last().map(|h| h.id).filter(|_| heads.len() == limit);
        let mut found = Vec::new();
        for head in &heads {
            found.extend(read(head, now, 0)?);
        }
        found.sort_by(|a, b| (&a.tenant, &a.name).cmp(&(&b.tenant, &b.name)));
        Ok((found, next))
    }

    /// All of them.
    pub async fn list(&self, tenant: Option<&str>) -> Result<Vec<ScheduleView>, StoreError> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let (found, next) = self.page(tenant, after, PAGE).await?;
            all.extend(found);
            after = next;
            if after.is_none() {
                all.sort_by(|a, b| (&a.tenant, &a.name).cmp(&(&b.tenant, &b.name)));
                return Ok(all);
            }
        }
    }
}

/// Schedules that are read at once.
const PAGE: usize = 200;

fn read(head: &Head, now: Timestamp, next: usize) -> Result<Option<ScheduleView>, StoreError> {
    let state =
        decode_state::<Schedule>(&head.state).map_err(|e| StoreError::Corrupt(e.to_string()))?;
    Ok(view(head, state, now, next))
}

/// Everything about a schedule that can be known to be wrong before anything is written.
pub fn check(name: &str, spec: &Spec) -> Result<(), BadCalendar> {
    let length = name.len();
    if !(1..=limits::NAME_BYTES_MAX).contains(&length) || name.contains('/') {
        return Err(BadCalendar {
            field: "name",
            why: format!("{name:?} is no name of a schedule"),
            fix: "give 1 to 128 bytes without a slash",
        });
    }
    Calendar::of(spec, Timestamp::ZERO)?;
    let bytes = serde_json::to_vec(spec).map_or(usize::MAX, |b| b.len());
    if bytes > limits::SPEC_BYTES_MAX {
        return Err(BadCalendar {
            field: "input",
            why: format!("the schedule has {bytes} bytes, the limit is {}", limits::SPEC_BYTES_MAX),
            fix: "let the input name what is large instead of holding it",
        });
    }
    Ok(())
}
