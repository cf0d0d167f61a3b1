//! A worker asks for turns. Their steps are begun before the answer is sent. An answer that does not arrive lapses with the
//! lease, or with the next renewal, which does not name it; the step is begun again then, by anybody.

use crate::{
    App, Caller, Problem,
    extract::{Body, Named},
    far::{Poll, session_of},
    problem::ProblemDocument,
};
use axum::{Json, extract::State};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tenure_agents::{
    drive::far::{self, Handed, Said},
    queue_of,
};
use tenure_kernel::{
    error::StoreError,
    ids::{EntityId, SessionId},
};
use tokio::sync::oneshot;
use utoipa::ToSchema;

/// Turns of one answer.
const POLL_MAX: usize = 64;

/// What a worker could do now.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TurnPollRequest)]
pub(super) struct PollRequest {
    /// At most so many, 1 to 64.
    max: usize,
    /// Wait so long for the first; at most 30 000.
    #[serde(default)]
    wait_ms: u64,
}

/// Turns that this session now has.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TurnPollAnswer)]
pub(super) struct PollAnswer {
    /// In order of claim; empty when the time was up. Each is a turn with its step begun: `turn`, `epoch`, `turn_epoch`,
    /// `agent`, `tenant`, `step`, `attempt`, `last_step`, `timeout_ms`, `must_end_by`, `profile`, `task`, `messages`,
    /// `tools`, `results`, `correlation_id`, `trace`.
    #[schema(value_type = Vec<Value>)]
    turns: Vec<Handed>,
}

/// Takes turns, and waits for the first one if there is none.
#[utoipa::path(
    post, path = "/v1/turns/sessions/{id}/poll", tag = "turns", request_body = PollRequest,
    params(("id" = String, Path, description = "The session.")),
    responses(
        (status = 200, body = PollAnswer),
        (status = 404, body = ProblemDocument),
        (status = 410, description = "The session is over.", body = ProblemDocument),
    )
)]
pub(super) async fn poll(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
    Body(request): Body<PollRequest>,
) -> Result<Json<PollAnswer>, Problem> {
    let session = session_of(&app, &caller, id).await?;
    if !(1..=POLL_MAX).contains(&request.max) {
        let detail = format!("max = {}: give 1 to {POLL_MAX}", request.max);
        return Err(Problem::bad_field("max", detail).fix("ask again for more"));
    }
    let targets = far::targets_of(app.pipeline(), id).await?;
    if targets.is_empty() {
        let detail = "this session was not opened to run agents: it has no targets";
        return Err(Problem::bad_field("session", detail)
            .fix("open one with POST /v1/turns/sessions and poll under that"));
    }
    let mut poll = Poll::new(&app, &session, targets.iter().map(|t| queue_of(t)), request.wait_ms);
    loop {
        let turns = look(&app, &caller, (id, session.lease), &targets, request.max).await?;
        if !turns.is_empty() || poll.left(&app).is_zero() {
            return Ok(Json(PollAnswer { turns }));
        }
        if !poll.pause(&app).await {
            return Ok(Json(PollAnswer { turns: Vec::new() }));
        }
        session_of(&app, &caller, id).await?;
    }
}

/// In a task of its own: an asker that leaves in the middle of a claim takes this future with it. What can not be sent
/// there is given back.
async fn look(
    app: &App,
    caller: &Caller,
    session: (SessionId, Duration),
    targets: &[String],
    max: usize,
) -> Result<Vec<Handed>, Problem> {
    let (tx, rx) = oneshot::channel();
    let (at, caller, targets) = (app.clone(), caller.clone(), targets.to_vec());
    app.pipeline().rt().spawn(Box::pin(async move {
        let Some(far) = at.turns() else { return };
        let taken = far.take(session, &targets, max, |t| caller.sees(t)).await;
        let Err(Ok(unsent)) = tx.send(taken) else { return };
        for turn in unsent {
            let said = Said::Release("its worker was gone before it got it".into());
            if let Err(e) = far.say(turn.turn, (session.0, turn.epoch), &said).await {
                tracing::warn!(turn = %turn.turn, error = %e, "not given back; it will lapse");
            }
        }
    }));
    match rx.await {
        Ok(taken) => Ok(taken?),
        Err(_) => Err(StoreError::Unavailable("the server stops".into()).into()),
    }
}
