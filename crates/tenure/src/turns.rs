//! The worker for turns of agents: in the process of a server, or in one of its own beside the worker for jobs.

use crate::{
    Program,
    commands::Failure,
    config::Settings,
    service::{llm_options, secrets},
};
use std::sync::Arc;
use tenure_agents::drive::{TurnCrew, TurnCrewOptions, TurnShop, model::ChatModel};
use tenure_edge::executor_of_this_process;
use tenure_engine::{config::EngineConfig, pipeline::Pipeline};
use tenure_server::turns::tools::AsJobs;
use tenure_tools::llm::Llm;

/// Starts it for the targets of the settings; none where there are none.
pub(crate) async fn crew(
    program: &Program,
    pipeline: Pipeline,
    config: EngineConfig,
    settings: &Settings,
) -> Result<Option<TurnCrew>, Failure> {
    let words = settings.text("worker.targets").split(',').map(str::trim);
    let targets: Vec<String> = words.filter(|w| !w.is_empty()).map(str::to_owned).collect();
    if let Some(bad) = targets.iter().find(|t| !tenure_agents::is_token(t)) {
        return Err(Failure::System(format!(
            "worker.targets: {bad:?} is no target: 1 to 64 letters, digits, _ or -"
        )));
    }
    if targets.is_empty() {
        return Ok(None);
    }
    let model = ChatModel::new(Llm::new(llm_options(settings), secrets(settings)));
    let mut shop = TurnShop::new(Arc::new(model), Arc::new(AsJobs::default()));
    if let Some(probe) = program.alterations().probe() {
        shop = shop.with_probe(probe);
    }
    let options = TurnCrewOptions {
        name: format!("worker of turns, pid {}", std::process::id()),
        executor: executor_of_this_process(),
        targets,
        slots: usize::try_from(settings.number("worker.slots")).unwrap_or(usize::MAX),
        drain: settings.seconds("worker.drain_seconds"),
    };
    Ok(Some(TurnCrew::start(pipeline, Arc::new(config), Arc::new(shop), options).await?))
}
