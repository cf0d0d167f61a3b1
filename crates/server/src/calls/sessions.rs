//! Sessions of workers that take calls: opened with the tools they have, renewed, ended.

use crate::{
    App, Caller, Problem,
    extract::{Body, Named},
    far::{self, Opened, ProcessName, session_of},
    keys::Scope,
    problem::ProblemDocument,
};
use axum::{Json, extract::State, http::StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;
use tenure_jobs::{
    call::{desk, model::limits},
    catalogue::{CallTerms, CallTool, register_calls},
};
use tenure_kernel::{ids::EntityId, limits as kernel_limits, sessions::Hold};
use tenure_schema::{Schema, SchemaError};
use tenure_steps::{canonical, tool::Class};
use utoipa::ToSchema;

/// A worker that takes calls.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OpenRequest {
    /// Who it is, for people: program, host, process.
    name: String,
    /// How long a renewal lasts; the server's own lease without it.
    #[serde(default)]
    lease_ms: Option<u64>,
    /// What it can do.
    tools: Vec<ToolOffer>,
    /// The process behind it, where it can say: then others on the same machine can see that it is dead.
    #[serde(default)]
    executor: Option<ProcessName>,
}

/// A tool of a worker.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ToolOffer {
    /// Its name in flows.
    name: String,
    /// One line for people.
    #[serde(default)]
    doc: Option<String>,
    /// What settles a call of unknown outcome: idempotent, verifiable, compensatable or irreversible (the default).
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    class: Option<Class>,
    /// How long one call may take, from when a worker has it.
    #[serde(default)]
    timeout_ms: Option<u64>,
    /// Tries after the first.
    #[serde(default)]
    retry_max: Option<u32>,
    /// Before the first of them; doubles.
    #[serde(default)]
    backoff_ms: Option<u64>,
    /// JSON schema of the input.
    #[serde(default)]
    input_schema: Option<Value>,
    /// JSON schema of the output.
    #[serde(default)]
    output_schema: Option<Value>,
    /// It can be asked whether an earlier call happened.
    #[serde(default)]
    probe: bool,
    /// It can undo an earlier call.
    #[serde(default)]
    compensate: bool,
}

/// Opens a session and registers its tools.
#[utoipa::path(
    post, path = "/v1/calls/sessions", tag = "calls", request_body = OpenRequest,
    responses(
        (status = 201, body = Opened),
        (status = 422, description = "A tool can not be used as it is.", body = ProblemDocument),
    )
)]
pub(super) async fn open(
    State(app): State<App>,
    caller: Caller,
    Body(request): Body<OpenRequest>,
) -> Result<(StatusCode, Json<Opened>), Problem> {
    caller.need(Scope::Worker)?;
    let opening = far::opening(&app, request.name, request.lease_ms, request.executor)?;
    let tools = offers(request.tools)?;
    let tenant = caller.tenant.clone().unwrap_or_default();
    register_calls(app.pipeline(), &tenant, &tools).await?;
    if let Some(jobs) = app.jobs() {
        jobs.submitter().forget_flows();
    }
    let lease_ms = opening.lease_ms;
    let names: Vec<String> = tools.into_iter().map(|t| t.name).collect();
    let session = desk::open_session(app.pipeline(), &tenant, opening, &names).await?;
    Ok(far::opened(session, lease_ms))
}

