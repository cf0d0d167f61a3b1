//! What can be run: the flows and tools that workers have ever registered.

use super::documents::EntryDocument;
use crate::{
    App, Caller, Problem,
    extract::Named,
    keys::Scope,
    problem::{ApiCode, ProblemDocument},
};
use axum::{Json, extract::State, http::StatusCode};
use std::convert::Infallible;
use tenure_jobs::{
    catalogue::{self, Entry, Sort},
    nearest::nearest,
};
use tenure_kernel::error::StoreError;

/// Names that are listed in a refusal.
const KNOWN_MAX: usize = 50;

async fn all(app: &App, sort: Sort, tenant: Option<&str>) -> Result<Vec<Entry>, StoreError> {
    let mut entries = catalogue::list(app.pipeline().store(), tenant).await?;
    entries.retain(|e| e.sort == sort);
    Ok(entries)
}

/// A refusal that helps: what there is, and what was probably meant.
pub(super) async fn unknown(
    app: &App,
    sort: Sort,
    name: &str,
    version: Option<u32>,
    tenant: Option<&str>,
    status: StatusCode,
) -> Result<Problem, StoreError> {
    let (code, word, path) = match sort {
        Sort::Flow => (ApiCode::UnknownFlow, "flow", "/v1/flows"),
        Sort::Tool => (ApiCode::UnknownTool, "tool", "/v1/tools"),
    };
    let entries = all(app, sort, tenant).await?;
    if let Some(entry) = entries.iter().find(|e| e.name == name) {
        let versions: Vec<u32> = entry.versions.iter().map(|v| v.version).collect();
        let detail = format!(
            "the {word} {name} has no version {}; there are {versions:?}",
            version.unwrap_or_default()
        );
        return Ok(Problem::new(status, code, detail)
            .field("version")
            .with("known", versions)
            .fix("use one of these, or none for the newest"));
    }
    let nearest = nearest(name, entries.iter().map(|e| e.name.as_str()));
    let known: Vec<String> = entries.iter().take(KNOWN_MAX).map(|e| e.name.clone()).collect();
    let list = match known.is_empty() {
        true => "none is registered yet".to_owned(),
        false => format!("there are {}", known.join(", ")),
    };
    let detail = format!("no worker has ever registered the {word} {name:?}; {list}");
    let fix = match &nearest {
        Some(nearest) => format!("did you mean {nearest}? GET {path} lists all"),
        None => format!("start a worker that has it, or use one of GET {path}"),
    };
    let problem = Problem::new(status, code, detail).field(word).with("known", known).fix(fix);
    Ok(match nearest {
        Some(nearest) => problem.with("nearest", nearest),
        None => problem,
    })
}

/// A name in a path: any text.
pub(crate) struct Name(pub(crate) String);

impl std::str::FromStr for Name {
    type Err = Infallible;
    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Name(text.to_owned()))
    }
}

async fn one(app: &App, caller: &Caller, sort: Sort, name: &str) -> Result<Json<Entry>, Problem> {
    caller.need(Scope::Read)?;
    let (store, tenant) = (app.pipeline().store(), caller.tenant.as_deref());
    match catalogue::entry(store, sort, tenant.unwrap_or_default(), name).await? {
        Some(entry) => Ok(Json(entry)),
        None => Err(unknown(app, sort, name, None, tenant, StatusCode::NOT_FOUND).await?),
    }
}

/// All flows that workers have ever registered, with versions and schemas.
#[utoipa::path(
    get, path = "/v1/flows", tag = "jobs", responses((status = 200, body = Vec<EntryDocument>))
)]
pub(super) async fn flows(
    State(app): State<App>,
    caller: Caller,
) -> Result<Json<Vec<Entry>>, Problem> {
    caller.need(Scope::Read)?;
    Ok(Json(all(&app, Sort::Flow, caller.tenant.as_deref()).await?))
}

/// One flow.
#[utoipa::path(
    get, path = "/v1/flows/{name}", tag = "jobs",
    params(("name" = String, Path, description = "The flow.")),
    responses((status = 200, body = EntryDocument), (status = 404, body = ProblemDocument))
)]
pub(super) async fn flow(
    State(app): State<App>,
    caller: Caller,
    Named(Name(name)): Named<Name>,
) -> Result<Json<Entry>, Problem> {
    one(&app, &caller, Sort::Flow, &name).await
}

/// All tools that workers have ever registered, with class and schemas.
#[utoipa::path(
    get, path = "/v1/tools", tag = "jobs", responses((status = 200, body = Vec<EntryDocument>))
)]
pub(super) async fn tools(
    State(app): State<App>,
    caller: Caller,
) -> Result<Json<Vec<Entry>>, Problem> {
    caller.need(Scope::Read)?;
    Ok(Json(all(&app, Sort::Tool, caller.tenant.as_deref()).await?))
}

/// One tool.
#[utoipa::path(
    get, path = "/v1/tools/{name}", tag = "jobs",
    params(("name" = String, Path, description = "The tool.")),
    responses((status = 200, body = EntryDocument), (status = 404, body = ProblemDocument))
)]
pub(super) async fn tool(
    State(app): State<App>,
    caller: Caller,
    Named(Name(name)): Named<Name>,
) -> Result<Json<Entry>, Problem> {
    one(&app, &caller, Sort::Tool, &name).await
}
