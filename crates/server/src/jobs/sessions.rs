//! Who is there, and what each runs now: live sessions with the jobs that they say they hold.

use super::documents::SessionDocument;
use crate::{App, Caller, Problem, keys::Scope};
use axum::{Json, extract::State};
use serde::Serialize;
use std::collections::HashMap;
use tenure_jobs::{
    Job,
    view::{self, RunningView},
};
use tenure_kernel::{
    error::StoreError,
    ids::{EntityId, SessionId},
    machine::Machine as _,
    sessions::Session,
    store::HeadFilter,
    time::Timestamp,
};

/// Jobs that are shown of one session.
const JOBS_MAX: usize = 100;

#[derive(Serialize)]
pub(super) struct SessionView {
    id: SessionId,
    name: String,
    role: String,
    lease_ms: u64,
    renewed_at: Timestamp,
    expires_at: Timestamp,
    /// How many entities it holds, of everybody.
    holds: usize,
    /// Those of them that are jobs of the caller, at most a hundred.
    jobs: Vec<HeldJob>,
}

#[derive(Serialize)]
struct HeldJob {
    id: EntityId,
    flow: String,
    version: u32,
    status: String,
    /// Under which epoch it is held.
    epoch: u64,
    /// Rises with progress.
    mark: u64,
    /// Calls that run now.
    running: Vec<RunningView>,
}

/// Workers and servers that are alive, and what each runs now. A caller with a tenant sees its own workers, and others
/// as far as they run its jobs.
#[utoipa::path(
    get, path = "/v1/workers", tag = "jobs", responses((status = 200, body = Vec<SessionDocument>))
)]
pub(super) async fn workers(
    State(app): State<App>,
    caller: Caller,
) -> Result<Json<Vec<SessionView>>, Problem> {
    caller.need(Scope::Read)?;
    let mut shown = Vec::new();
    for session in app.pipeline().store().live_sessions().await? {
        let jobs = jobs_of(&app, &caller, &session).await?;
        let theirs = caller.tenant.is_none()
            || !jobs.is_empty()
            || app.identities().is_session_of(&app, &caller, session.id).await?;
        if theirs {
            // How much work others have is theirs to tell.
            let holds = caller.tenant.as_ref().map_or(session.holds.len(), |_| jobs.len());
            shown.push(SessionView {
                id: session.id,
                name: session.name,
                role: session.role,
                lease_ms: u64::try_from(session.lease.as_millis()).unwrap_or(u64::MAX),
                renewed_at: session.renewed_at,
                expires_at: session.expires_at,
                holds,
                jobs,
            });
        }
    }
    Ok(Json(shown))
}

/// Statuses in which somebody holds a job.
const HELD: [&str; 3] = ["running", "cancelling", "undoing"];
/// Held jobs of a tenant that are looked at for [`visible`].
const HELD_MAX: usize = 500;

/// The sessions that a caller may see, with the holds that it may see. A caller with a tenant sees its own workers, and others as
/// far as they hold one of its jobs: whether others have workers, and how many, is theirs to tell.
pub(crate) async fn visible(
    app: &App,
    caller: &Caller,
    all: &[Session],
) -> Result<Vec<Session>, StoreError> {
    if caller.tenant.is_none() {
        return Ok(all.to_vec());
    }
    let filter = HeadFilter {
        kind: Some(Job::TABLE.kind.into()),
        statuses: HELD.map(str::to_owned).to_vec(),
        tenant: caller.tenant.clone(),
        newest_first: true,
        ..HeadFilter::default()
    };
    let held = app.pipeline().store().heads(filter, HELD_MAX).await?;
    let held: HashMap<EntityId, SessionId> =
        held.into_iter().filter_map(|head| Some((head.id, head.holder?))).collect();
    let mut shown = Vec::new();
    for session in all {
        let mut session = session.clone();
        session.holds.retain(|hold| held.get(&hold.entity) == Some(&session.id));
        let holds_theirs = held.values().any(|holder| *holder == session.id);
        if holds_theirs || app.identities().is_session_of(app, caller, session.id).await? {
            shown.push(session);
        }
    }
    Ok(shown)
}

async fn jobs_of(app: &App, caller: &Caller, session: &Session) -> Result<Vec<HeldJob>, Problem> {
    let mut jobs = Vec::new();
    for hold in &session.holds {
        if jobs.len() == JOBS_MAX {
            break;
        }
        let head = app.pipeline().store().head(hold.entity).await?;
        // What it said at its last renewal may be over by now.
        let held = head.filter(|h| {
            h.kind() == Job::TABLE.kind && h.holder == Some(session.id) && caller.sees(&h.tenant)
        });
        if let Some(head) = held {
            let job = view::of_head(&head)?;
            jobs.push(HeldJob {
                id: job.id,
                flow: job.flow,
                version: job.version,
                status: job.status,
                epoch: hold.epoch,
                mark: hold.mark,
                running: job.running,
            });
        }
    }
    Ok(jobs)
}
