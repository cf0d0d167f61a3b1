//! The built-in flow that carries an order out, and its two tools.

use super::{Acted, FLOW, Found, Order, Reasons, act, find};
use crate::submit::Submitter;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tenure_engine::pipeline::Pipeline;
use tenure_kernel::{error::StoreError, ids::EntityId};
use tenure_steps::{
    Ctx, FlowError,
    flow::FlowSpec,
    tool::{ToolCtx, ToolError, ToolSpec, Tools},
};

const FIND: &str = "bulk.find";
const ACT: &str = "bulk.act";
/// Pages of one run; then the flow starts afresh, so that its history stays short.
const PAGES_PER_RUN: usize = 300;

/// How far it is. The input of the flow; a fresh one has only the order.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Progress {
    order: Order,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    after: Option<EntityId>,
    #[serde(default)]
    so_far: Account,
}

/// What was done. The output of the flow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Account {
    done: u64,
    skipped: Reasons,
    failed: Reasons,
}

impl Account {
    fn add(&mut self, acted: Acted) {
        self.done += acted.done;
        add(&mut self.skipped, acted.skipped);
        add(&mut self.failed, acted.failed);
    }
}

fn add(to: &mut Reasons, more: Reasons) {
    for (why, n) in more {
        *to.entry(why).or_default() += n;
    }
}

/// The arguments of `bulk.find`.
#[derive(Deserialize)]
struct Where {
    order: Order,
    after: Option<EntityId>,
}

/// The arguments of `bulk.act`.
#[derive(Deserialize)]
struct Which {
    order: Order,
    jobs: Vec<EntityId>,
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, FlowError> {
    serde_json::from_value(value).map_err(|e| FlowError::Failed(format!("this is no order: {e}")))
}

/// The flow.
pub fn flow() -> FlowSpec {
    FlowSpec::new(FLOW, |ctx: Ctx, input: Value| async move {
        let Progress { order, mut after, mut so_far } = read(input)?;
        for _ in 0..PAGES_PER_RUN {
            let found: Found = ctx.tool(FIND, json!({ "order": order, "after": after })).await?;
            add(&mut so_far.skipped, found.skipped);
            if !found.jobs.is_empty() {
                let which = json!({ "order": order, "jobs": found.jobs });
                let acted: Acted = ctx.tool(ACT, which).await?;
                so_far.add(acted);
            }
            after = found.next;
            if after.is_none() {
                return Ok(json!(so_far));
            }
        }
        Err(ctx.continue_with(Progress { order, after, so_far }))
    })
    .doc("Asks many jobs of its tenant at once; made by POST /v1/jobs/bulk.")
}

/// What the flow calls. They act within the tenant of the job that calls them, whatever they are told.
pub fn tools(pipeline: &Pipeline, jobs: &Submitter) -> Tools {
    let store = pipeline.store().clone();
    let finding = ToolSpec::new(FIND, move |ctx: ToolCtx, place: Value| {
        let store = store.clone();
        async move {
            let Where { order, after } =
                serde_json::from_value(place).map_err(ToolError::permanent)?;
            find(&store, &order, &ctx.tenant, after).await.map(|found| json!(found)).map_err(away)
        }
    });
    let (pipeline, jobs) = (pipeline.clone(), jobs.clone());
    let acting = ToolSpec::new(ACT, move |ctx: ToolCtx, which: Value| {
        let (pipeline, jobs) = (pipeline.clone(), jobs.clone());
        async move {
            let Which { order, jobs: ids } =
                serde_json::from_value(which).map_err(ToolError::permanent)?;
            act(&pipeline, &jobs, &order, (ctx.job, &ctx.tenant), &ids)
                .await
                .map(|acted| json!(acted))
                .map_err(away)
        }
    });
    Tools::default().with(finding.idempotent()).with(acting.idempotent())
}

fn away(e: StoreError) -> ToolError {
    ToolError::retryable(e)
}
