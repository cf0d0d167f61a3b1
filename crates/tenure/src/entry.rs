//! From parsed arguments to an exit code. The `main` of `tenure` and of `tenure-lab` each call one function in here, so
//! that no command is compiled a second time in a binary.

use crate::{
    Program,
    cli::{Cli, Command, Common, LabCommand, TopCommand},
    client_tls,
    commands::{self, Failure},
    config::Settings,
    local_key, logs, memory, terminal, times,
};
use futures_util::future::LocalBoxFuture;
use std::{ffi::OsString, os::unix::process::CommandExt as _, path::Path, process::ExitCode};
use tokio::runtime::{Builder, Runtime};

/// Runs a command of the product, or hands it to the laboratory's binary.
pub fn main(cli: &Cli) -> ExitCode {
    match &cli.command {
        TopCommand::Product(command) => {
            report(run(command, &cli.common, &Program::new()), "tenure")
        }
        TopCommand::Lab(command) => report(Err(run_lab(command)), "tenure"),
    }
}

/// Prints what a command answered, on standard output or standard error, and gives the exit code.
pub fn report(answer: Result<String, Failure>, program: &str) -> ExitCode {
    match answer {
        Ok(text) => {
            terminal::print(&text);
            ExitCode::SUCCESS
        }
        Err(failure) if logs::is_only_json() => {
            let code = failure.code().map(|code| code.as_str());
            tracing::error!(code, "{failure}");
            ExitCode::from(failure.exit_code())
        }
        Err(failure) => {
            terminal::error_line(&format_args!("{program}: {failure}"));
            if let Some(code) = failure.code() {
                terminal::error_line(&format_args!(
                    "        (code {code}: `tenure explain {code}` says more)"
                ));
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Runs a command of the product, with the flows, tools and alterations of this program in its servers and workers.
pub fn run(command: &Command, common: &Common, program: &Program) -> Result<String, Failure> {
    times::choose(common.utc);
    match command {
        Command::Explain(options) => return commands::explain::run(options, common.json),
        Command::Completions(options) => return Ok(commands::manual::completions(options)),
        Command::Manual(options) => return commands::manual::manual(options, common.json),
        _ => {}
    }
    let settings = settings(common, command.flags()).inspect_err(|_| {
        if command.serves() {
            logs::start_without_settings(&common.set);
        }
    })?;
    logs::start(&settings).map_err(Failure::System)?;
    let only_json = command.serves() && logs::is_json(&settings);
    if only_json {
        logs::only_json();
    }
    let json = common.json || only_json;
    local_key::look_in(&settings);
    client_tls::look_in(&settings)?;
    if let Command::Config = command {
        return commands::config::run(&settings, common.json);
    }
    if let Command::Collector(_) = command {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(Failure::from)?;
        runtime.spawn(memory::stay_small());
        return runtime.block_on(dispatch(command, &settings, json, program));
    }
    runtime()?.block_on(dispatch(command, &settings, json, program))
}

/// The runtime of a command.
pub fn runtime() -> Result<Runtime, Failure> {
    // One more thread than cores: an embedded store writes on the thread that brings the batch, and
    // the disk must not take a core's worth of work with it.
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get) + 1;
    Builder::new_multi_thread().worker_threads(threads).enable_all().build().map_err(Failure::from)
}

/// The future of a command. Each is boxed: the sum of all of them would be compiled as one state machine.
fn dispatch<'a>(
    command: &'a Command,
    settings: &'a Settings,
    json: bool,
    program: &'a Program,
) -> LocalBoxFuture<'a, Result<String, Failure>> {
    match command {
        Command::Demo(options) => Box::pin(commands::demo::run(options, json)),
        Command::DemoWorker(o) => Box::pin(commands::demo::work(settings, o, json)),
        Command::Up => Box::pin(commands::serve::run(program, settings, true, json)),
        Command::Server => Box::pin(commands::serve::run(program, settings, false, json)),
        Command::Worker(o) if o.action.is_some() => Box::pin(commands::workers::list(o, json)),
        Command::Worker(o) => Box::pin(commands::serve::work(program, settings, o, json)),
        Command::Collector(o) => Box::pin(commands::collector::run(program, settings, o, json)),
        Command::Executor(o) => Box::pin(commands::executor::run(program, settings, o, json)),
        Command::Job(options) => Box::pin(commands::job::run(options, json)),
        Command::Agent(options) => Box::pin(commands::agent::run(options, json)),
        Command::Turn(options) => Box::pin(commands::agent::turn::run(options, json)),
        Command::Inbox(options) => Box::pin(commands::agent::inbox(options, json)),
        Command::Watchdog(options) => Box::pin(commands::agent::watchdog(options, json)),
        Command::Task(options) => Box::pin(commands::task::run(settings, options, json)),
        Command::Gate(options) => Box::pin(commands::gate::run(options, json)),
        Command::Queue(options) => Box::pin(commands::queue::run(options, json)),
        Command::Block(options) => Box::pin(commands::block::run(options, json)),
        Command::Limit(options) => Box::pin(commands::limit::run(options, json)),
        Command::Call(options) => Box::pin(commands::call::run(options, json)),
        Command::Batch(options) => Box::pin(commands::batch::run(options, json)),
        Command::Flow(options) => Box::pin(commands::catalogue::run(options, "flows", json)),
        Command::Tool(options) => Box::pin(commands::catalogue::run(options, "tools", json)),
        Command::Schedule(options) => Box::pin(commands::schedule::run(options, json)),
        Command::Plan(options) => Box::pin(commands::plan::run(options, json)),
        Command::Key(options) => Box::pin(commands::key::run(settings, options, json)),
        Command::Audit(options) => Box::pin(commands::audit::run(settings, options, json)),
        Command::Rules => Box::pin(commands::rules::run(settings, json)),
        Command::Doctor(options) => Box::pin(commands::doctor::run(settings, options, json)),
        Command::Backup(o) => Box::pin(async move { commands::backup::back_up(settings, o, json) }),
        Command::Restore(o) => {
            Box::pin(async move { commands::backup::restore(settings, o, json) })
        }
        Command::Verify(o) => Box::pin(commands::verify::run(program, settings, o, json)),
        Command::Export(options) => Box::pin(commands::evidence::export(options, json)),
        Command::Evidence { action } => {
            Box::pin(async move { commands::evidence::run(action, json) })
        }
        Command::Config => Box::pin(async move { commands::config::run(settings, json) }),
        Command::Explain(o) => Box::pin(async move { commands::explain::run(o, json) }),
        Command::Completions(o) => Box::pin(async move { Ok(commands::manual::completions(o)) }),
        Command::Manual(o) => Box::pin(async move { commands::manual::manual(o, json) }),
    }
}

/// The file that is used when none is named.
const DEFAULT_FILE: &str = "tenure.toml";

/// The settings in force: the file, the environment, and what was typed.
pub fn settings(common: &Common, more: Vec<String>) -> Result<Settings, Failure> {
    let default = Path::new(DEFAULT_FILE);
    let file = common.config.as_deref().or_else(|| default.exists().then_some(default));
    let mut flags = common.set.clone();
    // Bare names of engines are for commands that make a scratch store of their own.
    if let Some(url) = &common.store
        && !["sqlite", "postgres"].contains(&url.as_str())
    {
        flags.push(format!("store.url={url}"));
    }
    flags.extend(more);
    Ok(Settings::load(file, std::env::vars(), &flags)?)
}

/// The name of the laboratory's binary.
const LAB: &str = "tenure-lab";

/// Replaces this process by the laboratory's binary, with the same arguments. Returns only if that failed.
fn run_lab(command: &LabCommand) -> Failure {
    let name = match command {
        LabCommand::Drill(_) => "drill",
        LabCommand::Soak(_) => "soak",
        LabCommand::Sim(_) => "sim",
        LabCommand::Bench(_) => "bench",
    };
    let this = match std::env::current_exe() {
        Ok(this) => this,
        Err(e) => return Failure::System(format!("the path of this program is unknown: {e}")),
    };
    let lab = this.with_file_name(LAB);
    if !lab.exists() {
        return Failure::System(format!(
            "`tenure {name}` is run by {LAB}, which is not installed: {} does not exist.\n        In a checkout of the \
             source, `cargo build --release -p {LAB}` builds it; copy it from target/release to the directory of `tenure`.",
            lab.display()
        ));
    }
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let failed = std::process::Command::new(&lab).args(arguments).exec();
    Failure::System(format!("{} could not be started: {failed}", lab.display()))
}
