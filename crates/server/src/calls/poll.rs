//! A worker asks for calls. They are claimed before the answer is sent, so an answer that does not arrive would leave
//! them with somebody who knows nothing of them. While the asker is seen to be gone they go back to the queue, unbegun.
//! An answer that was written and lost on its way is known to the worker alone: it asks again and says what it has, and
//! gets the rest once more (`tenure_jobs::call::again`). From a worker that does not, they lapse with the lease, and then
//! nobody knows, which is the truth.

use super::sessions::HeldCall;
use crate::{
    App, Caller, Problem,
    extract::{Body, Named},
    far::{Poll, session_of},
    problem::ProblemDocument,
};
use axum::{
    body::{Body as HttpBody, Bytes},
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use futures_util::{future::join, stream};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::convert::Infallible;
use tenure_engine::pipeline::Pipeline;
use tenure_jobs::call::{
    again::{hand_out_again, take_back},
    desk::Taken,
    model::limits,
    queue_of,
};
use tenure_kernel::{
    ids::{EntityId, SessionId},
    limits as kernel_limits,
    sessions::Session,
    time::Timestamp,
};
use tenure_steps::events::{StepId, What};
use utoipa::ToSchema;

/// What a worker could do now.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PollRequest {
    /// Only calls of these tools; without it, of all that the session was opened with.
    #[serde(default)]
    tools: Option<Vec<String>>,
    /// At most so many, 1 to 64.
    max: usize,
    /// Wait so long for the first; at most 30 000.
    #[serde(default)]
    wait_ms: u64,
    /// Every call that this worker has, by name and epoch: said in a poll after one that got no answer. What the session
    /// holds and is not named here is handed out again.
    #[serde(default)]
    have: Option<Vec<HeldCall>>,
}

/// Calls that this session now has.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct PollAnswer {
    /// In order of claim; empty when the time was up.
    calls: Vec<CallDocument>,
}

/// One call.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CallDocument {
    /// Its id: what is answered to.
    #[schema(value_type = String)]
    call: EntityId,
    /// Under which epoch this session has it: goes into every answer.
    epoch: u64,
    /// The tool.
    tool: String,
    /// `call`, `probe` or `compensate`.
    #[schema(value_type = String)]
    what: What,
    /// What the tool gets.
    input: Value,
    /// The idempotency key, to pass downstream.
    key: String,
    /// Which call under this key, from 1.
    call_number: u32,
    /// The job.
    #[schema(value_type = String)]
    job: EntityId,
    /// Its step.
    #[schema(value_type = String)]
    step: StepId,
    /// Whose job it is.
    tenant: String,
    /// How long it may take, from now.
    timeout_ms: u64,
    /// Nothing may take effect after this time: microseconds since 1970 on the store's clock.
    #[schema(value_type = i64)]
    not_after: Timestamp,
    /// Which handing of the call this is.
    #[serde(skip)]
    handed: u32,
}

impl From<Taken> for CallDocument {
    fn from(taken: Taken) -> Self {
        let not_after = taken.not_after();
        let Taken { head, state, input } = taken;
        CallDocument {
            call: head.id,
            epoch: head.epoch,
            tool: state.tool,
            what: state.what,
            input,
            key: state.key,
            call_number: state.call,
            job: state.job,
            step: state.step,
            tenant: head.tenant,
            timeout_ms: state.timeout_ms,
            not_after,
            handed: state.handed,
        }
    }
}

/// Takes calls, and waits for the first one if there is none.
#[utoipa::path(
    post, path = "/v1/calls/sessions/{session}/poll", tag = "calls", request_body = PollRequest,
    params(("session" = String, Path, description = "The session.")),
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
) -> Result<Response, Problem> {
    let session = session_of(&app, &caller, id).await?;
    if !(1..=limits::POLL_MAX).contains(&request.max) {
        let detail = format!("max = {}: give 1 to {}", request.max, limits::POLL_MAX);
        return Err(Problem::bad_field("max", detail).fix("ask again for more"));
    }
    if request.have.as_ref().is_some_and(|have| have.len() > kernel_limits::HOLDS_MAX) {
        let detail = format!("more than {} calls", kernel_limits::HOLDS_MAX);
        return Err(Problem::bad_field("have", detail).fix("hold fewer in one session"));
    }
    let has = request.have.map(|have| have.iter().map(|c| (c.call, c.epoch)).collect::<Vec<_>>());
    let tools = tools_of(&app, id, request.tools).await?;
    let mut poll = Poll::new(&app, &session, tools.iter().map(|t| queue_of(t)), request.wait_ms);
    let mut first_look = true;
    loop {
        let left = poll.left(&app);
        // At the end once more: the answer that got lost may have been claimed for after this poll began.
        let is_first = std::mem::take(&mut first_look);
        let again = has.clone().filter(|_| is_first || left.is_zero());
        let looking = look(&app, &caller, &session, &tools, request.max, again);
        let undelivered = match is_first {
            true => looking.await?,
            // Whether the session still stands is asked beside the look and not before it: a call waits for this. What was
            // claimed for one that is over goes back to the queue.
            false => match join(session_of(&app, &caller, id), looking).await {
                (Ok(_), looked) => looked?,
                (Err(over), _) => return Err(over),
            },
        };
        if !undelivered.calls.is_empty() || left.is_zero() {
            return Ok(undelivered.deliver());
        }
        if !poll.pause_within(&app, app.counter().next_leave(app.pipeline(), &tools)).await {
            return Ok(Undelivered::none(app.pipeline()).deliver());
        }
    }
}

