//! Changes, as server-sent events: a list of parts with their new content. Nothing is pushed by whoever commits.
//! A stream looks once a second, at one head for a job and at one page of heads for a list, and sends what now
//! looks different. That costs the same however busy the server is, and needs no bell.

use super::{agents, cache::Console, guard::Viewer, job, list, list::Filters, task, tasks, turn};
use crate::{
    App, Caller, Problem,
    extract::{Named, Params},
};
use axum::{
    Extension,
    extract::{Path, State},
    http::{HeaderName, StatusCode},
    response::{
        IntoResponse, Response,
        sse::{Event, Sse},
    },
};
use futures_util::stream;
use std::{collections::HashMap, convert::Infallible, sync::Arc, time::Duration};
use tenure_kernel::{
    ids::EntityId,
    runtime::{First, first},
};
use tokio::sync::OwnedSemaphorePermit;

/// Between two looks.
const PERIOD: Duration = Duration::from_secs(1);
/// Looks without a change after which a line is sent all the same: a proxy closes what is silent.
const SILENT_MAX: u32 = 15;
/// Looks after which the browser has to come again, and show its key again.
const LOOKS_MAX: u32 = 600;

/// What is watched.
enum Subject {
    Jobs(Filters),
    Job { id: EntityId, seen: Option<Box<(Mark, job::Shown)>> },
    Agents,
    Agent { tenant: String, name: String },
    Turn { id: EntityId, seen: Option<Box<(Mark, turn::Shown)>> },
    Tasks(tasks::Filters),
    Task(EntityId),
}

/// What of a head says that the history has grown, or that mail waits.
type Mark = (u64, u64, u64);

struct Watch {
    app: App,
    console: Arc<Console>,
    caller: Caller,
    subject: Subject,
    sent: HashMap<&'static str, String>,
    looks: u32,
    silent: u32,
    _permit: OwnedSemaphorePermit,
}

/// `GET /console/live/jobs`.
pub(super) async fn jobs(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Extension(console): Extension<Arc<Console>>,
    Params(filters): Params<Filters>,
) -> Response {
    watch(app, caller, console, Subject::Jobs(filters))
}

/// `GET /console/live/jobs/{id}`.
pub(super) async fn job(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Extension(console): Extension<Arc<Console>>,
    Named(id): Named<EntityId>,
) -> Response {
    watch(app, caller, console, Subject::Job { id, seen: None })
}

/// `GET /console/live/agents`.
pub(super) async fn agents(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Extension(console): Extension<Arc<Console>>,
) -> Response {
    watch(app, caller, console, Subject::Agents)
}

/// `GET /console/live/agents/{name}`.
pub(super) async fn agent(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Extension(console): Extension<Arc<Console>>,
    Path(name): Path<String>,
    Params(whose): Params<agents::Whose>,
) -> Response {
    watch(app, caller, console, Subject::Agent { tenant: whose.tenant, name })
}

/// `GET /console/live/turns/{id}`.
pub(super) async fn turn(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Extension(console): Extension<Arc<Console>>,
    Named(id): Named<EntityId>,
) -> Response {
    watch(app, caller, console, Subject::Turn { id, seen: None })
}

/// `GET /console/live/tasks`.
pub(super) async fn tasks(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Extension(console): Extension<Arc<Console>>,
    Params(filters): Params<tasks::Filters>,
) -> Response {
    watch(app, caller, console, Subject::Tasks(filters))
}

/// `GET /console/live/tasks/{id}`.
pub(super) async fn task(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Extension(console): Extension<Arc<Console>>,
    Named(id): Named<EntityId>,
) -> Response {
    watch(app, caller, console, Subject::Task(id))
}

fn watch(app: App, caller: Caller, console: Arc<Console>, subject: Subject) -> Response {
    let Ok(permit) = console.streams.clone().try_acquire_owned() else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let (sent, looks, silent) = (HashMap::new(), 0, 0);
    let watch = Watch { app, console, caller, subject, sent, looks, silent, _permit: permit };
    let events = stream::unfold(watch, |mut watch| async move {
        let event = watch.next().await?;
        Some((Ok::<_, Infallible>(event), watch))
    });
    // Some proxies gather what they pass on unless they are told.
    ([(HeaderName::from_static("x-accel-buffering"), "no")], Sse::new(events)).into_response()
}

