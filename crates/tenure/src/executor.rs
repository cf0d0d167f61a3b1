//! The executor of pods: in the process of a server, or in one of its own. And the step of a job that runs as a pod, which
//! is where jobs and pods meet: neither crate knows the other.

use crate::{Program, commands::Failure, config::Settings};
use serde_json::{Value, json};
use std::sync::Arc;
use tenure_edge::executor_of_this_process;
use tenure_engine::{config::EngineConfig, pipeline::Pipeline};
use tenure_jobs::{
    call::NewCall,
    drive::hands::{self, Hands, Order},
};
use tenure_kernel::{machine::Machine as _, stream::Body};
use tenure_pods::{
    execute::{Executor, ExecutorOptions, LiveCluster, PodShop, cluster::Cluster, make},
    follow::connect,
    step::{self, StepDefaults},
    task::{NewTask, Task},
};
use tenure_steps::tool::ToolSpec;

/// Starts it for the cluster of the settings.
pub(crate) async fn start(
    program: &Program,
    pipeline: Pipeline,
    config: EngineConfig,
    settings: &Settings,
) -> Result<Executor, Failure> {
    let client = connect(&settings.kubernetes()?.connection()).await.map_err(Failure::System)?;
    let live = LiveCluster::new(client, settings.text("kubernetes.namespace"));
    let cluster: Arc<dyn Cluster> = program.alterations().cluster(Arc::new(live));
    let rt = pipeline.rt().clone();
    let mut shop = PodShop::new(cluster, rt, settings.pod_policy());
    shop.patience.late = settings.seconds("pods.request_late_seconds");
    let sweep = settings.seconds("pods.stray_sweep_seconds");
    shop.patience.sweep = (!sweep.is_zero()).then_some(sweep);
    if let Some(probe) = program.alterations().probe() {
        shop = shop.with_probe(probe);
    }
    let options = ExecutorOptions {
        name: format!("executor, pid {}", std::process::id()),
        process: executor_of_this_process(),
        cluster: settings.text("pods.cluster").to_owned(),
        slots: usize::try_from(settings.number("pods.executor_slots")).unwrap_or(usize::MAX),
        drain: settings.seconds("worker.drain_seconds"),
    };
    Ok(Executor::start(pipeline, Arc::new(config), Arc::new(shop), options).await?)
}

/// Takes calls of the tool `pod`: each is a task.
struct PodHands {
    defaults: StepDefaults,
    tools: Vec<ToolSpec>,
}

impl Hands for PodHands {
    fn tools(&self) -> &[ToolSpec] {
        &self.tools
    }

    fn check(&self, _tool: &str, input: &Value) -> Result<(), String> {
        self.defaults.check(input)
    }

    fn order(&self, call: &NewCall, tenant: &str) -> Order {
        let words = serde_json::to_value(call).unwrap_or_default();
        let task = self.defaults.order(&words, tenant).unwrap_or_else(|why| {
            // Our own words, which we can read. If that were not so, the task ends at once and says it.
            let template = json!({ make::REFUSED: why });
            NewTask { tenant_id: tenant.to_owned(), template, ..NewTask::default() }
        });
        Order { kind: Task::TABLE.kind.into(), body: Body::json(&task) }
    }
}

/// The tool `pod` of jobs in this process.
pub(crate) fn hands(settings: &Settings) -> Arc<dyn Hands> {
    let pods = settings.pods();
    let mut tool = hands::spec(step::TOOL);
    tool.doc =
        "Runs a container image as a pod, and returns its exit code and what it wrote.".into();
    tool.options.timeout = Some(pods.must_end_in);
    tool.input_schema = Some(step::input_schema());
    tool.output_schema = Some(step::output_schema());
    let defaults = StepDefaults {
        retry: pods.retry,
        budget: pods.budget,
        cleanup: pods.cleanup,
        times: pods.times,
        cluster: settings.text("pods.cluster").to_owned(),
        namespace: String::new(),
        bounds: pods.bounds,
    };
    Arc::new(PodHands { defaults, tools: vec![tool] })
}
