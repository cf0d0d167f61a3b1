//! Unknown effects and dead letters: what only a person can say.

use super::{
    AskAnswer, AskError, DISCARDED, DeadLetters, ResolveAnswer, ResolveAsk,
    correct::correct,
    send::{Sent, json_within, look, record, send, unreadable, words},
};
use crate::{
    catalogue,
    decide::{ResolveMail, mail},
    model::{Job, OpenCall},
    view,
};
use serde_json::{Value, json};
use std::sync::Arc;
use tenure_engine::pipeline::Pipeline;
use tenure_kernel::{
    error::StoreError,
    evidence::Evidence,
    head::Head,
    ids::EntityId,
    limits as kernel_limits,
    machine::Machine as _,
    store::{HeadFilter, Store},
    stream::Body,
    table::Class,
    time::Timestamp,
};
use tenure_schema::Schema;
use tenure_steps::events::{StepId, Verdict};

/// Violations of a schema that are told.
const VIOLATIONS_MAX: usize = 8;

/// Says what became of an unknown effect, or corrects what a person has said about one. After the end it is kept beside the
/// history. A result has to fit the output schema of the tool, where a worker has registered one: a flow that gets something
/// else fails, and so does its retry.
pub async fn resolve(
    pipeline: &Pipeline,
    job: EntityId,
    tenant: Option<&str>,
    ask: ResolveAsk,
) -> Result<ResolveAnswer, AskError> {
    if !matches!(ask.verdict, Verdict::Happened | Verdict::DidNotHappen | Verdict::Abandoned) {
        let why = "a person can say: happened, did_not_happen or abandoned".to_owned();
        return Err(AskError::Invalid(why));
    }
    json_within("the result in bytes", &ask.result)?;
    words(ask.by.as_deref(), ask.note.as_deref())?;
    let (head, state) = look(pipeline, job, tenant).await?;
    let is_final = head.class() == Class::Final;
    let open = |c: &&OpenCall| c.step == ask.step && (is_final || c.unknown.is_some());
    let Some(call) = state.calls.iter().find(open) else {
        if ask.correct {
            return correct(pipeline, &head, &state, ask).await;
        }
        let why = known_about(pipeline.store(), job, &ask.step).await?;
        return Err(AskError::NotUnknown { step: ask.step, why });
    };
    fits(pipeline, &head.tenant, &call.tool, call.out.is_some(), &ask).await?;
    if is_final {
        let (key, number) = (call.key.clone(), call.call);
        return after_the_end(pipeline, &head, (&key, number), &ask).await;
    }
    let ResolveAsk { step, verdict, result, by, note, correct: _ } = ask;
    // The same id whatever the verdict: the first to speak is heard, and the next one is told so.
    let id = format!("resolve/{}/{}", call.key, call.call);
    let of = Some((call.key.clone(), call.call));
    let body = Body::json(&ResolveMail { step: step.clone(), of, verdict, result, by, note });
    match send(pipeline, job, mail::RESOLVE, id.clone(), body.clone()).await? {
        Sent::Accepted(_) => Ok(ResolveAnswer::Accepted),
        Sent::Duplicate => {
            let unread =
                pipeline.store().mail(job, head.mail_read, kernel_limits::MAIL_PER_DECISION_MAX);
            let same = unread.await?.iter().any(|m| m.id.0 == id && m.body == body);
            match same {
                true => Ok(ResolveAnswer::Duplicate),
                false => {
                    let why = "somebody has just said what became of it".to_owned();
                    Err(AskError::NotUnknown { step, why })
                }
            }
        }
    }
}

