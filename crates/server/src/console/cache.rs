//! What every page shows in its corner, read at most once a second for all who look.

use crate::{App, Caller};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tenure_jobs::model::TABLE;
use tenure_kernel::{
    error::StoreError, ids::SessionId, sessions::Session, store::HeadFilter, table::Table,
};
use tokio::sync::Semaphore;

/// Heads of one status that are counted; more are `100+`. A count costs reading them.
pub(super) const COUNTED_MAX: usize = 100;
/// How long a glance is good for.
const GOOD_FOR: Duration = Duration::from_millis(900);
/// Tenants whose glance is kept.
const KEPT_MAX: usize = 64;
/// Pages that are live at once. One more is served, and not live.
const STREAMS_MAX: usize = 256;

/// Who is alive, and how many jobs are where.
#[derive(Debug, Default)]
pub(super) struct Glance {
    pub sessions: Vec<Session>,
    /// By status, in the order of the machine's table; [`COUNTED_MAX`] and one mean more.
    pub counts: Vec<(&'static str, usize)>,
    /// The same of tasks.
    pub tasks: Vec<(&'static str, usize)>,
}

impl Glance {
    /// Whose session that is.
    pub(super) fn name_of(&self, id: SessionId) -> Option<&Session> {
        self.sessions.iter().find(|s| s.id == id)
    }
}

type Kept = HashMap<Option<String>, (Duration, Arc<Glance>)>;

/// What the console's handlers share.
pub(super) struct Console {
    kept: Mutex<Kept>,
    pub(super) streams: Arc<Semaphore>,
}

impl Default for Console {
    fn default() -> Self {
        Console { kept: Mutex::default(), streams: Arc::new(Semaphore::new(STREAMS_MAX)) }
    }
}

impl Console {
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
        let glance = Arc::new(Glance { sessions: store.live_sessions().await?, counts, tasks });
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
