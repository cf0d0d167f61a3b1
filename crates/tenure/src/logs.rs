//! Structured logs on standard error; standard output belongs to answers.

use crate::config::Settings;
use std::{
    io::IsTerminal as _,
    sync::atomic::{AtomicBool, Ordering},
};
use tracing_subscriber::{EnvFilter, fmt};

/// A process that serves prints JSON and nothing else, from its first line to its last.
static ONLY_JSON: AtomicBool = AtomicBool::new(false);

/// Starts logging as the settings say. A filter that can not be read is an error worth reading.
pub fn start(settings: &Settings) -> Result<(), String> {
    let text = settings.text("log.filter");
    let filter = EnvFilter::try_new(text)
        .map_err(|e| format!("log.filter = {text:?} can not be read: {e}"))?;
    let base = fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // An error means that logging was started before, which tests do.
    let _ = match is_json(settings) {
        true => base.json().try_init(),
        false => base.with_target(false).with_ansi(has_colours()).try_init(),
    };
    Ok(())
}

/// Whether the collector of the logs reads JSON: then a process that serves prints nothing else.
pub fn is_json(settings: &Settings) -> bool {
    settings.text("log.format") == "json"
}

/// From here on everything that this process says is a line of JSON, also why it ends, and a panic.
pub fn only_json() {
    ONLY_JSON.store(true, Ordering::Relaxed);
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
}

/// Whether [`only_json`] was called.
pub fn is_only_json() -> bool {
    ONLY_JSON.load(Ordering::Relaxed)
}

/// Starts logging where the settings cannot be read: as the command line says, else the environment.
pub fn start_without_settings(flags: &[String]) {
    let flag = flags.iter().rev().find_map(|flag| flag.strip_prefix("log.format="));
    let variable = std::env::var(crate::config::variable("log.format")).ok();
    if flag.or(variable.as_deref()) == Some("json") {
        // An error means that logging was started before.
        let _ = fmt().with_writer(std::io::stderr).json().try_init();
        only_json();
    }
}

/// A file and a program that reads the logs get no colours; neither does who asks for none (<https://no-color.org>).
fn has_colours() -> bool {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    std::io::stderr().is_terminal() && !unwanted
}