/// Whether the tool could have returned this.
pub(super) async fn fits(
    pipeline: &Pipeline,
    tenant: &str,
    tool: &str,
    handed: bool,
    ask: &ResolveAsk,
) -> Result<(), AskError> {
    if ask.verdict != Verdict::Happened {
        return Ok(());
    }
    let schema = catalogue::output_schema(pipeline.store(), tenant, tool, handed).await?;
    // What is no schema refuses nothing, as everywhere.
    let Ok(schema) = Schema::stored(&schema) else { return Ok(()) };
    let step = ask.step.clone();
    match schema.check_beside(pipeline.rt(), tenant, &ask.result, VIOLATIONS_MAX).await {
        Ok(violations) if violations.is_empty() => Ok(()),
        Ok(violations) => Err(AskError::BadResult { step, tool: tool.to_owned(), violations }),
        Err(why) => Err(AskError::NotChecked { step, why }),
    }
}

/// Keeps what was said beside the history of a job that is over.
pub(super) async fn after_the_end(
    pipeline: &Pipeline,
    head: &Head,
    (key, call): (&str, u32),
    ask: &ResolveAsk,
) -> Result<ResolveAnswer, AskError> {
    let ResolveAsk { verdict, result, by, note, .. } = ask;
    let who = by.clone().unwrap_or_else(|| "somebody".into());
    let mut said = json!({ "verdict": verdict, "result": result, "by": by, "note": note });
    if ask.correct {
        // With its number it is not what somebody said before the last correction.
        let before = pipeline.store().evidence(head.id).await?;
        let of_call = |e: &&Evidence| e.said.key == key && e.said.call == call;
        let same = |e: &Evidence| says(&e.said.body, *verdict, result);
        if before.iter().rfind(of_call).is_some_and(same) {
            return Ok(ResolveAnswer::Duplicate);
        }
        said[view::CORRECTS] = json!(before.iter().filter(of_call).count());
    }
    match record(pipeline, head, key, call, who, said).await? {
        true => Ok(ResolveAnswer::RecordedAfterTheEnd),
        false => Ok(ResolveAnswer::Duplicate),
    }
}

/// What is known about a step, for somebody who thinks that nothing is.
async fn known_about(
    store: &Arc<dyn Store>,
    job: EntityId,
    step: &StepId,
) -> Result<String, AskError> {
    let detail = view::detail(store, job).await.map_err(unreadable)?;
    let steps = detail.map(|d| d.steps).unwrap_or_default();
    let Some(found) = steps.iter().find(|s| s.step == *step) else {
        let known: Vec<&str> = steps.iter().map(|s| s.step.0.as_str()).collect();
        return Ok(match known.is_empty() {
            true => "the job has no steps yet".into(),
            false => format!("there is no such step; the job has {}", known.join(", ")),
        });
    };
    let last = found.calls.last().map(|c| c.state.as_str());
    Ok(match (found.outcome.as_str(), last) {
        ("ok", Some("happened")) => "it was settled as happened".into(),
        ("ok", _) => "it is done, and its result is recorded".into(),
        ("failed", Some("abandoned")) => "it was given up".into(),
        ("failed", _) => "it failed, and nothing of it is unknown".into(),
        (_, Some("started")) => "its call runs, or its worker has not been missed yet".into(),
        (_, Some("did_not_happen" | "failure" | "cancelled")) => {
            "its last call was not applied, and it is tried again".into()
        }
        _ => format!("it is a {}, and has no effect", found.kind),
    })
}

/// Puts a failed job aside: it is no dead letter any more.
pub async fn discard(
    pipeline: &Pipeline,
    job: EntityId,
    tenant: Option<&str>,
    by: &str,
) -> Result<AskAnswer, AskError> {
    words(Some(by), None)?;
    let (head, _) = look(pipeline, job, tenant).await?;
    if head.status.name() != "failed" {
        let status = head.status.name().to_owned();
        return Err(AskError::NotFailed { job, status });
    }
    if is_discarded(pipeline.store(), job).await? {
        return Ok(AskAnswer::Already);
    }
    match record(pipeline, &head, DISCARDED, 0, by.to_owned(), json!({ "by": by })).await? {
        true => Ok(AskAnswer::Accepted),
        false => Ok(AskAnswer::Already),
    }
}

