//! How jobs come into being over HTTP: a submission, a retry, a fork. Everything that can be known to be wrong is
//! refused before anything is written.

use super::{
    Desk,
    batches::{self, BatchOf, DebounceOf},
    blocks::refuse_blocked,
    body::{Json, Maybe, required},
    catalogue::unknown,
    documents::{SubmissionDocument, SubmittedDocument},
    find::{self, who},
    plans,
    schedules::Moment,
    wait::{Looks, until_final_looking},
};
use crate::{
    App, Caller, Problem,
    extract::{Named, Params},
    keys::Scope,
    problem::{ApiCode, ProblemDocument},
};
use axum::{
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{collections::BTreeMap, time::Duration};
use tenure_jobs::{
    catalogue::{Sort, entry},
    plan::{self, Strict},
    submit::{ForkAsk, Submission, SubmitError, Submitted},
    terms::{GateWish, Terms},
    view::{self, JobView, Repeat},
};
use tenure_kernel::{ids::EntityId, limits::NAME_BYTES_MAX, table::Class, tenant as names};
use tenure_steps::events::StepId;
use utoipa::{IntoParams, ToSchema};

/// The longest idempotency key.
pub(super) const KEY_BYTES_MAX: usize = 255;
/// The longest that a request waits for a job.
pub(super) const WAIT_SECONDS_MAX: f64 = 300.0;
/// The longest that a job may be given.
const MUST_END_SECONDS_MAX: u64 = 10 * 366 * 24 * 3_600;
pub(crate) use crate::auth::DEFAULT_TENANT as TENANT;
use crate::turns::tools::ONE_CALL;
/// A word that is taken, for what is not built yet.
const LATER: &str = "file_wait";

/// What to run.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct NewJob {
    /// The flow; `GET /v1/flows` lists them. Either this or `plan`.
    flow: Option<String>,
    /// A graph of steps to run instead of a flow; docs/plans.md says what it can say. `input` is then the input of
    /// the plan.
    #[schema(value_type = Option<Object>)]
    plan: Option<Strict>,
    /// Its version; the newest without one.
    version: Option<u32>,
    /// Its input, checked against the flow's schema; `null` without one.
    input: Value,
    /// Higher is sooner; 0 without one.
    #[schema(minimum = -32768, maximum = 32767)]
    priority: i16,
    /// The job ends within so many seconds, whatever happens; `job.must_end_by_seconds` without one.
    must_end_in_seconds: Option<u64>,
    /// It starts no sooner than so many seconds from now. Its time to end counts from its start.
    start_in_seconds: Option<u64>,
    /// It starts no sooner than this moment, in RFC 3339; now if that is past. Not with `start_in_seconds`.
    start_at: Option<String>,
    /// The gate it has to pass: a name, or `{"name": …, "limit": …}`.
    #[schema(value_type = Option<Object>)]
    gate: Option<GateWish>,
    /// The named queue it stands in: only workers that serve it take it.
    queue: Option<String>,
    /// What its worker has to have, at most 4 labels.
    needs: Vec<String>,
    /// Names with values, by which the job is found later: at most 8. A name has up to 40 of a-z, 0-9, point, dash and underscore, a value
    /// up to 80 bytes.
    labels: BTreeMap<String, String>,
    /// The idempotency key, instead of the header `Idempotency-Key`.
    key: Option<String>,
    /// Whose job it is; only for callers whose key has no tenant.
    tenant: Option<String>,
    /// Collects it with others into one job.
    batch: Option<BatchOf>,
    /// Collects it with others, of which the last becomes a job.
    debounce: Option<DebounceOf>,
    /// Who asks, for people.
    by: Option<String>,
    #[schema(ignore)]
    file_wait: Option<serde::de::IgnoredAny>,
}

/// The terms of a submission. A moment is turned into a delay by the store's time.
async fn terms(app: &App, new: &mut NewJob) -> Result<Terms, Problem> {
    let start_in_ms = match (new.start_in_seconds, &new.start_at) {
        (Some(_), Some(_)) => {
            let detail = "start_in_seconds and start_at are both given";
            return Err(Problem::bad_field("start_at", detail).fix("give one of the two"));
        }
        (Some(seconds), None) => Some(seconds.saturating_mul(1_000)),
        (None, Some(at)) => {
            let moment = Moment::Text(at.clone()).read("start_at")?;
            let now = app.pipeline().store().now().await?;
            Some(u64::try_from(moment.since(now).as_millis()).unwrap_or(u64::MAX))
        }
        (None, None) => None,
    };
    let gate = new.gate.take().map(|gate| Box::new(gate.into()));
    let (queue, needs) = (new.queue.take(), std::mem::take(&mut new.needs));
    let labels = std::mem::take(&mut new.labels);
    Ok(Terms { start_in_ms, gate, queue, needs, labels, ..Terms::default() })
}

