//! One module per command of the laboratory.

pub mod bench;
pub mod drill;
pub mod sim;
pub mod soak;
pub mod torture;

use crate::{
    cli::{Cli, Command},
    lab_process::{self, LabProcess},
};
use std::process::ExitCode;
use tenure::{commands::Failure, entry, logs};

/// Runs a command and gives the exit code.
pub fn main(cli: &Cli) -> ExitCode {
    entry::report(run(cli), "tenure-lab")
}

fn run(cli: &Cli) -> Result<String, Failure> {
    lab_process::become_a_child().map_err(Failure::System)?;
    let common = &cli.common;
    if let Command::Product(command) = &cli.command {
        let program = LabProcess::from_environment().map_err(Failure::System)?.program(command);
        return entry::run(command, common, &program);
    }
    let settings = entry::settings(common, Vec::new())?;
    logs::start(&settings).map_err(Failure::System)?;
    let (store, json) = (common.store.as_deref(), common.json);
    // The simulation brings its own executor and must not run inside of Tokio, whose primitives hold back after a
    // number of polls within one task.
    if let Command::Sim(options) = &cli.command {
        return sim::run(options, json);
    }
    let runtime = entry::runtime()?;
    match &cli.command {
        Command::Bench(options) => runtime.block_on(bench::run(store, options, json)),
        Command::Drill(options) => runtime.block_on(drill::run(&settings, store, options, json)),
        Command::Soak(options) => runtime.block_on(soak::run(&settings, store, options, json)),
        Command::Torture(options) => runtime.block_on(torture::run(&settings, options)),
        Command::Product(_) | Command::Sim(_) => Ok(String::new()),
    }
}
