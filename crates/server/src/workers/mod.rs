//! The worker protocol: a worker in another process runs the same engine as one in here, over these
//! endpoints instead of a store. `docs/worker-protocol.md` says what a worker must do; `admit` what it may.
//!
//! Operations go through the pipeline, all of a request at once, so that many workers share group commits.
//! Reads go to the store. Refusals of single operations are answers, not problems: a foreign entity is
//! answered as an unknown one, and fails no neighbour.

mod admit;
mod board;
mod reads;
mod reports;
mod tray;

pub(crate) use admit::Identities;
pub(crate) use board::Board;
pub(crate) use tray::Tray;

use crate::{
    App, Caller, Problem, ServerOptions, extract::Body, far, keys::Scope, problem::ProblemDocument,
};
use admit::admit;
use axum::{Json, extract::DefaultBodyLimit, extract::State};
use futures_util::future::join_all;
use tenure_engine::{due::ring_checks_of, pipeline::Pipeline};
use tenure_jobs::{Job, catalogue::REGISTERED};
use tenure_kernel::{
    claims::{ClaimAnswer, Claimed},
    commit::{Commit, CommitAnswer, Expect, MailStance, Refusal, TenureChange},
    error::StoreError,
    ids::EntityId,
    limits,
    machine::Machine as _,
    sessions::{self, WORKER},
    store::{Answer, Op},
    stream::{Body as EventBody, NewEvent},
    table::{Class, kernel_events},
};
use tenure_remote::wire;
use utoipa_axum::{router::OpenApiRouter, routes};

/// The routes of the protocol.
pub fn routes(options: &ServerOptions) -> OpenApiRouter<App> {
    let batches = OpenApiRouter::new()
        .routes(routes!(apply))
        .layer(DefaultBodyLimit::max(options.worker_bytes_max));
    OpenApiRouter::new()
        .routes(routes!(claim))
        .routes(routes!(board::bell))
        .merge(batches)
        .merge(reads::routes())
}

/// Carries out operations. Each is decided alone; answers come in the order of the operations. Asking again with
/// the same ids is always safe.
#[utoipa::path(
    post, path = "/v1/worker/apply", tag = "worker", request_body = wire::ApplyRequest,
    responses(
        (status = 200, body = wire::ApplyAnswer),
        (status = 422, description = "An operation can not be read.", body = ProblemDocument),
        (status = 503, description = "Ask again with the same ids.", body = ProblemDocument),
    )
)]
async fn apply(
    State(app): State<App>,
    caller: Caller,
    Body(request): Body<wire::ApplyRequest>,
) -> Result<Json<wire::ApplyAnswer>, Problem> {
    caller.need(Scope::Worker)?;
    if request.ops.len() > limits::BATCH_OPS_MAX {
        let detail =
            format!("{} operations, the limit is {}", request.ops.len(), limits::BATCH_OPS_MAX);
        return Err(Problem::bad_field("ops", detail).fix("send them in several requests"));
    }
    let mut ops = Vec::with_capacity(request.ops.len());
    for (i, op) in request.ops.into_iter().enumerate() {
        let read = op.read(app.words()).map_err(|e| {
            Problem::bad_field(format!("ops[{i}].{}", e.field), e.why)
                .fix("nothing was carried out; correct the operation and send all of them again")
        })?;
        if let Op::Renew(renewal) = &read {
            far::within_holds(&format!("ops[{i}].holds"), renewal.holds.len())?;
        }
        ops.push(read);
    }
    let admitted = join_all(ops.into_iter().map(|op| admit(&app, &caller, op))).await;
    let pipeline = app.pipeline().gathering();
    let carried = admitted.into_iter().map(|admitted| carry_out(&app, &pipeline, admitted));
    let answers = join_all(carried).await.into_iter().collect::<Result<Vec<_>, _>>()?;
    let answers = answers.iter().map(|a| wire::Answer::of(a).unwrap_or(wire::Answer::Busy));
    Ok(Json(wire::ApplyAnswer { answers: answers.collect() }))
}

async fn carry_out(
    app: &App,
    pipeline: &Pipeline,
    admitted: Result<Result<Op, Answer>, StoreError>,
) -> Result<Answer, StoreError> {
    let op = match admitted? {
        Ok(op) => op,
        Err(answer) => return Ok(answer),
    };
    // A session that says goodbye: what it holds is free at once. Its worker can not ring the checks itself,
    // they are the server's.
    let let_go = match &op {
        Op::Commit(c) if has(c, sessions::events::ENDED) => Some(c.entity),
        _ => None,
    };
    let registers = matches!(&op, Op::Commit(c) if has(c, REGISTERED));
    let ended = ended_by(&op);
    let answer = match pipeline.submit(op).await {
        // One operation of many: the others are answered.
        Err(StoreError::Quota(exceeded)) => {
            Answer::Commit(CommitAnswer::Refused(Refusal::Constraint(exceeded.to_string())))
        }
        answer => answer?,
    };
    if let (Some((job, status)), Answer::Commit(CommitAnswer::Committed(_)), Some(jobs)) =
        (ended, &answer, app.jobs())
    {
        jobs.ends().tell(job, status);
    }
    if let (true, Some(jobs)) = (registers, app.jobs()) {
        jobs.submitter().forget_flows();
    }
    if let (Some(session), Answer::Commit(CommitAnswer::Committed(_))) = (let_go, &answer) {
        app.tray().over(session);
        let pipeline = pipeline.clone();
        let ringing = pipeline.clone();
        pipeline.rt().spawn(Box::pin(async move { ring_checks_of(&ringing, session).await }));
    }
    Ok(answer)
}

