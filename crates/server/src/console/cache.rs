//! What every page shows in its corner, read at most once a second for all who look.

use crate::{App, Caller};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tenure_jobs::model::TABLE;
use tenure_kernel::{error::StoreError, ids::SessionId, sessions::Session, store::HeadFilter};
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
        let mut counts = Vec::new();
        for status in TABLE.statuses {
            let filter = HeadFilter {
                kind: Some(TABLE.kind.into()),
                status: Some(status.name.into()),
                tenant: caller.tenant.clone(),
                newest_first: true,
                ..HeadFilter::default()
            };
            counts.push((status.name, store.heads(filter, COUNTED_MAX + 1).await?.len()));
        }
        let glance = Arc::new(Glance { sessions: store.live_sessions().await?, counts });
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
