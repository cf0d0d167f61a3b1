//! What people and late workers have said about calls: on record, and beside the history of a job that is over.

use super::{Order, done_well, run_events};
use crate::{decide::given_up, drive::LoadError, model::JobEvent, view::stream};
use serde_json::Value;
use std::sync::Arc;
use tenure_kernel::{ids::EntityId, store::Store, stream::Body};
use tenure_steps::{
    events::{ResultType, SettledBy, StepEvent, StepId, Verdict},
    history::Shape,
};

/// The member of evidence that says that it corrects what was said before.
pub(crate) const CORRECTS: &str = "corrects";

/// What was said about a call beside the history.
pub(super) struct Said {
    pub(super) key: String,
    pub(super) call: u32,
    pub(super) verdict: Verdict,
    pub(super) result: Value,
    pub(super) by: Speaker,
}

/// Who has said something beside the history.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Speaker {
    /// A worker that came late with its result.
    Worker,
    /// A person.
    Person,
    /// A person who takes back what a person said.
    Corrector,
}

impl Said {
    /// Of what was said about one call, in order, what counts: what a worker has seen; else the last correction; else
    /// whoever says that it happened, because that does nothing twice.
    fn counting<'a>(about: impl Iterator<Item = &'a Said> + Clone) -> Option<&'a Said> {
        let worker = about.clone().find(|s| s.by == Speaker::Worker);
        let correction = || about.clone().filter(|s| s.by == Speaker::Corrector).last();
        let happened = || about.clone().find(|s| s.verdict == Verdict::Happened);
        worker.or_else(correction).or_else(happened).or_else(|| about.clone().next())
    }

    fn settled(&self, step: &StepId, note: &str) -> StepEvent {
        StepEvent::EffectSettled {
            step: step.clone(),
            key: self.key.clone(),
            call: self.call,
            verdict: self.verdict,
            by: match self.by {
                Speaker::Worker => SettledBy::Evidence,
                Speaker::Person | Speaker::Corrector => SettledBy::Person,
            },
            note: Some(note.to_owned()),
            result: (self.verdict == Verdict::Happened).then(|| self.result.clone()),
        }
    }
}

pub(super) async fn said_about(
    store: &Arc<dyn Store>,
    job: EntityId,
) -> Result<Vec<Said>, LoadError> {
    let mut all = Vec::new();
    for evidence in store.evidence(job).await? {
        let said = evidence.said;
        let bytes = match said.body {
            Body::Inline(bytes) => Some(bytes),
            Body::Blob { digest, .. } => store.blob(digest).await?,
        };
        let body: Option<Value> = bytes.and_then(|b| tenure_kernel::stored::from_slice(&b).ok());
        let Some(mut body) = body else { continue };
        let result = body.get_mut("result").map(Value::take);
        let verdict = body.get("verdict").and_then(|v| serde_json::from_value(v.clone()).ok());
        let by = match (&verdict, body.get(CORRECTS)) {
            (None, _) => Speaker::Worker,
            (Some(_), None) => Speaker::Person,
            (Some(_), Some(_)) => Speaker::Corrector,
        };
        // A worker that came late with its result gives no verdict: it has seen it happen.
        let verdict: Option<Verdict> = verdict.or(result.is_some().then_some(Verdict::Happened));
        let Some(verdict) = verdict else { continue };
        let result = result.unwrap_or_default();
        all.push(Said { key: said.key, call: said.call, verdict, result, by });
    }
    Ok(all)
}

/// The events, and those that settle calls of which somebody has said later what became of them. A job that ends says of an
/// open call that its step has failed; where it happened, it has not.
pub(super) fn with_settled(mut events: Vec<StepEvent>, said: &[Said]) -> Vec<StepEvent> {
    let order = Order::of(&events);
    for step in order.steps() {
        let calls = order.record(step).map_or(&[][..], |r| &r.calls);
        for open in calls.iter().filter(|c| c.is_open()) {
            let about = || said.iter().filter(|s| s.key == open.key && s.call == open.call);
            let Some(heard) = Said::counting(about()) else { continue };
            let happened = heard.verdict == Verdict::Happened;
            let (key, call) = (open.key.clone(), open.call);
            let settled = heard.settled(step, "said after the end");
            if !happened {
                events.push(settled);
                continue;
            }
            events.retain(|e| !gives_up(e, step));
            events.push(settled);
            events.push(StepEvent::CommandCommitted { step: step.clone(), key, call });
            events.push(done_well(&events, step));
        }
    }
    events
}