fn has(commit: &Commit, event: &str) -> bool {
    commit.events.iter().any(|e| e.name == event)
}

/// The job that an operation ends, and how: whoever waits for it here is told.
fn ended_by(op: &Op) -> Option<(EntityId, &'static str)> {
    let Op::Commit(commit) = op else { return None };
    let last = commit.events.last()?;
    let to = Job::TABLE.moves.iter().find(|m| m.event == last.name)?.to;
    let status = Job::TABLE.status(to).filter(|s| s.class() == Class::Final)?;
    Some((commit.entity, status.name()))
}

/// Claims from a queue.
#[utoipa::path(
    post, path = "/v1/worker/claim", tag = "worker", request_body = wire::ClaimRequest,
    responses(
        (status = 200, body = wire::ClaimAnswer),
        (status = 404, description = "No such session.", body = ProblemDocument),
    )
)]
async fn claim(
    State(app): State<App>,
    caller: Caller,
    Body(request): Body<wire::ClaimRequest>,
) -> Result<Json<wire::ClaimAnswer>, Problem> {
    caller.need(Scope::Worker)?;
    let mut request = request.read();
    queue_fits(&request.queue)?;
    if !app.identities().is_session_of(&app, &caller, request.session).await? {
        return Err(Problem::not_found(format!("session {}", request.session)).field("session"));
    }
    request.probes.retain(|p| caller.sees(&p.tenant));
    // No session may name more entities than this in a renewal, so no worker has room for more.
    let limit = request.limit.min(limits::HOLDS_MAX);
    request.lease = request.lease.min(app.options().lease_max);
    let (session, queue) = (request.session, request.queue.clone());
    let lease = request.lease;
    // What was laid out for this worker first: it is held already.
    let laid_out = app.tray().take(session, &queue, limit);
    request.limit = (limit - laid_out.len()).min(limits::CLAIM_MAX);
    let all_tenants = caller.tenant.is_none();
    let mut answer = match request.limit {
        0 => ClaimAnswer::default(),
        _ => match app.pipeline().claim(request).await {
            // It holds these already and would never hear of them.
            Err(e) if !laid_out.is_empty() => {
                tracing::warn!(error = %e, queue, "no claim beside what was laid out");
                ClaimAnswer::default()
            }
            claimed => claimed?,
        },
    };
    app.pipeline().meter().claims.add(answer.claimed.len() as u64);
    let got = laid_out.len() + answer.claimed.len();
    if got < limit.min(limits::CLAIM_MAX) && all_tenants {
        app.tray().saw(&queue, true);
    }
    // A worker asks for half of what it has free, rounded up, so that others can bring it work meanwhile.
    app.tray().room(session, (2 * limit).saturating_sub(got + 1), lease);
    let (kept, foreign): (Vec<_>, Vec<_>) = std::mem::take(&mut answer.claimed)
        .into_iter()
        .partition(|c| app.identities().admits(&app, c.head.kind()));
    answer.claimed = laid_out;
    answer.claimed.extend(kept);
    answer.claimed.iter().for_each(|c| app.identities().remember(&app, &c.head));
    for claimed in foreign {
        give_back(app.pipeline(), &claimed, "not for workers out there").await?;
        tracing::warn!(kind = claimed.head.kind(), queue, "a remote worker can not have this");
    }
    Ok(Json(wire::ClaimAnswer::of(&answer)))
}

/// Refuses a queue whose name no entity can have. The server remembers queues that workers ask about.
fn queue_fits(queue: &str) -> Result<(), Problem> {
    if queue.len() <= limits::NAME_BYTES_MAX {
        return Ok(());
    }
    let (len, max) = (queue.len(), limits::NAME_BYTES_MAX);
    let detail = format!("the name of the queue has {len} bytes, the limit is {max}");
    Err(Problem::bad_field("queue", detail).fix("no queue has such a name: name another one"))
}

/// Ends a tenure that nobody has begun to use. A queue may hold kinds that are not for workers out there, and
/// somebody for whom a job was laid out may not come.
async fn give_back(pipeline: &Pipeline, claimed: &Claimed, why: &str) -> Result<(), StoreError> {
    let head = &claimed.head;
    let expect = Expect::Holder { epoch: head.epoch, version: head.version };
    let body = EventBody::json(&serde_json::json!({ "why": why }));
    let event = NewEvent::new(kernel_events::TENURE_ENDED, body);
    let mut commit = Commit::new(pipeline.commit_id(), head.id, expect, vec![event]);
    commit.tenure = TenureChange::End;
    commit.mail = MailStance::Regardless;
    pipeline.commit(commit).await.map(|_| ())
}

/// Whether an entity of this kind is a worker session.
fn is_session(kind: &str) -> bool {
    kind == WORKER.kind
}
