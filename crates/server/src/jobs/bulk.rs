//! One ask for many jobs: shown first, then done by a job of its own. What is done is what the token says, and the
//! token is what the preview gave: nothing is touched that the preview did not count. Anybody can write a token, so it says
//! what and when, never who: that is whoever sends it. It is good for [`TOKEN_LASTS`]: who says yes has just looked.

use super::{
    asks::verdict,
    body::{Json, required},
    documents::{BulkDocument, SubmittedDocument},
    find::who,
    submit::{created, tenant},
};
use crate::{App, Caller, Problem, keys::Scope, paging, problem::ProblemDocument};
use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::Duration;
use tenure_jobs::{
    Job,
    bulk::{self, Action, Filter, Order, PREVIEW_LOOKED_AT_MAX},
    submit::{Submission, SubmitError, Submitted},
};
use tenure_kernel::{machine::Machine as _, stream::Hash, time::Timestamp};
use tenure_steps::{
    canonical::{self, present},
    events::{StepId, WaitOutcome},
};
use utoipa::ToSchema;

/// How old a preview may be when it is acted upon.
const TOKEN_LASTS: Duration = Duration::from_secs(3_600);

/// Either a preview of an action, or the token of one.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Bulk {
    /// `cancel`, `pause`, `resume`, `retry`, `signal`, `approve`, `reject`, `resolve` or `discard`.
    action: Option<String>,
    /// Which jobs.
    filter: Which,
    /// Has to be `true` with an action.
    preview: bool,
    /// What a preview gave: does that, to the jobs that were counted and that it still fits. Good for an hour.
    token: Option<String>,
    /// Of cancel, pause and resume: why.
    why: Option<String>,
    /// Of signal, approve and reject: the correlation key.
    key: Option<String>,
    /// Of signal: what the flows get.
    payload: Value,
    /// Of signal: keep it where nobody waits yet.
    early: bool,
    /// Of resolve: the step.
    step: Option<String>,
    /// Of resolve: `happened`, `did_not_happen` or `abandoned`.
    verdict: Option<String>,
    /// Of resolve: the result, only and always with `happened`.
    #[serde(deserialize_with = "present")]
    result: Option<Value>,
    /// Of resolve: in words.
    note: Option<String>,
    /// Of retry: the flow's version; each job's own without one.
    version: Option<u32>,
    /// Who asks, for people; said with the token.
    by: Option<String>,
}

/// Which jobs; all that is said has to hold.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Which {
    /// Of this flow.
    flow: Option<String>,
    /// In these statuses, with commas between them.
    status: Option<String>,
    /// Of this tenant; only for callers whose key has none.
    tenant: Option<String>,
    /// Those that a person has to look at.
    attention: bool,
    /// Failed, or in attention, for this reason.
    reason: Option<String>,
    /// Created at this moment or later, in microseconds since 1970.
    created_after: Option<i64>,
    /// Created before this moment, in microseconds since 1970.
    created_before: Option<i64>,
}

/// What a token holds. It is no secret and no permission: who may do it is asked again.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Token {
    order: Order,
    tenant: String,
}

/// Shows what an action would do to many jobs; or does it, with the token that was shown.
#[utoipa::path(
    post, path = "/v1/jobs/bulk", tag = "jobs", request_body = Bulk,
    responses(
        (status = 200, description = "The preview: `count`, `exact`, the `first` jobs, `skipped` by reason, and the `token`. Or the job, which was there under this token.", body = BulkDocument),
        (status = 202, description = "A job that does it; `Location` names it, its output is the account.", body = SubmittedDocument),
        (status = 403, body = ProblemDocument),
        (status = 422, body = ProblemDocument),
    )
)]
pub(super) async fn bulk(
    State(app): State<App>,
    caller: Caller,
    Json(ask): Json<Bulk>,
) -> Result<Response, Problem> {
    caller.need(Scope::Write)?;
    match (&ask.token, &ask.action, ask.preview) {
        (Some(token), None, false) => execute(&app, &caller, token, ask.by.clone()).await,
        (Some(_), ..) => {
            Err(Problem::bad_field("token", "a token says everything: action, filter and time")
                .fix("send the token alone, or an action with preview: true"))
        }
        (None, _, true) => show(&app, &caller, ask).await,
        (None, _, false) => {
            Err(Problem::bad_field("preview", "an action on many jobs is shown first")
                .fix("send preview: true, look at the answer, then send its token"))
        }
    }
}

