//! `GET /metrics`, for Prometheus.
//!
//! What this process did is counted where it happens ([`tenure_engine::meter`]); how the store is comes from one
//! bounded look, which all scrapes of a few seconds share. A store that does not answer makes `tenure_store_up` 0
//! and leaves out what only it knows: an old number would say that all is well.
//!
//! A scraper shows a key with the scope `read`, as `authorization: {credentials: tnr_…}`; on loopback none is needed.
//! A key of one tenant is refused, as the numbers are everybody's.

mod page;
mod tasks;
mod text;

use crate::{ApiCode, App, Caller, Problem, keys::Scope};
use axum::{
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
};
use std::{sync::Arc, time::Duration};
use tenure_engine::config::Labelled;
use tenure_jobs::{Job, ask, view};
use tenure_kernel::{
    error::StoreError,
    head::Head,
    health::{Health, Vitals},
    limits,
    machine::Machine as _,
    rules::Tallies,
    runtime::{First, first},
    store::{HeadFilter, Store},
    table::Class,
    time::Timestamp,
};
use tokio::sync::Mutex;
use utoipa_axum::{router::OpenApiRouter, routes};

/// Committed events that are counted, for [`tenure_engine::config::EngineConfig::counted_events`].
pub const COUNTED_EVENTS: &[&str] = &[
    "job_created",
    "job_completed",
    "job_failed",
    "job_cancelled",
    "job_requeued",
    "job_attention",
    "effect_unknown",
    "effect_settled",
    "tool_invocation_started",
    "tool_invocation_finished",
    "turn_created",
    "turn_resumed",
    "turn_left_by_worker",
    "turn_succeeded",
    "turn_partly_succeeded",
    "turn_failed",
    "turn_timed_out",
    "turn_canceled",
    "item_dead",
    "item_settled",
    "task_created",
    "task_succeeded",
    "task_failed",
    "task_canceled",
    "pod_wanted",
    "retry_granted",
    "retry_deferred",
];

/// Committed events that are counted by labels, for [`tenure_engine::config::EngineConfig::labelled_events`].
pub const LABELLED_EVENTS: &[Labelled] = tasks::LABELLED;

/// What a server says about itself.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// Its version.
    pub version: String,
    /// When it started.
    pub started_at: Option<Timestamp>,
    /// Settings that are numbers, by key: so that alerts, and `tenure doctor`, need not guess them.
    pub settings: Vec<(String, f64)>,
    /// Asks the operating system how the process is.
    pub vitals: Option<fn() -> Vitals>,
    /// Asks the bus how it is, where there is one.
    pub bus: Option<AskBus>,
    /// What else runs in the process and has numbers of its own: an executor of pods.
    pub more: Vec<AskMore>,
}

/// Asks for numbers that this crate does not know, in the words of Prometheus.
#[derive(Clone)]
pub struct AskMore(pub Arc<dyn Fn() -> String + Send + Sync>);

impl std::fmt::Debug for AskMore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AskMore")
    }
}

/// How the bus is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BusVitals {
    /// It would take an event now.
    pub connected: bool,
    /// Connections so far; more than one means that some were lost.
    pub connections: u64,
}

/// Asks a bus how it is. This crate knows no bus.
#[derive(Clone)]
pub struct AskBus(pub Arc<dyn Fn() -> BusVitals + Send + Sync>);

impl std::fmt::Debug for AskBus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", (self.0)())
    }
}

/// A look at the store is shared by all who scrape within this time.
const SHARED: Duration = Duration::from_secs(2);
/// A look that takes longer is given up: the store does not answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// An open entity that is past its bound by more than this is not about to be ended: nobody ends it.
const PAST_BOUND_GRACE: Duration = Duration::from_secs(30);
/// Jobs in `attention` that one look goes through.
const LOOKED_AT_MAX: usize = 200;
const ATTENTION: &str = "attention";

/// Where so much is open that not all of it is counted, jobs in `attention` are looked for this often: there is no
/// index over what is open and asks for a person.
const ASKED_AGAIN: Duration = Duration::from_secs(60);

/// The last look at the store.
#[derive(Default)]
pub(crate) struct Looks(Mutex<Last>);

#[derive(Default)]
struct Last {
    look: Option<(Duration, Arc<Look>)>,
    asking: Option<(Duration, Asking)>,
    ended: Option<(Duration, Asking)>,
    letters: Option<(Duration, usize)>,
}

type Look = Result<Seen, String>;

/// What one look saw.
struct Seen {
    health: Health,
    tallies: Tallies,
    /// What is due earliest.
    next_due: Option<Timestamp>,
    past_bound: usize,
    /// Jobs that the kernel marked for a person and that do not ask for one themselves.
    marked: usize,
    asking: Asking,
    /// What failed jobs have left unknown: it stays until somebody says what became of it.
    ended: Asking,
    tasks: tasks::Seen,
    took: Duration,
    /// The clock of this machine less the store's, in microseconds.
    skew_us: Option<i64>,
}

/// Jobs that ask for a person.
#[derive(Clone, Copy, Default)]
struct Asking {
    jobs: usize,
    unknown_effects: usize,
    /// Since when the oldest of them stands.
    unknown_since: Option<Timestamp>,
}

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(metrics))
}

