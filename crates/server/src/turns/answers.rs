//! What a worker says about its turns. The same again is answered the same.

use crate::{
    ApiCode, App, Caller, Problem,
    extract::{Body, Named},
    far::{ReleaseRequest, admit, not_there},
    problem::ProblemDocument,
};
use axum::{Json, extract::State, http::StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_agents::{
    drive::{
        far::{Handed, Heard, Said},
        model::Reply,
    },
    limits::MESSAGE_BYTES_MAX,
    turn::table::TABLE,
    words::{EndStatus, Fault},
};
use tenure_kernel::{
    error::Code,
    ids::{EntityId, SessionId},
};
use utoipa::ToSchema;

const KIND: &str = TABLE.kind;

/// The message of a step.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StepRequest {
    /// The session that has the turn.
    #[schema(value_type = String)]
    session: SessionId,
    /// Under which epoch.
    epoch: u64,
    /// The step that was handed out.
    step: u32,
    /// As a model says it: `role`, `content`, `tool_calls`.
    message: Value,
    /// Tokens and the like.
    #[serde(default)]
    usage: Value,
    /// Why the answer of the model ended, in its words. `length` and `content_filter` end the turn.
    #[serde(default)]
    finish_reason: Option<String>,
}

/// The end of a turn.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FinishRequest {
    /// The session that has the turn.
    #[schema(value_type = String)]
    session: SessionId,
    /// Under which epoch.
    epoch: u64,
    /// `success` (the default) or `partial`.
    #[serde(default = "success")]
    #[schema(value_type = String)]
    status: EndStatus,
    /// What is delivered.
    result: Value,
    /// The last message of the step, to be kept with it.
    #[serde(default)]
    message: Option<Value>,
}

fn success() -> EndStatus {
    EndStatus::Success
}

/// A turn that fails.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TurnFailRequest)]
pub(super) struct FailRequest {
    /// The session that has the turn.
    #[schema(value_type = String)]
    session: SessionId,
    /// Under which epoch.
    epoch: u64,
    /// A word for programs.
    code: String,
    /// A sentence for people.
    #[serde(default)]
    message: String,
}

/// It counts.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TurnAccepted)]
pub(super) struct Accepted {
    /// Always true.
    accepted: bool,
    /// Where the turn stands after it.
    status: String,
    /// Its next step, begun, where every call of the last one was answered at once. The session has the turn still.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Value>)]
    next: Option<Box<Handed>>,
}

/// Says the message of a step: tools are called, the turn is suspended until they have answered, or it ends.
#[utoipa::path(
    post, path = "/v1/turns/{id}/step", tag = "turns", request_body = StepRequest,
    params(("id" = String, Path, description = "The turn.")),
    responses(
        (status = 200, body = Accepted),
        (status = 404, body = ProblemDocument),
        (status = 409, description = "The session has it no longer, or the step is another one.", body = ProblemDocument),
        (status = 422, body = ProblemDocument),
    )
)]
pub(super) async fn step(
    State(app): State<App>,
    caller: Caller,
    Named(turn): Named<EntityId>,
    Body(request): Body<StepRequest>,
) -> Result<Json<Accepted>, Problem> {
    let StepRequest { session, epoch, step, message, usage, finish_reason } = request;
    fits("message", &message)?;
    if !message.is_object() {
        return Err(Problem::bad_field("message", "a message is an object")
            .fix("send what a model would say: role, content, tool_calls"));
    }
    let said = Said::Step(step, Reply { message, usage, finish_reason });
    say(&app, &caller, turn, (session, epoch), said).await
}

/// Ends the turn with its deliverable.
#[utoipa::path(
    post, path = "/v1/turns/{id}/finish", tag = "turns", request_body = FinishRequest,
    params(("id" = String, Path, description = "The turn.")),
    responses(
        (status = 200, body = Accepted),
        (status = 404, body = ProblemDocument),
        (status = 409, description = "The session has it no longer.", body = ProblemDocument),
        (status = 422, body = ProblemDocument),
    )
)]
pub(super) async fn finish(
    State(app): State<App>,
    caller: Caller,
    Named(turn): Named<EntityId>,
    Body(request): Body<FinishRequest>,
) -> Result<Json<Accepted>, Problem> {
    let FinishRequest { session, epoch, status, result, message } = request;
    if !matches!(status, EndStatus::Success | EndStatus::Partial) {
        return Err(Problem::bad_field("status", "a turn finishes as success or partial")
            .fix("say a failure with POST /v1/turns/{id}/fail"));
    }
    fits("result", &result)?;
    if let Some(message) = &message {
        fits("message", message)?;
    }
    say(&app, &caller, turn, (session, epoch), Said::Finish(status, result, message)).await
}