/// The same terms where they are those of every job to come: a moment would make no sense there.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = JobTerms)]
pub(super) struct TermsOf {
    /// A job starts no sooner than so many seconds after it was made.
    start_in_seconds: Option<u64>,
    /// The gate it has to pass: a name, or `{"name": …, "limit": …}`.
    #[schema(value_type = Option<Object>)]
    gate: Option<GateWish>,
    /// The named queue it stands in.
    queue: Option<String>,
    /// What its worker has to have, at most 4 labels.
    needs: Vec<String>,
}

impl From<TermsOf> for Terms {
    fn from(asked: TermsOf) -> Self {
        Terms {
            start_in_ms: asked.start_in_seconds.map(|s| s.saturating_mul(1_000)),
            gate: asked.gate.map(|gate| Box::new(gate.into())),
            queue: asked.queue,
            needs: asked.needs,
            ..Terms::default()
        }
    }
}

/// How long to wait.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Waiting {
    /// Answers when the job is final, or after so many seconds (at most 300), whichever is first.
    #[param(minimum = 0, maximum = 300)]
    wait: Option<f64>,
}

impl Waiting {
    pub(crate) fn duration(&self) -> Result<Option<Duration>, Problem> {
        let Some(seconds) = self.wait else { return Ok(None) };
        if !(0.0..=WAIT_SECONDS_MAX).contains(&seconds) {
            let detail = format!("wait = {seconds}: give 0 to {WAIT_SECONDS_MAX} seconds");
            return Err(Problem::new(StatusCode::BAD_REQUEST, ApiCode::BadField, detail)
                .field("wait")
                .fix("wait again when the time is up; the job goes on meanwhile"));
        }
        Ok(Some(Duration::from_secs_f64(seconds)))
    }
}

#[derive(Serialize)]
struct Answer {
    #[serde(flatten)]
    job: JobView,
    existed: bool,
}

/// Creates a job. The same idempotency key with the same flow and input is the same job.
#[utoipa::path(
    post, path = "/v1/jobs", tag = "jobs", request_body = NewJob,
    params(
        Waiting,
        ("Idempotency-Key" = Option<String>, Header, description = "Makes it safe to ask again.")
    ),
    responses(
        (status = 202, description = "Created, or collected; `Location` names it.", body = SubmissionDocument),
        (status = 200, description = "It was there under the same key; or it is final (`wait`).", body = SubmissionDocument),
        (status = 409, description = "The key belongs to a job with other input.", body = ProblemDocument),
        (status = 413, description = "Too large; names the limit.", body = ProblemDocument),
        (status = 422, description = "Unknown flow, or an input that does not fit it.", body = ProblemDocument),
        (status = 423, description = "An operator has blocked it.", body = ProblemDocument),
    )
)]
pub(super) async fn submit(
    State(app): State<App>,
    caller: Caller,
    Params(waiting): Params<Waiting>,
    headers: HeaderMap,
    Json(mut new): Json<NewJob>,
) -> Result<Response, Problem> {
    caller.need(Scope::Write)?;
    let desk = super::desk(&app)?;
    let wait = waiting.duration()?;
    refuse_later(&new)?;
    let terms = terms(&app, &mut new).await?;
    let tenant = new_tenant(&caller, new.tenant)?;
    let key = idempotency_key(&headers, new.key)?;
    let (flow, input) = match new.plan {
        Some(plan) => planned(&app, &tenant, new.flow, new.version, plan, new.input).await?,
        None => (required("flow", new.flow)?, new.input),
    };
    refuse_blocked(&app, |blocks| blocks.of_job(&flow, &tenant)).await?;
    let collected = batches::mode(new.batch, new.debounce)?;
    let version = match &collected {
        Some((_, mode)) => {
            let alone = batches::alone(*mode, input.clone());
            check_submission(&app, desk, &tenant, &flow, new.version, &alone).await?
        }
        None => check_submission(&app, desk, &tenant, &flow, new.version, &input).await?,
    };
    let submission = Submission {
        flow,
        version: Some(version),
        input,
        tenant,
        key,
        priority: new.priority,
        must_end_in: must_end_in(new.must_end_in_seconds)?,
        terms,
        by: Some(who(&caller, new.by)),
    };
    if let Some(how) = collected {
        return batches::collect(&app, submission, how, wait).await;
    }
    // A job that is born into somebody's hands has to come into them, whoever has stopped waiting for the answer.
    let at = app.clone();
    let submitting = app.to_the_end(async move {
        Ok::<_, Problem>(super::desk(&at)?.submitter().submit(submission).await?)
    });
    let submitted = submitting.await??;
    created(&app, submitted, wait).await
}

