//! What may be asked of a job. An answer of 2xx means that the ask is durable: 200 where it took effect or was
//! there before, 202 where the job follows it in its own time. What can only be noted and forgotten is refused.

use super::{
    body::{Foreign, JobAnd, Json, Maybe, required},
    documents::{AskedDocument, SignalledDocument},
    find::who,
    submit::idempotency_key,
};
use crate::{
    App, Caller, Problem, extract::Named, keys::Scope, problem::ProblemDocument, webhooks::Webhook,
};
use axum::{
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tenure_jobs::{
    ask::{self, AskAnswer, AskError, ResolveAnswer, ResolveAsk, SignalAnswer, SignalAsk},
    decide::AskMail,
};
use tenure_kernel::{ids::EntityId, stream::Hash};
use tenure_steps::{
    canonical::present,
    events::{StepId, Verdict, WaitOutcome},
};
use utoipa::ToSchema;

/// A signal.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Signal {
    /// The correlation key of the wait.
    #[schema(required)]
    pub(super) key: Option<String>,
    /// What the flow gets.
    pub(super) payload: Value,
    /// Keep it even if the job is blocked and knows nothing of the key: the wait comes later.
    pub(super) early: bool,
    /// Who sends it, for people.
    pub(super) by: Option<String>,
}

/// A person's yes or no.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Decision {
    /// The key of the question.
    #[schema(required)]
    key: Option<String>,
    /// In words; the flow gets it.
    comment: Option<String>,
    /// Who decides, for people.
    by: Option<String>,
}

/// A cancel, a pause or a resume.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = JobAsk)]
pub(crate) struct Ask {
    /// Why, for people.
    why: Option<String>,
    /// Who asks, for people.
    by: Option<String>,
}

/// What became of an effect that nobody knows about.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Resolve {
    /// Which step.
    #[schema(required)]
    step: Option<String>,
    /// `happened`, `did_not_happen` or `abandoned`.
    #[schema(required)]
    verdict: Option<String>,
    /// The result; only and always with `happened`.
    #[serde(deserialize_with = "present")]
    result: Option<Value>,
    /// In words.
    note: Option<String>,
    /// Who says so, for people.
    by: Option<String>,
    /// Takes the place of what a person has said about the step before: of a job in attention, as long as no step has used it;
    /// of one that is over, for its retry and its forks.
    correct: bool,
}

/// Sends one, and says what became of it.
pub(super) async fn send(
    app: &App,
    caller: &Caller,
    id: EntityId,
    ask: SignalAsk,
) -> Result<Response, Problem> {
    deliver(app, caller, id, ask, None).await
}

/// The same; under the id of a delivery, if there is one.
async fn deliver(
    app: &App,
    caller: &Caller,
    id: EntityId,
    ask: SignalAsk,
    delivery: Option<Hash>,
) -> Result<Response, Problem> {
    caller.need(Scope::Write)?;
    // A yes or no lets work end, which makes room.
    if ask.outcome == WaitOutcome::Signalled {
        app.admit_bytes(caller, ask.payload.to_string().len()).await?;
    }
    let key = ask.key.clone();
    let (pipeline, tenant) = (app.pipeline(), caller.tenant.as_deref());
    let answer = match delivery {
        Some(delivery) => ask::signal_once(pipeline, id, tenant, ask, delivery).await?,
        None => ask::signal(pipeline, id, tenant, ask).await?,
    };
    let status = match answer {
        SignalAnswer::Completed | SignalAnswer::Duplicate => StatusCode::OK,
        SignalAnswer::Kept | SignalAnswer::Unread => StatusCode::ACCEPTED,
    };
    let body = json!({ "job": id, "key": key, "outcome": answer });
    Ok((status, axum::Json(body)).into_response())
}

/// Completes a wait, or is kept for one that is not open yet. The same key again changes nothing, unless the signal has an
/// `Idempotency-Key`: then it completes the oldest open wait of the name, once.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/signal", tag = "jobs", request_body = Signal,
    params(
        ("id" = String, Path, description = "The job."),
        ("Idempotency-Key" = Option<String>, Header, description = "The id of this signal. A flow that waits for one name in a loop is sent each signal under an id of its own.")
    ),
    responses(
        (status = 200, description = "It completed an open wait, or was there before.", body = SignalledDocument),
        (status = 202, description = "Kept for a wait that is not open yet; or not read yet (`unread`).", body = SignalledDocument),
        (status = 404, body = ProblemDocument),
        (status = 409, description = "Nobody waits for the key (`open_keys`), the wait ended before the signal was read (`too_late`), or the job is over.", body = ProblemDocument),
        (status = 413, body = ProblemDocument), (status = 422, body = ProblemDocument),
    )
)]
pub(crate) async fn signal(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
    headers: HeaderMap,
    Json(signal): Json<Signal>,
) -> Result<Response, Problem> {
    let Signal { key, payload, early, by } = signal;
    let (key, by) = (required("key", key)?, Some(who(&caller, by)));
    let delivery = idempotency_key(&headers, None)?;
    let delivery = delivery.map(|d| Hash::of(format!("signal\0{key}\0{d}").as_bytes()));
    let ask = SignalAsk { key, outcome: WaitOutcome::Signalled, payload, by, early };
    deliver(&app, &caller, id, ask, delivery).await
}

