//! Tool calls of agents as jobs: the job's parent is the turn, and its end answers the wait with the same number.

use serde_json::json;
use std::sync::Arc;
use tenure_agents::{
    drive::{
        calls::{Jobs, Order},
        profile::{Described, Run},
    },
    words::Fault,
};
use tenure_jobs::{
    Job, JobState,
    catalogue::{self, Sort},
    drive::JobOptions,
    model::{NewJob, Parent},
    nearest::nearest,
};
use tenure_kernel::{
    error::StoreError,
    ids::EntityId,
    machine::Machine as _,
    outbox::{Message, Target},
    runtime::BoxFuture,
    store::Store,
    stream::Body,
};

/// The flow that calls one tool, whoever has it.
pub(crate) const ONE_CALL: &str = "call";
/// The flow that asks a person.
const ASK: &str = "ask";

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

    fn asks_a_person(&self, run: &Run) -> bool {
        matches!(run, Run::Flow { name, .. } if name == ASK)
    }

    fn described<'a>(
        &'a self,
        store: &'a Arc<dyn Store>,
        tenant: &'a str,
        run: &'a Run,
    ) -> BoxFuture<'a, Option<Described>> {
        let (sort, name, version) = match run {
            Run::Flow { name, version } => (Sort::Flow, name, Some(*version)),
            Run::Tool(name) => (Sort::Tool, name, None),
            Run::Agent(_) | Run::External { .. } => return Box::pin(std::future::ready(None)),
        };
        Box::pin(async move {
            // A catalogue that does not answer now says nothing, as one without the entry does.
            let entry = catalogue::entry(store, sort, tenant, name).await.ok().flatten()?;
            let known = version.map_or_else(|| entry.newest(), |v| entry.version(v))?;
            let (description, parameters) = (known.doc.clone(), known.input_schema.clone());
            Some(Described { description, parameters })
        })
    }

    fn unknown<'a>(
        &'a self,
        store: &'a Arc<dyn Store>,
        tenant: &'a str,
        run: &'a Run,
    ) -> BoxFuture<'a, Option<Fault>> {
        Box::pin(async move {
            // A store that does not answer now does not say that the name is wrong.
            missing(store, tenant, run).await.unwrap_or_default()
        })
    }
}

/// What is wrong with the name of a flow or tool that no worker ever registered, and which one was probably meant.
pub(crate) async fn missing(
    store: &Arc<dyn Store>,
    tenant: &str,
    run: &Run,
) -> Result<Option<Fault>, StoreError> {
    let (sort, code, word, name, version) = match run {
        Run::Flow { name, version } => (Sort::Flow, "unknown_flow", "flow", name, *version),
        Run::Tool(name) => (Sort::Tool, "unknown_tool", "tool", name, 0),
        Run::Agent(_) | Run::External { .. } => return Ok(None),
    };
    let fault = |message| Some(Fault { code: code.to_owned(), message });
    if let Some(entry) = catalogue::entry(store, sort, tenant, name).await? {
        // Old versions are forgotten where there are many; a newer one than all was never there.
        let newest = entry.newest().map_or(0, |v| v.version);
        let known = sort == Sort::Tool || version <= newest;
        let why = format!("the {word} {name} has no version {version}; the newest is {newest}");
        return Ok(if known { None } else { fault(why) });
    }
    // Whoever may not list the catalogue is told less.
    let all = catalogue::list(store, Some(tenant)).await.unwrap_or_default();
    let names = all.iter().filter(|e| e.sort == sort).map(|e| e.name.as_str());
    let meant = nearest(name, names).map(|n| format!("; did you mean {n:?}?")).unwrap_or_default();
    Ok(fault(format!("no worker has ever registered the {word} {name:?}{meant}")))
}