/// What this server did and how its store is, in the text format of Prometheus.
#[utoipa::path(
    get, path = "/metrics",
    responses(
        (status = 200, description = "Metrics.", content_type = "text/plain"),
        (status = 403, description = "The key is of one tenant, or may not read.", body = crate::problem::ProblemDocument)
    )
)]
async fn metrics(State(app): State<App>, caller: Caller) -> Result<impl IntoResponse, Problem> {
    caller.need(Scope::Read)?;
    if caller.tenant.is_some() {
        let detail = "metrics are about all tenants, and this key is of one";
        return Err(Problem::new(StatusCode::FORBIDDEN, ApiCode::Forbidden, detail)
            .field("Authorization")
            .fix("use a key without a tenant and with the scope read"));
    }
    let look = app.looks().latest(&app).await;
    let text = page::page(&app, &look);
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text))
}

impl Looks {
    /// A look that is not old; whoever comes meanwhile waits for it.
    async fn latest(&self, app: &App) -> Arc<Look> {
        let mut last = self.0.lock().await;
        let rt = app.pipeline().rt();
        let began = rt.mono();
        if let Some((at, look)) = &last.look
            && began.saturating_sub(*at) < SHARED
        {
            return look.clone();
        }
        let fresh = |(at, asking): (Duration, Asking)| (began - at < ASKED_AGAIN).then_some(asking);
        let remembered = last.asking.and_then(fresh);
        let ended = last.ended.and_then(fresh);
        let letters = last.letters.filter(|(at, _)| began - *at < ASKED_AGAIN).map(|(_, n)| n);
        let look = match first(look(app, remembered, ended, letters), rt.sleep(PATIENCE)).await {
            First::Left(seen) => {
                seen.map(|s| Seen { took: rt.mono() - began, ..s }).map_err(|e| e.to_string())
            }
            First::Right(()) => Err("no answer in time".to_owned()),
        };
        if let (Ok(seen), None) = (&look, ended) {
            last.ended = Some((rt.mono(), seen.ended));
        }
        if let (Ok(seen), None) = (&look, letters) {
            last.letters = Some((rt.mono(), seen.tasks.dead_letters));
        }
        match &look {
            Ok(seen) if remembered.is_none() => last.asking = Some((rt.mono(), seen.asking)),
            Ok(_) => {}
            Err(why) => tracing::warn!(%why, "metrics without the store"),
        }
        let look = Arc::new(look);
        last.look = Some((rt.mono(), look.clone()));
        look
    }
}

async fn look(
    app: &App,
    remembered: Option<Asking>,
    ended: Option<Asking>,
    letters: Option<usize>,
) -> Result<Seen, StoreError> {
    let store = app.pipeline().store();
    let lanes: Vec<u16> = (0..limits::LANES).collect();
    let clock = || app.options().about.vitals.and_then(|ask| ask().clock);
    let (before, there, after) = (clock(), store.now().await?, clock());
    let skew_us = before
        .zip(after)
        .map(|(a, b)| a.as_micros() + (b.as_micros() - a.as_micros()) / 2 - there.as_micros());
    let health = store.health().await?;
    let (_, next_due) = store.next_due(lanes.clone()).await?;
    let (now, late) = store.due(lanes, PAST_BOUND_GRACE, limits::DUE_BATCH_MAX).await?;
    let past = |h: &&Head| {
        h.class() == Class::Open && h.must_end_by.is_some_and(|end| end < now - PAST_BOUND_GRACE)
    };
    let marked = HeadFilter { attention: true, ..HeadFilter::default() };
    let marked = store.heads(marked, LOOKED_AT_MAX).await?;
    let is_asking = |kind: &str, status: &str| kind == Job::TABLE.kind && status == ATTENTION;
    let is_marked = |h: &Head| h.kind() == Job::TABLE.kind && h.status.name() != ATTENTION;
    let asking = match remembered {
        Some(asking) if !health.open_is_all => asking,
        _ if health.open_is_all && !health.open.iter().any(|o| is_asking(&o.kind, &o.status)) => {
            Asking::default()
        }
        _ => asking(store).await?,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => unknown_at_the_end(store).await?,
    };
    Ok(Seen {
        ended,
        tasks: tasks::look(app, letters).await?,
        tallies: store.tallies().await?,
        next_due,
        past_bound: late.iter().filter(past).count(),
        marked: marked.iter().filter(|h| is_marked(h)).count(),
        asking,
        took: Duration::ZERO,
        skew_us,
        health,
    })
}

async fn unknown_at_the_end(store: &Arc<dyn Store>) -> Result<Asking, StoreError> {
    let letters = ask::dead_letters(store, None, None, LOOKED_AT_MAX).await?;
    let left = ask::left_unknown(store, &letters.jobs).await?;
    let unknown_since = left.iter().map(|l| l.since).min();
    Ok(Asking { jobs: letters.jobs.len(), unknown_effects: left.len(), unknown_since })
}

async fn asking(store: &Arc<dyn Store>) -> Result<Asking, StoreError> {
    let filter = HeadFilter {
        kind: Some(Job::TABLE.kind.into()),
        status: Some(ATTENTION.into()),
        ..HeadFilter::default()
    };
    let heads = store.heads(filter, LOOKED_AT_MAX).await?;
    let mut asking = Asking { jobs: heads.len(), ..Asking::default() };
    for head in &heads {
        let Ok(job) = view::of_head(head) else { continue };
        let unknown = job.running.iter().filter(|call| call.unknown.is_some()).count();
        asking.unknown_effects += unknown;
        if unknown > 0 {
            let since = asking.unknown_since.unwrap_or(head.changed_at);
            asking.unknown_since = Some(since.min(head.changed_at));
        }
    }
    Ok(asking)
}