async fn tools_of(
    app: &App,
    session: SessionId,
    asked: Option<Vec<String>>,
) -> Result<Vec<String>, Problem> {
    let own = app.counter().tools_of(app.pipeline(), session).await?.to_vec();
    if own.is_empty() {
        let detail = "this session was not opened to take calls: it has no tools";
        return Err(Problem::bad_field("session", detail)
            .fix("open one with POST /v1/calls/sessions and poll under that"));
    }
    let Some(asked) = asked else { return Ok(own) };
    if let Some(other) = asked.iter().find(|t| !own.contains(t)) {
        let detail = format!("this session was not opened with the tool {other:?}");
        let fix = format!("open a session with it; this one has {}", own.join(", "));
        return Err(Problem::bad_field("tools", detail).fix(fix));
    }
    match asked.is_empty() {
        true => Err(Problem::bad_field("tools", "no tool is named")
            .fix("leave it out for all tools of the session")),
        false => Ok(asked),
    }
}

async fn look(
    app: &App,
    caller: &Caller,
    session: &Session,
    tools: &[String],
    max: usize,
    again: Option<Vec<(EntityId, u64)>>,
) -> Result<Undelivered, Problem> {
    let (at, caller, session, tools) =
        (app.clone(), caller.clone(), (session.id, session.lease), tools.to_vec());
    // What was claimed for one who has left would be with nobody: dropped, it goes back to the queue.
    let undelivered = app.to_the_end(async move {
        let pipeline = at.pipeline();
        let mut taken = Ok(Vec::new());
        if let Some(has) = again {
            taken = hand_out_again(pipeline, session, &has, &tools, max).await;
        }
        if taken.as_ref().is_ok_and(Vec::is_empty) {
            taken = at.counter().take(pipeline, session, &tools, max, |t| caller.sees(t)).await;
        }
        for call in taken.iter().flatten() {
            at.identities().remember(&at, &call.head);
        }
        taken.map(|taken| Undelivered {
            pipeline: pipeline.clone(),
            session: session.0,
            calls: taken.into_iter().map(CallDocument::from).collect(),
        })
    });
    Ok(undelivered.await??)
}

/// Calls that were claimed and are not with their worker yet. Dropped, they go back to the queue.
struct Undelivered {
    pipeline: Pipeline,
    session: SessionId,
    calls: Vec<CallDocument>,
}

impl Undelivered {
    fn none(pipeline: &Pipeline) -> Self {
        let session = EntityId::fixed(0, 0);
        Undelivered { pipeline: pipeline.clone(), session, calls: Vec::new() }
    }

    /// The answer. Its body is made when the connection wants to write it: then somebody is there.
    fn deliver(self) -> Response {
        let body = stream::once(async move {
            let mut held = self;
            let answer = PollAnswer { calls: std::mem::take(&mut held.calls) };
            Ok::<_, Infallible>(Bytes::from(serde_json::to_vec(&answer).unwrap_or_default()))
        });
        let kind = [(header::CONTENT_TYPE, "application/json")];
        (kind, HttpBody::from_stream(body)).into_response()
    }
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        let calls = std::mem::take(&mut self.calls);
        if calls.is_empty() {
            return;
        }
        let (pipeline, session) = (self.pipeline.clone(), self.session);
        let rt = self.pipeline.rt().clone();
        rt.spawn(Box::pin(async move {
            for call in calls {
                let (held, why) = ((session, call.epoch), "its worker was gone before it got it");
                if let Err(e) = take_back(&pipeline, call.call, held, call.handed, why).await {
                    tracing::warn!(call = %call.call, error = %e, "not given back; it will lapse");
                }
            }
        }));
    }
}