/// The flow that runs plans, and its input.
async fn planned(
    app: &App,
    tenant: &str,
    flow: Option<String>,
    version: Option<u32>,
    plan: Strict,
    input: Value,
) -> Result<(String, Value), Problem> {
    if flow.is_some() || version.is_some() {
        let field = if flow.is_some() { "flow" } else { "version" };
        let detail = format!("a job has either a plan or a flow: {field} was given as well");
        return Err(Problem::bad_field(field, detail).fix("leave one of them out"));
    }
    // Keys that stand twice are seen here only: what goes on from here has them once.
    if !plan.doubled.is_empty() {
        plans::check_strict(app, tenant, &plan, &input).await?;
    }
    let input = serde_json::json!({"plan": plan.value, "input": input});
    Ok((plan::FLOW.to_owned(), input))
}

/// The version that the job will have, if it can run. Everything that makes jobs asks here first: submissions, batches,
/// schedules, and wishes that came by SQL.
pub(super) async fn check_submission(
    app: &App,
    desk: &Desk,
    tenant: &str,
    flow: &str,
    version: Option<u32>,
    input: &Value,
) -> Result<u32, Problem> {
    let version = check_input(app, desk, tenant, flow, version, input).await?;
    if flow == plan::FLOW {
        plans::check(app, tenant, input).await?;
    }
    if flow == ONE_CALL
        && let Some(tool) = input.get("tool").and_then(Value::as_str)
        && entry(app.pipeline().store(), Sort::Tool, tenant, tool).await?.is_none()
    {
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        return Err(unknown(app, Sort::Tool, tool, None, Some(tenant), status).await?);
    }
    Ok(version)
}

async fn check_input(
    app: &App,
    desk: &Desk,
    tenant: &str,
    flow: &str,
    version: Option<u32>,
    input: &Value,
) -> Result<u32, Problem> {
    if flow == tenure_jobs::bulk::FLOW {
        let detail =
            format!("the flow {flow:?} acts on many jobs, and what it does is shown first");
        return Err(Problem::bad_field("flow", detail).fix("use POST /v1/jobs/bulk"));
    }
    if let Some(spec) = desk.flow_here(flow, version) {
        let rt = app.pipeline().rt();
        desk.schemas.check(rt, tenant, flow, spec.version, &spec.input_schema, input).await?;
        return Ok(spec.version);
    }
    let known = desk.submitter().registered(tenant, flow, version).await?;
    let Some(known) = known else {
        return Err(unknown(
            app,
            Sort::Flow,
            flow,
            version,
            Some(tenant),
            StatusCode::UNPROCESSABLE_ENTITY,
        )
        .await?);
    };
    let rt = app.pipeline().rt();
    desk.schemas.check(rt, tenant, flow, known.version, &known.input_schema, input).await?;
    Ok(known.version)
}

fn refuse_later(new: &NewJob) -> Result<(), Problem> {
    let field = new.file_wait.is_some().then_some(LATER);
    let flow = new.flow.as_deref().filter(|f| *f == LATER);
    let Some(name) = field.or(flow) else { return Ok(()) };
    let detail = format!("{name} comes with a later version");
    let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, ApiCode::LaterVersion, detail);
    Err(problem
        .field(field.unwrap_or("flow"))
        .fix("use a flow that GET /v1/flows lists; steps are calls inside of a flow"))
}

/// The tenant for which something new is made: its name has the form that all new names have. A key of an earlier version may be bound to another
/// name; it reads and ends what is there.
pub(crate) fn new_tenant(caller: &Caller, wanted: Option<String>) -> Result<String, Problem> {
    let of = tenant(caller, wanted)?;
    if names::is_name(&of) {
        return Ok(of);
    }
    let detail = format!("{of:?} cannot be the name of a tenant");
    let fix = format!("give {}", names::FORM);
    Err(Problem::bad_field("tenant", detail).fix(match caller.tenant {
        Some(_) => format!("use a key that is bound to another tenant: {fix}"),
        None => fix,
    }))
}

