//! Work for an agent. The same correlation id with the same content is the same turn.

use super::{desk, documents::TurnAnswerDocument, turns::TurnAnswer};
use crate::{
    App, Caller, Problem,
    extract::{Named, Params},
    jobs::{
        blocks::refuse_blocked,
        body::Json,
        catalogue::Name,
        find::who,
        submit::{Waiting, idempotency_key, must_end_in, new_tenant},
    },
    keys::Scope,
    problem::ProblemDocument,
};
use axum::{
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tenure_agents::{desk::Sending, turn::model::Sort};
use tenure_kernel::blocks::BlockKind;
use utoipa::ToSchema;

/// Work for an agent.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NewTurn {
    /// What is said to the agent, as one text; or `messages`.
    message: Option<String>,
    /// Messages as a model reads them (`role`, `content`), the last one being the task.
    #[schema(value_type = Vec<Object>)]
    messages: Vec<Value>,
    /// `turn` (without a word) waits in line; `ui_action` is wanted now or never.
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    sort: Sort,
    /// Its channel; the agent's without one.
    channel: Option<String>,
    /// Where its deliverable goes; the agent's without one.
    output_box: Option<String>,
    /// The sender's own name for it: sent twice it is one turn. The header `Idempotency-Key` does the same.
    correlation_id: Option<String>,
    /// It ends within so many seconds, whatever happens.
    must_end_in_seconds: Option<u64>,
    /// Higher is sooner, among those that wait for the same workers.
    #[schema(minimum = -32768, maximum = 32767)]
    priority: i16,
    /// W3C trace context; the header `traceparent` without it.
    trace: Option<String>,
    /// Whose it is; only for callers whose key has no tenant.
    tenant: Option<String>,
    /// Who sends it, for people.
    by: Option<String>,
}

/// Sends work to an agent: a turn.
#[utoipa::path(
    post, path = "/v1/agents/{name}/turns", tag = "agents", request_body = NewTurn,
    params(
        ("name" = String, Path, description = "The agent."),
        Waiting,
        ("Idempotency-Key" = Option<String>, Header, description = "The correlation id, if the body has none."),
        ("traceparent" = Option<String>, Header, description = "W3C trace context.")
    ),
    responses(
        (status = 202, description = "Sent; `Location` names the turn.", body = TurnAnswerDocument),
        (status = 200, description = "It was sent before; or it is over (`wait`).", body = TurnAnswerDocument),
        (status = 404, description = "No such agent.", body = ProblemDocument),
        (status = 409, description = "The agent was removed, is busy, its line is full; or the correlation id belongs to something else.", body = ProblemDocument),
        (status = 413, body = ProblemDocument), (status = 422, body = ProblemDocument),
        (status = 423, description = "An operator has blocked it.", body = ProblemDocument),
    )
)]
pub(crate) async fn send(
    State(app): State<App>,
    caller: Caller,
    Named(Name(name)): Named<Name>,
    Params(waiting): Params<Waiting>,
    headers: HeaderMap,
    Json(new): Json<NewTurn>,
) -> Result<Response, Problem> {
    caller.need(Scope::Write)?;
    let wait = waiting.duration()?;
    let tenant = new_tenant(&caller, new.tenant)?;
    refuse_blocked(&app, |blocks| blocks.get(BlockKind::Tenant, &tenant)).await?;
    let mut messages = new.messages;
    if let Some(text) = new.message {
        if !messages.is_empty() {
            return Err(Problem::bad_field("message", "both message and messages were given")
                .fix("leave one of them out"));
        }
        messages.push(json!({ "role": "user", "content": text }));
    }
    let traced = headers.get("traceparent").and_then(|v| v.to_str().ok()).map(str::to_owned);
    let sending = Sending {
        agent: name,
        messages,
        sort: new.sort,
        channel: new.channel,
        output_box: new.output_box,
        correlation_id: idempotency_key(&headers, new.correlation_id)?,
        must_end_in: must_end_in(new.must_end_in_seconds)?,
        priority: new.priority,
        trace: new.trace.or(traced),
        by: Some(who(&caller, new.by)),
        tenant: tenant.clone(),
    };
    let sent = desk(&app)?.send(sending).await?;
    let answer = match wait {
        Some(wait) => TurnAnswer::at_its_end(&app, Some(&tenant), sent.turn, wait).await?,
        None => TurnAnswer::now(&app, Some(&tenant), sent.turn).await?,
    };
    let done = sent.existed || (wait.is_some() && answer.is_final());
    let status = if done { StatusCode::OK } else { StatusCode::ACCEPTED };
    let location = [(header::LOCATION, format!("/v1/turns/{}", sent.turn))];
    Ok((status, location, axum::Json(answer.existed(sent.existed))).into_response())
}
