//! Read-only replay: leads the flow's code through the history, and calls nothing.

use crate::drive::LoadError;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;
use tenure_kernel::{ids::EntityId, store::Store};
use tenure_steps::{events::StepId, flow::Flows};

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

/// Replays a job; `None` if there is no such job.
pub async fn replay(
    flows: &Flows,
    store: &Arc<dyn Store>,
    id: EntityId,
) -> Result<Option<Replayed>, LoadError> {
    let _ = (flows, store, id);
    Ok(None)
}
