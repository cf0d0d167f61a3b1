//! The stream of a job, or of an entity of another machine: by pages, or live as server-sent events. Every event has its version as id, so whoever
//! was cut off goes on behind the last one it saw (`Last-Event-ID`), and misses and repeats nothing.

use super::{documents::EventsDocument, find, wait::Looks};
use crate::{
    App, Caller, Problem,
    extract::{Named, Params},
    problem::{ApiCode, ProblemDocument},
};
use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{
        IntoResponse, Response,
        sse::{Event as Sent, KeepAlive, Sse},
    },
};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use std::{collections::VecDeque, convert::Infallible, marker::PhantomData};
use tenure_engine::events::{EventView, page};
use tenure_jobs::Job;
use tenure_kernel::{
    head::Head,
    ids::EntityId,
    machine::Machine,
    runtime::{First, first},
    table::Class,
};
use utoipa::IntoParams;

const LIMIT_MAX: usize = 1_000;
const LIMIT: usize = 200;

/// Which events.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct Stretch {
    /// From this version on; 1 without it.
    from: Option<u64>,
    /// How many, 1 to 1000; 200 without it. A live stream has no limit.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

#[derive(Serialize)]
struct Page {
    events: Vec<EventView>,
    /// The version with which the next page begins; `None` on the last.
    next: Option<u64>,
}

/// The events of a job. With `Accept: text/event-stream` they come live, and the stream ends with the job.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/events", tag = "jobs",
    params(
        ("id" = String, Path, description = "The job."), Stretch,
        ("Last-Event-ID" = Option<u64>, Header, description = "Of a live stream: go on behind this version.")
    ),
    responses(
        (status = 200, description = "A page, or `text/event-stream`.", body = EventsDocument),
        (status = 404, body = ProblemDocument)
    )
)]
pub(super) async fn events(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
    Params(stretch): Params<Stretch>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let head = find::readable(&app, &caller, id).await?;
    answer::<Job>(app, find::absent, &head, &stretch, &headers, false).await
}

/// What is said of an entity that is not there.
pub(crate) type Absent = fn(EntityId) -> Problem;

/// A page of a stream; or all of it, live, where the caller asks for that or the path means it.
pub(crate) async fn answer<M: Machine>(
    app: App,
    absent: Absent,
    head: &Head,
    stretch: &Stretch,
    headers: &HeaderMap,
    always_live: bool,
) -> Result<Response, Problem> {
    let id = head.id;
    let from = stretch.from.unwrap_or(1).max(1);
    let accepts = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or("");
    if always_live || accepts.contains("text/event-stream") {
        let from = last_seen(headers)?.map_or(from, |seen| seen.saturating_add(1));
        return Ok(live::<M>(app, absent, id, from));
    }
    let limit = match stretch.limit.unwrap_or(LIMIT) {
        n @ 1..=LIMIT_MAX => n,
        n => {
            let detail = format!("limit = {n}: give 1 to {LIMIT_MAX}");
            return Err(Problem::new(StatusCode::BAD_REQUEST, ApiCode::BadField, detail)
                .field("limit")
                .fix("read several pages"));
        }
    };
    let events = page::<M>(app.pipeline().store(), id, from, limit).await?;
    let next = events.last().map(|e| e.version + 1).filter(|next| *next <= head.version);
    Ok(Json(Page { events, next }).into_response())
}

fn last_seen(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let text = value.to_str().unwrap_or("");
    text.parse().map(Some).map_err(|_| {
        Problem::new(
            StatusCode::BAD_REQUEST,
            ApiCode::BadField,
            format!("Last-Event-ID = {text:?} is not a version"),
        )
        .field("Last-Event-ID")
        .fix("send the id of the last event, which is its version")
    })
}

/// What a live stream remembers between two events.
struct Live<M> {
    app: App,
    absent: Absent,
    id: EntityId,
    from: u64,
    ready: VecDeque<EventView>,
    looks: Looks,
    ended: bool,
    of: PhantomData<fn() -> M>,
}

fn live<M: Machine>(app: App, absent: Absent, id: EntityId, from: u64) -> Response {
    let live = Live::<M> {
        app,
        absent,
        id,
        from,
        ready: VecDeque::new(),
        looks: Looks::new(),
        ended: false,
        of: PhantomData,
    };
    let events = stream::unfold(live, |mut live| async move {
        let sent = live.next().await?;
        Some((Ok::<_, Infallible>(sent), live))
    });
    // Keeps proxies from closing what is merely quiet.
    Sse::new(events).keep_alive(KeepAlive::default()).into_response()
}

impl<M: Machine> Live<M> {
    async fn next(&mut self) -> Option<Sent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.from = event.version + 1;
                let data = serde_json::to_string(&event).unwrap_or_default();
                let id = event.version.to_string();
                return Some(Sent::default().id(id).event(event.name).data(data));
            }
            if self.ended {
                return None;
            }
            match self.look().await {
                Ok(Some(end)) => {
                    self.ended = true;
                    return Some(end);
                }
                Ok(None) => {}
                // The client comes back with the last id it saw, and meets the reason as a problem.
                Err(e) => {
                    tracing::warn!(entity = %self.id, "a live stream ends: {e}");
                    return None;
                }
            }
        }
    }

    /// Fetches what is new, or waits. The head is read first: what it counts is in the stream by then.
    async fn look(&mut self) -> Result<Option<Sent>, Problem> {
        let head = self.app.pipeline().store().head(self.id).await?;
        let Some(head) = head else { return Err((self.absent)(self.id)) };
        if self.from <= head.version {
            let read = page::<M>(self.app.pipeline().store(), self.id, self.from, LIMIT).await?;
            self.ready = read.into();
            self.looks.soon();
            // Retired between the two reads: else this would look for ever.
            return match self.ready.is_empty() {
                true => Err((self.absent)(self.id)),
                false => Ok(None),
            };
        }
        if head.class() == Class::Final {
            let data = serde_json::json!({ "status": head.status.name() });
            return Ok(Some(Sent::default().event("end").data(data.to_string())));
        }
        let pause = self.app.pipeline().rt().sleep(self.looks.next());
        if let First::Right(()) = first(pause, self.app.closing()).await {
            let data =
                serde_json::json!({ "status": head.status.name(), "why": "the server stops" });
            return Ok(Some(Sent::default().event("closing").data(data.to_string())));
        }
        Ok(None)
    }
}
