//! What a history says, read without the code that drives flows: events in, outcomes by step; and a plan walked
//! over them. What a job returned must be this.

use super::{
    plan::{FLOW, Node, Plan, failed},
    sagas::{Bound, Part},
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tenure_jobs::{Job, JobEvent, JobState, model::OwnEvent};
use tenure_kernel::{ids::EntityId, machine::decode_event, stream::Body, time::Timestamp};
use tenure_steps::{
    events::{CallOutcome, ResultType, StepEvent, TimerWhy, ValueKind, Verdict, WaitOutcome},
    saga::Undo,
};
use tenure_store::memory::Contents;

/// A step's value, or which step failed and why.
pub(super) type Said = Result<Value, (String, String)>;

/// An event and under which epoch and when it was written.
pub(super) struct Entry {
    pub event: JobEvent,
    pub epoch: u64,
    pub at: Timestamp,
}

/// A job's own events, in order.
pub(super) fn events(contents: &Contents, job: EntityId) -> Result<Vec<Entry>, String> {
    let mut all = Vec::new();
    for record in contents.streams.get(&job).map_or(&[][..], Vec::as_slice) {
        for mut event in record.events().map_err(|e| format!("{job}: {e}"))? {
            if let Body::Blob { digest, .. } = event.body {
                let blob = contents.blobs.get(&digest);
                event.body = Body::Inline(blob.ok_or("a blob is gone")?.0.clone());
            }
            let read = decode_event::<Job>(&event.name, &event.body);
            if let Some(read) = read.map_err(|e| format!("{job}: {e}"))? {
                all.push(Entry { event: read, epoch: event.epoch, at: event.at });
            }
        }
    }
    Ok(all)
}

/// What a completed job returned.
pub(super) fn output(events: &[Entry]) -> Option<&Value> {
    events.iter().find_map(|e| match &e.event {
        JobEvent::Own(OwnEvent::JobCompleted { output, .. }) => Some(output),
        _ => None,
    })
}

/// What a child returned that was too large to tell.
fn returned(contents: &Contents, job: EntityId, ordinal: u32) -> Result<Value, String> {
    let child = JobState::child_id(job, ordinal);
    let events = events(contents, child)?;
    output(&events).cloned().ok_or_else(|| format!("{child} is completed and returned nothing"))
}

/// What the last run of a flow was told.
#[derive(Default)]
pub(super) struct Told {
    pub plan: Option<Plan>,
    run: u32,
    steps: BTreeMap<String, Said>,
    values: BTreeMap<String, Value>,
    sleeps: Vec<String>,
    /// What is registered to be undone: where, what, and by which tool.
    undos: Vec<(String, String, String)>,
}

impl Told {
    pub(super) fn read(
        job: EntityId,
        events: &[Entry],
        contents: &Contents,
    ) -> Result<Self, String> {
        let mut told = Told::default();
        for entry in events {
            match &entry.event {
                // Others have no plan, and a retry has been told a part of it elsewhere.
                JobEvent::Own(OwnEvent::JobCreated(new))
                    if new.flow != FLOW || new.retry_of.is_some() =>
                {
                    return Ok(told);
                }
                JobEvent::Own(OwnEvent::JobCreated(new)) => told.begin(&new.input)?,
                JobEvent::Own(OwnEvent::JobContinued { input }) => told.begin(input)?,
                JobEvent::Own(_) => {}
                JobEvent::Step(step) => told.take(step, |child| returned(contents, job, child))?,
            }
        }
        Ok(told)
    }

    fn begin(&mut self, input: &Value) -> Result<(), String> {
        let plan = serde_json::from_value(input.clone()).map_err(|e| e.to_string())?;
        *self = Told { plan: Some(plan), run: self.run + 1, ..Told::default() };
        Ok(())
    }

    fn done(&mut self, step: &str, said: Result<Value, String>) {
        let said = said.map_err(|why| (step.to_owned(), why));
        self.steps.entry(step.to_owned()).or_insert(said);
    }

    fn take(
        &mut self,
        event: &StepEvent,
        returned: impl Fn(u32) -> Result<Value, String>,
    ) -> Result<(), String> {
        match event {
            StepEvent::ToolInvocationFinished {
                step,
                outcome: CallOutcome::Success,
                result,
                ..
            } => self.done(&step.0, Ok(result.clone().unwrap_or_default())),
            StepEvent::EffectSettled { step, verdict: Verdict::Happened, result, .. } => {
                self.done(&step.0, Ok(result.clone().unwrap_or_default()));
            }
            StepEvent::NodeFinished { step, result_type, reason, error, .. } => {
                if matches!(result_type, ResultType::PermanentFailure) {
                    let why = error.clone().or_else(|| reason.clone()).unwrap_or_default();
                    self.done(&step.0, Err(why));
                }
            }
            StepEvent::ValueRecorded { step, kind, value, .. } => {
                if let (ValueKind::Undo, Some(undo)) = (kind, Undo::read(step, value)) {
                    self.undos.push((step.0.clone(), undo.of.0, undo.tool));
                }
                if matches!(kind, ValueKind::Pure | ValueKind::Random | ValueKind::Race) {
                    self.values.insert(step.0.clone(), value.clone());
                }
            }
            StepEvent::WaitCompleted { step, outcome, payload, by, .. } => {
                let approved = *outcome == WaitOutcome::Approved;
                let said = match outcome {
                    WaitOutcome::Expired => Err("nothing came in time".to_owned()),
                    WaitOutcome::Signalled => Ok(payload.clone()),
                    WaitOutcome::Approved | WaitOutcome::Rejected => {
                        Ok(json!({ "approved": approved, "by": by, "payload": payload }))
                    }
                };
                self.done(&step.0, said);
            }
            StepEvent::TimerSet { step, why: TimerWhy::Sleep, .. } => {
                self.sleeps.push(step.0.clone());
            }
            StepEvent::TimerFired { step } if self.sleeps.contains(&step.0) => {
                self.done(&step.0, Ok(Value::Null));
            }
            StepEvent::ChildEnded { step, ordinal, status, output: told, error } => {
                let said = match (status.as_str(), told) {
                    ("completed", Some(output)) => Ok(output.clone()),
                    ("completed", None) => Ok(returned(*ordinal)?),
                    (status, _) => {
                        Err(error.clone().unwrap_or_else(|| format!("the child is {status}")))
                    }
                };
                self.done(&step.0, said);
            }
            _ => {}
        }
        Ok(())
    }

    /// What the plan comes to. `None`: something that it needs is not recorded.
    pub(super) fn walk(&self, node: &Node) -> Option<Said> {
        let prefix = if self.run > 1 { format!("{}:", self.run) } else { String::new() };
        Walk { told: self, prefix, count: 0 }.node(node)
    }
}

struct Walk<'a> {
    told: &'a Told,
    prefix: String,
    count: u32,
}

