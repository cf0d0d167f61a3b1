//! Commits as fast as it can and prints what was acknowledged, one line each: entity, version and
//! commit id. The tests kill it and then look whether every printed line is in the store.

use crate::cli;
use crate::judge;
use std::{io::Write as _, sync::Arc};
use tenure::commands::Failure;
use tenure::{config::Settings, open::open};
use tenure_bench::commit::{born, step};
use tenure_edge::{TokioRuntime, executor_of_this_process};
use tenure_engine::{pipeline::Pipeline, session::Keeper};
use tenure_kernel::{commit::CommitAnswer, runtime::Rt};

/// Runs until it is killed.
pub async fn run(settings: &Settings, options: &cli::Torture) -> Result<String, Failure> {
    let opened = open(settings, judge()).await?;
    let rt: Rt = Arc::new(TokioRuntime::current());
    let mut config = settings.engine();
    config.flights = opened.flights;
    let pipeline = Pipeline::new(opened.store, opened.bell, rt.clone(), &config);
    let executor = executor_of_this_process();
    let keeper =
        Keeper::open(pipeline.clone(), Arc::new(config), "torture", "worker", executor).await?;
    let callers: Vec<_> = (0..options.callers)
        .map(|_| {
            let (pipeline, keeper) = (pipeline.clone(), keeper.clone());
            #[expect(clippy::disallowed_methods, reason = "a command is process edge")]
            tokio::task::spawn(async move { caller(&pipeline, &keeper).await })
        })
        .collect();
    for task in callers {
        task.await.map_err(|e| Failure::System(e.to_string()))??;
    }
    Ok(String::new())
}

async fn caller(pipeline: &Pipeline, keeper: &Keeper) -> Result<(), Failure> {
    let mut commit = born(pipeline, keeper).await?;
    loop {
        let (entity, id) = (commit.entity, commit.id);
        match pipeline.commit(commit).await? {
            CommitAnswer::Committed(c) => {
                let line = format!("{entity} {} {}\n", c.version, u128::from_be_bytes(id.0));
                std::io::stdout().lock().write_all(line.as_bytes())?;
                commit = step(pipeline, entity, c.epoch, c.version);
            }
            other => return Err(Failure::Found(format!("a commit was answered {other:?}"))),
        }
    }
}
