//! The `tenure` binary: parses, loads the settings, dispatches, and prints.

mod memory;

use clap::Parser as _;
use std::{path::Path, process::ExitCode};
use tenure::{
    cli::{Cli, Command},
    commands::{self, Failure},
    config::Settings,
    logs,
};
use tokio::runtime::Builder;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match start(&cli) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("tenure: {failure}");
            if let Some(code) = failure.code() {
                eprintln!("        (code {code}: see docs/errors/{code}.md)");
            }
            ExitCode::FAILURE
        }
    }
}

fn start(cli: &Cli) -> Result<String, Failure> {
    tenure::drill::child::die_with_the_drill().map_err(Failure::System)?;
    tenure::drill::child::take_the_clock_of_the_drill().map_err(Failure::System)?;
    let settings = settings(cli)?;
    logs::start(&settings).map_err(Failure::System)?;
    if let Some(answer) = at_once(cli, &settings) {
        return answer;
    }
    if matches!(cli.command, Command::Collector(_)) {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(Failure::from)?;
        runtime.spawn(memory::stay_small());
        return runtime.block_on(dispatch(cli, &settings));
    }
    // One more thread than cores: an embedded store writes on the thread that brings the batch, and
    // the disk must not take a core's worth of work with it.
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get) + 1;
    let runtime = Builder::new_multi_thread().worker_threads(threads).enable_all().build();
    runtime.map_err(Failure::from)?.block_on(dispatch(cli, &settings))
}

/// Commands that need no runtime. The simulation brings its own executor and must not run inside of
/// Tokio, whose primitives hold back after a number of polls within one task.
fn at_once(cli: &Cli, settings: &Settings) -> Option<Result<String, Failure>> {
    match &cli.command {
        Command::Config => Some(commands::config::run(settings, cli.common.json)),
        Command::Sim(options) => Some(commands::sim::run(options, cli.common.json)),
        _ => None,
    }
}

async fn dispatch(cli: &Cli, settings: &Settings) -> Result<String, Failure> {
    let json = cli.common.json;
    match &cli.command {
        Command::Demo(options) => commands::demo::run(options, json).await,
        Command::Up => commands::serve::run(settings, true, json).await,
        Command::Server => commands::serve::run(settings, false, json).await,
        Command::Worker(o) => {
            commands::serve::work(settings, &o.server, o.api_key.as_deref(), json).await
        }
        Command::Collector(options) => commands::collector::run(settings, options, json).await,
        Command::Executor(options) => commands::executor::run(settings, options, json).await,
        Command::Job(options) => commands::job::run(options, json).await,
        Command::Agent(options) => commands::agent::run(options, json).await,
        Command::Turn(options) => commands::agent::turn::run(options, json).await,
        Command::Inbox(options) => commands::agent::inbox(options, json).await,
        Command::Watchdog(options) => commands::agent::watchdog(options, json).await,
        Command::Task(options) => commands::task::run(settings, options, json).await,
        Command::Gate(options) => commands::gate::run(options, json).await,
        Command::Queue(options) => commands::queue::run(options, json).await,
        Command::Limit(options) => commands::limit::run(options, json).await,
        Command::Call(options) => commands::call::run(options, json).await,
        Command::Schedule(options) => commands::schedule::run(options, json).await,
        Command::Plan(options) => commands::plan::run(options, json).await,
        Command::Key { action } => commands::key::run(settings, action, json).await,
        Command::Rules => commands::rules::run(settings, json).await,
        Command::Doctor(options) => commands::doctor::run(settings, options, json).await,
        Command::Verify(options) => commands::verify::run(settings, options, json).await,
        Command::Export(options) => commands::evidence::export(options, json).await,
        Command::Evidence { action } => commands::evidence::run(action, json),
        Command::Config | Command::Sim(_) => at_once(cli, settings).unwrap_or(Ok(String::new())),
        Command::Bench(options) => {
            commands::bench::run(cli.common.store.as_deref(), options, json).await
        }
        Command::Drill(options) => {
            commands::drill::run(settings, cli.common.store.as_deref(), options, json).await
        }
        Command::Soak(options) => {
            commands::soak::run(settings, cli.common.store.as_deref(), options, json).await
        }
        Command::Torture(options) => commands::torture::run(settings, options).await,
    }
}

/// The file that is used when none is named.
const DEFAULT_FILE: &str = "tenure.toml";

fn settings(cli: &Cli) -> Result<Settings, Failure> {
    let common = &cli.common;
    let default = Path::new(DEFAULT_FILE);
    let file = common.config.as_deref().or_else(|| default.exists().then_some(default));
    let mut flags = common.set.clone();
    // Bare names of engines are for commands that make a scratch store of their own.
    if let Some(url) = &common.store
        && !["sqlite", "postgres"].contains(&url.as_str())
    {
        flags.push(format!("store.url={url}"));
    }
    if let Command::Worker(worker) = &cli.command {
        let words = [
            ("worker.queues", &worker.queues),
            ("worker.capabilities", &worker.can),
            ("worker.targets", &worker.targets),
        ];
        let given = words.iter().filter(|(_, words)| !words.is_empty());
        flags.extend(given.map(|(key, words)| format!("{key}={}", words.join(","))));
    }
    if let Command::Collector(collector) = &cli.command {
        flags.extend(collector.flags());
    }
    if let Command::Executor(executor) = &cli.command {
        flags.extend(executor.flags());
    }
    Ok(Settings::load(file, std::env::vars(), &flags)?)
}
