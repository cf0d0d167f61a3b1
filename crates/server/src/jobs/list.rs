//! Many jobs: listings, newest first, by pages. A cursor is the id of the last job looked at, so a page
//! that was asked for twice is the same page, whatever was created meanwhile.

use super::{documents::PageDocument, owned::listed, read::JobAnswer};
use crate::{
    App, Caller, Problem,
    extract::Params,
    keys::Scope,
    paging::{self, LIMIT_MAX},
    problem::ProblemDocument,
};
use axum::{Json, extract::State};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tenure_jobs::{Job, ask, view};
use tenure_kernel::{
    error::StoreError, head::Head, ids::EntityId, machine::Machine as _, store::HeadFilter,
};
use utoipa::IntoParams;

/// Which jobs.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(super) struct Which {
    /// Only these statuses, with commas between them.
    status: Option<String>,
    /// Only this flow.
    flow: Option<String>,
    /// Only this tenant, for callers whose key has none.
    tenant: Option<String>,
    /// `true`: only those that a person has to look at.
    attention: Option<bool>,
    /// Only ids that begin so, dashes or not: how a short form of an id is found.
    id: Option<String>,
    /// Only jobs before this one: `next` of the page before.
    before: Option<String>,
    /// How many, 1 to 200; 50 without it.
    limit: Option<usize>,
}

/// Which dead letters.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(super) struct WhichDead {
    /// Only of this tenant, for callers whose key has none.
    tenant: Option<String>,
    /// Only jobs before this one: `next` of the page before.
    before: Option<String>,
    /// How many, 1 to 200; 50 without it.
    limit: Option<usize>,
}

/// A page.
#[derive(Serialize)]
pub(super) struct Page {
    jobs: Vec<JobAnswer>,
    next: Option<EntityId>,
}

/// Jobs, the newest first. A page may be short and not be the last: go on while there is `next`.
#[utoipa::path(
    get, path = "/v1/jobs", tag = "jobs", params(Which),
    responses((status = 200, body = PageDocument), (status = 400, body = ProblemDocument))
)]
pub(super) async fn jobs(
    State(app): State<App>,
    caller: Caller,
    Params(which): Params<Which>,
) -> Result<Json<Page>, Problem> {
    caller.need(Scope::Read)?;
    let limit = paging::limit(which.limit)?;
    let tenant = listed(&caller, which.tenant.clone())?;
    let (after, before) = paging::between(which.id.as_deref(), which.before.as_deref())?;
    let filter = HeadFilter {
        kind: Some(Job::TABLE.kind.into()),
        statuses: paging::statuses(Job::TABLE, which.status.as_deref())?,
        tenant,
        after,
        before,
        newest_first: true,
        ..HeadFilter::default()
    };
    let attention = which.attention == Some(true);
    let fetch = |filter: HeadFilter| {
        let app = &app;
        async move {
            match attention {
                true => in_attention(app, &filter).await,
                false => app.pipeline().store().heads(filter, LIMIT_MAX).await,
            }
        }
    };
    let (heads, next) = paging::page(filter, limit, fetch, |head| {
        // The queue of a job names its flow and version.
        let named = |f: &str| head.queue.rsplit_once('@').is_some_and(|(name, _)| name == f);
        Ok(which.flow.as_deref().is_none_or(named).then_some(head))
    })
    .await?;
    let (mut jobs, now) = (Vec::with_capacity(heads.len()), app.pipeline().store().now().await?);
    for head in &heads {
        let job = view::view(app.pipeline().store(), head).await?;
        let why = view::why(&job, now);
        jobs.push(JobAnswer { job, why });
    }
    Ok(Json(Page { jobs, next }))
}

/// Those whose own machine wants a person to look, and those about which the kernel can not decide. The store
/// answers one of the two questions at a time.
async fn in_attention(app: &App, filter: &HeadFilter) -> Result<Vec<Head>, StoreError> {
    let store = app.pipeline().store();
    let wanted = filter.statuses.is_empty() || filter.statuses.iter().any(|s| s == "attention");
    let by_status = match wanted {
        true => {
            let filter = HeadFilter { statuses: vec!["attention".into()], ..filter.clone() };
            store.heads(filter, LIMIT_MAX).await?
        }
        false => Vec::new(),
    };
    let marked = HeadFilter { attention: true, ..filter.clone() };
    let marked = store.heads(marked, LIMIT_MAX).await?;
    let both: BTreeMap<EntityId, Head> =
        by_status.into_iter().chain(marked).map(|h| (h.id, h)).collect();
    Ok(both.into_values().rev().take(LIMIT_MAX).collect())
}

/// Failed jobs that nobody has put aside, the newest first.
#[utoipa::path(
    get, path = "/v1/dead-letters", tag = "jobs", params(WhichDead),
    responses((status = 200, body = PageDocument), (status = 400, body = ProblemDocument))
)]
pub(super) async fn dead_letters(
    State(app): State<App>,
    caller: Caller,
    Params(which): Params<WhichDead>,
) -> Result<Json<Page>, Problem> {
    caller.need(Scope::Read)?;
    let (before, limit) = (paging::cursor(which.before.as_deref())?, paging::limit(which.limit)?);
    let tenant = listed(&caller, which.tenant)?;
    let store = app.pipeline().store();
    let letters = ask::dead_letters(store, tenant.as_deref(), before, limit).await?;
    let now = store.now().await?;
    let jobs = letters.jobs.into_iter().map(|job| {
        let why = view::why(&job, now);
        JobAnswer { job, why }
    });
    Ok(Json(Page { jobs: jobs.collect(), next: letters.next }))
}
