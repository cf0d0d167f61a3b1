//! What the buttons do: what the API does (see `api`). An answer that is no success comes back on the page, above the job as
//! it is now.

use super::{
    api::{Fields, at_once, made},
    cache::Console,
    guard::{Presser, said},
    job::Shown,
    one::{Entity as _, pressed},
};
use crate::{
    App, Caller, Problem,
    extract::Named,
    jobs::{
        asks,
        body::{Json, Maybe},
        submit,
    },
};
use axum::{
    Extension,
    body::Bytes,
    extract::{Path, State},
    http::HeaderMap,
    response::Response,
};
use std::sync::Arc;
use tenure_kernel::ids::EntityId;

/// What a page says after a press that was a success.
pub(super) fn said_of(word: &str) -> Option<&'static str> {
    Some(match word {
        "answer" => "Your answer is on record; the job goes on from it.",
        "signal" => "The signal is on record.",
        "cancel" => "The job was asked to end.",
        "pause" => "The job was asked to pause.",
        "resume" => "The job goes on.",
        "resolve" => "What you said about the step is on record.",
        "retry" => "This is the new job; it goes on from what the old one had done.",
        _ => return None,
    })
}

/// `POST /jobs/{id}/{action}`.
pub(super) async fn act(
    State(app): State<App>,
    Presser(caller): Presser,
    Extension(console): Extension<Arc<Console>>,
    Path((id, action)): Path<(String, String)>,
    body: Bytes,
) -> Response {
    let Ok(id) = id.parse::<EntityId>() else {
        return said(&Problem::not_found(format!("job {id:?}")));
    };
    let done = carry_out(&app, &caller, id, &action, &Fields::read(&body)).await;
    let to = done.map(|job| format!("/jobs/{job}?did={action}"));
    pressed(&caller, to, Shown::read(&app, &console, &caller, id)).await
}

/// Does it, and says which page to show.
async fn carry_out(
    app: &App,
    caller: &Caller,
    id: EntityId,
    action: &str,
    fields: &Fields,
) -> Result<EntityId, Problem> {
    let (state, caller, named) = (State(app.clone()), caller.clone(), Named(id));
    let answer = match action {
        "answer" => {
            let decision = Json(fields.body(&["key", "comment"]).read()?);
            match fields.text("outcome") {
                Some("approved") => asks::approve(state, caller, named, decision).await?,
                Some("rejected") => asks::reject(state, caller, named, decision).await?,
                _ => return Err(Problem::bad_field("outcome", "approve or reject, nothing else")),
            }
        }
        "signal" => {
            let signal = fields.body(&["key"]).with_some("payload", fields.json("payload")?);
            asks::signal(state, caller, named, HeaderMap::new(), Json(signal.read()?)).await?
        }
        "cancel" => {
            asks::cancel(state, caller, named, Maybe(fields.body(&["why"]).read()?)).await?
        }
        "pause" => asks::pause(state, caller, named, Maybe(fields.body(&["why"]).read()?)).await?,
        "resume" => {
            asks::resume(state, caller, named, Maybe(fields.body(&["why"]).read()?)).await?
        }
        "resolve" => {
            let mut said = fields.body(&["step", "verdict", "note"]);
            if fields.text("verdict") == Some("happened") {
                said = said.with_some("result", fields.json("result")?);
            }
            let said = said.with("correct", fields.is_ticked("correct"));
            asks::resolve(state, caller, named, Json(said.read()?)).await?
        }
        "retry" => {
            let ask = fields.body(&["step"]).with("repeat", fields.is_ticked("repeat"));
            let headers = HeaderMap::new();
            match fields.text("step") {
                Some(_) => {
                    let fork = Json(ask.read()?);
                    submit::fork(state, caller, named, at_once(), headers, fork).await?
                }
                None => {
                    let retry = Maybe(ask.read()?);
                    submit::retry(state, caller, named, at_once(), headers, retry).await?
                }
            }
        }
        other => return Err(Problem::not_found(format!("action {other:?}"))),
    };
    Ok(made(&answer).unwrap_or(id))
}
