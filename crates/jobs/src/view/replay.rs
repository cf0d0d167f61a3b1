//! Read-only replay: leads the flow's code through the history, and calls nothing.

use super::stream;
use crate::{
    drive::{LoadError, Loaded, load},
    model::{Job, JobState},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::sync::Arc;
use tenure_kernel::{ids::EntityId, machine::Machine as _, store::Store, time::Timestamp};
use tenure_steps::{
    desk::Divergence,
    driver::{Driver, End, Turn, World},
    events::StepId,
    flow::{FlowSpec, Flows, queue_of},
    history::History,
};

/// What a replay showed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Replayed {
    /// The code leads through the history.
    Consistent {
        /// Steps with an outcome.
        steps: usize,
        /// What it would go on with: steps that are open, or not begun.
        open: Vec<StepId>,
        /// What the flow returned, if it did.
        output: Option<Value>,
    },
    /// The code asks for something else than the history has.
    Diverged {
        /// Where it shows.
        step: StepId,
        /// What stands in the history, and where it was asked for.
        recorded: String,
        /// What the code asks for now, and where.
        expected: String,
    },
    /// The flow panics, or waits for something that the engine does not know.
    Broken {
        /// In words, with the place.
        why: String,
    },
    /// The code ends otherwise than the job did.
    EndsOtherwise {
        /// How the job ended.
        recorded: Value,
        /// How the code ends.
        replayed: Value,
    },
    /// Nobody here has this flow.
    UnknownFlow {
        /// Its name and version.
        flow: String,
    },
}

/// Replays a job; `None` if there is no such job. Nothing is called and nothing is written: what the flow
/// asks for is listed and forgotten.
pub async fn replay(
    flows: &Flows,
    store: &Arc<dyn Store>,
    id: EntityId,
) -> Result<Option<Replayed>, LoadError> {
    let head = store.head(id).await?.filter(|h| h.kind() == Job::TABLE.kind);
    let Some(head) = head else { return Ok(None) };
    let loaded = load(store, id).await?;
    let (name, version) = (&loaded.state.flow, loaded.state.version);
    let Some(flow) = flows.get(name, version) else {
        return Ok(Some(Replayed::UnknownFlow { flow: queue_of(name, version) }));
    };
    let cut = loaded.state.cancel.is_some().then(|| loaded.history.without_undos());
    let seen = cut.as_ref().unwrap_or(&loaded.history);
    let (_, turn) = start(flow, id, &head.tenant, &loaded.state, &loaded.input, seen);
    let ended = match head.status.name() {
        "completed" => {
            let lines = stream::read(store, id).await?;
            stream::output(&lines).map(|output| json!({ "completed": output }))
        }
        _ => None,
    };
    Ok(Some(judge(&loaded, turn, ended)))
}

fn start(
    flow: &FlowSpec,
    job: EntityId,
    tenant: &str,
    state: &JobState,
    input: &Value,
    history: &History,
) -> (Driver, Turn) {
    // A step beyond the history may ask for the time or a random number; nobody keeps what it gets.
    let (tenant, run) = (tenant.to_owned(), state.run);
    let world = World { job, tenant, run, now: Timestamp::ZERO, entropy: 0 };
    Driver::start(flow, input.clone(), history, world)
}

fn judge(loaded: &Loaded, turn: Turn, recorded: Option<Value>) -> Replayed {
    let steps = loaded.history.steps.values().filter(|r| r.outcome.is_some()).count();
    let is_open =
        |s: &StepId| loaded.history.steps.get(s).is_none_or(|record| record.outcome.is_none());
    let mut open: Vec<StepId> = turn.asks.into_iter().map(|a| a.step).filter(is_open).collect();
    open.retain(|s| !turn.dropped.contains(s));
    let replayed = match turn.end {
        Some(End::Diverged(Divergence { step, recorded, expected })) => {
            return Replayed::Diverged { step, recorded, expected };
        }
        Some(End::Broken(why)) => return Replayed::Broken { why },
        Some(End::Returned(Ok(output))) => Ok(output),
        Some(End::Returned(Err(e))) => Err(json!({ "failed": e.to_string() })),
        None => Err(json!({ "open": open.clone() })),
    };
    match (recorded, replayed) {
        (Some(recorded), Ok(output)) if recorded["completed"] == output => {
            Replayed::Consistent { steps, open: Vec::new(), output: Some(output) }
        }
        (Some(recorded), Ok(output)) => {
            Replayed::EndsOtherwise { recorded, replayed: json!({ "completed": output }) }
        }
        (Some(recorded), Err(replayed)) => Replayed::EndsOtherwise { recorded, replayed },
        (None, output) => Replayed::Consistent { steps, open, output: output.ok() },
    }
}
