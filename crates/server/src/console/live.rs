//! Changes, as server-sent events: a list of parts with their new content. Nothing is pushed by whoever commits.
//! A stream looks once a second, at one head for a job and at one page of heads for a list, and sends what now
//! looks different. That costs the same however busy the server is, and needs no bell.

use super::{
    agents,
    cache::Console,
    guard::Viewer,
    list::{self, Filters},
    one::{Entity, Look, One, Parts, corner},
    tasks,
};
use crate::{
    ApiCode, App, Caller, Problem,
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
    runtime::{BoxFuture, First, first},
};
use tokio::sync::OwnedSemaphorePermit;

/// Between two looks.
const PERIOD: Duration = Duration::from_secs(1);
/// Looks without a change after which a line is sent all the same: a proxy closes what is silent.
const SILENT_MAX: u32 = 15;
/// Looks after which the browser has to come again, and show its key again.
const LOOKS_MAX: u32 = 600;

/// Who watches.
struct Eyes {
    app: App,
    console: Arc<Console>,
    caller: Caller,
}

/// What is watched.
trait Subject: Send {
    /// The parts that may look different now.
    fn look<'a>(&'a mut self, eyes: &'a Eyes) -> BoxFuture<'a, Result<Parts, Problem>>;
}

struct Watch {
    eyes: Eyes,
    subject: Box<dyn Subject>,
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
    watch(Eyes { app, console, caller }, filters)
}

impl Subject for Filters {
    fn look<'a>(&'a mut self, eyes: &'a Eyes) -> BoxFuture<'a, Result<Parts, Problem>> {
        Box::pin(async move {
            let listing = list::read(&eyes.app, &eyes.console, &eyes.caller, self).await?;
            Ok(list::parts(&listing, self))
        })
    }
}

/// `GET /console/live/tasks`.
pub(super) async fn tasks(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Extension(console): Extension<Arc<Console>>,
    Params(filters): Params<tasks::Filters>,
) -> Response {
    watch(Eyes { app, console, caller }, filters)
}

impl Subject for tasks::Filters {
    fn look<'a>(&'a mut self, eyes: &'a Eyes) -> BoxFuture<'a, Result<Parts, Problem>> {
        Box::pin(async move {
            let listing = tasks::read(&eyes.app, &eyes.console, &eyes.caller, self).await?;
            Ok(tasks::parts(&listing, self))
        })
    }
}

/// `GET /console/live/agents`.
pub(super) async fn agents(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Extension(console): Extension<Arc<Console>>,
) -> Response {
    watch(Eyes { app, console, caller }, AllAgents)
}

struct AllAgents;

impl Subject for AllAgents {
    fn look<'a>(&'a mut self, eyes: &'a Eyes) -> BoxFuture<'a, Result<Parts, Problem>> {
        Box::pin(async move {
            let listing = agents::read_all(&eyes.app, &eyes.console, &eyes.caller).await?;
            Ok(agents::all_parts(&listing))
        })
    }
}

/// `GET /console/live/agents/{name}`.
pub(super) async fn agent(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Extension(console): Extension<Arc<Console>>,
    Path(name): Path<String>,
    Params(whose): Params<agents::Whose>,
) -> Response {
    watch(Eyes { app, console, caller }, Agent { tenant: whose.tenant, name })
}

struct Agent {
    tenant: String,
    name: String,
}

impl Subject for Agent {
    fn look<'a>(&'a mut self, eyes: &'a Eyes) -> BoxFuture<'a, Result<Parts, Problem>> {
        Box::pin(async move {
            let Eyes { app, console, caller } = eyes;
            let shown = agents::read(app, console, caller, &self.tenant, &self.name).await?;
            Ok(whole(&shown))
        })
    }
}

/// `GET /console/live/jobs/{id}`, and the same of turns and tasks.
pub(super) async fn one<O: Entity>(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Extension(console): Extension<Arc<Console>>,
    Named(id): Named<EntityId>,
) -> Response {
    watch(Eyes { app, console, caller }, Seen::<O> { id, seen: None })
}

/// What of a head says that the history has grown, or that mail waits.
type Mark = (u64, u64, u64);

/// An entity, as it was when it was read last.
struct Seen<O> {
    id: EntityId,
    seen: Option<(Mark, O)>,
}

impl<O: Entity> Subject for Seen<O> {
    fn look<'a>(&'a mut self, eyes: &'a Eyes) -> BoxFuture<'a, Result<Parts, Problem>> {
        Box::pin(async move {
            let Eyes { app, console, caller } = eyes;
            let head = app.pipeline().store().head(self.id).await?;
            let mark = head.map(|h| (h.version, h.epoch, h.mail_count));
            if let Some((before, one)) = &mut self.seen
                && Some(*before) == mark
                && !O::ALWAYS_READ
            {
                // The history is the one that was read: only time has passed.
                one.look_again(Look::at(app, console, caller).await?);
                let mut parts = one.moving();
                parts.push(corner(one.look()));
                return Ok(parts);
            }
            let one = O::read(app, console, caller, self.id).await?;
            let parts = whole(&one);
            self.seen = mark.map(|mark| (mark, one));
            Ok(parts)
        })
    }
}

fn whole(one: &impl One) -> Parts {
    let mut parts = one.parts();
    parts.push(corner(one.look()));
    parts
}

fn watch(eyes: Eyes, subject: impl Subject + 'static) -> Response {
    let Some(permit) = eyes.console.stream(eyes.caller.tenant.as_deref()) else {
        let detail = "this tenant has as many live pages open as one tenant may";
        return Problem::new(StatusCode::TOO_MANY_REQUESTS, ApiCode::TooManyStreams, detail)
            .fix("close some; the page itself can still be loaded")
            .retry_after_s(PERIOD.as_secs())
            .into_response();
    };
    let (sent, looks, silent) = (HashMap::new(), 0, 0);
    let subject = Box::new(subject);
    let watch = Watch { eyes, subject, sent, looks, silent, _permit: permit };
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
                let rt = self.eyes.app.pipeline().rt().clone();
                if let First::Left(()) = first(self.eyes.app.closing(), rt.sleep(PERIOD)).await {
                    return None;
                }
            }
            self.looks += 1;
            if self.looks > LOOKS_MAX {
                return None;
            }
            let parts = match self.subject.look(&self.eyes).await {
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
}
