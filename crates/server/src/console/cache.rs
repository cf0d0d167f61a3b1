//! What every page shows in its corner, read at most once a second for all who look.

use crate::{App, Caller, jobs::sessions};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tenure_jobs::model::TABLE;
use tenure_kernel::{
    error::StoreError, ids::SessionId, sessions::Session, store::HeadFilter, table::Table,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Heads of one status that are counted; more are `100+`. A count costs reading them.
pub(super) const COUNTED_MAX: usize = 100;
/// How long a glance is good for.
const GOOD_FOR: Duration = Duration::from_millis(900);
/// Tenants whose glance is kept.
const KEPT_MAX: usize = 64;
/// Pages of one tenant that are live at once. One more is served, and not live.
const STREAMS_MAX: usize = 256;
/// Tenants whose live pages are counted; those without any are then forgotten.
const STREAM_TENANTS_MAX: usize = 1_024;

/// Who is alive, and how many jobs are where.
#[derive(Debug, Default)]
pub(super) struct Glance {
    /// Sessions that the caller may see: of the caller's tenant, or with a job of it.
    pub sessions: Vec<Session>,
    /// All of them, to name the holder of something that the caller sees.
    all: Vec<Session>,
    /// By status, in the order of the machine's table; [`COUNTED_MAX`] and one mean more.
    pub counts: Vec<(&'static str, usize)>,
    /// The same of tasks.
    pub tasks: Vec<(&'static str, usize)>,
}

impl Glance {
    /// Whose session that is.
    pub(super) fn name_of(&self, id: SessionId) -> Option<&Session> {
        self.all.iter().find(|s| s.id == id)
    }
}

type Kept = HashMap<Option<String>, (Duration, Arc<Glance>)>;

/// What the console's handlers share.
#[derive(Default)]
pub(super) struct Console {
    kept: Mutex<Kept>,
    streams: Mutex<HashMap<Option<String>, Arc<Semaphore>>>,
}

impl Console {
    /// Room for one more live page of a tenant; `None` if the tenant has too many. Callers without a tenant have their own room.
    pub(super) fn stream(&self, tenant: Option<&str>) -> Option<OwnedSemaphorePermit> {
        // Nothing panics under this lock.
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if streams.len() >= STREAM_TENANTS_MAX {
            streams.retain(|_, room| room.available_permits() < STREAMS_MAX);
        }
        let room = streams.entry(tenant.map(str::to_owned));
        let room = room.or_insert_with(|| Arc::new(Semaphore::new(STREAMS_MAX)));
        room.clone().try_acquire_owned().ok()
    }

    /// Who is alive, and how many jobs are where, as far as this caller may see.
    pub(super) async fn glance(
        &self,
        app: &App,
        caller: &Caller,
    ) -> Result<Arc<Glance>, StoreError> {
        let now = app.pipeline().rt().mono();
        let known = self.kept().get(&caller.tenant).cloned();
        if let Some((at, glance)) = known
            && now.saturating_sub(at) < GOOD_FOR
        {
            return Ok(glance);
        }
        let store = app.pipeline().store();
        let counts = count(app, caller, &TABLE).await?;
        let tasks = match app.tasks() {
            Some(_) => count(app, caller, &tenure_pods::task::table::TABLE).await?,
            None => Vec::new(),
        };
        let all = store.live_sessions().await?;
        let sessions = sessions::visible(app, caller, &all).await?;
        let glance = Arc::new(Glance { sessions, all, counts, tasks });
        let mut kept = self.kept();
        if kept.len() >= KEPT_MAX {
            kept.clear();
        }
        kept.insert(caller.tenant.clone(), (now, glance.clone()));
        Ok(glance)
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        // Nothing panics under this lock.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many entities of a kind are in each status.
async fn count(
    app: &App,
    caller: &Caller,
    table: &'static Table,
) -> Result<Vec<(&'static str, usize)>, StoreError> {
    let mut counts = Vec::new();
    for status in table.statuses {
        let filter = HeadFilter {
            kind: Some(table.kind.into()),
            status: Some(status.name.into()),
            tenant: caller.tenant.clone(),
            newest_first: true,
            ..HeadFilter::default()
        };
        let found = app.pipeline().store().heads(filter, COUNTED_MAX + 1).await?;
        counts.push((status.name, found.len()));
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_that_opens_all_its_live_pages_takes_none_from_others() {
        let console = Console::default();
        let open: Vec<_> = (0..STREAMS_MAX).map(|_| console.stream(Some("acme"))).collect();
        assert!(open.iter().all(Option::is_some) && console.stream(Some("acme")).is_none());
        assert!(console.stream(Some("globex")).is_some() && console.stream(None).is_some());
        drop(open);
        assert!(console.stream(Some("acme")).is_some());
        for n in 0..STREAM_TENANTS_MAX * 2 {
            assert!(console.stream(Some(&n.to_string())).is_some());
        }
        let tenants = console.streams.lock().unwrap().len();
        assert!(tenants <= STREAM_TENANTS_MAX, "{tenants} are remembered");
    }
}