/// A signal whose whole body is its payload: JSON as it is, other text as a string. Where the job's tenant has a secret for
/// webhooks (`webhooks.secrets`), it has to be signed, and needs no API key.
#[utoipa::path(
    post, path = "/v1/webhooks/{id}/{key}", tag = "jobs", request_body = Value,
    params(
        ("id" = String, Path, description = "The job."),
        ("key" = String, Path, description = "The correlation key."),
        ("Tenure-Signature" = Option<String>, Header, description = "`t=SECONDS,v1=HEX`: see docs/security.md.")
    ),
    responses(
        (status = 200, body = SignalledDocument), (status = 202, body = SignalledDocument),
        (status = 401, description = "No key, or a signature that does not fit.", body = ProblemDocument),
        (status = 404, body = ProblemDocument), (status = 409, body = ProblemDocument),
    )
)]
pub(crate) async fn webhook(
    State(app): State<App>,
    JobAnd(id, key): JobAnd,
    foreign: Foreign,
) -> Result<Response, Problem> {
    let (caller, delivery) = sender(&app, id, &key, &foreign).await?;
    let payload = foreign.payload;
    let by = Some(who(&caller, Some("webhook".into())));
    let ask = SignalAsk { key, outcome: WaitOutcome::Signalled, payload, by, early: false };
    deliver(&app, &caller, id, ask, delivery).await
}

/// Who sends a webhook: whoever signed it for the job's tenant, or a caller with a key where nothing has to be signed. What is
/// signed has an id, under which it counts once.
async fn sender(
    app: &App,
    job: EntityId,
    key: &str,
    foreign: &Foreign,
) -> Result<(Caller, Option<Hash>), Problem> {
    let secrets = &app.options().webhooks;
    let signature = foreign.signature.as_deref();
    let store = app.pipeline().store();
    let head = store.head(job).await?;
    let tenant = head.map(|head| head.tenant).filter(|tenant| secrets.protect(tenant));
    match (&tenant, &foreign.caller) {
        // As without a signature: nobody would look at it.
        (None, Ok(caller)) => Ok((caller.clone(), None)),
        // What a key does not see is not there.
        (Some(tenant), Ok(caller)) if caller.key.is_some() && !caller.sees(tenant) => {
            Ok((caller.clone(), None))
        }
        (tenant, _) => {
            let webhook = Webhook { job, key, body: &foreign.bytes, signature };
            let delivery = secrets.check(tenant.as_deref(), &webhook, store.now().await?)?;
            let (tenant, scopes) = (tenant.clone(), vec![Scope::Write]);
            Ok((Caller { tenant, scopes, key: None, expires_at: None }, Some(delivery)))
        }
    }
}

async fn decide(
    app: &App,
    caller: &Caller,
    id: EntityId,
    decision: Decision,
    outcome: WaitOutcome,
) -> Result<Response, Problem> {
    let Decision { key, comment, by } = decision;
    let (key, by) = (required("key", key)?, Some(who(caller, by)));
    let payload = comment.map_or(Value::Null, Value::String);
    send(app, caller, id, SignalAsk { key, outcome, payload, by, early: false }).await
}

/// A person says yes.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/approve", tag = "jobs", request_body = Decision,
    params(("id" = String, Path, description = "The job.")),
    responses(
        (status = 200, body = SignalledDocument), (status = 202, body = SignalledDocument),
        (status = 404, body = ProblemDocument), (status = 409, body = ProblemDocument),
    )
)]
pub(crate) async fn approve(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
    Json(decision): Json<Decision>,
) -> Result<Response, Problem> {
    decide(&app, &caller, id, decision, WaitOutcome::Approved).await
}

/// A person says no. The flow gets it as an answer; it does not fail by itself.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/reject", tag = "jobs", request_body = Decision,
    params(("id" = String, Path, description = "The job.")),
    responses(
        (status = 200, body = SignalledDocument), (status = 202, body = SignalledDocument),
        (status = 404, body = ProblemDocument), (status = 409, body = ProblemDocument),
    )
)]
pub(crate) async fn reject(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
    Json(decision): Json<Decision>,
) -> Result<Response, Problem> {
    decide(&app, &caller, id, decision, WaitOutcome::Rejected).await
}

fn mail(caller: &Caller, ask: Ask) -> AskMail {
    AskMail { by: Some(who(caller, ask.by)), why: ask.why }
}

fn asked(id: EntityId, answer: Result<AskAnswer, AskError>) -> Result<Response, Problem> {
    let answer = answer?;
    let status = match answer {
        AskAnswer::Accepted => StatusCode::ACCEPTED,
        AskAnswer::Already => StatusCode::OK,
    };
    Ok((status, axum::Json(json!({ "job": id, "outcome": answer }))).into_response())
}

