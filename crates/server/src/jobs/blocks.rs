//! Blocks over HTTP: an operator keeps a flow, a tool or a tenant from running. Needs the scope `admin` and a key without a
//! tenant: a block is above tenants.

use super::{body::Json, body::required, find::who};
use crate::{
    App, Caller, Problem,
    keys::Scope,
    problem::{ApiCode, ProblemDocument},
};
use axum::{
    extract::{Path, State},
    http::StatusCode,
};
use serde::{Deserialize, Serialize};
use tenure_engine::blocks::{self, BlockError};
use tenure_kernel::blocks::{Block, BlockKind, BlockList};
use utoipa::ToSchema;

/// Why something is blocked.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct NewBlock {
    /// The reason, for everybody who meets the block: 1 to 200 bytes.
    #[schema(required)]
    why: Option<String>,
    /// Who asks, for people.
    by: Option<String>,
}

/// Something that is blocked.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BlockDocument {
    /// `flow`, `tool` or `tenant`.
    kind: &'static str,
    /// Its name.
    name: String,
    /// The reason.
    why: String,
    /// Who set it.
    by: String,
    /// Since when, in microseconds since 1970.
    since: i64,
}

/// All blocks.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BlocksDocument {
    /// By kind and name.
    blocks: Vec<BlockDocument>,
}

impl From<&Block> for BlockDocument {
    fn from(block: &Block) -> Self {
        let Block { kind, name, why, by, since } = block.clone();
        BlockDocument { kind: kind.as_str(), name, why, by, since: since.as_micros() }
    }
}

impl From<BlockError> for Problem {
    fn from(e: BlockError) -> Self {
        match e {
            BlockError::Bad { field, why, fix } => Problem::bad_field(field, why).fix(fix),
            BlockError::Absent(kind, name) => {
                Problem::not_found(format!("block of the {kind} {name}"))
                    .field("name")
                    .fix("GET /v1/blocks lists them")
            }
            BlockError::Store(e) => e.into(),
        }
    }
}

fn operator(caller: &Caller) -> Result<(), Problem> {
    caller.need(Scope::Admin)?;
    if caller.tenant.is_some() {
        let detail =
            "only the operator of the server sets blocks, and this key belongs to a tenant";
        return Err(Problem::new(StatusCode::FORBIDDEN, ApiCode::Forbidden, detail)
            .field("Authorization")
            .fix("use a key without a tenant and with the scope admin"));
    }
    Ok(())
}

fn kind_of(text: &str) -> Result<BlockKind, Problem> {
    text.parse().map_err(|e: String| Problem::bad_field("kind", e).fix("use flow, tool or tenant"))
}

/// The answer to a submission of something that is blocked.
pub(crate) fn refusal(block: &Block) -> Problem {
    let detail = format!("{block}; nothing was submitted");
    Problem::new(StatusCode::LOCKED, ApiCode::Blocked, detail)
        .field(block.kind.as_str())
        .fix("ask the operator of the server; submit again when the block is removed")
}

/// Refuses work that an operator has blocked.
pub(crate) async fn refuse_blocked(
    app: &App,
    find: impl FnOnce(&BlockList) -> Option<&Block>,
) -> Result<(), Problem> {
    let list = app.pipeline().blocks().current(app.pipeline()).await?;
    find(&list).map_or(Ok(()), |block| Err(refusal(block)))
}

/// All blocks.
#[utoipa::path(
    get, path = "/v1/blocks", tag = "blocks",
    responses((status = 200, body = BlocksDocument), (status = 403, body = ProblemDocument))
)]
pub(super) async fn list(
    State(app): State<App>,
    caller: Caller,
) -> Result<axum::Json<BlocksDocument>, Problem> {
    operator(&caller)?;
    let list = blocks::read(app.pipeline()).await?;
    let blocks = list.all().iter().map(BlockDocument::from).collect();
    Ok(axum::Json(BlocksDocument { blocks }))
}

/// Blocks a flow, a tool or a tenant, or gives another reason. This server knows of it at once, others within two seconds.
/// Submissions are refused (423), what is queued is not claimed, and a job that runs stops before its next call.
#[utoipa::path(
    put, path = "/v1/blocks/{kind}/{name}", tag = "blocks", request_body = NewBlock,
    params(
        ("kind" = String, Path, description = "flow, tool or tenant."),
        ("name" = String, Path, description = "Its name."),
    ),
    responses(
        (status = 200, body = BlockDocument),
        (status = 403, body = ProblemDocument), (status = 422, body = ProblemDocument),
    )
)]
pub(super) async fn set(
    State(app): State<App>,
    caller: Caller,
    Path((kind, name)): Path<(String, String)>,
    Json(new): Json<NewBlock>,
) -> Result<axum::Json<BlockDocument>, Problem> {
    operator(&caller)?;
    let (kind, why) = (kind_of(&kind)?, required("why", new.why)?);
    let block = blocks::set(app.pipeline(), kind, &name, &why, &who(&caller, new.by)).await?;
    tracing::warn!(%kind, name, by = block.by, why = block.why, "blocked");
    Ok(axum::Json(BlockDocument::from(&block)))
}

/// Removes a block: what waited goes on.
#[utoipa::path(
    delete, path = "/v1/blocks/{kind}/{name}", tag = "blocks",
    params(
        ("kind" = String, Path, description = "flow, tool or tenant."),
        ("name" = String, Path, description = "Its name."),
    ),
    responses(
        (status = 204, description = "It is gone."),
        (status = 403, body = ProblemDocument), (status = 404, body = ProblemDocument),
        (status = 422, body = ProblemDocument),
    )
)]
pub(super) async fn remove(
    State(app): State<App>,
    caller: Caller,
    Path((kind, name)): Path<(String, String)>,
) -> Result<StatusCode, Problem> {
    operator(&caller)?;
    let (kind, by) = (kind_of(&kind)?, who(&caller, None));
    blocks::remove(app.pipeline(), kind, &name, &by).await?;
    tracing::warn!(%kind, name, by, "a block was removed");
    Ok(StatusCode::NO_CONTENT)
}
