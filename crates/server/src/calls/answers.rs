//! How a worker says that a call ended. The same again is answered the same; what comes too late is kept as evidence.

use crate::{
    ApiCode, App, Caller, Problem,
    extract::{Body, Named},
    far::{ReleaseRequest, admit, not_there},
    problem::ProblemDocument,
};
use axum::{Json, extract::State, http::StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_jobs::call::{
    Call, FailKind,
    desk::{self, Heard, Said},
};
use tenure_kernel::{
    error::Code,
    ids::{EntityId, SessionId},
    machine::Machine as _,
};
use utoipa::ToSchema;

const KIND: &str = Call::TABLE.kind;

/// A call that returned.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CompleteRequest {
    /// The session that has it.
    #[schema(value_type = String)]
    session: SessionId,
    /// Under which epoch.
    epoch: u64,
    /// What the tool returned. Of a probe: `{"happened": true, "result": …}`, `{"happened": false}` or
    /// `{"happened": null, "why": …}`.
    #[serde(default)]
    result: Value,
}

/// A call that did not.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FailRequest {
    /// The session that has it.
    #[schema(value_type = String)]
    session: SessionId,
    /// Under which epoch.
    epoch: u64,
    /// `retryable`, `permanent`, `cancelled` (nothing was applied), `not_called` (it was not begun), `unknown` (it may
    /// have been applied) or `compensatable` (half of it was).
    #[schema(value_type = String)]
    kind: FailKind,
    /// In words.
    #[serde(default)]
    error: String,
    /// No code of this call runs any more. `false` only with `unknown`: a thread or a process is left that the worker
    /// can not end, so the call may still take effect.
    #[serde(default = "yes")]
    over: bool,
}

fn yes() -> bool {
    true
}

/// It counts.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Accepted {
    /// Always true.
    accepted: bool,
}

/// The call returned a result.
#[utoipa::path(
    post, path = "/v1/calls/{call}/complete", tag = "calls", request_body = CompleteRequest,
    params(("call" = String, Path, description = "The call.")),
    responses(
        (status = 200, body = Accepted),
        (status = 404, body = ProblemDocument),
        (status = 409, description = "The worker has it no longer; `kept` says whether it is kept as evidence.", body = ProblemDocument),
        (status = 413, body = ProblemDocument),
    )
)]
pub(super) async fn complete(
    State(app): State<App>,
    caller: Caller,
    Named(call): Named<EntityId>,
    Body(request): Body<CompleteRequest>,
) -> Result<Json<Accepted>, Problem> {
    let CompleteRequest { session, epoch, result } = request;
    admit(&app, &caller, (call, KIND), session).await?;
    let said = Said::Completed(result);
    answer(call, "result", desk::say(app.pipeline(), call, (session, epoch), &said).await?)
}

/// The call did not return a result.
#[utoipa::path(
    post, path = "/v1/calls/{call}/fail", tag = "calls", request_body = FailRequest,
    params(("call" = String, Path, description = "The call.")),
    responses(
        (status = 200, body = Accepted),
        (status = 404, body = ProblemDocument),
        (status = 409, description = "The worker has it no longer; `kept` says whether it is kept as evidence.", body = ProblemDocument),
    )
)]
pub(super) async fn fail(
    State(app): State<App>,
    caller: Caller,
    Named(call): Named<EntityId>,
    Body(request): Body<FailRequest>,
) -> Result<Json<Accepted>, Problem> {
    let FailRequest { session, epoch, kind, error, over } = request;
    if !over && kind != FailKind::Unknown {
        let detail = "while code of it may still run, nobody knows how a call ends";
        return Err(Problem::bad_field("over", detail).fix("say it with the kind unknown"));
    }
    admit(&app, &caller, (call, KIND), session).await?;
    let said = if over { Said::Failed(kind, error) } else { Said::Left(error) };
    answer(call, "error", desk::say(app.pipeline(), call, (session, epoch), &said).await?)
}

/// The call was not begun and goes back to the queue. Said only when no code of the tool has run for it.
#[utoipa::path(
    post, path = "/v1/calls/{call}/release", tag = "calls", request_body = ReleaseRequest,
    params(("call" = String, Path, description = "The call.")),
    responses(
        (status = 200, body = Accepted),
        (status = 404, body = ProblemDocument),
        (status = 409, description = "The worker has it no longer.", body = ProblemDocument),
    )
)]
pub(super) async fn release(
    State(app): State<App>,
    caller: Caller,
    Named(call): Named<EntityId>,
    Body(request): Body<ReleaseRequest>,
) -> Result<Json<Accepted>, Problem> {
    let ReleaseRequest { session, epoch, why } = request;
    admit(&app, &caller, (call, KIND), session).await?;
    answer(call, "why", desk::release(app.pipeline(), call, (session, epoch), why).await?)
}

/// `field` is what was said: too large, it is what to make smaller.
fn answer(call: EntityId, field: &str, heard: Heard) -> Result<Json<Accepted>, Problem> {
    match heard {
        Heard::Accepted => Ok(Json(Accepted { accepted: true })),
        Heard::Stale { status, epoch, kept } => {
            let detail =
                format!("this session has call {call} no longer: it is {status}, at epoch {epoch}");
            Err(Problem::new(StatusCode::CONFLICT, Code::StaleAttempt, detail)
                .field("epoch")
                .with("call_status", status)
                .with("kept", if kept { "evidence" } else { "nothing" })
                .fix("stop working on it; what was said is kept as evidence where it can settle the call"))
        }
        Heard::Unknown => Err(not_there(call, KIND)),
        Heard::Refused(why) => {
            Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, ApiCode::PayloadTooLarge, why)
                .field(field)
                .fix("store large content elsewhere and return a reference to it"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_large_is_named_by_its_own_field() {
        let call = EntityId::fixed(9, 1);
        for field in ["result", "error", "why"] {
            let said = answer(call, field, Heard::Refused("it is too large".into())).unwrap_err();
            let said = format!("{said:?}");
            assert!(said.contains("413") && said.contains(&format!("{field:?}")), "{said}");
        }
    }
}