/// Ends the turn without one: what there is stands in its place.
#[utoipa::path(
    post, path = "/v1/turns/{id}/fail", tag = "turns", request_body = FailRequest,
    params(("id" = String, Path, description = "The turn.")),
    responses(
        (status = 200, body = Accepted),
        (status = 404, body = ProblemDocument),
        (status = 409, description = "The session has it no longer.", body = ProblemDocument),
    )
)]
pub(super) async fn fail(
    State(app): State<App>,
    caller: Caller,
    Named(turn): Named<EntityId>,
    Body(request): Body<FailRequest>,
) -> Result<Json<Accepted>, Problem> {
    let FailRequest { session, epoch, code, message } = request;
    if !tenure_agents::is_token(&code) {
        return Err(Problem::bad_field("code", "a code is one word: letters, digits, _ and -")
            .fix("say the rest in message"));
    }
    let said = Said::Fail(Fault { code, message });
    say(&app, &caller, turn, (session, epoch), said).await
}

/// Gives the turn back, for anybody. Its step is begun again.
#[utoipa::path(
    post, path = "/v1/turns/{id}/release", tag = "turns", request_body = ReleaseRequest,
    params(("id" = String, Path, description = "The turn.")),
    responses(
        (status = 200, body = Accepted),
        (status = 404, body = ProblemDocument),
        (status = 409, description = "The session has it no longer.", body = ProblemDocument),
    )
)]
pub(super) async fn release(
    State(app): State<App>,
    caller: Caller,
    Named(turn): Named<EntityId>,
    Body(request): Body<ReleaseRequest>,
) -> Result<Json<Accepted>, Problem> {
    let ReleaseRequest { session, epoch, why } = request;
    let said = Said::Release(why.unwrap_or_else(|| "its worker gave it back".into()));
    say(&app, &caller, turn, (session, epoch), said).await
}

fn fits(field: &str, value: &Value) -> Result<(), Problem> {
    let size = value.to_string().len();
    if size <= MESSAGE_BYTES_MAX {
        return Ok(());
    }
    let detail = format!("{size} bytes, the limit is {MESSAGE_BYTES_MAX}");
    Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, ApiCode::PayloadTooLarge, detail)
        .field(field)
        .fix("store large content elsewhere and say where"))
}

async fn say(
    app: &App,
    caller: &Caller,
    turn: EntityId,
    held: (SessionId, u64),
    said: Said,
) -> Result<Json<Accepted>, Problem> {
    admit(app, caller, (turn, KIND), held.0).await?;
    match super::desk(app)?.say(turn, held, &said).await? {
        Heard::Accepted(status, next) => {
            Ok(Json(Accepted { accepted: true, status: status.to_owned(), next }))
        }
        Heard::Stale(status, epoch) => {
            let detail =
                format!("this session has turn {turn} no longer: it is {status}, at epoch {epoch}");
            Err(Problem::new(StatusCode::CONFLICT, Code::StaleAttempt, detail)
                .field("epoch")
                .with("turn_status", status)
                .fix("stop working on it; somebody else has it, or it is over"))
        }
        Heard::WrongStep(step) => {
            let detail = format!("turn {turn} is at step {step}");
            Err(Problem::new(StatusCode::CONFLICT, Code::StaleAttempt, detail)
                .field("step")
                .with("step", step)
                .fix("answer the step that was handed out"))
        }
        Heard::Unknown => Err(not_there(turn, KIND)),
        Heard::Refused(why) => {
            Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, ApiCode::PayloadTooLarge, why)
                .field("message")
                .fix("store large content elsewhere and say where"))
        }
    }
}