/// The tenant whose things are read, changed or ended: the caller's own, or the one that an operator names.
pub(crate) fn tenant(caller: &Caller, wanted: Option<String>) -> Result<String, Problem> {
    match (&caller.tenant, wanted) {
        (Some(mine), Some(other)) if *mine != other => {
            let detail =
                format!("the key is for the tenant {mine:?}, the job would be of {other:?}");
            Err(Problem::new(StatusCode::FORBIDDEN, ApiCode::Forbidden, detail)
                .field("tenant")
                .fix("leave the field out"))
        }
        (Some(mine), _) => Ok(mine.clone()),
        (None, Some(wanted)) if wanted.is_empty() || wanted.len() > NAME_BYTES_MAX => {
            Err(Problem::bad_field("tenant", format!("{wanted:?} is no name of a tenant"))
                .fix(format!("give {}, or leave the field out", names::FORM)))
        }
        (None, wanted) => Ok(wanted.unwrap_or_else(|| TENANT.to_owned())),
    }
}

pub(crate) fn idempotency_key(
    headers: &HeaderMap,
    field: Option<String>,
) -> Result<Option<String>, Problem> {
    const NAME: &str = "Idempotency-Key";
    let header = headers.get(NAME).map(|value| {
        value.to_str().map(str::to_owned).map_err(|_| {
            Problem::bad_field(NAME, "the key has characters that are not plain ASCII")
                .fix("use letters, digits and punctuation, or the field key")
        })
    });
    let (header, field) = (header.transpose()?, field);
    let (name, key) = match (header, field) {
        (Some(header), Some(field)) if header != field => {
            let detail = format!("the header says {header:?} and the field key says {field:?}");
            return Err(Problem::bad_field(NAME, detail).fix("send one of the two"));
        }
        (Some(key), _) => (NAME, key),
        (None, Some(key)) => ("key", key),
        (None, None) => return Ok(None),
    };
    match key.len() {
        _ if key.contains('\0') => {
            Err(Problem::bad_field(name, "the key has a NUL character").fix("leave it out"))
        }
        1..=KEY_BYTES_MAX => Ok(Some(key)),
        len => {
            let detail = format!("a key has 1 to {KEY_BYTES_MAX} bytes, this has {len}");
            Err(Problem::bad_field(name, detail).fix("use a shorter key, a hash of a long one say"))
        }
    }
}

pub(crate) fn must_end_in(seconds: Option<u64>) -> Result<Option<Duration>, Problem> {
    match seconds {
        Some(seconds @ 1..=MUST_END_SECONDS_MAX) => Ok(Some(Duration::from_secs(seconds))),
        None => Ok(None),
        Some(seconds) => {
            let detail = format!("{seconds} is not within 1 to {MUST_END_SECONDS_MAX} seconds");
            Err(Problem::bad_field("must_end_in_seconds", detail)
                .fix("every job ends some day; ten years are the longest"))
        }
    }
}

/// The answer to everything that made a job.
pub(super) async fn created(
    app: &App,
    submitted: Submitted,
    wait: Option<Duration>,
) -> Result<Response, Problem> {
    let Submitted { id, existed, near } = submitted;
    let looks = if near { Looks::rarely() } else { Looks::new() };
    let head = match wait {
        Some(wait) => until_final_looking(app, id, wait, looks).await?,
        None => app.pipeline().store().head(id).await?,
    };
    let head = head.ok_or_else(|| find::absent(id))?;
    let done = existed || (wait.is_some() && head.class() == Class::Final);
    let status = if done { StatusCode::OK } else { StatusCode::ACCEPTED };
    let mut job = view::view(app.pipeline().store(), &head).await?;
    // Whoever waited wants the output, also one that is too large for the head.
    if wait.is_some() && job.status == "completed" && job.output.is_none() {
        job = super::read::full(app, &head).await?;
    }
    let location = [(header::LOCATION, format!("/v1/jobs/{id}"))];
    Ok((status, location, axum::Json(Answer { job, existed })).into_response())
}

/// Who asks for a retry.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Retry {
    /// The version of the flow; that of the job without one.
    version: Option<u32>,
    /// The idempotency key, instead of the header `Idempotency-Key`.
    key: Option<String>,
    /// Do again what has happened and is irreversible.
    repeat: bool,
    /// Who asks, for people.
    by: Option<String>,
}