fn offers(tools: Vec<ToolOffer>) -> Result<Vec<CallTool>, Problem> {
    if tools.is_empty() || tools.len() > limits::TOOLS_MAX {
        let detail = format!("{} tools; a session has 1 to {}", tools.len(), limits::TOOLS_MAX);
        return Err(Problem::bad_field("tools", detail).fix("name the tools this worker has"));
    }
    let mut names = BTreeSet::new();
    let mut offers = Vec::with_capacity(tools.len());
    for (i, tool) in tools.into_iter().enumerate() {
        let bad = |field: &str, detail: String, fix: &str| {
            Err(Problem::bad_field(format!("tools[{i}].{field}"), detail).fix(fix))
        };
        let fits = (1..=limits::TOOL_NAME_BYTES_MAX).contains(&tool.name.len());
        if !fits || tool.name.chars().any(|c| c.is_whitespace() || c.is_control()) {
            let max = limits::TOOL_NAME_BYTES_MAX;
            let detail =
                format!("{:?}: a tool's name has 1 to {max} bytes and no spaces", tool.name);
            return bad("name", detail, "choose another name");
        }
        if !names.insert(tool.name.clone()) {
            return bad("name", format!("{:?} is there twice", tool.name), "name each tool once");
        }
        if tool.class == Some(Class::Verifiable) && !tool.probe {
            let detail =
                "a verifiable tool has to have a probe: it is what settles an unknown call";
            return bad("probe", detail.into(), "offer a probe, or another class");
        }
        if tool.class == Some(Class::Compensatable) && !tool.compensate {
            let detail = "a compensatable tool has to be able to undo a call";
            return bad("compensate", detail.into(), "offer a compensation, or another class");
        }
        if tool.timeout_ms == Some(0) {
            return bad("timeout_ms", "no call is over at once".into(), "give more than 0");
        }
        let schemas =
            [("input_schema", &tool.input_schema), ("output_schema", &tool.output_schema)];
        for (field, schema) in schemas {
            // What is no schema at all refuses nothing where values are checked.
            match schema.as_ref().map(Schema::new) {
                None | Some(Ok(_) | Err(SchemaError::Invalid(_))) => {}
                Some(Err(e)) => return bad(field, format!("{}: {e}", tool.name), e.fix()),
            }
        }
        offers.push(CallTool {
            name: tool.name,
            doc: kernel_limits::clip(&tool.doc.unwrap_or_default(), 512).to_owned(),
            class: tool.class,
            terms: CallTerms {
                timeout_ms: tool.timeout_ms,
                retry_max: tool.retry_max,
                backoff_ms: tool.backoff_ms,
                probe: tool.probe,
                compensate: tool.compensate,
            },
            input_schema: tool.input_schema.unwrap_or_default(),
            output_schema: tool.output_schema.unwrap_or_default(),
        });
    }
    Ok(offers)
}

/// What a worker still has.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RenewRequest {
    /// Every call that it holds. One that is not named is taken from it.
    calls: Vec<HeldCall>,
}

/// A call that a worker has.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct HeldCall {
    /// Which.
    #[schema(value_type = String)]
    pub(super) call: EntityId,
    /// Under which epoch.
    pub(super) epoch: u64,
    /// How far it is: a number, or anything else that changes while the tool moves.
    #[serde(default)]
    progress: Option<Value>,
}

/// Another lease.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Renewed {
    /// How long it lasts, from before the renewal was sent.
    lease_ms: u64,
    /// Calls that this session holds no longer: stop them. What they still return is sent all the same, and kept as
    /// evidence.
    #[schema(value_type = Vec<String>)]
    lost: Vec<EntityId>,
    /// Calls that nobody wants any more: stop them if that is possible, and say how they ended.
    #[schema(value_type = Vec<String>)]
    stop: Vec<EntityId>,
}

/// Renews a session, and says what of its calls is lost or should stop.
#[utoipa::path(
    post, path = "/v1/calls/sessions/{session}/renew", tag = "calls", request_body = RenewRequest,
    params(("session" = String, Path, description = "The session.")),
    responses(
        (status = 200, body = Renewed),
        (status = 404, body = ProblemDocument),
        (status = 410, description = "The session is over.", body = ProblemDocument),
    )
)]
pub(super) async fn renew(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
    Body(request): Body<RenewRequest>,
) -> Result<Json<Renewed>, Problem> {
    let session = session_of(&app, &caller, id).await?;
    let hold = |c: &HeldCall| Hold { entity: c.call, epoch: c.epoch, mark: mark(c) };
    let holds = request.calls.iter().map(hold).collect();
    // The only mail that a call gets is that its job does not want it any more.
    let far::Renewed { lost, mail: stop } = far::renew(&app, id, holds, "calls").await?;
    Ok(Json(Renewed { lease_ms: far::millis(session.lease), lost, stop }))
}

/// What a session row keeps of progress: a number is itself, anything else is another number when it is something else.
fn mark(call: &HeldCall) -> u64 {
    let digits = |v: &Value| canonical::short_digest(v).get(..8).map(str::to_owned);
    match &call.progress {
        None => 0,
        Some(Value::Number(n)) if n.as_u64().is_some() => n.as_u64().unwrap_or(0),
        Some(other) => digits(other).and_then(|d| u64::from_str_radix(&d, 16).ok()).unwrap_or(0),
    }
}

/// Ends a session. Calls that it still holds are lost to it at once.
#[utoipa::path(
    delete, path = "/v1/calls/sessions/{session}", tag = "calls",
    params(("session" = String, Path, description = "The session.")),
    responses((status = 204), (status = 404, body = ProblemDocument))
)]
pub(super) async fn end(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
) -> Result<StatusCode, Problem> {
    far::end(&app, &caller, id).await
}