impl Walk<'_> {
    fn next(&mut self) -> String {
        self.count += 1;
        format!("{}{}", self.prefix, self.count)
    }

    fn branch(&mut self) -> Self {
        let prefix = format!("{}.", self.next());
        Walk { told: self.told, prefix, count: 0 }
    }

    fn node(&mut self, node: &Node) -> Option<Said> {
        match node {
            Node::Big | Node::Random => self.told.values.get(&self.next()).cloned().map(Ok),
            Node::Tool { .. }
            | Node::Sleep(_)
            | Node::Signal { .. }
            | Node::Approval { .. }
            | Node::Child(_) => self.told.steps.get(&self.next()).cloned(),
            Node::Seq(nodes) => {
                let mut out = Vec::new();
                for node in nodes {
                    match self.node(node)? {
                        Ok(value) => out.push(value),
                        failed => return Some(failed),
                    }
                }
                Some(Ok(Value::from(out)))
            }
            Node::Par(nodes) => {
                let branches: Vec<_> = nodes.iter().map(|_| self.branch()).collect();
                let all = branches.into_iter().zip(nodes).map(|(mut b, node)| b.node(node));
                let all: Option<Vec<Said>> = all.collect();
                Some(all?.into_iter().collect::<Result<Vec<Value>, _>>().map(Value::from))
            }
            Node::Race(a, b) => {
                let (mut left, mut right) = (self.branch(), self.branch());
                match self.told.values.get(&self.next())?.as_u64()? {
                    0 => left.node(a),
                    _ => right.node(b),
                }
            }
            Node::Try(node) => Some(Ok(match self.node(node)? {
                Ok(value) => value,
                Err((step, why)) => failed(&step, &why),
            })),
            Node::Saga(parts) => self.saga(parts),
        }
    }

    fn saga(&mut self, parts: &[Part]) -> Option<Said> {
        // Where it would be said that all of it is complete.
        self.next();
        let (mut out, mut places) = (Vec::new(), Vec::new());
        for part in parts {
            let said = match part {
                Part::One(bound) => self.bound(bound, &mut places)?,
                Part::Beside(all) => {
                    let branches: Vec<_> = all.iter().map(|_| self.branch()).collect();
                    let each = branches.into_iter().zip(all);
                    let all: Option<Vec<Said>> =
                        each.map(|(mut b, bound)| b.bound(bound, &mut places)).collect();
                    all?.into_iter().collect::<Result<Vec<Value>, _>>().map(Value::from)
                }
                Part::Other(node) => self.node(node)?,
            };
            match said {
                Ok(value) => out.push(value),
                Err((step, why)) => return Some(Err((step, why + &self.undone(&places)?))),
            }
        }
        Some(Ok(Value::from(out)))
    }

    fn bound(&mut self, _: &Bound, places: &mut Vec<String>) -> Option<Said> {
        let step = self.next();
        places.push(self.next());
        self.told.steps.get(&step).cloned()
    }

    /// What a saga says when it has failed, behind the reason for it.
    fn undone(&self, places: &[String]) -> Option<String> {
        let (mut undone, mut left) = (Vec::new(), Vec::new());
        for (at, of, tool) in self.told.undos.iter().rev().filter(|u| places.contains(&u.0)) {
            let name = format!("step {of} (by {tool})");
            match self.told.steps.get(&format!("{at}u"))? {
                Ok(_) => undone.push(name),
                Err((_, why)) => left.push(format!("{name}: {why}")),
            }
        }
        let list = |what: &str, all: Vec<String>| match all.is_empty() {
            true => String::new(),
            false => format!("; {what}: {}", all.join(", ")),
        };
        Some(list("undone", undone) + &list("could not be undone", left))
    }
}