async fn is_discarded(store: &Arc<dyn Store>, job: EntityId) -> Result<bool, StoreError> {
    Ok(store.evidence(job).await?.iter().any(|e| e.said.key == DISCARDED))
}

/// A call of a failed job whose outcome nobody has said: it stays listed until somebody does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftUnknown {
    /// The job.
    pub job: EntityId,
    /// Which step.
    pub step: StepId,
    /// Since when the job is over.
    pub since: Timestamp,
}

/// What of these failed jobs is still unknown.
pub async fn left_unknown(
    store: &Arc<dyn Store>,
    jobs: &[view::JobView],
) -> Result<Vec<LeftUnknown>, StoreError> {
    let mut left = Vec::new();
    for job in jobs {
        let steps: Vec<&StepId> = job.failure.iter().flat_map(|f| &f.unknown).collect();
        if steps.is_empty() {
            continue;
        }
        // What a person said after the end lies beside the history, under the call.
        let said = store.evidence(job.id).await?;
        for call in job.running.iter().filter(|c| steps.contains(&&c.step)) {
            let of_call = |e: &&Evidence| e.said.key == call.key && e.said.call == call.call;
            if !said.iter().filter(of_call).any(|e| tells(&e.said.body)) {
                let (job, step, since) = (job.id, call.step.clone(), job.changed_at);
                left.push(LeftUnknown { job, step, since });
            }
        }
    }
    Ok(left)
}

/// Whether evidence says just this about a call.
fn says(body: &Body, verdict: Verdict, result: &Value) -> bool {
    let said = body.inline().and_then(|b| tenure_kernel::stored::from_slice::<Value>(b).ok());
    said.is_some_and(|said| said["verdict"] == json!(verdict) && said["result"] == *result)
}

/// Whether evidence about a call says what became of it. That no code of it runs any more does not.
fn tells(body: &Body) -> bool {
    // One that is too large to lie here holds a result.
    let Some(bytes) = body.inline() else { return true };
    let said: Value = tenure_kernel::stored::from_slice(bytes).unwrap_or_default();
    said.get("verdict").is_some() || said.get("result").is_some() || said["called"] == false
}

/// Failed jobs that nobody has put aside, the newest first. A page may be short, or empty, and not be the
/// last: one call looks at a bounded number of jobs.
pub async fn dead_letters(
    store: &Arc<dyn Store>,
    tenant: Option<&str>,
    before: Option<EntityId>,
    limit: usize,
) -> Result<DeadLetters, StoreError> {
    const LOOKED_AT_MAX: usize = 1_000;
    let mut page = DeadLetters { jobs: Vec::new(), next: before };
    let mut looked = 0;
    loop {
        let filter = HeadFilter {
            kind: Some(Job::TABLE.kind.into()),
            status: Some("failed".into()),
            tenant: tenant.map(str::to_owned),
            before: page.next,
            newest_first: true,
            ..HeadFilter::default()
        };
        let heads = store.heads(filter, limit.clamp(1, 200)).await?;
        if heads.is_empty() {
            page.next = None;
            return Ok(page);
        }
        for head in &heads {
            if page.jobs.len() >= limit || looked >= LOOKED_AT_MAX {
                return Ok(page);
            }
            looked += 1;
            page.next = Some(head.id);
            if !is_discarded(store, head.id).await? {
                page.jobs.push(view::view(store, head).await?);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_a_call_is_over_does_not_say_what_became_of_it() {
        let says = |said: Value| tells(&Body::json(&said));
        assert!(!says(json!({ "step": "2", "over": true })));
        assert!(says(json!({ "step": "2", "over": true, "called": false })));
        assert!(says(json!({ "step": "2", "result": null })));
        assert!(says(json!({ "step": "2", "verdict": "happened" })));
    }
}