/// The events with what was corrected after the end in place of what a person had said, and for each such step the steps that
/// the flow asked for when it knew that.
pub(super) fn with_corrections(
    mut events: Vec<StepEvent>,
    said: &[Said],
) -> (Vec<StepEvent>, Vec<(StepId, Vec<StepId>)>) {
    let order = Order::of(&events);
    let mut corrected = Vec::new();
    for step in order.steps() {
        let Some(last) = order.record(step).and_then(|r| r.calls.last()) else { continue };
        let corrects =
            |s: &&Said| s.key == last.key && s.call == last.call && s.by == Speaker::Corrector;
        let Some(now) = said.iter().rfind(corrects) else { continue };
        let Some(settled) = settled_by_person(&events, step, &last.key, last.call) else {
            continue;
        };
        if (settled.verdict, &settled.result) == (now.verdict, &now.result) {
            continue;
        }
        let users = order.steps().into_iter().filter(|s| order.knew(s, step)).cloned().collect();
        corrected.push((step.clone(), users));
        events.retain(|e| !told_outcome(e, step, &last.key, last.call));
        events.push(now.settled(step, "corrected after the end"));
        match now.verdict {
            Verdict::Happened => {
                let (key, call) = (last.key.clone(), last.call);
                events.push(StepEvent::CommandCommitted { step: step.clone(), key, call });
                let done = done_well(&events, step);
                events.push(done);
            }
            Verdict::Abandoned => {
                if let JobEvent::Step(event) = given_up(step.clone()) {
                    events.push(event);
                }
            }
            Verdict::DidNotHappen | Verdict::Compensated | Verdict::CalledAgain => {}
        }
    }
    (events, corrected)
}

/// Whether it says how a call ended, or that the step is over with it.
fn told_outcome(event: &StepEvent, of: &StepId, of_key: &str, of_call: u32) -> bool {
    match event {
        StepEvent::EffectSettled { step, key, call, .. }
        | StepEvent::EffectCorrected { step, key, call, .. }
        | StepEvent::CommandCommitted { step, key, call } => {
            step == of && key == of_key && *call == of_call
        }
        StepEvent::NodeFinished { step, result_type, .. } => step == of && result_type.settles(),
        _ => false,
    }
}

/// What a person has said about the last call of a step, and counts.
pub(crate) struct Settlement {
    pub tool: String,
    /// The call was made by a worker that does not run the flow.
    pub handed: bool,
    pub key: String,
    pub call: u32,
    pub verdict: Verdict,
    /// `null` where it did not happen.
    pub result: Value,
    /// If it happened, the flow says what undoes it.
    pub undoable: bool,
    /// The first step that the flow asked for when it knew this.
    pub used_by: Option<StepId>,
}

struct Word {
    verdict: Verdict,
    result: Value,
}

/// What is on record about a call, if a person has said it.
fn settled_by_person(
    events: &[StepEvent],
    of: &StepId,
    of_key: &str,
    of_call: u32,
) -> Option<Word> {
    let last = events.iter().rev().find_map(|event| match event {
        StepEvent::EffectSettled { step, key, call, verdict, by, result, .. }
            if step == of && key == of_key && *call == of_call =>
        {
            Some((*by == SettledBy::Person).then_some((*verdict, result)))
        }
        StepEvent::EffectCorrected { step, key, call, verdict, result, .. }
            if step == of && key == of_key && *call == of_call =>
        {
            Some(Some((*verdict, result)))
        }
        _ => None,
    });
    let (verdict, result) = last.flatten()?;
    Some(Word { verdict, result: result.clone().unwrap_or_default() })
}

/// What a person has said about the last call of a step. `None` where no person has, or a later call was begun.
pub(crate) async fn settlement(
    store: &Arc<dyn Store>,
    job: EntityId,
    step: &StepId,
) -> Result<Option<Settlement>, LoadError> {
    let (_, events) = run_events(&stream::read(store, job).await?)?;
    let order = Order::of(&events);
    let Some(record) = order.record(step) else { return Ok(None) };
    let (Shape::Tool { tool, .. }, Some(call)) = (&record.shape, record.calls.last()) else {
        return Ok(None);
    };
    let Some(mut word) = settled_by_person(&events, step, &call.key, call.call) else {
        return Ok(None);
    };
    let corrects =
        |s: &Said| s.key == call.key && s.call == call.call && s.by == Speaker::Corrector;
    if let Some(last) = said_about(store, job).await?.into_iter().rfind(corrects) {
        word = Word { verdict: last.verdict, result: last.result };
    }
    let undoable = events.iter().any(|event| {
        matches!(event, StepEvent::ToolInvocationStarted { key, call: n, undoable: true, .. }
            if *key == call.key && *n == call.call)
    });
    Ok(Some(Settlement {
        tool: tool.clone(),
        handed: call.hand.handed,
        key: call.key.clone(),
        call: call.call,
        verdict: word.verdict,
        result: word.result,
        undoable,
        used_by: order.steps().into_iter().find(|s| order.knew(s, step)).cloned(),
    }))
}

fn gives_up(event: &StepEvent, of: &StepId) -> bool {
    matches!(event, StepEvent::NodeFinished { step, result_type, .. }
        if step == of && *result_type == ResultType::PermanentFailure)
}
