//! What a worker reads: time, ready work, heads, history, mail, evidence, sessions and blobs.

use crate::{
    App, Caller, Problem,
    extract::{Named, Params, raw},
    keys::Scope,
    problem::ProblemDocument,
};
use axum::{
    Json,
    extract::{DefaultBodyLimit, Request, State},
    http::header,
    response::IntoResponse,
};
use serde::Deserialize;
use tenure_kernel::{claims::next_page, ids::EntityId, limits};
use tenure_remote::wire::{self, Digest, PAGE_BYTES_MAX, PAGE_MAX, Page};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

pub(super) fn routes() -> OpenApiRouter<App> {
    let blobs = OpenApiRouter::new()
        .routes(routes!(put_blob))
        .layer(DefaultBodyLimit::max(limits::BLOB_BYTES_MAX));
    OpenApiRouter::new()
        .routes(routes!(now))
        .routes(routes!(ready))
        .routes(routes!(head))
        .routes(routes!(stream))
        .routes(routes!(mail))
        .routes(routes!(evidence))
        .routes(routes!(session))
        .routes(routes!(blob))
        .merge(blobs)
}

/// Something that was not there, or is not the caller's.
fn absent(id: EntityId) -> Problem {
    Problem::not_found(format!("entity {id}")).field("id")
}

async fn open_to(app: &App, caller: &Caller, id: EntityId) -> Result<(), Problem> {
    caller.need(Scope::Worker)?;
    match app.identities().is_open_to(app, caller, id).await? {
        true => Ok(()),
        false => Err(absent(id)),
    }
}

/// The store's time.
#[utoipa::path(
    get, path = "/v1/worker/now", tag = "worker",
    responses((status = 200, body = wire::NowAnswer))
)]
async fn now(State(app): State<App>, caller: Caller) -> Result<Json<wire::NowAnswer>, Problem> {
    caller.need(Scope::Worker)?;
    Ok(Json(wire::NowAnswer { now: app.pipeline().store().now().await? }))
}

/// Which queue.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct OfQueue {
    /// The queue.
    queue: String,
    /// Only priorities below this: what comes behind a page of 256 groups or more.
    #[param(minimum = -32768, maximum = 32767)]
    below: Option<i16>,
}

/// The groups of a queue that have ready work, of those tenants that the caller sees: whole priorities, the highest first,
/// until there are 256.
#[utoipa::path(
    get, path = "/v1/worker/ready", tag = "worker", params(OfQueue),
    responses((status = 200, body = wire::ReadyAnswer))
)]
async fn ready(
    State(app): State<App>,
    caller: Caller,
    Params(OfQueue { queue, mut below }): Params<OfQueue>,
) -> Result<Json<wire::ReadyAnswer>, Problem> {
    caller.need(Scope::Worker)?;
    super::queue_fits(&queue)?;
    let (top, mut mine) = (below, Vec::new());
    loop {
        let page = app.pipeline().store().ready_groups(&queue, below).await?;
        if below.is_none() {
            app.tray().saw(&queue, page.is_empty());
        }
        below = next_page(&page);
        mine.extend(page.into_iter().filter(|(_, tenant)| caller.sees(tenant)));
        // What others have there may fill pages in which there is nothing for this caller.
        if below.is_none() || mine.len() >= limits::READY_GROUPS_MAX {
            break;
        }
    }
    // Those further down belong to a later page.
    let lies = |priority| {
        top.is_none_or(|top| priority < top) && below.is_none_or(|lowest| priority >= lowest)
    };
    for group in app.tray().groups(&queue) {
        if lies(group.0) && caller.sees(&group.1) && !mine.contains(&group) {
            mine.push(group);
        }
    }
    let groups = mine.into_iter().map(|(priority, tenant)| wire::Group { priority, tenant });
    Ok(Json(wire::ReadyAnswer { groups: groups.collect() }))
}

/// Where an entity stands.
#[utoipa::path(
    get, path = "/v1/worker/entities/{id}", tag = "worker",
    params(("id" = String, Path, description = "The entity.")),
    responses((status = 200, body = wire::Head), (status = 404, body = ProblemDocument))
)]
async fn head(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
) -> Result<Json<wire::Head>, Problem> {
    caller.need(Scope::Worker)?;
    let head = app.pipeline().store().head(id).await?.ok_or_else(|| absent(id))?;
    let theirs =
        caller.sees(&head.tenant) || super::admit::is_everybodys(head.kind(), &head.tenant);
    if !app.identities().admits(&app, head.kind()) || !theirs {
        return Err(absent(id));
    }
    Ok(Json(wire::Head::of(&head)))
}

/// Which stretch of a history.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct From {
    /// The version of the first event.
    #[serde(default)]
    from: u64,
    /// How many rows; at most 256.
    #[serde(default = "page_max")]
    limit: usize,
}

/// Which mail.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct After {
    /// After this place.
    #[serde(default)]
    after: u64,
    /// How many; at most 256.
    #[serde(default = "page_max")]
    limit: usize,
}

