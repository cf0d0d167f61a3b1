//! What people read of calls.

use crate::{
    App, Caller, Problem,
    extract::{Named, Params},
    keys::Scope,
    paging,
    problem::ProblemDocument,
};
use axum::{Json, extract::State};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_jobs::call::{
    Call,
    view::{self, CallView, Content},
};
use tenure_kernel::{ids::EntityId, machine::Machine as _, store::HeadFilter};
use utoipa::{IntoParams, ToSchema};

/// Which calls.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(super) struct Which {
    /// Only those of this job.
    job: Option<String>,
    /// Only those of this tool.
    tool: Option<String>,
    /// Only these statuses, with commas between them.
    status: Option<String>,
    /// How many, 1 to 200; 50 without it.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
    /// Only calls after this one: `next` of the page before.
    after: Option<String>,
}

/// A page of calls.
#[derive(Serialize)]
pub(super) struct Page {
    calls: Vec<CallView>,
    next: Option<EntityId>,
}

/// A call, its input and its result.
#[derive(Serialize)]
pub(super) struct Whole {
    #[serde(flatten)]
    call: CallView,
    #[serde(flatten)]
    content: Content,
}

/// Where a call stands.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct CallStands {
    /// Which call.
    id: String,
    /// queued, running, unheld, completed, failed, lost, cancelled or expired.
    status: String,
    /// The tool.
    tool: String,
    /// call, probe or compensate.
    what: String,
    /// The job.
    job: String,
    /// Its step.
    step: String,
    /// The idempotency key.
    key: String,
    /// Which call under the key.
    call_number: u32,
    /// What settles it.
    class: String,
    /// Whose job it is.
    tenant: String,
    /// The fencing token.
    epoch: u64,
    /// The session that has it.
    held_by: Option<String>,
    /// How long the tool may take.
    timeout_ms: u64,
    /// When it was handed over.
    created_at: i64,
    /// When something happened to it last.
    changed_at: i64,
    /// It ends by then.
    must_end_by: Option<i64>,
    /// Whether it is over.
    over: bool,
    /// Why it failed, or ended without an answer.
    error: Option<String>,
    /// What the tool got; not in listings.
    input: Option<Value>,
    /// What it returned; not in listings.
    result: Option<Value>,
    /// The session that had it last; not in listings.
    had_by: Option<String>,
}

/// A page of calls.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct CallPage {
    /// The calls.
    calls: Vec<CallStands>,
    /// Where the next page begins; none after the last.
    next: Option<String>,
}

/// The ids around everything that was derived from an entity: they begin with the moment of its birth.
fn around(job: EntityId) -> (EntityId, EntityId) {
    let n = u128::from_be_bytes(*job.as_bytes()) >> 80;
    let id = |n: u128| EntityId::from_bytes((n << 80).to_be_bytes());
    (id(n), id(n.saturating_add(1).min((1 << 48) - 1)))
}

/// Calls, in the order of their ids. A page may be short and not be the last: go on while there is `next`.
#[utoipa::path(
    get, path = "/v1/calls", tag = "calls", params(Which),
    responses((status = 200, body = CallPage), (status = 400, body = ProblemDocument))
)]
pub(super) async fn calls(
    State(app): State<App>,
    caller: Caller,
    Params(which): Params<Which>,
) -> Result<Json<Page>, Problem> {
    caller.need(Scope::Read)?;
    let limit = paging::limit(which.limit)?;
    let exactly = "use the id exactly as this API gave it";
    let job = paging::id("job", which.job.as_deref(), exactly)?;
    let cursor = paging::id("after", which.after.as_deref(), exactly)?;
    let (low, high) = job.map(around).unzip();
    let filter = HeadFilter {
        kind: Some(Call::TABLE.kind.into()),
        statuses: paging::statuses(Call::TABLE, which.status.as_deref())?,
        tenant: caller.tenant.clone(),
        after: cursor.max(low),
        before: high,
        ..HeadFilter::default()
    };
    let store = app.pipeline().store();
    let fetch = |filter| store.heads(filter, paging::LIMIT_MAX);
    let (calls, next) = paging::page(filter, limit, fetch, |head| {
        let call = view::of_head(&head)?;
        let wanted = which.tool.as_ref().is_none_or(|t| *t == call.tool)
            && job.is_none_or(|j| j == call.job);
        Ok(wanted.then_some(call))
    })
    .await?;
    Ok(Json(Page { calls, next }))
}

/// One call, with its input and its result.
#[utoipa::path(
    get, path = "/v1/calls/{call}", tag = "calls",
    params(("call" = String, Path, description = "The call.")),
    responses((status = 200, body = CallStands), (status = 404, body = ProblemDocument))
)]
pub(super) async fn call(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
) -> Result<Json<Whole>, Problem> {
    caller.need(Scope::Read)?;
    let absent = || Problem::not_found(format!("call {id}")).field("call");
    let head = app.pipeline().store().head(id).await?;
    let theirs = head.filter(|h| h.kind() == Call::TABLE.kind && caller.sees(&h.tenant));
    let call = view::of_head(&theirs.ok_or_else(absent)?)?;
    let content = view::content(app.pipeline().store(), id).await?.ok_or_else(absent)?;
    Ok(Json(Whole { call, content }))
}