async fn show(app: &App, caller: &Caller, ask: Bulk) -> Result<Response, Problem> {
    let tenant = tenant(caller, ask.filter.tenant.clone())?;
    let filter = Filter {
        flow: ask.filter.flow.clone(),
        status: paging::statuses(Job::TABLE, ask.filter.status.as_deref())?,
        attention: ask.filter.attention,
        reason: ask.filter.reason.clone(),
        created_after: ask.filter.created_after.map(Timestamp::from_micros),
        created_before: ask.filter.created_before.map(Timestamp::from_micros),
    };
    let action = action(ask)?;
    let store = app.pipeline().store();
    let order = Order { action, filter, horizon: store.now().await?, by: None };
    let preview = bulk::preview(store, &order, &tenant).await?;
    let mut answer = serde_json::to_value(&preview).unwrap_or_default();
    answer["action"] = json!(order.action.name());
    answer["horizon"] = json!(order.horizon);
    answer["tenant"] = json!(tenant);
    answer["counted_up_to"] = json!(PREVIEW_LOOKED_AT_MAX);
    let token = serde_json::to_value(Token { order, tenant }).unwrap_or_default();
    answer["token"] = json!(BASE64_URL_SAFE_NO_PAD.encode(canonical::bytes(&token)));
    Ok(axum::Json(answer).into_response())
}

async fn execute(
    app: &App,
    caller: &Caller,
    text: &str,
    by: Option<String>,
) -> Result<Response, Problem> {
    let bad = || {
        Problem::bad_field("token", "this is no token of a preview")
            .fix("send the token of a preview, exactly as it was given")
    };
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).map_err(|_| bad())?;
    let token: Token = serde_json::from_slice(&bytes).map_err(|_| bad())?;
    let Token { mut order, tenant: whose } = token;
    // A token can be written by anybody; whose jobs it is about is the caller's right, not the token's word.
    let tenant = tenant(caller, Some(whose))?;
    in_time(order.horizon, app.pipeline().store().now().await?)?;
    // Sent twice, it is one job, whoever sends it: the key is what is done, without who does it.
    order.by = None;
    let what = canonical::bytes(&json!({ "order": order, "tenant": tenant }));
    let key = Some(format!("bulk/{}", Hash::of(&what)));
    let by = Some(who(caller, by));
    order.by.clone_from(&by);
    let (flow, input) = (bulk::FLOW.to_owned(), json!({ "order": order }));
    let submission = Submission { flow, input, tenant, key, by, ..Submission::default() };
    let submitted = match super::desk(app)?.submitter().submit(submission).await {
        // Somebody else sent it first, and it is on record as theirs.
        Err(SubmitError::OtherInput(id)) => Submitted { id, existed: true, near: false },
        other => other?,
    };
    created(app, submitted, None).await
}

/// Whether a preview of this moment may be acted upon.
fn in_time(shown: Timestamp, now: Timestamp) -> Result<(), Problem> {
    if shown > now {
        return Err(Problem::bad_field("token", "the token is from the future")
            .fix("send the token of a preview, exactly as it was given"));
    }
    if now.since(shown) > TOKEN_LASTS {
        let seconds = TOKEN_LASTS.as_secs();
        let detail = format!("the preview is older than TOKEN_LASTS, which is {seconds} seconds");
        return Err(Problem::bad_field("token", detail)
            .fix("send preview: true again, look at the answer, then send its token"));
    }
    Ok(())
}

fn action(ask: Bulk) -> Result<Action, Problem> {
    let name = required("action", ask.action)?;
    let why = ask.why;
    Ok(match name.as_str() {
        "cancel" => Action::Cancel { why },
        "pause" => Action::Pause { why },
        "resume" => Action::Resume { why },
        "retry" => Action::Retry { version: ask.version },
        "discard" => Action::Discard {},
        "signal" | "approve" | "reject" => {
            let outcome = match name.as_str() {
                "approve" => WaitOutcome::Approved,
                "reject" => WaitOutcome::Rejected,
                _ => WaitOutcome::Signalled,
            };
            let key = required("key", ask.key)?;
            Action::Signal { key, outcome, payload: ask.payload, early: ask.early }
        }
        "resolve" => {
            let step = StepId(required("step", ask.step)?);
            let (verdict, result) = verdict(&required("verdict", ask.verdict)?, ask.result)?;
            Action::Resolve { step, verdict, result, note: ask.note }
        }
        other => {
            let detail = format!(
                "action = {other:?}: there are cancel, pause, resume, retry, signal, approve, reject, resolve, discard"
            );
            return Err(Problem::bad_field("action", detail).fix("use one of these"));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_for_its_time_and_not_from_the_future() {
        let shown = Timestamp::from_micros(1_000_000);
        let moment = Duration::from_micros(1);
        assert!(in_time(shown, shown).is_ok());
        assert!(in_time(shown, shown + TOKEN_LASTS).is_ok());
        assert!(in_time(shown, shown + TOKEN_LASTS + moment).is_err());
        assert!(in_time(shown + moment, shown).is_err());
    }
}