/// Tries a job again that is over: a new job that takes over what has happened and goes on with what failed. Asked
/// again, it answers the same new job.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/retry", tag = "jobs", request_body = Retry,
    params(
        ("id" = String, Path, description = "The job."),
        Waiting,
        ("Idempotency-Key" = Option<String>, Header, description = "Without one, a job is tried again once.")
    ),
    responses(
        (status = 202, description = "A new job; `Location` names it.", body = SubmittedDocument),
        (status = 200, description = "It was tried again before; or the new job is final (`wait`).", body = SubmittedDocument),
        (status = 404, body = ProblemDocument),
        (status = 409, description = "It is not over, nothing of it failed, or something would happen twice.", body = ProblemDocument),
    )
)]
pub(crate) async fn retry(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
    Params(waiting): Params<Waiting>,
    headers: HeaderMap,
    Maybe(retry): Maybe<Retry>,
) -> Result<Response, Problem> {
    let head = find::writable(&app, &caller, id).await?;
    if head.class() != Class::Final {
        let status = head.status.name();
        let detail = format!("job {id} is {status}: only a job that is over can be tried again");
        return Err(Problem::new(StatusCode::CONFLICT, ApiCode::NotNow, detail)
            .field("id")
            .with("job_status", status)
            .fix("wait for its end, cancel it first, or fork it"));
    }
    let by = Some(who(&caller, retry.by));
    let wait = waiting.duration()?;
    let key = idempotency_key(&headers, retry.key)?;
    let jobs = super::desk(&app)?.submitter();
    let repeat = repeat(retry.repeat);
    let ask = ForkAsk { before: None, version: retry.version, by, key, repeat };
    let forked = jobs.fork_once(id, ask).await;
    created(&app, forked.map_err(|e| of_fork(e, "id"))?, wait).await
}

/// Where to fork.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NewFork {
    /// The first step that is not taken over.
    #[schema(required)]
    step: Option<String>,
    /// The version of the flow; that of the job without one.
    version: Option<u32>,
    /// The idempotency key, instead of the header `Idempotency-Key`.
    key: Option<String>,
    /// Do again what has happened and is irreversible. Without it, a fork that would is refused.
    repeat: bool,
    /// Who asks, for people.
    by: Option<String>,
}

/// A new job that goes on from another one's history: what began before the step and is over is taken over.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/fork", tag = "jobs", request_body = NewFork,
    params(
        ("id" = String, Path, description = "The job."),
        Waiting,
        ("Idempotency-Key" = Option<String>, Header, description = "Makes it safe to ask again.")
    ),
    responses(
        (status = 202, description = "A new job; `Location` names it.", body = SubmittedDocument),
        (status = 200, description = "It was there under the same key; or it is final (`wait`).", body = SubmittedDocument),
        (status = 404, body = ProblemDocument),
        (status = 409, description = "Something irreversible would be done again (see `repeat`), or nobody knows whether it has happened.", body = ProblemDocument),
        (status = 422, description = "No such step.", body = ProblemDocument),
    )
)]
pub(crate) async fn fork(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
    Params(waiting): Params<Waiting>,
    headers: HeaderMap,
    Json(new): Json<NewFork>,
) -> Result<Response, Problem> {
    find::writable(&app, &caller, id).await?;
    let step = StepId(required("step", new.step)?);
    let by = Some(who(&caller, new.by));
    let wait = waiting.duration()?;
    let key = idempotency_key(&headers, new.key)?;
    let jobs = super::desk(&app)?.submitter();
    let repeat = repeat(new.repeat);
    let ask = ForkAsk { before: Some(step), version: new.version, by, key, repeat };
    let forked = jobs.fork_once(id, ask).await;
    created(&app, forked.map_err(|e| of_fork(e, "step"))?, wait).await
}

fn repeat(asked: bool) -> Repeat {
    if asked { Repeat::Irreversible } else { Repeat::No }
}

fn of_fork(e: SubmitError, field: &str) -> Problem {
    match (e, field) {
        (SubmitError::BadOrigin(why), "step") => {
            Problem::bad_field("step", why).fix("GET /v1/jobs/{id}/steps lists the steps of a job")
        }
        // All its steps are fine: tried again from behind them it could only end as it did.
        (e @ SubmitError::BadOrigin(_), _) => Problem::from(e)
            .field(field)
            .fix("fork it from a step (POST /v1/jobs/{id}/fork), or submit it anew"),
        (e, _) => Problem::from(e),
    }
}
