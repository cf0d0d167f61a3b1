//! What the refusals of the desk are over HTTP. 404 for what is not there, 409 for what does not fit where the agent or
//! the turn stands, 413 for what is too large, 422 for what makes no sense.

use crate::{Problem, problem::ApiCode};
use axum::http::StatusCode;
use tenure_agents::desk::DeskError;

fn conflict(code: ApiCode, e: &impl ToString) -> Problem {
    Problem::new(StatusCode::CONFLICT, code, e.to_string())
}

impl From<DeskError> for Problem {
    fn from(e: DeskError) -> Self {
        let e = match e {
            DeskError::Store(e) => return e.into(),
            other => other,
        };
        match &e {
            DeskError::NoAgent(name) => Problem::not_found(format!("agent {name:?}"))
                .field("name")
                .fix("GET /v1/agents lists them; what belongs to another tenant is not shown"),
            DeskError::AgentRemoved(_) => conflict(ApiCode::AgentRemoved, &e)
                .field("name")
                .fix("set it again, or send to another agent"),
            DeskError::AgentBusy { .. } => conflict(ApiCode::AgentBusy, &e)
                .field("type")
                .fix("send it as a turn, which waits in line; or again when the agent is idle"),
            DeskError::QueueFull { max, .. } => conflict(ApiCode::QueueFull, &e)
                .field("name")
                .with("limit", *max)
                .fix("send again when some of its turns are over"),
            DeskError::NoTurn(id) => Problem::not_found(format!("turn {id}")).field("id"),
            DeskError::TurnOver { turn, status, kept } => conflict(ApiCode::TurnOver, &e)
                .field("id")
                .with("turn", turn.to_string())
                .with("turn_status", status.clone())
                .with("kept", *kept)
                .fix("final is final; send the agent a new turn if there is more to do"),
            DeskError::Useless { code, open, .. } => {
                let (field, fix) = match code.as_str() {
                    "epoch_from_the_future" | "stale_epoch" => {
                        ("turn_epoch", "give the turn_epoch that GET /v1/turns/{id} shows, or none")
                    }
                    "too_many_early" => {
                        ("tool_call_id", "send it again when the turn waits for that call")
                    }
                    _ => (
                        "wait",
                        "name one of open_waits; GET /v1/turns/{id} shows what each is for",
                    ),
                };
                conflict(code_of(code), &e).field(field).with("open_waits", open.clone()).fix(fix)
            }
            DeskError::NotNow { status, .. } => conflict(ApiCode::NotNow, &e)
                .field("id")
                .with("turn_status", status.clone())
                .fix("`why` of the turn says where it stands and what moves it"),
            DeskError::NoItem { .. } => Problem::not_found("such dead letter")
                .field("item")
                .fix("GET /v1/turns/{id}/inbox lists the items of a turn with their ids"),
            DeskError::OtherInput(turn) => conflict(ApiCode::OtherInput, &e)
                .field("correlation_id")
                .with("turn", turn.to_string())
                .fix("use another correlation id for other content"),
            DeskError::Bad { field, fix, .. } => {
                Problem::bad_field(*field, e.to_string()).fix(*fix)
            }
            DeskError::TooLarge { field, name, found, max, .. } => {
                let code = ApiCode::PayloadTooLarge;
                Problem::new(StatusCode::PAYLOAD_TOO_LARGE, code, e.to_string())
                    .field(*field)
                    .with("limit", *max)
                    .with("found", *found)
                    .with("setting", *name)
                    .fix("this limit is fixed: send a reference instead of the content")
            }
            DeskError::Store(e) => {
                Problem::new(StatusCode::INTERNAL_SERVER_ERROR, e.code(), e.to_string())
            }
        }
    }
}

fn code_of(code: &str) -> ApiCode {
    match code {
        "ambiguous_call" => ApiCode::AmbiguousCall,
        "epoch_from_the_future" => ApiCode::EpochFromTheFuture,
        "not_by_message" => ApiCode::NotByMessage,
        "stale_epoch" => ApiCode::StaleEpoch,
        "too_many_early" => ApiCode::TooManyEarly,
        _ => ApiCode::UnknownCall,
    }
}
