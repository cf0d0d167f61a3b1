//! Tool calls of agents as jobs: the job's parent is the turn, and its end answers the wait with the same number.

use serde_json::json;
use tenure_agents::drive::{
    calls::{Jobs, Order},
    profile::Run,
};
use tenure_jobs::{
    Job, JobState,
    drive::JobOptions,
    model::{NewJob, Parent},
};
use tenure_kernel::{
    ids::EntityId,
    machine::Machine as _,
    outbox::{Message, Target},
    stream::Body,
};

/// The flow that calls one tool, whoever has it.
const ONE_CALL: &str = "call";

/// Makes jobs of calls.
#[derive(Clone, Debug)]
pub struct AsJobs {
    takeovers_max: u32,
}

impl Default for AsJobs {
    fn default() -> Self {
        AsJobs { takeovers_max: JobOptions::default().takeovers_max }
    }
}

impl Jobs for AsJobs {
    fn job(&self, order: &Order<'_>) -> (EntityId, Message) {
        let (flow, version, input) = match order.run {
            Run::Flow { name, version } => (name.clone(), *version, order.arguments.clone()),
            Run::Tool(tool) => {
                (ONE_CALL.to_owned(), 1, json!({ "tool": tool, "input": order.arguments }))
            }
            // Agents and those outside are asked without a job; nothing else comes here.
            Run::Agent(_) | Run::External { .. } => (ONE_CALL.to_owned(), 1, json!({})),
        };
        let new = NewJob {
            flow,
            version,
            input,
            must_end_in_ms: order.must_end_in_ms,
            takeovers_max: self.takeovers_max,
            parent: Some(Parent { job: order.turn, ordinal: order.ordinal, depth: 0 }),
            ..NewJob::default()
        };
        let id = JobState::child_id(order.turn, order.ordinal);
        let to = Target::Create { id, kind: Job::TABLE.kind.into() };
        (id, Message { to, kind: "create".into(), body: Body::json(&new) })
    }
}