impl Watch {
    /// The next change; `None` ends the stream, and the browser comes again by itself.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if self.looks > 0 {
                let rt = self.app.pipeline().rt().clone();
                if let First::Left(()) = first(self.app.closing(), rt.sleep(PERIOD)).await {
                    return None;
                }
            }
            self.looks += 1;
            if self.looks > LOOKS_MAX {
                return None;
            }
            let parts = match self.look().await {
                Ok(parts) => parts,
                Err(problem) => {
                    tracing::debug!(%problem, "a live page ends");
                    return None;
                }
            };
            let changed: Vec<_> =
                parts.into_iter().filter(|(id, html)| self.sent.get(id) != Some(html)).collect();
            if !changed.is_empty() {
                self.silent = 0;
                // JSON, because the lines of an event may not hold what a job's data may.
                let event = Event::default().json_data(&changed).ok()?;
                self.sent.extend(changed);
                return Some(event);
            }
            self.silent += 1;
            if self.silent >= SILENT_MAX {
                self.silent = 0;
                return Some(Event::default().comment("still here"));
            }
        }
    }

    async fn look(&mut self) -> Result<Vec<(&'static str, String)>, Problem> {
        let (app, console, caller) = (&self.app, &self.console, &self.caller);
        match &mut self.subject {
            Subject::Jobs(filters) => {
                let listing = list::read(app, console, caller, filters).await?;
                Ok(list::parts(&listing, filters))
            }
            Subject::Job { id, seen } => {
                let store = app.pipeline().store();
                let head = store.head(*id).await?;
                let mark = head.map(|h| (h.version, h.epoch, h.mail_count));
                if let Some((before, shown)) = seen.as_deref_mut()
                    && Some(*before) == mark
                {
                    // The history is the one that was read: only time has passed.
                    shown.now = store.now().await?;
                    shown.glance = console.glance(app, caller).await?;
                    let mut parts = match shown.detail.job.is_final {
                        true => Vec::new(),
                        false => job::moving(shown),
                    };
                    parts.push(job::corner(shown));
                    return Ok(parts);
                }
                let shown = job::read(app, console, caller, *id).await?;
                let mut parts = job::parts(&shown);
                parts.push(job::corner(&shown));
                *seen = mark.map(|mark| Box::new((mark, shown)));
                Ok(parts)
            }
            Subject::Agents => {
                Ok(agents::all_parts(&agents::read_all(app, console, caller).await?))
            }
            Subject::Agent { tenant, name } => {
                Ok(agents::parts(&agents::read(app, console, caller, tenant, name).await?))
            }
            Subject::Tasks(filters) => {
                let listing = tasks::read(app, console, caller, filters).await?;
                Ok(tasks::parts(&listing, filters))
            }
            // Its log grows without the task itself: it is read anew each time. Its history is short.
            Subject::Task(id) => {
                let shown = task::read(app, console, caller, *id).await?;
                let mut parts = task::parts(&shown);
                parts.push(task::corner(&shown));
                Ok(parts)
            }
            Subject::Turn { id, seen } => {
                let store = app.pipeline().store();
                let head = store.head(*id).await?;
                let mark = head.map(|h| (h.version, h.epoch, h.mail_count));
                if let Some((before, shown)) = seen.as_deref_mut()
                    && Some(*before) == mark
                {
                    shown.now = store.now().await?;
                    shown.glance = console.glance(app, caller).await?;
                    let mut parts = match shown.detail.turn.is_final {
                        true => Vec::new(),
                        false => turn::moving(shown),
                    };
                    parts.push(turn::corner(shown));
                    return Ok(parts);
                }
                let shown = turn::read(app, console, caller, *id).await?;
                let mut parts = turn::parts(&shown);
                parts.push(turn::corner(&shown));
                *seen = mark.map(|mark| Box::new((mark, shown)));
                Ok(parts)
            }
        }
    }
}
