//! What the buttons do. Each is one call of what the API calls; an answer that is no success comes back on the
//! page, above the job as it is now.

use super::{
    cache::Console,
    guard::{Presser, said},
    job::Shown,
    one::{Entity as _, pressed},
};
use crate::{App, Caller, Problem};
use axum::{
    Extension,
    body::Bytes,
    extract::{Path, State},
    response::Response,
};
use serde_json::{Value, json};
use std::{collections::HashMap, sync::Arc};
use tenure_jobs::{
    ask::{self, ResolveAsk, SignalAsk},
    decide::AskMail,
};
use tenure_kernel::ids::EntityId;
use tenure_steps::events::{StepId, Verdict, WaitOutcome};

/// The fields of a form.
struct Fields(HashMap<String, String>);

impl Fields {
    fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|v| v.trim()).filter(|v| !v.is_empty())
    }

    fn need(&self, name: &str) -> Result<String, Problem> {
        let text = self.text(name).map(str::to_owned);
        text.ok_or_else(|| Problem::bad_field(name, format!("the {name} is missing")))
    }

    fn json(&self, name: &str) -> Result<Value, Problem> {
        let Some(text) = self.text(name) else { return Ok(Value::Null) };
        serde_json::from_str(text)
            .map_err(|e| Problem::bad_field(name, format!("the {name} is not JSON: {e}")))
    }
}

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
    let fields = form_urlencoded::parse(&body).into_owned().collect();
    let done = carry_out(&app, &caller, id, &action, &Fields(fields)).await;
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
    let (pipeline, tenant) = (app.pipeline(), caller.tenant.as_deref());
    let by = Some(match caller.key {
        Some(key) => format!("key {key}"),
        None => "console".to_owned(),
    });
    let mail = AskMail { by: by.clone(), why: fields.text("why").map(str::to_owned) };
    match action {
        "answer" => {
            let outcome = match fields.text("outcome") {
                Some("approved") => WaitOutcome::Approved,
                Some("rejected") => WaitOutcome::Rejected,
                _ => return Err(Problem::bad_field("outcome", "approve or reject, nothing else")),
            };
            let comment = fields.text("comment").map(|c| json!({ "comment": c }));
            let payload = comment.unwrap_or(Value::Null);
            let ask = SignalAsk { key: fields.need("key")?, outcome, payload, by, early: false };
            ask::signal(pipeline, id, tenant, ask).await?;
        }
        "signal" => {
            let (outcome, payload) = (WaitOutcome::Signalled, fields.json("payload")?);
            let ask = SignalAsk { key: fields.need("key")?, outcome, payload, by, early: false };
            ask::signal(pipeline, id, tenant, ask).await?;
        }
        "cancel" => drop(ask::cancel(pipeline, id, tenant, mail).await?),
        "pause" => drop(ask::pause(pipeline, id, tenant, mail).await?),
        "resume" => drop(ask::resume(pipeline, id, tenant, mail).await?),
        "resolve" => {
            let verdict = match fields.text("verdict") {
                Some("happened") => Verdict::Happened,
                Some("did_not_happen") => Verdict::DidNotHappen,
                Some("abandoned") => Verdict::Abandoned,
                _ => {
                    let why = "it happened, it did not, or it is given up";
                    return Err(Problem::bad_field("verdict", why));
                }
            };
            let step = StepId(fields.need("step")?);
            let result = match verdict {
                Verdict::Happened => fields.json("result")?,
                _ => Value::Null,
            };
            let note = fields.text("note").map(str::to_owned);
            let ask = ResolveAsk { step, verdict, result, by, note };
            ask::resolve(pipeline, id, tenant, ask).await?;
        }
        "retry" => return retry(app, caller, id, fields.text("step"), by).await,
        other => return Err(Problem::not_found(format!("action {other:?}"))),
    }
    Ok(id)
}

async fn retry(
    app: &App,
    caller: &Caller,
    id: EntityId,
    step: Option<&str>,
    by: Option<String>,
) -> Result<EntityId, Problem> {
    let absent = || Problem::not_found(format!("job {id}"));
    let head = app.pipeline().store().head(id).await?;
    head.filter(|h| caller.sees(&h.tenant)).ok_or_else(absent)?;
    // Pages are only served where there are jobs.
    let desk = app.jobs().ok_or_else(absent)?;
    Ok(desk.submitter().fork(id, step.map(|s| StepId(s.to_owned())), None, by).await?.id)
}
