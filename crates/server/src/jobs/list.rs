//! Many jobs: listings, newest first, by pages. A cursor is the id of the last job looked at, so a page
//! that was asked for twice is the same page, whatever was created meanwhile.

use super::{documents::PageDocument, owned::listed, read::JobAnswer, submit::TENANT};
use crate::{
    App, Caller, Problem,
    extract::Params,
    keys::Scope,
    paging::{self, LIMIT_MAX},
    problem::ProblemDocument,
};
use axum::{Json, extract::State};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, time::Duration};
use tenure_jobs::{Job, ask, found, plan::FLOW as PLAN, terms, view};
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
    /// Only ids that end so.
    id_end: Option<String>,
    /// Only the job that was submitted under this key. Of one tenant, as `label` is: `default` for callers whose key has none and that name
    /// none.
    key: Option<String>,
    /// Only those with this label, `name=value`; several with commas between them.
    label: Option<String>,
    /// Only those whose flow has this text in its name, or whose plan has; letter case does not matter. The name of a plan is known
    /// where the input is small enough to be listed.
    name: Option<String>,
    /// Only those that were created at this moment or later, in RFC 3339.
    created_after: Option<String>,
    /// Only those that were created before this moment.
    created_before: Option<String>,
    /// Only jobs before this one: `next` of the page before.
    before: Option<String>,
    /// How many, 1 to 200; 50 without it.
    #[param(minimum = 1, maximum = 200)]
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
    #[param(minimum = 1, maximum = 200)]
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
    let end = paging::end(which.id_end.as_deref())?;
    let moment = |field, text: &Option<String>| {
        text.clone().map(|text| super::moment(field, text)).transpose()
    };
    let (created_after, created_before) = (
        moment("created_after", &which.created_after)?,
        moment("created_before", &which.created_before)?,
    );
    // An id is made before its job is created, by a clock that may be ahead of the store's.
    let newest = created_before.map(|at| EntityId::new(at + CLOCK_AHEAD_MAX, [0xff; 10]));
    let before = [before, newest].into_iter().flatten().min();
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
    let labels = labels(which.label.as_deref())?;
    let wanted = |head: &Head| {
        // The queue of a job names its flow and version.
        let named = |f: &str| head.queue.rsplit_once('@').is_some_and(|(name, _)| name == f);
        which.flow.as_deref().is_none_or(named)
            && paging::ends(head.id, end.as_ref())
            && created_after.is_none_or(|at| head.created_at >= at)
            && created_before.is_none_or(|at| head.created_at < at)
            && which.name.as_deref().is_none_or(|text| has_in_name(head, text))
            && (labels.is_empty() || has_labels(head, &labels))
    };
    let (heads, next) = match (&which.key, labels.first()) {
        (None, None) => {
            paging::page(filter, limit, fetch, |head| Ok(wanted(&head).then_some(head))).await?
        }
        (key, label) => {
            let tenant = filter.tenant.as_deref().unwrap_or(TENANT);
            let range = |before| match (key, label) {
                (None, Some((name, value))) => found::with_label(tenant, name, value, before),
                (key, _) => found::with_key(tenant, key.as_deref().unwrap_or_default()),
            };
            // The index knows nothing but the key or the label.
            let fits = |head: &Head| {
                head.kind() == Job::TABLE.kind
                    && head.tenant == tenant
                    && wanted(head)
                    && filter.after.is_none_or(|id| head.id > id)
                    && filter.before.is_none_or(|id| head.id < id)
                    && (filter.statuses.is_empty()
                        || filter.statuses.iter().any(|s| s == head.status.name()))
                    && (!attention || head.attention.is_some() || head.status.name() == "attention")
            };
            let found = paging::by_keys(&app, limit, filter.before, range, fits).await?;
            // A key has one job, and nothing behind it.
            if key.is_some() { (found.0, None) } else { found }
        }
    };
    let (mut jobs, now) = (Vec::with_capacity(heads.len()), app.pipeline().store().now().await?);
    for head in &heads {
        let job = view::view(app.pipeline().store(), head).await?;
        let why = view::why(&job, now);
        jobs.push(JobAnswer { job, why });
    }
    Ok(Json(Page { jobs, next }))
}

/// Labels, as `name=value` with commas between them.
fn labels(text: Option<&str>) -> Result<Vec<(String, String)>, Problem> {
    let words = text.unwrap_or("").split(',').map(str::trim).filter(|word| !word.is_empty());
    let read = |word: &str| {
        let (name, value) = word.split_once('=').ok_or_else(|| format!("{word:?} has no ="))?;
        terms::label(name, value).map_err(|bad| bad.why)?;
        Ok((name.to_owned(), value.to_owned()))
    };
    words
        .map(|word| {
            read(word).map_err(|why: String| {
                paging::bad("label", format!("label: {why}"), "write it as name=value")
            })
        })
        .collect()
}

/// Whether a job has all of these labels.
fn has_labels(head: &Head, labels: &[(String, String)]) -> bool {
    let job = view::listed(head);
    labels.iter().all(|(name, value)| job.labels.get(name) == Some(value))
}

/// How far the clock of a process that makes ids may be ahead of the store's.
const CLOCK_AHEAD_MAX: Duration = Duration::from_secs(600);

/// Whether the name of a job's flow, or of its plan, has this text in it.
fn has_in_name(head: &Head, text: &str) -> bool {
    let text = text.to_lowercase();
    let has = |name: &str| name.to_lowercase().contains(&text);
    let flow = head.queue.rsplit_once('@').map_or(head.queue.as_str(), |(name, _)| name);
    has(flow) || flow == PLAN && view::listed(head).plan_name().is_some_and(has)
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
