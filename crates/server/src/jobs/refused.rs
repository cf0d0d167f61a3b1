//! What the refusals of `tenure-jobs` are over HTTP. 404 for what is not there, 409 for what does not fit where
//! the job stands, 413 for what is too large, 422 for what makes no sense.

use crate::{
    Problem,
    problem::{ApiCode, Problem as P},
};
use axum::http::StatusCode;
use serde_json::{Value, json};
use tenure_jobs::{ask::AskError, drive::LoadError, submit::SubmitError};
use tenure_kernel::error::{Code, StoreError};
use tenure_schema::NotChecked;

/// Which field of a request it was that is too large.
fn field_of(what: &str) -> &'static str {
    let named =
        [("result", "result"), ("key", "key"), ("kept", "key"), ("name", "by"), ("words", "why")];
    named.iter().find(|(word, _)| what.contains(word)).map_or("payload", |(_, field)| field)
}

fn conflict(code: ApiCode, e: &impl ToString) -> Problem {
    P::new(StatusCode::CONFLICT, code, e.to_string())
}

impl From<AskError> for Problem {
    fn from(e: AskError) -> Self {
        let look = "`why` of the job says where it stands and what moves it";
        match &e {
            AskError::NotFound(id) => super::find::absent(*id),
            AskError::Finished { job, status } => conflict(ApiCode::JobFinished, &e)
                .field("id")
                .with("job", job.to_string())
                .with("job_status", status.clone())
                .fix(match status.as_str() {
                    "completed" => "fork it from a step, or submit it anew: both make a new job",
                    _ => "retry it, or fork it from a step: both make a new job",
                }),
            AskError::NobodyWaits { open, .. } => conflict(ApiCode::NobodyWaits, &e)
                .field("key")
                .with("open_keys", open.clone())
                .fix("use one of open_keys; or early: true, if the wait comes later"),
            AskError::TooLate { job, key } => conflict(ApiCode::TooLate, &e)
                .field("key")
                .with("job", job.to_string())
                .with("key", key.clone())
                .fix("look at what the job did instead; a fork from before the wait runs the work again"),
            AskError::TooLarge { what, name, found, max } => {
                P::new(StatusCode::PAYLOAD_TOO_LARGE, ApiCode::PayloadTooLarge, e.to_string())
                    .field(field_of(what))
                    .with("limit", *max)
                    .with("found", *found)
                    .with("setting", *name)
                    .fix("this limit is fixed: send a reference instead of the content")
            }
            AskError::Invalid(_) => {
                P::bad_field("body", e.to_string()).fix("see /v1/openapi.json for the form")
            }
            AskError::WrongKind { key, .. } => conflict(ApiCode::NotNow, &e)
                .field("key")
                .with("key", key.clone())
                .fix("send it as a signal: POST /v1/jobs/{id}/signal"),
            AskError::NotUnknown { step, .. } => conflict(ApiCode::EffectKnown, &e)
                .field("step")
                .with("step", step.0.clone())
                .fix("what a person has said about it can be corrected: `correct: true`, or `--correct`"),
            AskError::BadResult { violations, .. } => {
                let place = violations.first().map(|v| v.at.as_str()).unwrap_or_default();
                let found: Vec<Value> = violations
                    .iter()
                    .map(|v| json!({ "at": v.at, "says": v.says, "schema": v.schema }))
                    .collect();
                let status = StatusCode::UNPROCESSABLE_ENTITY;
                P::new(status, ApiCode::SchemaViolation, e.to_string())
                    .field(format!("result{place}"))
                    .with("violations", found)
                    .fix("send what the tool would have returned; GET /v1/tools shows its schema")
            }
            AskError::NotChecked { why, .. } => {
                let (status, wait) = match why {
                    NotChecked::TooCostly => (StatusCode::UNPROCESSABLE_ENTITY, None),
                    NotChecked::Late => (StatusCode::SERVICE_UNAVAILABLE, Some(1)),
                };
                let problem = P::new(status, ApiCode::SchemaViolation, e.to_string())
                    .field("result")
                    .fix("send a smaller result, or make the schema of the tool simpler");
                match wait {
                    Some(seconds) => problem.retry_after_s(seconds),
                    None => problem,
                }
            }
            AskError::NotCorrectable { step, fix, .. } => conflict(ApiCode::EffectKnown, &e)
                .field("step")
                .with("step", step.0.clone())
                .fix(fix.clone()),
            AskError::NothingToPause { status, .. }
            | AskError::NothingToResume { status, .. }
            | AskError::NotFailed { status, .. } => conflict(ApiCode::NotNow, &e)
                .field("id")
                .with("job_status", status.clone())
                .fix(look),
            AskError::Refused(_) => {
                P::new(StatusCode::CONFLICT, Code::Refused, e.to_string()).field("id").fix(look)
            }
            AskError::Store(_) => match e {
                AskError::Store(e) => e.into(),
                other => P::new(StatusCode::CONFLICT, Code::Refused, other.to_string()),
            },
        }
    }
}

impl From<LoadError> for Problem {
    fn from(e: LoadError) -> Self {
        match e {
            LoadError::Store(e) => e.into(),
            LoadError::Unreadable(why) => StoreError::Corrupt(why).into(),
        }
    }
}

impl From<SubmitError> for Problem {
    fn from(e: SubmitError) -> Self {
        match &e {
            SubmitError::UnknownFlow { flow, .. } => {
                P::new(StatusCode::UNPROCESSABLE_ENTITY, ApiCode::UnknownFlow, e.to_string())
                    .field("flow")
                    .with("flow", flow.clone())
                    .fix("GET /v1/flows lists what workers have registered")
            }
            SubmitError::BadTerms(bad) => P::bad_field(bad.field, bad.why.clone())
                .fix("docs/api.md says what start, gate, queue and needs can be"),
            SubmitError::OtherInput(job) => conflict(ApiCode::OtherInput, &e)
                .field("Idempotency-Key")
                .with("job", job.to_string())
                .fix("use another key for other input, or look at the job that has it"),
            SubmitError::BadOrigin(_) => conflict(ApiCode::NotNow, &e)
                .field("step")
                .fix("GET /v1/jobs/{id}/steps lists the steps of a job"),
            SubmitError::WouldRepeat(_) => conflict(ApiCode::NotNow, &e).field("step").fix(
                "settle what nobody knows (POST /v1/jobs/{id}/resolve), say from which step to go on \
                 (POST /v1/jobs/{id}/fork), or ask for it with `repeat: true`",
            ),
            SubmitError::TriedAgain { retry, .. } => conflict(ApiCode::NotNow, &e)
                .field("id")
                .with("job", retry.to_string())
                .fix("retry the newer job, or fork this one from a step"),
            SubmitError::Refused(_) => P::new(StatusCode::CONFLICT, Code::Refused, e.to_string())
                .field("body")
                .fix("change the request; repeating it does not help"),
            SubmitError::Store(_) => match e {
                SubmitError::Store(e) => e.into(),
                other => P::new(StatusCode::CONFLICT, Code::Refused, other.to_string()),
            },
        }
    }
}