/// Ends a job, whatever it does. What runs is told to stop, and children are cancelled too.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/cancel", tag = "jobs", request_body = Ask,
    params(("id" = String, Path, description = "The job.")),
    responses(
        (status = 202, description = "Durable; the job follows.", body = AskedDocument),
        (status = 200, description = "It is so already.", body = AskedDocument),
        (status = 404, body = ProblemDocument), (status = 409, body = ProblemDocument),
    )
)]
pub(crate) async fn cancel(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
    Maybe(ask): Maybe<Ask>,
) -> Result<Response, Problem> {
    caller.need(Scope::Write)?;
    let mail = mail(&caller, ask);
    asked(id, ask::cancel(app.pipeline(), id, caller.tenant.as_deref(), mail).await)
}

/// Stops a job until it is resumed. What runs is let finish.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/pause", tag = "jobs", request_body = Ask,
    params(("id" = String, Path, description = "The job.")),
    responses(
        (status = 202, body = AskedDocument), (status = 200, body = AskedDocument),
        (status = 404, body = ProblemDocument), (status = 409, body = ProblemDocument),
    )
)]
pub(crate) async fn pause(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
    Maybe(ask): Maybe<Ask>,
) -> Result<Response, Problem> {
    caller.need(Scope::Write)?;
    let mail = mail(&caller, ask);
    asked(id, ask::pause(app.pipeline(), id, caller.tenant.as_deref(), mail).await)
}

/// Lets a paused job go on, or one in attention look again.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/resume", tag = "jobs", request_body = Ask,
    params(("id" = String, Path, description = "The job.")),
    responses(
        (status = 202, body = AskedDocument), (status = 200, body = AskedDocument),
        (status = 404, body = ProblemDocument), (status = 409, body = ProblemDocument),
    )
)]
pub(crate) async fn resume(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
    Maybe(ask): Maybe<Ask>,
) -> Result<Response, Problem> {
    caller.need(Scope::Write)?;
    let mail = mail(&caller, ask);
    asked(id, ask::resume(app.pipeline(), id, caller.tenant.as_deref(), mail).await)
}

/// Puts a failed job aside: it is no dead letter any more. Its history stays.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/discard", tag = "jobs", request_body = Ask,
    params(("id" = String, Path, description = "The job.")),
    responses(
        (status = 202, body = AskedDocument), (status = 200, body = AskedDocument),
        (status = 404, body = ProblemDocument), (status = 409, body = ProblemDocument),
    )
)]
pub(crate) async fn discard(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
    Maybe(ask): Maybe<Ask>,
) -> Result<Response, Problem> {
    caller.need(Scope::Write)?;
    let by = who(&caller, ask.by);
    asked(id, ask::discard(app.pipeline(), id, caller.tenant.as_deref(), &by).await)
}

pub(super) fn verdict(word: &str, result: Option<Value>) -> Result<(Verdict, Value), Problem> {
    match (word, result) {
        ("happened", Some(result)) => Ok((Verdict::Happened, result)),
        ("happened", None) => Err(Problem::bad_field("result", "what happened has a result")
            .fix("send what the tool would have returned; null is a result too")),
        ("did_not_happen" | "abandoned", Some(_)) => {
            let detail = format!("{word} has no result");
            Err(Problem::bad_field("result", detail).fix("leave result out, or say happened"))
        }
        ("did_not_happen", None) => Ok((Verdict::DidNotHappen, Value::Null)),
        ("abandoned", None) => Ok((Verdict::Abandoned, Value::Null)),
        _ => {
            let detail = format!("{word:?} is none of happened, did_not_happen, abandoned");
            Err(Problem::bad_field("verdict", detail).fix("use one of the three"))
        }
    }
}

/// Says what became of an effect that nobody knows about; the job goes on from it. With `correct`, takes back what a person has
/// said about it.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/resolve", tag = "jobs", request_body = Resolve,
    params(("id" = String, Path, description = "The job.")),
    responses(
        (status = 202, description = "Durable; the job follows.", body = AskedDocument),
        (status = 200, description = "Said before, or kept beside the history of a job that is over.", body = AskedDocument),
        (status = 404, body = ProblemDocument),
        (status = 409, description = "Nothing about this step is unknown; or it cannot be corrected (`correct`).", body = ProblemDocument),
        (status = 422, description = "The result does not fit the output schema of the tool (`violations`).", body = ProblemDocument),
    )
)]
pub(crate) async fn resolve(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
    Json(said): Json<Resolve>,
) -> Result<Response, Problem> {
    caller.need(Scope::Write)?;
    let step = StepId(required("step", said.step)?);
    let (verdict, result) = verdict(&required("verdict", said.verdict)?, said.result)?;
    let by = Some(who(&caller, said.by));
    let (note, correct) = (said.note, said.correct);
    let ask = ResolveAsk { step: step.clone(), verdict, result, by, note, correct };
    let answer = ask::resolve(app.pipeline(), id, caller.tenant.as_deref(), ask).await?;
    let status = match answer {
        ResolveAnswer::Accepted | ResolveAnswer::Corrected => StatusCode::ACCEPTED,
        ResolveAnswer::Duplicate | ResolveAnswer::RecordedAfterTheEnd => StatusCode::OK,
    };
    let body = json!({ "job": id, "step": step, "outcome": answer });
    Ok((status, axum::Json(body)).into_response())
}