fn page_max() -> usize {
    PAGE_MAX
}

/// The history of an entity.
#[utoipa::path(
    get, path = "/v1/worker/entities/{id}/stream", tag = "worker",
    params(("id" = String, Path, description = "The entity."), From),
    responses((status = 200, body = Page<wire::Record>), (status = 404, body = ProblemDocument))
)]
async fn stream(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
    Params(From { from, limit }): Params<From>,
) -> Result<Json<Page<wire::Record>>, Problem> {
    open_to(&app, &caller, id).await?;
    let records = app.pipeline().store().stream(id, from, limit.min(PAGE_MAX)).await?;
    let page = page(records.iter().map(|r| (r.bytes.len(), r)), limit, wire::Record::of);
    Ok(Json(page))
}

/// The mail of an entity.
#[utoipa::path(
    get, path = "/v1/worker/entities/{id}/mail", tag = "worker",
    params(("id" = String, Path, description = "The entity."), After),
    responses((status = 200, body = Page<wire::Mail>), (status = 404, body = ProblemDocument))
)]
async fn mail(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
    Params(After { after, limit }): Params<After>,
) -> Result<Json<Page<wire::Mail>>, Problem> {
    open_to(&app, &caller, id).await?;
    let mail = app.pipeline().store().mail(id, after, limit.min(PAGE_MAX)).await?;
    let sized = mail.iter().map(|m| (m.body.inline().map_or(0, <[u8]>::len), m));
    Ok(Json(page(sized, limit, wire::Mail::of)))
}

/// A page of what was read, closed when it is large.
fn page<'a, K: 'a, T>(
    items: impl ExactSizeIterator<Item = (usize, &'a K)>,
    limit: usize,
    of: impl Fn(&K) -> T,
) -> Page<T> {
    let read = items.len();
    let (mut page, mut bytes) = (Vec::with_capacity(read), 0);
    for (size, item) in items {
        if bytes >= PAGE_BYTES_MAX {
            break;
        }
        bytes += size;
        page.push(of(item));
    }
    let more = page.len() < read || (limit > PAGE_MAX && read == PAGE_MAX);
    Page { items: page, more }
}

/// Evidence about an entity.
#[utoipa::path(
    get, path = "/v1/worker/entities/{id}/evidence", tag = "worker",
    params(("id" = String, Path, description = "The entity.")),
    responses((status = 200, body = Page<wire::Evidence>), (status = 404, body = ProblemDocument))
)]
async fn evidence(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
) -> Result<Json<Page<wire::Evidence>>, Problem> {
    open_to(&app, &caller, id).await?;
    let items = app.pipeline().store().evidence(id).await?;
    Ok(Json(Page { items: items.iter().map(wire::Evidence::of).collect(), more: false }))
}

/// The soft row of a worker session.
#[utoipa::path(
    get, path = "/v1/worker/sessions/{id}", tag = "worker",
    params(("id" = String, Path, description = "The session.")),
    responses((status = 200, body = wire::Session), (status = 404, body = ProblemDocument))
)]
async fn session(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
) -> Result<Json<wire::Session>, Problem> {
    caller.need(Scope::Worker)?;
    let gone = || Problem::not_found(format!("session {id}")).field("id");
    if !app.identities().is_session_of(&app, &caller, id).await? {
        return Err(gone());
    }
    let session = app.pipeline().store().session(id).await?.ok_or_else(gone)?;
    Ok(Json(wire::Session::of(&session)))
}

/// Makes a blob durable. The same bytes twice are one blob.
#[utoipa::path(
    put, path = "/v1/worker/blobs", tag = "worker",
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses(
        (status = 200, body = wire::BlobAnswer), (status = 413, body = ProblemDocument),
        (status = 429, description = "The tenant stores as much as it may.", body = ProblemDocument),
    )
)]
async fn put_blob(
    State(app): State<App>,
    caller: Caller,
    request: Request,
) -> Result<Json<wire::BlobAnswer>, Problem> {
    caller.need(Scope::Worker)?;
    let bytes = raw(request, &app).await?;
    app.admit_bytes(&caller, bytes.len()).await?;
    let digest = app.pipeline().store().put_blob(bytes.to_vec()).await?;
    Ok(Json(wire::BlobAnswer { digest: Digest(digest) }))
}

/// The bytes of a blob. Whoever knows its digest has seen its content, or an event that names it.
#[utoipa::path(
    get, path = "/v1/worker/blobs/{digest}", tag = "worker",
    params(("digest" = String, Path, description = "SHA-256 in hexadecimal.")),
    responses(
        (status = 200, body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 404, body = ProblemDocument)
    )
)]
async fn blob(
    State(app): State<App>,
    caller: Caller,
    Named(digest): Named<Digest>,
) -> Result<impl IntoResponse, Problem> {
    caller.need(Scope::Worker)?;
    let bytes = app.pipeline().store().blob(digest.0).await?;
    let bytes = bytes.ok_or_else(|| Problem::not_found(format!("blob {}", digest.0)))?;
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], bytes))
}
