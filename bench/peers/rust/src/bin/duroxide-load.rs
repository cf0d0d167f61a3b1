//! duroxide on its SQLite provider, clients and runtime in one process.

use duroxide::{
    ActivityContext, Client, OrchestrationContext, OrchestrationRegistry, OrchestrationStatus,
    providers::sqlite::SqliteProvider,
    runtime::{Runtime, RuntimeOptions, registry::ActivityRegistry},
};
use std::{sync::Arc, time::Duration};
use tenure_bench_peers::{Load, RESULT_BYTES, give_up};

#[tokio::main]
async fn main() {
    let load = Load::from_args();
    let directory = load.text("--directory").unwrap_or_else(|| give_up("--directory is missing"));
    let file = format!("{directory}/duroxide.db");
    if let Err(e) = std::fs::File::create(&file) {
        give_up(&format!("{file}: {e}"));
    }
    let store = SqliteProvider::new(&format!("sqlite:{file}"), None).await;
    let store = Arc::new(store.unwrap_or_else(|e| give_up(&e.to_string())));
    let activities = ActivityRegistry::builder()
        .register("step", |_: ActivityContext, argument: String| async move { Ok(argument) })
        .build();
    let work = |ctx: OrchestrationContext, steps: String| async move {
        for _ in 0..steps.parse::<u64>().map_err(|e| e.to_string())? {
            ctx.schedule_activity("step", "x".repeat(RESULT_BYTES)).await?;
        }
        Ok(steps)
    };
    let orchestrations = OrchestrationRegistry::builder().register("work", work).build();
    // Its defaults unless the runner says otherwise: see bench/README.md for what was chosen and why.
    let defaults = RuntimeOptions::default();
    let options = RuntimeOptions {
        orchestration_concurrency: load.number("--workers", defaults.orchestration_concurrency as f64) as usize,
        worker_concurrency: load.number("--workers", defaults.worker_concurrency as f64) as usize,
        dispatcher_min_poll_interval: Duration::from_secs_f64(
            load.number("--poll-ms", defaults.dispatcher_min_poll_interval.as_secs_f64() * 1000.0) / 1000.0,
        ),
        ..defaults
    };
    let runtime = Runtime::start_with_options(store.clone(), activities, orchestrations, options).await;
    let client = Arc::new(Client::new(store));
    let steps = load.steps.to_string();
    let figures = load
        .run(move |number, nth| {
            let (client, steps) = (client.clone(), steps.clone());
            async move {
                let id = format!("job-{number}-{nth}");
                client.start_orchestration(&id, "work", steps.clone()).await.map_err(|e| format!("{e:?}"))?;
                // This reads the recorded history: what it reports as completed is.
                let status = client.wait_for_orchestration(&id, Duration::from_secs(300)).await;
                match status.map_err(|e| format!("{id}: {e:?}"))? {
                    OrchestrationStatus::Completed { output, .. } if output == steps => Ok(()),
                    other => Err(format!("{id} is {other:?}")),
                }
            }
        })
        .await;
    load.print(&figures, Some(figures.all));
    runtime.shutdown(None).await;
}
